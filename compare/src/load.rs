//! A bare HTTP client that signs: the same for every server, so that only servers differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use bytes::Bytes;
use cosmos_wire::signature::{Key, Signable};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// How a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on a kept-alive connection.
    Http1,
    /// Many streams on one connection, by prior knowledge.
    Http2,
}

/// Streams we put on one HTTP/2 connection; the service allows 20.
const STREAMS_PER_CONNECTION: usize = 16;

/// One request, not yet signed.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// HTTP method.
    pub method: &'static str,
    /// Path, percent-encoded.
    pub path: String,
    /// Resource type that is signed.
    pub kind: &'static str,
    /// Resource link that is signed.
    pub link: String,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Bytes,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One open connection, or one stream's share of it.
pub struct Connection {
    sender: Sender,
    host: String,
    key: Arc<Key>,
}

/// What came back.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body.
    pub body: Bytes,
}

impl Connection {
    /// As many handles as requests shall be in flight.
    pub async fn open_many(endpoint: &str, protocol: Protocol, count: usize) -> anyhow::Result<Vec<Self>> {
        let host = endpoint.trim_start_matches("http://").to_owned();
        let key = Arc::new(
            Key::from_base64(cosmos_wire::EMULATOR_KEY).map_err(|_| anyhow::anyhow!("the emulator's key"))?,
        );
        let mut out = Vec::with_capacity(count);
        while out.len() < count {
            let io = connect(&host).await?;
            match protocol {
                Protocol::Http1 => {
                    let sender = handshake(io).await?;
                    out.push(Self { sender: Sender::Http1(sender), host: host.clone(), key: key.clone() });
                }
                Protocol::Http2 => {
                    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    tokio::spawn(connection);
                    for _ in 0..STREAMS_PER_CONNECTION.min(count - out.len()) {
                        let sender = Sender::Http2(sender.clone());
                        out.push(Self { sender, host: host.clone(), key: key.clone() });
                    }
                }
            }
        }
        Ok(out)
    }

    /// Signs, sends, and reads the answer.
    pub async fn send(&mut self, call: &Call) -> anyhow::Result<Answer> {
        let date = cosmos_wire::date::format(SystemTime::now());
        let authorization = self.key.authorization(&Signable::new(call.method, call.kind, &call.link, &date));
        let uri = match self.sender {
            Sender::Http1(_) => call.path.clone(),
            Sender::Http2(_) => format!("http://{}{}", self.host, call.path),
        };
        let mut request = Request::builder()
            .method(call.method)
            .uri(uri)
            .header("host", &self.host)
            .header("x-ms-date", &date)
            .header("x-ms-version", "2020-07-15")
            .header("authorization", authorization);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(call.body.clone()))?;
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                // Some servers close after each answer; a client then connects again.
                if sender.ready().await.is_err() {
                    *sender = handshake(connect(&self.host).await?).await?;
                }
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let status = response.status().as_u16();
        Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
    }

    /// Sends, and fails unless the status is one of those expected.
    pub async fn expect(&mut self, call: &Call, statuses: &[u16]) -> anyhow::Result<Bytes> {
        let answer = self.send(call).await?;
        if !statuses.contains(&answer.status) {
            bail!(
                "{} {}: {} {}",
                call.method,
                call.path,
                answer.status,
                String::from_utf8_lossy(&answer.body)
            );
        }
        Ok(answer.body)
    }
}

async fn connect(host: &str) -> anyhow::Result<TokioIo<TcpStream>> {
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(stream))
}

async fn handshake(io: TokioIo<TcpStream>) -> anyhow::Result<http1::SendRequest<Full<Bytes>>> {
    let (sender, connection) = http1::handshake(io).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// What one cell measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Operations per second.
    pub rate: f64,
    /// Half of the operations were at least this quick.
    pub p50: Duration,
    /// 99 of 100 were.
    pub p99: Duration,
}

/// Runs calls on all connections for a while. `make(n)` gives the n-th call; every answer must have a good status.
pub async fn run(
    connections: &mut [Connection],
    span: Duration,
    statuses: &'static [u16],
    make: impl Fn(u64) -> Call + Send + Sync + 'static,
) -> anyhow::Result<Measured> {
    let make = Arc::new(make);
    let counter = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let until = started + span;
    let workers: Vec<_> = connections
        .iter_mut()
        .map(|connection| {
            let (make, counter) = (make.clone(), counter.clone());
            async move {
                let mut times = Vec::new();
                while Instant::now() < until {
                    let call = make(counter.fetch_add(1, Ordering::Relaxed));
                    let sent = Instant::now();
                    connection.expect(&call, statuses).await?;
                    times.push(sent.elapsed());
                }
                anyhow::Ok(times)
            }
        })
        .collect();
    let mut times = Vec::new();
    for worker in futures::future::join_all(workers).await {
        times.extend(worker?);
    }
    let elapsed = started.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(Measured { rate: times.len() as f64 / elapsed, p50: at(0.5), p99: at(0.99) })
}
