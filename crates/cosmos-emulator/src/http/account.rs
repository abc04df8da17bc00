//! One account: the engine and everything that stands between it and a client.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

use super::headers::{Asked, name};
use super::render::{Renderer, Stamp};
use super::route::Route;
use super::{Call, auth, location, route};
use crate::clock::Clock;
use crate::command::{self, Reply};
use crate::config::{Config, Consistency, Gateway};
use crate::engine::{Engine, RegionId};
use crate::failure::Failure;
use crate::fault::{Faults, Strike, Subject, Verdict};
use crate::flusher::Flusher;
use crate::ledger::{Entry, Ledger};
use crate::operation::Operation;
use crate::regions::{Door, DoorState, Offline, Regions};
use crate::server::answer::Answer;
use crate::server::head::Head;
use crate::server::{BodyError, Handler, Limits, Received, Reset};
use crate::sql::Leash;

/// One account: the engine and everything that stands between it and a client.
pub(crate) struct Account {
    pub(crate) engine: Arc<Engine>,
    pub(crate) regions: Regions,
    pub(crate) clock: Clock,
    pub(crate) ledger: Ledger,
    pub(crate) faults: Faults,
    id: String,
    pub(crate) consistency: Consistency,
    pub(crate) gateway: Gateway,
    guard: auth::Guard,
    flusher: Flusher,
    renderer: Renderer,
    activity: ActivityIds,
    broom: Rhythm,
    courier: Rhythm,
    limits: Limits,
    /// Places for reads that take long, and for writes, which do not wait for queries. What waits for a place costs no
    /// thread, and leaves with its client.
    reading: Arc<Semaphore>,
    writing: Arc<Semaphore>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Where long work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the caller's thread.
    Here,
    /// On a thread that serves no sockets.
    Aside,
}

impl Account {
    pub(crate) fn new(
        config: &Config,
        engine: Engine,
        clock: Clock,
        flusher: Flusher,
    ) -> Result<Self, cosmos_wire::signature::InvalidKey> {
        let engine = Arc::new(engine);
        Ok(Self {
            regions: Regions::new(engine.clone(), config.gateway2),
            guard: auth::Guard::new(config)?,
            renderer: Renderer::new(&cosmos_wire::date::format(clock.now())),
            engine,
            clock,
            flusher,
            ledger: Ledger::default(),
            faults: Faults::default(),
            id: config.account_id.clone(),
            consistency: config.consistency,
            gateway: config.gateway,
            activity: ActivityIds::new(),
            broom: Rhythm::default(),
            courier: Rhythm::default(),
            reading: Arc::new(Semaphore::new(config.limits.heavy_requests_max.max(1))),
            writing: Arc::new(Semaphore::new(config.limits.heavy_requests_max.max(1))),
            limits: config.limits.clone(),
        })
    }

    /// The resource token of a grant.
    pub(crate) fn sign(&self, grant: &super::grant::Grant) -> String {
        self.guard.sign(grant)
    }

    /// What the account document calls the account. SDKs that know `localhost` as an emulator of one region must not
    /// meet it in an account of several.
    pub(crate) fn id(&self) -> &str {
        if self.id == LOCALHOST && !self.engine.topology().is_single() { SEVERAL_REGIONS } else { &self.id }
    }

