//! Deleting and pruning: all or nothing, and only what was asked for.

use std::time::Duration;

use cosmos_emulator::{FaultGuard, Operation, Verdict};
use duroxide::TagFilter;
use duroxide::providers::{
    DeleteInstanceResult, ExecutionMetadata, InstanceFilter, Provider as _, ProviderAdmin as _,
    ProviderError, PruneOptions, WorkItem,
};
use duroxide_cdb::{BulkMode, CosmosDBProvider, CosmosDBProviderConfig};
use http_body_util::Full;
use hyper::Response;
use tokio::task::JoinHandle;

use super::{LOCK, NOW, Place, commit, config, ended, mail, place, place_with, place_without_sweeps, status};
use crate::tap::Tap;
use crate::world::{activity, documents, emulator, event, named, noise, raw, start, until};

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
    // Children that have run are instances, those that have not are starts that wait.
    for kind in ["'instance'", "'orch_queue'"] {
        let question = format!("{kind} AND ARRAY_CONTAINS(@parents");
        let place = place().await;
        place.begin("a").await;
        let tap = Tap::new(emulator(), move |asked| {
            let is_meant = String::from_utf8_lossy(&asked.body).contains(&question);
            let throttled = || Response::builder().status(429).header("x-ms-retry-after-ms", "20");
            is_meant.then(|| throttled().body(Full::default()).unwrap())
        })
        .await;
        let deaf = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
            endpoint: tap.endpoint.clone(),
            operation_timeout: Duration::from_secs(2),
            ..config(&place.name)
        })
        .await
        .unwrap();
        assert!(deaf.delete_instances_atomic(&["a".into()], true).await.is_err(), "{kind}");
        let fenced = place.of_type("a", "deleting").await;
        assert!(fenced.is_empty(), "{kind}: the fence is taken down");
        assert_eq!(place.provider.list_instances().await.unwrap(), ["a"], "{kind}");
        assert_eq!(place.provider.read("a").await.unwrap().len(), 1, "{kind}");
    }
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
        tokio::time::sleep(Duration::from_millis(1)).await;
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
        until("everything is gone", async || place.kinds(name).await.is_empty()).await;
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
    // The mail may be sent again by whoever got no answer.
    assert_eq!(place.kinds("a").await, ["tombstone"]);
    place.begin("a").await;
}

#[tokio::test]
async fn a_quote_in_a_name_is_counted_and_deleted_like_any_other() {
    let place = place().await;
    let names = ["o'brien", "x' OR '1'='1", "other"];
    for name in names {
        place.begin(name).await;
    }
    for name in names {
        place.provider.enqueue_for_orchestrator(mail(name, "m"), None).await.unwrap();
        place.provider.enqueue_for_worker(activity(name, 9)).await.unwrap();
    }
    for name in ["o'brien", "x' OR '1'='1"] {
        let deleted = place.provider.delete_instances_atomic(&[name.to_owned()], true).await.unwrap();
        assert_eq!(
            (deleted.instances_deleted, deleted.executions_deleted, deleted.events_deleted),
            (1, 1, 1),
            "{name}"
        );
        assert_eq!(deleted.queue_messages_deleted, 2, "{name}");
    }
    assert_eq!(place.provider.list_instances().await.unwrap(), ["other"]);
}

#[tokio::test]
async fn a_deletion_counts_every_execution_it_removes() {
    let place = place().await;
    place.begin("a").await;
    for execution in 1..=3 {
        place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let metadata = if execution < 3 { ended("ContinuedAsNew") } else { ended("Completed") };
        place
            .provider
            .ack_orchestration_item(&token, execution, vec![], vec![], vec![], metadata, vec![])
            .await
            .unwrap();
    }
    let metrics = place.provider.get_system_metrics().await.unwrap();
    assert_eq!((metrics.total_instances, metrics.total_executions), (1, 3));
    let deleted = place.provider.delete_instance("a", false).await.unwrap();
    assert_eq!((deleted.instances_deleted, deleted.executions_deleted), (1, 3));
}

