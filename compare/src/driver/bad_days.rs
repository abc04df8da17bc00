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
/// Reads that arrive within this time once it is not: what happens at once is what callers notice.
const BAD: Duration = Duration::from_secs(2);
/// How long a slow region takes.
const SLOW_MS: u64 = 1500;

/// Both days, in one table.
pub async fn measure(cores: &[usize]) -> anyhow::Result<Vec<Table>> {
    let contenders = ["azure_data_cosmos", "ours", "ours / official"];
    let mut table = Table::new(
        "Bad days: 200 reads per second, the first 2 s of trouble (HTTP/2)",
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

/// How long reads took once it went bad, and how many failed.
struct Day {
    times: Vec<Duration>,
    failed: usize,
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
        let arrival = begun + Duration::from_secs_f64(n as f64 / RATE);
        tokio::time::sleep_until(arrival.into()).await;
        let client = client.clone();
        reads.push(tokio::spawn(async move {
            let result = client.call(Operation::Read, 0, n).await;
            (arrival.elapsed(), result)
        }));
    }
    let mut day = Day { times: Vec::new(), failed: 0 };
    for read in reads {
        if let Ok((time, result)) = read.await {
            day.times.push(time);
            day.failed += usize::from(result.is_err());
        }
    }
    day.times.sort_unstable();
    day
}

impl Day {
    fn at(&self, share: f64) -> f64 {
        self.times[((self.times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0
    }
}

impl Table {
    fn add(&mut self, what: &str, days: &[Day]) {
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("slowest", 1.0)] {
            let mut cells: Vec<Cell> = days.iter().map(|day| Cell::Figure(day.at(share))).collect();
            cells.push(Cell::Figure(days[1].at(share) / days[0].at(share)));
            self.rows.push((format!("{what}: {name}"), cells));
        }
        let mut cells: Vec<Cell> = days.iter().map(|day| Cell::Figure(day.failed as f64)).collect();
        cells.push(Cell::Text(String::new()));
        self.rows.push((format!("{what}: failed"), cells));
    }
}
