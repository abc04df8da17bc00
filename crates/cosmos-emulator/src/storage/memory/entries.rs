//! Index entries: a document leaves some thirty of them, and most are never looked at.
//!
//! Entries that are looked at together, those of one path in one order, are a [`Group`]. A commit only adds to what
//! waits: a new item as it is, for all its groups at once, and single changes to the lists of their groups. A group's tree
//! takes them in when somebody looks at the group. From then on, or once much of what waits is about entries that are
//! gone again, writers take them in as well, so that nobody has to wait for many.
//!
//! A [`Moment`](super::Moment) sees each group as it was, whenever it comes to look: a tree that goes on keeps the
//! versions of the moments that are still in use.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Key;
use super::base::Base;
use super::family::{CHUNK_ITEMS, Family, Item};
use super::group::Group;
use super::map::Map;
use super::tree::{Arrival, Tree};
use crate::storage::NewEntries;

/// The entries of a store.
#[derive(Default)]
pub(super) struct Entries {
    arrivals: Mutex<Arrivals>,
    /// Whether some group has enough waiting that a writer should take it in.
    is_due: AtomicBool,
}

/// What has come. Whoever commits holds it, so that a batch becomes visible as a whole.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Number of the last commit.
    commit: u64,
    lists: HashMap<Group, List>,
    families: HashMap<u32, Family>,
    /// How many use each moment.
    moments: BTreeMap<u64, usize>,
    /// Whose turn it is to be taken in, each once.
    due: VecDeque<Group>,
    /// Groups whose trees keep versions of moments before.
    looked_back: HashSet<Group>,
}

/// What waits for one group.
#[derive(Default)]
struct List {
    tree: Arc<Mutex<Tree>>,
    /// Oldest first.
    waiting: Vec<Arrival>,
    removals: usize,
    /// How many of its family's new items it has taken in, of all there ever were. None where it has no family.
    taken: Option<usize>,
    is_asked_for: bool,
    is_due: bool,
}

/// From this many on, a writer takes them in after its commit, unless somebody does already.
pub(super) const WAITING_MANY: usize = 1024;
/// So often it is seen whether they are many.
const WAITING_STEP: usize = 256;
/// From this many on, commits wait for whoever takes them in.
const WAITING_MAX: usize = 128 * WAITING_MANY;

impl List {
    /// How many wait, in the list and in its family.
    fn count(&self, families: &HashMap<u32, Family>, group: Group) -> usize {
        let of_family = self.taken.and_then(|taken| Some(families.get(&group.family())?.count() - taken));
        self.waiting.len() + of_family.unwrap_or(0)
    }
}

impl Arrivals {
    /// Begins a commit and returns its number.
    pub(super) fn begin(&mut self) -> u64 {
        self.commit += 1;
        self.commit
    }

    /// Adds a change of the commit that began last.
    pub(super) fn push(&mut self, key: Key, value: Option<Bytes>) {
        let group = Group::of(key.as_slice());
        let list = self.lists.entry(group).or_default();
        if value.is_none() {
            list.removals += 1;
            if list.taken.is_some()
                && let Some(family) = self.families.get_mut(&group.family())
            {
                family.removals += 1;
            }
        }
        list.waiting.push(Arrival { key, commit: self.commit, value });
        if list.waiting.len().is_multiple_of(WAITING_STEP) {
            let count = list.count(&self.families, group);
            if count >= WAITING_MANY && (list.is_asked_for || 3 * list.removals >= count) {
                self.is_due(group);
            }
        }
    }

    /// Adds the entries of a new item, before the other changes of the commit that began last.
    pub(super) fn push_new(&mut self, entries: Arc<dyn NewEntries>) {
        let family = self.families.entry(entries.family()).or_default();
        if family.learn(entries.form()) {
            for group in entries.groups() {
                let group = Group::of(&group);
                let list = self.lists.entry(group).or_default();
                list.taken = family.enlist(group).or(list.taken);
            }
        }
        family.push((self.commit, entries));
        if family.count().is_multiple_of(WAITING_STEP) {
            let is_stale = family.is_stale();
            let groups: Vec<_> =
                if is_stale { family.groups.iter().copied().collect() } else { family.asked_for.clone() };
            for group in groups {
                let waits = |list: &List| list.count(&self.families, group);
                let count = self.lists.get(&group).map_or(0, waits);
                if count >= WAITING_MANY || (is_stale && count > 0) {
                    self.is_due(group);
                }
            }
        }
    }

