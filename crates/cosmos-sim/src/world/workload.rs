//! What the processes work on, and what must come out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{
    ActivityContext, BackoffStrategy, Either2, OrchestrationContext, OrchestrationRegistry, RetryPolicy,
};

use super::further::{CROWD, Edition, NEW_VERSION, patient, prune, register};

/// How often each step was carried out, by instance and step: at least once each, whatever dies.
pub(crate) type Effects = Arc<Mutex<BTreeMap<String, u32>>>;

/// The shapes of orchestrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Activities one after the other.
    Chain,
    /// Activities at once, up to more than one batch holds.
    FanOut,
    /// Sub-orchestrations, each with an activity.
    Children,
    /// Orchestrations that nobody waits for.
    Detached,
    /// Continue-as-new.
    Rounds,
    /// As `Rounds`, and old executions are pruned.
    Pruned,
    /// Messages from a queue, in order.
    Mailbox,
    /// An event that is raised once the orchestration says that it waits, raced with a timer of weeks.
    Signal,
    /// Key-values.
    Notes,
    /// Timers, some at once.
    Timers,
    /// An activity that fails before it succeeds.
    Retries,
    /// Activities of one session.
    Session,
    /// Inputs and results up to beyond what one document holds.
    Big,
    /// An activity that fails for good.
    Failing,
    /// Cancelled with its children while it waits for ever.
    Cancelled,
    /// Another version than the default.
    Versioned,
    /// Deleted when it is done, and started again under the same name.
    Deleted,
    /// Activities that take longer than a lock stays unwritten, and than it lasts without renewal; beside them short ones.
    Slow,
    /// Activities with a tag, which only one process runs, and others beside them.
    Tagged,
    /// Children of children, deleted with all of them when it is done.
    Tree,
    /// An activity that loses against a timer, and is told.
    Raced,
    /// A child that continues as new, and a parent that waits for the last of it.
    Generations,
    /// What was done is undone, because a later step fails.
    Compensated,
    /// Key-values that go from execution to execution, together up to beyond what one document holds.
    Carried,
    /// Continue-as-new that removes its own past.
    Eternal,
    /// An activity of a session that fails before it succeeds.
    StubbornSession,
    /// Questions to the runtime: a number, the time, a key of an instance.
    Asked,
    /// A version that processes have only after they were upgraded.
    Upgraded,
    /// What a process of the public crate 0.1.10 left half done.
    Legacy,
    /// More children than one batch holds.
    Crowd,
    /// More letters than one batch holds, sent before anybody reads.
    Letters,
}

impl Kind {
    /// Those that have dice of their own.
    pub(crate) const FURTHER: [Self; 13] = [
        Self::Tagged,
        Self::Tree,
        Self::Raced,
        Self::Generations,
        Self::Compensated,
        Self::Carried,
        Self::Eternal,
        Self::StubbornSession,
        Self::Asked,
        Self::Upgraded,
        Self::Legacy,
        Self::Crowd,
        Self::Letters,
    ];

    pub(crate) const ALL: [Self; 18] = [
        Self::Chain,
        Self::FanOut,
        Self::Children,
        Self::Detached,
        Self::Rounds,
        Self::Pruned,
        Self::Mailbox,
        Self::Signal,
        Self::Notes,
        Self::Timers,
        Self::Retries,
        Self::Session,
        Self::Big,
        Self::Failing,
        Self::Cancelled,
        Self::Versioned,
        Self::Deleted,
        Self::Slow,
    ];

    /// The registered name.
    pub(crate) fn orchestration(self) -> &'static str {
        match self {
            Self::Chain | Self::Deleted | Self::Legacy => "chain",
            Self::FanOut => "fan-out",
            Self::Children | Self::Crowd => "children",
            Self::Detached => "detached",
            Self::Rounds | Self::Pruned => "rounds",
            Self::Mailbox | Self::Letters => "mailbox",
            Self::Signal => "signal",
            Self::Notes => "notes",
            Self::Timers => "timers",
            Self::Retries => "retries",
            Self::Session => "session",
            Self::Big => "big",
            Self::Failing => "failing",
            Self::Cancelled => "cancelled",
            Self::Versioned => "versioned",
            Self::Slow => "slow",
            Self::Tagged => "tagged",
            Self::Tree => "tree",
            Self::Raced => "raced",
            Self::Generations => "parent of rounds",
            Self::Compensated => "compensated",
            Self::Carried => "carried",
            Self::Eternal => "eternal",
            Self::StubbornSession => "stubborn session",
            Self::Asked => "asked",
            Self::Upgraded => "upgraded",
        }
    }
}

