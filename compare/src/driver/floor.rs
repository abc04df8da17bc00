//! The floor: hyper's connections and the headers of a request, nothing else.

use std::time::SystemTime;

use anyhow::{Context, bail};
use bytes::Bytes;
use cosmos_wire::signature::{Key, Signable};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::client::{self, Item, Operation, Protocol, QUERY, Row};

/// Requests on one HTTP/2 connection, as the others have it.
const STREAMS: usize = 16;
/// Most concurrent callers.
const CALLERS: usize = 256;

/// Bare hyper: each caller has a connection, or a share of one.
pub struct Floor {
    senders: Vec<Mutex<Sender>>,
    host: String,
    key: Key,
    rid: String,
    is_http2: bool,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// What differs between the operations.
struct Shape {
    method: &'static str,
    path: String,
    link: String,
    headers: &'static [(&'static str, &'static str)],
    body: Vec<u8>,
}

impl Floor {
    /// Opens all connections.
    pub async fn connect(endpoint: &str, protocol: Protocol) -> anyhow::Result<Self> {
        let host = endpoint.trim_start_matches("http://").to_owned();
        let mut senders = Vec::with_capacity(CALLERS);
        while senders.len() < CALLERS {
            let stream = TcpStream::connect(&host).await?;
            stream.set_nodelay(true)?;
            let io = TokioIo::new(stream);
            match protocol {
                Protocol::Http1 => {
                    let (sender, connection) = http1::handshake(io).await?;
                    tokio::spawn(connection);
                    senders.push(Mutex::new(Sender::Http1(sender)));
                }
                Protocol::Http2 => {
                    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    tokio::spawn(connection);
                    senders.extend((0..STREAMS).map(|_| Mutex::new(Sender::Http2(sender.clone()))));
                }
            }
        }
        let key =
            Key::from_base64(cosmos_wire::EMULATOR_KEY).map_err(|_| anyhow::anyhow!("the emulator's key"))?;
        let mut floor =
            Self { senders, host, key, rid: String::new(), is_http2: protocol == Protocol::Http2 };
        let link = "dbs/bench/colls/items".to_owned();
        let shape = Shape { method: "GET", path: format!("/{link}"), link, headers: &[], body: Vec::new() };
        let container: serde_json::Value = serde_json::from_slice(&floor.send(0, "colls", shape, "").await?)?;
        container["_rid"].as_str().context("the container has no rid")?.clone_into(&mut floor.rid);
        Ok(floor)
    }

    /// One operation; says how many answers there were.
    pub async fn call(&self, operation: Operation, worker: usize, n: u64) -> anyhow::Result<u64> {
        let body = self.send(worker, "docs", shape(operation, n)?, &client::key(n)).await?;
        match operation {
            Operation::Read => Ok(u64::from(!body.is_empty())),
            Operation::Upsert => Ok(1),
            Operation::Batch => Ok(serde_json::from_slice::<Vec<Done>>(&body)?
                .iter()
                .filter(|done| done.status_code < 300)
                .count() as u64),
            Operation::Sorted | Operation::Changes => bail!("{NO_RANGES}"),
            Operation::Query => {
                let feed: Feed = serde_json::from_slice(&body)?;
                let is_whole = |row: &&Row| !row.id.is_empty() && row.number < u64::MAX;
                Ok(feed.documents.iter().filter(is_whole).count() as u64)
            }
        }
    }

    async fn send(
        &self,
        worker: usize,
        kind: &'static str,
        shape: Shape,
        key: &str,
    ) -> anyhow::Result<Bytes> {
        let date = cosmos_wire::date::format(SystemTime::now());
        let authorization = self.key.authorization(&Signable::new(shape.method, kind, &shape.link, &date));
        let uri = if self.is_http2 { format!("http://{}{}", self.host, shape.path) } else { shape.path };
        let mut request = Request::builder()
            .method(shape.method)
            .uri(uri)
            .header("user-agent", "floor/0.2.0")
            .header("accept", "application/json")
            .header("cache-control", "no-cache")
            .header("x-ms-version", cosmos_wire::API_VERSION)
            .header("x-ms-activity-id", uuid::Uuid::new_v4().to_string())
            .header("x-ms-cosmos-intended-collection-rid", &self.rid)
            .header("x-ms-date", date)
            .header("authorization", authorization);
        if !self.is_http2 {
            request = request.header("host", &self.host);
        }
        if !key.is_empty() {
            request = request.header("x-ms-documentdb-partitionkey", format!("[\"{key}\"]"));
        }
        for (name, value) in shape.headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(shape.body)))?;
        let response = match &mut *self.senders[worker].lock().await {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}

#[derive(Deserialize)]
struct Feed {
    #[serde(rename = "Documents")]
    documents: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    status_code: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Upsert {
    operation_type: &'static str,
    resource_body: Item,
}

/// Why some operations are for drivers only.
const NO_RANGES: &str = "an HTTP client knows nothing of ranges";

fn shape(operation: Operation, n: u64) -> anyhow::Result<Shape> {
    let link = "dbs/bench/colls/items";
    let docs = |headers, body| Shape {
        method: "POST",
        path: format!("/{link}/docs"),
        link: link.to_owned(),
        headers,
        body,
    };
    Ok(match operation {
        Operation::Read => {
            let link = format!("{link}/docs/{}", client::id(n));
            // A read of a session carries its token.
            let headers = &[("x-ms-session-token", "0:-1#1")];
            Shape { method: "GET", path: format!("/{link}"), link, headers, body: Vec::new() }
        }
        Operation::Upsert => docs(
            &[
                ("content-type", "application/json"),
                ("x-ms-documentdb-is-upsert", "True"),
                ("prefer", "return=minimal"),
            ],
            serde_json::to_vec(&Item::new(n))?,
        ),
        Operation::Batch => docs(
            &[
                ("content-type", "application/json"),
                ("x-ms-cosmos-is-batch-request", "True"),
                ("x-ms-cosmos-batch-atomic", "True"),
                ("x-ms-cosmos-batch-continue-on-error", "False"),
                ("prefer", "return=minimal"),
            ],
            serde_json::to_vec(
                &client::batch(n)
                    .map(|item| Upsert { operation_type: "Upsert", resource_body: item })
                    .collect::<Vec<_>>(),
            )?,
        ),
        Operation::Sorted | Operation::Changes => bail!("{NO_RANGES}"),
        Operation::Query => docs(
            &[
                ("content-type", "application/query+json"),
                ("x-ms-documentdb-isquery", "True"),
                ("x-ms-documentdb-query-enablecrosspartition", "True"),
                ("x-ms-session-token", "0:-1#1"),
            ],
            serde_json::to_vec(
                &json!({ "query": QUERY, "parameters": [{ "name": "@status", "value": "open" }] }),
            )?,
        ),
    })
}
