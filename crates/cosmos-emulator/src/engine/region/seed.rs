//! Giving a new region everything the hub has, and taking back what a lost region alone had.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::log::{Entry, log_of};
use super::{Reach, RegionId, Topology, reach_bytes};
use crate::Failure;
use crate::config::WriteMode;
use crate::engine::Engine;
use crate::engine::container::{Container, Shape};
use crate::engine::key::{self, Segment};
use crate::engine::partition::{Counters, Partition};
use crate::engine::request::storage_failed;
use crate::engine::sweep::CHUNK_ENTRIES;
use crate::engine::writer::Writer;
use crate::storage::{Batch, Change, Order};

impl Engine {
    /// Copies the hub's replica of a container to a new region; returns that region's partitions. Whatever an earlier
    /// attempt left is removed first. Nobody may write to the hub meanwhile.
    pub(super) fn seed(
        &self,
        container: &Container,
        shape: &Shape,
        topology: &Topology,
        region: RegionId,
    ) -> Result<Vec<Arc<Partition>>, Failure> {
        let from = topology.hub.replica_of(container.number);
        let to = region.replica_of(container.number);
        for prefix in key::container_data(to) {
            self.delete_range(&prefix, &key::beyond(prefix.clone()), usize::MAX)?;
        }
        for prefix in key::replica_data(from) {
            self.copy(&prefix, to)?;
        }
        let mut changes = Vec::new();
        let mut partitions = Vec::new();
        for hub in shape.partitions_in(topology.hub) {
            let segment = Segment { container: to, range: hub.id() };
            let kept =
                self.storage().get(&key::partition(hub.segment)).map_err(|error| storage_failed(&error))?;
            let kept = kept.and_then(|bytes| Counters::from_bytes(&bytes));
            let kept = kept.unwrap_or_else(|| Counters::of_replica(hub.segment));
            let (counters, reach) = start(topology, hub, kept, segment);
            changes.push(Change::Put(key::partition(segment), counters.to_bytes()));
            changes.push(Change::Put(key::reach(segment), reach_bytes(&reach)));
            let partition = Partition::new(segment, hub.range.clone(), hub.lineage.clone(), counters);
            *partition.reach() = reach;
            partition.set_common((*hub.common()).clone());
            changes.extend(partition.common().row(segment));
            partitions.push(Arc::new(partition));
        }
        self.commit(Batch { changes })?;
        Ok(partitions)
    }

    fn copy(&self, prefix: &[u8], to: u32) -> Result<(), Failure> {
        let upper = key::beyond(prefix.to_vec());
        let mut changes = Vec::new();
        for row in self.storage().scan(Bound::Included(prefix), Bound::Excluded(&upper), Order::Forward) {
            let (key, value) = row.map_err(|error| storage_failed(&error))?;
            changes.push(Change::Put(key::in_replica(&key, to), value));
            if changes.len() >= CHUNK_ENTRIES {
                self.commit(Batch { changes: std::mem::take(&mut changes) })?;
            }
        }
        self.commit(Batch { changes })?;
        Ok(())
    }

    /// Makes every replica of a container what the hub's is, where it had got writes that the hub never will. Each
    /// replica is one transaction, the hub the last, and doing it twice does no harm.
    pub(super) fn take_back(&self, container: &Container, topology: &Topology) -> Result<(), Failure> {
        let shape = container.shape();
        for hub in shape.partitions_in(topology.hub) {
            let kept = *hub.lock();
            let others = topology.live().filter(|region| region.id != topology.hub);
            let replicas: Vec<_> = others
                .filter_map(|region| {
                    Some((container.in_region(region.id), shape.partition_with(region.id, hub.id())?))
                })
                .collect();
            // Somebody may remember the numbers of what is lost: they are not given again.
            let most = replicas.iter().fold(kept, |most, (_, partition)| most.max(*partition.lock()));
            if most.lsn == kept.lsn {
                continue;
            }
            for (here, partition) in &replicas {
                let counters = Spent { kept, most };
                self.take_back_in(here, partition, (hub.segment.container, counters), topology)?;
            }
            let log = log_of(topology, container.number, hub.id(), topology.hub);
            let (lower, upper) = (key::log(log, kept.lsn + 1), key::log(log, u64::MAX));
            self.delete_range(&lower, &upper, usize::MAX)?;
            let mut held = hub.lock();
            let mut changes = vec![Change::Put(key::partition(hub.segment), most.to_bytes())];
            if replicas.iter().any(|(_, partition)| partition.lsn() < kept.lsn) {
                // Those that lag come as far by a commit without writes.
                let micros = self.clock().now_micros();
                let entry = Entry { origin: topology.hub, micros, counters: most, writes: Vec::new() };
                changes.push(Change::Put(key::log(log, most.lsn), entry.to_bytes()));
            }
            self.commit(Batch { changes })?;
            *held = most;
            hub.publish(most.lsn);
        }
        Ok(())
    }

    fn take_back_in(
        &self,
        container: &Container,
        partition: &Partition,
        (hub, Spent { kept, most }): (u32, Spent),
        topology: &Topology,
    ) -> Result<(), Failure> {
        let mut copy = Writer::begin_copy(self, container, partition)?;
        let reached = copy.next.lsn;
        if reached < kept.lsn {
            return Ok(());
        }
        let log = log_of(topology, container.number, partition.id(), topology.hub);
        let entries = self.entries(log, kept.lsn + 1, usize::MAX)?;
        let taken_back = entries.into_iter().take_while(|(lsn, _)| *lsn <= reached);
        let places: BTreeSet<_> =
            taken_back.flat_map(|(_, entry)| entry.writes).map(|write| write.place).collect();
        // All go before any comes back, so that values of unique keys are free.
        places.iter().try_for_each(|place| copy.install(place, None))?;
        for place in &places {
            let item = copy.elsewhere(hub, place)?;
            copy.install(place, item.as_ref())?;
        }
        // Versions are not undone but never were.
        copy.changes.retain(|change| !key::is_version(change.key()));
        let (lower, upper) = (
            key::version(partition.segment, kept.lsn + 1, 0, 0),
            key::beyond(key::versions(partition.segment)),
        );
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward) {
            let (version, _) = row.map_err(|error| storage_failed(&error))?;
            copy.changes.push(Change::Delete(version));
        }
        copy.next = most;
        copy.note_progress();
        let changes = copy.take_changes();
        self.commit(Batch { changes })?;
        copy.publish();
        Ok(())
    }
}

/// The numbers of a partition when writes are taken back.
#[derive(Clone, Copy)]
struct Spent {
    /// Those of the last write that stays.
    kept: Counters,
    /// The highest of any replica.
    most: Counters,
}

/// Where a new replica of a partition begins.
fn start(topology: &Topology, hub: &Partition, counters: Counters, segment: Segment) -> (Counters, Reach) {
    match topology.mode {
        WriteMode::Single => (counters, Reach::new()),
        WriteMode::Multiple => {
            let own = Counters { lsn: counters.lsn, ..Counters::of_replica(segment) };
            (own, hub.reach().clone())
        }
    }
}
