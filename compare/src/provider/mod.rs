//! Our provider against the public `duroxide-cdb` 0.1.10 on the same server, and against duroxide's SQLite provider
//! and `duroxide-pg` where only time compares.

mod cell;
mod contender;
mod postgres;
mod summary;
mod workload;

use std::time::Duration;

use crate::report::{Better, Cell, Report, Table};
use cell::{Cost, Drained};
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
}

impl Sizes {
    const FULL: Self = Self {
        repeats: 5,
        latencies_ms: &[0, 5, 20],
        backlogs: &[100, 1_000, 10_000],
        many: 200,
        idle: Duration::from_secs(5),
        patience: Duration::from_secs(45),
    };
    const QUICK: Self = Self {
        repeats: 1,
        latencies_ms: &[0, 5],
        backlogs: &[100],
        many: 50,
        idle: Duration::from_secs(2),
        patience: Duration::from_secs(20),
    };
}

/// Dispatchers for orchestrations and workers.
const CONCURRENCIES: [usize; 2] = [2, 8];

/// Runs the whole comparison.
pub async fn run(quick: bool) -> anyhow::Result<Report> {
    let sizes = if quick { Sizes::QUICK } else { Sizes::FULL };
    let field = Field::new().await;
    let mut tables = scenarios(&field, sizes).await;
    tables.extend(waiting(&field, sizes).await);
    tables.push(idle(&field, sizes).await);
    tables.extend(drained(&field, sizes).await);
    tables.push(throughput(&field, sizes).await);
    let summary = summary::tables(&tables, sizes);
    Ok(Report::new(tables, summary))
}

/// What one orchestration costs, and how long it takes at each latency.
async fn scenarios(field: &Field, sizes: Sizes) -> Vec<Table> {
    let ledgers = Contender::ON_COSMOS;
    let mut requests =
        ledgers_table("Requests per orchestration", "scenario").with_chart("provider-requests");
    let mut units = ledgers_table("Request units per orchestration", "scenario").with_chart("provider-units");
    let mut bytes = ledgers_table("Kilobytes per orchestration, bodies in both directions", "scenario");
    let mut fan_outs = ledgers_table("Cross-partition queries per orchestration", "scenario");
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
                let costs = &costs[..ledgers.len()];
                let add = |table: &mut Table, pick: fn(&Cost) -> f64| {
                    table.row(scenario.name, costs.iter().map(|cost| figure(cost, pick)).collect());
                };
                add(&mut requests, |cost| cost.requests);
                add(&mut units, |cost| cost.request_units);
                add(&mut bytes, |cost| cost.kilobytes);
                add(&mut fan_outs, |cost| cost.cross_partition);
            }
        }
    }
    vec![requests, units, bytes, fan_outs, times]
}

/// One hello while others wait for timers.
async fn waiting(field: &Field, sizes: Sizes) -> Vec<Table> {
    let mut requests = ledgers_table(summary::WAITING, "waiting").with_chart("provider-waiting");
    let mut times = ledgers_table("Milliseconds of one hello while others wait for their timers", "waiting");
    for &count in sizes.backlogs {
        eprintln!("one hello while {count} wait…");
        let mut costs = Vec::new();
        for contender in Contender::ON_COSMOS {
            costs.push(cell::behind(field, contender, count, sizes).await);
        }
        requests.row(&count.to_string(), costs.iter().map(|cost| figure(cost, |c| c.requests)).collect());
        times.row(&count.to_string(), costs.iter().map(|cost| figure(cost, |c| c.milliseconds)).collect());
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

/// Hellos that are all there before the runtime starts.
async fn drained(field: &Field, sizes: Sizes) -> Vec<Table> {
    let mut rates = table(summary::DRAINED, "backlog", &field.contenders(), Better::Higher)
        .with_chart("provider-backlog")
        .with_note(&field.note());
    let mut requests = ledgers_table("Requests per orchestration of a backlog", "backlog");
    for &count in sizes.backlogs {
        let mut outcomes: Vec<Result<Drained, String>> = Vec::new();
        for contender in field.contenders() {
            eprintln!("{} works off {count}…", contender.name());
            outcomes.push(cell::drain(field, contender, count, sizes).await);
        }
        rates.row(&count.to_string(), outcomes.iter().map(|outcome| figure(outcome, |d| d.rate)).collect());
        let on_cosmos = &outcomes[..Contender::ON_COSMOS.len()];
        requests.row(&count.to_string(), on_cosmos.iter().map(|o| figure(o, |d| d.requests)).collect());
    }
    vec![rates, requests]
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
            cells.push(figure(&cell::many(field, contender, dispatchers, sizes).await, |rate| *rate));
        }
        table.row(&format!("{dispatchers}/{dispatchers}"), cells);
    }
    table
}

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
