//! What the account and the container must promise: who cannot keep it is refused before anything is written.

use std::time::Duration;

use cosmos_driver::{CallOptions, ContainerProperties, Credential, Driver, ItemOptions};
use cosmos_emulator::{
    Config, Consistency, Emulator, FaultRule, Operation, ReplicationDelay, Verdict, WriteMode,
};
use duroxide::TagFilter;
use duroxide::providers::{Provider as _, WorkItem};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, container_definition};
use serde_json::{Value, json};

use super::{LOCK, NOW, commit, config, mail, place_with};
use crate::world::{
    DATABASE, activity, behind, database, documents, event, fresh_name, named, raw, start, until,
};

fn settings(emulator: &Emulator) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key())
        .with_database(DATABASE)
        .with_container("flows")
}

#[tokio::test]
async fn an_account_that_cannot_keep_the_promise_is_refused_before_anything_is_written() {
    let two = || Config::default().with_regions(&["East", "West"]);
    for (account, hints) in [
        (Config::default().with_consistency(Consistency::Eventual), ["Eventual", "set it to Session"]),
        (
            Config::default().with_consistency(Consistency::ConsistentPrefix),
            ["ConsistentPrefix", "set it to Session"],
        ),
        (two().with_write_mode(WriteMode::Multiple), ["East, West", "turn multi-region writes off"]),
    ] {
        let emulator = Emulator::start(account).unwrap();
        let refused = CosmosDBProvider::new_with_config(settings(&emulator)).await.expect_err(hints[0]);
        assert!(!refused.is_retryable(), "{refused}");
        assert!(hints.iter().all(|hint| refused.message.contains(hint)), "{refused}");
        let key = Credential::key(emulator.key()).unwrap();
        let driver = Driver::builder(emulator.endpoint(), key).build().await.unwrap();
        let databases: Value =
            driver.list_databases(None, CallOptions::default()).await.unwrap().json().unwrap();
        assert_eq!(databases["Databases"], json!([]), "nothing is written");
    }
}

/// An account of two regions, the second of them behind, and a process that publishes what a dead one committed.
async fn published_from_behind(consistency: Consistency) -> usize {
    let emulator = Emulator::start(Config {
        replication_delays: vec![ReplicationDelay::everywhere(Duration::from_secs(600))],
        consistency,
        ..Config::default().with_regions(&["East", "West"])
    })
    .unwrap();
    let quiet =
        CosmosDBProviderConfig { reconciler_interval: Duration::from_secs(600), ..settings(&emulator) };
    let provider = CosmosDBProvider::new_with_config(quiet.clone()).await.unwrap();
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let mut rule = FaultRule::new(Verdict::ResetBefore).on(Operation::Batch);
    rule.skip = 1;
    let fault = emulator.faults().add(rule);
    let dying = {
        let provider = provider.clone();
        tokio::spawn(async move {
            let work = (1..=250).map(|id| activity("a", id)).collect();
            provider
                .ack_orchestration_item(&token, 1, vec![event("a", 1)], work, vec![], named(), vec![])
                .await
        })
    };
    until("it is struck", async || fault.struck() > 0).await;
    dying.abort();
    let _ = dying.await;
    drop((fault, provider));
    let survivor = CosmosDBProvider::new_with_config(quiet).await.unwrap();
    // The first region is slow to answer, so the second one is asked as well.
    let mut slow = FaultRule::new(Verdict::Delay { duration: Duration::from_millis(2500) });
    slow = slow.on(Operation::ReadItem).times(1);
    slow.region = Some("East".to_owned());
    let _slow = emulator.faults().add(slow);
    survivor.enqueue_for_orchestrator(mail("a", "m"), None).await.unwrap();
    let fetched = survivor.fetch_orchestration_item(LOCK, Duration::from_secs(20), None).await.unwrap();
    assert!(fetched.is_some());
    let documents = documents(&behind(&settings(&emulator)).await, "a").await;
    documents.iter().filter(|document| document["type"] == "worker_queue").count()
}