/// One orchestration to run.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
    /// How much of it: steps, width, rounds, letters, or kilobytes.
    pub(crate) size: usize,
    pub(crate) begins_at: Duration,
}

/// How a job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Expected {
    Output(String),
    Failure,
}

/// The queue that mailboxes read.
pub(crate) const LETTERBOX: &str = "letters";
/// The event that signals wait for.
pub(crate) const SIGNAL: &str = "go";
/// What a signal says when it waits.
pub(crate) const WAITING: &str = "waiting";
/// The version that is asked for by name.
pub(crate) const OLD_VERSION: &str = "1.0.0";

impl Job {
    pub(crate) fn of(number: usize, random: &mut fastrand::Rng) -> Self {
        // The last kind has dice of its own.
        let kind = Kind::ALL[random.usize(..Kind::ALL.len() - 1)];
        let size = match kind {
            // A batch holds a hundred operations.
            Kind::FanOut if random.u8(..4) == 0 => random.usize(90..=130),
            Kind::FanOut => random.usize(1..=12),
            // A document holds two megabytes.
            Kind::Big if random.u8(..6) == 0 => random.usize(1_500..=2_600),
            Kind::Big => random.usize(1..=300),
            Kind::Children | Kind::Detached | Kind::Cancelled => random.usize(1..=3),
            _ => random.usize(1..=5),
        };
        Self { number, kind, size, begins_at: Duration::from_millis(random.u64(0..=6_000)) }
    }

    /// One whose activities take seconds.
    pub(crate) fn slow(number: usize, random: &mut fastrand::Rng) -> Self {
        let begins_at = Duration::from_millis(random.u64(0..=6_000));
        Self { number, kind: Kind::Slow, size: random.usize(1..=5), begins_at }
    }

    /// One of the kinds that have dice of their own. A throttled world has little room.
    pub(crate) fn further(number: usize, is_throttled: bool, random: &mut fastrand::Rng) -> Self {
        let kind = Kind::FURTHER[random.usize(..Kind::FURTHER.len())];
        let crowd = if is_throttled { 2..=4 } else { CROWD };
        let size = match kind {
            // A crowd takes as long as ten other worlds.
            Kind::Crowd | Kind::Letters if random.u8(..4) == 0 => random.usize(crowd),
            Kind::Carried if random.u8(..4) == 0 && !is_throttled => random.usize(34..=38),
            _ => random.usize(1..=5),
        };
        Self { number, kind, size, begins_at: Duration::from_millis(random.u64(0..=6_000)) }
    }

    /// What a throttled world has room for.
    pub(crate) fn within_budget(mut self) -> Self {
        if matches!(self.kind, Kind::FanOut | Kind::Big) {
            self.size = self.size.min(12);
        }
        self
    }

    /// The instances of a job that the public crate left half done: one that runs, one whose start is queued, and one whose
    /// start is to be delivered.
    pub(crate) fn legacy(&self) -> Option<[String; 3]> {
        let name = self.instance();
        (self.kind == Kind::Legacy).then(|| [name.clone(), format!("{name}-queued"), format!("{name}-sent")])
    }

    pub(crate) fn instance(&self) -> String {
        format!("{:?}-{}", self.kind, self.number).to_lowercase()
    }

    pub(crate) fn input(&self) -> String {
        match self.kind {
            Kind::Rounds | Kind::Pruned | Kind::Eternal | Kind::Carried => format!("1/{}", self.size),
            Kind::Big => noise(self.number as u64, self.size * 1024),
            _ => self.size.to_string(),
        }
    }

    /// The only right answer.
    pub(crate) fn expected(&self) -> Expected {
        let steps = |prefix: &str| (0..self.size).map(|step| format!("<{prefix}{step}>")).collect::<String>();
        Expected::Output(match self.kind {
            Kind::Chain | Kind::FanOut | Kind::Session | Kind::Deleted | Kind::Slow => steps(""),
            Kind::Tagged | Kind::Legacy => steps(""),
            Kind::Children | Kind::Crowd => steps("child "),
            Kind::Detached => format!("{} sent", self.size),
            Kind::Rounds | Kind::Pruned | Kind::Eternal | Kind::Generations => {
                format!("{} rounds", self.size)
            }
            Kind::Tree => String::from("<leaf>"),
            Kind::Raced => String::from("<in time>"),
            Kind::Compensated => (0..self.size).rev().map(|step| format!("<undo <book {step}>>")).collect(),
            Kind::Carried => format!("{} and {}", self.size - 1, self.size),
            Kind::StubbornSession => String::from("<after all>"),
            Kind::Asked => String::from("36 true"),
            Kind::Upgraded => format!("after {}", self.size),
            Kind::Mailbox | Kind::Letters => (0..self.size).map(|letter| format!("{letter},")).collect(),
            Kind::Signal => String::from("signalled: now"),
            Kind::Notes => (0..self.size).map(|step| format!("{step}=<{step}>;")).collect(),
            Kind::Timers => format!("{} fired", self.size),
            Kind::Retries => String::from("<after all>"),
            Kind::Big => format!("{:016x}", checksum(&self.input())),
            Kind::Versioned => format!("old {}", self.size),
            Kind::Failing | Kind::Cancelled => return Expected::Failure,
        })
    }

