//! The server under all clients: this program again, as a process of its own.

use std::io::{Read, Write};
use std::process::Stdio;

use anyhow::Context;
use cosmos_emulator::{Config, Emulator};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::cores;

/// A running server; it ends with this value.
pub struct Server {
    _child: Child,
    _stdin: ChildStdin,
    /// `http://127.0.0.1:N`.
    pub endpoint: String,
}

impl Server {
    /// Starts one on these processors.
    pub async fn start(cores: &[usize]) -> anyhow::Result<Self> {
        let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--cores", &cores.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the server")?;
        let stdin = child.stdin.take().context("the child has a stdin")?;
        let stdout = child.stdout.take().context("the child has a stdout")?;
        let endpoint =
            BufReader::new(stdout).lines().next_line().await?.context("the server did not start")?;
        Ok(Self { _child: child, _stdin: stdin, endpoint })
    }
}

/// The child's side: serves until its standard input is closed.
pub fn serve(cores: &[usize]) -> anyhow::Result<()> {
    cores::bind(cores)?;
    let emulator = Emulator::start(Config { threads: cores.len(), ..Config::default() })?;
    println!("{}", emulator.endpoint().trim_end_matches('/'));
    std::io::stdout().flush()?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest)?;
    Ok(())
}
