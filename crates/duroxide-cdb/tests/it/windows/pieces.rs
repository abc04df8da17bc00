//! Texts in pieces go with the document they belong to, whoever dies in between.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{FaultGuard, Operation, Verdict};
use duroxide::providers::{ExecutionMetadata, Provider as _, ProviderAdmin as _, WorkItem};
use duroxide::{Event, EventKind, TagFilter};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::json;

use super::{LOCK, NOW, Place, cancel, config, mail, place, place_of_a_dying_process, place_with};
use crate::world::{activity, emulator, event, named, noise, raw, start, until};

/// An activity whose input needs several documents.
fn large(instance: &str, id: u64) -> WorkItem {
    match activity(instance, id) {
        WorkItem::ActivityExecute { instance, execution_id, id, name, session_id, tag, .. } => {
            let input = noise(1_000_000);
            WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, tag }
        }
        other => other,
    }
}

impl Place {
    fn without_deletes(&self, instance: &str) -> FaultGuard {
        let rule = self.rule(Verdict::ResetBefore).on(Operation::DeleteItem).for_key(instance);
        emulator().faults().add(rule)
    }

    async fn has_pieces(&self, instance: &str) -> bool {
        let kinds = self.kinds(instance).await;
        ["chunk", "staged", "manifest"].iter().any(|kind| kinds.contains(&(*kind).to_owned()))
    }
}

/// Starts `a` with a large activity and holds its next turn.
async fn about_to_cancel(provider: &CosmosDBProvider) -> String {
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = vec![large("a", 1), activity("a", 3)];
    provider
        .ack_orchestration_item(&token, 1, vec![event("a", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap().1
}

#[tokio::test]
async fn the_pieces_of_a_cancelled_activity_go_with_it() {
    let place = place().await;
    let provider = &place.provider;
    let token = about_to_cancel(provider).await;
    let events = vec![event("a", 2)];
    let cancelled = vec![cancel("a", 1)];
    provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), cancelled).await.unwrap();
    assert_eq!(place.kinds("a").await, ["instance", "tombstone", "worker_queue"]);
}

#[tokio::test]
async fn the_pieces_of_a_cancelled_activity_go_though_its_process_dies_after_the_commit() {
    let place = place_of_a_dying_process().await;
    let token = about_to_cancel(&place.provider).await;
    let fault = place.without_deletes("a");
    let dying = {
        let provider = place.provider.clone();
        let events = vec![event("a", 2)];
        tokio::spawn(async move {
            provider
                .ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![cancel("a", 1)])
                .await
        })
    };
    until("the turn is committed", async || fault.struck() > 0).await;
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let _survivor = place.survivor().await;
    until("nothing is left of the activity", async || !place.has_pieces("a").await).await;
}

#[tokio::test]
async fn the_pieces_of_a_cancelled_activity_of_another_instance_go_with_it() {
    let place = place().await;
    let provider = &place.provider;
    provider.enqueue_for_worker(large("b", 1)).await.unwrap();
    place.begin("a").await;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let events = vec![event("a", 2)];
    let cancelled = vec![cancel("b", 1)];
    provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), cancelled).await.unwrap();
    assert!(place.kinds("b").await.is_empty());
}

/// A place where a large letter to an instance that never begins has become a dead letter.
async fn place_with_a_large_dead_letter(
    change: impl FnOnce(CosmosDBProviderConfig) -> CosmosDBProviderConfig,
) -> (Place, String) {
    let place =
        place_with(|config| change(CosmosDBProviderConfig { early_mail_retention: NOW, ..config })).await;
    place.provider.enqueue_for_orchestrator(mail("nobody", &noise(1_000_000)), None).await.unwrap();
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(place.has_pieces("nobody").await);
    let letter = place.provider.dead_letters().await.unwrap().remove(0);
    (place, letter.id)
}