    /// Orchestrations that nobody waits for, but that must end as well.
    pub(crate) fn detached(&self) -> impl Iterator<Item = String> + '_ {
        let count = if self.kind == Kind::Detached { self.size } else { 0 };
        (0..count).map(|child| detached_name(&self.instance(), child))
    }
}

fn detached_name(parent: &str, child: usize) -> String {
    format!("{parent}-alone-{child}")
}

/// Text that does not get shorter by compression.
pub(crate) fn noise(seed: u64, length: usize) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.alphanumeric()).take(length).collect()
}

fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

pub(crate) fn activities(effects: &Effects) -> ActivityRegistry {
    let counting = effects.clone();
    let count = move |context: &ActivityContext, input: &str| {
        let input = &input[..input.len().min(32)];
        let key = format!("{}/{}/{input}", context.instance_id(), context.execution_id());
        let mut effects = counting.lock().expect("no panic while counting");
        let times = effects.entry(key).or_default();
        *times += 1;
        *times
    };
    let (step, slow, stubborn, echo) = (count.clone(), count.clone(), count.clone(), count);
    ActivityRegistry::builder()
        .register("step", move |context: ActivityContext, input: String| {
            step(&context, &input);
            async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(format!("<{input}>"))
            }
        })
        .register("slow step", move |context: ActivityContext, input: String| {
            slow(&context, &input);
            async move {
                let step: u64 = input.parse().unwrap_or(1);
                tokio::time::sleep(Duration::from_millis(1_500 + 2_500 * step)).await;
                Ok(format!("<{input}>"))
            }
        })
        .register("stubborn", move |context: ActivityContext, input: String| {
            let times = stubborn(&context, &input);
            async move {
                let needed: u32 = input.parse().unwrap_or(1);
                if times < needed { Err(format!("try {times}")) } else { Ok(String::from("<after all>")) }
            }
        })
        .register("echo", move |context: ActivityContext, input: String| {
            echo(&context, &input);
            async move { Ok(input) }
        })
        .register("patient", patient)
        .register("prune", prune)
        .register("hopeless", |_: ActivityContext, input: String| async move { Err(input) })
        .build()
}

pub(crate) fn orchestrations(edition: Edition) -> OrchestrationRegistry {
    let registry = OrchestrationRegistry::builder()
        .register("chain", chain)
        .register("fan-out", fan_out)
        .register("children", children)
        .register("child", child)
        .register("detached", detached)
        .register("rounds", rounds)
        .register("mailbox", mailbox)
        .register("signal", signal)
        .register("notes", notes)
        .register("timers", timers)
        .register("retries", retries)
        .register("session", session)
        .register("big", big)
        .register("failing", failing)
        .register("cancelled", cancelled)
        .register("waiting", waiting)
        .register("slow", slow)
        .register_versioned("versioned", OLD_VERSION, old_version)
        .register_versioned("versioned", NEW_VERSION, new_version);
    register(registry, edition).build()
}

pub(crate) fn size_of(input: &str) -> usize {
    input.parse().unwrap_or(1)
}

async fn chain(context: OrchestrationContext, input: String) -> Result<String, String> {
    let mut out = String::new();
    for step in 0..size_of(&input) {
        out += &context.schedule_activity("step", step.to_string()).await?;
    }
    Ok(out)
}

async fn fan_out(context: OrchestrationContext, input: String) -> Result<String, String> {
    let steps =
        (0..size_of(&input)).map(|step| context.schedule_activity("step", step.to_string())).collect();
    context.join(steps).await.into_iter().collect()
}

async fn slow(context: OrchestrationContext, input: String) -> Result<String, String> {
    let size = size_of(&input);
    let steps: Vec<_> =
        (0..size).map(|step| context.schedule_activity("slow step", step.to_string())).collect();
    // Meanwhile there is always something to do.
    for tick in 0..5 * size {
        context.schedule_activity("step", format!("tick {tick}")).await?;
        context.schedule_timer(Duration::from_millis(400)).await;
    }
    context.join(steps).await.into_iter().collect()
}

