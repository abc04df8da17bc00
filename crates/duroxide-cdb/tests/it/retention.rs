//! Retention, with an emulator of its own for each test, whose clock is moved forward.

use std::sync::Arc;
use std::time::Duration;

use cosmos_emulator::{Config, Emulator};
use duroxide::providers::{ExecutionMetadata, Provider, ProviderAdmin, WorkItem};
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, Either2, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig, Retention, RetentionRow};
use serde_json::Value;

use crate::world::{behind, documents, event, named, start, until};

const HOUR: Duration = Duration::from_secs(3600);

struct Account {
    emulator: Emulator,
}

impl Account {
    fn new() -> Self {
        Self { emulator: Emulator::start(Config::default()).unwrap() }
    }

    fn config(&self, policy: Option<&str>) -> CosmosDBProviderConfig {
        CosmosDBProviderConfig {
            retention: policy.map(|policy| policy.parse().unwrap()),
            ..CosmosDBProviderConfig::new(self.emulator.endpoint(), self.emulator.key())
        }
    }

    async fn provider(&self, policy: Option<&str>) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(self.config(policy)).await.unwrap()
    }

    /// A process that begins after so much time has passed.
    async fn provider_after(&self, time: Duration, policy: Option<&str>) -> CosmosDBProvider {
        self.emulator.clock().advance(time);
        self.provider(policy).await
    }

    async fn documents(&self, instance: &str) -> Vec<Value> {
        documents(&behind(&self.config(None)).await, instance).await
    }

    async fn head(&self, instance: &str) -> Value {
        let is_head = |document: &Value| document["type"] == "instance";
        self.documents(instance).await.into_iter().find(is_head).unwrap_or_default()
    }

    /// What is left of an instance but for the marks of consumed messages, which expire by themselves.
    async fn remains(&self, instance: &str) -> Vec<String> {
        let rows = self.documents(instance).await;
        let kinds = rows.iter().map(|row| row["type"].as_str().unwrap().to_owned());
        kinds.filter(|kind| kind != "tombstone").collect()
    }
}

async fn runtime(provider: &CosmosDBProvider) -> Arc<Runtime> {
    let activities = ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .build();
    let orchestrations = OrchestrationRegistry::builder()
        .register("Short", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Echo", input).await
        })
        .register("Fails", |_: OrchestrationContext, _: String| async move { Err("no".to_owned()) })
        .register("Parent", |context: OrchestrationContext, input: String| async move {
            let result = context.schedule_sub_orchestration("Short", input).await?;
            context.schedule_wait("go").await;
            Ok(result)
        })
        .register("Long", |context: OrchestrationContext, input: String| async move {
            for _ in 0..5 {
                context.schedule_activity("Echo", input.repeat(1000)).await?;
            }
            Ok(input)
        })
        .register("Racing", |context: OrchestrationContext, input: String| async move {
            let echo = context.schedule_activity("Echo", input);
            match context.select2(echo, context.schedule_timer(Duration::from_secs(24 * 3600))).await {
                Either2::First(result) => result,
                Either2::Second(()) => Err("late".to_owned()),
            }
        })
        .register("Again", |context: OrchestrationContext, input: String| async move {
            if input == "2" { Ok(input) } else { context.continue_as_new("2").await }
        })
        .build();
    let options =
        RuntimeOptions { dispatcher_min_poll_interval: Duration::from_millis(10), ..Default::default() };
    Runtime::start_with_options(Arc::new(provider.clone()), activities, orchestrations, options).await
}

async fn run(client: &Client, instance: &str, name: &str, input: &str) -> OrchestrationStatus {
    client.start_orchestration(instance, name, input).await.unwrap();
    client.wait_for_orchestration(instance, Duration::from_secs(120)).await.unwrap()
}

