//! The life of an operation: begun, moved on by hand or by the clock, ended with one commit.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::epk::EpkRange;

use super::record::{Moving, Operations, Record};
use super::{NewPartition, PartitionOperation, Phase, Progression, Reshaping, SplitMode, cut, layout};
use crate::Failure;
use crate::config::WriteMode;
use crate::engine::catalog::Numbers;
use crate::engine::catalog::{offer, record};
use crate::engine::container::{Container, Shape};
use crate::engine::partition::{Gate, Partition};
use crate::engine::region::reach_bytes;
use crate::engine::request::{Throughput, storage_failed};
use crate::engine::{Engine, key};
use crate::storage::{Batch, Change, Order, StorageError};

impl Engine {
    /// Splits the physical partition with this range id in two.
    ///
    /// # Errors
    /// 404 without such a range, 400 for a place outside of it, 409 while another operation is under way.
    pub fn split(
        &self,
        container: &Container,
        range: u32,
        mode: &SplitMode,
        progression: Progression,
    ) -> Result<PartitionOperation, Failure> {
        let control = self.control();
        container.check_exists()?;
        let shape = container.shape();
        let parent = find(&shape, range)?;
        let ranges = self.halves(container, parent, mode)?;
        self.begin(&control, container, (Reshaping::Split, &[range], ranges), progression)
    }

    /// Merges two neighbouring physical partitions.
    ///
    /// # Errors
    /// 404 without such ranges, 400 if they are no neighbours, 409 while another operation is under way.
    pub fn merge(
        &self,
        container: &Container,
        ranges: [u32; 2],
        progression: Progression,
    ) -> Result<PartitionOperation, Failure> {
        let control = self.control();
        container.check_exists()?;
        let shape = container.shape();
        let mut parents = [find(&shape, ranges[0])?, find(&shape, ranges[1])?];
        parents.sort_by(|a, b| a.range.min.cmp(&b.range.min));
        let [low, high] = parents;
        if low.range.max != high.range.min {
            return Err(Failure::bad_request(format!(
                "The partitions {} and {} are no neighbours: their keys are {} and {}.",
                low.id(),
                high.id(),
                low.range,
                high.range
            )));
        }
        let whole = EpkRange::new(low.range.min.clone(), high.range.max.clone());
        let parents = [low.id(), high.id()];
        self.begin(&control, container, (Reshaping::Merge, &parents, vec![whole]), progression)
    }

    /// A split or merge by its id, as far as it is now.
    ///
    /// # Errors
    /// 404 for an id nobody got.
    pub fn operation(&self, id: u64) -> Result<PartitionOperation, Failure> {
        let control = self.control();
        let record = self.remembered(id)?;
        if record.is_active() && self.is_due(record.moving()) {
            return self.step(&control, id);
        }
        Ok(record.shown)
    }

    /// All splits and merges that are remembered, oldest first.
    ///
    /// # Errors
    /// 500 when the store fails.
    pub fn operations(&self) -> Result<Vec<PartitionOperation>, Failure> {
        let ids: Vec<u64> = self.reshaping().records.keys().copied().collect();
        let known = ids.into_iter().map(|id| self.operation(id));
        // One whose container was deleted is forgotten on the way.
        known.filter(|found| !found.as_ref().is_err_and(|failure| failure.status == 404)).collect()
    }

    /// Moves a split or merge to its next phase.
    ///
    /// # Errors
    /// 404 for an id nobody got.
    pub fn advance(&self, id: u64) -> Result<PartitionOperation, Failure> {
        let control = self.control();
        self.step(&control, id)
    }

    /// The shape of a container that exists, after a split or merge whose time has come.
    pub(crate) fn current_shape(&self, container: &Container) -> Result<Arc<Shape>, Failure> {
        container.check_exists()?;
        let shape = container.shape();
        let Some(moving) = shape.moving.filter(|moving| self.is_due(*moving)) else { return Ok(shape) };
        // Whoever holds it is about to change the shape or does so already; this request is refused with 410 then.
        if let Ok(control) = self.control.try_lock() {
            self.step(&control, moving.operation)?;
        }
        Ok(container.shape())
    }

    /// Gives a container the partitions that its throughput needs, as raising it does.
    pub(crate) fn grow(
        &self,
        control: &MutexGuard<'_, Numbers>,
        container: &Container,
        throughput: Throughput,
    ) -> Result<(), Failure> {
        let shape = container.shape();
        let (have, want) = (shape.partitions.len(), offer::partitions(throughput) as usize);
        if self.options().partitions.is_some() || want <= have || shape.moving.is_some() {
            return Ok(());
        }
        let version = container.partition_key().version();
        for (at, parent) in shape.partitions.iter().enumerate() {
            let count = want / have + usize::from(at < want % have);
            let ranges = cut::divided(&parent.range, version, count);
            if ranges.len() > 1 {
                let at_once = Progression::Automatic { lock_duration: Duration::ZERO };
                self.begin(control, container, (Reshaping::Split, &[parent.id()], ranges), at_once)?;
            }
        }
        Ok(())
    }

