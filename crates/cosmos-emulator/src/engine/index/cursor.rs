//! Reading documents along a plan.

use std::cell::{Cell, OnceCell};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::value_order;
use serde_json::Value;

use super::choice::{Choice, Plan, Sorted};
use super::path::value_at;
use super::{encode, terms};
use crate::Failure;
use crate::engine::container::{Container, Shape};
use crate::engine::document::Stored;
use crate::engine::key;
use crate::engine::request::storage_failed;
use crate::sql::source::{Direction, Position, Row, Rows};
use crate::storage::{Order, Scan, Storage, View};

/// What all cursors of a request share.
pub(crate) struct Reader<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) container: &'a Container,
    /// What is read of it, from the first row on.
    pub(crate) moment: OnceCell<Moment<'a>>,
    pub(crate) default_ttl: Option<i32>,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Documents read so far, and their bytes.
    pub(crate) visited: Cell<(u64, u64)>,
    /// Partitions opened so far, and the last of them.
    pub(crate) opened: Cell<(u32, Option<u32>)>,
}

/// A container at one moment, so that a page sees all of a batch or nothing.
pub(crate) struct Moment<'a> {
    pub(crate) shape: Arc<Shape>,
    pub(crate) view: Box<dyn View + 'a>,
}

impl<'a> Reader<'a> {
    /// The moment that is read: the one of the first call.
    pub(crate) fn moment(&self) -> &Moment<'a> {
        self.moment.get_or_init(|| {
            loop {
                let (shape, view) = (self.container.shape(), self.storage.view());
                // A policy that changed in between may have cleared the index that the old shape knows.
                if Arc::ptr_eq(&shape, &self.container.shape()) {
                    return Moment { shape, view };
                }
            }
        })
    }

    /// The document an entry points to, if it is still there.
    pub(crate) fn load(&self, entry: &[u8], place: &[u8]) -> Result<Option<Stored>, Failure> {
        let key = key::item_at(self.container.replica, place);
        let found = self.moment().view.get(&key).map_err(|error| storage_failed(&error))?;
        let Some(stored) = found.as_ref().and_then(Stored::from_bytes) else { return Ok(None) };
        let same = key::rid_at_end(entry) == Some(stored.rid);
        if !same || stored.is_expired(self.default_ttl, self.now) {
            return Ok(None);
        }
        let (documents, bytes) = self.visited.get();
        self.visited.set((documents + 1, bytes + stored.body.len() as u64));
        Ok(Some(stored))
    }
}

/// Documents along a plan.
pub(crate) struct Cursor<'a, 'r> {
    reader: &'a Reader<'r>,
    choice: Choice,
    plan: Plan,
    /// Index of the interval being read, and its rows.
    at: usize,
    scan: Option<Scan<'a>>,
    /// An entry that was read to see that a group ended.
    ahead: Option<(Bytes, Bytes)>,
    /// A group that had to be sorted.
    sorted: VecDeque<Row>,
    /// Where the page before ended.
    resume: Option<Resume>,
    /// What comes behind the last interval.
    then: Option<(Choice, Plan)>,
}

/// The row behind which a page goes on.
struct Resume {
    entry: Vec<u8>,
    /// Where it stood in a group that had to be sorted; nothing in other rows. It may be gone by now.
    key: Vec<u8>,
}

/// The whole sort values of a row of a group, as bytes in their order.
struct SortKey {
    bytes: Vec<u8>,
    /// Whether others may have the same bytes and different values.
    is_cut: bool,
}

/// Bytes of strings in a sort key; a position that was longer would not fit into a header.
const SORT_KEY_BYTES_MAX: usize = 768;

impl<'a, 'r> Cursor<'a, 'r> {
    /// A cursor, behind the entry `resume` if given.
    pub(crate) fn new(reader: &'a Reader<'r>, choice: Choice, plan: Plan, resume: Option<Vec<u8>>) -> Self {
        let resume = resume.map(|rest| [plan.base.as_slice(), &rest].concat());
        let mut cursor = Self {
            reader,
            choice,
            plan,
            at: 0,
            scan: None,
            ahead: None,
            sorted: VecDeque::new(),
            resume: None,
            then: None,
        };
        if let Some(entry) = resume {
            let resume = cursor.split_resume(entry);
            let (plan, entry) = (&cursor.plan, &resume.entry);
            let is_left = |(lower, upper): &(Vec<u8>, Vec<u8>)| match plan.order {
                Order::Forward => entry < upper,
                Order::Reverse => lower <= entry,
            };
            cursor.at = plan.intervals.iter().position(is_left).unwrap_or(plan.intervals.len());
            // A place outside comes from a partition that had more keys than this one.
            let is_inside = |(lower, upper): &(Vec<u8>, Vec<u8>)| lower <= entry && entry < upper;
            let is_here = plan.intervals.get(cursor.at).is_some_and(is_inside);
            cursor.resume = is_here.then_some(resume);
        }
        cursor
    }

