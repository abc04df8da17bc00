//! What deleted instances still had to send: it reaches outsiders, and never those that were deleted with them.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{FaultGuard, Operation, Verdict};
use duroxide::providers::{Provider as _, ProviderAdmin as _, ScheduledActivityIdentifier, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};

use super::families::{child, child_of, send};
use super::{LOCK, NOW, Place, config, mail, place_with, place_without_sweeps, status};
use crate::world::{activity, documents, emulator, event, named, noise, raw, start, until};

/// A place whose own process does not sweep, and leaves what it does not finish to others at once.
async fn place_of_the_careless(timeout: Duration) -> Place {
    place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        operation_timeout: timeout,
        ..config
    })
    .await
}

/// A process that does little but sweep.
async fn sweeper(place: &Place) -> CosmosDBProvider {
    let eager =
        CosmosDBProviderConfig { reconciler_interval: Duration::from_millis(50), ..config(&place.name) };
    CosmosDBProvider::new_with_config(eager).await.unwrap()
}

/// Counts requests and changes none.
fn watch(place: &Place, operation: Operation, key: &str) -> FaultGuard {
    emulator().faults().add(place.rule(Verdict::Delay { duration: NOW }).on(operation).for_key(key))
}

fn hold(place: &Place, operation: Operation, key: &str, times: u64) -> FaultGuard {
    emulator().faults().add(place.rule(Verdict::Hang).on(operation).for_key(key).times(times))
}

async fn intents(place: &Place, instance: &str) -> Vec<serde_json::Value> {
    let mut documents = documents(&raw(&place.name).await, instance).await;
    documents.retain(|document| document["type"] == "outbox_intent");
    documents
}

#[tokio::test]
async fn who_is_late_with_a_deletion_keeps_its_hands_off_what_the_next_life_sends() {
    let mut place = place_of_the_careless(Duration::from_secs(30)).await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    send(provider, "parent", vec![], named()).await;
    // Two delete it: one is held up when it is about to list what there is to send, the other goes on.
    let first = hold(&place, Operation::DeleteItem, "parent", 1);
    let deleting = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.delete_instance("parent", true).await })
    };
    until("one begins to remove", async || first.struck() > 0).await;
    let second = hold(&place, Operation::Query, "parent", 1);
    let sweeper = sweeper(&place).await;
    until("the other lists what is to be sent", async || second.struck() > 0).await;
    drop(first);
    deleting.await.unwrap().unwrap();
    // The next life has committed a start and not delivered it when the one that was held up goes on.
    send(provider, "parent", vec![child("parent", "child", "")], named()).await;
    let over = watch(&place, Operation::DeleteItem, "__deletions__");
    drop(second);
    until("it has ended the deletion", async || over.struck() > 0).await;
    until("the start is delivered", async || !place.kinds("child").await.is_empty()).await;
    assert_eq!(place.kinds("child").await, ["orch_queue"]);
    let wait = Duration::from_secs(30);
    let (item, ..) = sweeper.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.messages, [child("parent", "child", "")]);
}

#[tokio::test]
async fn who_is_late_with_a_delivery_keeps_its_hands_off_what_the_next_life_sends() {
    let mut place = place_of_the_careless(Duration::from_secs(30)).await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(2));
    let provider = &place.provider;
    send(provider, "parent", vec![start("first", "Hello", "")], named()).await;
    let slow = hold(&place, Operation::CreateItem, "first", 1);
    let _sweeper = sweeper(&place).await;
    until("it is being delivered", async || slow.struck() > 0).await;
    // The deletion delivers it as well, and it is taken.
    provider.delete_instance("parent", true).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "first");
    // The next life gives what it sends the same name.
    send(provider, "parent", vec![start("second", "Hello", "")], named()).await;
    assert_eq!(intents(&place, "parent").await.len(), 1);
    let noted = watch(&place, Operation::Batch, "parent");
    drop(slow);
    until("it is noted as delivered", async || noted.struck() > 0).await;
    let is_unsent = !intents(&place, "parent").await.is_empty();
    assert!(is_unsent || !place.kinds("second").await.is_empty(), "it is lost");
    until("it has arrived", async || !place.kinds("second").await.is_empty()).await;
    assert_eq!(place.kinds("first").await.iter().filter(|kind| *kind == "orch_queue").count(), 1);
}

