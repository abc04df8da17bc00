//! New items of a container, kept once for all the groups that they have entries in.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use super::entries::WAITING_MANY;
use super::group::Group;
use crate::storage::NewEntries;

/// Items that are handed on together.
pub(super) const CHUNK_ITEMS: usize = 256;
/// So many forms are remembered; who is forgotten tells its groups again.
const FORMS_MAX: usize = 4096;

/// New items of one container, with the entries that they leave in many groups.
#[derive(Default)]
pub(super) struct Family {
    /// Oldest first. Those that all groups have taken in have left.
    items: VecDeque<Arc<[Item]>>,
    /// The youngest, fewer than a chunk.
    open: Vec<Item>,
    left: usize,
    /// How many entries the items have, and how many entries of the family were removed while they were there.
    entries: usize,
    pub(super) removals: usize,
    pub(super) groups: HashSet<Group>,
    pub(super) asked_for: Vec<Group>,
    /// How many groups have taken in how many.
    taken: BTreeMap<usize, usize>,
    /// Forms of items whose groups are known.
    forms: HashSet<u64>,
}

/// Its commit, and what it leaves.
pub(super) type Item = (u64, Arc<dyn NewEntries>);

impl Family {
    /// How many new items there ever were.
    pub(super) fn count(&self) -> usize {
        self.left + self.here()
    }

    pub(super) fn here(&self) -> usize {
        self.items.len() * CHUNK_ITEMS + self.open.len()
    }

    pub(super) fn push(&mut self, item: Item) {
        self.entries += item.1.count();
        self.open.push(item);
        if self.open.len() == CHUNK_ITEMS {
            self.items.push_back(self.open.drain(..).collect());
        }
    }

    /// Those that a group has not taken in, in chunks, and how many of the first chunk it has.
    pub(super) fn since(&self, taken: usize) -> (Vec<Arc<[Item]>>, usize) {
        let known = taken - self.left;
        let mut chunks: Vec<_> =
            self.items.range((known / CHUNK_ITEMS).min(self.items.len())..).cloned().collect();
        chunks.push(self.open.as_slice().into());
        (chunks, known % CHUNK_ITEMS)
    }

    /// Moves a group on, and lets go of what all have taken in.
    pub(super) fn move_on(&mut self, before: usize) {
        let count = self.count();
        self.unlist(before);
        *self.taken.entry(count).or_default() += 1;
        let Some((least, _)) = self.taken.first_key_value() else { return };
        if *least == count {
            self.items.clear();
            self.open.clear();
            (self.left, self.entries, self.removals) = (count, 0, 0);
            return;
        }
        for _ in 0..(*least - self.left) / CHUNK_ITEMS {
            let Some(chunk) = self.items.pop_front() else { return };
            self.left += CHUNK_ITEMS;
            self.entries -= chunk.iter().map(|(_, item)| item.count()).sum::<usize>();
            self.removals = 0;
        }
    }

    /// Whether nobody has told the groups of items of this form.
    pub(super) fn learn(&mut self, form: u64) -> bool {
        if self.forms.len() >= FORMS_MAX {
            self.forms.clear();
        }
        self.forms.insert(form)
    }

    /// Counts a group in, unless it is; returns how many items are no news to it.
    pub(super) fn enlist(&mut self, group: Group) -> Option<usize> {
        if !self.groups.insert(group) {
            return None;
        }
        let count = self.count();
        *self.taken.entry(count).or_default() += 1;
        Some(count)
    }

    /// Counts a group out that has taken in so many.
    pub(super) fn forget(&mut self, group: Group, taken: usize) {
        self.unlist(taken);
        self.groups.remove(&group);
        self.asked_for.retain(|own| *own != group);
        // The next item of any form brings its groups again.
        self.forms.clear();
    }

    fn unlist(&mut self, taken: usize) {
        if let Entry::Occupied(mut groups) = self.taken.entry(taken) {
            *groups.get_mut() -= 1;
            if *groups.get() == 0 {
                groups.remove();
            }
        }
    }

    /// Whether much of what it keeps is gone again.
    pub(super) fn is_stale(&self) -> bool {
        self.here() >= WAITING_MANY && 3 * self.removals >= self.entries
    }
}
