//! `cdb emulator` as a child process, and a client small enough to trust.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use cosmos_wire::resource::Link;
use cosmos_wire::signature::{Key, Signable};
use serde_json::Value;

/// Runs `cdb` to its end.
pub(crate) fn cdb(args: &[&str]) -> Output {
    command(args).output().expect("cdb runs")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cdb"));
    command.args(args);
    for name in ["PORT", "DATA", "KEY", "READ_ONLY_KEY"] {
        command.env_remove(format!("CDB_EMULATOR_{name}"));
    }
    command
}

/// A running emulator; killed when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) ready: Value,
    _stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it and waits for the ready line.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut all = vec!["emulator", "--port", "0"];
        all.extend(args);
        let mut child =
            command(&all).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("cdb starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        let ready = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("the first line is JSON: {error}: {line:?}"));
        Self { child, ready, _stdout: stdout }
    }

    pub(crate) fn on_folder(folder: &Path, args: &[&str]) -> Self {
        let mut all = vec!["--data", folder.to_str().expect("a plain path")];
        all.extend(args);
        Self::start(&all)
    }

    pub(crate) fn client(&self) -> Client {
        Client::at(self.ready["accountEndpoint"].as_str().expect("an endpoint"))
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Its process id.
    #[cfg(target_os = "linux")]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal that it may catch, and waits for its end.
    #[cfg(unix)]
    pub(crate) fn end_by(mut self, signal: &str) -> std::process::ExitStatus {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success());
        self.child.wait().expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One connection.
pub(crate) struct Client {
    host: String,
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn at(endpoint: &str) -> Self {
        let host = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let stream = TcpStream::connect(&host).expect("it listens");
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket option");
        Self { host, stream: BufReader::new(stream) }
    }

    /// Sends a signed request; nothing when the server went away.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let key = key.map(|key| format!("x-ms-documentdb-partitionkey: [\"{key}\"]\r\n")).unwrap_or_default();
        self.send_with(method, path, &key, body)
    }

    /// The same with headers of one's own, each with its line end.
    pub(crate) fn send_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let date = cosmos_wire::date::format(SystemTime::now());
        let authorization = Link::parse(path).map_or_else(
            |_| String::new(),
            |link| {
                let account_key = Key::from_base64(cosmos_wire::EMULATOR_KEY).expect("the well-known key");
                account_key.authorization(&Signable::new(
                    method,
                    link.signed_type(),
                    &link.signed_link(),
                    &date,
                ))
            },
        );
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let is_typed = body.is_empty() || headers.contains("content-type");
        let json = if is_typed { "" } else { "content-type: application/json\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nx-ms-version: 2020-07-15\r\nx-ms-date: {date}\r\n\
             authorization: {authorization}\r\n{headers}{json}content-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes()).ok()?;
        self.answer()
    }

    /// Sends an unsigned request with headers of one's own; the answer's head as it came.
    pub(crate) fn raw(&mut self, method: &str, path: &str, headers: &str) -> String {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nx-ms-version: 2020-07-15\r\n{headers}\r\n",
            self.host
        );
        self.stream.get_mut().write_all(request.as_bytes()).expect("it is sent");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.stream.read_line(&mut head).expect("a line"), 0, "the connection was closed");
        }
        head
    }

    fn answer(&mut self) -> Option<(u16, Value)> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name == "content-length" {
                length = value.parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }
}
