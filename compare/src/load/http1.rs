//! HTTP/1.1 on one thread, without a client library and without tasks: a server that uses all processors shares them
//! with its client, and what the client takes is missing in the server's figures. A request costs one send and mostly
//! one receive; what else is needed was made before, and is used again.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::epoll;

use super::{Call, Calls, Expected, Measured, Signer};

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Room for an answer, at first.
const INBOX_BYTES: usize = 64 * 1024;
/// The longest answer.
const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Room for times of answers, so that there is no pause to make more.
const TIMES: usize = 1 << 20;

/// A kept-alive connection. It blocks; [`Waiting`] tells when it would not.
pub(super) struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// How much of the inbox has come.
    filled: usize,
}

/// One answer as it lies in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    status: u16,
    /// Where the body begins.
    body: usize,
    /// Where the next answer would begin.
    end: usize,
    keeps: bool,
}

impl Connection {
    pub(super) fn open(host: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream, inbox: vec![0; INBOX_BYTES], filled: 0 })
    }

    /// Sends one call and reads the whole answer.
    pub(super) fn ask(&mut self, signer: &Signer, call: &Call, expected: Expected<'_>) -> anyhow::Result<()> {
        let mut text = opening(signer, call);
        push_rest(&mut text, call);
        self.stream.write_all(&text)?;
        loop {
            if let Some(keeps) = self.receive(expected)? {
                if !keeps {
                    *self = Self::open(&signer.host)?;
                }
                return Ok(());
            }
        }
    }

    /// Takes what has come. Once that is a whole answer of an expected status, says whether the connection stays open.
    fn receive(&mut self, expected: Expected<'_>) -> anyhow::Result<Option<bool>> {
        loop {
            let count = match self.stream.read(&mut self.inbox[self.filled..]) {
                Ok(0) => bail!("the server closed the connection in the middle of an answer"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("waiting for an answer"),
            };
            self.filled += count;
            if let Some(answer) = Answer::parse(&self.inbox[..self.filled])? {
                if answer.end != self.filled {
                    bail!("the server sent more than it was asked for");
                }
                expected.check(answer.status, &self.inbox[answer.body..answer.end])?;
                self.filled = 0;
                return Ok(Some(answer.keeps));
            }
            if self.filled < self.inbox.len() {
                return Ok(None);
            }
            if self.filled >= INBOX_BYTES_MAX {
                bail!("the answer is too long");
            }
            self.inbox.resize(2 * self.filled, 0);
        }
    }
}

impl Answer {
    /// The answer, if all of it has come. Reads what a client must know and skips the rest: two dozen headers would be
    /// most of its work.
    fn parse(bytes: &[u8]) -> anyhow::Result<Option<Self>> {
        let mut length = Length::Bytes(0);
        let (mut keeps, mut status) = (true, None);
        for at in memchr::memchr_iter(b'\n', bytes) {
            if status.is_none() {
                let digits = bytes.get(9..12).filter(|_| bytes.starts_with(b"HTTP/1.1 "));
                status = Some(number(digits.context("a status line")?)?);
            }
            let line = &bytes[at + 1..];
            match line {
                [b'\r', b'\n', ..] => {
                    let body = at + 3;
                    let end = match length {
                        Length::Bytes(length) => {
                            Some(body.saturating_add(length)).filter(|end| *end <= bytes.len())
                        }
                        Length::Chunks => end_of_chunks(bytes, body)?,
                    };
                    let status = status.unwrap_or_default();
                    return Ok(end.map(|end| Self { status, body, end, keeps }));
                }
                // The names that matter begin with these.
                [b'c' | b'C' | b't' | b'T', ..] => {}
                _ => continue,
            }
            // The end of the head has not come, so the line may be half a line: it is read again with the rest.
            if let Some(text) = value(line, b"content-length:") {
                length = Length::Bytes(number(text)?);
            } else if value(line, b"transfer-encoding:")
                .is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
            {
                length = Length::Chunks;
            } else if value(line, b"connection:").is_some_and(|option| option.eq_ignore_ascii_case(b"close"))
            {
                keeps = false;
            }
        }
        Ok(None)
    }
}

enum Length {
    Bytes(usize),
    Chunks,
}

/// The value of a header, if the line is whole and begins with this name.
fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    let end = start.eq_ignore_ascii_case(name).then(|| memchr::memchr(b'\r', rest)).flatten()?;
    Some(rest[..end].trim_ascii())
}

fn number<N: std::str::FromStr>(digits: &[u8]) -> anyhow::Result<N> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.context("a number in the head of an answer")
}

/// Where the last chunk ends, if it has come.
fn end_of_chunks(bytes: &[u8], mut at: usize) -> anyhow::Result<Option<usize>> {
    loop {
        let Some(digits) = memchr::memmem::find(&bytes[at..], b"\r\n") else { return Ok(None) };
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[at..at + digits])?.trim(), 16)?;
        at = at.saturating_add(digits + 2 + 2).saturating_add(length);
        if at > bytes.len() {
            return Ok(None);
        }
        if length == 0 {
            return Ok(Some(at));
        }
    }
}

/// The start of a request: what is signed, and what all calls to a resource share.
fn opening(signer: &Signer, call: &Call) -> Vec<u8> {
    let Signer { host, date, .. } = signer;
    format!(
        "{} {} HTTP/1.1\r\nhost: {host}\r\nx-ms-date: {date}\r\nx-ms-version: 2020-07-15\r\nauthorization: {}\r\n",
        call.method,
        call.path,
        signer.authorization(call),
    )
    .into_bytes()
}

