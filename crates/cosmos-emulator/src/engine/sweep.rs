//! Removing what nobody can see any more: expired items, and the data of deleted containers and of partitions that
//! others replaced.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::container::Container;
use super::partition::Partition;
use super::request::storage_failed;
use super::writer::Writer;
use super::{Engine, key};
use crate::Failure;
use crate::storage::{Batch, Change, Order};

impl Engine {
    /// Removes expired items and the data of deleted containers, about `work_max` items or entries; returns how many
    /// were removed. Call it now and then; nothing expired is ever visible anyway.
    ///
    /// # Errors
    /// 500 when the store fails.
    pub fn sweep(&self, work_max: usize) -> Result<usize, Failure> {
        self.forget_replicated()?;
        let containers: Vec<_> = self.catalog().all_containers().map(Arc::clone).collect();
        let mut removed = 0;
        for container in containers {
            let shape = container.shape();
            for partition in shape.every_partition() {
                removed += self.sweep_versions(&shape, partition, work_max.saturating_sub(removed))?;
            }
            removed += self.sweep_container(&container, work_max.saturating_sub(removed))?;
            if removed >= work_max {
                return Ok(removed);
            }
        }
        removed += self.sweep_retired(work_max.saturating_sub(removed))?;
        Ok(removed + self.purge(work_max.saturating_sub(removed))?)
    }

    /// Removes expired items of a container, in the region whose writes all others follow.
    pub(crate) fn sweep_container(&self, container: &Container, items_max: usize) -> Result<usize, Failure> {
        let shape = container.shape();
        let mut removed = 0;
        if shape.default_ttl.is_none() {
            return Ok(0);
        }
        let region = self.topology().hub;
        let container = container.in_region(region);
        for partition in shape.partitions_in(region) {
            while removed < items_max {
                let chunk = CHUNK_ENTRIES.min(items_max - removed);
                match self.sweep_partition(&container, partition, chunk)? {
                    0 => break,
                    some => removed += some,
                }
            }
        }
        Ok(removed)
    }

    /// Removes expired items of a partition.
    pub(crate) fn sweep_partition(
        &self,
        container: &Container,
        partition: &Partition,
        items_max: usize,
    ) -> Result<usize, Failure> {
        let now = self.clock().now_seconds();
        let lower = key::expiries(partition.segment);
        let upper = key::expiry(partition.segment, now + 1, 0);
        if self
            .storage()
            .scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward)
            .next()
            .is_none()
        {
            return Ok(0);
        }
        let mut writer = match Writer::begin(self, container, partition) {
            Ok(writer) => writer,
            Err(_) => return Ok(0),
        };
        let mut removed = 0;
        let places = self
            .storage()
            .scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward)
            .take(items_max)
            .map(|row| row.map(|(_, place)| place))
            .collect::<Result<Vec<Bytes>, _>>()
            .map_err(|error| storage_failed(&error))?;
        for place in places {
            if let Some((epk, id)) = key::split_place(&place) {
                removed += usize::from(writer.remove_expired(&epk, id)?);
            }
        }
        writer.commit()?;
        Ok(removed)
    }

    fn purge(&self, entries_max: usize) -> Result<usize, Failure> {
        let failed = |error| storage_failed(&error);
        let mut removed = 0;
        let prefix = key::purges();
        let upper = key::beyond(prefix.clone());
        let waiting: Vec<Bytes> = self
            .storage()
            .scan(Bound::Included(&prefix), Bound::Excluded(&upper), Order::Forward)
            .map(|row| row.map(|(key, _)| key))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        for purge in waiting {
            let Some(number) = key::purged_container(&purge) else { continue };
            for prefix in key::container_data(number) {
                removed += self.storage().forget_entries(&prefix);
                removed += self.delete_prefix(&prefix, entries_max.saturating_sub(removed))?;
                if removed >= entries_max {
                    return Ok(removed);
                }
            }
            self.commit(Batch { changes: vec![Change::Delete(purge)] })?;
        }
        Ok(removed)
    }

    /// Removes up to `entries_max` keys with a prefix; returns how many.
    fn delete_prefix(&self, prefix: &[u8], entries_max: usize) -> Result<usize, Failure> {
        let upper = key::beyond(prefix.to_vec());
        self.delete_range(prefix, &upper, entries_max)
    }

    /// Removes up to `entries_max` keys of a range; returns how many.
    pub(crate) fn delete_range(
        &self,
        lower: &[u8],
        upper: &[u8],
        entries_max: usize,
    ) -> Result<usize, Failure> {
        let mut removed = 0;
        while removed < entries_max {
            let changes: Vec<_> = self
                .storage()
                .scan(Bound::Included(lower), Bound::Excluded(upper), Order::Forward)
                .take(CHUNK_ENTRIES.min(entries_max - removed))
                .map(|row| row.map(|(key, _)| Change::Delete(key)))
                .collect::<Result<_, _>>()
                .map_err(|error| storage_failed(&error))?;
            if changes.is_empty() {
                break;
            }
            removed += changes.len();
            self.commit(Batch { changes })?;
        }
        Ok(removed)
    }
}

/// Keys removed with one commit.
pub(crate) const CHUNK_ENTRIES: usize = 4_096;
