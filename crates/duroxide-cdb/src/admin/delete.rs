//! Deleting instances, several at once, all or none.
//!
//! Every head of the set is fenced first: its type changes, its lock goes, an in-flight ack fails. Children that have
//! not run join the set. If one cannot be fenced, the others are given back and nothing is deleted. Then the set is
//! recorded; from there on there is no way back, and whoever finds the record, or a fenced head of it, finishes the
//! deletion.
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
use serde_json::value::RawValue;

use crate::core::Core;
use crate::documents::{
    ChunkRef, Deletion, Head, Tagged, Tombstone, ids, is_sent_from_outside, kind, lenient,
};
use crate::error::{Fault, Trouble};
use crate::history::finish_commits;
use crate::outbox;
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::staging::join;
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op, decode};

use super::fence::{Fences, Terms, fenced_by, fencing_call, unfence};
use super::{alone, list};

pub(super) const OPERATION: &str = "delete_instances_atomic";

/// Deletes an instance with all its descendants: in one batch if it stands alone, else as a set.
pub(crate) async fn tree(
    core: &Arc<Core>,
    root: &str,
    terms: Terms<'_>,
) -> Result<DeleteInstanceResult, ProviderError> {
    core.layout.check(OPERATION)?;
    if let Some(deleted) = alone::delete(core, root, terms).await? {
        return Ok(deleted);
    }
    let ids = list::tree(core, core.store.call(OPERATION), root).await;
    instances(core, &ids.map_err(|fault| fault.surface(OPERATION, root))?, terms).await
}

/// Deletes an instance with all its descendants if it is due and all of them have run and ended; `None`, and nothing was
/// changed, if not. That is asked before anything is fenced: whoever looks at an ended instance whose child still runs
/// must not find it gone for a moment. The fences ask again.
pub(crate) async fn retired(
    core: &Arc<Core>,
    root: &str,
    is_due: &(dyn Fn(&Head) -> bool + Sync),
) -> Result<Option<DeleteInstanceResult>, ProviderError> {
    let terms = Terms::Retired(root, is_due);
    core.layout.check(OPERATION)?;
    if let Some(deleted) = alone::delete(core, root, terms).await? {
        return Ok(Some(deleted));
    }
    let surface = |fault: Fault| fault.surface(OPERATION, root);
    let ids = list::tree(core, core.store.call(OPERATION), root).await.map_err(surface)?;
    for id in &ids {
        let head = core.store.patient(core.store.call(OPERATION)).head(id).await.map_err(surface)?;
        if head.is_some_and(|head| terms.refuses(id, &head.document)) {
            return Ok(None);
        }
    }
    let offspring = list::offspring(core, core.store.call(OPERATION), &ids).await.map_err(surface)?;
    if !offspring.unborn.is_empty() {
        return Ok(None);
    }
    instances(core, &ids, terms).await.map(Some)
}

/// Deletes a set of instances that is closed under children; those that have not run need not be named.
pub(crate) async fn instances(
    core: &Arc<Core>,
    ids: &[String],
    terms: Terms<'_>,
) -> Result<DeleteInstanceResult, ProviderError> {
    core.layout.check(OPERATION)?;
    if ids.is_empty() {
        return Ok(DeleteInstanceResult::default());
    }
    let mut fences = Fences::around(ids);
    let call = fencing_call(core);
    if let Err(error) = fences.put_up(core, call, terms).await {
        fences.take_down(core).await;
        return Err(error);
    }
    let surface = |fault: Fault| fault.surface(OPERATION, &ids[0]);
    let sweep_at = core.clock.now_ms() + core.settings.age_threshold_ms;
    let record = Deletion::new(&fences.deletion, &fences.members, fences.doomed(), sweep_at);
    if let Err(fault) = enter(core, call, &record).await {
        if fault.trouble == Trouble::Refused {
            fences.take_down(core).await;
            return Err(unrecorded(&fault, record.instances.len()));
        }
        return Err(surface(fault));
    }
    let mut result = DeleteInstanceResult::default();
    for head in &fences.heads {
        let counts = remove(core, &head.document.instance_id, &record).await.map_err(surface)?;
        if head.document.is_listed() {
            result.instances_deleted += 1;
            let executions = head.document.execution_count.max(1);
            result.executions_deleted = result.executions_deleted.saturating_add(executions);
        }
        result.events_deleted = result.events_deleted.saturating_add(counts.events);
        result.queue_messages_deleted += counts.queued;
    }
    core.store
        .patient(core.store.call(OPERATION))
        .delete(ids::DELETIONS, &record.id)
        .await
        .map_err(surface)?;
    Ok(result)
}

/// Writes the record of a deletion: from here on there is no way back.
async fn enter(core: &Core, call: Call, record: &Deletion) -> Result<(), Fault> {
    let op = Op::create(record)?;
    core.store.patient(call).create_own(ids::DELETIONS, &op).await.map(drop)
}

/// The error of a deletion that does not happen because its record is refused: most likely it is too large.
fn unrecorded(fault: &Fault, instances: usize) -> ProviderError {
    let sentence = format!(
        "{fault}. The deletion of {instances} instances cannot be recorded, so nothing is deleted: delete them in \
         smaller groups, children first."
    );
    ProviderError::permanent(OPERATION, sentence)
}