    fn begin(
        &self,
        control: &MutexGuard<'_, Numbers>,
        container: &Container,
        (kind, parents, ranges): (Reshaping, &[u32], Vec<EpkRange>),
        progression: Progression,
    ) -> Result<PartitionOperation, Failure> {
        let mut shape = (*container.shape()).clone();
        if let Some(moving) = shape.moving {
            let message = "Another operation changes the partitions of this container; finish it first";
            return Err(Failure::new(409, format!("{message}: {}.", moving.operation)));
        }
        let first = next_range(&shape);
        let children = ranges.iter().zip(first..).map(|(range, id)| NewPartition {
            id,
            min_inclusive: range.min.to_hex(),
            max_exclusive: range.max.to_hex(),
        });
        let shown = PartitionOperation {
            id: self.reshaping().next_id(),
            kind,
            database: container.database_name().to_owned(),
            container: container.name().to_owned(),
            phase: Phase::Preparing,
            parents: parents.to_vec(),
            children: children.collect(),
        };
        // Kept from the beginning, so that it ends by itself even if the process is killed before the next phase.
        let finish_at = match progression {
            Progression::Manual => None,
            Progression::Automatic { lock_duration } => {
                let lock = u64::try_from(lock_duration.as_micros()).unwrap_or(u64::MAX);
                Some(self.clock().now_micros().saturating_add(lock))
            }
        };
        let record = Record { shown, number: container.number, finish_at };
        shape.moving = Some(record.moving());
        self.keep(&record)?;
        container.set_shape(shape);
        let id = record.shown.id;
        match progression {
            Progression::Manual => Ok(record.shown),
            Progression::Automatic { lock_duration } => {
                let swapping = self.swap(container, record)?;
                if lock_duration.is_zero() { self.step(control, id) } else { Ok(swapping) }
            }
        }
    }

    /// Moves an operation to its next phase. The caller holds the catalog.
    fn step(&self, _: &MutexGuard<'_, Numbers>, id: u64) -> Result<PartitionOperation, Failure> {
        let record = self.remembered(id)?;
        let Some(container) = self.numbered_container(record.number) else {
            self.commit(Batch { changes: vec![Change::Delete(key::operation(id))] })?;
            self.reshaping().records.remove(&id);
            return Err(no_operation(id));
        };
        match record.shown.phase {
            Phase::Preparing => self.swap(&container, record),
            Phase::Swapping => self.finish(&container, record),
            Phase::Succeeded => Ok(record.shown),
        }
    }

    /// From preparing to swapping.
    fn swap(&self, container: &Container, mut record: Record) -> Result<PartitionOperation, Failure> {
        record.shown.phase = Phase::Swapping;
        self.keep(&record)?;
        let mut shape = (*container.shape()).clone();
        shape.moving = Some(record.moving());
        close(&shape, &record);
        container.set_shape(shape);
        Ok(record.shown)
    }

    /// From swapping to the end: copies, and makes the new layout valid with one commit.
    fn finish(&self, container: &Container, mut record: Record) -> Result<PartitionOperation, Failure> {
        // Again, for a region that joined meanwhile. Nobody writes any more: afterwards every region has the same.
        close(&container.shape(), &record);
        self.drain(container)?;
        let shape = container.shape();
        let locks = layout::lock(&shape, &record, self.topology().hub);
        let counters = locks.iter().map(|(segment, held)| (*segment, **held)).collect::<BTreeMap<_, _>>();
        let swaps = layout::swaps(container, &shape, &record.shown, (&counters, self.topology().version))?;
        if self.topology().mode == WriteMode::Multiple {
            layout::agree(&swaps);
        }
        for swap in &swaps {
            self.copy_orders(swap)?;
        }
        let next = layout::next_shape(&shape, &swaps);
        record.shown.phase = Phase::Succeeded;
        let mut changes = vec![
            record.put(),
            Change::Put(
                key::container(container.number),
                record::container_record(container.database, &next).into(),
            ),
        ];
        for swap in &swaps {
            for child in &swap.children {
                changes.push(Change::Put(key::partition(child.segment), child.lock().to_bytes()));
                changes.extend(child.common().row(child.segment));
                if !child.reach().is_empty() {
                    changes.push(Change::Put(key::reach(child.segment), reach_bytes(&child.reach())));
                }
            }
            changes.extend(
                swap.parents.iter().map(|parent| Change::Put(key::retired(parent.segment), Bytes::new())),
            );
        }
        let ticket = self.commit(Batch { changes })?;
        container.set_shape(next);
        for parent in swaps.iter().flat_map(|swap| &swap.parents) {
            parent.set_gate(Gate::Retired);
        }
        drop(locks);
        let mut operations = self.reshaping();
        operations.retired.extend(swaps.into_iter().flat_map(|swap| swap.parents));
        let shown = record.shown.clone();
        operations.records.insert(shown.id, record);
        drop(operations);
        self.forget_operations()?;
        self.storage().wait_durable(ticket).map_err(|error| storage_failed(&error))?;
        Ok(shown)
    }

