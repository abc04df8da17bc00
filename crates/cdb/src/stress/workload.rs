//! What is run under load. `fan-out` and `large-payload` have the shape of duroxide's own stress scenarios, so that
//! numbers can be compared; the others load one ability each.

use std::time::Duration;

use clap::ValueEnum;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};
use serde::{Deserialize, Serialize};

/// A sort of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Each instance runs `--tasks` activities at once (duroxide's parallel orchestrations).
    FanOut,
    /// Activities with payloads of one, five and ten times `--payload`, and two children (duroxide's large payload).
    LargePayload,
    /// Each instance runs `--tasks` activities one after the other.
    Chain,
    /// Each instance runs `--tasks` sub-orchestrations with one activity each.
    Children,
    /// Each instance continues as new `--tasks` times.
    ContinueAsNew,
    /// Each instance writes `--tasks` key-values of `--payload` bytes.
    KeyValues,
}

impl Workload {
    /// The name as it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FanOut => "fan-out",
            Self::LargePayload => "large-payload",
            Self::Chain => "chain",
            Self::Children => "children",
            Self::ContinueAsNew => "continue-as-new",
            Self::KeyValues => "key-values",
        }
    }

    /// Activities of one instance.
    pub(crate) fn activities(self, tasks: u32) -> u32 {
        match self {
            Self::FanOut | Self::Chain | Self::Children | Self::ContinueAsNew => tasks,
            Self::LargePayload => 3 * tasks + 2,
            Self::KeyValues => 0,
        }
    }
}

/// How big one instance is: the input of every workload.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// Tasks.
    pub(crate) tasks: u32,
    /// Bytes of a payload.
    pub(crate) payload: usize,
}

/// The only activity: it takes its time and answers with a payload of the size its input names.
pub(crate) fn activities(takes: Duration) -> ActivityRegistry {
    let work = move |_: ActivityContext, input: String| async move {
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        Ok(text(input.len()))
    };
    ActivityRegistry::builder().register(TASK, work).build()
}

/// The workloads by their names.
pub(crate) fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register(Workload::FanOut.name(), fan_out)
        .register(Workload::LargePayload.name(), large_payload)
        .register(Workload::Chain.name(), chain)
        .register(Workload::Children.name(), children)
        .register(Workload::ContinueAsNew.name(), continue_as_new)
        .register(Workload::KeyValues.name(), key_values)
        .register(CHILD, child)
        .build()
}

async fn fan_out(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    let tasks = (0..shape.tasks).map(|_| context.schedule_activity(TASK, text(shape.payload))).collect();
    all(context.join(tasks).await)
}

async fn large_payload(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    let sizes = (0..shape.tasks).flat_map(|_| LARGE_FACTORS).map(|factor| shape.payload * factor);
    let tasks = sizes.map(|size| context.schedule_activity(TASK, text(size))).collect();
    all(context.join(tasks).await)?;
    let routes = (0..2).map(|_| context.schedule_sub_orchestration(CHILD, text(shape.payload))).collect();
    all(context.join(routes).await)
}

async fn chain(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    let mut last = text(shape.payload);
    for _ in 0..shape.tasks {
        last = context.schedule_activity(TASK, last).await?;
    }
    Ok("done".to_owned())
}

async fn children(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    let routes =
        (0..shape.tasks).map(|_| context.schedule_sub_orchestration(CHILD, text(shape.payload))).collect();
    all(context.join(routes).await)
}

async fn child(context: OrchestrationContext, input: String) -> Result<String, String> {
    context.schedule_activity(TASK, input).await
}

async fn continue_as_new(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    context.schedule_activity(TASK, text(shape.payload)).await?;
    if shape.tasks > 1 {
        let rest = Shape { tasks: shape.tasks - 1, ..shape };
        return context
            .continue_as_new(serde_json::to_string(&rest).map_err(|error| error.to_string())?)
            .await;
    }
    Ok("done".to_owned())
}

async fn key_values(context: OrchestrationContext, input: String) -> Result<String, String> {
    let shape = read(&input)?;
    for task in 0..shape.tasks {
        context.set_kv_value(format!("key-{task}"), text(shape.payload));
    }
    Ok(format!("{} keys", context.get_kv_length()))
}

fn read(input: &str) -> Result<Shape, String> {
    serde_json::from_str(input).map_err(|error| format!("the input is not a shape: {error}"))
}

fn all(results: Vec<Result<String, String>>) -> Result<String, String> {
    let done = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{} done", done.len()))
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

const TASK: &str = "Task";
const CHILD: &str = "child";
/// Small, medium and large payloads, as multiples.
const LARGE_FACTORS: [usize; 3] = [1, 5, 10];
