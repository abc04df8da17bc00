//! The single-fault sweep: every scenario, every request, every fault.
//!
//! A scenario is run once to count its requests. Then it is run once per request and fault, with that one request
//! struck. Each time the result must be right, each activity must have had its effect as duroxide promises it, and
//! nothing may be left over. A run in which nothing was struck, because it made fewer requests than the counted one,
//! proves nothing and is told apart.
//!
//! The second dimension are pairs: a second fault at another request, or another process that acts while a request is held
//! up. There are hundreds of thousands of them, so they are drawn from a seed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cosmos_driver::{CallOptions, Container};
use cosmos_emulator::{FaultGuard, FaultRule, Operation, Verdict};
use duroxide::runtime::RuntimeOptions;
use duroxide::{Client, Event, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use crate::cut::Cut;
use crate::effects::{Effects, Reruns, recorded};
use crate::flows::{Machine, options};
use crate::remains::{Fate, is_preparing, settled};
use crate::world::{DATABASE, config, emulator, fresh_name, raw, until};

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Hello,
    Chain,
    FanOut20,
    FanOut150,
    SubOrchestrations,
    ContinueAsNew,
    Session,
    Cancel,
    Notes,
    Delete,
    /// An activity and a turn last so long that their locks are renewed.
    Renewals,
}

/// What happens to the struck request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strike {
    Throttled,
    RetryWith,
    Unavailable,
    TimedOut,
    ResetBefore,
    ResetAfterCommit,
    /// It is served when the lock is over.
    ServedTooLate,
    /// It is served at once, and its answer comes when the lock is over.
    AnsweredTooLate,
    Killed,
}

/// Among which requests the struck one is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    All,
    /// The batches of the instance: what prepares a large commit is among them, and the commit itself.
    Batches,
    /// Those that replace a document alone: they take the locks of turns and renew all.
    Replacements,
}

/// One run: a scenario with its `k`th request struck.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) scenario: Scenario,
    pub(crate) strike: Strike,
    pub(crate) k: u64,
    pub(crate) among: Among,
    pub(crate) also: Option<Also>,
}

/// What happens besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Also {
    /// Another request is struck, too. It does not kill.
    Struck { strike: Strike, k: u64 },
    /// Before this request is served, another process joins and works beside the first from then on.
    Rival { k: u64, stays: Stays },
}

/// How long a request is held up while another process works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// For a few requests of the other.
    Briefly,
    /// Until the locks of the first process are over: the other takes its work over.
    LongerThanLocks,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, request {} of {:?}, {:?}", self.scenario, self.k, self.among, self.strike)?;
        self.also.map_or(Ok(()), |also| write!(f, ", and {also:?}"))
    }
}

impl Point {
    /// How long the runtime locks. Where no lock may get lost a slow machine must not lose one either.
    fn lock(self, terms: Terms) -> Duration {
        match (self.reruns(), self.scenario) {
            (Reruns::Never, _) => CALM_LOCK,
            (_, Scenario::Renewals) => terms.lock.max(RENEWED_LOCK_MIN),
            _ => terms.lock,
        }
    }

    fn rule(self, container: &str, terms: Terms) -> FaultRule {
        self.rule_of(container, self.strike.verdict(self.lock(terms)), self.k)
    }

    fn rule_of(self, container: &str, verdict: Verdict, k: u64) -> FaultRule {
        self.among.of(FaultRule::new(verdict).in_container(link(container))).nth(k)
    }

    /// The second fault, and what holds a request up for another process.
    fn second_rule(self, container: &str, terms: Terms) -> Option<FaultRule> {
        Some(match self.also? {
            Also::Struck { strike, k } => self.rule_of(container, strike.verdict(self.lock(terms)), k),
            Also::Rival { k, .. } => self.rule_of(container, Verdict::Hang, k),
        })
    }

    /// When an activity may run again, given all that happens.
    fn reruns(self) -> Reruns {
        let second = match self.also {
            None => Reruns::Never,
            Some(Also::Struck { strike, .. }) => strike.reruns(),
            // Its work is taken over when its locks are over.
            Some(Also::Rival { .. }) => Reruns::Always,
        };
        self.strike.reruns().max(second)
    }
}

impl Among {
    fn of(self, rule: FaultRule) -> FaultRule {
        match self {
            Self::All => rule,
            Self::Batches => rule.on(Operation::Batch).for_key("x"),
            Self::Replacements => rule.on(Operation::ReplaceItem),
        }
    }
}

