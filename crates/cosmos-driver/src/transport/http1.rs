//! One HTTP/1.1 connection: one request at a time.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::HOST;
use http::{HeaderValue, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use super::{
    Address, Call, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, Progress, Sent,
    check_size,
};

pub(super) struct Http1 {
    // Locked only inside a poll or a call, never across an await; the slot count keeps other callers out.
    sender: Mutex<SendRequest<Full<Bytes>>>,
    host: HeaderValue,
    response_bytes_max: usize,
    shared: Arc<Shared>,
}

/// What the connection's task and its callers both see.
#[derive(Default)]
struct Shared {
    closed: AtomicBool,
    kill: Notify,
}

impl Http1 {
    pub(super) async fn handshake<S>(
        stream: S,
        address: &Address,
        response_bytes_max: usize,
    ) -> Result<Self, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let broken = |e: hyper::Error| HttpError::new(HttpErrorKind::Connect, Sent::No, e.to_string());
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "HTTP/1.1 connection ended");
                },
                () = seen.kill.notified() => {}
            }
            seen.closed.store(true, Ordering::Relaxed);
        });
        let host = HeaderValue::from_str(address.authority.as_str())
            .map_err(|e| HttpError::new(HttpErrorKind::Connect, Sent::No, e.to_string()))?;
        Ok(Self { sender: Mutex::new(sender), host, response_bytes_max, shared })
    }

    async fn exchange(
        &self,
        mut request: HttpRequest,
        progress: &Progress,
    ) -> Result<HttpResponse, HttpError> {
        request.headers.insert(HOST, self.host.clone());
        let mut message = http::Request::new(Full::new(request.body));
        *message.method_mut() = request.method;
        *message.uri_mut() = Uri::from(request.path);
        *message.headers_mut() = request.headers;
        let lock = || self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        poll_fn(|cx| lock().poll_ready(cx)).await.map_err(|e| closed(&e, Sent::No))?;
        progress.mark_sent();
        let answer = lock().try_send_request(message);
        let response = answer.await.map_err(|mut e| {
            let sent = if e.take_message().is_some() { Sent::No } else { Sent::Unknown };
            closed(e.error(), sent)
        })?;
        progress.mark_head();
        let (head, body) = response.into_parts();
        let body = collect(body, self.response_bytes_max).await?;
        Ok(HttpResponse { status: head.status, headers: head.headers, body })
    }
}

impl HttpService for Http1 {
    fn call<'a>(&'a self, request: HttpRequest, progress: &'a Progress) -> Call<'a> {
        Box::pin(self.exchange(request, progress))
    }

    fn capacity(&self) -> u32 {
        1
    }

    fn is_suspect(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.kill.notify_one();
    }
}

fn closed(error: &hyper::Error, sent: Sent) -> HttpError {
    let kind = if error.is_parse() { HttpErrorKind::Protocol } else { HttpErrorKind::Closed };
    HttpError::new(kind, sent, error.to_string())
}

/// A body in one frame is passed on as it is; more frames are joined once.
async fn collect(mut body: Incoming, bytes_max: usize) -> Result<Bytes, HttpError> {
    check_size(body.size_hint().lower(), bytes_max)?;
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0);
    let Some(first) = next_data(&mut body).await? else { return Ok(Bytes::new()) };
    check_size(first.len() as u64, bytes_max)?;
    if first.len() >= expected && body.is_end_stream() {
        return Ok(first);
    }
    let Some(second) = next_data(&mut body).await? else { return Ok(first) };
    let mut joined = BytesMut::with_capacity(room(expected, first.len() + second.len()));
    joined.extend_from_slice(&first);
    joined.extend_from_slice(&second);
    while let Some(more) = next_data(&mut body).await? {
        check_size((joined.len() + more.len()) as u64, bytes_max)?;
        joined.extend_from_slice(&more);
    }
    check_size(joined.len() as u64, bytes_max)?;
    Ok(joined.freeze())
}

/// What to set aside for a body: as much as is announced, but not on the peer's word alone. Pure.
fn room(expected: usize, received: usize) -> usize {
    expected.min(ROOM_MAX).max(received)
}

/// As large as a page of a feed gets; a larger body grows.
const ROOM_MAX: usize = 4 << 20;

async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, HttpError> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| closed(&e, Sent::Unknown))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_cannot_reserve_memory_by_announcing_a_body() {
        let cases = [
            (0, 10, 10),
            (100, 10, 100),
            (ROOM_MAX, 10, ROOM_MAX),
            (usize::MAX, 10, ROOM_MAX),
            (usize::MAX, ROOM_MAX + 1, ROOM_MAX + 1),
        ];
        for (expected, received, set_aside) in cases {
            assert_eq!(room(expected, received), set_aside, "{expected} announced, {received} received");
        }
    }
}
