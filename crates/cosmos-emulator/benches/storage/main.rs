//! fjall and redb side by side on the engine's workload, with the store in memory as the yardstick.
//!
//! `cargo bench -p cosmos-emulator --bench storage` prints a table and writes `tmp/storage-bench.json` in cargo's
//! target folder. Each engine runs in a process of its own, so that memory is its own; the engines take turns, and
//! the median of the rounds counts, so that a busy machine disturbs them alike.

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

mod redb;
mod workload;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io};

use cosmos_emulator::storage::{DiskStorage, Durability, MemoryStorage, Options, Order, Storage};

use crate::redb::RedbStorage;

const ENGINES: [&str; 3] = ["fjall", "redb", "memory"];
const ENGINE: &str = "STORAGE_BENCH_ENGINE";
const FOLDER: &str = "STORAGE_BENCH_FOLDER";
const STAGE: &str = "STORAGE_BENCH_STAGE";
const ROUNDS: usize = 3;
/// The stage is named after it.
const DOCUMENTS: u64 = 50_000;
const CACHE_BYTES: u64 = 32 << 20;
const TIME: Duration = Duration::from_millis(1_500);

/// A figure's name and value; the name ends in its unit.
type Figures = BTreeMap<String, f64>;

fn main() {
    if let (Ok(engine), Ok(stage), Some(folder)) = (env::var(ENGINE), env::var(STAGE), env::var_os(FOLDER)) {
        return run_stage(&engine, &stage, Path::new(&folder));
    }
    let mut rounds: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 1..=ROUNDS {
        for engine in ENGINES {
            println!("round {round} of {ROUNDS}: {engine}");
            rounds.entry(engine).or_default().push(measure(engine));
        }
    }
    let medians: BTreeMap<&str, Figures> =
        rounds.iter().map(|(engine, rounds)| (*engine, median(rounds))).collect();
    print_table(&medians);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("storage-bench.json");
    let json =
        serde_json::json!({ "documents": DOCUMENTS, "rounds": ROUNDS, "median": medians, "all": rounds });
    fs::write(&path, json.to_string()).expect("the target folder can be written");
}

/// One round of one engine: a process for each stage, killed at its end, on a folder per data set.
fn measure(engine: &str) -> Figures {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut figures = Figures::new();
    let stages: &[(&str, &str)] = if engine == "memory" {
        &[("load", "50,000 documents")]
    } else {
        &[
            ("durable", "durable"),
            ("fill", "500 documents"),
            ("reopen", "500 documents"),
            ("load", "50,000 documents"),
            ("reopen", "50,000 documents"),
        ]
    };
    for (stage, data) in stages {
        let place = folder.path().join(data);
        fs::create_dir_all(&place).expect("a folder");
        let mut child = Command::new(env::current_exe().expect("this program"))
            .env(ENGINE, engine)
            .env(STAGE, stage)
            .env(FOLDER, &place)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs again");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        for line in output.lines().map_while(Result::ok).take_while(|line| line != "kill me") {
            let (name, value) = line.rsplit_once('=').expect("name=value");
            figures.insert(name.to_owned(), value.parse().expect("a number"));
        }
        child.kill().and_then(|()| child.wait()).expect("it is ours");
        figures.insert("disk, at the end (MB)".into(), disk_bytes(&place).expect("files") as f64 / 1e6);
    }
    figures
}

fn run_stage(engine: &str, stage: &str, folder: &Path) {
    let open = |durability| -> Box<dyn Storage> {
        let options = Options { durability, cache_bytes: CACHE_BYTES };
        match engine {
            "fjall" => Box::new(DiskStorage::open(folder, options).expect("fjall opens")),
            "redb" => Box::new(RedbStorage::open(folder, options)),
            _ => Box::new(MemoryStorage::new()),
        }
    };
    match stage {
        "durable" => {
            let start = Instant::now();
            let storage = open(Durability::Fsync);
            say("open, new store (ms)", milliseconds(start));
            drop(storage);
            let start = Instant::now();
            let storage = open(Durability::Fsync);
            say("open, empty store (ms)", milliseconds(start));
            for (position, writers) in [1, 16, 64].into_iter().enumerate() {
                let writes = workload::write(&*storage, writers, TIME, position as u64 * 10_000_000);
                say_writes(&format!("durable, {writers:02} writers"), &writes);
            }
        }
        "load" => {
            let storage = open(Durability::OsBuffered);
            say("load, 1 writer (batches/s)", workload::load(&*storage, DOCUMENTS));
            say_reads(&*storage);
            say("memory, loaded and read (MB)", resident_peak_bytes() / 1e6);
            let writes = workload::write(&*storage, 16, TIME, 10_000_000);
            say_writes("not flushed, 16 writers", &writes);
            wait_for_kill();
        }
        "fill" => {
            let storage = open(Durability::OsBuffered);
            workload::load(&*storage, 500);
            wait_for_kill();
        }
        _ => {
            let data = folder.file_name().unwrap_or_default().to_string_lossy();
            for end in ["killed", "closed"] {
                let start = Instant::now();
                let storage = open(Durability::OsBuffered);
                say(&format!("open, {data}, {end} (ms)"), milliseconds(start));
                drop(storage);
            }
        }
    }
}

fn say_reads(storage: &dyn Storage) {
    say("point read (reads/s)", workload::read(storage, DOCUMENTS, TIME));
    for rows in [10, 1_000] {
        for (order, name) in [(Order::Forward, "forward"), (Order::Reverse, "reverse")] {
            let scans = workload::scan(storage, DOCUMENTS, rows, order, TIME);
            say(&format!("scan {rows} rows, {name} (scans/s)"), scans);
        }
    }
}

fn say_writes(name: &str, writes: &workload::Writes) {
    say(&format!("{name} (batches/s)"), writes.per_second);
    say(&format!("{name}, p50 (ms)"), writes.p50.as_secs_f64() * 1e3);
    say(&format!("{name}, p99 (ms)"), writes.p99.as_secs_f64() * 1e3);
}

fn say(name: &str, value: f64) {
    println!("{name}={value}");
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// The next stage finds what a killed process leaves.
fn wait_for_kill() {
    println!("kill me");
    io::stdout().flush().expect("standard output");
    loop {
        std::thread::park();
    }
}

fn median(rounds: &[Figures]) -> Figures {
    let names = rounds.first().into_iter().flat_map(|figures| figures.keys());
    names
        .map(|name| {
            let mut values: Vec<f64> =
                rounds.iter().filter_map(|figures| figures.get(name).copied()).collect();
            values.sort_by(f64::total_cmp);
            (name.clone(), values[values.len() / 2])
        })
        .collect()
}

fn print_table(medians: &BTreeMap<&str, Figures>) {
    println!("| | {} |\n|---|{}", ENGINES.join(" | "), "---:|".repeat(ENGINES.len()));
    for name in medians["fjall"].keys() {
        let cell = |engine: &str| match medians[engine].get(name) {
            Some(value) if *value >= 100.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.2}"),
            None => "-".into(),
        };
        println!("| {name} | {} |", ENGINES.map(cell).join(" | "));
    }
}

/// What the files take on the disk, which is less than their length where they have holes.
#[cfg(unix)]
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

#[cfg(not(unix))]
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.try_fold(0, |bytes, entry| Ok(bytes + entry?.metadata()?.len()))
}

/// The most memory this process had, where the system tells.
fn resident_peak_bytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().map_or(f64::NAN, |kilobytes| kilobytes * 1024.0)
}
