//! Finishing a commit that was bigger than one batch.
//!
//! Anybody may do it, several may do it at once, and each step may be repeated: a group of staged documents is
//! published and removed in one batch, so it happens once, and nothing is removed by name once the manifest is gone.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;

use crate::documents::{
    COMMIT_PARTS_MAX, Chunk, ChunkRef, Chunks, Intent, Manifest, Message, Staged, WorkDocument, ids, kind,
};
use crate::error::Fault;
use crate::parallel::in_parallel;
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op, Patience, Store, decode};

use super::layout::{Limits, StagedGroup, remove_if_any};
use super::{Staging, pieces};

/// Writes what a commit needs to find: the mark first, then the pieces and the staged groups.
pub(crate) async fn prepare(
    store: &Store,
    patience: Patience<'_>,
    mark: &Manifest,
    staged: &[StagedGroup],
    chunks: &Chunks,
) -> Result<(), Fault> {
    let (instance, commit) = (mark.instance_id.as_str(), mark.commit.as_str());
    if let Some(reason) = chunks.refusal() {
        return Err(Fault::refused(reason));
    }
    let mark = Op::create(mark)?;
    let mut ops = Vec::new();
    for (index, data) in chunks.parts().iter().enumerate() {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        ops.push(Op::create(&Chunk::new(instance, commit, index, data))?);
    }
    for group in staged {
        ops.push(Op::create(&group.staged)?);
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
    let patient = store.patient(patience);
    match ops {
        [op] => patient.settle_one(instance, op, Rests::OwnId).await?.unless_superseded().map(drop),
        ops => patient.settle(instance, ops, Rests::OwnId).await?.unless_superseded().map(drop),
    }
}

/// The groups of a commit that this process has just made, and what is in them.
pub(crate) struct OwnGroups<'a> {
    staged: &'a [StagedGroup],
    works: HashMap<&'a str, &'a WorkDocument>,
    messages: HashMap<&'a str, &'a Message>,
    intents: HashMap<&'a str, &'a Intent>,
}

impl<'a> OwnGroups<'a> {
    pub(crate) fn new(
        staged: &'a [StagedGroup],
        works: &'a [WorkDocument],
        messages: &'a [Message],
        intents: &'a [Intent],
    ) -> Self {
        Self {
            staged,
            works: works.iter().map(|work| (work.id.as_str(), work)).collect(),
            messages: messages.iter().map(|message| (message.id.as_str(), message)).collect(),
            intents: intents.iter().map(|intent| (intent.id.as_str(), intent)).collect(),
        }
    }

    /// A group as it was staged. Nothing is decoded: its documents are still there as they were made.
    fn group(&self, index: u32) -> Option<Group> {
        let StagedGroup { staged, ids } = self.staged.get(index as usize)?;
        let document_of = |id: &String| {
            let id = id.as_str();
            if let Some(work) = self.works.get(id) {
                GroupDocument::Work(Arc::new((*work).clone()))
            } else if let Some(message) = self.messages.get(id) {
                GroupDocument::Message(Box::new((*message).clone()))
            } else if let Some(intent) = self.intents.get(id) {
                GroupDocument::Intent(Box::new((*intent).clone()))
            } else {
                GroupDocument::Other
            }
        };
        Some(Group {
            id: staged.id.clone(),
            upserts: ids
                .iter()
                .zip(&staged.documents)
                .map(|(id, text)| Op::upsert_text(id, text.get()))
                .collect(),
            documents: ids.iter().map(document_of).collect(),
        })
    }
}

/// A staged group, ready to be published.
struct Group {
    id: String,
    upserts: Vec<Op>,
    documents: Vec<GroupDocument>,
}

/// A document of a group, as far as the outlet has to know it.
enum GroupDocument {
    Work(Arc<WorkDocument>),
    Message(Box<Message>),
    Intent(Box<Intent>),
    /// A part of the history, or a value: whoever needs it reads it.
    Other,
}

