//! The windows in which a provider can lose, duplicate or hide work. Each test holds one of them open.

use std::time::Duration;

use cosmos_emulator::{FaultRule, Operation, Verdict};
use duroxide::providers::{
    ExecutionMetadata, InstanceFilter, Provider as _, ProviderAdmin as _, PruneOptions,
    ScheduledActivityIdentifier, SessionFetchConfig, WorkItem,
};
use duroxide::runtime::RuntimeOptions;
use duroxide::{Event, EventKind, TagFilter};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, OutboxFaultInjector};

use crate::flows::{Machine, options};
use crate::world::{DATABASE, activity, config, documents, emulator, event, fresh_name, named, raw, start};

const LOCK: Duration = Duration::from_secs(10);
const NOW: Duration = Duration::ZERO;

struct Place {
    name: String,
    provider: CosmosDBProvider,
}

async fn place() -> Place {
    place_with(|config| config).await
}

async fn place_with(change: impl FnOnce(CosmosDBProviderConfig) -> CosmosDBProviderConfig) -> Place {
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(change(config(&name))).await.unwrap();
    Place { name, provider }
}

impl Place {
    /// Another process on the same container.
    async fn other(&self) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(config(&self.name)).await.unwrap()
    }

    fn rule(&self, verdict: Verdict) -> FaultRule {
        FaultRule::new(verdict).in_container(format!("dbs/{DATABASE}/colls/{}", self.name))
    }

    async fn kinds(&self, instance: &str) -> Vec<String> {
        let mut kinds: Vec<String> = documents(&raw(&self.name).await, instance)
            .await
            .iter()
            .map(|document| document["type"].as_str().unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        kinds
    }

    /// Starts an instance and leaves it idle after its first turn.
    async fn begin(&self, instance: &str) {
        let provider = &self.provider;
        provider.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.instance, instance);
        let events = vec![event(instance, 1)];
        provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    }
}

fn status(code: u16, sub_status: u32) -> Verdict {
    Verdict::Status { code, sub_status, retry_after: Some(Duration::from_millis(20)) }
}

fn mail(instance: &str, data: &str) -> WorkItem {
    WorkItem::QueueMessage { instance: instance.into(), name: "mail".into(), data: data.into() }
}

fn ended(as_what: &str) -> ExecutionMetadata {
    ExecutionMetadata { status: Some(as_what.to_owned()), output: Some("out".to_owned()), ..named() }
}

#[tokio::test]
async fn a_commit_answered_with_a_passing_trouble_is_sent_again() {
    for (code, sub) in [(429, 3200), (449, 0), (503, 0), (408, 0), (410, 1002)] {
        let place = place().await;
        let machine = Machine::start(place.provider.clone(), options(Duration::from_secs(5))).await;
        let _fault = emulator().faults().add(place.rule(status(code, sub)).on(Operation::Batch).times(1));
        assert_eq!(machine.run("a", "Hello", "Ann").await, "Hello, Ann!", "{code}/{sub}");
        machine.stop().await;
    }
}

#[tokio::test]
async fn throttling_longer_than_the_runtime_would_wait_stays_inside() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let _fault = emulator().faults().add(
        place
            .rule(Verdict::Status {
                code: 429,
                sub_status: 3200,
                retry_after: Some(Duration::from_millis(150)),
            })
            .on(Operation::Batch)
            .times(6),
    );
    let acked = place.provider.ack_orchestration_item(
        &token,
        1,
        vec![event("a", 1)],
        vec![],
        vec![],
        named(),
        vec![],
    );
    acked.await.unwrap();
}

