//! Every kind of orchestration, end to end on a real runtime.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use duroxide::runtime::RuntimeOptions;
use duroxide::{OrchestrationStatus, TagFilter};

use crate::flows::{Machine, options};
use crate::world::{Store, until};

async fn machine() -> Machine {
    Machine::start(Store::default().provider().await, options(Duration::from_secs(5))).await
}

#[tokio::test]
async fn a_chain_of_activities_passes_values_on() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "Chain", "2").await, "256");
    machine.stop().await;
}

#[tokio::test]
async fn fan_out_and_fan_in_gathers_all_results() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "FanOut", "20").await, "2470");
    machine.stop().await;
}

#[tokio::test]
async fn a_parent_waits_for_its_children() {
    let machine = machine().await;
    assert_eq!(machine.run("p", "Parent", "Ann,Bob").await, "Hello, Ann! Hello, Bob!");
    let tree = machine.client.get_instance_tree("p").await.unwrap();
    assert_eq!(tree.all_ids.len(), 3);
    machine.stop().await;
}

#[tokio::test]
async fn a_timer_fires_when_it_is_due_and_not_before() {
    let machine = machine().await;
    let begun = Instant::now();
    assert_eq!(machine.run("a", "Sleep", "300").await, "slept");
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(machine.run("b", "Timeout", "").await, "timed out");
    machine.stop().await;
}

#[tokio::test]
async fn an_external_event_wakes_the_one_that_waits_for_it() {
    let machine = machine().await;
    machine.client.start_orchestration("a", "Approval", "").await.unwrap();
    let waiting = || async {
        let history = machine.client.read_execution_history("a", 1).await.unwrap_or_default();
        history.iter().any(|event| format!("{:?}", event.kind).starts_with("ExternalSubscribed"))
    };
    while !waiting().await {
        tokio::task::yield_now().await;
    }
    machine.client.raise_event("a", "approval", "Eve").await.unwrap();
    assert_eq!(machine.output("a").await, "approved by Eve");
    machine.stop().await;
}

#[tokio::test]
async fn queue_events_arrive_in_order_even_before_anybody_listens() {
    let machine = machine().await;
    machine.client.start_orchestration("a", "Mailbox", "30").await.unwrap();
    for n in 0..30 {
        machine.client.enqueue_event("a", "mail", n.to_string()).await.unwrap();
    }
    let expected: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    assert_eq!(machine.output("a").await, expected.join(","));
    machine.stop().await;
}

#[tokio::test]
async fn continue_as_new_keeps_unread_events_and_leaves_records() {
    let machine = machine().await;
    machine.client.start_orchestration("a", "Counter", "5/").await.unwrap();
    for letter in ["a", "b", "c", "d", "e"] {
        machine.client.enqueue_event("a", "mail", letter).await.unwrap();
    }
    assert_eq!(machine.output("a").await, "abcde");
    assert_eq!(machine.client.list_executions("a").await.unwrap(), [1, 2, 3, 4, 5]);
    let first = machine.client.get_execution_info("a", 1).await.unwrap();
    assert_eq!(first.status, "ContinuedAsNew");
    let last = machine.client.get_execution_info("a", 5).await.unwrap();
    assert_eq!((last.status.as_str(), last.output.as_deref()), ("Completed", Some("abcde")));
    assert!(first.completed_at.unwrap() <= last.started_at);
    machine.stop().await;
}

#[tokio::test]
async fn a_cancelled_orchestration_ends_and_its_activity_is_told() {
    let machine = machine().await;
    machine.client.start_orchestration("a", "Stuck", "").await.unwrap();
    let effects = &machine.effects;
    until("the activity runs", async || effects.waiting.load(Ordering::SeqCst) == 1).await;
    assert_eq!(effects.told.load(Ordering::SeqCst), 0);
    machine.client.cancel_instance("a", "no longer needed").await.unwrap();
    let status = machine.client.wait_for_orchestration("a", Duration::from_secs(30)).await.unwrap();
    let OrchestrationStatus::Failed { details, .. } = status else { panic!("{status:?}") };
    assert!(details.display_message().contains("no longer needed"), "{details:?}");
    until("the activity is told", async || effects.told.load(Ordering::SeqCst) == 1).await;
    machine.stop().await;
}

#[tokio::test]
async fn a_failing_activity_is_retried() {
    let machine = machine().await;
    machine.effects.failures_left.store(3, Ordering::SeqCst);
    assert_eq!(machine.run("a", "Retry", "finally").await, "finally");
    machine.stop().await;
}

#[tokio::test]
async fn activities_of_a_session_run_on_one_worker() {
    // Without a node name every worker is an owner of its own.
    let options = RuntimeOptions { worker_node_id: None, ..options(Duration::from_secs(5)) };
    let machine = Machine::start(Store::default().provider().await, options).await;
    let worker = machine.run("a", "Session", "gpu/0 #1").await;
    assert!(!worker.contains(','), "{worker}");
    assert!(worker.starts_with("gpu/0 #1@"), "{worker}");
    machine.stop().await;
}

#[tokio::test]
async fn tagged_activities_go_to_the_workers_with_that_tag() {
    let store = Store::default();
    let provider = store.provider().await;
    let plain =
        RuntimeOptions { worker_tag_filter: TagFilter::DefaultOnly, ..options(Duration::from_secs(5)) };
    let special = RuntimeOptions {
        worker_tag_filter: TagFilter::tags(["gpu"]),
        orchestration_concurrency: 1,
        ..options(Duration::from_secs(5))
    };
    let one = Machine::start(provider.clone(), plain).await;
    let other = Machine::start(provider, special).await;
    assert_eq!(one.run("a", "Tags", "gpu").await, "untagged,gpu");
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn notes_and_status_are_seen_by_clients() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "Notes", "value").await, "value");
    let values = machine.client.get_kv_all_values("a").await.unwrap();
    assert_eq!(values.len(), 1);
    assert_eq!(values["path/like key 🦀"], "value");
    let status = machine.client.get_orchestration_status("a").await.unwrap();
    let OrchestrationStatus::Completed { custom_status, .. } = status else { panic!("{status:?}") };
    assert_eq!(custom_status.as_deref(), Some("noted"));
    machine.stop().await;
}

#[tokio::test]
async fn the_latest_or_the_named_version_runs() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "Versioned", "").await, "two");
    machine.client.start_orchestration_versioned("b", "Versioned", "1.0.0", "").await.unwrap();
    assert_eq!(machine.output("b").await, "one");
    assert_eq!(machine.client.get_instance_info("b").await.unwrap().orchestration_version, "1.0.0");
    machine.stop().await;
}

#[tokio::test]
async fn a_detached_orchestration_outlives_its_starter() {
    let machine = machine().await;
    assert_eq!(machine.run("a", "Detach", "detached-1").await, "started");
    assert_eq!(machine.output("detached-1").await, "Hello, detached-1!");
    machine.stop().await;
}

#[tokio::test]
async fn any_name_is_an_instance_id() {
    let machine = machine().await;
    let long = "x".repeat(1500);
    for name in
        ["tenant/42", "back\\slash", "o'brien \"quoted\"", "a?b#c", "line\nbreak", "🦀", long.as_str()]
    {
        assert_eq!(machine.run(name, "Parent", "A").await, "Hello, A!", "{name:?}");
        assert_eq!(machine.client.get_instance_info(name).await.unwrap().instance_id, name);
        let deleted = machine.client.delete_instance(name, false).await.unwrap();
        assert_eq!(deleted.instances_deleted, 2, "{name:?}");
    }
    assert!(machine.client.list_all_instances().await.unwrap().is_empty());
    machine.stop().await;
}
