//! A bare HTTP client that signs: the same for every server, so that only servers differ.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use bytes::{Buf, Bytes, BytesMut};
use cosmos_wire::signature::{Key, Signable};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
    Http1(Http1),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One open connection, or one stream's share of it.
pub struct Connection {
    sender: Sender,
    host: Arc<str>,
    signer: Arc<Signer>,
}

/// Signs each resource once: a signature is good for a quarter of an hour, and making them over and over would measure
/// the client.
struct Signer {
    key: Key,
    date: String,
    known: Mutex<HashMap<(&'static str, String), Arc<str>>>,
}

impl Signer {
    fn new() -> anyhow::Result<Self> {
        let key =
            Key::from_base64(cosmos_wire::EMULATOR_KEY).map_err(|_| anyhow::anyhow!("the emulator's key"))?;
        Ok(Self { key, date: cosmos_wire::date::format(SystemTime::now()), known: Mutex::default() })
    }

    fn authorization(&self, call: &Call) -> Arc<str> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let sign = || self.key.authorization(&Signable::new(call.method, call.kind, &call.link, &self.date));
        known.entry((call.method, call.link.clone())).or_insert_with(|| sign().into()).clone()
    }
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
        let host: Arc<str> = endpoint.trim_start_matches("http://").into();
        let signer = Arc::new(Signer::new()?);
        let mut out = Vec::with_capacity(count);
        let mut push = |sender| out.push(Self { sender, host: host.clone(), signer: signer.clone() });
        match protocol {
            Protocol::Http1 => {
                for _ in 0..count {
                    push(Sender::Http1(Http1::open(&host).await?));
                }
            }
            Protocol::Http2 => {
                for first in (0..count).step_by(STREAMS_PER_CONNECTION) {
                    let io = TokioIo::new(connect(&host).await?);
                    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    tokio::spawn(connection);
                    for _ in first..count.min(first + STREAMS_PER_CONNECTION) {
                        push(Sender::Http2(sender.clone()));
                    }
                }
            }
        }
        Ok(out)
    }

    /// Signs a request and writes it out.
    pub fn ready(&self, call: &Call) -> anyhow::Result<Ready> {
        let authorization = self.signer.authorization(call);
        let date = &self.signer.date;
        if let Sender::Http1(_) = self.sender {
            return Ok(Ready::Http1(http1_text(&self.host, call, date, &authorization)?));
        }
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("http://{}{}", self.host, call.path))
            .header("x-ms-date", date)
            .header("x-ms-version", "2020-07-15")
            .header("authorization", &*authorization);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        Ok(Ready::Http2(Box::new(request.body(Full::new(call.body.clone()))?)))
    }

    /// Sends and reads the answer.
    async fn send(&mut self, ready: &Ready) -> anyhow::Result<Answer> {
        match (&mut self.sender, ready) {
            (Sender::Http1(http1), Ready::Http1(text)) => http1.send(&self.host, text).await,
            (Sender::Http2(sender), Ready::Http2(request)) => {
                sender.ready().await?;
                let response = sender.send_request(Request::clone(request)).await?;
                let status = response.status().as_u16();
                Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
            }
            _ => bail!("a request of the other protocol"),
        }
    }

    /// Sends, and fails unless the status is one of those expected.
    pub async fn expect(&mut self, call: &Call, statuses: &[u16]) -> anyhow::Result<Bytes> {
        let ready = self.ready(call)?;
        let answer = self.send(&ready).await?;
        if !statuses.contains(&answer.status) {
            let text = String::from_utf8_lossy(&answer.body);
            bail!("{} {}: {} {text}", call.method, call.path, answer.status);
        }
        Ok(answer.body)
    }
}

/// A request as it goes over the wire, as often as wanted.
pub enum Ready {
    /// Its bytes.
    Http1(Vec<u8>),
    /// Its parts.
    Http2(Box<Request<Full<Bytes>>>),
}

fn http1_text(host: &str, call: &Call, date: &str, authorization: &str) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(HEAD_BYTES + call.body.len());
    write!(
        out,
        "{} {} HTTP/1.1\r\nhost: {host}\r\nx-ms-date: {date}\r\nx-ms-version: 2020-07-15\r\n\
         authorization: {authorization}\r\ncontent-length: {}\r\n",
        call.method,
        call.path,
        call.body.len()
    )?;
    for (name, value) in &call.headers {
        write!(out, "{name}: {value}\r\n")?;
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&call.body);
    Ok(out)
}

/// Room for the head of a request.
const HEAD_BYTES: usize = 512;

