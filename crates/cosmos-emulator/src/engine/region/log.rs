//! The log that carries writes to other regions, and the commits that feed it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};

use super::conflict::{Deed, Trace, row_bytes};
use super::rank::{self, Occasion, RANK_BYTES, Rank};
use super::{Haste, RegionId, Topology, reach_bytes};
use crate::Failure;
use crate::config::{Consistency, WriteMode};
use crate::engine::document::Stored;
use crate::engine::key::{self, Segment};
use crate::engine::partition::Counters;
use crate::engine::request::storage_failed;
use crate::engine::writer::Writer;
use crate::storage::{Batch, Change, Ticket};

/// One commit of one partition.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Where it was written.
    pub(crate) origin: RegionId,
    /// When, in microseconds since 1970.
    pub(crate) micros: u64,
    /// The partition's counters after it.
    pub(crate) counters: Counters,
    pub(crate) writes: Vec<Write>,
}

/// One item of a commit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Write {
    pub(crate) place: Bytes,
    /// As it is stored; none when it is gone.
    pub(crate) item: Option<Bytes>,
    /// Where several regions write. An item that only expired has none.
    pub(crate) rank: Option<Rank>,
    /// Where conflicts are kept.
    pub(crate) trace: Option<Trace>,
}

impl Entry {
    /// As kept in the store.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        out.put_u8(VERSION);
        out.put_u8(self.origin.byte());
        out.put_u64(self.micros);
        out.put_slice(&self.counters.to_bytes());
        for write in &self.writes {
            let flags = u8::from(write.item.is_some())
                | u8::from(write.rank.is_some()) << 1
                | u8::from(write.trace.is_some()) << 2;
            out.put_u8(flags);
            put_bytes(&mut out, &write.place);
            if let Some(item) = &write.item {
                put_bytes(&mut out, item);
            }
            if let Some(rank) = write.rank {
                out.put_slice(&rank.to_bytes());
            }
            if let Some(trace) = &write.trace {
                put_bytes(&mut out, &trace.to_bytes());
            }
        }
        Bytes::from(out)
    }

    /// From the store.
    pub(crate) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let mut rest = bytes.clone();
        if rest.len() < 10 + COUNTERS_BYTES || rest.get_u8() != VERSION {
            return None;
        }
        let (origin, micros) = (RegionId::from_byte(rest.get_u8()), rest.get_u64());
        let counters = Counters::from_bytes(&rest.split_to(COUNTERS_BYTES))?;
        let mut writes = Vec::new();
        while rest.has_remaining() {
            let flags = rest.get_u8();
            let place = take_bytes(&mut rest)?;
            let item = if flags & 1 != 0 { Some(take_bytes(&mut rest)?) } else { None };
            let rank = if flags & 2 != 0 {
                let rank = (rest.len() >= RANK_BYTES).then(|| rest.split_to(RANK_BYTES))?;
                Some(Rank::from_bytes(&rank)?)
            } else {
                None
            };
            let trace = if flags & 4 != 0 { Some(Trace::from_bytes(&take_bytes(&mut rest)?)?) } else { None };
            writes.push(Write { place, item, rank, trace });
        }
        Some(Self { origin, micros, counters, writes })
    }
}

const VERSION: u8 = 1;
const COUNTERS_BYTES: usize = 20;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

fn take_bytes(rest: &mut Bytes) -> Option<Bytes> {
    if rest.len() < 4 {
        return None;
    }
    let len = rest.get_u32() as usize;
    (rest.len() >= len).then(|| rest.split_to(len))
}

/// Where the log of a replica's writes stands.
pub(crate) fn log_of(topology: &Topology, container: u32, range: u32, region: RegionId) -> Segment {
    Segment { container: topology.stream_of(region).replica_of(container), range }
}

