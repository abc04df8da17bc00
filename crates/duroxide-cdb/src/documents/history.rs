//! History: the youngest events in the head while they are small, the others in documents of some turns each.
//!
//! Each event's JSON text is kept byte for byte. Appending writes new documents and never decodes old ones. The
//! public crate's documents (one event each, in `eventData`) are read beside them.

use duroxide::Event;
use serde::{Deserialize, Serialize};

use super::head::Head;
use super::packed::{pack as pack_text, unpack_within};
use super::value::{ChunkRef, Chunks, INLINE_BYTES_MAX, escaped_len};
use super::{ids, kind};

/// Some events of one execution, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryDocument {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) execution_id: u64,
    /// The first event in the document.
    pub(crate) event_id: u64,
    #[serde(default)]
    pub(crate) turn: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<String>,
    /// The events as a JSON array, compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) packed: Option<String>,
    /// How long that array is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) packed_bytes: Option<u64>,
    /// How many events the document holds, for counting without reading them.
    #[serde(default)]
    pub(crate) event_count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
    /// One event, as the public crate wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) event_data: Option<String>,
}

impl HistoryDocument {
    /// The texts of the events that are in the document itself, or why they are lost.
    pub(crate) fn into_texts(self) -> Result<Vec<String>, String> {
        if let Some(text) = self.event_data {
            return Ok(vec![text]);
        }
        let Some(packed) = self.packed else { return Ok(self.events) };
        let texts = unpack_events(&packed, self.packed_bytes.unwrap_or(0));
        texts.ok_or_else(|| format!("the events from {} on cannot be decompressed", self.event_id))
    }

    /// Compresses the events if that makes the document enough smaller.
    fn compress(&mut self) {
        let array = serde_json::to_string(&self.events).unwrap_or_default();
        if let Some(packed) = pack_text(&array) {
            (self.packed, self.packed_bytes) = (Some(packed), Some(array.len() as u64));
            self.events.clear();
        }
    }
}

/// The texts of the events that the provider stored compressed in one document; `None` if they cannot be read.
#[must_use]
pub fn unpack_events(packed: &str, bytes: u64) -> Option<Vec<String>> {
    serde_json::from_str(&unpack_within(ARRAY_BYTES_MAX, packed, bytes)?).ok()
}

impl Head {
    /// Appends events to the current execution. While those in the head and these are small together, they are kept in the
    /// head; else all of them move into the documents that are returned.
    pub(crate) fn append(&mut self, events: &[(u64, String)], chunks: &mut Chunks) -> Vec<HistoryDocument> {
        let kept: usize = self.events.iter().map(|text| escaped_len(text)).sum();
        let new: usize = events.iter().map(|(_, text)| escaped_len(text)).sum();
        if kept.saturating_add(new) <= HEAD_EVENTS_BYTES_MAX {
            self.events.extend(events.iter().map(|(_, text)| text.clone()));
            return Vec::new();
        }
        let mut all = numbered(std::mem::take(&mut self.events));
        all.extend_from_slice(events);
        pack(&self.instance_id, self.current_execution_id, self.turn, &all, chunks)
    }

    /// Moves the events in the head into documents, because the next execution begins.
    pub(crate) fn move_events_out(&mut self, chunks: &mut Chunks) -> Vec<HistoryDocument> {
        let events = numbered(std::mem::take(&mut self.events));
        pack(&self.instance_id, self.current_execution_id, self.turn, &events, chunks)
    }

    /// The last event of the current execution that is in a document and not in the head.
    pub(crate) fn last_event_in_documents(&self) -> u64 {
        match self.events.first() {
            Some(first) => event_id_of(first).map_or(self.last_event_id, |id| id.saturating_sub(1)),
            None => self.last_event_id,
        }
    }
}

/// Events with their ids. One that cannot be read follows the one before it.
fn numbered(texts: Vec<String>) -> Vec<(u64, String)> {
    let mut last: u64 = 0;
    let number = |text: String| {
        last = event_id_of(&text).unwrap_or_else(|| last.saturating_add(1));
        (last, text)
    };
    texts.into_iter().map(number).collect()
}

