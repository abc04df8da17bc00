//! The provider's documents, as far as a person wants to look into them.
//!
//! The provider owns the layout; these are views with a default for everything, so that documents of older versions
//! and of the public crate are shown as well. Nothing here is written back.

use std::collections::BTreeMap;

pub(crate) use duroxide_cdb::kind;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Every type of document there is: fsck reports others.
pub(crate) const KINDS: [&str; 21] = [
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
    "format",
];

/// The head of an instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) format_version: u64,
    pub(crate) started: bool,
    pub(crate) orchestration_name: String,
    pub(crate) orchestration_version: String,
    pub(crate) current_execution_id: u64,
    pub(crate) status: String,
    pub(crate) parent_instance_id: Option<String>,
    pub(crate) pinned_version: Option<[u64; 3]>,
    pub(crate) custom_status: Option<String>,
    pub(crate) custom_status_value: Option<String>,
    pub(crate) lock_token: Option<String>,
    pub(crate) locked_until: Option<u64>,
    pub(crate) lock_owner: Option<String>,
    pub(crate) batch: Vec<Held>,
    pub(crate) attempts: BTreeMap<String, u32>,
    pub(crate) last_event_id: u64,
    pub(crate) event_count: u64,
    pub(crate) event_bytes: u64,
    /// The youngest events of the current execution; all before them are in documents.
    pub(crate) events: Vec<String>,
    pub(crate) kv: BTreeMap<String, Cell>,
    pub(crate) created_at: u64,
    pub(crate) updated_at: u64,
    #[serde(rename = "_etag")]
    pub(crate) etag: String,
}

impl Head {
    /// Whether listings show it.
    pub(crate) fn is_visible(&self) -> bool {
        self.kind == kind::INSTANCE
            && (self.started || (self.is_legacy() && !self.orchestration_name.is_empty()))
    }

    /// Whether the public crate wrote it.
    pub(crate) fn is_legacy(&self) -> bool {
        self.format_version == 0
    }

    /// Whether the workflow has ended for good.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "Completed" | "Failed")
    }

    /// Whether somebody holds the lock.
    pub(crate) fn is_locked(&self, now_ms: u64) -> bool {
        self.lock_token.is_some() && self.locked_until.is_some_and(|until| until > now_ms)
    }

    /// Attempts of a message so far.
    pub(crate) fn attempts_of(&self, id: &str) -> u32 {
        let held = self.batch.iter().find(|held| held.id == id).map(|held| held.attempts);
        held.or_else(|| self.attempts.get(id).copied()).unwrap_or(0)
    }
}

/// A message that a lock holds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Held {
    pub(crate) id: String,
    #[serde(rename = "n")]
    pub(crate) attempts: u32,
}

/// One key-value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cell {
    #[serde(rename = "s")]
    pub(crate) stored: Option<Stored>,
    #[serde(rename = "d")]
    pub(crate) changed: Option<Stored>,
}

/// A value, here or in a document of its own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Stored {
    #[serde(rename = "r")]
    pub(crate) document: Option<String>,
}

/// A message for an instance, or an activity for a worker.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Queued {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) work_item: String,
    pub(crate) visible_at: u64,
    pub(crate) enqueued_at: u64,
    pub(crate) lock_token: Option<String>,
    pub(crate) locked_until: Option<u64>,
    pub(crate) attempt_count: u32,
    /// The public crate named it as history does.
    #[serde(rename = "execution", alias = "executionId")]
    pub(crate) execution_id: Option<u64>,
    pub(crate) activity_id: Option<u64>,
    pub(crate) session_id: Option<String>,
    pub(crate) tag: Option<String>,
}

impl Queued {
    /// Whether a worker holds it.
    pub(crate) fn is_locked(&self, now_ms: u64) -> bool {
        self.lock_token.is_some() && self.locked_until.is_some_and(|until| until > now_ms)
    }

    /// Since when it waits: a timer since it is due, everything else since it was sent, however often it was put back.
    pub(crate) fn waits_since(&self) -> u64 {
        let (variant, fields) = self.item();
        match fields.get("fire_at_ms").and_then(Value::as_u64) {
            Some(due) if variant == "TimerFired" => due.max(self.enqueued_at),
            _ if self.enqueued_at > 0 => self.enqueued_at,
            _ => self.visible_at,
        }
    }

    /// The work item's variant and fields; texts too large for the document are not here.
    pub(crate) fn item(&self) -> (String, Value) {
        let value: Value = serde_json::from_str(&self.work_item).unwrap_or_default();
        match value {
            Value::Object(fields) => fields.into_iter().next().unwrap_or_default(),
            _ => (String::new(), Value::Null),
        }
    }

