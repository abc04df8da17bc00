//! Lets the public `duroxide-cdb` 0.1.10 write a container and saves its documents, one JSON text per line. Our crate's
//! tests open it and carry every running orchestration in it on.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use cosmos_emulator::{Config, Emulator, FaultRule, Operation};
use duroxide::providers::{Provider, WorkItem};
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{Client, OrchestrationContext, OrchestrationRegistry, TagFilter};
use ours::cosmos_driver::{Credential, Driver, QueryOptions, Scope};
use serde_json::Value;

const DATABASE: &str = "old";
const CONTAINER: &str = "flows";

/// Makes the fixture.
pub async fn run(path: &Path) -> anyhow::Result<()> {
    let server = Emulator::start(Config { threads: 2, ..Config::default() })?;
    let provider = Arc::new(
        public::CosmosDBProvider::new_with_config(public::CosmosDBProviderConfig {
            endpoint: server.endpoint().trim_end_matches('/').to_owned(),
            key: server.key().to_owned(),
            database: DATABASE.to_owned(),
            container: CONTAINER.to_owned(),
            ..Default::default()
        })
        .await
        .map_err(|error| anyhow::anyhow!("{error:?}"))?,
    );
    // The start of this one never gets through: its intent stays.
    let _lost = server.faults().add(FaultRule::status(503, 0).on(Operation::CreateItem).for_key("late"));
    let client = Client::new(provider.clone());
    let options = RuntimeOptions { worker_tag_filter: TagFilter::None, ..RuntimeOptions::default() };
    let runtime =
        Runtime::start_with_options(provider.clone(), ActivityRegistry::builder().build(), flows(), options)
            .await;
    for (instance, name, input) in [
        ("activity", "Hello", "Ann"),
        ("fan", "FanOut", "5"),
        ("timer", "Sleep", "5000"),
        ("event", "Approval", ""),
        ("mail", "Mailbox", "3"),
        ("parent", "Parent", "A,B"),
        ("counter", "Counter", "3/"),
        ("notes", "PlainNotes", "v"),
        ("session", "Session", "s"),
        ("done", "Leaf", "over"),
        ("starter", "Detach", "late"),
        ("cancelled", "Stuck", ""),
    ] {
        client.start_orchestration(instance, name, input).await?;
    }
    client.enqueue_event("mail", "mail", "one").await?;
    client.enqueue_event("counter", "mail", "a").await?;
    settle(&server).await;
    runtime.shutdown(Some(1000)).await;
    // What arrives while nobody works, and a lock that a dead process left.
    client.cancel_instance("cancelled", "enough").await?;
    client.start_orchestration("fresh", "Hello", "Bob").await?;
    client.start_orchestration("locked", "Hello", "Cid").await?;
    let mut held = 0;
    while let Some((item, ..)) = provider
        .fetch_orchestration_item(Duration::from_secs(1), Duration::ZERO, None)
        .await
        .map_err(|error| anyhow::anyhow!("{error:?}"))?
    {
        held += 1;
        if item
            .messages
            .iter()
            .any(|item| matches!(item, WorkItem::StartOrchestration { instance, .. } if instance == "locked"))
        {
            break;
        }
    }
    eprintln!("{held} instances are locked");
    save(&server, path).await
}

/// Waits until the server has been left alone for a while; the reconciler's searches do not count.
async fn settle(server: &Emulator) {
    let writes = || {
        let snapshot = server.ledger().snapshot();
        [Operation::CreateItem, Operation::ReplaceItem, Operation::Batch]
            .map(|operation| {
                let totals = snapshot.operation(operation);
                totals.requests - totals.failures
            })
            .iter()
            .sum::<u64>()
    };
    let (mut before, mut quiet) = (writes(), 0);
    while quiet < 10 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = writes();
        quiet = if now == before { quiet + 1 } else { 0 };
        before = now;
    }
}

