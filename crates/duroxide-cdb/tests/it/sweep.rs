//! The single-fault sweep: every scenario, every request, every fault.
//!
//! A scenario is run once to count its requests. Then it is run once per request and fault, with that one request
//! struck. Each time the result must be right and nothing may be left over: no message, no work item, no intent, no
//! lock, nothing staged.

use std::fmt;
use std::time::Duration;

use cosmos_driver::{Container, ItemOptions, QueryOptions, Scope};
use cosmos_emulator::{FaultRule, Verdict};
use duroxide::runtime::RuntimeOptions;
use duroxide::{Client, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

use crate::flows::{Machine, options};
use crate::world::{DATABASE, config, emulator, fresh_name, raw, until};

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Hello,
    Chain,
    FanOut20,
    FanOut150,
    SubOrchestrations,
    ContinueAsNew,
    Session,
    Cancel,
    Notes,
    Delete,
}

/// What happens to the struck request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strike {
    Throttled,
    RetryWith,
    Unavailable,
    TimedOut,
    ResetBefore,
    ResetAfterCommit,
    DelayedPastTheLock,
    Killed,
}

/// One run: a scenario with its `k`th request struck.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: Scenario,
    pub(crate) strike: Strike,
    pub(crate) k: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, request {}, {:?}", self.scenario, self.k, self.strike)
    }
}

impl Scenario {
    pub(crate) const ALL: [Self; 10] = [
        Self::Hello,
        Self::Chain,
        Self::FanOut20,
        Self::FanOut150,
        Self::SubOrchestrations,
        Self::ContinueAsNew,
        Self::Session,
        Self::Cancel,
        Self::Notes,
        Self::Delete,
    ];

