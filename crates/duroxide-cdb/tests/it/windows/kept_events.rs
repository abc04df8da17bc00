//! Small histories live in the head, and move out when they grow or when the next execution begins. Whatever moves where,
//! every reader sees every event once.

use cosmos_driver::ItemOptions;
use duroxide::providers::{ExecutionMetadata, Provider as _, ProviderAdmin as _, PruneOptions};
use duroxide::{Event, EventKind};
use duroxide_cdb::CosmosDBProvider;
use serde_json::json;

use super::{LOCK, NOW, Place, ended, mail, place, successor};
use crate::world::{event, named, noise, raw};

/// An event that is a kilobyte long.
fn long(id: u64) -> Event {
    let kind = EventKind::CustomStatusUpdated { status: Some(noise(1000)) };
    Event::with_event_id(id, "a", 1, None, kind)
}

/// A turn that appends events to the first execution.
async fn turn(provider: &CosmosDBProvider, events: Vec<Event>) {
    turn_of(provider, 1, events, named()).await;
}

async fn turn_of(
    provider: &CosmosDBProvider,
    execution: u64,
    events: Vec<Event>,
    metadata: ExecutionMetadata,
) {
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.history_error, None);
    provider
        .ack_orchestration_item(&token, execution, events, vec![], vec![], metadata, vec![])
        .await
        .unwrap();
}

async fn ids(provider: &CosmosDBProvider) -> Vec<u64> {
    provider.read("a").await.unwrap().iter().map(Event::event_id).collect()
}

async fn count(place: &Place, kind: &str) -> usize {
    place.of_type("a", kind).await.len()
}

#[tokio::test]
async fn a_small_history_is_in_the_head_and_a_longer_one_in_few_documents() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    for id in 2..=20 {
        turn(&place.provider, vec![long(id)]).await;
        let head = &place.of_type("a", "instance").await[0];
        let kept = head["events"].as_array().map_or(0, Vec::len);
        assert!(kept <= 3, "{kept} events are in the head");
        if id == 2 {
            assert_eq!((count(&place, "history").await, kept), (0, 2));
        }
    }
    let documents = count(&place, "history").await;
    assert!((4..=10).contains(&documents), "{documents} documents for 19 turns");
    let expected: Vec<u64> = (1..=20).collect();
    assert_eq!(ids(&place.provider).await, expected);
    assert_eq!(ids(&place.other().await).await, expected);
}

#[tokio::test]
async fn who_knows_a_part_of_the_history_learns_the_rest_wherever_that_is() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    // Each knows the history as of another moment: before events moved out, after it, and in between.
    let mut readers = Vec::new();
    for id in 2..=12 {
        turn(&place.provider, vec![long(id)]).await;
        let reader = place.other().await;
        assert_eq!(ids(&reader).await.len() as u64, id);
        readers.push(reader);
        let expected: Vec<u64> = (1..=id).collect();
        for reader in &readers {
            assert_eq!(ids(reader).await, expected);
        }
    }
    // And so do those who take turns in turn.
    for (id, reader) in (13..).zip(&readers) {
        turn(reader, vec![long(id)]).await;
    }
    assert_eq!(ids(&place.provider).await, (1..=23).collect::<Vec<u64>>());
}

#[tokio::test]
async fn the_events_of_an_execution_that_has_ended_are_read_counted_pruned_and_deleted() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let (events, next) = (vec![event("a", 2)], vec![successor("a")]);
    provider
        .ack_orchestration_item(&token, 1, events, vec![], next, ended("ContinuedAsNew"), vec![])
        .await
        .unwrap();
    assert_eq!((count(&place, "history").await, count(&place, "execution").await), (0, 0));
    for execution in 2..=3 {
        let events = (1..=3).map(|id| event("a", id)).collect();
        turn_of(provider, execution, events, ended("ContinuedAsNew")).await;
    }
    assert_eq!((count(&place, "history").await, count(&place, "execution").await), (2, 2));
    for reader in [provider.clone(), place.other().await] {
        let mut lengths = Vec::new();
        for execution in 1..=3 {
            lengths.push(reader.read_with_execution("a", execution).await.unwrap().len());
        }
        assert_eq!(lengths, [2, 3, 3]);
        assert_eq!(reader.list_executions("a").await.unwrap(), [1, 2, 3]);
        assert_eq!(reader.get_execution_info("a", 3).await.unwrap().event_count, 3);
        assert_eq!(reader.get_instance_stats("a").await.unwrap().unwrap().history_event_count, 3);
    }
    let head = &place.of_type("a", "instance").await[0];
    assert_eq!((head["totalEventCount"].as_u64(), head["executionCount"].as_u64()), (Some(8), Some(3)));
    let options = PruneOptions { keep_last: Some(1), ..PruneOptions::default() };
    let pruned = provider.prune_executions("a", options).await.unwrap();
    assert_eq!((pruned.executions_deleted, pruned.events_deleted), (2, 5));
    let head = &place.of_type("a", "instance").await[0];
    assert_eq!((head["totalEventCount"].as_u64(), head["executionCount"].as_u64()), (Some(3), Some(1)));
    let deleted = provider.delete_instance("a", true).await.unwrap();
    assert_eq!((deleted.events_deleted, deleted.instances_deleted), (3, 1));
}

