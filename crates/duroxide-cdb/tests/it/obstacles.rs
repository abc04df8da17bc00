//! What it takes to find work behind a great many documents that are of no use to who searches. They are put into the
//! emulator past the provider.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cosmos_emulator::{Auth, Config, Emulator};
use duroxide::TagFilter;
use duroxide::providers::{DispatcherCapabilityFilter, Provider as _, SemverRange, SessionFetchConfig};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use crate::scale::{put, queued};
use crate::world::{activity, start};

/// What is in the way of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The queue of an instance whose turn another process has.
    Queue,
    /// Instances that are pinned to a version that the runtime does not support.
    Pinned,
    /// Instances whose turns other processes have.
    LockedHeads,
    /// Activities with a tag that the worker does not ask for.
    Tags,
    /// Activities of a hundred sessions that others own.
    Sessions,
    /// Activities that are each of another session that others own.
    SessionEach,
}

impl Obstacle {
    /// The most that finding may take behind so many: what is among them, and what is sent afterwards. A search takes up
    /// to a thousand rows, and heads and sessions are read five hundred at a time; the rest is a constant.
    pub(crate) fn bounds(self, count: u64) -> [Bound; 2] {
        let (pages, heads) = (count / 1000, count / 500);
        let constant = Bound { requests: 60, read: 6_000 };
        match self {
            // Each page is beside one search for the latest.
            Self::Queue => [Bound { requests: 60 + 2 * pages, read: 6_000 + 2 * count }, constant],
            Self::Pinned => {
                [Bound { requests: 60 + 2 * pages + 2 * heads, read: 6_000 + 4 * count }, constant]
            }
            // What was found locked ten seconds ago is looked at again, before what is new if that comes at the same time.
            Self::LockedHeads => [
                Bound { requests: 60 + 2 * pages + 2 * heads, read: 6_000 + 4 * count },
                Bound { requests: 60 + heads, read: 6_000 + count },
            ],
            Self::Tags => [constant, constant],
            // A page of each session.
            Self::Sessions => {
                [Bound { requests: 60 + 4 * SESSIONS, read: 6_000 + count.min(SESSIONS * PAGE) }, constant]
            }
            // Each item and its session are looked at once, half of them before the one that is found.
            Self::SessionEach => {
                [Bound { requests: 100 + 2 * pages + 2 * heads, read: 6_000 + 2 * count }, constant]
            }
        }
    }

    fn is_of_turns(self) -> bool {
        matches!(self, Self::Queue | Self::Pinned | Self::LockedHeads)
    }
}

/// The most that finding may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) requests: u64,
    /// Documents.
    pub(crate) read: u64,
}

/// What it took to find something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Find {
    pub(crate) requests: u64,
    /// Documents that the account looked at.
    pub(crate) read: u64,
    pub(crate) request_units: f64,
    #[allow(dead_code, reason = "only the example prints it: tests do not measure time")]
    pub(crate) took: Duration,
}

impl Find {
    /// Whether it took no more: ten units for a request besides what it reads, and one for twenty documents.
    pub(crate) fn is_within(&self, bound: Bound) -> bool {
        let units = 10.0 * bound.requests as f64 + bound.read as f64 / 20.0;
        self.requests <= bound.requests && self.read <= bound.read && self.request_units <= units
    }
}

/// What it took a process that knows nothing to find its work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// What is in the middle of so many obstacles, and then what another process sends behind them.
    pub(crate) finds: [Find; 2],
    /// Documents read by the most expensive of the last thousand searches.
    pub(crate) read_per_search: u64,
}

pub(crate) async fn search_behind(obstacle: Obstacle, count: u64) -> Search {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).expect("a free port");
    let config = CosmosDBProviderConfig {
        leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)),
        ..CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key())
    };
    let open = async || CosmosDBProvider::new_with_config(config.clone()).await.expect("it answers");
    let (runtime, other) = (open().await, open().await);
    obstruct(&emulator, obstacle, count).await;
    let mut read_per_search = 0;
    let mut finds = Vec::new();
    for wanted in ["middle", "fresh"] {
        emulator.ledger().reset();
        if wanted == "fresh" {
            let sent = if obstacle.is_of_turns() {
                other.enqueue_for_orchestrator(start(wanted, "Hello", ""), None).await
            } else {
                other.enqueue_for_worker(activity(wanted, 1)).await
            };
            sent.expect("served");
        }
        let begun = Instant::now();
        let found = if obstacle.is_of_turns() { turn(&runtime).await } else { work(&runtime).await };
        assert_eq!(found, wanted, "{obstacle:?}");
        let took = begun.elapsed();
        let snapshot = emulator.ledger().snapshot();
        let searches = snapshot.recent.iter().filter(|request| request.partition_key.is_none());
        let most = searches.map(|request| request.documents_visited).max();
        read_per_search = most.unwrap_or(0).max(read_per_search);
        let totals = snapshot.totals;
        finds.push(Find {
            requests: totals.requests,
            read: totals.documents_visited,
            request_units: totals.request_units,
            took,
        });
    }
    Search { finds: [finds[0], finds[1]], read_per_search }
}

