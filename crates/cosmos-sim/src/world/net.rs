//! The network of a world, between the drivers of its processes and the regions of its account.
//!
//! A request is decided upon when it is sent: how long each way takes, and what goes wrong. The way to the server is a
//! task of its own, so a request that left its process arrives also when the process has given up or is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cosmos_driver::{CustomTransport, Exchange, TransportError, TransportPlug};
use cosmos_emulator::{Emulator, ManualClock};
use http::{HeaderValue, Request, Response};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::trace::Trace;
use crate::os;

/// Names a process of the world; one that is started again gets another.
pub(crate) type ProcessId = u32;

/// How often what goes wrong, per thousand requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// The request never arrives, and nobody says so.
    pub(crate) request_lost: u32,
    /// The request arrives seconds later.
    pub(crate) request_late: u32,
    /// The connection breaks before the request leaves, and the client knows it.
    pub(crate) not_sent: u32,
    /// The connection breaks before the server acts; the client cannot know.
    pub(crate) reset_before: u32,
    /// The connection breaks after the server acted.
    pub(crate) reset_after: u32,
    /// The answer never arrives.
    pub(crate) answer_lost: u32,
    /// The answer arrives seconds later.
    pub(crate) answer_late: u32,
    /// The server answers 408 although it acted.
    pub(crate) timeout_after: u32,
}

impl Rates {
    fn total(self) -> u32 {
        self.request_lost
            + self.request_late
            + self.not_sent
            + self.reset_before
            + self.reset_after
            + self.answer_lost
            + self.answer_late
            + self.timeout_after
    }

    /// What the dice, a number below a thousand, mean. Pure.
    fn fate(self, dice: u32) -> Fate {
        let kinds = [
            (self.request_lost, Fate::RequestLost),
            (self.request_late, Fate::RequestLate),
            (self.not_sent, Fate::NotSent),
            (self.reset_before, Fate::ResetBefore),
            (self.reset_after, Fate::ResetAfter),
            (self.answer_lost, Fate::AnswerLost),
            (self.answer_late, Fate::AnswerLate),
            (self.timeout_after, Fate::TimeoutAfter),
        ];
        let mut below = 0;
        kinds
            .into_iter()
            .find(|(rate, _)| {
                below += rate;
                dice < below
            })
            .map_or(Fate::Delivered, |(_, fate)| fate)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delivered,
    RequestLost,
    RequestLate,
    NotSent,
    ResetBefore,
    ResetAfter,
    AnswerLost,
    AnswerLate,
    TimeoutAfter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    Heard,
    Lost,
    Doubled,
}

/// The network and the server behind it. Clones are the same network.
#[derive(Clone, Debug)]
pub(crate) struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    emulator: Emulator,
    exhausted: Notify,
    trace: Trace,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    rates: Rates,
    clock: ManualClock,
    server_time: Duration,
    processes: BTreeMap<ProcessId, Being>,
    /// How much longer each way to a region takes.
    distances: BTreeMap<String, Duration>,
    /// Until when a process and a region cannot reach each other, and whether anybody is told.
    cuts: BTreeMap<(ProcessId, String), (Instant, Cut)>,
    /// How many of a thousand rings are lost, and how many arrive twice.
    bell: (u32, u32),
    /// Until when a process does not reach the documents of the fleet, although it reaches all others.
    mutes: BTreeMap<ProcessId, Instant>,
    /// When something last kept a process from the server, or will have: then it may be late with everything.
    troubled: BTreeMap<ProcessId, Instant>,
    /// The random parts of lock tokens that the server has accepted.
    written: BTreeSet<String>,
    /// How many locks of each partition the server has accepted without the one who asked hearing of it in time.
    unheard: BTreeMap<String, u32>,
    struck: u64,
    requests: u64,
    /// Requests of processes that work, without their looks at the bell.
    paid: u64,
}

impl State {
    fn trouble(&mut self, process: ProcessId, until: Instant) {
        let at = self.troubled.entry(process).or_insert(until);
        *at = until.max(*at);
    }
}

