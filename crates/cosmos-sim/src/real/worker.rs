//! A worker that is a process of the operating system: it can be killed, frozen and told to stop.
//!
//! It tells on standard output what it does: `ready`; `begin LABEL` and `end LABEL` of each activity; `stopped` after it was
//! told to stop and has given its work to others.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::{CONTAINER, DATABASE};

/// What a worker is told.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// The server.
    #[arg(long)]
    pub endpoint: String,
    /// Its key.
    #[arg(long)]
    pub key: String,
    /// How long the others leave it its part of the work when they hear nothing of it.
    #[arg(long)]
    pub lease_ms: u64,
    /// How long its locks last that are written down.
    #[arg(long)]
    pub lock_ms: u64,
}

/// The settings with which everybody in these scenes opens the container.
#[must_use]
pub fn settings(endpoint: &str, key: &str, lease: Duration) -> CosmosDBProviderConfig {
    let settings =
        CosmosDBProviderConfig::new(endpoint, key).with_database(DATABASE).with_container(CONTAINER);
    CosmosDBProviderConfig { lease_duration: lease, ..settings }
}

/// Works until it is killed or told to stop.
///
/// # Errors
/// When the container cannot be opened.
pub async fn work(args: &WorkerArgs) -> anyhow::Result<()> {
    let settings = settings(&args.endpoint, &args.key, Duration::from_millis(args.lease_ms));
    let opened = CosmosDBProvider::new_with_config(settings).await;
    let provider = Arc::new(opened.map_err(|error| anyhow!("{error:?}"))?);
    let lock = Duration::from_millis(args.lock_ms);
    let options = RuntimeOptions {
        orchestrator_lock_timeout: lock,
        worker_lock_timeout: lock,
        ..RuntimeOptions::default()
    };
    let runtime =
        Runtime::start_with_options(provider.clone(), activities(), orchestrations(), options).await;
    say("ready");
    told_to_stop().await?;
    runtime.shutdown(Some(STOP_WITHIN_MS)).await;
    provider.shutdown().await;
    say("stopped");
    Ok(())
}

#[cfg(unix)]
async fn told_to_stop() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    signal(SignalKind::terminate())?.recv().await;
    Ok(())
}

#[cfg(not(unix))]
async fn told_to_stop() -> anyhow::Result<()> {
    tokio::signal::ctrl_c().await?;
    Ok(())
}

/// One activity, whose label says what it is for and how many milliseconds it takes: `LABEL:MS`.
fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("step", |_: ActivityContext, input: String| async move {
            let (label, millis) = input.split_once(':').unwrap_or((&input, "0"));
            say(&format!("begin {label}"));
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap_or(0))).await;
            say(&format!("end {label}"));
            Ok::<_, String>(label.to_owned())
        })
        .build()
}

/// `chain`: its input is `LABEL:STEPS:MS`; `burst`: as many activities at once.
fn orchestrations() -> OrchestrationRegistry {
    fn parts(input: &str) -> Result<(String, u32, String), String> {
        let parts: Vec<&str> = input.split(':').collect();
        let [label, steps, millis] = parts.as_slice() else { return Err("LABEL:STEPS:MS".to_owned()) };
        Ok(((*label).to_owned(), steps.parse().map_err(|_| "STEPS".to_owned())?, (*millis).to_owned()))
    }
    OrchestrationRegistry::builder()
        .register("chain", |context: OrchestrationContext, input: String| async move {
            let (label, steps, millis) = parts(&input)?;
            for step in 0..steps {
                context.schedule_activity("step", format!("{label}.{step}:{millis}")).await?;
            }
            Ok(label)
        })
        .register("burst", |context: OrchestrationContext, input: String| async move {
            let (label, steps, millis) = parts(&input)?;
            let steps =
                (0..steps).map(|step| context.schedule_activity("step", format!("{label}.{step}:{millis}")));
            let done = context.join(steps.collect()).await;
            done.into_iter().collect::<Result<Vec<_>, String>>()?;
            Ok(label)
        })
        .build()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Who listens may be gone; then this process is about to end.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

const STOP_WITHIN_MS: u64 = 10_000;
