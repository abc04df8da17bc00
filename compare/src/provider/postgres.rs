//! PostgreSQL for `duroxide-pg`: the server that `COMPARE_POSTGRES_URL` names, or a private one in a temporary folder.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use duroxide::providers::Provider;
use tokio::process::{Child, Command};

use crate::process::free_port;

/// Names a server to use instead of a private one.
const URL: &str = "COMPARE_POSTGRES_URL";
/// PostgreSQL does not run as root; these do.
const USERS: [&str; 2] = ["postgres", "nobody"];
const PATIENCE: Duration = Duration::from_secs(30);

/// A server; a private one ends with it.
#[derive(Debug)]
pub struct Postgres {
    url: String,
    schemas: AtomicUsize,
    _private: Option<(Child, tempfile::TempDir)>,
}

impl Postgres {
    /// Finds or starts a server.
    pub async fn find() -> anyhow::Result<Self> {
        if !cfg!(feature = "postgres") {
            bail!("this program was built without it");
        }
        if let Ok(url) = std::env::var(URL) {
            return Ok(Self { url, schemas: AtomicUsize::new(0), _private: None });
        }
        let Some(programs) = programs() else {
            bail!("there is no initdb on the PATH or under /usr/lib/postgresql, and {URL} is not set");
        };
        Self::start(&programs).await.context("PostgreSQL did not start")
    }

    /// Opens a provider in a schema of its own.
    #[cfg(feature = "postgres")]
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Provider>> {
        let schema =
            format!("compare_{}_{}", std::process::id(), self.schemas.fetch_add(1, Ordering::Relaxed));
        Ok(Arc::new(duroxide_pg::PostgresProvider::new_with_schema(&self.url, Some(&schema)).await?))
    }

    /// Never called: without the feature nothing is found.
    #[cfg(not(feature = "postgres"))]
    pub async fn open(&self) -> anyhow::Result<Arc<dyn Provider>> {
        bail!("{} has no provider in this program ({})", self.url, self.schemas.load(Ordering::Relaxed))
    }

    async fn start(programs: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let user = other_user();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(folder.path(), Some(uid), Some(gid))?;
        }
        let data = folder.path().join("data");
        let run = |name: &str| {
            let mut command = Command::new(programs.join(name));
            command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let made = run("initdb")
            .args(["--username=compare", "--auth=trust", "--no-sync", "--pgdata"])
            .arg(&data)
            .status()
            .await?;
        if !made.success() {
            bail!("initdb failed");
        }
        let port = free_port()?;
        let child = run("postgres")
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder.path())
            .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
            .spawn()?;
        let began = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if began.elapsed() > PATIENCE {
                bail!("it does not listen");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let url = format!("postgres://compare@127.0.0.1:{port}/postgres");
        Ok(Self { url, schemas: AtomicUsize::new(0), _private: Some((child, folder)) })
    }
}

/// The folder that has both programs, the newest version first.
fn programs() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    versions.sort();
    let mut folders = versions.into_iter().rev().chain(std::env::split_paths(&on_path));
    folders.find(|folder| ["initdb", "postgres"].iter().all(|name| folder.join(name).exists()))
}

/// Somebody who is not root, if we are.
fn other_user() -> Option<(u32, u32)> {
    let is_root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t")));
    if !is_root {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    USERS.iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}
