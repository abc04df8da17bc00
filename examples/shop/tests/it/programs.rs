//! The worker and the client as processes, as they are deployed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use cosmos_emulator::{Config, Emulator};

/// A worker; killed when dropped.
struct Worker {
    child: Child,
    told: Receiver<String>,
}

impl Worker {
    fn start(emulator: &Emulator, release: &str) -> Self {
        let mut command = program(env!("CARGO_BIN_EXE_shop-worker"), emulator);
        command.env("SHOP_RELEASE", release).env("SHOP_GRACE_SECONDS", "5");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, told) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut worker = Self { child, told };
        worker.until("the worker is ready");
        worker
    }

    /// Waits until it has said this.
    #[track_caller]
    fn until(&mut self, text: &str) {
        let began = Instant::now();
        let mut seen = Vec::new();
        while let Ok(line) = self.told.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
            if line.contains(text) {
                return;
            }
            seen.push(line);
        }
        panic!("{text:?} was not said: {seen:#?}");
    }

    #[cfg(unix)]
    fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(path: &str, emulator: &Emulator) -> Command {
    let mut command = Command::new(path);
    command.env("COSMOS_ENDPOINT", emulator.endpoint()).stdin(Stdio::null());
    for name in ["KEY", "ENTRA", "DATABASE", "CONTAINER"] {
        command.env_remove(format!("COSMOS_{name}")).env_remove(format!("COSMOSDB_{name}"));
    }
    command.env_remove("RUST_LOG");
    command
}

/// Runs the client, which must succeed.
#[track_caller]
fn shop(emulator: &Emulator, words: &[&str]) -> String {
    let ended = program(env!("CARGO_BIN_EXE_shop"), emulator).args(words).output().unwrap();
    assert!(ended.status.success(), "{words:?}: {ended:?}");
    String::from_utf8(ended.stdout).unwrap().trim().to_owned()
}

#[track_caller]
fn until_status(emulator: &Emulator, id: &str, wanted: &str) {
    let began = Instant::now();
    loop {
        let status = shop(emulator, &["status", id]);
        if status == wanted {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{id} is not {wanted:?}: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_worker_and_a_client_meet_in_the_account() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let _worker = Worker::start(&emulator, "1.0");
    let id = shop(&emulator, &["order", "rye", "12"]);
    assert!(id.starts_with("order-"), "{id}");
    until_status(&emulator, &id, "running: packing");
    shop(&emulator, &["packed", &id, "Anna"]);
    assert_eq!(shop(&emulator, &["wait", &id, "60"]), format!("{id}/Ship packed by Anna"));
    let wrong = program(env!("CARGO_BIN_EXE_shop"), &emulator).arg("sell").output().unwrap();
    assert!(!wrong.status.success());
}

#[cfg(unix)]
#[test]
fn a_worker_that_is_told_to_stop_ends_well_and_another_goes_on() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let mut first = Worker::start(&emulator, "1.0");
    shop(&emulator, &["order", "rye", "12", "o-1"]);
    until_status(&emulator, "o-1", "running: packing");
    first.terminate();
    first.until("stopped");
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    // Nobody is there: what is sent waits.
    shop(&emulator, &["packed", "o-1", "Anna"]);
    let _second = Worker::start(&emulator, "1.0");
    assert_eq!(shop(&emulator, &["wait", "o-1", "60"]), "o-1/Ship packed by Anna");
}

#[cfg(unix)]
#[test]
fn orders_are_taken_while_a_new_release_is_rolled_out() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let mut old = Worker::start(&emulator, "1.0");
    shop(&emulator, &["order", "rye", "1", "before"]);
    until_status(&emulator, "before", "running: packing");
    // Both releases at once, as in the middle of a rollout: either may take an order, and the other must leave it alone.
    let _new = Worker::start(&emulator, "1.1");
    let meanwhile: Vec<String> = (0..6).map(|number| format!("meanwhile-{number}")).collect();
    for id in &meanwhile {
        shop(&emulator, &["order", "rye", "2", id]);
    }
    for id in &meanwhile {
        until_status(&emulator, id, "running: packing");
    }
    old.terminate();
    old.until("stopped");
    shop(&emulator, &["order", "rye", "3", "after"]);
    for id in meanwhile.iter().map(String::as_str).chain(["before", "after"]) {
        until_status(&emulator, id, "running: packing");
        shop(&emulator, &["packed", id, "Otto"]);
    }
    assert_eq!(shop(&emulator, &["wait", "before", "60"]), "before/Ship packed by Otto");
    // Orders of the new version ask the customer a week later.
    until_status(&emulator, "after", "running: shipped");
    for id in &meanwhile {
        let began = Instant::now();
        while !["running: shipped", "completed"]
            .iter()
            .any(|end| shop(&emulator, &["status", id]).starts_with(end))
        {
            assert!(began.elapsed() < PATIENCE, "{id}");
        }
    }
    emulator.clock().advance(shop::ASK_AFTER);
    for id in meanwhile.iter().map(String::as_str).chain(["after"]) {
        assert_eq!(shop(&emulator, &["wait", id, "60"]), format!("{id}/Ship packed by Otto"));
    }
}
