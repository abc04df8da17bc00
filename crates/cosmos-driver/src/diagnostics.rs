//! What an operation went through: one entry per attempt, kept with answers and errors alike.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cosmos_wire::status::Status;

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "1.1",
            Self::Http2 => "2",
        }
    }
}

/// What kind of attempt it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Context {
    /// The first attempt.
    Initial,
    /// The second leg of a race.
    Hedging,
    /// Again at the same place: throttled, or a transient conflict.
    Retry,
    /// Again on another connection.
    OtherShard,
    /// Again by the ordinary gateway of the region, because Gateway 2.0 did not work.
    OrdinaryGateway,
    /// Again in another region.
    Failover,
    /// Again because the session's writes had not arrived.
    Session,
    /// Again after routing was refreshed.
    Rerouted,
}

impl Context {
    fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Hedging => "hedging",
            Self::Retry => "retry",
            Self::OtherShard => "other_shard",
            Self::OrdinaryGateway => "ordinary_gateway",
            Self::Failover => "failover",
            Self::Session => "session",
            Self::Rerouted => "rerouted",
        }
    }
}

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Delivery {
    /// The service cannot have seen it.
    NotSent,
    /// It left and was not answered: the service may have executed it.
    MayHaveArrived,
    /// The service answered.
    Answered,
}

/// What the service took for an attempt whose answer the operation did not wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LateCharge {
    /// Its answer may still come.
    Pending,
    /// Its answer came after the operation had ended.
    Known(f64),
    /// It never came: the service may have charged for it.
    Unknown,
}

/// Where the charge of an attempt that lost a race is written once it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateCell(Arc<OnceLock<Option<f64>>>);

impl LateCell {
    pub(crate) fn set(&self, charge: Option<f64>) {
        // Set once, by the task that waits for the answer.
        let _twice = self.0.set(charge);
    }

    fn get(&self) -> LateCharge {
        match self.0.get() {
            None => LateCharge::Pending,
            Some(None) => LateCharge::Unknown,
            Some(Some(charge)) => LateCharge::Known(*charge),
        }
    }
}

/// One attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Why it was made.
    pub context: Context,
    /// Where it went.
    pub region: Arc<str>,
    /// The connection that carried it, if it got one.
    pub shard: Option<u32>,
    /// The protocol of that connection.
    pub protocol: Option<Protocol>,
    /// Whether it went by Gateway 2.0.
    pub gateway2: bool,
    /// The answer's status, if one came.
    pub status: Option<Status>,
    /// Request units charged, as far as was known when the operation ended.
    pub charge: f64,
    /// How far the request got.
    pub delivery: Delivery,
    /// Time spent waiting for a slot on connections that were open, but full. High while `headers` is low: this process
    /// sends more than its connections carry.
    pub slot_wait: Duration,
    /// Time spent waiting for a connection to be opened.
    pub connect_wait: Duration,
    /// From the hand-over of the request to the head of the answer, if one came. High: the service or the way is slow.
    pub headers: Option<Duration>,
    /// From the head of the answer to its end.
    pub body: Option<Duration>,
    /// Bytes of the request's body.
    pub request_bytes: usize,
    /// Bytes of the answer's body.
    pub response_bytes: usize,
    /// Start, counted from the start of the operation.
    pub started: Duration,
    /// Time until the answer was complete or the attempt broke.
    pub elapsed: Duration,
    /// Why no answer came.
    pub error: Option<Arc<str>>,
    pub(crate) late: Option<LateCell>,
}

impl Attempt {
    /// What is known by now of the charge of an attempt that lost a race and was not waited for; `None` for all others.
    #[must_use]
    pub fn late_charge(&self) -> Option<LateCharge> {
        self.late.as_ref().map(LateCell::get)
    }

