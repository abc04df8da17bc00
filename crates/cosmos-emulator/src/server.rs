//! Sockets: HTTP/1.1 and HTTP/2 on one port, by ALPN under TLS and by prior knowledge without.
//!
//! [`run`] accepts until told to stop, then lets requests in flight finish, for a bounded time. A handler that answers
//! [`Reset`] makes its connection close (HTTP/1.1) or its stream reset (HTTP/2) without an answer. Connections listen
//! to their [`Gate`], which can tell all of them to leave.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::lanes::Lanes;

/// Streams one HTTP/2 connection may have open, as the service advertises.
const STREAMS_MAX: u32 = 20;
/// Read buffer of a connection, and so the longest request head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How much of an oversized body is read and thrown away so that the client gets to read the refusal.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long to wait before accepting again when the process has run out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a socket may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; further ones wait to be accepted.
    pub connections_max: usize,
    /// Bytes of a request body that are kept; more is answered with 413.
    pub body_bytes_max: usize,
    /// How long a client may take to send a request head, and so how long an idle connection lives.
    pub head_timeout: Duration,
    /// How long a client may take to send the next part of a body; then 408.
    pub body_timeout: Duration,
    /// How long requests in flight may take to finish once the server stops.
    pub stop_timeout: Duration,
    /// How old a connection may become before it is told to leave (GOAWAY, `connection: close`); none lets it live.
    pub connection_age_max: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            // The largest item is 2 MiB; the slack lets the engine say what is wrong with a body just above it.
            body_bytes_max: 2 * 1024 * 1024 + 512 * 1024,
            head_timeout: Duration::from_secs(120),
            body_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(5),
            connection_age_max: None,
        }
    }
}

/// The connection ends here, without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset;

impl std::fmt::Display for Reset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was reset without an answer")
    }
}

impl std::error::Error for Reset {}

/// Why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// More than the limit.
    TooLarge,
    /// The client stopped sending.
    TooSlow,
    /// The client went away in the middle.
    Truncated,
}

/// A request whose body was read, or could not be.
pub(crate) type Received = Request<Result<Bytes, BodyError>>;

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Received) -> impl Future<Output = Result<Response<Bytes>, Reset>> + Send;
}

/// Counters of one listener.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) connections_open: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) goaways_total: AtomicU64,
}

/// What the connections of one listener are told while they live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Orders {
    /// Grows with each command to leave.
    goaways: u64,
    /// Grows with each command to drop everything.
    cuts: u64,
    /// How old a connection may become before it is told to leave.
    age_max: Option<Duration>,
    is_stopping: bool,
}

/// What all connections of one listener share: limits, TLS, counters, and a way to speak to them.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    tls: Option<Arc<rustls::ServerConfig>>,
    lanes: Arc<Lanes>,
    pub(crate) traffic: Arc<Traffic>,
    orders: watch::Sender<Orders>,
}

impl Gate {
    pub(crate) fn new(limits: Limits, tls: Option<Arc<rustls::ServerConfig>>, lanes: Arc<Lanes>) -> Self {
        let orders = Orders { goaways: 0, cuts: 0, age_max: limits.connection_age_max, is_stopping: false };
        Self { limits, tls, lanes, traffic: Arc::default(), orders: watch::Sender::new(orders) }
    }

    /// Tells every open connection to leave: GOAWAY on HTTP/2, `connection: close` on HTTP/1.1. Requests in flight
    /// are answered. Says how many were told.
    pub(crate) fn goaway(&self) -> u64 {
        let open = self.traffic.connections_open.load(Ordering::Relaxed);
        self.traffic.goaways_total.fetch_add(open, Ordering::Relaxed);
        self.orders.send_modify(|orders| orders.goaways += 1);
        open
    }

    /// Drops every open connection in mid-request.
    pub(crate) fn cut(&self) {
        self.orders.send_modify(|orders| orders.cuts += 1);
    }

    /// How old connections may become, those that are open included.
    pub(crate) fn limit_age(&self, age_max: Option<Duration>) {
        self.orders.send_modify(|orders| orders.age_max = age_max);
    }

