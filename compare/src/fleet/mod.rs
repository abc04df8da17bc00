//! Many worker processes on one container: ours against the public `duroxide-cdb` 0.1.10, on the same server.

mod crew;
mod meter;
mod replace;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::ValueEnum;
use duroxide::providers::Provider;

use crate::provider::{self, isolated};
use crate::report::{Better, Cell, Report, Table};
use crew::{Crew, Shape, Waking};
pub use worker::{WorkerArgs, run as work};

const DATABASE: &str = "compare";
const CONTAINER: &str = "flows";

/// Whose provider the workers of a fleet use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FleetContender {
    Public,
    Ours,
}

impl FleetContender {
    const ALL: [Self; 2] = [Self::Public, Self::Ours];

    fn name(self) -> &'static str {
        match self {
            Self::Public => "duroxide-cdb 0.1.10",
            Self::Ours => "ours",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Ours => "ours",
        }
    }
}

/// A provider, and what its process does with it in the end.
enum Opened {
    Public(Arc<public::CosmosDBProvider>),
    Ours(Arc<ours::CosmosDBProvider>),
}

impl Opened {
    fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Public(provider) => provider.clone(),
            Self::Ours(provider) => provider.clone(),
        }
    }

    /// Hands over to others, where there is a way to.
    async fn leave(&self) {
        if let Self::Ours(provider) = self {
            provider.shutdown().await;
        }
    }
}

/// Opens a provider with its defaults, but for how long it listens closely.
async fn open(
    contender: FleetContender,
    endpoint: &str,
    key: &str,
    dispatchers: usize,
    rests_after_ms: Option<u64>,
) -> anyhow::Result<Opened> {
    Ok(match contender {
        FleetContender::Public => {
            let dispatchers = u32::try_from(dispatchers)?;
            let config = public::CosmosDBProviderConfig {
                endpoint: endpoint.trim_end_matches('/').to_owned(),
                key: key.to_owned(),
                database: DATABASE.to_owned(),
                container: CONTAINER.to_owned(),
                orch_concurrency: dispatchers,
                worker_concurrency: dispatchers,
                ..Default::default()
            };
            let opened = public::CosmosDBProvider::new_with_config(config).await;
            Opened::Public(Arc::new(opened.map_err(|error| anyhow!("{error:?}"))?))
        }
        FleetContender::Ours => {
            let mut config = ours::CosmosDBProviderConfig::new(endpoint, key)
                .with_database(DATABASE)
                .with_container(CONTAINER);
            if let Some(millis) = rests_after_ms {
                config.bell_rests_after = Duration::from_millis(millis);
            }
            let opened = ours::CosmosDBProvider::new_with_config(config).await;
            Opened::Ours(Arc::new(opened.map_err(|error| anyhow!("{error:?}"))?))
        }
    })
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    workers: &'static [usize],
    partitions: &'static [u32],
    latencies_ms: &'static [u64],
    /// Orchestrations that are started at once.
    backlog: usize,
    /// What takes longer is cut, and its rate is that of what was done.
    drain_within: Duration,
    /// Activities of one instance, and how many milliseconds each takes. Where it is long, the processor is not the limit.
    fans: &'static [(usize, u64)],
    /// Starts and events whose time is taken.
    samples: usize,
    /// Between two of them.
    apart: Duration,
    /// How long an idle fleet is watched.
    idle: Duration,
    /// How long members take to divide their slots, at most.
    settle: Duration,
}

impl Sizes {
    const FULL: Self = Self {
        workers: &[1, 2, 4, 8, 16],
        partitions: &[1, 4],
        latencies_ms: &[5, 20],
        backlog: 400,
        drain_within: Duration::from_secs(15),
        fans: &[(1000, 50), (200, 500)],
        samples: 20,
        apart: Duration::from_millis(170),
        // The longest from one look at the whole container to the next.
        idle: Duration::from_millis(13_200),
        settle: Duration::from_secs(6),
    };
    const QUICK: Self = Self {
        workers: &[1, 4],
        partitions: &[1],
        latencies_ms: &[20],
        backlog: 300,
        drain_within: Duration::from_secs(12),
        fans: &[(300, 50)],
        samples: 12,
        apart: Duration::from_millis(370),
        idle: Duration::from_secs(5),
        settle: Duration::from_secs(8),
    };
}