#[tokio::test]
async fn a_sender_that_is_late_keeps_its_hands_off_what_its_next_life_sends() {
    for is_answered in [true, false] {
        let place = place_without_sweeps().await;
        let mut other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
            reconciler_interval: Duration::from_secs(600),
            ..config(&place.name)
        })
        .await
        .unwrap();
        let rule = place.rule(Verdict::ResetAfterCommit).on(Operation::Batch).for_key("parent");
        let unanswered = emulator().faults().add(rule.times(u64::from(!is_answered)));
        // The start is committed, and its delivery takes long.
        let slow = hold(&place, Operation::CreateItem, "first", 1);
        let sending = {
            let provider = place.provider.clone();
            tokio::spawn(async move {
                send(&provider, "parent", vec![start("first", "Hello", "")], named()).await;
            })
        };
        until("it is being delivered", async || slow.struck() > 0).await;
        assert_eq!(unanswered.struck(), u64::from(!is_answered));
        // Meanwhile another process deletes the sender, which delivers the start as well, and begins its next life.
        other.delete_instance("parent", true).await.unwrap();
        let (item, ..) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.instance, "first");
        other.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
        send(&other, "parent", vec![start("second", "Hello", "")], named()).await;
        drop(slow);
        sending.await.unwrap();
        assert_eq!(intents(&place, "parent").await.len(), 1, "what the next life sends is not lost");
    }
}

