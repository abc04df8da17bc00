//! Locks: a fence at the commit, kept through trouble, given back by their owner only.

use std::time::Duration;

use cosmos_emulator::{Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, ProviderAdmin as _, SessionFetchConfig, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::{LOCK, NOW, commit, config, mail, of_session, place, place_with, status};
use crate::tap::Tap;
use crate::world::{activity, documents, emulator, event, named, noise, raw, start};

/// What may happen to a write that is none the worse for it.
fn troubles() -> [Verdict; 4] {
    [status(429, 3200), status(503, 0), Verdict::ResetAfterCommit, Verdict::ResetBefore]
}

#[tokio::test]
async fn an_ack_that_arrives_after_a_takeover_writes_nothing() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let other = place.other().await;
    let (_, token, _) =
        place.provider.fetch_orchestration_item(Duration::from_secs(1), NOW, None).await.unwrap().unwrap();
    // The commit is on its way when the lock ends and somebody else takes the turn.
    let _fault = emulator()
        .faults()
        .add(place.rule(Verdict::Delay { duration: Duration::from_secs(3) }).on(Operation::Batch).times(1));
    let late = {
        let provider = place.provider.clone();
        tokio::spawn(async move {
            provider
                .ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![], named(), vec![])
                .await
        })
    };
    let (item, second, attempt) =
        other.fetch_orchestration_item(LOCK, Duration::from_secs(8), None).await.unwrap().unwrap();
    assert_eq!((item.history.len(), item.messages.len(), attempt), (1, 1, 2));
    assert!(late.await.unwrap().is_err());
    other
        .ack_orchestration_item(&second, 1, vec![event("a", 2)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
    assert_eq!(other.read("a").await.unwrap().len(), 2);
    assert!(other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_fast_clock_can_steal_work_but_never_commit_twice() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    // To this process the service itself seems to say that it is ten minutes later.
    let tap = Tap::dated(emulator(), 600).await;
    let later = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&place.name) };
    let fast = CosmosDBProvider::new_with_config(later).await.unwrap();
    let (_, first, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let (_, second, _) = fast.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("stolen");
    let commit = |provider: CosmosDBProvider, token: String| async move {
        provider.ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![], named(), vec![]).await
    };
    let (one, two) = tokio::join!(commit(place.provider.clone(), first), commit(fast, second));
    assert_eq!(u8::from(one.is_ok()) + u8::from(two.is_ok()), 1, "{one:?} {two:?}");
    assert_eq!(place.provider.read("a").await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_abandon_survives_throttling_and_an_unknown_token_is_an_error() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    {
        let _fault =
            emulator().faults().add(place.rule(status(429, 3200)).on(Operation::ReplaceItem).times(2));
        place.provider.abandon_orchestration_item(&token, None, false).await.unwrap();
    }
    let (_, _, attempt) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(attempt, 2);
    for token in ["nonsense", token.as_str()] {
        let error = place.provider.abandon_orchestration_item(token, None, false).await.unwrap_err();
        assert!(!error.retryable, "{error}");
        assert!(!place.provider.abandon_work_item("nonsense", None, false).await.unwrap_err().retryable);
    }
}

#[tokio::test]
async fn a_passing_trouble_at_the_end_of_an_activity_does_not_run_it_again() {
    for verdict in [status(429, 3200), status(449, 0), Verdict::ResetAfterCommit, Verdict::ResetBefore] {
        let place = place().await;
        place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
        let (_, token, _) =
            place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
        let _fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::Batch).times(1));
        let done =
            WorkItem::ActivityCompleted { instance: "a".into(), execution_id: 1, id: 1, result: "r".into() };
        place.provider.ack_work_item(&token, Some(done)).await.unwrap();
        assert_eq!(place.kinds("a").await, ["orch_queue"], "{verdict:?}");
    }
}

#[tokio::test]
async fn a_passing_trouble_at_a_renewal_does_not_cancel_the_activity() {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    for verdict in troubles() {
        let _fault = emulator().faults().add(place.rule(verdict).on(Operation::ReplaceItem).times(2));
        place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
    }
    place.provider.ack_work_item(&token, None).await.unwrap();
}