    /// Answers one request at a region's door, or resets its connection where a fault rule says so.
    pub(crate) async fn answer<A: Answer>(
        self: &Arc<Self>,
        door: &Door,
        request: Received,
        place: Place,
    ) -> Result<A, Reset> {
        let started = Instant::now();
        let Received { head, body } = request;
        let activity_id = match Asked::of(&head).text(name::ACTIVITY_ID) {
            Some(sent) => sent.to_owned(),
            None => self.activity.next(),
        };
        let location = location(&head);
        if door.offline() == Some(Offline::Hang) {
            door.unhung().await;
        }
        let outcome = match door.state() {
            DoorState::Open => match self.admit(door.id, head, body) {
                Err(BodyOrFailure::Gone) => return Err(Reset),
                Err(BodyOrFailure::Refused(failure)) => Err(failure),
                Ok(call) => self.serve(call, &door.name, place).await?,
            },
            DoorState::Offline(Offline::Refuse) => return Err(Reset),
            DoorState::Offline(Offline::Unavailable | Offline::Hang) => Err(unavailable()),
            DoorState::Removed => Ok(command::account::removed(self)),
        };
        let topology = self.engine.topology();
        let satellites = if topology.is_single() { 0 } else { topology.live().count().saturating_sub(1) };
        let stamp = Stamp {
            activity_id: &activity_id,
            elapsed: started.elapsed(),
            location,
            read_regions: satellites,
            date: self.clock.is_ahead().then(|| cosmos_wire::date::format(self.clock.now())),
        };
        Ok(match outcome {
            Ok(reply) => self.renderer.reply(reply, &stamp),
            Err(failure) => self.renderer.failure(&failure, &stamp),
        })
    }

    /// Says what a head asks for, and refuses who may not.
    fn check_head(&self, head: &Head) -> Result<(Route, Operation), Failure> {
        let asked = Asked::of(head);
        self.guard.check_presence(&asked)?;
        let mut route = route::route(head.path())?;
        // Some clients send the id of an item as it is: then a question mark belongs to it.
        if matches!(route.target, route::Target::Item(..)) && head.target().len() > head.path().len() {
            route = route::route(head.target())?;
        }
        let operation = route::operation(head.method(), &route.target, &asked)?;
        check_version(&asked)?;
        self.guard.check(head.method(), &route, operation, &asked, self.clock.now())?;
        Ok((route, operation))
    }

    /// Parses a request and checks who sent it.
    fn admit(
        &self,
        region: RegionId,
        head: Head,
        body: Result<Bytes, BodyError>,
    ) -> Result<Call, BodyOrFailure> {
        let (route, operation) = self.check_head(&head)?;
        let asked = Asked::of(&head);
        let body = match body {
            Ok(body) => body,
            Err(BodyError::TooLarge) => return Err(Failure::new(413, "Request size is too large").into()),
            Err(BodyError::TooSlow) => {
                return Err(Failure::new(408, "The body of the request did not arrive in time.").into());
            }
            Err(BodyError::NoRoom) => {
                let message = "Too many large bodies are under way. Retry the request after a while.";
                return Err(Failure::new(503, message).into());
            }
            Err(BodyError::Truncated | BodyError::Unwanted) => return Err(BodyOrFailure::Gone),
        };
        self.check_consistency(&asked)?;
        let region = self.serving(region, &route, &asked)?;
        if operation.is_write() {
            let topology = self.engine.topology();
            if !topology.is_single() {
                topology.check_write(region)?;
            }
        }
        Ok(Call { region, operation, route, head, body, leash: Leash::default() })
    }

    /// A read may ask for less than the account promises, not for more.
    fn check_consistency(&self, asked: &Asked<'_>) -> Result<(), Failure> {
        if let Some(strategy) = asked.text(name::READ_CONSISTENCY_STRATEGY) {
            return self.check_strategy(strategy);
        }
        let Some(text) = asked.text(name::CONSISTENCY_LEVEL) else { return Ok(()) };
        let Some(level) = Consistency::parse(text) else {
            return Err(Failure::bad_request(format!(
                "Value '{text}' specified for the header 'x-ms-consistency-level' is invalid."
            )));
        };
        if level > self.consistency {
            return Err(Failure::bad_request(format!(
                "ConsistencyLevel {} specified in the request is invalid when service is configured with consistency \
                 level {}. Ensure the request consistency level is not stronger than the service consistency level.",
                level.name(),
                self.consistency.name()
            )));
        }
        Ok(())
    }

    /// A read may ask for the latest of its region on any account, for the latest of all regions on a strong one.
    fn check_strategy(&self, text: &str) -> Result<(), Failure> {
        match text {
            "Eventual" | "Session" | "LatestCommitted" => Ok(()),
            "GlobalStrong" if self.consistency == Consistency::Strong => Ok(()),
            "GlobalStrong" => Err(Failure::bad_request(format!(
                "Value 'GlobalStrong' of the header 'x-ms-cosmos-read-consistency-strategy' needs an account of Strong \
                 consistency; this one's is {}.",
                self.consistency.name()
            ))),
            _ => Err(Failure::bad_request(format!(
                "Value '{text}' specified for the header 'x-ms-cosmos-read-consistency-strategy' is invalid."
            ))),
        }
    }

