//! Deleting instances, several at once, all or none.
//!
//! Every head of the set is fenced first: its type changes, its lock goes, an in-flight ack fails. If one cannot be
//! fenced, the others are given back and nothing is deleted. Then the set is recorded; from there on there is no way
//! back, and whoever finds the record, or a fenced head of it, finishes the deletion.

use std::collections::HashSet;
use std::sync::Arc;

use duroxide::providers::{DeleteInstanceResult, ProviderError};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::core::{Core, decode, in_parallel};
use crate::documents::{ChunkRef, Deletion, Head, Status, Tagged, ids, kind};
use crate::error::{Fault, Trouble};
use crate::history::finish_commits;
use crate::outbox;
use crate::queries::{self, Query};
use crate::store::{Call, Op};

use super::info::not_found;
use super::list;

const OPERATION: &str = "delete_instances_atomic";

/// Deletes a set of instances that is closed under children.
pub(crate) async fn instances(
    core: &Arc<Core>,
    ids: &[String],
    force: bool,
) -> Result<DeleteInstanceResult, ProviderError> {
    let call = core.call(OPERATION);
    let mut set: Vec<String> = Vec::new();
    for id in ids {
        if !set.contains(id) {
            set.push(id.clone());
        }
    }
    if set.is_empty() {
        return Ok(DeleteInstanceResult::default());
    }
    let deletion = format!("deletion:{}", uuid::Uuid::new_v4().simple());
    let mut fenced: Vec<Tagged<Head>> = Vec::new();
    let verdict = fence_all(core, call, &set, force, &deletion, &mut fenced).await;
    let fenced = match verdict {
        Ok(()) => fenced,
        Err(error) => {
            for head in fenced {
                if let Err(fault) = unfence(core, call, head).await {
                    tracing::warn!(%fault, "a fence is left behind; the reconciler will take it down");
                }
            }
            return Err(error);
        }
    };
    let surface = |fault: Fault| fault.surface(OPERATION, &set[0]);
    let record = Deletion::new(&deletion, &set, core.clock.now_ms() + core.settings.age_threshold_ms);
    let op = Op::create(&record).map_err(|error| surface(Fault::refused(error.to_string())))?;
    core.create_own(call, ids::DELETIONS, &op).await.map_err(surface)?;
    let mut result = DeleteInstanceResult::default();
    for head in &fenced {
        let counts = remove(core, call, &head.document.instance_id, &set).await.map_err(surface)?;
        result.instances_deleted += u64::from(head.document.is_listed());
        result.executions_deleted += head.document.execution_count.max(1);
        result.events_deleted += counts.events;
        result.queue_messages_deleted += counts.queued;
    }
    core.delete(call, ids::DELETIONS, &deletion).await.map_err(surface)?;
    Ok(result)
}

/// Fences every head, then makes sure that no child is left out.
async fn fence_all(
    core: &Core,
    call: Call,
    set: &[String],
    force: bool,
    deletion: &str,
    fenced: &mut Vec<Tagged<Head>>,
) -> Result<(), ProviderError> {
    for id in set {
        let head = fence(core, call, id, force, deletion).await?;
        fenced.extend(head);
    }
    if fenced.is_empty() {
        return Err(not_found(OPERATION, &set[0]));
    }
    let children =
        list::children(core, call, set).await.map_err(|fault| fault.surface(OPERATION, &set[0]))?;
    let members: HashSet<&String> = set.iter().collect();
    match children.iter().find(|child| !members.contains(child)) {
        Some(orphan) => Err(ProviderError::permanent(
            OPERATION,
            format!(
                "The child {orphan} would be an orphan: it is not in the set to delete. Read the tree again and retry."
            ),
        )),
        None => Ok(()),
    }
}

/// Fences one head. `None` if there is no such instance.
async fn fence(
    core: &Core,
    call: Call,
    id: &str,
    force: bool,
    deletion: &str,
) -> Result<Option<Tagged<Head>>, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, id);
    loop {
        let Some(found) = core.head(call, id).await.map_err(surface)? else { return Ok(None) };
        if found.document.deletion.as_deref() == Some(deletion) {
            return Ok(Some(found));
        }
        if found.document.kind == kind::DELETING {
            return Err(ProviderError::retryable(
                OPERATION,
                format!("Instance {id} is being deleted already."),
            ));
        }
        if !force && found.document.is_visible() && !Status::ends_instance(&found.document.status) {
            return Err(ProviderError::permanent(
                OPERATION,
                format!("Instance {id} is still running. Cancel it first, or delete it with force."),
            ));
        }
        let mut head = found.document;
        head.kind = kind::DELETING.to_owned();
        head.deletion = Some(deletion.to_owned());
        head.sweep_at = Some(core.clock.now_ms() + core.settings.age_threshold_ms.max(FENCE_MS));
        head.clear_lock();
        let op = Op::replace(&head.id, &head, Some(&found.etag))
            .map_err(|error| surface(Fault::refused(error.to_string())))?;
        match core.patiently(call, || core.store.write(call, id, &op)).await {
            Ok(etag) => return Ok(Some(Tagged { document: head, etag })),
            Err(fault) if matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => {}
            Err(fault) => return Err(surface(fault)),
        }
    }
}

