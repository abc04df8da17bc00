//! One HTTP/2 connection, driven directly on `h2`: what was refused, reset or never sent is known exactly.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::uri::Parts;
use http::{Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::connect::PingPolicy;
use super::{
    Address, Call, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, Progress, Sent,
    check_size,
};
use crate::clock::Clock;

pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    address: Address,
    response_bytes_max: usize,
    shared: Arc<Shared>,
    clock: Clock,
}

/// What the connection's task and its callers both see.
struct Shared {
    closed: AtomicBool,
    /// A ping is waiting for its answer.
    suspect: AtomicBool,
    kill: Notify,
    /// The ping is overdue: who can go elsewhere should.
    doubt: Notify,
    in_flight: AtomicU64,
    /// Tick of the last sign of life, or of the moment the connection became busy.
    heard: AtomicU64,
}

impl Http2 {
    /// Opens HTTP/2 on a fresh stream; a PING answered proves that the peer speaks it.
    pub(super) async fn handshake<S>(
        stream: S,
        address: &Address,
        ping: PingPolicy,
        response_bytes_max: usize,
        clock: Clock,
    ) -> Result<Self, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let refused = |e: h2::Error| HttpError::new(HttpErrorKind::Connect, Sent::No, e.to_string());
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_BYTES_MAX)
            .enable_push(false)
            .handshake(stream)
            .await
            .map_err(refused)?;
        let mut pings = connection.ping_pong().expect("asked for once, right after the handshake");
        first_ping(&mut connection, &mut pings, ping.first_answer_within).await?;
        let shared = Arc::new(Shared {
            closed: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            kill: Notify::new(),
            doubt: Notify::new(),
            in_flight: AtomicU64::new(0),
            heard: AtomicU64::new(clock.tick_ms()),
        });
        tokio::spawn(drive(connection, pings, shared.clone(), ping, clock.clone()));
        Ok(Self { sender, address: address.clone(), response_bytes_max, shared, clock })
    }

    async fn exchange(&self, request: HttpRequest, progress: &Progress) -> Result<HttpResponse, HttpError> {
        let _busy = Busy::enter(&self.shared, &self.clock);
        let mut parts = Parts::default();
        parts.scheme = Some(self.address.scheme.clone());
        parts.authority = Some(self.address.authority.clone());
        parts.path_and_query = Some(request.path);
        let uri = Uri::from_parts(parts)
            .map_err(|e| HttpError::new(HttpErrorKind::Protocol, Sent::No, e.to_string()))?;
        let mut message = http::Request::new(());
        *message.method_mut() = request.method;
        *message.uri_mut() = uri;
        *message.version_mut() = Version::HTTP_2;
        *message.headers_mut() = request.headers;
        let mut sender = self.sender.clone().ready().await.map_err(|e| broken(&e, Sent::No))?;
        let is_head_only = request.before_body.is_empty() && request.body.is_empty();
        let (answer, mut stream) =
            sender.send_request(message, is_head_only).map_err(|e| broken(&e, Sent::No))?;
        progress.mark_sent();
        if !request.before_body.is_empty() {
            let is_last = request.body.is_empty();
            stream.send_data(request.before_body, is_last).map_err(|e| broken(&e, Sent::Unknown))?;
        }
        if !request.body.is_empty() {
            stream.send_data(request.body, true).map_err(|e| broken(&e, Sent::Unknown))?;
        }
        let response = if request.may_leave {
            tokio::select! {
                biased;
                answered = answer => answered,
                () = self.shared.doubt.notified() => {
                    let why = "the connection owes the answer to a ping";
                    return Err(HttpError::new(HttpErrorKind::Closed, Sent::Unknown, why));
                }
            }
        } else {
            answer.await
        };
        let response = response.map_err(|e| broken(&e, Sent::Unknown))?;
        self.shared.heard.store(self.clock.tick_ms(), Ordering::Relaxed);
        progress.mark_head();
        let (head, body) = response.into_parts();
        let body = collect(body, self.response_bytes_max).await?;
        Ok(HttpResponse { status: head.status, headers: head.headers, body })
    }
}

impl HttpService for Http2 {
    fn call<'a>(&'a self, request: HttpRequest, progress: &'a Progress) -> Call<'a> {
        Box::pin(self.exchange(request, progress))
    }

    fn capacity(&self) -> u32 {
        u32::try_from(self.sender.current_max_send_streams()).unwrap_or(u32::MAX)
    }

    fn is_suspect(&self) -> bool {
        self.shared.suspect.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        self.shared.kill.notify_one();
    }
}

/// Counts a stream while it is open, also when its caller goes away.
struct Busy<'a>(&'a Shared);

