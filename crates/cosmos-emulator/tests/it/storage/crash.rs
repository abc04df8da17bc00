//! A process that writes is killed at any moment, again and again; what it acknowledged is there.
//!
//! The writer is this test binary, run again with an environment variable that makes the test write instead.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, thread};

use bytes::Bytes;
use cosmos_emulator::storage::{Batch, DiskStorage, Durability, Options, Storage};

use crate::again::{Again, say};

use super::random::Random;
use super::{batch, delete, open_disk, put, rows};

#[test]
fn one_writer_killed_at_any_moment_loses_nothing_acknowledged() {
    survive("one_writer_killed_at_any_moment_loses_nothing_acknowledged", 1, Durability::OsBuffered);
}

#[test]
fn many_writers_killed_at_any_moment_lose_nothing_acknowledged() {
    survive("many_writers_killed_at_any_moment_lose_nothing_acknowledged", 8, Durability::OsBuffered);
}

#[test]
fn many_writers_that_flush_lose_nothing_acknowledged() {
    survive("many_writers_that_flush_lose_nothing_acknowledged", 8, Durability::Fsync);
}

const ROUNDS: u64 = 16;
const FOLDER: &str = "STORAGE_CRASH_FOLDER";
const TURNS_BETWEEN_CLOSES: u64 = 100;
/// Documents a writer keeps; it overwrites the oldest.
const SLOTS: u64 = 64;

fn survive(test: &str, writers: u32, durability: Durability) {
    if let Some(folder) = env::var_os(FOLDER) {
        return write_until_killed(Path::new(&folder), writers, durability);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(u64::from(std::process::id()));
    let mut acknowledged = BTreeMap::new();
    for round in 0..ROUNDS {
        // Every fourth writer is killed while it opens the store: the first while it makes it.
        let acknowledgements = if round % 4 == 0 { 0 } else { random.below(400) };
        acknowledged.extend(run_and_kill(test, folder.path(), acknowledgements));
        // In every third round the next writer finds what the killed one left, as it left it.
        if round % 3 == 1 {
            continue;
        }
        let storage = open_disk(folder.path());
        verify(&storage, writers, &acknowledged);
        storage.commit(batch([put("probe", round.to_string())])).unwrap();
        assert_eq!(storage.get(b"probe").unwrap().unwrap(), round.to_string());
    }
}

/// Runs a writer until it acknowledged so much, kills it, and returns the last number acknowledged by each of its
/// threads, including what it still said while it was dying.
fn run_and_kill(test: &str, folder: &Path, acknowledgements: usize) -> BTreeMap<u32, u64> {
    let mut writer = Again::start(&format!("storage::crash::{test}"), FOLDER, folder);
    let mut acknowledged = BTreeMap::new();
    let mut count = 0;
    let mut note = |line: String| {
        assert!(!line.contains("FAILED"), "the writer failed: {line}");
        if let Some((writer, number)) = acknowledgement(&line) {
            acknowledged.insert(writer, number);
            count += 1;
        }
        (line == "opening" && acknowledgements == 0) || (acknowledgements > 0 && count >= acknowledgements)
    };
    let is_cut_short = writer.lines().any(&mut note);
    assert!(
        is_cut_short,
        "the writer ended by itself after {acknowledgements} acknowledgements were awaited"
    );
    writer.kill();
    for line in writer.lines() {
        note(line);
    }
    acknowledged
}

/// Reads `ack <writer> <number>.`; a line that the kill cut off has no full stop, and does not count.
fn acknowledgement(line: &str) -> Option<(u32, u64)> {
    let (writer, number) = line.strip_prefix("ack ")?.strip_suffix('.')?.split_once(' ')?;
    Some((writer.parse().ok()?, number.parse().ok()?))
}

fn write_until_killed(folder: &Path, writers: u32, durability: Durability) {
    say("\nopening");
    let options = Options { durability, cache_bytes: 4 << 20 };
    // Writers pause together now and then, and the store is closed and opened: that too is cut short by a kill.
    loop {
        let storage = DiskStorage::open(folder, options).unwrap();
        thread::scope(|scope| {
            for writer in 0..writers {
                let storage = &storage;
                scope.spawn(move || {
                    let next = head(storage, writer) + 1;
                    for number in next..next + TURNS_BETWEEN_CLOSES {
                        let ticket = storage.commit(turn(writer, number)).unwrap();
                        storage.wait_durable(ticket).unwrap();
                        say(&format!("ack {writer} {number}."));
                    }
                });
            }
        });
    }
}

/// A writer's nth batch: a document, its index rows, the end of the former index rows, and the number itself.
fn turn(writer: u32, number: u64) -> Batch {
    let mut changes = vec![put(slot_key(writer, number), document(writer, number))];
    changes.extend(index_keys(writer, number).map(|key| put(key, "")));
    if number > 1 {
        changes.extend(index_keys(writer, number - 1).map(delete));
    }
    changes.push(put(head_key(writer), number.to_string()));
    batch(changes)
}

fn slot_key(writer: u32, number: u64) -> String {
    format!("document/{writer}/{:02}", number % SLOTS)
}

fn head_key(writer: u32) -> String {
    format!("head/{writer}")
}

fn index_keys(writer: u32, number: u64) -> impl Iterator<Item = String> {
    (0..5 + number % 15).map(move |path| format!("index/{writer}/{path:02}/{number}"))
}

/// Mostly a few hundred bytes, at times a megabyte: long entries are the ones a kill cuts in two.
fn document(writer: u32, number: u64) -> Vec<u8> {
    let mut random = Random(u64::from(writer) << 32 | number);
    let len = match random.below(40) {
        0 => 1 << 20,
        1..4 => 40_000,
        _ => 200 + random.below(800),
    };
    random.bytes(len)
}

fn head(storage: &dyn Storage, writer: u32) -> u64 {
    match storage.get(head_key(writer).as_bytes()).unwrap() {
        Some(number) => std::str::from_utf8(&number).unwrap().parse().unwrap(),
        None => 0,
    }
}

/// The store holds just what the writers' batches up to some number leave, and no acknowledged number is above it.
fn verify(storage: &dyn Storage, writers: u32, acknowledged: &BTreeMap<u32, u64>) {
    let mut expected = BTreeMap::new();
    for writer in 0..writers {
        let head = head(storage, writer);
        let promised = acknowledged.get(&writer).copied().unwrap_or(0);
        assert!(head >= promised, "writer {writer} was told {promised} is kept, but {head} is the last");
        if head == 0 {
            continue;
        }
        expected.insert(Bytes::from(head_key(writer)), Bytes::from(head.to_string()));
        expected.extend(index_keys(writer, head).map(|key| (Bytes::from(key), Bytes::new())));
        for number in head.saturating_sub(SLOTS - 1).max(1)..=head {
            expected.insert(slot_key(writer, number).into(), document(writer, number).into());
        }
    }
    let mut found: BTreeMap<_, _> = rows(storage).unwrap().into_iter().collect();
    found.remove(b"probe".as_slice());
    let (found_keys, expected_keys): (Vec<_>, Vec<_>) = (found.keys().collect(), expected.keys().collect());
    assert_eq!(found_keys, expected_keys, "a batch is there in part");
    assert!(found == expected, "a document has the wrong content");
}
