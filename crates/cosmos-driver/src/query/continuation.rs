//! Where a query over many ranges goes on. Bounds of the key space instead of range ids, so that it survives splits.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use cosmos_wire::epk::{Epk, EpkRange};
use serde::{Deserialize, Serialize};

use super::sort::MergeCursor;
use crate::error::Error;

/// The text form is JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Continuation {
    v: u8,
    /// Fingerprint of the query; another query cannot go on from here.
    q: u64,
    /// Concatenated queries: what is left, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<PartPosition>,
    /// One range that the service reads as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) direct: Option<Direct>,
    /// Sorted queries: the last row given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "place")]
    pub(crate) cursor: Option<MergeCursor>,
    /// Rows still to be skipped and given.
    #[serde(default)]
    pub(crate) skip: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) take: Option<u64>,
    /// The last row of a distinct query whose equal rows follow each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
    /// Fingerprints of the rows a distinct query has given, when equal rows do not follow each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<String>,
    /// There were too many of them: this is where it is, but no pager can go on from here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    overfull: bool,
}

/// How far the service has read a query as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Direct {
    /// The service's own; after a split, only plain queries can use it.
    pub(crate) token: String,
    /// Rows given so far, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<u64>,
}

/// How far one part of the key space has been read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartPosition {
    min: String,
    max: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
}

impl PartPosition {
    pub(crate) fn new(bounds: &EpkRange, token: Option<String>) -> Self {
        Self { min: bounds.min.to_hex(), max: bounds.max.to_hex(), token }
    }

    pub(crate) fn bounds(&self) -> Result<EpkRange, Error> {
        let epk = |text: &str| text.parse::<Epk>().map_err(|_| invalid());
        Ok(EpkRange::new(epk(&self.min)?, epk(&self.max)?))
    }
}

impl Continuation {
    pub(crate) fn new(query: &[u8], skip: u64, take: Option<u64>) -> Self {
        // 53 bits, so that every JSON reader keeps it exact.
        #[allow(clippy::cast_possible_truncation)] // Folded to what is kept.
        let q = (fingerprint(query) >> 75) as u64;
        Self {
            v: VERSION,
            q,
            parts: Vec::new(),
            direct: None,
            cursor: None,
            skip,
            take,
            last: None,
            seen: None,
            overfull: false,
        }
    }

    /// Keeps which rows were given, as long as that fits into a token one can pass around.
    pub(crate) fn keep_seen(&mut self, seen: &BTreeSet<u128>) {
        if seen.len() > SEEN_MAX {
            self.overfull = true;
            return;
        }
        let bytes: Vec<u8> = seen.iter().flat_map(|row| row.to_be_bytes()).collect();
        self.seen = Some(BASE64.encode(bytes));
    }

    /// The rows that were given.
    pub(crate) fn seen(&self) -> Result<BTreeSet<u128>, Error> {
        let bytes = BASE64.decode(self.seen.as_deref().unwrap_or_default()).map_err(|_| invalid())?;
        let (rows, rest) = bytes.as_chunks::<16>();
        if rest.is_empty() {
            Ok(rows.iter().map(|row| u128::from_be_bytes(*row)).collect())
        } else {
            Err(invalid())
        }
    }

    pub(crate) fn of_direct(query: &[u8], direct: Direct) -> Self {
        Self { direct: Some(direct), ..Self::new(query, 0, None) }
    }

    /// Reads a continuation of this query.
    pub(crate) fn read(text: &str, query: &[u8]) -> Result<Self, Error> {
        let read: Self = serde_json::from_str(text).map_err(|_| invalid())?;
        if read.v != VERSION {
            return Err(invalid());
        }
        if read.q != Self::new(query, 0, None).q {
            return Err(Error::bad_request("the continuation belongs to another query"));
        }
        if read.overfull {
            return Err(Error::bad_request(format!(
                "a DISTINCT query without ORDER BY cannot be continued after {SEEN_MAX} different rows; read all its \
                 pages from one pager, or add ORDER BY over what is selected"
            )));
        }
        Ok(read)
    }

    /// Whether a text looks like one of ours rather than the service's.
    pub(crate) fn is_ours(text: &str) -> bool {
        serde_json::from_str::<Self>(text).is_ok()
    }

    pub(crate) fn write(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|e| Error::serialization("the continuation", e))
    }
}

fn invalid() -> Error {
    Error::bad_request("this is not a continuation of a query of this driver")
}

/// FNV-1a with 128 bits: short, and the same in every build.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

const VERSION: u8 = 1;
/// Different rows a continuation can carry: 32 KB of text.
const SEEN_MAX: usize = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_given_travel_with_the_continuation() {
        let rows =
            |count: u128| -> BTreeSet<u128> { (0..count).map(|n| fingerprint(&n.to_le_bytes())).collect() };
        let mut continuation = Continuation::new(b"select", 0, None);
        continuation.keep_seen(&rows(1000));
        let text = continuation.write().expect("text");
        let read = Continuation::read(&text, b"select").expect("ours");
        assert_eq!(read.seen().expect("rows"), rows(1000));
        let mut overfull = Continuation::new(b"select", 0, None);
        overfull.keep_seen(&rows(2000));
        let error = Continuation::read(&overfull.write().expect("text"), b"select").expect_err("too many");
        assert!(error.to_string().contains("ORDER BY"), "{error}");
    }

    #[test]
    fn continuations_are_bound_to_their_query() {
        let mut continuation = Continuation::new(b"select", 1, Some(5));
        continuation.parts.push(PartPosition::new(&EpkRange::full(), Some("t".to_owned())));
        let text = continuation.write().expect("text");
        assert!(Continuation::is_ours(&text));
        assert_eq!(Continuation::read(&text, b"select").expect("ours"), continuation);
        assert!(Continuation::read(&text, b"other").is_err());
        for junk in
            ["", "null", "{}", r#"{"v":9,"q":1}"#, r#"{"token":"-RID:x","range":{"min":"","max":"FF"}}"#]
        {
            assert!(!Continuation::is_ours(junk) || Continuation::read(junk, b"select").is_err(), "{junk}");
        }
    }
}
