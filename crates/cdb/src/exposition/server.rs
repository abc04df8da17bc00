//! The listener: `GET /metrics`, `GET /scale`, `GET /health`. It shows names of orchestrations and activities and no ids
//! and no payloads, and nothing can be changed through it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::container::Watcher;
use super::registry::Registry;

/// Whose figures are shown.
#[derive(Debug)]
pub(crate) enum Source {
    /// What a container shows.
    Container(Box<Watcher>),
    /// What this process does.
    Process(Registry),
}

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, source: Source) {
    let source = Arc::new(source);
    let mut tasks: JoinSet<()> = JoinSet::new();
    loop {
        tokio::select! {
            // Ended connections make room.
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            accepted = listener.accept(), if tasks.len() < CONNECTIONS_MAX => {
                let Ok((stream, _)) = accepted else { continue };
                let source = source.clone();
                tasks.spawn(async move {
                    let service = service_fn(move |request| {
                        let source = source.clone();
                        async move { Ok::<_, Infallible>(answer_to(&source, &request).await) }
                    });
                    // A scraper that goes away in the middle is no event.
                    let _ = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEADER_TIME)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        }
    }
}

async fn answer_to(source: &Source, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "this is for looking at\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match (request.uri().path(), source) {
        ("/metrics", Source::Container(watcher)) => answer(StatusCode::OK, PROMETHEUS, watcher.page().await),
        ("/metrics", Source::Process(registry)) => answer(StatusCode::OK, PROMETHEUS, registry.page()),
        ("/scale", Source::Container(watcher)) => match watcher.scale().await {
            Ok(scale) => answer(StatusCode::OK, JSON, scale.to_string()),
            Err(_) => answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the container could not be looked at\n"),
        },
        ("/health", _) => answer(StatusCode::OK, TEXT, "ok\n"),
        _ => answer(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /scale (of a container) and /health\n"),
    }
}

fn answer(status: StatusCode, media_type: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const CONNECTIONS_MAX: usize = 64;
const HEADER_TIME: Duration = Duration::from_secs(10);