impl Scenario {
    pub(crate) const ALL: [Self; 11] = [
        Self::Hello,
        Self::Chain,
        Self::FanOut20,
        Self::FanOut150,
        Self::SubOrchestrations,
        Self::ContinueAsNew,
        Self::Session,
        Self::Cancel,
        Self::Notes,
        Self::Delete,
        Self::Renewals,
    ];

    /// Does what a user would do and checks what a user would see. Returns what was recorded in the end.
    async fn play(self, client: &Client, patience: Duration) -> Result<Vec<Event>, String> {
        match self {
            Self::Hello => expect(client, patience, "Hello", "Ann", "Hello, Ann!").await?,
            Self::Chain => expect(client, patience, "Chain", "2", "256").await?,
            Self::FanOut20 => expect(client, patience, "FanOut", "20", "2470").await?,
            Self::FanOut150 => expect(client, patience, "FanOut", "150", "1113775").await?,
            Self::SubOrchestrations | Self::Delete => {
                expect(client, patience, "Parent", "A,B", "Hello, A! Hello, B!").await?;
            }
            Self::ContinueAsNew => {
                start(client, "Counter", "3/").await?;
                for letter in ["a", "b", "c"] {
                    client.enqueue_event("x", "mail", letter).await.map_err(|error| error.to_string())?;
                }
                ends_with(client, patience, "abc").await?;
            }
            Self::Session => {
                start(client, "Session", "s").await?;
                let output = output(client, patience).await?;
                if !output.starts_with("s@") {
                    return Err(output);
                }
            }
            Self::Cancel => {
                start(client, "Stuck", "").await?;
                client.cancel_instance("x", "enough").await.map_err(|error| error.to_string())?;
                match client.wait_for_orchestration("x", patience).await {
                    Ok(OrchestrationStatus::Failed { details, .. })
                        if details.display_message().contains("enough") => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Self::Notes => {
                expect(client, patience, "Notes", "v", "v").await?;
                let values = client.get_kv_all_values("x").await.map_err(|error| error.to_string())?;
                if values.len() != 1 {
                    return Err(format!("{values:?}"));
                }
            }
            Self::Renewals => expect(client, patience, "Slow", "1200", "dozed and pondered").await?,
        }
        let recorded = recorded(client, "x").await?;
        if self.fate() == Fate::Deleted {
            let deleted = client.delete_instance("x", false).await.map_err(|error| error.to_string())?;
            if deleted.instances_deleted != 3 {
                return Err(format!("{deleted:?}"));
            }
        }
        Ok(recorded)
    }

    /// Which of its requests are struck. One that waits makes many, and only its renewals are its own.
    fn among(self) -> Among {
        if self == Self::Renewals { Among::Replacements } else { Among::All }
    }

    fn fate(self) -> Fate {
        if self == Self::Delete { Fate::Deleted } else { Fate::Over }
    }
}

async fn start(client: &Client, name: &str, input: &str) -> Result<(), String> {
    client.start_orchestration("x", name, input).await.map_err(|error| error.to_string())
}

async fn output(client: &Client, patience: Duration) -> Result<String, String> {
    match client.wait_for_orchestration("x", patience).await {
        Ok(OrchestrationStatus::Completed { output, .. }) => Ok(output),
        other => Err(format!("{other:?}")),
    }
}

async fn ends_with(client: &Client, patience: Duration, expected: &str) -> Result<(), String> {
    let output = output(client, patience).await?;
    if output == expected { Ok(()) } else { Err(format!("the output is {output:?}")) }
}

async fn expect(
    client: &Client,
    patience: Duration,
    name: &str,
    input: &str,
    expected: &str,
) -> Result<(), String> {
    start(client, name, input).await?;
    ends_with(client, patience, expected).await
}

impl Strike {
    pub(crate) const ALL: [Self; 9] = [
        Self::Throttled,
        Self::RetryWith,
        Self::Unavailable,
        Self::TimedOut,
        Self::ResetBefore,
        Self::ResetAfterCommit,
        Self::ServedTooLate,
        Self::AnsweredTooLate,
        Self::Killed,
    ];

    fn verdict(self, lock: Duration) -> Verdict {
        let status = |code, sub_status, retry_after| Verdict::Status { code, sub_status, retry_after };
        match self {
            Self::Throttled => status(429, 3200, Some(Duration::from_millis(30))),
            Self::RetryWith => status(449, 0, None),
            Self::Unavailable => status(503, 0, None),
            Self::TimedOut => status(408, 0, None),
            Self::ResetBefore => Verdict::ResetBefore,
            Self::ResetAfterCommit => Verdict::ResetAfterCommit,
            Self::ServedTooLate => Verdict::Delay { duration: lock * 3 / 2 },
            Self::AnsweredTooLate => Verdict::DelayAfterCommit { duration: lock * 3 / 2 },
            Self::Killed => Verdict::Hang,
        }
    }

    /// When an activity may run again: only a lock that gets lost is a reason.
    fn reruns(self) -> Reruns {
        match self {
            Self::Throttled
            | Self::RetryWith
            | Self::Unavailable
            | Self::TimedOut
            | Self::ResetBefore
            | Self::ResetAfterCommit => Reruns::Never,
            Self::Killed => Reruns::UntilRecorded,
            Self::ServedTooLate | Self::AnsweredTooLate => Reruns::Always,
        }
    }
}

/// How patient a sweep is. A slow machine makes locks expire and attempts lead nowhere; they are not what is tested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How long the runtime locks where the struck request may lose it its lock.
    pub(crate) lock: Duration,
    pub(crate) attempts: u32,
    /// How long a scenario may take.
    pub(crate) patience: Duration,
}

impl Terms {
    /// However long the locks are, they are renewed as often as the runtime can: every second.
    fn runtime_options(self, lock: Duration) -> RuntimeOptions {
        RuntimeOptions {
            max_attempts: self.attempts,
            orchestrator_lock_renewal_buffer: lock,
            worker_lock_renewal_buffer: lock,
            ..options(lock)
        }
    }
}

/// How many requests a scenario makes when nothing goes wrong.
pub(crate) async fn count(scenario: Scenario, among: Among, terms: Terms) -> u64 {
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(settings(&name)).await.unwrap();
    // It counts, and strikes nothing.
    let counted = among.of(FaultRule::new(Verdict::Hang).in_container(link(&name))).times(0);
    let counted = emulator().faults().add(counted);
    let machine = Machine::start(provider.clone(), terms.runtime_options(CALM_LOCK)).await;
    scenario.play(&machine.client, terms.patience).await.unwrap();
    let requests = counted.matched();
    machine.stop().await;
    if scenario == Scenario::Renewals {
        let spent = provider.spending().operations;
        for renewal in ["renew_orchestration_item_lock", "renew_work_item_lock"] {
            assert!(spent.iter().any(|(name, _)| *name == renewal), "there is no {renewal} in {spent:?}");
        }
    }
    provider.cleanup().await.unwrap();
    requests
}

fn link(container: &str) -> String {
    format!("dbs/{DATABASE}/colls/{container}")
}

/// What a run was worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// The fault happened.
    pub(crate) struck: bool,
    /// The process that was killed was preparing a commit.
    pub(crate) preparing: bool,
}

