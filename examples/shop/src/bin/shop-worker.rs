//! The worker: runs the workflows until it is told to stop. Start as many as you like.

use std::process::ExitCode;

use duroxide::runtime::{Runtime, RuntimeOptions};
use shop::{Outside, Settings, activities, orchestrations};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,duroxide=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match Box::pin(work()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn work() -> Result<(), String> {
    let settings = Settings::from_env()?;
    // Before anybody can send it: a signal that comes while the container is opened is not lost.
    let stop = stop_signal()?;
    let store = settings.open().await?;
    let options = RuntimeOptions {
        orchestration_concurrency: settings.concurrency,
        worker_concurrency: settings.concurrency,
        ..RuntimeOptions::default()
    };
    let outside = Outside::default();
    let runtime =
        Runtime::start_with_options(store, activities(&outside), orchestrations(settings.release), options)
            .await;
    tracing::info!(release = ?settings.release, "the worker is ready");
    stop.await;
    tracing::info!("stopping: what is under way may end within {} s", settings.grace.as_secs());
    // Nothing new is taken. What does not end in time is cut off, and runs again elsewhere once its lock has ended.
    runtime.shutdown(Some(u64::try_from(settings.grace.as_millis()).unwrap_or(u64::MAX))).await;
    tracing::info!("stopped");
    Ok(())
}

/// Ctrl-C on a laptop, SIGTERM in a cluster.
#[cfg(unix)]
fn stop_signal() -> Result<impl Future<Output = ()>, String> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Ctrl-C.
#[cfg(not(unix))]
fn stop_signal() -> Result<impl Future<Output = ()>, String> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
