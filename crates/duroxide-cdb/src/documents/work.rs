//! An activity waiting for a worker.

use duroxide::providers::WorkItem;
use serde::{Deserialize, Serialize};

use super::head::Forgive;
use super::value::{ChunkRef, Chunks};
use super::{addressee, ids, kind, lane};
use crate::clock::{Clock, sequence_of};
use crate::slots;

/// A work item in the worker queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkDocument {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) work_item: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    /// Which part of the key space the instance is in, as the public crate wrote it. Searches work it out from the
    /// instance's name, so nothing reads it.
    #[serde(default)]
    pub(crate) dispatch_slot: u8,
    /// The slot whose owner takes it first, if that is not the one of its instance: the activities of a turn that schedules
    /// many are for all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spread_to: Option<u8>,
    pub(crate) visible_at: u64,
    pub(crate) enqueued_at: u64,
    /// Not named as in messages, where it is indexed.
    #[serde(default, rename = "order")]
    pub(crate) seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) locked_until: Option<u64>,
    #[serde(default)]
    pub(crate) attempt_count: u32,
    /// Not named as in history, where it is indexed; the public crate did.
    #[serde(default, rename = "execution", alias = "executionId", skip_serializing_if = "Option::is_none")]
    pub(crate) execution_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) activity_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    /// Whom it is for, by tag and session; earlier versions wrote none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) lane: String,
    /// Whether it came through an outbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) delivered: bool,
    /// Tells a repeated create of this call from another item with the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nonce: Option<String>,
}

impl WorkDocument {
    /// A work item that is visible at once.
    pub(crate) fn new(
        item: &WorkItem,
        clock: &Clock,
        floor: u64,
        chunks: &mut Chunks,
    ) -> Result<Self, serde_json::Error> {
        let now = clock.now_ms();
        let instance_id = addressee(item);
        let (execution_id, activity_id, session_id, tag) = match item {
            WorkItem::ActivityExecute { execution_id, id, session_id, tag, .. } => {
                (Some(*execution_id), Some(*id), session_id.clone(), tag.clone())
            }
            _ => (None, None, None, None),
        };
        let id = match (execution_id, activity_id) {
            (Some(execution), Some(activity)) => ids::work(execution, activity),
            _ => ids::message(),
        };
        let (work_item, chunks) = chunks.hold(serde_json::to_string(item)?);
        Ok(Self {
            id,
            dispatch_slot: slots::of(&instance_id),
            spread_to: None,
            instance_id,
            kind: kind::WORK.to_owned(),
            work_item,
            chunks,
            visible_at: now,
            enqueued_at: now,
            seq: clock.next_sequence_after(floor),
            lock_token: None,
            locked_until: None,
            attempt_count: 0,
            execution_id,
            activity_id,
            lane: lane::of(tag.as_deref(), session_id.as_deref()),
            session_id,
            tag,
            delivered: false,
            nonce: None,
        })
    }

    /// The slot whose owner takes it first. One with a tag or of a session is for whoever serves that: the owner of a slot
    /// may not.
    pub(crate) fn dispatched_to(&self) -> Option<u8> {
        let is_anybodys = self.tag.is_some() || self.session_id.is_some();
        (!is_anybodys).then(|| self.spread_to.unwrap_or_else(|| slots::of(&self.instance_id)))
    }

    /// Gives the lock back.
    pub(crate) fn unlock(&mut self, visible_at: u64, forgive: Forgive) {
        (self.lock_token, self.locked_until, self.visible_at) = (None, None, visible_at);
        if forgive == Forgive::ThisAttempt {
            self.attempt_count = self.attempt_count.saturating_sub(1);
        }
    }

    /// The order key, also of a document that has none.
    pub(crate) fn order(&self) -> u64 {
        if self.seq == 0 { sequence_of(self.enqueued_at) } else { self.seq }
    }

    /// When somebody may take it: visible, and not locked.
    pub(crate) fn available_at(&self) -> u64 {
        let available = self.visible_at.max(self.locked_until.unwrap_or(0));
        if cosmos_wire::mutant!(10) { available.saturating_sub(6_000) } else { available }
    }
}
