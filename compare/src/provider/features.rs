//! What the providers can do, tried: each probe runs against every provider that can run here.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure};
use cosmos_emulator::{Config, Emulator, FaultRule, Verdict};
use duroxide::providers::{InstanceFilter, Provider};
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use futures::StreamExt;

use super::cell::isolated;
use super::contender::{Contender, Field};
use crate::report::{Better, Cell, Report, Table};

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    Large,
    LongId,
    OddId,
    FanOut,
    BulkDelete,
    Throttled,
    LostAnswer,
    Crash,
}

const PROBES: [(Probe, &str); 8] = [
    (Probe::Large, "an input and a result of 3 MB"),
    (Probe::OddId, "an instance id with `/`, `\\`, `?`, `#` and spaces"),
    (Probe::LongId, "an instance id of 2,000 characters"),
    (Probe::FanOut, "a turn of 200 activities, each run once"),
    (Probe::BulkDelete, "120 instances deleted in one call"),
    (Probe::Throttled, "a server that refuses everything for two seconds (429)"),
    (
        Probe::LostAnswer,
        "an answer that gets lost, any of the first twelve: the workflow ends, its activity runs once",
    ),
    (
        Probe::Crash,
        "a process that dies in a turn of 60 activities, after any of its first six requests: the next one ends it",
    ),
];

/// Tries everything with everybody.
pub async fn run() -> anyhow::Result<Report> {
    let field = Field::new().await;
    let contenders = field.contenders();
    let names = contenders.iter().map(|contender| contender.name());
    let mut table = Table::new(TITLE, "tried", names, Better::Mixed);
    table.note = Some(field.note_of_absent().unwrap_or_else(|| NOTE.to_owned()));
    for (probe, label) in PROBES {
        eprintln!("{label}…");
        let field = &field;
        let cells = std::thread::scope(|scope| {
            let tries: Vec<_> = contenders
                .iter()
                .map(|contender| scope.spawn(move || isolated(attempt(field, *contender, probe))))
                .collect();
            let verdict = |outcome: std::thread::Result<Result<bool, String>>| match outcome {
                Ok(Ok(true)) => "yes".to_owned(),
                Ok(Ok(false)) => super::NOT_APPLICABLE.to_owned(),
                Ok(Err(why)) => format!("no: {why}"),
                Err(_) => "no: it panicked".to_owned(),
            };
            tries.into_iter().map(|thread| Cell::Text(verdict(thread.join()))).collect()
        });
        table.row(label, cells);
    }
    let summary = Table { title: String::new(), ..table.clone() };
    Ok(Report::new(vec![table], vec![summary]))
}

/// Whether it can; `false` when the question does not arise.
async fn attempt(field: &Field, contender: Contender, probe: Probe) -> anyhow::Result<bool> {
    let is_about_requests = matches!(probe, Probe::Throttled | Probe::LostAnswer | Probe::Crash);
    if is_about_requests && !contender.is_on_cosmos() {
        return Ok(false);
    }
    match probe {
        Probe::Large => {
            let stage = Stage::open(field, contender).await?;
            let large = "0123456789abcdef".repeat(3 << 16);
            let output = stage.play("large", "hello", &large).await?;
            ensure!(output == large, "{} bytes came back", output.len());
        }
        Probe::LongId => hello(field, contender, &"x".repeat(2_000)).await?,
        Probe::OddId => hello(field, contender, "orders/2026 #7?\\b").await?,
        Probe::FanOut => {
            let stage = Stage::open(field, contender).await?;
            stage.play("wide", "fan", "200").await?;
            let runs = stage.runs.load(Ordering::Relaxed);
            ensure!(runs == 200, "{runs} activities ran");
        }
        Probe::BulkDelete => bulk_delete(field, contender).await?,
        Probe::Throttled => throttled(field, contender).await?,
        Probe::LostAnswer => {
            everywhere(12, |place| lost_answer(field, contender, place)).await?;
        }
        Probe::Crash => {
            everywhere(6, |place| crash(field, contender, place)).await?;
        }
    }
    Ok(true)
}

