//! Databases and containers as records of the store.

use std::sync::Arc;

use cosmos_wire::epk::EpkRange;
use cosmos_wire::partition_key::Definition;
use serde_json::{Value, json};

use super::body;
use super::offer::Offer;
use super::{Database, Numbers};
use crate::engine::container::{Container, Identity, IndexState, Shape};
use crate::engine::index::common::CommonPaths;
use crate::engine::index::path::Pattern;
use crate::engine::index::policy;
use crate::engine::key::{self, Segment};
use crate::engine::partition::{Counters, Lineage, Partition};
use crate::engine::region::{self, RegionId, Topology};
use crate::engine::script::{Script, schema_of};
use crate::sql::source::{Path, Step};
use crate::storage::{Batch, Change, Storage, StorageError};

/// The format of everything the engine writes; a newer one is refused. Since 2, partitions keep the paths that all
/// their documents have: a program that does not know of them must not write.
const FORMAT: u64 = 2;

impl Numbers {
    /// As kept in the store.
    pub(crate) fn to_record(&self) -> Vec<u8> {
        json!({"format": FORMAT, "database": self.database, "container": self.container, "offer": self.offer,
               "etag": self.etag, "user": self.user})
        .to_string()
        .into_bytes()
    }

    /// From the store; an empty store begins at zero.
    pub(crate) fn load(storage: &dyn Storage) -> Result<Self, StorageError> {
        let Some(bytes) = storage.get(&key::meta())? else { return Ok(Self::default()) };
        let record: Value = serde_json::from_slice(&bytes).map_err(|_| broken("the account"))?;
        if !record["format"].as_u64().is_some_and(|format| (1..=FORMAT).contains(&format)) {
            return Err(StorageError(format!(
                "the data is of format {}, this version reads formats up to {FORMAT}: use the version that wrote it, \
                 or another data folder",
                record["format"]
            )));
        }
        let number = |field: &str| record[field].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        Ok(Self {
            database: number("database"),
            container: number("container"),
            offer: number("offer"),
            etag: number("etag"),
            user: number("user"),
        })
    }

    /// Makes a store that could be read one of this format.
    pub(crate) fn stamp(&self, storage: &dyn Storage) -> Result<(), StorageError> {
        let record = self.to_record();
        if storage.get(&key::meta())?.is_some_and(|kept| kept != record) {
            storage.commit(Batch { changes: vec![Change::Put(key::meta(), record.into())] })?;
        }
        Ok(())
    }
}

/// As kept in the store.
pub(crate) fn database_record(database: &Database) -> Vec<u8> {
    json!({"body": database.body, "offer": database.offer.as_ref().map(Offer::to_record)})
        .to_string()
        .into_bytes()
}

/// From the store, without containers.
pub(crate) fn load_database(number: u32, bytes: &[u8]) -> Result<Database, StorageError> {
    let parse = || {
        let mut record: Value = serde_json::from_slice(bytes).ok()?;
        let body = record["body"].take();
        Some(Database {
            number,
            name: body["id"].as_str()?.to_owned(),
            rid: body["_rid"].as_str()?.parse().ok()?,
            body,
            offer: Offer::from_record(&record["offer"]),
            containers: Default::default(),
            names: Default::default(),
            users: Default::default(),
            encryption_keys: Default::default(),
        })
    };
    parse().ok_or_else(|| broken("a database"))
}

/// As kept in the store.
pub(crate) fn container_record(database: u32, shape: &Shape) -> Vec<u8> {
    let ranges: Vec<_> = shape
        .partitions
        .iter()
        .map(|partition| {
            json!({"id": partition.id(), "min": partition.range.min.to_hex(), "max": partition.range.max.to_hex(),
                   "parents": partition.lineage.parents, "born": partition.lineage.born,
                   "merges": partition.lineage.merges, "base": partition.lineage.base, "since": partition.lineage.since})
        })
        .collect();
    let tracked: Vec<_> = shape.tracked.iter().map(|path| names(path)).collect();
    json!({"database": database, "body": shape.body, "ranges": ranges, "version": shape.partitions_version,
           "tracked": tracked, "building": shape.index == IndexState::Building,
           "offer": shape.offer.as_ref().map(Offer::to_record),
           "scripts": shape.scripts.iter().map(Script::to_record).collect::<Vec<_>>()})
    .to_string()
    .into_bytes()
}

/// Number of the database a container's record names.
pub(crate) fn database_of(bytes: &[u8]) -> Result<u32, StorageError> {
    let record: Value = serde_json::from_slice(bytes).map_err(|_| broken("a container"))?;
    record["database"].as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| broken("a container"))
}

