//! One emulator for all tests; a container of its own for each store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use cosmos_driver::{Credential, Driver, ItemOptions, QueryOptions, Scope};
use cosmos_emulator::{Config, Emulator};
use duroxide::provider_validation::ProviderFactory;
use duroxide::providers::{ExecutionMetadata, Provider, WorkItem};
use duroxide::{Event, EventKind};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

static EMULATOR: LazyLock<Emulator> =
    LazyLock::new(|| Emulator::start(Config::default()).expect("a free port"));
static NUMBER: AtomicU64 = AtomicU64::new(0);

pub(crate) const DATABASE: &str = "tests";

/// The emulator all tests share.
pub(crate) fn emulator() -> &'static Emulator {
    &EMULATOR
}

/// A name no other test uses.
pub(crate) fn fresh_name() -> String {
    format!("c{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Settings for a container of the shared emulator.
pub(crate) fn config(container: &str) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig::new(emulator().endpoint(), emulator().key())
        .with_database(DATABASE)
        .with_container(container)
}

/// Makes providers, each on a new container, and remembers the last one.
#[derive(Default)]
pub(crate) struct Store {
    last: Mutex<String>,
    forgetful: bool,
}

impl Store {
    /// Its providers keep nothing in memory between calls.
    pub(crate) fn without_memory() -> Self {
        Self { forgetful: true, ..Self::default() }
    }

    /// A provider on a new container.
    pub(crate) async fn provider(&self) -> CosmosDBProvider {
        let name = fresh_name();
        *self.last.lock().unwrap() = name.clone();
        let mut config = config(&name);
        if self.forgetful {
            config.cache_bytes_max = 0;
        }
        CosmosDBProvider::new_with_config(config).await.expect("the emulator answers")
    }

    fn container(&self) -> String {
        self.last.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl ProviderFactory for Store {
    async fn create_provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.provider().await)
    }

    async fn corrupt_instance_history(&self, instance: &str) {
        let container = raw(&self.container()).await;
        for mut document in documents(&container, instance).await {
            let in_head = document["events"].as_array().is_some_and(|events| !events.is_empty());
            if document["type"] != "history" && !in_head {
                continue;
            }
            let events = document["events"].as_array().map_or(1, Vec::len);
            document["events"] = vec![r#"{"type":"NoSuchEvent"}"#; events].into();
            let id = document["id"].as_str().unwrap().to_owned();
            container.replace_item(instance, &id, &document, ItemOptions::default()).await.unwrap();
        }
    }

    async fn get_max_attempt_count(&self, instance: &str) -> u32 {
        let container = raw(&self.container()).await;
        let mut max = 0;
        for document in documents(&container, instance).await {
            let held =
                document["batch"].as_array().into_iter().flatten().filter_map(|held| held["n"].as_u64());
            let seen = document["attempts"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64());
            max = held.chain(seen).fold(max, u64::max);
        }
        u32::try_from(max).unwrap()
    }
}

/// The container itself, past the provider.
pub(crate) async fn raw(container: &str) -> cosmos_driver::Container {
    behind(&config(container)).await
}

/// The container of a provider with these settings, past the provider.
pub(crate) async fn behind(config: &CosmosDBProviderConfig) -> cosmos_driver::Container {
    let credential = Credential::key(&config.key).unwrap();
    let driver = Driver::builder(config.endpoint.clone(), credential).build().await.unwrap();
    driver.container(&config.database, &config.container).unwrap()
}

/// The database itself, past the provider.
pub(crate) async fn database() -> cosmos_driver::Database {
    let credential = Credential::key(emulator().key()).unwrap();
    let driver = Driver::builder(emulator().endpoint(), credential).build().await.unwrap();
    driver.database(DATABASE)
}

/// All documents of a partition.
pub(crate) async fn documents(container: &cosmos_driver::Container, partition: &str) -> Vec<Value> {
    let scope = Scope::PartitionKey(partition.into());
    container.query("SELECT * FROM c", scope, QueryOptions::default()).collect().await.unwrap()
}

/// A message that starts an orchestration.
pub(crate) fn start(instance: &str, orchestration: &str, input: &str) -> WorkItem {
    WorkItem::StartOrchestration {
        instance: instance.to_owned(),
        orchestration: orchestration.to_owned(),
        input: input.to_owned(),
        version: Some("1.0.0".to_owned()),
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
        execution_id: 1,
    }
}

/// A work item of an instance's first execution.
pub(crate) fn activity(instance: &str, id: u64) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.to_owned(),
        execution_id: 1,
        id,
        name: "Echo".to_owned(),
        input: String::new(),
        session_id: None,
        tag: None,
    }
}

/// An event of an instance's first execution; the first one starts it.
pub(crate) fn event(instance: &str, id: u64) -> Event {
    let kind = if id == 1 {
        EventKind::OrchestrationStarted {
            name: "Hello".to_owned(),
            version: "1.0.0".to_owned(),
            input: String::new(),
            parent_instance: None,
            parent_id: None,
            parent_execution_id: None,
            carry_forward_events: None,
            initial_custom_status: None,
        }
    } else {
        EventKind::TimerCreated { fire_at_ms: id }
    };
    Event::with_event_id(id, instance, 1, None, kind)
}

/// What the runtime says about a running instance.
pub(crate) fn named() -> ExecutionMetadata {
    ExecutionMetadata {
        orchestration_name: Some("Hello".to_owned()),
        orchestration_version: Some("1.0.0".to_owned()),
        ..ExecutionMetadata::default()
    }
}

/// A text that does not compress.
pub(crate) fn noise(bytes: usize) -> String {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    (0..bytes).map(|_| random.alphanumeric()).collect()
}

/// Waits for what something else brings about. Only this knows that waiting means looking again.
pub(crate) async fn until(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !happened().await {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(GLANCE).await;
    }
}

const PATIENCE: Duration = Duration::from_secs(500);
const GLANCE: Duration = Duration::from_millis(10);
