//! A container as the data path sees it: an immutable snapshot of its shape, and its partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::{Coverage, Definition, PartitionKey};
use cosmos_wire::rid::Rid;
use cosmos_wire::status::Status;
use serde_json::Value;

use super::catalog::offer::Offer;
use super::index::policy::Policy;
use super::key::{self, EpkKey};
use super::partition::Partition;
use super::region::RegionId;
use super::script::Script;
use super::split::Moving;
use crate::Failure;
use crate::sql::Schema;
use crate::sql::source::{Path, Step};
use crate::storage::Change;

/// One container as one region has it. It stays usable by those who hold it after it was deleted, and answers 404
/// then.
pub struct Container {
    pub(crate) number: u32,
    pub(crate) region: RegionId,
    /// The number under which this region keeps its data.
    pub(crate) replica: u32,
    pub(crate) rid: Rid,
    pub(crate) database: u32,
    name: String,
    database_name: String,
    pub(crate) content_path: ContentPath,
    /// `dbs/{rid}/colls/{rid}/docs/`: what every `_self` begins with.
    pub(crate) documents_link: String,
    definition: Definition,
    shape: Arc<ArcSwap<Shape>>,
    deleted: Arc<AtomicBool>,
}

/// Everything about a container that can change.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// The resource as clients see it.
    pub(crate) body: Value,
    /// What queries must know of it.
    pub(crate) schema: Arc<Schema>,
    /// In order of creation.
    pub(crate) scripts: Arc<[Script]>,
    /// With its quotes.
    pub(crate) etag: String,
    /// What is indexed.
    pub(crate) policy: Policy,
    /// Paths whose absence is in the index, so that ORDER BY over them finds every document.
    pub(crate) tracked: Vec<Path>,
    /// Whether the index is complete; otherwise queries scan.
    pub(crate) index: IndexState,
    /// Seconds; -1 means items live for ever unless they say otherwise; `None` means no expiry at all.
    pub(crate) default_ttl: Option<i32>,
    /// Seconds for which every version of an item is kept; `None` keeps none.
    pub(crate) retention: Option<u64>,
    /// Properties that are unique together in a logical partition.
    pub(crate) unique_keys: Vec<Vec<Path>>,
    /// Its own throughput, if it has any.
    pub(crate) offer: Option<Offer>,
    /// In order of keys, as the first region has them.
    pub(crate) partitions: Vec<Arc<Partition>>,
    /// The same partitions as the other regions have them.
    pub(crate) elsewhere: Vec<(RegionId, Vec<Arc<Partition>>)>,
    /// Moves with every change of `partitions`.
    pub(crate) partitions_version: u64,
    /// A split or a merge in progress.
    pub(crate) moving: Option<Moving>,
}

/// Whether queries may use the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexState {
    /// It holds every document.
    Ready,
    /// It is being built.
    Building,
}

/// How SDKs file what they know of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPath {
    /// Its resource id.
    pub rid: Bytes,
    /// `dbs/{database}/colls/{container}`.
    pub link: Bytes,
}

/// Names and numbers of a container, which never change.
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) rid: Rid,
    pub(crate) database: u32,
    pub(crate) database_rid: Rid,
    pub(crate) name: String,
    pub(crate) database_name: String,
    pub(crate) definition: Definition,
}

impl Container {
    pub(crate) fn new(identity: Identity, shape: Shape) -> Self {
        let Identity { number, rid, database, database_rid, name, database_name, definition } = identity;
        Self {
            number,
            region: RegionId::FIRST,
            replica: RegionId::FIRST.replica_of(number),
            rid,
            database,
            content_path: ContentPath {
                rid: rid.to_string().into(),
                link: format!("dbs/{database_name}/colls/{name}").into(),
            },
            name,
            database_name,
            documents_link: format!("dbs/{database_rid}/colls/{rid}/docs/"),
            definition,
            shape: Arc::new(ArcSwap::from_pointee(shape)),
            deleted: Arc::default(),
        }
    }

    /// The same container as another region has it.
    pub(crate) fn in_region(&self, region: RegionId) -> Self {
        Self {
            number: self.number,
            region,
            replica: region.replica_of(self.number),
            rid: self.rid,
            database: self.database,
            name: self.name.clone(),
            database_name: self.database_name.clone(),
            content_path: self.content_path.clone(),
            documents_link: self.documents_link.clone(),
            definition: self.definition.clone(),
            shape: Arc::clone(&self.shape),
            deleted: Arc::clone(&self.deleted),
        }
    }

    /// Resource id: 8 bytes in base64.
    pub fn rid(&self) -> String {
        self.rid.to_string()
    }

    /// The name its owner gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of its database.
    pub fn database_name(&self) -> &str {
        &self.database_name
    }

    /// `dbs/{db}/colls/{container}`: what `x-ms-alt-content-path` says.
    pub fn alt_link(&self) -> String {
        String::from_utf8_lossy(&self.content_path.link).into_owned()
    }

    /// How items find their partition.
    pub fn partition_key(&self) -> &Definition {
        &self.definition
    }

    /// Whether values at a path are in the index.
    pub(crate) fn is_indexed(&self, path: &[Step]) -> bool {
        self.shape().policy.includes(path)
    }

    /// Ids of the physical partitions, in order of their keys.
    pub fn range_ids(&self) -> Vec<u32> {
        self.shape().partitions.iter().map(|partition| partition.id()).collect()
    }

    /// The keys of the physical partitions, in order.
    pub(crate) fn ranges(&self) -> Vec<EpkRange> {
        self.shape().partitions.iter().map(|partition| partition.range.clone()).collect()
    }

