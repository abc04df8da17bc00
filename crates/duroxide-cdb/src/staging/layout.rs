//! How a commit fits into batches.
//!
//! Most commits are one batch. A commit over the service's limits (100 operations, 2 MB) stages what does not fit in
//! documents that nothing looks at, commits with a manifest of them, and publishes them afterwards.

use serde_json::value::RawValue;

use crate::documents::{ChunkRef, Chunks, Manifest, Staged, Tombstone};
use crate::store::{Op, OpKind};

/// What a commit writes, before it is known in how many batches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writes<'a> {
    pub(crate) instance: &'a str,
    /// The id of the commit.
    pub(crate) commit: &'a str,
    /// Must be in the commit batch.
    pub(crate) pinned: &'a [Op],
    /// Creates that may wait for publication, the most urgent first.
    pub(crate) movable: &'a [Op],
    /// Work items to remove, whether or not they exist.
    pub(crate) cancels: &'a [String],
    /// Documents to remove that are known to exist.
    pub(crate) deletes: &'a [String],
    /// Large texts to remove.
    pub(crate) drops: &'a [ChunkRef],
    /// Large texts of the commit itself.
    pub(crate) chunks: &'a Chunks,
}

/// A commit in batches.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The commit, head first; its ETag condition is added when it is sent.
    pub(crate) commit: Vec<Op>,
    /// To be written before the commit, if there is anything to prepare.
    pub(crate) prepared: Option<Manifest>,
    pub(crate) staged: Vec<StagedGroup>,
    /// What is left to do after the commit.
    pub(crate) manifest: Option<Manifest>,
}

/// A staged document and the ids of the documents in it, so that who has just written it need not read it.
#[derive(Debug)]
pub(crate) struct StagedGroup {
    pub(crate) staged: Staged,
    pub(crate) ids: Vec<String>,
}

/// The service's limits, with room for headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) operations: usize,
    pub(crate) bytes: usize,
    /// Of one staged document, which is published in one batch.
    pub(crate) staged_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { operations: 100, bytes: 1_800_000, staged_bytes: 1_200_000 }
    }
}

/// Fits a commit into batches. `sweep_at` is when others may look at what is left over.
pub(crate) fn layout(
    writes: Writes<'_>,
    head: Op,
    sweep_at: u64,
    limits: Limits,
) -> Result<Layout, serde_json::Error> {
    let instance = writes.instance;
    let commit_id = writes.commit;
    let chunks = writes.chunks.parts().len();
    let mut cancels = Vec::with_capacity(writes.cancels.len() * OPS_PER_CANCEL);
    for id in writes.cancels {
        cancels.extend(remove_if_any(instance, id)?);
    }
    let deletes: Vec<Op> = writes.deletes.iter().map(|id| Op::delete(id, None)).collect();

    let mut commit = vec![head];
    commit.extend(writes.pinned.iter().cloned());
    let spare = usize::from(chunks > 0) + usize::from(!writes.drops.is_empty());
    let all = commit.len() + writes.movable.len() + cancels.len() + deletes.len() + spare;
    let bytes: usize = commit.iter().chain(writes.movable).map(Op::len).sum();
    if all <= limits.operations && bytes <= limits.bytes {
        commit.extend(writes.movable.iter().cloned());
        commit.extend(cancels);
        commit.extend(deletes);
        return finish(writes, commit, Vec::new(), Vec::new(), sweep_at);
    }

    // Nobody may go on with what the commit cancels. One place is kept for the manifest.
    let room = limits.operations.saturating_sub(commit.len() + 1);
    let inside = writes.cancels.len().min(room / OPS_PER_CANCEL);
    commit.extend(cancels.drain(..inside * OPS_PER_CANCEL));
    let mut bytes: usize = commit.iter().map(Op::len).sum();
    let mut overflow: Vec<&Op> = Vec::new();
    for op in writes.movable {
        // Order is kept: after the first that does not fit, none fits.
        let fits = commit.len() + 1 < limits.operations && bytes + op.len() <= limits.bytes - MANIFEST_BYTES;
        if overflow.is_empty() && fits {
            bytes += op.len();
            commit.push(op.clone());
        } else {
            overflow.push(op);
        }
    }
    let room = if overflow.is_empty() { limits.operations.saturating_sub(commit.len() + 1) } else { 0 };
    let (now, later) = writes.deletes.split_at(writes.deletes.len().min(room));
    commit.extend(deletes.into_iter().take(now.len()));
    let mut groups: Vec<(Vec<Box<RawValue>>, Vec<String>)> = Vec::new();
    let mut group_bytes = 0;
    for op in overflow {
        let text = String::from_utf8(op.body().map(|body| body.to_vec()).unwrap_or_default())
            .map_err(serde::ser::Error::custom)?;
        // Published together with the removal of the group, and of the manifest if it is the last one.
        let full = groups.last().is_none_or(|(group, _)| group.len() + 2 >= limits.operations);
        if full || group_bytes + text.len() > limits.staged_bytes {
            groups.push(Default::default());
            group_bytes = 0;
        }
        group_bytes += text.len();
        if let Some((group, ids)) = groups.last_mut() {
            group.push(RawValue::from_string(text)?);
            ids.push(op.id().to_owned());
        }
    }
    let staged = groups
        .into_iter()
        .enumerate()
        .map(|(index, (documents, ids))| StagedGroup {
            staged: Staged::new(instance, commit_id, index, documents),
            ids,
        })
        .collect();
    let removals = writes.cancels[inside..].iter().chain(later).cloned().collect();
    finish(writes, commit, staged, removals, sweep_at)
}

fn finish(
    writes: Writes<'_>,
    mut commit: Vec<Op>,
    staged: Vec<StagedGroup>,
    deletes: Vec<String>,
    sweep_at: u64,
) -> Result<Layout, serde_json::Error> {
    let instance = writes.instance;
    let commit_id = writes.commit;
    let chunks = writes.chunks.parts().len();
    let mark = Manifest::prepared(instance, commit_id, staged.len(), chunks, sweep_at);
    let prepared = (!staged.is_empty() || chunks > 0)
        .then(|| Manifest { sweep_at: sweep_at + PREPARING_MS, ..mark.clone() });
    let manifest = (!staged.is_empty() || !deletes.is_empty() || !writes.drops.is_empty())
        .then(|| Manifest { committed: true, deletes, drops: writes.drops.to_vec(), ..mark.clone() });
    match (&prepared, &manifest) {
        (Some(_), Some(manifest)) => commit.push(Op::replace(&manifest.id, manifest, None)?),
        (Some(mark), None) => commit.push(Op::delete(&mark.id, None)),
        (None, Some(manifest)) => commit.push(Op::create(manifest)?),
        (None, None) => {}
    }
    debug_assert!(commit.iter().filter(|op| op.kind() == OpKind::Replace).count() >= 1);
    Ok(Layout { commit, prepared, staged, manifest })
}

/// Removes a document that may or may not exist: writing it first makes the delete certain to succeed.
pub(crate) fn remove_if_any(instance: &str, id: &str) -> Result<[Op; OPS_PER_CANCEL], serde_json::Error> {
    Ok([Op::upsert(&Tombstone::new(instance, id, 60))?, Op::delete(id, None)])
}

const OPS_PER_CANCEL: usize = 2;
/// How long preparations are left alone. They go on as long as the lock is renewed they are made under, and tens of
/// megabytes take many minutes in a small container.
pub(crate) const PREPARING_MS: u64 = 60 * 60 * 1000;
/// Room for the manifest in the commit batch.
const MANIFEST_BYTES: usize = 200_000;