/// Runs one point. `Err` says what was wrong.
pub(crate) async fn run(point: Point, terms: Terms) -> Result<Seen, String> {
    let name = fresh_name();
    let container = raw(&name).await;
    let outcome = if point.strike == Strike::Killed {
        run_killed(point, &name, &container, terms).await
    } else {
        run_alive(point, &name, &container, terms).await
    };
    // A sweep has thousands of points; what one leaves behind is not kept.
    let _ = container.delete(CallOptions::default()).await;
    outcome.map_err(|error| format!("{point}: {error}"))
}

async fn run_alive(point: Point, name: &str, container: &Container, terms: Terms) -> Result<Seen, String> {
    let provider = open(settings(name)).await?;
    let fault = emulator().faults().add(point.rule(name, terms));
    let second = point.second_rule(name, terms).map(|rule| emulator().faults().add(rule));
    let options = terms.runtime_options(point.lock(terms));
    let machine = Machine::start(provider, options.clone()).await;
    let is_over = tokio::sync::Notify::new();
    let play = async {
        let played = point.scenario.play(&machine.client, terms.patience).await;
        is_over.notify_one();
        played
    };
    let rival = join(point, name, options, second, Arc::clone(&machine.effects), &is_over);
    let (played, joined) = tokio::join!(play, rival);
    let (struck, (second_struck, rival)) = (fault.struck() > 0, joined?);
    drop(fault);
    let outcome = check(point, played, &machine.effects, container, terms).await;
    machine.stop().await;
    if let Some(rival) = rival {
        rival.stop().await;
    }
    // Of a pair both must have happened.
    let struck = match point.also {
        None => struck,
        Some(Also::Struck { .. }) => struck && second_struck,
        Some(Also::Rival { .. }) => second_struck,
    };
    outcome.map(|()| Seen { struck, preparing: false })
}

