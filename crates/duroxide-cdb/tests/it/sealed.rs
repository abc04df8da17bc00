//! Payloads that a codec seals before they are stored.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cosmos_driver::{QueryOptions, Scope};
use duroxide::providers::{Provider, ProviderAdmin};
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use duroxide_cdb::{AesGcmCodec, CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

use crate::world::{config, fresh_name, noise, raw, start, until};

/// In every payload of these tests, and in nothing else.
const SECRET: &str = "zeppelin";

fn key(id: &str, byte: u8) -> String {
    use std::fmt::Write as _;
    // 32 times the same byte in base64, by hand: three bytes are four letters.
    let mut text = format!("{id}=");
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = (0..32).fold(String::new(), |mut bits, _| {
        let _ = write!(bits, "{byte:08b}");
        bits
    });
    for six in format!("{bits}00").as_bytes().chunks(6) {
        let index = usize::from_str_radix(std::str::from_utf8(six).unwrap(), 2).unwrap();
        text.push(char::from(letters[index]));
    }
    text
}

fn with_keys(container: &str, keys: &str) -> CosmosDBProviderConfig {
    config(container).with_codec(keys.parse::<AesGcmCodec>().unwrap())
}

async fn open(config: CosmosDBProviderConfig) -> CosmosDBProvider {
    CosmosDBProvider::new_with_config(config).await.unwrap()
}

async fn runtime(provider: &CosmosDBProvider) -> Arc<Runtime> {
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .register("Fails", |_: ActivityContext, text: String| async move { Err::<String, _>(text) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Child", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Echo", input).await
        })
        .register("All", |context: OrchestrationContext, input: String| async move {
            context.set_custom_status(format!("{input} status"));
            context.set_kv_value("small", &input);
            context.set_kv_value("large", large(&input));
            let child = context.schedule_sub_orchestration("Child", format!("{input} child")).await?;
            let event = context.schedule_wait("go").await;
            let error = context.schedule_activity("Fails", format!("{input} error")).await.unwrap_err();
            let large = context.schedule_activity("Echo", input.repeat(60_000)).await?;
            Ok(format!("{child} {event} {error} {}", large.len()))
        })
        .register("Fails", |_: OrchestrationContext, input: String| async move { Err::<String, _>(input) })
        .register("Again", |context: OrchestrationContext, input: String| async move {
            if input.len() > 20 { Ok(input) } else { context.continue_as_new(input.repeat(2)).await }
        })
        .build();
    Runtime::start_with_store(Arc::new(provider.clone()), activities, orchestrations).await
}

/// A value that a head has no room for, however it is packed.
fn large(input: &str) -> String {
    format!("{input} {}", noise(5000))
}

async fn everything(container: &str) -> Vec<Value> {
    let all = raw(container).await.query("SELECT * FROM c", Scope::Container, QueryOptions::default());
    all.collect().await.unwrap()
}

async fn ended(client: &Client, instance: &str) -> OrchestrationStatus {
    client.wait_for_orchestration(instance, Duration::from_secs(120)).await.unwrap()
}