    /// How old connections may become.
    pub(crate) fn age_max(&self) -> Option<Duration> {
        self.orders.borrow().age_max
    }
}

/// Marks requests that came through TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Secure;

/// Serves connections until `shutdown` is ready.
pub(crate) async fn run<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    gate: Arc<Gate>,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(gate.limits.connections_max));
    // A listener that opens again after a stop welcomes connections again.
    gate.orders.send_modify(|orders| orders.is_stopping = false);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = async {
                // The semaphore is never closed, so a place is only ever waited for.
                let place = places.clone().acquire_owned().await.ok();
                (listener.accept().await, place)
            } => accepted,
        };
        match accepted {
            (Ok((stream, _)), place) => {
                // Nagle's algorithm only delays small answers; a socket that refuses the option still works.
                let _ = stream.set_nodelay(true);
                let (open, orders) = (Open::new(gate.traffic.clone()), Heard::by(&gate));
                let (handler, gate, lanes) = (handler.clone(), gate.clone(), gate.lanes.clone());
                lanes.serve(stream, move |stream| async move {
                    welcome(stream, handler, gate, orders).await;
                    drop((open, place));
                });
            }
            (Err(error), _) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    gate.orders.send_modify(|orders| orders.is_stopping = true);
    // Each connection holds a receiver, so the channel closes with the last one.
    if tokio::time::timeout(gate.limits.stop_timeout, gate.orders.closed()).await.is_err() {
        tracing::warn!("requests were still running when the time to stop was over");
    }
}

/// The orders of a gate as one connection hears them, from the moment it was accepted: what is ordered before anybody
/// serves it is for it, too.
struct Heard {
    first: Orders,
    orders: watch::Receiver<Orders>,
}

impl Heard {
    fn by(gate: &Gate) -> Self {
        let mut orders = gate.orders.subscribe();
        let first = *orders.borrow_and_update();
        Self { first, orders }
    }
}

/// Serves one connection, through TLS where the gate has a certificate.
async fn welcome<H: Handler>(stream: TcpStream, handler: Arc<H>, gate: Arc<Gate>, orders: Heard) {
    let Some(tls) = gate.tls.clone() else {
        return connection(stream, handler, &gate, orders, None).await;
    };
    let handshake = tokio_rustls::TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(gate.limits.head_timeout, handshake).await {
        Ok(Ok(stream)) => connection(stream, handler, &gate, orders, Some(Secure)).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client does not agree on TLS"),
        Err(_) => tracing::debug!("a client did not finish the TLS handshake"),
    }
}