async fn connect(host: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A kept-alive connection without a client library: one write and, mostly, one read for each request, so that the
/// client takes as little of the machine as it can.
struct Http1 {
    stream: TcpStream,
    received: BytesMut,
}

impl Http1 {
    async fn open(host: &str) -> anyhow::Result<Self> {
        Ok(Self { stream: connect(host).await?, received: BytesMut::new() })
    }

    async fn send(&mut self, host: &str, text: &[u8]) -> anyhow::Result<Answer> {
        self.stream.write_all(text).await?;
        let (answer, keeps) = self.receive().await?;
        // Some servers close after each answer; a client then connects again.
        if !keeps {
            *self = Self::open(host).await?;
        }
        Ok(answer)
    }

    /// The answer, and whether the connection stays open.
    async fn receive(&mut self) -> anyhow::Result<(Answer, bool)> {
        let head = loop {
            if let Some(head) = Head::parse(&self.received)? {
                break head;
            }
            self.read().await?;
        };
        self.received.advance(head.length);
        let body = match head.body {
            Length::Bytes(length) => self.take(length).await?,
            Length::Chunks => self.chunks().await?,
        };
        Ok((Answer { status: head.status, body }, head.keeps))
    }

    async fn chunks(&mut self) -> anyhow::Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let line = loop {
                match self.received.windows(2).position(|pair| pair == b"\r\n") {
                    Some(end) => break self.received.split_to(end + 2),
                    None => self.read().await?,
                }
            };
            let length = usize::from_str_radix(std::str::from_utf8(&line)?.trim(), 16)?;
            let chunk = self.take(length + 2).await?;
            if length == 0 {
                return Ok(body.freeze());
            }
            body.extend_from_slice(&chunk[..length]);
        }
    }

    async fn take(&mut self, length: usize) -> anyhow::Result<Bytes> {
        while self.received.len() < length {
            self.read().await?;
        }
        Ok(self.received.split_to(length).freeze())
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        self.received.reserve(READ_BYTES);
        if self.stream.read_buf(&mut self.received).await? == 0 {
            bail!("the server closed the connection in the middle of an answer");
        }
        Ok(())
    }
}

const READ_BYTES: usize = 16 * 1024;

/// The head of an HTTP/1.1 answer.
struct Head {
    status: u16,
    length: usize,
    body: Length,
    keeps: bool,
}

enum Length {
    Bytes(usize),
    Chunks,
}

impl Head {
    /// Reads what a client must know and skips the rest: two dozen headers would be most of its work.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let status = bytes.get(9..12).context("a status line")?;
        let mut head = Self { status: number(status)?, length: end + 4, body: Length::Bytes(0), keeps: true };
        for at in memchr::memchr_iter(b'\n', &bytes[..end]) {
            let line = &bytes[at + 1..end];
            let is =
                |name: &[u8]| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
            let value = |name: &[u8]| {
                let value = &line[name.len()..];
                let value = &value[..memchr::memchr(b'\r', value).unwrap_or(value.len())];
                std::str::from_utf8(value).map(str::trim)
            };
            if is(LENGTH) {
                head.body = Length::Bytes(value(LENGTH)?.parse()?);
            } else if is(ENCODING) && value(ENCODING)?.eq_ignore_ascii_case("chunked") {
                head.body = Length::Chunks;
            } else if is(CONNECTION) && value(CONNECTION)?.eq_ignore_ascii_case("close") {
                head.keeps = false;
            }
        }
        Ok(Some(head))
    }
}

const LENGTH: &[u8] = b"content-length:";
const ENCODING: &[u8] = b"transfer-encoding:";
const CONNECTION: &[u8] = b"connection:";

fn number(text: &[u8]) -> anyhow::Result<u16> {
    Ok(std::str::from_utf8(text)?.parse()?)
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
/// With a `cycle`, the first so many calls are made and signed before the clock starts, and sent over and over.
pub async fn run(
    connections: &mut Vec<Connection>,
    span: Duration,
    statuses: &'static [u16],
    cycle: u64,
    make: impl Fn(u64) -> Call + Send + Sync + 'static,
) -> anyhow::Result<Measured> {
    let made = (0..cycle).map(|n| connections[0].ready(&make(n))).collect::<anyhow::Result<Vec<_>>>()?;
    let (make, made) = (Arc::new(make), Arc::new(made));
    let counter = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let until = started + span;
    let workers: Vec<_> = std::mem::take(connections)
        .into_iter()
        .map(|mut connection| {
            let (make, made, counter) = (make.clone(), made.clone(), counter.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let sent = Instant::now();
                    if sent >= until {
                        return anyhow::Ok((connection, times));
                    }
                    let n = counter.fetch_add(1, Ordering::Relaxed);
                    let fresh;
                    let ready = match n.checked_rem(cycle) {
                        Some(turn) => &made[turn as usize],
                        None => {
                            fresh = connection.ready(&make(n))?;
                            &fresh
                        }
                    };
                    let answer = connection.send(ready).await?;
                    if !statuses.contains(&answer.status) {
                        let text = String::from_utf8_lossy(&answer.body);
                        bail!("call {n} was answered with {}: {text}", answer.status);
                    }
                    times.push(sent.elapsed());
                }
            })
        })
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        let (connection, part) = worker.await??;
        connections.push(connection);
        times.extend(part);
    }
    let elapsed = started.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Ok(Measured { rate: times.len() as f64 / elapsed, p50: at(0.5), p99: at(0.99) })
}
