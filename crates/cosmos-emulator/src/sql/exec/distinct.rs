//! DISTINCT: rows that were not seen before.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::eval::Context;
use super::super::value::{ENTRY_BYTES, key_of};
use crate::Failure;

/// The rows seen so far.
#[derive(Default)]
pub(crate) struct Distinct {
    seen: BTreeSet<String>,
}

impl Distinct {
    /// Whether this row is new. New ones are kept.
    pub(crate) fn insert(&mut self, row: &Value, context: &Context) -> Result<bool, Failure> {
        let key = key_of(Some(row));
        if self.seen.contains(&key) {
            return Ok(false);
        }
        context.keep(ENTRY_BYTES + key.len())?;
        Ok(self.seen.insert(key))
    }

    /// The new ones of some rows.
    pub(crate) fn new_of<R>(
        &mut self,
        rows: Vec<R>,
        context: &Context,
        row: impl Fn(&R) -> &Value,
    ) -> Result<Vec<R>, Failure> {
        let mut new = Vec::new();
        for each in rows {
            if self.insert(row(&each), context)? {
                new.push(each);
            }
        }
        Ok(new)
    }
}
