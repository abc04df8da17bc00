//! A proxy in front of the emulator: it keeps what was asked, may answer itself, and can speak TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cosmos_emulator::Emulator;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{DATE, HOST, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A request that came by.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether it is a batch.
    pub(crate) fn is_batch(&self) -> bool {
        self.header("x-ms-cosmos-is-batch-request").is_some()
    }

    /// Whether it is a query in the partition of one instance.
    pub(crate) fn is_load(&self) -> bool {
        self.header("content-type") == Some("application/query+json")
            && self.header("x-ms-documentdb-partitionkey").is_some()
    }
}

type Judge = Box<dyn Fn(&Asked) -> Option<Response<Full<Bytes>>> + Send + Sync>;

/// The proxy; it ends with this.
pub(crate) struct Tap {
    pub(crate) endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    later: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Tap {
    /// A proxy that answers what `judge` answers and passes everything else on.
    pub(crate) async fn new(
        emulator: &Emulator,
        judge: impl Fn(&Asked) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(emulator, None, Box::new(judge), 0).await
    }

    /// A proxy whose answers carry a date so many seconds later.
    pub(crate) async fn dated(emulator: &Emulator, later: u64) -> Self {
        Self::start(emulator, None, Box::new(|_| None), later).await
    }

    /// A proxy that speaks TLS with the certificate given.
    pub(crate) async fn tls(
        emulator: &Emulator,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::start(emulator, Some(TlsAcceptor::from(Arc::new(config))), Box::new(|_| None), 0).await
    }

    async fn start(emulator: &Emulator, tls: Option<TlsAcceptor>, judge: Judge, later: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = emulator.endpoint();
        let server: SocketAddr =
            server.trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let later = Arc::new(AtomicU64::new(later));
        let (seen, moved) = (Arc::clone(&asked), Arc::clone(&later));
        let shared = Arc::new(Shared { server, judge, asked: seen, scheme, later: moved });
        let task = tokio::spawn(accept(listener, tls, shared));
        Self { endpoint: format!("{scheme}://{address}"), asked, later, task }
    }

    /// From now on answers carry a date so many seconds later.
    pub(crate) fn date(&self, later: u64) {
        self.later.store(later, Ordering::SeqCst);
    }

    /// What was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    server: SocketAddr,
    judge: Judge,
    asked: Arc<Mutex<Vec<Asked>>>,
    scheme: &'static str,
    /// Seconds added to the date of every answer.
    later: Arc<AtomicU64>,
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { Ok::<_, Infallible>(shared.serve(request).await) }
            });
            let server = auto::Builder::new(TokioExecutor::new());
            match tls {
                None => drop(server.serve_connection(TokioIo::new(stream), service).await),
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        drop(server.serve_connection(TokioIo::new(stream), service).await);
                    }
                }
            }
        });
    }
}

impl Shared {
    async fn serve(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let asked = Asked {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            headers: parts.headers.clone(),
            body: body.clone(),
        };
        self.asked.lock().unwrap().push(asked.clone());
        if let Some(answer) = (self.judge)(&asked) {
            return answer;
        }
        if let (None, Some(authority)) = (parts.headers.get(HOST), parts.uri.authority()) {
            parts.headers.insert(HOST, authority.as_str().parse().unwrap());
        }
        parts.uri = parts.uri.path_and_query().unwrap().as_str().parse().unwrap();
        parts.version = hyper::Version::HTTP_11;
        let stream = TcpStream::connect(self.server).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await.unwrap();
        let (mut parts, body) = answer.into_parts();
        parts.headers.remove("connection");
        parts.headers.remove("transfer-encoding");
        parts.version = hyper::Version::default();
        if let Some(date) =
            parts.headers.get(DATE).and_then(|date| cosmos_wire::date::parse(date.to_str().ok()?))
        {
            let date =
                cosmos_wire::date::format(date + Duration::from_secs(self.later.load(Ordering::SeqCst)));
            parts.headers.insert(DATE, date.parse().unwrap());
        }
        let mut body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        if asked.path == "/" {
            // The account tells where it is: here.
            let text = String::from_utf8_lossy(&body).replace("http://", &format!("{}://", self.scheme));
            body = Bytes::from(text);
            parts.headers.remove("content-length");
        }
        Response::from_parts(parts, Full::new(body))
    }
}
