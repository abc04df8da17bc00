//! Worlds in real time: several runtimes on one container over real sockets, while requests fail, processes die without
//! a word and the server restarts from its folder. When the dust settles the checks look at what is left.
//!
//! A seed fixes the work, the faults and the crashes; the interleaving is the machine's. A failing seed fails again
//! soon, if not at once.

mod check;
mod plan;
mod process;
pub mod worker;
mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cosmos_driver::{Credential, Driver};
use cosmos_emulator::{Config, Emulator, Fsync};
use duroxide::{Client, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

pub use self::check::Finding;
pub use self::plan::{Crash, Plan};
use self::process::Process;
use self::workload::{Effects, Job, Kind, LETTERBOX, LETTERS};

/// A world that has not come to rest by then is stuck.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long delivered leftovers may take to be cleared away.
const SETTLING: Duration = Duration::from_secs(120);
const DATABASE: &str = "sim";
const CONTAINER: &str = "flows";

/// What a world came to.
#[derive(Debug)]
pub struct Outcome {
    /// Its seed.
    pub seed: u64,
    /// Empty when all is well.
    pub findings: Vec<Finding>,
    /// Requests that rules broke.
    pub faults: u64,
    /// Requests the server answered.
    pub requests: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs the world of a seed.
///
/// # Errors
/// When the world itself cannot be built; what goes wrong inside it is a [`Finding`].
pub async fn run(seed: u64) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let plan = Plan::of(seed);
    let folder = tempfile::tempdir().context("a folder for the server")?;
    let mut server = Server::start(folder.path(), &plan, 0)?;
    let effects = Effects::default();

    let mut processes = Vec::new();
    for offset in &plan.clock_offsets_ms {
        processes.push(Process::start(server.settings(*offset), &effects)?);
    }
    let provider = Arc::new(patient(server.settings(0)).await?);
    let client = Arc::new(Client::new(provider.clone()));
    let jobs = tokio::spawn(drive(client, plan.jobs.clone()));

    for (at, crash) in &plan.crashes {
        tokio::time::sleep_until((started + *at).into()).await;
        match *crash {
            Crash::Process(index) => {
                let next = Process::start(server.settings(plan.clock_offsets_ms[index]), &effects)?;
                std::mem::replace(&mut processes[index], next).kill();
            }
            Crash::Server => server = server.restart(folder.path(), &plan).await?,
        }
    }
    let mut findings = jobs.await.context("the driver of the jobs")?;
    let (faults, requests) = server.stop_faults();
    if findings.is_empty() {
        findings.extend(check::histories(provider.as_ref(), &plan.jobs, &effects).await?);
        findings.extend(settle(&server).await?);
    }
    processes.into_iter().for_each(Process::kill);
    Ok(Outcome { seed, findings, faults, requests, elapsed: started.elapsed() })
}

/// The server and what it takes to bring it back.
struct Server {
    emulator: Emulator,
    port: u16,
    faults: u64,
    requests: u64,
}

impl Server {
    fn start(folder: &std::path::Path, plan: &Plan, port: u16) -> anyhow::Result<Self> {
        let config = Config {
            port,
            ..Config::default().with_folder(folder, Fsync::Off).with_partitions(plan.partitions)
        };
        let emulator = Emulator::start(config)?;
        let port =
            emulator.endpoint().trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
        plan.faults.iter().for_each(|rule| {
            emulator.faults().install(rule.clone());
        });
        Ok(Self { emulator, port: port.context("the endpoint ends in a port")?, faults: 0, requests: 0 })
    }

    /// Goes away in mid-request and comes back on the same port.
    async fn restart(self, folder: &std::path::Path, plan: &Plan) -> anyhow::Result<Self> {
        let (faults, requests) = self.counts();
        let (port, before) = (self.port, (self.faults + faults, self.requests + requests));
        drop(self.emulator);
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match Self::start(folder, plan, port) {
                Ok(server) => return Ok(Self { faults: before.0, requests: before.1, ..server }),
                Err(error) if Instant::now() > until => {
                    return Err(error.context("the server does not come back"));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn settings(&self, clock_offset_ms: i64) -> CosmosDBProviderConfig {
        let settings = CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
            .with_database(DATABASE)
            .with_container(CONTAINER);
        CosmosDBProviderConfig {
            clock_offset_ms,
            reconciler_interval: Duration::from_millis(300),
            ..settings
        }
    }

    fn counts(&self) -> (u64, u64) {
        let faults = self.emulator.faults().list().iter().map(|state| state.struck).sum();
        (faults, self.emulator.ledger().snapshot().totals.requests)
    }

    fn stop_faults(&self) -> (u64, u64) {
        let (faults, requests) = self.counts();
        self.emulator.faults().clear();
        (self.faults + faults, self.requests + requests)
    }
}

/// The first connection, through whatever faults there are.
async fn patient(settings: CosmosDBProviderConfig) -> anyhow::Result<CosmosDBProvider> {
    let until = Instant::now() + PATIENCE;
    loop {
        match CosmosDBProvider::new_with_config(settings.clone()).await {
            Ok(provider) => return Ok(provider),
            Err(error) if Instant::now() > until => anyhow::bail!("no provider: {error:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Starts every job, sends the letters, and waits for the answers. A call that fails is not repeated: the provider
/// has to bring it through.
async fn drive(client: Arc<Client>, jobs: Vec<Job>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for job in &jobs {
        let started = client.start_orchestration(job.instance(), job.kind.orchestration(), job.input()).await;
        if let Err(error) = started {
            findings.push(Finding(format!("{}: not started: {error:?}", job.instance())));
        }
    }
    for job in jobs.iter().filter(|job| job.kind == Kind::Mailbox) {
        for letter in 0..LETTERS {
            if let Err(error) = client.enqueue_event(job.instance(), LETTERBOX, letter.to_string()).await {
                findings.push(Finding(format!("{}: letter {letter} not sent: {error:?}", job.instance())));
            }
        }
    }
    for job in &jobs {
        match client.wait_for_orchestration(&job.instance(), PATIENCE).await {
            Ok(OrchestrationStatus::Completed { output, .. }) if output == job.expected() => {}
            other => {
                findings.push(Finding(format!("{}: {other:?}, expected {}", job.instance(), job.expected())));
            }
        }
    }
    findings
}

/// Leftovers may still be on their way out; what stays is a finding.
async fn settle(server: &Server) -> anyhow::Result<Vec<Finding>> {
    let credential = Credential::key(server.emulator.key())?;
    let driver = Driver::builder(server.emulator.endpoint(), credential).build().await?;
    let container = driver.container(DATABASE, CONTAINER)?;
    let until = Instant::now() + SETTLING;
    loop {
        let left = check::leftovers(&container).await?;
        if left.is_empty() || Instant::now() > until {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