#[tokio::test]
async fn a_turn_whose_last_event_is_a_duplicate_leaves_nothing() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) =
        provider.fetch_orchestration_item(Duration::from_millis(300), NOW, None).await.unwrap().unwrap();
    let events = vec![event("a", 2), event("a", 1)];
    let refused = provider
        .ack_orchestration_item(&token, 1, events, vec![activity("a", 9)], vec![], named(), vec![])
        .await;
    let error = refused.unwrap_err();
    assert!(!error.retryable && error.message.contains("Duplicate"), "{error}");
    assert_eq!(place.kinds("a").await, ["history", "instance", "orch_queue"]);
    let (item, _, attempt) =
        provider.fetch_orchestration_item(LOCK, Duration::from_secs(5), None).await.unwrap().unwrap();
    assert_eq!((item.history.len(), item.messages.len(), attempt), (1, 1, 2));
}

#[tokio::test]
async fn a_request_that_is_never_answered_does_not_hold_a_fetch_for_ever() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let _fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Query).times(1));
    let begun = std::time::Instant::now();
    let _ = place.provider.fetch_orchestration_item(LOCK, NOW, None).await;
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn an_enqueue_whose_answer_is_lost_makes_one_message() {
    for verdict in [Verdict::ResetAfterCommit, Verdict::ResetBefore] {
        let place = place().await;
        let _fault = emulator().faults().add(place.rule(verdict).on(Operation::CreateItem).times(1));
        place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
        place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
        assert_eq!(place.kinds("a").await, ["orch_queue"]);
        assert_eq!(place.kinds("b").await, ["worker_queue"]);
    }
}

#[tokio::test]
async fn a_failed_fetch_burns_no_attempt_and_holds_no_lock() {
    let place = place().await;
    place.begin("a").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let fresh = place.other().await;
    {
        let _fault = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Query));
        assert!(!matches!(fresh.fetch_orchestration_item(LOCK, NOW, None).await, Ok(Some(_))));
    }
    let (_, _, attempt) =
        fresh.fetch_orchestration_item(LOCK, Duration::from_secs(10), None).await.unwrap().unwrap();
    assert_eq!(attempt, 1);
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
    let fast = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        clock_offset_ms: 60_000,
        ..config(&place.name)
    })
    .await
    .unwrap();
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
async fn items_of_a_foreign_session_hide_no_other() {
    let place = place().await;
    let session = |owner: &str| SessionFetchConfig { owner_id: owner.to_owned(), lock_timeout: LOCK };
    let of_session = |id: u64| match activity("a", id) {
        WorkItem::ActivityExecute { instance, execution_id, id, name, input, tag, .. } => {
            WorkItem::ActivityExecute {
                instance,
                execution_id,
                id,
                name,
                input,
                session_id: Some("s".into()),
                tag,
            }
        }
        other => other,
    };
    place.provider.enqueue_for_worker(of_session(1)).await.unwrap();
    let mine = session("me");
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    for id in 2..=130 {
        place.provider.enqueue_for_worker(of_session(id)).await.unwrap();
    }
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let other = place.other().await;
    let theirs = session("other");
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
async fn a_throttled_partition_stops_no_other() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("bad", "Hello", ""), None).await.unwrap();
    place.provider.enqueue_for_orchestrator(start("good", "Hello", ""), None).await.unwrap();
    let _fault = emulator().faults().add(place.rule(status(429, 3200)).for_key("bad"));
    let fetched = place.provider.fetch_orchestration_item(LOCK, Duration::from_secs(15), None).await.unwrap();
    assert_eq!(fetched.expect("the other one runs").0.instance, "good");
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
async fn a_wide_turn_is_all_or_nothing() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) =
        place.provider.fetch_orchestration_item(Duration::from_secs(2), NOW, None).await.unwrap().unwrap();
    let wide = |n: u64| (1..=n).map(|id| activity("a", id)).collect::<Vec<_>>();
    {
        // Nothing but the preparations gets through.
        let _fault = emulator().faults().add(place.rule(status(503, 0)).on(Operation::Batch));
        let provider = &place.provider;
        let failed = provider
            .ack_orchestration_item(&token, 1, vec![event("a", 1)], wide(250), vec![], named(), vec![])
            .await;
        assert!(failed.is_err());
    }
    let other = place.other().await;
    assert!(other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_none());
    assert!(other.read("a").await.unwrap().is_empty());
    let (item, token, _) =
        other.fetch_orchestration_item(LOCK, Duration::from_secs(8), None).await.unwrap().unwrap();
    assert!(item.history.is_empty());
    other
        .ack_orchestration_item(&token, 1, vec![event("a", 1)], wide(250), vec![], named(), vec![])
        .await
        .unwrap();
    assert_eq!(other.get_queue_depths().await.unwrap().worker_queue, 250);
}