    /// Whether all that the service may have charged for this attempt is known.
    #[must_use]
    pub fn is_charge_known(&self) -> bool {
        match (self.delivery, self.late_charge()) {
            (_, Some(LateCharge::Known(_))) | (Delivery::NotSent | Delivery::Answered, None) => true,
            (_, Some(LateCharge::Pending | LateCharge::Unknown)) | (Delivery::MayHaveArrived, None) => false,
        }
    }

    fn charge_by_now(&self) -> f64 {
        match self.late_charge() {
            Some(LateCharge::Known(late)) => self.charge + late,
            Some(LateCharge::Pending | LateCharge::Unknown) | None => self.charge,
        }
    }
}

/// Everything recorded about one operation.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    attempts: Vec<Attempt>,
    elapsed: Duration,
    gateway2: bool,
}

impl Diagnostics {
    pub(crate) fn push(&mut self, attempt: Attempt) {
        if self.attempts.is_empty() {
            self.attempts.reserve_exact(1);
        }
        self.attempts.push(attempt);
    }

    /// Adds the attempts of another leg, in order of their start.
    pub(crate) fn merge(&mut self, other: Self) {
        self.attempts.extend(other.attempts);
        self.attempts.sort_by_key(|attempt| attempt.started);
        self.gateway2 |= other.gateway2;
    }

    /// For work put together from several operations: as long as its longest attempt took to end.
    pub(crate) fn span_attempts(&mut self) {
        let ends = self.attempts.iter().map(|attempt| attempt.started + attempt.elapsed);
        self.elapsed = ends.max().unwrap_or_default();
    }

    pub(crate) fn finish(&mut self, elapsed: Duration, gateway2: bool) {
        self.elapsed = elapsed;
        self.gateway2 = gateway2;
    }

    /// The attempts, in order of their start.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The attempt that was answered with success: not the last one, if that only lost a race.
    pub(crate) fn winner(&self) -> Option<&Attempt> {
        let has_won = |attempt: &&Attempt| {
            attempt.status.is_some_and(|status| status.is_success() || status.code == 304)
        };
        self.attempts.iter().rev().find(has_won)
    }

    /// Wall time of the whole operation.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Request units of all attempts, as far as they are known by now. What lost a race counts from the moment its answer
    /// has come, which may be after the operation.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.attempts.iter().fold(0.0, |sum, attempt| sum + attempt.charge_by_now())
    }

    /// Whether the service may have charged more than [`Diagnostics::charge`] says: for a request that was not answered,
    /// or whose answer has not come yet.
    #[must_use]
    pub fn has_unknown_charge(&self) -> bool {
        !self.attempts.iter().all(Attempt::is_charge_known)
    }

    /// Whether a second leg was started.
    #[must_use]
    pub fn is_hedged(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.context == Context::Hedging)
    }

    /// Whether the account advertises Gateway 2.0 locations.
    #[must_use]
    pub fn has_gateway2(&self) -> bool {
        self.gateway2
    }

    /// Compact JSON, one object per operation, for logs.
    #[must_use]
    pub fn to_json(&self) -> String {
        let attempts: Vec<serde_json::Value> = self.attempts.iter().map(attempt_json).collect();
        let mut json =
            serde_json::json!({ "ms": ms(self.elapsed), "ru": units(self.charge()), "attempts": attempts });
        if self.has_unknown_charge() {
            json["ru_unknown"] = true.into();
        }
        if self.gateway2 {
            json["gateway2"] = true.into();
        }
        json.to_string()
    }
}