/// The rest of a request.
fn push_rest(text: &mut Vec<u8>, call: &Call) {
    for (name, value) in &call.headers {
        for part in [name, ": ", value, "\r\n"] {
            text.extend_from_slice(part.as_bytes());
        }
    }
    // A list in memory takes everything.
    let _ = write!(text, "content-length: {}\r\n\r\n", call.body.len());
    text.extend_from_slice(&call.body);
}

/// Requests as bytes, one after another.
enum Requests {
    Cycle(Vec<Vec<u8>>),
    Fresh { call: Call, change: std::sync::Arc<super::Change>, opening: usize, text: Vec<u8> },
}

impl Requests {
    fn new(signer: &Signer, calls: Calls) -> Self {
        match calls {
            Calls::Cycle(calls) => Self::Cycle(
                calls
                    .iter()
                    .map(|call| {
                        let mut text = opening(signer, call);
                        push_rest(&mut text, call);
                        text
                    })
                    .collect(),
            ),
            Calls::Fresh(call, change) => {
                let text = opening(signer, &call);
                Self::Fresh { call, change, opening: text.len(), text }
            }
        }
    }

    fn get(&mut self, n: usize) -> &[u8] {
        match self {
            Self::Cycle(texts) => &texts[n % texts.len()],
            Self::Fresh { call, change, opening, text } => {
                change(n as u64, call);
                text.truncate(*opening);
                push_rest(text, call);
                text
            }
        }
    }
}

/// Sends calls on all connections for a while, and waits for the answers to all of them.
pub(super) fn measure(
    connections: &mut [Connection],
    signer: &Signer,
    span: Duration,
    expected: Expected<'_>,
    calls: Calls,
) -> anyhow::Result<Measured> {
    let mut requests = Requests::new(signer, calls);
    let mut waiting = Waiting::new(connections)?;
    let mut times = Vec::with_capacity(TIMES);
    let started = Instant::now();
    let mut sent_at = vec![started; connections.len()];
    for (n, connection) in connections.iter_mut().enumerate() {
        connection.stream.write_all(requests.get(n))?;
    }
    let mut ready = Vec::with_capacity(connections.len());
    let (mut sent, mut open) = (connections.len(), connections.len());
    while open > 0 {
        waiting.fill(&mut ready)?;
        for index in ready.drain(..) {
            let connection = &mut connections[index];
            let Some(keeps) = connection.receive(expected)? else { continue };
            let now = Instant::now();
            times.push(now - sent_at[index]);
            // Some servers close after each answer; a client then connects again.
            if !keeps {
                *connection = Connection::open(&signer.host)?;
                waiting.add(connection, index)?;
            }
            if now - started >= span {
                open -= 1;
                continue;
            }
            let text = requests.get(sent);
            sent_at[index] = Instant::now();
            connection.stream.write_all(text)?;
            sent += 1;
        }
    }
    Measured::new(times, started.elapsed())
}

/// Tells which connections have something to read.
struct Waiting {
    /// None for a single connection, whose read waits by itself.
    epoll: Option<OwnedFd>,
    events: Vec<epoll::Event>,
}

impl Waiting {
    fn new(connections: &[Connection]) -> anyhow::Result<Self> {
        let epoll = match connections {
            [_] => None,
            _ => Some(epoll::create(epoll::CreateFlags::CLOEXEC)?),
        };
        let waiting = Self { epoll, events: Vec::with_capacity(connections.len()) };
        for (index, connection) in connections.iter().enumerate() {
            waiting.add(connection, index)?;
        }
        Ok(waiting)
    }

    /// A connection that is closed leaves by itself.
    fn add(&self, connection: &Connection, index: usize) -> anyhow::Result<()> {
        if let Some(epoll) = &self.epoll {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(epoll, &connection.stream, epoll::EventData::new_u64(index as u64), flags)?;
        }
        Ok(())
    }

    /// Waits until there are some.
    fn fill(&mut self, ready: &mut Vec<usize>) -> anyhow::Result<()> {
        let Some(epoll) = &self.epoll else {
            ready.push(0);
            return Ok(());
        };
        let limit = ANSWER_TIMEOUT.try_into()?;
        self.events.clear();
        rustix::io::retry_on_intr(|| {
            epoll::wait(epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&limit))
        })?;
        if self.events.is_empty() {
            bail!("no answer in {ANSWER_TIMEOUT:?}");
        }
        ready.extend(self.events.iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Answer> {
        Answer::parse(text.as_bytes()).expect("an answer")
    }

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let plain = "HTTP/1.1 201 Created\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc";
        let chunks = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nConnection: close\r\n\r\n\
                      2\r\n\r\n\r\na\r\n0123456789\r\n0\r\n\r\n";
        let empty = "HTTP/1.1 204 No Content\r\nx: y\r\n\r\n";
        for (text, status, keeps) in [(plain, 201, true), (chunks, 200, false), (empty, 204, true)] {
            for end in 0..text.len() {
                assert_eq!(parse(&text[..end]), None, "{}", &text[..end]);
            }
            let answer = parse(text).expect("all of it");
            assert_eq!((answer.status, answer.end, answer.keeps), (status, text.len(), keeps));
            assert_eq!(answer.body, text.find("\r\n\r\n").expect("the end of the head") + 4);
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in
            ["nonsense\r\n\r\n", "HTTP/1.1 OK\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"]
        {
            assert!(Answer::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