#[tokio::test]
async fn a_bulk_deletion_can_be_rehearsed_watched_and_resumed() {
    let place = place().await;
    for n in 0..230 {
        let name = format!("i{n:03}");
        place.provider.enqueue_for_orchestrator(start(&name, "Hello", ""), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let metadata = if n % 10 == 0 { named() } else { ended("Completed") };
        commit(&place.provider, &token, vec![event(&name, 1)], metadata).await.unwrap();
    }
    let all = InstanceFilter { instance_ids: None, completed_before: None, limit: None };
    let would = place.provider.delete_where(&all, BulkMode::Rehearse, |_| {}).await.unwrap();
    assert_eq!((would.examined, would.instances, would.executions, would.events), (230, 207, 207, 207));
    assert_eq!(place.provider.list_instances().await.unwrap().len(), 230, "nothing happened");

    // Interrupted after some: the next call finds the rest.
    let mut steps = 0;
    let deleting = place.provider.delete_where(&all, BulkMode::Perform, |progress| {
        steps += 1;
        assert_eq!(progress.instances, steps);
    });
    let interrupted = tokio::time::timeout(Duration::from_millis(400), deleting).await;
    let first = interrupted.map_or(steps, |done| done.unwrap().instances);
    let rest = place.provider.delete_where(&all, BulkMode::Perform, |_| {}).await.unwrap();
    assert!(first + rest.instances >= 206, "{first} and {}", rest.instances);
    until("only the running ones are left", async || {
        place.provider.list_instances().await.unwrap().len() == 23
    })
    .await;
    let again = place.provider.delete_where(&all, BulkMode::Rehearse, |_| {}).await.unwrap();
    assert_eq!(again.instances, 0);
}

#[tokio::test]
async fn a_rehearsed_pruning_says_what_the_real_one_does() {
    let place = place().await;
    place.begin("a").await;
    for execution in 1..=4 {
        place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        place
            .provider
            .ack_orchestration_item(
                &token,
                execution,
                vec![],
                vec![],
                vec![],
                ended("ContinuedAsNew"),
                vec![],
            )
            .await
            .unwrap();
    }
    let all = InstanceFilter { instance_ids: None, completed_before: None, limit: None };
    let keep = PruneOptions { keep_last: Some(1), completed_before: None };
    let would = place.provider.prune_where(&all, &keep, BulkMode::Rehearse, |_| {}).await.unwrap();
    assert_eq!(place.provider.list_executions("a").await.unwrap().len(), 4);
    let done = place.provider.prune_where(&all, &keep, BulkMode::Perform, |_| {}).await.unwrap();
    assert_eq!(would, done);
    assert_eq!((done.executions, done.events), (3, 1));
    assert_eq!(place.provider.list_executions("a").await.unwrap(), [4]);
}

/// Three executions of an instance, the last of which is as its metadata says.
async fn thrice(place: &Place, instance: &str, last: ExecutionMetadata) {
    place.begin(instance).await;
    for (execution, metadata) in [(1, ended("ContinuedAsNew")), (2, ended("ContinuedAsNew")), (3, last)] {
        place.provider.enqueue_for_orchestrator(mail(instance, "m"), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        place
            .provider
            .ack_orchestration_item(&token, execution, vec![], vec![], vec![], metadata, vec![])
            .await
            .unwrap();
    }
}

/// Changes a time in an instance's head, past the provider.
async fn set_time(place: &Place, instance: &str, name: &str, millis: u64) {
    let container = raw(&place.name).await;
    let heads = documents(&container, instance).await;
    let mut head = heads.into_iter().find(|document| document["type"] == "instance").unwrap();
    head[name] = millis.into();
    let id = head["id"].as_str().unwrap().to_owned();
    container.replace_item(instance, &id, &head, cosmos_driver::ItemOptions::default()).await.unwrap();
}

#[tokio::test]
async fn bulk_pruning_touches_only_what_its_filter_selects() {
    let place = place().await;
    for name in ["old", "older", "new"] {
        thrice(&place, name, ended("Completed")).await;
    }
    thrice(&place, "running", named()).await;
    set_time(&place, "older", "completedAt", 1000).await;
    set_time(&place, "old", "completedAt", 2000).await;
    let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    let all = PruneOptions::default();
    // What each leaves behind is what the next one finds.
    for (instance_ids, completed_before, limit, processed, left) in [
        (None, Some(1000), None, 0, [3, 3, 3, 3]),
        (None, None, Some(0), 0, [3, 3, 3, 3]),
        (names(&["old", "new"]), Some(1000), None, 0, [3, 3, 3, 3]),
        (names(&["older", "new", "nobody"]), Some(2000), None, 1, [1, 3, 3, 3]),
        (None, Some(2001), Some(10), 2, [1, 1, 3, 3]),
        (names(&["running", "new"]), None, Some(1), 1, [1, 1, 3, 1]),
        (None, None, None, 4, [1, 1, 1, 1]),
    ] {
        let filter = InstanceFilter { instance_ids, completed_before, limit };
        let what = format!("{filter:?}");
        let pruned = place.provider.prune_executions_bulk(filter, all.clone()).await.unwrap();
        assert_eq!(pruned.instances_processed, processed, "{what}");
        for (name, left) in ["older", "old", "new", "running"].into_iter().zip(left) {
            let executions = place.provider.list_executions(name).await.unwrap();
            assert_eq!(executions, [1, 2, 3][3 - left..], "{name} after {what}");
        }
    }
}

#[tokio::test]
async fn instances_are_listed_with_the_newest_first() {
    let place = place().await;
    for (name, created) in [("b", 2000), ("d", 1000), ("a", 4000), ("c", 3000)] {
        place.begin(name).await;
        set_time(&place, name, "createdAt", created).await;
    }
    assert_eq!(place.provider.list_instances().await.unwrap(), ["a", "c", "b", "d"]);
    place.provider.enqueue_for_orchestrator(mail("c", "m"), None).await.unwrap();
    let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    commit(&place.provider, &token, vec![event("c", 2)], ended("Completed")).await.unwrap();
    assert_eq!(place.provider.list_instances_by_status("Running").await.unwrap(), ["a", "b", "d"]);
    assert_eq!(place.provider.list_instances_by_status("Completed").await.unwrap(), ["c"]);
}

/// Four executions of `a`, of which all but the last can be pruned.
async fn with_executions(place: &Place) {
    place.begin("a").await;
    for execution in 1..=4 {
        place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let (_, token, _) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        let events = (execution > 1).then(|| event("a", 1)).into_iter().collect();
        let metadata = ended("ContinuedAsNew");
        place
            .provider
            .ack_orchestration_item(&token, execution, events, vec![], vec![], metadata, vec![])
            .await
            .unwrap();
    }
}

/// How many executions and events the instances are said to have.
async fn totals(place: &Place) -> (u64, u64) {
    let metrics = place.provider.get_system_metrics().await.unwrap();
    (metrics.total_executions, metrics.total_events)
}

#[tokio::test]
async fn what_was_pruned_is_counted_once_though_an_answer_is_lost() {
    let place = place().await;
    with_executions(&place).await;
    assert_eq!(totals(&place).await, (4, 4));
    let fault =
        emulator().faults().add(place.rule(Verdict::ResetAfterCommit).on(Operation::ReplaceItem).times(1));
    let keep = PruneOptions { keep_last: Some(3), completed_before: None };
    assert_eq!(place.provider.prune_executions("a", keep).await.unwrap().executions_deleted, 1);
    assert_eq!((fault.struck(), totals(&place).await), (1, (3, 3)));
}

#[tokio::test]
async fn what_was_pruned_while_a_turn_was_held_is_not_counted_again_when_it_ends() {
    let place = place().await;
    with_executions(&place).await;
    let provider = &place.provider;
    let keep = |last| PruneOptions { keep_last: Some(last), completed_before: None };
    let other = place.other().await;
    let fetch = async || {
        provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
        let wait = Duration::from_secs(30);
        provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap().1
    };
    let token = fetch().await;
    assert_eq!(other.prune_executions("a", keep(3)).await.unwrap().executions_deleted, 1);
    let events = vec![event("a", 2)];
    provider.ack_orchestration_item(&token, 4, events, vec![], vec![], named(), vec![]).await.unwrap();
    assert_eq!(totals(&place).await, (3, 4), "pruned, then committed");
    let token = fetch().await;
    assert_eq!(other.prune_executions("a", keep(2)).await.unwrap().executions_deleted, 1);
    provider.renew_orchestration_item_lock(&token, LOCK).await.unwrap();
    assert_eq!(totals(&place).await, (2, 3), "pruned, then renewed");
    provider.abandon_orchestration_item(&token, None, true).await.unwrap();
    let token = fetch().await;
    assert_eq!(other.prune_executions("a", keep(1)).await.unwrap().executions_deleted, 1);
    provider.abandon_orchestration_item(&token, Some(Duration::from_millis(1)), true).await.unwrap();
    assert_eq!(totals(&place).await, (1, 2), "pruned, then given back");
}

#[tokio::test]
async fn what_was_pruned_by_a_process_that_could_not_count_it_is_counted_by_the_next_pruning() {
    let place = place().await;
    with_executions(&place).await;
    let keep = PruneOptions { keep_last: Some(1), completed_before: None };
    {
        let _fault = emulator().faults().add(place.rule(status(400, 0)).on(Operation::ReplaceItem));
        assert!(place.other().await.prune_executions("a", keep.clone()).await.is_err());
    }
    assert_eq!(totals(&place).await, (4, 4));
    let again = place.other().await.prune_executions("a", keep).await.unwrap();
    assert_eq!((again.executions_deleted, totals(&place).await), (0, (1, 1)));
}

#[tokio::test]
async fn a_pruning_that_is_late_does_not_touch_the_next_life() {
    // Held up when it asks what there is of an execution, and when it is about to remove that.
    for (operation, skip) in [(Operation::Query, 1), (Operation::Batch, 0)] {
        let place = place_without_sweeps().await;
        with_executions(&place).await;
        let mut rule = place.rule(Verdict::Hang).on(operation).for_key("a").times(1);
        rule.skip = skip;
        let slow = emulator().faults().add(rule);
        let pruning = {
            let provider = place.other().await;
            let keep = PruneOptions { keep_last: Some(1), completed_before: None };
            tokio::spawn(async move { provider.prune_executions("a", keep).await })
        };
        until("it prunes", async || slow.struck() > 0).await;
        place.provider.delete_instance("a", true).await.unwrap();
        place.begin("a").await;
        drop(slow);
        pruning.await.unwrap().unwrap();
        assert_eq!(place.other().await.read("a").await.unwrap().len(), 1, "{operation:?}");
    }
}

#[tokio::test]
async fn a_bulk_deletion_takes_only_what_its_filter_selects_when_it_is_fenced() {
    for next in [named(), ended("Completed")] {
        let place = place_without_sweeps().await;
        let provider = &place.provider;
        let live = async |metadata| {
            provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
            let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
            commit(provider, &token, vec![event("a", 1)], metadata).await.unwrap();
        };
        live(ended("Completed")).await;
        let info = provider.get_instance_info("a").await.unwrap();
        let filter = InstanceFilter {
            instance_ids: Some(vec!["a".into()]),
            completed_before: Some(info.updated_at + 1),
            limit: None,
        };
        let mut rule = place.rule(Verdict::Hang).on(Operation::ReadItem).for_key("a").times(1);
        rule.skip = 1;
        let slow = emulator().faults().add(rule);
        let deleting = {
            let provider = place.other().await;
            tokio::spawn(async move { provider.delete_instance_bulk(filter).await })
        };
        until("it was selected", async || slow.struck() > 0).await;
        provider.delete_instance("a", true).await.unwrap();
        live(next.clone()).await;
        drop(slow);
        assert_eq!(deleting.await.unwrap().unwrap().instances_deleted, 0, "{next:?}");
        assert_eq!(provider.read("a").await.unwrap().len(), 1, "{next:?}");
    }
}

/// Deletes `x` in the background and holds its first removal up.
async fn held_up(place: &Place) -> (FaultGuard, JoinHandle<Result<DeleteInstanceResult, ProviderError>>) {
    let rule = place.rule(Verdict::Hang).on(Operation::Batch).for_key("x").times(1);
    let fault = emulator().faults().add(rule);
    let provider = place.provider.clone();
    let deleting =
        tokio::spawn(async move { provider.delete_instances_atomic(&["x".to_owned()], true).await });
    until("the deletion is held up", async || fault.struck() > 0).await;
    (fault, deleting)
}

#[tokio::test]
async fn a_deletion_that_others_finished_does_not_touch_the_next_life() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    })
    .await;
    place.begin("x").await;
    let (fault, deleting) = held_up(&place).await;
    let other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("another process has finished it", async || place.kinds("x").await.is_empty()).await;
    let next = Place { name: place.name.clone(), provider: other };
    next.begin("x").await;
    next.provider.enqueue_for_orchestrator(mail("x", "m"), None).await.unwrap();
    drop(fault);
    deleting.await.unwrap().unwrap();
    assert_eq!(place.kinds("x").await, ["history", "instance", "orch_queue"]);
    assert_eq!(place.other().await.read("x").await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_instance_started_again_while_it_is_being_deleted_starts() {
    let place = place().await;
    place.begin("x").await;
    let provider = &place.provider;
    provider.enqueue_for_orchestrator(mail("x", "old"), None).await.unwrap();
    provider.enqueue_for_worker(activity("x", 2)).await.unwrap();
    let (_, working, _) = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::Any).await.unwrap().unwrap();
    let (fault, deleting) = held_up(&place).await;
    let other = place.other().await;
    assert!(other.get_instance_info("x").await.is_err(), "it is not there any more");
    let input = noise(1_000_000);
    other.enqueue_for_orchestrator(start("x", "Hello", &input), None).await.unwrap();
    other.enqueue_for_orchestrator(mail("x", "new"), None).await.unwrap();
    // What the old life still waited for is none of the new one's business.
    let done =
        WorkItem::ActivityCompleted { instance: "x".into(), execution_id: 1, id: 2, result: "r".into() };
    other.ack_work_item(&working, Some(done)).await.unwrap();
    drop(fault);
    deleting.await.unwrap().unwrap();
    let wait = Duration::from_secs(30);
    let (item, ..) = other.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    assert_eq!(item.messages, [start("x", "Hello", &input), mail("x", "new")]);
    assert!(item.history.is_empty());
}

