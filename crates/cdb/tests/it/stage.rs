//! An account in this process with containers full of workflows, for commands to look at.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cosmos_driver::{
    CallOptions, Container, ContainerProperties, Credential, Driver, ItemOptions, PartitionKey, Query,
    QueryOptions, Scope,
};
use cosmos_emulator::{Config, Emulator};
use duroxide::providers::Provider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

/// The account all tests of this binary share; each has a container of its own.
pub(crate) static ACCOUNT: LazyLock<Account> = LazyLock::new(|| {
    // Workflows fail here on purpose; their logs are not what is tested.
    let _ = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::OFF).try_init();
    let emulator = Emulator::start(Config { partitions: Some(2), ..Config::default() }).expect("it starts");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    Account { emulator, runtime }
});

/// An account and the threads that use it.
pub(crate) struct Account {
    pub(crate) emulator: Emulator,
    runtime: tokio::runtime::Runtime,
}

impl Account {
    async fn driver(&self) -> Driver {
        Driver::builder(self.emulator.endpoint(), Credential::emulator()).build().await.expect("it answers")
    }

    /// Whether there is such a database.
    pub(crate) fn has_database(&self, name: &str) -> bool {
        self.runtime
            .block_on(async { self.driver().await.database(name).read(CallOptions::default()).await.is_ok() })
    }

    /// Makes a container of some other program.
    pub(crate) fn make_container(&self, database: &str, container: &str, partition_key: &str) {
        self.runtime.block_on(async {
            let database = self.driver().await.database(database);
            database.create(CallOptions::default()).await.expect("a new one");
            let properties = ContainerProperties::new(container, &[partition_key]);
            database.create_container(&properties, None, CallOptions::default()).await.expect("a new one");
        });
    }
}

/// One container.
pub(crate) struct Stage {
    pub(crate) container: String,
    pub(crate) endpoint: String,
    provider: Arc<dyn Provider>,
    pub(crate) client: Client,
}

impl Stage {
    /// A new container of this name.
    pub(crate) fn new(container: &str) -> Self {
        Self::open(&ACCOUNT.emulator, container)
    }

    /// A container of this name on some account.
    pub(crate) fn open(emulator: &Emulator, container: &str) -> Self {
        let endpoint = emulator.endpoint();
        let config = CosmosDBProviderConfig::new(&endpoint, emulator.key()).with_container(container);
        let provider: Arc<dyn Provider> =
            Arc::new(ACCOUNT.runtime.block_on(CosmosDBProvider::new_with_config(config)).expect("it opens"));
        Self { container: container.to_owned(), endpoint, client: Client::new(provider.clone()), provider }
    }