#[tokio::test]
async fn a_wide_turn_committed_by_a_dead_process_is_finished_by_the_next_reader() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        ..config
    })
    .await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let events: Vec<Event> = (1..=400).map(|id| big_event("a", id)).collect();
    // The commit is the first batch; the process hangs at the next one, and dies.
    let fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Batch).nth(2));
    let dying = {
        let provider = place.provider.clone();
        tokio::spawn(async move {
            let work = (1..=250).map(|id| activity("a", id)).collect();
            provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await
        })
    };
    while fault.struck() == 0 {
        tokio::task::yield_now().await;
    }
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let other = place.other().await;
    assert_eq!(other.read("a").await.unwrap().len(), 400);
    assert_eq!(other.get_queue_depths().await.unwrap().worker_queue, 250);
    let kinds = place.kinds("a").await;
    assert!(!kinds.iter().any(|kind| kind == "staged" || kind == "manifest"), "{kinds:?}");
}

fn big_event(instance: &str, id: u64) -> Event {
    if id == 1 {
        return event(instance, 1);
    }
    let kind = EventKind::ExternalEvent { name: "n".into(), data: "d".repeat(6000) };
    Event::with_event_id(id, instance, 1, None, kind)
}

#[tokio::test]
async fn many_large_inputs_in_one_turn_are_committed() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let work = (1..=40)
        .map(|id| match activity("a", id) {
            WorkItem::ActivityExecute { instance, execution_id, id, name, session_id, tag, .. } => {
                let input = "\"".repeat(30_000);
                WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, tag }
            }
            other => other,
        })
        .collect();
    let events = (1..=40).map(|id| big_event("a", id)).collect();
    place.provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await.unwrap();
    assert_eq!(place.provider.get_queue_depths().await.unwrap().worker_queue, 40);
    assert_eq!(place.other().await.read("a").await.unwrap().len(), 40);
}

#[tokio::test]
async fn a_cancelled_activity_stays_cancelled_when_the_process_dies_after_the_commit() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let provider = &place.provider;
    let work = vec![activity("a", 1)];
    provider
        .ack_orchestration_item(&token, 1, vec![event("a", 1)], work, vec![], named(), vec![])
        .await
        .unwrap();
    let (_, held, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let cancel = vec![ScheduledActivityIdentifier { instance: "a".into(), execution_id: 1, activity_id: 1 }];
    // The commit arrives, its answer does not, and nothing of this process gets through any more.
    let fault = emulator().faults().add(place.rule(Verdict::ResetAfterCommit).on(Operation::Batch).times(1));
    provider
        .ack_orchestration_item(&token, 1, vec![event("a", 2)], vec![], vec![], named(), cancel)
        .await
        .unwrap();
    drop(fault);
    let other = place.other().await;
    assert!(!other.renew_work_item_lock(&held, LOCK).await.unwrap_err().retryable);
    assert!(!other.ack_work_item(&held, None).await.unwrap_err().retryable);
    assert!(other.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().is_none());
}

#[tokio::test]
async fn the_latest_execution_never_goes_back() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    for execution in [2, 1] {
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        provider
            .ack_orchestration_item(&token, execution, vec![], vec![], vec![], named(), vec![])
            .await
            .unwrap();
    }
    assert_eq!(provider.latest_execution_id("a").await.unwrap(), 2);
    assert_eq!(provider.list_executions("a").await.unwrap(), [1, 2]);
}