#[tokio::test]
async fn a_passing_trouble_at_a_renewal_does_not_end_the_turn() {
    let sit_out = async |verdict: Verdict| {
        let place = place().await;
        place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let until = async || place.of_type("a", "instance").await[0]["lockedUntil"].as_u64().unwrap();
        let before = until().await;
        // Longer than the driver tries by itself.
        let fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::ReplaceItem).times(12));
        place.provider.renew_orchestration_item_lock(&token, 2 * LOCK).await.unwrap();
        assert!(fault.struck() > 0, "{verdict:?}");
        drop(fault);
        assert!(until().await > before, "{verdict:?}");
        commit(&place.provider, &token, vec![event("a", 1)], named()).await.unwrap();
    };
    futures::future::join_all(troubles().map(sit_out)).await;
}

#[tokio::test]
async fn a_turn_is_put_off_once_whatever_becomes_of_the_request() {
    let put_off = async |verdict: Verdict| {
        let place = place().await;
        place.begin("a").await;
        for text in ["one", "two"] {
            place.provider.enqueue_for_orchestrator(mail("a", text), None).await.unwrap();
        }
        let (item, token, _) =
            place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.messages.len(), 2);
        let seen = place.of_type("a", "orch_queue").await;
        let fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::Batch).times(12));
        let delay = Duration::from_secs(600);
        place.provider.abandon_orchestration_item(&token, Some(delay), true).await.unwrap();
        assert!(fault.struck() > 0, "{verdict:?}");
        drop(fault);
        let put_off = place.of_type("a", "orch_queue").await;
        assert_eq!(put_off.len(), 2, "{verdict:?}");
        for (before, after) in seen.iter().zip(&put_off) {
            let moved = after["visibleAt"].as_u64().unwrap() - before["visibleAt"].as_u64().unwrap();
            assert!(moved >= 600_000, "{verdict:?}: by {moved} ms");
        }
        let head = place.of_type("a", "instance").await.remove(0);
        assert!(head["lockToken"].is_null() && head["attempts"].is_null(), "{verdict:?}: {head}");
        let again = place.provider.abandon_orchestration_item(&token, Some(delay), true).await;
        assert!(!again.unwrap_err().retryable, "{verdict:?}: it is given back");
        // What comes meanwhile does not wait with it.
        place.provider.enqueue_for_orchestrator(mail("a", "three"), None).await.unwrap();
        for provider in [&place.other().await, &place.provider] {
            let (item, token, attempt) =
                provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
            assert_eq!((item.messages, attempt), (vec![mail("a", "three")], 1), "{verdict:?}");
            provider.abandon_orchestration_item(&token, None, true).await.unwrap();
        }
    };
    futures::future::join_all(troubles().map(put_off)).await;
}

#[tokio::test]
async fn giving_back_a_lost_lock_does_not_open_the_lock_of_the_next_owner() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let short = Duration::from_secs(2);
    let (_, lost, _) = place.provider.fetch_orchestration_item(short, NOW, None).await.unwrap().unwrap();
    let other = place.other().await;
    let wait = Duration::from_secs(30);
    let (_, held, _) = other.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert!(!place.provider.abandon_orchestration_item(&lost, None, false).await.unwrap_err().retryable);
    let third = place.other().await;
    assert!(third.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "it is still held");
    commit(&other, &held, vec![event("a", 2)], named()).await.unwrap();
}

#[tokio::test]
async fn a_throttled_removal_of_a_cancelled_activity_is_done_all_the_same() {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    let throttled = [Operation::DeleteItem, Operation::Batch];
    let _faults = throttled
        .map(|operation| emulator().faults().add(place.rule(status(429, 3200)).on(operation).times(2)));
    place.provider.ack_work_item(&token, None).await.unwrap();
    assert!(place.kinds("a").await.is_empty());
}

#[tokio::test]
async fn a_lock_moves_no_time_that_retention_goes_by() {
    let place = place().await;
    place.begin("a").await;
    let before = place.provider.get_instance_info("a").await.unwrap().updated_at;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    place.provider.renew_orchestration_item_lock(&token, LOCK).await.unwrap();
    place.provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    assert_eq!(place.provider.get_instance_info("a").await.unwrap().updated_at, before);
}

