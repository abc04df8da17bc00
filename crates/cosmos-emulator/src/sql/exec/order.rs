//! ORDER BY where no index brings the rows in order: a sort that keeps no more rows than are wanted.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use serde_json::Value;

use super::super::ast::{OrderKey, Query};
use super::super::eval::{Env, eval};
use super::super::source::Direction;
use super::super::value::compare;
use super::project::project;
use crate::Failure;

/// Rows in the order of the query. Documents with equal keys come in the order of their creation, or in the reverse
/// of it where the first key descends, as an index read backwards brings them; tuples of one document keep theirs.
pub(crate) struct Sorter<'q> {
    query: &'q Query,
    /// The largest on top, so that it falls out first.
    heap: BinaryHeap<Entry>,
    rows_max: usize,
    tuples: u64,
}

struct Entry {
    keys: Vec<(Option<Value>, Direction)>,
    /// The number of the document, and of the tuple among all.
    sequence: (u64, u64),
    row: Value,
}

impl<'q> Sorter<'q> {
    /// Keeps the first `rows_max` rows.
    pub(crate) fn new(query: &'q Query, rows_max: usize) -> Self {
        Self { query, heap: BinaryHeap::new(), rows_max, tuples: 0 }
    }

    /// Takes what is bound as one row, if it yields one and is among the first so far.
    pub(crate) fn add(&mut self, env: Env<'_>) -> Result<(), Failure> {
        if self.rows_max == 0 {
            return Ok(());
        }
        self.tuples += 1;
        let keys = keys_of(&self.query.order_by, env)?;
        let mut entry = Entry { keys, sequence: (env.context.row(), self.tuples), row: Value::Null };
        if self.heap.len() >= self.rows_max && self.heap.peek().is_some_and(|last| entry > *last) {
            return Ok(());
        }
        if let Some(row) = project(self.query, env)? {
            entry.row = row;
            self.heap.push(entry);
            if self.heap.len() > self.rows_max {
                self.heap.pop();
            }
        }
        Ok(())
    }

    /// The rows in order.
    pub(crate) fn into_rows(self) -> Vec<Value> {
        self.heap.into_sorted_vec().into_iter().map(|entry| entry.row).collect()
    }
}

fn keys_of(order: &[OrderKey], env: Env<'_>) -> Result<Vec<(Option<Value>, Direction)>, Failure> {
    order
        .iter()
        .map(|key| {
            let value = eval(&key.expr, env)?.map(Cow::into_owned);
            Ok((value, key.direction.unwrap_or(Direction::Ascending)))
        })
        .collect()
}

fn compare_keys(left: &[(Option<Value>, Direction)], right: &[(Option<Value>, Direction)]) -> Ordering {
    for ((a, direction), (b, _)) in left.iter().zip(right) {
        let order = compare(a.as_ref(), b.as_ref());
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
