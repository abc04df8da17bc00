//! Any future may be dropped at any await. Each call is dropped while each of its requests is in flight, once when the
//! account has not acted on that request and once when it has.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use cosmos_emulator::{FaultGuard, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ProviderAdmin as _, SessionFetchConfig, WorkItem};

use super::{LOCK, NOW, Place, commit, mail, of_session, place_of_a_dying_process, place_without_sweeps};
use crate::world::{activity, emulator, event, named, noise, start, until};

/// What becomes of the request that is in flight when its call is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The account never acts on it.
    Lost,
    /// The account acts on it, and nobody hears the answer.
    Served,
}

/// A call that was dropped. What it lost stays lost as long as this lives.
struct Dropped {
    _held: Option<FaultGuard>,
}

const FATES: [Fate; 2] = [Fate::Lost, Fate::Served];
/// Long enough for a call that goes through, and soon over for who waits for its end.
const SHORT: Duration = Duration::from_secs(2);
const PATIENT: Duration = Duration::from_secs(60);

/// Lets a call go on until its `nth` request is in flight, and drops it there. `None` if it was over before.
async fn drop_at<T>(place: &Place, nth: u64, fate: Fate, call: impl Future<Output = T>) -> Option<Dropped> {
    let held = emulator().faults().add(place.rule(Verdict::Hang).nth(nth));
    let mut call = Box::pin(call);
    tokio::select! {
        biased;
        _ = &mut call => return None,
        () = until("the request is in flight", async || held.struck() > 0) => {}
    }
    if fate == Fate::Lost {
        return Some(Dropped { _held: Some(held) });
    }
    let before = place.answered(None);
    drop(held);
    until("it is served", async || place.answered(None) > before).await;
    Some(Dropped { _held: None })
}

#[tokio::test]
async fn a_turn_that_nobody_got_comes_again() {
    let mut came = BTreeSet::new();
    for fate in FATES {
        for nth in 1.. {
            let place = place_without_sweeps().await;
            let provider = &place.provider;
            provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
            let fetch = provider.fetch_orchestration_item(SHORT, NOW, None);
            let Some(_dropped) = drop_at(&place, nth, fate, fetch).await else { break };
            let again = provider.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap();
            let (item, token, attempt) = again.expect("it comes again");
            assert_eq!(item.messages.len(), 1, "{fate:?} {nth}");
            came.insert((fate, attempt));
            commit(provider, &token, vec![event("a", 1)], named()).await.unwrap();
            for provider in [provider, &place.other().await] {
                assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
            }
        }
    }
    let expected = [(Fate::Lost, 1), (Fate::Served, 1)];
    assert!(came.iter().eq(&expected), "a fetch that was dropped was no attempt: {came:?}");
}

#[tokio::test]
async fn a_work_item_that_nobody_got_comes_again() {
    let any = TagFilter::Any;
    let owner = |name: &str| SessionFetchConfig { owner_id: name.to_owned(), lock_timeout: SHORT };
    for item in [activity("a", 1), of_session("a", 1, "s")] {
        let mut came = BTreeSet::new();
        for fate in FATES {
            for nth in 1.. {
                let place = place_without_sweeps().await;
                let provider = &place.provider;
                provider.enqueue_for_worker(item.clone()).await.unwrap();
                let (one, two) = (owner("one"), owner("two"));
                let fetch = provider.fetch_work_item(SHORT, NOW, Some(&one), &any);
                let Some(_dropped) = drop_at(&place, nth, fate, fetch).await else { break };
                // For another slot of the same process, too.
                let again = provider.fetch_work_item(LOCK, PATIENT, Some(&two), &any).await.unwrap();
                let (fetched, token, attempt) = again.expect("it comes again");
                assert_eq!(fetched, item, "{fate:?} {nth}");
                came.insert((fate, attempt));
                provider.ack_work_item(&token, None).await.unwrap();
                for provider in [provider, &place.other().await] {
                    assert!(provider.fetch_work_item(LOCK, NOW, Some(&two), &any).await.unwrap().is_none());
                }
            }
        }
        let expected = [(Fate::Lost, 1), (Fate::Served, 1)];
        assert!(came.iter().eq(&expected), "{item:?}: a fetch that was dropped was no attempt: {came:?}");
    }
}

/// Commits a first turn of `a` that schedules so many activities and starts `b`.
async fn ack(place: &Place, provider: &duroxide_cdb::CosmosDBProvider, token: &str, activities: u64) {
    let work = (1..=activities).map(|id| activity("a", id)).collect();
    let (events, items) = (vec![event("a", 1)], vec![start("b", "Hello", "")]);
    let acked = provider.ack_orchestration_item(token, 1, events, work, items, named(), vec![]).await;
    acked.unwrap_or_else(|error| panic!("{}: {error}", place.name));
}