/// What a process on one side of a cut sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing comes back.
    Silent,
    /// No connection can be opened.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Being {
    Alive,
    FrozenUntil(Instant),
    Dead,
}

impl Network {
    pub(crate) fn new(emulator: Emulator, clock: ManualClock, seed: u64, trace: Trace) -> Self {
        Self(Arc::new(Inner {
            emulator,
            exhausted: Notify::new(),
            trace,
            state: Mutex::new(State {
                random: fastrand::Rng::with_seed(seed ^ 0x6E65_7477_6F72_6B00),
                rates: Rates::default(),
                clock,
                server_time: Duration::ZERO,
                processes: BTreeMap::new(),
                distances: BTreeMap::new(),
                cuts: BTreeMap::new(),
                bell: (0, 0),
                mutes: BTreeMap::new(),
                troubled: BTreeMap::new(),
                written: BTreeSet::new(),
                unheard: BTreeMap::new(),
                struck: 0,
                requests: 0,
                paid: 0,
            }),
        }))
    }

    /// What a process speaks through.
    pub(crate) fn plug(&self, process: ProcessId) -> TransportPlug {
        self.lock().processes.insert(process, Being::Alive);
        TransportPlug::new(Wire { process, network: self.clone() })
    }

    pub(crate) fn emulator(&self) -> &Emulator {
        &self.0.emulator
    }

    pub(crate) fn set_rates(&self, rates: Rates) {
        self.lock().rates = rates;
    }

    /// Rings are lost and doubled so often from now on. Losing them is no trouble for who rang.
    pub(crate) fn set_bell(&self, lost: u32, doubled: u32) {
        self.lock().bell = (lost, doubled);
    }

    /// Documents of the fleet are destroyed: for everybody that is as if nothing could be known of the others.
    pub(crate) fn vandalise(&self) {
        let mut state = self.lock();
        let everybody: Vec<ProcessId> = state.processes.keys().copied().collect();
        everybody.into_iter().for_each(|process| state.trouble(process, Instant::now()));
    }

    pub(crate) fn set_distance(&self, region: &str, distance: Duration) {
        self.lock().distances.insert(region.to_owned(), distance);
    }

    pub(crate) fn cut(&self, process: ProcessId, region: &str, until: Instant, cut: Cut) {
        let mut state = self.lock();
        state.cuts.insert((process, region.to_owned()), (until, cut));
        state.trouble(process, until);
    }

    pub(crate) fn freeze(&self, process: ProcessId, until: Instant) {
        let mut state = self.lock();
        state.processes.insert(process, Being::FrozenUntil(until));
        state.trouble(process, until);
    }

    /// From now on nothing comes from this process, and nothing reaches it.
    pub(crate) fn kill(&self, process: ProcessId) {
        self.lock().processes.insert(process, Being::Dead);
    }

    /// From now on until then the fleet does not hear a process.
    pub(crate) fn mute(&self, process: ProcessId, until: Instant) {
        self.lock().mutes.insert(process, until);
    }

    /// Whether the fleet did not hear a process at that moment or later, or it did not hear the fleet.
    pub(crate) fn is_mute_since(&self, process: ProcessId, since: Instant) -> bool {
        self.lock().mutes.get(&process).is_some_and(|until| *until >= since)
    }

    /// Whether anything kept a process from the server at that moment or later: a fault, a freeze, a cut, a status. One
    /// that is dead is kept from it for good.
    pub(crate) fn is_troubled_since(&self, process: ProcessId, since: Instant) -> bool {
        let state = self.lock();
        let is_dead = state.processes.get(&process).is_none_or(|being| *being == Being::Dead);
        is_dead || state.troubled.get(&process).is_some_and(|at| *at >= since)
    }

