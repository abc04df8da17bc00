//! What people who operate workflows ask for beyond the storage contract.

use duroxide::providers::{DeleteInstanceResult, InstanceFilter, ProviderError, PruneOptions};

use crate::admin::bulk::{self, BulkMode, BulkProgress};
use crate::admin::{Terms, delete};

use crate::keeper::{self, RetentionProgress, RetentionRow};
use crate::layout::put_retention;
use crate::provider::CosmosDBProvider;
use crate::retention::Retention;

impl CosmosDBProvider {
    /// What this provider has spent so far: requests, request units and time, by operation and by instance.
    #[must_use]
    pub fn spending(&self) -> crate::LedgerSnapshot {
        self.core().store.spending()
    }

    /// Messages that could never be delivered: source, target, reason.
    ///
    /// # Errors
    /// When the account cannot be asked.
    pub async fn dead_letters(&self) -> Result<Vec<crate::DeadLetterInfo>, ProviderError> {
        crate::outbox::dead_letters(self.core()).await
    }

    /// Sends a dead letter again, after what kept it from arriving is fixed. It still arrives once at most.
    ///
    /// # Errors
    /// When there is no such dead letter, it holds no message, or the account cannot be asked.
    pub async fn requeue_dead_letter(&self, source: &str, id: &str) -> Result<(), ProviderError> {
        crate::outbox::requeue(self.core(), source, id).await
    }

    /// Forgets a dead letter.
    ///
    /// # Errors
    /// When there is no such dead letter, or the account cannot be asked.
    pub async fn drop_dead_letter(&self, source: &str, id: &str) -> Result<(), ProviderError> {
        crate::outbox::drop_letter(self.core(), source, id).await
    }

    /// Deletes an instance with its descendants, also if it is running where `force` says so. One that has ended and has
    /// no children takes three requests, and one more for each further physical partition.
    ///
    /// # Errors
    /// When there is no such instance, when it or a descendant is running and `force` does not say so, or when the account
    /// cannot be asked.
    pub async fn delete_tree(&self, root: &str, force: bool) -> Result<DeleteInstanceResult, ProviderError> {
        let terms = if force { Terms::Any } else { Terms::Ended };
        delete::tree(self.core(), root, terms).await
    }

    /// Whether the account throttles what this provider sends: who does much at once does less then.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        !self.core().store.pause().is_zero()
    }

    /// Deletes finished root instances and their descendants, or counts what it would delete. `progress` is told after
    /// each; an interrupted call is continued by calling it again.
    ///
    /// # Errors
    /// When the account cannot be asked, or an instance cannot be deleted; what was deleted before stays deleted.
    pub async fn delete_where(
        &self,
        filter: &InstanceFilter,
        mode: BulkMode,
        mut progress: impl FnMut(BulkProgress) + Send,
    ) -> Result<BulkProgress, ProviderError> {
        bulk::delete(self.core(), filter, mode, &mut progress).await
    }

    /// Prunes old executions of every instance the filter selects, or counts what it would prune. `progress` is told
    /// after each; an interrupted call is continued by calling it again.
    ///
    /// # Errors
    /// When the account cannot be asked, or an instance cannot be pruned; what was pruned before stays pruned.
    pub async fn prune_where(
        &self,
        filter: &InstanceFilter,
        options: &PruneOptions,
        mode: BulkMode,
        mut progress: impl FnMut(BulkProgress) + Send,
    ) -> Result<BulkProgress, ProviderError> {
        bulk::prune(self.core(), filter, options, mode, &mut progress).await
    }

    /// The policy in force here: the container's, or else what this process is configured with.
    #[must_use]
    pub fn retention(&self) -> Retention {
        Retention::clone(&self.core().layout.retention().0)
    }

    /// The policy that is stored in the container, as far as this process knows.
    #[must_use]
    pub fn stored_retention(&self) -> Option<Retention> {
        self.core().layout.stored_retention().map(|policy| Retention::clone(&policy))
    }

    /// Stores a policy in the container, for all processes, or takes it back. Other processes know of it within minutes.
    /// Heads that would expire too early by the new policy are put right at once; returns how many.
    ///
    /// # Errors
    /// When the account cannot be asked.
    pub async fn set_retention(&self, policy: Option<&Retention>) -> Result<u64, ProviderError> {
        const OPERATION: &str = "set_retention";
        let core = self.core();
        core.layout.check(OPERATION)?;
        let call = core.store.call(OPERATION);
        let stamp = put_retention(&core.store, call, policy, core.clock.now_ms()).await;
        core.layout.note(&stamp.map_err(|fault| fault.surface(OPERATION, ""))?);
        keeper::prolong(core, &core.layout.retention().0).await
    }

    /// Deletes now what the policy in force does not keep any longer and the service does not remove by itself: trees
    /// that have ended, children and all. One process of the fleet does this every hour.
    ///
    /// # Errors
    /// When the account cannot be asked; what was deleted before stays deleted.
    pub async fn apply_retention(&self) -> Result<RetentionProgress, ProviderError> {
        self.core().layout.check("apply_retention")?;
        keeper::sweep(self.core(), &self.core().layout.retention().0).await
    }

    /// Tells of every ended root instance when it goes by a policy. Nothing changes.
    ///
    /// # Errors
    /// When the account cannot be asked.
    pub async fn foresee_retention(
        &self,
        policy: &Retention,
        mut listener: impl FnMut(RetentionRow) + Send,
    ) -> Result<(), ProviderError> {
        keeper::foresee(self.core(), policy, &mut listener).await
    }
}
