//! The store without a disk: persistent ordered maps, whose copies are cheap enough to hand one to each scan.

mod base;
mod entries;
mod family;
mod group;
mod map;
mod tree;

use std::borrow::Borrow;
use std::cmp::Ordering as Comparison;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::vec;

use bytes::Bytes;

use self::entries::Entries;
use self::group::Group;
use self::map::Map;
use super::{
    Batch, Change, INDEX_TAGS, NewEntries, Order, Scan, Storage, StorageError, Ticket, View, group_bytes,
    is_index_entry,
};

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

    /// The key of an entry of a group.
    fn join(group: &[u8], rest: [&[u8]; 3]) -> Self {
        let [first, second, third] = rest;
        let parts = [group, first, second, third];
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > SHORT_BYTES {
            return Self::Long(parts.concat().into());
        }
        let mut short = [0; SHORT_BYTES];
        let mut end = 0;
        for part in parts {
            short[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        Self::Short(len as u8, short)
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }

    fn sorting(&self) -> [u64; 3] {
        let bytes = self.as_slice();
        base::sorting([bytes.get(group_bytes(bytes)..).unwrap_or_default(), &[], &[]])
    }

    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Short(..) => Bytes::copy_from_slice(self.as_slice()),
            Self::Long(bytes) => bytes.clone(),
        }
    }
}

impl Default for Key {
    fn default() -> Self {
        Self::Short(0, [0; SHORT_BYTES])
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
    // Locked in this order: a group's tree, what has arrived, records.
    entries: Entries,
    records: RwLock<Map>,
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn records(&self) -> RwLockReadGuard<'_, Map> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything as it is now: whoever commits holds what has arrived.
    fn moment(&self) -> Arc<Moment<'_>> {
        let mut arrivals = self.entries.arrivals();
        let number = arrivals.enter_moment();
        Arc::new(Moment { store: self, number, records: self.records().clone() })
    }
}

impl std::fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStorage").finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(if is_index_entry(key) {
            self.entries.version(Group::of(key), None).get(key)
        } else {
            self.records().get(key)
        })
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        match Side::of(lower, upper) {
            Side::Records => Box::new(Snapshot::new(self.records().clone(), lower, upper, order)),
            Side::Group(group) => {
                Box::new(Snapshot::new(self.entries.version(group, None), lower, upper, order))
            }
            Side::Both => self.moment().into_scan(lower, upper, order),
        }
    }

    fn view(&self) -> Box<dyn View + '_> {
        Box::new(self.moment())
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        self.commit_with(Vec::new(), batch)
    }

    fn commit_with(&self, entries: Vec<Arc<dyn NewEntries>>, batch: Batch) -> Result<Ticket, StorageError> {
        batch.check()?;
        let mut arrivals = self.entries.arrivals();
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let number = arrivals.begin();
        entries.into_iter().for_each(|entries| arrivals.push_new(entries));
        for change in batch.changes {
            let (key, value) = match change {
                Change::Put(key, value) => (Key::new(key), Some(value)),
                Change::Delete(key) => (Key::new(key), None),
            };
            if is_index_entry(key.as_slice()) {
                arrivals.push(key, value);
            } else {
                records.enter(key, value);
            }
        }
        drop(records);
        self.entries.finish(arrivals);
        Ok(Ticket(number))
    }

    fn forget_entries(&self, prefix: &[u8]) -> usize {
        self.entries.forget_all(prefix)
    }

    fn let_in_waiting(&self) {
        self.entries.take_in_due();
    }

    fn wait_durable(&self, _ticket: Ticket) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_slow_to_sync(&self) -> bool {
        false
    }
}

/// Everything at one moment.
struct Moment<'a> {
    store: &'a MemoryStorage,
    number: u64,
    records: Map,
}

impl Drop for Moment<'_> {
    fn drop(&mut self) {
        self.store.entries.leave_moment(self.number);
    }
}

impl<'a> Moment<'a> {
    fn group(&self, group: Group) -> Map {
        self.store.entries.version(group, Some(self.number))
    }

    fn into_scan(self: Arc<Self>, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'a> {
        let (first, last) = ENTRIES;
        let low = Snapshot::new(self.records.clone(), lower, Bound::Excluded(&first), order);
        let high = Snapshot::new(self.records.clone(), Bound::Included(&last), upper, order);
        let entries = Groups::new(self, lower, upper, order);
        match order {
            Order::Forward => Box::new(low.chain(entries).chain(high)),
            Order::Reverse => Box::new(high.chain(entries).chain(low)),
        }
    }
}

impl View for Arc<Moment<'_>> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(if is_index_entry(key) { self.group(Group::of(key)).get(key) } else { self.records.get(key) })
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        match Side::of(lower, upper) {
            Side::Records => Box::new(Snapshot::new(self.records.clone(), lower, upper, order)),
            Side::Group(group) => Box::new(Snapshot::new(self.group(group), lower, upper, order)),
            Side::Both => self.clone().into_scan(lower, upper, order),
        }
    }
}

/// The least key of an entry, and the least beyond them.
const ENTRIES: ([u8; 1], [u8; 1]) = ([*INDEX_TAGS.start()], [*INDEX_TAGS.end() + 1]);

/// In which map the keys between two bounds are.
enum Side {
    Records,
    Group(Group),
    Both,
}

impl Side {
    fn of(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let (first, last) = ENTRIES;
        let before = is_empty((Bound::Included(&first), upper));
        let behind = is_empty((lower, Bound::Excluded(&last)));
        if before || behind {
            return Self::Records;
        }
        Group::between(lower, upper).map_or(Self::Both, Self::Group)
    }
}

/// A scan over the entries of several groups, each looked at when the one before has ended.
struct Groups<'a> {
    moment: Arc<Moment<'a>>,
    left: vec::IntoIter<Group>,
    bounds: (Bound<Bytes>, Bound<Bytes>),
    order: Order,
    current: Option<Snapshot>,
}

impl<'a> Groups<'a> {
    fn new(moment: Arc<Moment<'a>>, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Self {
        let mut groups = moment.store.entries.groups(lower, upper);
        if order == Order::Reverse {
            groups.reverse();
        }
        let bounds = (lower.map(Bytes::copy_from_slice), upper.map(Bytes::copy_from_slice));
        Self { moment, left: groups.into_iter(), bounds, order, current: None }
    }
}

impl Iterator for Groups<'_> {
    type Item = Result<(Bytes, Bytes), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.current.as_mut().and_then(Iterator::next) {
                return Some(row);
            }
            let map = self.moment.group(self.left.next()?);
            let (lower, upper) = (borrowed(&self.bounds.0), borrowed(&self.bounds.1));
            self.current = Some(Snapshot::new(map, lower, upper, self.order));
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
        self.map.rows(borrowed(&self.lower), borrowed(&self.upper), self.order, self.chunk_rows)
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
        for count in [10, entries::WAITING_MANY, 3 * entries::WAITING_MANY] {
            let storage = MemoryStorage::new();
            let entry = |n: usize| Bytes::from(format!("\u{11}{:05}", n % 1000));
            for n in 0..count {
                let value = Bytes::from(n.to_string());
                let mut changes = vec![Change::Put(entry(n), value)];
                changes.extend((n % 3 == 0).then(|| Change::Delete(entry(n))));
                storage.commit(Batch { changes }).expect("memory takes it");
                storage.let_in_waiting();
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