/// A part of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FleetPart {
    /// A backlog: rates, requests, refused writes.
    Backlog,
    /// What an idle fleet costs, and how soon it hears of a start or an event.
    Idle,
    /// One instance's activities, run by everybody.
    FanOut,
    /// The same as `idle`, of a fleet that listens rarely, as it does after five minutes of silence.
    Asleep,
    /// Workers are replaced one by one while orchestrations are started.
    Replace,
    /// One process alone: what orchestrations cost it and how long they take.
    Alone,
}

/// What is looked at, for a look.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct FleetArgs {
    /// Only these parts. In the repository they take the place of what was measured of them before.
    #[arg(long, value_delimiter = ',')]
    only: Vec<FleetPart>,
    /// Only this contender.
    #[arg(long, conflicts_with = "write_docs")]
    contender: Option<FleetContender>,
    /// Only these numbers of workers.
    #[arg(long, value_delimiter = ',', conflicts_with = "write_docs")]
    workers: Vec<usize>,
    /// Only these numbers of physical partitions.
    #[arg(long, value_delimiter = ',', conflicts_with = "write_docs")]
    partitions: Vec<u32>,
    /// Only these latencies, in milliseconds for each request.
    #[arg(long, value_delimiter = ',', conflicts_with = "write_docs")]
    latencies: Vec<u64>,
}

impl FleetArgs {
    /// Whether some parts are left out.
    pub fn is_partial(&self) -> bool {
        !self.only.is_empty()
    }
}

/// Runs the comparison, or parts of it.
pub async fn run(quick: bool, args: &FleetArgs) -> anyhow::Result<Report> {
    let plan = Plan { sizes: if quick { Sizes::QUICK } else { Sizes::FULL }, args: args.clone() };
    let wanted = |part: FleetPart| args.only.is_empty() || args.only.contains(&part);
    let mut tables = Vec::new();
    if wanted(FleetPart::Backlog) {
        tables.extend(backlogs(&plan));
    }
    if wanted(FleetPart::FanOut) {
        tables.extend(plan.sizes.fans.iter().map(|fan| fan_out(&plan, *fan)));
    }
    if wanted(FleetPart::Idle) {
        tables.extend(quiet(&plan, Watchfulness::Awake));
    }
    if wanted(FleetPart::Asleep) {
        tables.extend(quiet(&plan, Watchfulness::Asleep));
    }
    if wanted(FleetPart::Replace) {
        tables.push(replace::table(&plan));
    }
    if wanted(FleetPart::Alone) {
        tables.push(provider::alone(quick).await);
    }
    let summary = tables.iter().filter(|table| is_summed_up(&table.title)).cloned().collect();
    Ok(Report::new(tables, summary))
}

/// Whether a table is shown where there is little room.
fn is_summed_up(title: &str) -> bool {
    [RATES, REQUESTS, AWAKE, replace::TITLE, provider::ALONE].contains(&title)
}

/// What of all is measured.
struct Plan {
    sizes: Sizes,
    args: FleetArgs,
}

impl Plan {
    fn workers(&self) -> Vec<usize> {
        chosen(&self.args.workers, self.sizes.workers)
    }

    fn partitions(&self) -> Vec<u32> {
        chosen(&self.args.partitions, self.sizes.partitions)
    }

    fn latencies(&self) -> Vec<u64> {
        chosen(&self.args.latencies, self.sizes.latencies_ms)
    }

    fn contenders(&self) -> Vec<FleetContender> {
        FleetContender::ALL
            .into_iter()
            .filter(|who| self.args.contender.is_none_or(|only| only == *who))
            .collect()
    }

    /// A table with a column for each contender.
    fn table(&self, title: &str, first: &str, better: Better) -> Table {
        Table::new(title, first, self.contenders().iter().map(|who| who.name()), better)
    }
}

fn chosen<T: Copy>(asked: &[T], all: &[T]) -> Vec<T> {
    if asked.is_empty() { all.to_vec() } else { asked.to_vec() }
}

/// A backlog that was worked off, or a part of it.
#[derive(Debug, Clone, Copy)]
struct Worked {
    rate: f64,
    requests: f64,
    units: f64,
    refused_percent: f64,
    disturbed_percent: f64,
}