/// Lets another process join when its request comes, if there is to be one, and lets that request go on. Returns whether
/// the second thing happened, and the other process.
async fn join(
    point: Point,
    name: &str,
    options: RuntimeOptions,
    second: Option<FaultGuard>,
    effects: Arc<Effects>,
    is_over: &tokio::sync::Notify,
) -> Result<(bool, Option<Machine>), String> {
    let Some(second) = second else { return Ok((false, None)) };
    let Some(Also::Rival { stays, .. }) = point.also else {
        is_over.notified().await;
        return Ok((second.struck() > 0, None));
    };
    let is_struck = until("the request comes", async || second.struck() > 0);
    tokio::select! {
        () = is_struck => {}
        () = is_over.notified() => return Ok((false, None)),
    }
    let lock = options.orchestrator_lock_timeout;
    let provider = open(settings(name)).await?;
    let rival = Machine::with_effects(provider.clone(), options, effects).await;
    let begun = std::time::Instant::now();
    match stays {
        Stays::Briefly => {
            let requests = || provider.spending().total.requests;
            until("the other process is at work", async || requests() >= FEW_REQUESTS).await;
        }
        Stays::LongerThanLocks => {
            until("the locks are over", async || begun.elapsed() > lock * 3 / 2).await;
        }
    }
    drop(second);
    Ok((true, Some(rival)))
}

/// The process that works dies at the struck request; another takes over. The client lives on.
async fn run_killed(point: Point, name: &str, container: &Container, terms: Terms) -> Result<Seen, String> {
    let client = Client::new(Arc::new(open(settings(name)).await?));
    // Whatever of the dead process were to go on: it does not reach the account any more.
    let cut = Cut::new(emulator()).await;
    let doomed = open(CosmosDBProviderConfig { endpoint: cut.endpoint.clone(), ..settings(name) }).await?;
    let options = terms.runtime_options(point.lock(terms));
    let effects = Arc::new(Effects::default());
    let fault = emulator().faults().add(point.rule(name, terms));
    let _second = point.second_rule(name, terms).map(|rule| emulator().faults().add(rule));
    let machine = Machine::with_effects(doomed, options.clone(), Arc::clone(&effects)).await;
    let play = tokio::spawn(async move { (point.scenario.play(&client, terms.patience).await, client) });
    until("it is struck, or over", async || fault.struck() > 0 || play.is_finished()).await;
    cut.sever();
    machine.die().await;
    let struck = fault.struck() > 0;
    drop(fault);
    let preparing = is_preparing(container).await;
    let machine = Machine::with_effects(open(settings(name)).await?, options, Arc::clone(&effects)).await;
    let (played, _client) = play.await.map_err(|error| error.to_string())?;
    let outcome = check(point, played, &effects, container, terms).await;
    machine.stop().await;
    outcome.map(|()| Seen { struck, preparing })
}

/// Whether everything is as it must be after a point was played.
async fn check(
    point: Point,
    played: Result<Vec<Event>, String>,
    effects: &Effects,
    container: &Container,
    terms: Terms,
) -> Result<(), String> {
    let recorded = played?;
    settled(container, settings(container.id()), point.scenario.fate(), terms.patience).await?;
    effects.check(&recorded, point.reruns())
}

async fn open(settings: CosmosDBProviderConfig) -> Result<CosmosDBProvider, String> {
    CosmosDBProvider::new_with_config(settings).await.map_err(|error| error.to_string())
}

fn settings(container: &str) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(100),
        reconciler_age_threshold: Duration::from_millis(200),
        poll_interval_min: Duration::from_millis(10),
        poll_interval_max: Duration::from_millis(100),
        ..config(container)
    }
}

