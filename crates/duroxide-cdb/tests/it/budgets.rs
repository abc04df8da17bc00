//! What things cost, asserted at the emulator's ledger.

use std::time::Duration;

use cosmos_emulator::{Auth, Config, Emulator, Operation, RequestRecord, Totals};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ProviderAdmin as _, WorkItem};
use duroxide::runtime::RuntimeOptions;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::json;

use crate::flows::{Machine, options};
use crate::scale::{Crowd, FEW, fill, measure, put};
use crate::world::{activity, event, named, start, until};

/// An emulator of its own, so that nothing else is counted.
pub(crate) struct Account {
    pub(crate) emulator: Emulator,
}

impl Account {
    pub(crate) fn new(partitions: u32) -> Self {
        Self { emulator: Emulator::start(Config::default().with_partitions(partitions)).unwrap() }
    }

    pub(crate) fn config(&self) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
    }

    pub(crate) async fn provider(&self, config: CosmosDBProviderConfig) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(config).await.unwrap()
    }

    /// What was asked since the last reset about work. What the fleet asks about itself goes by time, not by work.
    fn asked_about_work(&self) -> Vec<RequestRecord> {
        let mut recent: Vec<RequestRecord> = self.emulator.ledger().snapshot().recent.into_iter().collect();
        recent.retain(|r| r.partition_key.as_ref().is_none_or(|key| !key.contains("__leases__")));
        recent
    }

    /// The units of that.
    fn units(&self) -> f64 {
        self.asked_about_work().iter().map(|r| r.request_units).sum()
    }

    /// Requests since the last reset: those of one partition, and searches over ranges.
    fn requests(&self) -> (u64, u64) {
        let recent = self.asked_about_work();
        let searches =
            recent.iter().filter(|r| r.operation == Operation::Query && r.partition_key.is_none()).count();
        (recent.len() as u64 - searches as u64, searches as u64)
    }

    /// What was asked since the last reset, for the message of a failure.
    pub(crate) fn told(&self) -> String {
        let recent = self.emulator.ledger().snapshot().recent;
        let line = |r: &RequestRecord| {
            format!("{:?} {} {:.2} RU, {} read", r.operation, r.status, r.request_units, r.documents_visited)
        };
        recent.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn totals(&self) -> Totals {
        self.emulator.ledger().snapshot().totals
    }
}

/// Searches for work of other processes so rarely that none falls into the test.
pub(crate) fn quiet(config: CosmosDBProviderConfig) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        poll_interval_min: Duration::from_secs(600),
        poll_interval_max: Duration::from_secs(600),
        reconciler_interval: Duration::from_secs(600),
        ..config
    }
}

/// The same for a process that takes no part in the fleet, so that every lock is written.
pub(crate) fn unshared(config: CosmosDBProviderConfig) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig { leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)), ..quiet(config) }
}

fn patient() -> RuntimeOptions {
    RuntimeOptions {
        dispatcher_long_poll_timeout: Duration::from_secs(30),
        ..options(Duration::from_secs(30))
    }
}

/// Runs one orchestration of `commits` batches on a warm machine and returns requests and request units, the waiting
/// client not counted.
async fn cost(name: &str, input: &str, commits: u64) -> (u64, f64) {
    let account = Account::new(1);
    let provider = account.provider(quiet(account.config())).await;
    let machine = Machine::start(provider.clone(), patient()).await;
    machine.run("warm", "Hello", "up").await;
    account.emulator.ledger().reset();
    provider.enqueue_for_orchestrator(start("x", name, input), None).await.unwrap();
    // The end is seen at the emulator, so that nobody has to ask for it.
    until("it is committed", async || {
        account.emulator.ledger().snapshot().operation(Operation::Batch).requests >= commits
    })
    .await;
    let (requests, searches) = account.requests();
    let units = account.units();
    assert_eq!(searches, 0, "no search was needed:\n{}", account.told());
    assert!(matches!(machine.output("x").await.as_str(), output if !output.is_empty()));
    assert_eq!(account.emulator.ledger().snapshot().operation(Operation::Batch).requests, commits);
    machine.stop().await;
    (requests, units)
}

