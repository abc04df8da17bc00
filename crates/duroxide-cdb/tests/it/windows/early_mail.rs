//! Mail that comes before the start of its instance, or is put off with it: it is kept, and keeps its order.

use std::time::Duration;

use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};

use super::{LOCK, NOW, Place, commit, config, mail, place, place_with};
use crate::world::{event, named, start, until};

/// What a turn got, by name.
fn names(items: &[WorkItem]) -> Vec<String> {
    let name = |item: &WorkItem| match item {
        WorkItem::QueueMessage { data, .. } => data.clone(),
        WorkItem::ExternalRaised { name, .. } => name.clone(),
        WorkItem::StartOrchestration { .. } => "start".to_owned(),
        other => format!("{other:?}"),
    };
    items.iter().map(name).collect()
}

/// Takes one turn of an instance after the other, and returns what they got.
async fn all_turns(
    provider: &CosmosDBProvider,
    instance: &str,
    mut number: u64,
    count: usize,
) -> Vec<String> {
    let mut got = Vec::new();
    until("everything came", async || {
        let wait = Duration::from_secs(1);
        if let Some((item, token, _)) = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap() {
            got.extend(names(&item.messages));
            commit(provider, &token, vec![event(instance, number)], named()).await.unwrap();
            number += 1;
        }
        got.len() >= count
    })
    .await;
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    got
}

async fn send(provider: &CosmosDBProvider, instance: &str, numbers: std::ops::Range<u64>) {
    for n in numbers {
        provider.enqueue_for_orchestrator(mail(instance, &n.to_string()), None).await.unwrap();
    }
}

fn numbers(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn mail_that_comes_before_its_start_is_in_the_first_turn() {
    let place = place().await;
    send(&place.provider, "a", 0..3).await;
    let raised = WorkItem::ExternalRaised { instance: "a".into(), name: "event".into(), data: String::new() };
    place.provider.enqueue_for_orchestrator(raised, None).await.unwrap();
    for provider in [&place.provider, &place.other().await] {
        assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let runtime = place.other().await;
    let (item, token, attempt) =
        runtime.fetch_orchestration_item(LOCK, Duration::from_secs(10), None).await.unwrap().unwrap();
    assert_eq!(
        (names(&item.messages), attempt),
        (["start", "0", "1", "2", "event"].map(String::from).to_vec(), 1)
    );
    commit(&runtime, &token, vec![event("a", 1)], named()).await.unwrap();
    assert!(place.of_type("a", "orch_queue").await.is_empty());
}

#[tokio::test]
async fn mail_that_follows_a_start_of_a_fast_clock_is_kept() {
    let place = place().await;
    let ahead = CosmosDBProviderConfig { clock_offset_ms: 2500, ..config(&place.name) };
    let fast = CosmosDBProvider::new_with_config(ahead).await.unwrap();
    fast.enqueue_for_orchestrator(start("x", "Hello", ""), None).await.unwrap();
    send(&place.provider, "x", 1..2).await;
    let runtime = place.other().await;
    assert_eq!(all_turns(&runtime, "x", 1, 2).await, ["start", "1"]);
}

#[tokio::test]
async fn mail_for_a_child_whose_start_is_still_in_its_parents_outbox_is_kept() {
    let mut place = place().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    place.begin("parent").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let child = vec![start("child", "Hello", "")];
    let events = vec![event("parent", 2)];
    provider.ack_orchestration_item(&token, 1, events, vec![], child, named(), vec![]).await.unwrap();
    let runtime = place.other().await;
    send(provider, "child", 1..2).await;
    assert_eq!(all_turns(&runtime, "child", 1, 2).await, ["start", "1"]);
}

/// A runtime that does not know the orchestration gives its turn back with a delay.
async fn put_off(place: &Place, provider: &CosmosDBProvider) {
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let queued = place.of_type(&item.instance, "orch_queue").await.len();
    assert!(item.messages.len() < queued, "not all of them fit into a turn");
    provider.abandon_orchestration_item(&token, Some(Duration::from_secs(2)), false).await.unwrap();
}

#[tokio::test]
async fn mail_that_does_not_fit_into_a_first_turn_that_is_put_off_is_kept_in_order() {
    let place = place().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("x", "Hello", ""), None).await.unwrap();
    send(provider, "x", 0..150).await;
    put_off(&place, provider).await;
    for provider in [provider, &place.other().await] {
        let early = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
        assert!(early.is_none(), "{:?}", early.map(|(item, ..)| names(&item.messages)));
    }
    let expected: Vec<String> = std::iter::once("start".to_owned()).chain(numbers(0..150)).collect();
    assert_eq!(all_turns(&place.other().await, "x", 1, 151).await, expected);
}

#[tokio::test]
async fn mail_does_not_overtake_what_was_put_off_before_it_however_much_it_is() {
    let place = place().await;
    place.begin("a").await;
    send(&place.provider, "a", 0..700).await;
    put_off(&place, &place.other().await).await;
    // What comes after the turn was fetched is not held up by it: an instance that is put off hears of new mail.
    send(&place.provider, "a", 700..701).await;
    let runtime = place.other().await;
    let (item, token, _) = runtime.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(names(&item.messages), ["700"]);
    commit(&runtime, &token, vec![event("a", 2)], named()).await.unwrap();
    assert_eq!(all_turns(&runtime, "a", 3, 700).await, numbers(0..700));
}

/// A place where mail for an instance that has not begun is given up at once.
async fn impatient() -> Place {
    place_with(|config| CosmosDBProviderConfig { early_mail_retention: NOW, ..config }).await
}

#[tokio::test]
async fn mail_for_an_instance_that_never_begins_becomes_dead_letters_however_much_it_is() {
    let place = impatient().await;
    let provider = &place.provider;
    send(provider, "a", 0..150).await;
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(place.of_type("a", "orch_queue").await.is_empty());
    let letters = provider.dead_letters().await.unwrap();
    assert_eq!((letters.len(), letters[0].target.as_str()), (150, "a"));
    assert!(letters[0].reason.contains("no start"), "{}", letters[0].reason);
    // Somebody starts the instance after all, and sends one of them again.
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    provider.requeue_dead_letter("a", &letters[7].id).await.unwrap();
    let (item, token, _) =
        provider.fetch_orchestration_item(LOCK, Duration::from_secs(10), None).await.unwrap().unwrap();
    assert_eq!(item.messages.len(), 2, "{:?}", names(&item.messages));
    commit(provider, &token, vec![event("a", 1)], named()).await.unwrap();
    assert_eq!(provider.dead_letters().await.unwrap().len(), 149);
}

#[tokio::test]
async fn mail_that_waits_for_a_start_is_looked_at_ever_more_rarely() {
    let place = place().await;
    send(&place.provider, "a", 0..1).await;
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    let before = place.answered(None);
    let runtime = place.other().await;
    // The first looks are a second apart; a process that does not know of it does not meet it in between.
    for _ in 0..5 {
        assert!(runtime.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    let parked = &place.of_type("a", "orch_queue").await[0];
    assert!(parked["visibleAt"].as_u64() > parked["enqueuedAt"].as_u64(), "{parked}");
    assert!(place.answered(None) - before < 40);
}
