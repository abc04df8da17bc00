//! Messages to other partitions: exactly once, or a dead letter.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Operation, Verdict};
use duroxide::OrchestrationStatus;
use duroxide::providers::{Provider as _, ProviderAdmin as _, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};
use serde_json::json;

use super::{LOCK, NOW, Place, config, ended, mail, place, place_with, place_without_sweeps, status};
use crate::flows::{Machine, options};
use crate::world::{documents, emulator, event, named, noise, raw, start, until};

/// Lets `parent` start `child` in a turn whose message to it is not delivered: that is left to a reconciler.
async fn start_child_undelivered(place: &mut Place) {
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    place.begin("parent").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let child = vec![start("child", "Hello", "")];
    provider
        .ack_orchestration_item(&token, 1, vec![event("parent", 2)], vec![], child, named(), vec![])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_message_delivered_twice_is_received_once_even_after_it_was_consumed() {
    let mut place = place_without_sweeps().await;
    start_child_undelivered(&mut place).await;
    let provider = &place.provider;
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "not delivered yet");
    // A reconciler delivers, but cannot remove the intent: it will deliver again.
    let eager = |age| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: age,
        ..config(&place.name)
    };
    let fault = emulator().faults().add(place.rule(status(503, 0)).on(Operation::Batch).for_key("parent"));
    let reconciler = CosmosDBProvider::new_with_config(eager(NOW)).await.unwrap();
    let (item, token, _) =
        reconciler.fetch_orchestration_item(LOCK, Duration::from_secs(20), None).await.unwrap().unwrap();
    assert_eq!(item.instance, "child");
    let events = vec![event("child", 1)];
    reconciler
        .ack_orchestration_item(&token, 1, events, vec![], vec![], ended("Completed"), vec![])
        .await
        .unwrap();
    assert!(place.kinds("parent").await.contains(&"outbox_intent".to_owned()));
    drop(fault);
    until("the intent is removed", async || {
        !place.kinds("parent").await.contains(&"outbox_intent".to_owned())
    })
    .await;
    assert!(reconciler.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_eq!(place.kinds("child").await, ["instance", "tombstone"]);
}

#[tokio::test]
async fn a_message_whose_target_is_in_trouble_counts_its_attempts_and_is_left_alone_for_longer_each_time() {
    let mut place = place_without_sweeps().await;
    start_child_undelivered(&mut place).await;
    // Access to the child's partition comes and goes, as while roles are changed.
    let fault =
        emulator().faults().add(place.rule(status(403, 0)).on(Operation::CreateItem).for_key("child"));
    let eager = CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: NOW,
        ..config(&place.name)
    };
    let reconciler = CosmosDBProvider::new_with_config(eager).await.unwrap();
    let intent = async || {
        let rows = documents(&raw(&place.name).await, "parent").await;
        rows.into_iter().find(|row| row["type"] == "outbox_intent").expect("it is not delivered")
    };
    let attempts = async || intent().await["attemptCount"].as_u64().unwrap_or(0);
    until("two attempts are counted", async || attempts().await >= 2).await;
    let tried_at = intent().await;
    let pause =
        tried_at["sweepAt"].as_u64().unwrap().saturating_sub(tried_at["_ts"].as_u64().unwrap() * 1000);
    assert!((2500..=6000).contains(&pause), "after the second attempt some four seconds: {pause}");
    drop(fault);
    let (item, ..) =
        reconciler.fetch_orchestration_item(LOCK, Duration::from_secs(30), None).await.unwrap().unwrap();
    assert_eq!(item.instance, "child");
}

#[tokio::test]
async fn two_turns_with_undelivered_messages_do_not_collide() {
    let mut place = place().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(2));
    place.begin("parent").await;
    let provider = &place.provider;
    for (id, child) in [(2, "one"), (3, "two")] {
        provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let items = vec![start(child, "Hello", "")];
        let events = vec![event("parent", id)];
        provider.ack_orchestration_item(&token, 1, events, vec![], items, named(), vec![]).await.unwrap();
    }
    let mut started = Vec::new();
    for _ in 0..2 {
        let (item, ..) =
            provider.fetch_orchestration_item(LOCK, Duration::from_secs(15), None).await.unwrap().unwrap();
        started.push(item.instance);
    }
    started.sort();
    assert_eq!(started, ["one", "two"]);
}

