//! A reader of the change feed: goes on where it was, follows splits and merges, and notices what it missed.

use std::collections::BTreeMap;

use cosmos_wire::epk::EpkRange;
use serde_json::Value;

use super::http::{Connection, Request, Silence};
use super::routing::Routing;

/// A part of the hash space and how far it was read.
#[derive(Debug, Clone)]
struct Part {
    bounds: EpkRange,
    etag: Option<String>,
}

/// One reader, in one region.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) region: String,
    parts: Vec<Part>,
    /// The version of each item that was read last: key and id.
    pub(super) seen: BTreeMap<(String, String), u64>,
}

/// What a poll came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// Everything there was has been read.
    Drained,
    /// The region does not answer now.
    Later,
}

/// Pages of one poll; more would be a feed that never ends.
const PAGES_MAX: usize = 10_000;

impl Feed {
    pub(super) fn new(region: &str) -> Self {
        let parts = vec![Part { bounds: EpkRange::full(), etag: None }];
        Self { region: region.to_owned(), parts, seen: BTreeMap::new() }
    }

    /// Reads on, and hands each change to `note`: key, id, version.
    pub(super) fn poll(
        &mut self,
        connection: &mut Connection,
        routing: &Routing,
        path: &str,
        mut note: impl FnMut(&mut Self, &str, &str, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<Polled> {
        self.divide(routing);
        for index in 0..self.parts.len() {
            for page in 0.. {
                anyhow::ensure!(page < PAGES_MAX, "the change feed never ends");
                let answer = match connection.send(&self.request(index, routing, path)) {
                    Ok(answer) => answer,
                    Err(Silence::Refused | Silence::Broken) => return Ok(Polled::Later),
                };
                match answer.status {
                    200 => {}
                    304 => {
                        self.remember(index, answer.header("etag"));
                        break;
                    }
                    410 | 503 => return Ok(Polled::Later),
                    _ => anyhow::bail!("the change feed answers {}", answer.brief()),
                }
                let body = answer.json();
                let documents = body["Documents"].as_array().cloned().unwrap_or_default();
                let mut last = 0;
                for document in &documents {
                    let lsn = document["_lsn"].as_u64().unwrap_or(0);
                    anyhow::ensure!(lsn >= last, "the change feed goes back from LSN {last} to {lsn}");
                    last = lsn;
                    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
                    let version = document["v"].as_u64().unwrap_or(0);
                    note(self, &text("pk"), &text("id"), version)?;
                }
                self.remember(index, answer.header("etag"));
            }
        }
        Ok(Polled::Drained)
    }

    fn remember(&mut self, index: usize, etag: &str) {
        if !etag.is_empty() {
            self.parts[index].etag = Some(etag.to_owned());
        }
    }

    /// Cuts parts where partitions were split. Parts of merged partitions stay apart: each has read as far as it has.
    fn divide(&mut self, routing: &Routing) {
        let divided = self.parts.iter().flat_map(|part| {
            let pieces = routing.ranges.iter().filter_map(|range| range.bounds.intersection(&part.bounds));
            pieces.map(|bounds| Part { bounds, etag: part.etag.clone() }).collect::<Vec<_>>()
        });
        self.parts = divided.collect();
    }

    fn request(&self, index: usize, routing: &Routing, path: &str) -> Request {
        let part = &self.parts[index];
        let owner = routing.ranges.iter().find(|range| range.bounds.contains(&part.bounds.min));
        let mut request = Request::new("GET", path)
            .header("a-im", "Incremental Feed")
            .header("x-ms-max-item-count", "7")
            .header("x-ms-documentdb-partitionkeyrangeid", owner.map_or("0", |range| range.id.as_str()));
        if owner.is_none_or(|range| range.bounds != part.bounds) {
            request = request
                .header("x-ms-read-key-type", "EffectivePartitionKeyRange")
                .header("x-ms-start-epk", part.bounds.min.to_string())
                .header("x-ms-end-epk", part.bounds.max.to_string());
        }
        match &part.etag {
            Some(etag) => request.header("if-none-match", etag.clone()),
            None => request,
        }
    }
}

/// The rows of a page of a query.
pub(super) fn rows(body: &Value) -> Vec<Value> {
    body["Documents"].as_array().cloned().unwrap_or_default()
}
