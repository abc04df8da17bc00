//! Partitions that have failed over on their own: which region's copy serves a request.
//!
//! While the write region's copy of a partition is down, requests for that partition are refused there, and the region
//! that took it over serves them, writes included. The copy that it serves from is the write region's, so nothing is
//! lost and every other region follows as ever: what clients see of such a failover is where they may go.

use cosmos_wire::partition_key::PartitionKey;

use super::Account;
use super::headers::{Asked, name};
use super::route::Route;
use crate::engine::RegionId;
use crate::failure::Failure;

impl Account {
    /// The region whose copy serves a request that came in at `region`.
    pub(super) fn serving(
        &self,
        region: RegionId,
        route: &Route,
        asked: &Asked<'_>,
    ) -> Result<RegionId, Failure> {
        let moved = self.engine.moved_partitions();
        let Some(link) = route.container.as_deref().filter(|_| !moved.is_empty()) else { return Ok(region) };
        let Some(range) = self.range_of(link, asked) else { return Ok(region) };
        let Some(moved) = moved.iter().find(|moved| moved.container == link && moved.range == range) else {
            return Ok(region);
        };
        let writer = self.engine.topology().hub;
        if region == writer {
            return Err(super::account::unavailable());
        }
        Ok(if region == moved.to { writer } else { region })
    }

    /// The partition that a request is for, if it names one.
    fn range_of(&self, link: &str, asked: &Asked<'_>) -> Option<u32> {
        if let Some(range) = asked.text(name::PARTITION_KEY_RANGE_ID) {
            return range.rsplit(',').next()?.trim().parse().ok();
        }
        let (database, container) = link.strip_prefix("dbs/")?.split_once("/colls/")?;
        let container = self.engine.container(database, container).ok()?;
        let key: PartitionKey = asked.utf8(name::PARTITION_KEY)?.parse().ok()?;
        container.range_id_of(&key).ok()
    }
}
