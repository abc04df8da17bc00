//! The server under test: in this process or in one of its own, always controlled through its management port.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use cosmos_emulator::{Clock, Config, Consistency, Emulator, Fsync, ReplicationDelay, WriteMode};
use serde_json::{Value, json};

use super::http::{self, Request};
use super::plan::{Home, Plan, Promise, Writes};

/// Where a manual clock begins.
const START: Duration = Duration::from_secs(1_800_000_000);

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    running: Option<Running>,
    management: String,
    clock: Clock,
    folder: PathBuf,
    program: Option<PathBuf>,
}

#[derive(Debug)]
enum Running {
    Here(Box<Emulator>),
    There(Child),
}

impl Server {
    pub(super) fn start(plan: &Plan, folder: &Path, program: Option<&Path>) -> anyhow::Result<Self> {
        let mut server = Self {
            running: None,
            management: String::new(),
            clock: Clock::manual(START).0,
            folder: folder.to_owned(),
            program: program.map(Path::to_owned),
        };
        server.run(plan)?;
        Ok(server)
    }

    fn run(&mut self, plan: &Plan) -> anyhow::Result<()> {
        match (plan.home, &self.program) {
            (Home::Process, Some(program)) => {
                let (child, management) = spawn(program, plan, &self.folder)?;
                self.running = Some(Running::There(child));
                self.management = management;
            }
            (Home::Memory | Home::Folder | Home::Process, _) => {
                let emulator = Emulator::start_with_clock(config(plan, &self.folder), self.clock.clone())?;
                self.management = emulator.management_endpoint().context("it has a management port")?;
                self.running = Some(Running::Here(Box::new(emulator)));
            }
        }
        Ok(())
    }

    /// Ends the server without a word.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        match self.running.take() {
            Some(Running::There(mut child)) => {
                child.kill().context("the server can be killed")?;
                child.wait().context("the server ends")?;
            }
            Some(Running::Here(emulator)) => drop(emulator),
            None => {}
        }
        Ok(())
    }

    /// Starts it again on what its folder holds.
    pub(super) fn revive(&mut self, plan: &Plan) -> anyhow::Result<()> {
        self.run(plan)
    }

    pub(super) fn post(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        http::manage(&self.management, &change("POST", path, body))
    }

    pub(super) fn put(&self, path: &str, body: Value) -> anyhow::Result<Value> {
        http::manage(&self.management, &change("PUT", path, body))
    }

    pub(super) fn delete(&self, path: &str) -> anyhow::Result<Value> {
        http::manage(&self.management, &Request::new("DELETE", encoded(path)))
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        http::manage(&self.management, &Request::new("GET", encoded(path)))
    }

    pub(super) fn advance(&self, time: Duration) -> anyhow::Result<()> {
        self.post("/clock/advance", json!({"seconds": time.as_secs_f64()})).map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // There is nothing to be done about a process that cannot be killed.
        let _ = self.kill();
    }
}

/// A request that changes something: the management port takes bodies as JSON only.
fn change(method: &'static str, path: &str, body: Value) -> Request {
    Request::new(method, encoded(path)).header("content-type", "application/json").json(body)
}

fn encoded(path: &str) -> String {
    path.replace(' ', "%20")
}

/// What a world's server is started with, here or in a process of its own.
pub(super) fn config(plan: &Plan, folder: &Path) -> Config {
    let names: Vec<String> = (0..plan.regions).map(region_name).collect();
    let mut config = Config {
        regions: names,
        write_mode: match plan.writes {
            Writes::One => WriteMode::Single,
            Writes::All => WriteMode::Multiple,
        },
        consistency: match plan.consistency {
            Promise::Session => Consistency::Session,
            Promise::Strong => Consistency::Strong,
        },
        replication_delays: vec![ReplicationDelay::everywhere(Duration::from_millis(plan.delay_ms))],
        ..Config::default().with_management().with_partitions(plan.partitions)
    };
    if plan.home != Home::Memory {
        config = config.with_folder(folder, Fsync::Off);
    }
    config
}

/// The name of the region with this number.
pub(super) fn region_name(number: usize) -> String {
    format!("Region {number}")
}

/// `cosmos-sim serve` with the same configuration; its ready line names the management port.
fn spawn(program: &Path, plan: &Plan, folder: &Path) -> anyhow::Result<(Child, String)> {
    let mut child = Command::new(program)
        .arg("serve")
        .arg("--folder")
        .arg(folder)
        .args(["--regions", &plan.regions.to_string()])
        .args(["--partitions", &plan.partitions.to_string()])
        .args(["--delay-ms", &plan.delay_ms.to_string()])
        .args((plan.writes == Writes::All).then_some("--multi-write"))
        .args((plan.consistency == Promise::Strong).then_some("--strong"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} starts", program.display()))?;
    let stdout = child.stdout.take().context("it is piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("a ready line")?;
    let ready: Value = serde_json::from_str(&line).with_context(|| format!("the ready line is {line:?}"))?;
    let management = http::text(&ready["managementEndpoint"])?;
    Ok((child, management))
}

/// Serves until killed: what [`spawn`] starts.
pub(super) fn serve(plan: &Plan, folder: &Path) -> anyhow::Result<()> {
    use std::io::Write as _;
    let emulator = Emulator::start(config(plan, folder))?;
    let ready = json!({"managementEndpoint": emulator.management_endpoint()});
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}")?;
    out.flush()?;
    loop {
        std::thread::park();
    }
}
