//! An outbox intent: a message for another partition, committed with the turn that sends it.

use duroxide::providers::WorkItem;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::{Message, parent_of};
use super::value::ChunkRef;
use super::{ids, kind};

/// A message that has to reach another partition.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Intent {
    pub(crate) id: String,
    /// The source, in whose partition the intent is.
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) target_instance_id: String,
    /// The document to create in the target's partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<Value>,
    /// The same as text, as the public crate wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    /// The pieces of the document's work item, in the source's partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    #[serde(default)]
    pub(crate) created_at: u64,
    #[serde(default)]
    pub(crate) attempt_count: u32,
    #[serde(default)]
    pub(crate) sweep_at: u64,
    /// The version that was written or listed. The next life of the source uses the same ids, so only this one is
    /// removed.
    #[serde(rename = "_etag", default, skip_serializing)]
    pub(crate) etag: Option<String>,
}

impl Intent {
    /// An intent to create `document`, which gets the id that all deliveries of this intent share.
    pub(crate) fn new(
        source: &str,
        incarnation: &str,
        id: String,
        target: &str,
        mut document: Value,
        now: u64,
    ) -> Self {
        let chunks = document.as_object_mut().and_then(|fields| {
            fields.insert("id".to_owned(), ids::delivery(source, incarnation, &id).into());
            fields.insert("delivered".to_owned(), true.into());
            fields.remove("chunks")
        });
        Self {
            id,
            instance_id: source.to_owned(),
            kind: kind::INTENT.to_owned(),
            target_instance_id: target.to_owned(),
            document: Some(document),
            payload: None,
            chunks: chunks.and_then(|chunks| serde_json::from_value(chunks).ok()),
            created_at: now,
            attempt_count: 0,
            sweep_at: now,
            etag: None,
        }
    }

    /// The document to create, from either form.
    pub(crate) fn target_document(&self) -> Result<Value, String> {
        if let Some(document) = &self.document {
            if !document.is_object() {
                return Err("what the intent holds is not a document".to_owned());
            }
            let mut document = document.clone();
            name_parent(&mut document, None);
            return Ok(document);
        }
        let text = self.payload.as_deref().ok_or("the intent has no document")?;
        let mut document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let fields = document.as_object_mut().ok_or("the intent's payload is not a document")?;
        // The public crate chose a random id when it wrote the intent: it is already the same for every delivery.
        if !fields.contains_key("id") {
            fields.insert("id".to_owned(), ids::delivery(&self.instance_id, "", &self.id).into());
        }
        fields.insert("delivered".to_owned(), true.into());
        name_parent(&mut document, None);
        Ok(document)
    }
}

/// In the place of a document to create: a work item to remove from the target's partition.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cancellation {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) work_id: String,
}

impl Cancellation {
    /// The cancellation of an activity.
    pub(crate) fn of(execution: u64, activity: u64) -> Self {
        Self { kind: CANCELLATION.to_owned(), work_id: ids::work(execution, activity) }
    }

    /// What a document says, if it is a cancellation.
    pub(crate) fn in_document(document: &Value) -> Option<Self> {
        Self::deserialize(document).ok().filter(|cancellation| cancellation.kind == CANCELLATION)
    }
}

/// Notes whose child a document starts, as neither the public crate nor earlier versions of this one did. `text` is its
/// work item, if that is in pieces and not in the document.
pub(crate) fn name_parent(document: &mut Value, text: Option<&str>) {
    let Some(fields) = document.as_object_mut() else { return };
    let Some(text) = text.or_else(|| fields.get("workItem").and_then(Value::as_str)) else { return };
    if fields.contains_key("parentInstanceId") || !text.starts_with(r#"{"StartOrchestration""#) {
        return;
    }
    let item = serde_json::from_str::<WorkItem>(text).ok();
    let parent = item.as_ref().and_then(parent_of).map(Value::from);
    fields.extend(parent.map(|parent| ("parentInstanceId".to_owned(), parent)));
}

/// A message that can never be delivered, kept with the reason.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeadLetter {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) target_instance_id: String,
    /// The document that was to be created; null if the intent held none.
    pub(crate) document: Value,
    /// The pieces of its work item, in the source's partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    pub(crate) reason: String,
    pub(crate) died_at: u64,
}

impl DeadLetter {
    /// What becomes of an intent that can never be delivered.
    pub(crate) fn of(intent: &Intent, reason: String, now: u64) -> Self {
        Self {
            id: ids::dead_letter(&intent.id),
            instance_id: intent.instance_id.clone(),
            kind: kind::DEAD_LETTER.to_owned(),
            target_instance_id: intent.target_instance_id.clone(),
            document: intent.target_document().unwrap_or_default(),
            chunks: intent.chunks.clone(),
            reason,
            died_at: now,
        }
    }

