//! Where a query over many ranges goes on. Bounds of the key space instead of range ids, so that it survives splits.

use cosmos_wire::epk::{Epk, EpkRange};
use serde::{Deserialize, Serialize};

use super::sort::Place;
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
    /// Sorted queries: the last row given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<Place>,
    /// Rows still to be skipped and given.
    #[serde(default)]
    pub(crate) skip: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) take: Option<u64>,
    /// The last row of a distinct query whose equal rows follow each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
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
        Self { v: VERSION, q: fingerprint(query), parts: Vec::new(), place: None, skip, take, last: None }
    }

    /// Reads a continuation of this query.
    pub(crate) fn read(text: &str, query: &[u8]) -> Result<Self, Error> {
        let read: Self = serde_json::from_str(text).map_err(|_| invalid())?;
        if read.v != VERSION {
            return Err(invalid());
        }
        if read.q != fingerprint(query) {
            return Err(Error::bad_request("the continuation belongs to another query"));
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

/// FNV-1a: short, and the same in every build.
fn fingerprint(bytes: &[u8]) -> u64 {
    // 53 bits, so that every JSON reader keeps it exact.
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    }) >> 11
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

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