#[tokio::test]
async fn no_byte_of_a_payload_is_stored_in_the_clear_and_all_of_them_come_back() {
    let container = fresh_name();
    let provider = open(with_keys(&container, &key("k1", 7))).await;
    let client = Client::new(Arc::new(provider.clone()));
    // Queued and not taken yet: inputs, data of events, reasons.
    client.start_orchestration("all", "All", SECRET).await.unwrap();
    client.start_orchestration("fails", "Fails", SECRET).await.unwrap();
    client.start_orchestration("again", "Again", SECRET).await.unwrap();
    client.raise_event("nobody", "go", SECRET).await.unwrap();
    client.cancel_instance("nobody", SECRET).await.unwrap();
    let leaks = async |when: &str| {
        let stored = everything(&container).await;
        for document in &stored {
            let text = document.to_string();
            assert!(!text.contains(SECRET), "{when}: {text:.2000}");
        }
        stored.iter().map(|document| document["type"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    leaks("queued").await;
    let runtime = runtime(&provider).await;
    until("the child has answered", async || {
        provider
            .read("all")
            .await
            .unwrap()
            .iter()
            .any(|event| format!("{:?}", event.kind).contains("Subscribed"))
    })
    .await;
    leaks("running").await;
    assert_eq!(provider.get_kv_value("all", "small").await.unwrap().as_deref(), Some(SECRET));
    assert_eq!(provider.get_kv_all_values("all").await.unwrap()["large"], large(SECRET));
    let (status, _) = provider.get_custom_status("all", 0).await.unwrap().unwrap();
    assert_eq!(status.unwrap(), format!("{SECRET} status"));
    client.raise_event("all", "go", format!("{SECRET} event")).await.unwrap();
    let OrchestrationStatus::Completed { output, .. } = ended(&client, "all").await else {
        panic!("not completed")
    };
    let large = SECRET.len() * 60_000;
    assert_eq!(output, format!("{SECRET} child {SECRET} event {SECRET} error {large}"));
    let OrchestrationStatus::Failed { details, .. } = ended(&client, "fails").await else {
        panic!("not failed")
    };
    assert!(details.display_message().contains(SECRET), "{details:?}");
    assert!(matches!(ended(&client, "again").await, OrchestrationStatus::Completed { .. }));
    runtime.shutdown(None).await;
    let kinds = leaks("ended").await;
    for kind in ["instance", "history", "execution", "value"] {
        assert!(kinds.contains(kind), "{kind} was looked at: {kinds:?}");
    }
    let info = provider.get_instance_info("all").await.unwrap();
    assert_eq!(info.output.as_deref(), Some(output.as_str()));
    let first = provider.get_execution_info("again", 1).await.unwrap();
    assert_eq!(first.output.as_deref(), Some(SECRET.repeat(2).as_str()));
    // What is new in memory is new on disk: another process, which knows nothing, reads the same.
    let other = open(with_keys(&container, &key("k1", 7))).await;
    assert!(
        other.read_history("all").await.unwrap().iter().any(|event| format!("{event:?}").contains(SECRET))
    );
}

#[tokio::test]
async fn a_key_is_changed_under_running_workflows() {
    let container = fresh_name();
    let (old, new) = (key("k1", 1), key("k2", 2));
    let first = open(config(&container)).await;
    Client::new(Arc::new(first)).start_orchestration("plain", "All", "before").await.unwrap();
    for keys in [old.clone(), format!("{old},{new}"), format!("{new},{old}")] {
        let provider = open(with_keys(&container, &keys)).await;
        let runtime = runtime(&provider).await;
        let client = Client::new(Arc::new(provider.clone()));
        let name = format!("under {keys:.2}{}", keys.len());
        client.start_orchestration(&name, "All", SECRET).await.unwrap();
        until("it waits", async || {
            let waits = |events: Vec<duroxide::Event>| {
                events.iter().any(|event| format!("{:?}", event.kind).contains("Subscribed"))
            };
            waits(provider.read(&name).await.unwrap()) && waits(provider.read("plain").await.unwrap())
        })
        .await;
        runtime.shutdown(None).await;
    }
    let provider = open(with_keys(&container, &format!("{new},{old}"))).await;
    let runtime = runtime(&provider).await;
    let client = Client::new(Arc::new(provider.clone()));
    let names = provider.list_instances().await.unwrap();
    let roots: Vec<&String> = names.iter().filter(|name| !name.contains("::")).collect();
    assert_eq!(roots.len(), 4, "{names:?}");
    for name in roots {
        client.raise_event(name, "go", SECRET).await.unwrap();
        let status = ended(&client, name).await;
        assert!(matches!(status, OrchestrationStatus::Completed { .. }), "{name}: {status:?}");
    }
    runtime.shutdown(None).await;
}

#[tokio::test]
async fn a_missing_key_puts_an_instance_off_and_stops_nobody_else() {
    let container = fresh_name();
    let sealing = open(with_keys(&container, &key("lost", 3))).await;
    sealing.enqueue_for_orchestrator(start("sealed", "Child", SECRET), None).await.unwrap();
    sealing.enqueue_for_worker(crate::world::activity("sealed", 2)).await.unwrap();
    for config in [config(&container), with_keys(&container, &key("other", 4))] {
        let provider = open(config).await;
        let lock = Duration::from_secs(30);
        let fetched = provider.fetch_orchestration_item(lock, Duration::ZERO, None).await.unwrap();
        assert!(fetched.is_none(), "{fetched:?}");
        let any = duroxide::TagFilter::Any;
        assert!(provider.fetch_work_item(lock, Duration::ZERO, None, &any).await.unwrap().is_none());
        let runtime = runtime(&provider).await;
        let client = Client::new(Arc::new(provider.clone()));
        let name = format!("readable {:?}", provider.list_instances().await.unwrap().len());
        client.start_orchestration(&name, "Child", "x").await.unwrap();
        let status = ended(&client, &name).await;
        assert!(matches!(status, OrchestrationStatus::Completed { .. }), "{status:?}");
        runtime.shutdown(None).await;
    }
    // With the key it goes on where it was, and no attempt was counted.
    let provider = open(with_keys(&container, &key("lost", 3))).await;
    until("it is not put off any more", async || {
        let lock = Duration::from_secs(30);
        let fetched = provider.fetch_orchestration_item(lock, Duration::from_secs(1), None).await.unwrap();
        fetched.is_some_and(|(turn, _, attempts)| {
            assert_eq!((turn.instance.as_str(), attempts), ("sealed", 1));
            true
        })
    })
    .await;
}

#[tokio::test]
async fn a_reader_without_the_key_is_told_which_one_it_needs() {
    let container = fresh_name();
    let sealing = open(with_keys(&container, &key("k7", 7))).await;
    let runtime = runtime(&sealing).await;
    let client = Client::new(Arc::new(sealing.clone()));
    client.start_orchestration("a", "Child", SECRET).await.unwrap();
    ended(&client, "a").await;
    runtime.shutdown(None).await;
    let blind = open(config(&container)).await;
    for error in [
        blind.read("a").await.unwrap_err(),
        blind.get_instance_info("a").await.unwrap_err(),
        blind.read_history("a").await.unwrap_err(),
    ] {
        assert!(!error.retryable && error.message.contains("\"k7\""), "{error}");
    }
    let looking = open(CosmosDBProviderConfig { shows_sealed: true, ..config(&container) }).await;
    let output = looking.get_instance_info("a").await.unwrap().output.unwrap();
    assert_eq!(duroxide_cdb::sealed_with(&output), Some("k7"));
}