/// Commits what a writer changed, for the other regions to follow. A strong account brings it to all of them in the
/// same transaction; those that cannot be reached follow when they are back.
pub(crate) fn commit(mut writer: Writer<'_>, topology: &Topology) -> Result<Ticket, Failure> {
    let own = writer.container.region;
    let others: Vec<_> = topology.live().map(|region| region.id).filter(|id| *id != own).collect();
    if others.is_empty() {
        let batch = Batch { changes: writer.take_changes() };
        let ticket = writer.engine.commit(batch)?;
        writer.publish();
        return Ok(ticket);
    }
    let entry = entry(&mut writer, topology)?;
    let (engine, lsn) = (writer.engine, writer.next.lsn);
    let shape = Arc::clone(&writer.shape);
    let range = writer.partition.id();
    let links = engine.links();
    let reached: Vec<_> = others
        .iter()
        .filter(|id| {
            engine.options().consistency == Consistency::Strong && links.is_connected(topology, **id)
        })
        .map(|id| writer.container.in_region(*id))
        .collect();
    let mut copies = Vec::with_capacity(reached.len());
    for container in &reached {
        let Some(partition) = shape.partition_with(container.region, range) else { continue };
        // Nobody else writes meanwhile, so afterwards it lacks nothing but this.
        engine.follow_by(container, partition, || topology, Haste::Now)?;
        let mut copy = Writer::begin_copy(engine, container, partition)?;
        copy.apply(topology, own, (lsn, entry.micros), &entry)?;
        copy.note_progress();
        copies.push(copy);
    }
    if topology.mode == WriteMode::Multiple {
        let mut reach = writer.partition.reach().clone();
        reach.insert(own, lsn);
        writer.changes.push(Change::Put(key::reach(writer.partition.segment), reach_bytes(&reach)));
        writer.reach = Some(reach);
    }
    let mut changes = writer.take_changes();
    if copies.len() < others.len() {
        let log = log_of(topology, writer.container.number, range, own);
        changes.push(Change::Put(key::log(log, lsn), entry.to_bytes()));
    }
    for copy in &mut copies {
        changes.append(&mut copy.take_changes());
    }
    let ticket = engine.commit(Batch { changes })?;
    writer.publish();
    copies.into_iter().for_each(Writer::publish);
    Ok(ticket)
}

/// What a writer is about to commit, as the log has it. Where several regions write this ranks the writes, and keeps
/// the ranks with the items.
fn entry(writer: &mut Writer<'_>, topology: &Topology) -> Result<Entry, Failure> {
    let changed: BTreeMap<Bytes, Option<Bytes>> = writer
        .changes
        .iter()
        .filter_map(|change| match change {
            Change::Put(key, value) => Some((key::place_of_item(key)?, Some(value.clone()))),
            Change::Delete(key) => Some((key::place_of_item(key)?, None)),
        })
        .collect();
    let occasion = Occasion { micros: writer.engine.clock().now_micros(), origin: writer.container.region };
    let mut writes = Vec::with_capacity(changed.len());
    for (place, item) in changed {
        let (rank, trace) = match topology.mode {
            WriteMode::Single => (None, None),
            WriteMode::Multiple => ranked(writer, &place, item.as_ref(), occasion)?,
        };
        writes.push(Write { place, item, rank, trace });
    }
    Ok(Entry { origin: occasion.origin, micros: occasion.micros, counters: writer.next, writes })
}

fn ranked(
    writer: &mut Writer<'_>,
    place: &Bytes,
    item: Option<&Bytes>,
    occasion: Occasion,
) -> Result<(Option<Rank>, Option<Trace>), Failure> {
    let replica = writer.container.replica;
    let stored = item.and_then(Stored::from_bytes);
    let keeps_conflicts = writer.shape.keeps_conflicts();
    let mut deed = Deed::Replace;
    if stored.is_none() || keeps_conflicts {
        let old = writer.engine.storage().get(&key::item_at(replica, place));
        let old = old.map_err(|error| storage_failed(&error))?.as_ref().and_then(Stored::from_bytes);
        let is_expired = old.as_ref().is_some_and(|old| old.is_expired(writer.shape.default_ttl, writer.now));
        deed = match (&stored, old.is_none() || is_expired) {
            (None, _) if is_expired => return Ok((None, None)),
            (None, _) => Deed::Delete,
            (Some(_), true) => Deed::Create,
            (Some(_), false) => Deed::Replace,
        };
    }
    let value = stored.as_ref().map(|stored| rank::value_of(&writer.shape, stored));
    let rank = writer.rank(place)?.replaced(value, occasion);
    let trace = match keeps_conflicts {
        true => Some(writer.trace(place)?.followed(deed, occasion.origin, rank.micros())),
        false => None,
    };
    writer.changes.push(Change::Put(key::rank(replica, place), row_bytes(rank, trace.as_ref())));
    Ok((Some(rank), trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_bytes() {
        let rank = Rank::LOWEST.replaced(Some(3.0), Occasion { micros: 9, origin: RegionId::FIRST });
        let entry = Entry {
            origin: RegionId::from_byte(3),
            micros: 1_700_000_000_000_000,
            counters: Counters { lsn: 7, rid: 8, etag: 9 },
            writes: vec![
                Write {
                    place: Bytes::from_static(b"a"),
                    item: Some(Bytes::from_static(b"{}")),
                    rank: Some(rank),
                    trace: Some(Trace::NONE.followed(Deed::Create, RegionId::FIRST, 9)),
                },
                Write { place: Bytes::from_static(b"bc"), item: None, rank: None, trace: None },
            ],
        };
        let bytes = entry.to_bytes();
        assert_eq!(Entry::from_bytes(&bytes), Some(entry));
        for cut in 0..bytes.len() {
            // Whatever is left of an entry, reading it does not panic.
            let _ = Entry::from_bytes(&bytes.slice(..cut));
        }
    }
}
