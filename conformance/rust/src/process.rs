//! An emulator of one's own, for tests that change their account.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A running `cdb emulator`, stopped when it is dropped.
pub struct Process {
    child: Child,
    /// Where the account is.
    pub endpoint: String,
    /// Where each region is.
    pub regions: BTreeMap<String, String>,
    management: String,
}

impl Process {
    /// Starts one in memory, with further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        let program = env::var("CDB_BIN").expect("CDB_BIN is not set; run this suite through conformance/run");
        let mut child = Command::new(program)
            .args(["emulator", "--memory", "--port", "0", "--management-port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the emulator starts");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("its output is ours");
        BufReader::new(out).read_line(&mut line).expect("it says that it is ready");
        let ready: Value = serde_json::from_str(&line).expect("it is ready");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let regions = ready["regions"].as_array().expect("it has regions").iter();
        Self {
            child,
            endpoint: text(&ready["accountEndpoint"]),
            regions: regions.map(|region| (text(&region["name"]), text(&region["gatewayEndpoint"]))).collect(),
            management: text(&ready["managementEndpoint"]),
        }
    }

    /// Asks the management API, which must agree.
    pub fn manage(&self, method: &str, path: &str, body: &Value) {
        let host = self.management.trim_start_matches("http://").trim_end_matches('/');
        let (path, body) = (path.replace(' ', "%20"), body.to_string());
        let mut stream = TcpStream::connect(host).expect("the management API is there");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        let head = format!("{head}content-type: application/json\r\n");
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(status.starts_with('2'), "{method} {path}: {answer}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already; then there is nothing to stop.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
