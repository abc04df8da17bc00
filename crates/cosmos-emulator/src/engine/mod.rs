//! The engine: what a Cosmos DB account holds and does, without HTTP.
//!
//! Life of a write: [`Engine::item`] parses the document once, hashes its partition key to find the physical
//! partition, takes that partition's writer lock, checks conditions against what is stored, and commits item, index,
//! unique keys, change order and counters as one batch of the store with the next LSN. The reply carries a ticket;
//! whoever answers the client waits for it first. Readers take no lock.
//!
//! Everything is synchronous, takes `&self`, and depends on nothing but the store and the clock it was given.

mod batch;
mod catalog;
mod container;
mod content;
mod document;
mod feed;
mod history;
mod index;
mod item;
mod json;
mod key;
mod partition;
mod patch;
mod query;
pub mod quota;
pub(crate) mod region;
mod request;
mod scope;
mod script;
mod split;
mod sweep;
#[cfg(test)]
mod tests;
mod throughput;
mod unique;
mod writer;

use arc_swap::{ArcSwap, Guard};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use catalog::offer::increment_percent;
pub use catalog::user::Put;
pub(crate) use catalog::user::may_be_granted;
pub use container::{Container, ContentPath};
pub use patch::{OPERATIONS_MAX as PATCH_OPERATIONS_MAX, Operation as PatchOperation, Patch, Pointer};
pub(crate) use region::MovedPartition;
pub use region::{Failover, RegionError, RegionId, ReplicationLag};
pub use request::{
    BatchMode, BatchOperation, BatchReply, BatchRequest, BatchResult, Conditions, Content, DocumentPage,
    FeedPage, FeedRequest, FeedStart, ItemOp, ItemReply, ItemRequest, OfferMigration, PageSize, QueryPage,
    QueryRequest, RangesReply, ReadFeedRequest, ResourceFeed, ResourceReply, Scope, Standing, Throughput,
};
pub(crate) use scope::range_gone;
pub use script::{ScriptKind, ScriptReply, ScriptRequest, Triggers};
pub use split::{NewPartition, PartitionOperation, Phase, Progression, Reshaping, SplitMode};
pub use throughput::PartitionReport;

use self::catalog::{Catalog, Numbers};
use self::container::IndexState;
use self::region::{Links, Topology};
use crate::Failure;
use crate::clock::Clock;
use crate::config::{Consistency, ReplicationDelay, WriteMode};
use crate::storage::{Batch, NewEntries, Storage, StorageError, Ticket};

/// How an engine behaves; the default is an account as Azure makes it.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Physical partitions of each new container; `None` takes as many as the service makes for its
    /// throughput.
    pub partitions: Option<u32>,
    /// Whether requests are refused with 429 once a partition's throughput is used up.
    pub throttling: bool,
    /// Whether the account has no offers; each physical partition then serves 5 000 RU/s if it throttles at all.
    pub serverless: bool,
    /// Whether the account keeps all versions of all items for the days of a continuous backup, so that each container
    /// has a change feed of them, whatever its policy says.
    pub continuous_backup: bool,
    /// Names of the regions; those the store has never had are added to it. None means those it has, or one called
    /// `Local`.
    pub regions: Vec<String>,
    /// Which regions take writes.
    pub write_mode: WriteMode,
    /// What the account promises to readers.
    pub consistency: Consistency,
    /// How long writes take from region to region.
    pub replication_delays: Vec<ReplicationDelay>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            partitions: None,
            throttling: false,
            serverless: false,
            continuous_backup: false,
            regions: Vec::new(),
            write_mode: WriteMode::Single,
            consistency: Consistency::Session,
            replication_delays: Vec::new(),
        }
    }
}

/// Databases, containers and items of one account.
pub struct Engine {
    storage: Arc<dyn Storage>,
    clock: Clock,
    options: EngineOptions,
    catalog: RwLock<Catalog>,
    topology: ArcSwap<Topology>,
    links: ArcSwap<Links>,
    /// Held by whoever changes the catalog or the shape of a container.
    control: Mutex<Numbers>,
    /// Splits and merges.
    operations: Mutex<split::Operations>,
    /// What containers that share their database's throughput may consume, by database and server.
    shared: Mutex<throughput::Shared>,
}

impl Engine {
    /// Opens what a store holds, or begins with nothing.
    ///
    /// # Errors
    /// When the store cannot be read or was written by a newer version.
    pub fn open(
        storage: Arc<dyn Storage>,
        clock: Clock,
        options: EngineOptions,
    ) -> Result<Self, StorageError> {
        let numbers = Numbers::load(&*storage)?;
        let topology = region::load(&*storage, &options)?;
        let operations = split::Operations::load(&*storage)?;
        let catalog = Catalog::load(&*storage, &topology)?;
        numbers.stamp(&*storage)?;
        let links = ArcSwap::from_pointee(Links::new(options.replication_delays.clone()));
        let engine = Self {
            storage,
            clock,
            options,
            catalog: RwLock::new(catalog),
            topology: ArcSwap::from_pointee(topology),
            links,
            control: Mutex::new(numbers),
            operations: Mutex::new(operations),
            shared: Mutex::default(),
        };
        engine.settle_regions().map_err(|error| StorageError(error.to_string()))?;
        engine.resume_operations()?;
        let containers: Vec<_> = engine.catalog().all_containers().map(Arc::clone).collect();
        for container in containers {
            let shape = container.shape();
            let retention = engine.retention(shape.retention);
            if retention != shape.retention {
                container.set_shape(container::Shape { retention, ..(*shape).clone() });
            }
            let shape = container.shape();
            if shape.index == IndexState::Building {
                engine.reshape(&container, &shape).map_err(|failure| StorageError(failure.message))?;
            }
        }
        Ok(engine)
    }

    /// The clock this engine was given.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The store this engine writes to; replies' tickets are waited for there.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The options this engine was opened with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Keeps the last numbers that were given.
    pub(crate) fn keep_numbers(&self, numbers: &Numbers) -> Result<Ticket, Failure> {
        self.commit(Batch {
            changes: vec![crate::storage::Change::Put(key::meta(), numbers.to_record().into())],
        })
    }

    /// For how many seconds a container keeps the versions of its items, given what its policy says.
    pub(crate) fn retention(&self, by_policy: Option<u64>) -> Option<u64> {
        by_policy.or(self.options.continuous_backup.then_some(BACKUP_SECONDS))
    }

    /// The regions of the account at this moment.
    pub(crate) fn topology(&self) -> Guard<Arc<Topology>> {
        self.topology.load()
    }

    pub(crate) fn commit(&self, batch: Batch) -> Result<Ticket, Failure> {
        self.storage.commit(batch).map_err(|error| request::storage_failed(&error))
    }

    pub(crate) fn commit_with(
        &self,
        entries: Vec<Arc<dyn NewEntries>>,
        batch: Batch,
    ) -> Result<Ticket, Failure> {
        self.storage.commit_with(entries, batch).map_err(|error| request::storage_failed(&error))
    }

    fn catalog(&self) -> RwLockReadGuard<'_, Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn catalog_mut(&self) -> RwLockWriteGuard<'_, Catalog> {
        self.catalog.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> MutexGuard<'_, Numbers> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seven days: the shorter of the two that the service offers.
const BACKUP_SECONDS: u64 = 7 * 24 * 60 * 60;

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("options", &self.options).finish_non_exhaustive()
    }
}