/// Hellos that are all started at once while the fleet has nothing to do.
fn backlogs(plan: &Plan) -> Vec<Table> {
    let first = "workers, partitions, latency";
    let mut rates = plan.table(RATES, first, Better::Higher).with_chart("fleet-rates");
    let mut ratios = plan.table("Rate of a backlog, relative to one worker", first, Better::Higher);
    let mut requests = plan.table(REQUESTS, first, Better::Lower).with_chart("fleet-requests");
    let mut units = plan.table("Request units for each orchestration", first, Better::Lower);
    let mut refused = plan.table("Refused writes, per cent of all writes", first, Better::Lower);
    let mut disturbed = Vec::new();
    for latency_ms in plan.latencies() {
        for partitions in plan.partitions() {
            let mut alone: Vec<Option<f64>> = Vec::new();
            for workers in plan.workers() {
                let worked: Vec<Result<Worked, String>> = plan
                    .contenders()
                    .into_iter()
                    .map(|contender| {
                        let shape = Shape {
                            contender,
                            workers,
                            dispatchers: DISPATCHERS,
                            partitions,
                            latency_ms,
                            is_drowsy: false,
                        };
                        told(shape, "backlog", isolated(backlog(shape, plan.sizes)))
                    })
                    .collect();
                if alone.is_empty() {
                    alone =
                        worked.iter().map(|worked| worked.as_ref().ok().map(|worked| worked.rate)).collect();
                }
                disturbed.extend(worked.iter().flatten().map(|worked| worked.disturbed_percent));
                let label = format!("{workers}, {partitions}, {latency_ms} ms");
                let row = |pick: fn(&Worked) -> f64| worked.iter().map(|one| cell(one, pick)).collect();
                rates.row(&label, row(|worked| worked.rate));
                requests.row(&label, row(|worked| worked.requests));
                units.row(&label, row(|worked| worked.units));
                refused.row(&label, row(|worked| worked.refused_percent));
                let ratio = |(worked, alone): (&Result<Worked, String>, &Option<f64>)| match (worked, alone) {
                    (Ok(worked), Some(alone)) => Cell::Figure(worked.rate / alone),
                    _ => Cell::Text("–".to_owned()),
                };
                ratios.row(&label, worked.iter().zip(&alone).map(ratio).collect());
            }
        }
    }
    let note = format!(
        "{} hellos are started at once by another process; each worker has {DISPATCHERS} + {DISPATCHERS} dispatchers. \
         What is not done after {} s is cut, and the rate is that of what was done. {}",
        plan.sizes.backlog,
        plan.sizes.drain_within.as_secs(),
        disturbance(&disturbed)
    );
    vec![rates.with_note(&note), ratios, requests, units, refused]
}

async fn backlog(shape: Shape, sizes: Sizes) -> anyhow::Result<Worked> {
    let mut crew = Crew::start(shape, sizes.settle).await?;
    let (before, commits_before) = crew.done();
    crew.count_anew();
    let begun = Instant::now();
    let starting = crew.start_many("backlog", sizes.backlog);
    let finishing = crew.finish(before + sizes.backlog, sizes.drain_within);
    let (started, finished) = tokio::join!(starting, finishing);
    started?;
    let elapsed = begun.elapsed().as_secs_f64();
    let counted = crew.counted();
    let worth = match finished {
        Ok(()) => sizes.backlog as f64,
        Err(_) => (crew.done().1 - commits_before) as f64 / COMMITS_OF_HELLO,
    };
    anyhow::ensure!(worth >= 1.0, "nothing was done in {elapsed:.0} s");
    // Starts of what was cut are no part of what the others cost.
    let unserved = sizes.backlog as f64 - worth;
    Ok(Worked {
        rate: worth / elapsed,
        requests: (counted.requests as f64 - unserved) / worth,
        units: (counted.request_units - unserved * UNITS_OF_A_START) / worth,
        refused_percent: counted.refused as f64 / counted.writes.max(1) as f64 * 100.0,
        disturbed_percent: crew.disturbed_percent(),
    })
}

/// Whether the machine was busy with something else, in words.
fn disturbance(percents: &[f64]) -> String {
    let mut sorted = percents.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(middle), Some(most)) = (sorted.get(sorted.len() / 2), sorted.last()) else {
        return "Nothing could be measured.".to_owned();
    };
    let how = if *middle > DISTURBED_PERCENT {
        "The machine was busy with something else, so times and rates are worse than they would be"
    } else {
        "The machine was left alone"
    };
    format!("{how}: other programs took {middle:.0} % of the processors, at most {most:.0} %.")
}

