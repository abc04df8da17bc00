//! The entries that many new items leave in one group: their order is kept, and each is made from its item when
//! somebody looks at it.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::Key;
use super::group::Group;
use crate::storage::NewEntries;

/// For fewer entries a tree is as good.
const ENTRIES_MIN: usize = 256;
/// To make an entry is to pass those that its item has before it.
const ENTRIES_OF_ITEM_MAX: u32 = 8;

/// Entries of new items in order.
pub(super) struct Base {
    group: Group,
    /// Those that have entries in the group.
    items: Vec<Arc<dyn NewEntries>>,
    slots: Box<[Slot]>,
    /// How many entries were passed that are gone.
    passed: AtomicUsize,
}

/// An entry: the number of its item, and which of the item's entries in the group it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    item: u32,
    nth: u32,
}

impl Base {
    /// The entries of new items in a group, where it is worth it.
    pub(super) fn new<'a>(
        group: Group,
        new: impl ExactSizeIterator<Item = &'a Arc<dyn NewEntries>>,
    ) -> Option<Self> {
        if new.len() < ENTRIES_MIN {
            return None;
        }
        let (mut items, mut order) = (Vec::new(), Vec::new());
        for item in new {
            let mut slot = Slot { item: u32::try_from(items.len()).ok()?, nth: 0 };
            item.of_group(group.as_slice(), &mut |rest, _| {
                order.push((sorting(rest), slot));
                slot.nth += 1;
            });
            if slot.nth > ENTRIES_OF_ITEM_MAX {
                return None;
            }
            if slot.nth > 0 {
                items.push(Arc::clone(item));
            }
        }
        if order.len() < ENTRIES_MIN {
            return None;
        }
        let mut base = Self { group, items, slots: Box::default(), passed: AtomicUsize::new(0) };
        // Most differ in their first bytes, and of those that do not, the older item mostly comes first.
        order.sort_unstable();
        for run in order.chunk_by_mut(|(one, _), (other, _)| one == other).filter(|run| run.len() > 1) {
            if !run.is_sorted_by_key(|(_, slot)| base.key(*slot)) {
                run.sort_by_cached_key(|(_, slot)| base.key(*slot));
            }
        }
        base.slots = order.into_iter().map(|(_, slot)| slot).collect();
        Some(base)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Bytes> {
        let place = self.slots.partition_point(|slot| self.key(*slot).as_slice() < key);
        let (found, value) = (place < self.len()).then(|| self.at(place))?;
        (found.as_slice() == key).then_some(value)
    }

    /// Those between two bounds, by their places in the order.
    pub(super) fn between(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Range<usize> {
        let before = |is_before: &dyn Fn(&[u8]) -> bool| {
            self.slots.partition_point(|slot| is_before(self.key(*slot).as_slice()))
        };
        let start = match lower {
            Bound::Included(low) => before(&|key| key < low),
            Bound::Excluded(low) => before(&|key| key <= low),
            Bound::Unbounded => 0,
        };
        let end = match upper {
            Bound::Included(high) => before(&|key| key <= high),
            Bound::Excluded(high) => before(&|key| key < high),
            Bound::Unbounded => self.len(),
        };
        start..end
    }

    /// Key and value of the one at this place in the order.
    pub(super) fn at(&self, place: usize) -> (Key, Bytes) {
        self.find(self.slots[place], |key, value| (key, value.clone()))
    }

    /// Somebody came past so many that are gone.
    pub(super) fn pass(&self, gone: usize) {
        self.passed.fetch_add(gone, Ordering::Relaxed);
    }

    /// Whether it is in the way, with so many gone: passing them has become as much work as a tree is.
    pub(super) fn is_outlived(&self, gone: usize) -> bool {
        2 * gone >= self.len() || self.passed.load(Ordering::Relaxed) > self.len()
    }

    fn key(&self, slot: Slot) -> Key {
        self.find(slot, |key, _| key)
    }

    fn find<T>(&self, slot: Slot, take: impl Fn(Key, &Bytes) -> T) -> T {
        let (mut found, mut nth) = (None, 0);
        self.items[slot.item as usize].of_group(self.group.as_slice(), &mut |rest, value| {
            if nth == slot.nth {
                found = Some(take(Key::join(self.group.as_slice(), rest), value));
            }
            nth += 1;
        });
        found.expect("items do not change")
    }
}

/// What tells most entries of a group apart: the first bytes behind what they share.
pub(super) fn sorting(rest: [&[u8]; 3]) -> [u64; 3] {
    let mut bytes = [0; 24];
    let mut end = 0;
    for part in rest {
        let part = &part[..part.len().min(bytes.len() - end)];
        bytes[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    let (words, _) = bytes.as_chunks::<8>();
    [0, 1, 2].map(|at| u64::from_be_bytes(words[at]))
}