#[tokio::test]
async fn a_short_workflow_expires_at_no_request_and_its_name_can_be_used_again() {
    let mut requests = Vec::new();
    for policy in [None, Some("completed=1h")] {
        let account = Account::new();
        let provider = account.provider(policy).await;
        // Turn by turn and without a fleet, so that nothing else is counted.
        account.emulator.ledger().reset();
        provider.enqueue_for_orchestrator(start("a", "Hello", "x"), None).await.unwrap();
        end(&provider, "a", None, Vec::new()).await;
        let records = account.emulator.ledger().snapshot().recent;
        let is_of_it = |key: &String| key.contains("\"a\"");
        requests.push(records.iter().filter(|r| r.partition_key.as_ref().is_some_and(is_of_it)).count());
        let ttl = account.head("a").await["ttl"].clone();
        assert_eq!(ttl, policy.map_or(Value::Null, |_| 3600.into()));
    }
    assert_eq!(requests[0], requests[1], "expiry is written with the commit that ends the instance");

    let account = Account::new();
    let provider = account.provider(Some("completed=1h")).await;
    let runtime = runtime(&provider).await;
    let client = Client::new(Arc::new(provider.clone()));
    run(&client, "a", "Short", "x").await;
    assert!(account.head("a").await["ttl"].as_i64().unwrap() <= 3600);
    runtime.shutdown(None).await;
    let later = account.provider_after(HOUR - Duration::from_secs(60), None).await;
    assert_eq!(later.list_instances().await.unwrap(), ["a"], "an hour is not over");
    let later = account.provider_after(Duration::from_secs(120), Some("completed=1h")).await;
    assert!(later.list_instances().await.unwrap().is_empty());
    assert_eq!(account.remains("a").await, Vec::<String>::new());
    let runtime = self::runtime(&later).await;
    let client = Client::new(Arc::new(later.clone()));
    let status = run(&client, "a", "Parent", "y");
    let raise = async {
        until("the parent waits", async || {
            let history = later.read("a").await.unwrap();
            history.iter().any(|event| format!("{:?}", event.kind).contains("ExternalSubscribed"))
        })
        .await;
        assert_eq!(account.head("a").await["ttl"], Value::Null, "the next life runs");
        client.raise_event("a", "go", "").await.unwrap();
    };
    let (status, ()) = futures::join!(status, raise);
    assert!(matches!(status, OrchestrationStatus::Completed { .. }), "{status:?}");
    runtime.shutdown(None).await;
}

#[tokio::test]
async fn what_does_not_stand_alone_is_left_to_the_fleet_which_removes_all_of_it() {
    let account = Account::new();
    let provider = account.provider(Some("completed=1h failed=2h")).await;
    let runtime = runtime(&provider).await;
    let client = Client::new(Arc::new(provider.clone()));
    for name in ["Long", "Racing", "Again"] {
        let status = run(&client, name, name, "1").await;
        assert!(matches!(status, OrchestrationStatus::Completed { .. }), "{status:?}");
        assert_eq!(account.head(name).await["ttl"], Value::Null, "{name}");
    }
    run(&client, "fails", "Fails", "").await;
    client.start_orchestration("parent", "Parent", "x").await.unwrap();
    let child = "parent::sub::2";
    until("the child has ended", async || account.head(child).await["status"] == "Completed").await;
    assert_eq!(account.head(child).await["ttl"], Value::Null, "a child goes with its parent");
    runtime.shutdown(None).await;

    let provider = account.provider_after(HOUR + HOUR / 2, Some("completed=1h failed=2h")).await;
    let done = provider.apply_retention().await.unwrap();
    assert_eq!((done.deleted, done.kept), (3, 0), "{done:?}");
    for name in ["Long", "Racing", "Again"] {
        assert_eq!(account.remains(name).await, Vec::<String>::new(), "{name}");
    }
    assert_eq!(account.head("fails").await["status"], "Failed", "failed ones are kept for longer");
    assert_eq!(account.head(child).await["status"], "Completed", "its parent waits");

    let runtime = self::runtime(&provider).await;
    let client = Client::new(Arc::new(provider.clone()));
    client.raise_event("parent", "go", "").await.unwrap();
    let status = client.wait_for_orchestration("parent", Duration::from_secs(120)).await.unwrap();
    assert!(
        matches!(status, OrchestrationStatus::Completed { ref output, .. } if output == "x"),
        "{status:?}"
    );
    runtime.shutdown(None).await;
    let provider = account.provider_after(HOUR * 2, Some("completed=1h")).await;
    assert_eq!(provider.apply_retention().await.unwrap().deleted, 2, "the parent and its child");
    assert!(account.remains("parent").await.is_empty() && account.remains(child).await.is_empty());
    assert!(account.head("fails").await.is_null(), "that one stood alone");
}

/// Takes the next turn of an instance and commits it.
async fn end(provider: &CosmosDBProvider, instance: &str, status: Option<&str>, items: Vec<WorkItem>) {
    let lock = Duration::from_secs(30);
    let (turn, token, _) = provider.fetch_orchestration_item(lock, lock, None).await.unwrap().unwrap();
    assert_eq!(turn.instance, instance);
    let parent = turn.messages.iter().find_map(|item| match item {
        WorkItem::StartOrchestration { parent_instance, .. } => parent_instance.clone(),
        _ => None,
    });
    let status = status.unwrap_or("Completed").to_owned();
    let metadata = ExecutionMetadata { status: Some(status), parent_instance_id: parent, ..named() };
    let events = if turn.history.is_empty() { vec![event(instance, 1)] } else { Vec::new() };
    provider.ack_orchestration_item(&token, 1, events, vec![], items, metadata, vec![]).await.unwrap();
}

