//! What a commit bigger than one batch prepares and leaves to do, and the marks that deletions leave.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::value::ChunkRef;
use super::{ids, kind};

/// The unfinished half of a commit.
///
/// It is written first, as a mark of what is being prepared (`committed: false`): the commit replaces it, so a commit
/// whose preparations were swept away cannot happen. After the commit it lists what is still to publish and to remove.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) commit: String,
    pub(crate) committed: bool,
    /// Number of staged documents.
    #[serde(default)]
    pub(crate) staged: u32,
    /// Number of chunks that belong to the commit.
    #[serde(default)]
    pub(crate) chunks: u32,
    /// Documents to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deletes: Vec<String>,
    /// Large texts to remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drops: Vec<ChunkRef>,
    pub(crate) sweep_at: u64,
}

impl Manifest {
    /// The mark of a commit that is being prepared.
    pub(crate) fn prepared(
        instance: &str,
        commit: &str,
        staged: usize,
        chunks: usize,
        sweep_at: u64,
    ) -> Self {
        Self {
            id: ids::manifest(commit),
            instance_id: instance.to_owned(),
            kind: kind::MANIFEST.to_owned(),
            commit: commit.to_owned(),
            committed: false,
            staged: u32::try_from(staged).unwrap_or(u32::MAX),
            chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
            deletes: Vec::new(),
            drops: Vec::new(),
            sweep_at,
        }
    }
}

/// Documents that a commit publishes later, together in one batch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Staged {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) documents: Vec<Box<RawValue>>,
}

impl Staged {
    /// The `index`th group of a commit.
    pub(crate) fn new(instance: &str, commit: &str, index: usize, documents: Vec<Box<RawValue>>) -> Self {
        Self {
            id: ids::staged(commit, u32::try_from(index).unwrap_or(u32::MAX)),
            instance_id: instance.to_owned(),
            kind: kind::STAGED.to_owned(),
            documents,
        }
    }
}

/// What is left of a consumed message that may come again, through an outbox or from a sender that got no answer: the
/// second copy meets it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tombstone {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Seconds until the server removes it.
    pub(crate) ttl: u64,
}

impl Tombstone {
    /// The tombstone of a message.
    pub(crate) fn new(instance: &str, id: &str, ttl_seconds: u64) -> Self {
        Self {
            id: id.to_owned(),
            instance_id: instance.to_owned(),
            kind: kind::TOMBSTONE.to_owned(),
            ttl: ttl_seconds.max(1),
        }
    }
}

/// A deletion of several instances that has passed its point of no return.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Deletion {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What is deleted, parents before their children that had not run.
    pub(crate) instances: Vec<String>,
    /// Messages from these instances to each other that were still to be delivered: wherever they are now, they go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) doomed: Vec<String>,
    pub(crate) sweep_at: u64,
}

impl Deletion {
    /// The record of a deletion.
    pub(crate) fn new(id: &str, instances: &[String], doomed: Vec<String>, sweep_at: u64) -> Self {
        Self {
            id: id.to_owned(),
            instance_id: ids::DELETIONS.to_owned(),
            kind: kind::DELETION.to_owned(),
            instances: instances.to_vec(),
            doomed,
            sweep_at,
        }
    }
}
