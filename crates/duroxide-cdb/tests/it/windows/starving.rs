//! Nobody starves: neither the long queue of one instance, nor instances that only other runtimes can run, nor sessions
//! of others delay work that can be done, and no search looks at more documents than it returns.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosmos_emulator::{Auth, Config, Emulator, Operation, RequestRecord};
use duroxide::TagFilter;
use duroxide::providers::{
    DispatcherCapabilityFilter, Provider as _, ProviderAdmin as _, SemverRange, SessionFetchConfig,
};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::json;

use super::{LOCK, NOW, commit, mail, of_session};
use crate::obstacles::{Obstacle, PAGE, search_behind};
use crate::scale::{put, queued};
use crate::world::{activity, event, named, start};

/// An emulator of its own, so that nothing else is counted.
struct Account {
    emulator: Emulator,
}

impl Account {
    fn new() -> Self {
        Self { emulator: Emulator::start(Config::default().with_auth(Auth::Open)).unwrap() }
    }

    async fn process(&self) -> CosmosDBProvider {
        let config = CosmosDBProviderConfig {
            leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)),
            ..CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
        };
        CosmosDBProvider::new_with_config(config).await.unwrap()
    }

    /// Puts messages into the queue of an instance that runs, one after the other from a time on.
    async fn queue(&self, instance: &str, count: u64, from: u64, keyed: Keyed) {
        for n in 0..count {
            let item = serde_json::to_string(&mail(instance, &n.to_string())).unwrap();
            let mut message = queued("orch_queue", instance, &format!("mail {n}"), &item, from + n);
            if keyed == Keyed::Yes {
                message["seq"] = ((1 << 52) + n).into();
            }
            put(&self.emulator, instance, &message).await;
        }
    }

    /// Puts an instance that is pinned to a version, with a message that is due since a time.
    async fn pinned(&self, instance: &str, version: [u64; 3], since: u64) {
        let head = json!({
            "id": format!("{instance}:instance"), "instanceId": instance, "type": "instance", "formatVersion": 2,
            "started": true, "orchestrationName": "Hello", "currentExecutionId": 1, "status": "Running",
            "createdAt": since, "updatedAt": since, "pinnedVersion": version,
        });
        put(&self.emulator, instance, &head).await;
        let item = serde_json::to_string(&mail(instance, "m")).unwrap();
        put(&self.emulator, instance, &queued("orch_queue", instance, "mail", &item, since)).await;
    }

    fn recent(&self) -> Vec<RequestRecord> {
        self.emulator.ledger().snapshot().recent
    }

    /// The documents that the greatest of the searches looked at.
    fn visited(&self) -> u64 {
        let recent = self.recent();
        let searches = recent
            .iter()
            .filter(|asked| asked.operation == Operation::Query && asked.partition_key.is_none());
        searches.map(|search| search.documents_visited).max().unwrap_or(0)
    }
}

/// Whether messages have order keys; those of the public crate have none.
#[derive(PartialEq, Eq)]
enum Keyed {
    Yes,
    No,
}

/// What a runtime says that supports all versions up to this one.
fn up_to(version: &str) -> DispatcherCapabilityFilter {
    let range = SemverRange::new("0.0.0".parse().unwrap(), version.parse().unwrap());
    DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] }
}

fn an_hour_ago() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    u64::try_from(now).unwrap() - 3_600_000
}