#[tokio::test]
async fn deleting_an_instance_first_sends_what_it_still_has_to_send() {
    let mut place = place_without_sweeps().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("starter", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let items = vec![start("detached", "Hello", "")];
    let events = vec![event("starter", 1)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], items, ended("Completed"), vec![])
        .await
        .unwrap();
    provider.delete_instance("starter", false).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "detached");
}

#[tokio::test]
async fn a_child_that_was_not_started_yet_is_deleted_with_its_parent() {
    let mut place = place_without_sweeps().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("parent", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let child = |instance: &str, input: &str| WorkItem::StartOrchestration {
        instance: instance.into(),
        orchestration: "Hello".into(),
        input: input.into(),
        version: None,
        parent_instance: Some("parent".into()),
        parent_id: Some(2),
        parent_execution_id: Some(1),
        execution_id: 1,
    };
    let cancel = WorkItem::CancelInstance { instance: "small".into(), reason: "the parent ends".into() };
    let items = vec![child("small", ""), child("large", &noise(1_000_000)), cancel];
    let events = vec![event("parent", 1)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], items, ended("Completed"), vec![])
        .await
        .unwrap();
    provider.delete_instance("parent", false).await.unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(place.kinds("parent").await.is_empty());
    for instance in ["small", "large"] {
        // Whoever is about to deliver the start finds that it was.
        assert!(place.kinds(instance).await.iter().all(|kind| kind == "tombstone"), "{instance}");
    }
}

#[tokio::test]
async fn a_message_that_can_never_be_delivered_is_kept_with_its_reason() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config
    })
    .await;
    let intent = serde_json::json!({
        "id": "intent:a:1:0", "instanceId": "a", "type": "outbox_intent", "targetInstanceId": "__meta__",
        "payload": "{\"id\":\"u\",\"type\":\"orch_queue\",\"workItem\":\"w\"}", "createdAt": 1,
    });
    let container = raw(&place.name).await;
    container.create_item("a", &intent, cosmos_driver::ItemOptions::default()).await.unwrap();
    until("it is given up", async || !place.provider.dead_letters().await.unwrap().is_empty()).await;
    let letters = place.provider.dead_letters().await.unwrap();
    assert_eq!((letters[0].source.as_str(), letters[0].target.as_str()), ("a", "__meta__"));
    assert!(letters[0].reason.contains("reserved"), "{}", letters[0].reason);
    assert_eq!(place.kinds("a").await, ["dead_letter"]);
}

