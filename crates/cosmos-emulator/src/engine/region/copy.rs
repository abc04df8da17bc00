//! Bringing what one region wrote into the replica of another.

use bytes::Bytes;

use super::conflict::{self, Trace};
use super::log::{Entry, Write};
use super::rank::Rank;
use super::{RegionId, Topology, reach_bytes};
use crate::Failure;
use crate::config::WriteMode;
use crate::engine::document::{self, Stored};
use crate::engine::key;
use crate::engine::request::storage_failed;
use crate::engine::writer::Writer;
use crate::storage::Change;

impl Writer<'_> {
    /// Applies one entry of a region's log, which arrived at a moment in microseconds since 1970.
    pub(crate) fn apply(
        &mut self,
        topology: &Topology,
        stream: RegionId,
        (lsn, arrived): (u64, u64),
        entry: &Entry,
    ) -> Result<(), Failure> {
        // What it keeps of old versions carries the time and the numbers of the original.
        self.now = entry.micros / MICROS_PER_SECOND;
        self.begin_entry();
        match topology.mode {
            WriteMode::Single => {
                self.next.lsn = lsn;
                for write in in_order(&entry.writes) {
                    self.install(&write.place, write.item.as_ref())?;
                }
                self.next = entry.counters;
            }
            WriteMode::Multiple => {
                self.next.lsn += 1;
                for write in in_order(&entry.writes) {
                    self.contest(topology, write)?;
                }
                self.note_reach(stream, lsn);
                if self.container.region == topology.hub {
                    let places: Vec<_> = entry.writes.iter().map(|write| write.place.clone()).collect();
                    self.arbitrate(topology, &places, arrived)?;
                }
            }
        }
        Ok(())
    }

    /// Versions and conflicts are numbered anew in each entry.
    pub(super) fn begin_entry(&mut self) {
        self.versions = 0;
        self.conflicts = 0;
    }

    /// Writes down how far this replica has come.
    pub(crate) fn note_progress(&mut self) {
        self.changes.push(Change::Put(key::partition(self.partition.segment), self.next.to_bytes()));
        if let Some(reach) = &self.reach {
            self.changes.push(Change::Put(key::reach(self.partition.segment), reach_bytes(reach)));
        }
    }

    /// The rank of what an item was last written with.
    pub(crate) fn rank(&self, place: &[u8]) -> Result<Rank, Failure> {
        Ok(self.rank_row(place)?.and_then(|row| Rank::from_bytes(&row)).unwrap_or(Rank::LOWEST))
    }

    /// What it knew of.
    pub(crate) fn trace(&self, place: &[u8]) -> Result<Trace, Failure> {
        Ok(self.rank_row(place)?.map_or(Trace::NONE, |row| conflict::trace_of_row(&row)))
    }

    fn rank_row(&self, place: &[u8]) -> Result<Option<Bytes>, Failure> {
        self.get(&key::rank(self.container.replica, place))
    }

    /// Lets a write of another region win or lose against what is here.
    fn contest(&mut self, topology: &Topology, write: &Write) -> Result<(), Failure> {
        let Some(rank) = write.rank else {
            // It only expired over there; here it may have been renewed.
            return self.install_expiry(&write.place);
        };
        let known = self.rank(&write.place)?;
        let is_winner = rank.beats(known);
        let trace = match &write.trace {
            Some(trace) => Some(self.compare_traces(topology, write, (trace, is_winner))?),
            None => None,
        };
        if !is_winner {
            if trace.is_some() {
                self.set_rank(&write.place, known, trace.as_ref());
            }
            return Ok(());
        }
        let item = write.item.as_ref().map(|item| document::with_lsn(item, self.next.lsn));
        self.install(&write.place, item.as_ref())?;
        self.set_rank(&write.place, rank, trace.as_ref());
        Ok(())
    }

    /// Keeps the loser of a conflict, if this is the hub; returns what the next write will have known of.
    fn compare_traces(
        &mut self,
        topology: &Topology,
        write: &Write,
        (trace, is_winner): (&Trace, bool),
    ) -> Result<Trace, Failure> {
        let known = self.trace(&write.place)?;
        if self.container.region == topology.hub && trace.conflicts(&known) {
            if is_winner {
                let here = self.get(&key::item_at(self.container.replica, &write.place).into())?;
                self.keep_conflict(&write.place, known.deed, here.as_ref());
            } else {
                self.keep_conflict(&write.place, trace.deed, write.item.as_ref());
            }
        }
        Ok(if is_winner { trace.clone().merged(&known) } else { known.merged(trace) })
    }

    /// Notes how far this replica has followed a region, or has written itself.
    pub(super) fn note_reach(&mut self, region: RegionId, lsn: u64) {
        self.reach.get_or_insert_with(|| self.partition.reach().clone()).insert(region, lsn);
    }

    pub(super) fn set_rank(&mut self, place: &[u8], rank: Rank, trace: Option<&Trace>) {
        let row = key::rank(self.container.replica, place);
        self.set(row, Some(conflict::row_bytes(rank, trace)));
    }

    fn install_expiry(&mut self, place: &Bytes) -> Result<(), Failure> {
        match key::split_place(place) {
            Some((epk, id)) => self.remove_expired(&epk, id).map(drop),
            None => Ok(()),
        }
    }

    /// Makes an item what it is elsewhere.
    pub(crate) fn install(&mut self, place: &Bytes, item: Option<&Bytes>) -> Result<(), Failure> {
        let Some((epk, id)) = key::split_place(place) else { return Ok(()) };
        let found = self.get(&key::item(self.container.replica, &epk, id))?;
        let old = found.as_ref().and_then(Stored::from_bytes);
        let new = item.and_then(|bytes| Stored::from_bytes(bytes).map(|stored| (bytes, stored)));
        match (old, new) {
            (None, None) => Ok(()),
            (Some(old), None) => self.remove(&epk, id, &old).map(drop),
            (Some(old), Some((bytes, stored))) if old.rid == stored.rid => {
                self.put_stored(&epk, place, Some(&old), (bytes, &stored))
            }
            (old, Some((bytes, stored))) => {
                if let Some(old) = old {
                    self.remove(&epk, id, &old)?;
                }
                self.put_stored(&epk, place, None, (bytes, &stored))
            }
        }
    }

    /// What another replica has in the place of an item.
    pub(crate) fn elsewhere(&self, replica: u32, place: &[u8]) -> Result<Option<Bytes>, Failure> {
        let key = key::item_at(replica, place);
        self.engine.storage().get(&key).map_err(|error| storage_failed(&error))
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

/// What is gone first: an item may have the value of a unique key that another one gave up in the same commit.
fn in_order(writes: &[Write]) -> impl Iterator<Item = &Write> {
    let gone = writes.iter().filter(|write| write.item.is_none());
    gone.chain(writes.iter().filter(|write| write.item.is_some()))
}
