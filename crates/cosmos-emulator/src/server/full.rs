//! HTTP/2, and HTTP/1.1 with everything that clients may do: by hyper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::head::{Head, names_one_host};
use super::life::{Life, News};
use super::{BodyError, Gate, HEAD_BYTES_MAX, Handler, Limits, Received, Reset, UNASKED_BYTES_MAX};

/// Streams one HTTP/2 connection may have open, as the service advertises.
const STREAMS_MAX: u32 = 20;
/// How much of an oversized body is read and thrown away so that the client gets to read the refusal.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Serves a connection until it ends or is told to leave.
pub(super) async fn serve<H: Handler>(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    handler: Arc<H>,
    gate: &Gate,
    life: Life,
    is_secure: bool,
) {
    let limits = Arc::new(gate.limits.clone());
    let presence = life.presence.clone();
    let spoken = Arc::new(AtomicBool::new(false));
    let service = {
        let (limits, spoken, presence) = (limits.clone(), spoken.clone(), presence.clone());
        let room = gate.room.clone();
        service_fn(move |request: Request<Incoming>| {
            spoken.store(true, Ordering::Relaxed);
            let (handler, limits, room, busy) =
                (handler.clone(), limits.clone(), room.clone(), presence.busy());
            async move {
                let (parts, body) = request.into_parts();
                if !names_one_host(&parts) {
                    return Ok(host_missing());
                }
                let head = Head::of_parts(parts, is_secure);
                let (body, room) = receive(body, || handler.wants_body(&head), &limits, &room).await;
                let _held = (busy, room);
                let request = Received { head, body };
                let answer: Response<Bytes> = handler.handle(request).await?;
                Ok::<_, Reset>(answer.map(Full::new))
            }
        })
    };
    let builder = builder(&limits);
    let builder = if gate.is_http2_only { builder.http2_only() } else { builder };
    let serving = builder.serve_connection(TokioIo::new(io), service);
    let mut serving = std::pin::pin!(serving);
    let mut news = std::pin::pin!(life.next());
    // hyper's own timer starts when it knows the protocol; a client that never says a word is ended here.
    let mut silence = std::pin::pin!(tokio::time::sleep(limits.head_timeout));
    let mut is_heard = false;
    loop {
        tokio::select! {
            ended = &mut serving => return log_end(ended),
            () = &mut silence, if !is_heard => {
                is_heard = true;
                if !spoken.load(Ordering::Relaxed) {
                    return;
                }
            }
            (told, life) = &mut news => {
                if told == News::Cut || (told == News::Dismissed && presence.is_idle()) {
                    return;
                }
                news.set(life.next());
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

fn host_missing() -> Response<Full<Bytes>> {
    let text = r#"{"code":"BadRequest","message":"A request names one host: send the header Host once."}"#;
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = http::StatusCode::BAD_REQUEST;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(8 * 1024 * 1024);
    builder
}

fn log_end(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Reads a body. A small one is read as it comes; for the rest of a larger one the client must be let in and there must
/// be room, and what nobody wants is thrown away.
async fn receive(
    mut body: Incoming,
    is_wanted: impl FnOnce() -> bool,
    limits: &Limits,
    room: &Arc<Semaphore>,
) -> (Result<Bytes, BodyError>, Option<OwnedSemaphorePermit>) {
    let end = Instant::now() + limits.body_timeout;
    let mut read = Collected::default();
    match collect(&mut body, &mut read, limits.body_bytes_max, UNASKED_BYTES_MAX, end).await {
        Ok(true) => return (read.finish(), None),
        Ok(false) => {}
        Err(error) => return (Err(error), None),
    }
    if !is_wanted() {
        // With nothing allowed, nothing is kept.
        return match collect(&mut body, &mut read, 0, usize::MAX, end).await {
            Ok(_) | Err(BodyError::TooLarge) => (Err(BodyError::Unwanted), None),
            Err(error) => (Err(error), None),
        };
    }
    // A length that is not told may be anything that is allowed.
    let length = body.size_hint().upper().unwrap_or(u64::MAX);
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(limits.body_bytes_max);
    let Ok(room) = tokio::time::timeout_at(end, super::room_for(room, length, limits)).await else {
        return (Err(BodyError::NoRoom), None);
    };
    match collect(&mut body, &mut read, limits.body_bytes_max, usize::MAX, end).await {
        Ok(_) => (read.finish(), room),
        Err(error) => (Err(error), None),
    }
}

/// Reads on until the body ends, which is true, or enough of it is there. Nothing is kept beyond the limit.
async fn collect(
    body: &mut Incoming,
    read: &mut Collected,
    bytes_max: usize,
    enough: usize,
    end: Instant,
) -> Result<bool, BodyError> {
    while read.total <= enough {
        let frame = tokio::time::timeout_at(end, body.frame());
        let frame = match frame.await.map_err(|_| BodyError::TooSlow)? {
            Some(frame) => frame.map_err(|_| BodyError::Truncated)?,
            None => return Ok(true),
        };
        if let Ok(data) = frame.into_data()
            && !read.push(data, bytes_max)
        {
            return Err(BodyError::TooLarge);
        }
    }
    Ok(false)
}

/// The parts of a body: nothing is copied when it comes in one piece, nothing is kept once it is too large.
#[derive(Default)]
struct Collected {
    first: Bytes,
    rest: BytesMut,
    total: usize,
    over: bool,
}

impl Collected {
    /// False when even throwing the rest away would take too long.
    fn push(&mut self, data: Bytes, limit: usize) -> bool {
        self.total = self.total.saturating_add(data.len());
        self.over |= self.total > limit;
        if self.over {
            self.first = Bytes::new();
            self.rest = BytesMut::new();
            return self.total <= DRAIN_BYTES_MAX;
        }
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = data;
        } else {
            if self.rest.is_empty() {
                self.rest.extend_from_slice(&self.first);
            }
            self.rest.extend_from_slice(&data);
        }
        true
    }

    fn finish(self) -> Result<Bytes, BodyError> {
        match (self.over, self.rest.is_empty()) {
            (true, _) => Err(BodyError::TooLarge),
            (false, true) => Ok(self.first),
            (false, false) => Ok(self.rest.freeze()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_in_one_piece_is_not_copied() {
        let data = Bytes::from(vec![7_u8; 100]);
        let mut read = Collected::default();
        assert!(read.push(data.clone(), 1000));
        assert_eq!(read.finish().unwrap().as_ptr(), data.as_ptr());
    }

    #[test]
    fn pieces_are_joined_in_order() {
        let mut read = Collected::default();
        for piece in ["a", "", "bc", "d"] {
            assert!(read.push(Bytes::from_static(piece.as_bytes()), 10));
        }
        assert_eq!(read.finish().unwrap(), "abcd");
    }

    #[test]
    fn a_large_body_is_read_but_not_kept() {
        let mut read = Collected::default();
        let piece = Bytes::from(vec![0_u8; 1024]);
        for _ in 0..100 {
            assert!(read.push(piece.clone(), 4096));
            assert!(read.rest.len() <= 4096);
        }
        assert_eq!(read.finish(), Err(BodyError::TooLarge));
    }
}