#[tokio::test]
async fn a_continued_instance_is_running_and_cannot_be_deleted_by_accident() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    let turn = |execution: u64, metadata: ExecutionMetadata| async move {
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        provider
            .ack_orchestration_item(&token, execution, vec![], vec![], vec![], metadata, vec![])
            .await
            .unwrap();
    };
    turn(1, ended("ContinuedAsNew")).await;
    assert!(
        provider.delete_instances_atomic(&["a".into()], false).await.is_err(),
        "its next execution is coming"
    );
    turn(2, ExecutionMetadata::default()).await;
    let info = provider.get_instance_info("a").await.unwrap();
    assert_eq!((info.status.as_str(), info.output), ("Running", None));
    assert_eq!(provider.list_instances_by_status("Running").await.unwrap(), ["a"]);
    assert!(provider.delete_instances_atomic(&["a".into()], false).await.is_err());
    assert_eq!(provider.delete_instance_bulk(InstanceFilter::default()).await.unwrap().instances_deleted, 0);
    assert_eq!(provider.get_system_metrics().await.unwrap().running_instances, 1);
    let first = provider.get_execution_info("a", 1).await.unwrap();
    assert_eq!((first.status.as_str(), first.output.as_deref()), ("ContinuedAsNew", Some("out")));
    let second = provider.get_execution_info("a", 2).await.unwrap();
    assert_eq!((second.status.as_str(), second.completed_at), ("Running", None));
    assert!(provider.get_execution_info("a", 3).await.is_err());
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
    for verdict in [status(429, 3200), status(503, 0), Verdict::ResetAfterCommit, Verdict::ResetBefore] {
        let _fault = emulator().faults().add(place.rule(verdict).on(Operation::ReplaceItem).times(2));
        place.provider.renew_work_item_lock(&token, LOCK).await.unwrap();
    }
    place.provider.ack_work_item(&token, None).await.unwrap();
}

#[tokio::test]
async fn a_message_delivered_twice_is_received_once_even_after_it_was_consumed() {
    let mut place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        ..config
    })
    .await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    place.begin("parent").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let child = vec![start("child", "Hello", "")];
    provider
        .ack_orchestration_item(&token, 1, vec![event("parent", 2)], vec![], child, named(), vec![])
        .await
        .unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none(), "not delivered yet");
    // A reconciler delivers, but cannot remove the intent: it will deliver again.
    let eager = |age| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: age,
        ..config(&place.name)
    };
    let fault = emulator().faults().add(place.rule(status(503, 0)).on(Operation::Batch).for_key("parent"));
    let reconciler = CosmosDBProvider::new_with_config(eager(NOW)).await.unwrap();
    let (item, token, _) =
        reconciler.fetch_orchestration_item(LOCK, Duration::from_secs(20), None).await.unwrap().unwrap();
    assert_eq!(item.instance, "child");
    let events = vec![event("child", 1)];
    reconciler
        .ack_orchestration_item(&token, 1, events, vec![], vec![], ended("Completed"), vec![])
        .await
        .unwrap();
    assert!(place.kinds("parent").await.contains(&"outbox_intent".to_owned()));
    drop(fault);
    while place.kinds("parent").await.contains(&"outbox_intent".to_owned()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(reconciler.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_eq!(place.kinds("child").await, ["execution", "history", "instance", "tombstone"]);
}

#[tokio::test]
async fn two_turns_with_undelivered_messages_do_not_collide() {
    let mut place = place().await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(2));
    place.begin("parent").await;
    let provider = &place.provider;
    for (id, child) in [(2, "one"), (3, "two")] {
        provider.enqueue_for_orchestrator(mail("parent", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let items = vec![start(child, "Hello", "")];
        let events = vec![event("parent", id)];
        provider.ack_orchestration_item(&token, 1, events, vec![], items, named(), vec![]).await.unwrap();
    }
    let mut started = Vec::new();
    for _ in 0..2 {
        let (item, ..) =
            provider.fetch_orchestration_item(LOCK, Duration::from_secs(15), None).await.unwrap().unwrap();
        started.push(item.instance);
    }
    started.sort();
    assert_eq!(started, ["one", "two"]);
}

#[tokio::test]
async fn deleting_an_instance_first_sends_what_it_still_has_to_send() {
    let mut place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        ..config
    })
    .await;
    place.provider.set_outbox_fault_injector(OutboxFaultInjector::fail_next(1));
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("starter", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let items = vec![start("detached", "Hello", "")];
    let events = vec![event("starter", 1)];
    provider
        .ack_orchestration_item(&token, 1, events, vec![], items, ended("Completed"), vec![])
        .await
        .unwrap();
    provider.delete_instance("starter", false).await.unwrap();
    let (item, ..) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.instance, "detached");
}