    fn is_due(&mut self, group: Group) {
        if let Some(list) = self.lists.get_mut(&group)
            && !std::mem::replace(&mut list.is_due, true)
        {
            self.due.push_back(group);
        }
    }

    /// A moment is in use from now on.
    pub(super) fn enter_moment(&mut self) -> u64 {
        *self.moments.entry(self.commit).or_default() += 1;
        self.commit
    }

    /// A group that so many wait for that nobody may add to them.
    fn overdue(&self) -> Option<Group> {
        let is_overdue = |group: &&Group| {
            self.lists.get(group).is_some_and(|list| list.count(&self.families, **group) >= WAITING_MAX)
        };
        self.due.front().filter(is_overdue).copied()
    }

    /// Takes what waits for a group, oldest first.
    fn take(&mut self, group: Group, why: Why) -> Taken {
        let moments = self.moments.keys().copied().collect();
        let mut taken = Taken { upto: self.commit, moments, ..Taken::default() };
        let Some(list) = self.lists.get_mut(&group) else { return taken };
        list.removals = 0;
        if std::mem::take(&mut list.is_due) {
            self.due.retain(|due| *due != group);
        }
        let is_new = why == Why::Look && !std::mem::replace(&mut list.is_asked_for, true);
        taken.waiting = std::mem::take(&mut list.waiting);
        if let (Some(before), Some(family)) = (list.taken, self.families.get_mut(&group.family())) {
            (taken.chunks, taken.known) = family.since(before);
            list.taken = Some(family.count());
            family.move_on(before);
            if is_new {
                family.asked_for.push(group);
            }
        }
        taken
    }

    /// Forgets a group of which nothing is left, for nobody.
    fn forget(&mut self, group: Group) -> bool {
        let is_over = |list: &List| list.count(&self.families, group) == 0;
        if !self.lists.get(&group).is_some_and(is_over) {
            return false;
        }
        let Some(list) = self.lists.remove(&group) else { return false };
        // A family without groups has no items either.
        drop(self.leave_family(group, &list));
        true
    }

    /// Counts a group that was forgotten out of its family, and returns the family if that was its last.
    fn leave_family(&mut self, group: Group, list: &List) -> Option<Family> {
        let family = self.families.get_mut(&group.family())?;
        family.forget(group, list.taken?);
        if family.groups.is_empty() { self.families.remove(&group.family()) } else { None }
    }
}

/// Why somebody takes in what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Look,
    /// There is much of it.
    Tidy,
}

/// What waited for a group, and what its tree has to know.
#[derive(Default)]
struct Taken {
    chunks: Vec<Arc<[Item]>>,
    /// How many of the first chunk are no news.
    known: usize,
    waiting: Vec<Arrival>,
    moments: Vec<u64>,
    upto: u64,
}

impl Taken {
    /// Makes a base of the first new items, up to the first moment in use after a commit. Nothing is lost if changes
    /// of that time are entered later: no entry of a new item was there before.
    fn take_base(&mut self, group: Group, since: u64) -> Option<Base> {
        let until = self.moments.iter().copied().find(|moment| *moment >= since).unwrap_or(self.upto);
        let item = |number: usize| &self.chunks[number / CHUNK_ITEMS][number % CHUNK_ITEMS];
        // All but the last are full.
        let full = self.chunks.len().saturating_sub(1) * CHUNK_ITEMS;
        let mut end = full + self.chunks.last().map_or(0, |chunk| chunk.len());
        while end > self.known && item(end - 1).0 > until {
            end -= 1;
        }
        let removals = self.waiting.iter().filter(|arrival| arrival.value.is_none()).count();
        if 3 * removals >= end - self.known {
            // Where much goes away again, the items should as well.
            return None;
        }
        let base = Base::new(group, (self.known..end).map(|number| &item(number).1))?;
        self.known = end;
        Some(base)
    }

    /// In the order of their commits; within one, entries of new items come first.
    fn arrivals(&mut self, group: Group) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for (commit, entries) in self.chunks.iter().flat_map(|chunk| chunk.iter()).skip(self.known) {
            entries.of_group(group.as_slice(), &mut |rest, value| {
                let key = Key::join(group.as_slice(), rest);
                arrivals.push(Arrival { key, commit: *commit, value: Some(value.clone()) });
            });
        }
        arrivals.append(&mut self.waiting);
        arrivals.sort_by_key(|arrival| arrival.commit);
        arrivals
    }
}