/// All points of a scenario, counted first.
pub(crate) async fn points(scenario: Scenario, terms: Terms) -> Vec<Point> {
    let among = scenario.among();
    let requests = count(scenario, among, terms).await;
    // The widest scenario has most of all points, and its requests are like those of others.
    let chosen = move |strike: &Strike| scenario != Scenario::FanOut150 || *strike != Strike::ServedTooLate;
    let strikes = Strike::ALL.into_iter().filter(chosen);
    (1..=requests)
        .flat_map(|k| strikes.clone().map(move |strike| Point { scenario, strike, k, among, also: None }))
        .collect()
}

/// So many pairs of a scenario, drawn from a seed: two faults, or a fault and another process at work between two requests.
pub(crate) async fn pairs(scenario: Scenario, terms: Terms, count: usize, seed: u64) -> Vec<Point> {
    let among = scenario.among();
    let requests = self::count(scenario, among, terms).await;
    let mut random = fastrand::Rng::with_seed(seed);
    // Locks that are lost on purpose make a run long; there is one such fault in a pair at most.
    let quick: Vec<Strike> =
        Strike::ALL.into_iter().filter(|strike| strike.reruns() == Reruns::Never).collect();
    let draw = |number: usize| {
        let k = random.u64(1..=requests);
        let strike = Strike::ALL[random.usize(..Strike::ALL.len())];
        let other = random.u64(1..=requests);
        let also = match number % 3 {
            // A request after the first one, often the one that settles it.
            0 => Also::Struck { strike: quick[random.usize(..quick.len())], k: k + random.u64(1..=3) },
            1 => Also::Struck { strike: quick[random.usize(..quick.len())], k: other },
            _ => Also::Rival {
                k: other,
                stays: if random.bool() { Stays::Briefly } else { Stays::LongerThanLocks },
            },
        };
        let is_rival = matches!(also, Also::Rival { .. });
        let strike = if is_rival { quick[random.usize(..quick.len())] } else { strike };
        // One request cannot be struck twice: what is struck first hides the other.
        let k = match also {
            Also::Struck { k: other, .. } | Also::Rival { k: other, .. } if other == k => k % requests + 1,
            _ => k,
        };
        Point { scenario, strike, k, among, also: Some(also) }
    };
    (0..count).map(draw).collect()
}

/// What came of many points.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Those that were right and in which the fault happened.
    pub(crate) struck: usize,
    /// Those of them in which a process died that was preparing a commit.
    pub(crate) preparing: usize,
    /// Those that made too few requests: nothing happened in them.
    pub(crate) missed: Vec<Point>,
    pub(crate) failures: Vec<String>,
}

impl Tally {
    pub(crate) fn points(&self) -> usize {
        self.struck + self.missed.len() + self.failures.len()
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.struck += other.struck;
        self.preparing += other.preparing;
        self.missed.extend(other.missed);
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (points, failed) = (self.points(), self.failures.len());
        write!(
            f,
            "{points} points, {} struck and right, {} missed, {failed} failed",
            self.struck,
            self.missed.len()
        )
    }
}

/// Runs points, several at a time. `listener` is told of each.
pub(crate) async fn run_all(
    points: Vec<Point>,
    at_once: usize,
    terms: Terms,
    listener: impl Fn(Point, Option<&str>),
) -> Tally {
    use futures::stream::StreamExt as _;
    let mut running = futures::stream::iter(points)
        .map(|point| async move {
            match tokio::time::timeout(terms.patience * 3, run(point, terms)).await {
                Ok(outcome) => (point, outcome),
                Err(_) => (point, Err(format!("{point}: no end after {:?}", terms.patience * 3))),
            }
        })
        .buffer_unordered(at_once);
    let mut tally = Tally::default();
    while let Some((point, outcome)) = running.next().await {
        listener(point, outcome.as_ref().err().map(String::as_str));
        match outcome {
            Ok(seen) if seen.struck => {
                tally.struck += 1;
                tally.preparing += usize::from(seen.preparing);
            }
            Ok(_) => tally.missed.push(point),
            Err(failure) => tally.failures.push(failure),
        }
    }
    tally
}

/// So many requests are a search, a look and a lock.
const FEW_REQUESTS: u64 = 4;
/// Outlives every scenario on a busy machine.
const CALM_LOCK: Duration = Duration::from_secs(60);
/// A shorter lock is over before the runtime renews it.
const RENEWED_LOCK_MIN: Duration = Duration::from_secs(2);