    /// What becomes of a message whose instance never began. Sent again it has another id: the old one is its tombstone's.
    pub(crate) fn of_message(message: &Message, reason: String, now: u64) -> Result<Self, serde_json::Error> {
        let again = Message { id: ids::message(), parked_at: 0, chunks: None, ..message.clone() };
        Ok(Self {
            // The message's own id is its tombstone's, so the intent that it becomes when it is sent again needs another.
            id: ids::dead_letter(&ids::early_intent(&message.id)),
            instance_id: message.instance_id.clone(),
            kind: kind::DEAD_LETTER.to_owned(),
            target_instance_id: message.instance_id.clone(),
            document: serde_json::to_value(again)?,
            chunks: message.chunks.clone(),
            reason,
            died_at: now,
        })
    }

    /// The intent it was, to be tried again. The document keeps its id, so it still arrives once at most. It is as if it
    /// had been sent now: what waits for a start waits anew.
    pub(crate) fn revived(&self, now: u64) -> Option<Intent> {
        let mut document = self.document.clone();
        if let Some(enqueued_at) = document.get_mut("enqueuedAt") {
            *enqueued_at = now.into();
        }
        self.document.is_object().then(|| Intent {
            id: ids::revived(&self.id),
            instance_id: self.instance_id.clone(),
            kind: kind::INTENT.to_owned(),
            target_instance_id: self.target_instance_id.clone(),
            document: Some(document),
            payload: None,
            chunks: self.chunks.clone(),
            created_at: now,
            attempt_count: 0,
            sweep_at: now,
            etag: None,
        })
    }
}

const CANCELLATION: &str = "cancellation";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_delivery_of_an_intent_makes_the_same_document() {
        let document = serde_json::json!({ "id": "message:x", "workItem": "w" });
        let intent = Intent::new("a", "life", "intent:3:0".to_owned(), "b", document, 5);
        let first = intent.target_document().unwrap();
        assert_eq!(first, intent.target_document().unwrap());
        assert_eq!(first["id"], ids::delivery("a", "life", "intent:3:0"));
        assert_eq!(first["delivered"], true);
    }

    #[test]
    fn what_is_not_a_document_is_not_delivered() {
        for document in [Value::Null, 5.into(), "text".into(), serde_json::json!([{ "id": "u" }])] {
            let intent = Intent::new("a", "life", "intent:3:0".to_owned(), "b", document, 5);
            assert!(intent.target_document().is_err(), "{intent:?}");
            let text = intent.document.as_ref().map(ToString::to_string);
            assert!(Intent { document: None, payload: text, ..intent }.target_document().is_err());
        }
    }

    #[test]
    fn the_public_crates_intents_are_read() {
        let text = r#"{"id":"intent:a:1:0","instanceId":"a","type":"outbox_intent","targetInstanceId":"b",
            "targetDocumentType":"orch_queue","payload":"{\"id\":\"u\",\"workItem\":\"w\"}",
            "idempotencyKey":"a:1:0","status":"pending","createdAt":1,"attemptCount":0,"lastAttemptAt":null}"#;
        let intent: Intent = serde_json::from_str(text).unwrap();
        assert_eq!(intent.target_document().unwrap()["id"], "u");
        assert_eq!(intent.sweep_at, 0);
    }

    #[test]
    fn whoever_wrote_an_intent_its_document_names_the_parent_of_the_child_it_starts() {
        let start = |parent: Option<&str>| {
            let item = WorkItem::StartOrchestration {
                instance: "b".into(),
                orchestration: "o".into(),
                input: String::new(),
                version: None,
                parent_instance: parent.map(ToOwned::to_owned),
                parent_id: Some(2),
                parent_execution_id: Some(1),
                execution_id: 1,
            };
            serde_json::json!({ "id": "u", "workItem": serde_json::to_string(&item).unwrap() })
        };
        let ours = |document| Intent::new("a", "life", "intent:3:0".to_owned(), "b", document, 5);
        let theirs = |document: Value| Intent {
            document: None,
            payload: Some(document.to_string()),
            ..ours(Value::Null)
        };
        for (parent, expected) in [(Some("a"), "a".into()), (None, Value::Null)] {
            for intent in [ours(start(parent)), theirs(start(parent))] {
                assert_eq!(intent.target_document().unwrap()["parentInstanceId"], expected, "{intent:?}");
            }
        }
    }

    #[test]
    fn an_intent_knows_the_version_it_was_read_as_and_does_not_store_it() {
        let text = r#"{"id":"intent:1:0","instanceId":"a","type":"outbox_intent","targetInstanceId":"b",
            "document":{"id":"u"},"_etag":"e"}"#;
        let intent: Intent = serde_json::from_str(text).unwrap();
        assert_eq!(intent.etag.as_deref(), Some("e"));
        assert!(serde_json::to_value(&intent).unwrap().get("_etag").is_none());
    }
}
