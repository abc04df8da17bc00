//! Bytes to one endpoint and back.
//!
//! Life of a request here: [`Transport::send`] finds the endpoint's [`pool::Pool`], reserves a slot on one
//! connection (a *shard*), hands the request to that connection's [`HttpService`], and gives the slot back when
//! the answer is complete or the caller goes away. Connections are opened by background tasks, never by the
//! request that happens to need one first, so a dropped request cannot lose a half-open connection.
//!
//! `HttpService` is the only seam to the network: fault injection wraps it, below slots and pools, and a transport of
//! the caller's own ([`plug`]) is one.

mod connect;
mod cpu;
#[cfg(feature = "fault-injection")]
pub(crate) mod fault;
pub(crate) mod health;
mod http1;
mod http2;
mod plug;
pub(crate) mod pool;
mod shard;
mod sweep;
mod tls;
mod tunnel;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use cosmos_wire::endpoint::{has_user, without_user};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::config::{Connections, Sharding};
use crate::diagnostics::Protocol;
use crate::error::Error;
use connect::Connector;
use pool::Pool;
use sweep::Sweeper;

/// Where bytes go: one scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// Nothing but HTTP/2 is spoken there.
    pub(crate) needs_http2: bool,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let bad = |why: &str| Error::configuration(format!("endpoint {:?}: {why}", without_user(url)));
        if has_user(url) {
            return Err(bad("it has a user name or password, which Cosmos DB does not know; leave that out"));
        }
        let uri: http::Uri = url.trim().parse().map_err(|_| bad("not a URL; write https://host:port/"))?;
        let scheme = uri.scheme().cloned().ok_or_else(|| bad("no scheme; write https://host:port/"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(bad("the scheme must be http or https"));
        }
        let authority = uri.authority().cloned().ok_or_else(|| bad("no host"))?;
        Ok(Self { scheme, authority, needs_http2: false })
    }

    pub(crate) fn needing_http2(self) -> Self {
        Self { needs_http2: true, ..self }
    }

    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    pub(crate) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(if self.is_tls() { 443 } else { 80 })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority)
    }
}

/// One request as the network sees it. The body is shared, never copied.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) path: PathAndQuery,
    pub(crate) headers: HeaderMap,
    /// What comes before the body in the body of HTTP: the frame of Gateway 2.0. Empty everywhere else.
    pub(crate) before_body: Bytes,
    pub(crate) body: Bytes,
    /// It may be sent a second time, so there is no need to wait for a connection that may be dead.
    pub(crate) may_leave: bool,
    /// It asks for what must be known before items can be asked for, and has connections of its own when all are full.
    pub(crate) is_metadata: bool,
    /// What the request is about, for fault rules. Never sent.
    #[cfg_attr(not(feature = "fault-injection"), allow(dead_code))] // Read by the fault rules only.
    pub(crate) label: Label,
}

/// What a fault rule can match on.
#[cfg_attr(not(feature = "fault-injection"), allow(dead_code))] // Read by the fault rules only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Label {
    pub(crate) operation: &'static str,
    pub(crate) region: Option<Arc<str>>,
    pub(crate) container: Option<Arc<str>>,
}

/// One complete answer.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// How far a request got before it broke; decides whether it may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The service cannot have seen it.
    No,
    /// It may have been executed.
    Unknown,
}

/// Why no answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpErrorKind {
    /// No connection could be opened.
    Connect,
    /// The certificate or the handshake was refused.
    Tls,
    /// The connection ended, was reset, or was closed by health checks.
    Closed,
    /// The peer refused the stream without looking at it.
    Refused,
    /// The peer broke the protocol.
    Protocol,
    /// The answer is longer than this driver takes. It would be the next time, too.
    TooLarge,
    /// This attempt's time was up; the operation may have more.
    AttemptTimeout,
    /// The operation's time was up.
    Deadline,
}

/// A broken exchange.
#[derive(Clone, Debug)]
pub(crate) struct HttpError {
    pub(crate) kind: HttpErrorKind,
    pub(crate) sent: Sent,
    pub(crate) message: Arc<str>,
}

