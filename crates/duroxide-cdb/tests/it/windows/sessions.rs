//! Sessions: one owner each, over all instances and through every race.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cosmos_emulator::{Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, SessionFetchConfig, WorkItem};

use super::{LOCK, NOW, of_session, place, status};
use crate::world::{activity, documents, emulator, raw, until};

fn owner(name: &str, lock_timeout: Duration) -> SessionFetchConfig {
    SessionFetchConfig { owner_id: name.to_owned(), lock_timeout }
}

#[tokio::test]
async fn items_of_a_foreign_session_hide_no_other() {
    let place = place().await;
    place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
    let mine = owner("me", LOCK);
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    for id in 2..=130 {
        place.provider.enqueue_for_worker(of_session("a", id, "s")).await.unwrap();
    }
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let other = place.other().await;
    let theirs = owner("other", LOCK);
    let mut found = None;
    for _ in 0..3 {
        found = other.fetch_work_item(LOCK, NOW, Some(&theirs), &TagFilter::Any).await.unwrap();
        if found.is_some() {
            break;
        }
    }
    let Some((WorkItem::ActivityExecute { instance, .. }, ..)) = found else { panic!("{found:?}") };
    assert_eq!(instance, "b");
}

#[tokio::test]
async fn a_session_has_one_owner_over_all_instances() {
    let place = place().await;
    let (mine, theirs) = (owner("a", LOCK), owner("b", LOCK));
    place.provider.enqueue_for_worker(of_session("one", 1, "s")).await.unwrap();
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    place.provider.enqueue_for_worker(of_session("two", 1, "s")).await.unwrap();
    let other = place.other().await;
    assert!(other.fetch_work_item(LOCK, NOW, Some(&theirs), &TagFilter::Any).await.unwrap().is_none());
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    assert_eq!(place.provider.cleanup_orphaned_sessions(NOW).await.unwrap(), 0, "it is owned");
}

#[tokio::test]
async fn a_session_claimed_again_survives_the_cleanup_that_saw_it_expired() {
    let place = place().await;
    let short = owner("first", Duration::from_millis(50));
    place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, Some(&short), &TagFilter::Any).await.unwrap().unwrap();
    place.provider.ack_work_item(&token, None).await.unwrap();
    let cleaner = place.other().await;
    let next = place.other().await;
    // The cleanup has seen the session expired; its delete is on the way while somebody claims the session again.
    let held = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::DeleteItem).times(1));
    let is_seen = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_seen);
    let cleaning = tokio::spawn(async move {
        let mut removed = 0;
        while !seen.load(Ordering::Relaxed) {
            removed += cleaner.cleanup_orphaned_sessions(NOW).await.unwrap();
        }
        removed
    });
    until("the delete is on its way", async || held.struck() > 0).await;
    is_seen.store(true, Ordering::Relaxed);
    place.provider.enqueue_for_worker(of_session("b", 1, "s")).await.unwrap();
    let second = owner("second", LOCK);
    let wait = Duration::from_secs(30);
    let claimed = next.fetch_work_item(LOCK, wait, Some(&second), &TagFilter::Any).await.unwrap();
    assert!(claimed.is_some());
    drop(held);
    assert_eq!(cleaning.await.unwrap(), 0, "a claimed session was counted as removed");
    let session = documents(&raw(&place.name).await, "__session__:s").await;
    assert_eq!(session.len(), 1);
    assert_eq!(session[0]["ownerId"], "second");
    place.provider.enqueue_for_worker(of_session("c", 1, "s")).await.unwrap();
    let third = owner("third", LOCK);
    let other = place.other().await;
    assert!(other.fetch_work_item(LOCK, NOW, Some(&third), &TagFilter::Any).await.unwrap().is_none());
}

#[tokio::test]
async fn a_renewal_that_is_raced_or_struck_keeps_the_session() {
    let place = place().await;
    let mine = owner("me", Duration::from_secs(4));
    place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
    let fetched = place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap();
    assert!(fetched.is_some());
    for verdict in [status(429, 3200), status(412, 0), Verdict::ResetAfterCommit, Verdict::ResetBefore] {
        let _fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::ReplaceItem).times(1));
        let renewed = place.provider.renew_session_lock(&["me"], LOCK, LOCK).await.unwrap();
        assert_eq!(renewed, 1, "{verdict:?}");
    }
    let other = place.other().await;
    place.provider.enqueue_for_worker(of_session("b", 1, "s")).await.unwrap();
    let theirs = owner("other", LOCK);
    assert!(other.fetch_work_item(LOCK, NOW, Some(&theirs), &TagFilter::Any).await.unwrap().is_none());
}

#[tokio::test]
async fn what_happens_in_a_session_while_it_is_renewed_counts_as_activity() {
    let place = place().await;
    let mine = owner("me", LOCK);
    place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().unwrap();
    let container = raw(&place.name).await;
    let last_activity = async || {
        let documents = documents(&container, "__session__:s").await;
        documents[0]["lastActivity"].as_u64().unwrap()
    };
    // The write of the renewal takes long; or it was raced, and it takes long to see by what.
    for (slow, raced) in [(Operation::ReplaceItem, 0), (Operation::ReadItem, 1)] {
        let before = last_activity().await;
        let rule = |verdict| place.rule(verdict).for_key("__session__:s").times(1);
        let raced = rule(status(412, 0)).on(Operation::ReplaceItem).times(raced);
        let _raced = emulator().faults().add(raced);
        let held = emulator().faults().add(rule(Verdict::Hang).on(slow));
        let renewing = {
            let provider = place.provider.clone();
            tokio::spawn(async move { provider.renew_session_lock(&["me"], LOCK, LOCK).await })
        };
        until("it is being renewed", async || held.struck() > 0).await;
        place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
        drop(held);
        assert_eq!(renewing.await.unwrap().unwrap(), 1);
        assert_eq!(place.provider.renew_session_lock(&["me"], LOCK, LOCK).await.unwrap(), 1);
        assert!(last_activity().await > before, "{slow:?}");
    }
}