/// One instance's activities.
fn fan_out(plan: &Plan, (width, millis): (usize, u64)) -> Table {
    let title =
        format!("Seconds for {width} activities of {millis} ms of one instance, 8 + 8 dispatchers, 5 ms");
    let mut table = plan.table(&title, "workers", Better::Lower);
    let mut alone: Vec<f64> = Vec::new();
    let mut ratios: Vec<Cell> = Vec::new();
    let mut disturbed = Vec::new();
    for workers in chosen(&plan.args.workers, &[1, 4]) {
        let fanned: Vec<Result<(f64, f64), String>> = plan
            .contenders()
            .into_iter()
            .map(|contender| {
                let shape = Shape {
                    contender,
                    workers,
                    dispatchers: 8,
                    partitions: 1,
                    latency_ms: 5,
                    is_drowsy: false,
                };
                told(shape, "fan-out", isolated(fan(shape, plan.sizes.settle, (width, millis))))
            })
            .collect();
        disturbed.extend(fanned.iter().flatten().map(|(_, percent)| *percent));
        let seconds: Vec<Result<f64, String>> =
            fanned.into_iter().map(|one| one.map(|(seconds, _)| seconds)).collect();
        let figures: Vec<f64> = seconds.iter().map(|one| one.as_ref().copied().unwrap_or(f64::NAN)).collect();
        if alone.is_empty() {
            alone = figures;
        } else {
            ratios = alone.iter().zip(&figures).map(|(alone, one)| ratio_cell(alone / one)).collect();
        }
        table.row(&workers.to_string(), seconds.iter().map(|one| cell(one, |seconds| *seconds)).collect());
    }
    if !ratios.is_empty() {
        table.row("times faster", ratios);
    }
    table.with_note(&disturbance(&disturbed))
}

fn ratio_cell(ratio: f64) -> Cell {
    if ratio.is_finite() { Cell::Figure(ratio) } else { Cell::Text("–".to_owned()) }
}

/// Seconds that it took, and how much others took of the processors.
async fn fan(shape: Shape, settle: Duration, (width, millis): (usize, u64)) -> anyhow::Result<(f64, f64)> {
    let mut crew = Crew::start(shape, settle).await?;
    let before = crew.done().0;
    crew.count_anew();
    let begun = Instant::now();
    crew.client.start_orchestration("fan", "fan", format!("{width}x{millis}")).await?;
    crew.finish(before + 1, FAN_WITHIN).await?;
    Ok((begun.elapsed().as_secs_f64(), crew.disturbed_percent()))
}

/// A fleet that has nothing to do.
#[derive(Debug, Clone)]
struct Quiet {
    requests: f64,
    units: f64,
    start: (f64, f64),
    event: (f64, f64),
    disturbed_percent: f64,
}

/// How closely a fleet listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watchfulness {
    /// It did something a moment ago.
    Awake,
    /// It was left alone for so long that it listens rarely.
    Asleep,
}

/// What an idle fleet costs, and how soon it hears.
fn quiet(plan: &Plan, how: Watchfulness) -> Vec<Table> {
    let first = "workers, partitions";
    let (title, costs, workers) = match how {
        Watchfulness::Awake => (AWAKE, AWAKE_COSTS, chosen(&plan.args.workers, &[1, 4, 16])),
        Watchfulness::Asleep => (ASLEEP, ASLEEP_COSTS, chosen(&plan.args.workers, &[1, 4, 16])),
    };
    let mut disturbed = Vec::new();
    let mut wakes = plan.table(title, first, Better::Lower);
    let mut costs = plan.table(costs, first, Better::Lower);
    for partitions in plan.partitions() {
        for workers in &workers {
            let mut cells = (Vec::new(), Vec::new());
            for contender in plan.contenders() {
                let is_drowsy = how == Watchfulness::Asleep;
                let shape = Shape {
                    contender,
                    workers: *workers,
                    dispatchers: DISPATCHERS,
                    partitions,
                    latency_ms: 5,
                    is_drowsy,
                };
                if is_drowsy && contender == FleetContender::Public {
                    // It polls the same way at all times.
                    cells.0.push(Cell::Text("–".to_owned()));
                    cells.1.push(Cell::Text("–".to_owned()));
                    continue;
                }
                let heard = told(shape, title, isolated(hear(shape, plan.sizes)));
                disturbed.extend(heard.as_ref().ok().map(|quiet| quiet.disturbed_percent));
                let (awake, asleep) = heard.cells();
                cells.0.push(awake);
                cells.1.push(asleep);
            }
            let label = format!("{workers}, {partitions}");
            wakes.row(&label, cells.0);
            costs.row(&label, cells.1);
        }
    }
    vec![wakes.with_note(&format!("{WAKING_NOTE} {}", disturbance(&disturbed))), costs]
}

/// What is told of a fleet that has nothing to do.
trait QuietCells {
    /// How soon it hears, and what it costs.
    fn cells(self) -> (Cell, Cell);
}

