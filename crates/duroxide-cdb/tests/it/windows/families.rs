//! Deleting parents: their children go with them, however far they have come.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::{
    DeleteInstanceResult, ExecutionMetadata, Provider as _, ProviderAdmin as _, ProviderError, WorkItem,
};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};
use tokio::task::JoinHandle;

use super::{LOCK, NOW, Place, commit, config, ended, mail, place, place_with, place_without_sweeps, status};
use crate::world::{documents, emulator, event, named, noise, raw, start, until};

/// The start of a child of `parent`.
pub(super) fn child(parent: &str, instance: &str, input: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.into(),
        orchestration: "Hello".into(),
        input: input.into(),
        version: None,
        parent_instance: Some(parent.into()),
        parent_id: Some(2),
        parent_execution_id: Some(1),
        execution_id: 1,
    }
}

/// What the runtime says about a running child.
pub(super) fn child_of(parent: &str) -> ExecutionMetadata {
    ExecutionMetadata { parent_instance_id: Some(parent.to_owned()), ..named() }
}

/// Commits the first turn of `parent`, in which it sends `items`.
pub(super) async fn send(
    provider: &CosmosDBProvider,
    parent: &str,
    items: Vec<WorkItem>,
    metadata: ExecutionMetadata,
) {
    provider.enqueue_for_orchestrator(start(parent, "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let events = vec![event(parent, 1)];
    provider.ack_orchestration_item(&token, 1, events, vec![], items, metadata, vec![]).await.unwrap();
}

/// Fetches the first turn of the only instance that waits for one.
pub(super) async fn fetch(provider: &CosmosDBProvider, instance: &str) -> String {
    let wait = Duration::from_secs(30);
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.instance, instance);
    token
}

/// Deletes `parent` in the background.
fn deleting(place: &Place, force: bool) -> JoinHandle<Result<DeleteInstanceResult, ProviderError>> {
    let provider = place.provider.clone();
    tokio::spawn(async move { provider.delete_instances_atomic(&["parent".to_owned()], force).await })
}

/// Whether nothing but the marks of received messages is left of an instance.
pub(super) async fn is_gone(place: &Place, instance: &str) -> bool {
    place.kinds(instance).await.iter().all(|kind| kind == "tombstone")
}

pub(super) async fn assert_gone(place: &Place, instances: &[&str]) {
    for instance in instances {
        assert!(is_gone(place, instance).await, "{instance}: {:?}", place.kinds(instance).await);
    }
}

#[tokio::test]
async fn a_child_whose_start_has_arrived_and_that_has_not_run_is_deleted_with_its_parent() {
    let place = place().await;
    let provider = &place.provider;
    let cancel = WorkItem::CancelInstance { instance: "small".into(), reason: "the parent ends".into() };
    let items = vec![
        child("parent", "small", ""),
        child("parent", "large", &noise(1_000_000)),
        cancel,
        mail("small", "m"),
    ];
    send(provider, "parent", items, ended("Completed")).await;
    assert_eq!(place.kinds("small").await, ["orch_queue", "orch_queue", "orch_queue"], "all have arrived");
    assert_eq!(provider.list_children("parent").await.unwrap(), [""; 0], "no instance yet");
    let deleted = provider.delete_instance("parent", false).await.unwrap();
    assert_eq!((deleted.instances_deleted, deleted.executions_deleted), (1, 1));
    let other = place.other().await;
    for process in [provider, &other] {
        assert!(process.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    assert_gone(&place, &["parent", "small", "large"]).await;
    // Who sent them may not know that they arrived.
    assert_eq!(place.kinds("small").await, ["tombstone"; 3]);
    // The name is free again.
    place.begin("small").await;
}

#[tokio::test]
async fn a_child_in_its_first_turn_is_deleted_with_its_parent_and_cannot_commit() {
    let place = place().await;
    let provider = &place.provider;
    send(provider, "parent", vec![child("parent", "child", "")], ended("Completed")).await;
    let other = place.other().await;
    let token = fetch(&other, "child").await;
    provider.delete_instance("parent", false).await.unwrap();
    let late = commit(&other, &token, vec![event("child", 1)], child_of("parent")).await;
    assert!(!late.unwrap_err().retryable);
    assert_gone(&place, &["parent", "child"]).await;
    assert!(provider.list_instances().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_bulk_deletion_takes_children_that_have_not_run() {
    let place = place().await;
    send(&place.provider, "parent", vec![child("parent", "child", "")], ended("Completed")).await;
    let all = duroxide::providers::InstanceFilter { instance_ids: None, completed_before: None, limit: None };
    place.provider.delete_instance_bulk(all).await.unwrap();
    assert_gone(&place, &["parent", "child"]).await;
}

/// A parent that waits for its child, and a deletion that knows of the child and has not fenced it yet. The child runs
/// its first turn in between, and starts a child of its own.
async fn overtaken(place: &Place, force: bool) -> Result<DeleteInstanceResult, ProviderError> {
    let metadata = if force { named() } else { ended("Completed") };
    send(&place.provider, "parent", vec![child("parent", "child", "")], metadata).await;
    let rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("child").times(1);
    let fault = emulator().faults().add(rule);
    let deleting = deleting(place, force);
    until("the child is to be fenced", async || fault.struck() > 0).await;
    let other = place.other().await;
    let token = fetch(&other, "child").await;
    let (events, items) = (vec![event("child", 1)], vec![child("child", "grandchild", "")]);
    other.ack_orchestration_item(&token, 1, events, vec![], items, child_of("parent"), vec![]).await.unwrap();
    drop(fault);
    deleting.await.unwrap()
}

#[tokio::test]
async fn a_child_that_begins_while_its_parent_is_deleted_goes_with_all_it_started() {
    let place = place().await;
    let deleted = overtaken(&place, true).await.unwrap();
    assert_eq!(deleted.instances_deleted, 2);
    assert_gone(&place, &["parent", "child", "grandchild"]).await;
    assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_child_that_begins_while_its_parent_is_deleted_without_force_keeps_the_parent() {
    let place = place().await;
    let refused = overtaken(&place, false).await.unwrap_err();
    assert!(refused.message.contains("child is still running"), "{refused}");
    let mut listed = place.provider.list_instances().await.unwrap();
    listed.sort();
    assert_eq!(listed, ["child", "parent"]);
    let other = place.other().await;
    fetch(&other, "grandchild").await;
}

#[tokio::test]
async fn an_instance_that_only_shares_the_name_of_a_child_stays() {
    let place = place().await;
    place.begin("child").await;
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    place.provider.delete_instance("parent", true).await.unwrap();
    assert_gone(&place, &["parent"]).await;
    assert_eq!(place.provider.list_instances().await.unwrap(), ["child"]);
    assert_eq!(place.provider.read("child").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_deletion_that_dies_with_a_child_fenced_is_finished_by_another_process() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    })
    .await;
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    let fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Batch));
    let dying = deleting(&place, true);
    until("it begins to remove", async || fault.struck() > 0).await;
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let _other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    for instance in ["parent", "child"] {
        until("it is gone", async || is_gone(&place, instance).await).await;
    }
}

#[tokio::test]
async fn a_deletion_that_does_not_happen_lets_the_children_start() {
    let place =
        place_with(|config| CosmosDBProviderConfig { operation_timeout: Duration::from_secs(2), ..config })
            .await;
    let children = vec![child("parent", "one", ""), child("parent", "two", "")];
    send(&place.provider, "parent", children, named()).await;
    {
        let rule = place.rule(status(503, 0)).on(Operation::CreateItem).for_key("two");
        let _fault = emulator().faults().add(rule);
        let late = place.provider.delete_instance("parent", true).await.unwrap_err();
        assert!(late.retryable && late.message.contains("in smaller groups"), "{late}");
    }
    assert_eq!(place.provider.list_instances().await.unwrap(), ["parent"]);
    let other = place.other().await;
    let mut started = Vec::new();
    for _ in 0..2 {
        let wait = Duration::from_secs(30);
        started.push(other.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap().0.instance);
    }
    started.sort();
    assert_eq!(started, ["one", "two"]);
}

#[tokio::test]
async fn a_start_that_is_being_delivered_when_its_parent_is_deleted_starts_nothing() {
    let place = place_without_sweeps().await;
    let provider = &place.provider;
    // The delivery is held up until the parent is gone.
    let rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("child").times(1);
    let fault = emulator().faults().add(rule);
    let sending = {
        let provider = provider.clone();
        tokio::spawn(async move {
            send(&provider, "parent", vec![child("parent", "child", "")], named()).await;
        })
    };
    until("it is being delivered", async || fault.struck() > 0).await;
    let other = place.other().await;
    other.delete_instance("parent", true).await.unwrap();
    drop(fault);
    sending.await.unwrap();
    for process in [provider, &other] {
        assert!(process.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    assert_gone(&place, &["parent", "child"]).await;
}

#[tokio::test]
async fn a_start_that_arrives_after_its_parent_was_fenced_starts_nothing() {
    let mut place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    })
    .await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    // The deletion is recorded and has removed nothing yet when another process delivers and forgets the intent.
    let rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("__deletions__").times(1);
    let fault = emulator().faults().add(rule);
    let deleting = deleting(&place, true);
    until("all is fenced", async || fault.struck() > 0).await;
    let _reconciler = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: NOW,
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("the start has arrived", async || {
        !place.kinds("parent").await.contains(&"outbox_intent".to_owned())
    })
    .await;
    assert!(place.kinds("child").await.contains(&"orch_queue".to_owned()));
    drop(fault);
    deleting.await.unwrap().unwrap();
    assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_gone(&place, &["parent", "child"]).await;
}

#[tokio::test]
async fn a_parent_started_again_while_its_child_is_being_removed_gets_a_new_child() {
    let place = place_without_sweeps().await;
    send(&place.provider, "parent", vec![child("parent", "child", "old")], named()).await;
    let rule = place.rule(Verdict::Hang).on(Operation::Batch).for_key("child").times(1);
    let fault = emulator().faults().add(rule);
    let deleting = deleting(&place, true);
    until("the child is being removed", async || fault.struck() > 0).await;
    assert!(place.kinds("parent").await.is_empty());
    let other = place.other().await;
    send(&other, "parent", vec![child("parent", "child", "new")], named()).await;
    drop(fault);
    deleting.await.unwrap().unwrap();
    let (item, ..) =
        other.fetch_orchestration_item(LOCK, Duration::from_secs(30), None).await.unwrap().unwrap();
    assert_eq!(item.messages, [child("parent", "child", "new")]);
}

#[tokio::test]
async fn a_start_that_is_delivered_again_after_it_was_deleted_with_the_parent_starts_nothing() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        operation_timeout: Duration::from_secs(2),
        ..config
    })
    .await;
    // The start arrives, but its sender cannot note it.
    let mut rule = place.rule(status(503, 0)).on(Operation::Batch).for_key("parent");
    rule.skip = 1;
    let unnoted = emulator().faults().add(rule);
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    assert!(place.kinds("parent").await.contains(&"outbox_intent".to_owned()));
    assert_eq!(place.kinds("child").await, ["orch_queue"]);
    // Another process is about to deliver it again, and slow.
    let rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("child").times(1);
    let slow = emulator().faults().add(rule);
    let _reconciler = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("it is being delivered again", async || slow.struck() > 0).await;
    drop(unnoted);
    place.provider.delete_instance("parent", true).await.unwrap();
    assert_eq!(place.kinds("child").await, ["tombstone"]);
    drop(slow);
    assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_gone(&place, &["parent", "child"]).await;
}

