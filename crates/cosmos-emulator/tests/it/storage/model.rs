//! Random operations against a plain map, in memory, on disk (closed and opened in between) and on both at once.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use cosmos_emulator::storage::mirror::Mirror;
use cosmos_emulator::storage::{Batch, MemoryStorage, Order, Storage};

use super::random::Random;
use super::{batch, delete, open_disk, put, rows};

#[test]
fn memory_does_what_a_plain_map_does() {
    for seed in 0..8 {
        check(seed, MemoryStorage::new(), |same| same);
    }
}

#[test]
fn disk_does_what_a_plain_map_does_also_when_reopened() {
    for seed in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        check(seed, open_disk(folder.path()), |open| {
            drop(open);
            open_disk(folder.path())
        });
    }
}

#[test]
fn memory_and_disk_agree_on_everything() {
    for seed in 100..104 {
        let folder = tempfile::tempdir().unwrap();
        let mirror = Mirror::new(MemoryStorage::new(), open_disk(folder.path()));
        check(seed, mirror, |same| same);
    }
}

const STEPS: usize = 1_500;
const STEPS_BETWEEN_REOPENS: usize = 400;

fn check<S: Storage>(seed: u64, mut storage: S, reopen: impl Fn(S) -> S) {
    let mut random = Random(seed);
    let mut model = BTreeMap::new();
    for step in 1..=STEPS {
        match random.below(10) {
            0..5 => commit(&mut random, &storage, &mut model),
            5..7 => {
                let key = some_key(&mut random);
                assert_eq!(storage.get(&key).unwrap(), model.get(&key).cloned(), "seed {seed} step {step}");
            }
            _ => scan(&mut random, &storage, &model, &format!("seed {seed} step {step}")),
        }
        if step % STEPS_BETWEEN_REOPENS == 0 {
            storage = reopen(storage);
            let rows = storage.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward);
            let rows: BTreeMap<_, _> = rows.map(Result::unwrap).collect();
            assert_eq!(rows, model, "seed {seed} step {step}");
        }
    }
}

fn commit(random: &mut Random, storage: &dyn Storage, model: &mut BTreeMap<Bytes, Bytes>) {
    let mut changes = Batch::default();
    for _ in 0..random.below(20) {
        let key = some_key(random);
        if random.below(3) == 0 {
            model.remove(&key);
            changes.changes.push(delete(key));
        } else {
            let len = if random.below(50) == 0 { 100_000 } else { random.below(100) };
            let value = Bytes::from(random.bytes(len));
            model.insert(key.clone(), value.clone());
            changes.changes.push(put(key, value));
        }
    }
    let ticket = storage.commit(changes).unwrap();
    if random.below(20) == 0 {
        storage.wait_durable(ticket).unwrap();
    }
}

fn scan(random: &mut Random, storage: &dyn Storage, model: &BTreeMap<Bytes, Bytes>, place: &str) {
    let (lower, upper) = (some_bound(random), some_bound(random));
    let order = if random.below(2) == 0 { Order::Forward } else { Order::Reverse };
    let limit = if random.below(2) == 0 { random.below(30) } else { usize::MAX };
    let found: Vec<_> = storage
        .scan(lower.as_ref().map(Bytes::as_ref), upper.as_ref().map(Bytes::as_ref), order)
        .take(limit)
        .map(Result::unwrap)
        .collect();
    let is_inside = |key: &Bytes| {
        let above = match &lower {
            Bound::Included(lower) => key >= lower,
            Bound::Excluded(lower) => key > lower,
            Bound::Unbounded => true,
        };
        let below = match &upper {
            Bound::Included(upper) => key <= upper,
            Bound::Excluded(upper) => key < upper,
            Bound::Unbounded => true,
        };
        above && below
    };
    let mut expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| is_inside(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if order == Order::Reverse {
        expected.reverse();
    }
    expected.truncate(limit);
    assert_eq!(found, expected, "{place}: {lower:?} to {upper:?}, {order:?}");
}

/// Few enough keys that they collide; some are prefixes of others, some are long.
fn some_key(random: &mut Random) -> Bytes {
    let number = random.below(300);
    match random.below(20) {
        0 => Bytes::from(vec![u8::try_from(number % 256).unwrap(); 1 + number * 13]),
        1 => Bytes::from(vec![0xff; 1 + number % 4]),
        2 => Bytes::from(vec![0; 1 + number % 4]),
        // The first byte of index entries, which the store in memory keeps back.
        3..10 => Bytes::from(format!("\u{12}{number}")),
        _ => Bytes::from(format!("k{number}")),
    }
}

fn some_bound(random: &mut Random) -> Bound<Bytes> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(some_key(random)),
        _ => Bound::Excluded(some_key(random)),
    }
}

#[test]
fn keys_that_cannot_be_kept_are_refused_by_every_store() {
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::new(MemoryStorage::new(), open_disk(folder.path()));
    for key in [Vec::new(), vec![1; 65_536]] {
        let refusal = mirror.commit(batch([put("fine", "1"), put(key, "2")])).unwrap_err();
        assert!(refusal.to_string().contains("must have 1 to 65535"), "{refusal}");
    }
    assert_eq!(mirror.get(b"fine").unwrap(), None, "a refused batch changes nothing");
    assert_eq!(mirror.get(b"").unwrap(), None);
    mirror.commit(batch([put(vec![1; 65_535], vec![7; 3 << 20])])).unwrap();
    assert_eq!(mirror.get(&[1; 65_535]).unwrap().unwrap().len(), 3 << 20);
}

#[test]
fn a_store_that_was_emptied_and_closed_takes_new_rows() {
    let folder = tempfile::tempdir().unwrap();
    let key = |number: usize| format!("{number:04}");
    // Enough rows that closing writes them out and empties the journal.
    let fill = |storage: &dyn Storage, value: u8| {
        for number in 0..300 {
            storage.commit(batch([put(key(number), vec![value; 8_000])])).unwrap();
        }
    };
    for round in 0..4 {
        let storage = open_disk(folder.path());
        assert_eq!(rows(&storage).unwrap(), [], "round {round}: the store was emptied");
        fill(&storage, round);
        if round % 2 == 0 {
            drop(storage);
            let storage = open_disk(folder.path());
            assert_eq!(rows(&storage).unwrap().len(), 300, "round {round}");
            storage.commit(batch((0..300).map(|number| delete(key(number))))).unwrap();
        } else {
            storage.commit(batch((0..300).map(|number| delete(key(number))))).unwrap();
        }
    }
    let storage = open_disk(folder.path());
    fill(&storage, 9);
    assert!(rows(&storage).unwrap().iter().all(|(_, value)| value[0] == 9));
}
