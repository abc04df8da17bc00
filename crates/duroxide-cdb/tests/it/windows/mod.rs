//! The windows in which a provider can lose, duplicate or hide work. Each test holds one of them open.

mod accounts;
mod admin;
mod adversary;
mod backlog;
mod cancels;
mod clocks;
mod commits;
mod damage;
mod drops;
mod early_mail;
mod families;
mod fetching;
mod fleet_adversary;
mod fleet_doubles;
mod held;
mod hostile;
mod kept_events;
mod lagging;
mod leftovers;
mod locks;
mod malformed;
mod names;
mod neighbours;
mod once;
mod opening;
mod outbox;
mod pieces;
mod searching;
mod sessions;
mod sets;
mod sharing;
mod starving;
mod transport;

use std::time::Duration;

use cosmos_emulator::{FaultRule, Operation, Verdict};
use duroxide::providers::{ExecutionMetadata, Provider as _, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

use crate::world::{DATABASE, activity, documents, emulator, event, fresh_name, named, noise, raw, start};

/// Outlives a hundred requests on a busy machine.
pub(crate) const LOCK: Duration = Duration::from_secs(120);
pub(crate) const NOW: Duration = Duration::ZERO;

/// Settings of a process that takes no part in the fleet, so that each lock is a request that a test can hold up.
pub(crate) fn config(container: &str) -> CosmosDBProviderConfig {
    CosmosDBProviderConfig {
        leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)),
        ..crate::world::config(container)
    }
}

pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) provider: CosmosDBProvider,
}

pub(crate) async fn place() -> Place {
    place_with(|config| config).await
}

pub(super) async fn place_with(
    change: impl FnOnce(CosmosDBProviderConfig) -> CosmosDBProviderConfig,
) -> Place {
    let name = fresh_name();
    let provider = CosmosDBProvider::new_with_config(change(config(&name))).await.unwrap();
    Place { name, provider }
}

/// A place whose own process leaves to others what was not finished.
pub(super) async fn place_without_sweeps() -> Place {
    place_with(|config| CosmosDBProviderConfig { reconciler_interval: Duration::from_secs(600), ..config })
        .await
}

/// A place where others may finish at once what its own process did not.
pub(super) async fn place_of_a_dying_process() -> Place {
    place_with(|config| CosmosDBProviderConfig {
        reconciler_interval: Duration::from_secs(600),
        reconciler_age_threshold: NOW,
        ..config
    })
    .await
}

impl Place {
    /// Another process on the same container.
    pub(crate) async fn other(&self) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(config(&self.name)).await.unwrap()
    }

    /// A process that lives and finishes what another has left.
    pub(super) async fn survivor(&self) -> CosmosDBProvider {
        CosmosDBProvider::new_with_config(CosmosDBProviderConfig {
            reconciler_interval: Duration::from_millis(50),
            ..config(&self.name)
        })
        .await
        .unwrap()
    }

    pub(crate) fn rule(&self, verdict: Verdict) -> FaultRule {
        FaultRule::new(verdict).in_container(self.link())
    }

    /// How many requests the account has answered, of one kind or of all.
    pub(super) fn answered(&self, operation: Option<Operation>) -> u64 {
        let link = self.link();
        let lines = emulator().ledger().snapshot().lines;
        let meant = lines.iter().filter(|line| {
            *line.container == *link && operation.is_none_or(|operation| line.operation == operation)
        });
        meant.map(|line| line.totals.requests).sum()
    }

    fn link(&self) -> String {
        format!("dbs/{DATABASE}/colls/{}", self.name)
    }

    /// The documents of one type in a partition.
    pub(crate) async fn of_type(&self, instance: &str, kind: &str) -> Vec<Value> {
        let mut documents = documents(&raw(&self.name).await, instance).await;
        documents.retain(|document| document["type"] == kind);
        documents
    }

    pub(super) async fn kinds(&self, instance: &str) -> Vec<String> {
        let mut kinds: Vec<String> = documents(&raw(&self.name).await, instance)
            .await
            .iter()
            .map(|document| document["type"].as_str().unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        kinds
    }

    /// Starts an instance and leaves it idle after its first turn, whose event is too long for the head: there is a document
    /// of its history.
    pub(crate) async fn begin(&self, instance: &str) {
        let mut first = event(instance, 1);
        if let EventKind::OrchestrationStarted { input, .. } = &mut first.kind {
            *input = noise(4000);
        }
        self.begin_with(instance, first).await;
    }

    /// The same with an event of one's own.
    pub(super) async fn begin_with(&self, instance: &str, first: Event) {
        let provider = &self.provider;
        provider.enqueue_for_orchestrator(start(instance, "Hello", ""), None).await.unwrap();
        let (item, token, _) = provider.fetch_orchestration_item(LOCK, NOW, None).await.unwrap().unwrap();
        assert_eq!(item.instance, instance);
        let events = vec![first];
        provider.ack_orchestration_item(&token, 1, events, vec![], vec![], named(), vec![]).await.unwrap();
    }
}

pub(crate) fn status(code: u16, sub_status: u32) -> Verdict {
    Verdict::Status { code, sub_status, retry_after: Some(Duration::from_millis(20)) }
}

pub(crate) fn mail(instance: &str, data: &str) -> WorkItem {
    WorkItem::QueueMessage { instance: instance.into(), name: "mail".into(), data: data.into() }
}

/// A message that starts an instance's next execution.
pub(super) fn successor(instance: &str) -> WorkItem {
    WorkItem::ContinueAsNew {
        instance: instance.into(),
        orchestration: "Hello".into(),
        input: String::new(),
        version: Some("1.0.0".into()),
        carry_forward_events: vec![],
        initial_custom_status: None,
        parent_instance: None,
        parent_id: None,
        parent_execution_id: None,
    }
}

pub(super) fn cancel(instance: &str, activity_id: u64) -> ScheduledActivityIdentifier {
    ScheduledActivityIdentifier { instance: instance.to_owned(), execution_id: 1, activity_id }
}

pub(super) fn ended(as_what: &str) -> ExecutionMetadata {
    ExecutionMetadata { status: Some(as_what.to_owned()), output: Some("out".to_owned()), ..named() }
}

/// A work item of a session.
pub(crate) fn of_session(instance: &str, id: u64, session: &str) -> WorkItem {
    match activity(instance, id) {
        WorkItem::ActivityExecute { instance, execution_id, id, name, input, tag, .. } => {
            let session_id = Some(session.to_owned());
            WorkItem::ActivityExecute { instance, execution_id, id, name, input, session_id, tag }
        }
        other => other,
    }
}

/// Commits a turn that does nothing but append events.
pub(super) async fn commit(
    provider: &CosmosDBProvider,
    token: &str,
    events: Vec<Event>,
    metadata: ExecutionMetadata,
) -> Result<(), duroxide::providers::ProviderError> {
    provider.ack_orchestration_item(token, 1, events, vec![], vec![], metadata, vec![]).await
}
