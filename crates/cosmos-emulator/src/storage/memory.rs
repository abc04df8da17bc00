//! The store without a disk: a persistent ordered map, whose copies are cheap enough to hand one to each scan.

use std::borrow::Borrow;
use std::cmp::Ordering as Comparison;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::vec;

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, Change, INDEX_TAGS, Order, Scan, Storage, StorageError, Ticket, View, is_index_entry};

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
///
/// Index entries have a map of their own. A document writes some thirty of them, and nobody looks at one before the next
/// scan: they wait until then, or until many do, and enter the map in its order, where neighbours find the same nodes
/// still in the cache. Whoever lets them in keeps nobody from reading and writing records.
#[derive(Default)]
pub struct MemoryStorage {
    // Locked in this order: entries, waiting, records.
    entries: Mutex<Entries>,
    /// Changes of entries that are not in their map yet, oldest first. Whoever commits holds it, so that a batch
    /// becomes visible as a whole.
    waiting: Mutex<Waiting>,
    records: RwLock<Map>,
    commits: AtomicU64,
}

#[derive(Default)]
struct Entries {
    map: Map,
    /// Empty, and large enough for those that wait next.
    spare: Waiting,
}

type Waiting = Vec<Entering>;

struct Entering {
    key: Key,
    /// The last change of a key is the one that counts.
    turn: u32,
    value: Option<Bytes>,
}

/// From this many on, a writer lets them in after its commit, unless somebody does already.
const WAITING_MANY: usize = 8 * 1024;
/// From this many on, commits wait for whoever lets them in.
const WAITING_MAX: usize = 16 * WAITING_MANY;

fn enter(map: &mut Map, key: Key, value: Option<Bytes>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl Entries {
    fn enter_all(&mut self, mut waiting: Waiting) {
        waiting.sort_unstable_by(|one, other| one.key.cmp(&other.key).then(one.turn.cmp(&other.turn)));
        for Entering { key, value, .. } in waiting.drain(..) {
            enter(&mut self.map, key, value);
        }
        self.spare = waiting;
    }
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn records(&self) -> RwLockReadGuard<'_, Map> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries, with all that was committed before.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_in(&mut entries);
        entries
    }

    /// Nobody who commits waits for more than the exchange of two lists.
    fn let_in(&self, entries: &mut Entries) {
        let mut taken = std::mem::take(&mut entries.spare);
        std::mem::swap(&mut taken, &mut self.waiting());
        entries.enter_all(taken);
    }

    /// Both maps at one moment: when the list of those that wait is taken, for that is held by whoever commits.
    fn everything(&self) -> Everything {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = std::mem::take(&mut entries.spare);
        let mut waiting = self.waiting();
        std::mem::swap(&mut taken, &mut waiting);
        let records = self.records().clone();
        drop(waiting);
        entries.enter_all(taken);
        Everything { records, entries: entries.map.clone() }
    }
}

impl std::fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStorage").field("commits", &self.commits).finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(if is_index_entry(key) {
            self.entries().map.get(key).cloned()
        } else {
            self.records().get(key).cloned()
        })
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        match Side::of(lower, upper) {
            Side::Records => Box::new(Snapshot::new(self.records().clone(), lower, upper, order)),
            Side::Entries => Box::new(Snapshot::new(self.entries().map.clone(), lower, upper, order)),
            Side::Both => self.everything().into_scan(lower, upper, order),
        }
    }

    fn view(&self) -> Box<dyn View + '_> {
        Box::new(self.everything())
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        batch.check()?;
        let mut waiting = self.waiting();
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        for change in batch.changes {
            let (key, value) = match change {
                Change::Put(key, value) => (key, Some(value)),
                Change::Delete(key) => (key, None),
            };
            if is_index_entry(&key) {
                let turn = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
                waiting.push(Entering { key: Key::new(key), turn, value });
            } else {
                enter(&mut records, Key::new(key), value);
            }
        }
        let ticket = Ticket(self.commits.fetch_add(1, Ordering::Relaxed) + 1);
        let count = waiting.len();
        drop((records, waiting));
        if count >= WAITING_MAX {
            drop(self.entries());
        }
        Ok(ticket)
    }

    fn let_in_waiting(&self) {
        let many = self.waiting().len() >= WAITING_MANY;
        if many && let Ok(mut entries) = self.entries.try_lock() {
            self.let_in(&mut entries);
        }
    }

    fn wait_durable(&self, _ticket: Ticket) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_slow_to_sync(&self) -> bool {
        false
    }
}

/// Both maps at one moment.
#[derive(Clone)]
struct Everything {
    records: Map,
    entries: Map,
}

impl Everything {
    fn into_scan<'a>(self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'a> {
        let (first, last) = ENTRIES;
        let low = Snapshot::new(self.records.clone(), lower, Bound::Excluded(&first), order);
        let entries = Snapshot::new(self.entries, lower, upper, order);
        let high = Snapshot::new(self.records, Bound::Included(&last), upper, order);
        match order {
            Order::Forward => Box::new(low.chain(entries).chain(high)),
            Order::Reverse => Box::new(high.chain(entries).chain(low)),
        }
    }
}

impl View for Everything {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let map = if is_index_entry(key) { &self.entries } else { &self.records };
        Ok(map.get(key).cloned())
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        match Side::of(lower, upper) {
            Side::Records => Box::new(Snapshot::new(self.records.clone(), lower, upper, order)),
            Side::Entries => Box::new(Snapshot::new(self.entries.clone(), lower, upper, order)),
            Side::Both => self.clone().into_scan(lower, upper, order),
        }
    }
}

/// The least key of an entry, and the least beyond them.
const ENTRIES: ([u8; 1], [u8; 1]) = ([*INDEX_TAGS.start()], [*INDEX_TAGS.end() + 1]);

/// In which map the keys between two bounds are.
enum Side {
    Records,
    Entries,
    Both,
}

impl Side {
    fn of(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let is_entry = |bound: Bound<&[u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => is_index_entry(key),
            Bound::Unbounded => false,
        };
        let (first, last) = ENTRIES;
        let before = is_empty((Bound::Included(&first), upper));
        let behind = is_empty((lower, Bound::Excluded(&last)));
        if before || behind {
            Self::Records
        } else if is_entry(lower) && (is_entry(upper) || upper == Bound::Excluded(&last)) {
            Self::Entries
        } else {
            Self::Both
        }
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
    fn new(map: Map, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Self {
        Self {
            map,
            lower: lower.map(Bytes::copy_from_slice),
            upper: upper.map(Bytes::copy_from_slice),
            order,
            chunk: Vec::new().into_iter(),
            chunk_rows: CHUNK_ROWS_MIN,
        }
    }

    fn chunk_after_last(&self) -> Vec<(Bytes, Bytes)> {
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
        let chunk = self.chunk_after_last();
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
        for count in [10, WAITING_MANY, 3 * WAITING_MANY] {
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
            let expected: Vec<_> =
                expected.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
            let found: Vec<_> = storage
                .scan(Bound::Unbounded, Bound::Unbounded, Order::Forward)
                .map(|row| row.expect("memory reads"))
                .collect();
            assert_eq!(found, expected, "{count} changes");
        }
    }
}
