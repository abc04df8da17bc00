//! Opening connections: a stream ([`super::tunnel`]), TLS with ALPN, then the protocol that was agreed.
//!
//! On TLS the peer chooses by ALPN. On plain HTTP there is nobody to ask, so HTTP/2 is tried by prior knowledge:
//! a PING must come back within half of the time to connect, otherwise the endpoint is spoken to in HTTP/1.1.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::http1::Http1;
use super::http2::Http2;
use super::tls::Tls;
use super::tunnel::{Sockets, Wire};
use super::{Address, HttpError, HttpErrorKind, HttpService, Sent, TransportPlug};
use crate::clock::Clock;
use crate::config::{Certificates, Connections, Negotiation, variable};
use crate::diagnostics::Protocol;
use crate::error::Error;
use crate::proxy::Proxies;

/// A new connection and what it can carry.
pub(super) struct Connected {
    pub(super) service: Arc<dyn HttpService>,
    pub(super) protocol: Protocol,
}

#[derive(Debug)]
pub(super) struct Connector {
    negotiation: Negotiation,
    certificates: Certificates,
    tls: Tls,
    connect_timeout: Duration,
    sockets: Sockets,
    proxies: Proxies,
    ping: PingPolicy,
    response_bytes_max: usize,
    clock: Clock,
    #[cfg(feature = "fault-injection")]
    faults: Arc<super::fault::Faults>,
    plug: Option<TransportPlug>,
}

/// When to ask a silent HTTP/2 peer whether it is still there.
#[derive(Clone, Copy, Debug)]
pub(super) struct PingPolicy {
    pub(super) busy_after: Duration,
    pub(super) idle_every: Duration,
    pub(super) answer_within: Duration,
    /// For the first ping, which decides on the protocol: a stall of a second while a connection opens must not make
    /// the peer one of HTTP/1.1.
    pub(super) first_answer_within: Duration,
}

impl Connector {
    pub(super) fn new(
        connections: &Connections,
        plug: Option<TransportPlug>,
        clock: Clock,
        #[cfg(feature = "fault-injection")] faults: Arc<super::fault::Faults>,
    ) -> Result<Self, Error> {
        Ok(Self {
            negotiation: connections.negotiation,
            certificates: connections.certificates.clone(),
            tls: Tls::new(&connections.certificates, connections.negotiation)?,
            connect_timeout: connections.connect_timeout,
            sockets: Sockets {
                keepalive: connections.tcp_keepalive,
                local_address: connections.local_address,
            },
            proxies: Proxies::of(&connections.proxy, variable)?,
            ping: PingPolicy {
                busy_after: connections.ping_after,
                idle_every: connections.tcp_keepalive,
                answer_within: connections.ping_timeout,
                // The other half is for HTTP/1.1.
                first_answer_within: connections.connect_timeout / 2,
            },
            response_bytes_max: connections.response_bytes_max,
            clock,
            #[cfg(feature = "fault-injection")]
            faults,
            plug,
        })
    }

    /// An endpoint that speaks nothing but HTTP/2 is not asked for anything less, whatever others may be asked for.
    fn negotiation_with(&self, address: &Address) -> Negotiation {
        if address.needs_http2 { Negotiation::Http2Only } else { self.negotiation }
    }

    /// Whether requests go through sockets of this machine.
    pub(super) fn has_sockets(&self) -> bool {
        self.plug.is_none()
    }

    /// Opens one connection. `known` is the protocol the endpoint's other connections speak.
    pub(super) async fn connect(
        &self,
        address: &Address,
        shard: u32,
        known: Option<Protocol>,
    ) -> Result<Connected, HttpError> {
        #[cfg(feature = "fault-injection")]
        let name = super::fault::ConnectionName { endpoint: address.to_string().into(), shard };
        let opening = async {
            #[cfg(feature = "fault-injection")]
            self.faults.before_connect(&name, &self.clock).await?;
            self.open(address, known).await
        };
        let connected = match timeout(self.connect_timeout, opening).await {
            Ok(connected) => connected?,
            Err(_) => {
                let text = format!("no connection to {address} within {:?}", self.connect_timeout);
                return Err(HttpError::new(HttpErrorKind::Connect, Sent::No, text));
            }
        };
        #[cfg(feature = "fault-injection")]
        let connected = Connected {
            service: super::fault::Faulty::wrap(
                connected.service,
                self.faults.clone(),
                name,
                self.clock.clone(),
            ),
            protocol: connected.protocol,
        };
        #[cfg(not(feature = "fault-injection"))]
        let _ = shard;
        Ok(connected)
    }

