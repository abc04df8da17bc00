//! A process with a runtime in it, that can die as by `kill -9`.

use std::sync::Arc;
use std::time::Duration;

use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::workload::{Effects, activities, orchestrations};

/// How long a dead process's work stays locked.
const LOCK: Duration = Duration::from_secs(2);

/// A tokio runtime of its own stands for the process: dropping it in the background ends every task at its next
/// await, with no chance to say goodbye to the store.
pub(crate) struct Process {
    tasks: tokio::runtime::Runtime,
}

impl Process {
    /// Starts a provider and a duroxide runtime; both keep trying while the server is away.
    pub(crate) fn start(config: CosmosDBProviderConfig, effects: &Effects) -> anyhow::Result<Self> {
        let tasks = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let effects = effects.clone();
        tasks.spawn(async move {
            let provider = loop {
                match CosmosDBProvider::new_with_config(config.clone()).await {
                    Ok(provider) => break Arc::new(provider),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            let options = RuntimeOptions {
                // Deaths and a slow machine end many an attempt; none of them is the work's own fault.
                max_attempts: 1000,
                orchestrator_lock_timeout: LOCK,
                worker_lock_timeout: LOCK,
                dispatcher_min_poll_interval: Duration::from_millis(20),
                ..RuntimeOptions::default()
            };
            let runtime =
                Runtime::start_with_options(provider, activities(&effects), orchestrations(), options).await;
            std::future::pending::<()>().await;
            drop(runtime);
        });
        Ok(Self { tasks })
    }

    /// Dies.
    pub(crate) fn kill(self) {
        self.tasks.shutdown_background();
    }
}
