//! One request over plain HTTP, for what the driver has no words for: the management port, and what a query did.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What came back.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Sends a request to `http://HOST:PORT` and reads the answer.
pub(super) async fn send(base: &str, mut request: Request<Full<Bytes>>) -> anyhow::Result<Reply> {
    let place: Uri = base.parse().context("the address of the emulator cannot be read")?;
    let authority = place.authority().context("the address of the emulator names no host")?.clone();
    anyhow::ensure!(place.scheme_str() == Some("http"), "only plain http is spoken here");
    let exchange = async {
        let stream = TcpStream::connect((
            authority.host().trim_matches(['[', ']']),
            authority.port_u16().unwrap_or(80),
        ))
        .await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driving = tokio::spawn(connection);
        // The management port answers this name wherever it listens.
        request.headers_mut().entry(HOST).or_insert(http::HeaderValue::from_static("localhost"));
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, BYTES_MAX).collect().await.map_err(|error| anyhow::anyhow!(error))?;
        driving.abort();
        Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    };
    tokio::time::timeout(TIME_MAX, exchange).await.context("the emulator does not answer")?
}

const TIME_MAX: Duration = Duration::from_secs(40);
const BYTES_MAX: usize = 16 * 1024 * 1024;
