//! What the processes work on, and what must come out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, OrchestrationContext, OrchestrationRegistry};

/// How often each step was carried out, by instance and step: at least once each, whatever dies.
pub(crate) type Effects = Arc<Mutex<BTreeMap<String, u32>>>;

/// The shapes of orchestrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Chain,
    FanOut,
    Children,
    Rounds,
    Mailbox,
    Notes,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Chain, Self::FanOut, Self::Children, Self::Rounds, Self::Mailbox, Self::Notes];

    /// The registered name.
    pub(crate) fn orchestration(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::FanOut => "fan-out",
            Self::Children => "children",
            Self::Rounds => "rounds",
            Self::Mailbox => "mailbox",
            Self::Notes => "notes",
        }
    }
}

/// One orchestration to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
}

const STEPS: usize = 5;
const WIDTH: usize = 30;
const CHILDREN: usize = 3;
const ROUNDS: usize = 4;
/// Messages that each mailbox gets.
pub(crate) const LETTERS: usize = 6;
/// The queue that mailboxes read.
pub(crate) const LETTERBOX: &str = "letters";

impl Job {
    pub(crate) fn instance(&self) -> String {
        format!("{}-{}", self.kind.orchestration(), self.number)
    }

    pub(crate) fn input(&self) -> String {
        match self.kind {
            Kind::Rounds => String::from("1"),
            Kind::Chain | Kind::FanOut | Kind::Children | Kind::Mailbox | Kind::Notes => String::new(),
        }
    }

    /// The only right answer.
    pub(crate) fn expected(&self) -> String {
        match self.kind {
            Kind::Chain => (0..STEPS).map(|step| format!("<{step}>")).collect(),
            Kind::FanOut => (0..WIDTH).map(|step| format!("<{step}>")).collect(),
            Kind::Children => (0..CHILDREN).map(|child| format!("<child {child}>")).collect(),
            Kind::Rounds => format!("{ROUNDS} rounds"),
            Kind::Mailbox => (0..LETTERS).map(|letter| format!("{letter},")).collect(),
            Kind::Notes => (0..STEPS).map(|step| format!("{step}=<{step}>;")).collect(),
        }
    }
}

pub(crate) fn activities(effects: &Effects) -> ActivityRegistry {
    let effects = effects.clone();
    ActivityRegistry::builder()
        .register("step", move |context: ActivityContext, input: String| {
            let effects = effects.clone();
            async move {
                let key = format!("{}/{}/{input}", context.instance_id(), context.execution_id());
                *effects.lock().expect("no panic while counting").entry(key).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok(format!("<{input}>"))
            }
        })
        .build()
}

pub(crate) fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register(Kind::Chain.orchestration(), chain)
        .register(Kind::FanOut.orchestration(), fan_out)
        .register(Kind::Children.orchestration(), children)
        .register("child", child)
        .register(Kind::Rounds.orchestration(), rounds)
        .register(Kind::Mailbox.orchestration(), mailbox)
        .register(Kind::Notes.orchestration(), notes)
        .build()
}

async fn chain(context: OrchestrationContext, _: String) -> Result<String, String> {
    let mut out = String::new();
    for step in 0..STEPS {
        out += &context.schedule_activity("step", step.to_string()).await?;
    }
    Ok(out)
}

async fn fan_out(context: OrchestrationContext, _: String) -> Result<String, String> {
    let steps = (0..WIDTH).map(|step| context.schedule_activity("step", step.to_string())).collect();
    context.join(steps).await.into_iter().collect()
}

async fn children(context: OrchestrationContext, _: String) -> Result<String, String> {
    let children = (0..CHILDREN)
        .map(|child| context.schedule_sub_orchestration("child", format!("child {child}")))
        .collect();
    context.join(children).await.into_iter().collect()
}

async fn child(context: OrchestrationContext, input: String) -> Result<String, String> {
    context.schedule_activity("step", input).await
}

async fn rounds(context: OrchestrationContext, round: String) -> Result<String, String> {
    let number: usize = round.parse().map_err(|_| format!("{round} is no number"))?;
    context.schedule_activity("step", round).await?;
    if number < ROUNDS {
        return context.continue_as_new((number + 1).to_string()).await;
    }
    Ok(format!("{number} rounds"))
}

async fn mailbox(context: OrchestrationContext, _: String) -> Result<String, String> {
    let mut out = String::new();
    for _ in 0..LETTERS {
        out += &context.dequeue_event(LETTERBOX).await;
        out += ",";
    }
    Ok(out)
}

async fn notes(context: OrchestrationContext, _: String) -> Result<String, String> {
    for step in 0..STEPS {
        let value = context.schedule_activity("step", step.to_string()).await?;
        context.set_kv_value(step.to_string(), value);
    }
    let all: BTreeMap<_, _> = context.get_kv_all_values().into_iter().collect();
    Ok(all.into_iter().map(|(key, value)| format!("{key}={value};")).collect())
}