fn event_id_of(text: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        event_id: u64,
    }
    serde_json::from_str(text).ok().map(|Numbered { event_id }| event_id)
}

/// Packs events that are in order into as few documents as their size allows.
pub(crate) fn pack(
    instance: &str,
    execution_id: u64,
    turn: u64,
    events: &[(u64, String)],
    chunks: &mut Chunks,
) -> Vec<HistoryDocument> {
    let mut documents: Vec<HistoryDocument> = Vec::new();
    let mut open_bytes = 0;
    for (event_id, text) in events {
        let bytes = escaped_len(text);
        let document = |events: Vec<String>, chunks: Option<ChunkRef>| HistoryDocument {
            id: ids::history(instance, execution_id, *event_id),
            instance_id: instance.to_owned(),
            kind: kind::HISTORY.to_owned(),
            execution_id,
            event_id: *event_id,
            turn,
            events,
            packed: None,
            packed_bytes: None,
            event_count: 1,
            chunks,
            event_data: None,
        };
        if bytes > INLINE_BYTES_MAX {
            documents.push(document(Vec::new(), Some(chunks.split(text))));
            open_bytes = usize::MAX;
        } else if open_bytes.saturating_add(bytes) <= SEGMENT_BYTES_TARGET
            && let Some(open) = documents.last_mut()
        {
            open.events.push(text.clone());
            open.event_count += 1;
            open_bytes += bytes;
        } else {
            documents.push(document(vec![text.clone()], None));
            open_bytes = bytes;
        }
    }
    documents.iter_mut().for_each(HistoryDocument::compress);
    documents
}

/// Decodes the texts of an execution's events.
pub(crate) fn decode(texts: &[String]) -> Result<Vec<Event>, String> {
    texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            serde_json::from_str(text)
                .map_err(|error| format!("event {} cannot be decoded: {error}", index + 1))
        })
        .collect()
}

