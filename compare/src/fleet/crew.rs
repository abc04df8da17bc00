//! A server in this process, and worker processes around it.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use cosmos_emulator::{Config, Emulator, FaultGuard, FaultRule, Operation, Verdict};
use duroxide::Client;
use futures::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::FleetContender;
use super::meter::Meter;
use super::worker::now_micros;

/// What one fleet is.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub contender: FleetContender,
    pub workers: usize,
    /// Dispatchers of each kind in each worker.
    pub dispatchers: usize,
    pub partitions: u32,
    pub latency_ms: u64,
    /// Whether it sleeps after a moment of silence instead of minutes.
    pub is_drowsy: bool,
}

/// A fleet at work.
pub struct Crew {
    pub server: Emulator,
    pub client: Client,
    shape: Shape,
    workers: Vec<Child>,
    /// Workers that ever were.
    spawned: usize,
    told: Arc<Told>,
    meter: Meter,
    _slow: Option<FaultGuard>,
}

/// What the workers have told.
#[derive(Default)]
struct Told {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    ready: usize,
    /// Completed orchestrations and commits of each worker.
    done: HashMap<usize, (usize, usize)>,
    /// When a stamp was made, each time it was.
    ran: HashMap<String, Vec<u128>>,
}

impl Told {
    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, worker: usize, line: &str) {
        let mut book = self.book();
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["ready"] => book.ready += 1,
            ["done", completed, commits] => {
                let counts = (completed.parse().unwrap_or(0), commits.parse().unwrap_or(0));
                book.done.insert(worker, counts);
            }
            ["ran", label, at] => {
                book.ran.entry((*label).to_owned()).or_default().push(at.parse().unwrap_or(0));
            }
            _ => {}
        }
    }
}

/// What the server counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub requests: u64,
    pub request_units: f64,
    pub writes: u64,
    /// Writes whose condition did not hold, or whose document was not there, or already there.
    pub refused: u64,
}

impl Crew {
    /// Starts a server and its workers, and lets them become a fleet: a few orchestrations run, then nothing for a while.
    pub async fn start(shape: Shape, settle: Duration) -> anyhow::Result<Self> {
        let config = Config { threads: 2, ..Config::default() }.with_partitions(shape.partitions);
        let server = Emulator::start(config)?;
        let opened = super::open(shape.contender, &server.endpoint(), server.key(), 1, None).await?;
        let client = Client::new(opened.provider());
        let told = Arc::new(Told::default());
        let delay = Verdict::Delay { duration: Duration::from_millis(shape.latency_ms) };
        let slow = (shape.latency_ms > 0).then(|| server.faults().add(FaultRule::new(delay)));
        let mut crew = Self {
            server,
            client,
            shape,
            workers: Vec::new(),
            spawned: 0,
            told,
            meter: Meter::default(),
            _slow: slow,
        };
        for _ in 0..shape.workers {
            crew.spawn()?;
        }
        crew.all_are_ready().await?;
        crew.start_many("warm-up", shape.workers * 4).await?;
        crew.finish(shape.workers * 4, START_WITHIN).await?;
        tokio::time::sleep(settle).await;
        Ok(crew)
    }

