//! Values the head only points to, and texts too large for one document.

use serde::{Deserialize, Serialize};

use super::packed::{pack, unpack};
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
    /// All pieces of a commit, whatever texts they are of.
    pub(crate) fn all(commit: &str, count: u32) -> Self {
        Self { commit: commit.to_owned(), first: 0, count, bytes: 0, packed: false }
    }

    /// The ids of the pieces, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = String> + '_ {
        (self.first..self.first + self.count).map(|index| ids::chunk(&self.commit, index))
    }

    /// The text whose pieces, put together, are given. `None` if they are not what was stored.
    pub(crate) fn text(&self, pieces: String) -> Option<String> {
        if self.packed { unpack(&pieces, self.bytes) } else { Some(pieces) }
    }
}

/// Collects the pieces of the large texts of one commit.
#[derive(Debug)]
pub(crate) struct Chunks {
    commit: String,
    parts: Vec<String>,
}

impl Chunks {
    /// No pieces yet.
    pub(crate) fn new(commit: &str) -> Self {
        Self { commit: commit.to_owned(), parts: Vec::new() }
    }

    /// Splits a text and remembers its pieces.
    pub(crate) fn split(&mut self, text: &str) -> ChunkRef {
        let bytes = text.len() as u64;
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
}
