//! No lock alive, no error: as long as a lock can still be held, who works under it goes on trying; and after an error
//! nothing is committed under it any more.

use std::time::Duration;

use cosmos_emulator::{FaultGuard, Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ProviderError, SessionFetchConfig, WorkItem};

use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::{LOCK, NOW, Place, commit, config, ended, mail, of_session, place, status};
use crate::tap::Tap;
use crate::world::{activity, emulator, event, named, until};

/// A server that asks to be left alone for longer than any lock here lasts.
fn asks_for_a_minute() -> Verdict {
    Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_secs(60)) }
}

/// Trouble that passes: each strikes once.
fn troubles() -> [Verdict; 3] {
    [asks_for_a_minute(), status(403, 0), status(401, 0)]
}

fn strike_once(place: &Place, verdict: Verdict, operation: Operation) -> FaultGuard {
    emulator().faults().add(place.rule(verdict).on(operation).times(1))
}

/// A turn of `a` that its process has locked for so long, and its token.
pub(super) async fn held_turn(lock: Duration) -> (Place, String) {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(lock, NOW, None).await.unwrap().unwrap();
    (place, token)
}

/// An activity of `a` that its process has locked for so long, and its token.
pub(super) async fn held_activity(lock: Duration) -> (Place, String) {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let any = &TagFilter::Any;
    let (_, token, _) = place.provider.fetch_work_item(lock, NOW, None, any).await.unwrap().unwrap();
    (place, token)
}

fn done() -> Option<WorkItem> {
    Some(WorkItem::ActivityCompleted { instance: "a".into(), execution_id: 1, id: 1, result: "r".into() })
}

async fn ack(place: &Place, token: &str) -> Result<(), ProviderError> {
    commit(&place.provider, token, vec![event("a", 2)], named()).await
}

#[tokio::test]
async fn a_commit_waits_as_long_as_its_lock_lasts_whatever_the_server_asks_for() {
    for verdict in troubles() {
        let (place, token) = held_turn(SHORT).await;
        let fault = strike_once(&place, verdict.clone(), Operation::Batch);
        ack(&place, &token).await.unwrap_or_else(|error| panic!("{verdict:?}: {error}"));
        assert_eq!(fault.struck(), 1);
    }
}

#[tokio::test]
async fn a_renewal_of_a_turn_waits_as_long_as_its_lock_lasts_whatever_the_server_asks_for() {
    for verdict in troubles() {
        let (place, token) = held_turn(SHORT).await;
        let fault = strike_once(&place, verdict.clone(), Operation::ReplaceItem);
        let renewed = place.provider.renew_orchestration_item_lock(&token, LOCK).await;
        renewed.unwrap_or_else(|error| panic!("{verdict:?}: {error}"));
        assert_eq!(fault.struck(), 1);
        ack(&place, &token).await.unwrap();
    }
}

#[tokio::test]
async fn a_renewal_of_an_activity_waits_as_long_as_its_lock_lasts_whatever_the_server_asks_for() {
    for verdict in troubles() {
        let (place, token) = held_activity(SHORT).await;
        let fault = strike_once(&place, verdict.clone(), Operation::ReplaceItem);
        let renewed = place.provider.renew_work_item_lock(&token, LOCK).await;
        renewed.unwrap_or_else(|error| panic!("{verdict:?}: {error}"));
        assert_eq!(fault.struck(), 1);
        place.provider.ack_work_item(&token, done()).await.unwrap();
    }
}

#[tokio::test]
async fn the_end_of_an_activity_waits_as_long_as_its_lock_lasts_whatever_the_server_asks_for() {
    for verdict in troubles() {
        let (place, token) = held_activity(SHORT).await;
        let fault = strike_once(&place, verdict.clone(), Operation::Batch);
        let acked = place.provider.ack_work_item(&token, done()).await;
        acked.unwrap_or_else(|error| panic!("{verdict:?}: {error}"));
        assert_eq!((fault.struck(), place.kinds("a").await), (1, vec!["orch_queue".to_owned()]));
    }
}

#[tokio::test]
async fn a_renewal_of_a_session_waits_as_long_as_its_lock_lasts_whatever_the_server_asks_for() {
    for verdict in troubles() {
        let place = place().await;
        place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
        let session = SessionFetchConfig { owner_id: "me".to_owned(), lock_timeout: SHORT };
        let any = &TagFilter::Any;
        place.provider.fetch_work_item(LOCK, NOW, Some(&session), any).await.unwrap().unwrap();
        let fault = strike_once(&place, verdict.clone(), Operation::ReplaceItem);
        let renewed = place.provider.renew_session_lock(&["me"], LOCK, LOCK).await;
        assert_eq!((renewed.unwrap_or_else(|error| panic!("{verdict:?}: {error}")), fault.struck()), (1, 1));
    }
}

#[tokio::test]
async fn a_commit_without_an_answer_is_settled_however_long_the_network_is_gone() {
    let (place, token) = held_turn(LOCK).await;
    let faults = [Operation::Batch, Operation::ReadItem].map(|operation| {
        emulator().faults().add(place.rule(Verdict::ResetBefore).on(operation).for_key("a"))
    });
    let acking = {
        let provider = place.provider.clone();
        tokio::spawn(async move { commit(&provider, &token, vec![event("a", 2)], named()).await })
    };
    // Longer than any request of the commit is given by itself.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!acking.is_finished(), "{:?}", acking.await);
    drop(faults);
    acking.await.unwrap().unwrap();
}

