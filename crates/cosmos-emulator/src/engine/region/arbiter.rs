//! The hub decides which item keeps a value of a unique key that several regions gave away.
//!
//! Every region takes what the others wrote, so for a while two items may hold one value. When the hub has both, it
//! deletes the one of lower rank, as a write of its own that all others follow. Only the hub does: two who decided with
//! different knowledge would delete both.

use std::ops::Bound;

use bytes::Bytes;

use super::conflict::Deed;
use super::log::{Entry, Write, log_of};
use super::rank::Occasion;
use super::{RegionId, Topology};
use crate::Failure;
use crate::config::WriteMode;
use crate::engine::Engine;
use crate::engine::container::Container;
use crate::engine::document::Stored;
use crate::engine::key::{self, EpkKey};
use crate::engine::partition::Partition;
use crate::engine::request::storage_failed;
use crate::engine::unique;
use crate::engine::writer::Writer;
use crate::storage::{Batch, Change, Order};

/// As many items are decided about in one entry of the log as a batch may have.
const PLACES_MAX: usize = 100;

impl Engine {
    /// Lets a new hub decide what the one before it had not.
    pub(super) fn arbitrate_all(&self) -> Result<(), Failure> {
        let topology = self.topology().clone();
        if topology.mode == WriteMode::Single || topology.is_single() {
            return Ok(());
        }
        for container in self.every_container() {
            let shape = container.shape();
            if shape.unique_keys.is_empty() {
                continue;
            }
            let here = container.in_region(topology.hub);
            for partition in shape.partitions_in(topology.hub) {
                self.arbitrate_in(&here, partition, &topology)?;
            }
        }
        Ok(())
    }

    fn arbitrate_in(
        &self,
        container: &Container,
        partition: &Partition,
        topology: &Topology,
    ) -> Result<(), Failure> {
        let mut copy = Writer::begin_copy(self, container, partition)?;
        let bound = |bound: Vec<u8>| key::uniques(container.replica, &bound);
        let (lower, upper) = (bound(partition.lower()), bound(partition.upper()));
        let mut places = Vec::new();
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward) {
            let (row, entry) = row.map_err(|error| storage_failed(&error))?;
            if unique::is_shared(&entry)
                && let Some(epk) = key::epk_of_unique(&row)
            {
                places.extend(unique::holders(&entry).iter().map(|id| key::place(&epk, id)));
            }
        }
        if places.is_empty() {
            return Ok(());
        }
        for places in places.chunks(PLACES_MAX) {
            copy.next.lsn += 1;
            copy.begin_entry();
            copy.arbitrate(topology, places, self.clock().now_micros())?;
        }
        copy.note_progress();
        let changes = copy.take_changes();
        self.commit(Batch { changes })?;
        copy.publish();
        Ok(())
    }
}

impl Writer<'_> {
    /// Deletes what shares a value of a unique key with an item of higher rank, for all regions.
    pub(super) fn arbitrate(
        &mut self,
        topology: &Topology,
        places: &[Bytes],
        micros: u64,
    ) -> Result<(), Failure> {
        if self.shape.unique_keys.is_empty() {
            return Ok(());
        }
        let occasion = Occasion { micros, origin: self.container.region };
        let mut writes = Vec::new();
        for place in places {
            let Some((epk, id)) = key::split_place(place) else { continue };
            while let Some(loser) = self.loser(&epk, id)? {
                let rank = self.rank(&loser)?.replaced(None, occasion);
                let mut trace = None;
                if self.shape.keeps_conflicts() {
                    let known = self.trace(&loser)?;
                    let item = self.get(&key::item_at(self.container.replica, &loser).into())?;
                    self.keep_conflict(&loser, known.deed, item.as_ref());
                    trace = Some(known.followed(Deed::Delete, occasion.origin, rank.micros()));
                }
                self.install(&loser, None)?;
                self.set_rank(&loser, rank, trace.as_ref());
                writes.push(Write { place: loser, item: None, rank: Some(rank), trace });
            }
        }
        if !writes.is_empty() {
            let entry = Entry { origin: occasion.origin, micros, counters: self.next, writes };
            self.tell_others(topology, &entry);
        }
        Ok(())
    }

    /// One that must give way, of those that share a value with an item.
    fn loser(&self, epk: &EpkKey, id: &str) -> Result<Option<Bytes>, Failure> {
        let found = self.get(&key::item(self.container.replica, epk, id))?;
        let Some(stored) = found.as_ref().and_then(Stored::from_bytes) else { return Ok(None) };
        for unique in self.unique_keys(epk, &stored.value()?) {
            let entry = self.get(&unique)?.unwrap_or_default();
            let mut least = None;
            for holder in unique::holders(&entry).iter().filter(|_| unique::is_shared(&entry)) {
                let place = key::place(epk, holder);
                let rank = self.rank(&place)?;
                if least.as_ref().is_none_or(|(_, lowest)| rank.loses_to(*lowest)) {
                    least = Some((place, rank));
                }
            }
            if let Some((place, _)) = least {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Puts a decision of this region into its log.
    fn tell_others(&mut self, topology: &Topology, entry: &Entry) {
        let (own, lsn): (RegionId, u64) = (self.container.region, self.next.lsn);
        let log = log_of(topology, self.container.number, self.partition.id(), own);
        self.changes.push(Change::Put(key::log(log, lsn), entry.to_bytes()));
        self.note_reach(own, lsn);
    }
}
