//! Streams to endpoints: TCP from this machine, straight or through a proxy's tunnel.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::{Address, HttpError, HttpErrorKind, Sent};
use crate::proxy::ProxyServer;

/// Bytes in both directions, whatever carries them.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// How sockets are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sockets {
    pub(super) keepalive: Duration,
    pub(super) local_address: Option<IpAddr>,
}

impl Sockets {
    /// A socket to an address, straight.
    pub(super) async fn connect(&self, address: &Address) -> Result<TcpStream, HttpError> {
        let refused = |e: io::Error| not_connected(format!("cannot connect to {address}: {e}"));
        let (host, port) = (address.host(), address.port());
        let stream = match self.local_address {
            None => TcpStream::connect((host, port)).await.map_err(refused)?,
            Some(local) => from(local, host, port).await.map_err(refused)?,
        };
        stream.set_nodelay(true).map_err(refused)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(self.keepalive).with_interval(self.keepalive);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(refused)?;
        Ok(stream)
    }

    /// A stream to an endpoint through a proxy. `tls` is for a proxy that is spoken to with TLS.
    pub(super) async fn tunnel(
        &self,
        proxy: &ProxyServer,
        tls: Option<Arc<ClientConfig>>,
        address: &Address,
    ) -> Result<Box<dyn Wire>, HttpError> {
        let socket = self.connect(proxy.address()).await?;
        let mut stream: Box<dyn Wire> = match tls {
            None => Box::new(socket),
            Some(config) => {
                let refused =
                    |e: String| not_connected(format!("TLS with the proxy {}: {e}", proxy.address()));
                let name = ServerName::try_from(proxy.address().host().to_owned());
                let name = name.map_err(|e| refused(e.to_string()))?;
                let connected = TlsConnector::from(config).connect(name, socket).await;
                Box::new(connected.map_err(|e| refused(e.to_string()))?)
            }
        };
        let target = target(address);
        let broken = |e: io::Error| not_connected(format!("the proxy {} went away: {e}", proxy.address()));
        stream.write_all(&proxy.connect_request(&target)).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let head = head(&mut stream).await.map_err(broken)?;
        match status(&head) {
            Some(200..=299) => Ok(stream),
            Some(407) => Err(not_connected(format!(
                "the proxy {} wants a user and password, or others than it was given",
                proxy.address()
            ))),
            Some(code) => {
                Err(not_connected(format!("the proxy {} answered {code} for {target}", proxy.address())))
            }
            None => Err(not_connected(format!("the proxy {} does not speak HTTP/1.1", proxy.address()))),
        }
    }
}

/// Tries the host's addresses of the same family.
async fn from(local: IpAddr, host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        format!("the host has no address of the kind of {local}"),
    );
    for remote in lookup_host((host, port)).await?.filter(|remote| remote.is_ipv4() == local.is_ipv4()) {
        let socket = if local.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(local, 0))?;
        match socket.connect(remote).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The proxy's answer up to the empty line and no byte more: what follows is the endpoint's.
async fn head(stream: &mut Box<dyn Wire>) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer has no end"));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

/// The status of an answer's head. Pure.
fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    let mut words = line.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

/// An endpoint as CONNECT names it.
fn target(address: &Address) -> String {
    let host = address.host();
    if host.contains(':') {
        format!("[{host}]:{}", address.port())
    } else {
        format!("{host}:{}", address.port())
    }
}

fn not_connected(why: String) -> HttpError {
    HttpError::new(HttpErrorKind::Connect, Sent::No, why)
}

const HEAD_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_answer_is_read_by_its_first_line() {
        for (head, expected) in [
            ("HTTP/1.1 200 Connection established\r\n\r\n", Some(200)),
            ("HTTP/1.0 407 Proxy Authentication Required\r\nA: b\r\n\r\n", Some(407)),
            ("SSH-2.0 200\r\n\r\n", None),
            ("HTTP/1.1 abc\r\n\r\n", None),
            ("", None),
        ] {
            assert_eq!(status(head.as_bytes()), expected, "{head:?}");
        }
        for (url, expected) in [("https://a.example/", "a.example:443"), ("http://[::1]:81/", "[::1]:81")] {
            assert_eq!(target(&Address::parse(url).expect(url)), expected);
        }
    }
}
