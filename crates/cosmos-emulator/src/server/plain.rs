//! HTTP/1.1 as SDKs speak it: one request after another on a connection that stays open, bodies of a length that is
//! told. Nearly all requests are like that, and one read, one write and no map of headers serve them. Whatever else a
//! client says, in its first request or a later one, is for [`super::full`].

use std::future::Future;
use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::answer::Text as Answer;
use super::head::{self, Head, Progress, Text};
use super::life::{Life, News};
use super::prefixed::Prefixed;
use super::{BodyError, Gate, HEAD_BYTES_MAX, Handler, Limits, Received, Reset, UNASKED_BYTES_MAX};

/// How a connection ends.
pub(super) enum End<S> {
    Over,
    /// The client says something that is not plain; somebody else goes on.
    Other(Prefixed<S>, Life),
}

/// Serves a connection until it ends, or until something comes that is not plain.
pub(super) async fn serve<S, H>(io: S, handler: &H, gate: &Gate, life: Life, is_secure: bool) -> End<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    let presence = life.presence.clone();
    let mut talk = Talk::new(io, &gate.limits, life.clone());
    loop {
        let (text, length) = match talk.head().await {
            Next::Request(text, length) => (text, length),
            Next::Other => return End::Other(Prefixed { before: talk.inbox, io: talk.io }, life),
            Next::Over => return End::Over,
        };
        let _busy = presence.busy();
        let head = Head::of_text(text, is_secure);
        // What is small or came with its head is not asked about; the rest is only kept for clients that are let in.
        let is_here = length <= UNASKED_BYTES_MAX || talk.inbox.len() >= length;
        let is_wanted = is_here || handler.wants_body(&head);
        let Some((body, _room)) = talk.whole_body(length, is_wanted, gate).await else { return End::Over };
        // What was not read of a body would be taken for the next request.
        let is_last = matches!(body, Err(BodyError::TooSlow | BodyError::NoRoom | BodyError::Truncated));
        let handling = handler.handle::<Answer>(Received { head, body });
        let Some(Ok(answer)) = talk.wait(handling).await else { return End::Over };
        if !talk.send(answer, is_last).await {
            return End::Over;
        }
    }
}

/// One connection.
struct Talk<'a, S> {
    io: S,
    limits: &'a Limits,
    /// What has come and was not looked at.
    inbox: BytesMut,
    /// One wait for all requests: to begin one costs as much as to read a head. The same goes for the alarm.
    news: Pin<Box<dyn Future<Output = (News, Life)> + Send>>,
    alarm: Pin<Box<Sleep>>,
    waiting_since: Instant,
    is_leaving: bool,
    date: Date,
}

/// What a client says next.
enum Next {
    /// The head of a request, and how long its body is.
    Request(Text, usize),
    Other,
    /// It went away, took too long, or was told to leave.
    Over,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Talk<'a, S> {
    fn new(io: S, limits: &'a Limits, life: Life) -> Self {
        let waiting_since = Instant::now();
        Self {
            io,
            limits,
            inbox: BytesMut::with_capacity(READ_BYTES),
            news: Box::pin(life.next()),
            alarm: Box::pin(tokio::time::sleep_until(waiting_since + limits.head_timeout)),
            waiting_since,
            is_leaving: false,
            date: Date::default(),
        }
    }

    /// Waits for the head of the next request.
    async fn head(&mut self) -> Next {
        let mut known = 0;
        loop {
            if self.inbox.is_empty() {
                if self.is_leaving {
                    self.close().await;
                    return Next::Over;
                }
            } else if known == 0 || head::may_end(&self.inbox, known) {
                match head::take(&mut self.inbox, self.limits.body_bytes_max) {
                    Progress::Plain(text, length) => return Next::Request(text, length),
                    Progress::Incomplete => {}
                    Progress::Other => return Next::Other,
                }
            }
            known = self.inbox.len();
            if known > HEAD_BYTES_MAX {
                return Next::Other;
            }
            tokio::select! {
                biased;
                told = &mut self.news => {
                    let is_dismissed = told.0 == News::Dismissed;
                    if !self.hear(told) || is_dismissed {
                        return Next::Over;
                    }
                }
                more = fill(&mut self.io, &mut self.inbox) => if !more { return Next::Over },
                () = &mut self.alarm => {
                    let end = self.waiting_since + self.limits.head_timeout;
                    if Instant::now() >= end {
                        return Next::Over;
                    }
                    self.alarm.as_mut().reset(end);
                }
            }
        }
    }

    /// Waits for the rest of a body, and for the room it takes. None when the connection was cut.
    async fn whole_body(
        &mut self,
        length: usize,
        is_wanted: bool,
        gate: &Gate,
    ) -> Option<(Result<Bytes, BodyError>, Option<OwnedSemaphorePermit>)> {
        if self.inbox.len() >= length {
            return Some((Ok(self.inbox.split_to(length).freeze()), None));
        }
        let end = Instant::now() + self.limits.body_timeout;
        if !is_wanted {
            let thrown_away = self.throw_away(length, end).await?;
            return Some((thrown_away.and(Err(BodyError::Unwanted)), None));
        }
        let room = tokio::select! {
            room = tokio::time::timeout_at(end, super::room_for(&gate.room, length, self.limits)) => room,
            told = &mut self.news => {
                if !self.hear(told) {
                    return None;
                }
                tokio::time::timeout_at(end, super::room_for(&gate.room, length, self.limits)).await
            }
        };
        let Ok(room) = room else { return Some((Err(BodyError::NoRoom), None)) };
        Some((self.body(length, end).await?, room))
    }