impl HttpError {
    pub(crate) fn new(kind: HttpErrorKind, sent: Sent, message: impl Into<Arc<str>>) -> Self {
        Self { kind, sent, message: message.into() }
    }
}

/// Refuses an answer that is, or says it will be, longer than what is taken.
fn check_size(bytes: u64, max: usize) -> Result<(), HttpError> {
    if bytes <= max as u64 {
        return Ok(());
    }
    let why = format!(
        "the answer is longer than the {max} bytes this driver takes (connections.response_bytes_max): ask for smaller \
         pages, or raise the limit if the endpoint is to be trusted"
    );
    Err(HttpError::new(HttpErrorKind::TooLarge, Sent::Unknown, why))
}

/// How far a request got; read when the call has ended or a timer cuts it short.
#[derive(Debug)]
pub(crate) struct Progress {
    begun: Instant,
    /// The request's head was handed to the connection.
    is_sent: AtomicBool,
    /// Microseconds until the answer's head was there, plus one.
    head_us: AtomicU64,
}

impl Progress {
    pub(crate) fn begin(now: Instant) -> Self {
        Self { begun: now, is_sent: AtomicBool::new(false), head_us: AtomicU64::new(0) }
    }

    pub(crate) fn mark_sent(&self) {
        self.is_sent.store(true, Ordering::Relaxed);
    }

    pub(crate) fn mark_head(&self) {
        let us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX - 1);
        self.head_us.store(us + 1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> Sent {
        if self.is_sent.load(Ordering::Relaxed) { Sent::Unknown } else { Sent::No }
    }

    /// Time until the answer's head, and from there until now.
    fn times(&self) -> (Option<Duration>, Option<Duration>) {
        match self.head_us.load(Ordering::Relaxed).checked_sub(1) {
            None => (None, None),
            Some(us) => {
                let head = Duration::from_micros(us);
                (Some(head), Some(self.begun.elapsed().saturating_sub(head)))
            }
        }
    }
}

/// Where the time of one exchange went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// Waiting for a slot on connections that were open.
    pub(crate) slot: Duration,
    /// Waiting for a connection to be opened.
    pub(crate) connect: Duration,
    /// From the hand-over of the request to the head of the answer.
    pub(crate) headers: Option<Duration>,
    /// From there to the end of the answer.
    pub(crate) body: Option<Duration>,
}

pub(crate) type Call<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

/// One connection: takes a request, gives the complete answer. The seam to the network.
pub(crate) trait HttpService: Send + Sync {
    fn call<'a>(&'a self, request: HttpRequest, progress: &'a Progress) -> Call<'a>;
    /// How many requests the peer takes at once.
    fn capacity(&self) -> u32;
    /// True while the peer owes a sign of life.
    fn is_suspect(&self) -> bool;
    /// True when no further request can succeed here.
    fn is_closed(&self) -> bool;
    /// Ends the connection now; calls in flight break.
    fn kill(&self);
}

/// When to give up: the operation's deadline, and the attempt's own limit within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) deadline: Instant,
    pub(crate) attempt: Instant,
}

/// Which connection carried a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) shard: u32,
    pub(crate) protocol: Protocol,
}

/// The result of one send, with the connection it used, if it got one.
pub(crate) struct Sending {
    pub(crate) result: Result<HttpResponse, HttpError>,
    pub(crate) via: Option<Via>,
    pub(crate) timing: Timing,
}

/// All connections of one driver.
#[derive(Debug)]
pub(crate) struct Transport {
    shared: Arc<Shared>,
    _sweeper: Sweeper,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pools: ArcSwap<Vec<Arc<Pool>>>,
    connector: Arc<Connector>,
    sharding: Sharding,
    clock: Clock,
}

