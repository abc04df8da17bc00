//! Commits: all or nothing, whatever their size, and what they make of executions.

use std::time::Duration;

use cosmos_driver::ItemOptions;
use cosmos_emulator::{Operation, Verdict};
use duroxide::providers::{ExecutionMetadata, InstanceFilter, Provider as _, ProviderAdmin as _, WorkItem};
use duroxide::{Event, EventKind, TagFilter};

use super::{LOCK, NOW, Place, commit, ended, mail, place, place_without_sweeps, status};
use crate::world::{activity, emulator, event, named, noise, raw, start, until};

#[tokio::test]
async fn a_turn_whose_last_event_is_a_duplicate_leaves_nothing() {
    let place = place().await;
    place.begin("a").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let (_, token, _) =
        provider.fetch_orchestration_item(Duration::from_secs(2), NOW, None).await.unwrap().unwrap();
    let events = vec![event("a", 2), event("a", 1)];
    let refused = provider
        .ack_orchestration_item(&token, 1, events, vec![activity("a", 9)], vec![], named(), vec![])
        .await;
    let error = refused.unwrap_err();
    assert!(!error.retryable && error.message.contains("Duplicate"), "{error}");
    assert_eq!(place.kinds("a").await, ["history", "instance", "orch_queue"]);
    let (item, _, attempt) =
        provider.fetch_orchestration_item(LOCK, Duration::from_secs(30), None).await.unwrap().unwrap();
    assert_eq!((item.history.len(), item.messages.len(), attempt), (1, 1, 2));
}

