//! The server under all clients: this program again, as a process of its own.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use cosmos_emulator::{Config, Emulator};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, Command};

use super::{cores, replay};
use crate::process::processor_ms;

/// A running server; it ends with this value.
pub struct Server {
    child: Child,
    _stdin: ChildStdin,
    /// `http://127.0.0.1:N`, of the first region.
    pub endpoint: String,
    /// The same of Gateway 2.0, if it has that.
    pub gateway2: Option<String>,
    management: String,
}

/// What the child says when it serves.
#[derive(Serialize, Deserialize)]
pub struct Ready {
    pub endpoint: String,
    pub management: String,
    pub gateway2: Option<String>,
}

impl Server {
    /// Starts one with these regions on these processors.
    pub async fn start(regions: &[&str], cores: &[usize]) -> anyhow::Result<Self> {
        Self::spawn(&["serve", "--regions", &regions.join(",")], cores).await
    }

    /// Starts one whose containers have so many ranges, and that has Gateway 2.0 as well.
    pub async fn start_wide(partitions: u32, cores: &[usize]) -> anyhow::Result<Self> {
        let partitions = partitions.to_string();
        let regions = super::client::REGION;
        Self::spawn(&["serve", "--regions", regions, "--partitions", &partitions, "--gateway2"], cores).await
    }

    /// Starts one that replays what the server at an endpoint answers.
    pub async fn replay(endpoint: &str, cores: &[usize]) -> anyhow::Result<Self> {
        Self::spawn(&["replay", "--upstream", endpoint], cores).await
    }

    async fn spawn(arguments: &[&str], cores: &[usize]) -> anyhow::Result<Self> {
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .args(["--cores", &cores.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the server")?;
        let stdin = child.stdin.take().context("the child has a stdin")?;
        let stdout = child.stdout.take().context("the child has a stdout")?;
        let line = BufReader::new(stdout).lines().next_line().await?.context("the server did not start")?;
        let Ready { endpoint, management, gateway2 } = serde_json::from_str(&line)?;
        Ok(Self { child, _stdin: stdin, endpoint, gateway2, management })
    }

    /// Puts a fault rule in force.
    pub async fn add_fault(&self, rule: &Value) -> anyhow::Result<()> {
        self.manage("POST", "/faults", rule.to_string()).await.map(drop)
    }

    /// Removes all of them.
    pub async fn clear_faults(&self) -> anyhow::Result<()> {
        self.manage("DELETE", "/faults", String::new()).await.map(drop)
    }

    /// How many requests a replaying server had no answer for and passed on so far, and the latest of them.
    pub async fn passed_on(&self) -> anyhow::Result<(u64, String)> {
        let text = self.manage("GET", replay::PASSED_ON, String::new()).await?;
        let (count, latest) = std::str::from_utf8(&text)?.split_once(' ').context("no count")?;
        Ok((count.parse()?, latest.to_owned()))
    }

    /// Processor time it has used so far.
    pub fn processor_time(&self) -> anyhow::Result<Duration> {
        let milliseconds = processor_ms(self.child.id().context("the server has ended")?)?;
        Ok(Duration::from_secs_f64(milliseconds / 1000.0))
    }

    async fn manage(&self, method: &str, path: &str, body: String) -> anyhow::Result<Bytes> {
        let host = self.management.trim_start_matches("http://");
        let io = TokioIo::new(TcpStream::connect(host).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", host);
        let request =
            request.header("content-type", "application/json").body(Full::new(Bytes::from(body)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        ensure!(status.is_success(), "{method} {path}: {status}");
        Ok(response.into_body().collect().await?.to_bytes())
    }
}

/// The child's side: serves until its standard input is closed.
pub fn serve(
    regions: &[String],
    partitions: Option<u32>,
    gateway2: bool,
    cores: &[usize],
) -> anyhow::Result<()> {
    cores::bind(cores)?;
    let (threads, regions) = (cores.len(), regions.to_vec());
    let config = Config { threads, regions, partitions, gateway2, ..Config::default() };
    let emulator = Emulator::start(config.with_management())?;
    let management = emulator.management_endpoint().context("the management API is served")?;
    let plain = |url: String| url.trim_end_matches('/').to_owned();
    let gateway2 = emulator.regions().list().into_iter().find_map(|region| region.gateway2_endpoint);
    let ready = Ready {
        endpoint: plain(emulator.endpoint()),
        management: plain(management),
        gateway2: gateway2.map(plain),
    };
    println!("{}", serde_json::to_string(&ready)?);
    std::io::stdout().flush()?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    Ok(())
}
