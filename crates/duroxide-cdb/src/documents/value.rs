//! Values the head only points to, and texts too large for one document.

use serde::{Deserialize, Serialize};

use super::packed::{PACKED_BYTES_MAX, pack, unpack};
use super::{ids, kind};

/// An immutable value (a key's value, a custom status) that would make the head heavy.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ValueDocument {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The turn that wrote it; of all that have a turn only values are looked for by it. The public crate wrote none.
    #[serde(rename = "sinceTurn", default)]
    pub(crate) turn: u64,
    pub(crate) value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
}

/// One piece of a large text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Chunk {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) data: String,
}

impl Chunk {
    /// A piece of the commit's large texts.
    pub(crate) fn new(instance: &str, commit: &str, index: u32, data: &str) -> Self {
        Self {
            id: ids::chunk(commit, index),
            instance_id: instance.to_owned(),
            kind: kind::CHUNK.to_owned(),
            data: data.to_owned(),
        }
    }
}

/// Where the pieces of a large text are: chunks `first..first + count` of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkRef {
    pub(crate) commit: String,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) bytes: u64,
    /// The pieces together are the text's compressed form.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) packed: bool,
}

impl ChunkRef {
    /// All pieces of a commit, whatever texts they are of: as many references as it takes for each to be one that a
    /// writer could have written. What a mark counts beyond what a commit has is not there.
    pub(crate) fn all(commit: &str, count: u32) -> Vec<Self> {
        let count = count.min(COMMIT_PARTS_MAX);
        let firsts = (0..count).step_by(PIECES_MAX as usize);
        let part = |first: u32| Self {
            commit: commit.to_owned(),
            first,
            count: (count - first).min(PIECES_MAX),
            bytes: 0,
            packed: false,
        };
        firsts.map(part).collect()
    }

    /// The ids of the pieces, in order. No more than a text can have, whatever the stored count says.
    pub(crate) fn ids(&self) -> impl Iterator<Item = String> + '_ {
        let end = self.first.saturating_add(self.count.min(PIECES_MAX));
        (self.first..end).map(|index| ids::chunk(&self.commit, index))
    }

    /// Why no writer can have written this reference, if so.
    pub(crate) fn absurdity(&self) -> Option<&'static str> {
        if self.count > PIECES_MAX || self.first.checked_add(self.count).is_none() {
            return Some("it claims more pieces than a text can have");
        }
        let longest = if self.packed { PACKED_BYTES_MAX } else { TEXT_BYTES_MAX };
        (self.bytes > longest).then_some("it claims to be longer than a stored text can be")
    }

    /// How many bytes all pieces together have at most: a compressed form is shorter than its text.
    pub(crate) fn stored_bytes_max(&self) -> u64 {
        self.bytes.min(TEXT_BYTES_MAX)
    }

    /// The text whose pieces, put together, are given. `None` if they are not what was stored.
    pub(crate) fn text(&self, pieces: String) -> Option<String> {
        if self.packed {
            return unpack(&pieces, self.bytes);
        }
        (pieces.len() as u64 == self.bytes).then_some(pieces)
    }
}

/// Collects the pieces of the large texts of one commit.
#[derive(Debug)]
pub(crate) struct Chunks {
    commit: String,
    parts: Vec<String>,
    /// Bytes of the longest text.
    longest: Option<u64>,
}

impl Chunks {
    /// No pieces yet.
    pub(crate) fn new(commit: &str) -> Self {
        Self { commit: commit.to_owned(), parts: Vec::new(), longest: None }
    }

    /// Splits a text and remembers its pieces.
    pub(crate) fn split(&mut self, text: &str) -> ChunkRef {
        let bytes = text.len() as u64;
        self.longest = self.longest.max(Some(bytes));
        let packed = pack(text);
        let text = packed.as_deref().unwrap_or(text);
        let first = self.parts.len();
        let mut start = 0;
        let mut size = 0;
        for (position, character) in text.char_indices() {
            let width = escaped_char_len(character);
            if size + width > CHUNK_BYTES_MAX {
                self.parts.push(text[start..position].to_owned());
                (start, size) = (position, 0);
            }
            size += width;
        }
        self.parts.push(text[start..].to_owned());
        ChunkRef {
            commit: self.commit.clone(),
            first: u32::try_from(first).unwrap_or(u32::MAX),
            count: u32::try_from(self.parts.len() - first).unwrap_or(u32::MAX),
            bytes,
            packed: packed.is_some(),
        }
    }

    /// The text itself if a document can hold it, else nothing and where its pieces will be.
    pub(crate) fn hold(&mut self, text: String) -> (String, Option<ChunkRef>) {
        if escaped_len(&text) <= INLINE_BYTES_MAX {
            return (text, None);
        }
        let chunks = self.split(&text);
        (String::new(), Some(chunks))
    }

    /// Why these pieces are not written, if so: what is larger than readers take must not be stored.
    pub(crate) fn refusal(&self) -> Option<String> {
        let bytes = self.longest?;
        (bytes > TEXT_BYTES_MAX).then(|| {
            format!(
                "a text of {bytes} bytes is larger than the {TEXT_BYTES_MAX} bytes that are stored: keep it elsewhere \
                 and pass a reference to it"
            )
        })
    }

