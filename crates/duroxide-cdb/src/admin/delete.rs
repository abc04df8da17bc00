//! Deleting instances, several at once, all or none.
//!
//! Every head of the set is fenced first: its type changes, its lock goes, an in-flight ack fails. If one cannot be
//! fenced, the others are given back and nothing is deleted. Then the set is recorded; from there on there is no way
//! back, and whoever finds the record, or a fenced head of it, finishes the deletion.
//!
//! A fenced instance is not found any more, so somebody may start it again while its remains are still being removed:
//! what is sent to it after the fence is for its next life and stays. And others may have finished the deletion while
//! this process was held up: every document is removed as it was listed, and what was listed counts only if the fence
//! still stood afterwards.

use std::collections::HashSet;
use std::sync::Arc;

use duroxide::providers::{DeleteInstanceResult, ProviderError};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::core::{Core, decode, in_parallel};
use crate::documents::{ChunkRef, Deletion, Forgive, Head, Status, Tagged, ids, kind};
use crate::error::{Fault, Trouble};
use crate::history::finish_commits;
use crate::orchestration::load;
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
    let call = fencing_call(core);
    let fenced = match fence_all(core, call, &set, force, &deletion).await {
        Ok(fenced) => fenced,
        Err(error) => {
            take_back(core, &set, &deletion).await;
            return Err(error);
        }
    };
    let surface = |fault: Fault| fault.surface(OPERATION, &set[0]);
    let record = Deletion::new(&deletion, &set, core.clock.now_ms() + core.settings.age_threshold_ms);
    let op = Op::create(&record).map_err(|error| surface(Fault::refused(error.to_string())))?;
    core.create_own(call, ids::DELETIONS, &op).await.map_err(surface)?;
    let mut result = DeleteInstanceResult::default();
    for head in &fenced {
        let counts = remove(core, &head.document.instance_id, &record).await.map_err(surface)?;
        result.instances_deleted += u64::from(head.document.is_listed());
        result.executions_deleted += head.document.execution_count.max(1);
        result.events_deleted += counts.events;
        result.queue_messages_deleted += counts.queued;
    }
    core.delete(core.call(OPERATION), ids::DELETIONS, &deletion).await.map_err(surface)?;
    Ok(result)
}

/// The call under which all fences are put up and the set is recorded: it ends long before others may take the first
/// fence down.
fn fencing_call(core: &Core) -> Call {
    let call = core.call(OPERATION);
    let fence = core.call_until(OPERATION, core.clock.now_ms() + FENCE_MS / 2);
    Call { deadline: call.deadline.min(fence.deadline), ..call }
}

/// Fences every head, then makes sure that no child is left out.
async fn fence_all(
    core: &Core,
    call: Call,
    set: &[String],
    force: bool,
    deletion: &str,
) -> Result<Vec<Tagged<Head>>, ProviderError> {
    let mut fenced = Vec::with_capacity(set.len());
    for id in set {
        fenced.extend(fence(core, call, id, force, deletion).await?);
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
        None => Ok(fenced),
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
        // Listed before the fence: nobody was told yet that the instance is not there.
        head.doomed = queued(core, call, id).await.map_err(surface)?;
        head.sweep_at = Some(core.clock.now_ms() + core.settings.age_threshold_ms.max(FENCE_MS));
        // The attempts count if the deletion is taken back.
        head.unlock(Forgive::No);
        let op = Op::replace(&head.id, &head, Some(&found.etag))
            .map_err(|error| surface(Fault::refused(error.to_string())))?;
        match core.patiently(call, || core.store.write(call, id, &op)).await {
            Ok(etag) => return Ok(Some(Tagged { document: head, etag })),
            Err(fault) if matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => {}
            Err(fault) => return Err(surface(fault)),
        }
    }
}

/// The messages that wait for an instance; `None` if they are too many for a list.
async fn queued(core: &Core, call: Call, instance: &str) -> Result<Option<Vec<String>>, Fault> {
    let query = Query::new(queries::QUEUED).with("@rows", LISTED_MAX + 1);
    let rows = core.patiently(call, || core.store.query(call, instance, &query)).await?;
    let ids: Vec<String> =
        rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, Fault>>()?;
    Ok((ids.len() <= LISTED_MAX).then_some(ids))
}