/// Starts `a` with activities 2 to `last`.
async fn schedule(provider: &CosmosDBProvider, last: u64) {
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = (2..=last).map(|id| activity("a", id)).collect();
    provider
        .ack_orchestration_item(&token, 1, vec![event("a", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
}

#[tokio::test]
async fn who_is_late_with_a_large_commit_keeps_its_hands_off_what_the_next_life_schedules() {
    // There are too many to be removed with the commit. The only batch of further removals is late, or the second.
    for (last, late) in [(61, 1), (121, 2)] {
        let place = place_without_sweeps().await;
        let other = place.other().await;
        schedule(&place.provider, 50).await;
        place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let mut rule = place.rule(Verdict::Hang).on(Operation::Batch).for_key("a").times(1);
        rule.skip = late;
        let slow = emulator().faults().add(rule);
        let cancelling = {
            let provider = place.provider.clone();
            let cancel = |activity_id| ScheduledActivityIdentifier {
                instance: "a".into(),
                execution_id: 1,
                activity_id,
            };
            // The one that the next life schedules again is among those that are late.
            let cancels: Vec<_> = (2..=last).rev().map(cancel).collect();
            tokio::spawn(async move {
                provider.ack_orchestration_item(&token, 1, vec![], vec![], vec![], named(), cancels).await
            })
        };
        until("it is committed and being finished", async || slow.struck() > 0).await;
        // Meanwhile another process finishes it, deletes the instance and begins its next life.
        other.delete_instance("a", true).await.unwrap();
        schedule(&other, 2).await;
        drop(slow);
        cancelling.await.unwrap().unwrap();
        assert!(place.kinds("a").await.contains(&"worker_queue".to_owned()), "{last} {late}");
    }
}

#[tokio::test]
async fn whatever_is_delivered_again_to_one_that_was_deleted_with_its_sender_stays_deleted() {
    let place = place_of_the_careless(Duration::from_secs(2)).await;
    // All arrives, but the sender cannot note it.
    let mut rule = place.rule(status(503, 0)).on(Operation::Batch).for_key("parent");
    rule.skip = 1;
    let unnoted = emulator().faults().add(rule);
    let cancel = WorkItem::CancelInstance { instance: "child".into(), reason: "enough".into() };
    let items = vec![child("parent", "child", ""), cancel, mail("child", "m")];
    send(&place.provider, "parent", items, named()).await;
    assert_eq!(intents(&place, "parent").await.len(), 3);
    // Another process is about to deliver it again, and slow.
    let slow = hold(&place, Operation::CreateItem, "child", 3);
    let _sweeper = sweeper(&place).await;
    until("it is being delivered again", async || slow.struck() == 3).await;
    drop(unnoted);
    place.provider.delete_instance("parent", true).await.unwrap();
    let noted = watch(&place, Operation::Batch, "parent");
    drop(slow);
    until("it was delivered again", async || noted.struck() > 0).await;
    assert_eq!(place.kinds("child").await, ["tombstone"; 3]);
}

#[tokio::test]
async fn a_large_message_that_had_arrived_goes_with_its_pieces_and_does_not_come_again() {
    let place = place_of_the_careless(Duration::from_secs(2)).await;
    let mut rule = place.rule(status(503, 0)).on(Operation::Batch).for_key("parent");
    rule.skip = 1;
    let unnoted = emulator().faults().add(rule);
    send(
        &place.provider,
        "parent",
        vec![child("parent", "child", ""), mail("child", &noise(1_000_000))],
        named(),
    )
    .await;
    assert_eq!(intents(&place, "parent").await.len(), 2);
    drop(unnoted);
    assert!(place.kinds("child").await.contains(&"chunk".to_owned()));
    place.provider.delete_instance("parent", true).await.unwrap();
    assert_eq!(place.kinds("child").await, ["tombstone"; 2]);
}

#[tokio::test]
async fn an_answer_that_arrives_after_both_were_deleted_is_not_kept() {
    let place = place_without_sweeps().await;
    place.begin("parent").await;
    let slow = hold(&place, Operation::CreateItem, "parent", 1);
    let answering = {
        let provider = place.provider.clone();
        let answer = WorkItem::SubOrchCompleted {
            parent_instance: "parent".into(),
            parent_execution_id: 1,
            parent_id: 2,
            result: "done".into(),
        };
        let metadata = child_of("parent");
        tokio::spawn(async move { send(&provider, "child", vec![answer], metadata).await })
    };
    until("the child answers", async || slow.struck() > 0).await;
    let both = ["parent".to_owned(), "child".to_owned()];
    place.other().await.delete_instances_atomic(&both, true).await.unwrap();
    drop(slow);
    answering.await.unwrap();
    assert_eq!(place.kinds("parent").await, ["tombstone"]);
}

#[tokio::test]
async fn a_deletion_keeps_what_it_has_done_about_unsent_starts_when_one_of_them_takes_too_long() {
    let mut place = place_of_the_careless(Duration::from_secs(5)).await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let names = ["mute", "one", "two", "three"];
    let children = names.map(|name| child("parent", name, "")).to_vec();
    send(&place.provider, "parent", children, named()).await;
    // The fence of this child is accepted, and then nothing more.
    let mut rule = place.rule(Verdict::Hang).on(Operation::CreateItem).for_key("mute");
    rule.skip = 1;
    let fault = emulator().faults().add(rule);
    assert!(place.provider.delete_instance("parent", true).await.is_err());
    for name in &names[1..] {
        assert!(place.kinds(name).await.contains(&"tombstone".to_owned()), "{name}");
    }
    let left = intents(&place, "parent").await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["targetInstanceId"], "mute");
    // Another process has only that one left to do.
    drop(fault);
    let _sweeper = sweeper(&place).await;
    for instance in ["parent", "mute", "one", "two", "three"] {
        until("it is gone", async || place.kinds(instance).await.iter().all(|kind| kind == "tombstone"))
            .await;
    }
}

#[tokio::test]
async fn starts_that_an_earlier_version_left_to_be_sent_name_the_parent_when_they_arrive() {
    let mut place = place_of_the_careless(Duration::from_secs(30)).await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let children = vec![child("parent", "small", ""), child("parent", "large", &noise(1_000_000))];
    send(&place.provider, "parent", children, named()).await;
    let container = raw(&place.name).await;
    for mut intent in intents(&place, "parent").await {
        assert!(intent["document"].as_object_mut().unwrap().remove("parentInstanceId").is_some());
        let id = intent["id"].as_str().unwrap().to_owned();
        container.replace_item("parent", &id, &intent, ItemOptions::default()).await.unwrap();
    }
    let sweeper = sweeper(&place).await;
    until("all is sent", async || intents(&place, "parent").await.is_empty()).await;
    for instance in ["small", "large"] {
        let messages = documents(&container, instance).await;
        let message = messages.iter().find(|document| document["type"] == "orch_queue").unwrap();
        assert_eq!(message["parentInstanceId"], "parent", "{instance}");
    }
    // So they go with it.
    sweeper.delete_instance("parent", true).await.unwrap();
    assert!(sweeper.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
}
