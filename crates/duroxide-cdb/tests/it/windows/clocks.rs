//! Clocks that are wrong: the service's is the one that counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duroxide::TagFilter;
use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::{LOCK, NOW, Place, config, ended, mail, place, successor};
use crate::tap::Tap;
use crate::world::{activity, emulator, event, named, start, until};

impl Place {
    /// A process on the same container whose clock is wrong by so much.
    async fn skewed(&self, offset: i64) -> CosmosDBProvider {
        let skewed = CosmosDBProviderConfig { clock_offset_ms: offset, ..config(&self.name) };
        CosmosDBProvider::new_with_config(skewed).await.unwrap()
    }
}

#[tokio::test]
async fn what_a_process_with_a_fast_clock_sends_is_taken_at_once() {
    for ahead in [700_000, 3_600_000] {
        let place = place().await;
        let fast = place.skewed(ahead).await;
        fast.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let other = place.other().await;
        let (_, token, _) =
            other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("a start that is due");
        fast.enqueue_for_worker(activity("b", 1)).await.unwrap();
        let other = place.other().await;
        let fetched = other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap();
        assert!(fetched.is_some(), "an activity that is due");
        place
            .provider
            .ack_orchestration_item(&token, 1, vec![event("a", 1)], vec![], vec![], named(), vec![])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_a_process_with_a_fast_clock_gives_back_is_taken_at_once() {
    let place = place().await;
    let fast = place.skewed(600_000).await;
    fast.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let (_, token, _) = fast.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    fast.abandon_work_item(&token, None, true).await.unwrap();
    let other = place.other().await;
    assert!(other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_some());
}

#[tokio::test]
async fn a_process_with_a_slow_clock_sees_what_is_due() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let slow = place.skewed(-600_000).await;
    let wait = Duration::from_secs(30);
    assert!(slow.fetch_orchestration_item(LOCK, wait, None).await.unwrap().is_some());
}

#[tokio::test]
async fn a_lock_lasts_as_long_for_a_process_with_a_wrong_clock_as_for_any_other() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let fast = place.skewed(600_000).await;
    assert!(fast.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "it is locked");
    place.provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    let wait = Duration::from_secs(30);
    let slow = place.skewed(-600_000).await;
    let (_, token, _) = slow.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    slow.ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![], named(), vec![])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_timer_is_due_by_the_clock_of_the_runtime_that_set_it() {
    let place = place().await;
    place.begin("a").await;
    // The service's clock differs from this machine's by ten minutes, and the runtime has only this machine's.
    let tap = Tap::dated(emulator(), 600).await;
    let elsewhere = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&place.name) };
    let provider = CosmosDBProvider::new_with_config(elsewhere).await.unwrap();
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let timer =
        |id, fire_at_ms| WorkItem::TimerFired { instance: "a".into(), execution_id: 1, id, fire_at_ms };
    provider.enqueue_for_orchestrator(timer(2, now + 60_000), None).await.unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "not due yet");
    provider.enqueue_for_orchestrator(timer(3, now - 5_000), None).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("a due timer");
    assert_eq!(item.messages, [timer(3, now - 5_000)]);
}

#[tokio::test]
async fn a_clock_that_goes_wrong_while_its_process_only_searches_is_put_right() {
    let place = place().await;
    let tap = Tap::dated(emulator(), 0).await;
    let idle = CosmosDBProviderConfig { endpoint: tap.endpoint.clone(), ..config(&place.name) };
    let idle = CosmosDBProvider::new_with_config(idle).await.unwrap();
    let in_five_minutes = Some(Duration::from_secs(300));
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), in_five_minutes).await.unwrap();
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    place.provider.abandon_work_item(&token, in_five_minutes, true).await.unwrap();
    assert!(idle.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "not due yet");
    assert!(idle.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_none(), "not due yet");
    // Ten minutes are over for the service and for nobody else: only searches can tell.
    tap.date(600);
    let wait = Duration::from_secs(30);
    let turn = idle.fetch_orchestration_item(LOCK, wait, None).await.unwrap();
    assert_eq!(turn.expect("it is due by the service's clock").0.instance, "a");
    let work = idle.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap();
    assert_eq!(work.expect("it is due by the service's clock").0, activity("b", 1));
}

fn system_now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[tokio::test]
async fn a_timer_is_not_early_by_a_clock_that_is_a_few_seconds_ahead() {
    let place = place().await;
    place.begin("a").await;
    let fire_at_ms = system_now() + 3000;
    let timer = WorkItem::TimerFired { instance: "a".into(), execution_id: 1, id: 2, fire_at_ms };
    place.provider.enqueue_for_orchestrator(timer, None).await.unwrap();
    for ahead in [1500, 2500, 3500] {
        let fast = place.skewed(ahead).await;
        let fetched = fast.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
        let late = system_now() >= fire_at_ms;
        assert!(fetched.is_none() || late, "{ahead} ms ahead: it is early");
        if late {
            return;
        }
    }
}

#[tokio::test]
async fn what_a_clock_a_few_seconds_ahead_sends_is_taken_at_once() {
    for ahead in [1500, 2500, 3500] {
        let place = place().await;
        let fast = place.skewed(ahead).await;
        fast.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        let fetched = place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
        assert!(fetched.is_some(), "{ahead} ms ahead");
    }
}

#[tokio::test]
async fn what_is_sent_now_is_taken_at_once_by_a_clock_a_few_seconds_behind() {
    const BEHIND: i64 = 2900;
    let place = place().await;
    let slow = place.skewed(-BEHIND).await;
    let sent = system_now();
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let wait = Duration::from_secs(30);
    assert!(slow.fetch_orchestration_item(LOCK, wait, None).await.unwrap().is_some());
    let waited = system_now() - sent;
    assert!(waited < BEHIND.unsigned_abs(), "it was found after {waited} ms");
}

#[tokio::test]
async fn no_turn_is_without_the_successor_that_a_faster_clock_committed() {
    let place = place().await;
    let fast = place.skewed(2000).await;
    fast.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = fast.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("its own start");
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let next = vec![successor("a")];
    let as_new = ended("ContinuedAsNew");
    fast.ack_orchestration_item(&token, 1, vec![event("a", 1)], vec![], next, as_new, vec![]).await.unwrap();
    let other = place.other().await;
    let (item, ..) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("both are there");
    assert_eq!(item.messages, [successor("a"), mail("a", "m")]);
}

#[tokio::test]
async fn messages_keep_their_order_though_the_clocks_of_their_senders_differ() {
    let place = place().await;
    place.begin("a").await;
    let senders = [place.skewed(2500).await, place.skewed(-2500).await, place.other().await];
    for sender in &senders {
        // They look for work, as runtimes do.
        assert!(sender.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    }
    let mut sent = Vec::new();
    for (n, sender) in senders.iter().cycle().take(6).enumerate() {
        let message = mail("a", &n.to_string());
        // A clock that was put right is right to some milliseconds.
        let before = system_now();
        until("some time is over", async || system_now() > before + 300).await;
        sender.enqueue_for_orchestrator(message.clone(), None).await.unwrap();
        sent.push(message);
    }
    let (item, ..) = place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.messages, sent);
}
