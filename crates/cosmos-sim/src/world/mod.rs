//! The world that repeats itself.
//!
//! Life of a world: the thread enters it ([`crate::os`]), the plan of its seed is made ([`Plan`]), and on one paused
//! runtime an account (`net`), some processes (`process`), a client (`client`) and the weather (`weather`) run until
//! all work is done. Then the checks (`check`, `watched`) look at what is there. Every request, lock, commit and fault
//! is a line of the [`trace`], and the hash of all lines is the run.

mod check;
mod client;
mod further;
mod ideal;
mod legacy;
mod net;
mod plan;
mod process;
pub mod trace;
mod watched;
mod weather;
mod workload;

use std::time::Duration;

use anyhow::Context as _;
use cosmos_driver::{Container, Credential, Driver};
use cosmos_emulator::{Clock, Config, Consistency, Emulator, ReplicationDelay};
use duroxide::TagFilter;

use self::further::{Edition, TAG};
use self::net::{Network, ProcessId, endpoint};
pub use self::plan::Plan;
use self::process::{CONTAINER, DATABASE, Make, Process, settings};
use self::trace::Trace;
use self::watched::Witness;
use self::workload::Effects;
use crate::os;

/// Work that takes longer than this after the weather has ended was hidden or lost.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long delivered leftovers may take to be cleared away.
const SETTLING: Duration = Duration::from_secs(90);
/// Where partitions have budgets, everything takes so much longer.
const THROTTLED: u32 = 4;

/// How long this world may take for something that others do in `usual`.
fn patience(plan: &Plan, usual: Duration) -> Duration {
    if plan.is_throttled { usual * THROTTLED } else { usual }
}

/// What a world came to.
#[derive(Debug)]
pub struct Outcome {
    /// Empty when all is well.
    pub findings: Vec<String>,
    /// Stands for the whole run.
    pub hash: u64,
    /// Lines of its trace.
    pub lines: u64,
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that something happened to.
    pub struck: u64,
    /// How long it took, by its own clock.
    pub elapsed: Duration,
}

/// Runs a world on this thread, which must not have run one before: a process has room for one.
///
/// # Errors
/// When the world itself cannot be built; what goes wrong inside it is a finding.
pub fn run(plan: &Plan, trace: &Trace, until: Option<Duration>) -> anyhow::Result<Outcome> {
    os::enter(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let outcome = runtime.block_on(async {
        let world = Box::pin(live(plan, trace));
        match until {
            None => world.await,
            Some(until) => match tokio::time::timeout(until, world).await {
                Ok(outcome) => outcome,
                Err(_) => Ok(Outcome {
                    findings: Vec::new(),
                    hash: trace.hash(),
                    lines: trace.count(),
                    requests: 0,
                    struck: 0,
                    elapsed: os::elapsed(),
                }),
            },
        }
    });
    // What is still under way ends with the process: nobody looks at it any more.
    std::mem::forget(runtime);
    outcome
}

/// Everything a running world consists of.
struct World<'a> {
    plan: &'a Plan,
    network: Network,
    trace: Trace,
    effects: Effects,
    witness: Witness,
}

impl World<'_> {
    fn start(&self, index: usize, id: ProcessId, edition: Edition) -> Process {
        self.trace.line(format_args!("p{id} starts, {edition:?}"));
        let region = self.plan.regions[index % self.plan.regions.len()];
        let settings = settings(&self.network, id, self.plan.clock_offsets_ms[index], region);
        // Activities with a tag are run by the first process, and those without by all.
        let tags = if index == 0 { TagFilter::default_and([TAG]) } else { TagFilter::DefaultOnly };
        let make = Make { activity_lock: self.plan.activity_lock, edition, tags };
        Process::start(id, settings, &self.effects, &self.witness, &self.network, make)
    }
}