fn child_of(parent: &str, child: &str) -> WorkItem {
    let WorkItem::StartOrchestration { instance, orchestration, input, version, execution_id, .. } =
        start(child, "Hello", "")
    else {
        unreachable!("a start")
    };
    WorkItem::StartOrchestration {
        instance,
        orchestration,
        input,
        version,
        parent_instance: Some(parent.to_owned()),
        parent_id: Some(2),
        parent_execution_id: Some(1),
        execution_id,
    }
}

#[tokio::test]
async fn a_tree_of_which_anything_runs_or_has_not_begun_is_left_alone() {
    let account = Account::new();
    let provider = account.provider(None).await;
    provider.enqueue_for_orchestrator(start("root", "Hello", ""), None).await.unwrap();
    end(&provider, "root", None, vec![child_of("root", "child")]).await;
    let policy = Some("completed=1h");
    let later = account.provider_after(HOUR * 2, policy).await;
    let done = later.apply_retention().await.unwrap();
    assert_eq!((done.deleted, done.kept), (0, 1), "the child has not begun: {done:?}");
    end(&later, "child", Some("Running"), Vec::new()).await;
    let done = later.apply_retention().await.unwrap();
    assert_eq!((done.deleted, done.kept), (0, 1), "the child runs: {done:?}");
    assert_eq!(later.list_instances().await.unwrap().len(), 2);
    later
        .enqueue_for_orchestrator(
            WorkItem::QueueMessage { instance: "child".into(), name: "n".into(), data: String::new() },
            None,
        )
        .await
        .unwrap();
    end(&later, "child", None, Vec::new()).await;
    assert_eq!(later.apply_retention().await.unwrap().deleted, 2, "the root has been over for long enough");
}

#[tokio::test]
async fn mail_for_an_ended_instance_does_not_prolong_its_life() {
    let account = Account::new();
    let provider = account.provider(Some("completed=1h")).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    end(&provider, "a", None, Vec::new()).await;
    let later = account.provider_after(HOUR / 2, Some("completed=1h")).await;
    let mail = WorkItem::QueueMessage { instance: "a".into(), name: "n".into(), data: String::new() };
    later.enqueue_for_orchestrator(mail, None).await.unwrap();
    let lock = Duration::from_secs(30);
    let (_, token, _) = later.fetch_orchestration_item(lock, lock, None).await.unwrap().unwrap();
    let nothing = ExecutionMetadata::default();
    later.ack_orchestration_item(&token, 1, vec![], vec![], vec![], nothing, vec![]).await.unwrap();
    let ttl = account.head("a").await["ttl"].as_i64().unwrap();
    assert!((1700..=1800).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_policy_of_the_container_goes_before_and_a_longer_one_takes_expiry_back() {
    let account = Account::new();
    let provider = account.provider(Some("completed=1h")).await;
    for name in ["a", "b"] {
        provider.enqueue_for_orchestrator(start(name, "Hello", ""), None).await.unwrap();
        end(&provider, name, None, Vec::new()).await;
    }
    let days: Retention = "completed=10d".parse().unwrap();
    assert_eq!(provider.set_retention(Some(&days)).await.unwrap(), 2);
    let ttl = account.head("a").await["ttl"].as_i64().unwrap();
    assert!((863_000..=864_000).contains(&ttl), "{ttl}");
    let other = account.provider_after(HOUR * 24, Some("completed=1h")).await;
    assert_eq!((other.retention(), other.list_instances().await.unwrap().len()), (days.clone(), 2));
    let mut rows: Vec<RetentionRow> = Vec::new();
    other.foresee_retention(&"completed=1h".parse().unwrap(), |row| rows.push(row)).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.due_at < row.expires_at), "{rows:?}");
    assert_eq!(other.set_retention(None).await.unwrap(), 0, "its own policy keeps them for a shorter time");
    assert_eq!(other.apply_retention().await.unwrap().deleted, 2, "which the fleet sees to");
    let last = account.provider(None).await;
    assert!(last.stored_retention().is_none() && last.retention().keeps_everything());
}

#[tokio::test]
async fn one_member_of_the_fleet_looks_after_it_by_itself() {
    let account = Account::new();
    let provider = account.provider(None).await;
    provider.enqueue_for_orchestrator(start("a", "Hello", ""), None).await.unwrap();
    end(&provider, "a", None, Vec::new()).await;
    provider.shutdown().await;
    account.emulator.clock().advance(HOUR * 2);
    let config = CosmosDBProviderConfig {
        retention_interval: Duration::from_millis(50),
        ..account.config(Some("completed=1h"))
    };
    let provider = CosmosDBProvider::new_with_config(config).await.unwrap();
    let runtime = runtime(&provider).await;
    until("it is gone", async || account.remains("a").await.is_empty()).await;
    runtime.shutdown(None).await;
}
