//! A provider that counts what its store has accepted. Asking the store itself would cost requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duroxide::providers::{
    DispatcherCapabilityFilter, ExecutionMetadata, OrchestrationItem, Provider, ProviderAdmin, ProviderError,
    ScheduledActivityIdentifier, SessionFetchConfig, TagFilter, WorkItem,
};
use duroxide::{Event, SystemStats};

/// What was accepted so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Orchestrations whose last turn was committed.
    pub completed: AtomicUsize,
    /// Commits of turns and of activities.
    pub commits: AtomicUsize,
}

/// A provider and its tally.
pub struct Tallied {
    inner: Arc<dyn Provider>,
    tally: Arc<Tally>,
}

impl Tallied {
    /// Counts what goes through.
    pub fn new(inner: Arc<dyn Provider>, tally: Arc<Tally>) -> Self {
        Self { inner, tally }
    }
}

type Fetched<T> = Result<Option<(T, String, u32)>, ProviderError>;

#[async_trait::async_trait]
impl Provider for Tallied {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn version(&self) -> &str {
        self.inner.version()
    }

    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Fetched<OrchestrationItem> {
        self.inner.fetch_orchestration_item(lock_timeout, poll_timeout, filter).await
    }

    async fn ack_orchestration_item(
        &self,
        token: &str,
        execution: u64,
        history: Vec<Event>,
        work: Vec<WorkItem>,
        messages: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled: Vec<ScheduledActivityIdentifier>,
    ) -> Result<(), ProviderError> {
        let completes = metadata.status.as_deref() == Some("Completed");
        let acked = self
            .inner
            .ack_orchestration_item(token, execution, history, work, messages, metadata, cancelled)
            .await;
        if acked.is_ok() {
            self.tally.commits.fetch_add(1, Ordering::Relaxed);
            self.tally.completed.fetch_add(usize::from(completes), Ordering::Relaxed);
        }
        acked
    }

    async fn abandon_orchestration_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.inner.abandon_orchestration_item(token, delay, ignore_attempt).await
    }

    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        self.inner.read(instance).await
    }

    async fn read_with_execution(&self, instance: &str, execution: u64) -> Result<Vec<Event>, ProviderError> {
        self.inner.read_with_execution(instance, execution).await
    }

    async fn append_with_execution(
        &self,
        instance: &str,
        execution: u64,
        events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        self.inner.append_with_execution(instance, execution, events).await
    }

    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        self.inner.enqueue_for_worker(item).await
    }

    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tags: &TagFilter,
    ) -> Fetched<WorkItem> {
        self.inner.fetch_work_item(lock_timeout, poll_timeout, session, tags).await
    }

    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        let acked = self.inner.ack_work_item(token, completion).await;
        self.tally.commits.fetch_add(usize::from(acked.is_ok()), Ordering::Relaxed);
        acked
    }

    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        self.inner.renew_work_item_lock(token, extend_for).await
    }

    async fn renew_session_lock(
        &self,
        owners: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        self.inner.renew_session_lock(owners, extend_for, idle_timeout).await
    }

    async fn cleanup_orphaned_sessions(&self, idle_timeout: Duration) -> Result<usize, ProviderError> {
        self.inner.cleanup_orphaned_sessions(idle_timeout).await
    }

    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.inner.abandon_work_item(token, delay, ignore_attempt).await
    }

    async fn renew_orchestration_item_lock(
        &self,
        token: &str,
        extend_for: Duration,
    ) -> Result<(), ProviderError> {
        self.inner.renew_orchestration_item_lock(token, extend_for).await
    }

    async fn enqueue_for_orchestrator(
        &self,
        item: WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), ProviderError> {
        self.inner.enqueue_for_orchestrator(item, delay).await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        self.inner.as_management_capability()
    }

    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        self.inner.get_custom_status(instance, last_seen).await
    }

    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        self.inner.get_kv_value(instance, key).await
    }

    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        self.inner.get_kv_all_values(instance).await
    }

    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        self.inner.get_instance_stats(instance).await
    }
}