impl Group {
    /// A group as another process, or an earlier call of this one, has staged it.
    fn read(staged: &Staged) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        struct Envelope {
            id: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let mut upserts = Vec::with_capacity(staged.documents.len());
        let mut documents = Vec::with_capacity(staged.documents.len());
        for document in &staged.documents {
            let text = document.get().as_bytes();
            let Envelope { id, kind } = decode(text)?;
            upserts.push(Op::upsert_text(&id, document.get()));
            documents.push(match kind.as_str() {
                kind::WORK => GroupDocument::Work(Arc::new(decode(text)?)),
                kind::MESSAGE => GroupDocument::Message(decode(text)?),
                kind::INTENT => GroupDocument::Intent(decode(text)?),
                _ => GroupDocument::Other,
            });
        }
        Ok(Self { id: staged.id.clone(), upserts, documents })
    }
}

/// Carries out what a manifest lists, then removes it. `own` are its groups, if the caller has just made them.
pub(crate) async fn publish(
    staging: Staging<'_>,
    call: Call,
    manifest: &Manifest,
    own: Option<&OwnGroups<'_>>,
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
        let group = match own.and_then(|own| own.group(index)) {
            Some(group) => group,
            None => {
                let id = ids::staged(&manifest.commit, index);
                let found = staging.store.patient(call).read_as::<Staged>(instance, &id).await?;
                // It is published already.
                let Some(found) = found else { continue };
                Group::read(&found.document)?
            }
        };
        // What is left to do after the last group is to remove the manifest: that goes along.
        let is_last = is_all && index + 1 == manifest.staged;
        let end = (is_last && group.upserts.len() + 2 <= Limits::default().operations)
            .then(|| Op::delete(&manifest.id, None));
        if publish_group(staging, call, instance, group, end.as_ref()).await? == Published::Now
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
        match staging.store.patient(call).settle(&manifest.instance_id, &ops, Rests::Shared).await? {
            Settled::Applied(_) | Settled::Arrived if is_end => return Ok(Removed::WithManifest),
            Settled::Applied(_) | Settled::Arrived => {}
            Settled::Superseded(fault) if fault.index == Some(0) => return Ok(Removed::WithManifest),
            // Another publisher has removed them together, or an operator one of them by hand.
            Settled::Superseded(_) => {
                for ids in ids.chunks(REMOVALS_PER_BATCH) {
                    if remove_any(staging, call, manifest, ids).await? == Removed::WithManifest {
                        return Ok(Removed::WithManifest);
                    }
                }
            }
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
        ops.extend(remove_if_any(instance, id)?);
    }
    match staging.store.patient(call).settle(instance, &ops, Rests::Shared).await? {
        Settled::Applied(_) | Settled::Arrived => {}
        Settled::Superseded(_) => return Ok(Removed::WithManifest),
    }
    ids.iter().for_each(|id| staging.outlet.work_removed(instance, id));
    Ok(Removed::Only)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Published {
    Now,
    Before,
}

/// Publishes one group, unless another process has done so already, and does one thing more with it.
async fn publish_group(
    staging: Staging<'_>,
    call: Call,
    instance: &str,
    group: Group,
    more: Option<&Op>,
) -> Result<Published, Fault> {
    let mut ops = group.upserts;
    ops.push(Op::delete(&group.id, None));
    ops.extend(more.cloned());
    let etags = match staging.store.patient(call).settle(instance, &ops, Rests::Shared).await? {
        Settled::Applied(etags) => etags,
        // The staged group is gone: another publisher, or an earlier try of this one, has done it.
        Settled::Arrived | Settled::Superseded(_) => return Ok(Published::Before),
    };
    let mut intents = Vec::new();
    for (document, etag) in group.documents.into_iter().zip(etags) {
        match document {
            GroupDocument::Work(work) => staging.outlet.work_written(work, etag),
            GroupDocument::Message(message) => staging.outlet.message_written(&message),
            GroupDocument::Intent(intent) => intents.push(Intent { etag: Some(etag), ..*intent }),
            GroupDocument::Other => {}
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
    let create = Op::create(&list)?;
    let ops = [Op::delete(&mark.id, Some(etag)), create];
    // The list is this call's own.
    match staging.store.patient(call).settle(instance, &ops, Rests::OwnId).await? {
        Settled::Applied(_) | Settled::Arrived => {}
        // It was committed, or swept, in the meantime.
        Settled::Superseded(_) => return Ok(()),
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