async fn children(context: OrchestrationContext, input: String) -> Result<String, String> {
    let children = (0..size_of(&input))
        .map(|child| context.schedule_sub_orchestration("child", format!("child {child}")))
        .collect();
    context.join(children).await.into_iter().collect()
}

async fn child(context: OrchestrationContext, input: String) -> Result<String, String> {
    context.schedule_activity("step", input).await
}

async fn detached(context: OrchestrationContext, input: String) -> Result<String, String> {
    let count = size_of(&input);
    for child in 0..count {
        context.schedule_orchestration(
            "child",
            detached_name(&context.instance_id(), child),
            child.to_string(),
        );
    }
    Ok(format!("{count} sent"))
}

async fn rounds(context: OrchestrationContext, input: String) -> Result<String, String> {
    let (round, all) = input.split_once('/').ok_or("no rounds")?;
    let (round, all) = (size_of(round), size_of(all));
    context.schedule_activity("step", round.to_string()).await?;
    if round < all {
        return context.continue_as_new(format!("{}/{all}", round + 1)).await;
    }
    Ok(format!("{all} rounds"))
}

async fn mailbox(context: OrchestrationContext, input: String) -> Result<String, String> {
    let mut out = String::new();
    for _ in 0..size_of(&input) {
        out += &context.dequeue_event(LETTERBOX).await;
        out += ",";
    }
    Ok(out)
}

async fn signal(context: OrchestrationContext, _: String) -> Result<String, String> {
    context.set_custom_status(WAITING);
    let event = context.schedule_wait(SIGNAL);
    let weeks = context.schedule_timer(Duration::from_secs(3 * 7 * 24 * 3600));
    match context.select2(event, weeks).await {
        Either2::First(data) => Ok(format!("signalled: {data}")),
        Either2::Second(()) => Ok(String::from("weeks went by")),
    }
}

async fn notes(context: OrchestrationContext, input: String) -> Result<String, String> {
    for step in 0..size_of(&input) {
        let value = context.schedule_activity("step", step.to_string()).await?;
        context.set_kv_value(step.to_string(), value);
        context.set_kv_value("scrap", "paper");
    }
    context.clear_kv_value("scrap");
    let all: BTreeMap<_, _> = context.get_kv_all_values().into_iter().collect();
    Ok(all.into_iter().map(|(key, value)| format!("{key}={value};")).collect())
}

async fn timers(context: OrchestrationContext, input: String) -> Result<String, String> {
    let count = size_of(&input);
    let timers =
        (0..count).map(|n| context.schedule_timer(Duration::from_millis(3 * 10_u64.pow(n as u32)))).collect();
    context.join(timers).await;
    Ok(format!("{count} fired"))
}

async fn retries(context: OrchestrationContext, input: String) -> Result<String, String> {
    let policy =
        RetryPolicy::new(10).with_backoff(BackoffStrategy::Fixed { delay: Duration::from_millis(300) });
    context.schedule_activity_with_retry("stubborn", input, policy).await
}

async fn session(context: OrchestrationContext, input: String) -> Result<String, String> {
    let session = context.instance_id();
    let steps = (0..size_of(&input))
        .map(|step| context.schedule_activity_on_session("step", step.to_string(), session.clone()))
        .collect();
    context.join(steps).await.into_iter().collect()
}

async fn big(context: OrchestrationContext, input: String) -> Result<String, String> {
    let output = context.schedule_activity("echo", input).await?;
    Ok(format!("{:016x}", checksum(&output)))
}

async fn failing(context: OrchestrationContext, _: String) -> Result<String, String> {
    context.schedule_activity("hopeless", "no way").await
}

async fn cancelled(context: OrchestrationContext, input: String) -> Result<String, String> {
    // Children of a parent that is cancelled before its first turn get a cancellation and never a start.
    context.set_custom_status(WAITING);
    let children =
        (0..size_of(&input)).map(|_| context.schedule_sub_orchestration("waiting", String::new())).collect();
    context.join(children).await.into_iter().collect()
}

async fn waiting(context: OrchestrationContext, _: String) -> Result<String, String> {
    Ok(context.schedule_wait("never").await)
}

async fn old_version(context: OrchestrationContext, input: String) -> Result<String, String> {
    context.schedule_activity("step", "old").await?;
    Ok(format!("old {input}"))
}

async fn new_version(_: OrchestrationContext, input: String) -> Result<String, String> {
    Ok(format!("new {input}"))
}
