//! Big scenarios whose worker process dies again and again, at seeded moments, and whose outcome is what it always is:
//! the result is right, no activity was lost or ran again once it was recorded, and nothing is left over.
//!
//! A death is what the account sees of one: from one request on nothing of the process gets through any more, and it is
//! dropped without a goodbye. The next process finds what it left: locks, half-published commits, undelivered messages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cosmos_emulator::Emulator;
use duroxide::providers::Provider as _;
use duroxide::runtime::RuntimeOptions;
use duroxide::{Client, ClientError, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use crate::cut::Cut;
use crate::effects::{Effects, Reruns, recorded};
use crate::flows::{Machine, options};
use crate::remains::{Fate, settled};
use crate::world::behind;

/// A scenario that is big in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Big {
    FanOut,
    Messages,
    Result,
    Children,
    History,
}

/// How big a scenario is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) big: Big,
    pub(crate) size: u64,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.big, self.size)
    }
}

impl Big {
    /// A size that still needs several batches, for every day.
    pub(crate) fn small(self) -> Size {
        let size = match self {
            Self::FanOut => 150,
            Self::Children => 60,
            Self::Messages => 200,
            Self::Result => 2_000_000,
            Self::History => 800,
        };
        Size { big: self, size }
    }
}

impl Size {
    fn orchestration(self) -> (&'static str, String) {
        match self.big {
            Big::FanOut => ("FanOut", self.size.to_string()),
            Big::Messages => ("Mailbox", self.size.to_string()),
            Big::Result => ("NoiseResult", self.size.to_string()),
            Big::Children => ("Family", self.size.to_string()),
            // Fifty activities a round, two events each, in two turns.
            Big::History => ("Long", (self.size / 100).to_string()),
        }
    }

    fn expected(self) -> String {
        match self.big {
            Big::FanOut => (0..self.size).map(|n| n * n).sum::<u64>().to_string(),
            Big::Messages => (0..self.size).map(|n| n.to_string()).collect::<Vec<_>>().join(","),
            Big::Result => format!("{}:true", self.size),
            Big::Children => (0..self.size).sum::<u64>().to_string(),
            Big::History => "done".to_owned(),
        }
    }
}

/// Runs a scenario while its worker dies `deaths` times, at moments that the seed chooses. Returns how often it did
/// before the scenario was over; `Err` says what was wrong.
pub(crate) async fn run(size: Size, seed: u64, deaths: u32) -> Result<u32, String> {
    let emulator = Emulator::start(cosmos_emulator::Config::default()).map_err(|error| error.to_string())?;
    let mut random = fastrand::Rng::with_seed(seed);
    let effects = Arc::new(Effects::default());
    let client_provider = Arc::new(open(settings(&emulator, emulator.endpoint())).await?);
    let client = Client::new(client_provider.clone());
    let (name, input) = size.orchestration();
    client.start_orchestration("x", name, input).await.map_err(|error| error.to_string())?;
    let mail = tokio::spawn(send_mail(client_provider.clone(), size));
    let mut died = 0;
    while died < deaths {
        let cut = Cut::new(&emulator).await;
        let provider = open(settings(&emulator, cut.endpoint.clone())).await?;
        let machine = Machine::with_effects(provider, quick(), Arc::clone(&effects)).await;
        // So many requests after which it dies: few, to die while it takes over, or more, to get further.
        let reach = if died == 0 { 0 } else { random.u32(0..5) };
        let last = random.u64(8..16 << reach);
        let ended = tokio::select! {
            () = cut.after(last) => false,
            _ = client.wait_for_orchestration("x", PATIENCE) => true,
        };
        cut.sever();
        machine.die().await;
        if ended {
            break;
        }
        died += 1;
    }
    let config = settings(&emulator, emulator.endpoint());
    let machine = Machine::with_effects(open(config.clone()).await?, quick(), Arc::clone(&effects)).await;
    let outcome = async {
        is_expected(client.wait_for_orchestration("x", PATIENCE).await, &size.expected())?;
        settled(&behind(&config).await, config, Fate::Over, SETTLING).await?;
        effects.check(&recorded(&client, "x").await?, Reruns::UntilRecorded)
    };
    let outcome = outcome.await;
    mail.abort();
    machine.stop().await;
    outcome.map_err(|error| format!("{size}, seed {seed}, {died} deaths: {error}"))?;
    Ok(died)
}

fn is_expected(result: Result<OrchestrationStatus, ClientError>, expected: &str) -> Result<(), String> {
    match result {
        Ok(OrchestrationStatus::Completed { output, .. }) if output == expected => Ok(()),
        Ok(OrchestrationStatus::Completed { output, .. }) => {
            Err(format!("the output is {output:.100} and not {expected:.100}"))
        }
        other => Err(format!("{other:?}").chars().take(500).collect()),
    }
}

/// Sends the messages of a mailbox, in order, while its reader dies.
async fn send_mail(provider: Arc<CosmosDBProvider>, size: Size) {
    if size.big != Big::Messages {
        return;
    }
    let numbers: Vec<u64> = (0..size.size).collect();
    for group in numbers.chunks(50) {
        let sent = group.iter().map(|n| {
            let item = duroxide::providers::WorkItem::QueueMessage {
                instance: "x".into(),
                name: "mail".into(),
                data: n.to_string(),
            };
            provider.enqueue_for_orchestrator(item, None)
        });
        futures::future::try_join_all(sent).await.expect("the account is well");
    }
}

fn settings(emulator: &Emulator, endpoint: String) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(200),
        reconciler_age_threshold: Duration::from_millis(400),
        poll_interval_max: Duration::from_millis(200),
        // The next process does not wait long for the part of the last one.
        steal_after: Duration::from_millis(500),
        lease_duration: Duration::from_secs(2),
        ..CosmosDBProviderConfig::new(endpoint, emulator.key())
    }
}

async fn open(settings: CosmosDBProviderConfig) -> Result<CosmosDBProvider, String> {
    CosmosDBProvider::new_with_config(settings).await.map_err(|error| error.to_string())
}

/// Short locks, so that the next process need not wait long for what the last one held.
fn quick() -> RuntimeOptions {
    RuntimeOptions {
        max_attempts: 1000,
        worker_concurrency: 8,
        orchestration_concurrency: 4,
        ..options(Duration::from_secs(2))
    }
}

const PATIENCE: Duration = Duration::from_secs(900);
/// How long the living may take to clear up after the dead.
const SETTLING: Duration = Duration::from_secs(300);