/// The instance of the next turn of a runtime of this version.
async fn turn(runtime: &CosmosDBProvider) -> String {
    let range = SemverRange::new(semver::Version::new(0, 0, 0), semver::Version::new(0, 1, 32));
    let filter = DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] };
    let fetched = runtime.fetch_orchestration_item(LOCK, LONG, Some(&filter)).await.expect("served");
    fetched.expect("there is one").0.instance
}

/// The instance of the next activity of a worker that asks for no tag and takes sessions.
async fn work(worker: &CosmosDBProvider) -> String {
    let owner = SessionFetchConfig { owner_id: "me".to_owned(), lock_timeout: LOCK };
    let tags = TagFilter::DefaultOnly;
    let fetched = worker.fetch_work_item(LOCK, LONG, Some(&owner), &tags).await.expect("served");
    let item = serde_json::to_value(fetched.expect("there is one").0).expect("it serializes");
    item["ActivityExecute"]["instance"].as_str().expect("it is an activity").to_owned()
}

async fn obstruct(emulator: &Emulator, obstacle: Obstacle, count: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let since = u64::try_from(now).expect("before the year 584 million") - 3_600_000;
    if obstacle == Obstacle::Queue {
        put(emulator, "hot", &locked(head("hot", since), since)).await;
    }
    if obstacle == Obstacle::Sessions {
        for n in 0..SESSIONS {
            put_session(emulator, n, since).await;
        }
    }
    for n in 0..count {
        let at = since + n;
        if n == count / 2 {
            put_wanted(emulator, obstacle, n, count, at).await;
            continue;
        }
        let name = format!("p{n}");
        match obstacle {
            Obstacle::Queue => {
                let mut message = queued("orch_queue", "hot", &name, "{}", at);
                message["seq"] = ((1 << 52) + n).into();
                put(emulator, "hot", &message).await;
            }
            Obstacle::Pinned => {
                let mut pinned = head(&name, since);
                pinned["pinnedVersion"] = json!([9, 0, 0]);
                put(emulator, &name, &pinned).await;
                put_start(emulator, &name, at).await;
            }
            Obstacle::LockedHeads => {
                put(emulator, &name, &locked(head(&name, since), since)).await;
                put_start(emulator, &name, at).await;
            }
            Obstacle::Tags => {
                let mut work = work_of(&name, at);
                (work["tag"], work["lane"]) = ("gpu".into(), "plain/3:gpu".into());
                put(emulator, &name, &work).await;
            }
            Obstacle::Sessions => {
                put(emulator, &name, &of_session(work_of(&name, at), n % SESSIONS, SESSIONS)).await;
            }
            Obstacle::SessionEach => {
                put_session(emulator, n, since).await;
                put(emulator, &name, &of_session(work_of(&name, at), n, count)).await;
            }
        }
    }
}

/// Puts what the searcher can take.
async fn put_wanted(emulator: &Emulator, obstacle: Obstacle, n: u64, count: u64, at: u64) {
    if obstacle.is_of_turns() {
        return put_start(emulator, "middle", at).await;
    }
    let mut work = work_of("middle", at);
    match obstacle {
        // Of a session that nobody has, whose lane is in the middle too.
        Obstacle::Sessions => work = of_session(work, SESSIONS, SESSIONS * 2),
        Obstacle::SessionEach => work = of_session(work, n, count),
        _ => work["lane"] = "plain/~".into(),
    }
    put(emulator, "middle", &work).await;
}

fn head(name: &str, since: u64) -> Value {
    json!({
        "id": format!("{name}:instance"), "instanceId": name, "type": "instance", "formatVersion": 2,
        "started": true, "orchestrationName": "Hello", "currentExecutionId": 1, "status": "Running",
        "createdAt": since, "updatedAt": since,
    })
}

/// The same, locked by somebody for another hour.
fn locked(mut head: Value, since: u64) -> Value {
    (head["lockToken"], head["lockedUntil"]) = ("somebody".into(), (since + 7_200_000).into());
    head
}

async fn put_start(emulator: &Emulator, name: &str, at: u64) {
    let item = serde_json::to_string(&start(name, "Hello", "")).expect("it serializes");
    put(emulator, name, &queued("orch_queue", name, "m", &item, at)).await;
}

fn work_of(name: &str, at: u64) -> Value {
    let item = serde_json::to_string(&activity(name, 1)).expect("it serializes");
    queued("worker_queue", name, "work:1:1", &item, at)
}

/// The same, of the `n`th of so many sessions. Their lanes are in the order of their numbers.
fn of_session(mut work: Value, n: u64, sessions: u64) -> Value {
    let place = u128::from(n) * (u128::from(u32::MAX) / u128::from(sessions));
    work["sessionId"] = format!("s{n}").into();
    work["lane"] = format!("session/~/{place:08x}").into();
    work
}

async fn put_session(emulator: &Emulator, n: u64, since: u64) {
    let partition = format!("__session__:s{n}");
    let session = json!({
        "id": "session", "instanceId": partition, "type": "session", "sessionId": format!("s{n}"),
        "ownedSession": format!("s{n}"),
        "ownerId": "them", "lockedUntil": since + 7_200_000, "lastActivity": since, "createdAt": since,
    });
    put(emulator, &partition, &session).await;
}

const SESSIONS: u64 = 100;
/// What one search looks at, at most: its rows, and one more that tells of others behind them.
pub(crate) const PAGE: u64 = 1001;
const LOCK: Duration = Duration::from_secs(600);
/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(500);
