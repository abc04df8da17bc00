//! HTTP/2 by hyper, a task for each stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{Call, Calls, Expected, Measured, Signer};

/// Streams we put on one connection; the service allows 20.
const STREAMS_PER_CONNECTION: usize = 16;

/// One stream's share of a connection.
#[derive(Clone)]
pub(super) struct Stream {
    sender: SendRequest<Full<Bytes>>,
}

/// Opens as many connections as so many streams need.
pub(super) async fn open(host: &str, count: usize) -> anyhow::Result<Vec<Stream>> {
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let streams = STREAMS_PER_CONNECTION.min(count - out.len());
        out.extend(std::iter::repeat_n(Stream { sender }, streams));
    }
    Ok(out)
}

/// A request as it is sent, as often as wanted.
type Ready = Request<Full<Bytes>>;

pub(super) fn ready(signer: &Signer, call: &Call) -> anyhow::Result<Ready> {
    signed(&Opening::new(signer, call), call)
}

/// What was signed.
struct Opening {
    uri: String,
    date: String,
    authorization: String,
}

impl Opening {
    fn new(signer: &Signer, call: &Call) -> Self {
        Self {
            uri: format!("http://{}{}", signer.host, call.path),
            date: signer.date.clone(),
            authorization: signer.authorization(call),
        }
    }
}

fn signed(opening: &Opening, call: &Call) -> anyhow::Result<Ready> {
    let mut request = Request::builder()
        .method(call.method)
        .uri(&opening.uri)
        .header("x-ms-date", &opening.date)
        .header("x-ms-version", "2020-07-15")
        .header("authorization", &opening.authorization);
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    Ok(request.body(Full::new(Bytes::copy_from_slice(&call.body)))?)
}

impl Stream {
    /// Sends one request and reads the whole answer.
    pub(super) async fn ask(&mut self, request: &Ready, expected: Expected<'_>) -> anyhow::Result<()> {
        self.sender.ready().await?;
        let response = self.sender.send_request(Request::clone(request)).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        expected.check(status, &body)
    }
}

/// What all streams of a measurement share.
enum Work {
    Cycle(Vec<Ready>),
    Fresh(Opening, Call, Arc<super::Change>),
}

/// Sends calls on all streams for a while.
pub(super) async fn measure(
    streams: &[Stream],
    signer: &Signer,
    span: Duration,
    expected: Expected<'static>,
    calls: Calls,
) -> anyhow::Result<Measured> {
    let work = Arc::new(match calls {
        Calls::Cycle(calls) => {
            Work::Cycle(calls.iter().map(|call| ready(signer, call)).collect::<anyhow::Result<_>>()?)
        }
        Calls::Fresh(call, change) => Work::Fresh(Opening::new(signer, &call), call, change),
    });
    let counter = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let workers: Vec<_> = streams
        .iter()
        .map(|stream| {
            tokio::spawn(keep_asking(stream.clone(), work.clone(), counter.clone(), started + span, expected))
        })
        .collect();
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.await??);
    }
    Measured::new(times, started.elapsed())
}

async fn keep_asking(
    mut stream: Stream,
    work: Arc<Work>,
    counter: Arc<AtomicU64>,
    until: Instant,
    expected: Expected<'static>,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        let sent = Instant::now();
        if sent >= until {
            return Ok(times);
        }
        let n = counter.fetch_add(1, Ordering::Relaxed);
        let fresh;
        let request = match &*work {
            Work::Cycle(requests) => &requests[n as usize % requests.len()],
            Work::Fresh(opening, call, change) => {
                let mut call = call.clone();
                change(n, &mut call);
                fresh = signed(opening, &call)?;
                &fresh
            }
        };
        stream.ask(request, expected).await.with_context(|| format!("call {n}"))?;
        times.push(sent.elapsed());
    }
}
