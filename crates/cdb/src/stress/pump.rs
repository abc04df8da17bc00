//! Keeps a number of instances under way for a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide::providers::Provider;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{Client, OrchestrationStatus};
use tokio::task::JoinSet;

use super::workload::{Shape, Workload, activities, orchestrations};

/// How much load.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// What is run.
    pub(crate) workload: Workload,
    /// How big one instance is.
    pub(crate) shape: Shape,
    /// Instances under way at once.
    pub(crate) concurrency: usize,
    /// How long new ones are started.
    pub(crate) duration: Duration,
    /// How many are started at most.
    pub(crate) instances: u64,
    /// How long an activity takes.
    pub(crate) activity: Duration,
    /// Dispatchers of turns.
    pub(crate) orchestration_dispatchers: usize,
    /// Dispatchers of activities.
    pub(crate) worker_dispatchers: usize,
    /// Makes instance ids of this run unlike those of any other.
    pub(crate) prefix: String,
}

/// What came of the load.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How long each completed instance took.
    pub(crate) latencies: Vec<Duration>,
    /// Instances that failed, or did not end in time.
    pub(crate) failed: u64,
    /// The first few reasons.
    pub(crate) reasons: Vec<String>,
    /// From the first start to the last end.
    pub(crate) elapsed: Duration,
}

/// Runs the load; `tell` hears the time gone and the numbers completed and failed.
pub(crate) async fn pump(
    provider: Arc<dyn Provider>,
    load: &Load,
    mut tell: impl FnMut(Duration, &Outcome),
) -> Outcome {
    let options = RuntimeOptions {
        orchestration_concurrency: load.orchestration_dispatchers,
        worker_concurrency: load.worker_dispatchers,
        ..RuntimeOptions::default()
    };
    let runtime =
        Runtime::start_with_options(provider.clone(), activities(load.activity), orchestrations(), options)
            .await;
    let client = Arc::new(Client::new(provider));
    let input = serde_json::to_string(&load.shape).expect("numbers become JSON");
    let began = Instant::now();
    let mut outcome = Outcome::default();
    let mut under_way = JoinSet::new();
    let mut number = 0_u64;
    loop {
        while under_way.len() < load.concurrency && number < load.instances && began.elapsed() < load.duration
        {
            number += 1;
            let id = format!("{}-{number}", load.prefix);
            under_way.spawn(one(client.clone(), id, load.workload.name(), input.clone()));
        }
        tokio::select! {
            ended = under_way.join_next() => match ended {
                None => break,
                Some(Ok(Ok(latency))) => outcome.latencies.push(latency),
                Some(Ok(Err(reason))) => outcome.fail(reason),
                Some(Err(error)) => outcome.fail(error.to_string()),
            },
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
        tell(began.elapsed(), &outcome);
    }
    outcome.elapsed = began.elapsed();
    runtime.shutdown(None).await;
    outcome
}

impl Outcome {
    fn fail(&mut self, reason: String) {
        self.failed += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reason);
        }
    }
}

async fn one(client: Arc<Client>, id: String, name: &'static str, input: String) -> Result<Duration, String> {
    let began = Instant::now();
    client
        .start_orchestration(&id, name, input)
        .await
        .map_err(|error| format!("{id} did not start: {error}"))?;
    match client.wait_for_orchestration(&id, INSTANCE_MAX).await {
        Ok(OrchestrationStatus::Completed { .. }) => Ok(began.elapsed()),
        Ok(OrchestrationStatus::Failed { details, .. }) => {
            Err(format!("{id} failed: {}", details.display_message()))
        }
        Ok(other) => Err(format!("{id} ended as {other:?}")),
        Err(error) => Err(format!("{id} did not end: {error}")),
    }
}

const TELL_EVERY: Duration = Duration::from_millis(200);
/// One instance may take this long.
const INSTANCE_MAX: Duration = Duration::from_secs(60);
const REASONS_MAX: usize = 5;
