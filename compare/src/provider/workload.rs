//! The orchestrations that are measured.

use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};

/// One row of the tables.
pub struct Scenario {
    /// Label.
    pub name: &'static str,
    /// Registered name.
    pub orchestration: &'static str,
    /// Input.
    pub input: &'static str,
}

/// In table order; the first is one activity.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "hello", orchestration: "chain", input: "1" },
    Scenario { name: "chain of 5", orchestration: "chain", input: "5" },
    Scenario { name: "fan-out 20", orchestration: "fan", input: "20" },
    Scenario { name: "fan-out 150", orchestration: "fan", input: "150" },
    Scenario { name: "3 sub-orchestrations", orchestration: "parent", input: "3" },
];

/// One activity that returns at once.
pub fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("echo", |_: ActivityContext, input: String| async move { Ok::<_, String>(input) })
        .build()
}

/// The orchestrations of [`SCENARIOS`], and one that waits.
pub fn orchestrations() -> OrchestrationRegistry {
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
        .register("wait", |context: OrchestrationContext, input: String| async move {
            context.schedule_timer(Duration::from_secs(3600)).await;
            Ok::<_, String>(input)
        })
        .build()
}
