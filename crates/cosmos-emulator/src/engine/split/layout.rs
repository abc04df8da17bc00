//! From one layout of a container's partitions to the next: the new partitions, and their copy of what the old ones
//! kept.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, MutexGuard};

use cosmos_wire::epk::EpkRange;

use super::record::Record;
use super::{PartitionOperation, Reshaping};
use crate::Failure;
use crate::engine::Engine;
use crate::engine::container::{Container, Shape};
use crate::engine::history::place_of_version;
use crate::engine::index::common::CommonPaths;
use crate::engine::key::{self, Segment};
use crate::engine::partition::{Counters, Lineage, Partition};
use crate::engine::region::RegionId;
use crate::engine::request::storage_failed;
use crate::engine::sweep::CHUNK_ENTRIES;
use crate::storage::{Batch, Change, Order};

/// The partitions that an operation takes away and makes, in one region.
pub(super) struct Swap {
    pub(super) region: RegionId,
    pub(super) parents: Vec<Arc<Partition>>,
    pub(super) children: Vec<Arc<Partition>>,
}

/// What an operation changes in every region. The caller holds the writer locks of the old partitions.
pub(super) fn swaps(
    container: &Container,
    shape: &Shape,
    operation: &PartitionOperation,
    (counters, version): (&BTreeMap<Segment, Counters>, i64),
) -> Result<Vec<Swap>, Failure> {
    let ranges = operation
        .children
        .iter()
        .map(|child| {
            let bound = |hex: &str| hex.parse().map_err(|_| damaged());
            Ok((child.id, EpkRange::new(bound(&child.min_inclusive)?, bound(&child.max_exclusive)?)))
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let reached = |partition: &Partition| counters.get(&partition.segment).map_or(0, |counters| counters.lsn);
    let involved = |partition: &&Arc<Partition>| operation.parents.contains(&partition.id());
    // A merge lets sessions count anew, from the same number in every region.
    let base =
        shape.every_partition().filter(involved).map(|partition| reached(partition)).max().unwrap_or(0);
    shape
        .replicas()
        .map(|(region, partitions)| {
            let parents: Vec<_> = partitions.iter().filter(involved).cloned().collect();
            if parents.len() != operation.parents.len() {
                return Err(damaged());
            }
            let lineage = lineage(&parents, operation.kind, shape.partitions_version + 1, (base, version));
            let lsn = match operation.kind {
                Reshaping::Split => parents.iter().map(|parent| reached(parent)).max().unwrap_or(0) + 1,
                Reshaping::Merge => base + 1,
            };
            let etags = parents.iter().filter_map(|parent| counters.get(&parent.segment).map(|c| c.etag));
            let etag = etags.max().unwrap_or(0);
            let common: Vec<_> = parents.iter().map(|parent| parent.common()).collect();
            let common = CommonPaths::of_all(common.iter().map(|paths| &**paths));
            let children = ranges
                .iter()
                .map(|(id, range)| {
                    let segment = Segment { container: region.replica_of(container.number), range: *id };
                    let counters = Counters { lsn, etag, ..Counters::of_replica(segment) };
                    let child = Partition::new(segment, range.clone(), lineage.clone(), counters);
                    child.set_common(common.clone());
                    Arc::new(child)
                })
                .collect();
            Ok(Swap { region, parents, children })
        })
        .collect()
}

fn lineage(parents: &[Arc<Partition>], kind: Reshaping, born: u64, (base, version): (u64, i64)) -> Lineage {
    let mut names: Vec<String> = Vec::new();
    let ancestors = parents.iter().flat_map(|parent| parent.lineage.parents.iter().cloned());
    for name in ancestors.chain(parents.iter().map(|parent| parent.id().to_string())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let merges = parents.iter().map(|parent| parent.lineage.merges).max().unwrap_or(0);
    match kind {
        Reshaping::Split => {
            let (base, since) =
                parents.first().map_or((0, 0), |parent| (parent.lineage.base, parent.lineage.since));
            Lineage { parents: names, born, merges, base, since }
        }
        Reshaping::Merge => {
            Lineage { parents: names, born, merges: merges + 1, base, since: version + merges + 1 }
        }
    }
}

/// Where several regions write, notes that each new partition has everything of its likes in the other regions.
pub(super) fn agree(swaps: &[Swap]) {
    for child in swaps.iter().flat_map(|swap| &swap.children) {
        let likes = swaps.iter().flat_map(|swap| &swap.children).filter(|like| like.id() == child.id());
        *child.reach() = likes.map(|like| (like.region(), like.lsn())).collect();
    }
}

/// The shape with the new partitions in place of the old.
pub(super) fn next_shape(shape: &Shape, swaps: &[Swap]) -> Shape {
    let replaced = |region: RegionId, partitions: &[Arc<Partition>]| -> Vec<Arc<Partition>> {
        let Some(swap) = swaps.iter().find(|swap| swap.region == region) else { return partitions.to_vec() };
        let is_parent =
            |partition: &Arc<Partition>| swap.parents.iter().any(|parent| Arc::ptr_eq(parent, partition));
        let mut next: Vec<_> = partitions.iter().filter(|partition| !is_parent(partition)).cloned().collect();
        next.extend(swap.children.iter().cloned());
        next.sort_by(|a, b| a.range.min.cmp(&b.range.min));
        next
    };
    Shape {
        partitions: replaced(RegionId::FIRST, &shape.partitions),
        elsewhere: shape.elsewhere.iter().map(|(region, list)| (*region, replaced(*region, list))).collect(),
        partitions_version: shape.partitions_version + 1,
        moving: None,
        ..shape.clone()
    }
}

/// The writer locks of the partitions that an operation takes away, in every region.
pub(super) fn lock<'a>(
    shape: &'a Shape,
    record: &Record,
    hub: RegionId,
) -> Vec<(Segment, MutexGuard<'a, Counters>)> {
    shape
        .every_partition_from(hub)
        .filter(|partition| record.shown.parents.contains(&partition.id()))
        .map(|partition| (partition.segment, partition.lock()))
        .collect()
}

impl Engine {
    /// Copies what the old partitions keep in orders of their own to the new ones. What an earlier attempt left there
    /// is removed first. Nobody writes to the old partitions meanwhile, and nobody reads the new ones.
    pub(super) fn copy_orders(&self, swap: &Swap) -> Result<(), Failure> {
        for child in &swap.children {
            self.clear_segment(child.segment)?;
        }
        let bounds: Vec<_> =
            swap.children.iter().map(|child| (child.lower(), child.upper(), child.id())).collect();
        let mut changes = Vec::new();
        for prefix in swap.parents.iter().flat_map(|parent| key::segment_orders(parent.segment)) {
            let upper = key::beyond(prefix.clone());
            for row in self.storage().scan(Bound::Included(&prefix), Bound::Excluded(&upper), Order::Forward)
            {
                let (entry, value) = row.map_err(|error| storage_failed(&error))?;
                let place = if key::is_version(&entry) { place_of_version(&value) } else { Some(&value[..]) };
                let place = place.ok_or_else(damaged)?;
                let child = bounds
                    .iter()
                    .find(|(lower, upper, _)| lower.as_slice() <= place && place < upper.as_slice());
                let Some((_, _, id)) = child else { continue };
                changes.push(Change::Put(key::moved(&entry, *id), value));
                if changes.len() >= CHUNK_ENTRIES {
                    self.commit(Batch { changes: std::mem::take(&mut changes) })?;
                }
            }
        }
        self.commit(Batch { changes })?;
        Ok(())
    }

    /// Removes everything that belongs to one physical partition alone.
    pub(super) fn clear_segment(&self, segment: Segment) -> Result<usize, Failure> {
        let mut removed = 0;
        for prefix in key::segment_orders(segment).chain(key::segment_state(segment)) {
            removed += self.delete_range(&prefix, &key::beyond(prefix.clone()), usize::MAX)?;
        }
        Ok(removed)
    }
}

/// An operation whose record does not fit its container.
pub(super) fn damaged() -> Failure {
    Failure::new(
        500,
        "The record of a split does not fit its container; restore the data folder from a copy.",
    )
}
