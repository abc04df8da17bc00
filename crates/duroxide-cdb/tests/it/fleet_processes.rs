//! A fleet of real processes: killed, frozen, stopped and restarted in the middle of their work.
//!
//! A worker is this test binary, run again with an environment variable that makes the test work instead of watch. It tells
//! on standard output which activities it begins and ends.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, EventKind, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
};
use duroxide_cdb::CosmosDBProviderConfig;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::fleet::{Account, open};
use crate::flows::options;
use crate::world::until;

const WORKER: &str = "FLEET_WORKER";

/// What a worker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Orders {
    endpoint: String,
    key: String,
    name: String,
    lease_ms: u64,
    steal_ms: u64,
    lock_ms: u64,
    /// How long its activities take.
    step_ms: u64,
    /// How long it lets them go on when it is to stop.
    grace_ms: u64,
    attempts: u32,
}

impl Orders {
    /// Where nothing goes wrong by itself within a test, and no attempt counts but the first.
    fn calm(account: &Account) -> Self {
        Self {
            endpoint: account.emulator.endpoint(),
            key: account.emulator.key().to_owned(),
            name: String::new(),
            lease_ms: 600_000,
            steal_ms: 600_000,
            // duroxide renews it after three quarters, which must be before a session counts as idle.
            lock_ms: 300_000,
            step_ms: 20,
            grace_ms: 20_000,
            attempts: 1,
        }
    }

    fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }
}

