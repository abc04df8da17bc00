//! Windows that only an adversary would look for: locks, renewals and early mail under two or three bad things at once.

use std::time::{Duration, Instant};

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, SessionFetchConfig, WorkItem};
use duroxide::{Event, EventKind};
use duroxide_cdb::CosmosDBProviderConfig;

use super::held::{held_activity, held_turn};
use super::{
    LOCK, NOW, Place, commit, ended, mail, of_session, place, place_with, place_without_sweeps, status,
};
use crate::flows::{Machine, options};
use crate::world::{documents, emulator, event, named, noise, raw, start, until};

/// As long as a turn's lock lasts at default options.
const DEFAULT: Duration = Duration::from_secs(5);

async fn over(what: &str, time: Duration) {
    let begun = Instant::now();
    until(what, async || begun.elapsed() > time).await;
}

fn done(result: &str) -> Option<WorkItem> {
    Some(WorkItem::ActivityCompleted { instance: "a".into(), execution_id: 1, id: 1, result: result.into() })
}

#[tokio::test]
async fn a_renewal_of_a_turn_whose_request_hangs_is_sent_again_in_time() {
    let (place, token) = held_turn(DEFAULT).await;
    let hanging = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReplaceItem).times(1));
    place.provider.renew_orchestration_item_lock(&token, LOCK).await.unwrap();
    assert_eq!(hanging.struck(), 1);
}

#[tokio::test]
async fn a_renewal_of_an_activity_whose_request_hangs_is_sent_again_in_time() {
    let (place, token) = held_activity(DEFAULT).await;
    let hanging = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReplaceItem).times(1));
    place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
    assert_eq!(hanging.struck(), 1);
}

#[tokio::test]
async fn a_renewal_of_a_session_whose_request_hangs_is_sent_again_in_time() {
    let place = place().await;
    place.provider.enqueue_for_worker(of_session("a", 1, "s")).await.unwrap();
    let session = SessionFetchConfig { owner_id: "me".to_owned(), lock_timeout: DEFAULT };
    place.provider.fetch_work_item(LOCK, NOW, Some(&session), &TagFilter::Any).await.unwrap().unwrap();
    let hanging = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReplaceItem).times(1));
    assert_eq!(place.provider.renew_session_lock(&["me"], LOCK, LOCK).await.unwrap(), 1);
    assert_eq!(hanging.struck(), 1);
}

#[tokio::test]
async fn a_renewal_that_is_told_of_a_change_which_no_look_shows_is_sent_again() {
    // A replica that lags behind answers a look with what was there before, and so does one that was ahead.
    for code in [404, 412] {
        let (place, token) = held_activity(LOCK).await;
        let fault = emulator().faults().add(place.rule(status(code, 0)).on(Operation::ReplaceItem).times(1));
        let renewed = place.provider.renew_work_item_lock(&token, LOCK).await;
        renewed.unwrap_or_else(|error| panic!("{code}: {error}"));
        assert_eq!(fault.struck(), 1);
        place.provider.ack_work_item(&token, done("r")).await.unwrap();
    }
}

#[tokio::test]
async fn the_end_of_an_activity_waits_for_what_becomes_of_a_renewal() {
    let short = Duration::from_secs(3);
    let (place, token) = held_activity(short).await;
    let fetched = Instant::now();
    // The renewal is applied, but its answer is lost, and the look that shows it takes longer than the old lock lasts.
    let lost = Verdict::DelayAfterCommit { duration: Duration::from_secs(60) };
    let lost = emulator().faults().add(place.rule(lost).on(Operation::ReplaceItem).times(1));
    let slow = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReadItem).times(1));
    let renewing = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { provider.renew_work_item_lock(&token, LOCK).await })
    };
    until("the renewal is applied", async || lost.struck() > 0).await;
    until("the old lock is over, and the renewal looks", async || {
        fetched.elapsed() > short + Duration::from_millis(100) && slow.struck() > 0
    })
    .await;
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { provider.ack_work_item(&token, done("r")).await })
    };
    over("the ack has come as far as it can", Duration::from_millis(300)).await;
    drop(slow);
    renewing.await.unwrap().unwrap();
    acking.await.unwrap().unwrap();
    assert_eq!(place.kinds("a").await, ["orch_queue"]);
}

/// A place where mail for an instance that has not begun is given up at once.
async fn impatient() -> Place {
    place_with(|config| CosmosDBProviderConfig { early_mail_retention: NOW, ..config }).await
}

