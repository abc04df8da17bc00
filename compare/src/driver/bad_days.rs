//! Two bad days: a connection that swallows everything, and a region that answers slowly.
//!
//! Reads arrive at a steady rate, whatever became of the ones before: a caller who waits must not hide those who
//! would have come meanwhile. Every read counts from the moment it arrived, also one that fails in the end.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::client::{self, Client, OTHER_REGION, Operation, Protocol, REGION};
use super::official::Official;
use super::ours::Ours;
use super::proxy::Proxy;
use super::server::Server;
use crate::report::{Better, Cell, Table};

/// Reads per second.
const RATE: f64 = 200.0;
/// How long all is well.
const BEFORE: Duration = Duration::from_secs(3);
/// How long it is not.
const BAD: Duration = Duration::from_secs(5);
/// Reads that arrive within so many seconds of trouble are looked at together: what happens at once, and all of it.
const WINDOWS: [u64; 2] = [2, 5];
/// How long a slow region takes.
const SLOW_MS: u64 = 1500;

/// Both days, in one table.
pub async fn measure(cores: &[usize]) -> anyhow::Result<Vec<Table>> {
    let contenders = ["azure_data_cosmos", "ours", "ours / official"];
    let mut table = Table::new(
        "Bad days: 200 reads per second, for 5 s of trouble (HTTP/2)",
        "milliseconds",
        contenders,
        Better::Mixed,
    );
    eprintln!("a bad day: one connection swallows everything…");
    let server = Server::start(&[REGION], cores).await?;
    client::prepare(&server.endpoint).await?;
    let mut days = Vec::new();
    for contender in CONTENDERS {
        let proxy = Proxy::start(&server.endpoint).await?;
        let client = contender.connect(&proxy.endpoint, &[REGION]).await?;
        days.push(day(&client, || proxy.look(), async { proxy.swallow_busiest() }).await?);
    }
    table.add("one connection swallows everything", &days);
    drop(server);

    eprintln!("a bad day: one of two regions answers slowly…");
    let server = Server::start(&[REGION, OTHER_REGION], cores).await?;
    client::prepare(&server.endpoint).await?;
    let slow = json!({ "region": REGION, "operation": "readItem", "verdict": { "kind": "delay", "delayMs": SLOW_MS } });
    let mut days = Vec::new();
    for contender in CONTENDERS {
        let client = contender.connect(&server.endpoint, &[REGION, OTHER_REGION]).await?;
        days.push(day(&client, || {}, server.add_fault(&slow)).await?);
        server.clear_faults().await?;
    }
    table.add(&format!("one of two regions takes {SLOW_MS} ms"), &days);
    Ok(vec![table])
}

const CONTENDERS: [Contender; 2] = [Contender::Official, Contender::Ours];

#[derive(Clone, Copy)]
enum Contender {
    Official,
    Ours,
}

impl Contender {
    async fn connect(self, endpoint: &str, regions: &[&str]) -> anyhow::Result<Client> {
        Ok(match self {
            Self::Official => Client::Official(Arc::new(
                Official::connect(endpoint, Protocol::Http2, regions).await.context("official")?,
            )),
            Self::Ours => Client::Ours(Arc::new(
                Ours::connect(endpoint, Protocol::Http2, regions).await.context("ours")?,
            )),
        })
    }
}

/// The reads of a span, in the order of their arrival.
struct Day(Vec<Read>);

struct Read {
    /// When it came, since the beginning.
    arrival: Duration,
    time: Duration,
    has_failed: bool,
}

/// Steady reads; `look` a little before it goes bad, `go_bad` when it does.
async fn day(
    client: &Client,
    look: impl Fn(),
    go_bad: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Day> {
    steady(client, BEFORE - Duration::from_secs(1)).await;
    look();
    steady(client, Duration::from_secs(1)).await;
    go_bad.await?;
    Ok(steady(client, BAD).await)
}

async fn steady(client: &Client, span: Duration) -> Day {
    let begun = Instant::now();
    let count = (span.as_secs_f64() * RATE) as u64;
    let mut reads = Vec::new();
    for n in 0..count {
        let arrival = Duration::from_secs_f64(n as f64 / RATE);
        let arrived = begun + arrival;
        tokio::time::sleep_until(arrived.into()).await;
        let client = client.clone();
        reads.push(tokio::spawn(async move {
            let result = client.call(Operation::Read, 0, n).await;
            Read { arrival, time: arrived.elapsed(), has_failed: result.is_err() }
        }));
    }
    let mut day = Day(Vec::new());
    for read in reads {
        day.0.extend(read.await);
    }
    day
}

impl Day {
    /// Milliseconds of the reads that came within a window, sorted.
    fn within(&self, seconds: u64) -> Vec<f64> {
        let reads = self.0.iter().filter(|read| read.arrival < Duration::from_secs(seconds));
        let mut times: Vec<f64> = reads.map(|read| read.time.as_secs_f64() * 1000.0).collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    }

    fn failed(&self) -> usize {
        self.0.iter().filter(|read| read.has_failed).count()
    }
}

fn at(times: &[f64], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize]
}

impl Table {
    fn add(&mut self, what: &str, days: &[Day]) {
        let mut compare = |label: String, figures: Vec<f64>| {
            let ratio = figures[1] / figures[0];
            let mut cells: Vec<Cell> = figures.into_iter().map(Cell::Figure).collect();
            cells.push(Cell::Figure(ratio));
            self.rows.push((label, cells));
        };
        for seconds in WINDOWS {
            let times: Vec<Vec<f64>> = days.iter().map(|day| day.within(seconds)).collect();
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("slowest", 1.0)] {
                let figures = times.iter().map(|times| at(times, share)).collect();
                compare(format!("{what}: {name} of {seconds} s"), figures);
            }
        }
        let mut cells: Vec<Cell> = days.iter().map(|day| Cell::Figure(day.failed() as f64)).collect();
        cells.push(Cell::Text(String::new()));
        self.rows.push((format!("{what}: failed"), cells));
    }
}
