//! What Gateway 2.0 brings: the same driver, the same server, by both ways.

use std::sync::Arc;

use anyhow::Context;

use super::client::{self, Client, Operation, Protocol, REGION};
use super::official::Official;
use super::ours::Ours;
use super::proxy::Proxy;
use super::server::Server;
use super::speed;
use crate::report::{Better, Cell, Table};

/// Operations in flight.
const IN_FLIGHT: [usize; 2] = [1, 64];
/// Operations over which bytes are counted.
const COUNTED: u64 = 200;
/// Ways, in the order of the columns.
const WAYS: [bool; 2] = [false, true];

/// Rates and bytes by both ways.
pub async fn measure(cores: &[usize], seconds: f64) -> anyhow::Result<Vec<Table>> {
    let server = Server::start_wide(1, cores).await?;
    client::prepare(&server.endpoint).await?;
    let columns = [
        "ours, ordinary",
        "ours, Gateway 2.0",
        "ratio",
        "official, ordinary",
        "official, Gateway 2.0",
        "ratio ",
    ];
    let title = "Gateway 2.0 beside the ordinary gateway (HTTP/2)";
    let mut rates = Table::new(title, "operations per second, in flight", columns, Better::Mixed);
    let mut clients = Vec::new();
    for is_ours in [true, false] {
        for way in WAYS {
            clients.push(connect(is_ours, &server.endpoint, way).await?);
        }
    }
    for operation in Operation::ALL {
        eprintln!("by both ways: {}…", operation.name());
        for in_flight in IN_FLIGHT {
            let runs = speed::take_turns(&clients, operation, in_flight, seconds).await?;
            let rates_of: Vec<f64> = runs.iter().map(|run| run.rate).collect();
            rates.row(&format!("{}, {in_flight}", operation.name()), with_ratios(&rates_of));
        }
    }
    let title = "Bytes on the wire per operation, by Gateway 2.0 and not (HTTP/2)";
    let mut bytes = Table::new(title, "one in flight", columns, Better::Mixed);
    let gateway2 = server.gateway2.as_deref().context("the server has Gateway 2.0")?;
    let mut counted = vec![Vec::new(); Operation::ALL.len()];
    for is_ours in [true, false] {
        for way in WAYS {
            let thin = Proxy::start(gateway2).await?;
            let plain = Proxy::start_beside(&server.endpoint, Some((gateway2, &thin))).await?;
            let client = connect(is_ours, &plain.endpoint, way).await?;
            for (operation, counted) in Operation::ALL.into_iter().zip(&mut counted) {
                // What is learned once per connection is not counted.
                client.call(operation, 0, 0).await?;
                let before = plain.carried() + thin.carried();
                for n in 0..COUNTED {
                    client.call(operation, 0, n).await?;
                }
                counted.push((plain.carried() + thin.carried() - before) as f64 / COUNTED as f64);
            }
        }
    }
    for (operation, counted) in Operation::ALL.into_iter().zip(&counted) {
        bytes.row(operation.name(), with_ratios(counted));
    }
    Ok(vec![rates, bytes])
}

/// Each pair of figures, and the second over the first.
fn with_ratios(figures: &[f64]) -> Vec<Cell> {
    let pairs = figures.chunks_exact(2);
    pairs.flat_map(|pair| [pair[0], pair[1], pair[1] / pair[0]].map(Cell::Figure)).collect()
}

async fn connect(is_ours: bool, endpoint: &str, is_gateway2: bool) -> anyhow::Result<Client> {
    let (protocol, regions) = (Protocol::Http2, [REGION]);
    Ok(if is_ours {
        Client::Ours(Arc::new(
            Ours::connect_by(endpoint, protocol, &regions, is_gateway2).await.context("ours")?,
        ))
    } else {
        let official =
            Official::connect_by(endpoint, protocol, &regions, is_gateway2).await.context("official")?;
        Client::Official(Arc::new(official))
    })
}
