//! Servers under test run as processes of their own; they end with their guard.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A server that was started here and is killed, by its id, when dropped.
pub struct Server {
    child: Child,
    /// `http://127.0.0.1:N`.
    pub endpoint: String,
    /// From the start of the process until it answered.
    pub startup: Duration,
}

impl Server {
    /// Starts our emulator.
    pub async fn ours(binary: &Path, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<Self> {
        let started = Instant::now();
        let mut child = Command::new(binary)
            .args(["emulator", "--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let stdout = child.stdout.take().context("the child has a stdout")?;
        let line = BufReader::new(stdout).lines().next_line().await?.context("no ready line")?;
        let startup = started.elapsed();
        let ready: serde_json::Value = serde_json::from_str(&line)?;
        let endpoint = ready["accountEndpoint"].as_str().context("no accountEndpoint")?;
        Ok(Self { child, endpoint: endpoint.trim_end_matches('/').to_owned(), startup })
    }

    /// Starts the npm peer; it has no ready line, so it is ready when its port accepts.
    pub async fn vercel(folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let started = Instant::now();
        let child = Command::new("node")
            .arg(folder.join("node_modules/@vercel/cosmosdb-server/lib/cli.js"))
            .args(["--no-ssl", "--host", "127.0.0.1", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting node")?;
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if started.elapsed() > Duration::from_secs(30) {
                bail!("the peer did not start");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(Self { child, endpoint: format!("http://127.0.0.1:{port}"), startup: started.elapsed() })
    }

    /// Resident memory in MB.
    pub fn resident_mb(&self) -> anyhow::Result<f64> {
        let pid = self.child.id().context("the server has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kilobytes: f64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
        Ok(kilobytes / 1024.0)
    }

    /// Processor time used so far, in milliseconds.
    pub fn processor_ms(&self) -> anyhow::Result<f64> {
        processor_ms(self.child.id().context("the server has ended")?)
    }
}

/// Processor time a process has used so far, in milliseconds.
pub fn processor_ms(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().context("no fields")?.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks * 10.0)
}

/// The folder cargo builds into.
pub fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("compare/ has a parent").to_owned()
}

/// Builds `cdb` in release mode and says where it is.
pub async fn build_cdb() -> anyhow::Result<PathBuf> {
    eprintln!("building cdb (release)…");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "-p", "cdb"])
        .current_dir(root())
        .status()
        .await?;
    if !status.success() {
        bail!("cdb does not build");
    }
    Ok(target_folder().join("release/cdb"))
}

/// Installs the npm peer, unless it is there; says why if that is impossible.
pub async fn install_vercel() -> anyhow::Result<PathBuf> {
    let folder = root().join("compare/node");
    if !folder.join("node_modules/@vercel").exists() {
        eprintln!("installing @vercel/cosmosdb-server from npm…");
        let status = Command::new("npm")
            .args(["ci", "--silent"])
            .current_dir(&folder)
            .status()
            .await
            .context("npm is needed for the peer")?;
        if !status.success() {
            bail!("npm ci failed in {}", folder.display());
        }
    }
    Ok(folder)
}

/// A port that nobody listens on now.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
