//! Splitting and merging physical partitions.
//!
//! An operation goes through three phases. While it prepares, the old partitions serve as before. While it swaps,
//! they answer 410/1007. Then the new partitions serve, and the ids of the old ones answer 410/1002.
//!
//! Items, unique keys and the index by logical partition stand in order of effective partition key and stay where
//! they are. What belongs to one physical partition is copied to the new ones at the end of the swap, in pieces; then
//! one commit makes the new layout the valid one. The operation is a record of the store, so a process that is killed
//! goes on with it, and what a half-done copy left behind is removed first.

mod cut;
mod layout;
mod progress;
mod record;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use record::{Moving, Operations};

/// Where a physical partition is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SplitMode {
    /// In the middle of its keys.
    Midpoint,
    /// At an effective partition key, in hex as the partition-key ranges show it.
    At(String),
    /// Where half of what it stores is on either side.
    Storage,
}

/// What moves an operation on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progression {
    /// It swaps at once and is done after this long; zero means that it is done when the call returns.
    Automatic {
        /// How long requests to the old partitions get 410/1007.
        lock_duration: Duration,
    },
    /// Each phase waits for [`Emulator::advance`](crate::Emulator::advance).
    Manual,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The old partitions serve.
    Preparing,
    /// The old partitions answer 410/1007.
    Swapping,
    /// The new partitions serve.
    Succeeded,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reshaping {
    /// One partition becomes several.
    Split,
    /// Two neighbours become one.
    Merge,
}

/// A split or a merge, as it can be watched. As JSON it has the form of the emulator that comes with the official Rust
/// driver: `operationId`, `phase`, the ids of the `children`, and for a merge the one `into` which they went; and besides
/// `id`, `status`, and the `ranges` of the children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionOperation {
    /// To ask for it again.
    pub id: u64,
    /// What it does.
    pub kind: Reshaping,
    /// Name of the database.
    pub database: String,
    /// Name of the container.
    pub container: String,
    /// How far it is.
    pub phase: Phase,
    /// The partitions it takes away.
    pub parents: Vec<u32>,
    /// The partitions it makes.
    pub children: Vec<NewPartition>,
}

impl Serialize for PartitionOperation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let children: Vec<u32> = self.children.iter().map(|child| child.id).collect();
        let into = children.first().filter(|_| self.kind == Reshaping::Merge);
        serde_json::json!({
            "id": self.id,
            "operationId": self.id.to_string(),
            "kind": self.kind,
            "database": self.database,
            "container": self.container,
            "phase": self.phase,
            "status": self.phase,
            "parents": self.parents,
            "children": children,
            "into": into,
            "ranges": self.children,
        })
        .serialize(serializer)
    }
}

/// A partition that an operation makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPartition {
    /// Id of its partition-key range.
    pub id: u32,
    /// First effective partition key, in hex.
    pub min_inclusive: String,
    /// First effective partition key beyond, in hex.
    pub max_exclusive: String,
}