#[tokio::test]
async fn the_pieces_of_a_dead_letter_go_with_it() {
    let (place, id) = place_with_a_large_dead_letter(|config| config).await;
    place.provider.drop_dead_letter("nobody", &id).await.unwrap();
    assert_eq!(place.kinds("nobody").await, ["tombstone"]);
}

#[tokio::test]
async fn a_large_dead_letter_that_is_sent_again_arrives_whole() {
    let (place, id) = place_with_a_large_dead_letter(|config| config).await;
    place.provider.enqueue_for_orchestrator(start("nobody", "Hello", ""), None).await.unwrap();
    place.provider.requeue_dead_letter("nobody", &id).await.unwrap();
    let wait = Duration::from_secs(10);
    let (item, ..) = place.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.messages[1], mail("nobody", &noise(1_000_000)));
}

#[tokio::test]
async fn the_pieces_of_a_dead_letter_go_though_the_process_dies_that_dropped_it() {
    let dying = |config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    };
    let (place, id) = place_with_a_large_dead_letter(dying).await;
    let fault = place.without_deletes("nobody");
    let dying = {
        let provider = place.provider.clone();
        tokio::spawn(async move { provider.drop_dead_letter("nobody", &id).await })
    };
    until("the letter is dropped", async || fault.struck() > 0).await;
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let survivor = place.survivor().await;
    let wait = Duration::from_millis(1);
    until("nothing is left of the letter", async || {
        assert!(survivor.fetch_orchestration_item(LOCK, wait, None).await.unwrap().is_none());
        place.kinds("nobody").await == ["tombstone"]
    })
    .await;
}

#[tokio::test]
async fn what_a_dead_process_had_prepared_goes_though_the_process_dies_that_sweeps_it() {
    let place = place_of_a_dying_process().await;
    let container = raw(&place.name).await;
    let put = async |document: serde_json::Value| {
        container.create_item("a", &document, ItemOptions::default()).await.unwrap();
    };
    for index in 0..3 {
        let id = format!("chunk:c:{index}");
        put(json!({ "id": id, "instanceId": "a", "type": "chunk", "data": "x" })).await;
    }
    put(json!({ "id": "staged:c:0", "instanceId": "a", "type": "staged", "documents": [] })).await;
    put(json!({
        "id": "manifest:c", "instanceId": "a", "type": "manifest", "commit": "c", "committed": false,
        "staged": 1, "chunks": 3, "sweepAt": 1,
    }))
    .await;
    // The first deletion gets through, then no other, and then the process dies.
    let mut rule = place.rule(Verdict::ResetBefore).on(Operation::DeleteItem).for_key("a");
    rule.skip = 1;
    let fault = emulator().faults().add(rule);
    let dying = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: NOW,
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("the sweep has begun", async || fault.struck() > 0).await;
    drop((dying, fault));
    let _survivor = place.survivor().await;
    until("nothing is left", async || place.kinds("a").await.is_empty()).await;
}

#[tokio::test]
async fn an_instance_for_which_something_large_is_being_prepared_can_be_deleted() {
    let place = place_of_a_dying_process().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let events = vec![event("a", 1)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], vec![], ExecutionMetadata::default(), vec![])
        .await
        .unwrap();
    let prepared = json!({
        "id": "manifest:c", "instanceId": "a", "type": "manifest", "commit": "c", "committed": false,
        "staged": 0, "chunks": 2, "sweepAt": u64::MAX >> 16,
    });
    raw(&place.name).await.create_item("a", &prepared, ItemOptions::default()).await.unwrap();
    provider.delete_instance("a", true).await.unwrap();
    assert_eq!(place.kinds("a").await, ["manifest"], "whoever prepares it finds it as it was");
}

