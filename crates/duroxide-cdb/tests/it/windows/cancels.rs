//! Cancelled activities: gone with the commit that cancels them, whoever dies after it.

use cosmos_emulator::{Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ScheduledActivityIdentifier, WorkItem};
use duroxide_cdb::CosmosDBProvider;

use super::{LOCK, NOW, Place, cancel, mail, place_of_a_dying_process};
use crate::world::{activity, emulator, event, named, start, until};

/// Starts `a` with so many activities, of which a worker holds the first, and holds its next turn. Returns both tokens.
async fn with_activities(place: &Place, count: u64) -> (String, String) {
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = (1..=count).map(|id| activity("a", id)).collect();
    let events = vec![event("a", 1)];
    provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await.unwrap();
    let (item, held, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    assert_eq!(item, activity("a", 1));
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    (token, held)
}

/// Commits the second turn of `a` in a process that dies with it: after the first `batches`, of which the commit is one,
/// nothing more gets through.
async fn die_after(
    place: &Place,
    token: String,
    batches: u64,
    work: Vec<WorkItem>,
    cancelled: Vec<ScheduledActivityIdentifier>,
) {
    let mut rule = place.rule(Verdict::ResetBefore).on(Operation::Batch);
    rule.skip = batches;
    let no_batches = emulator().faults().add(rule);
    let no_deletes = emulator().faults().add(place.rule(Verdict::ResetBefore).on(Operation::DeleteItem));
    let dying = {
        let provider = place.provider.clone();
        let events = vec![event("a", 2)];
        tokio::spawn(async move {
            provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), cancelled).await
        })
    };
    until("the turn is committed", async || {
        dying.is_finished() || no_batches.struck() + no_deletes.struck() > 0
    })
    .await;
    dying.abort();
    let _ = dying.await;
}

/// The ids of all activities that a worker gets.
async fn taken(worker: &CosmosDBProvider) -> Vec<u64> {
    let mut taken = Vec::new();
    while let Some((item, ..)) = worker.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap() {
        if let WorkItem::ActivityExecute { id, .. } = item {
            taken.push(id);
        }
    }
    taken
}

#[tokio::test]
async fn a_cancelled_activity_stays_cancelled_when_the_process_dies_after_the_commit() {
    let place = place_of_a_dying_process().await;
    let (token, held) = with_activities(&place, 2).await;
    die_after(&place, token, 1, vec![], vec![cancel("a", 1), cancel("a", 2)]).await;
    let other = place.other().await;
    assert!(!other.renew_work_item_lock(&held, LOCK).await.unwrap_err().retryable);
    assert!(!other.ack_work_item(&held, None).await.unwrap_err().retryable);
    assert!(taken(&other).await.is_empty());
}

/// As [`die_after`], in a turn that cancels so many activities, of which a worker holds the first, and schedules more than
/// a batch holds.
async fn die_in_a_wide_turn(batches: u64, cancelled: u64) -> (Place, String) {
    let place = place_of_a_dying_process().await;
    let (token, held) = with_activities(&place, cancelled).await;
    let work = (101..=250).map(|id| activity("a", id)).collect();
    die_after(&place, token, batches, work, (1..=cancelled).map(|id| cancel("a", id)).collect()).await;
    (place, held)
}

#[tokio::test]
async fn the_cancellations_of_a_wide_turn_are_part_of_its_commit() {
    let (place, held) = die_in_a_wide_turn(1, 40).await;
    let other = place.other().await;
    assert!(!other.renew_work_item_lock(&held, LOCK).await.unwrap_err().retryable);
    assert!(!other.ack_work_item(&held, None).await.unwrap_err().retryable);
    let taken = taken(&other).await;
    assert!(taken.iter().all(|id| *id > 100), "{taken:?}");
}

#[tokio::test]
async fn more_cancellations_than_a_commit_holds_are_the_first_thing_after_it() {
    let (place, _) = die_in_a_wide_turn(2, 90).await;
    let taken = taken(&place.other().await).await;
    assert!(taken.iter().all(|id| *id > 100), "{taken:?}");
}

#[tokio::test]
async fn more_cancellations_than_a_commit_holds_are_finished_by_others() {
    let (place, held) = die_in_a_wide_turn(1, 90).await;
    let survivor = place.survivor().await;
    until("the turn is finished", async || {
        let kinds = place.kinds("a").await;
        !kinds.iter().any(|kind| kind == "manifest" || kind == "staged")
    })
    .await;
    assert!(!survivor.renew_work_item_lock(&held, LOCK).await.unwrap_err().retryable);
    let mut taken = taken(&survivor).await;
    taken.sort_unstable();
    assert!(taken.into_iter().eq(101..=250));
}

#[tokio::test]
async fn the_cancellation_of_another_instances_activity_outlives_its_process() {
    let place = place_of_a_dying_process().await;
    place.begin("a").await;
    let provider = &place.provider;
    provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let (_, held, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let fault = emulator().faults().add(place.rule(Verdict::Hang).for_key("b"));
    let dying = {
        let provider = provider.clone();
        tokio::spawn(async move {
            let (events, cancelled) = (vec![event("a", 2)], vec![cancel("b", 1)]);
            provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), cancelled).await
        })
    };
    until("the turn is committed", async || fault.struck() > 0).await;
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let survivor = place.survivor().await;
    until("it is cancelled", async || place.kinds("b").await.is_empty()).await;
    assert!(!survivor.renew_work_item_lock(&held, LOCK).await.unwrap_err().retryable);
    until("nothing is left to do", async || !place.kinds("a").await.contains(&"outbox_intent".to_owned()))
        .await;
}
