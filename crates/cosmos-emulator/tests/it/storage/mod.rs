//! The stores: one behaviour in memory and on disk, and a disk that survives what happens to disks.

mod crash;
mod folder;
#[cfg(unix)]
mod full;
mod model;
mod random;
mod scan;
mod tail;

use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;
use cosmos_emulator::storage::{
    Batch, Change, DiskStorage, Durability, Options, Order, Storage, StorageError,
};

/// Tests that do not cut the power need no flushes.
const QUICK: Options = Options { durability: Durability::OsBuffered, cache_bytes: 4 << 20 };

fn open_disk(path: &Path) -> DiskStorage {
    DiskStorage::open(path, QUICK).unwrap()
}

fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Change {
    Change::Put(key.into(), value.into())
}

fn delete(key: impl Into<Bytes>) -> Change {
    Change::Delete(key.into())
}

fn batch(changes: impl IntoIterator<Item = Change>) -> Batch {
    Batch { changes: changes.into_iter().collect() }
}

fn rows(storage: &dyn Storage) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
    storage.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward).collect()
}
