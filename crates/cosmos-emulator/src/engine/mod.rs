//! The engine: what a Cosmos DB account holds and does, without HTTP.
//!
//! Life of a write: [`Engine::item`] parses the document once, hashes its partition key to find the physical
//! partition, takes that partition's writer lock, checks conditions against what is stored, and commits item, index,
//! unique keys, change order and counters as one batch of the store with the next LSN. The reply carries a ticket;
//! whoever answers the client waits for it first. Readers take no lock.
//!
//! Everything is synchronous, takes `&self`, and depends on nothing but the store and the clock it was given.

mod api;
mod encode;
mod json;
mod key;
mod patch;
mod path;
mod policy;
pub mod quota;
mod request;
mod terms;

use std::sync::Arc;

pub use api::Container;
pub use patch::{OPERATIONS_MAX as PATCH_OPERATIONS_MAX, Operation as PatchOperation, Patch, Pointer};
pub use request::{
    BatchMode, BatchOperation, BatchReply, BatchRequest, BatchResult, Conditions, DocumentPage, FeedPage,
    FeedRequest, FeedStart, ItemOp, ItemReply, ItemRequest, OfferMigration, PageSize, QueryPage,
    QueryRequest, RangesReply, ReadFeedRequest, ResourceFeed, ResourceReply, Scope, Standing, Throughput,
};

use crate::clock::Clock;
use crate::storage::{Storage, StorageError};

/// How an engine behaves; the default is an account as Azure makes it.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// Physical partitions of each new container; `None` takes one for each 10 000 RU/s of its throughput.
    pub partitions: Option<u32>,
}

/// Databases, containers and items of one account in one region.
pub struct Engine {
    storage: Arc<dyn Storage>,
    clock: Clock,
    options: EngineOptions,
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
        Ok(Self { storage, clock, options })
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
}
