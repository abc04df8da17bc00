//! What the engine does to a store: a document with its index rows in one batch, point reads, short and long scans.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cosmos_emulator::storage::{Batch, Change, Order, Storage};

/// Index rows written with each document.
const INDEX_ROWS: u64 = 10;
const DOCUMENT_BYTES: usize = 1_000;

/// Writes per second and the latency of one of them.
pub(crate) struct Writes {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Every writer commits and waits until its batch is durable, as a request handler does.
pub(crate) fn write(storage: &dyn Storage, writers: u64, time: Duration, first: u64) -> Writes {
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let mut latencies: Vec<Duration> = thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut latencies = Vec::new();
                    let mut number = first + writer;
                    while !is_over.load(Ordering::Relaxed) {
                        let batch = document(number);
                        let start = Instant::now();
                        let ticket = storage.commit(batch).expect("a commit");
                        storage.wait_durable(ticket).expect("a flush");
                        latencies.push(start.elapsed());
                        number += writers;
                    }
                    latencies
                })
            })
            .collect();
        thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let per_second = latencies.len() as f64 / start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    Writes { per_second, p50: at(0.5), p99: at(0.99) }
}

/// Fills the store and returns documents per second.
pub(crate) fn load(storage: &dyn Storage, documents: u64) -> f64 {
    let start = Instant::now();
    for number in 0..documents {
        storage.commit(document(number)).expect("a commit");
    }
    documents as f64 / start.elapsed().as_secs_f64()
}

/// Random point reads per second of a loaded store.
pub(crate) fn read(storage: &dyn Storage, documents: u64, time: Duration) -> f64 {
    let mut seed = 1;
    repeat(time, || {
        seed = mix(seed);
        let value = storage.get(&document_key(seed % documents)).expect("a read");
        assert!(value.is_some(), "a loaded document is missing");
    })
}

/// Scans per second of so many rows each, from random places.
pub(crate) fn scan(storage: &dyn Storage, documents: u64, rows: usize, order: Order, time: Duration) -> f64 {
    let mut seed = 2;
    repeat(time, || {
        seed = mix(seed);
        let (first, last) = (document_key(0), document_key(documents));
        // Far enough from the end that the scan finds its rows.
        let span = documents - rows as u64;
        let found = match order {
            Order::Forward => {
                let from = document_key(seed % span);
                storage.scan(Bound::Included(&from), Bound::Excluded(&last), order).take(rows).count()
            }
            Order::Reverse => {
                let from = document_key(rows as u64 + seed % span);
                storage.scan(Bound::Included(&first), Bound::Excluded(&from), order).take(rows).count()
            }
        };
        assert_eq!(found, rows);
    })
}

fn repeat(time: Duration, mut act: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut count = 0_u32;
    while start.elapsed() < time {
        for _ in 0..16 {
            act();
        }
        count += 16;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// One document: its text, its index rows, its place in the change feed, and the partition's counters.
fn document(number: u64) -> Batch {
    let mut text = format!("{{\"id\":\"{number}\",\"pk\":\"{}\",\"payload\":\"", number % 100);
    let mut seed = number;
    while text.len() < DOCUMENT_BYTES {
        seed = mix(seed);
        text.push_str(&format!("{:x} lorem ipsum ", seed & 0xffff_ffff));
    }
    text.push_str("\"}");
    let mut changes = vec![Change::Put(document_key(number), text.into())];
    for path in 0..INDEX_ROWS {
        let key = format!("c1/index/{path:04}/{:016x}/{number:012}", mix(number ^ path << 48));
        changes.push(Change::Put(key.into(), Bytes::new()));
    }
    changes.push(Change::Put(format!("c1/feed/{number:020}").into(), document_key(number)));
    changes.push(Change::Put(format!("c1/head/{}", number % 4).into(), number.to_string().into()));
    Batch { changes }
}

fn document_key(number: u64) -> Bytes {
    Bytes::from(format!("c1/document/{number:012}"))
}

fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
