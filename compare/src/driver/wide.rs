//! What asks many ranges: a sorted query and a change feed over sixteen.

use std::sync::Arc;

use anyhow::Context;

use super::client::{self, Client, Operation, Protocol, REGION};
use super::official::Official;
use super::ours::Ours;
use super::server::Server;
use super::speed;
use crate::report::{Better, Cell, Table};

/// Ranges of the container.
const RANGES: u32 = 16;
/// Operations in flight.
const IN_FLIGHT: [usize; 2] = [1, 8];

/// Rates and latencies of both drivers.
pub async fn measure(cores: &[usize], seconds: f64) -> anyhow::Result<Vec<Table>> {
    let server = Server::start_wide(RANGES, cores).await?;
    client::prepare(&server.endpoint).await?;
    let official =
        Official::connect(&server.endpoint, Protocol::Http2, &[REGION]).await.context("official")?;
    let ours = Ours::connect(&server.endpoint, Protocol::Http2, &[REGION]).await.context("ours")?;
    let clients = [Client::Official(Arc::new(official)), Client::Ours(Arc::new(ours))];
    let title = "Over 16 ranges, 1,000 items (HTTP/2)";
    let columns = ["azure_data_cosmos", "ours", "ours / official"];
    let mut table = Table::new(title, "operations per second, in flight", columns, Better::Mixed);
    let mut latency = Table::new(
        "Latency over 16 ranges (HTTP/2)",
        "milliseconds",
        columns[..2].iter().copied(),
        Better::Mixed,
    );
    for operation in Operation::WIDE {
        eprintln!("{}…", operation.name());
        for in_flight in IN_FLIGHT {
            let runs = speed::take_turns(&clients, operation, in_flight, seconds).await?;
            let label = |what: &str| format!("{}{what}, {in_flight}", operation.name());
            let mut cells: Vec<Cell> = runs.iter().map(|run| Cell::Figure(run.rate)).collect();
            cells.push(Cell::Figure(runs[1].rate / runs[0].rate));
            table.row(&label(""), cells);
            latency.row(&label(" p50"), runs.iter().map(|run| Cell::Figure(run.p50)).collect());
            latency.row(&label(" p99"), runs.iter().map(|run| Cell::Figure(run.p99)).collect());
        }
    }
    Ok(vec![table, latency])
}
