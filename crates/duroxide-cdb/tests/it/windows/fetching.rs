//! Finding and loading work: nothing is hidden, nothing is burned.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosmos_emulator::{Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, Provider as _, ProviderAdmin as _, SemverRange, WorkItem,
};
use duroxide::runtime::RuntimeOptions;
use duroxide_cdb::{
    CosmosDBProvider, CosmosDBProviderConfig, InMemoryLeaseProvider, LeaseProvider as _, MemberReport,
};
use serde_json::json;

use super::{LOCK, NOW, commit, config, ended, mail, place, place_with, status, successor};
use crate::flows::{Machine, options};
use crate::world::{activity, documents, emulator, event, named, noise, raw, start, until};

#[tokio::test]
async fn a_failed_fetch_burns_no_attempt_and_holds_no_lock() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let fresh = place.other().await;
    // The search gets through; then the load does not, then the lock.
    for operation in [Operation::Query, Operation::ReplaceItem] {
        let fault = emulator().faults().add(place.rule(status(429, 3200)).on(operation).for_key("a"));
        until("it was tried", async || {
            assert!(!matches!(fresh.fetch_orchestration_item(LOCK, NOW, None).await, Ok(Some(_))));
            fault.struck() > 0
        })
        .await;
    }
    let (_, _, attempt) =
        fresh.fetch_orchestration_item(LOCK, Duration::from_secs(30), None).await.unwrap().unwrap();
    assert_eq!(attempt, 1);
}

#[tokio::test]
async fn locked_instances_hide_no_other() {
    let place = place().await;
    for n in 0..25 {
        let name = format!("i{n:02}");
        place.provider.enqueue_for_orchestrator(start(&name, "Hello", ""), None).await.unwrap();
        assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_some());
        place.provider.enqueue_for_orchestrator(mail(&name, "m"), None).await.unwrap();
    }
    place.provider.enqueue_for_orchestrator(start("runnable", "Hello", ""), None).await.unwrap();
    let fresh = place.other().await;
    let (item, ..) = fresh.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("one is free");
    assert_eq!(item.instance, "runnable");
}

#[tokio::test]
async fn a_throttled_partition_stops_no_other() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("bad", "Hello", ""), None).await.unwrap();
    place.provider.enqueue_for_orchestrator(start("good", "Hello", ""), None).await.unwrap();
    let _fault = emulator().faults().add(place.rule(status(429, 3200)).for_key("bad"));
    let fetched = place.provider.fetch_orchestration_item(LOCK, Duration::from_secs(15), None).await.unwrap();
    assert_eq!(fetched.expect("the other one runs").0.instance, "good");
}

#[tokio::test]
async fn a_silent_partition_stops_no_other_activity_and_no_clock() {
    let place = place().await;
    for instance in ["bad", "good"] {
        place.provider.enqueue_for_worker(activity(instance, 1)).await.unwrap();
    }
    let _fault = emulator().faults().add(place.rule(Verdict::Hang).for_key("bad"));
    let fetch = async |wait| {
        let fetch = place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any);
        let fetched = tokio::time::timeout(Duration::from_secs(60), fetch).await.expect("it ends");
        fetched.unwrap().map(|(item, ..)| item)
    };
    assert_eq!(fetch(Duration::from_secs(30)).await, Some(activity("good", 1)));
    assert_eq!(fetch(Duration::from_secs(1)).await, None);
}

#[tokio::test]
async fn a_large_activity_is_fetched_however_slowly_it_can_be_read() {
    let place = place().await;
    let WorkItem::ActivityExecute { instance, execution_id, id, name, session_id, tag, .. } =
        activity("a", 1)
    else {
        panic!("an activity")
    };
    let input = noise(5_000_000);
    let large = WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, tag };
    place.provider.enqueue_for_worker(large.clone()).await.unwrap();
    // Longer than a first try lasts.
    let slow = Verdict::Delay { duration: Duration::from_secs(4) };
    let _fault = emulator().faults().add(place.rule(slow).on(Operation::ReadItem));
    let wait = Duration::from_secs(60);
    let fetched = place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap();
    assert!(fetched.expect("it is given more time").0 == large);
}

