//! Every field of every document, malformed: the instance it is of may come to nothing, and nobody else notices.
//!
//! The documents are those of a real run, taken from the requests that wrote them. Of each shape every field is put
//! wrong in some of many ways, each in an instance of its own, all in one container with workflows that are sound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cosmos_driver::{Container, ItemOptions};
use duroxide::providers::{
    InstanceFilter, Provider as _, ProviderAdmin as _, PruneOptions, SessionFetchConfig, WorkItem,
};
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, Event, EventKind, OrchestrationContext, OrchestrationRegistry, TagFilter,
};
use duroxide_cdb::{BulkMode, CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};
use futures::StreamExt as _;
use serde_json::{Map, Value, json};

use super::{LOCK, NOW, config, ended, mail, of_session, successor};
use crate::tap::Tap;
use crate::world::{activity, documents, emulator, event, fresh_name, noise, raw, start, until};

/// Chooses the ways in which fields are put wrong; another number tries others.
const SEED: u64 = 7;
/// Ways for each field.
const WAYS: usize = 1;

/// The instance whose documents are taken. Its name is in nothing else.
const VICTIM: &str = "v1ct1m";

/// Runs an instance through everything that leaves documents of different shapes, and returns what was written.
async fn specimens() -> Vec<Value> {
    let tap = Tap::new(emulator(), |_| None).await;
    let name = fresh_name();
    let settings = CosmosDBProviderConfig {
        endpoint: tap.endpoint.clone(),
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: NOW,
        ..config(&name)
    };
    let mut provider = CosmosDBProvider::new_with_config(settings).await.unwrap();
    provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    provider.enqueue_for_orchestrator(start(VICTIM, "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    // Values in the head, in a document and in pieces, events compressed and in pieces, more than one batch of messages.
    let set = |id: u64, key: &str, bytes: usize| {
        let (key, value) = (key.to_owned(), noise(bytes));
        let kind = EventKind::KeyValueSet { key, value, last_updated_at_ms: 1 };
        Event::with_event_id(id, VICTIM, 1, None, kind)
    };
    let status = EventKind::CustomStatusUpdated { status: Some(noise(500_000)) };
    let mut events: Vec<Event> = (1..=100).map(|id| event(VICTIM, id)).collect();
    events.extend([set(101, "a", 10), set(102, "b", 10_000), set(103, "c", 500_000)]);
    events.push(Event::with_event_id(104, VICTIM, 1, None, status));
    let mut work: Vec<WorkItem> = (2..=4).map(|id| activity(VICTIM, id)).collect();
    work.push(of_session(VICTIM, 5, "session-of-v1ct1m"));
    let mut items: Vec<WorkItem> = (0..150).map(|n| mail(VICTIM, &n.to_string())).collect();
    items.extend([start("elsewhere", "Hello", ""), mail("elsewhere", &noise(500_000)), successor(VICTIM)]);
    let metadata = ended("ContinuedAsNew");
    provider.ack_orchestration_item(&token, 1, events, work, items, metadata, vec![]).await.unwrap();
    provider.enqueue_for_orchestrator(mail(VICTIM, &noise(500_000)), None).await.unwrap();
    let session = SessionFetchConfig { owner_id: "me".to_owned(), lock_timeout: LOCK };
    while let Some((_, token, _)) =
        provider.fetch_work_item(LOCK, NOW, Some(&session), &TagFilter::Any).await.unwrap()
    {
        let done = WorkItem::ActivityCompleted {
            instance: VICTIM.into(),
            execution_id: 1,
            id: 2,
            result: noise(500_000),
        };
        provider.ack_work_item(&token, Some(done)).await.unwrap();
    }
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, VICTIM);
    let done = provider.ack_orchestration_item(
        &token,
        2,
        vec![event(VICTIM, 1)],
        vec![],
        vec![],
        ended("Completed"),
        vec![],
    );
    done.await.unwrap();
    let container = raw(&name).await;
    let intent = json!({ "id": "intent:9:9", "instanceId": VICTIM, "type": "outbox_intent",
        "targetInstanceId": "elsewhere", "payload": "nothing", "createdAt": 1, "attemptCount": 0 });
    container.create_item(VICTIM, &intent, ItemOptions::default()).await.unwrap();
    until("it is a dead letter", async || !provider.dead_letters().await.unwrap().is_empty()).await;
    provider.delete_instance(VICTIM, true).await.unwrap();
    let mut written: Vec<Value> = tap.asked().iter().flat_map(|asked| bodies(&asked.body)).collect();
    written.push(intent);
    for (kind, value) in [("kv", json!("v")), ("kv_delta", Value::Null)] {
        written.push(json!({ "id": format!("{VICTIM}:{kind}:k"), "instanceId": VICTIM, "type": kind,
            "key": "k", "value": value, "lastUpdatedAtMs": 1 }));
    }
    written
}

/// The documents in a request.
fn bodies(body: &[u8]) -> Vec<Value> {
    match serde_json::from_slice(body) {
        Ok(Value::Array(operations)) => {
            operations.iter().filter_map(|operation| operation.get("resourceBody").cloned()).collect()
        }
        Ok(document @ Value::Object(_)) => vec![document],
        _ => Vec::new(),
    }
}

/// One document of each shape: of one type, with the same fields.
fn shapes(written: Vec<Value>) -> Vec<Value> {
    let mut shapes: BTreeMap<String, Value> = BTreeMap::new();
    for document in written {
        let (Some(kind), Some(fields)) = (document["type"].as_str(), document.as_object()) else { continue };
        let names: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        shapes.entry(format!("{kind} {names:?}")).or_insert(document);
    }
    let kinds: BTreeSet<&str> = shapes.values().filter_map(|document| document["type"].as_str()).collect();
    for kind in [
        "instance",
        "deleting",
        "execution",
        "history",
        "orch_queue",
        "worker_queue",
        "outbox_intent",
        "manifest",
        "staged",
        "value",
        "chunk",
        "tombstone",
        "session",
        "dead_letter",
        "deletion",
        "kv",
        "kv_delta",
    ] {
        assert!(kinds.contains(kind), "the run wrote no {kind}: {kinds:?}");
    }
    shapes.into_values().collect()
}

/// The fields of a document, and of what is in it.
fn fields(document: &Value) -> Vec<String> {
    fn add(fields: &Map<String, Value>, under: &str, found: &mut Vec<String>) {
        for (name, value) in fields {
            let pointer = format!("{under}/{}", name.replace('~', "~0").replace('/', "~1"));
            if let Value::Object(inner) = value {
                add(inner, &pointer, found);
            }
            found.push(pointer);
        }
    }
    let mut found = Vec::new();
    add(document.as_object().unwrap(), "", &mut found);
    // The id is a text and says where the document is, wherever it is from; so does the name of its partition. The
    // service takes no lifetime that is not one.
    found.retain(|pointer| {
        !["/id", "/instanceId", "/ttl"].contains(&pointer.as_str()) && !pointer.starts_with("/_")
    });
    found
}

/// Puts a field wrong.
fn malform(document: &mut Value, pointer: &str, random: &mut fastrand::Rng) -> String {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    let parent = document.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    let wrong = [
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(1_u64 << 60),
        json!(4_294_967_296_u64),
        Value::Null,
        json!(true),
        json!(""),
        json!("12"),
        json!([]),
        json!([1]),
        json!({}),
        json!({ "commit": 5 }),
        deep,
    ];
    let choice = random.usize(..=wrong.len());
    let Some(value) = wrong.get(choice) else {
        parent.shift_remove(&name);
        return format!("{pointer} is missing");
    };
    parent.insert(name, value.clone());
    format!("{pointer} = {:.60}", value.to_string())
}

/// A partition that holds a malformed document.
struct Case {
    instance: String,
    what: String,
    documents: Vec<Value>,
}

/// Sound documents of a running instance with mail, and one that is not, in as many partitions as there are ways.
fn cases(shapes: &[Value], base: &[Value]) -> Vec<Case> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut cases = Vec::new();
    for shape in shapes {
        let kind = shape["type"].as_str().unwrap();
        for pointer in fields(shape) {
            for _ in 0..WAYS {
                let instance = format!("evil-{}", cases.len());
                let renamed = |document: &Value| -> Value {
                    serde_json::from_str(&document.to_string().replace(VICTIM, &instance)).unwrap()
                };
                let mut malformed = renamed(shape);
                if kind == "deletion" {
                    // All of them are in one partition.
                    malformed["id"] = format!("deletion:{instance}").into();
                }
                if kind == "deleting" {
                    // Others may take its fence down at once.
                    malformed["sweepAt"] = json!(0);
                }
                let way = malform(&mut malformed, &pointer, &mut random);
                let mut documents: Vec<Value> = base.iter().map(renamed).collect();
                documents.retain(|document| document["id"] != malformed["id"]);
                documents.push(malformed);
                cases.push(Case { instance, what: format!("{kind} {way}"), documents });
            }
        }
    }
    cases
}