    /// Serves an admitted request, under the fault rules.
    async fn serve(
        self: &Arc<Self>,
        call: Call,
        region: &str,
        place: Place,
    ) -> Result<Result<Reply, Failure>, Reset> {
        let strike = self.faults.judge(&Subject {
            operation: call.operation,
            container: call.route.container.as_deref(),
            partition_key: call.asked().utf8(name::PARTITION_KEY),
            region,
        });
        let after = match strike {
            None => After::Answer,
            Some(strike) => match self.suffer(strike).await {
                Ok(after) => after,
                Err(Suffered::Answered(failure)) => {
                    self.note(&call, &Err(failure.clone()));
                    return Ok(Err(failure));
                }
                Err(Suffered::Reset) => {
                    self.note_reset(&call);
                    return Err(Reset);
                }
            },
        };
        let (call, outcome) = self.run(call, place).await?;
        if place == Place::Aside {
            self.tidy();
        }
        let outcome = match outcome {
            Ok(mut reply) => {
                reply.charge *= self.effort(&call);
                self.settle(reply).await
            }
            Err(failure) => Err(failure),
        };
        match after {
            After::Answer => {}
            After::Delay(duration, mut strike) => {
                // Either way it is answered now.
                let _ = tokio::time::timeout(duration, strike.removed()).await;
            }
            After::Reset => {
                self.note_reset(&call);
                return Err(Reset);
            }
        }
        self.note(&call, &outcome);
        Ok(outcome)
    }

    /// How many replicas a request reads: two, where it asks for more than its session.
    fn effort(&self, call: &Call) -> f64 {
        if self.consistency < Consistency::BoundedStaleness || !call.operation.reads_items() {
            return 1.0;
        }
        let asked = call.asked().text(name::CONSISTENCY_LEVEL).and_then(Consistency::parse);
        if asked.unwrap_or(self.consistency) >= Consistency::BoundedStaleness { 2.0 } else { 1.0 }
    }

    /// What a fault does before the engine acts.
    async fn suffer(&self, mut strike: Strike) -> Result<After, Suffered> {
        match strike.verdict.clone() {
            Verdict::Status { code, sub_status, retry_after } => {
                let message = "This answer was made by a fault rule.".to_owned();
                let failure =
                    Failure { retry_after, ..Failure::new(code, message).with_sub_status(sub_status) };
                Err(Suffered::Answered(failure))
            }
            Verdict::Delay { duration } => {
                tokio::time::sleep(duration).await;
                Ok(After::Answer)
            }
            Verdict::Hang => {
                strike.removed().await;
                Ok(After::Answer)
            }
            Verdict::ResetBefore => Err(Suffered::Reset),
            Verdict::ResetAfterCommit => Ok(After::Reset),
            Verdict::DelayAfterCommit { duration } => Ok(After::Delay(duration, strike)),
        }
    }