#[tokio::test]
async fn one_dispatcher_finds_everything_whatever_concurrency_is_configured() {
    let place =
        place_with(|config| CosmosDBProviderConfig { orch_concurrency: 4, worker_concurrency: 4, ..config })
            .await;
    let one = RuntimeOptions {
        orchestration_concurrency: 1,
        worker_concurrency: 1,
        ..options(Duration::from_secs(5))
    };
    let machine = Machine::start(place.provider.clone(), one).await;
    for n in 0..20 {
        machine.client.start_orchestration(format!("i{n}"), "Hello", "x").await.unwrap();
    }
    for n in 0..20 {
        assert_eq!(machine.output(&format!("i{n}")).await, "Hello, x!");
    }
    machine.stop().await;
}

#[tokio::test]
async fn messages_of_one_sender_keep_their_order() {
    let place = place().await;
    place.begin("a").await;
    let slow = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        clock_offset_ms: -1000,
        ..config(&place.name)
    })
    .await
    .unwrap();
    for n in 0..50 {
        place.provider.enqueue_for_orchestrator(mail("a", &format!("fast {n:02}")), None).await.unwrap();
        slow.enqueue_for_orchestrator(mail("a", &format!("slow {n:02}")), None).await.unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let (item, token, _) = place
            .provider
            .fetch_orchestration_item(LOCK, Duration::from_secs(5), None)
            .await
            .unwrap()
            .unwrap();
        for message in &item.messages {
            if let WorkItem::QueueMessage { data, .. } = message {
                seen.push(data.clone());
            }
        }
        place
            .provider
            .ack_orchestration_item(&token, 1, vec![], vec![], vec![], named(), vec![])
            .await
            .unwrap();
    }
    for sender in ["fast", "slow"] {
        let order: Vec<&String> = seen.iter().filter(|data| data.starts_with(sender)).collect();
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(order.len(), 50);
    }
}

#[tokio::test]
async fn what_precedes_a_start_waits_for_it_and_makes_no_instance() {
    let place = place().await;
    let cancel = WorkItem::CancelInstance { instance: "a".into(), reason: "r".into() };
    place.provider.enqueue_for_orchestrator(cancel, None).await.unwrap();
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(place.provider.list_instances().await.unwrap().is_empty());
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (item, ..) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.messages.len(), 2);
    assert!(place.provider.list_instances().await.unwrap().is_empty(), "a lock makes no instance");
}

