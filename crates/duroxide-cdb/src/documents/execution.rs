//! The record of an execution that is not the running one.

use serde::{Deserialize, Serialize};

use super::head::{Head, Version};
use super::value::{ChunkRef, Chunks};
use super::{ids, kind};

/// What is known of an execution without its history.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionRecord {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) execution_id: u64,
    pub(crate) status: String,
    pub(crate) output: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    pub(crate) started_at: u64,
    pub(crate) completed_at: Option<u64>,
    pub(crate) event_count: u64,
    pub(crate) event_bytes: u64,
    #[serde(default)]
    pub(crate) pinned_version: Option<Version>,
    #[serde(default)]
    pub(crate) orchestration_version: String,
}

impl ExecutionRecord {
    /// The head's current execution as a record, with the output it ended with.
    pub(crate) fn of(head: &Head, output: Option<&str>, chunks: &mut Chunks) -> Self {
        let (output, chunks) = match output {
            None => (None, None),
            Some(text) => match chunks.hold(text.to_owned()) {
                (text, None) => (Some(text), None),
                (_, held) => (None, held),
            },
        };
        Self {
            id: ids::execution(&head.instance_id, head.current_execution_id),
            instance_id: head.instance_id.clone(),
            kind: kind::EXECUTION.to_owned(),
            execution_id: head.current_execution_id,
            status: head.status.clone(),
            output,
            chunks,
            started_at: head.execution_started_at,
            completed_at: head.completed_at,
            event_count: head.event_count,
            event_bytes: head.event_bytes,
            pinned_version: head.pinned_version,
            orchestration_version: head.orchestration_version.clone(),
        }
    }
}
