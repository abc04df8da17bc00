//! One cell of a table: a new server, a new provider, something done with it, what it cost.
//!
//! Each cell has threads of its own, so that what a provider left running in the background ends with it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use cosmos_emulator::{Config, Emulator, FaultGuard, FaultRule, Totals, Verdict};
use duroxide::providers::Provider;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{Client, OrchestrationStatus};
use futures::StreamExt;

use super::Sizes;
use super::backlog::Drained;
use super::contender::{Contender, Field};
use super::tally::{Tallied, Tally};
use super::workload::{self, Counters, HELLO, Scenario, WAIT};

/// Starts sent at the same time.
const STARTS_IN_FLIGHT: usize = 16;
/// Dispatchers where their number is not what is measured.
const DISPATCHERS: usize = 2;
/// Dispatchers that prepare or work off a backlog.
const DISPATCHERS_MANY: usize = 8;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Who commits nothing for so long will not finish.
const STALLED_AFTER: Duration = Duration::from_secs(15);
/// Between the last turn's code and its commit.
const SETTLE: Duration = Duration::from_millis(500);
const WORST_MAX: usize = 90;

/// What one orchestration cost; per second for an idle runtime.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub requests: f64,
    pub request_units: f64,
    pub cross_partition: f64,
    pub kilobytes: f64,
    pub milliseconds: f64,
}

impl Cost {
    /// The share of each of a few orchestrations that took so long together.
    pub fn each(totals: &Totals, orchestrations: f64, elapsed: Duration) -> Self {
        let share = 1.0 / orchestrations;
        Self {
            requests: totals.requests as f64 * share,
            request_units: totals.request_units * share,
            cross_partition: totals.cross_partition_queries as f64 * share,
            kilobytes: (totals.request_bytes + totals.response_bytes) as f64 / 1000.0 * share,
            milliseconds: elapsed.as_secs_f64() * 1000.0 * share,
        }
    }
}

/// A server, a provider and a runtime.
struct Scene {
    server: Emulator,
    client: Client,
    counters: Arc<Counters>,
    tally: Arc<Tally>,
    provider: Arc<dyn Provider>,
}

impl Scene {
    async fn open(field: &Field, contender: Contender, dispatchers: usize) -> anyhow::Result<Self> {
        let server = Emulator::start(Config { threads: 2, ..Config::default() })?;
        let tally = Arc::new(Tally::default());
        let provider = field.open(contender, &server, dispatchers).await?;
        let provider: Arc<dyn Provider> = Arc::new(Tallied::new(provider, tally.clone()));
        Ok(Self {
            server,
            client: Client::new(provider.clone()),
            counters: Arc::new(Counters::default()),
            tally,
            provider,
        })
    }

    /// Makes every request take longer while the rule lives.
    fn slow_down(&self, latency_ms: u64) -> Option<FaultGuard> {
        let delay = Verdict::Delay { duration: Duration::from_millis(latency_ms) };
        (latency_ms > 0).then(|| self.server.faults().add(FaultRule::new(delay)))
    }

    async fn start(&self, dispatchers: usize) -> Arc<Runtime> {
        let options = RuntimeOptions {
            orchestration_concurrency: dispatchers,
            worker_concurrency: dispatchers,
            ..RuntimeOptions::default()
        };
        let activities = workload::activities();
        let orchestrations = workload::orchestrations(&self.counters);
        Runtime::start_with_options(self.provider.clone(), activities, orchestrations, options).await
    }

    /// Starts this many, a few at a time.
    async fn start_many(&self, scenario: &Scenario, count: usize, until: Instant) -> anyhow::Result<()> {
        let starts = (0..count).map(|number| {
            self.client.start_orchestration(format!("many-{number}"), scenario.orchestration, scenario.input)
        });
        let mut starts = futures::stream::iter(starts).buffer_unordered(STARTS_IN_FLIGHT);
        let mut done = 0;
        while let Some(outcome) = starts.next().await {
            outcome?;
            done += 1;
            if Instant::now() > until {
                bail!("{done} of {count} started when time was up");
            }
        }
        Ok(())
    }

    /// One orchestration: from its start until the client has its result.
    async fn measure(&self, id: &str, scenario: &Scenario, patience: Duration) -> anyhow::Result<Cost> {
        self.server.ledger().reset();
        let started = Instant::now();
        self.client.start_orchestration(id, scenario.orchestration, scenario.input).await?;
        let result = self.client.wait_for_orchestration(id, patience).await;
        let elapsed = started.elapsed();
        let totals = self.server.ledger().snapshot().totals;
        match result.map_err(|_| anyhow!("no result after {} s", patience.as_secs()))? {
            OrchestrationStatus::Completed { .. } => {}
            other => bail!("{other:?}"),
        }
        Ok(Cost::each(&totals, 1.0, elapsed))
    }
}

/// The median of a few runs of a scenario, after one that is not counted.
pub async fn scenario(
    field: &Field,
    contender: Contender,
    scenario: &'static Scenario,
    latency_ms: u64,
    sizes: Sizes,
) -> Result<Cost, String> {
    isolated(async {
        let scene = Scene::open(field, contender, DISPATCHERS).await?;
        let runtime = scene.start(DISPATCHERS).await;
        scene.measure("warm-up", &HELLO, sizes.patience).await?;
        let _slow = scene.slow_down(latency_ms);
        let (began, mut costs) = (Instant::now(), Vec::new());
        // What takes long is measured less often: its figures are steadier, too.
        while costs.len() < sizes.repeats && (costs.is_empty() || began.elapsed() < REPEAT_WITHIN) {
            costs.push(scene.measure(&format!("measured-{}", costs.len()), scenario, sizes.patience).await?);
        }
        runtime.shutdown(Some(0)).await;
        Ok(median(&costs))
    })
}

