//! Whether a stored document can be read, asked by those who check what is stored.

use duroxide::providers::WorkItem;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{
    Bell, Chunk, ChunkRef, DeadLetter, Deletion, ExecutionRecord, Head, HistoryDocument, Intent, LegacyValue,
    Manifest, Member, Message, Session, SlotTable, Staged, Tombstone, ValueDocument, WorkDocument, decode,
    kind,
};

/// Why the provider cannot read a stored document, in the words of an error; `None` if it can, or if the document is of
/// a type that is not the provider's.
///
/// It is read as the provider reads it, with the events, messages and references that are in it. Pieces of large texts
/// are documents of their own.
#[must_use]
pub fn unreadable(document: &[u8]) -> Option<String> {
    check(document).err()
}

fn check(document: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "type")]
        kind: String,
    }
    let Envelope { kind } = read(document)?;
    match kind.as_str() {
        kind::INSTANCE | kind::DELETING => head(&read(document)?),
        kind::EXECUTION => read::<ExecutionRecord>(document).and_then(|record| pieces(&record.chunks)),
        kind::HISTORY => history(read(document)?),
        kind::MESSAGE => {
            let message: Message = read(document)?;
            item(&message.work_item, &message.chunks)
        }
        kind::WORK => {
            let work: WorkDocument = read(document)?;
            item(&work.work_item, &work.chunks)
        }
        kind::INTENT => {
            let intent: Intent = read(document)?;
            intent.target_document()?;
            pieces(&intent.chunks)
        }
        kind::MANIFEST => read::<Manifest>(document)?.drops.iter().try_for_each(reference),
        kind::STAGED => read::<Staged>(document)?.documents.iter().try_for_each(|held| {
            check(held.get().as_bytes()).map_err(|why| format!("a document in it: {why}"))
        }),
        kind::VALUE => read::<ValueDocument>(document).and_then(|value| pieces(&value.chunks)),
        kind::CHUNK => read::<Chunk>(document).map(drop),
        kind::TOMBSTONE => read::<Tombstone>(document).map(drop),
        kind::SESSION => read::<Session>(document).map(drop),
        kind::DEAD_LETTER => read::<DeadLetter>(document).and_then(|letter| pieces(&letter.chunks)),
        kind::DELETION => read::<Deletion>(document).map(drop),
        kind::MEMBER => read::<Member>(document).map(drop),
        kind::SLOT_TABLE => read::<SlotTable>(document).map(drop),
        kind::BELL => read::<Bell>(document).map(drop),
        kind::LEGACY_KV | kind::LEGACY_KV_DELTA => read::<LegacyValue>(document).map(drop),
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(document: &[u8]) -> Result<T, String> {
    serde_json::from_slice(document).map_err(|error| error.to_string())
}

fn head(head: &Head) -> Result<(), String> {
    head.batch.iter().try_for_each(|held| pieces(&held.chunks))?;
    pieces(&head.custom_status_pieces)?;
    decode(&head.events).map_err(|why| format!("of the events in it, {why}"))?;
    let values = head.kv.values().flat_map(|cell| [&cell.stored, &cell.changed]).flatten();
    values.into_iter().try_for_each(|stored| pieces(&stored.pieces))
}

fn history(document: HistoryDocument) -> Result<(), String> {
    pieces(&document.chunks)?;
    if document.chunks.is_some() {
        return Ok(());
    }
    let first = document.event_id;
    let events = decode(&document.into_texts()?);
    events.map(drop).map_err(|why| format!("of the events from {first} on, {why}"))
}

fn item(text: &str, chunks: &Option<ChunkRef>) -> Result<(), String> {
    pieces(chunks)?;
    if chunks.is_some() {
        return Ok(());
    }
    let item = serde_json::from_str::<WorkItem>(text);
    item.map(drop).map_err(|error| format!("what is to be done cannot be decoded: {error}"))
}

fn pieces(chunks: &Option<ChunkRef>) -> Result<(), String> {
    chunks.as_ref().map_or(Ok(()), reference)
}

fn reference(chunks: &ChunkRef) -> Result<(), String> {
    let absurdity = chunks.absurdity();
    absurdity.map_or(Ok(()), |why| Err(format!("a reference to a large text cannot be right: {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn why(document: &Value) -> Option<String> {
        unreadable(document.to_string().as_bytes())
    }

    #[test]
    fn a_sound_document_is_readable_and_a_foreign_one_is_nobodys_business() {
        let head = serde_json::to_value(Head::unstarted("a", 1)).unwrap();
        assert_eq!(why(&head), None);
        assert_eq!(why(&json!({ "type": "somebody else's", "createdAt": -1 })), None);
    }

    #[test]
    fn what_is_malformed_is_named() {
        let mut head = serde_json::to_value(Head::unstarted("a", 1)).unwrap();
        head["createdAt"] = json!(-1);
        assert!(why(&head).is_some_and(|why| why.contains("-1")));
        (head["createdAt"], head["events"]) = (json!(1), json!(["{}"]));
        assert!(why(&head).is_some_and(|why| why.contains("events in it")));
        let message = json!({ "id": "m", "instanceId": "a", "type": "orch_queue", "workItem": "{}",
            "visibleAt": 1, "enqueuedAt": 1 });
        assert!(why(&message).is_some_and(|why| why.contains("to be done")));
        let value = json!({ "id": "v", "instanceId": "a", "type": "value", "value": "",
            "chunks": { "commit": "c", "first": 0, "count": 4_000_000_000_u32, "bytes": 1 } });
        assert!(why(&value).is_some_and(|why| why.contains("pieces")));
        let history = json!({ "id": "h", "instanceId": "a", "type": "history", "executionId": 1, "eventId": 7,
            "packed": "?", "packedBytes": 1_u64 << 52, "eventCount": 1_u64 << 52 });
        assert!(why(&history).is_some_and(|why| why.contains("from 7 on")));
        let staged = json!({ "id": "s", "instanceId": "a", "type": "staged", "documents": [history] });
        assert!(why(&staged).is_some_and(|why| why.contains("a document in it")));
        assert!(why(&json!({ "type": 5 })).is_some());
        assert!(unreadable(b"\xff").is_some());
    }
}
