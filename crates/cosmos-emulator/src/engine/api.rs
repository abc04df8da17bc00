//! The methods of the engine, being filled in.

use std::sync::Arc;

use cosmos_wire::partition_key::{Definition, PartitionKey};
use serde_json::Value;

use super::request::*;
use super::{Engine, Patch};
use crate::Failure;

/// One container, as long as it exists.
pub struct Container {
    definition: Definition,
}

impl Container {
    /// Resource id: 8 bytes in base64.
    pub fn rid(&self) -> String {
        String::new()
    }

    /// The name its owner gave it.
    pub fn name(&self) -> String {
        String::new()
    }

    /// Name of its database.
    pub fn database_name(&self) -> String {
        String::new()
    }

    /// `dbs/{db}/colls/{container}`: what `x-ms-alt-content-path` says.
    pub fn alt_link(&self) -> String {
        String::new()
    }

    /// How items find their partition.
    pub fn partition_key(&self) -> &Definition {
        &self.definition
    }

    /// Ids of the physical partitions, in order of their keys.
    pub fn range_ids(&self) -> Vec<u32> {
        Vec::new()
    }
}

fn later<T>() -> Result<T, Failure> {
    Err(Failure::new(501, "The engine does not do this yet."))
}

impl Engine {
    /// Creates a database from its body `{"id": ..}`.
    pub fn create_database(
        &self,
        _body: &[u8],
        _throughput: Option<Throughput>,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// Reads a database by name or resource id.
    pub fn read_database(&self, _database: &str) -> Result<ResourceReply, Failure> {
        later()
    }

    /// All databases.
    pub fn databases(&self) -> Result<ResourceFeed, Failure> {
        later()
    }

    /// Removes a database and its containers; `if_match` is the etag header.
    pub fn delete_database(
        &self,
        _database: &str,
        _if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// Creates a container.
    pub fn create_container(
        &self,
        _database: &str,
        _body: &[u8],
        _throughput: Option<Throughput>,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// Reads a container by names or resource ids.
    pub fn read_container(&self, _database: &str, _container: &str) -> Result<ResourceReply, Failure> {
        later()
    }

    /// All containers of a database.
    pub fn containers(&self, _database: &str) -> Result<ResourceFeed, Failure> {
        later()
    }

    /// Replaces what can be changed of a container.
    pub fn replace_container(
        &self,
        _database: &str,
        _container: &str,
        _body: &[u8],
        _if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// Removes a container and its items.
    pub fn delete_container(
        &self,
        _database: &str,
        _container: &str,
        _if_match: Option<&str>,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// The container a request is for, by names or resource ids. 404 (database) or 404 with sub-status 1003
    /// (container) when it is not there.
    pub fn container(&self, _database: &str, _container: &str) -> Result<Arc<Container>, Failure> {
        later()
    }

    /// The partition-key ranges, or 304 if `if_none_match` is the current etag.
    pub fn ranges(
        &self,
        _container: &Container,
        _if_none_match: Option<&str>,
    ) -> Result<RangesReply, Failure> {
        later()
    }

    /// All offers.
    pub fn offers(&self) -> Result<ResourceFeed, Failure> {
        later()
    }

    /// Reads an offer by its id.
    pub fn read_offer(&self, _offer: &str) -> Result<ResourceReply, Failure> {
        later()
    }

    /// Changes an offer.
    pub fn replace_offer(
        &self,
        _offer: &str,
        _body: &[u8],
        _migration: OfferMigration,
    ) -> Result<ResourceReply, Failure> {
        later()
    }

    /// One operation on one item.
    pub fn item(&self, _container: &Container, _request: ItemRequest) -> Result<ItemReply, Failure> {
        later()
    }

    /// The id of the item that a `docs/{rid}` link means.
    pub fn item_id_of_rid(
        &self,
        _container: &Container,
        _partition_key: &PartitionKey,
        _rid: &str,
    ) -> Result<String, Failure> {
        later()
    }

    /// A transactional batch or a bulk request.
    pub fn batch(&self, _container: &Container, _request: BatchRequest) -> Result<BatchReply, Failure> {
        later()
    }

    /// One page of a query. Whether the gateway may serve it at all is decided before.
    pub fn query(&self, _container: &Container, _request: QueryRequest) -> Result<QueryPage, Failure> {
        later()
    }

    /// One page of all items.
    pub fn read_feed(
        &self,
        _container: &Container,
        _request: ReadFeedRequest,
    ) -> Result<DocumentPage, Failure> {
        later()
    }

    /// One page of changes.
    pub fn change_feed(&self, _container: &Container, _request: FeedRequest) -> Result<FeedPage, Failure> {
        later()
    }

    /// Removes expired items and the data of deleted containers, at most `items_max` of each; returns how many
    /// were removed. Call it now and then; nothing expired is ever visible anyway.
    pub fn sweep(&self, _items_max: usize) -> Result<usize, Failure> {
        later()
    }
}

#[expect(dead_code, reason = "until the methods are filled in")]
fn uses(_: Patch, _: Value) {}