/// The cheapest of a few runs, none of which costs more than `most`: where the machine stalls between a claim and its
/// reader, the reader asks.
async fn cheapest(name: &str, input: &str, commits: u64, most: u64) -> (u64, f64) {
    let mut best = (u64::MAX, f64::MAX);
    for _ in 0..3 {
        let (requests, units) = cost(name, input, commits).await;
        assert!(requests <= most, "{requests} requests");
        best = (best.0.min(requests), best.1.min(units));
    }
    best
}

#[tokio::test]
async fn an_orchestration_with_one_activity_takes_six_requests() {
    // A turn, a completed activity, a turn: a batch each.
    let (requests, units) = cheapest("Hello", "Ann", 3, 9).await;
    // The start, two turns of two requests, and one of the activity.
    assert_eq!(requests, 6);
    assert!(units <= HELLO_UNITS, "{units} request units");
}

#[tokio::test]
async fn a_chain_of_three_activities_costs_three_times_what_one_costs_and_not_more() {
    let (requests, units) = cheapest("Chain", "2", 7, 18).await;
    assert_eq!(requests, 12);
    assert!(units <= CHAIN_UNITS, "{units} request units");
}

#[tokio::test]
async fn a_chain_of_five_pays_for_no_history_of_its_own() {
    let (requests, units) = cheapest("LongChain", "5", 11, 28).await;
    assert_eq!(requests, 18);
    assert!(units <= LONG_CHAIN_UNITS, "{units} request units");
}

#[tokio::test]
async fn three_children_with_an_activity_each_take_thirty_two_requests_at_most() {
    let mut best = (u64::MAX, f64::MAX);
    for _ in 0..3 {
        let account = Account::new(1);
        let provider = account.provider(quiet(account.config())).await;
        let machine = Machine::start(provider.clone(), patient()).await;
        machine.run("warm", "Hello", "up").await;
        account.emulator.ledger().reset();
        provider.enqueue_for_orchestrator(start("x", "Parent", "a,b,c"), None).await.unwrap();
        // The end is seen at the emulator, so that nobody has to ask for it: nothing more comes.
        let mut last = (0, std::time::Instant::now());
        until("it is over", async || {
            let requests = account.asked_about_work().len();
            if requests != last.0 {
                last = (requests, std::time::Instant::now());
            }
            requests > 20 && last.1.elapsed() > Duration::from_secs(2)
        })
        .await;
        let ((requests, searches), units) = (account.requests(), account.units());
        assert_eq!(searches, 0, "no search was needed:\n{}", account.told());
        assert_eq!(machine.output("x").await, "Hello, a! Hello, b! Hello, c!");
        machine.stop().await;
        best = (best.0.min(requests), best.1.min(units));
    }
    assert!(best.0 <= 32 && best.1 <= FAMILY_UNITS, "{best:?}");
}