/// Drops the commit of a turn at each of its requests. Returns what came of it: whether it happened.
async fn drop_commits_of(activities: u64, fate: Fate) -> BTreeSet<bool> {
    let mut outcomes = BTreeSet::new();
    for nth in 1.. {
        let place = place_of_a_dying_process().await;
        let provider = &place.provider;
        provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let lock = 2 * SHORT;
        let (_, token, _) = provider.fetch_orchestration_item(lock, NOW, None).await.unwrap().unwrap();
        let committing = ack(&place, provider, &token, activities);
        let Some(_dropped) = drop_at(&place, nth, fate, committing).await else { break };
        let is_committed = !place.of_type("a", "instance").await[0]["commit"].is_null();
        outcomes.insert(is_committed);
        let survivor = place.survivor().await;
        if !is_committed {
            assert!(survivor.read("a").await.unwrap().is_empty(), "{fate:?} {nth}");
            assert!(place.of_type("a", "worker_queue").await.is_empty(), "{fate:?} {nth}");
            let again = survivor.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap();
            let (item, token, attempt) = again.expect("the turn comes again");
            assert_eq!((item.instance.as_str(), item.history.len(), attempt), ("a", 0, 2));
            ack(&place, &survivor, &token, activities).await;
        }
        until("everything is there, once", async || {
            let queued = place.of_type("a", "worker_queue").await.len() as u64;
            assert!(queued <= activities, "{fate:?} {nth}: {queued} activities");
            let started = place.kinds("b").await;
            assert!(started.is_empty() || started == ["orch_queue"], "{fate:?} {nth}: {started:?}");
            queued == activities && !started.is_empty()
        })
        .await;
        until("nothing is left to send", async || place.of_type("a", "outbox_intent").await.is_empty()).await;
        for provider in [provider, &survivor] {
            assert_eq!(provider.read("a").await.unwrap().len(), 1, "{fate:?} {nth}");
        }
        let (next, ..) = survivor.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap().unwrap();
        assert_eq!((next.instance.as_str(), next.messages.len()), ("b", 1), "{fate:?} {nth}");
        assert!(survivor.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    outcomes
}

async fn drop_commits(activities: u64) {
    let (lost, served) =
        tokio::join!(drop_commits_of(activities, Fate::Lost), drop_commits_of(activities, Fate::Served));
    assert!(lost.iter().eq(&[false, true]) && served.contains(&true), "{lost:?} {served:?}");
}

#[tokio::test]
async fn a_commit_that_is_dropped_is_all_or_nothing() {
    Box::pin(drop_commits(1)).await;
}

#[tokio::test]
async fn a_wide_commit_that_is_dropped_is_all_or_nothing() {
    Box::pin(drop_commits(150)).await;
}

#[tokio::test]
async fn an_activity_whose_end_is_dropped_has_ended_or_comes_again() {
    let any = TagFilter::Any;
    let done =
        WorkItem::ActivityCompleted { instance: "a".into(), execution_id: 1, id: 1, result: "r".into() };
    let mut outcomes = BTreeSet::new();
    for fate in FATES {
        for nth in 1.. {
            let place = place_without_sweeps().await;
            let provider = &place.provider;
            provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
            let (_, token, _) = provider.fetch_work_item(SHORT, NOW, None, &any).await.unwrap().unwrap();
            let acking = provider.ack_work_item(&token, Some(done.clone()));
            let Some(_dropped) = drop_at(&place, nth, fate, acking).await else { break };
            let has_ended = place.kinds("a").await == ["orch_queue"];
            outcomes.insert((fate, has_ended));
            if !has_ended {
                assert_eq!(place.kinds("a").await, ["worker_queue"], "{fate:?} {nth}");
                let again = provider.fetch_work_item(LOCK, PATIENT, None, &any).await.unwrap();
                let (_, token, attempt) = again.expect("it comes again");
                assert_eq!(attempt, 2);
                provider.ack_work_item(&token, Some(done.clone())).await.unwrap();
            }
            assert_eq!(place.kinds("a").await, ["orch_queue"], "{fate:?} {nth}");
            assert!(provider.fetch_work_item(LOCK, NOW, None, &any).await.unwrap().is_none());
        }
    }
    assert!(outcomes.iter().eq(&[(Fate::Lost, false), (Fate::Served, true)]), "{outcomes:?}");
}

#[tokio::test]
async fn a_lock_whose_renewal_is_dropped_can_be_renewed_and_used() {
    let any = TagFilter::Any;
    for fate in FATES {
        let place = place_without_sweeps().await;
        let provider = &place.provider;
        provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
        // A look that takes longer than three seconds is put off, as on a machine that does much else: who does not wait
        // gets nothing then.
        let (_, turn, _) = provider.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap().unwrap();
        let (_, work, _) = provider.fetch_work_item(LOCK, PATIENT, None, &any).await.unwrap().unwrap();
        let ends = async |instance: &str, kind: &str| {
            place.of_type(instance, kind).await[0]["lockedUntil"].as_u64().unwrap()
        };
        let before = (ends("a", "instance").await, ends("b", "worker_queue").await);
        let renewal = provider.renew_orchestration_item_lock(&turn, 2 * LOCK);
        let _turn = drop_at(&place, 1, fate, renewal).await.expect("it makes a request");
        let renewal = provider.renew_work_item_lock(&work, 2 * LOCK);
        let _work = drop_at(&place, 1, fate, renewal).await.expect("it makes a request");
        let after = (ends("a", "instance").await, ends("b", "worker_queue").await);
        let is_renewed = (after.0 > before.0, after.1 > before.1);
        assert_eq!(is_renewed, (fate == Fate::Served, fate == Fate::Served), "{fate:?}");
        provider.renew_orchestration_item_lock(&turn, 3 * LOCK).await.unwrap();
        provider.renew_work_item_lock(&work, 3 * LOCK).await.unwrap();
        commit(provider, &turn, vec![event("a", 1)], named()).await.unwrap();
        provider.ack_work_item(&work, None).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_given_back_by_a_dropped_call_comes_again() {
    let any = TagFilter::Any;
    for (fate, delay) in FATES.into_iter().flat_map(|fate| [(fate, None), (fate, Some(SHORT))]) {
        let place = place_without_sweeps().await;
        let provider = &place.provider;
        provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
        let lock = 2 * SHORT;
        let (_, turn, _) = provider.fetch_orchestration_item(lock, NOW, None).await.unwrap().unwrap();
        let (_, work, _) = provider.fetch_work_item(lock, NOW, None, &any).await.unwrap().unwrap();
        let abandon = provider.abandon_orchestration_item(&turn, delay, true);
        let _turn = drop_at(&place, 1, fate, abandon).await.expect("it makes a request");
        let abandon = provider.abandon_work_item(&work, delay, true);
        let _work = drop_at(&place, 1, fate, abandon).await.expect("it makes a request");
        let again = provider.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap();
        let (item, turn, attempt) = again.expect("the turn comes again");
        assert_eq!(item.messages.len(), 1);
        // An attempt that was given back does not count; one that nobody gave back does.
        let expected = if fate == Fate::Served { 1 } else { 2 };
        assert_eq!(attempt, expected, "{fate:?} {delay:?}");
        let again = provider.fetch_work_item(LOCK, PATIENT, None, &any).await.unwrap();
        let (_, work, attempt) = again.expect("the activity comes again");
        assert_eq!(attempt, expected, "{fate:?} {delay:?}");
        commit(provider, &turn, vec![event("a", 1)], named()).await.unwrap();
        provider.ack_work_item(&work, None).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_enqueued_by_a_dropped_call_is_there_once_or_not_at_all() {
    for bytes in [10, 1_000_000] {
        let text = noise(bytes);
        let mut work = activity("b", 1);
        if let WorkItem::ActivityExecute { input, .. } = &mut work {
            input.clone_from(&text);
        }
        let mut outcomes = BTreeSet::new();
        for fate in FATES {
            for nth in 1.. {
                let place = place_without_sweeps().await;
                place.begin("a").await;
                let (provider, other) = (&place.provider, place.other().await);
                let letter = mail("a", &text);
                let sent =
                    drop_at(&place, nth, fate, provider.enqueue_for_orchestrator(letter.clone(), None));
                let Some(_sent) = sent.await else { break };
                let given = drop_at(&place, nth, fate, provider.enqueue_for_worker(work.clone()));
                let _given = given.await.expect("both are enqueued alike");
                let depths = other.get_queue_depths().await.unwrap();
                let (letters, works) = (depths.orchestrator_queue, depths.worker_queue);
                assert!(letters == works && letters <= 1, "{fate:?} {nth}: {letters} {works}");
                outcomes.insert((fate, letters));
                if letters == 0 {
                    provider.enqueue_for_orchestrator(letter.clone(), None).await.unwrap();
                    provider.enqueue_for_worker(work.clone()).await.unwrap();
                }
                // The next to ask in the same process finds it.
                let (item, ..) =
                    provider.fetch_orchestration_item(LOCK, PATIENT, None).await.unwrap().unwrap();
                assert!(item.messages == [letter], "{fate:?} {nth}: {} messages", item.messages.len());
                let any = TagFilter::Any;
                let (item, ..) = provider.fetch_work_item(LOCK, PATIENT, None, &any).await.unwrap().unwrap();
                assert!(item == work, "{fate:?} {nth}");
                assert!(provider.fetch_work_item(LOCK, NOW, None, &any).await.unwrap().is_none());
            }
        }
        let expected = [(Fate::Lost, 0), (Fate::Served, 1)];
        assert!(expected.iter().all(|outcome| outcomes.contains(outcome)), "{bytes}: {outcomes:?}");
        assert!(!outcomes.contains(&(Fate::Lost, 1)), "{bytes}: {outcomes:?}");
    }
}
