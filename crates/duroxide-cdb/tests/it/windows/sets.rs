//! Deleting several instances that were named together: what they sent each other goes with them, nothing else does.

use std::time::Duration;

use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::{Provider as _, ProviderAdmin as _, WorkItem};
use duroxide_cdb::CosmosDBProvider;
use serde_json::Value;

use super::families::{assert_gone, child, child_of, fetch, send};
use super::{LOCK, NOW, Place, commit, mail, place, place_without_sweeps};
use crate::world::{documents, emulator, event, named, raw, start, until};

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

/// Documents of one type in the partition of an instance.
async fn of_type(place: &Place, instance: &str, kind: &str) -> Vec<Value> {
    let all = documents(&raw(&place.name).await, instance).await;
    all.into_iter().filter(|document| document["type"] == kind).collect()
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
        rule.skip = 1;
        let fault = emulator().faults().add(rule);
        send_more(&place.provider, (0..150).map(cancel).collect()).await;
        drop(fault);
        assert!(!of_type(&place, "parent", "staged").await.is_empty());
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
    assert_eq!(of_type(&place, "child", "orch_queue").await.len(), 2, "the parent's start has arrived");
    place.provider.delete_instance("parent", true).await.unwrap();
    assert_gone(&place, &["parent"]).await;
    let wait = Duration::from_secs(30);
    let (item, ..) = place.other().await.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    // The second start is for an instance that exists: the runtime drops it.
    assert_eq!(item.messages[0], by_client);
}