/// Mail is kept as long as there is a start, and comes with it.
async fn comes_with_the_start(place: &Place) {
    let provider = &place.provider;
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_eq!(provider.dead_letters().await.unwrap(), []);
    let wait = Duration::from_secs(20);
    let (item, ..) = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().expect("the start");
    assert_eq!(item.messages.len(), 2, "{:?}", item.messages);
}

#[tokio::test]
async fn mail_is_kept_while_a_start_waits_for_its_time() {
    let place = impatient().await;
    let later = Some(Duration::from_secs(3));
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), later).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    comes_with_the_start(&place).await;
}

#[tokio::test]
async fn mail_is_kept_while_a_start_is_put_off() {
    let place = impatient().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    provider.abandon_orchestration_item(&token, Some(Duration::from_secs(3)), false).await.unwrap();
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    comes_with_the_start(&place).await;
}

#[tokio::test]
async fn a_fetch_that_cannot_look_again_after_the_lock_leaves_no_lock_behind() {
    let place = place_without_sweeps().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    for n in 0..14 {
        let letter = mail("a", &noise(360_000 + n));
        provider.enqueue_for_orchestrator(letter, None).await.unwrap();
    }
    let runtime = place.other().await;
    // Two pages of the look, then the look after the lock.
    let denied = emulator().faults().add(place.rule(status(403, 0)).on(Operation::Query).for_key("a").nth(3));
    let wait = Duration::from_secs(10);
    let fetched = runtime.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
    assert_eq!(denied.struck(), 1);
    let (_, _, attempt) = fetched.expect("the turn is not hidden behind a lock that is not used");
    assert_eq!(attempt, 1);
}

#[tokio::test]
async fn sessions_that_cannot_be_renewed_do_not_keep_others_from_being_renewed() {
    const SESSIONS: u64 = 40;
    let lock = Duration::from_secs(15);
    let place = place().await;
    let provider = &place.provider;
    let session = SessionFetchConfig { owner_id: "me".to_owned(), lock_timeout: lock };
    for n in 0..SESSIONS {
        provider.enqueue_for_worker(of_session("a", n, &format!("s{n}"))).await.unwrap();
        provider.fetch_work_item(LOCK, NOW, Some(&session), &TagFilter::Any).await.unwrap().unwrap();
    }
    let _throttled: Vec<_> = (SESSIONS / 2..SESSIONS)
        .map(|n| {
            let rule = place.rule(status(429, 3200)).on(Operation::ReplaceItem);
            emulator().faults().add(rule.for_key(format!("__session__:s{n}")))
        })
        .collect();
    let renewed = provider.renew_session_lock(&["me"], LOCK, LOCK).await.unwrap();
    assert_eq!(renewed as u64, SESSIONS / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workflow_survives_an_account_that_comes_and_goes() {
    let place = place().await;
    let machine = Machine::start(place.other().await, options(Duration::from_secs(1))).await;
    let container = raw(&place.name).await;
    let locked_until = async || {
        let head =
            documents(&container, "a").await.into_iter().find(|document| document["type"] == "instance");
        head.and_then(|head| head["lockedUntil"].as_u64()).unwrap_or(0)
    };
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(now.as_millis()).unwrap()
    };
    let commits = emulator().faults().add(place.rule(status(403, 0)).on(Operation::Batch).for_key("a"));
    machine.client.start_orchestration("a", "Hello", "x").await.unwrap();
    for n in 0..12 {
        until("the turn is locked", async || locked_until().await > now()).await;
        let fault =
            emulator().faults().add(place.rule(status(403, 0)).on(Operation::ReplaceItem).for_key("a"));
        until("the lock is over", async || locked_until().await + 100 < now()).await;
        drop(fault);
        assert!(machine.client.get_orchestration_status("a").await.is_ok(), "{n}");
    }
    drop(commits);
    assert_eq!(machine.output("a").await, "Hello, x!");
    machine.stop().await;
}

/// Waits for the mark of something that is being prepared, and removes it as a sweep would.
async fn sweep_the_mark(place: &Place) {
    let mut marks = Vec::new();
    until("something is prepared", async || {
        marks = place.of_type("a", "manifest").await;
        !marks.is_empty()
    })
    .await;
    let id = marks[0]["id"].as_str().unwrap();
    raw(&place.name).await.delete_item("a", id, ItemOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_turn_whose_preparations_were_swept_is_not_committed_as_failed() {
    let (place, token) = held_turn(LOCK).await;
    let large = EventKind::CustomStatusUpdated { status: Some(noise(1_500_000)) };
    let large = Event::with_event_id(2, "a", 1, None, large);
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Batch).for_key("a"));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { commit(&provider, &token, vec![large], named()).await })
    };
    until("the commit is throttled", async || throttled.struck() > 0).await;
    sweep_the_mark(&place).await;
    drop(throttled);
    if let Err(error) = acking.await.unwrap() {
        // As the runtime does with every error of a commit.
        let failed = commit(&place.provider, &token, vec![event("a", 2)], ended("Failed")).await;
        assert!(failed.is_err(), "committed as failed after {error}");
    }
}

