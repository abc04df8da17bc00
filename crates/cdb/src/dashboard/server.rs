//! Sockets: a bounded number of connections, bodies and events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, SET_COOKIE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::access::Access;
use super::answer::{self, Answer};
use super::api::care;
use super::{Store, assets, live, route};

/// Serves until told to stop.
pub(super) async fn serve(
    listener: TcpListener,
    access: Access,
    store: Arc<Store>,
    mut stopped: watch::Receiver<bool>,
) {
    let access = Arc::new(access);
    let mut tasks = JoinSet::new();
    tasks.spawn(live::look(store.clone()));
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            // Ended connections make room.
            Some(_) = tasks.join_next(), if tasks.len() > 1 => {}
            accepted = listener.accept(), if tasks.len() <= CONNECTIONS_MAX => {
                let Ok((stream, _)) = accepted else { continue };
                let (access, store) = (access.clone(), store.clone());
                tasks.spawn(async move {
                    let service = service_fn(move |request| {
                        let (access, store) = (access.clone(), store.clone());
                        async move { Ok::<_, Infallible>(Box::pin(answer_to(&access, &store, request)).await) }
                    });
                    // A tab that goes away in the middle is no event.
                    let _ = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEADER_TIME)
                        .max_buf_size(HEADER_BYTES_MAX)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        }
    }
    tasks.shutdown().await;
    care::end(&store).await;
}

async fn answer_to(access: &Access, store: &Arc<Store>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let has_body = !hyper::body::Body::is_end_stream(&body);
    // Before the body is read: nobody else's is.
    if parts.headers.get_all(HOST).iter().count() > 1 {
        return answer::problem(StatusCode::BAD_REQUEST, "a request names one host");
    }
    if let Err(refusal) = access.check_page(&parts, has_body) {
        return answer::problem(refusal.status, &refusal.sentence);
    }
    let path = parts.uri.path();
    if !path.starts_with("/api/") {
        return match assets::find(path) {
            Some(_) if !matches!(parts.method, Method::GET | Method::HEAD) => {
                answer::problem(StatusCode::METHOD_NOT_ALLOWED, "this is for looking at")
            }
            Some((_, media_type, text)) => answer::whole(StatusCode::OK, media_type, text),
            None => answer::problem(StatusCode::NOT_FOUND, "there is no such file"),
        };
    }
    let is_exchange = path == "/api/session" && parts.method == Method::POST;
    if !is_exchange && let Err(refusal) = access.check_cookie(&parts.headers) {
        return answer::problem(refusal.status, &refusal.sentence);
    }
    let body = match read(body).await {
        Ok(body) => body,
        Err(sentence) => return answer::problem(StatusCode::BAD_REQUEST, sentence),
    };
    if is_exchange {
        return exchange(access, &body);
    }
    route::answer_to(store, &parts, body).await
}

fn exchange(access: &Access, body: &Value) -> Answer {
    let cookie = access.exchange(body["token"].as_str().unwrap_or_default());
    match cookie.map(HeaderValue::try_from) {
        Ok(Ok(cookie)) => {
            let mut answer = answer::json(StatusCode::OK, &json!({}));
            answer.headers_mut().insert(SET_COOKIE, cookie);
            answer
        }
        Ok(Err(_)) => answer::problem(StatusCode::INTERNAL_SERVER_ERROR, "the cookie cannot be sent"),
        Err(refusal) => answer::problem(refusal.status, &refusal.sentence),
    }
}

async fn read(body: Incoming) -> Result<Value, &'static str> {
    let whole = tokio::time::timeout(BODY_TIME, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let Ok(Ok(whole)) = whole else { return Err("the body is too large, or did not arrive") };
    let bytes = whole.to_bytes();
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&bytes).map_err(|_| "the body is not JSON")
}

/// A browser opens six for a place; a dozen people may look.
const CONNECTIONS_MAX: usize = 128;
const HEADER_TIME: Duration = Duration::from_secs(30);
const HEADER_BYTES_MAX: usize = 64 * 1024;
const BODY_TIME: Duration = Duration::from_secs(30);
/// An item of the explorer has two megabytes at most.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
