//! The driver against `azure_data_cosmos` and against bare hyper: same server, same requests, one run.
//!
//! The server is a process of its own on processors of its own. What is measured of a client is therefore its own
//! work: how many operations it completes with the processors it has, what it allocates, how long it makes its
//! callers wait, and what it does on two bad days. Where the emulator would set the pace, a second server replays the
//! emulator's own answers, so that all that is left to measure is the clients. Contenders take turns in short slices, so that whatever else the
//! machine does hits all of them.

mod bad_days;
mod client;
mod cores;
mod floor;
mod gateway2;
mod official;
mod ours;
mod proxy;
mod replay;
mod server;
mod speed;
mod wide;

use anyhow::Context;

use crate::report::{Better, Report, Table};
use client::{Client, Protocol};
use cores::Cores;
pub use replay::serve as replay;
use server::Server;
pub use server::serve;

/// Runs the whole comparison.
pub async fn run(seconds: f64) -> anyhow::Result<Report> {
    // A thread of its own, bound to the client's processors; the threads of its runtime inherit that.
    let thread = std::thread::Builder::new().name("clients".to_owned()).spawn(move || {
        let cores = Cores::divide()?;
        cores::bind(&cores.client)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(cores.client.len())
            .enable_all()
            .build()
            .context("a runtime for the clients")?;
        runtime.block_on(async { tokio::spawn(measure(seconds, cores)).await? })
    })?;
    tokio::task::spawn_blocking(move || thread.join())
        .await?
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What docs/measurements.md shows: one load, the allocations, and the worst of the bad days.
fn summary(tables: &[Table]) -> Vec<Table> {
    let at_64 = |label: &str| label.ends_with(", 64");
    vec![
        short(tables, "Operations per second,", "per second, 64 in flight, answers replayed", at_64),
        short(tables, "Operations per second (", "per second, 64 in flight, emulator", at_64),
        short(
            tables,
            "Processor time of the client",
            "microseconds of a processor, client, 64 in flight",
            at_64,
        ),
        short(tables, "Allocations", "allocations per operation", |label| !label.ends_with("bytes")),
        short(tables, "Bad days", "milliseconds, 200 reads per second", |label| {
            label.contains(": p99") || label.ends_with("slowest of 5 s")
        }),
    ]
}

/// The kept rows of all tables whose titles begin alike; each row says which protocol it is of.
fn short(tables: &[Table], start: &str, head: &str, keep: impl Fn(&str) -> bool) -> Table {
    let alike: Vec<_> = tables.iter().filter(|table| table.title.starts_with(start)).collect();
    let columns = alike.first().map(|table| table.columns.iter().skip(1).map(String::as_str));
    let mut out = Table::new("", head, columns.into_iter().flatten(), Better::Mixed);
    for table in alike {
        let protocol = if table.title.contains("HTTP/1.1") { "HTTP/1.1" } else { "HTTP/2" };
        for (label, cells) in table.rows.iter().filter(|(label, _)| keep(label)) {
            out.row(&format!("{}, {protocol}", label.trim_end_matches(", 64")), cells.clone());
        }
    }
    out
}

async fn measure(seconds: f64, cores: Cores) -> anyhow::Result<Report> {
    let server = Server::start(&[client::REGION], &cores.server).await?;
    client::prepare(&server.endpoint).await?;
    let mut tables = Vec::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let clients = Client::all(&server.endpoint, protocol).await?;
        tables.extend(speed::measure(&clients, protocol, seconds).await?);
    }
    let replay = Server::replay(&server.endpoint, &cores.server).await?;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let clients = Client::all(&replay.endpoint, protocol).await?;
        tables.extend(speed::measure_replayed(&replay, &clients, protocol, seconds).await?);
    }
    drop((replay, server));
    tables.extend(wide::measure(&cores.server, seconds).await?);
    tables.extend(gateway2::measure(&cores.server, seconds).await?);
    tables.extend(bad_days::measure(&cores.server).await?);
    let summary = summary(&tables);
    Ok(Report::new(tables, summary))
}