impl Entries {
    pub(super) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a commit.
    pub(super) fn finish(&self, arrivals: MutexGuard<'_, Arrivals>) {
        if arrivals.due.is_empty() {
            return;
        }
        self.is_due.store(true, Ordering::Relaxed);
        let overdue = arrivals.overdue();
        drop(arrivals);
        if let Some((group, tree)) = overdue.and_then(|group| Some((group, self.tree(group)?))) {
            let mut tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
            if !tree.is_gone {
                self.go_on(group, &mut tree, Why::Tidy);
            }
        }
    }

    pub(super) fn leave_moment(&self, moment: u64) {
        let looked_back = {
            let mut arrivals = self.arrivals();
            if let Some(count) = arrivals.moments.get_mut(&moment) {
                *count -= 1;
                if *count == 0 {
                    arrivals.moments.remove(&moment);
                }
            }
            if !arrivals.moments.is_empty() {
                return;
            }
            std::mem::take(&mut arrivals.looked_back)
        };
        for tree in looked_back.into_iter().filter_map(|group| self.tree(group)) {
            // Whoever holds it sees to that.
            let past = tree.try_lock().ok().map(|mut tree| {
                let moments: Vec<_> = self.arrivals().moments.keys().copied().collect();
                tree.keep_past_of(&moments)
            });
            // With it many items may go, and nobody should wait for that.
            drop(past);
        }
    }

    /// Forgets all groups whose keys begin like this; returns how many there were.
    pub(super) fn forget_all(&self, prefix: &[u8]) -> usize {
        let (lists, families) = {
            let mut arrivals = self.arrivals();
            let is_over = |group: &Group| group.as_slice().starts_with(prefix);
            let lists: Vec<_> = arrivals.lists.extract_if(|group, _| is_over(group)).collect();
            arrivals.due.retain(|group| !is_over(group));
            arrivals.looked_back.retain(|group| !is_over(group));
            let leave = |(group, list): &(Group, List)| arrivals.leave_family(*group, list);
            let families: Vec<_> = lists.iter().filter_map(leave).collect();
            (lists, families)
        };
        // Nobody waits while they go.
        drop(families);
        lists.len()
    }

    /// Takes in those that wait for a group where they are many: one group at a time, so that no writer is held up by
    /// all of them.
    pub(super) fn take_in_due(&self) {
        if !self.is_due.load(Ordering::Relaxed) {
            return;
        }
        let (group, tree) = {
            let mut arrivals = self.arrivals();
            let group = arrivals.due.pop_front();
            self.is_due.store(!arrivals.due.is_empty(), Ordering::Relaxed);
            let Some(group) = group else { return };
            let Some(list) = arrivals.lists.get_mut(&group) else { return };
            list.is_due = false;
            (group, list.tree.clone())
        };
        // Somebody else may take them in; who commits to the group later looks again.
        if let Ok(mut tree) = tree.try_lock()
            && !tree.is_gone
        {
            self.go_on(group, &mut tree, Why::Tidy);
        }
    }

    /// A group as it was at a moment, or as it is now.
    pub(super) fn version(&self, group: Group, moment: Option<u64>) -> Map {
        loop {
            let Some(tree) = self.tree(group) else { return Map::default() };
            let mut tree = tree.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(past) = tree.at(moment) {
                return past;
            }
            if !tree.is_gone {
                self.go_on(group, &mut tree, Why::Look);
                return tree.at(moment).unwrap_or_else(|| tree.map.clone());
            }
        }
    }