    /// The commit the pieces belong to.
    pub(crate) fn commit(&self) -> &str {
        &self.commit
    }

    /// The pieces, in order of their index.
    pub(crate) fn parts(&self) -> &[String] {
        &self.parts
    }
}

/// The length of a text inside a JSON document.
pub(crate) fn escaped_len(text: &str) -> usize {
    text.chars().map(escaped_char_len).sum()
}

fn escaped_char_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        control if control < ' ' => 6,
        other => other.len_utf8(),
    }
}

/// Texts up to this length stay inside their document.
pub(crate) const INLINE_BYTES_MAX: usize = 384 << 10;
/// A document above 1 MB costs nearly twice as much per kilobyte.
const CHUNK_BYTES_MAX: usize = 512 << 10;
/// The longest text: a reader has all of it in memory at once, so it has to be a length that any process can hold. More
/// than ten times what anybody was seen to store.
pub(crate) const TEXT_BYTES_MAX: u64 = 256 << 20;
/// The most pieces of one text. Of a full piece each byte takes up six in its document at most, so the longest text has
/// a quarter fewer.
const PIECES_MAX: u32 = 4096;
/// The most pieces, and the most staged groups, of one commit: sixteen of the longest texts, or six million documents.
/// What is to be committed is in the memory of one process before.
pub(crate) const COMMIT_PARTS_MAX: u32 = 16 * PIECES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_length_is_what_the_document_will_hold() {
        for text in ["plain", "quote \" back \\ slash", "line\nbreak\u{1}", "emoji 🦀 ü"] {
            assert_eq!(escaped_len(text) + 2, serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
    }

    /// A text that does not compress.
    fn noise(bytes: usize) -> String {
        let mut state = 7u64;
        let letter = move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b' ' + u8::try_from((state >> 33) % 95).unwrap())
        };
        (0..bytes).map(letter).collect()
    }

    #[test]
    fn pieces_put_together_are_the_text() {
        let texts = ["🦀\"".repeat(300_000), "x".repeat(3_000_000), noise(3_000_000)];
        let mut chunks = Chunks::new("c");
        for text in &texts {
            let (inline, reference) = chunks.hold(text.clone());
            let reference = reference.unwrap();
            assert!(inline.is_empty());
            let range = reference.first as usize..(reference.first + reference.count) as usize;
            assert_eq!(reference.text(chunks.parts()[range].concat()).as_ref(), Some(text));
        }
        assert!(chunks.parts().iter().all(|part| escaped_len(part) <= CHUNK_BYTES_MAX));
        assert_eq!(chunks.hold("small".to_owned()), ("small".to_owned(), None));
    }

    fn reference(first: u32, count: u32, bytes: u64, packed: bool) -> ChunkRef {
        ChunkRef { commit: "c".to_owned(), first, count, bytes, packed }
    }

    #[test]
    fn a_reference_that_nobody_wrote_names_few_pieces_and_is_absurd() {
        for absurd in [
            reference(0, u32::MAX, 1, false),
            reference(u32::MAX, 1, 1, false),
            reference(0, PIECES_MAX + 1, 1, true),
            reference(0, 1, TEXT_BYTES_MAX + 1, false),
            reference(0, 1, PACKED_BYTES_MAX + 1, true),
            reference(0, 1, u64::MAX, false),
        ] {
            assert!(absurd.absurdity().is_some(), "{absurd:?}");
            assert!(absurd.ids().count() <= PIECES_MAX as usize, "{absurd:?}");
        }
        assert_eq!(reference(7, PIECES_MAX, TEXT_BYTES_MAX, false).absurdity(), None);
        assert_eq!(
            reference(0, 1, 5, false).text("four".to_owned()),
            None,
            "it would be shorter than it says"
        );
    }

    #[test]
    fn the_pieces_of_the_longest_text_are_fewer_than_a_reader_takes() {
        // A control character takes six bytes in its document.
        let pieces = TEXT_BYTES_MAX.div_ceil(CHUNK_BYTES_MAX as u64 / 6 - 4);
        assert!(pieces <= u64::from(PIECES_MAX), "{pieces}");
    }

    #[test]
    fn all_pieces_of_a_commit_are_named_once_by_references_that_make_sense() {
        let parts = ChunkRef::all("c", 2 * PIECES_MAX + 3);
        let ids: Vec<String> = parts.iter().flat_map(ChunkRef::ids).collect();
        assert_eq!((parts.len(), ids.len()), (3, 2 * PIECES_MAX as usize + 3));
        assert!(ids.iter().enumerate().all(|(index, id)| *id == format!("chunk:c:{index}")));
        assert!(parts.iter().all(|part| part.absurdity().is_none()));
        assert!(ChunkRef::all("c", 0).is_empty());
        assert_eq!(ChunkRef::all("c", u32::MAX).len(), 16);
    }

    #[test]
    fn a_text_that_no_reader_would_take_is_not_written() {
        let mut chunks = Chunks::new("c");
        chunks.split("short");
        assert_eq!(chunks.refusal(), None);
        chunks.longest = Some(TEXT_BYTES_MAX + 1);
        assert!(chunks.refusal().is_some_and(|reason| reason.contains("268435457")));
    }
}
