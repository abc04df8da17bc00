//! DISTINCT: rows that were not seen before.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::value::key_of;

/// The rows seen so far.
#[derive(Default)]
pub(crate) struct Distinct {
    seen: BTreeSet<String>,
}

impl Distinct {
    /// Whether this row is new.
    pub(crate) fn insert(&mut self, row: &Value) -> bool {
        self.seen.insert(key_of(Some(row)))
    }
}