    /// How often something of a partition was locked by one who did not hear of it in time: such a lock counts an attempt
    /// that nobody made, unless the one who asked is the next to look.
    pub(crate) fn unheard_locks(&self, partition: &str) -> u32 {
        let key = format!("[\"{partition}\"]");
        self.lock().unheard.get(&key).copied().unwrap_or_default()
    }

    /// Whether the server has accepted a lock, by the random part of its token.
    pub(crate) fn is_written(&self, secret: &str) -> bool {
        self.lock().written.contains(secret)
    }

    /// No more cuts, and no more faults.
    pub(crate) fn heal(&self) {
        let mut state = self.lock();
        state.rates = Rates::default();
        state.bell = (0, 0);
        state.cuts.clear();
        // When it was is still to be known.
        let now = Instant::now();
        state.mutes.values_mut().for_each(|until| *until = now.min(*until));
        state.distances.clear();
    }

    /// Requests that arrived, and those that something happened to.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.lock();
        (state.requests, state.struck)
    }

    /// Requests of processes that work, without their looks at the bell.
    pub(crate) fn paid(&self) -> u64 {
        self.lock().paid
    }

    /// Whether answers come at once, or a break of the connection does.
    pub(crate) fn is_prompt(&self) -> bool {
        let state = self.lock();
        let Rates { request_lost, request_late, answer_lost, answer_late, .. } = state.rates;
        let is_frozen = state.processes.values().any(|being| matches!(being, Being::FrozenUntil(_)));
        request_lost + request_late + answer_lost + answer_late == 0 && state.cuts.is_empty() && !is_frozen
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the process is frozen; for ever if it is dead.
    async fn attend(&self, process: ProcessId) {
        let being = self.lock().processes.get(&process).copied().unwrap_or(Being::Dead);
        match being {
            Being::Alive => {}
            Being::FrozenUntil(until) => sleep_until(until).await,
            Being::Dead => std::future::pending().await,
        }
    }

    fn cut_between(&self, process: ProcessId, region: &str) -> Option<Cut> {
        let state = self.lock();
        let (until, cut) = state.cuts.get(&(process, region.to_owned()))?;
        (*until > Instant::now()).then_some(*cut)
    }

    /// Takes note of a lock whose writer does not hear in time that it has it.
    fn note_lock(
        &self,
        process: ProcessId,
        region: &str,
        key: String,
        fate: Fate,
        answer: Option<&Response<Bytes>>,
    ) {
        let is_accepted = answer.is_some_and(|answer| matches!(answer.status().as_u16(), 200 | 201));
        let is_cut = self.cut_between(process, region).is_some();
        let mut state = self.lock();
        let is_there = state.processes.get(&process) == Some(&Being::Alive);
        let is_prompt = matches!(fate, Fate::Delivered | Fate::RequestLate);
        if is_accepted && (is_cut || !is_there || !is_prompt) {
            *state.unheard.entry(key).or_default() += 1;
        }
    }

    /// Decides on a request: what becomes of it, how long the ways take, and how long what is late takes.
    fn decide(&self, process: ProcessId, region: &str) -> (Fate, Duration, Duration, Duration) {
        let mut state = self.lock();
        let rates = state.rates;
        let fate = if rates.total() == 0 { Fate::Delivered } else { rates.fate(state.random.u32(..1000)) };
        let far = state.distances.get(region).copied().unwrap_or_default();
        let mut way = || far + Duration::from_micros(state.random.u64(300..=3_000));
        let (there, back) = (way(), way());
        let late = Duration::from_millis(state.random.u64(200..=12_000));
        if fate != Fate::Delivered {
            state.struck += 1;
            state.trouble(process, Instant::now() + late);
        }
        if far > FAR {
            state.trouble(process, Instant::now() + far * 2);
        }
        (fate, there, back, late)
    }

    /// What becomes of a ring of the bell: it carries no truth, so it may get lost although its sender is told that it was
    /// heard.
    fn fate_of_ring(&self, request: &Request<Bytes>) -> Ring {
        let mut state = self.lock();
        let is_ring = request.method() == http::Method::PATCH && request.uri().path().ends_with("/docs/bell");
        let (lost, doubled) = state.bell;
        if !is_ring || lost + doubled == 0 {
            return Ring::Heard;
        }
        match state.random.u32(..1000) {
            dice if dice < lost => Ring::Lost,
            dice if dice < lost + doubled => Ring::Doubled,
            _ => Ring::Heard,
        }
    }

    /// Lets the server's clock follow the world's, which processes cannot shift.
    fn wind_up(&self) {
        let mut state = self.lock();
        let (now, before) = (os::elapsed(), state.server_time);
        state.clock.advance(now.saturating_sub(before));
        state.server_time = now;
        state.requests += 1;
        if state.requests == REQUESTS_MAX {
            self.0.exhausted.notify_one();
        }
    }

    /// Ends when there were so many requests that somebody must be asking in circles.
    pub(crate) async fn exhausted(&self) {
        self.0.exhausted.notified().await;
    }

    async fn serve(
        &self,
        process: ProcessId,
        region: &str,
        request: Request<Bytes>,
    ) -> Option<Response<Bytes>> {
        let line = format!("{} {}", request.method(), request.uri().path());
        let body = request.body().clone();
        let bytes = body.len();
        self.wind_up();
        let mut answer = self.0.emulator.handle_at(region, request).await.ok();
        // Every server says what time it is by its clock; without sockets nobody else adds it.
        let date = cosmos_wire::date::format(self.0.emulator.clock().now());
        if let (Some(answer), Ok(date)) = (&mut answer, HeaderValue::try_from(date)) {
            answer.headers_mut().insert(http::header::DATE, date);
        }
        let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        let sub = answer.as_ref().and_then(|answer| answer.headers().get("x-ms-substatus")?.to_str().ok());
        let sub = sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        self.0.trace.line(format_args!("p{process} {region} {line} {bytes} B -> {status}{sub}"));
        let mut state = self.lock();
        let is_worker = (1..VANDAL).contains(&process);
        state.paid += u64::from(is_worker && !line.ends_with("/docs/bell"));
        match status {
            200 | 201 => state.written.extend(lock_tokens(&body)),
            0 | 403 | 408 | 410 | 429 | 449 | 500.. => state.trouble(process, Instant::now()),
            404 if sub == "/1002" => state.trouble(process, Instant::now()),
            _ => {}
        }
        drop(state);
        answer
    }

    async fn carry(
        &self,
        process: ProcessId,
        region: String,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, TransportError> {
        self.attend(process).await;
        match self.cut_between(process, &region) {
            None => {}
            Some(Cut::Refused) => return Err(TransportError::unreachable("the region cannot be reached")),
            Some(Cut::Silent) => std::future::pending().await,
        }
        if self.is_mute_since(process, Instant::now()) && is_of_fleet(&request) {
            self.0.trace.line(format_args!("p{process} {region} is not heard by the fleet"));
            return Err(TransportError::unreachable("the partition cannot be reached"));
        }
        let (fate, there, back, late) = self.decide(process, &region);
        if fate != Fate::Delivered {
            self.0.trace.line(format_args!(
                "p{process} {region} {fate:?} for {} {}",
                request.method(),
                request.uri()
            ));
        }
        let there = if fate == Fate::RequestLate { there + late } else { there };
        match fate {
            Fate::NotSent => {
                return Err(TransportError::not_sent("the connection broke before the request left"));
            }
            Fate::RequestLost => std::future::pending().await,
            Fate::ResetBefore => {
                sleep(there).await;
                return Err(TransportError::interrupted("the connection was reset"));
            }
            Fate::Delivered
            | Fate::RequestLate
            | Fate::ResetAfter
            | Fate::AnswerLost
            | Fate::AnswerLate
            | Fate::TimeoutAfter => {}
        }
        let network = self.clone();
        let at = region.clone();
        let ring = self.fate_of_ring(&request);
        let lock = (!lock_tokens(request.body()).is_empty()).then(|| partition_key(&request).to_owned());
        // A request on its way is not called back by the death of its sender.
        let served = tokio::spawn(async move {
            sleep(there).await;
            match ring {
                Ring::Lost => {
                    network.0.trace.line(format_args!("p{process} {at} nobody hears a ring"));
                    return Some(Response::new(Bytes::new()));
                }
                Ring::Doubled => drop(network.serve(process, &at, request.clone()).await),
                Ring::Heard => {}
            }
            network.serve(process, &at, request).await
        });
        let answer = served.await.ok().flatten();
        if let Some(key) = lock {
            self.note_lock(process, &region, key, fate, answer.as_ref());
        }
        sleep(if fate == Fate::AnswerLate { back + late } else { back }).await;
        if self.cut_between(process, &region).is_some() {
            std::future::pending::<()>().await;
        }
        match (fate, answer) {
            (Fate::AnswerLost, _) => std::future::pending().await,
            (Fate::ResetAfter, _) | (_, None) => Err(TransportError::interrupted("the connection was reset")),
            (Fate::TimeoutAfter, Some(answer)) if answer.status().is_success() => Ok(timed_out()),
            (_, Some(answer)) => Ok(answer),
        }
    }
}

/// Whether a request is about the documents of the fleet.
fn is_of_fleet(request: &Request<Bytes>) -> bool {
    partition_key(request).contains(FLEET)
}

/// The partition key that a request names, as it is sent.
fn partition_key(request: &Request<Bytes>) -> &str {
    let key = request.headers().get(cosmos_wire::header::PARTITION_KEY);
    key.and_then(|key| key.to_str().ok()).unwrap_or_default()
}

/// The lock tokens in what a request writes.
fn lock_tokens(body: &[u8]) -> Vec<String> {
    const FIELD: &str = r#""lockToken":""#;
    let text = String::from_utf8_lossy(body);
    let parts = text.split(FIELD).skip(1).filter_map(|rest| rest.split('"').next());
    parts.map(ToOwned::to_owned).collect()
}

/// Who is neither client nor worker has this number, or a higher one.
pub(crate) const VANDAL: ProcessId = 998;
/// Worlds that end have a fraction of this.
const REQUESTS_MAX: u64 = 80_000;
/// The partition in which the fleet keeps its documents.
pub(crate) const FLEET: &str = "__leases__";
/// Each way to a region that is farther away may be too long for what has to be done in time.
const FAR: Duration = Duration::from_millis(50);

fn timed_out() -> Response<Bytes> {
    let body = Bytes::from_static(br#"{"code":"RequestTimeout","message":"The request timed out."}"#);
    let mut answer = Response::new(body);
    *answer.status_mut() = http::StatusCode::REQUEST_TIMEOUT;
    answer
}

/// One process's end of the network.
#[derive(Debug)]
struct Wire {
    process: ProcessId,
    network: Network,
}

impl CustomTransport for Wire {
    fn send(&self, request: Request<Bytes>) -> Exchange<'_> {
        let region =
            request.uri().host().and_then(|host| host.split('.').next()).unwrap_or_default().to_owned();
        Box::pin(async move {
            let answer = self.network.carry(self.process, region, request).await;
            // Nothing reaches who is dead, and who is frozen hears of it later.
            self.network.attend(self.process).await;
            answer
        })
    }
}

/// Where a region is.
pub(crate) fn endpoint(region: &str) -> String {
    format!("https://{region}.sim/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_fall_on_each_fate_as_often_as_its_rate_says() {
        let rates = Rates { request_lost: 2, reset_after: 3, ..Rates::default() };
        let fates: Vec<Fate> = (0..1000).map(|dice| rates.fate(dice)).collect();
        let count = |fate| fates.iter().filter(|each| **each == fate).count();
        assert_eq!((count(Fate::RequestLost), count(Fate::ResetAfter), count(Fate::Delivered)), (2, 3, 995));
    }
}