    /// The groups that have keys between two bounds, in order.
    pub(super) fn groups(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Group> {
        let arrivals = self.arrivals();
        let mut groups: Vec<_> =
            arrivals.lists.keys().filter(|group| group.overlaps(lower, upper)).copied().collect();
        groups.sort_unstable_by(|one, other| one.as_slice().cmp(other.as_slice()));
        groups
    }

    fn tree(&self, group: Group) -> Option<Arc<Mutex<Tree>>> {
        self.arrivals().lists.get(&group).map(|list| list.tree.clone())
    }

    /// Takes in what waits. Those who commit wait only until it is handed over.
    fn go_on(&self, group: Group, tree: &mut Tree, why: Why) {
        let mut taken = self.arrivals().take(group, why);
        drop(tree.keep_past_of(&taken.moments));
        if why == Why::Look
            && let Some(since) = tree.is_empty_since()
            && let Some(base) = taken.take_base(group, since)
        {
            tree.map = base.into();
        }
        let arrivals = taken.arrivals(group);
        if !arrivals.is_empty() {
            tree.take_in(arrivals, &taken.moments, taken.upto);
        }
        if !tree.past.is_empty() {
            self.arrivals().looked_back.insert(group);
        } else if tree.map.is_empty() {
            tree.is_gone = self.arrivals().forget(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Batch, Change, MemoryStorage, Order, Storage, View};

    const LOW: &[u8] = &[0x11];
    const HIGH: &[u8] = &[0x15];

    /// The key of an entry of one of several paths.
    fn entry(path: u8, value: u32) -> Bytes {
        let start = [0x11, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, path];
        Bytes::from([&start[..], &value.to_be_bytes()].concat())
    }

    fn put(storage: &MemoryStorage, changes: impl IntoIterator<Item = (Bytes, Option<u32>)>) {
        let change = |(key, value): (Bytes, Option<u32>)| match value {
            Some(value) => Change::Put(key, Bytes::copy_from_slice(&value.to_be_bytes())),
            None => Change::Delete(key),
        };
        let changes = changes.into_iter().map(change).collect();
        storage.commit(Batch { changes }).expect("memory takes it");
        storage.let_in_waiting();
    }

    fn all(view: &dyn View) -> Vec<(Bytes, Bytes)> {
        let scan = view.scan(Bound::Included(LOW), Bound::Excluded(HIGH), Order::Forward);
        scan.map(|row| row.expect("memory reads")).collect()
    }

    fn group(view: &dyn View, path: u8) -> usize {
        let (low, high) = (entry(path, 0), entry(path, u32::MAX));
        view.scan(Bound::Included(&low), Bound::Included(&high), Order::Reverse).count()
    }

    #[test]
    fn a_moment_sees_what_was_there_whoever_looks_first() {
        for looks_first in [0, 1, 2, 3] {
            let storage = MemoryStorage::new();
            put(&storage, (0..10).map(|n| (entry(1, n), Some(n))));
            let first = storage.view();
            put(&storage, [(entry(1, 3), None), (entry(1, 4), Some(44)), (entry(2, 0), Some(0))]);
            let second = storage.view();
            put(&storage, (0..10).map(|n| (entry(1, n), None)).chain([(entry(3, 0), Some(0))]));
            let views = [&first, &second];
            if let Some(view) = views.get(looks_first) {
                all(view.as_ref());
            } else if looks_first == 2 {
                all(storage.view().as_ref());
            }
            assert_eq!([1, 2, 3].map(|path| group(first.as_ref(), path)), [10, 0, 0], "{looks_first}");
            assert_eq!([1, 2, 3].map(|path| group(second.as_ref(), path)), [9, 1, 0], "{looks_first}");
            assert_eq!(
                [1, 2, 3].map(|path| group(storage.view().as_ref(), path)),
                [0, 1, 1],
                "{looks_first}"
            );
            assert_eq!(first.get(&entry(1, 4)).expect("read").as_deref(), Some(&4_u32.to_be_bytes()[..]));
            assert_eq!(second.get(&entry(1, 4)).expect("read").as_deref(), Some(&44_u32.to_be_bytes()[..]));
            assert_eq!(all(first.as_ref()).len(), 10);
            assert_eq!(all(second.as_ref()).len(), 10);
        }
    }

    #[test]
    fn nobody_takes_in_what_nobody_asks_for() {
        let storage = MemoryStorage::new();
        let many = u32::try_from(WAITING_MANY).expect("small");
        let waiting = |path: u8| {
            let arrivals = storage.entries.arrivals();
            arrivals.lists[&Group::of(&entry(path, 0))].waiting.len()
        };
        assert_eq!(group(storage.view().as_ref(), 2), 0, "it does not exist, so it was not asked for");
        put(&storage, (0..10).flat_map(|n| [(entry(1, n), Some(n)), (entry(2, n), Some(n))]));
        assert_eq!(group(storage.view().as_ref(), 2), 10);
        for n in 0..2 * many {
            put(&storage, [(entry(1, n), Some(n)), (entry(2, n), Some(n))]);
        }
        assert!(waiting(1) >= 2 * WAITING_MANY, "{}", waiting(1));
        assert!(waiting(2) < WAITING_MANY, "{}", waiting(2));
        assert_eq!(group(storage.view().as_ref(), 1), 2 * WAITING_MANY);
        assert_eq!((waiting(1), group(storage.view().as_ref(), 2)), (0, 2 * WAITING_MANY));
    }

    #[test]
    fn entries_that_come_and_go_do_not_pile_up() {
        let storage = MemoryStorage::new();
        let key = Group::of(&entry(1, 0));
        for n in 0..20_000 {
            put(&storage, [(entry(1, n), Some(n)), (entry(1, n.saturating_sub(1)), None)]);
            let waiting = storage.entries.arrivals().lists.get(&key).map_or(0, |list| list.waiting.len());
            assert!(waiting <= WAITING_MANY, "{waiting} wait");
        }
    }

    #[test]
    fn a_group_without_entries_is_forgotten_once_nobody_looks_back() {
        let storage = MemoryStorage::new();
        put(&storage, [(entry(1, 1), Some(1))]);
        let before = storage.view();
        put(&storage, [(entry(1, 1), None)]);
        assert_eq!(group(storage.view().as_ref(), 1), 0);
        assert_eq!(group(before.as_ref(), 1), 1);
        assert_eq!(storage.entries.arrivals().lists.len(), 1);
        drop(before);
        put(&storage, [(entry(1, 2), Some(2)), (entry(1, 2), None)]);
        assert_eq!(group(storage.view().as_ref(), 1), 0);
        let scan = storage.scan(Bound::Included(&entry(1, 0)), Bound::Included(&entry(1, 9)), Order::Forward);
        assert_eq!(scan.count(), 0);
        assert!(storage.entries.arrivals().lists.is_empty());
        assert!(storage.entries.arrivals().moments.is_empty());
        put(&storage, [(entry(1, 3), Some(3))]);
        assert_eq!(group(storage.view().as_ref(), 1), 1);
    }

    /// A new item with one entry in each of some paths.
    struct Thing {
        paths: Vec<u8>,
        value: u32,
    }

    impl NewEntries for Thing {
        fn family(&self) -> u32 {
            1
        }

        fn count(&self) -> usize {
            self.paths.len()
        }

        fn form(&self) -> u64 {
            self.paths.iter().fold(0, |form, path| form * 256 + u64::from(*path))
        }

        fn groups(&self) -> Vec<Vec<u8>> {
            self.paths.iter().map(|path| entry(*path, 0)[..17].to_vec()).collect()
        }

        fn each(&self, put: &mut dyn FnMut(Bytes, Bytes)) {
            self.paths.iter().for_each(|path| put(entry(*path, self.value), Bytes::new()));
        }

        fn of_group(&self, group: &[u8], put: &mut dyn FnMut([&[u8]; 3], &Bytes)) {
            self.each(&mut |key, value| {
                if let Some(rest) = key.strip_prefix(group) {
                    put([rest, &[], &[]], &value);
                }
            });
        }
    }

    fn put_item(storage: &MemoryStorage, paths: &[u8], value: u32, changes: Vec<Change>) {
        let item = Arc::new(Thing { paths: paths.to_vec(), value });
        storage.commit_with(vec![item], Batch { changes }).expect("memory takes it");
        storage.let_in_waiting();
    }

    #[test]
    fn new_items_are_seen_in_all_their_groups_at_their_moment() {
        for looks_first in [false, true] {
            let storage = MemoryStorage::new();
            put(&storage, [(entry(1, 1), Some(1))]);
            put_item(&storage, &[1, 2], 5, vec![Change::Delete(entry(1, 1))]);
            let first = storage.view();
            put_item(&storage, &[2, 3], 6, Vec::new());
            put(&storage, [(entry(2, 5), None)]);
            if looks_first {
                assert_eq!(all(storage.view().as_ref()).len(), 3);
            }
            assert_eq!([1, 2, 3].map(|path| group(first.as_ref(), path)), [1, 1, 0]);
            assert_eq!([1, 2, 3].map(|path| group(storage.view().as_ref(), path)), [1, 1, 1]);
            let keys: Vec<_> = all(storage.view().as_ref()).into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, [entry(1, 5), entry(2, 6), entry(3, 6)]);
        }
    }

    #[test]
    fn a_new_item_may_be_changed_by_the_commit_that_brings_it() {
        let storage = MemoryStorage::new();
        put_item(&storage, &[1, 2], 5, vec![Change::Delete(entry(1, 5))]);
        assert_eq!([1, 2].map(|path| group(storage.view().as_ref(), path)), [0, 1]);
    }

    #[test]
    fn new_items_leave_once_every_group_has_taken_them_in() {
        let storage = MemoryStorage::new();
        let items = || storage.entries.arrivals().families.get(&1).map_or(0, Family::here);
        for n in 0..100 {
            put_item(&storage, &[1, 2], n, Vec::new());
        }
        assert_eq!(group(storage.view().as_ref(), 1), 100);
        assert_eq!(items(), 100, "the other path has not taken them in");
        assert_eq!(group(storage.view().as_ref(), 2), 100);
        assert_eq!(items(), 0);
        put_item(&storage, &[3], 0, Vec::new());
        put_item(&storage, &[1, 2], 100, Vec::new());
        assert_eq!(all(storage.view().as_ref()).len(), 203);
        assert_eq!(items(), 0);
        put(&storage, [1, 2].into_iter().flat_map(|path| (0..=100).map(move |n| (entry(path, n), None))));
        put(&storage, [(entry(3, 0), None)]);
        for path in [1, 2, 3] {
            assert!(storage.get(&entry(path, 0)).expect("read").is_none());
        }
        let arrivals = storage.entries.arrivals();
        assert!(arrivals.lists.is_empty() && arrivals.families.is_empty());
    }

    #[test]
    fn items_that_come_and_go_do_not_pile_up() {
        let storage = MemoryStorage::new();
        // Few have the third path, one has the fourth, and it stays.
        put_item(&storage, &[4], 0, Vec::new());
        for n in 0..20_000 {
            let paths: &[u8] = if n % 50 == 0 { &[1, 2, 3] } else { &[1, 2] };
            put_item(&storage, paths, n, Vec::new());
            put(&storage, paths.iter().map(|path| (entry(*path, n), None)));
            let arrivals = storage.entries.arrivals();
            let items = arrivals.families.get(&1).map_or(0, Family::here);
            let waiting: usize = arrivals.lists.values().map(|list| list.waiting.len()).sum();
            assert!(items <= 2 * WAITING_MANY && waiting <= 6 * WAITING_MANY, "{items} and {waiting} wait");
        }
        assert_eq!(group(storage.view().as_ref(), 4), 1);
    }

    #[test]
    fn nothing_is_left_of_a_family_whose_entries_were_all_removed() {
        let storage = MemoryStorage::new();
        for n in 0..1_000 {
            put_item(&storage, &[1, 2], n, Vec::new());
        }
        loop {
            let scan = storage.scan(Bound::Included(LOW), Bound::Excluded(HIGH), Order::Forward);
            let changes: Vec<_> =
                scan.take(300).map(|row| Change::Delete(row.expect("memory reads").0)).collect();
            if changes.is_empty() {
                break;
            }
            storage.commit(Batch { changes }).expect("memory takes it");
        }
        let arrivals = storage.entries.arrivals();
        assert!(arrivals.lists.is_empty() && arrivals.families.is_empty() && arrivals.due.is_empty());
    }

    #[test]
    fn groups_that_nobody_may_look_at_any_more_go_at_once() {
        let storage = MemoryStorage::new();
        for n in 0..1_000 {
            put_item(&storage, &[1, 2], n, Vec::new());
        }
        assert_eq!(group(storage.view().as_ref(), 1), 1_000);
        put(&storage, [(entry(3, 1), Some(1))]);
        assert_eq!(storage.forget_entries(&entry(2, 0)[..17]), 1);
        assert_eq!(all(storage.view().as_ref()).len(), 1_001);
        put_item(&storage, &[1, 2], 1_000, Vec::new());
        assert_eq!([1, 2].map(|path| group(storage.view().as_ref(), path)), [1_001, 1]);
        assert_eq!(storage.forget_entries(&LOW[..1]), 3);
        assert!(all(storage.view().as_ref()).is_empty());
        let arrivals = storage.entries.arrivals();
        assert!(arrivals.lists.is_empty() && arrivals.families.is_empty() && arrivals.due.is_empty());
    }

    #[test]
    fn what_was_seen_before_is_kept_only_while_somebody_looks_back() {
        let storage = MemoryStorage::new();
        put(&storage, (0..10).map(|n| (entry(1, n), Some(n))));
        let tree = storage.entries.tree(Group::of(&entry(1, 0))).expect("it is there");
        let past = || tree.lock().expect("no panic").past.len();
        let before = storage.view();
        put(&storage, (1..10).map(|n| (entry(1, n), None)));
        assert_eq!((group(storage.view().as_ref(), 1), past()), (1, 1));
        assert_eq!(group(before.as_ref(), 1), 10);
        drop(before);
        assert_eq!(past(), 0);
    }

    #[test]
    fn new_items_are_seen_as_if_their_entries_had_been_put_one_by_one() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (items, puts) = (MemoryStorage::new(), MemoryStorage::new());
            let mut there: Vec<(Vec<u8>, u32)> = Vec::new();
            let mut views = VecDeque::new();
            for n in 0..2_000 {
                // The paths come one after the other, each in the middle of a chunk.
                let paths: Vec<u8> =
                    (1..=4).filter(|path| n > 100 * u32::from(*path) && random.f64() < 0.8).collect();
                let value = n.reverse_bits();
                let mut changes = Vec::new();
                while !there.is_empty() && random.f64() < [0.1, 0.4, 0.9][n as usize / 300 % 3] {
                    let (paths, value) = there.swap_remove(random.usize(..there.len()));
                    changes.extend(paths.iter().map(|path| Change::Delete(entry(*path, value))));
                }
                let item = Arc::new(Thing { paths: paths.clone(), value });
                let mut all_changes = Vec::new();
                item.each(&mut |key, value| all_changes.push(Change::Put(key, value)));
                all_changes.extend(changes.iter().cloned());
                items.commit_with(vec![item], Batch { changes }).expect("memory takes it");
                puts.commit(Batch { changes: all_changes }).expect("memory takes it");
                items.let_in_waiting();
                there.push((paths, value));
                if random.f64() < 0.01 {
                    views.push_back((items.view(), puts.view()));
                }
                if views.len() > 3 || (random.f64() < 0.01 && !views.is_empty()) {
                    let (own, expected) = views.pop_front().expect("there is one");
                    assert_eq!(all(own.as_ref()), all(expected.as_ref()), "seed {seed}, item {n}");
                }
                if random.f64() < 0.01 {
                    let path = random.u8(1..=4);
                    assert_eq!(
                        group(&items.moment(), path),
                        group(&puts.moment(), path),
                        "seed {seed}, item {n}"
                    );
                }
            }
            assert_eq!(all(items.view().as_ref()), all(puts.view().as_ref()), "seed {seed}");
        }
    }