impl QuietCells for Result<Quiet, String> {
    fn cells(self) -> (Cell, Cell) {
        let several = |figures: [f64; 2]| Cell::Several(figures.map(Cell::Figure).to_vec());
        match self {
            Ok(quiet) => {
                let pair = |(one, two): (f64, f64)| several([one.round(), two.round()]);
                let wakes = Cell::Several(vec![pair(quiet.start), pair(quiet.event)]);
                (wakes, several([quiet.requests, quiet.units]))
            }
            Err(why) => (Cell::Text(why.clone()), Cell::Text(why)),
        }
    }
}

async fn hear(shape: Shape, sizes: Sizes) -> anyhow::Result<Quiet> {
    let mut crew = Crew::start(shape, sizes.settle).await?;
    let (samples, apart) = if shape.is_drowsy {
        (sizes.samples.div_ceil(2), ASLEEP_APART)
    } else {
        (sizes.samples, sizes.apart)
    };
    for number in 0..samples {
        let label = format!("event-{number}");
        crew.client.start_orchestration(&label, "listening", label.as_str()).await?;
    }
    // One who joins looks around more often at first, and sweeps for what others left come to rest.
    tokio::time::sleep(if shape.is_drowsy { AT_REST } else { AFTER_EVENTS }).await;
    crew.count_anew();
    tokio::time::sleep(sizes.idle).await;
    let counted = crew.counted();
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..samples {
        for (how, kind) in [(Waking::Start, "start"), (Waking::Event, "event")] {
            // Not in step with anything that beats.
            tokio::time::sleep(apart + Duration::from_millis(number as u64 * 137 % 1009)).await;
            let taken = crew.until_it_runs(&format!("{kind}-{number}"), how).await?;
            times[usize::from(how == Waking::Event)].push(taken);
        }
    }
    let [start, event] = times.map(percentiles);
    let seconds = sizes.idle.as_secs_f64();
    Ok(Quiet {
        disturbed_percent: crew.disturbed_percent(),
        requests: counted.requests as f64 / seconds,
        units: counted.request_units / seconds,
        start,
        event,
    })
}

/// The middle, and what nineteen of twenty keep.
fn percentiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get(((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1)));
    (at(0.5).copied().unwrap_or(0.0), at(0.95).copied().unwrap_or(0.0))
}

fn cell<T>(outcome: &Result<T, String>, pick: fn(&T) -> f64) -> Cell {
    match outcome {
        Ok(worked) => Cell::Figure(pick(worked)),
        Err(why) => Cell::Text(why.clone()),
    }
}

/// Says what was measured, while much is still to come.
fn told<T: std::fmt::Debug>(shape: Shape, what: &str, outcome: Result<T, String>) -> Result<T, String> {
    eprintln!(
        "{} workers of {}, {} partitions, {} ms, {what}: {outcome:?}",
        shape.workers,
        shape.contender.name(),
        shape.partitions,
        shape.latency_ms
    );
    outcome
}

const RATES: &str = "Backlog, orchestrations per second";
const REQUESTS: &str = "Requests for each orchestration of a backlog";
const AWAKE: &str = "Milliseconds from a start or an event in another process until its activity runs";
const AWAKE_COSTS: &str =
    "Requests and request units per second of an idle fleet that did something within the last minutes";
const ASLEEP: &str = "Milliseconds until an activity runs, of a fleet that has heard nothing for a while";
const ASLEEP_COSTS: &str =
    "Requests and request units per second of an idle fleet that has heard nothing for a while";
const WAKING_NOTE: &str =
    "p50 / p95 of starts, then p50 / p95 of events; the server takes 5 ms for each request.";
const ASLEEP_APART: Duration = Duration::from_millis(1100);
/// duroxide's default.
const DISPATCHERS: usize = 2;
/// Two turns and an activity.
const COMMITS_OF_HELLO: f64 = 3.0;
const UNITS_OF_A_START: f64 = 6.0;
/// More than what an idle system does by itself.
const DISTURBED_PERCENT: f64 = 10.0;
const FAN_WITHIN: Duration = Duration::from_secs(60);
const AFTER_EVENTS: Duration = Duration::from_secs(3);
const AT_REST: Duration = Duration::from_secs(25);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_slowest_but_one_of_twenty_are_told() {
        assert_eq!(percentiles((1..=20).rev().map(f64::from).collect()), (11.0, 20.0));
        assert_eq!(percentiles(vec![7.0]), (7.0, 7.0));
    }
}
