//! Sockets: HTTP/1.1 and HTTP/2 on one port, by ALPN under TLS and by prior knowledge without.
//!
//! [`run`] accepts until told to stop, then lets requests in flight finish, for a bounded time. Each connection begins
//! with [`plain`], which serves HTTP/1.1 as SDKs speak it; what it does not know it hands to [`full`], which knows
//! everything. A handler that answers [`Reset`] makes its connection close (HTTP/1.1) or its stream reset (HTTP/2)
//! without an answer. Connections listen to their [`Gate`], which can tell all of them to leave.

pub(crate) mod answer;
mod full;
pub(crate) mod head;
mod life;
mod plain;
mod prefixed;
mod present;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::answer::Answer;
use self::head::Head;
use self::life::Life;
use self::present::Present;
use crate::lanes::Lanes;

/// Read buffer of a connection, and so the longest request head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bodies up to this length are read before anything is known of their sender: to check a signature twice costs more.
const UNASKED_BYTES_MAX: usize = 8 * 1024;
/// Bodies up to this length are read without asking for room.
const ROOM_UNIT: usize = 64 * 1024;
/// How long a connection that was told to leave may take before the next one is told.
const DISMISS_PAUSE: Duration = Duration::from_millis(50);
/// How long to wait before accepting again when the process has run out of sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a socket may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Open connections. A further one takes the place of the one that has been without a request for longest, and
    /// waits where none is.
    pub connections_max: usize,
    /// Bytes of a request body that are kept; more is answered with 413.
    pub body_bytes_max: usize,
    /// How long a client may take to send a request head, and so how long an idle connection lives.
    pub head_timeout: Duration,
    /// Bytes of large bodies that are under way at once, over all connections of an endpoint; further ones are not read
    /// until there is room, and answered with 503 where that takes as long as a body may.
    pub bodies_bytes_max: usize,
    /// How long a client may take to send a body; then 408.
    pub body_timeout: Duration,
    /// How long requests in flight may take to finish once the server stops.
    pub stop_timeout: Duration,
    /// How old a connection may become before it is told to leave (GOAWAY, `connection: close`); none lets it live.
    pub connection_age_max: Option<Duration>,
    /// Queries and feeds that run at once, and as many batches beside them; further ones wait without a thread.
    pub heavy_requests_max: usize,
    /// How long a page of a query gathers rows before it ends with a continuation; the service takes five seconds.
    pub query_page_time: Duration,
    /// How long a query may take that cannot be cut into pages; then 408.
    pub query_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            // The largest item is 2 MiB; the slack lets the engine say what is wrong with a body just above it.
            body_bytes_max: 2 * 1024 * 1024 + 512 * 1024,
            head_timeout: Duration::from_secs(120),
            bodies_bytes_max: 256 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(5),
            connection_age_max: None,
            heavy_requests_max: std::thread::available_parallelism()
                .map_or(8, |cores| (4 * cores.get()).max(8)),
            query_page_time: Duration::from_secs(5),
            query_time_max: Duration::from_secs(30),
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
    /// Other bodies take all the room there is.
    NoRoom,
    /// It was thrown away: the head alone is refused.
    Unwanted,
    /// The client went away in the middle.
    Truncated,
}

/// A request whose body was read, or could not be.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) head: Head,
    pub(crate) body: Result<Bytes, BodyError>,
}

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Whether the body of a request is worth reading, as far as its head tells. One that is not comes as
    /// [`BodyError::Unwanted`].
    fn wants_body(&self, _head: &Head) -> bool {
        true
    }

    fn handle<A: Answer>(&self, request: Received) -> impl Future<Output = Result<A, Reset>> + Send;
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
    is_http2_only: bool,
    lanes: Arc<Lanes>,
    pub(crate) traffic: Arc<Traffic>,
    orders: watch::Sender<Orders>,
    /// Room for large bodies, in units of [`ROOM_UNIT`].
    room: Arc<Semaphore>,
    present: Present,
}

