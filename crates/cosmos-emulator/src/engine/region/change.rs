//! Changing the regions of an account: cut off, moved, added, removed.
//!
//! Each change is a record of the store. One that takes several transactions says so in the record first, so that a
//! process that is killed in the middle goes on with it when it is started again.

use std::sync::Arc;

use super::topology::{CONTAINER_NUMBER_MAX, Move, Region};
use super::{Failover, Haste, RegionError, RegionId, Topology, broken, turns_bytes};
use crate::Failure;
use crate::config::{Consistency, WriteMode};
use crate::engine::container::Shape;
use crate::engine::partition::Partition;
use crate::engine::{Engine, EngineOptions, key};
use crate::storage::{Batch, Change, Storage, StorageError};

/// The regions a store remembers, or those of a new account.
pub(crate) fn load(storage: &dyn Storage, options: &EngineOptions) -> Result<Topology, StorageError> {
    if options.write_mode == WriteMode::Multiple && options.consistency == Consistency::Strong {
        return Err(StorageError(
            "an account with several write regions cannot be strong: choose another consistency, or one write region"
                .to_owned(),
        ));
    }
    let Some(bytes) = storage.get(&key::topology())? else {
        let first = options.regions.first().cloned().unwrap_or_else(|| "Local".to_owned());
        return Ok(Topology::new(&[first], options.write_mode));
    };
    let topology: Topology = serde_json::from_slice(&bytes).map_err(|_| broken("the regions"))?;
    if options.write_mode == WriteMode::Multiple && topology.mode == WriteMode::Single {
        return Err(StorageError(
            "the data is that of an account with one write region: start it as such, or use another data folder"
                .to_owned(),
        ));
    }
    Ok(topology)
}

impl Engine {
    /// Finishes what a killed process had begun, and adds the regions this store has never had.
    pub(crate) fn settle_regions(&self) -> Result<(), RegionError> {
        self.finish_move()?;
        self.arbitrate_all()?;
        for name in &self.options().regions {
            let is_known =
                self.topology().regions.iter().any(|region| region.name.eq_ignore_ascii_case(name));
            if !is_known {
                self.add_region(name)?;
            }
        }
        Ok(())
    }

    /// Cuts a region off, or connects it again.
    pub(crate) fn set_paused(&self, region: RegionId, is_paused: bool) -> Result<(), RegionError> {
        if is_paused && self.options().consistency == Consistency::Strong {
            return Err(RegionError(
                "a strong account replicates with every write: take the region offline instead".to_owned(),
            ));
        }
        // What was on its way before arrives; what comes later does not.
        self.replicate()?;
        let control = self.control();
        let mut topology = Topology::clone(&self.topology());
        if let Some(region) = topology.region_mut(region) {
            region.is_paused = is_paused;
        }
        self.set_topology(topology, Vec::new())?;
        drop(control);
        Ok(())
    }

    /// Moves the hub.
    pub(crate) fn fail_over(&self, to: RegionId, kind: Failover) -> Result<(), RegionError> {
        self.replicate()?;
        let control = self.control();
        let mut topology = Topology::clone(&self.topology());
        if topology.hub == to {
            return Ok(());
        }
        match (topology.mode, kind) {
            (WriteMode::Multiple, _) => topology.move_hub(to, Failover::Forced),
            (WriteMode::Single, Failover::Planned) => {
                self.check_connected(&topology, to)?;
                topology.moving = Some(Move::Draining(to));
            }
            (WriteMode::Single, Failover::Forced) => {
                topology.move_hub(to, kind);
                topology.moving = Some(Move::TakingBack);
            }
        }
        self.set_topology(topology, Vec::new())?;
        self.finish_move()?;
        self.arbitrate_all()?;
        drop(control);
        Ok(())
    }