    /// The arguments of a command on this container.
    pub(crate) fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = args.to_vec();
        all.extend(["--endpoint", &self.endpoint, "--container", &self.container]);
        all
    }

    /// Runs `cdb` on this container.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> crate::terminal::Ended {
        crate::terminal::run(&self.args(args))
    }

    /// Runs `cdb` on this container, which must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.run(args).with_code(0).stdout
    }

    /// Starts workflows and lets a runtime work on them until `done` says so, and stops it.
    pub(crate) fn play(&self, starts: &[(&str, &str, &str)], done: impl AsyncFnOnce(&Client)) {
        ACCOUNT.runtime.block_on(async {
            for (instance, name, input) in starts {
                self.client.start_orchestration(*instance, *name, *input).await.expect("it starts");
            }
            let options = RuntimeOptions {
                worker_lock_timeout: Duration::from_secs(2),
                worker_lock_renewal_buffer: Duration::from_secs(1),
                ..RuntimeOptions::default()
            };
            let runtime =
                Runtime::start_with_options(self.provider.clone(), activities(), orchestrations(), options)
                    .await;
            done(&self.client).await;
            runtime.shutdown(Some(1000)).await;
        });
    }

    /// As [`Stage::play`], until all that were started have ended.
    pub(crate) fn play_to_the_end(&self, starts: &[(&str, &str, &str)]) {
        let ids: Vec<String> = starts.iter().map(|(instance, ..)| (*instance).to_owned()).collect();
        self.play(starts, async |client: &Client| {
            for id in &ids {
                ended(client, id).await;
            }
        });
    }

    /// Sends a message without a runtime that would take it.
    pub(crate) fn start_only(&self, instance: &str, name: &str, input: &str) {
        ACCOUNT.runtime.block_on(self.client.start_orchestration(instance, name, input)).expect("it starts");
    }

    /// Everything stored in one partition.
    pub(crate) fn documents(&self, partition: &str) -> Vec<Value> {
        ACCOUNT.runtime.block_on(async {
            let scope = Scope::PartitionKey(PartitionKey::from(partition));
            let query = Query::new("SELECT * FROM c");
            self.raw().await.query(query, scope, QueryOptions::default()).collect().await.expect("rows")
        })
    }

    /// Stores a document past the provider.
    pub(crate) fn put(&self, partition: &str, document: &Value) {
        ACCOUNT.runtime.block_on(async {
            self.raw()
                .await
                .upsert_item(partition, document, ItemOptions::default())
                .await
                .expect("it is stored");
        });
    }

    /// Stores copies of an instance under other names, past the provider.
    pub(crate) fn copy(&self, of: &str, documents: &[Value], names: impl Iterator<Item = String>) {
        ACCOUNT.runtime.block_on(async {
            let container = self.raw().await;
            for name in names {
                for document in documents.iter().filter(|document| document["type"] != "tombstone") {
                    let mut copy: Value =
                        serde_json::from_str(&document.to_string().replace(of, &name)).expect("JSON");
                    copy.as_object_mut().expect("a document").retain(|field, _| !field.starts_with('_'));
                    container
                        .upsert_item(name.as_str(), &copy, ItemOptions::default())
                        .await
                        .expect("it is stored");
                }
            }
        });
    }

    /// Removes a document past the provider.
    pub(crate) fn remove(&self, partition: &str, id: &str) {
        ACCOUNT.runtime.block_on(async {
            self.raw().await.delete_item(partition, id, ItemOptions::default()).await.expect("it is removed");
        });
    }

    async fn raw(&self) -> Container {
        let driver =
            Driver::builder(&self.endpoint, Credential::emulator()).build().await.expect("it answers");
        driver.container("duroxide", &self.container).expect("a name")
    }
}

/// Waits for the end of a workflow and returns it.
pub(crate) async fn ended(client: &Client, instance: &str) -> OrchestrationStatus {
    client.wait_for_orchestration(instance, Duration::from_secs(120)).await.expect("it ends")
}

/// Waits until a workflow has run its first turn.
pub(crate) async fn begun(client: &Client, instance: &str) {
    while !matches!(client.get_orchestration_status(instance).await, Ok(OrchestrationStatus::Running { .. }))
    {
        tokio::task::yield_now().await;
    }
}

fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .register("Hang", |_: ActivityContext, _: String| std::future::pending::<Result<String, String>>())
        .register("Break", |_: ActivityContext, text: String| async move { Err::<String, String>(text) })
        .build()
}

/// `echo` runs an activity, `fails` a failing one, `hangs` one that never ends, `parent` has a child that fails, `family` two children, `waits` for an event, `reads` a queue,
/// `again` continues as new three times, `keeps` a key-value and a status.
fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("echo", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Echo", input).await
        })
        .register("hangs", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Hang", input).await
        })
        .register("parent", |context: OrchestrationContext, input: String| async move {
            context.schedule_sub_orchestration("fails", input).await
        })
        .register("fails", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Break", input).await
        })
        .register("family", |context: OrchestrationContext, input: String| async move {
            let children =
                ["a", "b"].map(|name| context.schedule_sub_orchestration("echo", format!("{input}{name}")));
            let done = context.join(children.into()).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            Ok(done.join("+"))
        })
        .register("waits", |context: OrchestrationContext, _: String| async move {
            Ok(context.schedule_wait("yes").await)
        })
        .register("reads", |context: OrchestrationContext, _: String| async move {
            Ok(context.dequeue_event("inbox").await)
        })
        .register("again", |context: OrchestrationContext, input: String| async move {
            let left: u32 = input.parse().map_err(|_| "a number".to_owned())?;
            context.schedule_activity("Echo", input).await?;
            if left > 0 {
                return context.continue_as_new((left - 1).to_string()).await;
            }
            Ok("done".to_owned())
        })
        .register("keeps", |context: OrchestrationContext, input: String| async move {
            context.set_custom_status("half way");
            context.set_kv_value("colour", input.as_str());
            context.schedule_activity("Echo", input).await
        })
        .build()
}
