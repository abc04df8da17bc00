//! A container as the public crate 0.1.10 leaves it: opened, read and carried on.

use std::time::Duration;

use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions};
use duroxide::providers::{ExecutionMetadata, InstanceFilter, Provider as _, ProviderAdmin as _, WorkItem};
use duroxide::{Event, EventKind, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use crate::flows::{Machine, options};
use crate::world::{
    DATABASE, config, documents, emulator, event, fresh_name, named, noise, raw, start, until,
};

/// Creates the container with the public crate's indexing policy and without expiry.
async fn old_container(name: &str) {
    let credential = Credential::key(emulator().key()).unwrap();
    let driver = Driver::builder(emulator().endpoint(), credential).build().await.unwrap();
    let _ = driver.create_database(DATABASE, CallOptions::default()).await;
    let policy = json!({
        "indexingMode": "consistent",
        "automatic": true,
        "includedPaths": [{ "path": "/type/?" }, { "path": "/instanceId/?" }, { "path": "/visibleAt/?" }],
        "excludedPaths": [{ "path": "/*" }],
    });
    let properties = ContainerProperties::new(name, &["/instanceId"]).with_indexing_policy(policy);
    driver.database(DATABASE).create_container(&properties, None, CallOptions::default()).await.unwrap();
}

fn instance(id: &str, status: &str) -> Value {
    json!({
        "id": format!("{id}:instance"), "instanceId": id, "type": "instance",
        "orchestrationName": "Hello", "orchestrationVersion": "1.0.0", "currentExecutionId": 1,
        "status": status, "output": null, "parentInstanceId": null, "pinnedDuroxideVersionPacked": 1032,
        "customStatus": "half way", "customStatusVersion": 3, "lockToken": null, "lockedUntil": null,
        "createdAt": 1000, "updatedAt": 2000,
    })
}

fn history(event: &Event) -> Value {
    json!({
        "id": format!("{}:history:1:{}", event.instance_id, event.event_id), "instanceId": event.instance_id,
        "type": "history", "executionId": 1, "eventId": event.event_id,
        "eventData": serde_json::to_string(event).unwrap(),
    })
}

fn queued(kind: &str, id: &str, instance: &str, item: &WorkItem, activity: Option<u64>) -> Value {
    json!({
        "id": id, "instanceId": instance, "type": kind, "workItem": serde_json::to_string(item).unwrap(),
        "dispatchSlot": 7, "visibleAt": 1500, "enqueuedAt": 1500, "lockToken": null, "lockedUntil": null,
        "attemptCount": 0, "executionId": activity.map(|_| 1), "activityId": activity, "sessionId": null,
    })
}

async fn fill(name: &str) {
    let container = raw(name).await;
    let scheduled = EventKind::ActivityScheduled {
        name: "Greet".into(),
        input: "Ann".into(),
        session_id: None,
        tag: None,
    };
    let mut begun = event("order-1", 1);
    if let EventKind::OrchestrationStarted { input, .. } = &mut begun.kind {
        *input = "Ann".into();
    }
    let pending = WorkItem::ActivityExecute {
        instance: "order-1".into(),
        execution_id: 1,
        id: 2,
        name: "Greet".into(),
        input: "Ann".into(),
        session_id: None,
        tag: None,
    };
    let child = queued("orch_queue", "uuid-3", "order-3", &start("order-3", "Hello", "Cid"), None);
    let kv = |kind: &str, key: &str, value: Option<&str>| {
        json!({
            "id": format!("order-1:{kind}:{key}"), "instanceId": "order-1", "type": kind, "key": key,
            "value": value, "executionId": 1, "lastUpdatedAtMs": 5,
        })
    };
    let old = [
        instance("order-1", "Running"),
        history(&begun),
        history(&Event::with_event_id(2, "order-1", 1, None, scheduled)),
        queued("worker_queue", "uuid-1", "order-1", &pending, Some(2)),
        kv("kv", "color", Some("blue")),
        kv("kv", "gone", Some("x")),
        kv("kv_delta", "size", Some("large")),
        kv("kv_delta", "gone", None),
        queued("orch_queue", "uuid-2", "order-2", &start("order-2", "Hello", "Bob"), None),
        json!({
            "id": "intent:order-1:1:0", "instanceId": "order-1", "type": "outbox_intent",
            "targetInstanceId": "order-3", "targetDocumentType": "orch_queue", "payload": child.to_string(),
            "idempotencyKey": "order-1:1:0", "status": "pending", "createdAt": 1500, "attemptCount": 0,
            "lastAttemptAt": null,
        }),
    ];
    for document in old {
        let partition = document["instanceId"].as_str().unwrap();
        container.create_item(partition, &document, ItemOptions::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_container_of_the_public_crate_is_opened_and_its_orchestrations_are_carried_on() {
    let name = fresh_name();
    old_container(&name).await;
    fill(&name).await;
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();

    assert_eq!(provider.list_instances().await.unwrap(), ["order-1"]);
    assert_eq!(provider.read("order-1").await.unwrap().len(), 2);
    assert_eq!(provider.get_custom_status("order-1", 0).await.unwrap(), Some((Some("half way".into()), 3)));
    assert_eq!(provider.get_kv_value("order-1", "size").await.unwrap().as_deref(), Some("large"));
    assert_eq!(provider.get_kv_value("order-1", "gone").await.unwrap(), None);
    let stats = provider.get_instance_stats("order-1").await.unwrap().unwrap();
    assert_eq!((stats.history_event_count, stats.kv_user_key_count), (2, 2));

    let machine = Machine::start(provider.clone(), options(Duration::from_secs(5))).await;
    assert_eq!(machine.output("order-1").await, "Hello, Ann!");
    assert_eq!(machine.output("order-2").await, "Hello, Bob!");
    assert_eq!(machine.output("order-3").await, "Hello, Cid!");
    let values = machine.client.get_kv_all_values("order-1").await.unwrap();
    assert_eq!(values.len(), 2);
    assert_eq!((values["color"].as_str(), values["size"].as_str()), ("blue", "large"));
    machine.stop().await;

    let container = raw(&name).await;
    let mut kinds: Vec<String> = documents(&container, "order-1")
        .await
        .iter()
        .map(|document| document["type"].as_str().unwrap_or_default().to_owned())
        .collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["history", "instance"]);
    let deleted = provider.delete_instance("order-1", false).await.unwrap();
    assert_eq!(deleted.instances_deleted, 1);
}

/// A container that the public crate itself has written; `compare legacy` in the folder of the same name made it.
const WRITTEN: &str = include_str!("../fixtures/public-0.1.10.ndjson");

/// What the last build of ours wrote that knew nothing of fleets, layout 2, with the same orchestrations.
const OWN_LAYOUT_2: &str = include_str!("../fixtures/own-layout-2.ndjson");

/// Puts what an earlier version has written into a new container, made as it makes one.
async fn restore(name: &str, written: &str) {
    let credential = Credential::key(emulator().key()).unwrap();
    let driver = Driver::builder(emulator().endpoint(), credential).build().await.unwrap();
    let _ = driver.create_database(DATABASE, CallOptions::default()).await;
    let mut lines = written.lines();
    let mut definition: ContainerProperties = serde_json::from_str(lines.next().unwrap()).unwrap();
    definition.id = name.to_owned();
    driver.database(DATABASE).create_container(&definition, None, CallOptions::default()).await.unwrap();
    let container = raw(name).await;
    for line in lines {
        let document: Value = serde_json::from_str(line).unwrap();
        let partition = document["instanceId"].as_str().unwrap();
        container.create_item(partition, &document, ItemOptions::default()).await.unwrap();
    }
}

#[tokio::test]
async fn every_orchestration_the_public_crate_left_running_is_carried_on() {
    carry_on(WRITTEN).await;
}

#[tokio::test]
async fn every_orchestration_an_earlier_build_left_running_is_carried_on() {
    carry_on(OWN_LAYOUT_2).await;
}

async fn carry_on(written: &str) {
    let name = fresh_name();
    restore(&name, written).await;
    let eager = CosmosDBProviderConfig { reconciler_interval: Duration::from_millis(100), ..config(&name) };
    let provider = CosmosDBProvider::new_with_config(eager).await.unwrap();
    let before = provider.list_instances().await.unwrap();
    assert!(before.contains(&"done".to_owned()) && before.contains(&"parent".to_owned()), "{before:?}");
    let done = provider.get_instance_info("done").await.unwrap();
    assert_eq!((done.status.as_str(), done.output.as_deref()), ("Completed", Some("over")));
    assert_eq!(provider.get_kv_value("notes", "plain").await.unwrap().as_deref(), Some("v"));
    assert_eq!(provider.latest_execution_id("counter").await.unwrap(), 2);

    let machine = Machine::start(provider.clone(), options(Duration::from_secs(5))).await;
    let client = &machine.client;
    client.raise_event("event", "approval", "Eve").await.unwrap();
    for (instance, letters) in [("mail", ["two", "three"]), ("counter", ["b", "c"])] {
        for letter in letters {
            client.enqueue_event(instance, "mail", letter).await.unwrap();
        }
    }
    for (instance, expected) in [
        ("activity", "Hello, Ann!"),
        ("fan", "30"),
        ("timer", "slept"),
        ("event", "approved by Eve"),
        ("mail", "one,two,three"),
        ("parent", "Hello, A! Hello, B!"),
        ("counter", "abc"),
        ("starter", "started"),
        ("late", "Hello, late!"),
        ("fresh", "Hello, Bob!"),
        ("locked", "Hello, Cid!"),
    ] {
        assert_eq!(machine.output(instance).await, expected, "{instance}");
    }
    let notes = machine.client.wait_for_orchestration("notes", Duration::from_secs(60)).await.unwrap();
    assert!(matches!(notes, OrchestrationStatus::Completed { ref output, .. } if output == "v"), "{notes:?}");
    let values = client.get_kv_all_values("notes").await.unwrap();
    assert_eq!(values.len(), 1, "{values:?}");
    let session = machine.output("session").await;
    assert!(session.split(',').all(|on| on.starts_with("s@") && on.ends_with("-node")), "{session}");
    let cancelled = client.wait_for_orchestration("cancelled", Duration::from_secs(60)).await.unwrap();
    let OrchestrationStatus::Failed { details, .. } = cancelled else { panic!("{cancelled:?}") };
    assert!(details.display_message().contains("enough"));
    machine.stop().await;

    let depths = provider.get_queue_depths().await.unwrap();
    assert_eq!((depths.orchestrator_queue, depths.worker_queue), (0, 0), "everything was used up");
    let all = InstanceFilter { instance_ids: None, completed_before: None, limit: None };
    let deleted = provider.delete_instance_bulk(all).await.unwrap();
    assert_eq!(deleted.instances_deleted, 17, "{deleted:?}");
}

#[tokio::test]
async fn values_of_the_public_crate_that_are_larger_together_than_a_batch_are_carried_on() {
    let name = fresh_name();
    old_container(&name).await;
    fill(&name).await;
    let container = raw(&name).await;
    let values: Vec<String> = (0..40).map(|n| noise(64_000 + n)).collect();
    for (n, value) in values.iter().enumerate() {
        let kind = if n % 2 == 0 { "kv" } else { "kv_delta" };
        let document = json!({
            "id": format!("order-1:{kind}:large {n}"), "instanceId": "order-1", "type": kind,
            "key": format!("large {n}"), "value": value, "executionId": 1, "lastUpdatedAtMs": 5,
        });
        container.create_item("order-1", &document, ItemOptions::default()).await.unwrap();
    }
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let all = async |provider: &CosmosDBProvider| {
        let found = provider.get_kv_all_values("order-1").await.unwrap();
        assert_eq!(found.len(), 42);
        for (n, value) in values.iter().enumerate() {
            assert!(found[&format!("large {n}")] == *value, "{n}");
        }
    };
    all(&provider).await;
    let machine = Machine::start(provider.clone(), options(Duration::from_secs(60))).await;
    assert_eq!(machine.output("order-1").await, "Hello, Ann!");
    all(&CosmosDBProvider::new_with_config(config(&name)).await.unwrap()).await;
    // The output shows with the commit, and the documents are written anew after it.
    until("all values are documents of ours", async || {
        let documents = documents(&container, "order-1").await;
        let count = |kind: &str| documents.iter().filter(|document| document["type"] == kind).count();
        (count("kv"), count("kv_delta"), count("value")) == (0, 0, 40)
    })
    .await;
    machine.stop().await;
    all(&provider).await;
    all(&CosmosDBProvider::new_with_config(config(&name)).await.unwrap()).await;
}

#[tokio::test]
async fn a_value_of_the_public_crate_is_replaced_and_replayed_whoever_locked_the_instance_first() {
    let name = fresh_name();
    old_container(&name).await;
    fill(&name).await;
    let container = raw(&name).await;
    let value = noise(64_000);
    let document = json!({
        "id": "order-1:kv:large", "instanceId": "order-1", "type": "kv", "key": "large", "value": value,
        "executionId": 1, "lastUpdatedAtMs": 5,
    });
    container.create_item("order-1", &document, ItemOptions::default()).await.unwrap();
    let (lock, wait) = (Duration::from_secs(120), Duration::from_secs(30));
    let sent = |data: &str| WorkItem::QueueMessage {
        instance: "order-1".into(),
        name: "mail".into(),
        data: data.into(),
    };
    let first = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let fetch = async |provider: &CosmosDBProvider| loop {
        let (item, token, _) = provider.fetch_orchestration_item(lock, wait, None).await.unwrap().unwrap();
        if item.instance == "order-1" {
            return (item, token);
        }
    };
    first.enqueue_for_orchestrator(sent("m"), None).await.unwrap();
    // The first to lock it gives it back, another commits: the head points to the value all the while.
    let (item, token) = fetch(&first).await;
    assert!(item.kv_snapshot["large"].value == value);
    first.abandon_orchestration_item(&token, None, true).await.unwrap();
    let second = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let (item, token) = fetch(&second).await;
    assert!(item.kv_snapshot["large"].value == value);
    let events = vec![event("order-1", 3)];
    second.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    assert!(first.get_kv_value("order-1", "large").await.unwrap() == Some(value));
    // What replaces it when the execution ends removes it.
    second.enqueue_for_orchestrator(sent("m"), None).await.unwrap();
    let (_, token) = fetch(&second).await;
    let set = EventKind::KeyValueSet { key: "large".into(), value: "small".into(), last_updated_at_ms: 9 };
    let events = vec![Event::with_event_id(4, "order-1", 1, None, set)];
    let over = ExecutionMetadata { status: Some("Completed".into()), ..named() };
    second.ack_orchestration_item(&token, 1, events, vec![], vec![], over, vec![]).await.unwrap();
    assert_eq!(first.get_kv_value("order-1", "large").await.unwrap().as_deref(), Some("small"));
    let documents = documents(&container, "order-1").await;
    let kinds = ["kv", "kv_delta", "value"];
    assert!(!documents.iter().any(|document| kinds.contains(&document["type"].as_str().unwrap())));
}
