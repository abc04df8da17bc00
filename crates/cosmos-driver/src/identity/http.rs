//! The few requests with which tokens are fetched: one connection each, HTTP/1.1.
//!
//! `azure_identity` brings a client of its own, which would be a second HTTP stack in every program, to build and to carry.

use std::sync::Arc;
use std::time::Duration;

use azure_core::error::{Error, ErrorKind, ResultExt as _};
use azure_core::http::headers::Headers;
use azure_core::http::{AsyncRawResponse, Body, HttpClient, Request, Url};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Opens a connection for each request.
#[derive(Debug)]
pub(super) struct Client;

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        match tokio::time::timeout(TIMEOUT, exchange(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::with_message(
                ErrorKind::Io,
                format!("{} did not answer within {} s", host(request.url())?, TIMEOUT.as_secs()),
            )),
        }
    }
}

async fn exchange(request: &Request) -> azure_core::Result<AsyncRawResponse> {
    let url = request.url();
    let host = host(url)?;
    let is_secure = url.scheme() == "https";
    let port = url.port_or_known_default().unwrap_or(443);
    let told = || format!("cannot connect to {host}:{port}");
    let stream =
        TcpStream::connect((host.as_str(), port)).await.with_context_fn(ErrorKind::Connection, told)?;
    if !is_secure {
        return send(request, stream).await;
    }
    let name = ServerName::try_from(host.clone()).with_context_fn(ErrorKind::Connection, told)?;
    let stream = tls().connect(name, stream).await.with_context_fn(ErrorKind::Connection, told)?;
    send(request, stream).await
}

async fn send(
    request: &Request,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> azure_core::Result<AsyncRawResponse> {
    let told = "the request for a token failed";
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.with_context(ErrorKind::Io, told)?;
    let driven = tokio::spawn(connection);
    let answer = sender.send_request(plain(request)?).await.with_context(ErrorKind::Io, told)?;
    let status = answer.status().as_u16();
    let mut headers = Headers::new();
    for (name, value) in answer.headers() {
        if let Ok(value) = value.to_str() {
            headers.insert(name.as_str().to_owned(), value.to_owned());
        }
    }
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| {
        Error::with_message(ErrorKind::Io, format!("the answer to the request for a token: {error}"))
    })?;
    driven.abort();
    Ok(AsyncRawResponse::from_bytes(status.into(), headers, body.to_bytes()))
}

fn plain(request: &Request) -> azure_core::Result<::http::Request<Full<bytes::Bytes>>> {
    let url = request.url();
    let authority = match url.port() {
        Some(port) => format!("{}:{port}", host(url)?),
        None => host(url)?,
    };
    let mut built = ::http::Request::builder()
        .method(request.method().as_str())
        .uri(request.path_and_query())
        .header("host", authority);
    for (name, value) in request.headers().iter() {
        built = built.header(name.as_str(), value.as_str());
    }
    let body = match request.body() {
        Body::Bytes(bytes) => bytes.clone(),
        Body::SeekableStream(_) => {
            return Err(Error::with_message(ErrorKind::Io, "requests for tokens have no streams"));
        }
    };
    built.body(Full::new(body)).with_context(ErrorKind::DataConversion, "the request for a token")
}

fn host(url: &Url) -> azure_core::Result<String> {
    let host = url.host_str().ok_or_else(|| Error::with_message(ErrorKind::DataConversion, "no host"))?;
    // An address of version 6 has its brackets in a URL only.
    Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

fn tls() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the usual versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// A token is fetched in a few hundred milliseconds; an address nobody has is silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Tokens are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