    /// Runs the command of a call. Nothing a request says may end the process: a panic becomes a 500.
    async fn run(
        self: &Arc<Self>,
        mut call: Call,
        place: Place,
    ) -> Result<(Call, Result<Reply, Failure>), Reset> {
        let Limits { query_page_time, query_time_max, .. } = self.limits;
        if place == Place::Here || !call.operation.is_heavy() {
            call.leash.begin(query_page_time, query_time_max);
            let outcome = self.run_here(&call);
            return Ok((call, outcome));
        }
        // The semaphore is never closed, so a place is only ever waited for.
        let places = if call.operation.is_write() { &self.writing } else { &self.reading };
        let place = places.clone().acquire_owned().await.map_err(|_| Reset)?;
        let _attending = Attending(call.leash.clone());
        let account = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            call.leash.begin(query_page_time, query_time_max);
            let outcome = account.run_here(&call);
            drop(place);
            (call, outcome)
        });
        // The task never panics; it is only lost when the whole server stops.
        task.await.map_err(|_| Reset)
    }

    fn run_here(&self, call: &Call) -> Result<Reply, Failure> {
        catch_unwind(AssertUnwindSafe(|| command::run(self, call))).unwrap_or_else(|_| {
            tracing::error!(
                operation = call.operation.name(),
                "a request made the server panic; this is a bug"
            );
            Err(broken())
        })
    }

    /// Begins the work that rides on requests, where it is due.
    fn tidy(self: &Arc<Self>) {
        let now = self.clock.now_millis();
        if self.broom.is_due(now, SWEEP_EVERY_MILLIS) {
            let account = self.clone();
            tokio::task::spawn_blocking(move || account.sweep());
        }
        if !self.engine.topology().is_single() && self.courier.is_due(now, REPLICATE_EVERY_MILLIS) {
            let account = self.clone();
            tokio::task::spawn_blocking(move || account.replicate());
        }
    }

    /// Brings regions up to date that nobody asks, so that their backlog does not grow.
    fn replicate(&self) {
        match catch_unwind(AssertUnwindSafe(|| self.engine.replicate())) {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => tracing::warn!(message = failure.message, "cannot replicate"),
            Err(_) => tracing::error!("replication made the server panic; this is a bug"),
        }
    }

    /// Removes what has expired and what deleted containers left behind. Where that is much, it goes on soon.
    fn sweep(&self) {
        let began = Instant::now();
        while self.sweep_some() {
            if began.elapsed() >= SWEEP_TIME {
                self.broom.go_on_after(self.clock.now_millis(), SWEEP_PAUSE_MILLIS, SWEEP_EVERY_MILLIS);
                return;
            }
        }
    }

    /// Says whether more may be left.
    fn sweep_some(&self) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.engine.sweep(SWEEP_MAX))) {
            Ok(Ok(removed)) => {
                tracing::debug!(removed, "swept");
                return removed >= SWEEP_MAX;
            }
            Ok(Err(failure)) => tracing::warn!(message = failure.message, "cannot remove what has expired"),
            Err(_) => tracing::error!("removing what has expired made the server panic; this is a bug"),
        }
        false
    }

    /// Waits until what a reply acknowledges is on disk.
    async fn settle(&self, reply: Reply) -> Result<Reply, Failure> {
        if let Some(ticket) = reply.ticket {
            self.flusher.wait(ticket).await.map_err(|error| {
                Failure::new(
                    500,
                    format!(
                        "The write could not be made durable: {error}. Check the data folder and its disk."
                    ),
                )
            })?;
        }
        Ok(reply)
    }

    fn note(&self, call: &Call, outcome: &Result<Reply, Failure>) {
        let entry = entry_of(call);
        self.ledger.record(&match outcome {
            Ok(reply) => Entry {
                status: reply.status,
                charge: reply.charge,
                documents_visited: reply.documents_visited,
                response_bytes: reply.body.len() as u64,
                ..entry
            },
            Err(failure) => Entry {
                status: failure.status,
                sub_status: failure.sub_status,
                charge: failure.charge,
                ..entry
            },
        });
    }

    fn note_reset(&self, call: &Call) {
        self.ledger.record(&entry_of(call));
    }
}

/// An account as one region's clients reach it.
pub(crate) struct Entrance {
    pub(crate) account: Arc<Account>,
    pub(crate) door: Arc<Door>,
}

/// Attends to work on another thread. When the client leaves, this goes first, and the work is told.
struct Attending(Leash);

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

impl Handler for Entrance {
    fn wants_body(&self, head: &Head) -> bool {
        self.account.check_head(head).is_ok()
    }

    async fn handle<A: Answer>(&self, request: Received) -> Result<A, Reset> {
        self.account.answer(&self.door, request, Place::Aside).await
    }
}