impl Transport {
    pub(crate) fn new(
        connections: &Connections,
        plug: Option<TransportPlug>,
        sharding: &Sharding,
        clock: Clock,
        #[cfg(feature = "fault-injection")] faults: Arc<fault::Faults>,
    ) -> Result<Self, Error> {
        let connector = Connector::new(
            connections,
            plug,
            clock.clone(),
            #[cfg(feature = "fault-injection")]
            faults,
        )?;
        let shared = Arc::new(Shared {
            pools: ArcSwap::from_pointee(Vec::new()),
            connector: Arc::new(connector),
            sharding: sharding.clone(),
            clock,
        });
        let sweeper = Sweeper::start(&shared, sharding.sweep_interval);
        Ok(Self { shared, _sweeper: sweeper })
    }

    /// Sends one request and waits for the whole answer, within `limit`. `avoid` names a shard that just failed.
    pub(crate) async fn send(
        &self,
        address: &Address,
        request: HttpRequest,
        limit: Limit,
        avoid: Option<u32>,
    ) -> Sending {
        self.shared.pool(address).send(request, limit, avoid).await
    }

    /// Whether an endpoint has no connection left, and opening one has failed.
    pub(crate) fn is_cut_off(&self, address: &Address) -> bool {
        self.shared.pools.load().iter().any(|pool| pool.address() == address && pool.is_cut_off())
    }

    /// What every endpoint's connections are doing.
    pub(crate) fn snapshot(&self) -> Vec<PoolSnapshot> {
        self.shared.pools.load().iter().map(|pool| pool.snapshot()).collect()
    }
}

impl Shared {
    fn pool(&self, address: &Address) -> Arc<Pool> {
        if let Some(pool) = self.pools.load().iter().find(|pool| pool.address() == address) {
            return pool.clone();
        }
        let fresh =
            Pool::new(address.clone(), self.connector.clone(), self.sharding.clone(), self.clock.clone());
        self.pools.rcu(|pools| {
            let mut pools = Vec::clone(pools);
            if !pools.iter().any(|pool| pool.address() == address) {
                pools.push(fresh.clone());
            }
            pools
        });
        self.pools.load().iter().find(|pool| pool.address() == address).expect("inserted above").clone()
    }
}

/// The connections of one endpoint at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Scheme, host and port.
    pub endpoint: String,
    /// The protocol spoken, once known.
    pub protocol: Option<Protocol>,
    /// One entry per open connection, oldest first.
    pub shards: Vec<ShardSnapshot>,
    /// Connections closed by health checks so far, by reason.
    pub evictions: Vec<(EvictionReason, u64)>,
    /// Requests that wait for a slot right now.
    pub waiting: u32,
    /// Connections that are being opened right now.
    pub connecting: u32,
}

/// One connection at one moment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ShardSnapshot {
    /// Number of the shard, unique within its endpoint.
    pub id: u32,
    /// Requests it carries right now.
    pub in_flight: u32,
    /// Requests it may carry at once.
    pub capacity: u32,
    /// Failures since its last success.
    pub consecutive_failures: u32,
    /// Requests it was given since it was opened.
    pub requests: u64,
    /// Those of them that were not answered.
    pub failures: u64,
}

pub use health::EvictionReason;
pub use plug::{CustomTransport, Exchange, TransportError, TransportPlug};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let cases = [
            ("https://acct.documents.azure.com:443/", "acct.documents.azure.com", 443, true, false),
            ("https://acct.documents.azure.com", "acct.documents.azure.com", 443, true, false),
            ("http://localhost:8081/", "localhost", 8081, false, true),
            ("http://127.0.0.1", "127.0.0.1", 80, false, true),
            ("https://[::1]:9000/", "::1", 9000, true, true),
        ];
        for (url, host, port, tls, loopback) in cases {
            let address = Address::parse(url).expect(url);
            assert_eq!((address.host(), address.port()), (host, port), "{url}");
            assert_eq!((address.is_tls(), address.is_loopback()), (tls, loopback), "{url}");
        }
        for url in ["", "localhost:8081", "ftp://x/", "https://", "/path"] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_password_in_an_endpoint_is_refused_and_never_printed() {
        for url in
            ["https://me:secret@host/", "me:secret@host", "ftp://secret@host", "https://me:se cret@host"]
        {
            let error = Address::parse(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("cret"), "{error:?}");
        }
    }
}
