//! Operations over many instances beside others that delete, prune or run some of them.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{FaultGuard, Operation, Verdict};
use duroxide::providers::{InstanceFilter, Provider as _, ProviderAdmin as _, PruneOptions};
use duroxide_cdb::CosmosDBProviderConfig;
use serde_json::{Value, json};

use super::{LOCK, NOW, Place, commit, ended, mail, place, place_with, status};
use crate::world::{emulator, event, named, raw, start, until};

const ALL: InstanceFilter = InstanceFilter { instance_ids: None, completed_before: None, limit: None };
const LAST: PruneOptions = PruneOptions { keep_last: Some(1), completed_before: None };

/// The head of an instance as the public crate up to 0.1.10 wrote it.
fn old_head(name: &str, status: &str) -> Value {
    json!({
        "id": format!("{name}:instance"), "instanceId": name, "type": "instance", "orchestrationName": "Hello",
        "orchestrationVersion": "1.0.0", "currentExecutionId": 1, "status": status, "output": null,
        "parentInstanceId": null, "pinnedDuroxideVersionPacked": 1032, "customStatus": null,
        "customStatusVersion": 0, "lockToken": null, "lockedUntil": null, "createdAt": 1, "updatedAt": 1,
    })
}

async fn put(place: &Place, name: &str, document: &Value) {
    raw(&place.name).await.create_item(name, document, ItemOptions::default()).await.unwrap();
}

async fn listed(place: &Place) -> Vec<String> {
    let mut listed = place.provider.list_instances().await.unwrap();
    listed.sort();
    listed
}

#[tokio::test]
async fn a_deletion_that_is_taken_back_leaves_instances_of_the_public_crate_what_they_were() {
    let place = place().await;
    put(&place, "done", &old_head("done", "Completed")).await;
    put(&place, "busy", &old_head("busy", "Running")).await;
    assert_eq!(listed(&place).await, ["busy", "done"]);
    let both = ["done".to_owned(), "busy".to_owned()];
    place.provider.delete_instances_atomic(&both, false).await.expect_err("one of them runs");
    assert_eq!(listed(&place).await, ["busy", "done"], "nothing was deleted");
    let head = place.of_type("done", "instance").await.remove(0);
    assert_eq!(head.get("formatVersion"), None, "{head}");
}

#[tokio::test]
async fn instances_of_the_public_crate_that_an_earlier_version_rewrote_are_shown_everywhere() {
    let place = place().await;
    let mut head = old_head("done", "Completed");
    head["formatVersion"] = 0.into();
    head["started"] = false.into();
    put(&place, "done", &head).await;
    let provider = &place.provider;
    assert_eq!(listed(&place).await, ["done"]);
    assert_eq!(provider.list_instances_by_status("Completed").await.unwrap(), ["done"]);
    assert_eq!(provider.get_system_metrics().await.unwrap().completed_instances, 1);
    assert_eq!(provider.delete_instance_bulk(ALL).await.unwrap().instances_deleted, 1);
}

/// Three instances that have ended.
async fn three() -> Place {
    let place = place().await;
    for name in ["i1", "i2", "i3"] {
        let provider = &place.provider;
        provider.enqueue_for_orchestrator(start(name, "Hello", ""), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        commit(provider, &token, vec![event(name, 1)], ended("Completed")).await.unwrap();
    }
    place
}

#[tokio::test]
async fn pruning_many_goes_on_when_one_of_them_is_deleted_meanwhile() {
    let place = three().await;
    let other = place.other().await;
    let held = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Query).for_key("i1").nth(1));
    let pruning = tokio::spawn(async move { other.prune_executions_bulk(ALL, LAST).await });
    until("it is held up", async || held.struck() > 0).await;
    for name in ["i2", "i3"] {
        place.provider.delete_instances_atomic(&[name.to_owned()], true).await.unwrap();
    }
    drop(held);
    let pruned = pruning.await.unwrap().unwrap();
    assert_eq!(pruned.instances_processed, 1, "the others are gone");
}

