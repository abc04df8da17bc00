//! Opening connections: TCP with keepalive, TLS with ALPN, then the protocol that was agreed.
//!
//! On TLS the peer chooses by ALPN. On plain HTTP there is nobody to ask, so HTTP/2 is tried by prior knowledge:
//! a PING must come back within half of the time to connect, otherwise the endpoint is spoken to in HTTP/1.1.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::http1::Http1;
use super::http2::Http2;
use super::tls::Tls;
use super::{Address, HttpError, HttpErrorKind, HttpService, Sent};
use crate::clock::Clock;
use crate::config::{Certificates, Connections, Negotiation};
use crate::diagnostics::Protocol;
use crate::error::Error;

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
    keepalive: Duration,
    ping: PingPolicy,
    response_bytes_max: usize,
    clock: Clock,
    #[cfg(feature = "fault-injection")]
    faults: Arc<super::fault::Faults>,
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
        clock: Clock,
        #[cfg(feature = "fault-injection")] faults: Arc<super::fault::Faults>,
    ) -> Result<Self, Error> {
        Ok(Self {
            negotiation: connections.negotiation,
            certificates: connections.certificates.clone(),
            tls: Tls::new(&connections.certificates, connections.negotiation)?,
            connect_timeout: connections.connect_timeout,
            keepalive: connections.tcp_keepalive,
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
        })
    }

    /// Opens one connection. `known` is the protocol the endpoint's other connections speak.
    pub(super) async fn connect(
        &self,
        address: &Address,
        shard: u32,
        known: Option<Protocol>,
    ) -> Result<Connected, HttpError> {
        let connected = match timeout(self.connect_timeout, self.open(address, known)).await {
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
                shard,
                self.clock.clone(),
            ),
            protocol: connected.protocol,
        };
        #[cfg(not(feature = "fault-injection"))]
        let _ = shard;
        Ok(connected)
    }

    async fn open(&self, address: &Address, known: Option<Protocol>) -> Result<Connected, HttpError> {
        if address.is_tls() {
            return self.open_tls(address).await;
        }
        let try_http2 = match self.negotiation {
            Negotiation::Http1Only => false,
            Negotiation::Http2Only => true,
            Negotiation::Adaptive => known != Some(Protocol::Http1),
        };
        if try_http2 {
            let stream = self.tcp(address).await?;
            match self.http2(stream, address).await {
                Ok(service) => {
                    return Ok(Connected { service: Arc::new(service), protocol: Protocol::Http2 });
                }
                Err(error) if !may_fall_back(self.negotiation, known) => return Err(error),
                Err(error) => {
                    tracing::debug!(%address, error = %error.message, "no HTTP/2 by prior knowledge");
                }
            }
        }
        let stream = self.tcp(address).await?;
        let service = Http1::handshake(stream, address, self.response_bytes_max).await?;
        Ok(Connected { service: Arc::new(service), protocol: Protocol::Http1 })
    }

    async fn open_tls(&self, address: &Address) -> Result<Connected, HttpError> {
        let refused =
            |e: String| HttpError::new(HttpErrorKind::Tls, Sent::No, format!("TLS with {address}: {e}"));
        let stream = self.tcp(address).await?;
        let name = ServerName::try_from(address.host().to_owned()).map_err(|e| refused(e.to_string()))?;
        let config = self.tls.config(address.is_loopback(), &self.certificates);
        let stream =
            TlsConnector::from(config).connect(name, stream).await.map_err(|e| refused(e.to_string()))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2".as_slice());
        if is_http2 {
            let service = self.http2(stream, address).await?;
            return Ok(Connected { service: Arc::new(service), protocol: Protocol::Http2 });
        }
        if self.negotiation == Negotiation::Http2Only {
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

    async fn tcp(&self, address: &Address) -> Result<TcpStream, HttpError> {
        let refused = |e: std::io::Error| {
            HttpError::new(HttpErrorKind::Connect, Sent::No, format!("cannot connect to {address}: {e}"))
        };
        let stream = TcpStream::connect((address.host(), address.port())).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(self.keepalive).with_interval(self.keepalive);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(refused)?;
        Ok(stream)
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
