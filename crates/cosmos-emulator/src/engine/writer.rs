//! The one writer of a physical partition: collects the changes of an operation or a batch, and commits them with one
//! LSN. Dropping it without a commit changes nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, MutexGuard};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use serde_json::Value;

use super::container::{Container, Shape};
use super::content::Content;
use super::document::{self, Stamp, Stored};
use super::index::common::CommonPaths;
use super::index::fresh::Fresh;
use super::index::path::PathId;
use super::index::policy::Mode;
use super::index::terms::{self, Side, Terms};
use super::key::{self, EpkKey, Segment};
use super::partition::{Counters, Partition};
use super::region::{self, Reach, Topology};
use super::{Engine, request};
use crate::Failure;
use crate::storage::{Batch, Change, NewEntries, Order, Ticket};

/// Changes on their way into one partition.
pub(crate) struct Writer<'a> {
    pub(super) engine: &'a Engine,
    pub(crate) container: &'a Container,
    pub(crate) shape: Arc<Shape>,
    pub(crate) partition: &'a Partition,
    held: MutexGuard<'a, Counters>,
    pub(super) next: Counters,
    pub(super) changes: Vec<Change>,
    /// What new items leave in the index, besides.
    entries: Vec<Arc<dyn NewEntries>>,
    /// Paths that all documents will have, if it leaves fewer.
    common: Option<CommonPaths>,
    /// Where it is not alone: the regions that follow it.
    topology: Option<Arc<Topology>>,
    /// How far a replica will have followed others.
    pub(super) reach: Option<Reach>,
    /// Items and unique keys as they will be, for later steps of a batch.
    pending: BTreeMap<Bytes, Option<Bytes>>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// The same moment, for expressions.
    pub(crate) time: std::time::SystemTime,
    /// What steps since the last mark have put over pending items.
    replaced: Vec<(Bytes, Option<Option<Bytes>>)>,
    /// Versions kept so far.
    pub(super) versions: u32,
    /// Conflicts kept so far.
    pub(super) conflicts: u16,
}

/// Where a writer stood.
pub(crate) struct Mark {
    next: Counters,
    changes: usize,
    entries: usize,
    common: Option<CommonPaths>,
    versions: u32,
    conflicts: u16,
}

/// What a write did.
pub(crate) struct Written {
    pub(crate) stored: Stored,
    pub(crate) indexed_properties: usize,
}

impl<'a> Writer<'a> {
    /// Waits for the writers before, then begins.
    pub(crate) fn begin(
        engine: &'a Engine,
        container: &'a Container,
        partition: &'a Partition,
    ) -> Result<Self, Failure> {
        let held = partition.lock();
        container.check_exists()?;
        partition.check_gate()?;
        let topology = engine.topology();
        let topology = if topology.is_single() {
            None
        } else {
            topology.check_write(container.region)?;
            Some(Arc::clone(&topology))
        };
        let next = Counters { lsn: held.lsn + 1, ..*held };
        Ok(Self { topology, next, ..Self::over(engine, container, partition, held) })
    }

    /// Begins to bring writes of other regions into a replica, which count where they were made.
    pub(super) fn begin_copy(
        engine: &'a Engine,
        container: &'a Container,
        partition: &'a Partition,
    ) -> Result<Self, Failure> {
        let held = partition.lock();
        container.check_exists()?;
        Ok(Self::over(engine, container, partition, held))
    }

    fn over(
        engine: &'a Engine,
        container: &'a Container,
        partition: &'a Partition,
        held: MutexGuard<'a, Counters>,
    ) -> Self {
        let time = engine.clock().now();
        Self {
            engine,
            container,
            shape: container.shape(),
            partition,
            next: *held,
            held,
            changes: Vec::new(),
            entries: Vec::new(),
            common: None,
            topology: None,
            reach: None,
            pending: BTreeMap::new(),
            replaced: Vec::new(),
            now: time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            time,
            versions: 0,
            conflicts: 0,
        }
    }

    /// Makes the changes visible. Without changes nothing happens and the LSN stays.
    pub(crate) fn commit(mut self) -> Result<Option<Ticket>, Failure> {
        if self.changes.is_empty() {
            return Ok(None);
        }
        self.changes.push(Change::Put(key::partition(self.partition.segment), self.next.to_bytes()));
        let engine = self.engine;
        let ticket = match self.topology.take() {
            Some(topology) => {
                debug_assert!(self.entries.is_empty(), "other regions take single changes");
                region::commit(self, &topology)?
            }
            None => {
                let batch = Batch { changes: self.take_changes() };
                let ticket = engine.commit_with(std::mem::take(&mut self.entries), batch)?;
                self.publish();
                ticket
            }
        };
        engine.storage().let_in_waiting();
        Ok(Some(ticket))
    }