async fn store(container: &Container, cases: &[Case]) {
    let documents = cases.iter().flat_map(|case| &case.documents);
    let writes = documents.map(|document| async move {
        let partition = document["instanceId"].as_str().unwrap();
        container.upsert_item(partition, document, ItemOptions::default()).await.unwrap_or_else(|error| {
            panic!("{error}: {document}");
        });
    });
    futures::stream::iter(writes).buffer_unordered(16).collect::<Vec<()>>().await;
}

/// An instance in the middle of its life: its head, its history and a message.
async fn base() -> Vec<Value> {
    let place = super::place().await;
    place.begin(VICTIM).await;
    place.provider.enqueue_for_orchestrator(mail(VICTIM, "m"), None).await.unwrap();
    let mut documents = documents(&raw(&place.name).await, VICTIM).await;
    for document in &mut documents {
        document.as_object_mut().unwrap().retain(|name, _| !name.starts_with('_'));
    }
    assert_eq!(documents.len(), 3, "{documents:?}");
    documents
}

async fn runtime(provider: &Arc<CosmosDBProvider>) -> Arc<Runtime> {
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Greet", |context: OrchestrationContext, name: String| async move {
            context.schedule_timer(Duration::from_millis(10)).await;
            let echo = context.schedule_activity("Echo", name).await?;
            context.schedule_sub_orchestration("Answer", echo).await
        })
        .register("Answer", |context: OrchestrationContext, name: String| async move {
            context.schedule_activity("Echo", format!("Hello, {name}!")).await
        })
        .build();
    Runtime::start_with_options(provider.clone(), activities, orchestrations, RuntimeOptions::default()).await
}

