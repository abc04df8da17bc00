//! Scans see the moment they began; batches are seen whole.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bytes::Bytes;
use cosmos_emulator::storage::{MemoryStorage, Order, Storage};

use super::{batch, delete, open_disk, put, rows};

#[test]
fn a_scan_sees_the_moment_it_began_in_memory() {
    a_scan_sees_the_moment_it_began(&MemoryStorage::new());
}

#[test]
fn a_scan_sees_the_moment_it_began_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    a_scan_sees_the_moment_it_began(&open_disk(folder.path()));
}

fn a_scan_sees_the_moment_it_began(storage: &dyn Storage) {
    let key = |number: u32| Bytes::from(format!("{number:04}"));
    storage.commit(batch((0..2_000).map(|number| put(key(number), "old")))).unwrap();
    let before = rows(storage).unwrap();
    for order in [Order::Forward, Order::Reverse] {
        let unread = storage.scan(Bound::Unbounded, Bound::Unbounded, order);
        let mut begun = storage.scan(Bound::Unbounded, Bound::Unbounded, order);
        let first = begun.next().unwrap().unwrap();
        storage.commit(batch((0..2_000).step_by(2).map(|number| put(key(number), "new")))).unwrap();
        storage.commit(batch((1..2_000).step_by(2).map(|number| delete(key(number))))).unwrap();
        storage.commit(batch([put("0000+", "between")])).unwrap();
        let mut seen: Vec<_> = std::iter::once(first).chain(begun.map(Result::unwrap)).collect();
        let mut seen_late: Vec<_> = unread.map(Result::unwrap).collect();
        if order == Order::Reverse {
            seen.reverse();
            seen_late.reverse();
        }
        assert!(seen == before, "{order:?}: a scan that had begun saw a later commit");
        assert!(seen_late == before, "{order:?}: a scan that was opened saw a later commit");
        assert_eq!(rows(storage).unwrap().len(), 1_001);
        let again = (0..2_000).map(|number| put(key(number), "old")).chain([delete("0000+")]);
        storage.commit(batch(again)).unwrap();
    }
}

#[test]
fn batches_are_seen_whole_in_memory() {
    batches_are_seen_whole(&MemoryStorage::new());
}

#[test]
fn batches_are_seen_whole_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    batches_are_seen_whole(&open_disk(folder.path()));
}

/// Each batch writes its number under every key, first key first. A reader that gets the keys in that order must
/// never find a number go down, nor find two numbers in one scan.
fn batches_are_seen_whole(storage: &dyn Storage) {
    const KEYS: usize = 24;
    const BATCHES: u32 = 400;
    let keys: Vec<Bytes> = (0..KEYS).map(|number| Bytes::from(format!("{number:02}"))).collect();
    let write = |number: u32| {
        let value = Bytes::copy_from_slice(&number.to_be_bytes());
        storage.commit(batch(keys.iter().map(|key| put(key.clone(), value.clone())))).unwrap();
    };
    write(0);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=BATCHES {
                write(number);
            }
            is_done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let values: Vec<_> = keys.iter().map(|key| storage.get(key).unwrap().unwrap()).collect();
                assert!(values.is_sorted(), "a later read saw an earlier batch: {values:?}");
            }
        });
        while !is_done.load(Ordering::Acquire) {
            let mut values: Vec<_> = rows(storage).unwrap().into_iter().map(|(_, value)| value).collect();
            assert_eq!(values.len(), KEYS);
            values.dedup();
            assert_eq!(values.len(), 1, "a scan saw half a batch");
        }
    });
}