#[tokio::test]
async fn renewals_get_in_while_a_commit_is_throttled_for_longer_than_the_lock() {
    let (place, token) = held_turn(SHORT).await;
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Batch));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { commit(&provider, &token, vec![event("a", 2)], named()).await })
    };
    for _ in 0..6 {
        until("half of the lock is over", {
            let begun = std::time::Instant::now();
            async move || begun.elapsed() > SHORT / 2
        })
        .await;
        assert!(!acking.is_finished(), "{:?}", acking.await);
        place.provider.renew_orchestration_item_lock(&token, SHORT).await.unwrap();
    }
    drop(throttled);
    acking.await.unwrap().unwrap();
}

#[tokio::test]
async fn renewals_get_in_while_a_commit_hangs() {
    let (place, token) = held_turn(SHORT).await;
    let hanging = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Batch).times(1));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { commit(&provider, &token, vec![event("a", 2)], named()).await })
    };
    until("the commit hangs", async || hanging.struck() > 0).await;
    place.provider.renew_orchestration_item_lock(&token, LOCK).await.unwrap();
    drop(hanging);
    acking.await.unwrap().unwrap();
}

#[tokio::test]
async fn renewals_get_in_while_the_end_of_an_activity_hangs() {
    let (place, token) = held_activity(SHORT).await;
    let hanging = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Batch).times(1));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { provider.ack_work_item(&token, done()).await })
    };
    until("the end hangs", async || hanging.struck() > 0).await;
    place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
    drop(hanging);
    acking.await.unwrap().unwrap();
    assert_eq!(place.kinds("a").await, ["orch_queue"]);
}

#[tokio::test]
async fn a_turn_whose_commit_outlasted_its_lock_is_not_committed_as_failed_but_fetched_again() {
    let (place, token) = held_turn(SHORT).await;
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Batch));
    let refused = ack(&place, &token).await.unwrap_err();
    assert!(!refused.retryable && refused.message.contains("Invalid lock token"), "{refused}");
    drop(throttled);
    // As the runtime does with every error of a commit.
    let failed = commit(&place.provider, &token, vec![event("a", 2)], ended("Failed")).await;
    assert!(failed.unwrap_err().message.contains("Invalid lock token"));
    assert!(place.provider.renew_orchestration_item_lock(&token, LOCK).await.is_err());
    let wait = Duration::from_secs(20);
    let fetched = place.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
    let (item, token, attempt) = fetched.expect("the turn comes again");
    assert_eq!((item.messages.len(), attempt), (1, 1), "the account was to blame");
    ack(&place, &token).await.unwrap();
}

#[tokio::test]
async fn an_activity_whose_renewal_failed_is_not_removed_as_cancelled_but_fetched_again() {
    let (place, token) = held_activity(SHORT).await;
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::ReplaceItem));
    assert!(place.provider.renew_work_item_lock(&token, LOCK).await.is_err());
    drop(throttled);
    // As the runtime does with every error of a renewal.
    assert!(place.provider.ack_work_item(&token, None).await.is_err());
    let wait = Duration::from_secs(20);
    let fetched = place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap();
    let (_, token, attempt) = fetched.expect("the activity comes again");
    assert_eq!(attempt, 1, "the account was to blame");
    place.provider.ack_work_item(&token, done()).await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_the_commit_overtakes_leaves_the_head_alone() {
    let (place, token) = held_turn(LOCK).await;
    let late = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReplaceItem).times(1));
    let renewing = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { provider.renew_orchestration_item_lock(&token, LOCK).await })
    };
    until("the renewal hangs", async || late.struck() > 0).await;
    ack(&place, &token).await.unwrap();
    let committed = place.of_type("a", "instance").await;
    drop(late);
    assert!(renewing.await.unwrap().is_err());
    assert_eq!(place.of_type("a", "instance").await, committed);
}

#[tokio::test]
async fn a_process_that_finds_its_turn_stolen_commits_nothing_under_the_thiefs_lock() {
    let (place, token) = held_turn(LOCK).await;
    // To this process the service itself seems to say that it is ten minutes later, and the lock over.
    let tap = Tap::dated(emulator(), 600).await;
    let later = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&place.name) };
    let thief = CosmosDBProvider::new_with_config(later).await.unwrap();
    let (_, stolen, _) = thief.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("stolen");
    let renewed = place.provider.renew_orchestration_item_lock(&token, LOCK).await;
    assert!(renewed.unwrap_err().message.contains("taken"));
    assert!(ack(&place, &token).await.unwrap_err().message.contains("Invalid lock token"));
    commit(&thief, &stolen, vec![event("a", 2)], named()).await.unwrap();
    assert_eq!(thief.read("a").await.unwrap().len(), 2);
}

/// A lock that outlives a few requests on a busy machine, and whose end a test can wait for.
const SHORT: Duration = Duration::from_secs(6);
