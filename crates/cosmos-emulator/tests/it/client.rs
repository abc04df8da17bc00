//! A small HTTP/1.1 client that signs, for tests that want to see every byte.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use cosmos_emulator::{Config, Emulator};
use cosmos_wire::resource::Link;
use cosmos_wire::signature::{Key, Signable};
use serde_json::{Value, json};

/// Longer than anything here takes; only a bug waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null when it is empty.
    pub(crate) fn json(&self) -> Value {
        if self.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&self.body).expect("a JSON body")
        }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Status and sub-status.
    pub(crate) fn status(&self) -> (u16, u32) {
        (self.status, self.header("x-ms-substatus").parse().unwrap_or(0))
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_default().to_owned()
    }

    /// The answer, which must have this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

/// One connection to an account.
pub(crate) struct Client {
    host: String,
    key: Key,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn new(emulator: &Emulator) -> Self {
        Self::with_key(emulator, emulator.key())
    }

    pub(crate) fn with_key(emulator: &Emulator, key: &str) -> Self {
        Self::at(&emulator.endpoint(), key)
    }

    pub(crate) fn at(endpoint: &str, key: &str) -> Self {
        let host = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { host, key: Key::from_base64(key).expect("a key"), stream: None }
    }

    pub(crate) fn request(&mut self, method: &'static str, path: &str) -> Request<'_> {
        Request {
            client: self,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            signed: true,
        }
    }

    pub(crate) fn get(&mut self, path: &str) -> Request<'_> {
        self.request("GET", path)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Request<'_> {
        self.request("POST", path).json(body)
    }

    pub(crate) fn put(&mut self, path: &str, body: &Value) -> Request<'_> {
        self.request("PUT", path).json(body)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Request<'_> {
        self.request("DELETE", path)
    }

    /// The database `d` with a container `c` by `/pk`.
    pub(crate) fn with_container(mut self) -> Self {
        self.post("/dbs", &json!({"id": "d"})).send().expect(201);
        let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
        self.post("/dbs/d/colls", &body).send().expect(201);
        self
    }

    /// Creates an item whose partition key is its `pk`.
    pub(crate) fn create(&mut self, item: &Value) -> Answer {
        let key = json!([item["pk"]]).to_string();
        self.post("/dbs/d/colls/c/docs", item).header("x-ms-documentdb-partitionkey", &key).send()
    }

    /// Runs a query over all partitions.
    pub(crate) fn query(&mut self, text: &str) -> Answer {
        self.question(&json!({"query": text, "parameters": []})).send()
    }

    pub(crate) fn question(&mut self, body: &Value) -> Request<'_> {
        self.post("/dbs/d/colls/c/docs", body)
            .header("content-type", "application/query+json")
            .header("x-ms-documentdb-isquery", "True")
            .header("x-ms-documentdb-query-enablecrosspartition", "True")
    }

    fn connection(&mut self) -> std::io::Result<&mut BufReader<TcpStream>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(&self.host)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            self.stream = Some(BufReader::new(stream));
        }
        Ok(self.stream.as_mut().expect("it was just opened"))
    }
}

/// A request being put together.
pub(crate) struct Request<'a> {
    client: &'a mut Client,
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    signed: bool,
}

impl Request<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The partition key header for one string.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header("x-ms-documentdb-partitionkey", &json!([key]).to_string())
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        let text = body.to_string();
        self.header("content-type", "application/json").body(text.into_bytes())
    }

    pub(crate) fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    pub(crate) fn unsigned(mut self) -> Self {
        self.signed = false;
        self
    }

    /// Sends and reads the answer.
    #[track_caller]
    pub(crate) fn send(self) -> Answer {
        self.try_send().expect("an answer")
    }

    /// Sends and reads the answer, or finds the connection closed.
    pub(crate) fn try_send(self) -> std::io::Result<Answer> {
        let text = self.text();
        let client = self.client;
        let outcome = client.connection().and_then(|stream| {
            stream.get_mut().write_all(&text)?;
            read_answer(stream)
        });
        if outcome.as_ref().map_or(true, |answer| answer.header("connection") == "close") {
            client.stream = None;
        }
        outcome
    }

    /// Sends without waiting for an answer; the connection is the caller's.
    pub(crate) fn send_only(self) -> TcpStream {
        let text = self.text();
        self.client.connection().expect("a connection");
        let mut stream = self.client.stream.take().expect("it was just opened").into_inner();
        stream.write_all(&text).expect("sent");
        stream
    }

    /// The bytes of the request.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        let mut line = |name: &str, value: &str| {
            if !self.headers.iter().any(|(given, _)| given == name) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        line("host", &self.client.host);
        line("x-ms-version", "2020-07-15");
        if self.signed {
            let date = cosmos_wire::date::format(SystemTime::now());
            let link = Link::parse(&self.path).expect("a path");
            let signed_link = link.signed_link();
            let request = Signable::new(self.method, link.signed_type(), &signed_link, &date);
            line("x-ms-date", &date);
            line("authorization", &self.client.key.authorization(&request));
        }
        if !self.body.is_empty() || self.method == "POST" || self.method == "PUT" {
            line("content-length", &self.body.len().to_string());
        }
        for (name, value) in &self.headers {
            if !value.is_empty() {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Reads one answer with a length or without a body.
pub(crate) fn read_answer(stream: &mut impl BufRead) -> std::io::Result<Answer> {
    let mut line = Vec::new();
    if stream.read_until(b'\n', &mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8_lossy(&line);
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_owned(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Answer { status, headers, body })
}

/// An emulator in memory.
pub(crate) fn emulator() -> Emulator {
    Emulator::start(Config::default()).expect("it starts")
}

/// An emulator in memory with a container, and a client of it.
pub(crate) fn with_container() -> (Emulator, Client) {
    let emulator = emulator();
    let client = Client::new(&emulator).with_container();
    (emulator, client)
}
