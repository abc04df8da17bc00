//! What every contender is asked to do.

use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::floor::Floor;
use super::official::Official;
use super::ours::Ours;
use crate::load::{self, Call};

/// How connections speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on each connection.
    Http1,
    /// At most 20 requests at a time on each connection, by prior knowledge.
    Http2,
}

impl Protocol {
    /// For titles.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2, 20 streams per connection",
        }
    }
}

/// The operations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// One item of 0.8 KB, as bytes.
    Read,
    /// One item of 0.8 KB, over one that exists.
    Upsert,
    /// Twenty upserts in one transaction.
    Batch,
    /// Ten of the twenty items of a logical partition.
    Query,
    /// All items in the order of their numbers, over all ranges.
    Sorted,
    /// All items in the order they changed, over all ranges.
    Changes,
}

impl Operation {
    /// In the order of the tables.
    pub const ALL: [Self; 4] = [Self::Read, Self::Upsert, Self::Batch, Self::Query];
    /// Those that ask many ranges, which takes more than an HTTP client.
    pub const WIDE: [Self; 2] = [Self::Sorted, Self::Changes];

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "point read",
            Self::Upsert => "upsert",
            Self::Batch => "batch of 20",
            Self::Query => "query in a partition",
            Self::Sorted => "ORDER BY over 16 ranges",
            Self::Changes => "change feed over 16 ranges",
        }
    }
}

/// Logical partitions that the items spread over.
pub const KEYS: u64 = 50;
/// Items in each.
pub const ITEMS: u64 = 20;
/// HTTP/2 connections a client may open to an endpoint: enough for 256 requests at 16 each.
pub const CONNECTIONS_MAX: usize = 16;
/// The account's region.
pub const REGION: &str = "East US";
/// The second one, where there are two.
pub const OTHER_REGION: &str = "West US";
/// The query of [`Operation::Query`].
pub const QUERY: &str = "SELECT * FROM c WHERE c.status = @status";
/// The query of [`Operation::Sorted`].
pub const SORTED: &str = "SELECT c.id, c.number FROM c ORDER BY c.number";

/// An item of about 0.8 KB.
#[derive(Debug, Serialize)]
pub struct Item {
    /// Its id.
    pub id: String,
    /// Its partition key.
    pub pk: String,
    number: u64,
    status: &'static str,
    tags: [&'static str; 2],
    text: &'static str,
}

/// What a query's rows are read into.
#[derive(Debug, Deserialize)]
pub struct Row {
    /// The item's id.
    pub id: String,
    /// The item's number.
    pub number: u64,
}

impl Item {
    /// The n-th item; after `KEYS * ITEMS` they repeat.
    pub fn new(n: u64) -> Self {
        Self {
            id: id(n),
            pk: key(n),
            number: n % (KEYS * ITEMS),
            status: if (n / KEYS).is_multiple_of(2) { "open" } else { "closed" },
            tags: ["alpha", "beta"],
            text: TEXT,
        }
    }
}

/// The n-th item's id.
pub fn id(n: u64) -> String {
    format!("item-{}", n % (KEYS * ITEMS))
}

/// The n-th item's partition key.
pub fn key(n: u64) -> String {
    format!("key-{}", n % KEYS)
}

/// How many rows there are, if they come in the order of their numbers; none otherwise.
pub fn in_order(rows: &[Row]) -> u64 {
    if rows.is_sorted_by_key(|row| row.number) { rows.len() as u64 } else { 0 }
}

/// The items of a batch: all of one logical partition.
pub fn batch(n: u64) -> impl Iterator<Item = Item> {
    (0..ITEMS).map(move |i| Item::new(n % KEYS + i * KEYS))
}

/// A contender.
#[derive(Clone)]
pub enum Client {
    /// Bare hyper.
    Floor(Arc<Floor>),
    /// `azure_data_cosmos`.
    Official(Arc<Official>),
    /// `cosmos-driver`.
    Ours(Arc<Ours>),
}

impl Client {
    /// All contenders, connected to one endpoint.
    pub async fn all(endpoint: &str, protocol: Protocol) -> anyhow::Result<Vec<Self>> {
        Ok(vec![
            Self::Floor(Arc::new(Floor::connect(endpoint, protocol).await.context("floor")?)),
            Self::Official(Arc::new(
                Official::connect(endpoint, protocol, &[REGION]).await.context("official")?,
            )),
            Self::Ours(Arc::new(Ours::connect(endpoint, protocol, &[REGION]).await.context("ours")?)),
        ])
    }

    /// For tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Floor(_) => "floor (bare hyper)",
            Self::Official(_) => "azure_data_cosmos",
            Self::Ours(_) => "ours",
        }
    }

    /// Does the n-th operation; `worker` tells concurrent callers apart.
    pub async fn call(&self, operation: Operation, worker: usize, n: u64) -> anyhow::Result<()> {
        let rows = match self {
            Self::Floor(client) => client.call(operation, worker, n).await,
            Self::Official(client) => client.call(operation, n).await,
            Self::Ours(client) => client.call(operation, n).await,
        };
        let rows = rows.with_context(|| format!("{} {}", self.name(), operation.name()))?;
        let expected = match operation {
            Operation::Read | Operation::Upsert => 1,
            Operation::Batch => ITEMS,
            Operation::Query => ITEMS / 2,
            Operation::Sorted | Operation::Changes => KEYS * ITEMS,
        };
        ensure!(rows == expected, "{}: {} gave {rows} answers", self.name(), operation.name());
        Ok(())
    }
}

/// Makes the container and its items.
pub async fn prepare(endpoint: &str) -> anyhow::Result<()> {
    let mut client = load::Client::open(endpoint, load::Protocol::Http1, 1).await?;
    let create = |path: &str, kind, link: &str, body: serde_json::Value| Call {
        method: "POST",
        path: path.to_owned(),
        kind,
        link: link.to_owned(),
        body: body.to_string().into(),
        ..Call::default()
    };
    client.expect(&create("/dbs", "dbs", "", json!({ "id": "bench" })), &[201]).await?;
    let container =
        json!({ "id": "items", "partitionKey": { "paths": ["/pk"], "kind": "Hash", "version": 2 } });
    client.expect(&create("/dbs/bench/colls", "colls", "dbs/bench", container), &[201]).await?;
    for n in 0..KEYS * ITEMS {
        let item = serde_json::to_value(Item::new(n))?;
        let mut call = create("/dbs/bench/colls/items/docs", "docs", "dbs/bench/colls/items", item);
        call.headers = vec![("x-ms-documentdb-partitionkey", format!("[\"{}\"]", key(n)))];
        client.expect(&call, &[201]).await?;
    }
    Ok(())
}

const TEXT: &str = match std::str::from_utf8(&[b'x'; 600]) {
    Ok(text) => text,
    Err(_) => unreachable!(),
};
