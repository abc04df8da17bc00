//! A small HTTP/1.1 client that signs, so that nothing between the checker and the server mends anything.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use cosmos_wire::resource::Link;
use cosmos_wire::signature::{Key, Signable};
use serde_json::Value;

/// Longer than any answer takes; only a bug waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(super) fn sub_status(&self) -> u32 {
        self.header("x-ms-substatus").parse().unwrap_or(0)
    }

    /// The body; null when there is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Status, sub-status and the beginning of the body, for people.
    pub(super) fn brief(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let text: String = text.chars().take(160).collect();
        format!("{}/{} {text}", self.status, self.sub_status())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nobody listens: the request was not sent.
    Refused,
    /// The connection broke: the request may have been served.
    Broken,
}

/// One connection, opened when needed.
#[derive(Debug)]
pub(super) struct Connection {
    host: String,
    stream: Option<BufReader<TcpStream>>,
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Value,
}

impl Request {
    pub(super) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: Value::Null }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(super) fn key(self, key: &str) -> Self {
        self.header("x-ms-documentdb-partitionkey", serde_json::json!([key]).to_string())
    }

    pub(super) fn json(mut self, body: Value) -> Self {
        self.body = body;
        self
    }
}

impl Connection {
    pub(super) fn new(endpoint: &str) -> Self {
        let host = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { host, stream: None }
    }

    /// Sends a request, signed with the well-known key, and reads the answer.
    pub(super) fn send(&mut self, request: &Request) -> Result<Answer, Silence> {
        if self.stream.is_none() {
            self.stream = Some(connect(&self.host).map_err(|_| Silence::Refused)?);
        }
        let text = self.text(request);
        let Some(stream) = self.stream.as_mut() else { return Err(Silence::Refused) };
        let answer = stream.get_mut().write_all(&text).and_then(|()| read_answer(stream));
        if answer.as_ref().map_or(true, |answer| answer.header("connection") == "close") {
            self.stream = None;
        }
        answer.map_err(|_| Silence::Broken)
    }

    fn text(&self, request: &Request) -> Vec<u8> {
        let body = if request.body.is_null() { String::new() } else { request.body.to_string() };
        let mut head = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\nx-ms-version: 2020-07-15\r\ncontent-length: {}\r\n",
            request.method,
            request.path,
            self.host,
            body.len()
        );
        if let Ok(link) = Link::parse(&request.path) {
            let date = cosmos_wire::date::format(SystemTime::now());
            let key = Key::from_base64(cosmos_wire::EMULATOR_KEY).expect("the well-known key is base64");
            let signed = link.signed_link();
            let token = key.authorization(&Signable::new(request.method, link.signed_type(), &signed, &date));
            head.push_str(&format!("x-ms-date: {date}\r\nauthorization: {token}\r\n"));
        }
        for (name, value) in &request.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.push_str(&body);
        head.into_bytes()
    }
}

/// A request to the management port, which must be answered with success.
pub(super) fn manage(management: &str, request: &Request) -> anyhow::Result<Value> {
    let answer = Connection::new(management)
        .send(request)
        .map_err(|silence| anyhow::anyhow!("the management port is silent: {silence:?}"))?;
    anyhow::ensure!(answer.status < 300, "{} {}: {}", request.method, request.path, answer.brief());
    Ok(answer.json())
}

fn connect(host: &str) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(host)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(stream))
}

fn read_answer(stream: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status =
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_owned(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|text: &String| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Answer { status, headers, body })
}

/// The endpoint in a ready line or a list of regions.
pub(super) fn text(value: &Value) -> anyhow::Result<String> {
    value.as_str().map(str::to_owned).context("a text is missing in an answer of the management port")
}
