//! More shapes of orchestrations: those that mix features, or that several kinds of processes have to share.

use std::time::Duration;

use duroxide::providers::PruneOptions;
use duroxide::{
    ActivityContext, BackoffStrategy, Either2, OrchestrationContext, OrchestrationRegistryBuilder,
    RetryPolicy,
};

use super::workload::{noise, size_of};

/// The tag of activities that only some processes run.
pub(crate) const TAG: &str = "gpu";
/// The version that processes have only after an upgrade.
pub(crate) const NEW_VERSION: &str = "2.0.0";
/// How long somebody waits who is told not to any more.
const PATIENT: Duration = Duration::from_secs(15);
/// Children and letters of a crowd: more than a batch holds.
pub(crate) const CROWD: std::ops::RangeInclusive<usize> = 101..=112;
/// Key-values of this size, thirty-odd of which are more than a document holds.
const VALUE_BYTES: usize = 60_000;

/// How old a process is: before an upgrade it lacks a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edition {
    Old,
    New,
}

pub(crate) fn register(
    registry: OrchestrationRegistryBuilder,
    edition: Edition,
) -> OrchestrationRegistryBuilder {
    let registry = registry
        .register("tagged", tagged)
        .register("tree", tree)
        .register("raced", raced)
        .register("parent of rounds", parent_of_rounds)
        .register("compensated", compensated)
        .register("carried", carried)
        .register("eternal", eternal)
        .register("stubborn session", stubborn_session)
        .register("asked", asked)
        .register_versioned("upgraded", "1.0.0", before_upgrade);
    match edition {
        Edition::Old => registry,
        Edition::New => registry.register_versioned("upgraded", NEW_VERSION, after_upgrade),
    }
}

/// Waits until it is told that nobody waits for it.
pub(crate) async fn patient(context: ActivityContext, _: String) -> Result<String, String> {
    tokio::select! {
        () = context.cancelled() => Err(String::from("told")),
        () = tokio::time::sleep(PATIENT) => Ok(String::from("not told")),
    }
}

/// Removes what an eternal orchestration has behind it.
pub(crate) async fn prune(context: ActivityContext, _: String) -> Result<String, String> {
    let options = PruneOptions { keep_last: Some(1), ..PruneOptions::default() };
    let pruned = context.get_client().prune_executions(context.instance_id(), options).await;
    pruned.map(|_| String::from("pruned")).map_err(|error| format!("{error:?}"))
}

async fn tagged(context: OrchestrationContext, input: String) -> Result<String, String> {
    let steps = (0..size_of(&input)).map(|step| {
        let activity = context.schedule_activity("step", step.to_string());
        if step % 2 == 0 { activity.with_tag(TAG) } else { activity }
    });
    context.join(steps.collect()).await.into_iter().collect()
}

/// A parent, a child and a grandchild for each unit of size.
async fn tree(context: OrchestrationContext, input: String) -> Result<String, String> {
    let size = size_of(&input);
    if size == 0 {
        return context.schedule_activity("step", "leaf").await;
    }
    context.schedule_sub_orchestration("tree", (size - 1).to_string()).await
}

/// The activity loses, and is told.
async fn raced(context: OrchestrationContext, _: String) -> Result<String, String> {
    let slow = context.schedule_activity("patient", "");
    let timer = context.schedule_timer(Duration::from_millis(700));
    match context.select2(slow, timer).await {
        Either2::First(outcome) => Err(format!("the activity was first: {outcome:?}")),
        Either2::Second(()) => context.schedule_activity("step", "in time").await,
    }
}

async fn parent_of_rounds(context: OrchestrationContext, input: String) -> Result<String, String> {
    let id = format!("{}-rounds", context.instance_id());
    context.schedule_sub_orchestration_with_id("rounds", id, format!("1/{input}")).await
}

/// What was done is undone in the opposite order, because the last step fails.
async fn compensated(context: OrchestrationContext, input: String) -> Result<String, String> {
    let mut done = Vec::new();
    for step in 0..size_of(&input) {
        done.push(context.schedule_activity("step", format!("book {step}")).await?);
    }
    let mut out = String::new();
    if context.schedule_activity("hopeless", "sold out").await.is_err() {
        for booked in done.into_iter().rev() {
            out += &context.schedule_activity("step", format!("undo {booked}")).await?;
        }
    }
    Ok(out)
}

/// Key-values go from execution to execution.
async fn carried(context: OrchestrationContext, input: String) -> Result<String, String> {
    let (round, all) = input.split_once('/').ok_or("no rounds")?;
    let (round, all) = (size_of(round), size_of(all));
    let before = context.get_kv_length();
    context.set_kv_value(format!("round {round}"), noise(round as u64, VALUE_BYTES));
    context.set_custom_status(format!("{before} before {round}"));
    context.schedule_activity("step", round.to_string()).await?;
    if round < all {
        return context.continue_as_new(format!("{}/{all}", round + 1)).await;
    }
    let last = context.get_kv_length();
    if all.is_multiple_of(2) {
        context.clear_all_kv_values();
    }
    Ok(format!("{before} and {last}"))
}

/// Removes its own past in every round.
async fn eternal(context: OrchestrationContext, input: String) -> Result<String, String> {
    let (round, all) = input.split_once('/').ok_or("no rounds")?;
    let (round, all) = (size_of(round), size_of(all));
    context.schedule_activity("prune", round.to_string()).await?;
    if round < all {
        return context.continue_as_new(format!("{}/{all}", round + 1)).await;
    }
    Ok(format!("{all} rounds"))
}

async fn stubborn_session(context: OrchestrationContext, input: String) -> Result<String, String> {
    let policy =
        RetryPolicy::new(10).with_backoff(BackoffStrategy::Fixed { delay: Duration::from_millis(200) });
    let session = context.instance_id();
    context.schedule_activity_with_retry_on_session("stubborn", input, policy, session).await
}

/// What the runtime itself is asked: a number nobody else has, the time, and a key of this instance as others see it.
async fn asked(context: OrchestrationContext, _: String) -> Result<String, String> {
    let guid = context.new_guid().await?;
    context.utc_now().await?;
    context.set_kv_value("guid", guid.clone());
    context.schedule_timer(Duration::from_millis(50)).await;
    let seen = context.get_kv_value_from_instance(context.instance_id(), "guid").await?;
    Ok(format!("{} {}", guid.len(), seen == Some(guid)))
}

async fn before_upgrade(_: OrchestrationContext, input: String) -> Result<String, String> {
    Ok(format!("before {input}"))
}

async fn after_upgrade(context: OrchestrationContext, input: String) -> Result<String, String> {
    context.schedule_activity("step", "upgraded").await?;
    Ok(format!("after {input}"))
}
