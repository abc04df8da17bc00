//! Aggregates and GROUP BY, page by page.

use std::ops::ControlFlow;

use serde_json::Value;

use super::super::ast::{Aggregate, Collection, InputMode, Kind, Query, Select};
use super::super::eval::Env;
use super::super::source::{Row, Source};
use super::continuation::{Place, checksum};
use super::distinct::Distinct;
use super::group::Groups;
use super::window::Window;
use super::{Run, visit_matches};
use crate::Failure;

impl Run<'_> {
    pub(super) fn reduce(
        &mut self,
        source: &dyn Source,
        place: Option<&Place>,
    ) -> Result<Option<Place>, Failure> {
        let prepared = self.prepared;
        let query = &prepared.query;
        let mut groups = Groups::new(query);
        let mut resume = None;
        if let Some(Place::Aggregate { after, states }) = place {
            if source.is_heir() {
                groups = Groups::resume(query, states.clone())
                    .ok_or_else(|| Failure::bad_request("Invalid Continuation Token"))?;
            }
            resume = Some(after.clone());
        }
        let mut rows = source.open(&prepared.access, resume.as_ref())?;
        let visited_max = self.page.visited.saturating_add(self.limits.rows_visited_max.max(1));
        let mut after = None;
        let is_count = counts_documents(query);
        loop {
            // What counts all documents alike does not look at them.
            let row = if is_count {
                rows.pass()?.map(|position| Row { document: Value::Null, position })
            } else {
                rows.next()?
            };
            let Some(row) = row else { break };
            if (self.page.visited >= visited_max || (after.is_some() && self.context.is_due()))
                && let (Some(after), Some(states)) = (after.take(), groups.states())
            {
                return Ok(Some(Place::Aggregate { after, states: states.to_vec() }));
            }
            self.page.visited += 1;
            let visit = &mut |env: Env<'_>| groups.add(env).map(ControlFlow::Continue);
            let _ = visit_matches(query, &self.context, &row.document, visit)?;
            after = Some(row.position);
        }
        let results = groups.into_keyed_rows(&self.context)?;
        if query.distinct.is_none() && query.order_by.is_empty() {
            return Ok(self.hand_out_groups(results, place));
        }
        let results = match query.distinct {
            Some(_) => Distinct::default().new_of(results, &self.context, |(_, row)| row)?,
            None => results,
        };
        let results = results.into_iter().map(|(_, row)| row).collect();
        let results = Window::of(query).cut(results, usize::MAX);
        Ok(self.hand_out(results, place))
    }

    /// Puts groups on the page in the order of their keys; the next one begins behind the last of them. So a group is
    /// counted by a partition or by its children, and never by both.
    fn hand_out_groups(&mut self, rows: Vec<(String, Value)>, place: Option<&Place>) -> Option<Place> {
        let mut rows: Vec<_> = rows.into_iter().map(|(key, row)| (short(key), row)).collect();
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let window = Window::of(&self.prepared.query);
        let limit = window.limit.map_or(u64::MAX, |limit| limit as u64);
        let (mut last, mut taken, skip) = match place {
            Some(Place::Grouped { after, taken }) => (Some(after.clone()), *taken, 0),
            _ => (None, 0, window.offset),
        };
        let done = rows.partition_point(|(key, _)| last.as_ref().is_some_and(|last| key <= last));
        for (key, row) in rows.into_iter().skip(done.saturating_add(skip)) {
            if taken >= limit {
                return None;
            }
            if self.page.offer(row, self.limits).is_err() {
                return last.map(|after| Place::Grouped { after, taken });
            }
            taken += 1;
            last = Some(key);
        }
        None
    }
}

/// Whether a query only counts documents, whatever is in them: `SELECT VALUE COUNT(1) FROM c`, or its rewritten form.
fn counts_documents(query: &Query) -> bool {
    fn is_alike(expr: &super::super::ast::Expr) -> bool {
        match &expr.kind {
            Kind::Literal(_) => true,
            Kind::Aggregate(aggregate, _, argument) => {
                matches!(aggregate, Aggregate::Count) && argument.as_literal().is_some()
            }
            Kind::Array(items) => items.iter().all(is_alike),
            Kind::Object(entries) => entries.iter().all(|(_, item)| is_alike(item)),
            _ => false,
        }
    }
    let is_whole = match query.from.as_slice() {
        [input] => {
            input.mode == InputMode::Whole
                && matches!(&input.collection, Collection::Path(path) if matches!(path.kind, Kind::Name(_)))
        }
        _ => false,
    };
    let is_alike = match &query.select {
        Select::Star(_) => false,
        Select::Value(expr) => is_alike(expr),
        Select::List(items) => items.iter().all(|item| is_alike(&item.expr)),
    };
    is_whole && is_alike && query.filter.is_none() && query.group_by.is_empty() && query.order_by.is_empty()
}

/// Longer keys would make too long a continuation.
const KEY_BYTES_MAX: usize = 1_024;

/// A key that is not too long, and still like no other.
fn short(mut key: String) -> String {
    if key.len() > KEY_BYTES_MAX {
        let sum = checksum(key.as_bytes());
        let end = (0..=KEY_BYTES_MAX).rev().find(|at| key.is_char_boundary(*at)).unwrap_or(0);
        key.truncate(end);
        key.push_str(&format!("{sum:016x}"));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_keys_become_short_ones_that_differ() {
        let long = |end: &str| format!("{}{end}", "ä".repeat(2_000));
        assert_eq!(short("plain".to_owned()), "plain");
        assert!(short(long("a")).len() <= KEY_BYTES_MAX + 16);
        assert_ne!(short(long("a")), short(long("b")));
    }
}
