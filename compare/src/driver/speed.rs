//! Rates, latencies, processor time and allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use stats_alloc::Region;

use super::client::{Client, ITEMS, KEYS, Operation, Protocol};
use super::server::Server;
use crate::report::{Better, Cell, Table};

/// Operations in flight.
const IN_FLIGHT: [usize; 4] = [1, 16, 64, 256];
/// Operations in flight where only the clients are the limit.
const MANY_IN_FLIGHT: [usize; 2] = [64, 256];
/// Slices a cell is measured in; contenders take turns.
const SLICES: u32 = 3;
/// Operations over which allocations are counted.
const COUNTED: u64 = 400;

/// All tables of one protocol against the emulator: what a caller gets.
pub async fn measure(clients: &[Client], protocol: Protocol, seconds: f64) -> anyhow::Result<Vec<Table>> {
    let chart = match protocol {
        Protocol::Http1 => "driver-rates-http1",
        Protocol::Http2 => "driver-rates-http2",
    };
    let mut rates = titled(clients, protocol, "Operations per second", "in flight").with_chart(chart);
    rates.columns.push("ours / official".to_owned());
    let mut latency = titled(clients, protocol, "Latency", "milliseconds");
    let mut processor =
        titled(clients, protocol, "Processor time of the client per operation", "microseconds");
    let mut counts = titled(clients, protocol, "Allocations per operation", "one in flight");
    counts.columns.push("ours / floor".to_owned());
    for operation in Operation::ALL {
        eprintln!("{}: {}…", protocol.name(), operation.name());
        for in_flight in IN_FLIGHT {
            let runs = take_turns(clients, operation, in_flight, seconds).await?;
            add(&mut rates, &mut latency, &runs, operation, in_flight);
            if in_flight == 64 {
                let label = format!("{}, {in_flight}", operation.name());
                processor.rows.push((label, figures(&runs, |run| run.processor)));
            }
        }
        let mut found = Vec::new();
        for client in clients {
            found.push(count(client, operation).await?);
        }
        let mut cells: Vec<Cell> = found.iter().map(|(count, _)| Cell::Figure(*count)).collect();
        cells.push(Cell::Figure(found[2].0 / found[0].0));
        counts.rows.push((operation.name().to_owned(), cells));
        let mut cells: Vec<Cell> = found.iter().map(|(_, bytes)| Cell::Figure(*bytes)).collect();
        cells.push(Cell::Figure(found[2].1 / found[0].1));
        counts.rows.push((format!("{}, bytes", operation.name()), cells));
    }
    Ok(vec![rates.with_note(EMULATOR), latency, processor, counts])
}

/// The tables of one protocol against recorded answers: what a client can do.
pub async fn measure_replayed(
    server: &Server,
    clients: &[Client],
    protocol: Protocol,
    seconds: f64,
) -> anyhow::Result<Vec<Table>> {
    eprintln!("{}: recording…", protocol.name());
    for operation in Operation::ALL {
        for client in clients {
            for n in 0..KEYS * ITEMS {
                client.call(operation, 0, n).await?;
            }
        }
    }
    let mut rates = titled(clients, protocol, "Operations per second, answers replayed", "in flight");
    rates.columns.push("ours / official".to_owned());
    let mut latency = titled(clients, protocol, "Latency, answers replayed", "milliseconds");
    let (recorded, _) = server.passed_on().await?;
    let mut busiest = 0.0f64;
    for operation in Operation::ALL {
        eprintln!("{}, answers replayed: {}…", protocol.name(), operation.name());
        for in_flight in MANY_IN_FLIGHT {
            let (before, begun) = (server.processor_time()?, Instant::now());
            let runs = take_turns(clients, operation, in_flight, seconds).await?;
            let used = server.processor_time()?.saturating_sub(before);
            busiest = busiest.max(used.as_secs_f64() / begun.elapsed().as_secs_f64());
            add(&mut rates, &mut latency, &runs, operation, in_flight);
        }
    }
    let (passed_on, latest) = server.passed_on().await?;
    ensure!(passed_on == recorded, "{} requests had not been recorded: {latest}", passed_on - recorded);
    let note = format!("{REPLAYED} Its processor was busy for at most {:.0} % of a cell.", busiest * 100.0);
    Ok(vec![rates.with_note(&note), latency])
}

