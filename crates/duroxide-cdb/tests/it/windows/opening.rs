//! Opening a container: bad settings fail with a sentence, crowds and throttling do not matter.

use std::sync::Arc;
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_core::time::OffsetDateTime;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cosmos_driver::{CallOptions, ContainerProperties};
use cosmos_emulator::{Config, Emulator, Entra, FaultRule, Operation, Verdict};
use duroxide::OrchestrationStatus;
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, container_definition};
use serde_json::{Value, json};

use super::{LOCK, NOW, config, place};
use crate::flows::{Machine, options};
use crate::world::{DATABASE, database, documents, emulator, fresh_name, raw, start};

/// Creates a container past the provider.
async fn create(properties: &ContainerProperties) {
    let database = database().await;
    // It may be there: all tests share it.
    let _ = database.create(CallOptions::default()).await;
    database.create_container(properties, None, CallOptions::default()).await.unwrap();
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
    create(&ContainerProperties::new(foreign.clone(), &["/tenant"])).await;
    let first = fresh_name();
    let mut properties = duroxide_cdb::container_definition(&first);
    properties.partition_key.version = Some(1);
    create(&properties).await;
    for (what, broken, hint) in [
        ("wrong key", wrong_key, "key"),
        ("no server", no_server, "127.0.0.1:9"),
        ("another partition key", config(&foreign), "/tenant"),
        ("a key of the first version", config(&first), "version 1"),
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

#[tokio::test]
async fn a_container_that_lacks_indexes_and_expiry_gets_them_when_it_is_opened() {
    let name = fresh_name();
    let poor = json!({
        "indexingMode": "consistent", "automatic": true,
        "includedPaths": [{ "path": "/type/?" }], "excludedPaths": [{ "path": "/*" }],
    });
    let properties =
        ContainerProperties::new(name.clone(), &["/instanceId"]).with_indexing_policy(poor.clone());
    create(&properties).await;
    let container = raw(&name).await;
    let found = async || -> Value { container.read(CallOptions::default()).await.unwrap().json().unwrap() };
    assert_eq!(found().await["indexingPolicy"]["includedPaths"], poor["includedPaths"]);
    let link = format!("dbs/{DATABASE}/colls/{name}");
    let replaced = emulator()
        .faults()
        .add(FaultRule::new(Verdict::Hang).on(Operation::ReplaceContainer).in_container(&link).times(0));
    for opened in ["once", "again"] {
        CosmosDBProvider::new_with_config(config(&name)).await.expect(opened);
        let (found, ours) = (found().await, serde_json::to_value(container_definition(&name)).unwrap());
        assert_eq!(found["defaultTtl"], ours["defaultTtl"], "{opened}");
        for part in ["includedPaths", "compositeIndexes"] {
            assert_eq!(found["indexingPolicy"][part], ours["indexingPolicy"][part], "{opened}: {part}");
        }
        assert_eq!(replaced.matched(), 1, "{opened}: what is good is left alone");
    }
}

/// Leaves something in a store.
async fn leave(provider: CosmosDBProvider) {
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
}

/// Finds it there.
async fn assert_left(account: &Emulator, database: &str, container: &str) {
    let config = CosmosDBProviderConfig::new(account.endpoint(), account.key());
    let config = config.with_database(database).with_container(container);
    let provider = CosmosDBProvider::new_with_config(config).await.unwrap();
    let found = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap();
    assert_eq!(found.expect("it is there").0.instance, "a");
}

#[tokio::test]
async fn each_constructor_opens_the_store_it_names() {
    let account = Emulator::start(Config::default()).unwrap();
    let (endpoint, key) = (account.endpoint(), account.key());
    leave(CosmosDBProvider::new(&endpoint, key, "flows").await.unwrap()).await;
    assert_left(&account, "flows", "duroxide").await;
    leave(CosmosDBProvider::new_with_container(&endpoint, key, "flows", "own").await.unwrap()).await;
    assert_left(&account, "flows", "own").await;
    for refused in [
        CosmosDBProvider::new("", key, "flows").await,
        CosmosDBProvider::new_with_container(&endpoint, "", "flows", "own").await,
        CosmosDBProvider::new_with_container(&endpoint, key, "flows", "a/b").await,
    ] {
        assert!(!refused.expect_err("it cannot work").is_retryable());
    }
}

#[tokio::test]
async fn a_process_is_told_by_its_environment_which_store_to_open() {
    // Variables belong to a whole process: this test runs itself in another one, which comes by here with them set.
    if std::env::var("COSMOS_CONTAINER").is_ok_and(|name| name == OF_THE_CHILD) {
        return leave(CosmosDBProvider::from_env().await.unwrap()).await;
    }
    let account = Emulator::start(Config::default()).unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", &format!("{module}::a_process_is_told_by_its_environment_which_store_to_open")])
        .env("COSMOS_ENDPOINT", account.endpoint())
        .env("COSMOS_KEY", account.key())
        .env("COSMOS_DATABASE", "flows")
        .env("COSMOS_CONTAINER", OF_THE_CHILD);
    let ran = tokio::task::spawn_blocking(move || child.output()).await.unwrap().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_left(&account, "flows", OF_THE_CHILD).await;
}

const OF_THE_CHILD: &str = "of-the-child";

/// An identity that hands out one token, which the emulator takes by its structure.
#[derive(Debug)]
struct Identity;

#[async_trait::async_trait]
impl TokenCredential for Identity {
    async fn get_token(
        &self,
        _scopes: &[&str],
        _: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        let part = |claims: serde_json::Value| URL_SAFE_NO_PAD.encode(claims.to_string());
        let head = part(json!({ "alg": "RS256", "typ": "JWT" }));
        let claims = part(json!({
            "aud": "https://cosmos.azure.com",
            "iss": "https://sts.fake-issuer.net/7b1999a1-dfd7-440e-8204-00170979b984",
            "oid": "96313034-4739-43cb-93cd-74193adbe5b6",
            "iat": 1_700_000_000, "nbf": 1_700_000_000, "exp": 4_000_000_000_u64,
        }));
        let signature = URL_SAFE_NO_PAD.encode("unsigned");
        let expires = OffsetDateTime::now_utc() + azure_core::time::Duration::hours(1);
        Ok(AccessToken::new(format!("{head}.{claims}.{signature}"), expires))
    }
}

#[tokio::test]
async fn a_process_without_a_key_works_in_a_container_that_is_there() {
    let account = Emulator::start(Config::default().with_entra(Entra::default())).unwrap();
    let by_key = CosmosDBProviderConfig::new(account.endpoint(), account.key());
    let by_token = CosmosDBProviderConfig::new(account.endpoint(), "")
        .with_credential(cosmos_driver::Credential::token(Arc::new(Identity)));
    let refused = CosmosDBProvider::new_with_config(by_token.clone()).await.expect_err("nothing is there");
    assert!(refused.message.contains("container_definition") && !refused.is_retryable(), "{refused}");
    drop(CosmosDBProvider::new_with_config(by_key).await.expect("creates it"));
    let provider = CosmosDBProvider::new_with_config(by_token).await.expect("it is there");
    let machine = Machine::start(provider, options(LOCK)).await;
    machine.client.start_orchestration("x", "Hello", "Ann").await.unwrap();
    let status = machine.client.wait_for_orchestration("x", Duration::from_secs(30)).await.unwrap();
    assert!(
        matches!(&status, OrchestrationStatus::Completed { output, .. } if output == "Hello, Ann!"),
        "{status:?}"
    );
    machine.stop().await;
}

#[tokio::test]
async fn a_process_without_a_key_is_told_what_its_container_lacks_and_writes_nothing() {
    let account = Emulator::start(Config::default().with_entra(Entra::default())).unwrap();
    let by_key = CosmosDBProviderConfig::new(account.endpoint(), account.key());
    drop(CosmosDBProvider::new_with_config(by_key.clone()).await.expect("creates it"));
    let container = crate::world::behind(&by_key).await;
    let mut properties: ContainerProperties =
        container.read(CallOptions::default()).await.unwrap().json().unwrap();
    properties.indexing_policy.as_mut().unwrap()["compositeIndexes"] = json!([]);
    container.replace(&properties, CallOptions::default()).await.unwrap();
    container.delete_item("__meta__", "format", cosmos_driver::ItemOptions::default()).await.unwrap();
    let by_token = CosmosDBProviderConfig::new(account.endpoint(), "")
        .with_credential(cosmos_driver::Credential::token(Arc::new(Identity)));
    let refused = CosmosDBProvider::new_with_config(by_token).await.expect_err("an index is missing");
    assert!(!refused.is_retryable(), "{refused}");
    // What to apply is said as the service takes it, without what only the service writes.
    let asked = refused.message.split_once("so that it is ").unwrap().1.split_once(" (as").unwrap().0;
    let asked: Value = serde_json::from_str(asked).unwrap();
    assert_eq!(asked, serde_json::to_value(container_definition("duroxide")).unwrap());
    assert!(documents(&container, "__meta__").await.is_empty(), "nothing is written");
}
