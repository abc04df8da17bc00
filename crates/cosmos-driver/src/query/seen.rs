//! What DISTINCT remembers of the rows it has given.

use std::collections::BTreeSet;

use serde_json::Value;
use serde_json::value::RawValue;

use super::continuation::fingerprint;
use super::group::canonical;

/// Which rows DISTINCT has given before.
pub(super) enum Seen {
    All,
    /// Equal rows follow each other, but for arrays and objects, which the order does not look into.
    Ordered {
        last: Option<String>,
        nested: BTreeSet<u128>,
    },
    /// Fingerprints, so that a continuation can carry them.
    Set(BTreeSet<u128>),
}

impl Seen {
    pub(super) fn is_new(&mut self, row: &RawValue) -> bool {
        let text = || {
            let mut text = String::new();
            match serde_json::from_str::<Value>(row.get()) {
                Ok(value) => canonical(&value, &mut text),
                Err(_) => text.push_str(row.get()),
            }
            text
        };
        match self {
            Self::All => true,
            Self::Ordered { nested, .. } if row.get().starts_with(['[', '{']) => {
                nested.insert(fingerprint(text().as_bytes()))
            }
            Self::Ordered { last, .. } => {
                let text = text();
                let is_new = last.as_ref() != Some(&text);
                *last = Some(text);
                is_new
            }
            Self::Set(set) => set.insert(fingerprint(text().as_bytes())),
        }
    }
}