fn titled(clients: &[Client], protocol: Protocol, what: &str, first: &'static str) -> Table {
    let title = format!("{what} ({})", protocol.name());
    Table::new(&title, first, clients.iter().map(Client::name), Better::Mixed)
}

fn add(rates: &mut Table, latency: &mut Table, runs: &[Run], operation: Operation, in_flight: usize) {
    let label = |what: &str| format!("{}{what}, {in_flight}", operation.name());
    let mut cells = figures(runs, |run| run.rate);
    cells.push(Cell::Figure(runs[2].rate / runs[1].rate));
    rates.rows.push((label(""), cells));
    latency.rows.push((label(" p50"), figures(runs, |run| run.p50)));
    latency.rows.push((label(" p99"), figures(runs, |run| run.p99)));
}

const EMULATOR: &str = "Against the emulator, on a processor of its own: what a caller gets, where the slower of client and server sets the pace.";
const REPLAYED: &str = "Against a server that repeats the emulator's recorded answers and does nothing else: what a client can do when \
     the server is not the limit.";

pub(super) struct Run {
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) processor: f64,
}

fn figures(runs: &[Run], of: impl Fn(&Run) -> f64) -> Vec<Cell> {
    runs.iter().map(|run| Cell::Figure(of(run))).collect()
}

/// One cell of every contender, in alternating slices.
pub(super) async fn take_turns(
    clients: &[Client],
    operation: Operation,
    in_flight: usize,
    seconds: f64,
) -> anyhow::Result<Vec<Run>> {
    let span = Duration::from_secs_f64(seconds / 2.0 / f64::from(SLICES));
    let mut taken: Vec<(Vec<Duration>, Duration, Duration)> = vec![Default::default(); clients.len()];
    for slice in 0..=SLICES {
        for (client, (times, elapsed, processor)) in clients.iter().zip(&mut taken) {
            let (before, begun) = (processor_time()?, Instant::now());
            // The first slice, a short one, opens connections and fills caches.
            let span = if slice == 0 { span / 2 } else { span };
            let found = load(client, operation, in_flight, span).await?;
            if slice > 0 {
                times.extend(found);
                *elapsed += begun.elapsed();
                *processor += processor_time()?.saturating_sub(before);
            }
        }
    }
    let summed = taken.into_iter().map(|(mut times, elapsed, processor)| {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        let count = times.len() as f64;
        Run {
            rate: count / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
            processor: processor.as_secs_f64() * 1e6 / count,
        }
    });
    Ok(summed.collect())
}

/// As many callers as operations shall be in flight, for a while; says how long each operation took.
async fn load(
    client: &Client,
    operation: Operation,
    in_flight: usize,
    span: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let counter = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + span;
    let callers: Vec<_> = (0..in_flight)
        .map(|worker| {
            let (client, counter) = (client.clone(), counter.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < until {
                    let n = counter.fetch_add(1, Ordering::Relaxed);
                    let sent = Instant::now();
                    client.call(operation, worker, n).await?;
                    times.push(sent.elapsed());
                }
                anyhow::Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    Ok(times)
}

/// Allocations and bytes of one operation, one after the other.
async fn count(client: &Client, operation: Operation) -> anyhow::Result<(f64, f64)> {
    client.call(operation, 0, 0).await?;
    let region = Region::new(crate::ALLOCATOR);
    for n in 0..COUNTED {
        client.call(operation, 0, n).await?;
    }
    let change = region.change();
    let count = (change.allocations + change.reallocations) as f64;
    let bytes = change.bytes_allocated as f64;
    Ok((count / COUNTED as f64, bytes / COUNTED as f64))
}

/// What this process has used so far.
fn processor_time() -> anyhow::Result<Duration> {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(used.tv_sec)?, u32::try_from(used.tv_nsec)?))
}
