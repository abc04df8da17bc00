//! The store without a disk: a persistent ordered map, whose copies are cheap enough to hand one to each scan.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::vec;

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, Change, Order, Scan, Storage, StorageError, Ticket};

type Map = OrdMap<Bytes, Bytes>;

/// Keeps everything in memory and forgets it when dropped.
#[derive(Default)]
pub struct MemoryStorage {
    map: RwLock<Map>,
    commits: AtomicU64,
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStorage").field("commits", &self.commits).finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned())
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner).clone();
        Box::new(Snapshot {
            map,
            lower: lower.map(Bytes::copy_from_slice),
            upper: upper.map(Bytes::copy_from_slice),
            order,
            chunk: Vec::new().into_iter(),
            chunk_rows: CHUNK_ROWS_MIN,
        })
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        batch.check()?;
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        for change in batch.changes {
            match change {
                Change::Put(key, value) => {
                    map.insert(key, value);
                }
                Change::Delete(key) => {
                    map.remove(&key);
                }
            }
        }
        Ok(Ticket(self.commits.fetch_add(1, Ordering::Relaxed) + 1))
    }

    fn wait_durable(&self, _ticket: Ticket) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_slow_to_sync(&self) -> bool {
        false
    }
}

/// A scan in progress. It owns its copy of the map, so it cannot also borrow from it: rows are taken in chunks that
/// grow, each found by seeking behind the last row of the one before.
struct Snapshot {
    map: Map,
    lower: Bound<Bytes>,
    upper: Bound<Bytes>,
    order: Order,
    chunk: vec::IntoIter<(Bytes, Bytes)>,
    chunk_rows: usize,
}

impl Snapshot {
    fn next_chunk(&mut self) -> Vec<(Bytes, Bytes)> {
        let bounds = (borrowed(&self.lower), borrowed(&self.upper));
        if is_empty(bounds) {
            return Vec::new();
        }
        let rows = self.map.range::<_, [u8]>(bounds).map(|(key, value)| (key.clone(), value.clone()));
        match self.order {
            Order::Forward => rows.take(self.chunk_rows).collect(),
            Order::Reverse => rows.rev().take(self.chunk_rows).collect(),
        }
    }
}

impl Iterator for Snapshot {
    type Item = Result<(Bytes, Bytes), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(row) = self.chunk.next() {
            return Some(Ok(row));
        }
        let chunk = self.next_chunk();
        let last = chunk.last()?.0.clone();
        match self.order {
            Order::Forward => self.lower = Bound::Excluded(last),
            Order::Reverse => self.upper = Bound::Excluded(last),
        }
        self.chunk_rows = (self.chunk_rows * 4).min(CHUNK_ROWS_MAX);
        self.chunk = chunk.into_iter();
        self.chunk.next().map(Ok)
    }
}

/// Most scans of the engine stop after a few rows, so the first chunk is small.
const CHUNK_ROWS_MIN: usize = 8;
const CHUNK_ROWS_MAX: usize = 512;

fn borrowed(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    bound.as_ref().map(Bytes::as_ref)
}

/// Whether no key can lie between two bounds; ordered maps panic on such ranges instead of answering with no rows.
pub(super) fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
    }
}