/// The instance of the next turn.
async fn turn(process: &CosmosDBProvider, filter: Option<&DispatcherCapabilityFilter>) -> String {
    let fetched = process.fetch_orchestration_item(LOCK, LONG, filter).await.unwrap();
    fetched.expect("there is a turn").0.instance
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_queue_of_one_instance_is_not_in_the_way_of_others() {
    let account = Account::new();
    let busy = account.process().await;
    busy.enqueue_for_orchestrator(start("hot", "Hello", ""), None).await.unwrap();
    account.queue("hot", MANY, an_hour_ago(), Keyed::No).await;
    let (_, token, _) = busy.fetch_orchestration_item(LOCK, LONG, None).await.unwrap().unwrap();
    commit(&busy, &token, vec![event("hot", 1)], named()).await.unwrap();
    assert_eq!(turn(&busy, None).await, "hot", "and its turn takes its time");
    let other = account.process().await;
    account.emulator.ledger().reset();
    for n in 0..5 {
        let fresh = format!("fresh {n}");
        other.enqueue_for_orchestrator(start(&fresh, "Hello", ""), None).await.unwrap();
        assert_eq!(turn(&busy, None).await, fresh);
    }
    assert!(account.visited() <= PAGE, "a search looked at {} documents", account.visited());
}

/// Finds work behind so many obstacles, and compares what that takes with the bounds that hold for any number.
async fn is_found_behind(obstacle: Obstacle, count: u64) {
    let search = search_behind(obstacle, count).await;
    for (find, bound) in search.finds.iter().zip(obstacle.bounds(count)) {
        assert!(find.is_within(bound), "{find:?}, at most {bound:?}");
    }
    assert!(search.read_per_search <= PAGE, "{search:?}");
}

/// What each of some turns of `hot` looked at, all of them taken by a process that knew nothing before the first.
async fn turns_of_hot(account: &Account, numbers: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    let process = account.process().await;
    let mut visited = Vec::new();
    for number in numbers {
        account.emulator.ledger().reset();
        let (item, token, _) = process.fetch_orchestration_item(LOCK, LONG, None).await.unwrap().unwrap();
        assert_eq!((item.instance.as_str(), item.messages.len()), ("hot", 64));
        let own = account.recent().into_iter().filter(|asked| asked.partition_key.is_some());
        visited.push(own.map(|asked| asked.documents_visited).sum());
        commit(&process, &token, vec![event("hot", number)], named()).await.unwrap();
    }
    visited
}

/// An account in which `hot` has begun.
async fn account_with_hot() -> Account {
    let account = Account::new();
    let process = account.process().await;
    process.enqueue_for_orchestrator(start("hot", "Hello", ""), None).await.unwrap();
    let (_, token, _) = process.fetch_orchestration_item(LOCK, LONG, None).await.unwrap().unwrap();
    commit(&process, &token, vec![event("hot", 1)], named()).await.unwrap();
    account
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_a_long_queue_looks_at_what_the_next_turns_take_and_not_at_the_rest() {
    let account = account_with_hot().await;
    account.queue("hot", 2 * MANY, an_hour_ago(), Keyed::Yes).await;
    let visited = turns_of_hot(&account, 2..=20).await;
    // A page of everything, which shows that the queue is long, and then each part of it about twice.
    assert!(visited.iter().all(|visited| *visited <= 3 * PAGE), "{visited:?}");
    let mut sorted = visited.clone();
    sorted.sort_unstable();
    assert!(sorted[visited.len() / 2] <= PAGE, "{visited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_of_a_long_queue_without_order_keys_looks_at_what_the_next_turns_take_and_not_at_the_rest() {
    let account = account_with_hot().await;
    account.queue("hot", 2 * MANY, an_hour_ago(), Keyed::No).await;
    let visited = turns_of_hot(&account, 2..=10).await;
    assert!(visited.iter().all(|visited| *visited <= 3 * PAGE), "{visited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_in_the_middle_of_the_long_queue_of_another_is_found_within_its_bound() {
    is_found_behind(Obstacle::Queue, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_instances_of_another_version_is_found_within_its_bound() {
    is_found_behind(Obstacle::Pinned, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_instances_whose_turns_others_have_is_found_within_its_bound() {
    is_found_behind(Obstacle::LockedHeads, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_activities_of_another_tag_is_found_within_its_bound() {
    is_found_behind(Obstacle::Tags, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_a_hundred_foreign_sessions_is_found_within_its_bound() {
    is_found_behind(Obstacle::Sessions, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_behind_thousands_of_foreign_sessions_is_found_within_its_bound() {
    is_found_behind(Obstacle::SessionEach, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_only_a_newer_runtime_can_run_do_not_starve_the_others() {
    let account = Account::new();
    let (old, new) = (up_to("0.1.32"), up_to("9.0.0"));
    let runtime = account.process().await;
    let since = an_hour_ago();
    for n in 0..MANY {
        // One that this runtime can run is in the middle of them, and one is the last.
        let version = if n == MANY / 2 || n == MANY - 1 { [0, 1, 5] } else { [9, 0, 0] };
        account.pinned(&format!("i{n:05}"), version, since + n).await;
    }
    account.emulator.ledger().reset();
    let mut found = [turn(&runtime, Some(&old)).await, turn(&runtime, Some(&old)).await];
    found.sort_unstable();
    assert_eq!(found, [format!("i{:05}", MANY / 2), format!("i{:05}", MANY - 1)]);
    // Two for each that can run, and one for some hundreds that cannot.
    let requests = account.recent().len();
    assert!(requests <= 60, "{requests} requests beside {MANY} instances");
    assert!(account.visited() <= PAGE, "a search looked at {} documents", account.visited());
    // They are remembered: the next search costs a page or two, and finds what comes.
    account.emulator.ledger().reset();
    account.process().await.enqueue_for_orchestrator(start("fresh", "Hello", ""), None).await.unwrap();
    assert_eq!(turn(&runtime, Some(&old)).await, "fresh");
    let requests = account.recent().len();
    assert!(requests <= 60, "{requests} requests for one that can run");
    assert_eq!(turn(&account.process().await, Some(&new)).await, "i00000", "they are there for others");
}

#[tokio::test]
async fn an_instance_that_begins_anew_is_run_by_who_could_not_run_it_before() {
    let account = Account::new();
    let old = up_to("0.1.32");
    let runtime = account.process().await;
    account.pinned("a", [9, 0, 0], an_hour_ago()).await;
    assert!(runtime.fetch_orchestration_item(LOCK, NOW, Some(&old)).await.unwrap().is_none());
    let operator = account.process().await;
    operator.delete_instance("a", true).await.unwrap();
    operator.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert_eq!(turn(&runtime, Some(&old)).await, "a");
}

#[tokio::test]
async fn a_runtime_of_another_version_in_the_same_process_gets_what_the_first_turned_away() {
    let account = Account::new();
    let process = account.process().await;
    for n in 0..30 {
        account.pinned(&format!("i{n:02}"), [9, 0, 0], 1000 + n).await;
    }
    let (old, new) = (up_to("0.1.32"), up_to("9.0.0"));
    assert!(process.fetch_orchestration_item(LOCK, NOW, Some(&old)).await.unwrap().is_none());
    assert!(process.fetch_orchestration_item(LOCK, NOW, Some(&old)).await.unwrap().is_none());
    let mut found = Vec::new();
    while let Some((item, ..)) = process.fetch_orchestration_item(LOCK, NOW, Some(&new)).await.unwrap() {
        found.push(item.instance);
    }
    assert_eq!(found.len(), 30, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_sessions_others_own_their_items_are_not_in_the_way() {
    const SESSIONS: u64 = 400;
    let account = Account::new();
    let (me, them) = (owner("me"), owner("them"));
    let other = account.process().await;
    let session = |n| format!("theirs {n}");
    for n in 0..SESSIONS {
        other.enqueue_for_worker(of_session("crowd", n, &session(n))).await.unwrap();
    }
    for n in 0..SESSIONS {
        let taken = other.fetch_work_item(LOCK, NOW, Some(&them), &TagFilter::Any).await.unwrap();
        assert!(taken.is_some(), "session {n}");
    }
    for n in 0..SESSIONS {
        other.enqueue_for_worker(of_session("crowd", SESSIONS + n, &session(n))).await.unwrap();
    }
    let expected = [activity("a", 1), of_session("b", 1, "mine")];
    for item in expected.clone() {
        other.enqueue_for_worker(item).await.unwrap();
    }
    let worker = account.process().await;
    account.emulator.ledger().reset();
    let mut taken = Vec::new();
    for _ in 0..2 {
        let fetched = worker.fetch_work_item(LOCK, LONG, Some(&me), &TagFilter::Any).await.unwrap();
        taken.push(fetched.expect("it is for anybody").0);
    }
    taken.sort_by_key(|item| format!("{item:?}"));
    assert_eq!(taken, expected);
    let requests = account.recent().len();
    assert!(requests <= 120, "{requests} requests beside {SESSIONS} sessions");
    assert!(account.visited() <= PAGE, "a search looked at {} documents", account.visited());
}

fn owner(name: &str) -> SessionFetchConfig {
    SessionFetchConfig { owner_id: name.to_owned(), lock_timeout: LOCK }
}

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(300);
const MANY: u64 = 3000;
