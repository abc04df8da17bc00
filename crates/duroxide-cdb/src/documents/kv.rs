//! Key-values of an instance: what the execution began with, and what it changed since.
//!
//! Both live in one cell per key in the head. A value too large for the head is a document of its own that the cell
//! points to; it never changes, so settling an execution moves pointers and rewrites nothing.

use std::collections::{BTreeMap, HashMap};

use duroxide::providers::KvEntry;
use duroxide::{Event, EventKind};
use serde::{Deserialize, Serialize};

use super::value::ChunkRef;

/// One key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// The value at the start of the execution.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub(crate) stored: Option<Stored>,
    /// The value the execution has set since.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub(crate) changed: Option<Stored>,
    /// The execution has cleared the key since.
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) cleared: bool,
}

/// A value, here or in a document of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stored {
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub(crate) inline: Option<String>,
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<String>,
    /// The pieces of the text of that document, if it has any: they go with it.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub(crate) pieces: Option<ChunkRef>,
    #[serde(rename = "b")]
    pub(crate) bytes: u64,
    #[serde(rename = "t")]
    pub(crate) updated_at: u64,
}

impl Stored {
    /// A value in the cell itself.
    pub(crate) fn inline(value: &str, updated_at: u64) -> Self {
        let bytes = value.len() as u64;
        Self { inline: Some(value.to_owned()), document: None, pieces: None, bytes, updated_at }
    }
}

/// A key as the public crate kept it, one document each: what it began with, or what it has changed to since.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LegacyValue {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) value: Option<String>,
    #[serde(default)]
    pub(crate) last_updated_at_ms: u64,
}

/// The keys of an instance.
pub(crate) type Pairs = BTreeMap<String, Cell>;

/// One change of the key-values, as an event records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KvChange<'a> {
    /// A key gets a value.
    Set { key: &'a str, value: &'a str, updated_at: u64 },
    /// A key loses its value.
    Clear { key: &'a str },
    /// Every key loses its value.
    ClearAll,
}

impl<'a> KvChange<'a> {
    /// The change an event records, if it records one.
    pub(crate) fn of(event: &'a Event) -> Option<Self> {
        match &event.kind {
            EventKind::KeyValueSet { key, value, last_updated_at_ms } => {
                Some(Self::Set { key, value, updated_at: *last_updated_at_ms })
            }
            EventKind::KeyValueCleared { key } => Some(Self::Clear { key }),
            EventKind::KeyValuesCleared => Some(Self::ClearAll),
            _ => None,
        }
    }
}

/// Applies one change. `store` turns a text into a value here or elsewhere; values that nothing points to any more
/// are added to `dropped`.
pub(crate) fn apply(
    pairs: &mut Pairs,
    change: &KvChange<'_>,
    store: &mut dyn FnMut(&str, u64) -> Stored,
    dropped: &mut Vec<String>,
) {
    match change {
        KvChange::Set { key, value, updated_at } => {
            let cell = pairs.entry((*key).to_owned()).or_default();
            drop_document(cell.changed.take(), dropped);
            cell.changed = Some(store(value, *updated_at));
            cell.cleared = false;
        }
        KvChange::Clear { key } => {
            if let Some(cell) = pairs.get_mut(*key) {
                clear(cell, dropped);
            }
            remove_empty(pairs);
        }
        KvChange::ClearAll => {
            for cell in pairs.values_mut() {
                clear(cell, dropped);
            }
            remove_empty(pairs);
        }
    }
}

/// Decides where values are from now on that another layout kept in documents: the small ones in the head, as far as it
/// has room for them; the others stay in their documents.
pub(crate) fn take_in(pairs: &mut Pairs) {
    let mut room = HEAD_VALUES_BYTES_MAX;
    let values = pairs.values_mut().flat_map(|cell| [&mut cell.stored, &mut cell.changed]).flatten();
    for stored in values.filter(|stored| stored.document.is_some()) {
        let bytes = stored.inline.as_ref().map_or(0, String::len);
        if bytes <= HEAD_VALUE_BYTES_MAX.min(room) {
            room -= bytes;
            stored.document = None;
        } else {
            stored.inline = None;
        }
    }
}

/// Whether a value is in the document given.
pub(crate) fn points_to(pairs: &Pairs, id: &str) -> bool {
    let values = pairs.values().flat_map(|cell| [&cell.stored, &cell.changed]).flatten();
    values.filter_map(|stored| stored.document.as_deref()).any(|document| document == id)
}

/// Ends an execution: what it changed becomes what the next one begins with.
pub(crate) fn settle(pairs: &mut Pairs, dropped: &mut Vec<String>) {
    for cell in pairs.values_mut() {
        if let Some(changed) = cell.changed.take().filter(|_| !cosmos_wire::mutant!(24)) {
            drop_document(cell.stored.replace(changed), dropped);
        } else if cell.cleared {
            drop_document(cell.stored.take(), dropped);
        }
        cell.cleared = false;
    }
    remove_empty(pairs);
}

/// The value a client sees: the change if there is one, else what the execution began with.
pub(crate) fn merged(cell: &Cell) -> Option<&Stored> {
    if cell.cleared { None } else { cell.changed.as_ref().or(cell.stored.as_ref()) }
}

/// A value that the head points to and that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingValue {
    pub(crate) key: String,
    pub(crate) document: String,
}