/// A deletion of `a` and `b` that has fenced `a` and finds no time to fence `b`.
async fn in_vain(place: &Place) {
    let _fault = emulator().faults().add(place.rule(Verdict::Hang).on(Operation::ReplaceItem).for_key("b"));
    let both = ["a".to_owned(), "b".to_owned()];
    assert!(place.provider.delete_instances_atomic(&both, true).await.unwrap_err().retryable);
}

#[tokio::test]
async fn a_deletion_that_ran_out_of_time_takes_its_fences_down() {
    let place =
        place_with(|config| CosmosDBProviderConfig { operation_timeout: Duration::from_secs(2), ..config })
            .await;
    place.begin("a").await;
    place.begin("b").await;
    in_vain(&place).await;
    let mut listed = place.provider.list_instances().await.unwrap();
    listed.sort();
    assert_eq!(listed, ["a", "b"]);
}

#[tokio::test]
async fn a_deletion_that_is_taken_back_forgets_no_attempt() {
    let place =
        place_with(|config| CosmosDBProviderConfig { operation_timeout: Duration::from_secs(2), ..config })
            .await;
    place.begin("a").await;
    place.begin("b").await;
    place.provider.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    in_vain(&place).await;
    let (item, _, attempt) =
        place.other().await.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!((item.instance.as_str(), attempt), ("a", 2));
}