#[tokio::test]
async fn a_successor_comes_first_however_much_mail_waits() {
    for mails in [200, 700] {
        let place = place().await;
        place.begin("a").await;
        for n in 0..mails {
            place.provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None).await.unwrap();
        }
        let (item, token, _) =
            place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let read = item.messages.len();
        let items = vec![successor("a")];
        place
            .provider
            .ack_orchestration_item(&token, 1, vec![], vec![], items, ended("ContinuedAsNew"), vec![])
            .await
            .unwrap();
        for provider in [&place.provider, &place.other().await] {
            let (item, token, attempt) =
                provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
            assert!(matches!(item.messages[0], WorkItem::ContinueAsNew { .. }), "{:?}", item.messages[0]);
            assert_eq!((item.messages[1].clone(), attempt), (mail("a", &read.to_string()), 1));
            provider.abandon_orchestration_item(&token, None, true).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_start_comes_first_however_much_was_sent_before_it() {
    let place = place().await;
    for n in 0..70 {
        let raised = WorkItem::ExternalRaised { instance: "a".into(), name: "e".into(), data: n.to_string() };
        place.provider.enqueue_for_orchestrator(raised, None).await.unwrap();
    }
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (item, ..) =
        place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().expect("it starts");
    assert_eq!(
        (item.messages[0].clone(), item.orchestration_name.as_str()),
        (start("a", "Hello", ""), "Hello")
    );
}

#[tokio::test]
async fn a_waiting_fetch_finds_what_another_process_enqueues_meanwhile() {
    let here = place().await;
    let other = here.other().await;
    let patient = Duration::from_secs(60);
    let searches = || here.answered(Some(Operation::Query));
    let enqueue = async {
        // The first searches are over, and the pace has slowed down.
        until("both have searched in vain a few times", async || searches() >= 10).await;
        other.enqueue_for_orchestrator(start("late", "Hello", ""), None).await.unwrap();
        other.enqueue_for_worker(activity("late", 2)).await.unwrap();
        std::time::Instant::now()
    };
    let any = TagFilter::Any;
    let (turn, work, enqueued) = tokio::join!(
        here.provider.fetch_orchestration_item(LOCK, patient, None),
        here.provider.fetch_work_item(LOCK, patient, None, &any),
        enqueue,
    );
    assert!(turn.unwrap().is_some() && work.unwrap().is_some());
    assert!(enqueued.elapsed() < patient / 2, "found after {:?}", enqueued.elapsed());
}

#[tokio::test]
async fn an_instance_that_waits_for_a_timer_hears_what_other_processes_send() {
    let here = place().await;
    here.begin("a").await;
    let in_an_hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3600);
    let fire_at_ms = u64::try_from(in_an_hour.as_millis()).unwrap();
    let timer = WorkItem::TimerFired { instance: "a".into(), execution_id: 1, id: 2, fire_at_ms };
    here.provider.enqueue_for_orchestrator(mail("a", "go"), None).await.unwrap();
    let (_, token, _) = here.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    here.provider
        .ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![timer], named(), vec![])
        .await
        .unwrap();
    here.other().await.enqueue_for_orchestrator(mail("a", "hello"), None).await.unwrap();
    let wait = Duration::from_secs(30);
    let (item, ..) =
        here.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().expect("it is found");
    assert_eq!(item.messages, [mail("a", "hello")]);
}

fn version(text: &str) -> semver::Version {
    text.parse().unwrap()
}

fn supports(ranges: &[(&str, &str)]) -> DispatcherCapabilityFilter {
    let ranges = ranges.iter().map(|(min, max)| SemverRange::new(version(min), version(max)));
    DispatcherCapabilityFilter { supported_duroxide_versions: ranges.collect() }
}

/// Starts an instance whose execution is pinned to a version.
async fn pinned(provider: &CosmosDBProvider, instance: &str, to: &str) {
    provider.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let metadata = ExecutionMetadata { pinned_duroxide_version: Some(version(to)), ..named() };
    commit(provider, &token, vec![event(instance, 1)], metadata).await.unwrap();
}

#[tokio::test]
async fn instances_of_an_incompatible_version_hide_no_other_and_are_not_locked() {
    let place = place().await;
    let names: Vec<String> = (0..25).map(|n| format!("new{n:02}")).chain(["old".to_owned()]).collect();
    for name in &names {
        pinned(&place.provider, name, if name == "old" { "0.1.5" } else { "9.0.0" }).await;
    }
    for name in &names {
        place.provider.enqueue_for_orchestrator(mail(name, "m"), None).await.unwrap();
    }
    let old_runtime = place.other().await;
    let filter = supports(&[("0.0.0", "0.1.32")]);
    let (item, ..) =
        old_runtime.fetch_orchestration_item(LOCK, NOW, Some(&filter)).await.unwrap().expect("one fits");
    assert_eq!(item.instance, "old");
    let new_runtime = place.other().await;
    let all = supports(&[("0.0.0", "9.9.9")]);
    let mut taken = 0;
    while new_runtime.fetch_orchestration_item(LOCK, NOW, Some(&all)).await.unwrap().is_some() {
        taken += 1;
    }
    assert_eq!(taken, 25, "none of them was locked in passing");
}

