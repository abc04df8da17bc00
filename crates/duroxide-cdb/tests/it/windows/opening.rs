//! Opening a container: bad settings fail with a sentence, crowds and throttling do not matter.

use std::time::Duration;

use cosmos_emulator::{FaultRule, Operation, Verdict};
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};

use super::{LOCK, NOW, place};
use crate::world::{DATABASE, config, documents, emulator, fresh_name, raw, start};

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
async fn throttled_metadata_delays_opening_and_does_not_fail_it() {
    let name = fresh_name();
    let link = format!("dbs/{DATABASE}/colls/{name}");
    let throttled = || {
        let retry_after = Some(Duration::from_millis(30));
        FaultRule::new(Verdict::Status { code: 429, sub_status: 3200, retry_after }).times(3)
    };
    let _faults = [
        throttled().on(Operation::ReadContainer).in_container(&link),
        throttled().on(Operation::CreateContainer),
        throttled().on(Operation::CreateItem).in_container(&link),
        throttled().on(Operation::ReadItem).in_container(&link),
        FaultRule::new(Verdict::ResetBefore).times(1).on(Operation::ReadRanges).in_container(&link),
    ]
    .map(|rule| emulator().faults().add(rule));
    let provider = CosmosDBProvider::new_with_config(config(&name)).await.unwrap();
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    assert!(provider.fetch_orchestration_item(LOCK, Duration::from_secs(5), None).await.unwrap().is_some());
}

#[tokio::test]
async fn the_container_is_made_as_the_queries_need_it() {
    let place = place().await;
    let container = raw(&place.name).await;
    let made = container.read(cosmos_driver::CallOptions::default()).await.unwrap();
    let made: serde_json::Value = made.json().unwrap();
    assert_eq!(made["defaultTtl"], -1, "tombstones expire, nothing else does");
    assert_eq!(made["partitionKey"]["paths"], serde_json::json!(["/instanceId"]));
    assert_eq!(made["partitionKey"]["version"], 2);
    let policy = &made["indexingPolicy"];
    assert_eq!(policy["excludedPaths"][0]["path"], "/*");
    assert_eq!(policy["compositeIndexes"][0][1]["path"], "/visibleAt");
}