const REPEAT_WITHIN: Duration = Duration::from_secs(3);

/// One hello while others wait for timers.
pub async fn behind(
    field: &Field,
    contender: Contender,
    waiting: usize,
    sizes: Sizes,
) -> Result<Cost, String> {
    isolated(async {
        let scene = Scene::open(field, contender, DISPATCHERS_MANY).await?;
        let runtime = scene.start(DISPATCHERS_MANY).await;
        let until = Instant::now() + sizes.patience;
        scene.start_many(&WAIT, waiting, until).await?;
        reach(&scene.counters.waiting, waiting, until).await.context("preparing")?;
        tokio::time::sleep(SETTLE).await;
        let mut costs = Vec::new();
        for number in 0..sizes.repeats {
            costs.push(scene.measure(&format!("measured-{number}"), &HELLO, sizes.patience).await?);
        }
        runtime.shutdown(Some(0)).await;
        Ok(median(&costs))
    })
}

/// What an idle runtime sends per second.
pub async fn idle(field: &Field, contender: Contender, sizes: Sizes) -> Result<Cost, String> {
    isolated(async {
        let scene = Scene::open(field, contender, DISPATCHERS).await?;
        let runtime = scene.start(DISPATCHERS).await;
        // Polling backs off before it is counted.
        tokio::time::sleep(sizes.idle).await;
        scene.server.ledger().reset();
        tokio::time::sleep(sizes.idle).await;
        let totals = scene.server.ledger().snapshot().totals;
        runtime.shutdown(Some(0)).await;
        let seconds = sizes.idle.as_secs_f64();
        Ok(Cost {
            requests: totals.requests as f64 / seconds,
            request_units: totals.request_units / seconds,
            cross_partition: totals.cross_partition_queries as f64 / seconds,
            kilobytes: 0.0,
            milliseconds: 0.0,
        })
    })
}

/// Works off hellos that are all there before the runtime starts, as far as it gets in this time.
pub async fn drain(
    field: &Field,
    contender: Contender,
    count: usize,
    latency_ms: u64,
    sizes: Sizes,
) -> Result<Drained, String> {
    isolated(async {
        let scene = Scene::open(field, contender, DISPATCHERS_MANY).await?;
        let prepared = scene.start_many(&HELLO, count, Instant::now() + sizes.patience).await;
        prepared.context("preparing")?;
        let _slow = scene.slow_down(latency_ms);
        scene.server.ledger().reset();
        let began = Instant::now();
        let runtime = scene.start(DISPATCHERS_MANY).await;
        let stalled = finish(&scene, count, began + sizes.drain_within(latency_ms)).await;
        let drained = Drained {
            count,
            done: scene.tally.completed.load(Ordering::Relaxed).min(count),
            commits: scene.tally.commits.load(Ordering::Relaxed),
            elapsed: began.elapsed(),
            stalled,
            totals: scene.server.ledger().snapshot().totals,
        };
        runtime.shutdown(Some(0)).await;
        Ok(drained)
    })
}

/// Starts hellos while the runtime works; orchestrations per second.
pub async fn many(
    field: &Field,
    contender: Contender,
    dispatchers: usize,
    latency_ms: u64,
    count: usize,
    patience: Duration,
) -> Result<f64, String> {
    isolated(async {
        let scene = Scene::open(field, contender, dispatchers).await?;
        let runtime = scene.start(dispatchers).await;
        scene.measure("warm-up", &HELLO, patience).await?;
        let _slow = scene.slow_down(latency_ms);
        let began = Instant::now();
        let until = began + patience;
        scene.start_many(&HELLO, count, until).await?;
        let warmed_up = 1;
        finish(&scene, warmed_up + count, until).await;
        let done = scene.tally.completed.load(Ordering::Relaxed) - warmed_up;
        if done < count {
            bail!("{done} of {count} done when time was up");
        }
        let seconds = began.elapsed().as_secs_f64();
        runtime.shutdown(Some(0)).await;
        Ok(count as f64 / seconds)
    })
}

/// Waits until this many have completed or time is up; whether nothing happened any more.
async fn finish(scene: &Scene, count: usize, until: Instant) -> bool {
    let (mut commits, mut last) = (0, Instant::now());
    while scene.tally.completed.load(Ordering::Relaxed) < count && Instant::now() < until {
        let now = scene.tally.commits.load(Ordering::Relaxed);
        if now != commits {
            (commits, last) = (now, Instant::now());
        }
        if last.elapsed() > STALLED_AFTER {
            return true;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    false
}

async fn reach(counter: &AtomicUsize, count: usize, until: Instant) -> anyhow::Result<()> {
    while counter.load(Ordering::Relaxed) < count {
        if Instant::now() > until {
            bail!("{} of {count} when time was up", counter.load(Ordering::Relaxed));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Runs a cell on threads of its own.
pub fn isolated<T: Send>(cell: impl Future<Output = anyhow::Result<T>> + Send) -> Result<T, String> {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let outcome = runtime.block_on(cell);
            runtime.shutdown_background();
            outcome
        });
        thread.join().unwrap_or_else(|_| Err(anyhow!("it panicked")))
    });
    outcome.map_err(|error| format!("{error:#}").chars().take(WORST_MAX).collect())
}

fn median(costs: &[Cost]) -> Cost {
    let of = |pick: fn(&Cost) -> f64| {
        let mut figures: Vec<f64> = costs.iter().map(pick).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Cost {
        requests: of(|cost| cost.requests),
        request_units: of(|cost| cost.request_units),
        cross_partition: of(|cost| cost.cross_partition),
        kilobytes: of(|cost| cost.kilobytes),
        milliseconds: of(|cost| cost.milliseconds),
    }
}