    fn check_connected(&self, topology: &Topology, to: RegionId) -> Result<(), RegionError> {
        let links = self.links();
        for id in [topology.hub, to] {
            if !links.is_connected(topology, id) {
                let name = topology.region(id).map_or("", |region| region.name.as_str());
                return Err(RegionError(format!(
                    "region '{name}' is offline or its replication is paused: bring it back first, or force the \
                     failover and lose what was not replicated"
                )));
            }
        }
        Ok(())
    }

    /// Does what is left of a move of the hub.
    fn finish_move(&self) -> Result<(), Failure> {
        let mut topology = Topology::clone(&self.topology());
        let mut changes = Vec::new();
        match topology.moving {
            None => return Ok(()),
            Some(Move::Draining(to)) => {
                for container in self.every_container() {
                    let here = container.in_region(to);
                    for partition in container.shape().partitions_in(to) {
                        self.follow(&here, partition, Haste::Always)?;
                    }
                    changes.extend(note_turns(&container.shape(), to, topology.version));
                }
                topology.move_hub(to, Failover::Planned);
            }
            Some(Move::TakingBack) => {
                for container in self.every_container() {
                    self.take_back(&container, &topology)?;
                    for partition in container.shape().every_partition() {
                        partition.set_turns(Vec::new());
                        changes.push(Change::Delete(key::turns(partition.segment)));
                    }
                }
            }
        }
        topology.moving = None;
        self.set_topology(topology, changes)
    }

    /// Adds a region with everything the hub has.
    pub(crate) fn add_region(&self, name: &str) -> Result<RegionId, RegionError> {
        self.replicate()?;
        let control = self.control();
        let mut topology = Topology::clone(&self.topology());
        if name.trim().is_empty() || topology.named(name).is_some() {
            return Err(RegionError(format!("there is a region '{name}' already, or that is no name")));
        }
        if control.container > CONTAINER_NUMBER_MAX {
            return Err(RegionError(
                "this account has had too many containers for another region".to_owned(),
            ));
        }
        let id = topology
            .next_id()
            .ok_or_else(|| RegionError("this account has had all the regions it can have".to_owned()))?;
        let containers = self.every_container();
        let shapes: Vec<_> = containers.iter().map(|container| container.shape()).collect();
        // Until the end nobody writes to the hub, so the copy is whole and the next write is logged for it.
        let hub = topology.hub;
        let locks: Vec<_> = shapes
            .iter()
            .flat_map(|shape| shape.partitions_in(hub))
            .map(|partition| partition.lock())
            .collect();
        let (mut seeded, mut changes) = (Vec::with_capacity(containers.len()), Vec::new());
        for (container, shape) in containers.iter().zip(&shapes) {
            seeded.push(self.seed(container, shape, &topology, id)?);
            if topology.mode == WriteMode::Single {
                changes.extend(note_turns(shape, hub, topology.version));
            }
        }
        topology.regions.push(Region { id, name: name.to_owned(), is_removed: false, is_paused: false });
        topology.version += 1;
        self.store_topology(&topology, changes)?;
        for ((container, shape), partitions) in containers.iter().zip(&shapes).zip(seeded) {
            let mut shape = Shape::clone(shape);
            shape.elsewhere.push((id, partitions));
            container.set_shape(shape);
        }
        self.topology.store(Arc::new(topology));
        // The hub's stay locked: before it writes again, nobody follows by the regions before.
        let others = shapes.iter().flat_map(|shape| shape.every_partition());
        others.filter(|partition| partition.region() != hub).for_each(|partition| drop(partition.lock()));
        drop(locks);
        drop(control);
        Ok(id)
    }

