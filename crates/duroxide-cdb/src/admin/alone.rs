//! Deleting an instance that stands alone: it has ended, has no children and nothing to send, and all of it fits into one
//! batch. Fences and records are there because a set of instances is in many partitions; one partition goes in one
//! transaction, or stays as it is.
//!
//! Why that is safe without a fence: everything is removed on condition of the ETag it was listed with, the head first. A
//! turn that was committed meanwhile has changed the head. An instance that has ended starts no children, so all it ever
//! started had left its outbox when the partition was listed; they are asked for after that. What arrives after the list
//! was made was sent to the next life of the instance, or is dropped like mail for an instance that is not there.

use duroxide::providers::{DeleteInstanceResult, ProviderError};

use crate::core::Core;
use crate::documents::{Head, Status, kind};
use crate::error::Fault;
use crate::queries::{self, Query};
use crate::store::settle::{Rests, Settled};
use crate::store::{Op, decode};

use super::delete::{OPERATION, Stored, removal, stored};
use super::fence::Terms;

/// Deletes an instance that stands alone. `None`, and nothing is done, if it does not, or if somebody was in the way.
pub(super) async fn delete(
    core: &Core,
    instance: &str,
    terms: Terms<'_>,
) -> Result<Option<DeleteInstanceResult>, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    let call = core.store.call(OPERATION);
    let query = Query::new(queries::REMAINS).for_latest();
    let rows = stored(core, call, instance, &query).await.map_err(surface)?;
    let Some((head, etag, rows)) = sort(rows) else { return Ok(None) };
    let is_ended = head.is_visible() && Status::ends_instance(&head.status) && !head.is_legacy();
    if !is_ended || rows.len() >= OPERATIONS_MAX || terms.refuses(instance, &head) {
        return Ok(None);
    }
    let relatives = Query::new(queries::RELATIVES).for_latest().with("@parent", instance);
    if !core.store.query_all(call, &relatives).await.map_err(surface)?.is_empty() {
        return Ok(None);
    }
    let mut ops = vec![Op::delete(&head.id, Some(&etag))];
    for row in &rows {
        ops.push(removal(core, instance, row).map_err(surface)?);
    }
    // The head goes only with this batch: if it is gone after a try without an answer, that try arrived.
    let settled = core.store.patient(call).settle(instance, &ops, Rests::Removal(0)).await;
    match settled.map_err(surface)? {
        Settled::Applied(_) | Settled::Arrived => {}
        Settled::Superseded(_) => return Ok(None),
    }
    core.cache.forget(instance);
    core.turns.forget(instance);
    core.works.forget(instance);
    let is_queued = |row: &&Stored| [kind::MESSAGE, kind::WORK].contains(&row.kind.as_str());
    let in_head = head.events.len() as u64;
    Ok(Some(DeleteInstanceResult {
        instances_deleted: 1,
        executions_deleted: head.execution_count.max(1),
        events_deleted: rows.iter().map(Stored::events).fold(in_head, u64::saturating_add),
        queue_messages_deleted: rows.iter().filter(is_queued).count() as u64,
    }))
}

/// The head with its ETag, and everything else that goes. `None` if there is anything that one batch cannot settle.
fn sort(rows: Vec<Stored>) -> Option<(Head, String, Vec<Stored>)> {
    let mut found = None;
    let mut going = Vec::with_capacity(rows.len());
    for mut row in rows {
        match row.kind.as_str() {
            kind::INSTANCE if found.is_none() => {
                let head = decode::<Head>(row.head.take()?.get().as_bytes()).ok()?;
                found = Some((head, row.etag.clone()?));
            }
            kind::INSTANCE | kind::DELETING | kind::INTENT | kind::MANIFEST | "" => return None,
            kind::TOMBSTONE => {}
            _ => going.push(row),
        }
    }
    let (head, etag) = found?;
    Some((head, etag, going))
}

/// Operations that a batch may have, but for that of the head.
const OPERATIONS_MAX: usize = 99;