/// Puts an intent of `source` for a child at a place nobody may use into the container.
async fn doomed_intent(name: &str, source: &str) {
    let item = WorkItem::StartOrchestration {
        instance: "__meta__".into(),
        orchestration: "Hello".into(),
        input: "x".into(),
        version: None,
        parent_instance: Some(source.to_owned()),
        parent_id: Some(2),
        parent_execution_id: Some(1),
        execution_id: 1,
    };
    let payload = serde_json::json!({ "id": "u", "type": "orch_queue", "instanceId": "__meta__",
        "workItem": serde_json::to_string(&item).unwrap(), "visibleAt": 1, "enqueuedAt": 1 });
    let intent = serde_json::json!({
        "id": "intent:9:0", "instanceId": source, "type": "outbox_intent", "targetInstanceId": "__meta__",
        "payload": payload.to_string(), "createdAt": 1,
    });
    let container = raw(name).await;
    container.create_item(source, &intent, cosmos_driver::ItemOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_parent_learns_that_its_child_can_never_start() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config
    })
    .await;
    let machine = Machine::start(place.provider.clone(), options(Duration::from_secs(5))).await;
    // The parent waits for a child whose start is swallowed, then turns out to be undeliverable.
    let held = emulator().faults().add(place.rule(status(503, 0)).on(Operation::CreateItem).for_key("child"));
    machine.client.start_orchestration("parent", "Patient", "child").await.unwrap();
    let container = raw(&place.name).await;
    until("the intent is there", async || {
        documents(&container, "parent").await.iter().any(|document| document["type"] == "outbox_intent")
    })
    .await;
    for mut document in documents(&container, "parent").await {
        if document["type"] == "outbox_intent" {
            document["targetInstanceId"] = "__meta__".into();
            let id = document["id"].as_str().unwrap().to_owned();
            let options = cosmos_driver::ItemOptions::default();
            container.replace_item("parent", &id, &document, options).await.unwrap();
        }
    }
    let told = machine.client.wait_for_orchestration("parent", Duration::from_secs(30)).await.unwrap();
    let OrchestrationStatus::Completed { output, .. } = told else { panic!("{told:?}") };
    assert!(output.contains("could not be started") && output.contains("reserved"), "{output}");
    assert_eq!(place.provider.dead_letters().await.unwrap().len(), 1);
    drop(held);
    machine.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_sent_again_or_dropped_and_arrives_once() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config
    })
    .await;
    doomed_intent(&place.name, "a").await;
    until("it is dead", async || !place.provider.dead_letters().await.unwrap().is_empty()).await;
    let letter = place.provider.dead_letters().await.unwrap().remove(0);
    assert_eq!((letter.source.as_str(), letter.id.as_str()), ("a", "dead:intent:9:0"));
    // Still impossible: it dies again.
    place.provider.requeue_dead_letter("a", &letter.id).await.unwrap();
    assert_eq!(place.provider.dead_letters().await.unwrap().len(), 1);
    // The operator corrects the address and sends it twice; it arrives once.
    let container = raw(&place.name).await;
    let mut stored =
        documents(&container, "a").await.into_iter().find(|doc| doc["type"] == "dead_letter").unwrap();
    stored["targetInstanceId"] = "b".into();
    stored["document"]["instanceId"] = "b".into();
    let put = || container.upsert_item("a", &stored, cosmos_driver::ItemOptions::default());
    for _ in 0..2 {
        put().await.unwrap();
        place.provider.requeue_dead_letter("a", &letter.id).await.unwrap();
    }
    assert_eq!(place.kinds("b").await, ["orch_queue"]);
    put().await.unwrap();
    place.provider.drop_dead_letter("a", &letter.id).await.unwrap();
    assert!(place.provider.dead_letters().await.unwrap().is_empty());
    let missing = place.provider.requeue_dead_letter("a", &letter.id).await.unwrap_err();
    assert!(missing.message.contains("no dead letter"), "{missing}");
}

#[tokio::test]
async fn two_reconcilers_at_once_deliver_once() {
    let mut place = place_without_sweeps().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    place.begin("parent").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let children = (0..20).map(|n| start(&format!("child{n}"), "Hello", "")).collect();
    let events = vec![event("parent", 2)];
    provider.ack_orchestration_item(&token, 1, events, vec![], children, named(), vec![]).await.unwrap();
    let eager = || CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(10),
        reconciler_age_threshold: NOW,
        ..config(&place.name)
    };
    let _reconcilers =
        futures::future::try_join_all((0..4).map(|_| CosmosDBProvider::new_with_config(eager())))
            .await
            .unwrap();
    until("all is delivered", async || !place.kinds("parent").await.contains(&"outbox_intent".to_owned()))
        .await;
    for n in 0..20 {
        assert_eq!(place.kinds(&format!("child{n}")).await, ["orch_queue"]);
    }
    assert_eq!(provider.get_queue_depths().await.unwrap().orchestrator_queue, 20);
}

#[tokio::test]
async fn an_intent_with_pieces_is_removed_by_another_process_and_does_not_keep_its_instance() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        operation_timeout: Duration::from_secs(2),
        ..config
    })
    .await;
    place.begin("parent").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    // The turn is committed; from there on no batch of its process gets through, and then it dies.
    let mut rule = place.rule(Verdict::ResetBefore).on(Operation::Batch).for_key("parent");
    rule.skip = 1;
    let fault = emulator().faults().add(rule);
    let child = vec![start("child", "Hello", &noise(1_000_000))];
    let events = vec![event("parent", 2)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], child, ended("Completed"), vec![])
        .await
        .unwrap();
    assert!(fault.struck() > 0);
    assert!(place.kinds("parent").await.contains(&"outbox_intent".to_owned()));
    let name = place.name.clone();
    drop((place, fault));
    let other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&name)
    })
    .await
    .unwrap();
    let container = raw(&name).await;
    until("nothing is left to send", async || {
        let unsent = ["outbox_intent", "manifest", "chunk"];
        !documents(&container, "parent")
            .await
            .iter()
            .any(|document| unsent.contains(&document["type"].as_str().unwrap_or_default()))
    })
    .await;
    let (item, ..) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "child");
    other.delete_instance("parent", false).await.unwrap();
}

