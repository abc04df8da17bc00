//! What cannot be read any more stops nothing else, and is told.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::Operation;
use duroxide::providers::{OrchestrationItem, Provider as _};
use duroxide::{Event, EventKind, TagFilter};
use duroxide_cdb::CosmosDBProvider;
use serde_json::{Value, json};

use super::{LOCK, NOW, Place, commit, ended, mail, place};
use crate::world::{activity, event, named, noise, raw, start};

/// Overwrites the work item of every document of an instance in which a text occurs.
async fn damage(place: &Place, instance: &str, text: &str) {
    let container = raw(&place.name).await;
    let all = crate::world::documents(&container, instance).await;
    for mut document in all {
        if document["workItem"].as_str().is_some_and(|item| item.contains(text)) {
            let item = document["workItem"].as_str().unwrap().replacen('}', "]", 1);
            document["workItem"] = item.into();
            let id = document["id"].as_str().unwrap().to_owned();
            container.replace_item(instance, &id, &document, ItemOptions::default()).await.unwrap();
        }
    }
}

/// Waits a second for a turn and finds none, without asking all the time. A machine that does much else may not answer
/// within the second; then it waits another.
async fn finds_no_turn_quietly(place: &Place, provider: &CosmosDBProvider) {
    loop {
        let before = place.answered(Some(Operation::Query));
        let found = provider.fetch_orchestration_item(LOCK, Duration::from_secs(1), None).await;
        let queries = place.answered(Some(Operation::Query)) - before;
        assert!(queries < 60, "{queries} queries in a second");
        match found {
            Ok(found) => return assert!(found.is_none(), "{found:?}"),
            Err(error) => assert!(error.retryable, "{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_decoded_hides_no_other() {
    const BROKEN: usize = 70;
    let place = place().await;
    place.begin("a").await;
    // More of them than a turn takes messages.
    for text in ["one"].into_iter().chain(["broken"; BROKEN]).chain(["two"]) {
        place.provider.enqueue_for_orchestrator(mail("a", text), None).await.unwrap();
    }
    place.provider.enqueue_for_orchestrator(start("b", "Hello", ""), None).await.unwrap();
    damage(&place, "a", "broken").await;
    let fresh = place.other().await;
    let (item, token, _) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.messages, [mail("a", "one"), mail("a", "two")]);
    let (item, ..) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "b");
    commit(&fresh, &token, vec![event("a", 2)], named()).await.unwrap();
    finds_no_turn_quietly(&place, &fresh).await;
    assert_eq!(place.of_type("a", "orch_queue").await.len(), BROKEN, "somebody may read them one day");
    fresh.enqueue_for_orchestrator(mail("a", "three"), None).await.unwrap();
    let (item, ..) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.messages, [mail("a", "three")]);
}

#[tokio::test]
async fn mail_waits_for_a_start_that_cannot_be_decoded() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", "broken"), None).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    damage(&place, "a", "broken").await;
    finds_no_turn_quietly(&place, &place.other().await).await;
    assert_eq!(place.of_type("a", "orch_queue").await.len(), 2, "nothing is dropped as mail for nobody");
}