#[tokio::test]
async fn an_old_runtime_that_waits_keeps_nothing_from_a_new_one_beside_it() {
    let place = place().await;
    pinned(&place.provider, "new", "9.0.0").await;
    let (old, all) = (supports(&[("0.0.0", "0.1.32")]), supports(&[("0.0.0", "9.9.9")]));
    let wait = Duration::from_secs(30);
    let waiting = place.provider.fetch_orchestration_item(LOCK, wait, Some(&old));
    let beside = async {
        place.provider.enqueue_for_orchestrator(mail("new", "m"), None).await.unwrap();
        // The old one has met it before the new one asks.
        tokio::time::sleep(Duration::from_millis(300)).await;
        place.provider.fetch_orchestration_item(LOCK, NOW, Some(&all)).await.unwrap()
    };
    tokio::select! {
        fetched = waiting => panic!("{fetched:?}"),
        fetched = beside => assert_eq!(fetched.expect("it is for the new one").0.instance, "new"),
    }
}

#[tokio::test]
async fn versions_are_compared_as_numbers_and_gaps_between_ranges_are_gaps() {
    let place = place().await;
    for (instance, to) in [("big", "0.1000.2"), ("gap", "0.2.0")] {
        pinned(&place.provider, instance, to).await;
    }
    for instance in ["big", "gap"] {
        place.provider.enqueue_for_orchestrator(mail(instance, "m"), None).await.unwrap();
    }
    let fetch = |filter: DispatcherCapabilityFilter| {
        let provider = place.provider.clone();
        async move {
            let fetched = provider.fetch_orchestration_item(LOCK, NOW, Some(&filter)).await.unwrap();
            fetched.map(|(item, ..)| item.instance)
        }
    };
    assert_eq!(fetch(supports(&[("0.1.0", "0.1.999"), ("0.3.0", "0.3.999")])).await, None);
    assert_eq!(fetch(supports(&[("1.0.0", "1.0.2")])).await, None, "a thousand minors are no major");
    assert_eq!(fetch(supports(&[("0.1000.2", "0.1000.2")])).await.as_deref(), Some("big"));
    assert_eq!(fetch(supports(&[("0.2.0", "0.2.0")])).await.as_deref(), Some("gap"));
}