/// A server with nothing on it, and what runs on it.
struct Stage {
    server: Emulator,
    provider: Arc<dyn Provider>,
    runs: Arc<AtomicUsize>,
}

impl Stage {
    async fn open(field: &Field, contender: Contender) -> anyhow::Result<Self> {
        let server = Emulator::start(Config { threads: 1, ..Config::default() })?;
        let provider = field.open(contender, &server, DISPATCHERS).await?;
        Ok(Self { server, provider, runs: Arc::default() })
    }

    async fn runtime(&self, provider: &Arc<dyn Provider>, options: RuntimeOptions) -> Arc<Runtime> {
        let options = RuntimeOptions {
            orchestration_concurrency: DISPATCHERS,
            worker_concurrency: DISPATCHERS,
            ..options
        };
        let runs = self.runs.clone();
        let activities = ActivityRegistry::builder()
            .register("echo", move |_: ActivityContext, input: String| {
                runs.fetch_add(1, Ordering::Relaxed);
                async move { Ok::<_, String>(input) }
            })
            .build();
        Runtime::start_with_options(provider.clone(), activities, orchestrations(), options).await
    }

    /// Runs one orchestration from its start to its end.
    async fn play(&self, id: &str, orchestration: &str, input: &str) -> anyhow::Result<String> {
        let runtime = self.runtime(&self.provider, RuntimeOptions::default()).await;
        let client = Client::new(self.provider.clone());
        let started = client.start_orchestration(id, orchestration, input).await;
        started.map_err(|error| short("not started", &error))?;
        let output = ended(&client, id, Instant::now() + PATIENCE).await;
        runtime.shutdown(Some(0)).await;
        output
    }
}

async fn hello(field: &Field, contender: Contender, id: &str) -> anyhow::Result<()> {
    let output = Stage::open(field, contender).await?.play(id, "hello", "x").await?;
    ensure!(output == "x", "the result is {output:?}");
    Ok(())
}

async fn bulk_delete(field: &Field, contender: Contender) -> anyhow::Result<()> {
    const COUNT: usize = 120;
    let stage = Stage::open(field, contender).await?;
    let runtime = stage.runtime(&stage.provider, RuntimeOptions::default()).await;
    let client = Client::new(stage.provider.clone());
    for number in 0..COUNT {
        client.start_orchestration(format!("many-{number}"), "hello", "x").await?;
    }
    for number in 0..COUNT {
        ended(&client, &format!("many-{number}"), Instant::now() + PATIENCE).await?;
    }
    let deleted = client.delete_instance_bulk(InstanceFilter::default()).await;
    let deleted = deleted.map_err(|error| short("refused", &error))?.instances_deleted;
    runtime.shutdown(Some(0)).await;
    ensure!(deleted == COUNT as u64, "{deleted} of {COUNT}");
    Ok(())
}

async fn throttled(field: &Field, contender: Contender) -> anyhow::Result<()> {
    let stage = Stage::open(field, contender).await?;
    let refusal =
        Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_millis(100)) };
    let rule = stage.server.faults().add(FaultRule::new(refusal));
    let relief = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(rule);
    };
    let (output, ()) = tokio::join!(stage.play("throttled", "hello", "x"), relief);
    output.map(drop)
}

/// The answer to one request about an instance is lost after the server has done what it was asked.
async fn lost_answer(field: &Field, contender: Contender, place: u64) -> anyhow::Result<()> {
    let stage = Stage::open(field, contender).await?;
    let rule = FaultRule::new(Verdict::ResetAfterCommit).for_key("lost").nth(place);
    let _rule = stage.server.faults().add(rule);
    stage.play("lost", "hello", "x").await?;
    let runs = stage.runs.load(Ordering::Relaxed);
    ensure!(runs == 1, "the activity ran {runs} times");
    Ok(())
}