#[tokio::test]
async fn a_turn_is_published_whole_though_a_region_is_behind() {
    for consistency in [Consistency::Session, Consistency::BoundedStaleness, Consistency::Strong] {
        assert_eq!(published_from_behind(consistency).await, 250, "{consistency:?}");
    }
}

#[tokio::test]
async fn nothing_is_committed_while_a_second_region_takes_writes_and_work_goes_on_afterwards() {
    let two = Config::default().with_regions(&["East", "North"]).with_write_mode(WriteMode::Multiple);
    let emulator = Emulator::start(two).unwrap();
    emulator.regions().remove_region("North").unwrap();
    let mut hasty =
        CosmosDBProviderConfig { operation_timeout: Duration::from_millis(300), ..settings(&emulator) };
    hasty.driver.timeouts.account_refresh = Duration::from_millis(1);
    let provider = CosmosDBProvider::new_with_config(hasty).await.unwrap();
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    let wait = Duration::from_secs(20);
    let (_, token, _) = provider.fetch_orchestration_item(LOCK, wait, None).await.unwrap().unwrap();
    emulator.regions().add_region("West").unwrap();
    until("the process has noticed", async || {
        match provider.enqueue_for_orchestrator(mail("a", "m"), None).await {
            Ok(()) => false,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                error.message.contains("several regions")
            }
        }
    })
    .await;
    let committing = tokio::spawn({
        let provider = provider.clone();
        async move { commit(&provider, &token, vec![event("a", 1)], named()).await }
    });
    let look = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap_err();
    assert!(look.message.contains("several regions"), "{look}");
    let stored = documents(&behind(&settings(&emulator)).await, "a").await;
    assert!(stored.iter().all(|document| document["started"] != true), "{stored:?}");
    emulator.regions().remove_region("West").unwrap();
    committing.await.unwrap().expect("the lock is alive, so the turn is committed after all");
}

/// Creates a container past the provider and gives its definition.
async fn create(properties: &ContainerProperties) -> Value {
    let database = database().await;
    let _ = database.create(CallOptions::default()).await;
    database.create_container(properties, None, CallOptions::default()).await.unwrap();
    definition(&properties.id).await
}

async fn definition(name: &str) -> Value {
    raw(name).await.read(CallOptions::default()).await.unwrap().json().unwrap()
}

#[tokio::test]
async fn a_container_that_cannot_hold_workflows_is_refused_and_left_as_it_is() {
    let (unique, deep) = (fresh_name(), fresh_name());
    for (properties, hint) in [
        (
            ContainerProperties::new(unique, &["/instanceId"]).with_unique_key(&["/email"]),
            "unique key /email",
        ),
        (ContainerProperties::new(deep, &["/instanceId", "/x"]), "/instanceId, /x"),
    ] {
        let before = create(&properties).await;
        let refused = CosmosDBProvider::new_with_config(config(&properties.id)).await.expect_err(hint);
        assert!(!refused.is_retryable() && refused.message.contains(hint), "{refused}");
        assert_eq!(definition(&properties.id).await, before);
        assert!(documents(&raw(&properties.id).await, "__meta__").await.is_empty());
    }
}

#[tokio::test]
async fn a_container_of_a_newer_layout_keeps_its_indexes() {
    let name = fresh_name();
    let poor = json!({ "indexingMode": "consistent", "automatic": true, "includedPaths": [{ "path": "/x/?" }],
        "excludedPaths": [{ "path": "/*" }] });
    let properties = ContainerProperties::new(name.clone(), &["/instanceId"]).with_indexing_policy(poor);
    let before = create(&properties).await;
    let stamp = json!({ "id": "format", "instanceId": "__meta__", "type": "format", "formatVersion": 99 });
    raw(&name).await.create_item("__meta__", &stamp, ItemOptions::default()).await.unwrap();
    let refused = CosmosDBProvider::new_with_config(config(&name)).await.expect_err("a newer layout");
    assert!(refused.message.contains("99"), "{refused}");
    assert_eq!(definition(&name).await, before);
}