#[tokio::test]
async fn an_answer_to_an_instance_that_was_deleted_is_dropped_and_an_event_waits_for_a_start() {
    let place = place().await;
    let provider = &place.provider;
    place.begin("a").await;
    provider.delete_instance("a", true).await.unwrap();
    let answer = WorkItem::SubOrchCompleted {
        parent_instance: "a".into(),
        parent_execution_id: 1,
        parent_id: 2,
        result: noise(1_000_000),
    };
    let raised = WorkItem::ExternalRaised { instance: "a".into(), name: "go".into(), data: "1".into() };
    for message in [answer, raised] {
        provider.enqueue_for_orchestrator(message, None).await.unwrap();
    }
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_eq!(place.kinds("a").await, ["orch_queue"]);
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (item, _, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert!(matches!(&item.messages[1], WorkItem::ExternalRaised { .. }), "{:?}", item.messages);
}

#[tokio::test]
async fn an_answer_that_was_delivered_to_a_deleted_instance_leaves_a_tombstone_and_comes_once() {
    let place = place_without_sweeps().await;
    let provider = &place.provider;
    place.begin("a").await;
    provider.delete_instance("a", true).await.unwrap();
    // The answer arrives, but its sender cannot note it: it will be sent again.
    provider.enqueue_for_orchestrator(start("b", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let mut rule = place.rule(status(503, 0)).on(Operation::Batch).for_key("b");
    rule.skip = 1;
    let fault = emulator().faults().add(rule);
    let answer = WorkItem::SubOrchCompleted {
        parent_instance: "a".into(),
        parent_execution_id: 1,
        parent_id: 2,
        result: "r".into(),
    };
    let (events, items) = (vec![event("b", 1)], vec![answer]);
    provider
        .ack_orchestration_item(&token, 1, events, vec![], items, ended("Completed"), vec![])
        .await
        .unwrap();
    assert!(place.kinds("b").await.contains(&"outbox_intent".to_owned()), "it was not noted");
    assert_eq!(place.kinds("a").await, ["orch_queue"]);
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    assert_eq!(place.kinds("a").await, ["tombstone"]);
    drop(fault);
    let other = CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(50),
        reconciler_age_threshold: NOW,
        ..config(&place.name)
    })
    .await
    .unwrap();
    until("it was sent again", async || !place.kinds("b").await.contains(&"outbox_intent".to_owned())).await;
    other.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (item, ..) = other.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    assert_eq!(item.messages, [start("a", "Hello", "")], "the next life does not get it");
}
