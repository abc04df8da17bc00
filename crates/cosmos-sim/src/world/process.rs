//! A process with a runtime in it, that can die as by `kill -9`.

use std::sync::Arc;
use std::time::Duration;

use duroxide::TagFilter;
use duroxide::runtime::{ObservabilityConfig, Runtime, RuntimeOptions};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::further::Edition;
use super::net::{Network, ProcessId, endpoint};
use super::watched::{Watched, Witness};
use super::workload::{Effects, activities, orchestrations};

pub(crate) const DATABASE: &str = "sim";
pub(crate) const CONTAINER: &str = "flows";

/// How long a dead process's work stays locked.
const TURN_LOCK: Duration = Duration::from_secs(5);
const SESSION_LOCK: Duration = Duration::from_secs(20);
/// What a process is given that is stopped.
const LEAVING_MS: u64 = 300;
const STOPPED_AFTER: Duration = Duration::from_secs(5);

/// Settings of a provider in this world.
pub(crate) fn settings(
    network: &Network,
    process: ProcessId,
    offset_ms: i64,
    region: &str,
) -> CosmosDBProviderConfig {
    let settings = CosmosDBProviderConfig::new(endpoint(region), network.emulator().key())
        .with_database(DATABASE)
        .with_container(CONTAINER);
    let mut driver = cosmos_driver::Config::default();
    driver.transport = Some(network.plug(process));
    // What the machine has is no part of a world.
    driver.sharding.connections_max = 4;
    driver.regions.trusted_domains = vec!["sim".to_owned()];
    driver.seed = Some(u64::from(process));
    CosmosDBProviderConfig {
        clock_offset_ms: offset_ms,
        owner: format!("p{process}"),
        driver,
        // Longer than a world lasts: nothing goes, and `check::expiring` looks at what would.
        retention: "completed=30d failed=30d".parse().ok(),
        ..settings
    }
}

/// A process of the world.
pub(crate) struct Process {
    pub(crate) id: ProcessId,
    task: JoinHandle<()>,
    running: watch::Receiver<Option<Running>>,
}

/// What a process is made like.
pub(crate) struct Make {
    pub(crate) activity_lock: Duration,
    pub(crate) edition: Edition,
    pub(crate) tags: TagFilter,
}

/// What runs in a process.
#[derive(Clone)]
struct Running {
    runtime: Arc<Runtime>,
    provider: Arc<CosmosDBProvider>,
}

impl Process {
    /// Starts a provider and a duroxide runtime; both keep trying while the server is away.
    pub(crate) fn start(
        id: ProcessId,
        settings: CosmosDBProviderConfig,
        effects: &Effects,
        witness: &Witness,
        network: &Network,
        make: Make,
    ) -> Self {
        let (effects, witness, network) = (effects.clone(), witness.clone(), network.clone());
        let (started, running) = watch::channel(None);
        let task = tokio::spawn(async move {
            let provider = loop {
                match CosmosDBProvider::new_with_config(settings.clone()).await {
                    Ok(provider) => break Arc::new(provider),
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            };
            let options = RuntimeOptions {
                // Deaths end many an attempt; none of them is the work's own fault.
                max_attempts: 1000,
                orchestrator_lock_timeout: TURN_LOCK,
                worker_lock_timeout: make.activity_lock,
                worker_tag_filter: make.tags,
                session_lock_timeout: SESSION_LOCK,
                // The trace says it all; `RUST_LOG` still has the last word.
                observability: ObservabilityConfig {
                    log_level: "off".to_owned(),
                    ..ObservabilityConfig::default()
                },
                worker_node_id: Some(format!("node-{id}")),
                ..RuntimeOptions::default()
            };
            let watched = Arc::new(Watched { process: id, provider: provider.clone(), witness, network });
            let runtime = Runtime::start_with_options(
                watched,
                activities(&effects),
                orchestrations(make.edition),
                options,
            )
            .await;
            started.send_replace(Some(Running { runtime, provider }));
            std::future::pending::<()>().await;
        });
        Self { id, task, running }
    }

    /// Dies. The network is cut first, so nothing that ends here reaches anybody.
    pub(crate) fn kill(self, network: &Network) {
        network.kill(self.id);
        self.task.abort();
        let running = self.running.borrow().clone();
        if let Some(Running { runtime, .. }) = running {
            tokio::spawn(runtime.shutdown(Some(0)));
        }
    }

    /// Ends as by SIGTERM: what runs is given a moment, then the slots are handed over, then the process is gone.
    pub(crate) fn leave(self, network: &Network) {
        let network = network.clone();
        tokio::spawn(async move {
            let running = self.running.borrow().clone();
            if let Some(Running { runtime, provider }) = running {
                runtime.shutdown(Some(LEAVING_MS)).await;
                // Who stops a process waits so long and no longer.
                let _ = tokio::time::timeout(STOPPED_AFTER, provider.shutdown()).await;
            }
            network.kill(self.id);
            self.task.abort();
        });
    }
}