async fn unfence(core: &Core, call: Call, fenced: Tagged<Head>) -> Result<(), Fault> {
    let mut head = fenced.document;
    head.kind = kind::INSTANCE.to_owned();
    head.deletion = None;
    head.sweep_at = None;
    let op = Op::replace(&head.id, &head, Some(&fenced.etag))
        .map_err(|error| Fault::refused(error.to_string()))?;
    match core.patiently(call, || core.store.write(call, &head.instance_id, &op)).await {
        Err(fault) if !matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => Err(fault),
        _ => Ok(()),
    }
}

#[derive(Debug, Default)]
struct Counts {
    events: u64,
    queued: u64,
}

/// Empties the partition of a fenced instance. What it still has to send is sent first, except to the set itself.
async fn remove(core: &Core, call: Call, instance: &str, set: &[String]) -> Result<Counts, Fault> {
    finish_commits(core, call, instance).await?;
    outbox::deliver_pending(core, call, instance, set).await?;
    let mut counts = Counts::default();
    let query = Query::new(queries::CONTENTS);
    loop {
        let rows = stored(core, call, instance, &query).await?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            counts.events += row.events();
            counts.queued += u64::from([kind::MESSAGE, kind::WORK].contains(&row.kind.as_str()));
        }
        let groups: Vec<Vec<String>> =
            rows.chunks(100).map(|group| group.iter().map(|row| row.id.clone()).collect()).collect();
        let removals = groups.into_iter().map(|group| -> BoxFuture<'_, Result<(), Fault>> {
            Box::pin(async move { remove_group(core, call, instance, &group).await })
        });
        in_parallel(4, removals).await.into_iter().collect::<Result<(), Fault>>()?;
    }
    core.delete(call, instance, &ids::head(instance)).await?;
    core.cache.forget(instance);
    core.turns.forget(instance);
    core.works.forget(instance);
    Ok(counts)
}

/// A document that is to go.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stored {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    event_count: Option<u64>,
    #[serde(default)]
    pub(super) chunks: Option<ChunkRef>,
}

impl Stored {
    /// How many events it holds.
    pub(super) fn events(&self) -> u64 {
        if self.kind == kind::HISTORY { self.event_count.unwrap_or(1) } else { 0 }
    }
}

/// The documents of a partition that a query finds.
pub(super) async fn stored(
    core: &Core,
    call: Call,
    instance: &str,
    query: &Query,
) -> Result<Vec<Stored>, Fault> {
    let rows = core.patiently(call, || core.store.query(call, instance, query)).await?;
    rows.iter().map(|row| decode(row.get().as_bytes())).collect()
}

/// Deletes documents, whether or not they are still there.
pub(crate) async fn remove_group(
    core: &Core,
    call: Call,
    instance: &str,
    group: &[String],
) -> Result<(), Fault> {
    let ops: Vec<Op> = group.iter().map(|id| Op::delete(id, None)).collect();
    match core.patiently(call, || core.store.batch(call, instance, &ops)).await {
        Ok(_) => Ok(()),
        Err(fault) if fault.trouble == Trouble::Missing => {
            for id in group {
                core.delete(call, instance, id).await?;
            }
            Ok(())
        }
        Err(fault) => Err(fault),
    }
}

/// Finishes a recorded deletion.
pub(crate) async fn resume(core: &Arc<Core>, call: Call, deletion: &Deletion) -> Result<(), Fault> {
    for instance in &deletion.instances {
        let head = core.head(call, instance).await?;
        if head.is_some_and(|head| head.document.deletion.as_deref() == Some(deletion.id.as_str())) {
            remove(core, call, instance, &deletion.instances).await?;
        }
    }
    core.delete(call, ids::DELETIONS, &deletion.id).await
}

/// Finishes or takes back the deletion of a head that was left fenced.
pub(crate) async fn resume_head(core: &Arc<Core>, call: Call, head: Tagged<Head>) -> Result<(), Fault> {
    let id = head.document.deletion.clone().unwrap_or_default();
    match core.read_as::<Deletion>(call, ids::DELETIONS, &id).await? {
        Some(deletion) => resume(core, call, &deletion.document).await,
        // It never passed the point of no return.
        None => unfence(core, call, head).await,
    }
}

/// How long a fence without a record is left alone.
const FENCE_MS: u64 = 60_000;
