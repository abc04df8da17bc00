//! The data model: one file per document.
//!
//! Every document says what it is in `type`, and lives in the partition of its instance (`/instanceId`); sessions,
//! deletions and the stamp of the layout have partitions of their own. `docs/data-model.md` shows all of them. The names
//! of the types and of the fields that the public crate up to 0.1.10 wrote are kept, so that its documents are read
//! as they are; fields of ours that it did not write have defaults.

mod execution;
mod fleet;
mod head;
mod history;
pub(crate) mod ids;
mod intent;
mod kv;
pub(crate) mod lane;
mod lenient;
mod lockable;
mod manifest;
mod message;
#[cfg(test)]
mod model_page;
mod packed;
mod readable;
mod session;
mod value;
mod work;

pub(crate) use execution::ExecutionRecord;
pub(crate) use fleet::{Bell, Member, Rung, RungMessage, RungWork, SlotTable, TableShare};
pub use head::FORMAT_VERSION;
pub(crate) use head::{Forgive, Head, HeadOutline, Held, LegacyStart, PutOff, Status, Version, is_supported};
pub use history::unpack_events;
pub(crate) use history::{HistoryDocument, decode, pack};
pub use ids::is_reserved;
pub(crate) use intent::{Cancellation, DeadLetter, Intent, name_parent};
pub(crate) use kv::{
    Cell, HEAD_VALUE_BYTES_MAX, HEAD_VALUES_BYTES_MAX, KvChange, LegacyValue, MissingValue, Pairs, Stored,
    apply, merged, points_to, settle, snapshot,
};
pub(crate) use lenient::lenient;
pub(crate) use lockable::Lockable;
pub(crate) use manifest::{Deletion, Manifest, Staged, Tombstone};
#[cfg(test)]
pub(crate) use message::tests::successor;
pub(crate) use message::{
    Message, MessageHint, START_PREFIX, begins_instance, is_sent_from_outside, order_of, start_keys_below,
};
pub use packed::unpack;
pub use readable::unreadable;
pub(crate) use session::Session;
pub(crate) use value::{COMMIT_PARTS_MAX, Chunk, ChunkRef, Chunks, ValueDocument};
pub(crate) use work::WorkDocument;

use duroxide::providers::WorkItem;

use crate::clock::Clock;

/// The values of the `type` property: what a document is.
pub mod kind {
    /// The head of an instance.
    pub const INSTANCE: &str = "instance";
    /// A head whose instance is being deleted: invisible to everything that looks for instances.
    pub const DELETING: &str = "deleting";
    /// An execution that is over.
    pub const EXECUTION: &str = "execution";
    /// Events: of a turn, or one event as the public crate up to 0.1.10 wrote it.
    pub const HISTORY: &str = "history";
    /// A message for an instance.
    pub const MESSAGE: &str = "orch_queue";
    /// An activity for a worker.
    pub const WORK: &str = "worker_queue";
    /// A message on its way to another instance.
    pub const INTENT: &str = "outbox_intent";
    /// The list of what belongs to a commit that did not fit into one batch.
    pub const MANIFEST: &str = "manifest";
    /// A part of such a commit.
    pub const STAGED: &str = "staged";
    /// A key-value or status too large for the head.
    pub const VALUE: &str = "value";
    /// A piece of a text too large for one document.
    pub const CHUNK: &str = "chunk";
    /// The mark of a consumed message.
    pub const TOMBSTONE: &str = "tombstone";
    /// The owner of a session.
    pub const SESSION: &str = "session";
    /// A message that can never be delivered.
    pub const DEAD_LETTER: &str = "dead_letter";
    /// The deletion of an instance, as far as it is.
    pub const DELETION: &str = "deletion";
    /// A process that runs work.
    pub const MEMBER: &str = "member";
    /// Who looks after which part of the container.
    pub const SLOT_TABLE: &str = "slot_table";
    /// Where something is new.
    pub const BELL: &str = "bell";
    /// A key-value of the public crate up to 0.1.10.
    pub const LEGACY_KV: &str = "kv";
    /// A changed key-value of the public crate up to 0.1.10.
    pub const LEGACY_KV_DELTA: &str = "kv_delta";
}

/// A document together with the ETag it was read or written with.
#[derive(Debug, Clone)]
pub(crate) struct Tagged<T> {
    pub(crate) document: T,
    pub(crate) etag: String,
}

/// Anything that is stored: it knows its own id.
pub(crate) trait Document: serde::Serialize {
    /// The document's id.
    fn id(&self) -> &str;
}

macro_rules! documents {
    ($($name:ty),+ $(,)?) => {
        $(impl Document for $name {
            fn id(&self) -> &str {
                &self.id
            }
        })+
    };
}

documents!(
    Bell,
    Chunk,
    DeadLetter,
    Deletion,
    ExecutionRecord,
    Head,
    HistoryDocument,
    Intent,
    Manifest,
    Member,
    Message,
    Session,
    SlotTable,
    Staged,
    Tombstone,
    ValueDocument,
    WorkDocument,
);

/// The instance a work item is addressed to.
pub(crate) fn addressee(item: &WorkItem) -> String {
    match item {
        WorkItem::StartOrchestration { instance, .. }
        | WorkItem::ActivityExecute { instance, .. }
        | WorkItem::ActivityCompleted { instance, .. }
        | WorkItem::ActivityFailed { instance, .. }
        | WorkItem::TimerFired { instance, .. }
        | WorkItem::ExternalRaised { instance, .. }
        | WorkItem::CancelInstance { instance, .. }
        | WorkItem::ContinueAsNew { instance, .. }
        | WorkItem::QueueMessage { instance, .. } => instance.clone(),
        WorkItem::SubOrchCompleted { parent_instance, .. }
        | WorkItem::SubOrchFailed { parent_instance, .. } => parent_instance.clone(),
        // Variants that exist only under features of duroxide: their serialised form names the instance.
        #[allow(unreachable_patterns, reason = "reachable when another crate turns such a feature on")]
        other => addressee_of_json(&serde_json::to_value(other).unwrap_or_default()),
    }
}

fn addressee_of_json(item: &serde_json::Value) -> String {
    let fields = item.as_object().and_then(|object| object.values().next());
    fields
        .and_then(|fields| fields.get("instance").or_else(|| fields.get("parent_instance")))
        .and_then(|name| name.as_str())
        .unwrap_or_default()
        .to_owned()
}

/// When a work item for an orchestration may be seen: a timer when it is due by the runtime's clock, everything else at
/// once.
pub(crate) fn due_at(item: &WorkItem, clock: &Clock) -> u64 {
    match item {
        WorkItem::TimerFired { fire_at_ms, .. } => clock.of_system(*fire_at_ms),
        _ => clock.now_ms(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_variant_is_still_addressed() {
        let item = serde_json::json!({ "ExternalRaised2": { "instance": "a", "name": "n" } });
        assert_eq!(addressee_of_json(&item), "a");
    }

    #[test]
    fn completions_of_children_go_to_the_parent() {
        let item = WorkItem::SubOrchCompleted {
            parent_instance: "p".into(),
            parent_execution_id: 1,
            parent_id: 2,
            result: String::new(),
        };
        assert_eq!(addressee(&item), "p");
    }
}