    /// Goes on with another plan behind the last row.
    pub(crate) fn then(self, choice: Choice, plan: Option<Plan>) -> Self {
        Self { then: plan.map(|plan| (choice, plan)), ..self }
    }

    /// Parts the sort key, which rows of a group carry behind their entry.
    fn split_resume(&self, entry: Vec<u8>) -> Resume {
        let parted = self.cut_end(&entry).and_then(|_| {
            let (rest, bytes) = entry.split_last_chunk::<2>()?;
            rest.split_at_checked(rest.len().checked_sub(usize::from(u16::from_be_bytes(*bytes)))?)
        });
        match parted {
            Some((own, key)) => Resume { entry: own.to_vec(), key: key.to_vec() },
            None => Resume { entry, key: Vec::new() },
        }
    }

    fn entry(&mut self) -> Result<Option<(Bytes, Bytes)>, Failure> {
        if let Some(entry) = self.ahead.take() {
            return Ok(Some(entry));
        }
        loop {
            if self.scan.is_none() {
                let Some(interval) = self.plan.intervals.get(self.at) else { return Ok(None) };
                let (lower, upper) = interval.clone();
                self.scan = Some(self.open(&lower, &upper));
            }
            let next = self.scan.as_mut().and_then(Iterator::next);
            match next {
                None => {
                    self.scan = None;
                    self.at += 1;
                }
                Some(Err(error)) => return Err(storage_failed(&error)),
                Some(Ok((entry, place))) => {
                    let kept = self.plan.keep.as_ref().is_none_or(|(low, high)| {
                        low.as_slice() <= place.as_ref() && place.as_ref() < high.as_slice()
                    });
                    if kept {
                        return Ok(Some((entry, place)));
                    }
                }
            }
        }
    }

