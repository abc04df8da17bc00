//! The provider's invariants, checked on what is stored.
//!
//! [`Family`] collects what spans several instances, [`check`] judges one partition as a pure function, [`repair`]
//! carries out what a defect says would mend it.

mod check;
mod events;
mod fleet;
mod repair;

pub(crate) use check::check;
pub(crate) use events::{decode, texts};
pub(crate) use fleet::check as check_fleet;
pub(crate) use repair::{Repair, carry_out};

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::Partition;

/// Something that should not be so.
#[derive(Debug, Clone)]
pub(crate) struct Defect {
    /// The partition it is in.
    pub(crate) instance: String,
    /// How bad it is.
    pub(crate) level: Level,
    /// What is wrong.
    pub(crate) text: String,
    /// What would mend it.
    pub(crate) repair: Option<Repair>,
}

/// How bad a defect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Runtimes put it right by themselves: nothing has to be done.
    Passing,
    /// Takes room and nothing else.
    Litter,
    /// Data is lost, contradictory, or a workflow will never move again.
    Broken,
}

/// What the provider cannot read in one partition.
pub(crate) fn unreadable(instance: &str, partition: &Partition) -> Vec<Defect> {
    let defect = |(id, kind, why): (String, String, String)| Defect {
        instance: instance.to_owned(),
        level: Level::Broken,
        text: format!("document {id:?} ({kind}) cannot be read: {why}"),
        repair: None,
    };
    partition.unreadable().into_iter().map(defect).collect()
}

/// What is known about all instances, for the checks that cross partitions.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Status by instance.
    pub(crate) status: BTreeMap<String, String>,
    /// Instances that have messages waiting.
    pub(crate) with_messages: BTreeSet<String>,
    /// Messages on their way: source and target.
    pub(crate) sending: BTreeSet<(String, String)>,
}

/// A row that [`Family`] is made of.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Member {
    instance_id: String,
    #[serde(rename = "type")]
    kind: String,
    status: String,
    target_instance_id: String,
}

impl Family {
    /// The query that [`Family::new`] wants the rows of.
    pub(crate) const QUERY: &str = "SELECT c.instanceId, c.type, c.status, c.targetInstanceId FROM c \
        WHERE c.type IN ('instance', 'orch_queue', 'outbox_intent')";

    /// Whether any workflow is running.
    pub(crate) fn is_running(&self) -> bool {
        self.status.values().any(|status| status == "Running")
    }

    /// From the rows of all partitions.
    pub(crate) fn new(rows: Vec<Member>) -> Self {
        let mut family = Self::default();
        for row in rows {
            match row.kind.as_str() {
                "instance" => {
                    family.status.insert(row.instance_id, row.status);
                }
                "orch_queue" => {
                    family.with_messages.insert(row.instance_id);
                }
                _ => {
                    family.sending.insert((row.instance_id, row.target_instance_id));
                }
            }
        }
        family
    }
}