    fn forget_operations(&self) -> Result<(), Failure> {
        let ids = self.reshaping().forgettable();
        if ids.is_empty() {
            return Ok(());
        }
        self.commit(Batch { changes: ids.iter().map(|id| Change::Delete(key::operation(*id))).collect() })?;
        self.reshaping().records.retain(|id, _| !ids.contains(id));
        Ok(())
    }

    /// Writes an operation down.
    fn keep(&self, record: &Record) -> Result<(), Failure> {
        let ticket = self.commit(Batch { changes: vec![record.put()] })?;
        self.storage().wait_durable(ticket).map_err(|error| storage_failed(&error))?;
        self.reshaping().records.insert(record.shown.id, record.clone());
        Ok(())
    }

    /// Takes up the operations that were under way when the store was last open.
    pub(crate) fn resume_operations(&self) -> Result<(), StorageError> {
        let active: Vec<_> = self.reshaping().records.values().filter(|r| r.is_active()).cloned().collect();
        for record in active {
            let Some(container) = self.numbered_container(record.number) else {
                self.storage()
                    .commit(Batch { changes: vec![Change::Delete(key::operation(record.shown.id))] })?;
                self.reshaping().records.remove(&record.shown.id);
                continue;
            };
            let mut shape = (*container.shape()).clone();
            shape.moving = Some(record.moving());
            if record.shown.phase == Phase::Swapping {
                close(&shape, &record);
            }
            container.set_shape(shape);
        }
        Ok(())
    }

    /// Removes what replaced partitions left behind, unless somebody still reads it; about `entries_max` entries.
    pub(crate) fn sweep_retired(&self, entries_max: usize) -> Result<usize, Failure> {
        let prefix = key::retirees();
        let upper = key::beyond(prefix.clone());
        let waiting = self
            .storage()
            .scan(Bound::Included(&prefix), Bound::Excluded(&upper), Order::Forward)
            .map(|row| row.map(|(key, _)| key))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| storage_failed(&error))?;
        let mut removed = 0;
        for marker in waiting {
            if removed >= entries_max {
                break;
            }
            let Some(segment) = key::retired_segment(&marker) else { continue };
            let is_read =
                |partition: &Arc<Partition>| partition.segment == segment && Arc::strong_count(partition) > 1;
            if self.reshaping().retired.iter().any(is_read) {
                continue;
            }
            removed += self.clear_segment(segment)?;
            self.commit(Batch { changes: vec![Change::Delete(marker)] })?;
            self.reshaping().retired.retain(|partition| partition.segment != segment);
        }
        Ok(removed)
    }

    fn remembered(&self, id: u64) -> Result<Record, Failure> {
        self.reshaping().records.get(&id).cloned().ok_or_else(|| no_operation(id))
    }

    fn numbered_container(&self, number: u32) -> Option<Arc<Container>> {
        self.catalog().all_containers().find(|container| container.number == number).map(Arc::clone)
    }

    fn is_due(&self, moving: Moving) -> bool {
        moving.finish_at.is_some_and(|at| at <= self.clock().now_micros())
    }

    fn reshaping(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the partitions that an operation takes away. Whoever writes to one of them is done afterwards.
fn close(shape: &Shape, record: &Record) {
    for partition in shape.every_partition().filter(|p| record.shown.parents.contains(&p.id())) {
        let held = partition.lock();
        partition.set_gate(Gate::Swapping);
        drop(held);
    }
}

fn find(shape: &Shape, range: u32) -> Result<&Arc<Partition>, Failure> {
    shape.partitions.iter().find(|partition| partition.id() == range).ok_or_else(|| {
        let ids: Vec<_> = shape.partitions.iter().map(|partition| partition.id().to_string()).collect();
        Failure::new(404, format!("No partition has the id {range}; there are {}.", ids.join(", ")))
    })
}

/// The first id that no range of a container ever had: those that are gone are parents of those that are there.
fn next_range(shape: &Shape) -> u32 {
    let gone = |partition: &Arc<Partition>| {
        let ids = partition.lineage.parents.iter().filter_map(|id| id.parse::<u32>().ok());
        ids.chain([partition.id()]).max().unwrap_or(0)
    };
    shape.partitions.iter().map(gone).max().map_or(0, |last| last + 1)
}

fn no_operation(id: u64) -> Failure {
    Failure::new(404, format!("No split or merge has the id {id}, or its container was deleted."))
}
