//! Our provider against the public `duroxide-cdb` 0.1.10 on the same server, and against duroxide's SQLite provider
//! and `duroxide-pg` where only time compares.

mod backlog;
mod cell;
mod contender;
pub mod features;
mod postgres;
mod summary;
pub mod tally;
mod workload;

use std::time::Duration;

use clap::ValueEnum;

use crate::report::{Better, Cell, Report, Table, grouped};
use cell::Cost;
pub use cell::isolated;
use contender::{Contender, Field};
use workload::SCENARIOS;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Runs of each scenario, of which the median counts.
    repeats: usize,
    /// Server latencies, in milliseconds per request.
    latencies_ms: &'static [u64],
    /// Orchestrations that wait when one is measured, or that are there when a runtime starts.
    backlogs: &'static [usize],
    /// Orchestrations started at once.
    many: usize,
    /// How long an idle runtime is watched.
    idle: Duration,
    /// What takes longer is given up and marked.
    patience: Duration,
    /// The same for a backlog on a slow server.
    patience_slow: Duration,
}

impl Sizes {
    const FULL: Self = Self {
        repeats: 5,
        latencies_ms: &[0, 5, 20],
        backlogs: &[100, 1_000, 10_000],
        many: 200,
        idle: Duration::from_secs(5),
        patience: Duration::from_secs(45),
        patience_slow: Duration::from_secs(20),
    };
    const QUICK: Self = Self {
        repeats: 1,
        latencies_ms: &[0, 5],
        backlogs: &[100],
        many: 50,
        idle: Duration::from_secs(2),
        patience: Duration::from_secs(20),
        patience_slow: Duration::from_secs(5),
    };

    /// How long a backlog may take.
    fn drain_within(&self, latency_ms: u64) -> Duration {
        if latency_ms == 0 { self.patience } else { self.patience_slow }
    }
}

/// Dispatchers for orchestrations and workers.
const CONCURRENCIES: [usize; 2] = [2, 8];

/// A part of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Hello, chain, fan-outs and sub-orchestrations.
    Scenarios,
    /// Backlogs.
    Backlogs,
    /// One hello while others wait.
    Waiting,
    /// A runtime with nothing to do.
    Idle,
    /// Orchestrations started while they run.
    Throughput,
}

/// Runs the comparison, or one part of it.
pub async fn run(quick: bool, only: Option<Part>) -> anyhow::Result<Report> {
    let sizes = if quick { Sizes::QUICK } else { Sizes::FULL };
    let wanted = |part: Part| only.is_none_or(|only| only == part);
    let field = Field::new().await;
    let (mut costs, mut tables) = (Costs::new(), Vec::new());
    if wanted(Part::Scenarios) {
        tables.push(scenarios(&field, sizes, &mut costs).await);
    }
    if wanted(Part::Backlogs) {
        tables.extend(backlog::tables(&field, sizes, &mut costs).await);
    }
    if wanted(Part::Waiting) {
        tables.extend(waiting(&field, sizes).await);
    }
    if wanted(Part::Idle) {
        tables.push(idle(&field, sizes).await);
    }
    if wanted(Part::Throughput) {
        tables.push(throughput(&field, sizes).await);
    }
    let summary = summary::tables(&costs, &tables, sizes);
    Ok(Report::new(costs.0.into_iter().chain(tables).collect(), summary))
}

/// What one orchestration costs: a table for each thing that the server counts.
#[derive(Debug)]
pub struct Costs([Table; 4]);

impl Costs {
    fn new() -> Self {
        let table = |title| ledgers_table(title, "scenario");
        Self([
            table("Requests per orchestration").with_chart("provider-requests"),
            table("Request units per orchestration").with_chart("provider-units"),
            table("Kilobytes per orchestration, bodies in both directions"),
            table("Cross-partition queries per orchestration"),
        ])
    }

    /// Adds a row to each, with a cell for everybody on our server.
    fn add(&mut self, label: &str, costs: &[Result<Cost, String>]) {
        let picks: [fn(&Cost) -> f64; 4] = [
            |cost| cost.requests,
            |cost| cost.request_units,
            |cost| cost.kilobytes,
            |cost| cost.cross_partition,
        ];
        for (table, pick) in self.0.iter_mut().zip(picks) {
            table.row(label, costs.iter().map(|cost| figure(cost, pick)).collect());
        }
    }

    /// Puts a sentence below each.
    fn note(&mut self, note: &str) {
        for table in &mut self.0 {
            table.note = Some(note.to_owned());
        }
    }
}

/// What one orchestration costs, and how long it takes at each latency.
async fn scenarios(field: &Field, sizes: Sizes, ledgers: &mut Costs) -> Table {
    let mut times =
        table(summary::TIMES, "scenario, latency per request", &field.contenders(), Better::Lower)
            .with_chart("provider-times")
            .with_note(&field.note());
    for scenario in SCENARIOS {
        for &latency in sizes.latencies_ms {
            eprintln!("{} at {latency} ms per request…", scenario.name);
            let mut costs = Vec::new();
            for contender in field.contenders() {
                costs.push(match contender.is_on_cosmos() || latency == 0 {
                    true => cell::scenario(field, contender, scenario, latency, sizes).await,
                    false => Err(NOT_APPLICABLE.to_owned()),
                });
            }
            let label = format!("{}, {latency} ms", scenario.name);
            times.row(&label, costs.iter().map(|cost| figure(cost, |cost| cost.milliseconds)).collect());
            if latency == 0 {
                ledgers.add(scenario.name, &costs[..Contender::ON_COSMOS.len()]);
            }
        }
    }
    times
}