impl Gate {
    pub(crate) fn new(limits: Limits, tls: Option<Arc<rustls::ServerConfig>>, lanes: Arc<Lanes>) -> Self {
        let orders = Orders { goaways: 0, cuts: 0, age_max: limits.connection_age_max, is_stopping: false };
        let room =
            Arc::new(Semaphore::new((limits.bodies_bytes_max / ROOM_UNIT).min(Semaphore::MAX_PERMITS)));
        let (orders, traffic) = (watch::Sender::new(orders), Arc::default());
        let (is_http2_only, present) = (false, Present::default());
        Self { limits, tls, is_http2_only, lanes, traffic, orders, room, present }
    }

    /// A gate whose connections speak HTTP/2 and nothing else.
    pub(crate) fn http2_only(limits: Limits, tls: Option<&rustls::ServerConfig>, lanes: Arc<Lanes>) -> Self {
        let tls = tls.map(|tls| {
            let mut tls = tls.clone();
            tls.alpn_protocols.retain(|protocol| protocol == b"h2");
            Arc::new(tls)
        });
        Self { is_http2_only: true, ..Self::new(limits, tls, lanes) }
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
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let place = tokio::select! {
                    () = &mut shutdown => break,
                    place = a_place(&places, &gate) => place,
                };
                // Nagle's algorithm only delays small answers; a socket that refuses the option still works.
                let _ = stream.set_nodelay(true);
                let presence = gate.present.enter();
                let (open, life) = (Open::new(gate.traffic.clone()), Life::new(&gate, presence));
                let (handler, gate, lanes) = (handler.clone(), gate.clone(), gate.lanes.clone());
                lanes.serve(stream, move |stream| async move {
                    welcome(stream, handler, &gate, life).await;
                    drop((open, place));
                });
            }
            Err(error) => {
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

/// Waits until there is room for a body, unless it is small. What is taken is given back with the value.
async fn room_for(room: &Arc<Semaphore>, bytes: usize, limits: &Limits) -> Option<OwnedSemaphorePermit> {
    let units = bytes.min(limits.bodies_bytes_max) / ROOM_UNIT;
    // The semaphore is never closed, so room is only ever waited for.
    room.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
}

/// A place for a connection that was accepted. Where all are taken, those without a request leave one after the other,
/// the idlest first: whoever opens connections and says nothing must not keep others out.
async fn a_place(places: &Arc<Semaphore>, gate: &Gate) -> Option<OwnedSemaphorePermit> {
    let mut waiting = std::pin::pin!(places.clone().acquire_owned());
    loop {
        tokio::select! {
            biased;
            // The semaphore is never closed, so a place is only ever waited for.
            place = &mut waiting => return place.ok(),
            () = std::future::ready(()) => gate.present.dismiss_idlest(),
        }
        if let Ok(place) = tokio::time::timeout(DISMISS_PAUSE, &mut waiting).await {
            return place.ok();
        }
    }
}

/// Serves one connection, through TLS where the gate has a certificate.
async fn welcome<H: Handler>(stream: TcpStream, handler: Arc<H>, gate: &Gate, life: Life) {
    let Some(tls) = gate.tls.clone() else {
        return connection(stream, handler, gate, life, false).await;
    };
    let handshake = tokio_rustls::TlsAcceptor::from(tls).accept(stream);
    let presence = life.presence.clone();
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(gate.limits.head_timeout, handshake) => handshake,
        () = presence.dismissed() => return,
    };
    match handshake {
        Ok(Ok(stream)) => connection(stream, handler, gate, life, true).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client does not agree on TLS"),
        Err(_) => tracing::debug!("a client did not finish the TLS handshake"),
    }
}

/// Serves one connection until it ends or is told to leave. Whatever brings bytes will do.
async fn connection<H: Handler>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<H>,
    gate: &Gate,
    life: Life,
    is_secure: bool,
) {
    if gate.is_http2_only {
        return full::serve(io, handler, gate, life, is_secure).await;
    }
    match plain::serve(io, handler.as_ref(), gate, life, is_secure).await {
        plain::End::Over => {}
        plain::End::Other(io, life) => full::serve(io, handler, gate, life, is_secure).await,
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
    let (parts, body) = request.into_parts();
    Received { head: Head::of_parts(parts, false), body: Ok(body) }
}
