//! [`CosmosDBProvider`]: one delegating line per method of the contract.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{
    DeleteInstanceResult, DispatcherCapabilityFilter, ExecutionInfo, ExecutionMetadata, InstanceFilter,
    InstanceInfo, InstanceTree, OrchestrationItem, Provider, ProviderAdmin, ProviderError, PruneOptions,
    PruneResult, QueueDepths, ScheduledActivityIdentifier, SessionFetchConfig, SystemMetrics, WorkItem,
};
use duroxide::{Event, SystemStats, TagFilter};

use crate::admin::bulk::{self, BulkMode};
use crate::bootstrap;
use crate::codec::CodecError;
use crate::config::CosmosDBProviderConfig;
use crate::core::Core;
use crate::documents::{Forgive, addressee};
use crate::fleet::Hand;
use crate::keeper::Keeper;
use crate::orchestration::plan::Turn;
use crate::outbox_faults::OutboxFaultInjector;
use crate::reconciler::Reconciler;
use crate::telemetry::Outcome;
use crate::token::Token;
use crate::{admin, history, membership, orchestration, queue, session, status, work};

/// The Cosmos DB storage provider of duroxide.
///
/// Clones share everything. Background work ends when the last clone is dropped.
#[derive(Clone)]
pub struct CosmosDBProvider {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    reconciler: Reconciler,
    _keeper: Keeper,
}

impl std::fmt::Debug for CosmosDBProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CosmosDBProvider")
            .field("settings", &self.inner.core.settings)
            .finish_non_exhaustive()
    }
}

impl CosmosDBProvider {
    /// Connects to an account with a key; database and the container `duroxide` are created if they are missing.
    ///
    /// # Errors
    /// When the account cannot be reached, the key is wrong, the account does not promise what workflows need (one write
    /// region, session consistency at least), or the container is not one of ours.
    pub async fn new(endpoint: &str, key: &str, database: &str) -> Result<Self, ProviderError> {
        Self::new_with_config(CosmosDBProviderConfig::new(endpoint, key).with_database(database)).await
    }

    /// As [`new`](Self::new), with a container name.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn new_with_container(
        endpoint: &str,
        key: &str,
        database: &str,
        container: &str,
    ) -> Result<Self, ProviderError> {
        let config =
            CosmosDBProviderConfig::new(endpoint, key).with_database(database).with_container(container);
        Self::new_with_config(config).await
    }

    /// As [`new`](Self::new), with everything that can be set.
    ///
    /// # Errors
    /// As [`new`](Self::new); also when a setting cannot work.
    pub async fn new_with_config(config: CosmosDBProviderConfig) -> Result<Self, ProviderError> {
        config.validate()?;
        if let Some(sentence) = config.without_effect() {
            static TOLD: std::sync::Once = std::sync::Once::new();
            TOLD.call_once(|| tracing::warn!("{sentence}"));
        }
        let (store, stamp) = bootstrap::open(&config).await?;
        let core = Arc::new(Core::new(store, &config, stamp.as_ref()));
        let reconciler = Reconciler::start(&core, config.reconciler_interval);
        let keeper = Keeper::start(&core, config.retention_interval);
        Ok(Self { inner: Arc::new(Inner { core, reconciler, _keeper: keeper }) })
    }

    /// As [`new`](Self::new), with settings from the environment
    /// (see [`CosmosDBProviderConfig::from_env`]).
    ///
    /// # Errors
    /// As [`new`](Self::new); also when a variable is missing.
    pub async fn from_env() -> Result<Self, ProviderError> {
        Self::new_with_config(CosmosDBProviderConfig::from_env()?).await
    }

    /// Skips immediate deliveries to other instances, so that the reconciler has to do them. For tests.
    pub fn set_outbox_fault_injector(&mut self, injector: OutboxFaultInjector) {
        let mut faults = self.core().outbox_faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *faults = Some(injector);
    }

    /// Leaves the fleet: what other processes are to go on with is handed over at once, instead of when they notice that
    /// this one is gone. Call it after the runtime was shut down: turns and activities that were cut off by that are given
    /// back, and others begin them anew without an attempt being counted. While a runtime still asks this provider for work,
    /// the locks it holds stay valid until they end.
    pub async fn shutdown(&self) {
        membership::leave(self.core()).await;
    }

    /// Deletes the container and everything in it, and ends background work.
    ///
    /// # Errors
    /// When the container cannot be deleted.
    pub async fn cleanup(&self) -> Result<(), ProviderError> {
        self.inner.reconciler.stop();
        let core = self.core();
        core.store
            .delete_container(core.store.call("cleanup"))
            .await
            .map_err(|fault| fault.surface("cleanup", ""))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// Tells of something of an instance whose payload cannot be opened here, and says how long it is put off. The attempt
    /// does not count and the runtime never sees it: it would take it for a workflow that has failed.
    fn park(&self, instance: &str, error: &CodecError) -> Duration {
        let delay = self.core().seal.parks_for(instance);
        metrics::counter!("duroxide_cdb_unreadable_payloads_total").increment(1);
        tracing::error!(instance, key = error.key_id(), ?delay, "put off: {error}");
        delay
    }
}

