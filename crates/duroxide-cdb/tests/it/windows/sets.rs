//! Deleting several instances that were named together: what they sent each other goes with them, nothing else does.

use std::time::Duration;

use cosmos_driver::{ErrorKind, ItemOptions};
use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::{Provider as _, ProviderAdmin as _, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};
use serde_json::{Value, json};

use super::families::{assert_gone, child, child_of, fetch, send};
use super::{LOCK, NOW, Place, commit, config, mail, place, place_without_sweeps, status};
use crate::world::{emulator, event, named, raw, start, until};

fn both(first: &str, second: &str) -> Vec<String> {
    vec![first.to_owned(), second.to_owned()]
}

/// A parent and a child that have both run.
async fn pair(place: &Place) {
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    let token = fetch(&place.provider, "child").await;
    commit(&place.provider, &token, vec![event("child", 1)], child_of("parent")).await.unwrap();
}

/// The second turn of the parent, in which it sends `items`.
async fn send_more(provider: &CosmosDBProvider, items: Vec<WorkItem>) {
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let token = fetch(provider, "parent").await;
    let events = vec![event("parent", 2)];
    provider.ack_orchestration_item(&token, 1, events, vec![], items, named(), vec![]).await.unwrap();
}

/// Puts a document into the container, past the provider.
async fn put(place: &Place, partition: &str, document: &Value) {
    raw(&place.name).await.create_item(partition, document, ItemOptions::default()).await.unwrap();
}