/// From the store.
pub(crate) fn load_container(
    number: u32,
    bytes: &[u8],
    database: &Database,
    (storage, topology): (&dyn Storage, &Topology),
) -> Result<Container, StorageError> {
    let mut record: Value = serde_json::from_slice(bytes).map_err(|_| broken("a container"))?;
    let partitions = load_partitions(number, &record["ranges"], storage)?;
    let elsewhere = topology
        .live()
        .filter(|region| region.id != RegionId::FIRST)
        .map(|region| {
            Ok((region.id, load_partitions(region.id.replica_of(number), &record["ranges"], storage)?))
        })
        .collect::<Result<_, StorageError>>()?;
    let parse = || {
        let body = record["body"].take();
        let scripts = record["scripts"].as_array();
        let scripts: Vec<_> =
            scripts.into_iter().flatten().map(Script::from_record).collect::<Option<_>>()?;
        let (_, policy) = policy::normalise(body.get("indexingPolicy")).ok()?;
        let unique_keys =
            body["uniqueKeyPolicy"]["uniqueKeys"].as_array().map_or(Some(Vec::new()), |keys| {
                keys.iter().map(|key| paths(&key["paths"])).collect::<Option<Vec<_>>>()
            })?;
        let identity = Identity {
            number,
            rid: body["_rid"].as_str()?.parse().ok()?,
            database: database.number,
            database_rid: database.rid,
            name: body["id"].as_str()?.to_owned(),
            database_name: database.name.clone(),
            definition: Definition::from_json(&body["partitionKey"]).ok()?,
        };
        let shape = Shape {
            etag: body["_etag"].as_str()?.to_owned(),
            default_ttl: body["defaultTtl"].as_i64().and_then(|ttl| i32::try_from(ttl).ok()),
            retention: body::retention(body.get("changeFeedPolicy")).ok()?,
            policy,
            tracked: tracked(&record["tracked"])?,
            index: if record["building"] == true { IndexState::Building } else { IndexState::Ready },
            unique_keys,
            offer: Offer::from_record(&record["offer"]),
            partitions,
            elsewhere,
            partitions_version: record["version"].as_u64()?,
            moving: None,
            schema: schema_of(&body, &scripts),
            scripts: scripts.into(),
            body,
        };
        Some(Container::new(identity, shape))
    };
    parse().ok_or_else(|| broken("a container"))
}

fn load_partitions(
    replica: u32,
    ranges: &Value,
    storage: &dyn Storage,
) -> Result<Vec<Arc<Partition>>, StorageError> {
    let ranges = ranges.as_array().ok_or_else(|| broken("a container"))?;
    ranges
        .iter()
        .map(|range| {
            let id = range["id"]
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| broken("a range"))?;
            let bound = |field: &str| {
                range[field].as_str().and_then(|hex| hex.parse().ok()).ok_or_else(|| broken("a range"))
            };
            let parents = range["parents"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let lineage = Lineage {
                parents: parents.map(str::to_owned).collect(),
                born: range["born"].as_u64().unwrap_or(0),
                merges: range["merges"].as_i64().unwrap_or(0),
                base: range["base"].as_u64().unwrap_or(0),
                since: range["since"].as_i64().unwrap_or(0),
            };
            let segment = Segment { container: replica, range: id };
            let counters = storage
                .get(&key::partition(segment))?
                .map_or_else(|| Some(Counters::of_replica(segment)), |bytes| Counters::from_bytes(&bytes))
                .ok_or_else(|| broken("a partition"))?;
            let range = EpkRange::new(bound("min")?, bound("max")?);
            let partition = Partition::new(segment, range, lineage, counters);
            partition.set_common(CommonPaths::load(storage, segment)?);
            *partition.reach() = region::load_reach(storage, segment)?;
            partition.set_turns(region::load_turns(storage, segment)?);
            Ok(Arc::new(partition))
        })
        .collect()
}

fn paths(list: &Value) -> Option<Vec<Path>> {
    let list = list.as_array()?;
    list.iter().map(|path| Pattern::parse_plain(path.as_str()?).ok()).collect()
}

/// Tracked paths consist of properties, whatever characters those have.
fn names(path: &[Step]) -> Vec<&str> {
    path.iter()
        .filter_map(|step| match step {
            Step::Property(name) => Some(&**name),
            Step::Index(_) | Step::Each => None,
        })
        .collect()
}

fn tracked(list: &Value) -> Option<Vec<Path>> {
    let path = |names: &Value| -> Option<Path> {
        names.as_array()?.iter().map(|name| name.as_str().map(|name| Step::Property(name.into()))).collect()
    };
    list.as_array()?.iter().map(path).collect()
}

fn broken(what: &str) -> StorageError {
    StorageError(format!("the record of {what} cannot be read; restore the data folder from a copy"))
}
