//! The orchestrations that are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};

/// One row of the tables.
#[derive(Debug)]
pub struct Scenario {
    /// Label.
    pub name: &'static str,
    /// Registered name.
    pub orchestration: &'static str,
    /// Input.
    pub input: &'static str,
}

/// One activity.
pub const HELLO: Scenario = Scenario { name: "hello", orchestration: "chain", input: "1" };
/// A timer that does not fire while we look.
pub const WAIT: Scenario = Scenario { name: "wait", orchestration: "wait", input: "" };
/// In table order.
pub static SCENARIOS: &[Scenario] = &[
    HELLO,
    Scenario { name: "chain of 5", orchestration: "chain", input: "5" },
    Scenario { name: "fan-out 20", orchestration: "fan", input: "20" },
    Scenario { name: "fan-out 150", orchestration: "fan", input: "150" },
    Scenario { name: "3 sub-orchestrations", orchestration: "parent", input: "3" },
];

/// How far workflows are, counted in their code: asking the provider would cost requests.
#[derive(Debug, Default)]
pub struct Counters {
    /// Orchestrations that have reached their timer.
    pub waiting: AtomicUsize,
}

/// One activity that returns at once.
pub fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("echo", |_: ActivityContext, input: String| async move { Ok::<_, String>(input) })
        .build()
}

/// The orchestrations of [`SCENARIOS`], and one that waits.
pub fn orchestrations(counters: &Arc<Counters>) -> OrchestrationRegistry {
    let counters = counters.clone();
    OrchestrationRegistry::builder()
        .register("chain", |context: OrchestrationContext, steps: String| async move {
            for step in 0..steps.parse().unwrap_or(1) {
                context.schedule_activity("echo", format!("{step}")).await?;
            }
            Ok::<_, String>(steps)
        })
        .register("fan", |context: OrchestrationContext, width: String| async move {
            let count: u32 = width.parse().unwrap_or(1);
            let steps = (0..count).map(|step| context.schedule_activity("echo", step.to_string())).collect();
            let done = context.join(steps).await.into_iter().collect::<Result<Vec<_>, String>>()?;
            Ok::<_, String>(done.len().to_string())
        })
        .register("parent", |context: OrchestrationContext, count: String| async move {
            let count: u32 = count.parse().unwrap_or(1);
            let children = (0..count).map(|_| context.schedule_sub_orchestration("chain", "1")).collect();
            let done = context.join(children).await.into_iter().collect::<Result<Vec<_>, String>>()?;
            Ok::<_, String>(done.len().to_string())
        })
        .register("wait", move |context: OrchestrationContext, input: String| {
            // A first turn is not replayed while the timer has not fired.
            counters.waiting.fetch_add(1, Ordering::Relaxed);
            async move {
                context.schedule_timer(Duration::from_secs(3600)).await;
                Ok::<_, String>(input)
            }
        })
        .build()
}