/// From some request about an instance on a process gets no answers; then another process carries on.
async fn crash(field: &Field, contender: Contender, place: u64) -> anyhow::Result<()> {
    let stage = Stage::open(field, contender).await?;
    let client = Client::new(stage.provider.clone());
    client.start_orchestration("crash", "fan", "60").await?;
    let rule = FaultRule { skip: place, ..FaultRule::new(Verdict::ResetBefore).for_key("crash") };
    let rule = stage.server.faults().add(rule);
    let dying = stage.runtime(&stage.provider, short_locks()).await;
    let began = Instant::now();
    while rule.struck() == 0 && began.elapsed() < LOCK {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    dying.shutdown(Some(0)).await;
    drop(rule);
    let heir = field.open(contender, &stage.server, DISPATCHERS).await?;
    let runtime = stage.runtime(&heir, short_locks()).await;
    let output = ended(&Client::new(heir), "crash", Instant::now() + PATIENCE).await;
    runtime.shutdown(Some(0)).await;
    ensure!(output? == "60", "activities are missing");
    Ok(())
}

/// What a dead process held is free soon.
fn short_locks() -> RuntimeOptions {
    RuntimeOptions {
        orchestrator_lock_timeout: LOCK,
        orchestrator_lock_renewal_buffer: LOCK / 2,
        worker_lock_timeout: LOCK,
        worker_lock_renewal_buffer: LOCK / 2,
        ..RuntimeOptions::default()
    }
}

/// Tries the same with the trouble in another place each time, and counts where it ends badly.
async fn everywhere<F>(places: u64, probe: impl Fn(u64) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let outcomes = futures::stream::iter((1..=places).map(probe)).buffer_unordered(AT_A_TIME);
    let failures: Vec<anyhow::Error> =
        outcomes.filter_map(async |outcome| outcome.err()).collect::<Vec<_>>().await;
    match failures.first() {
        None => Ok(()),
        Some(first) => bail!("{} of {places} end badly ({first})", failures.len()),
    }
}

/// Waits for an end and returns the result.
async fn ended(client: &Client, id: &str, until: Instant) -> anyhow::Result<String> {
    let left = until.saturating_duration_since(Instant::now());
    match client.wait_for_orchestration(id, left).await {
        Ok(OrchestrationStatus::Completed { output, .. }) => Ok(output),
        Ok(OrchestrationStatus::Failed { details, .. }) => Err(short("failed", &details.display_message())),
        Ok(other) => bail!("{other:?}"),
        Err(_) => bail!("no result after {} s", PATIENCE.as_secs()),
    }
}

/// The beginning of what somebody else's error says, on one line.
fn short(what: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    let text = error.to_string().replace('\n', " ");
    // What follows is the body of an answer.
    let text = text.split('{').next().unwrap_or_default();
    let text = text.split(" for url").next().unwrap_or_default().trim_end_matches([' ', ':']);
    anyhow!("{what}: {text}")
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("hello", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("echo", input).await
        })
        .register("fan", |context: OrchestrationContext, width: String| async move {
            let count: u32 = width.parse().unwrap_or(1);
            let steps = (0..count).map(|step| context.schedule_activity("echo", step.to_string())).collect();
            let done = context.join(steps).await.into_iter().collect::<Result<Vec<_>, String>>()?;
            Ok::<_, String>(done.len().to_string())
        })
        .build()
}

const TITLE: &str = "What works, tried";
const NOTE: &str = "“–”: it has no requests that could get lost.";
const DISPATCHERS: usize = 4;
/// Runs that are under way together, so that they do not slow each other down.
const AT_A_TIME: usize = 3;
const LOCK: Duration = Duration::from_secs(2);
/// What has no result after this time has none.
const PATIENCE: Duration = Duration::from_secs(20);
