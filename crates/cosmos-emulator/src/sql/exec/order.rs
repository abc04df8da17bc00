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

/// Rows in the order of the query; equal keys keep the order in which they came.
pub(crate) struct Sorter<'q> {
    query: &'q Query,
    /// The largest on top, so that it falls out first.
    heap: BinaryHeap<Entry>,
    rows_max: usize,
    seen: u64,
}

struct Entry {
    keys: Vec<(Option<Value>, Direction)>,
    sequence: u64,
    row: Value,
}

impl<'q> Sorter<'q> {
    /// Keeps the first `rows_max` rows.
    pub(crate) fn new(query: &'q Query, rows_max: usize) -> Self {
        Self { query, heap: BinaryHeap::new(), rows_max, seen: 0 }
    }

    /// Takes what is bound as one row, if it yields one and is among the first so far.
    pub(crate) fn add(&mut self, env: Env<'_>) -> Result<(), Failure> {
        if self.rows_max == 0 {
            return Ok(());
        }
        let keys = keys_of(&self.query.order_by, env)?;
        self.seen += 1;
        if self.heap.len() >= self.rows_max
            && self.heap.peek().is_some_and(|last| compare_keys(&keys, &last.keys) != Ordering::Less)
        {
            return Ok(());
        }
        if let Some(row) = project(self.query, env)? {
            self.heap.push(Entry { keys, sequence: self.seen, row });
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
        compare_keys(&self.keys, &other.keys).then(self.sequence.cmp(&other.sequence))
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