async fn live(plan: &Plan, trace: &Trace) -> anyhow::Result<Outcome> {
    let (clock, hand) = Clock::manual(os::WALL_START);
    let mut config = Config::default()
        .with_partitions(plan.partitions)
        .with_regions(&plan.regions)
        .with_replication_delay(ReplicationDelay::everywhere(plan.replication));
    if plan.is_strong {
        config = config.with_consistency(Consistency::Strong);
    }
    config.throttling = plan.is_throttled;
    let emulator = Emulator::open_with_clock(config, clock)?;
    for region in &plan.regions {
        emulator.regions().announce(region, endpoint(region))?;
    }
    let network = Network::new(emulator, hand, plan.seed, trace.clone());
    let world = World {
        plan,
        trace: trace.clone(),
        effects: Effects::default(),
        witness: Witness::new(trace.clone(), network.clone(), plan.is_calm()),
        network,
    };
    legacy::lay_out(&world.network, plan, &world.witness).await.context("what the public crate left")?;
    let client =
        client::connect(&world.network, plan, &world.witness).await.context("the client's provider")?;
    let weather = weather::run(&world);
    let jobs = client::drive(&client, plan, &world.trace, &world.witness);
    let life = async {
        let ((), findings) = tokio::join!(weather, jobs);
        findings
    };
    let mut findings = tokio::select! {
        biased;
        findings = life => findings,
        () = world.network.exhausted() => vec![String::from("requests without end")],
    };
    findings.extend(world.witness.findings());
    if findings.is_empty() {
        // Children of who was cancelled may still be about to end.
        findings.extend(settled(&world.network, plan).await?);
        findings.extend(client::histories(&client, plan, &world.effects, &world.witness).await);
    }
    let (requests, struck) = world.network.counts();
    let (events, activities) = world.witness.ideal(|ideal| ideal.amount());
    let work = Work { events, activities, elapsed: os::elapsed() };
    trace.line(format_args!("{} requests for {work:?}", world.network.paid()));
    if plan.is_calm() && findings.is_empty() && world.network.paid() > work.requests_max(plan) {
        let (paid, most) = (world.network.paid(), work.requests_max(plan));
        findings.push(format!("{paid} requests for {work:?}, not {most} at most"));
    }
    for finding in &findings {
        trace.line(format_args!("FINDING {finding}"));
    }
    Ok(Outcome {
        findings,
        hash: trace.hash(),
        lines: trace.count(),
        requests,
        struck,
        elapsed: os::elapsed(),
    })
}

/// What a world came to.
#[derive(Clone, Copy, Debug)]
struct Work {
    events: usize,
    activities: usize,
    elapsed: Duration,
}

impl Work {
    /// What it may cost in calm weather. `tests/it/minimum.rs` of the provider has exact figures for single operations; this is
    /// for what no single one shows: somebody who asks in circles, or all who ask for the same.
    fn requests_max(self, plan: &Plan) -> u64 {
        let (processes, partitions) = (plan.processes as u64, u64::from(plan.partitions));
        let joining = JOINING * processes * partitions;
        let looking = LOOKING * processes * (self.elapsed.as_secs() + 1);
        joining + looking + EACH_EVENT * self.events as u64 + EACH_ACTIVITY * self.activities as u64
    }
}

/// Requests with which a process begins, for each partition.
const JOINING: u64 = 40;
/// Requests of an idle process in a second, its looks at the bell left out.
const LOOKING: u64 = 3;
const EACH_EVENT: u64 = 2;
const EACH_ACTIVITY: u64 = 3;

/// Who looks at the container from outside.
const OBSERVER: ProcessId = 999;

/// The container, for one who takes no part.
async fn observe(network: &Network, region: &str, observer: ProcessId) -> anyhow::Result<Container> {
    let mut config = cosmos_driver::Config::default();
    config.transport = Some(network.plug(observer));
    config.sharding.connections_max = 1;
    config.regions.trusted_domains = vec!["sim".to_owned()];
    let credential = Credential::key(network.emulator().key())?;
    let driver = Driver::builder(endpoint(region), credential).config(config).build().await?;
    Ok(driver.container(DATABASE, CONTAINER)?)
}

/// Leftovers may still be on their way out; what stays is a finding.
async fn settled(network: &Network, plan: &Plan) -> anyhow::Result<Vec<String>> {
    let container = observe(network, plan.regions[0], OBSERVER).await?;
    let mut until = tokio::time::Instant::now() + patience(plan, SETTLING);
    loop {
        let left = check::leftovers(&container).await?;
        let is_late = tokio::time::Instant::now() > until;
        match left.prepared_until {
            _ if is_late && !left.findings.is_empty() => return Ok(left.findings),
            None if left.findings.is_empty() => return Ok(left.findings),
            // Nothing else is left: the world goes on until that must be gone, too.
            Some(at) if left.findings.is_empty() => {
                let now = os::WALL_START + os::elapsed();
                let pause = Duration::from_millis(at).saturating_sub(now);
                tokio::time::sleep(pause).await;
                until = tokio::time::Instant::now() + patience(plan, SETTLING);
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