async fn save(server: &Emulator, path: &Path) -> anyhow::Result<()> {
    let driver = Driver::builder(server.endpoint(), Credential::key(server.key())?).build().await?;
    let container = driver.container(DATABASE, CONTAINER)?;
    let mut definition: Value = container.read(Default::default()).await?.json()?;
    clean(&mut definition);
    let mut documents: Vec<Value> = Vec::new();
    for range in container.ranges(Default::default()).await? {
        let rows: Vec<Value> = container
            .query("SELECT * FROM c", Scope::Range(range), QueryOptions::default())
            .collect()
            .await?;
        documents.extend(rows);
    }
    documents.iter_mut().for_each(clean);
    documents.sort_by_key(|document| (document["instanceId"].to_string(), document["id"].to_string()));
    let mut file = std::fs::File::create(path).with_context(|| format!("{}", path.display()))?;
    writeln!(file, "{definition}")?;
    for document in &documents {
        writeln!(file, "{document}")?;
    }
    eprintln!("{} documents: {}", documents.len(), path.display());
    Ok(())
}

/// Takes away what the server adds.
fn clean(document: &mut Value) {
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|name, _| !name.starts_with('_'));
    }
}

/// The orchestrations, as the tests that carry them on know them.
fn flows() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("Hello", |context: OrchestrationContext, name: String| async move {
            context.schedule_activity("Greet", name).await
        })
        .register("FanOut", |context: OrchestrationContext, input: String| async move {
            let width: u64 = input.parse().map_err(|_| "a width is needed".to_owned())?;
            let tasks = (0..width).map(|n| context.schedule_activity("Square", n.to_string())).collect();
            let mut sum = 0;
            for result in context.join(tasks).await {
                sum += result?.parse::<u64>().map_err(|error| error.to_string())?;
            }
            Ok(sum.to_string())
        })
        .register("Sleep", |context: OrchestrationContext, input: String| async move {
            let millis: u64 = input.parse().map_err(|_| "a duration is needed".to_owned())?;
            context.schedule_timer(Duration::from_millis(millis)).await;
            Ok("slept".to_owned())
        })
        .register("Approval", |context: OrchestrationContext, _: String| async move {
            Ok(format!("approved by {}", context.schedule_wait("approval").await))
        })
        .register("Mailbox", |context: OrchestrationContext, input: String| async move {
            let count: u64 = input.parse().map_err(|_| "a count is needed".to_owned())?;
            let mut letters = Vec::new();
            for _ in 0..count {
                letters.push(context.dequeue_event("mail").await);
            }
            Ok(letters.join(","))
        })
        .register("Parent", |context: OrchestrationContext, input: String| async move {
            let children =
                input.split(',').map(|name| context.schedule_sub_orchestration("Hello", name)).collect();
            let greetings: Result<Vec<String>, String> = context.join(children).await.into_iter().collect();
            Ok(greetings?.join(" "))
        })
        .register("Counter", |context: OrchestrationContext, input: String| async move {
            let (left, seen) = input.split_once('/').ok_or("left/seen is needed")?;
            let left: u64 = left.parse().map_err(|_| "a number is needed".to_owned())?;
            let letter = context.dequeue_event("mail").await;
            let seen = format!("{seen}{letter}");
            if left <= 1 {
                return Ok(seen);
            }
            context.continue_as_new(format!("{}/{seen}", left - 1)).await
        })
        .register("PlainNotes", |context: OrchestrationContext, input: String| async move {
            // The public crate cannot store the tests' key with a slash.
            context.set_kv_value("plain", input.clone());
            context.set_kv_value("doomed", "x");
            context.schedule_activity("Echo", "").await?;
            context.clear_kv_value("doomed");
            context.set_custom_status("noted");
            Ok(context.get_kv_value("plain").unwrap_or_default())
        })
        .register("Session", |context: OrchestrationContext, session: String| async move {
            let mut workers = Vec::new();
            for _ in 0..4 {
                workers.push(context.schedule_activity_on_session("Worker", "", session.clone()).await?);
            }
            workers.dedup();
            Ok(workers.join(","))
        })
        .register("Leaf", |_: OrchestrationContext, input: String| async move { Ok(input) })
        .register("Detach", |context: OrchestrationContext, input: String| async move {
            context.schedule_orchestration("Hello", input.clone(), input);
            Ok("started".to_owned())
        })
        .register("Stuck", |context: OrchestrationContext, _: String| async move {
            context.schedule_activity("UntilCancelled", "").await
        })
        .build()
}