#[tokio::test]
async fn the_pieces_of_a_replaced_custom_status_go_with_it() {
    let place = place().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    // Long as written as JSON; history packs it, so that the only pieces are those of the status.
    let texts = [Some(noise(450_000)), Some("short".to_owned())];
    for (turn, status) in (1_u64..).zip(texts) {
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let updated = EventKind::CustomStatusUpdated { status };
        let first = (turn == 1).then(|| event("a", 1));
        let events = first.into_iter().chain([Event::with_event_id(turn + 1, "a", 1, None, updated)]);
        provider
            .ack_orchestration_item(&token, 1, events.collect(), vec![], vec![], named(), vec![])
            .await
            .unwrap();
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    }
    assert_eq!(place.provider.get_custom_status("a", 0).await.unwrap().unwrap().0.as_deref(), Some("short"));
    let container = raw(&place.name).await;
    let documents = crate::world::documents(&container, "a").await;
    let named: Vec<&str> = documents
        .iter()
        .filter(|document| document["type"] == "history")
        .filter_map(|document| document["chunks"]["commit"].as_str())
        .collect();
    let lost = documents.iter().filter(|document| document["type"] == "chunk").filter(|document| {
        let id = document["id"].as_str().unwrap();
        !documents.iter().any(|owner| {
            let chunks = &owner["chunks"];
            let (first, count) = (chunks["first"].as_u64(), chunks["count"].as_u64());
            let range = first.unwrap_or(0)..first.unwrap_or(0) + count.unwrap_or(0);
            let commit = chunks["commit"].as_str().unwrap_or_default();
            range.into_iter().any(|index| id == format!("chunk:{commit}:{index}"))
        })
    });
    assert_eq!(lost.count(), 0, "pieces that nothing names; history names {named:?}");
}

/// A place whose operations may take a moment only.
async fn place_in_a_hurry() -> Place {
    place_with(|config| CosmosDBProviderConfig { operation_timeout: SHORT, ..config }).await
}

const SHORT: Duration = Duration::from_secs(5);

impl Place {
    /// The second document that is prepared for `a` is not answered.
    fn slow_preparation(&self) -> FaultGuard {
        let mut rule = self.rule(Verdict::Hang).on(Operation::CreateItem).for_key("a").times(1);
        rule.skip = 1;
        emulator().faults().add(rule)
    }
}

#[tokio::test]
async fn a_large_turn_is_prepared_as_long_as_its_lock_is_renewed() {
    let place = place_in_a_hurry().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(SHORT, NOW, None).await.unwrap().unwrap();
    let slow = place.slow_preparation();
    let made =
        emulator().faults().add(place.rule(Verdict::Delay { duration: NOW }).on(Operation::CreateItem));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        let work = vec![large("a", 2), large("a", 3)];
        tokio::spawn(async move {
            provider
                .ack_orchestration_item(&token, 1, vec![event("a", 2)], work, vec![], named(), vec![])
                .await
        })
    };
    until("it is being prepared", async || slow.struck() > 0).await;
    place.provider.renew_orchestration_item_lock(&token, LOCK).await.unwrap();
    acking.await.unwrap().unwrap();
    let kinds = place.kinds("a").await;
    let pieces = kinds.iter().filter(|kind| *kind == "chunk").count() as u64;
    assert_eq!(made.matched(), 1 + pieces, "the mark and each piece once: nothing begins again");
}

#[tokio::test]
async fn a_large_result_is_prepared_as_long_as_its_lock_is_renewed() {
    let place = place_in_a_hurry().await;
    place.provider.enqueue_for_worker(activity("a", 2)).await.unwrap();
    let any = TagFilter::Any;
    let (_, token, _) = place.provider.fetch_work_item(SHORT, NOW, None, &any).await.unwrap().unwrap();
    let slow = place.slow_preparation();
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        let done = WorkItem::ActivityCompleted {
            instance: "a".into(),
            execution_id: 1,
            id: 2,
            result: noise(2_000_000),
        };
        tokio::spawn(async move { provider.ack_work_item(&token, Some(done)).await })
    };
    until("it is being prepared", async || slow.struck() > 0).await;
    place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
    acking.await.unwrap().unwrap();
    let kinds = place.kinds("a").await;
    assert!(
        kinds.contains(&"orch_queue".to_owned()) && !kinds.contains(&"worker_queue".to_owned()),
        "{kinds:?}"
    );
}
