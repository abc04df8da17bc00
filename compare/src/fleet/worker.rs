//! A worker: a process of its own with one runtime, which tells on standard output what it did.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};
use tokio::signal::unix::{SignalKind, signal};

use super::FleetContender;
use crate::provider::tally::{Tallied, Tally};

/// What a worker is told on its command line.
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// Which provider.
    #[arg(long)]
    pub contender: FleetContender,
    /// The server.
    #[arg(long)]
    pub endpoint: String,
    /// Its key.
    #[arg(long)]
    pub key: String,
    /// Dispatchers of each kind.
    #[arg(long)]
    pub dispatchers: usize,
    /// After how many milliseconds of silence it listens rarely; ours only.
    #[arg(long)]
    pub rests_after_ms: Option<u64>,
}

/// Works until it is killed or asked to stop, or who started it is gone.
pub async fn run(args: &WorkerArgs) -> anyhow::Result<()> {
    let mut stops = signal(SignalKind::terminate())?;
    let opened =
        super::open(args.contender, &args.endpoint, &args.key, args.dispatchers, args.rests_after_ms).await?;
    let tally = Arc::new(Tally::default());
    let provider: Arc<dyn Provider> = Arc::new(Tallied::new(opened.provider(), tally.clone()));
    let options = RuntimeOptions {
        orchestration_concurrency: args.dispatchers,
        worker_concurrency: args.dispatchers,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::start_with_options(provider, activities(), orchestrations(), options).await;
    say("ready");
    let mut told = (0, 0);
    loop {
        let now = (tally.completed.load(Ordering::Relaxed), tally.commits.load(Ordering::Relaxed));
        if now != told {
            say(&format!("done {} {}", now.0, now.1));
            told = now;
        }
        if std::os::unix::process::parent_id() == 1 {
            // Who measured is gone.
            runtime.shutdown(Some(0)).await;
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(TELL_EVERY) => {}
            _ = stops.recv() => {
                runtime.shutdown(None).await;
                opened.leave().await;
                return Ok(());
            }
        }
    }
}

/// Activities: one that returns at once, one that takes its time, one that tells when it began.
fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("echo", |_: ActivityContext, input: String| async move { Ok::<_, String>(input) })
        .register("pause", |_: ActivityContext, millis: String| async move {
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap_or(0))).await;
            Ok::<_, String>(millis)
        })
        .register("stamp", |_: ActivityContext, label: String| async move {
            say(&format!("ran {label} {}", now_micros()));
            Ok::<_, String>(label)
        })
        .build()
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("hello", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("echo", input).await
        })
        .register("stamped", |context: OrchestrationContext, label: String| async move {
            context.schedule_activity("stamp", label).await
        })
        .register("listening", |context: OrchestrationContext, label: String| async move {
            context.schedule_wait("go").await;
            context.schedule_activity("stamp", label).await
        })
        .register("fan", |context: OrchestrationContext, input: String| async move {
            let (width, millis) = input.split_once('x').unwrap_or((&input, "0"));
            let width: u32 = width.parse().unwrap_or(1);
            let steps = (0..width).map(|_| context.schedule_activity("pause", millis)).collect();
            let done = context.join(steps).await.into_iter().collect::<Result<Vec<_>, String>>()?;
            Ok::<_, String>(done.len().to_string())
        })
        .build()
}

/// The machine's clock, which all processes of a run share.
pub fn now_micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Who listens may be gone; then this process is about to end.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

const TELL_EVERY: Duration = Duration::from_millis(5);