/// Serves one connection until it ends or is told to leave. Whatever brings bytes will do.
async fn connection<H: Handler>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<H>,
    gate: &Arc<Gate>,
    Heard { first, mut orders }: Heard,
    secure: Option<Secure>,
) {
    let opened = Instant::now();
    let limits = Arc::new(gate.limits.clone());
    let spoken = Arc::new(AtomicBool::new(false));
    let service = {
        let (limits, spoken) = (limits.clone(), spoken.clone());
        service_fn(move |request: Request<Incoming>| {
            spoken.store(true, Ordering::Relaxed);
            let (handler, limits) = (handler.clone(), limits.clone());
            async move {
                let (mut parts, body) = request.into_parts();
                if let Some(secure) = secure {
                    parts.extensions.insert(secure);
                }
                let body = collect(body, &limits).await;
                let answer = handler.handle(Request::from_parts(parts, body)).await?;
                Ok::<_, Reset>(answer.map(Full::new))
            }
        })
    };
    let builder = builder(&limits);
    let serving = builder.serve_connection(TokioIo::new(io), service);
    let mut serving = std::pin::pin!(serving);
    // hyper's own timer starts when it knows the protocol; a client that never says a word is ended here.
    let mut silence = std::pin::pin!(tokio::time::sleep(limits.head_timeout));
    let (mut is_heard, mut is_leaving) = (false, false);
    let mut known = first;
    loop {
        let old = known.age_max.filter(|_| !is_leaving).map(|age| opened + age);
        tokio::select! {
            ended = &mut serving => return log_end(ended),
            () = &mut silence, if !is_heard => {
                is_heard = true;
                if !spoken.load(Ordering::Relaxed) {
                    return;
                }
            }
            () = until(old) => {
                gate.traffic.goaways_total.fetch_add(1, Ordering::Relaxed);
                is_leaving = true;
                serving.as_mut().graceful_shutdown();
            }
            // The gate outlives its connections, so the channel only ever changes.
            _ = orders.changed() => {
                known = *orders.borrow_and_update();
                if known.cuts != first.cuts {
                    return;
                }
                if (known.goaways != first.goaways || known.is_stopping) && !is_leaving {
                    is_leaving = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(8 * 1024 * 1024);
    builder
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Reads a body into memory, up to the limit.
async fn collect(mut body: Incoming, limits: &Limits) -> Result<Bytes, BodyError> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let mut read = Collected::default();
    loop {
        let frame = tokio::time::timeout(limits.body_timeout, body.frame());
        let frame = match frame.await.map_err(|_| BodyError::TooSlow)? {
            Some(frame) => frame.map_err(|_| BodyError::Truncated)?,
            None => break,
        };
        if let Ok(data) = frame.into_data()
            && !read.push(data, limits.body_bytes_max)
        {
            return Err(BodyError::TooLarge);
        }
    }
    read.finish()
}

/// The parts of a body: nothing is copied when it comes in one piece, nothing is kept once it is too large.
#[derive(Default)]
struct Collected {
    first: Bytes,
    rest: BytesMut,
    total: usize,
    over: bool,
}

impl Collected {
    /// False when even throwing the rest away would take too long.
    fn push(&mut self, data: Bytes, limit: usize) -> bool {
        self.total = self.total.saturating_add(data.len());
        self.over |= self.total > limit;
        if self.over {
            self.first = Bytes::new();
            self.rest = BytesMut::new();
            return self.total <= DRAIN_BYTES_MAX;
        }
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
        } else {
            if self.rest.is_empty() {
                self.rest.extend_from_slice(&self.first);
            }
            self.rest.extend_from_slice(&data);
        }
        true
    }

    fn finish(self) -> Result<Bytes, BodyError> {
        match (self.over, self.rest.is_empty()) {
            (true, _) => Err(BodyError::TooLarge),
            (false, true) => Ok(self.first),
            (false, false) => Ok(self.rest.freeze()),
        }
    }
}

/// Counts a connection as open while it lives.
struct Open(Arc<Traffic>);

impl Open {
    fn new(traffic: Arc<Traffic>) -> Self {
        traffic.connections_open.fetch_add(1, Ordering::Relaxed);
        traffic.connections_total.fetch_add(1, Ordering::Relaxed);
        Self(traffic)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that never fails to arrive, for callers without a socket.
pub(crate) fn received(request: Request<Bytes>) -> Received {
    request.map(Ok::<_, Infallible>).map(|body| body.map_err(|never| match never {}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_one_piece_is_not_copied() {
        let data = Bytes::from(vec![7_u8; 100]);
        let mut read = Collected::default();
        assert!(read.push(data.clone(), 1000));
        assert_eq!(read.finish().unwrap().as_ptr(), data.as_ptr());
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let mut read = Collected::default();
        for piece in ["a", "", "bc", "d"] {
            assert!(read.push(Bytes::from_static(piece.as_bytes()), 10));
        }
        assert_eq!(read.finish().unwrap(), "abcd");
    }

    #[test]
    fn a_large_body_is_read_but_not_kept() {
        let mut read = Collected::default();
        let piece = Bytes::from(vec![0_u8; 1024]);
        for _ in 0..100 {
            assert!(read.push(piece.clone(), 4096));
            assert!(read.rest.len() <= 4096);
        }
        assert_eq!(read.finish(), Err(BodyError::TooLarge));
    }
}