#[tokio::test]
async fn a_message_to_an_impossible_instance_is_refused_before_anything_is_written() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let impossible = vec![start(&"x".repeat(3000), "Hello", "")];
    let refused =
        provider.ack_orchestration_item(&token, 1, vec![], vec![], impossible, named(), vec![]).await;
    assert!(refused.unwrap_err().message.contains("3000 bytes"));
    provider.ack_orchestration_item(&token, 1, vec![], vec![], vec![], named(), vec![]).await.unwrap();
}

#[tokio::test]
async fn pruning_obeys_all_its_conditions() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    for execution in 1..=4 {
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let metadata = ended("ContinuedAsNew");
        provider
            .ack_orchestration_item(&token, execution, vec![], vec![], vec![], metadata, vec![])
            .await
            .unwrap();
    }
    let none = PruneOptions { keep_last: None, completed_before: Some(0) };
    assert_eq!(provider.prune_executions("a", none.clone()).await.unwrap().executions_deleted, 0);
    let filter = InstanceFilter { instance_ids: None, completed_before: None, limit: Some(1) };
    place.begin("b").await;
    let bulk = provider.prune_executions_bulk(filter, none).await.unwrap();
    assert_eq!((bulk.instances_processed, bulk.executions_deleted), (1, 0));
    let last_two = PruneOptions { keep_last: Some(2), completed_before: None };
    assert_eq!(provider.prune_executions("a", last_two).await.unwrap().executions_deleted, 2);
    assert_eq!(provider.list_executions("a").await.unwrap(), [3, 4]);
}