#[derive(Debug, Default)]
struct Counts {
    events: u64,
    queued: u64,
}

/// Empties the partition of an instance, if it still carries the fence. What it still has to send is sent first, except
/// to the set itself.
///
/// The caller has put up the fence, or has read the head where it is written, so whatever is read here is not older.
async fn remove(core: &Core, instance: &str, deletion: &Deletion) -> Result<Counts, Fault> {
    let call = core.store.call(OPERATION);
    let mut counts = Counts::default();
    let Some(mut head) = fenced_by(core, call, instance, &deletion.id).await? else { return Ok(counts) };
    outbox::deliver_pending(core, call, instance, &deletion.instances).await?;
    loop {
        let rows = stored(core, call, instance, &Query::new(queries::CONTENTS)).await?;
        let doomed = head.document.doomed.as_deref().map(|doomed| doomed.iter().chain(&deletion.doomed));
        let doomed = doomed.map(|doomed| doomed.map(String::as_str).collect());
        let staying = for_the_next_life(core, call, instance, &rows, doomed).await?;
        let is_kept =
            |row: &Stored| staying.holds(row) || (cosmos_wire::mutant!(17) && row.kind == kind::HISTORY);
        let going: Vec<Stored> = rows.into_iter().filter(|row| !is_kept(row)).collect();
        if !going.is_empty() {
            // Others may have finished meanwhile, and what was listed may belong to the next life already.
            match fenced_by(core, call, instance, &deletion.id).await? {
                Some(now) => head = now,
                None => return Ok(counts),
            }
            for row in &going {
                counts.events = counts.events.saturating_add(row.events());
                counts.queued += u64::from([kind::MESSAGE, kind::WORK].contains(&row.kind.as_str()));
            }
            let ops = going.iter().map(|row| removal(core, instance, row));
            let ops = ops.collect::<Result<Vec<Op>, Fault>>()?;
            let removals = ops.chunks(100).map(|group| -> BoxFuture<'_, Result<(), Fault>> {
                Box::pin(remove_all(core, call, instance, group))
            });
            in_parallel(4, removals).await.into_iter().collect::<Result<(), Fault>>()?;
            continue;
        }
        let op = Op::delete(&head.document.id, Some(&head.etag));
        match core.store.patient(call).settle_one(instance, &op, Rests::Shared).await? {
            Settled::Applied(_) => {
                counts.events = counts.events.saturating_add(head.document.events.len() as u64);
                break;
            }
            Settled::Arrived => break,
            Settled::Superseded(fault) if fault.trouble == Trouble::Missing => break,
            Settled::Superseded(_) => match fenced_by(core, call, instance, &deletion.id).await? {
                Some(now) => head = now,
                None => return Ok(counts),
            },
        }
    }
    core.cache.forget(instance);
    core.turns.forget(instance);
    core.works.forget(instance);
    Ok(counts)
}