/// How much of its history a head carries, as it is stored. Every write of the head pays for its bytes, old and new; with
/// more than this that is dearer than a document every few turns.
const HEAD_EVENTS_BYTES_MAX: usize = 3 << 10;
/// A kilobyte of history is cheapest to write in documents of this size.
const SEGMENT_BYTES_TARGET: usize = 32 << 10;
/// The longest array of events in one document: a single event of `INLINE_BYTES_MAX`, or events of
/// `SEGMENT_BYTES_TARGET` together, with quotes and commas. Twice the former is far more than either.
const ARRAY_BYTES_MAX: u64 = 2 * INLINE_BYTES_MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that does not compress.
    fn noise(bytes: usize) -> String {
        let mut state = 7u64;
        let letter = move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'#' + u8::try_from((state >> 33) % 57).unwrap())
        };
        (0..bytes).map(letter).collect()
    }

    #[test]
    fn a_long_turn_is_stored_compressed_and_read_byte_for_byte() {
        let events: Vec<(u64, String)> =
            (1..=200).map(|id| (id, format!("{{\"id\": {id},  \"data\":\"🦀\"}}"))).collect();
        let packed = pack("a", 1, 4, &events, &mut Chunks::new("c"));
        assert_eq!((packed.len(), packed[0].event_count, packed[0].events.len()), (1, 200, 0));
        let stored = serde_json::to_string(&packed[0]).unwrap();
        assert!(stored.len() < 2000, "{} bytes", stored.len());
        let read: HistoryDocument = serde_json::from_str(&stored).unwrap();
        assert!(read.clone().into_texts().unwrap().iter().eq(events.iter().map(|(_, text)| text)));
        let broken = HistoryDocument { packed: Some("?".into()), event_count: 1 << 60, ..read };
        assert!(broken.into_texts().is_err_and(|why| why.contains("events from 1")));
    }

    #[test]
    fn the_longest_events_of_one_document_are_read() {
        let quotes = (INLINE_BYTES_MAX - 10) / 2;
        for events in
            [vec!["\"".repeat(quotes)], vec!["x".repeat(INLINE_BYTES_MAX)], vec!["{}".into(); 16_000]]
        {
            let events: Vec<(u64, String)> = (1..).zip(events).collect();
            let packed = pack("a", 1, 1, &events, &mut Chunks::new("c"));
            assert!(packed[0].packed_bytes.is_some_and(|bytes| bytes <= ARRAY_BYTES_MAX));
            let texts: Vec<String> =
                packed.into_iter().flat_map(|document| document.into_texts().unwrap()).collect();
            assert!(texts.iter().eq(events.iter().map(|(_, text)| text)));
        }
    }

    #[test]
    fn what_no_writer_puts_into_one_document_is_not_unpacked() {
        let array = serde_json::to_string(&["x".repeat(2 * INLINE_BYTES_MAX)]).unwrap();
        let packed = pack_text(&array).unwrap();
        assert_eq!(unpack_events(&packed, array.len() as u64), None);
    }

    #[test]
    fn small_events_share_a_document_and_large_ones_do_not() {
        let text = noise;
        let events: Vec<(u64, String)> = [100, 200, 20_000, 20_000, 2_000_000, 50]
            .iter()
            .zip(1..)
            .map(|(bytes, id)| (id, text(*bytes)))
            .collect();
        let mut chunks = Chunks::new("c");
        let packed = pack("a", 1, 4, &events, &mut chunks);
        let shape: Vec<(u64, usize, bool)> =
            packed.iter().map(|doc| (doc.event_id, doc.events.len(), doc.chunks.is_some())).collect();
        assert_eq!(shape, [(1, 3, false), (4, 1, false), (5, 0, true), (6, 1, false)]);
        assert_eq!(packed.iter().map(|document| document.event_count).sum::<u64>(), 6);
        assert_eq!(packed[0].id, "a:history:1:1");
        assert_eq!(chunks.parts().concat().len(), 2_000_000);
    }

    fn event(id: u64, bytes: usize) -> (u64, String) {
        (id, format!("{{\"event_id\":{id},\"x\":\"{}\"}}", noise(bytes).replace('\\', "~")))
    }

    #[test]
    fn events_stay_in_the_head_while_they_are_small_and_then_move_out_together() {
        let mut head = Head::unstarted("a", 1);
        let mut chunks = Chunks::new("c");
        assert!(head.append(&[event(1, 10), event(2, 10)], &mut chunks).is_empty());
        head.last_event_id = 2;
        assert_eq!((head.events.len(), head.last_event_in_documents()), (2, 0));
        assert!(head.append(&[], &mut chunks).is_empty());
        let documents = head.append(&[event(3, HEAD_EVENTS_BYTES_MAX)], &mut chunks);
        head.last_event_id = 3;
        assert_eq!((head.events.len(), head.last_event_in_documents()), (0, 3));
        let shape: Vec<(&str, u64)> =
            documents.iter().map(|document| (document.id.as_str(), document.event_count)).collect();
        assert_eq!(shape, [("a:history:1:1", 3)]);
        assert!(head.append(&[event(4, 10)], &mut chunks).is_empty(), "the next ones are small again");
        head.last_event_id = 4;
        assert_eq!(head.last_event_in_documents(), 3);
        let moved = head.move_events_out(&mut chunks);
        assert_eq!((moved.len(), moved[0].id.as_str(), head.events.len()), (1, "a:history:1:4", 0));
        assert!(head.move_events_out(&mut chunks).is_empty());
    }

    #[test]
    fn an_event_that_cannot_be_read_moves_out_with_the_others() {
        let mut head = Head::unstarted("a", 1);
        head.events = vec!["?".into(), event(7, 1).1, "?".into()];
        head.last_event_id = 8;
        assert_eq!(head.last_event_in_documents(), 8, "what the head holds does not add up to its count");
        let moved = head.move_events_out(&mut Chunks::new("c"));
        assert_eq!((moved.len(), moved[0].event_count, moved[0].event_id), (1, 3, 1));
    }

    #[test]
    fn the_public_crates_documents_are_read() {
        let text = r#"{"id":"a:history:1:3","instanceId":"a","type":"history","executionId":1,"eventId":3,
            "eventData":"{\"x\":1}"}"#;
        let document: HistoryDocument = serde_json::from_str(text).unwrap();
        assert_eq!(document.event_id, 3);
        assert_eq!(document.into_texts().unwrap(), [r#"{"x":1}"#]);
    }
}
