//! `cdb metrics`, and that alerts and board ask only for what there is.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::stage::{ACCOUNT, Stage};

/// A command that serves figures until this is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(stage: &Stage, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cdb"));
        command.args(stage.args(args)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines: Vec<Box<dyn std::io::Read>> =
            vec![Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        // `metrics` says where it is on standard output, `stress` on standard error.
        let which = usize::from(args[0] == "stress");
        let mut told = String::new();
        let mut reader = BufReader::new(lines.into_iter().nth(which).unwrap());
        while !told.contains("/metrics") {
            told.clear();
            assert!(reader.read_line(&mut told).unwrap() > 0, "{args:?} ended");
        }
        let address = told.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn names(&self) -> BTreeSet<String> {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The metrics that a file names.
fn named_in(file: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("duroxide_cdb_")).map(ToOwned::to_owned).collect()
}

#[test]
fn every_metric_of_the_alerts_and_the_board_is_there() {
    let stage = Stage::new("figures-names");
    let worker = Served::start(
        &stage,
        &["stress", "chain", "--duration", "600s", "--concurrency", "2", "--metrics", "127.0.0.1:0"],
    );
    let watcher = Served::start(&stage, &["metrics", "--listen", "127.0.0.1:0", "--every", "1ms"]);
    let mut missing: BTreeSet<String> = BTreeSet::from(["?".to_owned()]);
    // Backlogs are told with the first heartbeats.
    for _ in 0..600 {
        let there: BTreeSet<String> = worker.names().union(&watcher.names()).cloned().collect();
        let files = ["prometheus/alerts.yml", "grafana/workflows.json"].map(named_in);
        assert!(files.iter().all(|names| names.len() > 5), "{files:?}");
        missing = files.concat_all().difference(&there).cloned().collect();
        if missing.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(missing.is_empty(), "nobody tells {missing:?}");
    assert_eq!(worker.get("/scale").0, 404, "a process does not know the fleet");
}

trait ConcatAll {
    fn concat_all(&self) -> BTreeSet<String>;
}

impl<const N: usize> ConcatAll for [BTreeSet<String>; N] {
    fn concat_all(&self) -> BTreeSet<String> {
        self.iter().flatten().cloned().collect()
    }
}

#[test]
fn a_look_tells_what_waits_and_what_it_needs_and_is_shared() {
    let stage = Stage::new("figures-scale");
    for number in 0..9 {
        stage.start_only(&format!("s{number}"), "echo", "x");
    }
    let watcher = Served::start(
        &stage,
        &["metrics", "--listen", "127.0.0.1:0", "--every", "600s", "--per-process", "4", "--budget", "1000"],
    );
    let (status, scale) = watcher.get("/scale");
    let scale: Value = serde_json::from_str(&scale).unwrap();
    assert_eq!(
        (status, &scale["needed"], &scale["ready"], &scale["members"]),
        (200, &3.into(), &9.into(), &0.into())
    );
    let container = format!("dbs/duroxide/colls/{}", stage.container);
    let requests = || {
        let recent = ACCOUNT.emulator.ledger().snapshot().recent;
        recent.iter().filter(|record| *record.container == container).count()
    };
    let before = requests();
    for _ in 0..20 {
        let (_, page) = watcher.get("/metrics");
        assert!(page.contains("duroxide_cdb_queue_ready{queue=\"turns\"} 9\n"), "{page}");
        assert!(
            page.contains("duroxide_cdb_fleet_needed 3\n") && page.contains("duroxide_cdb_up 1\n"),
            "{page}"
        );
        let looked = page.lines().find_map(|line| line.strip_prefix("duroxide_cdb_look_requests ")).unwrap();
        // Two physical partitions: the fleet, the plan of the query, a request to each.
        assert!(looked.parse::<u64>().unwrap() <= 4, "{looked}");
    }
    assert_eq!(requests(), before, "one look is for all who ask");
    assert_eq!(watcher.get("/health").0, 200);
    assert_eq!(watcher.get("/").0, 404);
    stage.play_to_the_end(&[]);
}
