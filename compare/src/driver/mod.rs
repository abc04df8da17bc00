//! The driver against `azure_data_cosmos` and against bare hyper: same server, same requests, one run.
//!
//! The server is a process of its own on processors of its own. What is measured of a client is therefore its own
//! work: how many operations it completes with the processors it has, what it allocates, how long it makes its
//! callers wait, and what it does on two bad days. Contenders take turns in short slices, so that whatever else the
//! machine does hits all of them.

mod bad_days;
mod client;
mod cores;
mod floor;
mod official;
mod ours;
mod proxy;
mod server;
mod speed;

use anyhow::Context;

use crate::report::{Report, Table};
use client::{Client, Protocol};
use cores::Cores;
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

async fn measure(seconds: f64, cores: Cores) -> anyhow::Result<Report> {
    let server = Server::start(&[client::REGION], &cores.server).await?;
    client::prepare(&server.endpoint).await?;
    let mut tables = Vec::new();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let clients = Client::all(&server.endpoint, protocol).await?;
        tables.extend(speed::measure(&clients, protocol, seconds).await?);
    }
    drop(server);
    tables.extend(bad_days::measure(&cores.server).await?);
    let is_short = |table: &&Table| {
        table.chart.is_some()
            || ["Allocations", "Bad days"].iter().any(|start| table.title.starts_with(start))
    };
    let summary = tables.iter().filter(is_short).cloned().collect();
    Ok(Report::new(tables, summary))
}