impl<'a> Busy<'a> {
    fn enter(shared: &'a Shared, clock: &Clock) -> Self {
        if shared.in_flight.fetch_add(1, Ordering::Relaxed) == 0 {
            shared.heard.store(clock.tick_ms(), Ordering::Relaxed);
        }
        Self(shared)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn first_ping<S>(
    connection: &mut Connection<S, Bytes>,
    pings: &mut PingPong,
    within: Duration,
) -> Result<(), HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let answered = timeout(within, async {
        tokio::select! {
            pong = pings.ping(Ping::opaque()) => pong.map(|_| ()).map_err(|e| e.to_string()),
            ended = connection => Err(ended.err().map_or_else(|| "closed".to_owned(), |e| e.to_string())),
        }
    });
    let why = match answered.await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(why)) => why,
        Err(_) => format!("no answer to an HTTP/2 ping within {within:?}"),
    };
    Err(HttpError::new(HttpErrorKind::Connect, Sent::No, why))
}

/// Owns the connection: moves its frames, asks for life signs, ends it when told.
async fn drive<S>(
    connection: Connection<S, Bytes>,
    pings: PingPong,
    shared: Arc<Shared>,
    policy: PingPolicy,
    clock: Clock,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "HTTP/2 connection ended");
        },
        () = watch(pings, &shared, policy, clock) => tracing::debug!("HTTP/2 peer went silent"),
        () = shared.kill.notified() => {}
    }
    shared.closed.store(true, Ordering::Relaxed);
}

/// Returns when the peer did not answer a ping in time. A busy connection is asked after a short silence, an idle
/// one now and then.
async fn watch(mut pings: PingPong, shared: &Shared, policy: PingPolicy, clock: Clock) {
    let mut last_ping = clock.tick_ms();
    loop {
        sleep(policy.busy_after / 2).await;
        let now = clock.tick_ms();
        let heard = shared.heard.load(Ordering::Relaxed).max(last_ping);
        let busy = shared.in_flight.load(Ordering::Relaxed) > 0;
        let patience = if busy { policy.busy_after } else { policy.idle_every };
        if u128::from(now.saturating_sub(heard)) < patience.as_millis() {
            continue;
        }
        shared.suspect.store(true, Ordering::Relaxed);
        let mut pong = pin!(pings.ping(Ping::opaque()));
        let doubt_after = policy.answer_within / DOUBT_SHARE;
        let mut answered = timeout(doubt_after, pong.as_mut()).await;
        if answered.is_err() {
            shared.doubt.notify_waiters();
            answered = timeout(policy.answer_within - doubt_after, pong).await;
        }
        match answered {
            Ok(Ok(_)) => {
                last_ping = clock.tick_ms();
                shared.suspect.store(false, Ordering::Relaxed);
            }
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

async fn collect(mut body: RecvStream, bytes_max: usize) -> Result<Bytes, HttpError> {
    let Some(first) = next_data(&mut body).await? else { return Ok(Bytes::new()) };
    check_size(first.len() as u64, bytes_max)?;
    if body.is_end_stream() {
        return Ok(first);
    }
    let Some(second) = next_data(&mut body).await? else { return Ok(first) };
    let mut joined = BytesMut::with_capacity((first.len() + second.len()) * 2);
    joined.extend_from_slice(&first);
    joined.extend_from_slice(&second);
    while let Some(more) = next_data(&mut body).await? {
        check_size((joined.len() + more.len()) as u64, bytes_max)?;
        joined.extend_from_slice(&more);
    }
    check_size(joined.len() as u64, bytes_max)?;
    Ok(joined.freeze())
}

async fn next_data(body: &mut RecvStream) -> Result<Option<Bytes>, HttpError> {
    let gone = |e| broken(&e, Sent::Unknown);
    let Some(data) = body.data().await.transpose().map_err(gone)? else { return Ok(None) };
    // The window is given back at once: the whole answer is wanted, up to the limit its collector has.
    body.flow_control().release_capacity(data.len()).map_err(gone)?;
    Ok(Some(data))
}

/// Refused streams, and streams above the last one a GOAWAY names, were not looked at by the peer.
fn broken(error: &h2::Error, sent: Sent) -> HttpError {
    let refused = error.reason() == Some(Reason::REFUSED_STREAM) && error.is_remote();
    let turned_away = error.is_go_away() && error.is_remote();
    let (kind, sent) = if refused || turned_away {
        (HttpErrorKind::Refused, Sent::No)
    } else if error.is_io() || (error.is_reset() && error.is_remote()) {
        (HttpErrorKind::Closed, sent)
    } else {
        (HttpErrorKind::Protocol, sent)
    };
    HttpError::new(kind, sent, error.to_string())
}

/// After this part of a ping's time, requests that may be repeated are.
const DOUBT_SHARE: u32 = 4;
/// Answers of up to 4 MB should not wait for window updates more than a few times.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const HEADER_BYTES_MAX: u32 = 64 << 10;
