//! What people who operate workflows ask for beyond the storage contract.

use duroxide::providers::{InstanceFilter, ProviderError, PruneOptions};

use crate::admin::bulk::{self, BulkMode, BulkProgress};
use crate::provider::CosmosDBProvider;

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
}