    fn open(&mut self, lower: &[u8], upper: &[u8]) -> Scan<'a> {
        let (low, high);
        let (mut from, mut to) = (Bound::Included(lower), Bound::Excluded(upper));
        if let Some(entry) = self.resume.as_ref().map(|resume| resume.entry.clone()) {
            // A group that was sorted begins again; its rows are skipped up to the resumed one.
            if let Some(end) = self.cut_end(&entry) {
                low = entry[..end].to_vec();
                high = key::beyond(low.clone());
                match self.plan.order {
                    Order::Forward => from = Bound::Included(&low),
                    Order::Reverse => to = Bound::Excluded(&high),
                }
            } else {
                self.resume = None;
                low = entry;
                match self.plan.order {
                    Order::Forward => from = Bound::Excluded(&low),
                    Order::Reverse => to = Bound::Excluded(&low),
                }
            }
            return self.reader.moment().view.scan(from, to, self.plan.order);
        }
        self.reader.moment().view.scan(from, to, self.plan.order)
    }

    fn value_of<'e>(&self, entry: &'e [u8]) -> &'e [u8] {
        entry.get(self.plan.base.len()..entry.len().saturating_sub(8)).unwrap_or_default()
    }

    /// Where the first sort key ends that stands for several values: what is behind it is not in order.
    fn cut_end(&self, entry: &[u8]) -> Option<usize> {
        let inverted = self.plan.sorted_by.iter().map(|sorted| sorted.is_inverted);
        encode::cut_end(self.value_of(entry), inverted).map(|end| self.plan.base.len() + end)
    }

    fn row(&self, entry: &[u8], stored: &Stored) -> Result<Row, Failure> {
        Ok(Row { document: stored.value()?, position: self.position(entry) })
    }

    /// A place in the index, with the way that led there.
    fn position(&self, entry: &[u8]) -> Position {
        [&self.choice.to_bytes()[..], entry.get(self.plan.base.len()..).unwrap_or_default()].concat()
    }

    /// Whether this entry is the first of those that lead to the document.
    fn leads(&self, entry: &[u8], document: &Value) -> bool {
        let Some(path) = &self.plan.spread else { return true };
        let base = self.plan.base.as_slice();
        let found = terms::encoded_values(document, path).into_iter().filter(|value| {
            let key = [base, value].concat();
            let before = |(lower, upper): &(Vec<u8>, Vec<u8>)| match self.plan.order {
                Order::Forward => *upper <= key,
                Order::Reverse => key < *lower,
            };
            let nearest = self.plan.intervals.get(self.plan.intervals.partition_point(before));
            nearest.is_some_and(|(lower, upper)| *lower <= key && key < *upper)
        });
        let first = match self.plan.order {
            Order::Forward => found.min(),
            Order::Reverse => found.max(),
        };
        first.is_none_or(|first| first == self.value_of(entry))
    }

    /// Reads all entries that share a cut value and sorts their documents by the whole values.
    fn sort_group(&mut self, first: (Bytes, Bytes), end: usize) -> Result<(), Failure> {
        let shared = first.0.slice(..end);
        let mut group = Vec::new();
        let mut next = Some(first);
        while let Some((entry, place)) = next {
            if !entry.starts_with(&shared) {
                self.ahead = Some((entry, place));
                break;
            }
            if let Some(stored) = self.reader.load(&entry, &place)? {
                group.push((self.row(&entry, &stored)?, entry));
            }
            next = self.entry()?;
        }
        group.sort_by(|(a, _), (b, _)| self.compare(&a.document, &b.document));
        if let Some(resume) = self.resume.take() {
            let own = group.iter().position(|(_, entry)| *entry == resume.entry);
            let done = group.iter().enumerate().take_while(|(at, (row, entry))| {
                let key = self.sort_key(&row.document);
                match key.bytes.cmp(&resume.key) {
                    Ordering::Less => true,
                    Ordering::Greater => false,
                    Ordering::Equal if key.is_cut => own.is_some_and(|own| *at <= own),
                    Ordering::Equal => match self.plan.order {
                        Order::Forward => *entry <= resume.entry,
                        Order::Reverse => *entry >= resume.entry,
                    },
                }
            });
            let done = done.count();
            group.drain(..done);
        }
        for (row, _) in &mut group {
            let key = self.sort_key(&row.document).bytes;
            row.position.extend_from_slice(&key);
            row.position
                .extend_from_slice(&u16::try_from(key.len()).expect("sort keys are cut").to_be_bytes());
        }
        self.sorted = group.into_iter().map(|(row, _)| row).collect();
        Ok(())
    }

    /// The order of two documents of a group.
    fn compare(&self, a: &Value, b: &Value) -> Ordering {
        let mut orders = self.plan.sorted_by.iter().map(|Sorted { path, direction, .. }| {
            let order = value_order::compare_sort_keys(value_at(a, path), value_at(b, path));
            if *direction == Direction::Descending { order.reverse() } else { order }
        });
        orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn sort_key(&self, document: &Value) -> SortKey {
        let mut key = SortKey { bytes: Vec::new(), is_cut: false };
        let mut left = SORT_KEY_BYTES_MAX;
        for Sorted { path, direction, .. } in &self.plan.sorted_by {
            let (from, value) = (key.bytes.len(), value_at(document, path));
            encode::push_up_to(&mut key.bytes, value, left);
            if let Some(Value::String(text)) = value {
                key.is_cut |= text.len() > left;
                left = left.saturating_sub(text.len());
            }
            if *direction == Direction::Descending {
                key.bytes[from..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        key
    }
}

impl Rows for Cursor<'_, '_> {
    fn is_ordered(&self) -> bool {
        self.plan.is_ordered
    }

    fn pass(&mut self) -> Result<Option<Position>, Failure> {
        // Only here does each entry that leads to a document stand for a row.
        if !matches!(self.choice, Choice::Scan | Choice::ScanKeys)
            || self.then.is_some()
            || self.plan.lacking.is_some()
        {
            return Ok(self.next()?.map(|row| row.position));
        }
        let visited = self.reader.visited.get();
        while let Some((entry, place)) = self.entry()? {
            let is_there = self.reader.load(&entry, &place)?.is_some();
            self.reader.visited.set(visited);
            if is_there {
                return Ok(Some(self.position(&entry)));
            }
        }
        Ok(None)
    }

    fn next(&mut self) -> Result<Option<Row>, Failure> {
        loop {
            if let Some(row) = self.sorted.pop_front() {
                return Ok(Some(row));
            }
            let Some((entry, place)) = self.entry()? else {
                let Some(then) = self.then.take() else { return Ok(None) };
                ((self.choice, self.plan), self.at, self.resume) = (then, 0, None);
                continue;
            };
            if let Some(end) = self.cut_end(&entry) {
                self.sort_group((entry, place), end)?;
                continue;
            }
            let visited = self.reader.visited.get();
            let Some(stored) = self.reader.load(&entry, &place)? else { continue };
            let row = self.row(&entry, &stored)?;
            if self.plan.lacking.as_ref().is_some_and(|path| value_at(&row.document, path).is_some()) {
                // The service would have found the others by its index.
                self.reader.visited.set(visited);
                continue;
            }
            if self.leads(&entry, &row.document) {
                return Ok(Some(row));
            }
        }
    }
}

/// The way and the rest of the entry of a position.
pub(crate) fn split_position(position: &[u8]) -> Option<(Choice, Vec<u8>)> {
    let (choice, entry) = position.split_first_chunk::<2>()?;
    Some((Choice::from_bytes(*choice)?, entry.to_vec()))
}
