//! Counts over all instances.

use duroxide::providers::{ProviderError, QueueDepths, SystemMetrics};
use serde::Deserialize;

use crate::core::Core;
use crate::documents::{Status, lenient};
use crate::error::{About, Fault};
use crate::queries::{self, Query};
use crate::store::{Call, decode};

/// Totals by status, and of executions and events.
pub(crate) async fn system(core: &Core) -> Result<SystemMetrics, ProviderError> {
    #[derive(Deserialize)]
    struct Row {
        #[serde(default, deserialize_with = "lenient")]
        status: String,
        instances: u64,
        #[serde(default, deserialize_with = "lenient")]
        executions: f64,
        #[serde(default, deserialize_with = "lenient")]
        events: f64,
    }
    const OPERATION: &str = "get_system_metrics";
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let rows = core.store.query_merged(call, &Query::new(queries::INSTANCE_COUNTS)).await.map_err(surface)?;
    let mut metrics = SystemMetrics::default();
    for row in rows {
        let row: Row = decode(row.get().as_bytes()).map_err(surface)?;
        metrics.total_instances += row.instances;
        metrics.total_executions = metrics.total_executions.saturating_add(whole(row.executions));
        metrics.total_events = metrics.total_events.saturating_add(whole(row.events));
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
    let call = core.store.call(OPERATION);
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
    let sums = rows.iter().map(|row| decode::<f64>(row.get().as_bytes()).map(whole));
    let sum = sums.sum::<Result<u64, Fault>>()?;
    Ok(usize::try_from(sum).unwrap_or(usize::MAX))
}

/// A sum as a whole number: what is summed up may be a fraction in a damaged document.
fn whole(sum: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
    let whole = sum as u64;
    whole
}