/// Removes a document as it was listed. Of a message that may come again a tombstone is left, as if it had been consumed:
/// who delivered it may not know that it arrived.
pub(super) fn removal(core: &Core, instance: &str, row: &Stored) -> Result<Op, Fault> {
    if row.kind == kind::MESSAGE && row.delivered {
        let tombstone = Tombstone::new(instance, &row.id, core.settings.tombstone_ttl_seconds);
        let op = Op::replace(&row.id, &tombstone, row.etag.as_deref());
        return op.map_err(|error| Fault::refused(error.to_string()));
    }
    Ok(Op::delete(&row.id, row.etag.as_deref()))
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
    doomed: Option<HashSet<&str>>,
) -> Result<Staying, Fault> {
    let preparing = rows.iter().filter(|row| row.kind == kind::MANIFEST).filter_map(|row| row.commit.clone());
    let mut staying = Staying { preparing: preparing.collect(), ..Staying::default() };
    let Some(doomed) = doomed else { return Ok(staying) };
    for row in rows.iter().filter(|row| row.kind == kind::MESSAGE && !doomed.contains(row.id.as_str())) {
        let text = match &row.chunks {
            Some(chunks) => join(&core.store, call, instance, chunks).await,
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

/// A document that is to go, whatever is wrong with it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stored {
    pub(super) id: String,
    #[serde(rename = "type", default, deserialize_with = "lenient")]
    pub(super) kind: String,
    #[serde(default, deserialize_with = "lenient")]
    event_count: Option<u64>,
    /// Where its pieces are. The mark of a commit that is being prepared only counts its own.
    #[serde(default, deserialize_with = "lenient")]
    pub(super) chunks: Option<ChunkRef>,
    #[serde(default, deserialize_with = "lenient")]
    commit: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    delivered: bool,
    /// The beginning of a message's text.
    #[serde(default, deserialize_with = "lenient")]
    item: Option<String>,
    #[serde(default, rename = "_etag")]
    pub(super) etag: Option<String>,
    /// All of it, where that was asked for.
    #[serde(default)]
    pub(super) head: Option<Box<RawValue>>,
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
    let rows = core.store.patient(call).query(instance, query).await?;
    rows.iter().map(|row| decode(row.get().as_bytes())).collect()
}

/// Carries out removals, except of documents that are gone or have changed.
pub(super) async fn remove_all(core: &Core, call: Call, instance: &str, ops: &[Op]) -> Result<(), Fault> {
    match core.store.patient(call).settle(instance, ops, Rests::Shared).await? {
        Settled::Applied(_) | Settled::Arrived => return Ok(()),
        // One of them has moved, so none was removed: one by one then.
        Settled::Superseded(_) => {}
    }
    for op in ops {
        core.store.patient(call).settle_one(instance, op, Rests::Shared).await?;
    }
    Ok(())
}

/// Finishes a recorded deletion.
///
/// The process that recorded it may have written in a region, and to partitions, that this process sees late. A head
/// that does not show its fence yet would be passed over and the record removed; then its fence would be taken for one
/// without a record and be taken down, and an instance whose relatives are deleted would live on. So the record and each
/// head are read where they are written before anything is decided.
pub(crate) async fn resume(core: &Arc<Core>, deletion: &Deletion) -> Result<(), Fault> {
    let call = core.store.call(OPERATION);
    if core.store.patient(call).read_latest_as::<Deletion>(ids::DELETIONS, &deletion.id).await?.is_none() {
        return Ok(());
    }
    for instance in &deletion.instances {
        let call = core.store.call(OPERATION);
        let head = core.store.patient(call).read_latest_as::<Head>(instance, &ids::head(instance)).await?;
        if head.is_none_or(|head| head.document.deletion.as_ref() != Some(&deletion.id)) {
            continue;
        }
        // An earlier version recorded deletions before it finished what was committed. What of it cannot be read goes
        // with the rest.
        match finish_commits(core, core.store.call(OPERATION), instance).await {
            Err(fault) if !fault.is_damage => return Err(fault),
            _ => {}
        }
        remove(core, instance, deletion).await?;
    }
    core.store.patient(core.store.call(OPERATION)).delete(ids::DELETIONS, &deletion.id).await
}

/// Finishes or takes back the deletion of a head that was left fenced.
pub(crate) async fn resume_head(core: &Arc<Core>, call: Call, head: Tagged<Head>) -> Result<(), Fault> {
    let id = head.document.deletion.clone().unwrap_or_default();
    // The record may be there and not have arrived where this process reads.
    match record_of(core, call, &id).await? {
        // One of all the heads goes through the set. They must not just wait for somebody to find the record: a page of
        // a sweep may show nothing but them.
        Some(record) => match claim(core, call, record).await? {
            Some(deletion) => resume(core, &deletion).await,
            None => Ok(()),
        },
        // It never passed the point of no return.
        None => unfence(core, call, head).await,
    }
}

/// The record of a deletion. What a damaged head names may be nothing that a record could be called.
async fn record_of(core: &Core, call: Call, id: &str) -> Result<Option<Tagged<Deletion>>, Fault> {
    if id.is_empty() {
        return Ok(None);
    }
    match core.store.patient(call).read_latest_as(ids::DELETIONS, id).await {
        Err(fault) if fault.is_final_refusal() && !fault.is_damage => Ok(None),
        record => record,
    }
}

/// Whether nobody will finish or take back the deletion of a fenced head: its record cannot be read, or it is to be left
/// alone for longer than anybody leaves anything.
pub(super) async fn is_abandoned(core: &Core, call: Call, head: &Head) -> Result<bool, Fault> {
    let latest = core.clock.now_ms() + core.settings.age_threshold_ms.max(LEFT_ALONE_MS);
    match record_of(core, call, head.deletion.as_deref().unwrap_or_default()).await {
        Ok(Some(record)) => Ok(record.document.sweep_at > latest),
        // Without a time no sweep ever finds it.
        Ok(None) => Ok(head.sweep_at.is_none_or(|at| at > latest)),
        Err(fault) if fault.is_damage => Ok(true),
        Err(fault) => Err(fault),
    }
}

/// Takes a recorded deletion on for a while, unless somebody else has.
async fn claim(core: &Core, call: Call, record: Tagged<Deletion>) -> Result<Option<Deletion>, Fault> {
    let now = core.clock.now_ms();
    if record.document.sweep_at > now {
        return Ok(None);
    }
    let claimed =
        Deletion { sweep_at: now + core.settings.age_threshold_ms.max(CLAIM_MS), ..record.document };
    let op = Op::replace(&claimed.id, &claimed, Some(&record.etag))?;
    match core.store.patient(call).settle_one(ids::DELETIONS, &op, Rests::Shared).await? {
        Settled::Applied(_) | Settled::Arrived => Ok(Some(claimed)),
        Settled::Superseded(_) => Ok(None),
    }
}

/// How long a deletion is left to whoever took it on.
const CLAIM_MS: u64 = 10_000;
/// No deletion is left alone for longer, unless the settings say so.
const LEFT_ALONE_MS: u64 = 24 * 3600 * 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, kind: &str) -> Stored {
        let row = serde_json::json!({ "id": id, "type": kind });
        serde_json::from_value(row).unwrap()
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