/// What the ledger knows of a request before it is answered.
fn entry_of(call: &Call) -> Entry<'_> {
    Entry {
        operation: call.operation,
        container: call.route.container.as_deref(),
        path: call.head.path(),
        partition_key: call.asked().utf8(name::PARTITION_KEY),
        status: 0,
        sub_status: 0,
        charge: 0.0,
        documents_visited: 0,
        request_bytes: call.body.len() as u64,
        response_bytes: 0,
    }
}

/// What remains of a fault once the engine has acted.
enum After {
    Answer,
    Delay(Duration, Strike),
    Reset,
}

/// What a fault did instead of the engine.
enum Suffered {
    Answered(Failure),
    Reset,
}

/// Why a request goes no further.
enum BodyOrFailure {
    Refused(Failure),
    /// The client went away while it sent the body.
    Gone,
}

impl From<Failure> for BodyOrFailure {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

fn check_version(asked: &Asked<'_>) -> Result<(), Failure> {
    match asked.text(name::VERSION) {
        Some(version) if is_date(version.trim()) => Ok(()),
        Some(_) | None => Err(Failure::bad_request(
            "Invalid API version. Ensure a valid x-ms-version header value is passed. Please update to the latest \
             version of Azure Cosmos DB SDK.",
        )),
    }
}

/// Whether a text looks like `2020-07-15`.
fn is_date(text: &str) -> bool {
    let shape = |(index, byte): (usize, u8)| {
        if matches!(index, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() }
    };
    text.len() == 10 && text.bytes().enumerate().all(shape)
}

/// What an account is called unless its owner says otherwise, with one region and with several.
const LOCALHOST: &str = "localhost";
const SEVERAL_REGIONS: &str = "emulator";

/// The answer of a region that is offline.
pub(super) fn unavailable() -> Failure {
    Failure::new(503, "The service is currently unavailable. Retry the request, or use another region.")
}

fn broken() -> Failure {
    Failure::new(500, "The server failed on this request; its log says where. Please report it.")
}

/// Work of one sweep.
const SWEEP_MAX: usize = 10_000;
/// How long sweeps follow each other, and the pause for others where there is more to do.
const SWEEP_TIME: Duration = Duration::from_millis(200);
const SWEEP_PAUSE_MILLIS: u64 = 800;
/// Time between sweeps. They ride on requests, so an idle server sleeps.
const SWEEP_EVERY_MILLIS: u64 = 30_000;
/// Time between rounds of replication; they ride on requests, too.
const REPLICATE_EVERY_MILLIS: u64 = 500;

/// When something was done last.
#[derive(Debug, Default)]
struct Rhythm {
    last_millis: AtomicU64,
}

impl Rhythm {
    /// True for one caller each time it is due.
    fn is_due(&self, now_millis: u64, every_millis: u64) -> bool {
        let last = self.last_millis.load(Ordering::Relaxed);
        now_millis.saturating_sub(last) >= every_millis
            && self
                .last_millis
                .compare_exchange(last, now_millis, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Makes it due after a pause that is shorter than usual.
    fn go_on_after(&self, now_millis: u64, pause_millis: u64, every_millis: u64) {
        let last = now_millis.saturating_sub(every_millis.saturating_sub(pause_millis));
        self.last_millis.store(last, Ordering::Relaxed);
    }
}

/// Ids for operations whose client sent none: a random start and a counter.
#[derive(Debug)]
struct ActivityIds {
    start: u128,
    count: AtomicU64,
}

impl ActivityIds {
    fn new() -> Self {
        Self { start: uuid::Uuid::new_v4().as_u128(), count: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        let count = u128::from(self.count.fetch_add(1, Ordering::Relaxed));
        uuid::Uuid::from_u128(self.start ^ (count << 80)).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_is_due_again_sooner() {
        let rhythm = Rhythm::default();
        assert!(rhythm.is_due(1_000_000, 30_000));
        assert!(!rhythm.is_due(1_010_000, 30_000));
        rhythm.go_on_after(1_010_000, 800, 30_000);
        assert!(!rhythm.is_due(1_010_799, 30_000));
        assert!(rhythm.is_due(1_010_800, 30_000) && !rhythm.is_due(1_010_801, 30_000));
    }
}
