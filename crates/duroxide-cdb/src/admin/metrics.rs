//! Counts over all instances.

use duroxide::providers::{ProviderError, QueueDepths, SystemMetrics};
use serde::Deserialize;

use crate::core::{Core, decode};
use crate::documents::Status;
use crate::error::{About, Fault};
use crate::queries::{self, Query};
use crate::store::Call;

/// Totals by status, and of executions and events.
pub(crate) async fn system(core: &Core) -> Result<SystemMetrics, ProviderError> {
    #[derive(Deserialize)]
    struct Row {
        status: String,
        instances: u64,
        executions: u64,
        events: u64,
    }
    const OPERATION: &str = "get_system_metrics";
    let call = core.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let rows = core.store.query_merged(call, &Query::new(queries::INSTANCE_COUNTS)).await.map_err(surface)?;
    let mut metrics = SystemMetrics::default();
    for row in rows {
        let row: Row = decode(row.get().as_bytes()).map_err(surface)?;
        metrics.total_instances += row.instances;
        metrics.total_executions += row.executions;
        metrics.total_events += row.events;
        match row.status.as_str() {
            Status::RUNNING => metrics.running_instances += row.instances,
            Status::COMPLETED => metrics.completed_instances += row.instances,
            Status::FAILED => metrics.failed_instances += row.instances,
            _ => {}
        }
    }
    Ok(metrics)
}

/// How many messages and work items wait unlocked.
pub(crate) async fn queue_depths(core: &Core) -> Result<QueueDepths, ProviderError> {
    const OPERATION: &str = "get_queue_depths";
    let call = core.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let (messages, held, work) = futures::try_join!(
        sum(core, call, queries::COUNT_MESSAGES),
        sum(core, call, queries::HELD_MESSAGES),
        sum(core, call, queries::COUNT_WORK),
    )
    .map_err(surface)?;
    Ok(QueueDepths { orchestrator_queue: messages.saturating_sub(held), worker_queue: work, timer_queue: 0 })
}

async fn sum(core: &Core, call: Call, text: &'static str) -> Result<usize, Fault> {
    let rows = core.store.query_all(call, &Query::new(text)).await?;
    rows.iter().map(|row| decode::<usize>(row.get().as_bytes())).sum()
}
