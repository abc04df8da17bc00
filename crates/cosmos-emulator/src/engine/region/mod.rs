//! Regions: one replica of every container each, one of them the hub, and a log that carries writes between them.
//!
//! The catalog is shared; items, their index and the counters of partitions exist once per region, under a number of
//! their own (see [`RegionId::replica_of`]). The first region's number is the container's, so an account of one
//! region looks, and costs, as if there were no regions at all: nothing is logged.
//!
//! Who may write, and where the hub is, is one immutable [`Topology`]. Whoever writes loads it under the lock of the
//! partition; whoever changes it stores the new one and then passes through every lock once, so that afterwards
//! nobody acts on the old one.

mod topology;

use std::collections::BTreeMap;

use super::EngineOptions;
use super::key::{self, Segment};
use crate::storage::{Storage, StorageError};

pub(crate) use topology::{Reach, Topology};
pub use topology::{RegionId, WriteMode};

/// The regions a store remembers, or those of a new account.
pub(crate) fn load(storage: &dyn Storage, options: &EngineOptions) -> Result<Topology, StorageError> {
    match storage.get(&key::topology())? {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|_| broken("the regions")),
        None => Ok(Topology::new(&options.regions, options.write_mode)),
    }
}

/// How far a replica has followed the logs of the others.
pub(crate) fn load_reach(storage: &dyn Storage, segment: Segment) -> Result<Reach, StorageError> {
    let Some(bytes) = storage.get(&key::reach(segment))? else { return Ok(BTreeMap::new()) };
    let (rows, rest) = bytes.as_chunks::<9>();
    if !rest.is_empty() {
        return Err(broken("a replica"));
    }
    let row = |[region, lsn @ ..]: &[u8; 9]| (RegionId::from_byte(*region), u64::from_be_bytes(*lsn));
    Ok(rows.iter().map(row).collect())
}

fn broken(what: &str) -> StorageError {
    StorageError(format!("the record of {what} cannot be read; restore the data folder from a copy"))
}
