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
    /// Which part of the key space the instance is in, as the public crate wrote it. Searches work it out from the
    /// instance's name, so nothing reads it.
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
    /// Whose child it starts: until the child runs, only this tells of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent_instance_id: Option<String>,
    /// When it was put aside because its instance had not begun; zero if it was not. Searches do not see it before its
    /// next time of visibility, but the turn that begins the instance takes it whatever that time is.
    #[serde(default, skip_serializing_if = "is_never")]
    pub(crate) parked_at: u64,
    /// The version it was read as.
    #[serde(rename = "_etag", default, skip_serializing)]
    pub(crate) etag: String,
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
        let text = serde_json::to_string(item)?;
        let seq = ahead(clock.next_sequence_after(floor), &text);
        let seq = if cosmos_wire::mutant!(13) { seq ^ 0b11_1111 } else { seq };
        let (work_item, chunks) = chunks.hold(text);
        Ok(Self {
            id: ids::message(),
            dispatch_slot: slots::of(&instance_id),
            instance_id,
            kind: kind::MESSAGE.to_owned(),
            work_item,
            chunks,
            visible_at: delay_ms.map_or_else(
                || if cosmos_wire::mutant!(16) { now } else { due_at(item, clock) },
                |delay| clock.after(Duration::from_millis(delay)),
            ),
            enqueued_at: now,
            seq,
            attempt_count: 0,
            delivered: false,
            parent_instance_id: parent_of(item).map(ToOwned::to_owned),
            parked_at: 0,
            etag: String::new(),
        })
    }

    /// The order key, also of a document that has none.
    pub(crate) fn order(&self) -> u64 {
        order_of(self.seq, self.enqueued_at, &self.work_item)
    }

    /// Whether it begins an execution, told by its order key: its text may be lost.
    pub(crate) fn begins_execution(&self) -> bool {
        self.order().saturating_add(LEAD / 2) < sequence_of(self.enqueued_at)
    }
}

/// The order key of a message, of whose text the beginning is enough.
pub(crate) fn order_of(seq: u64, enqueued_at: u64, item: &str) -> u64 {
    if seq == 0 { ahead(sequence_of(enqueued_at), item) } else { seq }
}

/// Whether a message, or its beginning, is one that begins an instance.
pub(crate) fn begins_instance(text: &str) -> bool {
    text.starts_with(START_PREFIX)
}

/// What begins an execution has an order key below this, if it was enqueued within years of `now_ms`; no other message has.
pub(crate) fn start_keys_below(now_ms: u64) -> u64 {
    sequence_of(now_ms).saturating_sub(LEAD / 2)
}

/// How the text of a message begins that begins an instance.
pub(crate) const START_PREFIX: &str = r#"{"StartOrchestration""#;

/// The parent of the child that an item starts.
pub(crate) fn parent_of(item: &WorkItem) -> Option<&str> {
    match item {
        WorkItem::StartOrchestration { parent_instance, .. } => parent_instance.as_deref(),
        _ => None,
    }
}

/// Whether a message, or its beginning, is one that begins an instance or that is sent to one by others. What an
/// instance sends itself, and the answers to it, mean nothing to its next life.
pub(crate) fn is_sent_from_outside(text: &str) -> bool {
    ["StartOrchestration", "ExternalRaised", "QueueMessage", "CancelInstance"]
        .iter()
        .any(|kind| text.strip_prefix("{\"").is_some_and(|text| text.starts_with(kind)))
}

/// The order key of an item that was given `key` when it was enqueued. What begins an execution goes before everything
/// that waits for it, however much that is: a turn takes only the first of a long queue. A start goes behind the
/// successor of a running execution, where it is a mere duplicate.
fn ahead(key: u64, item: &str) -> u64 {
    let lead = if item.starts_with(r#"{"ContinueAsNew""#) {
        2 * LEAD
    } else if begins_instance(item) {
        LEAD
    } else {
        0
    };
    // Zero means that there is no key.
    key.saturating_sub(lead).max(1)
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn is_never(time: &u64) -> bool {
    *time == 0
}

/// As if enqueued seventeen years earlier, so that starts keep their order among themselves.
const LEAD: u64 = 1 << 49;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn start(instance: &str) -> WorkItem {
        WorkItem::StartOrchestration {
            instance: instance.into(),
            orchestration: "o".into(),
            input: String::new(),
            version: None,
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
            execution_id: 1,
        }
    }

    pub(crate) fn successor(instance: &str) -> WorkItem {
        WorkItem::ContinueAsNew {
            instance: instance.into(),
            orchestration: "o".into(),
            input: String::new(),
            version: None,
            carry_forward_events: Vec::new(),
            initial_custom_status: None,
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
        }
    }

    #[test]
    fn what_begins_an_execution_goes_before_what_waits_for_it() {
        let clock = Clock::default();
        let mail = WorkItem::QueueMessage { instance: "a".into(), name: "q".into(), data: String::new() };
        let message = |item: &WorkItem| Message::new(item, None, &clock, 0, &mut Chunks::new("c")).unwrap();
        let queue = [mail, start("a"), start("a"), successor("a")].map(|item| message(&item));
        let keys: Vec<u64> = queue.iter().map(Message::order).collect();
        assert!(keys[3] < keys[1] && keys[1] < keys[2] && keys[2] < keys[0], "{keys:?}");
        assert!(keys.iter().all(|key| *key > 0), "{keys:?}");
        assert_eq!(queue.each_ref().map(Message::begins_execution), [false, true, true, true]);
        // The same of documents without a key, as the public crate wrote them.
        let old: Vec<u64> = queue.map(|message| Message { seq: 0, ..message }.order()).to_vec();
        assert!(old[3] < old[1] && old[1] < old[0], "{old:?}");
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
}

/// What a process has to know of a message in an instance's queue to look there: its sender, a search or another process of
/// the fleet has told it.
#[derive(Debug, Clone)]
pub(crate) struct MessageHint {
    pub(crate) instance: String,
    pub(crate) id: String,
    pub(crate) seq: u64,
    pub(crate) visible_at: u64,
}

impl From<&Message> for MessageHint {
    fn from(message: &Message) -> Self {
        Self {
            instance: message.instance_id.clone(),
            id: message.id.clone(),
            seq: message.order(),
            visible_at: message.visible_at,
        }
    }
}