#[tokio::test]
async fn the_end_of_an_activity_whose_preparations_were_swept_prepares_again() {
    let (place, token) = held_activity(LOCK).await;
    let throttled = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Batch).for_key("a"));
    let acking = {
        let (provider, token) = (place.provider.clone(), token.clone());
        tokio::spawn(async move { provider.ack_work_item(&token, done(&noise(1_500_000))).await })
    };
    until("the end is throttled", async || throttled.struck() > 0).await;
    sweep_the_mark(&place).await;
    drop(throttled);
    acking.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_long_queue_of_early_mail_is_put_aside_whole() {
    let place = place().await;
    let text = "x".repeat(10);
    for group in (0..1300).collect::<Vec<_>>().chunks(32) {
        let sent = group
            .iter()
            .map(|n| place.provider.enqueue_for_orchestrator(mail("a", &format!("{n}{text}")), None));
        futures::future::try_join_all(sent).await.unwrap();
    }
    let runtime = place.other().await;
    for _ in 0..6 {
        assert!(runtime.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    let queued = place.of_type("a", "orch_queue").await;
    let parked = queued.iter().filter(|message| message["parkedAt"].as_u64() > Some(0)).count();
    assert_eq!((parked, queued.len()), (1300, 1300));
}

#[tokio::test]
async fn new_mail_is_heard_while_a_very_long_queue_is_put_off() {
    let place = place().await;
    place.begin("a").await;
    for group in (0..1300).collect::<Vec<_>>().chunks(32) {
        let sent =
            group.iter().map(|n| place.provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None));
        futures::future::try_join_all(sent).await.unwrap();
    }
    let runtime = place.other().await;
    let (_, token, _) = runtime.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    runtime.abandon_orchestration_item(&token, Some(LOCK), false).await.unwrap();
    place.provider.enqueue_for_orchestrator(mail("a", "new"), None).await.unwrap();
    let fetched = runtime.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
    assert_eq!(fetched.expect("the new mail").0.messages, [mail("a", "new")]);
}

#[tokio::test]
async fn an_activity_whose_renewal_failed_by_the_account_has_not_used_up_an_attempt() {
    let (place, token) = held_activity(Duration::from_secs(2)).await;
    let denied = emulator().faults().add(place.rule(status(403, 0)).on(Operation::ReplaceItem));
    assert!(place.provider.renew_work_item_lock(&token, LOCK).await.is_err());
    drop(denied);
    // As the runtime does with an activity that it could not end.
    assert!(place.provider.ack_work_item(&token, None).await.is_err());
    place.provider.abandon_work_item(&token, None, false).await.unwrap();
    let wait = Duration::from_secs(20);
    let fetched = place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap();
    assert_eq!(fetched.expect("the activity comes again").2, 1);
}

#[tokio::test]
async fn mail_that_was_put_off_for_a_while_is_not_overtaken_because_other_mail_waits_longer() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    let send = async |numbers: std::ops::Range<u64>| {
        for n in numbers {
            provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None).await.unwrap();
        }
    };
    let put_off = async |seconds| {
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let delay = Some(Duration::from_secs(seconds));
        provider.abandon_orchestration_item(&token, delay, false).await.unwrap();
    };
    send(0..80).await;
    put_off(60).await;
    send(80..160).await;
    put_off(4).await;
    over("the second time is over", Duration::from_secs(5)).await;
    send(160..161).await;
    let mut got = Vec::new();
    for number in 2.. {
        let fetched = provider.fetch_orchestration_item(LOCK, Duration::from_secs(2), None).await.unwrap();
        let Some((item, token, _)) = fetched else { break };
        got.extend(item.messages);
        commit(provider, &token, vec![event("a", number)], named()).await.unwrap();
    }
    assert_eq!(got, (80..161).map(|n| mail("a", &n.to_string())).collect::<Vec<_>>());
}
