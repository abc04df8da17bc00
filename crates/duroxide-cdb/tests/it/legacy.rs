//! A container as the public crate 0.1.10 leaves it: opened, read and carried on.

use std::time::Duration;

use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions};
use duroxide::providers::{Provider as _, ProviderAdmin as _, WorkItem};
use duroxide::{Event, EventKind};
use duroxide_cdb::CosmosDBProvider;
use serde_json::{Value, json};

use crate::flows::{Machine, options};
use crate::world::{DATABASE, config, documents, emulator, event, fresh_name, raw, start};

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
    assert_eq!(kinds, ["execution", "history", "instance"]);
    let deleted = provider.delete_instance("order-1", false).await.unwrap();
    assert_eq!(deleted.instances_deleted, 1);
}
