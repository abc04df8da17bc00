//! Our provider against the public `duroxide-cdb` 0.1.10 on the same server, and against duroxide's own SQLite
//! provider where only time compares.

mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use duroxide::providers::Provider;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{Client, OrchestrationStatus};

use crate::report::{Cell, Report, Table};
use workload::{SCENARIOS, Scenario};

/// A scenario that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an idle runtime is watched.
const IDLE: Duration = Duration::from_secs(5);
/// Server latencies, in milliseconds per request.
const LATENCIES_MS: [u64; 3] = [0, 5, 20];
/// Messages waiting when a single orchestration is run.
const BACKLOGS: [usize; 2] = [100, 1_000];
/// Dispatchers for orchestrations and workers.
const CONCURRENCIES: [usize; 2] = [2, 8];
const DATABASE: &str = "compare";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Public,
    Ours,
    Sqlite,
}

impl Contender {
    const ALL: [Self; 3] = [Self::Public, Self::Ours, Self::Sqlite];

    fn name(self) -> &'static str {
        match self {
            Self::Public => "duroxide-cdb 0.1.10",
            Self::Ours => "ours",
            Self::Sqlite => "SQLite (in memory)",
        }
    }

    async fn open(self, server: &Emulator, dispatchers: usize) -> anyhow::Result<Arc<dyn Provider>> {
        let dispatchers = u32::try_from(dispatchers)?;
        let container = "flows".to_owned();
        Ok(match self {
            Self::Public => Arc::new(
                public::CosmosDBProvider::new_with_config(public::CosmosDBProviderConfig {
                    endpoint: server.endpoint().trim_end_matches('/').to_owned(),
                    key: server.key().to_owned(),
                    database: DATABASE.to_owned(),
                    container,
                    orch_concurrency: dispatchers,
                    worker_concurrency: dispatchers,
                    ..Default::default()
                })
                .await
                .map_err(|error| anyhow::anyhow!("{error:?}"))?,
            ),
            Self::Ours => Arc::new(
                ours::CosmosDBProvider::new_with_container(
                    &server.endpoint(),
                    server.key(),
                    DATABASE,
                    &container,
                )
                .await
                .map_err(|error| anyhow::anyhow!("{error:?}"))?,
            ),
            Self::Sqlite => Arc::new(
                duroxide::providers::sqlite::SqliteProvider::new_in_memory()
                    .await
                    .map_err(|error| anyhow::anyhow!("{error:?}"))?,
            ),
        })
    }
}

/// What one scenario cost.
#[derive(Clone, Copy)]
struct Cost {
    requests: f64,
    request_units: f64,
    cross_partition: f64,
    milliseconds: f64,
}

/// Runs the whole comparison.
pub async fn run() -> anyhow::Result<Report> {
    let mut tables = Vec::new();
    let mut requests = table("Requests per orchestration", "scenario", &[Contender::Public, Contender::Ours]);
    let mut fan_outs =
        table("Cross-partition queries per orchestration", "scenario", &[Contender::Public, Contender::Ours]);
    let mut units =
        table("Request units per orchestration", "scenario", &[Contender::Public, Contender::Ours]);
    let mut times = table(
        "Milliseconds per orchestration, by the server's latency per request",
        "scenario",
        &Contender::ALL,
    );
    for scenario in SCENARIOS {
        for latency in LATENCIES_MS {
            eprintln!("measuring {} at {latency} ms…", scenario.name);
            let costs = all(scenario, latency, 0).await;
            times.row(&format!("{}, {latency} ms", scenario.name), &costs, |cost| cost.milliseconds);
            if latency == 0 {
                requests.row(scenario.name, &costs[..2], |cost| cost.requests);
                fan_outs.row(scenario.name, &costs[..2], |cost| cost.cross_partition);
                units.row(scenario.name, &costs[..2], |cost| cost.request_units);
            }
        }
    }
    let mut backlog = table(
        "Requests for one hello behind a backlog of timers",
        "waiting messages",
        &[Contender::Public, Contender::Ours],
    );
    for waiting in BACKLOGS {
        eprintln!("measuring a backlog of {waiting}…");
        let costs = [
            one(Contender::Public, &SCENARIOS[0], 0, waiting).await,
            one(Contender::Ours, &SCENARIOS[0], 0, waiting).await,
        ];
        backlog.row(&waiting.to_string(), &costs, |cost| cost.requests);
    }
    tables.extend([requests, fan_outs, units, times, backlog, idle().await?, throughput().await?]);
    Ok(Report { tables })
}

fn table(title: &str, first: &str, contenders: &[Contender]) -> Table {
    let columns = std::iter::once(first).chain(contenders.iter().map(|contender| contender.name()));
    Table { title: title.to_owned(), columns: columns.map(str::to_owned).collect(), rows: Vec::new() }
}

impl Table {
    fn row(&mut self, label: &str, costs: &[anyhow::Result<Cost>], figure: impl Fn(&Cost) -> f64) {
        let cells = costs.iter().map(|cost| match cost {
            Ok(cost) => Cell::Figure(figure(cost)),
            Err(error) => Cell::Text(format!("failed: {error}").chars().take(60).collect()),
        });
        self.rows.push((label.to_owned(), cells.collect()));
    }
}

