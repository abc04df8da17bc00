//! Conflicts that the owner of a container settles himself: the writes that lost, in a feed.
//!
//! Where the policy of a container is `Custom`, the regions still agree on one winner, and the hub writes down what
//! lost. Two writes are in conflict if neither knew of the other, which their [`Trace`]s tell.

use std::ops::Bound;

use bytes::{Buf, BufMut, Bytes};
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::rid::{Kind as RidKind, Rid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::RegionId;
use super::rank::{RANK_BYTES, Rank};
use crate::Failure;
use crate::config::WriteMode;
use crate::engine::container::{Container, Shape};
use crate::engine::document::{Stored, etag_text};
use crate::engine::quota;
use crate::engine::request::{ResourceFeed, ResourceReply, storage_failed};
use crate::engine::writer::Writer;
use crate::engine::{Engine, key};
use crate::storage::{Batch, Change, Order};

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Deed {
    Create = 0,
    Replace = 1,
    Delete = 2,
}

/// What a write of one item did, and which writes of it it knew of: the last of each region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) deed: Deed,
    seen: Vec<(RegionId, u64)>,
}

impl Trace {
    /// Of an item that nobody has written since all regions agreed.
    pub(crate) const NONE: Self = Self { deed: Deed::Create, seen: Vec::new() };

    /// Of a write over this one, at a moment of its region.
    pub(crate) fn followed(mut self, deed: Deed, origin: RegionId, micros: u64) -> Self {
        self.see(origin, micros);
        Self { deed, ..self }
    }

    /// Whether it knew of everything that another did.
    fn knows(&self, other: &Self) -> bool {
        let last = |origin| self.seen.iter().find(|(region, _)| *region == origin).map_or(0, |(_, at)| *at);
        other.seen.iter().all(|(origin, micros)| last(*origin) >= *micros)
    }

    /// Whether neither knew of the other.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        !self.knows(other) && !other.knows(self)
    }

    /// What stays after a conflict: whoever writes next knows of both.
    pub(crate) fn merged(mut self, other: &Self) -> Self {
        other.seen.iter().for_each(|(origin, micros)| self.see(*origin, *micros));
        self
    }

    fn see(&mut self, origin: RegionId, micros: u64) {
        match self.seen.iter_mut().find(|(region, _)| *region == origin) {
            Some((_, last)) => *last = micros.max(*last),
            None => {
                self.seen.push((origin, micros));
                self.seen.sort_unstable();
            }
        }
    }

    /// As kept in the store and in the log.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![self.deed as u8];
        for (origin, micros) in &self.seen {
            out.put_u8(origin.byte());
            out.put_u64(*micros);
        }
        out
    }

    /// From the store or the log.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (deed, mut rest) = bytes.split_first()?;
        let deed = *[Deed::Create, Deed::Replace, Deed::Delete].get(usize::from(*deed))?;
        let mut seen = Vec::new();
        while rest.len() >= 9 {
            seen.push((RegionId::from_byte(rest.get_u8()), rest.get_u64()));
        }
        rest.is_empty().then_some(Self { deed, seen })
    }
}

/// A rank and a trace as one row of the store; without a trace where nobody needs it.
pub(crate) fn row_bytes(rank: Rank, trace: Option<&Trace>) -> Bytes {
    let mut out = rank.to_bytes().to_vec();
    out.extend(trace.map(Trace::to_bytes).unwrap_or_default());
    Bytes::from(out)
}

/// The trace in a row of [`row_bytes`].
pub(crate) fn trace_of_row(row: &[u8]) -> Trace {
    row.get(RANK_BYTES..).and_then(Trace::from_bytes).unwrap_or(Trace::NONE)
}

impl Shape {
    /// Whether conflicts are left to the owner of the container. A procedure to settle them is never there: nothing
    /// here runs JavaScript.
    pub(crate) fn keeps_conflicts(&self) -> bool {
        self.body["conflictResolutionPolicy"]["mode"] == "Custom"
    }
}

/// A conflict as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    deed: Deed,
    /// Number of the item in its container.
    item: u64,
    content: String,
    timestamp: u64,
    lsn: u64,
    /// The logical partition, as it stands in keys.
    epk: Vec<u8>,
}

impl Writer<'_> {
    /// Writes down what lost.
    pub(super) fn keep_conflict(&mut self, place: &[u8], deed: Deed, item: Option<&Bytes>) {
        let Some((epk, _)) = key::split_place(place) else { return };
        let stored = item.and_then(Stored::from_bytes);
        let content = stored.as_ref().map(|stored| String::from_utf8_lossy(&stored.body).into_owned());
        let kept = Kept {
            deed,
            item: stored.map_or(0, |stored| stored.rid),
            content: content.unwrap_or_default(),
            timestamp: self.now,
            lsn: self.next.lsn,
            epk: epk.as_bytes().to_vec(),
        };
        let range = u64::from(self.partition.id());
        let number = range << RANGE_SHIFT | self.next.lsn << LSN_SHIFT | u64::from(self.conflicts);
        self.conflicts += 1;
        let value = serde_json::to_vec(&kept).expect("a conflict is plain data");
        let shared = RegionId::shared_log_of(self.container.number);
        self.changes.push(Change::Put(key::conflict(shared, number), value.into()));
    }
}

/// The number of a conflict has 60 bits: the range in which it was found, the LSN there, and its place in that entry.
const RANGE_SHIFT: u32 = 44;
const LSN_SHIFT: u32 = 12;
/// More conflicts of a container are not listed at once.
const LISTED_MAX: usize = 10_000;