#[tokio::test]
async fn an_intent_whose_pieces_are_gone_does_not_keep_its_instance_from_being_deleted() {
    let mut place = place_without_sweeps().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("parent", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let child = vec![start("child", "Hello", &noise(1_000_000))];
    let events = vec![event("parent", 1)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], child, ended("Completed"), vec![])
        .await
        .unwrap();
    let container = raw(&place.name).await;
    for document in documents(&container, "parent").await {
        if document["type"] == "chunk" {
            let options = cosmos_driver::ItemOptions::default();
            container.delete_item("parent", document["id"].as_str().unwrap(), options).await.unwrap();
        }
    }
    provider.delete_instance("parent", false).await.unwrap();
    assert!(place.kinds("parent").await.is_empty());
}

#[tokio::test]
async fn a_row_that_cannot_be_read_keeps_no_other_from_being_finished() {
    let mut place = place_without_sweeps().await;
    let container = raw(&place.name).await;
    for kind in ["outbox_intent", "manifest", "deletion"] {
        let bad = serde_json::json!({ "id": "bad", "instanceId": kind, "type": kind, "createdAt": 1 });
        container.create_item(kind, &bad, cosmos_driver::ItemOptions::default()).await.unwrap();
    }
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("parent", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let (events, child) = (vec![event("parent", 1)], vec![start("child", "Hello", "")]);
    provider.ack_orchestration_item(&token, 1, events, vec![], child, named(), vec![]).await.unwrap();
    let other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    let wait = Duration::from_secs(60);
    let (item, ..) = other.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "child");
}

#[tokio::test]
async fn a_target_that_does_not_answer_neither_holds_the_sender_up_nor_has_the_others_sent_again() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        operation_timeout: Duration::from_secs(300),
        ..config
    })
    .await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("parent", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let _fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("mute"));
    let children = ["mute", "one", "two"].map(|child| start(child, "Hello", "")).to_vec();
    let events = vec![event("parent", 1)];
    let ack = provider.ack_orchestration_item(&token, 1, events, vec![], children, named(), vec![]);
    tokio::time::timeout(Duration::from_secs(60), ack).await.expect("nobody waits for the target").unwrap();
    assert_eq!(place.kinds("parent").await, ["instance", "outbox_intent"]);
}

#[tokio::test]
async fn messages_that_cannot_be_delivered_hide_no_others_however_many_they_are() {
    let place = place_without_sweeps().await;
    let container = raw(&place.name).await;
    let intent = async |source: &str, n: u32, target: &str| {
        let document = json!({
            "id": "intent:1:0", "instanceId": source, "type": "outbox_intent",
            "targetInstanceId": target, "createdAt": 1, "attemptCount": 0, "sweepAt": 1,
            "document": {
                "id": format!("message:{source}:{n}"), "instanceId": target, "type": "orch_queue", "seq": n,
                "enqueuedAt": 1, "visibleAt": 1, "delivered": true,
                "workItem": serde_json::to_string(&start(target, "Hello", "")).unwrap(),
            },
        });
        container.create_item(source, &document, ItemOptions::default()).await.unwrap();
    };
    for n in 0..120 {
        intent(&format!("busy {n}"), n, "unreachable").await;
    }
    intent("other", 0, "reachable").await;
    let _fault = emulator().faults().add(place.rule(status(503, 0)).for_key("unreachable"));
    let _reconciler = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        operation_timeout: Duration::from_secs(1),
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("the other message has arrived", async || !place.kinds("reachable").await.is_empty()).await;
}