    async fn open(&self, address: &Address, known: Option<Protocol>) -> Result<Connected, HttpError> {
        if let Some(plug) = &self.plug {
            let service = Arc::new(plug.connection(address, self.response_bytes_max));
            // It carries as many requests at once as one of HTTP/2.
            return Ok(Connected { service, protocol: Protocol::Http2 });
        }
        if address.is_tls() {
            return self.open_tls(address).await;
        }
        let negotiation = self.negotiation_with(address);
        let try_http2 = match negotiation {
            Negotiation::Http1Only => false,
            Negotiation::Http2Only => true,
            Negotiation::Adaptive => known != Some(Protocol::Http1),
        };
        if try_http2 {
            let stream = self.stream(address).await?;
            match self.http2(stream, address).await {
                Ok(service) => {
                    return Ok(Connected { service: Arc::new(service), protocol: Protocol::Http2 });
                }
                Err(error) if !may_fall_back(negotiation, known) => return Err(error),
                Err(error) => {
                    tracing::debug!(%address, error = %error.message, "no HTTP/2 by prior knowledge");
                }
            }
        }
        let stream = self.stream(address).await?;
        let service = Http1::handshake(stream, address, self.response_bytes_max).await?;
        Ok(Connected { service: Arc::new(service), protocol: Protocol::Http1 })
    }

    async fn open_tls(&self, address: &Address) -> Result<Connected, HttpError> {
        let refused =
            |e: String| HttpError::new(HttpErrorKind::Tls, Sent::No, format!("TLS with {address}: {e}"));
        let stream = self.stream(address).await?;
        let name = ServerName::try_from(address.host().to_owned()).map_err(|e| refused(e.to_string()))?;
        let config = self.tls.config(address.is_loopback(), &self.certificates);
        let stream =
            TlsConnector::from(config).connect(name, stream).await.map_err(|e| refused(e.to_string()))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
        if is_http2 {
            let service = self.http2(stream, address).await?;
            return Ok(Connected { service: Arc::new(service), protocol: Protocol::Http2 });
        }
        if self.negotiation_with(address) == Negotiation::Http2Only {
            return Err(refused("the peer does not offer HTTP/2".to_owned()));
        }
        let service = Http1::handshake(stream, address, self.response_bytes_max).await?;
        Ok(Connected { service: Arc::new(service), protocol: Protocol::Http1 })
    }

    async fn http2<S>(&self, stream: S, address: &Address) -> Result<Http2, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Http2::handshake(stream, address, self.ping, self.response_bytes_max, self.clock.clone()).await
    }

    /// A stream to an endpoint, through the proxy on the way if there is one.
    async fn stream(&self, address: &Address) -> Result<Box<dyn Wire>, HttpError> {
        let Some(proxy) = self.proxies.on_the_way_to(address) else {
            return Ok(Box::new(self.sockets.connect(address).await?));
        };
        let server = proxy.address();
        let tls = server.is_tls().then(|| self.tls.for_proxy(server.is_loopback(), &self.certificates));
        self.sockets.tunnel(proxy, tls, address).await
    }
}

/// Whether one failed handshake makes the peer one of HTTP/1.1: not if its other connections show better. Pure.
fn may_fall_back(negotiation: Negotiation, known: Option<Protocol>) -> bool {
    negotiation != Negotiation::Http2Only && known != Some(Protocol::Http2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_speaks_http2_is_not_taken_for_one_of_http1() {
        let cases = [
            (Negotiation::Adaptive, None, true),
            (Negotiation::Adaptive, Some(Protocol::Http2), false),
            (Negotiation::Http2Only, None, false),
            (Negotiation::Http2Only, Some(Protocol::Http2), false),
        ];
        for (negotiation, known, expected) in cases {
            assert_eq!(may_fall_back(negotiation, known), expected, "{negotiation:?} {known:?}");
        }
    }
}
