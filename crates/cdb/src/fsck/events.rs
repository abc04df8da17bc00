//! Events of an execution from raw documents.

use std::collections::BTreeMap;

use duroxide::Event;
use serde::Deserialize;
use serde_json::Value;

use crate::model::{Partition, kind, text_of};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HistoryDocument {
    execution_id: u64,
    event_id: u64,
    events: Vec<String>,
    event_count: u64,
    packed: Option<String>,
    packed_bytes: u64,
    event_data: Option<String>,
    chunks: Option<ChunkRef>,
}

/// Where the pieces of a large text are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChunkRef {
    pub(super) commit: String,
    pub(super) first: u64,
    pub(super) count: u64,
    bytes: u64,
    packed: bool,
}

impl ChunkRef {
    /// The ids of the pieces.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> + '_ {
        (self.first..self.first.saturating_add(self.count))
            .map(|index| format!("chunk:{}:{index}", self.commit))
    }
}

/// The texts of all events by execution, those in documents and after them those in the head, or what is missing of them.
pub(crate) fn texts(partition: &Partition) -> Result<BTreeMap<u64, Vec<String>>, String> {
    let chunks: BTreeMap<&str, &str> = partition
        .documents()
        .iter()
        .filter(|document| text_of(document, "type") == kind::CHUNK)
        .map(|document| (text_of(document, "id"), text_of(document, "data")))
        .collect();
    let mut documents: Vec<HistoryDocument> = partition.of(kind::HISTORY);
    documents.sort_by_key(|document| (document.execution_id, document.event_id));
    let mut executions: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for document in documents {
        let texts = executions.entry(document.execution_id).or_default();
        if let Some(reference) = &document.chunks {
            let mut text = String::new();
            for id in reference.ids() {
                text.push_str(
                    chunks
                        .get(id.as_str())
                        .ok_or_else(|| format!("the piece {id} of an event is missing"))?,
                );
            }
            if reference.packed {
                let id = &reference.commit;
                text = duroxide_cdb::unpack(&text, reference.bytes)
                    .ok_or_else(|| format!("the pieces of {id} do not fit together"))?;
            }
            texts.push(text);
        } else if let Some(packed) = &document.packed {
            let whole = duroxide_cdb::unpack_events(packed, document.packed_bytes)
                .ok_or_else(|| format!("{} events cannot be decompressed", document.event_count))?;
            texts.extend(whole);
        } else if let Some(text) = document.event_data {
            texts.push(text);
        } else {
            texts.extend(document.events);
        }
    }
    if let Some(head) = partition.head().filter(|head| !head.events.is_empty()) {
        executions.entry(head.current_execution_id).or_default().extend(head.events);
    }
    Ok(executions)
}

/// The events in the texts of one execution.
pub(crate) fn decode(execution: u64, texts: &[String]) -> Result<Vec<Event>, String> {
    let events = texts.iter().map(|text| serde_json::from_str::<Event>(text));
    events
        .collect::<Result<Vec<Event>, _>>()
        .map_err(|error| format!("an event of execution {execution} cannot be decoded: {error}"))
}

/// References to pieces of large texts.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) readable: Vec<ChunkRef>,
    /// The commits of those that are damaged; an empty text if not even that can be read.
    pub(super) unreadable: Vec<String>,
}

/// All references to pieces of large texts that are anywhere in a value.
pub(super) fn chunk_references(value: &Value, found: &mut References) {
    match value {
        Value::Object(fields) => {
            let is_reference = ["commit", "first", "count"].iter().all(|name| fields.contains_key(*name));
            if is_reference {
                match serde_json::from_value(value.clone()) {
                    Ok(reference) => found.readable.push(reference),
                    Err(_) => found.unreadable.push(text_of(value, "commit").to_owned()),
                }
            }
            for field in fields.values() {
                chunk_references(field, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                chunk_references(item, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
