//! Numbers in stored documents that no writer wrote: they cost the instance they are of, and nobody else.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::Operation;
use duroxide::providers::{Provider as _, ProviderAdmin as _};
use duroxide::{Event, EventKind, TagFilter};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::{Value, json};

use super::{LOCK, NOW, Place, commit, config, ended, mail, place, place_of_a_dying_process};
use crate::world::{activity, event, named, noise, raw, start, until};

const HUGE: u64 = 1 << 52;
const BEYOND: u64 = 1 << 60;
/// The largest number that is the same to everybody.
const LAST: u64 = (1 << 53) - 1;

/// An instance with a history that is compressed, an event and a message in pieces, and a value in a document.
async fn with_everything(place: &Place, instance: &str) {
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let set = EventKind::KeyValueSet { key: "k".into(), value: noise(10_000), last_updated_at_ms: 1 };
    let done = EventKind::ActivityCompleted { result: noise(1_000_000) };
    let mut events: Vec<Event> = (1..=200).map(|id| event(instance, id)).collect();
    events.push(Event::with_event_id(201, instance, 1, None, set));
    events.push(Event::with_event_id(202, instance, 1, Some(2), done));
    commit(provider, &token, events, named()).await.unwrap();
    provider.enqueue_for_orchestrator(mail(instance, &noise(1_000_000)), None).await.unwrap();
}

/// Changes what a pointer leads to in every document of a type that has it.
async fn change(place: &Place, instance: &str, kind: &str, pointer: &str, value: &Value) {
    let container = raw(&place.name).await;
    let mut changed = 0;
    for mut document in place.of_type(instance, kind).await {
        let Some(field) = document.pointer_mut(pointer) else { continue };
        *field = value.clone();
        let id = document["id"].as_str().unwrap().to_owned();
        container.replace_item(instance, &id, &document, ItemOptions::default()).await.unwrap();
        changed += 1;
    }
    assert!(changed > 0, "no {kind} of {instance} has {pointer}");
}

/// Fetches turns until the sound instance has had its own; what else is handed out says that its history is lost, or is
/// sound itself, and is given back.
async fn goes_on(provider: &CosmosDBProvider, sound: &str, case: &str) {
    provider.enqueue_for_orchestrator(start(sound, "Hello", ""), None).await.unwrap();
    loop {
        let wait = Duration::from_secs(60);
        let turn = provider.fetch_orchestration_item(LOCK, wait, None).await;
        let (item, token, _) = turn.unwrap().unwrap_or_else(|| panic!("{case}: nothing is handed out"));
        if item.instance == sound {
            return commit(provider, &token, vec![event(sound, 1)], ended("Completed")).await.unwrap();
        }
        provider.abandon_orchestration_item(&token, Some(Duration::from_secs(600)), true).await.unwrap();
    }
}

#[tokio::test]
async fn sizes_that_a_stored_document_claims_take_no_memory_and_stop_nobody() {
    let cases = [
        ("history", "/packedBytes", HUGE),
        ("history", "/packedBytes", BEYOND),
        ("history", "/packedBytes", 1 << 30),
        ("history", "/eventCount", HUGE),
        ("history", "/eventCount", BEYOND),
        ("history", "/chunks/count", u64::from(u32::MAX)),
        ("history", "/chunks/count", 3_000_000),
        ("history", "/chunks/first", u64::from(u32::MAX)),
        ("history", "/chunks/bytes", BEYOND),
        ("orch_queue", "/chunks/count", u64::from(u32::MAX)),
        ("orch_queue", "/chunks/count", 3_000_000),
        ("orch_queue", "/chunks/first", u64::from(u32::MAX)),
        ("orch_queue", "/chunks/bytes", 1),
        ("instance", "/eventCount", HUGE),
        ("instance", "/turn", u64::MAX),
        ("instance", "/lastSequence", BEYOND),
        ("instance", "/currentExecutionId", HUGE),
    ];
    for (kind, pointer, value) in cases {
        let case = format!("{kind}{pointer} = {value}");
        let place = place().await;
        with_everything(&place, "evil").await;
        change(&place, "evil", kind, pointer, &json!(value)).await;
        if pointer == "/eventCount" && kind == "history" {
            // Only a text that cannot be read made anybody look at the number.
            change(&place, "evil", kind, "/packed", &json!("?")).await;
        }
        let fresh = place.other().await;
        let before = place.answered(Some(Operation::ReadItem));
        goes_on(&fresh, "sound", &case).await;
        let reads = place.answered(Some(Operation::ReadItem)) - before;
        assert!(reads < 60, "{case}: {reads} reads");
        // Whoever looks is told, and nothing stands in the way of removing it.
        let _ = fresh.read("evil").await;
        let _ = fresh.list_executions("evil").await.unwrap();
        assert_eq!(fresh.list_instances().await.unwrap().len(), 2, "{case}");
        fresh.delete_instance("evil", true).await.unwrap_or_else(|error| panic!("{case}: {error}"));
        let left = place.kinds("evil").await;
        assert!(left.iter().all(|kind| kind == "tombstone"), "{case}: {left:?}");
    }
}