    /// Does what a user would do and checks what a user would see.
    async fn play(self, client: &Client, patience: Duration) -> Result<(), String> {
        match self {
            Self::Hello => expect(client, patience, "Hello", "Ann", "Hello, Ann!").await,
            Self::Chain => expect(client, patience, "Chain", "2", "256").await,
            Self::FanOut20 => expect(client, patience, "FanOut", "20", "2470").await,
            Self::FanOut150 => expect(client, patience, "FanOut", "150", "1113775").await,
            Self::SubOrchestrations => expect(client, patience, "Parent", "A,B", "Hello, A! Hello, B!").await,
            Self::ContinueAsNew => {
                start(client, "Counter", "3/").await?;
                for letter in ["a", "b", "c"] {
                    client.enqueue_event("x", "mail", letter).await.map_err(|error| error.to_string())?;
                }
                ends_with(client, patience, "abc").await
            }
            Self::Session => {
                start(client, "Session", "s").await?;
                let output = output(client, patience).await?;
                if output.starts_with("s@") { Ok(()) } else { Err(output) }
            }
            Self::Cancel => {
                start(client, "Stuck", "").await?;
                client.cancel_instance("x", "enough").await.map_err(|error| error.to_string())?;
                match client.wait_for_orchestration("x", patience).await {
                    Ok(OrchestrationStatus::Failed { details, .. })
                        if details.display_message().contains("enough") =>
                    {
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                }
            }
            Self::Notes => {
                expect(client, patience, "Notes", "v", "v").await?;
                let values = client.get_kv_all_values("x").await.map_err(|error| error.to_string())?;
                if values.len() == 1 { Ok(()) } else { Err(format!("{values:?}")) }
            }
            Self::Delete => {
                expect(client, patience, "Parent", "A,B", "Hello, A! Hello, B!").await?;
                // An unanswered deletion that happened may report that there is nothing to delete.
                match client.delete_instance("x", false).await {
                    Ok(deleted) if deleted.instances_deleted == 3 => Ok(()),
                    Ok(deleted) => Err(format!("{deleted:?}")),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }
}

async fn start(client: &Client, name: &str, input: &str) -> Result<(), String> {
    client.start_orchestration("x", name, input).await.map_err(|error| error.to_string())
}

async fn output(client: &Client, patience: Duration) -> Result<String, String> {
    match client.wait_for_orchestration("x", patience).await {
        Ok(OrchestrationStatus::Completed { output, .. }) => Ok(output),
        other => Err(format!("{other:?}")),
    }
}

async fn ends_with(client: &Client, patience: Duration, expected: &str) -> Result<(), String> {
    let output = output(client, patience).await?;
    if output == expected { Ok(()) } else { Err(format!("the output is {output:?}")) }
}

async fn expect(
    client: &Client,
    patience: Duration,
    name: &str,
    input: &str,
    expected: &str,
) -> Result<(), String> {
    start(client, name, input).await?;
    ends_with(client, patience, expected).await
}

impl Strike {
    pub(crate) const ALL: [Self; 8] = [
        Self::Throttled,
        Self::RetryWith,
        Self::Unavailable,
        Self::TimedOut,
        Self::ResetBefore,
        Self::ResetAfterCommit,
        Self::DelayedPastTheLock,
        Self::Killed,
    ];

    fn verdict(self, lock: Duration) -> Verdict {
        let status = |code, sub_status, retry_after| Verdict::Status { code, sub_status, retry_after };
        match self {
            Self::Throttled => status(429, 3200, Some(Duration::from_millis(30))),
            Self::RetryWith => status(449, 0, None),
            Self::Unavailable => status(503, 0, None),
            Self::TimedOut => status(408, 0, None),
            Self::ResetBefore => Verdict::ResetBefore,
            Self::ResetAfterCommit => Verdict::ResetAfterCommit,
            Self::DelayedPastTheLock => Verdict::Delay { duration: lock * 3 / 2 },
            Self::Killed => Verdict::Hang,
        }
    }
}

/// How patient a sweep is. A slow machine makes locks expire and attempts lead nowhere; they are not what is tested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) lock: Duration,
    pub(crate) attempts: u32,
    /// How long a scenario may take.
    pub(crate) patience: Duration,
}

impl Terms {
    fn runtime_options(self) -> RuntimeOptions {
        RuntimeOptions { max_attempts: self.attempts, ..options(self.lock) }
    }
}

/// How many requests a scenario makes when nothing goes wrong.
pub(crate) async fn count(scenario: Scenario, terms: Terms) -> u64 {
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(settings(&name)).await.unwrap();
    let before = requests(&name);
    let machine = Machine::start(provider.clone(), terms.runtime_options()).await;
    scenario.play(&machine.client, terms.patience).await.unwrap();
    let after = requests(&name);
    machine.stop().await;
    provider.cleanup().await.unwrap();
    assert!(after > before, "{scenario:?} was not counted: the ledger is full");
    after - before
}

fn requests(container: &str) -> u64 {
    let link = link(container);
    let lines = emulator().ledger().snapshot().lines;
    lines.iter().filter(|line| *line.container == *link).map(|line| line.totals.requests).sum()
}

fn link(container: &str) -> String {
    format!("dbs/{DATABASE}/colls/{container}")
}

/// Runs one point. `Err` says what was wrong.
pub(crate) async fn run(point: Point, terms: Terms) -> Result<(), String> {
    let name = fresh_name();
    let provider =
        CosmosDBProvider::new_with_config(settings(&name)).await.map_err(|error| error.to_string())?;
    let rule = FaultRule::new(point.strike.verdict(terms.lock)).in_container(link(&name)).nth(point.k);
    let outcome = if point.strike == Strike::Killed {
        run_killed(point, &name, provider.clone(), rule, terms).await
    } else {
        let fault = emulator().faults().add(rule);
        let machine = Machine::start(provider.clone(), terms.runtime_options()).await;
        let played = point.scenario.play(&machine.client, terms.patience).await;
        drop(fault);
        let outcome = match played {
            Ok(()) => settled(&name, terms.patience).await,
            Err(error) => Err(error),
        };
        machine.stop().await;
        outcome
    };
    // A sweep has thousands of points; what one leaves behind is not kept.
    let _ = provider.cleanup().await;
    outcome.map_err(|error| format!("{point}: {error}"))
}

/// The process that works dies at the struck request; another takes over. The client lives on.
async fn run_killed(
    point: Point,
    name: &str,
    provider: CosmosDBProvider,
    rule: FaultRule,
    terms: Terms,
) -> Result<(), String> {
    let other = CosmosDBProvider::new_with_config(settings(name)).await.map_err(|error| error.to_string())?;
    let client = Client::new(std::sync::Arc::new(other));
    let fault = emulator().faults().add(rule);
    let machine = Machine::start(provider, terms.runtime_options()).await;
    let play = tokio::spawn(async move { (point.scenario.play(&client, terms.patience).await, client) });
    until("it is struck, or over", async || fault.struck() > 0 || play.is_finished()).await;
    machine.runtime.shutdown(Some(0)).await;
    drop(machine.client);
    drop(fault);
    let second =
        CosmosDBProvider::new_with_config(settings(name)).await.map_err(|error| error.to_string())?;
    let machine = Machine::start(second, terms.runtime_options()).await;
    let (played, _client) = play.await.map_err(|error| error.to_string())?;
    let outcome = match played {
        Ok(()) => settled(name, terms.patience).await,
        Err(error) => Err(error),
    };
    machine.stop().await;
    outcome
}

fn settings(container: &str) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(100),
        reconciler_age_threshold: Duration::from_millis(200),
        poll_interval_min: Duration::from_millis(10),
        poll_interval_max: Duration::from_millis(100),
        ..config(container)
    }
}

/// Waits until nothing is left over, or says what is.
///
/// What a dead process had prepared and not committed is left alone for minutes: a process that lives then clears it.
async fn settled(name: &str, patience: Duration) -> Result<(), String> {
    let container = raw(name).await;
    without(&container, patience, |document| !is_preparation(document)).await?;
    if leftover(&container, |_| true).await.is_none() {
        return Ok(());
    }
    come_of_age(&container).await;
    let _living =
        CosmosDBProvider::new_with_config(settings(name)).await.map_err(|error| error.to_string())?;
    without(&container, patience, |_| true).await
}

/// Makes all preparations as old as they must be for others to clear them.
async fn come_of_age(container: &Container) {
    for mut mark in all(container).await {
        if mark["type"] != "manifest" || mark["committed"] != false {
            continue;
        }
        mark["sweepAt"] = 1.into();
        let (partition, id) = (mark["instanceId"].as_str().unwrap(), mark["id"].as_str().unwrap());
        // It may be cleared, or committed, at this moment.
        let mut options = ItemOptions::default();
        options.if_match = mark["_etag"].as_str().map(ToOwned::to_owned);
        drop(container.replace_item(partition, id, &mark, options).await);
    }
}

/// Waits until none of the chosen documents is left over, or says which is.
async fn without(
    container: &Container,
    patience: Duration,
    chosen: impl Fn(&Value) -> bool,
) -> Result<(), String> {
    let begun = std::time::Instant::now();
    let mut left = None;
    until("nothing is left over", async || {
        left = leftover(container, &chosen).await;
        left.is_none() || begun.elapsed() > patience
    })
    .await;
    left.map_or(Ok(()), |left| Err(format!("left over: {left}")))
}

/// A mark of what is being prepared, or something that only such a mark can explain.
fn is_preparation(document: &Value) -> bool {
    match document["type"].as_str().unwrap_or_default() {
        "manifest" => document["committed"] == false,
        kind => kind == "staged" || kind == "chunk",
    }
}

/// A document of the chosen ones that should not be there when all is done.
async fn leftover(container: &Container, chosen: impl Fn(&Value) -> bool) -> Option<Value> {
    let is_clean = |document: &Value| match document["type"].as_str().unwrap_or_default() {
        "instance" => document["lockToken"].is_null() && document["started"] == true,
        "execution" | "history" | "tombstone" | "session" | "format" | "value" => true,
        _ => false,
    };
    all(container).await.into_iter().find(|document| !is_clean(document) && chosen(document))
}

/// Every document of the container.
async fn all(container: &Container) -> Vec<Value> {
    let mut documents: Vec<Value> = Vec::new();
    for range in container.ranges(cosmos_driver::CallOptions::default()).await.unwrap() {
        let query = container.query("SELECT * FROM c", Scope::Range(range), QueryOptions::default());
        documents.extend(query.collect::<Value>().await.unwrap());
    }
    documents
}

/// All points of a scenario, counted first.
pub(crate) async fn points(scenario: Scenario, terms: Terms) -> Vec<Point> {
    let requests = count(scenario, terms).await;
    let strikes = |k| Strike::ALL.into_iter().map(move |strike| Point { scenario, strike, k });
    (1..=requests).flat_map(strikes).collect()
}

/// Runs points, several at a time, and returns what went wrong. `listener` is told of each.
pub(crate) async fn run_all(
    points: Vec<Point>,
    at_once: usize,
    terms: Terms,
    listener: impl Fn(Point, Option<&str>),
) -> Vec<String> {
    use futures::stream::StreamExt as _;
    let mut running = futures::stream::iter(points)
        .map(|point| async move {
            let failure = match tokio::time::timeout(terms.patience * 3, run(point, terms)).await {
                Ok(outcome) => outcome.err(),
                Err(_) => Some(format!("{point}: no end after {:?}", terms.patience * 3)),
            };
            (point, failure)
        })
        .buffer_unordered(at_once);
    let mut failures = Vec::new();
    while let Some((point, failure)) = running.next().await {
        listener(point, failure.as_deref());
        failures.extend(failure);
    }
    failures
}
