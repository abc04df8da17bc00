//! Finishing a commit that was bigger than one batch.
//!
//! Anybody may do it, several may do it at once, and each step may be repeated: a group of staged documents is
//! published and removed in one batch, so it happens once, and nothing is removed by name once the manifest is gone.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;

use crate::documents::{
    COMMIT_PARTS_MAX, Chunk, ChunkRef, Chunks, Intent, Manifest, Message, Staged, WorkDocument, ids, kind,
};
use crate::error::{Fault, Trouble};
use crate::parallel::in_parallel;
use crate::store::{Call, Op, Patience, Store, decode};

use super::layout::{Limits, remove_if_any};
use super::{Staging, pieces};

/// Writes what a commit needs to find: the mark first, then the pieces and the staged groups.
pub(crate) async fn prepare(
    store: &Store,
    patience: Patience<'_>,
    mark: &Manifest,
    staged: &[Staged],
    chunks: &Chunks,
) -> Result<(), Fault> {
    let (instance, commit) = (mark.instance_id.as_str(), mark.commit.as_str());
    if let Some(reason) = chunks.refusal() {
        return Err(Fault::refused(reason));
    }
    let refused = |error: serde_json::Error| Fault::refused(error.to_string());
    let mark = Op::create(mark).map_err(refused)?;
    let mut ops = Vec::new();
    for (index, data) in chunks.parts().iter().enumerate() {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        ops.push(Op::create(&Chunk::new(instance, commit, index, data)).map_err(refused)?);
    }
    for group in staged {
        ops.push(Op::create(group).map_err(refused)?);
    }
    if let [only] = ops.as_slice()
        && mark.len() + only.len() <= Limits::default().bytes
    {
        return create_in_time(store, patience, instance, &[mark, only.clone()]).await;
    }
    create_in_time(store, patience, instance, &[mark]).await?;
    let writes = ops.into_iter().map(|op| -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { create_in_time(store, patience, instance, &[op]).await })
    });
    in_parallel(WRITES_AT_ONCE, writes).await.into_iter().collect()
}

/// Creates documents of this commit together.
async fn create_in_time(
    store: &Store,
    patience: Patience<'_>,
    instance: &str,
    ops: &[Op],
) -> Result<(), Fault> {
    let outcome = match ops {
        [op] => store.patient(patience).write(instance, op).await.map(drop),
        ops => store.patient(patience).batch(instance, ops).await.map(drop),
    };
    match outcome {
        // The ids are this commit's own: an earlier try arrived.
        Err(fault) if fault.trouble == Trouble::Exists => Ok(()),
        outcome => outcome,
    }
}

/// Carries out what a manifest lists, then removes it. `staged` are its groups, if the caller has them.
pub(crate) async fn publish(
    staging: Staging<'_>,
    call: Call,
    manifest: &Manifest,
    staged: Option<&[Staged]>,
) -> Result<(), Fault> {
    let instance = manifest.instance_id.as_str();
    if manifest.staged > COMMIT_PARTS_MAX {
        let (id, claimed) = (&manifest.id, manifest.staged);
        return Err(Fault::damaged(format!("{id} claims {claimed} groups, more than a commit can have")));
    }
    if remove_listed(staging, call, manifest).await? == Removed::WithManifest {
        return Ok(());
    }
    let is_all = manifest.drops.is_empty();
    for index in 0..manifest.staged {
        let group = match staged.and_then(|groups| groups.get(index as usize)) {
            Some(group) => Some(group.clone()),
            None => {
                let found = staging
                    .store
                    .patient(call)
                    .read_as::<Staged>(instance, &ids::staged(&manifest.commit, index))
                    .await?;
                found.map(|found| found.document)
            }
        };
        let Some(group) = group else { continue };
        // What is left to do after the last group is to remove the manifest: that goes along.
        let is_last = is_all && index + 1 == manifest.staged;
        let end = (is_last && group.documents.len() + 2 <= Limits::default().operations)
            .then(|| Op::delete(&manifest.id, None));
        if publish_group(staging, call, instance, &group, end.as_ref()).await? == Published::Now
            && end.is_some()
        {
            return Ok(());
        }
    }
    for drops in manifest.drops.chunks(DROPS_AT_ONCE) {
        let removals = drops.iter().flat_map(ChunkRef::ids).map(|id| -> BoxFuture<'_, Result<(), Fault>> {
            Box::pin(async move { staging.store.patient(call).delete(instance, &id).await })
        });
        in_parallel(WRITES_AT_ONCE, removals).await.into_iter().collect::<Result<(), Fault>>()?;
    }
    staging.store.patient(call).delete(instance, &manifest.id).await
}

/// What became of the documents that a manifest lists for removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// They are gone.
    Only,
    /// So is the manifest: nothing is left to do, or another publisher has done it.
    WithManifest,
}