    /// What it is, in words.
    pub(crate) fn describe(&self) -> String {
        let (variant, fields) = self.item();
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or_default();
        match variant.as_str() {
            "StartOrchestration" => format!("start of {}", text("orchestration")),
            "ContinueAsNew" => format!("next execution of {}", text("orchestration")),
            "ActivityExecute" => format!("activity {}", text("name")),
            "ActivityCompleted" => format!("result of activity #{}", number("id")),
            "ActivityFailed" => format!("failure of activity #{}", number("id")),
            "TimerFired" => format!("timer #{}", number("id")),
            "ExternalRaised" => format!("event {:?}", text("name")),
            "QueueMessage" => format!("queue message {:?}", text("name")),
            "SubOrchCompleted" => format!("result of sub-orchestration #{}", number("parent_id")),
            "SubOrchFailed" => format!("failure of sub-orchestration #{}", number("parent_id")),
            "CancelInstance" => "cancel request".to_owned(),
            "" => "something too large to look into".to_owned(),
            other => other.to_owned(),
        }
    }
}

/// A message on its way to another instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Intent {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    pub(crate) target_instance_id: String,
    pub(crate) created_at: u64,
    pub(crate) attempt_count: u32,
}

/// A message that can never be delivered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeadLetter {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    pub(crate) target_instance_id: String,
    pub(crate) document: Value,
    pub(crate) reason: String,
    pub(crate) died_at: u64,
}

impl DeadLetter {
    /// What the message is, in words.
    pub(crate) fn describe(&self) -> String {
        serde_json::from_value::<Queued>(self.document.clone()).unwrap_or_default().describe()
    }
}

/// The unfinished half of a large commit.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Manifest {
    pub(crate) id: String,
    pub(crate) commit: String,
    pub(crate) committed: bool,
}

/// Everything in one partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Partition {
    documents: Vec<Value>,
}

impl Partition {
    /// From its documents.
    pub(crate) fn new(documents: Vec<Value>) -> Self {
        Self { documents }
    }

    /// Whether nothing is there, marks of consumed messages aside.
    pub(crate) fn is_empty(&self) -> bool {
        self.documents.iter().all(|document| type_of(document) == "tombstone")
    }

    /// All documents.
    pub(crate) fn documents(&self) -> &[Value] {
        &self.documents
    }

    /// The head, if there is one.
    pub(crate) fn head(&self) -> Option<Head> {
        let head = self.of(kind::INSTANCE).into_iter().next();
        head.or_else(|| self.of(kind::DELETING).into_iter().next())
    }

    /// The documents of a type, as far as they can be read.
    pub(crate) fn of<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let documents = self.documents.iter().filter(|document| type_of(document) == kind);
        documents.filter_map(legible).collect()
    }

    /// What the provider cannot read, and why: the document's id, its type and the reason.
    pub(crate) fn unreadable(&self) -> Vec<(String, String, String)> {
        let reason = |document: &Value| {
            let why = duroxide_cdb::unreadable(document.to_string().as_bytes())?;
            Some((text_of(document, "id").to_owned(), type_of(document).to_owned(), why))
        };
        self.documents.iter().filter_map(reason).collect()
    }
}

/// A document as far as it can be read: a field that is malformed is as if it were not there. None if not even that
/// makes sense.
pub(crate) fn legible<T: DeserializeOwned>(document: &Value) -> Option<T> {
    if let Ok(read) = T::deserialize(document) {
        return Some(read);
    }
    let is_sound = |name: &String, value: &Value| T::deserialize(&json!({ name: value })).is_ok();
    let sound = document.as_object()?.iter().filter(|(name, value)| is_sound(name, value));
    let sound: Map<String, Value> = sound.map(|(name, value)| (name.clone(), value.clone())).collect();
    serde_json::from_value(Value::Object(sound)).ok()
}

/// What a document is.
pub(crate) fn type_of(document: &Value) -> &str {
    text_of(document, "type")
}

/// A text property, or nothing.
pub(crate) fn text_of<'a>(document: &'a Value, name: &str) -> &'a str {
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
    fn messages_are_told_in_words() {
        let queued = |item: Value| Queued { work_item: item.to_string(), ..Queued::default() };
        let start =
            queued(json!({"StartOrchestration": {"instance": "a", "orchestration": "Bake", "input": ""}}));
        assert_eq!(start.describe(), "start of Bake");
        let raised = queued(json!({"ExternalRaised": {"instance": "a", "name": "yes", "data": ""}}));
        assert_eq!(raised.describe(), "event \"yes\"");
        assert_eq!(Queued::default().describe(), "something too large to look into");
    }

    #[test]
    fn documents_of_the_public_crate_are_read() {
        let document = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "orchestrationName": "Hello",
            "status": "Running", "parentInstanceId": null, "lockToken": null, "_etag": "e"});
        let head = Partition::new(vec![document]).head().unwrap();
        assert!(head.is_visible() && head.is_legacy() && !head.is_locked(1));
    }
}