fn attempt_json(attempt: &Attempt) -> serde_json::Value {
    let mut json = serde_json::json!({
        "why": attempt.context.as_str(),
        "region": &*attempt.region,
        "at": ms(attempt.started),
        "ms": ms(attempt.elapsed),
    });
    if let Some(shard) = attempt.shard {
        json["shard"] = shard.into();
    }
    if let Some(protocol) = attempt.protocol {
        json["http"] = protocol.as_str().into();
    }
    if attempt.gateway2 {
        json["gateway2"] = true.into();
    }
    for (name, time) in [("slot_ms", attempt.slot_wait), ("connect_ms", attempt.connect_wait)] {
        if !time.is_zero() {
            json[name] = ms(time).into();
        }
    }
    for (name, time) in [("headers_ms", attempt.headers), ("body_ms", attempt.body)] {
        if let Some(time) = time {
            json[name] = ms(time).into();
        }
    }
    for (name, bytes) in [("sent_bytes", attempt.request_bytes), ("got_bytes", attempt.response_bytes)] {
        if bytes > 0 {
            json[name] = bytes.into();
        }
    }
    if let Some(status) = attempt.status {
        json["status"] = status.to_string().into();
    }
    if attempt.delivery == Delivery::Answered || attempt.is_charge_known() {
        json["ru"] = attempt.charge_by_now().into();
    } else {
        json["ru"] = "unknown".into();
    }
    if attempt.delivery != Delivery::Answered {
        json["sent"] = if attempt.delivery == Delivery::NotSent { "no".into() } else { "maybe".into() };
    }
    if let Some(error) = &attempt.error {
        json["error"] = (**error).into();
    }
    json
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// With the two digits the service gives: sums have more, none of which mean anything.
fn units(charge: f64) -> f64 {
    (charge * 100.0).round() / 100.0
}

/// For people: the whole, then each attempt with where its time went.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.has_unknown_charge() { " or more" } else { "" };
        write!(f, "{} ms, {} RU{more}", ms(self.elapsed), units(self.charge()))?;
        for attempt in &self.attempts {
            write!(f, "; {attempt}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.context.as_str(), self.region)?;
        match (&self.status, &self.error) {
            (Some(status), _) => write!(f, " {status}")?,
            (None, Some(error)) => write!(f, " failed ({error})")?,
            (None, None) => {}
        }
        match self.delivery {
            Delivery::NotSent => f.write_str(", not sent")?,
            Delivery::MayHaveArrived => f.write_str(", may have arrived")?,
            Delivery::Answered => {}
        }
        write!(f, " after {} ms (", ms(self.elapsed))?;
        write!(f, "slot {}, connect {}", ms(self.slot_wait), ms(self.connect_wait))?;
        if let (Some(headers), Some(body)) = (self.headers, self.body) {
            write!(f, ", headers {}, body {}", ms(headers), ms(body))?;
        }
        if let (Some(shard), Some(protocol)) = (self.shard, self.protocol) {
            write!(f, "; connection {shard}, HTTP/{}", protocol.as_str())?;
        }
        if self.gateway2 {
            f.write_str(", Gateway 2.0")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(context: Context, at_ms: u64, charge: f64) -> Attempt {
        Attempt {
            context,
            region: "East US".into(),
            shard: Some(2),
            protocol: Some(Protocol::Http2),
            gateway2: false,
            status: Some(Status::new(200, 0)),
            charge,
            delivery: Delivery::Answered,
            slot_wait: Duration::ZERO,
            connect_wait: Duration::ZERO,
            headers: Some(Duration::from_micros(2500)),
            body: Some(Duration::from_micros(500)),
            request_bytes: 0,
            response_bytes: 17,
            started: Duration::from_millis(at_ms),
            elapsed: Duration::from_millis(3),
            error: None,
            late: None,
        }
    }

    #[test]
    fn both_legs_are_kept_and_charged() {
        let mut primary = Diagnostics::default();
        primary.push(attempt(Context::Initial, 0, 1.0));
        let mut hedge = Diagnostics::default();
        hedge.push(attempt(Context::Hedging, 50, 1.5));
        hedge.merge(primary);
        assert!(hedge.is_hedged());
        assert!((hedge.charge() - 2.5).abs() < f64::EPSILON);
        assert_eq!(hedge.attempts()[0].context, Context::Initial);
    }

    #[test]
    fn the_winner_is_the_attempt_that_was_answered() {
        let lost = Attempt { status: None, ..attempt(Context::Hedging, 50, 0.0) };
        let refused = Attempt { status: Some(Status::new(503, 0)), ..attempt(Context::Hedging, 50, 0.0) };
        for loser in [lost, refused] {
            let mut log = Diagnostics::default();
            assert!(log.winner().is_none());
            log.push(attempt(Context::Initial, 0, 1.0));
            log.push(loser);
            assert_eq!(log.winner().map(|attempt| attempt.context), Some(Context::Initial));
        }
    }

    #[test]
    fn sums_of_units_have_two_digits() {
        let mut log = Diagnostics::default();
        for charge in [2.25, 2.25, 2.28, 2.28] {
            log.push(attempt(Context::Initial, 0, charge));
        }
        assert!(log.to_json().contains(r#""ru":9.06,"#), "{}", log.to_json());
    }

    #[test]
    fn json_is_compact_and_complete() {
        let mut log = Diagnostics::default();
        log.push(attempt(Context::Initial, 0, 1.0));
        log.finish(Duration::from_millis(5), false);
        assert_eq!(
            log.to_json(),
            r#"{"ms":5.0,"ru":1.0,"attempts":[{"why":"initial","region":"East US","at":0.0,"ms":3.0,"shard":2,"http":"2","headers_ms":2.5,"body_ms":0.5,"got_bytes":17,"status":"200","ru":1.0}]}"#
        );
        assert_eq!(
            log.to_string(),
            "5 ms, 1 RU; initial East US 200 after 3 ms (slot 0, connect 0, headers 2.5, body 0.5; connection 2, HTTP/2)"
        );
    }

    #[test]
    fn a_full_pool_a_slow_service_and_a_lost_answer_look_different() {
        let ms = Duration::from_millis;
        let full = Attempt { slot_wait: ms(900), headers: Some(ms(2)), ..attempt(Context::Initial, 0, 1.0) };
        let slow = Attempt { headers: Some(ms(900)), ..attempt(Context::Initial, 0, 1.0) };
        let lost = Attempt {
            status: None,
            delivery: Delivery::MayHaveArrived,
            error: Some("cut".into()),
            headers: None,
            ..attempt(Context::Initial, 0, 0.0)
        };
        assert!(full.to_string().contains("(slot 900, connect 0, headers 2,"), "{full}");
        assert!(slow.to_string().contains("(slot 0, connect 0, headers 900,"), "{slow}");
        assert!(lost.to_string().starts_with("initial East US failed (cut), may have arrived"), "{lost}");
        let mut log = Diagnostics::default();
        log.push(lost);
        assert!(log.has_unknown_charge());
        assert!(log.to_json().contains(r#""ru":"unknown","sent":"maybe""#), "{}", log.to_json());
        assert!(log.to_string().contains("0 RU or more"), "{log}");
    }

    #[test]
    fn a_losers_charge_counts_from_the_moment_it_is_known() {
        let cell = LateCell::default();
        let mut log = Diagnostics::default();
        log.push(attempt(Context::Initial, 0, 1.0));
        log.push(Attempt {
            status: None,
            delivery: Delivery::MayHaveArrived,
            late: Some(cell.clone()),
            ..attempt(Context::Hedging, 50, 0.0)
        });
        assert_eq!(log.attempts()[1].late_charge(), Some(LateCharge::Pending));
        assert!(log.has_unknown_charge());
        let unknown = log.clone();
        cell.set(Some(2.5));
        assert!((log.charge() - 3.5).abs() < f64::EPSILON);
        assert!(!log.has_unknown_charge() && !unknown.has_unknown_charge(), "copies learn of it, too");
        cell.set(None);
        assert_eq!(log.attempts()[1].late_charge(), Some(LateCharge::Known(2.5)), "once and for all");
    }
}
