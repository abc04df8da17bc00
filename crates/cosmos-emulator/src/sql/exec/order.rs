//! ORDER BY where no index brings the rows in order: a sort that keeps no more rows than are wanted.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use cosmos_wire::value_order::compare_sort_keys;
use serde_json::Value;

use super::super::ast::{OrderKey, Query};
use super::super::eval::{Env, eval};
use super::super::source::Direction;
use super::super::value::{json_bytes, kept_bytes};
use super::continuation::Place;
use super::project::project;
use crate::Failure;

/// Rows in the order of the query. Documents with equal keys come in the order of their creation, or in the reverse
/// of it where the first key descends, as an index read backwards brings them; tuples of one document keep theirs.
pub(crate) struct Sorter<'q> {
    query: &'q Query,
    /// The largest on top, so that it falls out first.
    heap: BinaryHeap<Entry>,
    rows_max: usize,
    /// What the page holds of them.
    room: Room,
    held: Held,
    /// Rows up to here were handed out before.
    after: Option<Entry>,
    /// The number of the document, and how many of its tuples came.
    tuples: (u64, u64),
}

/// What a page holds of sorted rows.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Rows before those of the page.
    pub(crate) skipped: usize,
    /// Bytes of its rows as JSON; the first one comes in any case.
    pub(crate) bytes_max: usize,
}

impl Room {
    /// Where all rows are wanted.
    const UNLIMITED: Self = Self { skipped: 0, bytes_max: usize::MAX };

    /// Whether a page ends before the last of the rows it holds, and knows that there are more, whichever of them are
    /// skipped.
    pub(crate) fn ends_before(self, last: Option<&Entry>, held: Held) -> bool {
        let bytes = held.bytes - last.map_or(0, Entry::row_bytes);
        let skipped = self.skipped.saturating_mul(held.largest);
        held.rows > self.skipped.saturating_add(2) && bytes > self.bytes_max.saturating_add(skipped)
    }
}

/// Rows that are held.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held {
    rows: usize,
    /// As JSON.
    bytes: usize,
    /// Bytes of the largest there ever was.
    largest: usize,
}

impl Held {
    pub(crate) fn add(&mut self, entry: &Entry) {
        let bytes = entry.row_bytes();
        *self = Self { rows: self.rows + 1, bytes: self.bytes + bytes, largest: self.largest.max(bytes) };
    }

    fn remove(&mut self, entry: &Entry) {
        *self = Self { rows: self.rows - 1, bytes: self.bytes - entry.row_bytes(), ..*self };
    }
}

/// One row in its place.
pub(crate) struct Entry {
    keys: Vec<(Option<Value>, Direction)>,
    /// The number of the document, and of the tuple among all.
    sequence: (u64, u64),
    pub(crate) row: Value,
}

impl Entry {
    /// About what it takes in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        let keys = self.keys.iter().flat_map(|(key, _)| key).map(kept_bytes).sum::<usize>();
        size_of::<Self>() + keys + kept_bytes(&self.row)
    }

    fn row_bytes(&self) -> usize {
        json_bytes(&self.row) + 1
    }

    /// The last row of an earlier page, if that was sorted.
    pub(crate) fn last(query: &Query, place: Option<&Place>) -> Option<Self> {
        let Some(Place::Sorted { keys, sequence, .. }) = place else { return None };
        let directions = query.order_by.iter().map(|key| key.direction.unwrap_or(Direction::Ascending));
        let keys = keys.iter().map(|key| key.first().cloned()).zip(directions).collect();
        Some(Self { keys, sequence: *sequence, row: Value::Null })
    }

    /// As a continuation keeps it; nothing if that would be too long.
    pub(crate) fn place(&self, taken: u64) -> Option<Place> {
        let keys: Vec<Vec<Value>> = self.keys.iter().map(|(key, _)| key.iter().cloned().collect()).collect();
        let is_short = keys.iter().flatten().map(json_bytes).sum::<usize>() <= KEY_BYTES_MAX;
        is_short.then_some(Place::Sorted { keys, sequence: self.sequence, taken })
    }
}

/// Longer sort keys make no continuation.
const KEY_BYTES_MAX: usize = 2_048;

impl<'q> Sorter<'q> {
    /// Keeps the first `rows_max` rows, behind one if it is given.
    pub(crate) fn new(query: &'q Query, rows_max: usize, after: Option<Entry>) -> Self {
        let (room, held) = (Room::UNLIMITED, Held::default());
        Self { query, heap: BinaryHeap::new(), rows_max, room, held, after, tuples: (0, 0) }
    }

    /// The same, and no more than a page can hold.
    pub(crate) fn with_room(self, room: Room) -> Self {
        Self { room, ..self }
    }

    /// Takes what is bound as one row, if it yields one and is among the first so far.
    pub(crate) fn add(&mut self, env: Env<'_>) -> Result<(), Failure> {
        if self.rows_max == 0 {
            return Ok(());
        }
        let mut entry = self.entry(env)?;
        if self.after.as_ref().is_some_and(|after| entry <= *after) {
            return Ok(());
        }
        if self.heap.len() >= self.rows_max && self.heap.peek().is_some_and(|last| entry > *last) {
            return Ok(());
        }
        if let Some(row) = project(self.query, env)? {
            entry.row = row;
            env.context.keep(entry.kept_bytes())?;
            self.held.add(&entry);
            self.heap.push(entry);
            while self.heap.len() > self.rows_max || self.room.ends_before(self.heap.peek(), self.held) {
                let Some(last) = self.heap.pop() else { break };
                self.held.remove(&last);
                env.context.release(last.kept_bytes());
            }
        }
        Ok(())
    }

    /// Where what is bound stands in the order, without its row.
    pub(crate) fn entry(&mut self, env: Env<'_>) -> Result<Entry, Failure> {
        let document = env.context.row();
        self.tuples = (document, if self.tuples.0 == document { self.tuples.1 + 1 } else { 1 });
        let keys = keys_of(&self.query.order_by, env)?;
        Ok(Entry { keys, sequence: self.tuples, row: Value::Null })
    }

    /// The rows in order.
    pub(crate) fn into_entries(self) -> Vec<Entry> {
        self.heap.into_sorted_vec()
    }
}

/// The values of sort keys, and their directions.
pub(crate) type Keys = Vec<(Option<Value>, Direction)>;

/// The sort keys of what is bound.
pub(crate) fn keys_of(order: &[OrderKey], env: Env<'_>) -> Result<Keys, Failure> {
    order
        .iter()
        .map(|key| {
            let value = eval(&key.expr, env)?.map(Cow::into_owned);
            Ok((value, key.direction.unwrap_or(Direction::Ascending)))
        })
        .collect()
}

/// How two rows stand to each other.
pub(crate) fn compare_keys(
    left: &[(Option<Value>, Direction)],
    right: &[(Option<Value>, Direction)],
) -> Ordering {
    for ((a, direction), (b, _)) in left.iter().zip(right) {
        let order = compare_sort_keys(a.as_ref(), b.as_ref());
        let order = if *direction == Direction::Descending { order.reverse() } else { order };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let ((row, tuple), (other_row, other_tuple)) = (self.sequence, other.sequence);
        let rows = match self.keys.first() {
            Some((_, Direction::Descending)) => other_row.cmp(&row),
            Some((_, Direction::Ascending)) | None => row.cmp(&other_row),
        };
        compare_keys(&self.keys, &other.keys).then(rows).then(tuple.cmp(&other_tuple))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