async fn greets(client: &Client, instance: &str) {
    client.start_orchestration(instance, "Greet", instance).await.unwrap();
}

async fn has_greeted(client: &Client, instance: &str) {
    let ended = client.wait_for_orchestration(instance, Duration::from_secs(300)).await.unwrap();
    let text = format!("{ended:?}");
    assert!(text.contains(&format!("Hello, {instance}!")), "{instance}: {text}");
}

/// What people ask for over all instances.
async fn lists_work(provider: &CosmosDBProvider, cases: &[Case]) {
    let listed: BTreeSet<String> = provider.list_instances().await.unwrap().into_iter().collect();
    // Whatever else is in its head: what says that it is an instance is listed.
    let is_instance = |case: &&Case| {
        let head = format!("{}:instance", case.instance);
        let head = case.documents.iter().find(|document| document["id"] == *head);
        head.is_some_and(|head| head["type"] == "instance" && head["started"] == true)
    };
    let hidden = cases.iter().filter(is_instance).filter(|case| !listed.contains(&case.instance));
    let hidden: Vec<&str> = hidden.map(|case| case.what.as_str()).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
    for status in ["Running", "Completed"] {
        provider.list_instances_by_status(status).await.unwrap();
    }
    assert!(provider.get_system_metrics().await.unwrap().total_instances > 0);
    provider.get_queue_depths().await.unwrap();
    provider.dead_letters().await.unwrap();
    provider.cleanup_orphaned_sessions(NOW).await.unwrap();
    provider.list_children("evil-0").await.unwrap();
    let (all, options) =
        (InstanceFilter::default(), PruneOptions { keep_last: Some(1), completed_before: None });
    let pruned = provider.prune_where(&all, &options, BulkMode::Perform, |_| {}).await.unwrap();
    assert!(pruned.unreadable > 0 && pruned.instances > 0, "{pruned:?}");
    let rehearsed = provider.delete_where(&all, BulkMode::Rehearse, |_| {}).await.unwrap();
    assert!(rehearsed.unreadable > 0, "{rehearsed:?}");
}