#[tokio::test]
async fn a_custom_status_in_pieces_is_read_whole() {
    let place = place().await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    // As long as duroxide allows, and twice that when it is written as JSON.
    let text = "\"".repeat(256 * 1024);
    let updated = EventKind::CustomStatusUpdated { status: Some(text.clone()) };
    let events = vec![event("a", 1), Event::with_event_id(2, "a", 1, None, updated)];
    provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    for reader in [provider.clone(), place.other().await] {
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = reader.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let (status, _) = reader.get_custom_status("a", 0).await.unwrap().unwrap();
        assert!(status.as_ref() == Some(&text), "{} bytes", status.unwrap_or_default().len());
        reader.abandon_orchestration_item(&token, None, true).await.unwrap();
    }
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
    let place = place_without_sweeps().await;
    place.provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let events: Vec<Event> = (1..=400).map(|id| big_event("a", id)).collect();
    // The commit is the first batch; nothing after it gets through, and the process dies.
    let mut rule = place.rule(Verdict::ResetBefore).on(Operation::Batch);
    rule.skip = 1;
    let fault = emulator().faults().add(rule);
    let dying = {
        let provider = place.provider.clone();
        tokio::spawn(async move {
            let work = (1..=250).map(|id| activity("a", id)).collect();
            provider.ack_orchestration_item(&token, 1, events, work, vec![], named(), vec![]).await
        })
    };
    while fault.struck() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
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

/// A place where `a` waits for activities and so many have completed.
async fn with_results(count: u64) -> Place {
    let place = place_without_sweeps().await;
    place.begin("a").await;
    let results = (0..count).map(|id| WorkItem::ActivityCompleted {
        instance: "a".into(),
        execution_id: 1,
        id,
        result: id.to_string(),
    });
    for result in results {
        place.provider.enqueue_for_orchestrator(result, None).await.unwrap();
    }
    place
}

#[tokio::test]
async fn the_results_of_a_wide_fan_out_are_one_turn_whose_commit_is_two_batches() {
    let place = with_results(150).await;
    let provider = &place.provider;
    let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let of = |item: &WorkItem| match item {
        WorkItem::ActivityCompleted { id, .. } => *id,
        other => panic!("{other:?}"),
    };
    assert_eq!(item.messages.iter().map(of).collect::<Vec<_>>(), (0..150).collect::<Vec<_>>());
    let before = place.answered(Some(Operation::Batch));
    commit(provider, &token, vec![event("a", 2)], named()).await.unwrap();
    assert_eq!(place.answered(Some(Operation::Batch)) - before, 2);
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    let kinds = place.kinds("a").await;
    assert!(!kinds.iter().any(|kind| kind == "orch_queue" || kind == "manifest"), "{kinds:?}");
}

#[tokio::test]
async fn results_that_a_dead_process_consumed_and_did_not_remove_are_not_taken_again() {
    // With one that somebody removed by hand meanwhile, and without.
    for is_one_gone in [false, true] {
        let place = with_results(150).await;
        let provider = place.provider.clone();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        // The commit is the first batch; nothing after it gets through, and the process dies.
        let mut rule = place.rule(Verdict::ResetBefore).on(Operation::Batch);
        rule.skip = 1;
        let fault = emulator().faults().add(rule);
        let committing =
            async move { commit(&provider, &token, vec![event("a", 2)], named()).await.unwrap() };
        let dying = tokio::spawn(committing);
        while fault.struck() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        dying.abort();
        let _ = dying.await;
        drop(fault);
        let left = place.of_type("a", "orch_queue").await;
        assert!(left.len() > 40, "{} results are still there", left.len());
        if is_one_gone {
            let id = left[7]["id"].as_str().unwrap();
            raw(&place.name).await.delete_item("a", id, ItemOptions::default()).await.unwrap();
        }
        let others = [place.other().await, place.other().await];
        let looks = others.iter().map(|other| other.fetch_orchestration_item(LOCK, NOW, None));
        for look in futures::future::join_all(looks).await {
            assert!(look.unwrap().is_none());
        }
        assert_eq!(others[0].read("a").await.unwrap().len(), 2);
        let kinds = place.kinds("a").await;
        assert!(!kinds.iter().any(|kind| kind == "orch_queue" || kind == "manifest"), "{kinds:?}");
    }
}

fn big_event(instance: &str, id: u64) -> Event {
    if id == 1 {
        return event(instance, 1);
    }
    let kind =
        EventKind::ExternalEvent { name: "n".into(), data: noise(6000 + usize::try_from(id).unwrap()) };
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
async fn all_keys_are_of_one_moment_even_while_the_execution_ends() {
    const KEYS: [&str; 3] = ["one", "two", "three"];
    // Too large for the head, so that each is read on its own.
    let values = |letter: &str| {
        let value = letter.repeat(3000);
        KEYS.map(|key| EventKind::KeyValueSet {
            key: key.into(),
            value: value.clone(),
            last_updated_at_ms: 1,
        })
    };
    let mut seen = Vec::new();
    for request in 1.. {
        let place = place().await;
        place.begin("a").await;
        let turn = async |first: u64, letter: &str, metadata: ExecutionMetadata| {
            place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
            let (_, token, _) =
                place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
            let events = (first..).zip(values(letter));
            let events = events.map(|(id, kind)| Event::with_event_id(id, "a", 1, None, kind)).collect();
            commit(&place.provider, &token, events, metadata).await.unwrap();
        };
        turn(2, "v", named()).await;
        // The reader is held up at one of its requests; meanwhile the execution ends.
        let reader = place.other().await;
        let held_up = place.rule(Verdict::Hang).on(Operation::ReadItem).nth(request);
        let held_up = emulator().faults().add(held_up);
        let mut reading = Box::pin(reader.get_kv_all_values("a"));
        let is_over = tokio::select! {
            values = &mut reading => {
                assert_eq!(values.unwrap().len(), KEYS.len());
                true
            }
            () = until("it is held up", async || held_up.struck() > 0) => false,
        };
        if is_over {
            assert!(request > KEYS.len() as u64, "the head and each value were read");
            break;
        }
        turn(5, "w", ended("Completed")).await;
        drop(held_up);
        let read = reading.await.unwrap();
        let letters: Vec<&str> = KEYS.iter().map(|key| &read[*key][..1]).collect();
        assert!(letters.iter().all(|letter| *letter == letters[0]), "request {request}: {letters:?}");
        seen.push(letters[0].to_owned());
    }
    assert!(seen.contains(&"w".to_owned()), "{seen:?}");
}

#[tokio::test]
async fn events_are_appended_as_they_are_given() {
    let place = place().await;
    place.begin("a").await;
    let given = vec![event("a", 7), event("a", 9)];
    place.provider.append_with_execution("a", 1, given.clone()).await.unwrap();
    let ids: Vec<u64> = place.other().await.read("a").await.unwrap().iter().map(Event::event_id).collect();
    assert_eq!(ids, [1, 7, 9]);
    let again = place.provider.append_with_execution("a", 1, given).await;
    assert!(!again.unwrap_err().retryable, "they are there already");
    assert_eq!(place.provider.read("a").await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_counts_once() {
    for verdict in [Verdict::ResetAfterCommit, status(408, 0), status(503, 0), Verdict::ResetBefore] {
        let place = place().await;
        place.begin("a").await;
        let provider = &place.provider;
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let fault = emulator().faults().add(place.rule(verdict.clone()).on(Operation::Batch).times(1));
        let (work, next) = (vec![activity("a", 3)], vec![mail("a", "next"), start("b", "Hello", "")]);
        provider
            .ack_orchestration_item(&token, 1, vec![event("a", 2)], work, next, named(), vec![])
            .await
            .unwrap();
        drop(fault);
        let kinds = place.kinds("a").await;
        let count = |kind: &str| kinds.iter().filter(|found| *found == kind).count();
        assert_eq!(
            (count("instance"), count("orch_queue"), count("worker_queue"), count("outbox_intent")),
            (1, 1, 1, 0),
            "{verdict:?}: {kinds:?}"
        );
        assert_eq!(place.kinds("b").await, ["orch_queue"], "{verdict:?}");
        assert_eq!(place.other().await.read("a").await.unwrap().len(), 2, "{verdict:?}");
        let late = commit(provider, &token, vec![event("a", 3)], named()).await;
        assert!(!late.unwrap_err().retryable, "the token is spent");
    }
}

#[tokio::test]
async fn a_slow_reader_of_a_busy_instance_sees_one_moment_of_it() {
    let place = place().await;
    place.begin("a").await;
    let reader = place.other().await;
    let slow = Verdict::Delay { duration: Duration::from_millis(30) };
    let _fault = emulator().faults().add(place.rule(slow).on(Operation::Query));
    let writing = async {
        for id in 2..=40 {
            place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
            let wait = Duration::from_secs(5);
            let (_, token, _) =
                place.provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
            commit(&place.provider, &token, vec![event("a", id)], named()).await.unwrap();
        }
    };
    let reading = async {
        let mut seen = 0;
        while seen < 40 {
            let ids: Vec<u64> = reader.read("a").await.unwrap().iter().map(Event::event_id).collect();
            assert!(ids.iter().copied().eq(1..=ids.len() as u64), "{ids:?}");
            assert!(ids.len() >= seen, "it went back from {seen} to {}", ids.len());
            seen = ids.len();
        }
    };
    tokio::join!(writing, reading);
}
