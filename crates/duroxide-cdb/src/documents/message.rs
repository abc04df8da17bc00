//! A message waiting for a turn.

use std::time::Duration;

use duroxide::providers::WorkItem;
use serde::{Deserialize, Serialize};

use super::value::{ChunkRef, Chunks};
use super::{addressee, due_at, ids, kind};
use crate::clock::{Clock, sequence_of};
use crate::slots;

/// A message in an instance's queue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) work_item: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    #[serde(default)]
    pub(crate) dispatch_slot: u8,
    pub(crate) visible_at: u64,
    pub(crate) enqueued_at: u64,
    /// The order key; the public crate wrote none.
    #[serde(default)]
    pub(crate) seq: u64,
    /// Attempts counted in the document itself, by the public crate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) attempt_count: u32,
    /// Whether a second copy may come, through an outbox or from a sender that got no answer: consuming it leaves a
    /// tombstone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) delivered: bool,
}

impl Message {
    /// A message that becomes visible when its kind says, or after `delay_ms`.
    pub(crate) fn new(
        item: &WorkItem,
        delay_ms: Option<u64>,
        clock: &Clock,
        floor: u64,
        chunks: &mut Chunks,
    ) -> Result<Self, serde_json::Error> {
        let now = clock.now_ms();
        let instance_id = addressee(item);
        let (work_item, chunks) = chunks.hold(serde_json::to_string(item)?);
        Ok(Self {
            id: ids::message(),
            dispatch_slot: slots::of(&instance_id),
            instance_id,
            kind: kind::MESSAGE.to_owned(),
            work_item,
            chunks,
            visible_at: delay_ms
                .map_or_else(|| due_at(item, now), |delay| clock.after(Duration::from_millis(delay))),
            enqueued_at: now,
            seq: clock.next_sequence_after(floor),
            attempt_count: 0,
            delivered: false,
        })
    }

    /// The order key, also of a document that has none.
    pub(crate) fn order(&self) -> u64 {
        if self.seq == 0 { sequence_of(self.enqueued_at) } else { self.seq }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}