/// What the execution began with, for replay.
pub(crate) fn snapshot(
    pairs: &Pairs,
    values: &HashMap<String, String>,
) -> Result<HashMap<String, KvEntry>, MissingValue> {
    let mut entries = HashMap::with_capacity(pairs.len());
    for (key, cell) in pairs {
        let Some(stored) = &cell.stored else { continue };
        let value = match (&stored.inline, &stored.document) {
            (Some(value), _) => value.clone(),
            (None, Some(id)) => {
                let missing = || MissingValue { key: key.clone(), document: id.clone() };
                values.get(id).cloned().ok_or_else(missing)?
            }
            (None, None) => String::new(),
        };
        entries.insert(key.clone(), KvEntry { value, last_updated_at_ms: stored.updated_at });
    }
    Ok(entries)
}

fn clear(cell: &mut Cell, dropped: &mut Vec<String>) {
    drop_document(cell.changed.take(), dropped);
    cell.cleared = cell.stored.is_some();
}

fn remove_empty(pairs: &mut Pairs) {
    pairs.retain(|_, cell| cell.stored.is_some() || cell.changed.is_some());
}

fn drop_document(stored: Option<Stored>, dropped: &mut Vec<String>) {
    let Some(Stored { document: Some(document), pieces, .. }) = stored else { return };
    dropped.push(document);
    dropped.extend(pieces.iter().flat_map(ChunkRef::ids));
}

/// Each lock and renewal rewrites the head, so it stays light.
pub(crate) const HEAD_VALUE_BYTES_MAX: usize = 2 << 10;
pub(crate) const HEAD_VALUES_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_takes_in_small_values_while_it_has_room_and_points_to_the_others() {
        let kept = |bytes: usize| Stored {
            document: Some("elsewhere".to_owned()),
            ..Stored::inline(&"x".repeat(bytes), 1)
        };
        let cell = |bytes: usize| Cell { stored: Some(kept(bytes)), ..Cell::default() };
        let mut pairs: Pairs = (0..20).map(|n| (format!("{n:02}"), cell(1 << 10))).collect();
        pairs.insert("00".to_owned(), cell(3 << 10));
        take_in(&mut pairs);
        let inline = |pairs: &Pairs, key: &str| pairs[key].stored.as_ref().unwrap().inline.is_some();
        assert!(!inline(&pairs, "00"), "too large");
        assert!(inline(&pairs, "01") && inline(&pairs, "16"));
        assert!(!inline(&pairs, "17"), "no room is left");
        assert!(points_to(&pairs, "elsewhere") && !points_to(&pairs, "nowhere"));
    }

    fn set(pairs: &mut Pairs, key: &str, value: &str) {
        let change = KvChange::Set { key, value, updated_at: 7 };
        apply(pairs, &change, &mut Stored::inline, &mut Vec::new());
    }

    fn view(pairs: &Pairs) -> Vec<(&str, Option<&str>)> {
        pairs
            .iter()
            .map(|(key, cell)| (key.as_str(), merged(cell).and_then(|stored| stored.inline.as_deref())))
            .collect()
    }

    #[test]
    fn a_change_is_seen_by_clients_at_once_and_by_replay_in_the_next_execution() {
        let mut pairs = Pairs::new();
        set(&mut pairs, "a", "1");
        assert_eq!(view(&pairs), [("a", Some("1"))]);
        assert!(snapshot(&pairs, &HashMap::new()).unwrap().is_empty());
        settle(&mut pairs, &mut Vec::new());
        assert_eq!(snapshot(&pairs, &HashMap::new()).unwrap()["a"].value, "1");
        set(&mut pairs, "a", "2");
        assert_eq!(view(&pairs), [("a", Some("2"))]);
        assert_eq!(snapshot(&pairs, &HashMap::new()).unwrap()["a"].value, "1");
    }

    #[test]
    fn a_cleared_key_hides_the_stored_value_and_goes_when_the_execution_ends() {
        let mut pairs = Pairs::new();
        set(&mut pairs, "a", "1");
        set(&mut pairs, "b", "2");
        settle(&mut pairs, &mut Vec::new());
        apply(&mut pairs, &KvChange::Clear { key: "a" }, &mut Stored::inline, &mut Vec::new());
        assert_eq!(view(&pairs), [("a", None), ("b", Some("2"))]);
        assert_eq!(snapshot(&pairs, &HashMap::new()).unwrap().len(), 2);
        settle(&mut pairs, &mut Vec::new());
        assert_eq!(view(&pairs), [("b", Some("2"))]);
    }

    #[test]
    fn clearing_everything_covers_stored_and_changed_keys() {
        let mut pairs = Pairs::new();
        set(&mut pairs, "a", "1");
        settle(&mut pairs, &mut Vec::new());
        set(&mut pairs, "b", "2");
        apply(&mut pairs, &KvChange::ClearAll, &mut Stored::inline, &mut Vec::new());
        assert_eq!(view(&pairs), [("a", None)]);
        set(&mut pairs, "a", "3");
        assert_eq!(view(&pairs), [("a", Some("3"))]);
    }

    #[test]
    fn replaced_value_documents_are_dropped_once() {
        let mut pairs = Pairs::new();
        let mut count = 0;
        let mut store = |value: &str, updated_at: u64| {
            count += 1;
            Stored {
                inline: None,
                document: Some(format!("v{count}")),
                pieces: None,
                bytes: value.len() as u64,
                updated_at,
            }
        };
        let mut dropped = Vec::new();
        for value in ["1", "2"] {
            apply(&mut pairs, &KvChange::Set { key: "a", value, updated_at: 1 }, &mut store, &mut dropped);
        }
        assert_eq!(dropped, ["v1"]);
        settle(&mut pairs, &mut dropped);
        apply(&mut pairs, &KvChange::Clear { key: "a" }, &mut store, &mut dropped);
        assert_eq!(dropped, ["v1"], "replay still needs the stored value");
        settle(&mut pairs, &mut dropped);
        assert_eq!(dropped, ["v1", "v2"]);
        assert!(pairs.is_empty());
    }
}
