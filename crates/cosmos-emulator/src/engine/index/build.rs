//! Building the index anew when its policy changes, and extending it when a query needs more.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use super::common::CommonPaths;
use super::encode;
use super::path::PathId;
use super::policy::Mode;
use super::terms::{self, Terms};
use crate::Failure;
use crate::engine::catalog::record;
use crate::engine::container::{Container, IndexState, Shape};
use crate::engine::document::Stored;
use crate::engine::partition::Partition;
use crate::engine::request::storage_failed;
use crate::engine::sweep::CHUNK_ENTRIES;
use crate::engine::writer::push_entry;
use crate::engine::{Engine, key};
use crate::sql::source::Path;
use crate::storage::{Batch, Change, Order, Ticket};

/// More learned paths than this are not tracked; ORDER BY over others sorts.
const TRACKED_MAX: usize = 64;

impl Engine {
    /// Gives a container a new shape, and builds its index if the shape says so. The caller holds the catalog.
    /// Writers wait; queries scan meanwhile. A crash in between is made good when the store is opened again.
    pub(crate) fn reshape(&self, container: &Container, shape: &Shape) -> Result<Ticket, Failure> {
        let record = |shape: &Shape| {
            let bytes = record::container_record(container.database, shape);
            Batch { changes: vec![Change::Put(key::container(container.number), bytes.into())] }
        };
        let hub = self.topology().hub;
        let locks: Vec<_> = shape.every_partition_from(hub).map(|partition| partition.lock()).collect();
        let mut ticket = self.commit(record(shape))?;
        container.set_shape(shape.clone());
        if shape.index == IndexState::Building {
            for (region, partitions) in shape.replicas() {
                let replica = region.replica_of(container.number);
                for prefix in key::container_indexes(replica) {
                    self.clear_index(replica, partitions, &prefix)?;
                }
                for partition in partitions {
                    self.build(shape, partition)?;
                }
            }
            let ready = Shape { index: IndexState::Ready, ..shape.clone() };
            ticket = self.commit(record(&ready))?;
            container.set_shape(ready);
        }
        drop(locks);
        Ok(ticket)
    }

    /// Makes the index know which documents have no value at a path, so that ORDER BY over it finds all of them in
    /// order. Returns whether it does now.
    pub(crate) fn track(&self, container: &Container, path: &Path) -> Result<bool, Failure> {
        let control = self.control();
        let shape = container.shape();
        if shape.tracked.contains(path) {
            return Ok(true);
        }
        if shape.tracked.len() >= TRACKED_MAX || container.check_exists().is_err() {
            return Ok(false);
        }
        let hub = self.topology().hub;
        let locks: Vec<_> = shape.every_partition_from(hub).map(|partition| partition.lock()).collect();
        for partition in shape.every_partition() {
            self.fill_in_absent(partition, PathId::of(path))?;
        }
        let mut shape = (*shape).clone();
        shape.tracked.push(path.clone());
        let bytes = record::container_record(container.database, &shape);
        self.commit(Batch { changes: vec![Change::Put(key::container(container.number), bytes.into())] })?;
        container.set_shape(shape);
        drop(locks);
        drop(control);
        Ok(true)
    }

    fn clear_index(&self, replica: u32, partitions: &[Arc<Partition>], prefix: &[u8]) -> Result<(), Failure> {
        // The order of creation stays: it does not depend on the policy, and scans need it meanwhile.
        let creation = PathId::CREATION.get() + 1;
        let beyond = key::beyond(prefix.to_vec());
        if prefix == &key::by_partition(replica, 0)[..5] {
            self.delete_range(&key::by_partition(replica, creation), &beyond, usize::MAX)?;
        } else if partitions.first().is_some_and(|p| key::by_value(p.segment, 0).starts_with(prefix)) {
            for partition in partitions {
                let upper = key::beyond(key::by_value(partition.segment, 0)[..9].to_vec());
                self.delete_range(&key::by_value(partition.segment, creation), &upper, usize::MAX)?;
            }
        } else {
            self.delete_range(prefix, &beyond, usize::MAX)?;
        }
        Ok(())
    }

    fn build(&self, shape: &Shape, partition: &Partition) -> Result<(), Failure> {
        let items = key::items(partition.segment.container);
        let lower = [items.as_slice(), &partition.lower()].concat();
        let upper = [items.as_slice(), &partition.upper()].concat();
        let mut changes = Vec::new();
        let mut common = CommonPaths::default();
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward) {
            let (item, bytes) = row.map_err(|error| storage_failed(&error))?;
            let (Some((epk, _)), Some(stored)) = (key::split_item(&item), Stored::from_bytes(&bytes)) else {
                continue;
            };
            let place = item.slice(items.len()..);
            let terms = match shape.policy.mode {
                Mode::Consistent => {
                    let document = stored.value()?;
                    terms::terms(&document, stored.timestamp, stored.rid, &shape.policy, &shape.tracked)
                }
                Mode::None => Terms::default(),
            };
            for (path, value) in terms.iter() {
                push_entry(&mut changes, partition.segment, &epk, &place, path, value, stored.rid);
            }
            common = common.narrowed(&terms).unwrap_or(common);
            if let Some(deadline) = stored.deadline(shape.default_ttl) {
                changes.push(Change::Put(key::expiry(partition.segment, deadline, stored.rid), place));
            }
            if changes.len() >= CHUNK_ENTRIES {
                self.commit(Batch { changes: std::mem::take(&mut changes) })?;
            }
        }
        changes.push(
            common.row(partition.segment).unwrap_or(Change::Delete(key::common_paths(partition.segment))),
        );
        self.commit(Batch { changes })?;
        partition.set_common(common);
        partition.note_common_told();
        Ok(())
    }

    fn fill_in_absent(&self, partition: &Partition, path: PathId) -> Result<(), Failure> {
        let failed = |error| storage_failed(&error);
        let entries = |path: PathId| {
            let lower = key::by_value(partition.segment, path.get());
            let upper = key::beyond(lower.clone());
            self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward)
        };
        let mut present = HashSet::new();
        let mut changes = Vec::new();
        let head = key::by_value(partition.segment, path.get()).len();
        for row in entries(path) {
            let (entry, place) = row.map_err(failed)?;
            if entry.get(head) == Some(&encode::UNDEFINED) {
                // Left by an attempt that a crash ended.
                if let (Some(rid), Some((epk, _))) = (key::rid_at_end(&entry), key::split_place(&place)) {
                    let value = [encode::UNDEFINED];
                    let other =
                        key::partition_entry(partition.segment.container, path.get(), &epk, &value, rid);
                    changes.extend([Change::Delete(entry), Change::Delete(other)]);
                }
            } else {
                present.extend(key::rid_at_end(&entry));
            }
        }
        for row in entries(PathId::CREATION) {
            let (entry, place) = row.map_err(failed)?;
            let (Some(rid), Some((epk, _))) = (key::rid_at_end(&entry), key::split_place(&place)) else {
                continue;
            };
            if !present.contains(&rid) {
                push_entry(&mut changes, partition.segment, &epk, &place, path, &[encode::UNDEFINED], rid);
            }
            if changes.len() >= CHUNK_ENTRIES {
                self.commit(Batch { changes: std::mem::take(&mut changes) })?;
            }
        }
        self.commit(Batch { changes })?;
        Ok(())
    }
}
