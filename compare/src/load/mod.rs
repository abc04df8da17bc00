//! A bare HTTP client that signs: the same for every server, so that only servers differ.

mod http1;
mod http2;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use cosmos_wire::signature::{Key, Signable};

/// How a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time on a kept-alive connection.
    Http1,
    /// Many streams on one connection, by prior knowledge.
    Http2,
}

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
    pub body: Vec<u8>,
}

/// The calls of one measurement.
#[derive(Clone)]
pub enum Calls {
    /// Made before the clock starts, and sent over and over.
    Cycle(Vec<Call>),
    /// Always another one: each is the last one with other headers and another body.
    Fresh(Call, Arc<Change>),
}

/// Makes the n-th call out of another: headers and body, in the room they have. The rest was signed, and stays.
pub type Change = dyn Fn(u64, &mut Call) + Send + Sync;

/// Signs, each resource once: a signature is good for a quarter of an hour, and making them over and over would measure
/// the client.
struct Signer {
    host: String,
    key: Key,
    date: String,
}

impl Signer {
    fn new(host: &str) -> anyhow::Result<Self> {
        let key =
            Key::from_base64(cosmos_wire::EMULATOR_KEY).map_err(|_| anyhow::anyhow!("the emulator's key"))?;
        Ok(Self { host: host.to_owned(), key, date: cosmos_wire::date::format(SystemTime::now()) })
    }

    fn authorization(&self, call: &Call) -> String {
        self.key.authorization(&Signable::new(call.method, call.kind, &call.link, &self.date))
    }
}

/// As many connections, or streams, as requests shall be in flight.
pub struct Client {
    signer: Signer,
    connections: Connections,
}

enum Connections {
    Http1(Vec<http1::Connection>),
    Http2(Vec<http2::Stream>),
}

impl Client {
    /// Connects.
    pub async fn open(endpoint: &str, protocol: Protocol, in_flight: usize) -> anyhow::Result<Self> {
        let host = endpoint.trim_start_matches("http://");
        let connections = match protocol {
            Protocol::Http1 => {
                let open = |_| http1::Connection::open(host);
                Connections::Http1((0..in_flight).map(open).collect::<anyhow::Result<_>>()?)
            }
            Protocol::Http2 => Connections::Http2(http2::open(host, in_flight).await?),
        };
        Ok(Self { signer: Signer::new(host)?, connections })
    }

    /// Sends one call, and fails unless the status is one of those expected.
    pub async fn expect(&mut self, call: &Call, statuses: &[u16]) -> anyhow::Result<()> {
        let expected = Expected(statuses);
        let sent = match &mut self.connections {
            Connections::Http1(connections) => connections[0].ask(&self.signer, call, expected),
            Connections::Http2(streams) => streams[0].ask(&http2::ready(&self.signer, call)?, expected).await,
        };
        sent.map_err(|error| error.context(format!("{} {}", call.method, call.path)))
    }

    /// Sends calls on all connections for a while; every answer must have one of the statuses.
    pub async fn measure(
        &mut self,
        span: Duration,
        statuses: &'static [u16],
        calls: Calls,
    ) -> anyhow::Result<Measured> {
        let expected = Expected(statuses);
        match &mut self.connections {
            Connections::Http1(connections) => {
                http1::measure(connections, &self.signer, span, expected, calls)
            }
            Connections::Http2(streams) => http2::measure(streams, &self.signer, span, expected, calls).await,
        }
    }
}

/// Statuses that an answer may have.
#[derive(Clone, Copy)]
struct Expected<'a>(&'a [u16]);

impl Expected<'_> {
    fn check(self, status: u16, body: &[u8]) -> anyhow::Result<()> {
        if self.0.contains(&status) {
            return Ok(());
        }
        bail!("answered with {status}: {}", String::from_utf8_lossy(body))
    }
}

/// What one cell measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Operations.
    pub count: usize,
    /// Operations per second.
    pub rate: f64,
    /// Half of the operations were at least this quick.
    pub p50: Duration,
    /// 99 of 100 were.
    pub p99: Duration,
}

impl Measured {
    fn new(mut times: Vec<Duration>, elapsed: Duration) -> anyhow::Result<Self> {
        if times.is_empty() {
            bail!("nothing was answered");
        }
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        Ok(Self {
            count: times.len(),
            rate: times.len() as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
        })
    }
}