    #[test]
    fn a_view_sees_all_of_a_commit_or_nothing_while_others_write() {
        const ITEMS: u32 = 3_000;
        let storage = MemoryStorage::new();
        let record = |n: u32| Bytes::from([&[0x10][..], &n.to_be_bytes()].concat());
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let storage = &storage;
                scope.spawn(move || {
                    for n in (writer..ITEMS).step_by(2) {
                        put_item(storage, &[1, 2], n, vec![Change::Put(record(n), Bytes::new())]);
                        if n % 3 == 0 {
                            let changes = [entry(1, n), entry(2, n), record(n)].map(Change::Delete).to_vec();
                            storage.commit(Batch { changes }).expect("memory takes it");
                        }
                    }
                });
            }
            for reader in 0..2_u8 {
                let storage = &storage;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let view = storage.view();
                        let (first, second) = if reader == 0 { (1, 2) } else { (2, 1) };
                        let counts = [group(view.as_ref(), first), group(view.as_ref(), second)];
                        let records =
                            view.scan(Bound::Included(&[0x10]), Bound::Excluded(LOW), Order::Forward).count();
                        assert_eq!(counts, [records, records]);
                    }
                });
            }
        });
        assert_eq!(all(storage.view().as_ref()).len(), 2 * (ITEMS as usize - ITEMS.div_ceil(3) as usize));
    }
}