/// A parent with one child whose start has arrived and one whose start is still to be delivered.
async fn family() -> Place {
    let mut place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    })
    .await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    send(provider, "parent", vec![child("parent", "sent", "")], named()).await;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let token = fetch(provider, "parent").await;
    let (events, items) = (vec![event("parent", 2)], vec![child("parent", "arrived", "")]);
    provider.ack_orchestration_item(&token, 1, events, vec![], items, named(), vec![]).await.unwrap();
    assert!(place.kinds("sent").await.is_empty());
    place
}

/// Makes fences as old as they must be for others to take them down.
async fn come_of_age(place: &Place) {
    let container = raw(&place.name).await;
    for instance in ["parent", "arrived", "sent"] {
        for mut document in documents(&container, instance).await {
            if document["type"] == "deleting" {
                document["sweepAt"] = 1.into();
                let id = document["id"].as_str().unwrap().to_owned();
                container.replace_item(instance, &id, &document, ItemOptions::default()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_deletion_that_dies_at_any_request_takes_the_whole_family_or_nobody() {
    let (mut whole, mut nobody) = (0, 0);
    for request in 0.. {
        let place = family().await;
        let mut rule = place.rule(Verdict::Hang);
        rule.skip = request;
        let fault = emulator().faults().add(rule);
        let dying = deleting(&place, true);
        until("it is held up or over", async || fault.struck() > 0 || dying.is_finished()).await;
        let is_over = dying.is_finished();
        dying.abort();
        let _ = dying.await;
        drop(fault);
        come_of_age(&place).await;
        let heir = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
            reconciler_interval: Duration::from_millis(10),
            ..config(&place.name)
        })
        .await
        .unwrap();
        let unfinished = ["deleting", "deletion", "outbox_intent"];
        until("nothing is left to do", async || {
            let mut kinds = Vec::new();
            for partition in ["parent", "arrived", "sent", "__deletions__"] {
                kinds.extend(place.kinds(partition).await);
            }
            !kinds.iter().any(|kind| unfinished.contains(&kind.as_str()))
        })
        .await;
        let is_there = !heir.list_instances().await.unwrap().is_empty();
        let mut started = Vec::new();
        while let Some((item, ..)) = heir.fetch_orchestration_item(LOCK, NOW, None).await.unwrap() {
            started.push(item.instance);
        }
        started.sort();
        if is_there {
            nobody += 1;
            assert_eq!(started, ["arrived", "sent"], "request {request}");
        } else {
            whole += 1;
            assert_eq!(started, [""; 0], "request {request}");
            assert_gone(&place, &["parent", "arrived", "sent"]).await;
        }
        if is_over {
            break;
        }
    }
    assert!(whole > 10 && nobody > 8, "{whole} and {nobody}");
}
