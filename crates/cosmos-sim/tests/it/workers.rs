//! A fleet of real processes that are killed, frozen, told to stop and started again, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cosmos_driver::{Credential, Driver, QueryOptions, Scope};
use cosmos_emulator::{Config, Emulator};
use cosmos_sim::real::worker::settings;
use duroxide::providers::Provider as _;
use duroxide::{Client, EventKind, OrchestrationStatus};
use duroxide_cdb::CosmosDBProvider;
use serde_json::Value;

const LEASE: Duration = Duration::from_secs(3);
const LOCK: Duration = Duration::from_secs(3);
/// A machine that has much else to do is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a worker said, and when.
#[derive(Debug, Clone)]
struct Line {
    at: Instant,
    worker: usize,
    text: String,
}

/// A server, a client, and workers.
struct Scene {
    server: Emulator,
    provider: Arc<CosmosDBProvider>,
    client: Client,
    lines: Arc<Mutex<Vec<Line>>>,
    workers: BTreeMap<usize, Child>,
    started: usize,
}

impl Scene {
    async fn open(workers: usize) -> Self {
        let server = Emulator::start(Config::default().with_partitions(2)).expect("a server");
        let settings = settings(&server.endpoint(), server.key(), LEASE);
        let provider = Arc::new(CosmosDBProvider::new_with_config(settings).await.expect("a container"));
        let mut scene = Self {
            client: Client::new(provider.clone()),
            server,
            provider,
            lines: Arc::default(),
            workers: BTreeMap::new(),
            started: 0,
        };
        for _ in 0..workers {
            scene.start_worker();
        }
        let scene = scene;
        scene.until("all workers are there", || scene.said("ready").len() >= workers).await;
        scene.until_shared(workers).await;
        scene
    }