#[tokio::test]
async fn a_throttled_write_during_a_fetch_loses_and_repeats_no_message() {
    let place = place().await;
    place.begin("a").await;
    for data in ["a", "b"] {
        place.provider.enqueue_for_orchestrator(mail("a", data), None).await.unwrap();
    }
    let _fault = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::ReplaceItem).times(2));
    let (item, token, attempt) =
        place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!((item.messages.len(), attempt), (2, 1));
    commit(&place.provider, &token, vec![event("a", 2)], named()).await.unwrap();
    assert!(place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert!(place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_lock_begins_when_it_is_asked_for_however_slow_the_account_is() {
    let place = place().await;
    place.begin("a").await;
    for n in 0..40 {
        place.provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None).await.unwrap();
    }
    let slow = place.other().await;
    // The load takes longer than the lock lasts.
    let late = Verdict::Delay { duration: Duration::from_secs(2) };
    let fault = emulator().faults().add(place.rule(late).on(Operation::Query).for_key("a").times(1));
    let lock = Duration::from_millis(1500);
    let (item, token, attempt) = slow.fetch_orchestration_item(lock, NOW, None).await.unwrap().unwrap();
    assert_eq!(fault.struck(), 1);
    assert_eq!((item.messages.len(), attempt), (40, 1));
    commit(&slow, &token, vec![event("a", 2)], named()).await.unwrap();
}

#[tokio::test]
async fn a_lock_of_an_activity_that_is_known_only_after_its_end_is_given_back_with_the_attempt() {
    let slow = Verdict::Delay { duration: Duration::from_millis(100) };
    // With the head of an instance that is known, or alone.
    for claim in [Operation::Batch, Operation::ReplaceItem] {
        let late = vec![(claim, slow.clone())];
        let unanswered = vec![(claim, Verdict::ResetAfterCommit), (Operation::ReadItem, slow.clone())];
        for faults in [late, unanswered] {
            let place = place().await;
            if claim == Operation::Batch {
                place.begin("a").await;
            }
            place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
            let rules = faults.iter().map(|(operation, verdict)| {
                let rule = place.rule(verdict.clone()).on(*operation).for_key("a").times(1);
                emulator().faults().add(rule)
            });
            let rules: Vec<_> = rules.collect();
            let short = Duration::from_millis(50);
            let fetched = place.provider.fetch_work_item(short, NOW, None, &TagFilter::Any).await.unwrap();
            assert_eq!(fetched, None, "{faults:?}: the lock has ended");
            assert!(rules.iter().all(|rule| rule.struck() == 1), "{faults:?}");
            let all = documents(&raw(&place.name).await, "a").await;
            let document = all.iter().find(|document| document["type"] == "worker_queue").unwrap();
            assert_eq!(
                (&document["attemptCount"], &document["lockToken"]),
                (&json!(0), &json!(null)),
                "{faults:?}"
            );
            let wait = Duration::from_secs(30);
            let (.., attempt) =
                place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap().unwrap();
            assert_eq!(attempt, 1, "{faults:?}");
        }
    }
}

#[tokio::test]
async fn the_lock_of_an_activity_begins_when_it_is_asked_for_however_slow_the_account_is() {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let slow = place.other().await;
    let late = Verdict::Delay { duration: Duration::from_millis(2500) };
    let _fault = emulator().faults().add(place.rule(late).on(Operation::Query));
    let lock = Duration::from_secs(2);
    let (_, token, attempt) = slow.fetch_work_item(lock, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    assert_eq!(attempt, 1);
    slow.ack_work_item(&token, None).await.unwrap();
}

#[tokio::test]
async fn a_worker_without_tags_gets_nothing_and_asks_nothing() {
    let place = place().await;
    place.provider.enqueue_for_worker(activity("a", 1)).await.unwrap();
    let nothing = TagFilter::Tags(std::collections::HashSet::new());
    assert!(place.provider.fetch_work_item(LOCK, NOW, None, &nothing).await.unwrap().is_none());
    assert!(place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::None).await.unwrap().is_none());
    assert!(place.provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_some());
}

#[tokio::test]
async fn work_of_other_slots_is_left_to_its_owner_for_a_while_and_then_taken() {
    let leases = std::sync::Arc::new(InMemoryLeaseProvider::new());
    let place = place().await;
    for n in 0..40 {
        place.provider.enqueue_for_orchestrator(start(&format!("i{n}"), "Hello", ""), None).await.unwrap();
    }
    let sharing = |owner: &str, steal_after| CosmosDBProviderConfig {
        owner: owner.to_owned(),
        leases: Some(leases.clone()),
        steal_after,
        ..config(&place.name)
    };
    // Both are known to the leases before either looks for work.
    let mut report = MemberReport::default();
    (report.serves.turns, report.serves.work) = (true, true);
    for name in ["one", "two"] {
        leases.acquire_slots(name, &report).await.unwrap();
    }
    let patient = Duration::from_secs(600);
    let one = CosmosDBProvider::new_with_config(sharing("one", patient)).await.unwrap();
    let two = CosmosDBProvider::new_with_config(sharing("two", patient)).await.unwrap();
    let mut taken = [0, 0];
    for (provider, count) in [&one, &two].into_iter().zip(&mut taken) {
        while provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_some() {
            *count += 1;
        }
    }
    assert_eq!(taken[0] + taken[1], 40, "{taken:?}");
    assert!(taken.iter().all(|count| *count > 5), "each has its part: {taken:?}");
    place.provider.enqueue_for_orchestrator(start("late", "Hello", ""), None).await.unwrap();
    let thief = CosmosDBProvider::new_with_config(sharing("zzz", Duration::from_millis(200))).await.unwrap();
    let wait = Duration::from_secs(20);
    let stolen = thief.fetch_orchestration_item(LOCK, wait, None).await.unwrap().expect("old enough");
    assert_eq!(stolen.0.instance, "late");
}
