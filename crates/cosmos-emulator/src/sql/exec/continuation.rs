//! Where the next page begins, as text for the client to keep.
//!
//! A streaming query remembers its place in the access path; one that must see all rows first remembers the last row
//! of its order, or how many rows it has handed out; an aggregate over many rows carries its sums along.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::source::Position;
use super::group::Accumulator;
use crate::Failure;

/// The form of the text; another form is refused.
const VERSION: u8 = 1;

/// Where a query goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// Behind a row of the access path.
    Stream {
        /// The last row that is done; absent before the first.
        after: Option<Position>,
        /// Tuples of a row behind it that are done.
        tuples: u64,
        /// The number of the document of that row; without one it is the next row.
        #[serde(default)]
        of: Option<u64>,
        /// Result rows skipped by OFFSET.
        skipped: u64,
        /// Result rows handed out.
        taken: u64,
    },
    /// Behind a row of a sort, wherever the documents are by then.
    Sorted {
        /// Its sort keys: one value each, none where the value is undefined.
        keys: Vec<Vec<Value>>,
        /// The number of its document, and of its tuple there.
        sequence: (u64, u64),
        /// Result rows handed out.
        taken: u64,
    },
    /// Behind a row of the access path, without the values of all rows up to it.
    Distinct {
        /// The last row that is done; absent before the first.
        after: Option<Position>,
        /// Results of a row behind it that are done.
        tuples: u64,
        /// The number of the document of that row; without one it is the next row.
        of: Option<u64>,
        /// Result rows skipped by OFFSET.
        skipped: u64,
        /// Result rows handed out.
        taken: u64,
        /// What the source was made of; see [`Source::layout`](super::super::source::Source::layout).
        layout: u64,
    },
    /// From the start, behind this many result rows.
    Replay {
        /// Result rows handed out.
        taken: u64,
        /// What the source was made of; see [`Source::layout`](super::super::source::Source::layout).
        #[serde(default)]
        layout: u64,
    },
    /// Behind a group in the order of their keys, wherever the documents are by then.
    Grouped {
        /// Its key.
        after: String,
        /// Result rows handed out.
        taken: u64,
    },
    /// Behind a row, with what the aggregates know.
    Aggregate {
        /// The last row that is done.
        after: Position,
        /// One per aggregate.
        states: Vec<Accumulator>,
    },
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    version: u8,
    query: u64,
    place: Place,
}

impl Place {
    /// As text that only the same query takes back.
    pub(crate) fn encode(&self, query: u64) -> String {
        let envelope = Envelope { version: VERSION, query, place: self.clone() };
        let body = serde_json::to_vec(&envelope).unwrap_or_default();
        let mut bytes = checksum(&body).to_be_bytes().to_vec();
        bytes.extend_from_slice(&body);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The place in a text of [`Self::encode`].
    pub(crate) fn decode(text: &str, query: u64) -> Result<Self, Failure> {
        Self::parse(text, query).ok_or_else(|| Failure::bad_request("Invalid Continuation Token"))
    }

    fn parse(text: &str, query: u64) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text.trim()).ok()?;
        let (sum, body) = bytes.split_at_checked(8)?;
        if sum != checksum(body).to_be_bytes() {
            return None;
        }
        let envelope: Envelope = serde_json::from_slice(body).ok()?;
        (envelope.version == VERSION && envelope.query == query).then_some(envelope.place)
    }
}

/// FNV-1a: guards against mangled text, not against malice.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_query_takes_a_continuation_back() {
        let place = Place::Stream { after: Some(vec![1, 2, 255]), tuples: 3, of: None, skipped: 0, taken: 9 };
        let text = place.encode(7);
        assert_eq!(Place::decode(&text, 7), Ok(place));
        assert!(Place::decode(&text, 8).is_err());
        let mut mangled = text.clone().into_bytes();
        mangled[20] ^= 1;
        assert!(Place::decode(&String::from_utf8(mangled).unwrap(), 7).is_err());
        assert_eq!(Place::decode("+RID:foreign", 7).unwrap_err().message, "Invalid Continuation Token");
        assert!(Place::decode("", 7).is_err());
    }
}