#[tokio::test]
async fn a_work_item_that_cannot_be_decoded_hides_no_other() {
    let place = place().await;
    for id in 1..=3 {
        place.provider.enqueue_for_worker(activity("a", id)).await.unwrap();
    }
    damage(&place, "a", r#""id":1,"#).await;
    let fresh = place.other().await;
    for id in [2, 3] {
        let (item, token, _) =
            fresh.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
        assert_eq!(item, activity("a", id));
        fresh.ack_work_item(&token, None).await.unwrap();
    }
    let before = place.answered(None);
    assert!(
        fresh.fetch_work_item(LOCK, Duration::from_secs(1), None, &TagFilter::Any).await.unwrap().is_none()
    );
    assert!(place.answered(None) - before < 60, "it is not looked at without end");
    assert_eq!(place.of_type("a", "worker_queue").await.len(), 1);
}

/// An instance whose next execution begins with one value too large for its head.
async fn with_value(bytes: usize) -> Place {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let set = EventKind::KeyValueSet { key: "k".into(), value: noise(bytes), last_updated_at_ms: 1 };
    let events = vec![event("a", 1), Event::with_event_id(2, "a", 1, None, set)];
    commit(&place.provider, &token, events, ended("ContinuedAsNew")).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    place
}

async fn next_turn(provider: &CosmosDBProvider) -> (OrchestrationItem, String, u32) {
    let wait = Duration::from_secs(30);
    provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().expect("it is handed out")
}

#[tokio::test]
async fn a_value_that_is_lost_or_cannot_be_read_is_an_error_of_the_history() {
    for becomes in [None, Some(json!(5)), Some(json!({ "chunks": 7 }))] {
        let place = with_value(10_000).await;
        let container = raw(&place.name).await;
        let mut value = place.of_type("a", "value").await.remove(0);
        let id = value["id"].as_str().unwrap().to_owned();
        match &becomes {
            None => drop(container.delete_item("a", &id, ItemOptions::default()).await.unwrap()),
            Some(damaged) => {
                value["value"] = damaged.clone();
                container.replace_item("a", &id, &value, ItemOptions::default()).await.unwrap();
            }
        }
        let fresh = place.other().await;
        // The attempts count, so that the runtime gives up one day.
        for attempt in 1..=3 {
            let (item, token, counted) = next_turn(&fresh).await;
            let error = item.history_error.expect("it is told");
            assert!(error.contains("\"k\"") && error.contains(&id), "{becomes:?}: {error}");
            assert_eq!((item.history.len(), item.kv_snapshot.len(), counted), (0, 0, attempt), "{becomes:?}");
            assert_eq!(item.messages, [mail("a", "m")]);
            fresh.abandon_orchestration_item(&token, None, false).await.unwrap();
        }
        // Giving up means appending to what cannot be read.
        let (_, token, _) = next_turn(&fresh).await;
        commit(&fresh, &token, vec![event("a", 99_999)], ended("Failed")).await.unwrap();
        finds_no_turn_quietly(&place, &fresh).await;
    }
}

/// An instance with a message before it and an event so large that it is in pieces.
async fn with_a_large_event() -> Place {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let done = EventKind::ActivityCompleted { result: noise(1_000_000) };
    let events = vec![event("a", 1), Event::with_event_id(2, "a", 1, Some(1), done)];
    commit(&place.provider, &token, events, named()).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    place
}

#[tokio::test]
async fn a_history_that_is_lost_in_part_is_an_error_of_the_history() {
    for lost in ["a document", "the form of a document", "a piece", "the form of a piece"] {
        let place = with_a_large_event().await;
        let container = raw(&place.name).await;
        let kind = if lost.ends_with("piece") { "chunk" } else { "history" };
        let mut document = place.of_type("a", kind).await.remove(0);
        let id = document["id"].as_str().unwrap().to_owned();
        if lost.starts_with("the form") {
            for field in ["events", "data"] {
                document[field] = json!(5);
            }
            container.replace_item("a", &id, &document, ItemOptions::default()).await.unwrap();
        } else {
            container.delete_item("a", &id, ItemOptions::default()).await.unwrap();
        }
        let fresh = place.other().await;
        assert_eq!(fresh.read("a").await.err().map(|error| error.retryable), Some(false), "{lost}");
        assert!(fresh.read_with_execution("a", 1).await.is_err(), "{lost}");
        for attempt in 1..=2 {
            let (item, token, counted) = next_turn(&fresh).await;
            assert!(item.history_error.is_some(), "{lost}");
            assert_eq!((item.history.len(), counted), (0, attempt), "{lost}");
            assert_eq!(item.messages, [mail("a", "m")], "{lost}");
            fresh.abandon_orchestration_item(&token, None, false).await.unwrap();
        }
        let (_, token, _) = next_turn(&fresh).await;
        commit(&fresh, &token, vec![event("a", 99_999)], ended("Failed")).await.unwrap();
        finds_no_turn_quietly(&place, &fresh).await;
    }
}

#[tokio::test]
async fn a_value_in_pieces_is_what_the_next_execution_begins_with() {
    let place = with_value(1_000_000).await;
    for provider in [place.provider.clone(), place.other().await] {
        let (item, token, _) = next_turn(&provider).await;
        assert_eq!(item.history_error, None);
        assert!(item.kv_snapshot["k"].value == noise(1_000_000));
        provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_of_the_public_crate_that_cannot_be_read_is_an_error_of_the_history() {
    let place = place().await;
    let container = raw(&place.name).await;
    let put = async |document: Value| {
        container.create_item("a", &document, ItemOptions::default()).await.unwrap();
    };
    put(json!({
        "id": "a:instance", "instanceId": "a", "type": "instance", "orchestrationName": "Hello",
        "orchestrationVersion": "1.0.0", "currentExecutionId": 1, "status": "Running",
    }))
    .await;
    put(json!({ "id": "kv", "instanceId": "a", "type": "kv", "key": 5, "value": "v" })).await;
    assert!(place.provider.get_kv_all_values("a").await.is_err(), "it is not simply left out");
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    for attempt in 1..=2 {
        let (item, token, counted) = next_turn(&place.provider).await;
        assert!(item.history_error.is_some_and(|error| error.contains("kv")));
        assert_eq!(counted, attempt);
        place.provider.abandon_orchestration_item(&token, None, false).await.unwrap();
    }
}
