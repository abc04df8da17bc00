//! Which regions an account has, which of them writes, and the version that session tokens carry.

use std::collections::BTreeMap;

use cosmos_wire::status::Status;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::config::WriteMode;

/// A region's number in its account; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegionId(u8);

impl RegionId {
    /// The region an account began with.
    pub const FIRST: Self = Self(0);
    /// Stands for all regions where they share a log; no region's number.
    const SHARED: Self = Self(u8::MAX);
    /// No region's number is higher.
    pub(crate) const LAST: Self = Self(u8::MAX - 1);

    /// The number under which this region keeps the data of a container. The first region uses the container's own.
    pub(crate) fn replica_of(self, container: u32) -> u32 {
        container | u32::from(self.0) << REPLICA_SHIFT
    }

    /// The region that keeps data under a number made by [`RegionId::replica_of`].
    pub(crate) fn of_replica(number: u32) -> Self {
        Self((number >> REPLICA_SHIFT) as u8)
    }

    /// As session tokens name it.
    pub(crate) fn in_token(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// The number under which a container keeps the log that all regions share.
    pub(crate) fn shared_log_of(container: u32) -> u32 {
        Self::SHARED.replica_of(container)
    }

    /// As keys and resource ids carry it.
    pub(crate) fn byte(self) -> u8 {
        self.0
    }

    /// From a key.
    pub(crate) fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    fn next(self) -> Option<Self> {
        (self < Self::LAST).then(|| Self(self.0 + 1))
    }
}

/// Container numbers stay below this bit in accounts of several regions.
const REPLICA_SHIFT: u32 = 24;

/// The largest number of a container in an account of several regions.
pub(crate) const CONTAINER_NUMBER_MAX: u32 = (1 << REPLICA_SHIFT) - 1;

/// One region, as the account remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) name: String,
    /// Whether it left the account; its number stays taken.
    pub(crate) is_removed: bool,
    /// Whether it is cut off from the others.
    pub(crate) is_paused: bool,
}

/// A move of the write region that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Move {
    /// The region catches up first; nobody writes meanwhile.
    Draining(RegionId),
    /// The hub has moved; what the others had beyond it is being taken back.
    TakingBack,
}

/// The regions of an account at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Topology {
    /// In the order they joined, the removed ones included.
    pub(crate) regions: Vec<Region>,
    /// Takes the writes of a single-write account; arbiter of session tokens.
    pub(crate) hub: RegionId,
    pub(crate) mode: WriteMode,
    /// Rises with every change of the regions or the hub; 0 as long as there was only ever one region.
    pub(crate) version: i64,
    /// Tokens before this version speak of writes that may have been lost; their numbers mean nothing any more.
    pub(crate) comparable_from: i64,
    /// Earlier hubs are not forgotten, because the first number of a token counts the writes of the hub of its version:
    /// from which version on, and which region.
    #[serde(default)]
    pub(crate) hubs: Vec<(i64, RegionId)>,
    /// A failover in progress.
    pub(crate) moving: Option<Move>,
}

/// How far a replica has followed each region's log.
pub(crate) type Reach = BTreeMap<RegionId, u64>;

impl Topology {
    /// Of a new account.
    pub(crate) fn new(names: &[String], mode: WriteMode) -> Self {
        let mut topology = Self {
            regions: Vec::new(),
            hub: RegionId::FIRST,
            mode,
            version: 0,
            comparable_from: -1,
            hubs: Vec::new(),
            moving: None,
        };
        for name in names {
            let id = topology.next_id().unwrap_or_default();
            topology.regions.push(Region { id, name: name.clone(), is_removed: false, is_paused: false });
        }
        topology.version = i64::from(names.len() > 1);
        topology
    }

    /// Whether there are no other regions to think of.
    pub(crate) fn is_single(&self) -> bool {
        self.regions.len() == 1
    }

    /// Regions that are part of the account, in the order they joined.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|region| !region.is_removed)
    }

    /// The region with this name that is part of the account.
    pub(crate) fn named(&self, name: &str) -> Option<&Region> {
        self.live().find(|region| region.name.eq_ignore_ascii_case(name))
    }

    /// A region by number, removed or not.
    pub(crate) fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions.iter().find(|region| region.id == id)
    }

    pub(crate) fn region_mut(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| region.id == id)
    }

    /// The number of the next region; none when all have been given.
    pub(crate) fn next_id(&self) -> Option<RegionId> {
        match self.regions.iter().map(|region| region.id).max() {
            None => Some(RegionId::FIRST),
            Some(last) => last.next(),
        }
    }

    /// Makes a region the hub of a new version.
    pub(crate) fn set_hub(&mut self, hub: RegionId) {
        self.hub = hub;
        self.version += 1;
        self.hubs.push((self.version, hub));
    }

    /// The hub of a version.
    pub(crate) fn hub_of(&self, version: i64) -> RegionId {
        self.hubs.iter().rev().find(|(from, _)| *from <= version).map_or(RegionId::FIRST, |(_, hub)| *hub)
    }

    /// Refuses a write in a region that takes none.
    pub(crate) fn check_write(&self, region: RegionId) -> Result<(), Failure> {
        let allowed = match self.mode {
            WriteMode::Single => self.moving.is_none() && region == self.hub,
            WriteMode::Multiple => self.region(region).is_some_and(|region| !region.is_removed),
        };
        if allowed { Ok(()) } else { Err(write_forbidden()) }
    }

    /// Whose log carries the writes of a region: one log in a single-write account, wherever the hub is.
    pub(crate) fn stream_of(&self, region: RegionId) -> RegionId {
        match self.mode {
            WriteMode::Single => RegionId::SHARED,
            WriteMode::Multiple => region,
        }
    }
}

/// The answer of a region that takes no writes.
fn write_forbidden() -> Failure {
    Failure::of(Status::WRITE_FORBIDDEN, "The requested operation cannot be performed at this region")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_first_region_keeps_data_under_the_containers_own_number() {
        assert_eq!(RegionId::FIRST.replica_of(77), 77);
        let third = RegionId(2).replica_of(77);
        assert_ne!(third, 77);
        assert_eq!(RegionId::of_replica(third), RegionId(2));
    }

    #[test]
    fn region_numbers_are_never_given_twice() {
        let mut topology = Topology::new(&names(&["A", "B"]), WriteMode::Single);
        topology.regions[1].is_removed = true;
        assert_eq!(topology.next_id(), Some(RegionId(2)));
        assert_eq!(topology.named("b"), None);
        assert_eq!(topology.named("a").map(|region| region.id), Some(RegionId::FIRST));
    }

    #[test]
    fn only_the_hub_of_a_single_write_account_writes() {
        let single = Topology::new(&names(&["A", "B"]), WriteMode::Single);
        assert_eq!(single.check_write(RegionId(0)), Ok(()));
        let refused = single.check_write(RegionId(1)).expect_err("a read region");
        assert_eq!((refused.status, refused.sub_status), (403, 3));
        let multiple = Topology { mode: WriteMode::Multiple, ..single };
        assert_eq!(multiple.check_write(RegionId(1)), Ok(()));
    }
}
