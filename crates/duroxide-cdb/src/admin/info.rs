//! Views of one instance.

use std::collections::BTreeSet;

use duroxide::providers::{ExecutionInfo, InstanceInfo, ProviderError};
use serde::Deserialize;

use crate::core::Core;
use crate::documents::{ExecutionRecord, Head, Status, ids, kind, lenient};
use crate::error::Fault;
use crate::history::visible_head;
use crate::load;
use crate::queries::{self, Query};
use crate::staging::join;
use crate::store::Call;

use super::wreck;

/// The error of an instance that is not there.
pub(crate) fn not_found(operation: &str, instance: &str) -> ProviderError {
    ProviderError::permanent(operation, format!("Instance {instance} not found"))
}

/// The head of an instance that must exist.
pub(crate) async fn existing(core: &Core, call: Call, instance: &str) -> Result<Head, ProviderError> {
    let head =
        visible_head(core, call, instance).await.map_err(|fault| fault.surface(call.operation, instance))?;
    head.map(|head| head.document.clone()).ok_or_else(|| not_found(call.operation, instance))
}

/// What is known of an instance.
pub(crate) async fn instance(core: &Core, instance: &str) -> Result<InstanceInfo, ProviderError> {
    let call = core.store.call("get_instance_info");
    let head = existing(core, call, instance).await?;
    let output = output(core, call, &head).await.map_err(|fault| fault.surface(call.operation, instance))?;
    Ok(InstanceInfo {
        instance_id: head.instance_id,
        orchestration_name: head.orchestration_name,
        orchestration_version: head.orchestration_version,
        current_execution_id: head.current_execution_id,
        status: head.status,
        output,
        created_at: head.created_at,
        updated_at: head.updated_at,
        parent_instance_id: head.parent_instance_id,
    })
}

async fn output(core: &Core, call: Call, head: &Head) -> Result<Option<String>, Fault> {
    if !head.output_in_record {
        return Ok(head.output.clone());
    }
    let id = ids::execution(&head.instance_id, head.current_execution_id);
    match core.store.patient(call).read_as::<ExecutionRecord>(&head.instance_id, &id).await? {
        Some(record) => record_output(core, call, &record.document).await,
        None => Ok(None),
    }
}

async fn record_output(core: &Core, call: Call, record: &ExecutionRecord) -> Result<Option<String>, Fault> {
    match &record.chunks {
        Some(chunks) => Ok(Some(join(&core.store, call, &record.instance_id, chunks).await?)),
        None => Ok(record.output.clone()),
    }
}

/// The executions of an instance, in order.
pub(crate) async fn executions(core: &Core, instance: &str) -> Result<Vec<u64>, ProviderError> {
    let call = core.store.call("list_executions");
    let surface = |fault: Fault| fault.surface(call.operation, instance);
    let Some(head) = visible_head(core, call, instance).await.map_err(surface)? else {
        return Ok(Vec::new());
    };
    let mut numbers: BTreeSet<u64> = outlines(core, call, instance)
        .await
        .map_err(surface)?
        .into_iter()
        .map(|outline| outline.execution_id)
        .collect();
    numbers.insert(head.document.current_execution_id);
    Ok(numbers.into_iter().collect())
}

/// A document of an execution, without its contents.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outline {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) execution_id: u64,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) status: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(crate) completed_at: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    event_count: Option<u64>,
}

impl Outline {
    /// How many events it holds.
    pub(crate) fn events(&self) -> u64 {
        if self.kind == kind::HISTORY { self.event_count.unwrap_or(1) } else { 0 }
    }
}

/// Outlines of all executions that have a record or history. A document that does not say which is of none.
pub(crate) async fn outlines(core: &Core, call: Call, instance: &str) -> Result<Vec<Outline>, Fault> {
    let query = Query::new(queries::EXECUTIONS);
    let rows = core.store.patient(call).query(instance, &query).await?;
    Ok(rows.iter().filter_map(|row| core.strays.read(call.operation, row)).collect())
}

/// The parent of an instance, also of one whose head cannot be read otherwise.
pub(crate) async fn parent(core: &Core, call: Call, instance: &str) -> Result<Option<String>, ProviderError> {
    let surface = |fault: Fault| fault.surface(call.operation, instance);
    match visible_head(core, call, instance).await {
        Err(fault) if fault.is_damage => {
            let head = wreck::head(core, call, instance).await.map_err(surface)?;
            Ok(head.and_then(|head| head.document.parent_instance_id))
        }
        head => match head.map_err(surface)? {
            Some(head) => Ok(head.document.parent_instance_id.clone()),
            None => Err(not_found(call.operation, instance)),
        },
    }
}

/// What is known of one execution.
pub(crate) async fn execution(
    core: &Core,
    instance: &str,
    number: u64,
) -> Result<ExecutionInfo, ProviderError> {
    let call = core.store.call("get_execution_info");
    let surface = |fault: Fault| fault.surface(call.operation, instance);
    let missing = || {
        ProviderError::permanent(
            call.operation,
            format!("Execution {number} of instance {instance} not found"),
        )
    };
    let Some(head) = visible_head(core, call, instance).await.map_err(surface)? else {
        return Err(missing());
    };
    let head = &head.document;
    if head.current_execution_id == number {
        let event_count = if head.is_legacy() {
            load::read_texts(core, call, instance, number, u64::MAX).await.map_err(surface)?.len()
        } else {
            usize::try_from(head.event_count).unwrap_or(usize::MAX)
        };
        let ended = Status::ends_execution(&head.status);
        return Ok(ExecutionInfo {
            execution_id: number,
            status: head.status.clone(),
            output: output(core, call, head).await.map_err(surface)?,
            started_at: if head.is_legacy() { head.created_at } else { head.execution_started_at },
            completed_at: head
                .completed_at
                .or_else(|| (head.is_legacy() && ended).then_some(head.updated_at)),
            event_count,
        });
    }
    let id = ids::execution(instance, number);
    if let Some(record) =
        core.store.patient(call).read_as::<ExecutionRecord>(instance, &id).await.map_err(surface)?
    {
        let record = record.document;
        return Ok(ExecutionInfo {
            execution_id: number,
            status: record.status.clone(),
            output: record_output(core, call, &record).await.map_err(surface)?,
            started_at: record.started_at,
            completed_at: record.completed_at,
            event_count: usize::try_from(record.event_count).unwrap_or(usize::MAX),
        });
    }
    // An execution of the public crate: only its history tells of it.
    let events = crate::history::read_execution(core, call.operation, instance, number).await?;
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Err(missing()) };
    Ok(ExecutionInfo {
        execution_id: number,
        status: Status::CONTINUED_AS_NEW.to_owned(),
        output: None,
        started_at: first.timestamp_ms,
        completed_at: Some(last.timestamp_ms),
        event_count: events.len(),
    })
}