#[tokio::test]
async fn a_small_document_that_unpacks_to_very_much_is_damaged() {
    let place = place().await;
    with_everything(&place, "evil").await;
    // Ten kilobytes that stand for a quarter of a gigabyte of spaces, and say so.
    const BYTES: u64 = 256 << 20;
    let packed = zstd::bulk::compress(&vec![b' '; usize::try_from(BYTES).unwrap()], 3).unwrap();
    let text = base64_of(&packed);
    assert!(text.len() < 40_000, "{}", text.len());
    change(&place, "evil", "history", "/packed", &json!(text)).await;
    change(&place, "evil", "history", "/packedBytes", &json!(BYTES)).await;
    let fresh = place.other().await;
    let error = fresh.read("evil").await.unwrap_err();
    assert!(!error.retryable && error.message.contains("decompress"), "{error}");
    goes_on(&fresh, "sound", "a bomb").await;
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// What is left of a commit: numbers of groups and pieces that nobody wrote.
#[tokio::test]
async fn a_manifest_that_claims_very_many_groups_and_pieces_holds_up_no_other() {
    let place = place_of_a_dying_process().await;
    place.begin("evil").await;
    let container = raw(&place.name).await;
    let pieces = json!({ "commit": "c", "first": 7, "count": u32::MAX, "bytes": 1 });
    let manifests = [
        json!({ "id": "manifest:a", "committed": true, "commit": "a", "staged": u32::MAX, "chunks": 0 }),
        json!({ "id": "manifest:b", "committed": true, "commit": "b", "drops": [pieces] }),
        json!({ "id": "manifest:c", "committed": false, "commit": "c", "staged": u32::MAX, "chunks": u32::MAX }),
    ];
    for mut manifest in manifests {
        let more = json!({ "instanceId": "evil", "type": "manifest", "sweepAt": 0 });
        manifest.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        container.create_item("evil", &manifest, ItemOptions::default()).await.unwrap();
    }
    // A sweep meets them and the fence of a deletion that nobody recorded: that one is taken down.
    place.begin("fenced").await;
    let mut head = place.of_type("fenced", "instance").await.remove(0);
    head["type"] = "deleting".into();
    (head["deletion"], head["sweepAt"]) = (json!("deletion:none"), json!(0));
    let id = head["id"].as_str().unwrap().to_owned();
    container.replace_item("fenced", &id, &head, ItemOptions::default()).await.unwrap();
    let sweeper = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("the fence is taken down", async || !place.of_type("fenced", "instance").await.is_empty()).await;
    goes_on(&sweeper, "sound", "manifests").await;
}

#[tokio::test]
async fn a_work_item_that_is_locked_for_all_times_holds_up_no_other() {
    let place = place().await;
    for id in 1..=2 {
        place.provider.enqueue_for_worker(activity("evil", id)).await.unwrap();
    }
    let container = raw(&place.name).await;
    let mut item = place.of_type("evil", "worker_queue").await.remove(0);
    (item["lockToken"], item["lockedUntil"]) = (json!("t"), json!(LAST));
    (item["attemptCount"], item["order"]) = (json!(u32::MAX), json!(LAST));
    let id = item["id"].as_str().unwrap().to_owned();
    container.replace_item("evil", &id, &item, ItemOptions::default()).await.unwrap();
    let fresh = place.other().await;
    let (_, token, _) = fresh.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    fresh.ack_work_item(&token, None).await.unwrap();
    let none = fresh.fetch_work_item(LOCK, Duration::from_millis(300), None, &TagFilter::Any).await.unwrap();
    assert!(none.is_none(), "{none:?}");
    // Free again it is handed out, however often it was tried.
    (item["lockToken"], item["lockedUntil"]) = (Value::Null, Value::Null);
    container.replace_item("evil", &id, &item, ItemOptions::default()).await.unwrap();
    let (_, token, attempts) =
        place.other().await.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    assert_eq!(attempts, u32::MAX);
    fresh.abandon_work_item(&token, None, false).await.unwrap();
}

/// The order keys of a process are all made with one counter.
#[tokio::test]
async fn an_order_key_that_nobody_made_reorders_no_other_instance() {
    let place = place().await;
    place.begin("evil").await;
    change(&place, "evil", "instance", "/lastSequence", &json!(BEYOND)).await;
    let fresh = place.other().await;
    fresh.enqueue_for_orchestrator(mail("evil", "m"), None).await.unwrap();
    let (item, token, _) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "evil");
    let to_itself = vec![mail("evil", "again")];
    let done = fresh.ack_orchestration_item(&token, 1, vec![], vec![], to_itself, named(), vec![]).await;
    done.unwrap();
    for text in ["one", "two"] {
        fresh.enqueue_for_orchestrator(mail("sound", text), None).await.unwrap();
    }
    for message in place.of_type("sound", "orch_queue").await {
        assert!(message["seq"].as_u64().unwrap() < 1 << 53, "{message}");
    }
    goes_on(&fresh, "sound", "order keys").await;
}

#[tokio::test]
async fn what_a_real_writer_writes_is_read_however_large_it_is() {
    let place = place().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("big", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    // Nothing repeats itself more than these, and one is as large as a text inside a document can be.
    let done = |id: u64, result: String| {
        Event::with_event_id(id, "big", 1, Some(1), EventKind::ActivityCompleted { result })
    };
    let mut events = vec![event("big", 1), done(2, "x".repeat(40 << 20)), done(3, "\"".repeat(98_000))];
    events.extend([done(4, noise(20 << 20)), done(5, "y".repeat(383 << 10))]);
    events.extend((6..=5000).map(|id| event("big", id)));
    commit(provider, &token, events.clone(), named()).await.unwrap();
    let read = place.other().await.read("big").await.unwrap();
    assert!(read == events, "{} of {} events", read.len(), events.len());
}
