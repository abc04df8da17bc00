//! The fleet: who runs work on this container, who looks after which slots, and the bell that says where something is new.
//!
//! All of them are in one partition. None is needed for a commit to be right: if they are gone, wrong or foreign, work goes
//! on and only takes longer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ids, kind};

/// A process that runs work, as it last told of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The name under which it owns slots and holds locks.
    pub(crate) owner: String,
    /// Random for each life of a process: two processes of one name are told apart by it.
    #[serde(default)]
    pub(crate) life: String,
    #[serde(default)]
    pub(crate) joined_at: u64,
    #[serde(default)]
    pub(crate) beat_at: u64,
    /// From then on, by the service's clock, others may take its slots over.
    #[serde(default)]
    pub(crate) lease_until: u64,
    /// Turns and activities that it holds.
    #[serde(default)]
    pub(crate) running: u64,
    /// How many turns and activities it has been seen to run, or to wait for, at the same time.
    #[serde(default)]
    pub(crate) capacity: u64,
    /// What it could begin at once and has not: turns and activities.
    #[serde(default)]
    pub(crate) backlog: u64,
    /// It has looked at everything in its slots that was due before then.
    #[serde(default)]
    pub(crate) passed: u64,
    /// Whether its runtime asks for turns, and for activities.
    #[serde(default)]
    pub(crate) serves_turns: bool,
    #[serde(default)]
    pub(crate) serves_work: bool,
    /// Which of them.
    #[serde(default)]
    pub(crate) serves_any_tag: bool,
    #[serde(default)]
    pub(crate) serves_untagged: bool,
    #[serde(default)]
    pub(crate) serves_tags: Vec<String>,
    /// The build of this crate.
    #[serde(default)]
    pub(crate) build: String,
    /// The machine, for people.
    #[serde(default)]
    pub(crate) host: String,
    /// The machine since it was started, for its other processes: they know whether this one is still there.
    #[serde(default)]
    pub(crate) machine: String,
    #[serde(default)]
    pub(crate) process: u32,
    /// The service removes what a dead process left, after so many seconds.
    pub(crate) ttl: u64,
}

/// Which member looks after which slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SlotTable {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Counts the tables.
    #[serde(default)]
    pub(crate) epoch: u64,
    #[serde(default)]
    pub(crate) shares: Vec<TableShare>,
}

/// Neighbouring slots that are in the same hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableShare {
    pub(crate) first: u8,
    pub(crate) last: u8,
    pub(crate) owner: String,
    /// Whom the owner is asked to hand them over to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl SlotTable {
    /// The `epoch`th table.
    pub(crate) fn new(epoch: u64, shares: Vec<TableShare>) -> Self {
        Self {
            id: ids::SLOT_TABLE.to_owned(),
            instance_id: ids::LEASES.to_owned(),
            kind: kind::SLOT_TABLE.to_owned(),
            epoch,
            shares,
        }
    }
}

/// What was rung last, by the process that rang.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Bell {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) rings: BTreeMap<String, Rung>,
    /// The epoch of the slot table, so that who listens hears of a new one.
    #[serde(default)]
    pub(crate) epoch: u64,
}

impl Bell {
    /// A bell that nobody has rung.
    pub(crate) fn silent() -> Self {
        Self {
            id: ids::BELL.to_owned(),
            instance_id: ids::LEASES.to_owned(),
            kind: kind::BELL.to_owned(),
            ..Self::default()
        }
    }
}

/// The last rings of one process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rung {
    /// The number of its last ring. Who has heard a smaller one has missed those in between that are not listed.
    pub(crate) n: u64,
    /// The last messages that were rung for, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) m: Vec<RungMessage>,
    /// The slots in whose part of the container activities are new, for whoever they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) w: Vec<RungWork>,
}

/// A message that was rung for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RungMessage {
    pub(crate) n: u64,
    /// The instance.
    pub(crate) i: String,
    pub(crate) id: String,
    /// Its order key.
    pub(crate) s: u64,
    /// When it is due.
    pub(crate) v: u64,
}

/// New activities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RungWork {
    pub(crate) n: u64,
    /// The slot of the instance they belong to.
    pub(crate) slot: u8,
}