#[tokio::test]
async fn a_container_that_indexes_nothing_is_told_to() {
    let name = fresh_name();
    let off = json!({ "indexingMode": "none", "automatic": false, "includedPaths": [], "excludedPaths": [] });
    create(&ContainerProperties::new(name.clone(), &["/instanceId"]).with_indexing_policy(off)).await;
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    let ours = serde_json::to_value(container_definition(&name)).unwrap();
    let found = definition(&name).await;
    for part in ["indexingMode", "automatic", "includedPaths", "compositeIndexes"] {
        assert_eq!(found["indexingPolicy"][part], ours["indexingPolicy"][part], "{part}");
    }
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_some());
}

/// Replaces a part of the indexing policy of a container, past the provider.
async fn set_policy(name: &str, part: &str, value: Value) {
    let container = raw(name).await;
    let read = container.read(CallOptions::default()).await.unwrap();
    let mut properties: ContainerProperties = read.json().unwrap();
    properties.indexing_policy.as_mut().unwrap()[part] = value;
    container.replace(&properties, CallOptions::default()).await.unwrap();
}

#[tokio::test]
async fn a_long_queue_is_taken_in_order_while_the_index_of_its_order_is_being_built() {
    let place = place_with(|config| config).await;
    place.begin("a").await;
    // More than a page of a look.
    for n in 0..1100 {
        place.provider.enqueue_for_orchestrator(mail("a", &n.to_string()), None).await.unwrap();
    }
    set_policy(&place.name, "includedPaths", json!([{ "path": "/type/?" }])).await;
    let (turn, ..) = place.provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
    let expected: Vec<WorkItem> = (0..64).map(|n| mail("a", &n.to_string())).collect();
    assert_eq!(turn.messages, expected);
}

#[tokio::test]
async fn work_is_found_in_order_while_the_index_that_holds_it_in_order_is_being_built() {
    let place = place_with(|config| config).await;
    let other = place.other().await;
    set_policy(&place.name, "compositeIndexes", json!([])).await;
    for instance in ["a", "b"] {
        other.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
        other.enqueue_for_worker(activity(instance, 1)).await.unwrap();
    }
    let provider = &place.provider;
    for instance in ["a", "b"] {
        let found = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
        assert_eq!(found.expect("it waits").0.instance, instance);
    }
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    for expected in ["a", "b"] {
        let found = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await.unwrap();
        let (WorkItem::ActivityExecute { instance, .. }, ..) = found.expect("it waits") else {
            panic!("something else")
        };
        assert_eq!(instance, expected);
    }
    assert!(provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await.unwrap().is_none());
}

async fn stamp(name: &str) -> Value {
    documents(&raw(name).await, "__meta__").await.remove(0)
}

async fn set_stamp(name: &str, version: u32) {
    let mut stamp = stamp(name).await;
    stamp["formatVersion"] = version.into();
    let container = raw(name).await;
    container.replace_item("__meta__", "format", &stamp, ItemOptions::default()).await.unwrap();
}

#[tokio::test]
async fn the_stamp_of_an_earlier_layout_is_raised_so_that_earlier_processes_stay_away() {
    let place = place_with(|config| config).await;
    set_stamp(&place.name, 1).await;
    place.other().await;
    assert_eq!(stamp(&place.name).await["formatVersion"], duroxide_cdb::FORMAT_VERSION);
}

#[tokio::test]
async fn a_process_that_a_newer_layout_has_overtaken_takes_no_more_work() {
    let place = place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_millis(10),
        ..config
    })
    .await;
    let provider = &place.provider;
    assert!(provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().is_none());
    set_stamp(&place.name, 99).await;
    until("it has noticed", async || provider.fetch_orchestration_item(LOCK, NOW, None).await.is_err()).await;
    provider.enqueue_for_worker(activity("a", 1)).await.expect("a client may still leave something");
    let no_turn = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap_err();
    let no_work = provider.fetch_work_item(LOCK, NOW, None, &TagFilter::DefaultOnly).await.unwrap_err();
    for refused in [no_turn, no_work] {
        assert!(!refused.is_retryable(), "{refused}");
        assert!(refused.message.contains("99") && refused.message.contains("upgrade"), "{refused}");
    }
}