#[tokio::test]
async fn deleting_many_goes_on_when_one_of_them_is_being_deleted_by_others() {
    let place = three().await;
    // The bulk deletion has chosen all three and is about to fence the first.
    let rule = place.rule(Verdict::Hang).on(Operation::ReplaceItem).for_key("i1").nth(1);
    let chosen = emulator().faults().add(rule);
    let bulk = tokio::spawn({
        let provider = place.provider.clone();
        async move { provider.delete_instance_bulk(ALL).await }
    });
    until("it has chosen", async || chosen.struck() > 0).await;
    // Another process has fenced the second and is slow to record that.
    let rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("__deletions__").nth(1);
    let held = emulator().faults().add(rule);
    let other = place.other().await;
    let slow = tokio::spawn(async move { other.delete_instances_atomic(&["i2".to_owned()], false).await });
    until("it is held up", async || held.struck() > 0).await;
    drop(chosen);
    let done = bulk.await.unwrap().unwrap();
    assert_eq!(done.instances_deleted, 2);
    drop(held);
    assert_eq!(slow.await.unwrap().unwrap().instances_deleted, 1);
    assert!(listed(&place).await.is_empty());
}

#[tokio::test]
async fn bulk_operations_that_overlap_count_each_instance_once_between_them() {
    let place = three().await;
    let others = [place.other().await, place.other().await];
    let [one, two] = &others;
    let pruned = async { place.provider.prune_executions_bulk(ALL, LAST).await };
    let (one, two, pruned) =
        futures::join!(one.delete_instance_bulk(ALL), two.delete_instance_bulk(ALL), pruned);
    assert_eq!(one.unwrap().instances_deleted + two.unwrap().instances_deleted, 3);
    pruned.unwrap();
    until("all are gone", async || listed(&place).await.is_empty()).await;
}

#[tokio::test]
async fn pruning_many_goes_on_beside_turns_of_the_same_instances() {
    let place = place().await;
    place.begin("a").await;
    let other = place.other().await;
    let turning = {
        let provider = place.provider.clone();
        tokio::spawn(async move {
            for number in 2..12 {
                provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
                let wait = Duration::from_secs(30);
                let (_, token, _) =
                    provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
                commit(&provider, &token, vec![event("a", number)], named()).await.unwrap();
            }
        })
    };
    while !turning.is_finished() {
        other.prune_executions_bulk(ALL, LAST).await.unwrap();
    }
    turning.await.unwrap();
    assert_eq!(place.provider.read("a").await.unwrap().len(), 11);
}

/// A process that gives up after a second, on an instance whose head is always changed before it is written.
async fn contended() -> (Place, FaultGuard) {
    let place = place_with(|config| CosmosDBProviderConfig {
        operation_timeout: Duration::from_secs(1),
        reconciler_interval: Duration::from_secs(600),
        ..config
    })
    .await;
    place.begin("a").await;
    let rule = place.rule(status(412, 0)).on(Operation::ReplaceItem).for_key("a");
    let fault = emulator().faults().add(rule);
    (place, fault)
}

#[tokio::test]
async fn a_deletion_of_an_instance_that_keeps_changing_tries_with_pauses_and_deletes_nothing() {
    let (place, fault) = contended().await;
    let error = place.provider.delete_instances_atomic(&["a".to_owned()], true).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!((2..40).contains(&fault.struck()), "{} tries", fault.struck());
    drop(fault);
    assert_eq!(listed(&place).await, ["a"]);
}

#[tokio::test]
async fn a_pruning_of_an_instance_that_keeps_changing_counts_with_pauses() {
    let (place, fault) = contended().await;
    let mut head = place.of_type("a", "instance").await.remove(0);
    head["totalEventCount"] = 99.into();
    raw(&place.name).await.upsert_item("a", &head, ItemOptions::default()).await.unwrap();
    let error = place.provider.prune_executions("a", LAST).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!((2..40).contains(&fault.struck()), "{} tries", fault.struck());
}
