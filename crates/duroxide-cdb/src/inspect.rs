//! The documents as people look into them: lenient views, for reading only.
//!
//! Tools beside the provider (`cdb`, its dashboard, `cdb fsck`) read what is stored without the provider's promises: they must
//! show documents of older versions, of the public crate and damaged ones. So every field of a view has a default, and
//! [`legible`] leaves out what is malformed. The documents themselves are in [`documents`](crate::documents); a test there holds
//! that a view names no field which the document does not have. Not part of the crate's interface: it changes with the layout.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::documents::{Status, ids, kind, unreadable};

/// Every type of document there is: fsck reports others.
pub const KINDS: [&str; 21] = [
    kind::INSTANCE,
    kind::DELETING,
    kind::EXECUTION,
    kind::HISTORY,
    kind::MESSAGE,
    kind::WORK,
    kind::INTENT,
    kind::MANIFEST,
    kind::STAGED,
    kind::VALUE,
    kind::CHUNK,
    kind::TOMBSTONE,
    kind::SESSION,
    kind::DEAD_LETTER,
    kind::DELETION,
    kind::LEGACY_KV,
    kind::LEGACY_KV_DELTA,
    kind::MEMBER,
    kind::SLOT_TABLE,
    kind::BELL,
    ids::FORMAT,
];

/// The head of an instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Head {
    pub id: String,
    pub instance_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub format_version: u64,
    pub started: bool,
    pub orchestration_name: String,
    pub orchestration_version: String,
    pub current_execution_id: u64,
    pub status: String,
    pub parent_instance_id: Option<String>,
    pub pinned_version: Option<[u64; 3]>,
    pub custom_status: Option<String>,
    pub custom_status_value: Option<String>,
    pub lock_token: Option<String>,
    pub locked_until: Option<u64>,
    pub lock_owner: Option<String>,
    pub batch: Vec<Held>,
    pub attempts: BTreeMap<String, u32>,
    pub last_event_id: u64,
    pub event_count: u64,
    pub event_bytes: u64,
    /// The youngest events of the current execution; all before them are in documents.
    pub events: Vec<String>,
    pub kv: BTreeMap<String, Cell>,
    pub created_at: u64,
    pub updated_at: u64,
    #[serde(rename = "_etag")]
    pub etag: String,
}

impl Head {
    /// Whether listings show it.
    pub fn is_visible(&self) -> bool {
        self.kind == kind::INSTANCE
            && (self.started || (self.is_legacy() && !self.orchestration_name.is_empty()))
    }

    /// Whether the public crate wrote it.
    pub fn is_legacy(&self) -> bool {
        self.format_version == 0
    }

    /// Whether the workflow has ended for good.
    pub fn has_ended(&self) -> bool {
        Status::ends_instance(&self.status)
    }

    /// Whether somebody holds the lock.
    pub fn is_locked(&self, now_ms: u64) -> bool {
        self.lock_token.is_some() && self.locked_until.is_some_and(|until| until > now_ms)
    }

    /// Attempts of a message so far.
    pub fn attempts_of(&self, id: &str) -> u32 {
        let held = self.batch.iter().find(|held| held.id == id).map(|held| held.attempts);
        held.or_else(|| self.attempts.get(id).copied()).unwrap_or(0)
    }
}

/// A message that a lock holds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Held {
    pub id: String,
    #[serde(rename = "n")]
    pub attempts: u32,
}

/// One key-value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Cell {
    #[serde(rename = "s")]
    pub stored: Option<Stored>,
    #[serde(rename = "d")]
    pub changed: Option<Stored>,
}

/// A value, here or in a document of its own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Stored {
    #[serde(rename = "r")]
    pub document: Option<String>,
}

/// A message for an instance, or an activity for a worker.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Queued {
    pub id: String,
    pub instance_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub work_item: String,
    pub visible_at: u64,
    pub enqueued_at: u64,
    pub lock_token: Option<String>,
    pub locked_until: Option<u64>,
    pub attempt_count: u32,
    /// The public crate named it as history does.
    #[serde(rename = "execution", alias = "executionId")]
    pub execution_id: Option<u64>,
    pub activity_id: Option<u64>,
    pub session_id: Option<String>,
    pub tag: Option<String>,
}

impl Queued {
    /// Whether a worker holds it.
    pub fn is_locked(&self, now_ms: u64) -> bool {
        self.lock_token.is_some() && self.locked_until.is_some_and(|until| until > now_ms)
    }