#[tokio::test]
async fn a_deletion_that_cannot_ask_for_children_deletes_nothing() {
    let place =
        place_with(|config| CosmosDBProviderConfig { operation_timeout: Duration::from_secs(2), ..config })
            .await;
    place.begin("a").await;
    {
        let _fault = emulator().faults().add(place.rule(status(429, 3200)).on(Operation::Query));
        assert!(place.provider.delete_instances_atomic(&["a".into()], true).await.is_err());
    }
    assert_eq!(place.provider.list_instances().await.unwrap(), ["a"]);
    assert_eq!(place.provider.read("a").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_deletion_that_dies_half_way_is_finished_by_another_process() {
    let place = place().await;
    for name in ["one", "two", "three"] {
        place.begin(name).await;
    }
    let all = ["one".to_owned(), "two".to_owned(), "three".to_owned()];
    let fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::Batch).for_key("two"));
    let dying = {
        let (provider, all) = (place.provider.clone(), all.clone());
        tokio::spawn(async move { provider.delete_instances_atomic(&all, true).await })
    };
    while fault.struck() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(place.provider.list_instances().await.unwrap().is_empty(), "the whole set is gone at once");
    dying.abort();
    let _ = dying.await;
    drop(fault);
    let _other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    for name in &all {
        while !place.kinds(name).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn an_ack_in_flight_does_not_bring_a_deleted_instance_back() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let other = place.other().await;
    other.delete_instances_atomic(&["a".into()], true).await.unwrap();
    let late = provider
        .ack_orchestration_item(
            &token,
            1,
            vec![event("a", 2)],
            vec![activity("a", 1)],
            vec![],
            named(),
            vec![],
        )
        .await;
    assert!(!late.unwrap_err().retryable);
    assert!(place.kinds("a").await.is_empty());
    place.begin("a").await;
}

#[tokio::test]
async fn a_session_has_one_owner_over_all_instances() {
    let place = place().await;
    let session = |owner: &str| SessionFetchConfig { owner_id: owner.to_owned(), lock_timeout: LOCK };
    let of_session = |instance: &str| match activity(instance, 1) {
        WorkItem::ActivityExecute { instance, execution_id, id, name, input, tag, .. } => {
            WorkItem::ActivityExecute {
                instance,
                execution_id,
                id,
                name,
                input,
                session_id: Some("s".into()),
                tag,
            }
        }
        other => other,
    };
    let (mine, theirs) = (session("a"), session("b"));
    place.provider.enqueue_for_worker(of_session("one")).await.unwrap();
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    place.provider.enqueue_for_worker(of_session("two")).await.unwrap();
    let other = place.other().await;
    assert!(other.fetch_work_item(LOCK, NOW, Some(&theirs), &TagFilter::Any).await.unwrap().is_none());
    assert!(place.provider.fetch_work_item(LOCK, NOW, Some(&mine), &TagFilter::Any).await.unwrap().is_some());
    assert_eq!(place.provider.cleanup_orphaned_sessions(NOW).await.unwrap(), 0, "it is owned");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_when_the_provider_is_made() {
    let right = config(&fresh_name());
    let wrong_key = CosmosDBProviderConfig { key: "d3Jvbmcta2V5".to_owned(), ..right.clone() };
    let no_server = CosmosDBProviderConfig {
        endpoint: "http://127.0.0.1:9".to_owned(),
        operation_timeout: Duration::from_secs(2),
        ..right.clone()
    };
    let foreign = fresh_name();
    let container = raw(&foreign).await;
    let driver = {
        let credential = cosmos_driver::Credential::key(emulator().key()).unwrap();
        cosmos_driver::Driver::builder(emulator().endpoint(), credential).build().await.unwrap()
    };
    let _ = driver.create_database(DATABASE, cosmos_driver::CallOptions::default()).await;
    let properties = cosmos_driver::ContainerProperties::new(foreign.clone(), &["/tenant"]);
    let database = driver.database(DATABASE);
    database.create_container(&properties, None, cosmos_driver::CallOptions::default()).await.unwrap();
    assert_eq!(container.id(), foreign);
    for (what, broken, hint) in [
        ("wrong key", wrong_key, "key"),
        ("no server", no_server, "127.0.0.1:9"),
        ("another partition key", config(&foreign), "/tenant"),
    ] {
        let error = CosmosDBProvider::new_with_config(broken).await.expect_err(what);
        assert!(error.message.contains(hint), "{what}: {error}");
        assert!(!error.message.contains("d3Jvbmcta2V5"), "{what}: {error}");
    }
}

#[tokio::test]
async fn a_newer_layout_is_refused() {
    let place = place().await;
    let container = raw(&place.name).await;
    let mut stamp = documents(&container, "__meta__").await.remove(0);
    stamp["formatVersion"] = 99.into();
    container
        .replace_item("__meta__", "format", &stamp, cosmos_driver::ItemOptions::default())
        .await
        .unwrap();
    let error = CosmosDBProvider::new_with_config(config(&place.name)).await.expect_err("a newer layout");
    assert!(error.message.contains("99") && error.message.contains("upgrade"), "{error}");
}

#[tokio::test]
async fn many_processes_may_start_at_once() {
    let name = fresh_name();
    let starts = (0..12).map(|_| CosmosDBProvider::new_with_config(config(&name)));
    let providers = futures::future::try_join_all(starts).await.unwrap();
    providers[3].enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert!(providers[7].fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_some());
    providers[0].cleanup().await.unwrap();
}

#[tokio::test]
async fn a_message_that_can_never_be_delivered_is_kept_with_its_reason() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config
    })
    .await;
    let intent = serde_json::json!({
        "id": "intent:a:1:0", "instanceId": "a", "type": "outbox_intent", "targetInstanceId": "__meta__",
        "payload": "{\"id\":\"u\",\"type\":\"orch_queue\",\"workItem\":\"w\"}", "createdAt": 1,
    });
    let container = raw(&place.name).await;
    container.create_item("a", &intent, cosmos_driver::ItemOptions::default()).await.unwrap();
    let letters = loop {
        let letters = place.provider.dead_letters().await.unwrap();
        if !letters.is_empty() {
            break letters;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((letters[0].source.as_str(), letters[0].target.as_str()), ("a", "__meta__"));
    assert!(letters[0].reason.contains("reserved"), "{}", letters[0].reason);
    while place.kinds("a").await != ["dead_letter"] {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_fetch_may_be_dropped_at_any_moment() {
    let place = place().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    place.provider.enqueue_for_worker(activity("b", 1)).await.unwrap();
    let lock = Duration::from_millis(150);
    for step in 0..40 {
        let moment = Duration::from_micros(step * 250);
        let turn = place.provider.fetch_orchestration_item(lock, Duration::from_secs(1), None);
        let _ = tokio::time::timeout(moment, turn).await;
        let work = place.provider.fetch_work_item(lock, Duration::from_secs(1), None, &TagFilter::Any);
        let _ = tokio::time::timeout(moment, work).await;
    }
    let wait = Duration::from_secs(10);
    assert!(place.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().is_some());
    assert!(place.provider.fetch_work_item(LOCK, wait, None, &TagFilter::Any).await.unwrap().is_some());
}

#[tokio::test]
async fn an_ack_dropped_at_any_moment_is_all_or_nothing() {
    let place = place().await;
    for step in 0..30 {
        let name = format!("i{step}");
        place.provider.enqueue_for_orchestrator(start(&name, "Hello", ""), None).await.unwrap();
        let lock = Duration::from_millis(1500);
        let (_, token, _) = place.provider.fetch_orchestration_item(lock, NOW, None).await.unwrap().unwrap();
        let work = vec![activity(&name, 1)];
        let ack = place.provider.ack_orchestration_item(
            &token,
            1,
            vec![event(&name, 1)],
            work,
            vec![],
            named(),
            vec![],
        );
        let _ = tokio::time::timeout(Duration::from_micros(step * 200), ack).await;
        // What was sent may still arrive: the outcome is known when the lock is over.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let kinds = place.kinds(&name).await;
        let committed = ["history", "instance", "worker_queue"];
        let untouched = ["instance", "orch_queue"];
        assert!(kinds == committed || kinds == untouched, "after {step} steps: {kinds:?}");
        if kinds == untouched {
            let (item, token, _) = place
                .provider
                .fetch_orchestration_item(LOCK, Duration::from_secs(10), None)
                .await
                .unwrap()
                .unwrap();
            assert_eq!((item.instance.as_str(), item.history.len()), (name.as_str(), 0));
            place
                .provider
                .abandon_orchestration_item(&token, Some(Duration::from_secs(600)), true)
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn a_waiting_fetch_finds_what_another_process_enqueues_meanwhile() {
    let here = place().await;
    let other = here.other().await;
    let patient = Duration::from_secs(20);
    let enqueue = async {
        // Long enough for the first search to be over, and for the pace to have slowed down.
        tokio::time::sleep(Duration::from_millis(700)).await;
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
