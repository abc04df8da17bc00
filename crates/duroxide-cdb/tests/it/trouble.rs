//! Real runtimes in passing trouble: every workflow ends as it would have without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::Provider as _;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{OrchestrationContext, OrchestrationRegistry};
use futures::stream::{StreamExt as _, TryStreamExt as _};

use crate::effects::Effects;
use crate::flows::{Machine, activities, options};
use crate::windows::{Place, mail, place, status};
use crate::world::{emulator, noise, until};

/// A process that only sends, with so many letters for an instance.
async fn post(place: &Place, instance: &str, letters: usize, bytes: usize) {
    let text = noise(bytes);
    futures::stream::iter(0..letters)
        .map(|n| place.provider.enqueue_for_orchestrator(mail(instance, &format!("{n}:{text}")), None))
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_runtimes_read_each_letter_of_a_long_first_queue_once() {
    const LETTERS: usize = 560;
    let place = place().await;
    let client = duroxide::Client::new(Arc::new(place.other().await));
    // The letters are there before anybody looks, so that each runtime finds more than one page of them.
    client.start_orchestration("a", "Census", LETTERS.to_string()).await.unwrap();
    post(&place, "a", LETTERS, 9_000).await;
    let mut machines = Vec::new();
    for _ in 0..3 {
        machines.push(Machine::start(place.other().await, RuntimeOptions::default()).await);
    }
    assert_eq!(machines[0].output("a").await, format!("{LETTERS} different, 0 more than once"));
    for machine in machines {
        machine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_lacks_a_handler_loses_no_mail_of_those_that_it_puts_off() {
    const LETTERS: usize = 150;
    let place = place().await;
    let client = duroxide::Client::new(Arc::new(place.other().await));
    client.start_orchestration("a", "Mailbox", LETTERS.to_string()).await.unwrap();
    post(&place, "a", LETTERS, 0).await;
    // The old version of a rolling deployment.
    let nothing = OrchestrationRegistry::builder()
        .register("Unrelated", |_: OrchestrationContext, _: String| async move { Ok(String::new()) })
        .build();
    let effects = Arc::new(Effects::default());
    let old = Runtime::start_with_options(
        Arc::new(place.other().await),
        activities(&effects),
        nothing,
        RuntimeOptions::default(),
    )
    .await;
    until("the old runtime has put the start off", async || {
        let queued = place.of_type("a", "orch_queue").await;
        queued.iter().any(|message| message["visibleAt"].as_u64() > message["enqueuedAt"].as_u64())
    })
    .await;
    let new = Machine::start(place.other().await, RuntimeOptions::default()).await;
    let got = new.output("a").await;
    let mut letters: Vec<usize> =
        got.split(',').map(|letter| letter.trim_end_matches(':').parse().unwrap()).collect();
    letters.sort_unstable();
    assert_eq!(letters, (0..LETTERS).collect::<Vec<_>>());
    old.shutdown(Some(200)).await;
    new.stop().await;
}

/// Runs an activity that needs one renewal at default options, and strikes that renewal.
async fn survives_at_a_renewal(verdict: Verdict) {
    let place = place().await;
    let machine = Machine::start(place.other().await, RuntimeOptions::default()).await;
    machine.client.start_orchestration("a", "Nap", "27000").await.unwrap();
    until("the activity runs", async || machine.effects.runs("Doze") > 0).await;
    // From now on only renewals replace a document of this instance, until the activity ends.
    let fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::ReplaceItem).times(1));
    assert_eq!(machine.output("a").await, "dozed", "{verdict:?}");
    assert_eq!((fault.struck(), machine.effects.runs("Doze")), (1, 1), "{verdict:?}");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_activity_survives_one_refused_renewal_at_default_options() {
    let retry_after = Some(Duration::from_secs(6));
    let throttled = Verdict::Status { code: 429, sub_status: 3200, retry_after };
    tokio::join!(survives_at_a_renewal(throttled), survives_at_a_renewal(status(403, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_survives_half_a_minute_without_a_network_under_a_long_lock() {
    let place = place().await;
    let machine = Machine::start(place.other().await, options(Duration::from_secs(90))).await;
    let faults = [Operation::Batch, Operation::ReadItem].map(|operation| {
        emulator().faults().add(place.rule(Verdict::ResetBefore).on(operation).for_key("a"))
    });
    let begun = Instant::now();
    machine.client.start_orchestration("a", "Hello", "x").await.unwrap();
    until("half a minute is over", async || begun.elapsed() > Duration::from_secs(31)).await;
    drop(faults);
    assert_eq!(machine.output("a").await, "Hello, x!");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_survives_commits_that_are_throttled_for_many_times_its_lock() {
    let place = place().await;
    let machine = Machine::start(place.other().await, options(Duration::from_secs(2))).await;
    let retry_after = Some(Duration::from_millis(50));
    let throttled = Verdict::Status { code: 429, sub_status: 3200, retry_after };
    let fault = emulator().faults().add(place.rule(throttled).on(Operation::Batch));
    let begun = Instant::now();
    machine.client.start_orchestration("a", "Hello", "x").await.unwrap();
    until("many locks are over", async || begun.elapsed() > Duration::from_secs(14)).await;
    drop(fault);
    assert_eq!(machine.output("a").await, "Hello, x!");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_survives_a_refusal_of_access_at_any_of_its_commits() {
    for nth in 1..=4 {
        let place = place().await;
        let machine = Machine::start(place.other().await, RuntimeOptions::default()).await;
        let fault =
            emulator().faults().add(place.rule(status(403, 0)).on(Operation::Batch).nth(nth).times(1));
        assert_eq!(machine.run("a", "Parent", "x").await, "Hello, x!", "batch {nth}");
        assert_eq!(fault.struck(), 1);
        machine.stop().await;
    }
}