/// Works until it is told to stop, if this process was started for that.
async fn is_worker() -> bool {
    let Ok(orders) = std::env::var(WORKER) else { return false };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let mut stops = signal(SignalKind::terminate()).unwrap();
    let provider = open(CosmosDBProviderConfig {
        owner: orders.name.clone(),
        lease_duration: Duration::from_millis(orders.lease_ms),
        steal_after: Duration::from_millis(orders.steal_ms),
        ..CosmosDBProviderConfig::new(orders.endpoint, orders.key)
    })
    .await;
    let step_ms = orders.step_ms;
    let activities = ActivityRegistry::builder()
        .register("step", move |context: ActivityContext, input: String| async move {
            say(&format!("begin {} {input}.", context.instance_id()));
            tokio::time::sleep(Duration::from_millis(step_ms)).await;
            say(&format!("end {} {input}.", context.instance_id()));
            Ok::<_, String>(input)
        })
        .build();
    let options =
        RuntimeOptions { max_attempts: orders.attempts, ..options(Duration::from_millis(orders.lock_ms)) };
    let runtime =
        Runtime::start_with_options(Arc::new(provider.clone()), activities, orchestrations(), options).await;
    say("\nready");
    stops.recv().await;
    runtime.shutdown(Some(orders.grace_ms)).await;
    provider.shutdown().await;
    say("left");
    // Nothing that is left of this test may keep the process.
    std::process::exit(0);
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("steps", |context: OrchestrationContext, steps: String| async move {
            for step in 0..steps.parse().unwrap_or(1) {
                context.schedule_activity("step", step.to_string()).await?;
            }
            Ok::<_, String>(steps)
        })
        .build()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Who listens may be gone; then this process is about to end.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// What workers said, in the order it was heard.
type Heard = Arc<Mutex<Vec<Said>>>;

#[derive(Debug, Clone)]
struct Said {
    worker: String,
    line: String,
    at: Instant,
}

/// A worker; killed when dropped.
struct Worker {
    child: Child,
    name: String,
    heard: Heard,
}

impl Worker {
    /// Starts a worker, which is `test` of this binary, and waits until it works.
    async fn start(test: &str, orders: &Orders, heard: &Heard) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("fleet_processes::{test}"), "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, serde_json::to_string(orders).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, name: orders.name.clone(), heard: Arc::clone(heard) };
        let (name, heard) = (worker.name.clone(), Arc::clone(heard));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let said = Said { worker: name.clone(), line, at: Instant::now() };
                heard.lock().unwrap().push(said);
            }
        });
        until("it works", async || {
            assert_eq!(worker.child.try_wait().unwrap(), None, "it ended by itself");
            worker.has_said("ready")
        })
        .await;
        worker
    }

    fn has_said(&self, line: &str) -> bool {
        let heard = self.heard.lock().unwrap();
        heard.iter().any(|said| said.worker == self.name && said.line == line)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Asks it to stop and waits until it has.
    async fn stop(mut self) {
        self.signal("-TERM");
        until("it has handed over", async || self.has_said("left")).await;
        until("it has stopped", async || self.child.try_wait().unwrap().is_some()).await;
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The activities that were begun, and by whom.
fn runs(heard: &Heard) -> BTreeMap<String, Vec<String>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for said in heard.lock().unwrap().iter() {
        // A line that a kill has cut off has no full stop, and nothing was begun.
        if let Some(activity) = said.line.strip_prefix("begin ").and_then(|line| line.strip_suffix('.')) {
            runs.entry(activity.to_owned()).or_default().push(said.worker.clone());
        }
    }
    runs
}

fn begun(heard: &Heard) -> usize {
    runs(heard).values().map(Vec::len).sum()
}

async fn client(account: &Account) -> Client {
    Client::new(Arc::new(open(account.config()).await))
}

async fn start(client: &Client, prefix: &str, count: usize, steps: usize) {
    for n in 0..count {
        client.start_orchestration(format!("{prefix}{n}"), "steps", steps.to_string()).await.unwrap();
    }
}

/// Waits for instances and looks whether each step of each was completed once.
async fn finish(client: &Client, account: &Account, prefix: &str, count: usize, steps: usize) {
    let provider = open(account.config()).await;
    for n in 0..count {
        let instance = format!("{prefix}{n}");
        let ended = client.wait_for_orchestration(&instance, PATIENCE).await.unwrap();
        assert!(matches!(ended, OrchestrationStatus::Completed { .. }), "{instance}: {ended:?}");
        let events = duroxide::providers::Provider::read(&provider, &instance).await.unwrap();
        assert!(events.is_sorted_by_key(|event| event.event_id), "{instance}");
        let mut completed = BTreeSet::new();
        for event in &events {
            if matches!(event.kind, EventKind::ActivityCompleted { .. }) {
                assert!(completed.insert(event.source_event_id), "{instance}: a result came twice");
            }
        }
        assert_eq!(completed.len(), steps, "{instance}");
        let ends = |kind: &EventKind| matches!(kind, EventKind::OrchestrationCompleted { .. });
        assert_eq!(events.iter().filter(|event| ends(&event.kind)).count(), 1, "{instance}");
    }
}

async fn all_have_a_part(account: &Account, members: usize) {
    until("all have a part", async || {
        let shares = account.shares().await;
        shares.len() == members && shares.values().all(|size| *size >= 256 / members as u64)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_process_that_is_killed_goes_on_elsewhere() {
    const TEST: &str = "the_work_of_a_process_that_is_killed_goes_on_elsewhere";
    if is_worker().await {
        return;
    }
    let (account, heard) = (Account::new(), Heard::default());
    let orders =
        Orders { lease_ms: 4_000, steal_ms: 1_000, lock_ms: 10_000, attempts: 5, ..Orders::calm(&account) };
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        workers.push(Worker::start(TEST, &orders.named(name), &heard).await);
    }
    all_have_a_part(&account, 3).await;
    let client = client(&account).await;
    start(&client, "i", 24, 4).await;
    let by_first = || runs(&heard).values().flatten().filter(|worker| *worker == "a").count();
    until("it is in the middle of everything", async || begun(&heard) >= 20 && by_first() >= 3).await;
    let mut killed = workers.remove(0);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    finish(&client, &account, "i", 24, 4).await;
    let twice: Vec<_> = runs(&heard).into_iter().filter(|(_, workers)| workers.len() > 1).collect();
    assert!(twice.iter().all(|(_, workers)| workers.len() == 2 && workers[0] == "a"), "{twice:?}");
    until("its part is the others'", async || {
        let shares = account.shares().await;
        shares.len() == 2 && !shares.contains_key("a")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_frozen_commits_nothing_that_others_have_done_and_joins_again() {
    const TEST: &str = "a_process_that_was_frozen_commits_nothing_that_others_have_done_and_joins_again";
    if is_worker().await {
        return;
    }
    let (account, heard) = (Account::new(), Heard::default());
    let orders = Orders {
        lease_ms: 2_000,
        steal_ms: 500,
        lock_ms: 3_000,
        step_ms: 60,
        attempts: 20,
        ..Orders::calm(&account)
    };
    let frozen = Worker::start(TEST, &orders.named("a"), &heard).await;
    let _other = Worker::start(TEST, &orders.named("b"), &heard).await;
    all_have_a_part(&account, 2).await;
    let client = client(&account).await;
    start(&client, "i", 16, 4).await;
    let by_frozen = || runs(&heard).values().flatten().filter(|worker| *worker == "a").count();
    until("it is in the middle of everything", async || by_frozen() >= 4).await;
    frozen.signal("-STOP");
    let at_freezing = by_frozen();
    // Longer than its lease and all its locks last: others have done everything.
    finish(&client, &account, "i", 16, 4).await;
    until("its part is the other's", async || account.shares().await.keys().eq(["b"])).await;
    frozen.signal("-CONT");
    all_have_a_part(&account, 2).await;
    start(&client, "j", 16, 2).await;
    finish(&client, &account, "j", 16, 2).await;
    until("it works again", async || by_frozen() > at_freezing).await;
    // What it had in its hands when it was frozen changed nothing.
    finish(&client, &account, "i", 16, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_asked_to_stop_hands_over_what_it_has_and_burns_no_attempt() {
    const TEST: &str = "a_process_that_is_asked_to_stop_hands_over_what_it_has_and_burns_no_attempt";
    if is_worker().await {
        return;
    }
    let (account, heard) = (Account::new(), Heard::default());
    // Leases and locks outlast the test, and so do activities of the first: nothing goes on unless it is handed over.
    let orders = Orders::calm(&account);
    let endless = Orders { step_ms: 3_600_000, grace_ms: 100, ..orders.named("a") };
    let first = Worker::start(TEST, &endless, &heard).await;
    let client = client(&account).await;
    start(&client, "i", 12, 1).await;
    until("its hands are full", async || begun(&heard) >= 2).await;
    let _second = Worker::start(TEST, &orders.named("b"), &heard).await;
    all_have_a_part(&account, 2).await;
    first.stop().await;
    assert!(account.shares().await.keys().eq(["b"]), "{:?}", account.shares().await);
    finish(&client, &account, "i", 12, 1).await;
    let runs = runs(&heard);
    assert!(runs.values().all(|workers| workers.last().is_some_and(|worker| worker == "b")), "{runs:?}");
    assert!(runs.values().any(|workers| workers.len() == 2), "something was cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_replaced_one_by_one_under_load_and_nothing_runs_twice() {
    const TEST: &str = "workers_are_replaced_one_by_one_under_load_and_nothing_runs_twice";
    const LOAD: usize = 120;
    if is_worker().await {
        return;
    }
    let (account, heard) = (Account::new(), Heard::default());
    // The leases and the patience of everyday life; locks that a busy machine does not lose.
    let orders = Orders { lease_ms: 10_000, steal_ms: 5_000, lock_ms: 60_000, ..Orders::calm(&account) };
    let mut workers = Vec::new();
    for n in 0..4 {
        workers.push(Worker::start(TEST, &orders.named(&format!("w{n}")), &heard).await);
    }
    all_have_a_part(&account, 4).await;
    let client = client(&account).await;
    let replacing = async {
        for n in 0..4 {
            workers.remove(0).stop().await;
            workers.push(Worker::start(TEST, &orders.named(&format!("next{n}")), &heard).await);
        }
        Instant::now()
    };
    let loading = async {
        let begun = Instant::now();
        for n in 0..LOAD {
            client.start_orchestration(format!("i{n}"), "steps", "3").await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        begun
    };
    let (replaced, begun) = futures::join!(replacing, loading);
    finish(&client, &account, "i", LOAD, 3).await;
    let runs = runs(&heard);
    let twice: Vec<_> = runs.iter().filter(|(_, workers)| workers.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert!(runs.values().flatten().any(|worker| worker.starts_with("next")), "{runs:?}");
    // How long nothing ended. A quiet machine keeps it below a second, which is measured elsewhere.
    let heard = heard.lock().unwrap();
    let ends = heard.iter().filter(|said| said.line.starts_with("end ")).map(|said| said.at);
    let moments: Vec<Instant> = ends.filter(|at| (begun..replaced).contains(at)).collect();
    let longest = moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    assert!(longest < Duration::from_secs(8), "nothing ended for {longest:?}");
}

const PATIENCE: Duration = Duration::from_secs(180);
