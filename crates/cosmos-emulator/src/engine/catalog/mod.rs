//! Databases, containers and offers: the control plane.
//!
//! One writer at a time changes the catalog: it commits the new records and then shows them. A container's shape is
//! an immutable snapshot, so the data path never waits for the control plane.

pub(crate) mod body;
mod container;
mod database;
mod encryption;
mod full_text;
pub(crate) mod offer;
mod offers;
pub(crate) mod record;
pub(crate) mod user;
mod vector;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cosmos_wire::rid::Rid;
use serde_json::Value;

use self::offer::Offer;
use self::user::{Put, User};
use super::container::{Container, owner_missing};
use super::key;
use super::region::Topology;
use crate::Failure;
use crate::storage::{Order, Storage, StorageError};

/// Everything that has a name.
#[derive(Default)]
pub(crate) struct Catalog {
    /// By number, which is the order of creation.
    databases: BTreeMap<u32, Database>,
    names: BTreeMap<String, u32>,
}

/// A database.
pub(crate) struct Database {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) rid: Rid,
    pub(crate) body: Value,
    pub(crate) offer: Option<Offer>,
    pub(crate) containers: BTreeMap<u32, Arc<Container>>,
    pub(crate) names: BTreeMap<String, u32>,
    /// By number, which is the order of creation.
    pub(crate) users: BTreeMap<u32, User>,
    /// Client encryption keys, by number.
    pub(crate) encryption_keys: BTreeMap<u32, Value>,
}

/// The last number given to each kind of resource; held by the one who changes the catalog.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) database: u32,
    pub(crate) container: u32,
    pub(crate) offer: u32,
    pub(crate) etag: u32,
    /// Users, permissions and client encryption keys share it.
    pub(crate) user: u32,
}

impl Numbers {
    /// A new resource id for a database. Numbers are spread over all bits, as the service's are.
    fn database_rid(&self) -> Rid {
        Rid::database(self.database.wrapping_mul(0x9e37_79b1) ^ 0x0c90_7b00)
    }

    /// A new resource id for a container.
    fn container_rid(&self, database: Rid) -> Rid {
        database.container((self.container.wrapping_mul(0x9e37_79b1) ^ 0x0d65_647a) & 0x7fff_ffff)
    }

    /// A new resource id for an offer.
    fn offer_rid(&self) -> Rid {
        Rid::offer(self.offer.wrapping_mul(0x9e_3779) & 0x00ff_ffff)
    }

    /// A new etag.
    pub(crate) fn next_etag(&mut self, timestamp: u64) -> String {
        self.etag = self.etag.wrapping_add(1);
        super::document::etag_text(self.etag, timestamp)
    }
}

impl Catalog {
    /// Reads all records of a store.
    pub(crate) fn load(storage: &dyn Storage, topology: &Topology) -> Result<Self, StorageError> {
        let mut catalog = Self::default();
        for (number, bytes) in numbered(storage, &key::databases())? {
            let database = record::load_database(number, &bytes)?;
            catalog.names.insert(database.name.clone(), number);
            catalog.databases.insert(number, database);
        }
        for (number, bytes) in numbered(storage, &key::containers())? {
            let owner = record::database_of(&bytes)?;
            let Some(database) = catalog.databases.get_mut(&owner) else { continue };
            let container = record::load_container(number, &bytes, database, (storage, topology))?;
            database.names.insert(container.name().to_owned(), number);
            database.containers.insert(number, Arc::new(container));
        }
        let prefix = key::users();
        let upper = key::beyond(prefix.clone());
        for row in storage.scan(Bound::Included(&prefix[..]), Bound::Excluded(&upper), Order::Forward) {
            let (key, value) = row?;
            let Some((owner, number)) = key::user_of(&key) else { continue };
            if let Some(database) = catalog.databases.get_mut(&owner) {
                database.users.insert(number, User::load(number, &value)?);
            }
        }
        let prefix = key::encryption_keys();
        let upper = key::beyond(prefix.clone());
        for row in storage.scan(Bound::Included(&prefix[..]), Bound::Excluded(&upper), Order::Forward) {
            let (key, value) = row?;
            let Some((owner, number)) = key::user_of(&key) else { continue };
            if let Some(database) = catalog.databases.get_mut(&owner) {
                database.encryption_keys.insert(number, encryption::load_key(&value)?);
            }
        }
        Ok(catalog)
    }

    /// A database by name or resource id.
    pub(crate) fn database(&self, name: &str) -> Result<&Database, Failure> {
        let by_name = self.names.get(name).and_then(|number| self.databases.get(number));
        by_name
            .or_else(|| self.databases.values().find(|database| is_rid(name, database.rid)))
            .ok_or_else(not_found)
    }

    /// All containers.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Arc<Container>> {
        self.databases.values().flat_map(|database| database.containers.values())
    }
}

impl Database {
    /// A container by name or resource id.
    pub(crate) fn container(&self, name: &str) -> Result<&Arc<Container>, Failure> {
        let by_name = self.names.get(name).and_then(|number| self.containers.get(number));
        by_name
            .or_else(|| self.containers.values().find(|container| is_rid(name, container.rid)))
            .ok_or_else(not_found)
    }
}

fn is_rid(text: &str, rid: Rid) -> bool {
    text.parse::<Rid>().is_ok_and(|given| given == rid)
}

fn numbered(storage: &dyn Storage, prefix: &[u8]) -> Result<Vec<(u32, bytes::Bytes)>, StorageError> {
    let upper = key::beyond(prefix.to_vec());
    storage
        .scan(Bound::Included(prefix), Bound::Excluded(&upper), Order::Forward)
        .map(|row| {
            let (key, value) = row?;
            let number = key.get(1..5).and_then(|n| n.try_into().ok()).map_or(0, u32::from_be_bytes);
            Ok((number, value))
        })
        .collect()
}

/// A database or container that does not exist.
pub(crate) fn not_found() -> Failure {
    let mut failure = Failure::new(404, NOT_FOUND);
    failure.charge = super::quota::METADATA;
    failure
}

/// The same, for what contains the thing that was asked for.
fn owner_not_found(_: Failure) -> Failure {
    owner_missing()
}

/// What the service says of databases and containers that do not exist.
pub(crate) const NOT_FOUND: &str =
    "Message: {\"Errors\":[\"Resource Not Found. Learn more: https:\\/\\/aka.ms\\/cosmosdb-tsg-not-found\"]}";

/// A name that is taken.
pub(crate) fn taken() -> Failure {
    let mut failure = Failure::new(409, "Resource with specified id or name already exists.");
    failure.charge = super::quota::METADATA;
    failure
}

/// Refuses a change of something that is no longer what the client saw.
pub(crate) fn check_match(if_match: Option<&str>, etag: &str) -> Result<(), Failure> {
    match if_match {
        Some(wanted) if !super::document::etag_matches(wanted, etag) => {
            Err(super::item::precondition_failed())
        }
        Some(_) | None => Ok(()),
    }
}
