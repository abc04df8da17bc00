//! Workers that are replaced one by one, as a deployment does, while orchestrations are started all the time.

use std::time::Duration;

use super::crew::{Crew, Shape};
use super::worker::now_micros;
use super::{DISPATCHERS, Plan, disturbance, isolated, told};
use crate::report::{Better, Cell, Table};

/// What it was like for those who started something meanwhile.
#[derive(Debug, Clone, Copy)]
struct Replaced {
    /// Milliseconds from a start until its activity runs: the middle, what 19 of 20 keep, the longest.
    waits: [f64; 3],
    /// Milliseconds in which no activity began anywhere, at most.
    standstill: f64,
    /// Activities that began twice.
    twice: f64,
    disturbed_percent: f64,
}

/// Four workers are stopped with SIGTERM one after the other, and each is followed by another.
pub fn table(plan: &Plan) -> Table {
    let mut table = plan.table(TITLE, "what", Better::Lower);
    let replaced: Vec<Result<Replaced, String>> = plan
        .contenders()
        .into_iter()
        .map(|contender| {
            let shape = Shape {
                contender,
                workers: WORKERS,
                dispatchers: DISPATCHERS,
                partitions: 1,
                latency_ms: 5,
                is_drowsy: false,
            };
            told(shape, "replaced", isolated(replace(shape, plan.sizes.settle)))
        })
        .collect();
    let mut row = |label: &str, pick: fn(&Replaced) -> Cell| {
        let cells = replaced.iter().map(|one| one.as_ref().map_or_else(|why| Cell::Text(why.clone()), pick));
        table.row(label, cells.collect());
    };
    row("ms from a start until its activity runs, p50 / p95 / longest", |one| {
        Cell::Several(one.waits.map(|wait| Cell::Figure(wait.round())).to_vec())
    });
    row("ms in which no activity began, at most", |one| Cell::Figure(one.standstill.round()));
    row("activities that began twice", |one| Cell::Figure(one.twice));
    let disturbed: Vec<f64> = replaced.iter().flatten().map(|one| one.disturbed_percent).collect();
    table.with_note(&format!("A start every {} ms. {}", EVERY.as_millis(), disturbance(&disturbed)))
}

async fn replace(shape: Shape, settle: Duration) -> anyhow::Result<Replaced> {
    let mut crew = Crew::start(shape, settle).await?;
    crew.count_anew();
    let client = crew.client.clone();
    let starting = tokio::spawn(async move {
        let mut starts = Vec::new();
        let mut tick = tokio::time::interval(EVERY);
        for number in 0..STARTS {
            tick.tick().await;
            let (client, label) = (client.clone(), format!("replaced-{number}"));
            starts.push((label.clone(), now_micros()));
            // A start that is slow does not hold up the next.
            tokio::spawn(async move { client.start_orchestration(&label, "stamped", label.as_str()).await });
        }
        starts
    });
    for _ in 0..WORKERS {
        tokio::time::sleep(BETWEEN).await;
        crew.replace_oldest().await?;
    }
    let starts = starting.await?;
    let mut waits = Vec::new();
    for (label, since) in &starts {
        waits.push(crew.until_stamped(label, *since, ALL_WITHIN).await?);
    }
    waits.sort_by(f64::total_cmp);
    let labels: Vec<String> = starts.into_iter().map(|(label, _)| label).collect();
    let runs: Vec<Vec<u128>> = crew.stamped(&labels).into_iter().flatten().collect();
    let mut moments: Vec<u128> = runs.iter().flatten().copied().collect();
    moments.sort_unstable();
    let standstill = moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    let at = |part: f64| waits[((waits.len() as f64 * part) as usize).min(waits.len() - 1)];
    Ok(Replaced {
        waits: [at(0.5), at(0.95), at(1.0)],
        standstill: standstill as f64 / 1000.0,
        twice: runs.iter().filter(|runs| runs.len() > 1).count() as f64,
        disturbed_percent: crew.disturbed_percent(),
    })
}

pub const TITLE: &str = "Four workers replaced one by one with SIGTERM, under load";
const WORKERS: usize = 4;
const EVERY: Duration = Duration::from_millis(40);
const STARTS: usize = 400;
const BETWEEN: Duration = Duration::from_millis(2500);
const ALL_WITHIN: Duration = Duration::from_secs(60);