impl Engine {
    /// The conflicts of a container, or of one logical partition of it.
    pub(crate) fn conflicts(
        &self,
        container: &Container,
        of: Option<&PartitionKey>,
    ) -> Result<ResourceFeed, Failure> {
        self.bring_to_hub(container)?;
        let epk = of.map(|of| container.epk(of)).transpose()?;
        let epk = epk.map(|epk| crate::engine::container::epk_key(&epk));
        let prefix = key::conflicts(RegionId::shared_log_of(container.number));
        let upper = key::beyond(prefix.clone());
        let mut resources = Vec::new();
        let rows = self.storage().scan(Bound::Included(&prefix), Bound::Excluded(&upper), Order::Forward);
        for row in rows.take(LISTED_MAX) {
            let (row, value) = row.map_err(|error| storage_failed(&error))?;
            let Some((number, kept)) = read(&row, &value) else { continue };
            if epk.as_ref().is_none_or(|epk| epk.as_bytes() == kept.epk) {
                resources.push(shown(container, number, &kept));
            }
        }
        Ok(ResourceFeed { rid: container.rid(), resources, charge: 1.0 })
    }

    /// One conflict by its id.
    pub(crate) fn conflict(&self, container: &Container, id: &str) -> Result<ResourceReply, Failure> {
        self.bring_to_hub(container)?;
        let number = number_of(id).ok_or_else(Failure::not_found)?;
        let row = key::conflict(RegionId::shared_log_of(container.number), number);
        let value = self.storage().get(&row).map_err(|error| storage_failed(&error))?;
        let (_, kept) = value.and_then(|value| read(&row, &value)).ok_or_else(Failure::not_found)?;
        let body = shown(container, number, &kept);
        let (etag, rid) = (etag_text(0, kept.timestamp), id.to_owned());
        Ok(ResourceReply { status: 200, body, etag, rid, charge: 1.0, ticket: None })
    }

    /// Removes a conflict that its owner has settled.
    pub(crate) fn delete_conflict(&self, container: &Container, id: &str) -> Result<ResourceReply, Failure> {
        let found = self.conflict(container, id)?;
        let number = number_of(id).ok_or_else(Failure::not_found)?;
        let row = key::conflict(RegionId::shared_log_of(container.number), number);
        let ticket = self.commit(Batch { changes: vec![Change::Delete(row)] })?;
        let charge = quota::REFUSED_WRITE;
        Ok(ResourceReply {
            status: 204,
            body: Value::Null,
            etag: String::new(),
            charge,
            ticket: Some(ticket),
            ..found
        })
    }

    /// Lets the hub learn what it should know by now: that is where conflicts are found.
    fn bring_to_hub(&self, container: &Container) -> Result<(), Failure> {
        let topology = self.topology().clone();
        if topology.mode == WriteMode::Single || topology.is_single() {
            return Ok(());
        }
        let here = container.in_region(topology.hub);
        let shape = container.shape();
        shape.partitions_in(topology.hub).iter().try_for_each(|partition| self.catch_up(&here, partition))
    }
}

fn number_of(id: &str) -> Option<u64> {
    let rid: Rid = id.parse().ok()?;
    (rid.kind() == RidKind::Conflict).then(|| rid.counter())?
}

fn read(row: &[u8], value: &[u8]) -> Option<(u64, Kept)> {
    let number = row.last_chunk::<8>().map(|number| u64::from_be_bytes(*number))?;
    Some((number, serde_json::from_slice(value).ok()?))
}

/// A conflict as clients see it.
fn shown(container: &Container, number: u64, kept: &Kept) -> Value {
    let rid = container.rid.conflict(number).to_string();
    let link = container.documents_link.trim_end_matches("docs/");
    let item = if kept.item == 0 { String::new() } else { container.rid.document(kept.item).to_string() };
    json!({
        "id": rid,
        "operationType": kept.deed,
        "resourceType": "document",
        "resourceId": item,
        "content": kept.content,
        "conflict_lsn": kept.lsn,
        "_rid": rid,
        "_self": format!("{link}conflicts/{rid}/"),
        "_etag": etag_text(0, kept.timestamp),
        "_ts": kept.timestamp,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_conflict_if_neither_knew_of_the_other() {
        let region = RegionId::from_byte;
        let base = Trace::NONE.followed(Deed::Create, region(0), 5);
        let (east, west) = (
            base.clone().followed(Deed::Replace, region(0), 9),
            base.clone().followed(Deed::Delete, region(1), 7),
        );
        assert!(east.conflicts(&west) && west.conflicts(&east));
        assert!(!east.conflicts(&base) && !base.conflicts(&west));
        let both = east.clone().merged(&west).followed(Deed::Replace, region(2), 11);
        assert!(!both.conflicts(&east) && !both.conflicts(&west));
    }

    #[test]
    fn traces_survive_their_bytes() {
        let trace = Trace::NONE.followed(Deed::Delete, RegionId::from_byte(3), 7);
        assert_eq!(Trace::from_bytes(&trace.to_bytes()), Some(trace.clone()));
        assert_eq!(trace_of_row(&row_bytes(Rank::LOWEST, Some(&trace))), trace);
        assert_eq!(trace_of_row(&row_bytes(Rank::LOWEST, None)), Trace::NONE);
        assert_eq!(Trace::from_bytes(&[9]), None);
        assert_eq!(Trace::from_bytes(&[1, 2, 3]), None);
    }
}
