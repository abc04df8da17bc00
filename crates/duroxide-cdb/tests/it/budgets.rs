//! What things cost, asserted at the emulator's ledger.

use std::time::Duration;

use cosmos_emulator::{Config, Emulator, Operation, Totals};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, WorkItem};
use duroxide::runtime::RuntimeOptions;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use crate::flows::{Machine, options};
use crate::scale::{Crowd, FEW, measure};
use crate::world::{activity, event, named, start, until};

/// An emulator of its own, so that nothing else is counted.
struct Account {
    emulator: Emulator,
}

impl Account {
    fn new(partitions: u32) -> Self {
        Self { emulator: Emulator::start(Config::default().with_partitions(partitions)).unwrap() }
    }

    fn config(&self) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
    }

    async fn provider(&self, config: CosmosDBProviderConfig) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(config).await.unwrap()
    }

    /// Requests since the last reset: those of one partition, and searches over ranges.
    fn requests(&self) -> (u64, u64) {
        let recent = self.emulator.ledger().snapshot().recent;
        let searches =
            recent.iter().filter(|r| r.operation == Operation::Query && r.partition_key.is_none()).count();
        (recent.len() as u64 - searches as u64, searches as u64)
    }

    /// What was asked since the last reset, for the message of a failure.
    fn told(&self) -> String {
        let recent = self.emulator.ledger().snapshot().recent;
        let line = |r: &cosmos_emulator::RequestRecord| {
            format!("{:?} {} {:.2} RU, {} read", r.operation, r.status, r.request_units, r.documents_visited)
        };
        recent.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn totals(&self) -> Totals {
        self.emulator.ledger().snapshot().totals
    }
}

/// Searches for work of other processes so rarely that none falls into the test.
fn quiet(config: CosmosDBProviderConfig) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        poll_interval_min: Duration::from_secs(600),
        poll_interval_max: Duration::from_secs(600),
        reconciler_interval: Duration::from_secs(600),
        ..config
    }
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
    let units = account.totals().request_units;
    assert_eq!(searches, 0, "no search was needed:\n{}", account.told());
    assert!(matches!(machine.output("x").await.as_str(), output if !output.is_empty()));
    assert_eq!(account.emulator.ledger().snapshot().operation(Operation::Batch).requests, commits);
    machine.stop().await;
    (requests, units)
}

#[tokio::test]
async fn an_orchestration_with_one_activity_takes_at_most_ten_requests() {
    // Turn, activity, turn: a batch each.
    let (requests, units) = cost("Hello", "Ann", 3).await;
    assert!(requests <= 10, "{requests} requests");
    assert!(units <= HELLO_UNITS, "{units} request units");
}

#[tokio::test]
async fn a_chain_of_three_activities_costs_three_times_what_one_costs_and_not_more() {
    let (requests, units) = cost("Chain", "2", 7).await;
    assert!(requests <= 22, "{requests} requests");
    assert!(units <= CHAIN_UNITS, "{units} request units");
}

#[tokio::test]
async fn a_fan_out_of_n_takes_at_most_eight_and_three_n_requests() {
    const N: u64 = 30;
    let account = Account::new(1);
    let provider = account.provider(quiet(account.config())).await;
    assert!(provider.fetch_work_item(TEN, Duration::ZERO, None, &TagFilter::Any).await.unwrap().is_none());
    assert!(provider.fetch_orchestration_item(TEN, Duration::ZERO, None).await.unwrap().is_none());
    account.emulator.ledger().reset();
    provider.enqueue_for_orchestrator(start("x", "FanOut", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(TEN, TEN, None).await.unwrap().unwrap();
    let work = (1..=N).map(|id| activity("x", id)).collect();
    provider
        .ack_orchestration_item(&token, 1, vec![event("x", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    for _ in 0..N {
        let (item, token, _) =
            provider.fetch_work_item(TEN, TEN, None, &TagFilter::Any).await.unwrap().unwrap();
        let WorkItem::ActivityExecute { id, .. } = item else { panic!("{item:?}") };
        assert_eq!(provider.read("x").await.unwrap().len(), 1, "as the runtime does for each activity");
        let done =
            WorkItem::ActivityCompleted { instance: "x".into(), execution_id: 1, id, result: String::new() };
        provider.ack_work_item(&token, Some(done)).await.unwrap();
    }
    let (item, token, _) = provider.fetch_orchestration_item(TEN, TEN, None).await.unwrap().unwrap();
    assert_eq!(item.messages.len() as u64, N);
    provider
        .ack_orchestration_item(&token, 1, vec![event("x", 2)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
    let (requests, searches) = account.requests();
    assert_eq!(searches, 0, "no search was needed");
    assert!(requests <= 8 + 3 * N, "{requests} requests");
}

#[tokio::test]
async fn an_idle_runtime_makes_at_most_two_requests_a_second() {
    let account = Account::new(1);
    let machine = Machine::start(account.provider(account.config()).await, RuntimeOptions::default()).await;
    machine.run("warm", "Hello", "up").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    account.emulator.ledger().reset();
    let begun = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let requests = account.totals().requests;
    let rate = requests as f64 / begun.elapsed().as_secs_f64();
    assert!(rate <= 2.0, "{requests} requests in ten seconds:\n{}", account.told());
    assert!(rate >= 0.8, "{requests} requests in ten seconds: nobody looks for the work of others");
    machine.stop().await;
}

const TEN: Duration = Duration::from_secs(10);
/// What the emulator's model charges, which follows the published figures.
const HELLO_UNITS: f64 = 104.0;
const CHAIN_UNITS: f64 = 235.0;

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
    let (one, _) = measure(FEW).await;
    let (many, work) = measure(Crowd { waiting: 2000, activities: 2000, partitions: 16, ..FEW }).await;
    assert_eq!((one.searches, many.searches, work.searches), (1, 16, 16));
    assert_eq!(many.requests, one.requests);
    assert!(many.read_per_search <= one.read_per_search, "{many:?} beside {one:?}");
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