/// Requests and request units of a fan-out to `n` activities and of the fan-in.
async fn fan_out(n: u64) -> (u64, f64) {
    let account = Account::new(1);
    let provider = account.provider(quiet(account.config())).await;
    assert!(provider.fetch_work_item(TEN, Duration::ZERO, None, &TagFilter::Any).await.unwrap().is_none());
    assert!(provider.fetch_orchestration_item(TEN, Duration::ZERO, None).await.unwrap().is_none());
    account.emulator.ledger().reset();
    provider.enqueue_for_orchestrator(start("x", "FanOut", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(TEN, TEN, None).await.unwrap().unwrap();
    let work = (1..=n).map(|id| activity("x", id)).collect();
    provider
        .ack_orchestration_item(&token, 1, vec![event("x", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    for _ in 0..n {
        let (item, token, _) =
            provider.fetch_work_item(TEN, TEN, None, &TagFilter::Any).await.unwrap().unwrap();
        let WorkItem::ActivityExecute { id, .. } = item else { panic!("{item:?}") };
        assert_eq!(provider.read("x").await.unwrap().len(), 1, "as the runtime does for each activity");
        let done =
            WorkItem::ActivityCompleted { instance: "x".into(), execution_id: 1, id, result: String::new() };
        provider.ack_work_item(&token, Some(done)).await.unwrap();
    }
    // However many came, the turns in which they are taken belong to the fan-in.
    let (mut taken, mut last) = (0, 1);
    while taken < n {
        let (item, token, _) = provider.fetch_orchestration_item(TEN, TEN, None).await.unwrap().unwrap();
        taken += item.messages.len() as u64;
        last += 1;
        provider
            .ack_orchestration_item(&token, 1, vec![event("x", last)], vec![], vec![], named(), vec![])
            .await
            .unwrap();
    }
    let (requests, searches) = account.requests();
    assert_eq!(searches, 0, "no search was needed:\n{}", account.told());
    (requests, account.units())
}

#[tokio::test]
async fn a_fan_out_of_n_takes_little_more_than_a_request_for_each() {
    for n in [1, 2, 10, 20, 48, 64, 65, 97, 100, 150, 300] {
        let (requests, units) = fan_out(n).await;
        // An activity is one. A turn takes 256 results, and consumes what does not fit into its batch after it. What does
        // not fit into the batch of the first turn is written before it and published after it. Where the machine stalls, a
        // reader asks.
        let stalls = n / 10;
        let most = stalls + 8 + n + if n > 96 { 5 * n.div_ceil(96) } else { 0 };
        assert!(most <= 8 + 3 * n, "{n}: {most}");
        assert!(requests <= most, "{n}: {requests} requests, not {most}");
        let most = FAN_OUT_UNITS + FAN_OUT_UNITS_EACH * n as f64;
        assert!(units <= most, "{n}: {units} request units, not {most}");
    }
}

#[tokio::test]
async fn workers_side_by_side_read_their_instance_with_their_claims() {
    const ACTIVITIES: u64 = 40;
    let account = Account::new(1);
    let provider = account.provider(quiet(account.config())).await;
    let reads = || {
        let spent = provider.spending().operations;
        spent.iter().find(|(operation, _)| *operation == "read").map_or(0, |(_, spent)| spent.requests)
    };
    let machine = Machine::start(provider.clone(), patient()).await;
    machine.run("warm", "Hello", "up").await;
    let before = reads();
    // Somebody else waits for it, so that only workers read here.
    let client = account.provider(quiet(account.config())).await;
    provider.enqueue_for_orchestrator(start("x", "FanOut", &ACTIVITIES.to_string()), None).await.unwrap();
    until("it is done", async || {
        client.get_instance_info("x").await.is_ok_and(|info| info.status == "Completed")
    })
    .await;
    // A turn of the instance that ends between a claim and its reader makes that one ask.
    let asked = reads() - before;
    machine.stop().await;
    assert!(asked <= ACTIVITIES / 4, "{asked} of {ACTIVITIES} activities asked again");
}

#[tokio::test]
async fn an_idle_fleet_makes_two_requests_a_second_and_half_a_one_for_each_member_whatever_the_partitions() {
    futures::join!(idle(1, 1), idle(4, 1), idle(16, 1), idle(4, 4));
}

/// Watches runtimes with nothing to do, with the defaults of everything but how long they listen closely after a ring.
async fn idle(partitions: u32, members: u32) {
    let account = Account::new(partitions);
    let mut machines = Vec::new();
    for _ in 0..members {
        let config = CosmosDBProviderConfig { bell_rests_after: Duration::from_secs(2), ..account.config() };
        machines.push(Machine::start(account.provider(config).await, RuntimeOptions::default()).await);
    }
    machines[0].run("warm", "Hello", "up").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    account.emulator.ledger().reset();
    let begun = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let (spent, elapsed) = (account.totals(), begun.elapsed().as_secs_f64());
    let told = account.told();
    for machine in machines {
        machine.stop().await;
    }
    // What the runtime's gauges ask, once a minute, is a test of its own. A look at the whole container comes at once, every
    // 4.5 seconds and partition: how many of them fall into this time is chance, so what is beyond their share is not counted.
    let look = 2.0 * f64::from(partitions);
    let looks = elapsed / (4.5 * f64::from(partitions)).max(6.0);
    let beyond_share = look * (looks.floor() + 1.0 - looks);
    let rate = (spent.requests as f64 - beyond_share) / elapsed;
    let units = spent.request_units / elapsed;
    let most = 2.0 + 0.5 * f64::from(members);
    assert!(rate <= most, "{members} members, {partitions} partitions, {rate} requests a second:\n{told}");
    assert!(
        spent.requests as f64 / elapsed >= 0.8,
        "{partitions} partitions, {rate} requests a second: nobody looks for the work of others"
    );
    let most = IDLE_UNITS + IDLE_UNITS_EACH * f64::from(members);
    assert!(
        units <= most,
        "{members} members, {partitions} partitions, {units} request units a second:\n{told}"
    );
}

/// Requests of the gauges, once their queries are known, with a crowd in the container.
async fn gauges(crowd: Crowd) -> (u64, u64) {
    let config = Config::default().with_partitions(crowd.partitions).with_auth(Auth::Open);
    let account = Account { emulator: Emulator::start(config).unwrap() };
    let provider = account.provider(quiet(account.config())).await;
    fill(&account.emulator, crowd).await;
    futures::try_join!(provider.get_system_metrics(), provider.get_queue_depths()).unwrap();
    account.emulator.ledger().reset();
    let metrics = provider.get_system_metrics().await.unwrap();
    assert_eq!(
        (metrics.total_instances, metrics.completed_instances),
        (crowd.finished as u64, crowd.finished as u64)
    );
    let counting = account.totals().requests;
    account.emulator.ledger().reset();
    let depths = provider.get_queue_depths().await.unwrap();
    assert_eq!((depths.orchestrator_queue, depths.worker_queue), (crowd.waiting, crowd.activities));
    (counting, account.totals().requests)
}

#[tokio::test]
async fn instances_are_counted_by_status_over_all_ranges_and_layouts() {
    let config = Config::default().with_partitions(4).with_auth(Auth::Open);
    let account = Account { emulator: Emulator::start(config).unwrap() };
    let provider = account.provider(quiet(account.config())).await;
    let nothing = provider.get_system_metrics().await.unwrap();
    assert_eq!((nothing.total_instances, nothing.total_executions, nothing.total_events), (0, 0, 0));
    for n in 0..12 {
        let head = |status: &str| {
            let name = format!("i{n}");
            json!({
                "id": format!("{name}:instance"), "instanceId": name, "type": "instance", "status": status,
                "orchestrationName": "Hello",
            })
        };
        let mut document = match n % 6 {
            1 => head("Completed"),
            2 => head("Failed"),
            3 => head("ContinuedAsNew"),
            _ => head("Running"),
        };
        // One of them was written by the public crate, which counted nothing, and one has not begun.
        if n % 6 != 4 {
            document["formatVersion"] = 2.into();
            document["started"] = (n % 6 != 5).into();
            document["executionCount"] = 3.into();
            document["totalEventCount"] = 7.into();
        }
        put(&account.emulator, &format!("i{n}"), &document).await;
    }
    let told = provider.get_system_metrics().await.unwrap();
    assert_eq!((told.running_instances, told.completed_instances, told.failed_instances), (4, 2, 2));
    assert_eq!((told.total_instances, told.total_executions, told.total_events), (10, 8 * 3 + 2, 8 * 7));
}

#[tokio::test]
async fn gauges_take_as_many_requests_beside_thousands_as_beside_ten() {
    for partitions in [1, 4] {
        let many = Crowd { waiting: 3000, activities: 3000, finished: 3000, ..FEW };
        let expected = (u64::from(partitions), 3 * u64::from(partitions));
        for crowd in [Crowd { partitions, ..FEW }, Crowd { partitions, ..many }] {
            // A query that a busy machine keeps waiting for seconds is asked again, which is not what is counted here.
            let mut paid = gauges(crowd).await;
            for _ in 0..2 {
                if paid != expected {
                    paid = gauges(crowd).await;
                }
            }
            assert_eq!(paid, expected, "{crowd:?}");
        }
    }
}

const TEN: Duration = Duration::from_secs(10);
/// What the emulator's model charges, which follows the published figures.
const HELLO_UNITS: f64 = 60.0;
const CHAIN_UNITS: f64 = 135.0;
const LONG_CHAIN_UNITS: f64 = 210.0;
const FAN_OUT_UNITS: f64 = 80.0;
const FAN_OUT_UNITS_EACH: f64 = 25.0;
const FAMILY_UNITS: f64 = 362.0;
/// A second: what the fleet pays together, and what the heartbeat of a member costs, which is a write.
const IDLE_UNITS: f64 = 4.0;
const IDLE_UNITS_EACH: f64 = 5.0;

#[tokio::test]
async fn a_fetch_costs_the_same_beside_ten_and_beside_thousands() {
    const MANY: usize = 5000;
    let few = measure(FEW).await;
    for crowd in [
        Crowd { waiting: MANY, ..FEW },
        Crowd { activities: MANY, ..FEW },
        Crowd { timers: MANY, ..FEW },
        Crowd { locked: MANY, ..FEW },
        Crowd { finished: MANY, ..FEW },
    ] {
        let (turn, work) = measure(crowd).await;
        for (what, cost, least) in [("turn", turn, few.0), ("activity", work, few.1)] {
            assert_eq!(
                (cost.requests, cost.searches, cost.read_per_search, cost.read_besides),
                (least.requests, least.searches, least.read_per_search, least.read_besides),
                "{what} beside {crowd:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_fetch_asks_each_range_once_and_none_of_them_for_more_than_a_little() {
    let (one, one_work) = measure(FEW).await;
    let (many, work) = measure(Crowd { waiting: 2000, activities: 2000, partitions: 16, ..FEW }).await;
    assert_eq!((one.searches, many.searches, work.searches), (1, 16, 16));
    assert_eq!((many.requests, work.requests), (one.requests, one_work.requests));
    for (what, many, one) in [("turn", many, one), ("activity", work, one_work)] {
        assert!(many.read_per_search <= one.read_per_search, "{what}: {many:?} beside {one:?}");
    }
}

#[tokio::test]
async fn locking_and_committing_never_touch_the_messages_one_by_one() {
    let account = Account::new(1);
    let provider = account.provider(quiet(account.config())).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    for n in 0..40 {
        let item = WorkItem::QueueMessage { instance: "a".into(), name: "q".into(), data: n.to_string() };
        provider.enqueue_for_orchestrator(item, None).await.unwrap();
    }
    assert!(provider.fetch_work_item(TEN, Duration::ZERO, None, &TagFilter::Any).await.unwrap().is_none());
    account.emulator.ledger().reset();
    let (item, token, _) =
        provider.fetch_orchestration_item(TEN, Duration::ZERO, None).await.unwrap().unwrap();
    assert_eq!(item.messages.len(), 41);
    provider.renew_orchestration_item_lock(&token, TEN).await.unwrap();
    provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    let (requests, _) = account.requests();
    assert!(requests <= 4, "{requests} requests for fetch, renew and abandon of 41 messages");
}