    /// What is to be committed.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        changes.extend(self.partition.leave_common(self.common.take()));
        changes
    }

    /// Tells readers and the next writer of what was committed.
    pub(super) fn publish(mut self) {
        *self.held = self.next;
        self.partition.note_common_told();
        if let Some(reach) = self.reach.take() {
            *self.partition.reach() = reach;
        }
        self.partition.publish(self.next.lsn);
    }

    /// Where a step begins that may be taken back.
    pub(crate) fn mark(&mut self) -> Mark {
        self.replaced.clear();
        Mark {
            next: self.next,
            changes: self.changes.len(),
            entries: self.entries.len(),
            common: self.common.clone(),
            versions: self.versions,
            conflicts: self.conflicts,
        }
    }

    /// Takes back what was done since a mark, which must be the last one.
    pub(crate) fn go_back(&mut self, mark: Mark) {
        let Mark { next, changes, entries, common, versions, conflicts } = mark;
        self.changes.truncate(changes);
        self.entries.truncate(entries);
        (self.next, self.common, self.versions, self.conflicts) = (next, common, versions, conflicts);
        while let Some((key, before)) = self.replaced.pop() {
            match before {
                Some(before) => self.pending.insert(key, before),
                None => self.pending.remove(&key),
            };
        }
    }

    /// All documents of a logical partition that exist now, earlier steps included.
    pub(crate) fn documents(&self, epk: &EpkKey) -> Result<Vec<Value>, Failure> {
        let lower = key::item(self.container.replica, epk, "");
        let upper = key::beyond(lower.to_vec());
        let mut items = BTreeMap::new();
        let storage = self.engine.storage();
        for row in storage.scan(Bound::Included(&lower[..]), Bound::Excluded(&upper[..]), Order::Forward) {
            let (key, value) = row.map_err(|error| request::storage_failed(&error))?;
            items.insert(key, Some(value));
        }
        let pending = self.pending.range(lower.clone()..Bytes::from(upper));
        items.extend(pending.map(|(key, value)| (key.clone(), value.clone())));
        let mut stored: Vec<Stored> =
            items.into_values().flatten().filter_map(|bytes| Stored::from_bytes(&bytes)).collect();
        stored.retain(|stored| !stored.is_expired(self.shape.default_ttl, self.now));
        stored.sort_by_key(|stored| stored.rid);
        stored.iter().map(Stored::value).collect()
    }

    /// An item that exists now, earlier steps of this batch included.
    pub(crate) fn find(&self, epk: &EpkKey, id: &str) -> Result<Option<Stored>, Failure> {
        let found = self.get(&key::item(self.container.replica, epk, id))?;
        let stored = found.as_ref().and_then(Stored::from_bytes);
        Ok(stored.filter(|stored| !stored.is_expired(self.shape.default_ttl, self.now)))
    }

    /// Stores an item that is new, or over the one that was found.
    pub(crate) fn put(
        &mut self,
        epk: &EpkKey,
        old: Option<&Stored>,
        content: Content,
    ) -> Result<Written, Failure> {
        if let Some(old) = old {
            return self.put_as(epk, old.rid, false, Some(old), content);
        }
        self.next.rid += 1;
        self.put_as(epk, self.next.rid, true, None, content)
    }

    /// Stores an item that was found under another id.
    pub(crate) fn rename(
        &mut self,
        epk: &EpkKey,
        from: &str,
        old: &Stored,
        content: Content,
    ) -> Result<Written, Failure> {
        self.remove(epk, from, old)?;
        self.put_as(epk, old.rid, false, None, content)
    }

    fn put_as(
        &mut self,
        epk: &EpkKey,
        rid: u64,
        is_new: bool,
        old: Option<&Stored>,
        mut content: Content,
    ) -> Result<Written, Failure> {
        let item_key = key::item(self.container.replica, epk, &content.id);
        if old.is_none() {
            self.remove_expired(epk, &content.id)?;
        }
        self.next.etag = self.next.etag.wrapping_add(1);
        let stamp = Stamp { lsn: self.next.lsn, rid, etag: self.next.etag, timestamp: self.now };
        let bytes = content.take_stored(self.container, stamp);
        let Some(stored) = Stored::from_bytes(&bytes) else { return Err(document::too_large()) };
        if stored.body.len() > document::BYTES_MAX {
            return Err(document::too_large());
        }
        let old_document = match old {
            Some(old) if self.needs_old_document() => Some(old.value()?),
            Some(_) | None => None,
        };
        self.put_unique(epk, &content, old_document.as_ref())?;
        let place = key::place(epk, &content.id);
        let new_terms = content.take_terms(&self.shape, self.now, rid);
        self.narrow_common(&new_terms);
        let indexed_properties = new_terms.indexed_properties;
        self.keep_version(&place, old, Some(&stored))?;
        let segment = self.partition.segment;
        let deadline = stored.deadline(self.shape.default_ttl);
        let expiry = deadline.map(|deadline| Change::Put(key::expiry(segment, deadline, rid), place.clone()));
        match old {
            // Other regions take single changes.
            None if is_new && self.topology.is_none() => {
                let fresh = Fresh { segment, place, rid, lsn: stored.lsn, terms: new_terms };
                self.entries.push(Arc::new(fresh));
            }
            None => {
                self.put_entry(epk, &place, PathId::CREATION, &[], rid);
                self.put_difference(epk, &place, rid, &Terms::default(), &new_terms);
                self.changes.push(Change::Put(key::change(segment, stored.lsn, rid), place));
            }
            Some(old) => {
                let old_terms =
                    old_document.map_or_else(Terms::default, |document| self.terms(&document, old));
                self.put_difference(epk, &place, rid, &old_terms, &new_terms);
                self.delete(key::change(segment, old.lsn, rid));
                self.delete_expiry(old);
                self.changes.push(Change::Put(key::change(segment, stored.lsn, rid), place));
            }
        }
        self.changes.extend(expiry);
        self.set(item_key, Some(bytes));
        Ok(Written { stored, indexed_properties })
    }

    /// Stores an item as another replica has it, over the one that was found.
    pub(super) fn put_stored(
        &mut self,
        epk: &EpkKey,
        place: &Bytes,
        old: Option<&Stored>,
        (bytes, stored): (&Bytes, &Stored),
    ) -> Result<(), Failure> {
        let Some((_, id)) = key::split_place(place) else { return Ok(()) };
        self.keep_version(place, old, Some(stored))?;
        let segment = self.partition.segment;
        let document = if self.needs_old_document() { stored.value()? } else { Value::Null };
        let old_document = match old {
            Some(old) if self.needs_old_document() => Some(old.value()?),
            Some(_) | None => None,
        };
        let old_unique = old_document.as_ref().map_or_else(Vec::new, |old| self.unique_keys(epk, old));
        let new_unique = self.unique_keys(epk, &document);
        for unique in old_unique {
            self.release(unique, id)?;
        }
        for unique in new_unique {
            self.hold(unique, id)?;
        }
        let new_terms = self.terms(&document, stored);
        self.narrow_common(&new_terms);
        let old_terms = match (old, &old_document) {
            (Some(old), Some(document)) => self.terms(document, old),
            _ => Terms::default(),
        };
        if old.is_none() {
            self.put_entry(epk, place, PathId::CREATION, &[], stored.rid);
        }
        self.put_difference(epk, place, stored.rid, &old_terms, &new_terms);
        if let Some(old) = old {
            self.delete(key::change(segment, old.lsn, old.rid));
            self.delete_expiry(old);
        }
        self.changes.push(Change::Put(key::change(segment, stored.lsn, stored.rid), place.clone()));
        if let Some(deadline) = stored.deadline(self.shape.default_ttl) {
            self.changes.push(Change::Put(key::expiry(segment, deadline, stored.rid), place.clone()));
        }
        self.set(key::item_at(self.container.replica, place).into(), Some(bytes.clone()));
        Ok(())
    }

    /// Removes an item that was found; returns how many indexed properties it had.
    pub(crate) fn remove(&mut self, epk: &EpkKey, id: &str, old: &Stored) -> Result<usize, Failure> {
        self.keep_version(&key::place(epk, id), Some(old), None)?;
        let segment = self.partition.segment;
        let terms = if self.needs_old_document() {
            let document = old.value()?;
            for key in self.unique_keys(epk, &document) {
                self.release(key, id)?;
            }
            self.terms(&document, old)
        } else {
            Terms::default()
        };
        self.put_difference(epk, &Bytes::new(), old.rid, &terms, &Terms::default());
        self.delete(key::value_entry(segment, PathId::CREATION.get(), &[], old.rid));
        self.delete(key::partition_entry(self.container.replica, PathId::CREATION.get(), epk, &[], old.rid));
        self.delete(key::change(segment, old.lsn, old.rid));
        self.delete_expiry(old);
        self.set(key::item(self.container.replica, epk, id), None);
        Ok(terms.indexed_properties)
    }

    /// Removes what is still there of an item that no longer exists.
    pub(crate) fn remove_expired(&mut self, epk: &EpkKey, id: &str) -> Result<bool, Failure> {
        if self.shape.default_ttl.is_none() {
            return Ok(false);
        }
        let found = self.get(&key::item(self.container.replica, epk, id))?;
        let stored = found.as_ref().and_then(Stored::from_bytes);
        match stored.filter(|stored| stored.is_expired(self.shape.default_ttl, self.now)) {
            Some(stored) => self.remove(epk, id, &stored).map(|_| true),
            None => Ok(false),
        }
    }

    /// The regions this writer's commit counts in, where there are several: its session token carries their version.
    pub(crate) fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.clone()
    }

    /// The LSN this writer's commit will have.
    pub(crate) fn lsn(&self) -> u64 {
        if self.changes.is_empty() { self.held.lsn } else { self.next.lsn }
    }

    fn needs_old_document(&self) -> bool {
        self.shape.policy.mode == Mode::Consistent || !self.shape.unique_keys.is_empty()
    }

    fn terms(&self, document: &Value, stored: &Stored) -> Terms {
        terms::terms(document, stored.timestamp, stored.rid, &self.shape.policy, &self.shape.tracked)
    }

    /// Takes notice of the paths that a new content lacks.
    fn narrow_common(&mut self, terms: &Terms) {
        let narrowed = match &self.common {
            Some(common) => common.narrowed(terms),
            None => self.partition.common().narrowed(terms),
        };
        if narrowed.is_some() {
            self.common = narrowed;
        }
    }

    fn put_difference(&mut self, epk: &EpkKey, place: &Bytes, rid: u64, old: &Terms, new: &Terms) {
        terms::difference(old, new, |side, path, value| match side {
            Side::Added => self.put_entry(epk, place, path, value, rid),
            Side::Removed => {
                self.changes.push(Change::Delete(key::value_entry(
                    self.partition.segment,
                    path.get(),
                    value,
                    rid,
                )));
                let entry = key::partition_entry(self.container.replica, path.get(), epk, value, rid);
                self.changes.push(Change::Delete(entry));
            }
        });
    }

    fn put_entry(&mut self, epk: &EpkKey, place: &Bytes, path: PathId, value: &[u8], rid: u64) {
        push_entry(&mut self.changes, self.partition.segment, epk, place, path, value, rid);
    }

    fn delete_expiry(&mut self, old: &Stored) {
        if let Some(deadline) = old.deadline(self.shape.default_ttl) {
            self.delete(key::expiry(self.partition.segment, deadline, old.rid));
        }
    }

    pub(super) fn get(&self, key: &Bytes) -> Result<Option<Bytes>, Failure> {
        match self.pending.get(key) {
            Some(pending) => Ok(pending.clone()),
            None => self.engine.storage().get(key).map_err(|error| request::storage_failed(&error)),
        }
    }

    pub(super) fn set(&mut self, key: Bytes, value: Option<Bytes>) {
        self.changes.push(match &value {
            Some(value) => Change::Put(key.clone(), value.clone()),
            None => Change::Delete(key.clone()),
        });
        let before = self.pending.insert(key.clone(), value);
        self.replaced.push((key, before));
    }

    pub(super) fn delete(&mut self, key: Bytes) {
        self.changes.push(Change::Delete(key));
    }
}

/// Adds an index entry in both of its orders.
pub(crate) fn push_entry(
    changes: &mut Vec<Change>,
    segment: Segment,
    epk: &EpkKey,
    place: &Bytes,
    path: PathId,
    value: &[u8],
    rid: u64,
) {
    changes.push(Change::Put(key::value_entry(segment, path.get(), value, rid), place.clone()));
    let entry = key::partition_entry(segment.container, path.get(), epk, value, rid);
    changes.push(Change::Put(entry, place.clone()));
}
