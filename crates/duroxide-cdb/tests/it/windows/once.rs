//! Once, and only once: a turn holds messages that were there when its lock was taken, and commits no others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::CosmosDBProvider;
use futures::stream::{StreamExt as _, TryStreamExt as _};

use super::{LOCK, NOW, Place, commit, ended, mail, place, place_without_sweeps};
use crate::world::{emulator, event, named, noise, raw, start, until};

/// What a turn got, by the beginning of each message.
fn names(items: &[WorkItem]) -> Vec<String> {
    let name = |item: &WorkItem| match item {
        WorkItem::QueueMessage { data, .. } => data.split(':').next().unwrap_or_default().to_owned(),
        _ => "start".to_owned(),
    };
    items.iter().map(name).collect()
}

#[tokio::test]
async fn a_look_of_two_pages_takes_no_message_that_another_process_consumed_between_them() {
    let place = place_without_sweeps().await;
    let first_process = &place.provider;
    first_process.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    // Five megabytes: the messages fill the first page, and the head that the first lock makes is on the second.
    for n in 0..14 {
        let letter = mail("a", &format!("{n}:{}", noise(360_000 + n)));
        first_process.enqueue_for_orchestrator(letter, None).await.unwrap();
    }
    let (item, token, _) = first_process.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let first = names(&item.messages);
    let second_process = place.other().await;
    let held_up = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Query).for_key("a").nth(2));
    let fetching = tokio::spawn(async move {
        let fetched = second_process.fetch_orchestration_item(LOCK, Duration::from_secs(60), None).await;
        (second_process, fetched.unwrap().expect("what the first turn left"))
    });
    until("the second page is held up", async || held_up.struck() > 0).await;
    commit(first_process, &token, vec![event("a", 1)], named()).await.unwrap();
    drop(held_up);
    let (second_process, (item, token, attempt)) = fetching.await.unwrap();
    let second = names(&item.messages);
    assert!(first.iter().all(|name| !second.contains(name)), "{first:?} and then {second:?}");
    assert_eq!((first.len() + second.len(), attempt), (15, 1));
    commit(&second_process, &token, vec![event("a", 2)], named()).await.unwrap();
}

/// Takes turns until all messages are taken, and notes which commit took which.
async fn take_turns(provider: CosmosDBProvider, taken: Arc<Mutex<HashMap<String, u32>>>, all: usize) {
    let begun = Instant::now();
    while taken.lock().unwrap().len() < all && begun.elapsed() < Duration::from_secs(120) {
        let wait = Duration::from_millis(300);
        let fetched = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
        let Some((item, token, _)) = fetched else { continue };
        let next = item.history.last().map_or(1, |last| last.event_id() + 1);
        if commit(&provider, &token, vec![event("a", next)], named()).await.is_ok() {
            let mut taken = taken.lock().unwrap();
            for name in names(&item.messages) {
                *taken.entry(name).or_default() += 1;
            }
        }
    }
}

/// Sends an instance its start and so much mail.
async fn send(place: &Place, letters: usize, bytes: usize) {
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let text = noise(bytes);
    futures::stream::iter(0..letters)
        .map(|n| place.provider.enqueue_for_orchestrator(mail("a", &format!("{n}:{text}")), None))
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_share_a_long_first_queue_and_take_each_message_once() {
    for (letters, bytes) in [(600, 9_000), (700, 10), (24, 380_000)] {
        let place = place().await;
        send(&place, letters, bytes).await;
        let taken: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
        let mut processes = Vec::new();
        for _ in 0..3 {
            processes.push(tokio::spawn(take_turns(place.other().await, Arc::clone(&taken), letters + 1)));
        }
        for process in processes {
            process.await.unwrap();
        }
        let taken = taken.lock().unwrap();
        let twice: Vec<_> = taken.iter().filter(|(_, times)| **times > 1).collect();
        assert!(
            twice.is_empty(),
            "{letters} of {bytes} bytes: {} twice, such as {:?}",
            twice.len(),
            twice[0]
        );
        assert_eq!(taken.len(), letters + 1, "{letters} of {bytes} bytes");
    }
}

/// A turn of two letters, and the ids of their documents.
async fn turn_of_two() -> (Place, String, Vec<String>) {
    let place = place().await;
    place.begin("a").await;
    for letter in ["one", "two"] {
        place.provider.enqueue_for_orchestrator(mail("a", letter), None).await.unwrap();
    }
    let (item, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(names(&item.messages), ["one", "two"]);
    let mut queued = place.of_type("a", "orch_queue").await;
    queued.sort_by_key(|message| message["seq"].as_u64());
    let ids = queued.iter().map(|message| message["id"].as_str().unwrap().to_owned()).collect();
    (place, token, ids)
}

/// The turn cannot be committed, not even as failed; the instance goes on with what is left, at the first attempt.
async fn goes_on_without_the_first(place: &Place, token: &str) {
    let provider = &place.provider;
    for metadata in [named(), ended("Failed")] {
        let refused = commit(provider, token, vec![event("a", 2)], metadata).await.unwrap_err();
        assert!(!refused.retryable && refused.message.contains("Invalid lock token"), "{refused}");
    }
    assert_eq!(provider.read("a").await.unwrap().len(), 1, "nothing was written");
    let wait = Duration::from_secs(10);
    let (item, token, attempt) =
        provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().expect("the rest");
    assert_eq!((names(&item.messages), attempt), (vec!["two".to_owned()], 1));
    commit(provider, &token, vec![event("a", 2)], named()).await.unwrap();
}

#[tokio::test]
async fn a_turn_whose_message_is_gone_is_not_committed_and_its_instance_goes_on() {
    let (place, token, ids) = turn_of_two().await;
    raw(&place.name).await.delete_item("a", &ids[0], ItemOptions::default()).await.unwrap();
    goes_on_without_the_first(&place, &token).await;
}

#[tokio::test]
async fn a_turn_whose_message_another_process_consumed_is_not_committed_though_a_tombstone_is_there() {
    let (place, token, ids) = turn_of_two().await;
    let tombstone = serde_json::json!({ "id": ids[0], "instanceId": "a", "type": "tombstone", "ttl": 600 });
    raw(&place.name).await.replace_item("a", &ids[0], &tombstone, ItemOptions::default()).await.unwrap();
    goes_on_without_the_first(&place, &token).await;
    assert_eq!(place.of_type("a", "tombstone").await.len(), 2, "one of each letter");
}

#[tokio::test]
async fn a_turn_whose_message_was_only_touched_is_committed() {
    let (place, token, ids) = turn_of_two().await;
    let container = raw(&place.name).await;
    let patch = cosmos_driver::Patch::new().set("/visibleAt", 5);
    container.patch_item("a", &ids[0], &patch, ItemOptions::default()).await.unwrap();
    commit(&place.provider, &token, vec![event("a", 2)], named()).await.unwrap();
    assert!(place.of_type("a", "orch_queue").await.is_empty());
}
