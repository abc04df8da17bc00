//! Partial updates.

use bytes::Bytes;
use cosmos_wire::patch::{Patch as Wire, PatchOperation};
use serde_json::Value;

use crate::body::json;
use crate::error::Error;
use crate::limits;

/// A list of changes to parts of one item, applied together, at most ten.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Patch {
    condition: Option<String>,
    operations: Vec<PatchOperation>,
}

impl Patch {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the changes only if the item satisfies a filter, such as `from c where c.state = 'open'`.
    pub fn condition(mut self, filter: impl Into<String>) -> Self {
        self.condition = Some(filter.into());
        self
    }

    /// Adds a property or inserts into an array.
    pub fn add(self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(PatchOperation::Add { path: path.into(), value: value.into() })
    }

    /// Sets a property, existing or not.
    pub fn set(self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(PatchOperation::Set { path: path.into(), value: value.into() })
    }

    /// Replaces a property that must exist.
    pub fn replace(self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        self.with(PatchOperation::Replace { path: path.into(), value: value.into() })
    }

    /// Removes a property.
    pub fn remove(self, path: impl Into<String>) -> Self {
        self.with(PatchOperation::Remove { path: path.into() })
    }

    /// Adds to a number; a missing one counts as zero.
    pub fn increment(self, path: impl Into<String>, by: impl Into<serde_json::Number>) -> Self {
        self.with(PatchOperation::Incr { path: path.into(), value: Value::Number(by.into()) })
    }

    /// Moves a property.
    pub fn rename(self, from: impl Into<String>, path: impl Into<String>) -> Self {
        self.with(PatchOperation::Move { from: from.into(), path: path.into() })
    }

    fn with(mut self, operation: PatchOperation) -> Self {
        self.operations.push(operation);
        self
    }

    pub(crate) fn to_bytes(&self) -> Result<Bytes, Error> {
        limits::patch(self.operations.len())?;
        json(&Wire { condition: self.condition.clone(), operations: self.operations.clone() })
    }
}