    /// Reads a body that nobody wants, so that the client gets to read the refusal.
    async fn throw_away(&mut self, length: usize, end: Instant) -> Option<Result<(), BodyError>> {
        let mut left = length;
        loop {
            let here = self.inbox.len().min(left);
            self.inbox.advance(here);
            left -= here;
            if left == 0 {
                return Some(Ok(()));
            }
            match self.more(end).await? {
                Ok(()) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads what comes next of a body.
    async fn more(&mut self, end: Instant) -> Option<Result<(), BodyError>> {
        loop {
            tokio::select! {
                biased;
                told = &mut self.news => if !self.hear(told) { return None },
                more = tokio::time::timeout_at(end, fill(&mut self.io, &mut self.inbox)) => {
                    return Some(match more {
                        Ok(true) => Ok(()),
                        Ok(false) => Err(BodyError::Truncated),
                        Err(_) => Err(BodyError::TooSlow),
                    });
                }
            }
        }
    }

    /// Waits for the rest of a body. None when the connection was cut.
    async fn body(&mut self, length: usize, end: Instant) -> Option<Result<Bytes, BodyError>> {
        while self.inbox.len() < length {
            self.inbox.reserve(length - self.inbox.len());
            if let Err(error) = self.more(end).await? {
                return Some(Err(error));
            }
        }
        Some(Ok(self.inbox.split_to(length).freeze()))
    }

    /// Waits for an answer. None when the connection was cut, or the client has gone and does not want it any more.
    async fn wait(
        &mut self,
        handling: impl Future<Output = Result<Answer, Reset>>,
    ) -> Option<Result<Answer, Reset>> {
        let mut handling = std::pin::pin!(handling);
        loop {
            tokio::select! {
                // Most answers are there at once, and then nobody looks at the rest.
                biased;
                answer = &mut handling => return Some(answer),
                told = &mut self.news => if !self.hear(told) { return None },
                more = fill(&mut self.io, &mut self.inbox), if self.inbox.len() <= HEAD_BYTES_MAX => {
                    if !more {
                        return None;
                    }
                }
            }
        }
    }

    /// Sends an answer; false when it was the last.
    async fn send(&mut self, answer: Answer, is_last: bool) -> bool {
        let is_last = is_last || self.is_leaving;
        let Answer { status, mut head, mut body, is_dated } = answer;
        if !is_dated {
            head.extend_from_slice(self.date.line());
        }
        if !matches!(status, 204 | 304) {
            head.extend_from_slice(b"content-length: ");
            head.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(if is_last { b"connection: close\r\n\r\n" } else { b"\r\n" });
        if body.len() <= COPIED_BYTES_MAX {
            head.extend_from_slice(&body);
            body.clear();
        }
        for mut part in [head.as_slice(), &body] {
            while !part.is_empty() {
                tokio::select! {
                    biased;
                    // Not `write_buf`: it writes lists of parts, which takes the system longer.
                    written = self.io.write(part) => match written {
                        Ok(count @ 1..) => part = &part[count..],
                        Ok(0) | Err(_) => return false,
                    },
                    told = &mut self.news => if !self.hear(told) { return false },
                }
            }
        }
        if self.io.flush().await.is_err() {
            return false;
        }
        if is_last {
            self.close().await;
        }
        self.waiting_since = Instant::now();
        !is_last
    }

    /// Takes note of news; false when the connection ends at once.
    fn hear(&mut self, (news, life): (News, Life)) -> bool {
        self.is_leaving = true;
        self.news = Box::pin(life.next());
        news != News::Cut
    }

    async fn close(&mut self) {
        // A client that has gone does not need to be told.
        let _ = self.io.shutdown().await;
    }
}

/// Reads what has come; false when nothing more will.
async fn fill<S: AsyncRead + Unpin>(io: &mut S, inbox: &mut BytesMut) -> bool {
    if inbox.capacity() - inbox.len() < READ_BYTES_MIN {
        inbox.reserve(READ_BYTES);
    }
    matches!(io.read_buf(inbox).await, Ok(1..))
}

/// Room for what a client says at once.
const READ_BYTES: usize = 8 * 1024;
/// With less, more is made.
const READ_BYTES_MIN: usize = 2 * 1024;
/// A body up to this length goes out with its head, in one piece.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// The header that says what time it is, made once a second.
#[derive(Default)]
struct Date {
    second: u64,
    line: Vec<u8>,
}

impl Date {
    fn line(&mut self) -> &[u8] {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second {
            self.second = second;
            self.line = format!("date: {}\r\n", cosmos_wire::date::format(now)).into_bytes();
        }
        &self.line
    }
}
