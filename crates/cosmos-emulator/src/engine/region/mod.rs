//! Regions: one replica of every container each, one of them the hub, and a log that carries writes between them.
//!
//! The catalog is shared; items, their index and the counters of partitions exist once per region, under a number of
//! their own (see [`RegionId::replica_of`]). The first region's number is the container's, so an account of one
//! region looks, and costs, as if there were no regions at all: nothing is logged.
//!
//! A write appends what it changed to a log, in the transaction that changes it. Replicas follow: before a region
//! answers a request it applies what has been on its way for long enough, so replication needs no thread and no timer,
//! and a moved clock moves it. Nobody can tell, because nobody sees a replica but through a request. An entry leaves
//! the log with the transaction of the last replica that applies it.
//!
//! In a single-write account all replicas count the same LSNs and there is one log, wherever the hub is; a replica's
//! LSN says how far it is. In a multi-write account each region has its own LSNs and log, a replica notes how far it
//! has followed each ([`Reach`]), and each write has a [`rank`](rank::Rank) by which all regions find the same winner.
//! Which of two items keeps a value of a unique key is for the hub to say ([`arbiter`]), and it keeps what lost where
//! the container wants that ([`conflict`]).
//!
//! Who may write, and where the hub is, is one immutable [`Topology`]. Whoever writes loads it under the lock of the
//! partition; whoever changes it stores the new one and then passes through every lock once, so that afterwards
//! nobody acts on the old one.

mod arbiter;
mod change;
mod conflict;
mod copy;
mod follow;
mod links;
mod log;
mod rank;
mod seed;
mod topology;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::key::{self, Segment};
use super::partition::Turn;
use crate::Failure;
use crate::storage::{Storage, StorageError};

pub(crate) use change::load;
pub(crate) use follow::Haste;
pub(crate) use links::{Links, MovedPartition};
pub(crate) use log::commit;
#[cfg(test)]
pub(crate) use topology::Move;
pub use topology::RegionId;
pub(crate) use topology::{Reach, Topology};

/// How the write region moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failover {
    /// The new write region gets every write first. Needs both regions.
    Planned,
    /// At once, as after the loss of a region: what the new write region has not got is lost everywhere.
    Forced,
}

/// How far a region is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationLag {
    /// Commits of other regions that have not arrived.
    pub commits: u64,
    /// Age of the oldest of them.
    pub oldest: Duration,
}

/// Why a region could not be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionError(pub(crate) String);

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RegionError {}

impl From<Failure> for RegionError {
    fn from(failure: Failure) -> Self {
        Self(failure.message)
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

/// The same, as kept in the store.
pub(crate) fn reach_bytes(reach: &Reach) -> Bytes {
    let mut out = Vec::with_capacity(reach.len() * 9);
    for (region, lsn) in reach {
        out.push(region.byte());
        out.extend_from_slice(&lsn.to_be_bytes());
    }
    Bytes::from(out)
}

/// Versions of the regions that ended beyond a replica.
pub(crate) fn load_turns(storage: &dyn Storage, segment: Segment) -> Result<Vec<Turn>, StorageError> {
    let Some(bytes) = storage.get(&key::turns(segment))? else { return Ok(Vec::new()) };
    let (rows, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(broken("a replica"));
    }
    let turn = |row: &[u8; 16]| {
        let (lsn, before) = row.split_at(8);
        let (lsn, before) = (lsn.try_into().unwrap_or_default(), before.try_into().unwrap_or_default());
        Turn { lsn: u64::from_be_bytes(lsn), before: i64::from_be_bytes(before) }
    };
    Ok(rows.iter().map(turn).collect())
}

/// The same, as kept in the store.
fn turns_bytes(turns: &[Turn]) -> Bytes {
    let mut out = Vec::with_capacity(turns.len() * 16);
    for turn in turns {
        out.extend_from_slice(&turn.lsn.to_be_bytes());
        out.extend_from_slice(&turn.before.to_be_bytes());
    }
    Bytes::from(out)
}

fn broken(what: &str) -> StorageError {
    StorageError(format!("the record of {what} cannot be read; restore the data folder from a copy"))
}
