//! Unique keys: which item of a logical partition holds which value.
//!
//! A value has one holder. Only where several regions write can it have more for a while, until the hub has decided
//! between them (see [`region`](super::region)): then the entry lists all of them.

use bytes::Bytes;
use cosmos_wire::status::Status;
use serde_json::Value;

use super::content::Content;
use super::index::encode;
use super::index::path::value_at;
use super::key::{self, EpkKey};
use super::quota;
use super::writer::Writer;
use crate::Failure;

/// Stands between two holders of a value; no byte of an id.
const BETWEEN: u8 = 0xff;

/// The ids in an entry, in order.
pub(crate) fn holders(entry: &[u8]) -> Vec<String> {
    entry.split(|byte| *byte == BETWEEN).map(|id| String::from_utf8_lossy(id).into_owned()).collect()
}

/// Whether an entry has more than one holder.
pub(crate) fn is_shared(entry: &[u8]) -> bool {
    entry.contains(&BETWEEN)
}

impl Writer<'_> {
    /// Gives the values of an item to it, or refuses if another one holds one of them.
    pub(super) fn put_unique(
        &mut self,
        epk: &EpkKey,
        content: &Content,
        old: Option<&Value>,
    ) -> Result<(), Failure> {
        if self.shape.unique_keys.is_empty() {
            return Ok(());
        }
        let new = self.unique_keys(epk, &content.document);
        let old = old.map_or_else(Vec::new, |old| self.unique_keys(epk, old));
        for key in new.iter().filter(|key| !old.contains(key)) {
            for holder in self.get(key)?.map_or_else(Vec::new, |entry| holders(&entry)) {
                if holder != content.id && !self.remove_expired(epk, &holder)? {
                    return Err(violation());
                }
            }
        }
        for key in old.into_iter().filter(|key| !new.contains(key)) {
            self.release(key, &content.id)?;
        }
        new.into_iter().try_for_each(|key| self.hold(key, &content.id))
    }

    /// The entries for the values of a document.
    pub(super) fn unique_keys(&self, epk: &EpkKey, document: &Value) -> Vec<Bytes> {
        self.shape
            .unique_keys
            .iter()
            .zip(0..)
            .map(|(paths, constraint)| {
                let values = values(document, paths);
                key::unique(self.container.replica, epk, constraint, &values)
            })
            .collect()
    }

    /// Makes an item a holder of a value.
    pub(super) fn hold(&mut self, key: Bytes, id: &str) -> Result<(), Failure> {
        let entry = self.get(&key)?;
        let mut ids = entry.as_deref().map_or_else(Vec::new, holders);
        if let Err(at) = ids.binary_search_by(|known| known.as_str().cmp(id)) {
            ids.insert(at, id.to_owned());
            self.set(key, joined(&ids));
        }
        Ok(())
    }

    /// Makes an item a holder no more.
    pub(super) fn release(&mut self, key: Bytes, id: &str) -> Result<(), Failure> {
        let Some(entry) = self.get(&key)? else { return Ok(()) };
        let mut ids = holders(&entry);
        if let Ok(at) = ids.binary_search_by(|known| known.as_str().cmp(id)) {
            ids.remove(at);
            self.set(key, joined(&ids));
        }
        Ok(())
    }
}

fn joined(ids: &[String]) -> Option<Bytes> {
    let bytes: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    (!bytes.is_empty()).then(|| Bytes::from(bytes.join(&BETWEEN)))
}

/// The values of a unique key, exact: long ones by a wide hash.
fn values(document: &Value, paths: &[crate::sql::source::Path]) -> Vec<u8> {
    let mut out = Vec::new();
    for path in paths {
        match value_at(document, path) {
            Some(value @ (Value::Array(_) | Value::Object(_))) => {
                out.extend_from_slice(value.to_string().as_bytes());
            }
            Some(Value::String(text)) if text.len() > encode::STRING_BYTES_MAX => {
                out.extend_from_slice(text.as_bytes());
            }
            // What is missing counts as null, as with the service.
            value => encode::push(&mut out, Some(value.unwrap_or(&Value::Null))),
        }
        out.push(0);
    }
    if out.len() > BYTES_MAX {
        let hash = out.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        });
        out.clear();
        out.push(0xff);
        out.extend_from_slice(&hash.to_be_bytes());
    }
    out
}

const BYTES_MAX: usize = 512;

fn violation() -> Failure {
    let mut failure = Failure::of(
        Status::UNIQUE_INDEX_CONFLICT,
        "Entity with the specified id already exists in the system.",
    );
    failure.charge = quota::REFUSED_WRITE;
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lists_its_holders() {
        assert_eq!(holders(b"one"), ["one"]);
        let both = joined(&["a".to_owned(), "b".to_owned()]).expect("two");
        assert!(is_shared(&both) && !is_shared("ä".as_bytes()));
        assert_eq!(holders(&both), ["a", "b"]);
        assert_eq!(joined(&[]), None);
    }
}