#[tokio::test]
async fn a_turn_with_large_messages_is_put_off_and_a_message_that_is_gone_does_not_matter() {
    let place = place().await;
    place.begin("a").await;
    for n in 0..9 {
        let text = noise(300_000 + n);
        place.provider.enqueue_for_orchestrator(mail("a", &text), None).await.unwrap();
    }
    let (item, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert!(item.messages.len() > 7, "together they are larger than a batch");
    let container = raw(&place.name).await;
    let queued =
        documents(&container, "a").await.into_iter().find(|document| document["type"] == "orch_queue");
    let id = queued.unwrap()["id"].as_str().unwrap().to_owned();
    container.delete_item("a", &id, cosmos_driver::ItemOptions::default()).await.unwrap();
    let delay = Duration::from_secs(3);
    place.provider.abandon_orchestration_item(&token, Some(delay), true).await.unwrap();
    let other = place.other().await;
    assert!(other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "not yet");
    let wait = Duration::from_secs(60);
    let (later, ..) = other.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(later.messages.len(), item.messages.len() - 1);
}

#[tokio::test]
async fn a_large_work_item_whose_answer_was_lost_is_fetched() {
    let place = place().await;
    let _fault = emulator().faults().add(place.rule(Verdict::ResetAfterCommit).on(Operation::Batch).times(1));
    let mut item = activity("a", 1);
    if let WorkItem::ActivityExecute { input, .. } = &mut item {
        *input = noise(1_000_000);
    }
    place.provider.enqueue_for_worker(item.clone()).await.unwrap();
    let (fetched, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    assert_eq!(fetched, item);
    place.provider.ack_work_item(&token, None).await.unwrap();
}

#[tokio::test]
async fn a_lock_may_be_taken_and_a_delay_asked_for_ever() {
    let place = place().await;
    let (provider, ever) = (&place.provider, Duration::MAX);
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(ever, NOW, None).await.unwrap().unwrap();
    provider.renew_orchestration_item_lock(&token, ever).await.unwrap();
    let other = place.other().await;
    other.renew_orchestration_item_lock(&token, ever).await.unwrap();
    other.abandon_orchestration_item(&token, Some(ever), true).await.unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    provider.enqueue_for_orchestrator(mail("b", "m"), Some(ever)).await.unwrap();
    provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let any = TagFilter::Any;
    let (_, token, _) = provider.fetch_work_item(ever, NOW, None, &any).await.unwrap().unwrap();
    provider.renew_work_item_lock(&token, ever).await.unwrap();
    provider.abandon_work_item(&token, Some(ever), true).await.unwrap();
    assert!(other.fetch_work_item(LOCK, NOW, None, &any).await.unwrap().is_none());
    provider.enqueue_for_worker(of_session("b", 1, "s")).await.unwrap();
    let session = SessionFetchConfig { owner_id: "me".into(), lock_timeout: ever };
    provider.fetch_work_item(LOCK, NOW, Some(&session), &any).await.unwrap().unwrap();
    assert_eq!(provider.renew_session_lock(&["me"], ever, ever).await.unwrap(), 1);
}

#[tokio::test]
async fn an_error_names_what_it_is_about_and_says_what_to_do() {
    let place =
        place_with(|config| CosmosDBProviderConfig { operation_timeout: Duration::from_secs(2), ..config })
            .await;
    let provider = &place.provider;
    place.begin("order-1").await;
    provider.enqueue_for_orchestrator(mail("order-1", "m"), None).await.unwrap();
    provider.enqueue_for_worker(activity("order-1", 7)).await.unwrap();
    let (_, turn, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let (_, work, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    provider.abandon_orchestration_item(&turn, None, false).await.unwrap();
    provider.ack_work_item(&work, None).await.unwrap();
    let turn = provider.ack_orchestration_item(&turn, 1, vec![], vec![], vec![], named(), vec![]).await;
    let work = [
        provider.renew_work_item_lock(&work, LOCK).await,
        provider.abandon_work_item(&work, None, false).await,
        provider.ack_work_item(&work, None).await,
    ];
    let says = |error: &str, parts: &[&str]| {
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
    };
    says(
        &turn.unwrap_err().to_string(),
        &["ack_orchestration_item", "Invalid lock token", "instance \"order-1\"", "is not committed"],
    );
    for error in work {
        says(
            &error.unwrap_err().to_string(),
            &["work_item", "Invalid lock token", "instance \"order-1\"", "activity 7", "drop its result"],
        );
    }
    let _fault = emulator().faults().add(place.rule(status(503, 0)).on(Operation::Query));
    let turn = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap_err().to_string();
    let work = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap_err().to_string();
    let all = provider.list_instances().await.unwrap_err().to_string();
    for (error, operation) in
        [(turn, "fetch_orchestration_item"), (work, "fetch_work_item"), (all, "list_instances")]
    {
        says(&error, &[operation, "503", "if this goes on"]);
        assert!(!error.contains("instance \"\""), "{error}");
    }
}