/// Looks at one instance in every way: each answers, however it answers.
async fn looks_return(provider: &CosmosDBProvider, instance: &str) {
    let _ = provider.read(instance).await;
    let _ = provider.list_executions(instance).await;
    let _ = provider.get_instance_info(instance).await;
    let _ = provider.get_execution_info(instance, 1).await;
    let _ = provider.get_custom_status(instance, 0).await;
    let _ = provider.get_kv_all_values(instance).await;
    let _ = provider.get_instance_stats(instance).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_field_of_a_document_is_malformed_others_go_on_and_its_instance_can_be_removed() {
    let cases = cases(&shapes(specimens().await), &base().await);
    assert!(cases.len() > 300, "{}", cases.len());
    let name = fresh_name();
    let settings = CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(200),
        operation_timeout: Duration::from_secs(20),
        ..config(&name)
    };
    let provider = Arc::new(CosmosDBProvider::new_with_config(settings).await.unwrap());
    let container = raw(&name).await;
    store(&container, &cases).await;
    let client = Client::new(provider.clone());
    let running = runtime(&provider).await;
    let sound: Vec<String> = (0..5).map(|n| format!("sound-{n}")).collect();
    for instance in &sound {
        greets(&client, instance).await;
    }
    for instance in &sound {
        has_greeted(&client, instance).await;
    }
    lists_work(&provider, &cases).await;
    for case in &cases {
        looks_return(&provider, &case.instance).await;
    }
    running.shutdown(Some(1000)).await;

    let removals = cases.iter().map(|case| {
        let (provider, container) = (&provider, &container);
        async move {
            let (instance, what) = (case.instance.as_str(), case.what.as_str());
            let tree = provider.get_instance_tree(instance).await.unwrap().all_ids;
            let begun = std::time::Instant::now();
            while let Err(error) = provider.delete_instances_atomic(&tree, true).await {
                if error.message.contains("not found") {
                    break;
                }
                // A sweep may be about to finish, or to take back, a deletion that the document tells of.
                let is_slow = begun.elapsed() > Duration::from_secs(200);
                assert!(error.retryable && !is_slow, "{instance}: {what}: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let mut left = documents(container, instance).await;
            left.retain(|left| left["type"] != "tombstone" && !is_being_prepared(left));
            assert!(left.is_empty(), "{instance}: {what}: {left:?}");
        }
    });
    futures::stream::iter(removals).buffer_unordered(4).collect::<Vec<()>>().await;

    // What had a malformed document lives again like any other.
    let running = runtime(&provider).await;
    let again: Vec<&Case> = cases.iter().step_by(7).collect();
    for case in &again {
        greets(&client, &case.instance).await;
    }
    for case in &again {
        has_greeted(&client, &case.instance).await;
    }
    running.shutdown(Some(1000)).await;
}

/// Whether a document belongs to a commit that somebody may still be preparing: it is left to the sweep.
fn is_being_prepared(document: &Value) -> bool {
    document["type"] == "chunk" || (document["type"] == "manifest" && document["committed"] == false)
}