    /// Removes a region and its data. The others get everything it wrote first.
    pub(crate) fn remove_region(&self, region: RegionId) -> Result<(), RegionError> {
        let control = self.control();
        let mut topology = Topology::clone(&self.topology());
        let others: Vec<_> = topology.live().map(|region| region.id).filter(|id| *id != region).collect();
        let Some(heir) = others.first() else {
            return Err(RegionError("an account needs a region: this is the last one".to_owned()));
        };
        if topology.hub == region {
            if topology.mode == WriteMode::Single {
                return Err(RegionError(
                    "this is the write region: fail over to another one first".to_owned(),
                ));
            }
            topology.set_hub(*heir);
        }
        let containers = self.every_container();
        let shapes: Vec<_> = containers.iter().map(|container| container.shape()).collect();
        // Where one region writes, its lock comes before the others.
        let hub = Some(topology.hub).filter(|_| topology.mode == WriteMode::Single);
        let locks: Vec<_> = hub
            .into_iter()
            .chain([region])
            .flat_map(|region| shapes.iter().flat_map(move |shape| shape.partitions_in(region)))
            .map(|partition| partition.lock())
            .collect();
        for container in &containers {
            for other in &others {
                let here = container.in_region(*other);
                for partition in container.shape().partitions_in(*other) {
                    self.follow(&here, partition, Haste::Always)?;
                }
            }
        }
        if let Some(region) = topology.region_mut(region) {
            region.is_removed = true;
        }
        topology.version += 1;
        if topology.mode == WriteMode::Multiple {
            topology.comparable_from = topology.version;
        }
        let purges = containers.iter().map(|container| {
            Change::Put(key::purge(region.replica_of(container.number)), bytes::Bytes::new())
        });
        self.store_topology(&topology, purges.collect())?;
        self.topology.store(Arc::new(topology));
        for (container, shape) in containers.iter().zip(&shapes) {
            let mut shape = Shape::clone(shape);
            shape.elsewhere.retain(|(id, _)| *id != region);
            container.set_shape(shape);
        }
        drop(locks);
        self.pass_every_lock();
        self.arbitrate_all()?;
        drop(control);
        Ok(self.forget_replicated()?)
    }

    /// Makes a topology the valid one, and other changes with it; when this returns nobody acts on the old one. The
    /// caller holds the catalog.
    pub(crate) fn set_topology(&self, topology: Topology, changes: Vec<Change>) -> Result<(), Failure> {
        self.store_topology(&topology, changes)?;
        self.topology.store(Arc::new(topology));
        self.pass_every_lock();
        Ok(())
    }

    /// Waits for everybody who began to act on an earlier topology.
    fn pass_every_lock(&self) {
        for container in self.every_container() {
            for partition in container.shape().every_partition() {
                drop(partition.lock());
            }
        }
    }

    fn store_topology(&self, topology: &Topology, mut changes: Vec<Change>) -> Result<(), Failure> {
        let record = serde_json::to_vec(topology).map_err(|error| Failure::new(500, error.to_string()))?;
        changes.push(Change::Put(key::topology(), record.into()));
        let ticket = self.commit(Batch { changes })?;
        self.storage().wait_durable(ticket).map_err(|error| crate::engine::request::storage_failed(&error))
    }
}

/// Notes in every replica that a version of the regions ends with what one region has; returns what to store with the
/// next one. Nobody may write meanwhile.
fn note_turns(shape: &Shape, hub: RegionId, version: i64) -> Vec<Change> {
    let mut changes = Vec::new();
    for last in shape.partitions_in(hub) {
        let behind =
            |partition: &&Arc<Partition>| partition.id() == last.id() && partition.lsn() < last.lsn();
        for partition in shape.every_partition().filter(behind) {
            partition.note_turn(last.lsn(), version);
            changes.push(Change::Put(key::turns(partition.segment), turns_bytes(&partition.turns())));
        }
    }
    changes
}

impl Topology {
    /// Makes a region the hub. What tokens said before means nothing after a loss; where each region counts, nothing
    /// is lost.
    fn move_hub(&mut self, to: RegionId, kind: Failover) {
        self.set_hub(to);
        if kind == Failover::Forced && self.mode == WriteMode::Single {
            self.comparable_from = self.version;
        }
    }
}