/// Takes down the fences of a deletion that does not happen, also one whose answer is missing. Each gets time of its
/// own: perhaps they could not all be put up because there was none left.
async fn take_back(core: &Core, set: &[String], deletion: &str) {
    for id in set {
        let call = core.quick_call(OPERATION);
        let outcome = match fenced_by(core, call, id, deletion).await {
            Ok(Some(head)) => unfence(core, call, head).await,
            Ok(None) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = outcome {
            tracing::warn!(instance = id, %fault, "a fence may be left behind; the reconciler will take it down");
        }
    }
}

async fn unfence(core: &Core, call: Call, fenced: Tagged<Head>) -> Result<(), Fault> {
    let mut head = fenced.document;
    head.kind = kind::INSTANCE.to_owned();
    head.deletion = None;
    head.doomed = None;
    head.sweep_at = None;
    let op = Op::replace(&head.id, &head, Some(&fenced.etag))
        .map_err(|error| Fault::refused(error.to_string()))?;
    match core.patiently(call, || core.store.write(call, &head.instance_id, &op)).await {
        Err(fault) if !matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => Err(fault),
        _ => Ok(()),
    }
}

/// The head of an instance, if it carries the fence of this deletion.
async fn fenced_by(
    core: &Core,
    call: Call,
    instance: &str,
    deletion: &str,
) -> Result<Option<Tagged<Head>>, Fault> {
    let head = core.head(call, instance).await?;
    Ok(head.filter(|head| head.document.deletion.as_deref() == Some(deletion)))
}

#[derive(Debug, Default)]
struct Counts {
    events: u64,
    queued: u64,
}

/// Empties the partition of an instance, if it still carries the fence. What it still has to send is sent first, except
/// to the set itself.
async fn remove(core: &Core, instance: &str, deletion: &Deletion) -> Result<Counts, Fault> {
    let call = core.call(OPERATION);
    let mut counts = Counts::default();
    let Some(mut head) = fenced_by(core, call, instance, &deletion.id).await? else { return Ok(counts) };
    finish_commits(core, call, instance).await?;
    outbox::deliver_pending(core, call, instance, &deletion.instances).await?;
    loop {
        let rows = stored(core, call, instance, &Query::new(queries::CONTENTS)).await?;
        let staying = for_the_next_life(core, call, instance, &rows, head.document.doomed.as_deref()).await?;
        let going: Vec<Stored> = rows.into_iter().filter(|row| !staying.holds(row)).collect();
        if !going.is_empty() {
            // Others may have finished meanwhile, and what was listed may belong to the next life already.
            match fenced_by(core, call, instance, &deletion.id).await? {
                Some(now) => head = now,
                None => return Ok(counts),
            }
            for row in &going {
                counts.events += row.events();
                counts.queued += u64::from([kind::MESSAGE, kind::WORK].contains(&row.kind.as_str()));
            }
            let removals = going.chunks(100).map(|group| -> BoxFuture<'_, Result<(), Fault>> {
                let ops: Vec<Op> = group.iter().map(|row| Op::delete(&row.id, row.etag.as_deref())).collect();
                Box::pin(async move { remove_all(core, call, instance, &ops).await })
            });
            in_parallel(4, removals).await.into_iter().collect::<Result<(), Fault>>()?;
            continue;
        }
        let op = Op::delete(&head.document.id, Some(&head.etag));
        match core.patiently(call, || core.store.write(call, instance, &op)).await {
            Ok(_) => break,
            Err(fault) if fault.trouble == Trouble::Missing => break,
            Err(fault) if fault.trouble == Trouble::Changed => {
                match fenced_by(core, call, instance, &deletion.id).await? {
                    Some(now) => head = now,
                    None => return Ok(counts),
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    core.cache.forget(instance);
    core.turns.forget(instance);
    core.works.forget(instance);
    Ok(counts)
}

/// What stays in the partition of a deleted instance.
#[derive(Debug, Default)]
struct Staying {
    ids: HashSet<String>,
    /// Commits and enqueueings that are being prepared: their pieces are left to the sweep.
    preparing: HashSet<String>,
}

impl Staying {
    fn holds(&self, row: &Stored) -> bool {
        let preparing = row.kind == kind::CHUNK
            && self.preparing.iter().any(|commit| row.id.starts_with(&ids::chunks_of(commit)));
        row.kind == kind::MANIFEST || preparing || self.ids.contains(&row.id)
    }
}

/// Finds out which of the documents came after the fence and are for the next life of the instance. With no list of
/// what was there before, nothing is.
async fn for_the_next_life(
    core: &Core,
    call: Call,
    instance: &str,
    rows: &[Stored],
    doomed: Option<&[String]>,
) -> Result<Staying, Fault> {
    let preparing = rows.iter().filter(|row| row.kind == kind::MANIFEST).filter_map(|row| row.commit.clone());
    let mut staying = Staying { preparing: preparing.collect(), ..Staying::default() };
    let Some(doomed) = doomed else { return Ok(staying) };
    let doomed: HashSet<&str> = doomed.iter().map(String::as_str).collect();
    for row in rows.iter().filter(|row| row.kind == kind::MESSAGE && !doomed.contains(row.id.as_str())) {
        let text = match &row.chunks {
            Some(chunks) => load::join(core, call, instance, chunks).await,
            None => Ok(row.item.clone().unwrap_or_default()),
        };
        let text = match text {
            Ok(text) => text,
            Err(fault) if fault.trouble == Trouble::Refused => continue,
            Err(fault) => return Err(fault),
        };
        if is_sent_from_outside(&text) {
            staying.ids.insert(row.id.clone());
            staying.ids.extend(row.chunks.iter().flat_map(ChunkRef::ids));
        }
    }
    Ok(staying)
}

/// Whether a message, or its beginning, is one that begins an instance or that is sent to one by others. What an
/// instance sends itself, and the answers to it, mean nothing to its next life.
fn is_sent_from_outside(text: &str) -> bool {
    ["StartOrchestration", "ExternalRaised", "QueueMessage", "CancelInstance"]
        .iter()
        .any(|kind| text.strip_prefix("{\"").is_some_and(|text| text.starts_with(kind)))
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
    #[serde(default)]
    commit: Option<String>,
    /// The beginning of a message's text.
    #[serde(default)]
    item: Option<String>,
    #[serde(default, rename = "_etag")]
    etag: Option<String>,
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
    remove_all(core, call, instance, &ops).await
}

/// Carries out removals, except of documents that are gone or have changed.
async fn remove_all(core: &Core, call: Call, instance: &str, ops: &[Op]) -> Result<(), Fault> {
    let moved = |fault: &Fault| matches!(fault.trouble, Trouble::Missing | Trouble::Changed);
    match core.patiently(call, || core.store.batch(call, instance, ops)).await {
        Err(fault) if moved(&fault) => {}
        outcome => return outcome.map(drop),
    }
    for op in ops {
        match core.patiently(call, || core.store.write(call, instance, op)).await {
            Err(fault) if !moved(&fault) => return Err(fault),
            _ => {}
        }
    }
    Ok(())
}

/// Finishes a recorded deletion.
pub(crate) async fn resume(core: &Arc<Core>, deletion: &Deletion) -> Result<(), Fault> {
    for instance in &deletion.instances {
        remove(core, instance, deletion).await?;
    }
    core.delete(core.call(OPERATION), ids::DELETIONS, &deletion.id).await
}

/// Finishes or takes back the deletion of a head that was left fenced.
pub(crate) async fn resume_head(core: &Arc<Core>, call: Call, head: Tagged<Head>) -> Result<(), Fault> {
    let id = head.document.deletion.clone().unwrap_or_default();
    match core.read_as::<Deletion>(call, ids::DELETIONS, &id).await? {
        Some(deletion) => resume(core, &deletion.document).await,
        // It never passed the point of no return.
        None => unfence(core, call, head).await,
    }
}

/// How long a fence without a record is left alone.
const FENCE_MS: u64 = 60_000;
/// How many waiting messages the fence lists: far below what fits into a document.
const LISTED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, kind: &str) -> Stored {
        let row = serde_json::json!({ "id": id, "type": kind });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn only_what_is_sent_from_outside_is_for_the_next_life() {
        for text in [r#"{"StartOrchestration":{"instance""#, r#"{"QueueMessage":"#, r#"{"ExternalRaised":"#] {
            assert!(is_sent_from_outside(text), "{text}");
        }
        for text in [r#"{"ActivityCompleted":"#, r#"{"TimerFired":"#, r#"{"ContinueAsNew":"#, ""] {
            assert!(!is_sent_from_outside(text), "{text}");
        }
    }

    #[test]
    fn pieces_of_what_is_being_prepared_stay() {
        let staying = Staying { preparing: HashSet::from(["c1".to_owned()]), ..Staying::default() };
        assert!(staying.holds(&row("manifest:c1", kind::MANIFEST)));
        assert!(staying.holds(&row(&ids::chunk("c1", 3), kind::CHUNK)));
        assert!(!staying.holds(&row(&ids::chunk("c11", 3), kind::CHUNK)));
        assert!(!staying.holds(&row("message:1", kind::MESSAGE)));
    }
}