    /// Whether there is a physical partition with this id.
    pub(crate) fn has_range(&self, id: &str) -> bool {
        self.shape().partitions.iter().any(|partition| partition.id().to_string() == id)
    }

    /// Id of the physical partition that holds a whole partition key.
    ///
    /// # Errors
    /// 400/1001 when the key is a prefix or does not fit.
    pub fn range_id_of(&self, key: &PartitionKey) -> Result<u32, Failure> {
        let epk = self.epk(key)?;
        Ok(self.shape().partition_of(self.region, &epk).id())
    }

    /// What queries must know of it.
    pub(crate) fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.shape.load().schema)
    }

    pub(crate) fn shape(&self) -> Arc<Shape> {
        self.shape.load_full()
    }

    pub(crate) fn set_shape(&self, shape: Shape) {
        self.shape.store(Arc::new(shape));
    }

    pub(crate) fn mark_deleted(&self) {
        self.deleted.store(true, Ordering::SeqCst);
    }

    /// What says that its data in every region is to be removed.
    pub(crate) fn purges(&self) -> Vec<Change> {
        let shape = self.shape();
        let replicas = shape.replicas().map(|(region, _)| region.replica_of(self.number));
        let log = (!shape.elsewhere.is_empty()).then(|| RegionId::shared_log_of(self.number));
        replicas.chain(log).map(|replica| Change::Put(key::purge(replica), bytes::Bytes::new())).collect()
    }

    /// Refuses work on a container that is gone.
    pub(crate) fn check_exists(&self) -> Result<(), Failure> {
        if self.deleted.load(Ordering::SeqCst) { Err(owner_missing()) } else { Ok(()) }
    }

    /// The effective partition key of a whole key.
    pub(crate) fn epk(&self, key: &PartitionKey) -> Result<Epk, Failure> {
        if self.definition.coverage(key) != Coverage::Full {
            return Err(too_few_components());
        }
        if key.size_bytes() > self.definition.key_bytes_max() {
            return Err(Failure::bad_request(format!(
                "The partition key has {} bytes; this container takes at most {}.",
                key.size_bytes(),
                self.definition.key_bytes_max()
            )));
        }
        Ok(Epk::of(key, &self.definition))
    }

    /// Whether a patch must leave a path alone: the id, the partition key, and what the service adds.
    pub(crate) fn is_immutable(&self, path: &[String]) -> bool {
        let is_key = |segments: &[String]| segments.starts_with(path) || path.starts_with(segments);
        path[0] == "id"
            || super::index::terms::is_system_property(&path[0])
            || self.definition.paths().iter().any(|key| is_key(key.segments()))
    }
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container")
            .field("link", &self.alt_link())
            .field("rid", &self.rid())
            .finish_non_exhaustive()
    }
}

impl Shape {
    /// The partitions of a region, in order of keys. All regions have the same ranges.
    pub(crate) fn partitions_in(&self, region: RegionId) -> &[Arc<Partition>] {
        if region == RegionId::FIRST {
            return &self.partitions;
        }
        let elsewhere = self.elsewhere.iter().find(|(id, _)| *id == region);
        elsewhere.map_or(self.partitions.as_slice(), |(_, partitions)| partitions)
    }

    /// The partitions of every region.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = (RegionId, &[Arc<Partition>])> {
        let elsewhere = self.elsewhere.iter().map(|(id, partitions)| (*id, partitions.as_slice()));
        std::iter::once((RegionId::FIRST, self.partitions.as_slice())).chain(elsewhere)
    }

    /// The partitions of all regions.
    pub(crate) fn every_partition(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.replicas().flat_map(|(_, partitions)| partitions)
    }

    /// The same, the hub's first: whoever locks several of them does so in this order, as strong writers do.
    pub(crate) fn every_partition_from(&self, hub: RegionId) -> impl Iterator<Item = &Arc<Partition>> {
        let others = self.replicas().filter(move |(region, _)| *region != hub);
        self.partitions_in(hub).iter().chain(others.flat_map(|(_, partitions)| partitions))
    }

    /// The partition of a region that holds an effective partition key.
    pub(crate) fn partition_of(&self, region: RegionId, epk: &Epk) -> &Arc<Partition> {
        let partitions = self.partitions_in(region);
        let at = partitions.partition_point(|partition| partition.range.max <= *epk);
        &partitions[at.min(partitions.len() - 1)]
    }

    /// The partition of a region with this range id.
    pub(crate) fn partition_with(&self, region: RegionId, range: u32) -> Option<&Arc<Partition>> {
        self.partitions_in(region).iter().find(|partition| partition.id() == range)
    }

    /// The etag of the partition-key ranges, with quotes.
    pub(crate) fn partitions_etag(&self) -> String {
        format!("\"{}\"", self.partitions_version)
    }
}

/// The form of an effective partition key in keys.
pub(crate) fn epk_key(epk: &Epk) -> EpkKey {
    EpkKey::new(epk.significant_bytes())
}

/// A request for something in a container that does not exist.
pub(crate) fn owner_missing() -> Failure {
    Failure::of(Status::OWNER_RESOURCE_NOT_FOUND, super::catalog::NOT_FOUND)
}

/// A partition key that is missing or shorter than the container's.
pub(crate) fn too_few_components() -> Failure {
    Failure::bad_request(
        "The partition key supplied in x-ms-partitionkey header has fewer components than defined in the the \
         collection.",
    )
    .with_sub_status(Status::PARTITION_KEY_MISMATCH.sub)
}
