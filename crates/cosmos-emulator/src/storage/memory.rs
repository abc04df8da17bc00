//! The store without a disk: a persistent ordered map, whose copies are cheap enough to hand one to each scan.

use std::borrow::Borrow;
use std::cmp::Ordering as Comparison;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::vec;

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, Change, Order, Scan, Storage, StorageError, Ticket, is_index_entry};

type Map = OrdMap<Key, Bytes>;

/// A key inside the map. Nearly all are short, and those lie in the map's nodes: an insertion compares some twenty
/// keys, and following a pointer for each would cost more than everything else it does.
#[derive(Clone)]
enum Key {
    Short(u8, [u8; SHORT_BYTES]),
    Long(Bytes),
}

/// Makes a key of 64 bytes in all.
const SHORT_BYTES: usize = 62;

impl Key {
    fn new(bytes: Bytes) -> Self {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= SHORT_BYTES => {
                let mut short = [0; SHORT_BYTES];
                short[..bytes.len()].copy_from_slice(&bytes);
                Self::Short(len, short)
            }
            Ok(_) | Err(_) => Self::Long(bytes),
        }
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }

    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Short(..) => Bytes::copy_from_slice(self.as_slice()),
            Self::Long(bytes) => bytes.clone(),
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Comparison> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Comparison {
        self.as_slice().cmp(other.as_slice())
    }
}

/// Keeps everything in memory and forgets it when dropped.
#[derive(Default)]
pub struct MemoryStorage {
    rows: RwLock<Rows>,
    commits: AtomicU64,
}

#[derive(Default)]
struct Rows {
    map: Map,
    /// Changes of index entries that are not in the map yet, oldest first.
    waiting: Vec<(Key, Option<Bytes>)>,
}

/// A document writes some thirty index entries, and nobody looks at one before the next scan: they wait until then, or
/// until this many do, and enter the map in its order. That takes a third of the time of entering it one by one.
const WAITING_MAX: usize = 4096;

impl Rows {
    fn change(&mut self, key: Bytes, value: Option<Bytes>) {
        if is_index_entry(&key) {
            self.waiting.push((Key::new(key), value));
        } else {
            self.enter(Key::new(key), value);
        }
    }

    fn enter(&mut self, key: Key, value: Option<Bytes>) {
        match value {
            Some(value) => self.map.insert(key, value),
            None => self.map.remove(&key),
        };
    }

    fn let_in(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        // The sort is stable, so the last change of a key stays the last.
        waiting.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, value) in waiting.drain(..) {
            self.enter(key, value);
        }
        self.waiting = waiting;
    }
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the map with everything in it.
    fn look<T>(&self, look: impl FnOnce(&Map) -> T) -> T {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        if rows.waiting.is_empty() {
            return look(&rows.map);
        }
        drop(rows);
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        rows.let_in();
        look(&rows.map)
    }
}

impl std::fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStorage").field("commits", &self.commits).finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        if is_index_entry(key) {
            return Ok(self.look(|map| map.get(key).cloned()));
        }
        Ok(self.rows.read().unwrap_or_else(PoisonError::into_inner).map.get(key).cloned())
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        Box::new(Snapshot {
            map: self.look(Map::clone),
            lower: lower.map(Bytes::copy_from_slice),
            upper: upper.map(Bytes::copy_from_slice),
            order,
            chunk: Vec::new().into_iter(),
            chunk_rows: CHUNK_ROWS_MIN,
        })
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        batch.check()?;
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        for change in batch.changes {
            match change {
                Change::Put(key, value) => rows.change(key, Some(value)),
                Change::Delete(key) => rows.change(key, None),
            }
        }
        if rows.waiting.len() > WAITING_MAX {
            rows.let_in();
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
        let rows = self.map.range::<_, [u8]>(bounds).map(|(key, value)| (key.to_bytes(), value.clone()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_length_keep_their_order() {
        let keys: Vec<Bytes> = (0..2 * SHORT_BYTES).map(|len| Bytes::from(vec![7; len])).collect();
        for pair in keys.windows(2) {
            assert!(Key::new(pair[0].clone()) < Key::new(pair[1].clone()), "{} bytes", pair[0].len());
            assert_eq!(Key::new(pair[0].clone()).to_bytes(), pair[0]);
        }
    }

    #[test]
    fn the_last_change_of_an_entry_counts_however_many_wait() {
        for count in [10, WAITING_MAX, 3 * WAITING_MAX] {
            let storage = MemoryStorage::new();
            let entry = |n: usize| Bytes::from(format!("\u{11}{:05}", n % 1000));
            for n in 0..count {
                let value = Bytes::from(n.to_string());
                let mut changes = vec![Change::Put(entry(n), value)];
                changes.extend((n % 3 == 0).then(|| Change::Delete(entry(n))));
                storage.commit(Batch { changes }).expect("memory takes it");
            }
            let mut expected = std::collections::BTreeMap::new();
            for n in 0..count {
                expected.insert(entry(n), (n % 3 != 0).then(|| Bytes::from(n.to_string())));
            }
            let expected: Vec<_> = expected.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            let found: Vec<_> = storage
                .scan(Bound::Unbounded, Bound::Unbounded, Order::Forward)
                .map(|row| row.expect("memory reads"))
                .collect();
            assert_eq!(found, expected, "{count} changes");
        }
    }
}