async fn all(scenario: &Scenario, latency_ms: u64, waiting: usize) -> Vec<anyhow::Result<Cost>> {
    let mut costs = Vec::new();
    for contender in Contender::ALL {
        costs.push(one(contender, scenario, latency_ms, waiting).await);
    }
    costs
}

/// One orchestration on a new server: from its start until the client has its result.
async fn one(
    contender: Contender,
    scenario: &Scenario,
    latency_ms: u64,
    waiting: usize,
) -> anyhow::Result<Cost> {
    let server = Emulator::start(Config { threads: 2, ..Config::default() })?;
    let provider = contender.open(&server, 2).await?;
    let client = Client::new(provider.clone());
    for number in 0..waiting {
        client.start_orchestration(format!("waiting-{number}"), "wait", "").await?;
    }
    let runtime = start(provider.clone(), 2).await;
    if waiting > 0 {
        let until = Instant::now() + PATIENCE;
        while provider.read(&format!("waiting-{}", waiting - 1)).await.map_or(0, |events| events.len()) < 2 {
            if Instant::now() > until {
                bail!("the backlog was not taken up within {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let _slow = (latency_ms > 0).then(|| {
        server.faults().add(FaultRule::new(Verdict::Delay { duration: Duration::from_millis(latency_ms) }))
    });
    server.ledger().reset();
    let started = Instant::now();
    client.start_orchestration("measured", scenario.orchestration, scenario.input).await?;
    let result = client.wait_for_orchestration("measured", PATIENCE).await.context("no result")?;
    let elapsed = started.elapsed();
    let ledger = server.ledger().snapshot();
    runtime.shutdown(Some(0)).await;
    match result {
        OrchestrationStatus::Completed { .. } => {}
        other => bail!("{other:?}"),
    }
    let is_fan_out = |record: &&cosmos_emulator::RequestRecord| {
        record.operation == Operation::Query && record.partition_key.is_none()
    };
    Ok(Cost {
        requests: ledger.totals.requests as f64,
        request_units: ledger.totals.request_units,
        cross_partition: ledger.recent.iter().filter(is_fan_out).count() as f64,
        milliseconds: elapsed.as_secs_f64() * 1000.0,
    })
}

async fn start(provider: Arc<dyn Provider>, dispatchers: usize) -> Arc<Runtime> {
    let options = RuntimeOptions {
        orchestration_concurrency: dispatchers,
        worker_concurrency: dispatchers,
        ..RuntimeOptions::default()
    };
    Runtime::start_with_options(provider, workload::activities(), workload::orchestrations(), options).await
}

/// What a runtime with nothing to do sends.
async fn idle() -> anyhow::Result<Table> {
    let contenders = [Contender::Public, Contender::Ours];
    let mut table = table("A runtime with nothing to do", "per second", &contenders);
    let (mut requests, mut units) = (Vec::new(), Vec::new());
    for contender in contenders {
        let server = Emulator::start(Config::default())?;
        let runtime = start(contender.open(&server, 2).await?, 2).await;
        // Polling backs off before it is counted.
        tokio::time::sleep(IDLE).await;
        server.ledger().reset();
        tokio::time::sleep(IDLE).await;
        let totals = server.ledger().snapshot().totals;
        requests.push(Cell::Figure(totals.requests as f64 / IDLE.as_secs_f64()));
        units.push(Cell::Figure(totals.request_units / IDLE.as_secs_f64()));
        runtime.shutdown(Some(0)).await;
    }
    table.rows = vec![("requests".to_owned(), requests), ("request units".to_owned(), units)];
    Ok(table)
}

/// Orchestrations of one activity, many at once.
async fn throughput() -> anyhow::Result<Table> {
    const COUNT: usize = 200;
    let mut table = table("Orchestrations per second (hello, 200 at once)", "dispatchers", &Contender::ALL);
    for dispatchers in CONCURRENCIES {
        let mut cells = Vec::new();
        for contender in Contender::ALL {
            eprintln!("measuring throughput of {} at {dispatchers}/{dispatchers}…", contender.name());
            let server = Emulator::start(Config { threads: 2, ..Config::default() })?;
            let provider = contender.open(&server, dispatchers).await?;
            let client = Client::new(provider.clone());
            let runtime = start(provider, dispatchers).await;
            let started = Instant::now();
            for number in 0..COUNT {
                client.start_orchestration(format!("many-{number}"), SCENARIOS[0].orchestration, "").await?;
            }
            let mut failed = None;
            for number in 0..COUNT {
                let left = (PATIENCE * 2).saturating_sub(started.elapsed());
                match client.wait_for_orchestration(&format!("many-{number}"), left).await {
                    Ok(OrchestrationStatus::Completed { .. }) => {}
                    other => failed = Some(format!("{number} done, then {other:?}")),
                }
                if failed.is_some() {
                    break;
                }
            }
            cells.push(match failed {
                None => Cell::Figure(COUNT as f64 / started.elapsed().as_secs_f64()),
                Some(why) => Cell::Text(why.chars().take(60).collect()),
            });
            runtime.shutdown(Some(0)).await;
        }
        table.rows.push((format!("{dispatchers}/{dispatchers}"), cells));
    }
    Ok(table)
}