/// Removes what a manifest lists, first what somebody may still be at work on. Names may be used again by the next life of
/// the instance, so they are removed only while the manifest is there.
async fn remove_listed(staging: Staging<'_>, call: Call, manifest: &Manifest) -> Result<Removed, Fault> {
    let (messages, others): (Vec<String>, Vec<String>) =
        manifest.deletes.iter().cloned().partition(|id| ids::is_message(id));
    for ids in others.chunks(REMOVALS_PER_BATCH) {
        if remove_any(staging, call, manifest, ids).await? == Removed::WithManifest {
            return Ok(Removed::WithManifest);
        }
    }
    let mut left = messages.len();
    for ids in messages.chunks(MESSAGES_PER_BATCH) {
        left -= ids.len();
        // What is left to do after the last ones is to remove the manifest: that goes along.
        let is_end = left == 0 && manifest.staged == 0 && manifest.drops.is_empty();
        let first = if is_end {
            Op::delete(&manifest.id, None)
        } else {
            Op::set(&manifest.id, "/sweepAt", manifest.sweep_at)
        };
        let removals = ids.iter().map(|id| Op::delete(id, None));
        let ops: Vec<Op> = std::iter::once(first).chain(removals).collect();
        let outcome = staging.store.patient(call).batch(&manifest.instance_id, &ops).await;
        match outcome {
            Ok(_) if is_end => return Ok(Removed::WithManifest),
            Ok(_) => {}
            Err(fault) if fault.trouble == Trouble::Missing && fault.index == Some(0) => {
                return Ok(Removed::WithManifest);
            }
            // Another publisher has removed them together, or somebody one of them by hand.
            Err(fault) if fault.trouble == Trouble::Missing => {
                for ids in ids.chunks(REMOVALS_PER_BATCH) {
                    if remove_any(staging, call, manifest, ids).await? == Removed::WithManifest {
                        return Ok(Removed::WithManifest);
                    }
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(Removed::Only)
}

/// Removes documents that may or may not be there.
async fn remove_any(
    staging: Staging<'_>,
    call: Call,
    manifest: &Manifest,
    ids: &[String],
) -> Result<Removed, Fault> {
    let instance = manifest.instance_id.as_str();
    let mut ops = Vec::with_capacity(ids.len() * 2 + 1);
    ops.push(Op::set(&manifest.id, "/sweepAt", manifest.sweep_at));
    for id in ids {
        ops.extend(remove_if_any(instance, id).map_err(|error| Fault::refused(error.to_string()))?);
    }
    match staging.store.patient(call).batch(instance, &ops).await {
        Err(fault) if fault.trouble == Trouble::Missing => return Ok(Removed::WithManifest),
        outcome => drop(outcome?),
    }
    ids.iter().for_each(|id| staging.outlet.work_removed(instance, id));
    Ok(Removed::Only)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Published {
    Now,
    Before,
}

/// Publishes one group, unless somebody has done so already, and does one thing more with it.
async fn publish_group(
    staging: Staging<'_>,
    call: Call,
    instance: &str,
    group: &Staged,
    more: Option<&Op>,
) -> Result<Published, Fault> {
    #[derive(Deserialize)]
    struct Envelope {
        id: String,
        #[serde(rename = "type")]
        kind: String,
    }
    let mut ops = Vec::with_capacity(group.documents.len() + 1);
    let mut kinds = Vec::with_capacity(group.documents.len());
    for document in &group.documents {
        let envelope: Envelope = decode(document.get().as_bytes())?;
        ops.push(Op::upsert_text(&envelope.id, document.get()));
        kinds.push(envelope.kind);
    }
    ops.push(Op::delete(&group.id, None));
    ops.extend(more.cloned());
    let etags = match staging.store.patient(call).batch(instance, &ops).await {
        Ok(etags) => etags,
        // The staged group is gone: another publisher, or an earlier try of this one, has done it.
        Err(fault) if fault.trouble == Trouble::Missing => return Ok(Published::Before),
        Err(fault) => return Err(fault),
    };
    let mut intents = Vec::new();
    for ((document, kind), etag) in group.documents.iter().zip(kinds).zip(etags) {
        let text = document.get().as_bytes();
        match kind.as_str() {
            kind::WORK => staging.outlet.work_written(Arc::new(decode::<WorkDocument>(text)?), etag),
            kind::MESSAGE => {
                staging.outlet.message_written(&decode::<Message>(text)?);
            }
            kind::INTENT => intents.push(Intent { etag: Some(etag), ..decode(text)? }),
            _ => {}
        }
    }
    staging.outlet.deliver(call.operation, intents).await;
    Ok(Published::Now)
}

/// Removes what an abandoned commit had prepared. Without its mark that commit can no longer happen; a list takes its
/// place until everything is removed.
pub(crate) async fn sweep(
    staging: Staging<'_>,
    call: Call,
    mark: &Manifest,
    etag: &str,
) -> Result<(), Fault> {
    let instance = mark.instance_id.as_str();
    // Beyond what a commit can have there is nothing, whatever the mark counts.
    let staged = (0..mark.staged.min(STAGED_LISTED_MAX)).map(|index| ids::staged(&mark.commit, index));
    let list = pieces::list(staging, instance, ChunkRef::all(&mark.commit, mark.chunks), staged.collect());
    let create = Op::create(&list).map_err(|error| Fault::refused(error.to_string()))?;
    let ops = [Op::delete(&mark.id, Some(etag)), create];
    match staging.store.patient(call).batch(instance, &ops).await {
        // The list is this call's own: an earlier try arrived.
        Err(fault) if fault.trouble == Trouble::Exists => {}
        // It was committed, or swept, in the meantime.
        Err(fault) if matches!(fault.trouble, Trouble::Missing | Trouble::Changed) => return Ok(()),
        outcome => {
            outcome?;
        }
    }
    publish(staging, call, &list, None).await
}

const WRITES_AT_ONCE: usize = 8;
/// Of so many large texts all pieces are removed before the next ones are listed.
const DROPS_AT_ONCE: usize = 64;
/// How many staged groups a list of what is to be removed can name: more than a million documents, and the list still
/// fits into a document itself.
const STAGED_LISTED_MAX: u32 = 16 << 10;
/// Each takes two operations, and one place of a batch is the manifest's.
const REMOVALS_PER_BATCH: usize = 49;
/// Messages are known to be there.
const MESSAGES_PER_BATCH: usize = 99;