    async fn all_are_ready(&self) -> anyhow::Result<()> {
        let until = Instant::now() + START_WITHIN;
        while self.told.book().ready < self.spawned {
            if Instant::now() > until {
                bail!("{} of {} workers started", self.told.book().ready, self.spawned);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Asks the oldest worker to stop, waits until it has, and puts another one in its place.
    pub async fn replace_oldest(&mut self) -> anyhow::Result<()> {
        let mut oldest = self.workers.remove(0);
        let id = oldest.id().context("a worker has ended by itself")?.to_string();
        Command::new("kill").args(["-TERM", &id]).status().await?;
        let ended = tokio::time::timeout(START_WITHIN, oldest.wait()).await;
        ended.context("a worker does not stop")??;
        self.spawn()?;
        self.all_are_ready().await
    }

    /// When each of these stamps was made, each time it was; `None` for those that were not.
    pub fn stamped(&self, labels: &[String]) -> Vec<Option<Vec<u128>>> {
        let book = self.told.book();
        labels.iter().map(|label| book.ran.get(label).cloned()).collect()
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let (shape, number) = (self.shape, self.spawned);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", "--contender", shape.contender.flag(), "--endpoint", &self.server.endpoint()])
            .args(["--key", self.server.key(), "--dispatchers", &shape.dispatchers.to_string()])
            .args(shape.is_drowsy.then_some("--rests-after-ms=500"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting a worker")?;
        let lines = child.stdout.take().context("a worker has a stdout")?;
        let told = Arc::clone(&self.told);
        tokio::spawn(async move {
            let mut lines = BufReader::new(lines).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                told.note(number, &line);
            }
        });
        self.workers.push(child);
        self.spawned += 1;
        Ok(())
    }

    /// Starts this many hellos, many at a time.
    pub async fn start_many(&self, prefix: &str, count: usize) -> anyhow::Result<()> {
        let starts = (0..count)
            .map(|number| self.client.start_orchestration(format!("{prefix}-{number}"), "hello", "x"));
        let mut starts = futures::stream::iter(starts).buffer_unordered(STARTS_IN_FLIGHT);
        while let Some(outcome) = starts.next().await {
            outcome?;
        }
        Ok(())
    }

    /// Completed orchestrations and commits so far, of all workers.
    pub fn done(&self) -> (usize, usize) {
        let book = self.told.book();
        book.done.values().fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    }

    /// Waits until so many have completed.
    pub async fn finish(&self, count: usize, within: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + within;
        while self.done().0 < count {
            if Instant::now() > until {
                bail!("{} of {count} done after {} s", self.done().0, within.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Milliseconds from a moment until a stamp was made.
    pub async fn until_stamped(&self, label: &str, since: u128, within: Duration) -> anyhow::Result<f64> {
        let until = Instant::now() + within;
        loop {
            if let Some(at) = self.told.book().ran.get(label).and_then(|runs| runs.first().copied()) {
                return Ok(at.saturating_sub(since) as f64 / 1000.0);
            }
            if Instant::now() > until {
                bail!("{label} did not run within {} s", within.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts one orchestration, or raises its event, and waits until its activity runs; milliseconds.
    pub async fn until_it_runs(&self, label: &str, how: Waking) -> anyhow::Result<f64> {
        let since = now_micros();
        match how {
            Waking::Start => self.client.start_orchestration(label, "stamped", label).await?,
            Waking::Event => self.client.raise_event(label, "go", "").await?,
        }
        self.until_stamped(label, since, START_WITHIN).await
    }

    /// Forgets what the server counted, and what the processors did.
    pub fn count_anew(&mut self) {
        self.server.ledger().reset();
        self.meter = Meter::now(&self.processes());
    }

    /// What other programs took of the processors since, per cent.
    pub fn disturbed_percent(&self) -> f64 {
        self.meter.foreign_percent(&Meter::now(&self.processes()))
    }

    fn processes(&self) -> Vec<u32> {
        self.workers.iter().filter_map(Child::id).chain([std::process::id()]).collect()
    }

    /// What the server counted since.
    pub fn counted(&self) -> Counted {
        let snapshot = self.server.ledger().snapshot();
        let mut counted = Counted {
            requests: snapshot.totals.requests,
            request_units: snapshot.totals.request_units,
            ..Counted::default()
        };
        for line in &snapshot.lines {
            let is_item = matches!(
                line.operation,
                Operation::CreateItem
                    | Operation::UpsertItem
                    | Operation::ReplaceItem
                    | Operation::PatchItem
                    | Operation::DeleteItem
                    | Operation::Batch
            );
            if is_item {
                counted.writes += line.totals.requests;
                counted.refused += line.totals.refused;
            }
        }
        counted
    }
}

/// How something begins to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    Start,
    Event,
}

const LOOK_EVERY: Duration = Duration::from_millis(2);
const STARTS_IN_FLIGHT: usize = 64;
const START_WITHIN: Duration = Duration::from_secs(60);
