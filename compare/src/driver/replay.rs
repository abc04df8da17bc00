//! A server that is never the limit: it answers what the real one answered, byte for byte, and does nothing else.
//!
//! A request it has not seen is passed on to the real server, and the answer is kept. Requests are the same if their
//! method, path, lasting headers, and the beginning and length of their body are.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use super::cores;
use super::server::Ready;

/// Where it says how many requests it passed on.
pub const PASSED_ON: &str = "/replay/passed-on";

/// What differs although the request is the same.
const FLEETING: [&str; 6] =
    ["authorization", "x-ms-date", "x-ms-activity-id", "x-ms-session-token", "user-agent", "host"];
/// Bytes of a body that tell it from others of its length: the ids come first.
const TELLING: usize = 256;
/// Streams of a connection, as the service has it.
const STREAMS: u32 = 20;

struct Replay {
    real: SocketAddr,
    own: SocketAddr,
    known: RwLock<HashMap<u64, Arc<Known>>>,
    sender: Mutex<SendRequest<Full<Bytes>>>,
    passed_on: AtomicU64,
    /// The latest that was passed on, to say what went wrong.
    latest: Mutex<String>,
}

/// An answer of the real server.
struct Known {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// The child's side: serves until its standard input is closed.
pub fn serve(upstream: &str, cores: &[usize]) -> anyhow::Result<()> {
    cores::bind(cores)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(cores.len()).enable_all().build()?;
    let real: SocketAddr = upstream.trim_start_matches("http://").parse().context("the real server")?;
    runtime.block_on(async {
        let io = TokioIo::new(TcpStream::connect(real).await?);
        let (sender, connection) = http1::handshake(io).await?;
        tokio::spawn(connection);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own = listener.local_addr()?;
        let replay = Arc::new(Replay {
            real,
            own,
            known: RwLock::default(),
            sender: Mutex::new(sender),
            passed_on: AtomicU64::new(0),
            latest: Mutex::default(),
        });
        tokio::spawn(accept(listener, replay));
        let ready =
            Ready { endpoint: format!("http://{own}"), management: format!("http://{own}"), gateway2: None };
        println!("{}", serde_json::to_string(&ready)?);
        std::io::stdout().flush()?;
        tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
        Ok(())
    })
}

async fn accept(listener: TcpListener, replay: Arc<Replay>) {
    while let Ok((stream, _)) = listener.accept().await {
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        let replay = replay.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(replay.clone(), request));
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(STREAMS);
            // A client that leaves in the middle of something is no concern of ours.
            let _ended = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    replay: Arc<Replay>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    if head.uri.path() == PASSED_ON {
        let count = replay.passed_on.load(Ordering::Relaxed);
        let latest = replay.latest.lock().await;
        return Ok(Response::new(Full::from(format!("{count} {latest}"))));
    }
    let key = key(&head, &body);
    let known = replay.known.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    let known = match known {
        Some(known) => known,
        None => match replay.pass_on(head, body).await {
            Ok(answer) => replay.keep(key, answer),
            Err(error) => {
                let mut refused = Response::new(Full::from(error.to_string()));
                *refused.status_mut() = StatusCode::BAD_GATEWAY;
                return Ok(refused);
            }
        },
    };
    let mut response = Response::new(Full::new(known.body.clone()));
    *response.status_mut() = known.status;
    *response.headers_mut() = known.headers.clone();
    Ok(response)
}

fn key(head: &Parts, body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    head.method.hash(&mut hasher);
    head.uri.path_and_query().hash(&mut hasher);
    body.len().hash(&mut hasher);
    body[..body.len().min(TELLING)].hash(&mut hasher);
    // A client may send its headers in any order.
    let lasting = head.headers.iter().filter(|(name, _)| !FLEETING.contains(&name.as_str()));
    let headers = lasting.map(|header| {
        let mut hasher = DefaultHasher::new();
        header.hash(&mut hasher);
        hasher.finish()
    });
    headers.fold(hasher.finish(), u64::wrapping_add)
}

impl Replay {
    async fn pass_on(&self, head: Parts, body: Bytes) -> anyhow::Result<Known> {
        self.passed_on.fetch_add(1, Ordering::Relaxed);
        *self.latest.lock().await = format!("{} {} {:?}", head.method, head.uri, head.headers);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(head.method).uri(path).body(Full::new(body))?;
        *request.headers_mut() = head.headers;
        request.headers_mut().insert(header::HOST, HeaderValue::try_from(self.real.to_string())?);
        let mut sender = self.sender.lock().await;
        sender.ready().await?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut headers = head.headers;
        for name in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
            headers.remove(name);
        }
        Ok(Known { status: head.status, headers, body: self.renamed(body) })
    }

    /// Account documents name the server; clients shall stay here.
    fn renamed(&self, body: Bytes) -> Bytes {
        let real = self.real.to_string();
        match std::str::from_utf8(&body) {
            Ok(text) if text.contains(&real) => text.replace(&real, &self.own.to_string()).into(),
            Ok(_) | Err(_) => body,
        }
    }

    fn keep(&self, key: u64, answer: Known) -> Arc<Known> {
        let answer = Arc::new(answer);
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(key, answer.clone());
        answer
    }
}