    /// Since when it waits: a timer since it is due, everything else since it was sent, however often it was put back.
    pub fn waits_since(&self) -> u64 {
        let (variant, fields) = self.item();
        match fields.get("fire_at_ms").and_then(Value::as_u64) {
            Some(due) if variant == "TimerFired" => due.max(self.enqueued_at),
            _ if self.enqueued_at > 0 => self.enqueued_at,
            _ => self.visible_at,
        }
    }

    /// The work item's variant and fields; texts too large for the document are not here.
    pub fn item(&self) -> (String, Value) {
        let value: Value = serde_json::from_str(&self.work_item).unwrap_or_default();
        match value {
            Value::Object(fields) => fields.into_iter().next().unwrap_or_default(),
            _ => (String::new(), Value::Null),
        }
    }
}

/// A message on its way to another instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Intent {
    pub id: String,
    pub instance_id: String,
    pub target_instance_id: String,
    pub created_at: u64,
    pub attempt_count: u32,
}

/// A message that can never be delivered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeadLetter {
    pub id: String,
    pub instance_id: String,
    pub target_instance_id: String,
    pub document: Value,
    pub reason: String,
    pub died_at: u64,
}

/// The unfinished half of a large commit.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    pub id: String,
    pub commit: String,
    pub committed: bool,
}

/// Everything in one partition.
#[derive(Debug, Clone, Default)]
pub struct Partition {
    documents: Vec<Value>,
}

impl Partition {
    /// From its documents.
    pub fn new(documents: Vec<Value>) -> Self {
        Self { documents }
    }

    /// Whether nothing is there, marks of consumed messages aside.
    pub fn is_empty(&self) -> bool {
        self.documents.iter().all(|document| type_of(document) == kind::TOMBSTONE)
    }

    /// All documents.
    pub fn documents(&self) -> &[Value] {
        &self.documents
    }

    /// The head, if there is one.
    pub fn head(&self) -> Option<Head> {
        let head = self.of(kind::INSTANCE).into_iter().next();
        head.or_else(|| self.of(kind::DELETING).into_iter().next())
    }

    /// The documents of a type, as far as they can be read.
    pub fn of<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let documents = self.documents.iter().filter(|document| type_of(document) == kind);
        documents.filter_map(legible).collect()
    }

    /// What the provider cannot read, and why: the document's id, its type and the reason.
    pub fn unreadable(&self) -> Vec<(String, String, String)> {
        let reason = |document: &Value| {
            let why = unreadable(document.to_string().as_bytes())?;
            Some((text_of(document, "id").to_owned(), type_of(document).to_owned(), why))
        };
        self.documents.iter().filter_map(reason).collect()
    }
}

/// A document as far as it can be read: a field that is malformed is as if it were not there. None if not even that
/// makes sense.
pub fn legible<T: DeserializeOwned>(document: &Value) -> Option<T> {
    if let Ok(read) = T::deserialize(document) {
        return Some(read);
    }
    let is_sound = |name: &String, value: &Value| T::deserialize(&json!({ name: value })).is_ok();
    let sound = document.as_object()?.iter().filter(|(name, value)| is_sound(name, value));
    let sound: Map<String, Value> = sound.map(|(name, value)| (name.clone(), value.clone())).collect();
    serde_json::from_value(Value::Object(sound)).ok()
}

/// What a document is.
pub fn type_of(document: &Value) -> &str {
    text_of(document, "type")
}

/// A text property, or nothing.
pub fn text_of<'a>(document: &'a Value, name: &str) -> &'a str {
    document.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_malformed_in_a_document_hides_nothing_else_of_it() {
        let head = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "createdAt": -1,
            "status": "Running", "orchestrationName": 12, "started": true});
        let head: Head = legible(&head).unwrap();
        assert_eq!((head.status.as_str(), head.created_at, head.is_visible()), ("Running", 0, true));
        assert_eq!(legible::<String>(&json!(5)), None);
    }

    #[test]
    fn documents_of_the_public_crate_are_read() {
        let document = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "orchestrationName": "Hello",
            "status": "Running", "parentInstanceId": null, "lockToken": null, "_etag": "e"});
        let head = Partition::new(vec![document]).head().unwrap();
        assert!(head.is_visible() && head.is_legacy() && !head.is_locked(1));
    }
}