/// One hello while others wait for timers.
async fn waiting(field: &Field, sizes: Sizes) -> Vec<Table> {
    let mut requests = ledgers_table(summary::WAITING, "waiting").with_chart("provider-waiting");
    let mut times = ledgers_table("Milliseconds of one hello while others wait for their timers", "waiting");
    for &count in sizes.backlogs {
        let label = grouped(count);
        eprintln!("one hello while {label} wait…");
        let mut costs = Vec::new();
        for contender in Contender::ON_COSMOS {
            costs.push(cell::behind(field, contender, count, sizes).await);
        }
        requests.row(&label, costs.iter().map(|cost| figure(cost, |c| c.requests)).collect());
        times.row(&label, costs.iter().map(|cost| figure(cost, |c| c.milliseconds)).collect());
    }
    vec![requests, times]
}

/// What a runtime with nothing to do sends.
async fn idle(field: &Field, sizes: Sizes) -> Table {
    eprintln!("idle runtimes…");
    let mut table = ledgers_table(summary::IDLE, "per second").with_chart("provider-idle");
    let mut totals = Vec::new();
    for contender in Contender::ON_COSMOS {
        totals.push(cell::idle(field, contender, sizes).await);
    }
    table.row("requests", totals.iter().map(|cost| figure(cost, |c| c.requests)).collect());
    table.row("request units", totals.iter().map(|cost| figure(cost, |c| c.request_units)).collect());
    table
}

/// Hellos that are started while the runtime works.
async fn throughput(field: &Field, sizes: Sizes) -> Table {
    let mut table = table(summary::THROUGHPUT, "dispatchers", &field.contenders(), Better::Higher)
        .with_chart("provider-throughput")
        .with_note(&field.note());
    for dispatchers in CONCURRENCIES {
        let mut cells = Vec::new();
        for contender in field.contenders() {
            eprintln!("{} with {dispatchers}/{dispatchers} dispatchers…", contender.name());
            cells.push(figure(
                &cell::many(field, contender, dispatchers, 0, sizes.many, sizes.patience).await,
                |rate| *rate,
            ));
        }
        table.row(&format!("{dispatchers}/{dispatchers}"), cells);
    }
    table
}

/// One process alone, on a server that takes 5 ms for each request: what an orchestration costs and how long it takes.
pub async fn alone(quick: bool) -> Table {
    let sizes = if quick { Sizes::QUICK } else { Sizes::FULL };
    let field = Field::on_cosmos();
    let mut table = ledgers_table(ALONE, "what");
    for scenario in SCENARIOS {
        eprintln!("{} by one process alone…", scenario.name);
        let mut cells = Vec::new();
        for contender in Contender::ON_COSMOS {
            cells.push(match cell::scenario(&field, contender, scenario, ALONE_LATENCY_MS, sizes).await {
                Ok(cost) => {
                    let figures = [cost.requests, cost.request_units, cost.milliseconds];
                    Cell::Several(figures.map(Cell::Figure).to_vec())
                }
                Err(why) => Cell::Text(why),
            });
        }
        table.row(&format!("{}: requests / request units / ms", scenario.name), cells);
    }
    let mut cells = Vec::new();
    for contender in Contender::ON_COSMOS {
        let rate = cell::many(&field, contender, 2, ALONE_LATENCY_MS, ALONE_AT_ONCE, sizes.patience).await;
        cells.push(figure(&rate, |rate| ALONE_AT_ONCE as f64 / rate));
    }
    table.row(&format!("{ALONE_AT_ONCE} hellos at once, seconds"), cells);
    table.with_note("The looks of the client that waits for the result are counted as well.")
}

/// The title of what one process alone does.
pub const ALONE: &str = "One process alone, 5 ms for each request, 2 + 2 dispatchers";
const ALONE_LATENCY_MS: u64 = 5;
const ALONE_AT_ONCE: usize = 50;

fn table(title: &str, first: &str, contenders: &[Contender], better: Better) -> Table {
    Table::new(title, first, contenders.iter().map(|contender| contender.name()), better)
}

fn ledgers_table(title: &str, first: &str) -> Table {
    table(title, first, &Contender::ON_COSMOS, Better::Lower)
}

fn figure<T>(outcome: &Result<T, String>, pick: impl Fn(&T) -> f64) -> Cell {
    match outcome {
        Ok(cost) => Cell::Figure(pick(cost)),
        Err(why) => Cell::Text(why.clone()),
    }
}

/// Providers without our server under them do not feel its latency.
const NOT_APPLICABLE: &str = "–";