#[tokio::test]
async fn events_that_are_appended_from_outside_are_in_the_head_too_and_none_twice() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    let provider = &place.provider;
    provider.append_with_execution("a", 1, vec![event("a", 2)]).await.unwrap();
    assert_eq!(count(&place, "history").await, 0);
    for (id, moves) in [(2, false), (1, false), (3, true)] {
        let outcome = provider.append_with_execution("a", 1, vec![event("a", id), long(id + 1)]).await;
        assert_eq!(outcome.is_ok(), moves, "{id}");
    }
    provider.append_with_execution("a", 1, (5..9).map(long).collect()).await.unwrap();
    assert!(count(&place, "history").await > 0);
    assert!(provider.append_with_execution("a", 1, vec![event("a", 8)]).await.is_err());
    assert_eq!(ids(&place.other().await).await, (1..=8).collect::<Vec<u64>>());
    provider.append_with_execution("a", 1, vec![event("a", 9)]).await.unwrap();
    provider.append_with_execution("a", 2, vec![event("a", 1)]).await.unwrap();
    for reader in [provider.clone(), place.other().await] {
        assert_eq!(ids(&reader).await, [1]);
        assert_eq!(reader.read_with_execution("a", 1).await.unwrap().len(), 9);
    }
}

#[tokio::test]
async fn an_event_in_the_head_that_cannot_be_read_is_an_error_of_the_history() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    turn(&place.provider, vec![event("a", 2)]).await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let container = raw(&place.name).await;
    let mut head = place.of_type("a", "instance").await.remove(0);
    head["events"][0] = json!("{\"type\":\"NoSuchEvent\"}");
    container.replace_item("a", "a:instance", &head, ItemOptions::default()).await.unwrap();
    let fresh = place.other().await;
    assert_eq!(fresh.read("a").await.err().map(|error| error.retryable), Some(false));
    let (item, token, _) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert!(item.history_error.is_some_and(|why| why.contains("event 1")));
    // Giving up means appending to what cannot be read, also when that moves out.
    let events = vec![Event::with_event_id(
        99_999,
        "a",
        1,
        None,
        EventKind::CustomStatusUpdated { status: Some(noise(9000)) },
    )];
    fresh.ack_orchestration_item(&token, 1, events, vec![], vec![], ended("Failed"), vec![]).await.unwrap();
    assert_eq!(fresh.get_instance_info("a").await.unwrap().status, "Failed");
}

#[tokio::test]
async fn an_instance_of_the_layout_before_goes_on() {
    let place = place().await;
    place.begin_with("a", event("a", 1)).await;
    turn(&place.provider, (2..=8).map(long).collect()).await;
    // As an earlier build leaves it: all events in documents, and the stamps of its layout.
    let container = raw(&place.name).await;
    for (partition, id, kind) in [("a", "a:instance", "instance"), ("__meta__", "format", "format")] {
        let mut document = place_of(&place, partition, kind).await;
        assert!(document["events"].is_null());
        document["formatVersion"] = json!(2);
        container.replace_item(partition, id, &document, ItemOptions::default()).await.unwrap();
    }
    let later = place.other().await;
    turn(&later, vec![event("a", 9)]).await;
    turn(&later, vec![event("a", 10)]).await;
    let head = place_of(&place, "a", "instance").await;
    assert_eq!((head["events"].as_array().map(Vec::len), head["formatVersion"].as_u64()), (Some(2), Some(3)));
    assert_eq!(place_of(&place, "__meta__", "format").await["formatVersion"], 3);
    assert_eq!(ids(&place.other().await).await, (1..=10).collect::<Vec<u64>>());
}

async fn place_of(place: &Place, partition: &str, kind: &str) -> serde_json::Value {
    place.of_type(partition, kind).await.remove(0)
}
