//! Operations as records of the store, and as the engine remembers them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{NewPartition, PartitionOperation, Phase, Reshaping};
use crate::engine::key;
use crate::engine::partition::Partition;
use crate::storage::{Change, Order, Storage, StorageError};

/// A split or a merge that a container is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moving {
    /// Its id.
    pub(crate) operation: u64,
    /// When it ends by itself, in microseconds since 1970.
    pub(crate) finish_at: Option<u64>,
}

/// An operation as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Kept", into = "Kept")]
pub(super) struct Record {
    pub(super) shown: PartitionOperation,
    /// Number of the container.
    pub(super) number: u32,
    /// When it ends by itself, in microseconds since 1970.
    pub(super) finish_at: Option<u64>,
}

/// The form of a record in the store.
#[derive(Serialize, Deserialize)]
struct Kept {
    id: u64,
    kind: Reshaping,
    database: String,
    container: String,
    phase: Phase,
    parents: Vec<u32>,
    children: Vec<NewPartition>,
    number: u32,
    finish_at: Option<u64>,
}

impl From<Kept> for Record {
    fn from(kept: Kept) -> Self {
        let Kept { id, kind, database, container, phase, parents, children, number, finish_at } = kept;
        let shown = PartitionOperation { id, kind, database, container, phase, parents, children };
        Self { shown, number, finish_at }
    }
}

impl From<Record> for Kept {
    fn from(record: Record) -> Self {
        let Record { shown, number, finish_at } = record;
        let PartitionOperation { id, kind, database, container, phase, parents, children } = shown;
        Self { id, kind, database, container, phase, parents, children, number, finish_at }
    }
}

impl Record {
    pub(super) fn moving(&self) -> Moving {
        Moving { operation: self.shown.id, finish_at: self.finish_at }
    }

    pub(super) fn is_active(&self) -> bool {
        self.shown.phase != Phase::Succeeded
    }

    pub(super) fn put(&self) -> Change {
        let value = serde_json::to_vec(self).expect("an operation is plain data");
        Change::Put(key::operation(self.shown.id), value.into())
    }
}

/// What the engine remembers of splits and merges.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    pub(super) records: BTreeMap<u64, Record>,
    /// Partitions that others have replaced, until nobody reads them any more.
    pub(super) retired: Vec<Arc<Partition>>,
}

/// Operations that are remembered after they ended.
pub(super) const ENDED_MAX: usize = 1_000;

impl Operations {
    /// Reads what a store remembers.
    pub(crate) fn load(storage: &dyn Storage) -> Result<Self, StorageError> {
        let prefix = key::operations();
        let upper = key::beyond(prefix.clone());
        let mut records = BTreeMap::new();
        for row in storage.scan(Bound::Included(&prefix[..]), Bound::Excluded(&upper), Order::Forward) {
            let (_, value) = row?;
            let record: Record = serde_json::from_slice(&value).map_err(|_| {
                StorageError(
                    "the record of a split cannot be read; restore the data folder from a copy".to_owned(),
                )
            })?;
            records.insert(record.shown.id, record);
        }
        Ok(Self { records, retired: Vec::new() })
    }

    /// The id of the next operation.
    pub(super) fn next_id(&self) -> u64 {
        self.records.last_key_value().map_or(1, |(id, _)| id + 1)
    }

    /// What to forget, so that there is no end of remembering.
    pub(super) fn forgettable(&self) -> Vec<u64> {
        let ended: Vec<u64> = self.records.values().filter(|r| !r.is_active()).map(|r| r.shown.id).collect();
        let beyond = ended.len().saturating_sub(ENDED_MAX);
        ended.into_iter().take(beyond).collect()
    }
}