/// The contract's limit, where the caller names none.
fn bounded(filter: InstanceFilter) -> InstanceFilter {
    InstanceFilter { limit: Some(filter.limit.unwrap_or(BULK_LIMIT)), ..filter }
}

const BULK_LIMIT: u32 = 1000;
/// So many that cannot be opened are put off within one fetch.
const UNREADABLE_MAX: usize = 64;

fn forgive(ignore_attempt: bool) -> Forgive {
    if ignore_attempt { Forgive::ThisAttempt } else { Forgive::No }
}

#[async_trait::async_trait]
impl Provider for CosmosDBProvider {
    fn name(&self) -> &str {
        "duroxide-cdb"
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn fetch_orchestration_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Result<Option<(OrchestrationItem, String, u32)>, ProviderError> {
        self.core().layout.check_waiting("fetch_orchestration_item", poll_timeout).await?;
        let _asking = self.core().fleet.asking();
        membership::join(self.core(), Some(Hand::Turns)).await;
        let until = self.core().clock.instant() + poll_timeout;
        for _ in 0..UNREADABLE_MAX {
            let wait = until.saturating_duration_since(self.core().clock.instant());
            let fetched = orchestration::fetch::fetch(self.core(), lock_timeout, wait, filter).await?;
            let Some((mut item, token, attempts)) = fetched else { return Ok(None) };
            match self.core().seal.open_turn(&mut item) {
                Ok(()) => {
                    self.core().telemetry.turn(&token, &item);
                    return Ok(Some((item, token, attempts)));
                }
                Err(error) => {
                    let delay = self.park(&item.instance, &error);
                    orchestration::lock::abandon(self.core(), &token, Some(delay), Forgive::ThisAttempt)
                        .await?;
                }
            }
        }
        Ok(None)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(lock_token)))]
    async fn ack_orchestration_item(
        &self,
        lock_token: &str,
        execution_id: u64,
        history_delta: Vec<Event>,
        worker_items: Vec<WorkItem>,
        orchestrator_items: Vec<WorkItem>,
        metadata: ExecutionMetadata,
        cancelled_activities: Vec<ScheduledActivityIdentifier>,
    ) -> Result<(), ProviderError> {
        const OPERATION: &str = "ack_orchestration_item";
        let seal = &self.core().seal;
        let turn = Turn {
            execution_id,
            history_delta: seal.events(OPERATION, history_delta)?,
            worker_items: seal.items(OPERATION, worker_items)?,
            orchestrator_items: seal.items(OPERATION, orchestrator_items)?,
            metadata: ExecutionMetadata { output: seal.text(OPERATION, metadata.output)?, ..metadata },
            cancelled: cancelled_activities,
        };
        let acked = orchestration::ack::ack(self.core(), lock_token, turn).await;
        // The runtime acks a turn again, as failed, when the first ack did not get through.
        let outcome = if acked.is_ok() { Outcome::Completed } else { Outcome::Lost };
        self.core().telemetry.end(lock_token, outcome);
        acked
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(lock_token)))]
    async fn abandon_orchestration_item(
        &self,
        lock_token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.core().telemetry.end(lock_token, Outcome::Abandoned);
        orchestration::lock::abandon(self.core(), lock_token, delay, forgive(ignore_attempt)).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(token)))]
    async fn renew_orchestration_item_lock(
        &self,
        token: &str,
        extend_for: Duration,
    ) -> Result<(), ProviderError> {
        orchestration::lock::renew(self.core(), token, extend_for).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn read(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        let events = history::read(self.core(), "read", instance).await?;
        self.core().seal.opened_events("read", events)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn read_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        let events =
            history::read_execution(self.core(), "read_with_execution", instance, execution_id).await?;
        self.core().seal.opened_events("read_with_execution", events)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn append_with_execution(
        &self,
        instance: &str,
        execution_id: u64,
        new_events: Vec<Event>,
    ) -> Result<(), ProviderError> {
        let events = self.core().seal.events("append_with_execution", new_events)?;
        history::append(self.core(), instance, execution_id, &events).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = addressee(&item)))]
    async fn enqueue_for_worker(&self, item: WorkItem) -> Result<(), ProviderError> {
        queue::for_worker(self.core(), &self.core().seal.item("enqueue_for_worker", item)?).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn fetch_work_item(
        &self,
        lock_timeout: Duration,
        poll_timeout: Duration,
        session: Option<&SessionFetchConfig>,
        tag_filter: &TagFilter,
    ) -> Result<Option<(WorkItem, String, u32)>, ProviderError> {
        self.core().layout.check_waiting("fetch_work_item", poll_timeout).await?;
        // Only activities without a tag are left to the owner of their slot.
        let runs_untagged = match tag_filter {
            TagFilter::DefaultOnly | TagFilter::DefaultAnd(_) | TagFilter::Any => true,
            TagFilter::Tags(_) | TagFilter::None => false,
        };
        let _asking = self.core().fleet.asking();
        membership::join(self.core(), runs_untagged.then_some(Hand::Work)).await;
        let until = self.core().clock.instant() + poll_timeout;
        for _ in 0..UNREADABLE_MAX {
            let wait = until.saturating_duration_since(self.core().clock.instant());
            let fetched = work::fetch::fetch(self.core(), lock_timeout, wait, session, tag_filter).await?;
            let Some((mut item, token, attempts)) = fetched else { return Ok(None) };
            match self.core().seal.open_item(&mut item) {
                Ok(()) => {
                    self.core().telemetry.activity(&token, &item);
                    return Ok(Some((item, token, attempts)));
                }
                Err(error) => {
                    let delay = self.park(&addressee(&item), &error);
                    work::lock::abandon(self.core(), &token, Some(delay), Forgive::ThisAttempt).await?;
                }
            }
        }
        Ok(None)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(token)))]
    async fn ack_work_item(&self, token: &str, completion: Option<WorkItem>) -> Result<(), ProviderError> {
        let seal = &self.core().seal;
        let completion = completion.map(|item| seal.item("ack_work_item", item)).transpose()?;
        let outcome = Outcome::of(completion.as_ref());
        let acked = work::ack::ack(self.core(), token, completion).await;
        self.core().telemetry.end(token, if acked.is_ok() { outcome } else { Outcome::Lost });
        acked
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(token)))]
    async fn renew_work_item_lock(&self, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        work::lock::renew(self.core(), token, extend_for).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = Token::partition_of(token)))]
    async fn abandon_work_item(
        &self,
        token: &str,
        delay: Option<Duration>,
        ignore_attempt: bool,
    ) -> Result<(), ProviderError> {
        self.core().telemetry.end(token, Outcome::Abandoned);
        work::lock::abandon(self.core(), token, delay, forgive(ignore_attempt)).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn renew_session_lock(
        &self,
        owner_ids: &[&str],
        extend_for: Duration,
        idle_timeout: Duration,
    ) -> Result<usize, ProviderError> {
        session::renew(&self.core().store, &self.core().sessions, owner_ids, extend_for, idle_timeout).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn cleanup_orphaned_sessions(&self, _idle_timeout: Duration) -> Result<usize, ProviderError> {
        session::clean_up(&self.core().store, &self.core().sessions, &self.core().strays).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = addressee(&item)))]
    async fn enqueue_for_orchestrator(
        &self,
        item: WorkItem,
        delay: Option<Duration>,
    ) -> Result<(), ProviderError> {
        let item = self.core().seal.item("enqueue_for_orchestrator", item)?;
        queue::for_orchestrator(self.core(), &item, delay).await
    }

    fn as_management_capability(&self) -> Option<&dyn ProviderAdmin> {
        Some(self)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_custom_status(
        &self,
        instance: &str,
        last_seen_version: u64,
    ) -> Result<Option<(Option<String>, u64)>, ProviderError> {
        let found = status::custom_status(self.core(), instance, last_seen_version).await?;
        let Some((status, version)) = found else { return Ok(None) };
        Ok(Some((self.core().seal.opened("get_custom_status", status)?, version)))
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_kv_value(&self, instance: &str, key: &str) -> Result<Option<String>, ProviderError> {
        let value = status::kv_value(self.core(), instance, key).await?;
        self.core().seal.opened("get_kv_value", value)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_kv_all_values(&self, instance: &str) -> Result<HashMap<String, String>, ProviderError> {
        let mut values = status::kv_values(self.core(), instance).await?;
        for value in values.values_mut() {
            let open = self.core().seal.opened("get_kv_all_values", Some(std::mem::take(value)))?;
            *value = open.unwrap_or_default();
        }
        Ok(values)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_instance_stats(&self, instance: &str) -> Result<Option<SystemStats>, ProviderError> {
        status::stats(self.core(), instance).await
    }
}

#[async_trait::async_trait]
impl ProviderAdmin for CosmosDBProvider {
    #[tracing::instrument(level = "debug", skip_all)]
    async fn list_instances(&self) -> Result<Vec<String>, ProviderError> {
        admin::list::instances(self.core(), None).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn list_instances_by_status(&self, status: &str) -> Result<Vec<String>, ProviderError> {
        admin::list::instances(self.core(), Some(status)).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn list_executions(&self, instance: &str) -> Result<Vec<u64>, ProviderError> {
        admin::info::executions(self.core(), instance).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn read_history_with_execution_id(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<Vec<Event>, ProviderError> {
        let events =
            history::read_execution(self.core(), "read_history_with_execution_id", instance, execution_id)
                .await?;
        self.core().seal.opened_events("read_history_with_execution_id", events)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn read_history(&self, instance: &str) -> Result<Vec<Event>, ProviderError> {
        let events = history::read(self.core(), "read_history", instance).await?;
        self.core().seal.opened_events("read_history", events)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn latest_execution_id(&self, instance: &str) -> Result<u64, ProviderError> {
        let call = self.core().store.call("latest_execution_id");
        Ok(admin::info::existing(self.core(), call, instance).await?.current_execution_id)
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_instance_info(&self, instance: &str) -> Result<InstanceInfo, ProviderError> {
        let info = admin::info::instance(self.core(), instance).await?;
        Ok(InstanceInfo { output: self.core().seal.opened("get_instance_info", info.output)?, ..info })
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance))]
    async fn get_execution_info(
        &self,
        instance: &str,
        execution_id: u64,
    ) -> Result<ExecutionInfo, ProviderError> {
        let info = admin::info::execution(self.core(), instance, execution_id).await?;
        Ok(ExecutionInfo { output: self.core().seal.opened("get_execution_info", info.output)?, ..info })
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn get_system_metrics(&self) -> Result<SystemMetrics, ProviderError> {
        admin::metrics::system(self.core()).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn get_queue_depths(&self) -> Result<QueueDepths, ProviderError> {
        admin::metrics::queue_depths(self.core()).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance_id))]
    async fn list_children(&self, instance_id: &str) -> Result<Vec<String>, ProviderError> {
        let call = self.core().store.call("list_children");
        let parents = [instance_id.to_owned()];
        let children = admin::list::children(self.core(), call, &parents).await;
        children.map_err(|fault| fault.surface(call.operation, instance_id))
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance_id))]
    async fn get_parent_id(&self, instance_id: &str) -> Result<Option<String>, ProviderError> {
        let call = self.core().store.call("get_parent_id");
        admin::info::parent(self.core(), call, instance_id).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn delete_instances_atomic(
        &self,
        ids: &[String],
        force: bool,
    ) -> Result<DeleteInstanceResult, ProviderError> {
        let terms = if force { admin::Terms::Any } else { admin::Terms::Ended };
        admin::delete::instances(self.core(), ids, terms).await
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance_id))]
    async fn get_instance_tree(&self, instance_id: &str) -> Result<InstanceTree, ProviderError> {
        let call = self.core().store.call("get_instance_tree");
        let all_ids = admin::list::tree(self.core(), call, instance_id).await;
        let all_ids = all_ids.map_err(|fault| fault.surface(call.operation, instance_id))?;
        Ok(InstanceTree { root_id: instance_id.to_owned(), all_ids })
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn delete_instance_bulk(
        &self,
        filter: InstanceFilter,
    ) -> Result<DeleteInstanceResult, ProviderError> {
        let done = bulk::delete(self.core(), &bounded(filter), BulkMode::Perform, &mut |_| {}).await?;
        Ok(DeleteInstanceResult {
            instances_deleted: done.instances,
            executions_deleted: done.executions,
            events_deleted: done.events,
            queue_messages_deleted: done.messages,
        })
    }

    #[tracing::instrument(level = "debug", skip_all, fields(instance = instance_id))]
    async fn prune_executions(
        &self,
        instance_id: &str,
        options: PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        admin::prune::executions(self.core(), instance_id, &options, BulkMode::Perform).await
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn prune_executions_bulk(
        &self,
        filter: InstanceFilter,
        options: PruneOptions,
    ) -> Result<PruneResult, ProviderError> {
        let filter = bounded(filter);
        let done = bulk::prune(self.core(), &filter, &options, BulkMode::Perform, &mut |_| {}).await?;
        Ok(PruneResult {
            instances_processed: done.instances,
            executions_deleted: done.executions,
            events_deleted: done.events,
        })
    }
}
