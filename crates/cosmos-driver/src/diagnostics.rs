//! What an operation went through: one entry per attempt, kept with answers and errors alike.

use std::fmt;
use std::sync::Arc;
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
            Self::Failover => "failover",
            Self::Session => "session",
            Self::Rerouted => "rerouted",
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
    /// The answer's status, if one came.
    pub status: Option<Status>,
    /// Request units charged.
    pub charge: f64,
    /// Start, counted from the start of the operation.
    pub started: Duration,
    /// Time until the answer was complete or the attempt broke.
    pub elapsed: Duration,
    /// Why no answer came.
    pub error: Option<Arc<str>>,
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

    /// Request units of all attempts, also of those that lost a race.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.attempts.iter().fold(0.0, |sum, attempt| sum + attempt.charge)
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
        json["http"] = match protocol {
            Protocol::Http1 => "1.1".into(),
            Protocol::Http2 => "2".into(),
        };
    }
    if let Some(status) = attempt.status {
        json["status"] = status.to_string().into();
        json["ru"] = attempt.charge.into();
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

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
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
            status: Some(Status::new(200, 0)),
            charge,
            started: Duration::from_millis(at_ms),
            elapsed: Duration::from_millis(3),
            error: None,
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
        assert!(log.to_json().contains(r#""ru":9.06,"#), "{log}");
    }

    #[test]
    fn json_is_compact_and_complete() {
        let mut log = Diagnostics::default();
        log.push(attempt(Context::Initial, 0, 1.0));
        log.finish(Duration::from_millis(5), false);
        assert_eq!(
            log.to_json(),
            r#"{"ms":5.0,"ru":1.0,"attempts":[{"why":"initial","region":"East US","at":0.0,"ms":3.0,"shard":2,"http":"2","status":"200","ru":1.0}]}"#
        );
    }
}