    /// Starts a worker and returns its number.
    fn start_worker(&mut self) -> usize {
        let number = self.started;
        self.started += 1;
        let millis = |time: Duration| time.as_millis().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_cosmos-sim"))
            .args(["worker", "--endpoint", &self.server.endpoint(), "--key", self.server.key()])
            .args(["--lease-ms", &millis(LEASE), "--lock-ms", &millis(LOCK)])
            .env("RUST_LOG", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        let lines = BufReader::new(child.stdout.take().expect("it has a stdout")).lines();
        let told = Arc::clone(&self.lines);
        std::thread::spawn(move || {
            for text in lines.map_while(Result::ok) {
                let line = Line { at: Instant::now(), worker: number, text };
                told.lock().expect("no panic while noting").push(line);
            }
        });
        self.workers.insert(number, child);
        number
    }

    /// Sends a worker a signal, by its process id.
    fn signal(&self, number: usize, signal: &str) {
        let id = self.workers[&number].id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill is there");
        assert!(sent.success(), "kill {signal} {id}");
    }

    /// Waits until a worker has ended.
    async fn ended(&mut self, number: usize) -> std::process::ExitStatus {
        let mut child = self.workers.remove(&number).expect("it was started");
        tokio::task::spawn_blocking(move || child.wait()).await.expect("no panic").expect("it ends")
    }

    fn lines(&self) -> Vec<Line> {
        self.lines.lock().expect("no panic while noting").clone()
    }

    fn said(&self, text: &str) -> Vec<Line> {
        self.lines().into_iter().filter(|line| line.text.starts_with(text)).collect()
    }

    async fn until(&self, what: &str, happened: impl Fn() -> bool) {
        let begun = Instant::now();
        while !happened() {
            assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until so many members have slots, none of which somebody else waits for.
    async fn until_shared(&self, members: usize) {
        let begun = Instant::now();
        loop {
            let shares = self.shares().await;
            let is_settled = shares.iter().all(|share| share["next"].is_null());
            if is_settled && owners(&shares).len() == members {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the slots are shared by {shares:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The shares of the table of slots, as they stand there now.
    async fn shares(&self) -> Vec<Value> {
        let credential = Credential::key(self.server.key()).expect("a key");
        let driver = Driver::builder(self.server.endpoint(), credential).build().await.expect("a driver");
        let container = driver.container("sim", "flows").expect("a container");
        let scope = Scope::PartitionKey("__leases__".into());
        let sql = "SELECT * FROM c WHERE c.type = 'slot_table'";
        let tables: Vec<Value> =
            container.query(sql, scope, QueryOptions::default()).collect().await.expect("a table");
        tables.iter().flat_map(|table| table["shares"].as_array().cloned().unwrap_or_default()).collect()
    }

    async fn begin(&self, orchestration: &str, label: &str, steps: usize, millis: u64) {
        let input = format!("{label}:{steps}:{millis}");
        self.client.start_orchestration(label, orchestration, input).await.expect("it starts");
    }

    /// Waits for these, and checks that each completed, and that nothing in their histories is there twice.
    async fn are_right(&self, labels: &[String], steps: usize) {
        for label in labels {
            let status = self.client.wait_for_orchestration(label, PATIENCE).await.expect("it ends");
            assert!(
                matches!(&status, OrchestrationStatus::Completed { output, .. } if output == label),
                "{label}: {status:?}"
            );
            let events = self.provider.read(label).await.expect("a history");
            let ids: Vec<u64> = events.iter().map(duroxide::Event::event_id).collect();
            assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>(), "{label}");
            let count = |is: fn(&EventKind) -> bool| events.iter().filter(|event| is(&event.kind)).count();
            let scheduled = count(|kind| matches!(kind, EventKind::ActivityScheduled { .. }));
            let completed = count(|kind| matches!(kind, EventKind::ActivityCompleted { .. }));
            assert_eq!((scheduled, completed), (steps, steps), "{label}");
        }
    }

    /// The activities that began more than once, and which workers began them.
    fn repeated(&self) -> BTreeMap<String, Vec<usize>> {
        let mut begun: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for line in self.said("begin ") {
            begun.entry(line.text["begin ".len()..].to_owned()).or_default().push(line.worker);
        }
        begun.retain(|_, workers| workers.len() > 1);
        begun
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in self.workers.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Who has slots.
fn owners(shares: &[Value]) -> BTreeSet<String> {
    shares.iter().filter_map(|share| share["owner"].as_str().map(ToOwned::to_owned)).collect()
}

fn labels(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

/// The worker that has begun most.
fn busiest(scene: &Scene) -> usize {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    scene.said("begin ").iter().for_each(|line| *counts.entry(line.worker).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(worker, _)| worker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_did_is_done_by_others_and_nothing_of_it_counts_twice() {
    let mut scene = Scene::open(3).await;
    let labels = labels("k", 30);
    for label in &labels {
        scene.begin("chain", label, 4, 20).await;
    }
    scene.begin("burst", "wide", 60, 30).await;
    scene.until("all are at work", || scene.said("end ").len() >= 25).await;
    let victim = busiest(&scene);
    let died = Instant::now();
    scene.signal(victim, "-KILL");
    scene.ended(victim).await;
    scene.are_right(&labels, 4).await;
    scene.are_right(&["wide".to_owned()], 60).await;
    for (label, workers) in scene.repeated() {
        assert!(workers.contains(&victim), "{label} was begun by {workers:?}, and {victim} was killed");
    }
    scene.until_shared(2).await;
    // A lease, the locks that were written, and as long again as a slow machine needs.
    assert!(died.elapsed() < (LEASE + LOCK) * 2 + PATIENCE / 2, "{:?}", died.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_commits_nothing_that_others_have_done_and_joins_again() {
    let scene = Scene::open(3).await;
    let labels = labels("f", 20);
    for label in &labels {
        scene.begin("chain", label, 5, 30).await;
    }
    scene.begin("burst", "wide", 60, 30).await;
    scene.until("all are at work", || scene.said("end ").len() >= 25).await;
    let frozen = busiest(&scene);
    scene.signal(frozen, "-STOP");
    scene.are_right(&labels, 5).await;
    scene.are_right(&["wide".to_owned()], 60).await;
    scene.until_shared(2).await;
    scene.signal(frozen, "-CONT");
    scene.until_shared(3).await;
    // Nothing that it believed to have is heard of again, and it works.
    scene.are_right(&labels, 5).await;
    let before = scene.lines().len();
    let more: Vec<String> = (0..60).map(|number| format!("again{number}")).collect();
    for label in &more {
        scene.begin("chain", label, 1, 5).await;
    }
    scene.are_right(&more, 1).await;
    let works_again = |line: &Line| line.worker == frozen && line.text.starts_with("begin again");
    assert!(scene.lines()[before..].iter().any(works_again), "it has a share of the new work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_stop_gives_its_slots_away_at_once_and_burns_no_attempt() {
    let mut scene = Scene::open(3).await;
    let labels = labels("s", 24);
    for label in &labels {
        scene.begin("chain", label, 4, 20).await;
    }
    scene.until("all are at work", || scene.said("end ").len() >= 25).await;
    let leaving = busiest(&scene);
    scene.signal(leaving, "-TERM");
    assert!(scene.ended(leaving).await.success(), "it stopped by itself");
    assert!(scene.said("stopped").iter().any(|line| line.worker == leaving));
    let shares = scene.shares().await;
    assert_eq!(owners(&shares).len(), 2, "its slots are given away before it ends: {shares:?}");
    scene.are_right(&labels, 4).await;
    assert_eq!(scene.repeated(), BTreeMap::new(), "each activity ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_stops_nothing_and_repeats_nothing() {
    let mut scene = Scene::open(3).await;
    let mut labels = Vec::new();
    for round in 0..3 {
        // There is always more to do while one goes and one comes.
        for number in 0..12 {
            let label = format!("r{round}-{number}");
            scene.begin("chain", &label, 3, 20).await;
            labels.push(label);
        }
        let ready = scene.said("ready").len();
        let next = scene.start_worker();
        scene.until("the next one is there", || scene.said("ready").len() > ready).await;
        scene.signal(round, "-TERM");
        assert!(scene.ended(round).await.success(), "it stopped by itself; {next} is in its place");
    }
    scene.are_right(&labels, 3).await;
    assert_eq!(scene.repeated(), BTreeMap::new(), "each activity ran once");
    let ends: Vec<Instant> = scene.said("end ").iter().map(|line| line.at).collect();
    let longest = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    assert!(longest < PATIENCE / 8, "nothing was done for {longest:?}");
}
