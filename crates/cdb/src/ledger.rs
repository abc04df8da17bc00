//! The ledger of a running emulator, over its management port.

use std::io;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sums of one operation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Line {
    pub(crate) operation: String,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Those among them that say what is stored: nobody is there, or somebody was before.
    pub(crate) refused: u64,
    pub(crate) request_units: f64,
}

impl Line {
    /// Failures that somebody should look at.
    pub(crate) fn troubles(&self) -> u64 {
        self.failures.saturating_sub(self.refused)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Snapshot {
    lines: Vec<Line>,
}

/// Reads the ledger at `http://HOST:PORT/`.
pub(crate) async fn fetch(management: &str) -> io::Result<Vec<Line>> {
    let address = management
        .strip_prefix("http://")
        .map(|rest| rest.trim_end_matches('/'))
        .ok_or_else(|| io::Error::other("the management endpoint must begin with http://"))?;
    let answer = tokio::time::timeout(TIMEOUT, get(address))
        .await
        .map_err(|_| io::Error::other("it does not answer"))??;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    if !answer.starts_with("HTTP/1.1 200") {
        return Err(io::Error::other("it is not the management port of an emulator"));
    }
    let snapshot: Snapshot = serde_json::from_str(body)?;
    Ok(sum(snapshot.lines))
}

/// Sums over containers.
pub(crate) fn sum(lines: Vec<Line>) -> Vec<Line> {
    let mut sums: Vec<Line> = Vec::new();
    for line in lines {
        match sums.iter_mut().find(|sum| sum.operation == line.operation) {
            Some(sum) => {
                sum.requests += line.requests;
                sum.failures += line.failures;
                sum.refused += line.refused;
                sum.request_units += line.request_units;
            }
            None => sums.push(line),
        }
    }
    sums
}

async fn get(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // The port is asked by whatever name its machine has here, and answers no names but this one: pages have names.
    stream.write_all(b"GET /ledger HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

const TIMEOUT: Duration = Duration::from_secs(3);