/// A process that finishes at once what others left.
async fn heir(place: &Place) -> CosmosDBProvider {
    CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(10),
        ..config(&place.name)
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn what_a_parent_has_not_sent_yet_does_not_reach_the_next_life_of_its_children() {
    for set in [both("parent", "child"), both("child", "parent")] {
        let place = place_without_sweeps().await;
        pair(&place).await;
        // More than one batch holds, and nobody comes to publish what did not fit.
        let cancel =
            |_| WorkItem::CancelInstance { instance: "child".into(), reason: "the parent ends".into() };
        let retry_after = Some(Duration::from_secs(600));
        let verdict = Verdict::Status { code: 503, sub_status: 0, retry_after };
        let mut rule = place.rule(verdict).on(Operation::Batch).for_key("parent");
        // One prepares the commit and one is it.
        rule.skip = 2;
        let fault = emulator().faults().add(rule);
        send_more(&place.provider, (0..150).map(cancel).collect()).await;
        drop(fault);
        assert!(!place.of_type("parent", "staged").await.is_empty());
        let other = place.other().await;
        let deleted = other.delete_instances_atomic(&set, true).await.unwrap();
        assert_eq!(deleted.instances_deleted, 2);
        assert_gone(&place, &["parent", "child"]).await;
    }
}

#[tokio::test]
async fn a_child_that_has_not_run_can_be_named_with_its_parent() {
    for set in [both("parent", "child"), both("child", "parent")] {
        let place = place().await;
        send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
        let deleted = place.provider.delete_instances_atomic(&set, true).await.unwrap();
        assert_eq!(deleted.instances_deleted, 1);
        assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
        assert_gone(&place, &["parent", "child"]).await;
    }
}

#[tokio::test]
async fn a_child_that_begins_at_any_request_of_a_deletion_goes_with_its_parent() {
    for set in [both("parent", "child"), vec!["parent".to_owned()]] {
        for request in 0.. {
            let place = place_without_sweeps().await;
            send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
            let other = place.other().await;
            let mut rule = place.rule(Verdict::Hang).times(1);
            rule.skip = request;
            let fault = emulator().faults().add(rule);
            let deleting = {
                let (provider, set) = (place.provider.clone(), set.clone());
                tokio::spawn(async move { provider.delete_instances_atomic(&set, true).await })
            };
            until("it is held up or over", async || fault.struck() > 0 || deleting.is_finished()).await;
            let is_over = deleting.is_finished();
            let fault = (!is_over).then_some(fault);
            if let Some((item, token, _)) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap() {
                assert_eq!(item.instance, "child");
                let _ = commit(&other, &token, vec![event("child", 1)], child_of("parent")).await;
            }
            drop(fault);
            let outcome = deleting.await.unwrap();
            if let Err(refused) = outcome {
                assert_eq!(set.len(), 1, "request {request}: {refused}");
                // It began before anybody looked for children: nobody knew of it, and nothing is deleted.
                assert!(refused.message.contains("orphan"), "request {request}: {refused}");
                assert_eq!(place.provider.list_instances().await.unwrap().len(), 2, "request {request}");
            } else {
                assert!(
                    other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(),
                    "request {request}"
                );
                assert_gone(&place, &["parent", "child"]).await;
            }
            if is_over {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_message_that_was_deleted_with_its_receiver_cannot_be_delivered_again() {
    let place = place_without_sweeps().await;
    pair(&place).await;
    send_more(&place.provider, vec![mail("child", "m")]).await;
    let messages = place.of_type("child", "orch_queue").await;
    assert_eq!(messages.len(), 1, "it has arrived");
    place.provider.delete_instances_atomic(&both("parent", "child"), true).await.unwrap();
    // Another process has read the intent before, and delivers only now.
    let container = raw(&place.name).await;
    let late = container.create_item("child", &messages[0], ItemOptions::default()).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);
    assert_gone(&place, &["parent", "child"]).await;
}

#[tokio::test]
async fn an_instance_that_a_client_started_before_the_child_of_that_name_stays() {
    let place = place().await;
    let by_client = start("child", "Hello", "by the client");
    send(&place.provider, "parent", vec![], named()).await;
    place.provider.enqueue_for_orchestrator(by_client.clone(), None).await.unwrap();
    // The parent's second turn, past the instance that waits for its first.
    let other = place.other().await;
    place.provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let mut tokens = Vec::new();
    while let Some((item, token, _)) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap() {
        tokens.push((item.instance, token));
    }
    for (instance, token) in tokens {
        if instance == "parent" {
            let (events, items) = (vec![event("parent", 2)], vec![child("parent", "child", "")]);
            other.ack_orchestration_item(&token, 1, events, vec![], items, named(), vec![]).await.unwrap();
        } else {
            other.abandon_orchestration_item(&token, None, true).await.unwrap();
        }
    }
    assert_eq!(place.of_type("child", "orch_queue").await.len(), 2, "the parent's start has arrived");
    place.provider.delete_instance("parent", true).await.unwrap();
    assert_gone(&place, &["parent"]).await;
    let wait = Duration::from_secs(30);
    let (item, ..) = place.other().await.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    // The second start is for an instance that exists: the runtime drops it.
    assert_eq!(item.messages[0], by_client);
}

#[tokio::test]
async fn a_set_too_large_to_be_recorded_is_given_back() {
    let place = place_without_sweeps().await;
    send(&place.provider, "parent", vec![child("parent", "child", "")], named()).await;
    let rule = place.rule(status(413, 0)).on(Operation::CreateItem).for_key("__deletions__");
    let _fault = emulator().faults().add(rule);
    let refused = place.provider.delete_instance("parent", true).await.unwrap_err();
    assert!(!refused.retryable && refused.message.contains("in smaller groups"), "{refused}");
    assert_eq!(place.provider.list_instances().await.unwrap(), ["parent"]);
    fetch(&place.other().await, "child").await;
}

#[tokio::test]
async fn a_deletion_recorded_by_an_earlier_version_sends_what_was_staged() {
    let mut place = place_without_sweeps().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    send(&place.provider, "parent", vec![start("detached", "Hello", "")], named()).await;
    // As if the commit had been larger than a batch, and recorded for deletion before it was finished.
    let container = raw(&place.name).await;
    let intent = place.of_type("parent", "outbox_intent").await.remove(0);
    let id = intent["id"].as_str().unwrap().to_owned();
    container.delete_item("parent", &id, ItemOptions::default()).await.unwrap();
    put(
        &place,
        "parent",
        &json!({ "id": "staged:c:0", "instanceId": "parent", "type": "staged", "documents": [intent] }),
    )
    .await;
    put(
        &place,
        "parent",
        &json!({ "id": "manifest:c", "instanceId": "parent", "type": "manifest", "commit": "c",
            "committed": true, "staged": 1, "sweepAt": 9_000_000_000_000_u64 }),
    )
    .await;
    let mut head = place.of_type("parent", "instance").await.remove(0);
    head["type"] = "deleting".into();
    head["deletion"] = "deletion:d".into();
    head["doomed"] = json!([]);
    head["sweepAt"] = 9_000_000_000_000_u64.into();
    let id = head["id"].as_str().unwrap().to_owned();
    container.replace_item("parent", &id, &head, ItemOptions::default()).await.unwrap();
    put_record(&place, "deletion:d", &["parent".to_owned()], 1).await;
    let heir = heir(&place).await;
    until("it is gone", async || place.kinds("parent").await.is_empty()).await;
    fetch(&heir, "detached").await;
}

/// Puts the fence of a deletion around an instance that looks like `model`.
async fn put_fence(place: &Place, model: &Value, name: &str) {
    let mut head = model.clone();
    head["id"] = model["id"].as_str().unwrap().replace("model", name).into();
    head["instanceId"] = name.into();
    head["type"] = "deleting".into();
    head["deletion"] = "deletion:d".into();
    head["doomed"] = json!([]);
    head["sweepAt"] = 1.into();
    put(place, name, &head).await;
}

/// Records a deletion that is to be finished from `sweep_at` on.
async fn put_record(place: &Place, id: &str, instances: &[String], sweep_at: u64) {
    let record = json!({ "id": id, "instanceId": "__deletions__", "type": "deletion",
        "instances": instances, "sweepAt": sweep_at });
    put(place, "__deletions__", &record).await;
}

#[tokio::test]
async fn fences_hide_the_record_of_their_deletion_from_nobody() {
    let place = place_without_sweeps().await;
    // More fences than a sweep looks at, all of them before the record that it should find.
    place.begin("model").await;
    let model = place.of_type("model", "instance").await.remove(0);
    let names: Vec<String> = (0..120).map(|number| format!("i{number}")).collect();
    for name in &names {
        put_fence(&place, &model, name).await;
    }
    put_record(&place, "deletion:d", &names, 1).await;
    let _heir = heir(&place).await;
    until("the record is gone", async || place.kinds("__deletions__").await.is_empty()).await;
    assert!(place.kinds("i0").await.is_empty() && place.kinds("i119").await.is_empty());
}

#[tokio::test]
async fn the_fences_of_a_deletion_that_somebody_has_taken_on_are_left_to_them() {
    let place = place_without_sweeps().await;
    place.begin("model").await;
    let model = place.of_type("model", "instance").await.remove(0);
    put_fence(&place, &model, "a").await;
    put_record(&place, "deletion:d", &["a".to_owned()], 9_000_000_000_000).await;
    let _heir = heir(&place).await;
    // When the second of these is gone, a whole sweep has passed.
    for marker in ["deletion:m1", "deletion:m2"] {
        put_record(&place, marker, &[], 1).await;
        until("it is swept", async || place.kinds("__deletions__").await.len() == 1).await;
    }
    assert_eq!(place.kinds("a").await, ["deleting"]);
}
