//! What connects the regions right now; forgotten when the process ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{RegionError, RegionId, Topology};
use crate::config::ReplicationDelay;
use crate::engine::Engine;

/// What connects the regions right now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    delays: Vec<ReplicationDelay>,
    offline: BTreeSet<RegionId>,
    has_per_partition_failover: bool,
    moved: Vec<MovedPartition>,
}

/// A partition whose copy in the write region is down, and the region that took it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MovedPartition {
    /// `dbs/{db}/colls/{container}`.
    pub(crate) container: String,
    pub(crate) range: u32,
    pub(crate) to: RegionId,
}

impl Links {
    pub(crate) fn new(delays: Vec<ReplicationDelay>) -> Self {
        Self { delays, ..Self::default() }
    }

    /// Whether a region takes part in replication.
    pub(crate) fn is_connected(&self, topology: &Topology, region: RegionId) -> bool {
        let is_paused = topology.region(region).is_none_or(|region| region.is_removed || region.is_paused);
        !is_paused && !self.offline.contains(&region)
    }

    /// How long a write takes from one region to another.
    pub(crate) fn delay(&self, topology: &Topology, from: RegionId, to: RegionId) -> Duration {
        let name = |id: RegionId| topology.region(id).map_or("", |region| region.name.as_str());
        let rule = self.delays.iter().rfind(|rule| rule.fits(name(from), name(to)));
        rule.map_or(Duration::ZERO, |rule| rule.delay)
    }
}

impl Engine {
    pub(crate) fn set_offline(&self, region: RegionId, is_offline: bool) -> Result<(), RegionError> {
        // What was on its way before arrives; what comes later does not.
        self.replicate()?;
        self.change_links(|links| {
            if is_offline {
                links.offline.insert(region);
            } else {
                links.offline.remove(&region);
            }
        });
        Ok(())
    }

    pub(crate) fn set_replication_delay(&self, delay: ReplicationDelay) {
        self.change_links(|links| {
            links.delays.retain(|rule| (&rule.from, &rule.to) != (&delay.from, &delay.to));
            links.delays.push(delay);
        });
    }

    pub(crate) fn has_per_partition_failover(&self) -> bool {
        self.links.load().has_per_partition_failover
    }

    pub(crate) fn set_per_partition_failover(&self, is_enabled: bool) {
        self.change_links(|links| links.has_per_partition_failover = is_enabled);
    }

    /// The partitions that have failed over on their own.
    pub(crate) fn moved_partitions(&self) -> Vec<MovedPartition> {
        let links = self.links.load();
        if links.moved.is_empty() { Vec::new() } else { links.moved.clone() }
    }

    pub(crate) fn move_partition(&self, partition: MovedPartition) {
        self.change_links(|links| {
            links
                .moved
                .retain(|moved| (&moved.container, moved.range) != (&partition.container, partition.range));
            links.moved.push(partition);
        });
    }

    pub(crate) fn return_partition(&self, container: &str, range: u32) {
        self.change_links(|links| {
            links.moved.retain(|moved| (moved.container.as_str(), moved.range) != (container, range));
        });
    }

    fn change_links(&self, change: impl FnOnce(&mut Links)) {
        let control = self.control();
        let mut links = Links::clone(&self.links.load());
        change(&mut links);
        self.links.store(Arc::new(links));
        drop(control);
    }
}
