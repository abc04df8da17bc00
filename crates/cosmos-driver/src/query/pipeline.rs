//! A query over many ranges: the merge of their rows.
//!
//! The [`Fanout`] brings pages of the parts; here they become rows in the order the plan asks for, or groups. All state
//! lives here, so a dropped `next` loses nothing.
//!
//! Three kinds of merge, by the plan. *Concatenate*: the first part's next page as it came. *Sort*: the smallest head of all
//! parts, again and again, while every part that may have more rows shows one (an example is in [`sort`]). *Group*: rows
//! are added up until no part has more, then given in one page.
//!
//! `replay` is for one case: a query over one range was served as it is, its rows were counted but no cursor was kept, and
//! then the range split. The first `replay` rows are merged again by rid, as the one range had them, and not given.

use std::cmp::Ordering;

use serde_json::value::RawValue;

use super::Page;
use super::continuation::{Continuation, PartPosition};
use super::fanout::{Fanout, Part, Row, Source};
use super::group::Groups;
use super::plan::{Direction, Distinct, Merge};
use super::rows::SortedRow;
use super::seen::Seen;
use super::sort::{self, MergeCursor};
use crate::error::Error;

pub(super) struct Pipeline {
    fanout: Fanout,
    /// Where the sorted rows that were given ended.
    cursor: Option<MergeCursor>,
    /// Rows that were given while one range still held them all; they come again first, and in its order.
    replay: u64,
    groups: Option<Groups>,
    seen: Seen,
    skip: u64,
    take: Option<u64>,
}

impl Pipeline {
    pub(super) fn new(source: Source, start: Option<Continuation>) -> Result<Self, Error> {
        let mut fanout = Fanout::new(source)?;
        let plan = fanout.source.plan.clone();
        let anew = || Continuation::new(&fanout.body, plan.offset, plan.limit);
        let mut start = start.unwrap_or_else(anew);
        let mut replay = 0;
        if let Some(direct) = start.direct.take() {
            start = anew();
            match (&plan.merge, direct.rows) {
                _ if plan.is_plain() => {
                    start.parts.push(PartPosition::new(&fanout.source.bounds, Some(direct.token)));
                }
                (_, Some(0)) => {}
                (Merge::Sort { .. }, Some(rows)) => replay = rows,
                (Merge::Sort { .. } | Merge::Concatenate | Merge::Group { .. }, _) => {
                    return Err(Error::bad_request(
                        "the range has split since this continuation was given, and this query can only be read \
                         from its beginning",
                    ));
                }
            }
        }
        let groups = match &plan.merge {
            Merge::Group { columns, has_keys } => Some(Groups::new(columns.clone(), *has_keys)),
            Merge::Concatenate | Merge::Sort { .. } => None,
        };
        let seen = match plan.distinct {
            Distinct::None => Seen::All,
            Distinct::Ordered => Seen::Ordered { last: start.last.clone(), nested: start.seen()? },
            Distinct::Unordered => Seen::Set(start.seen()?),
        };
        let cursor = start.cursor.as_ref();
        if start.parts.is_empty() {
            let bounds = fanout.source.bounds.clone();
            fanout.add(&bounds, None, cursor);
            fanout.parts.retain(|part| plan.touches(&part.bounds));
        }
        for position in &start.parts {
            fanout.add(&position.bounds()?, position.token.as_deref(), cursor);
        }
        Ok(Self { fanout, cursor: start.cursor, replay, groups, seen, skip: start.skip, take: start.take })
    }

    /// The next page, or `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Page>, Error> {
        let deadline = self.fanout.begin_turn();
        loop {
            if self.take == Some(0) || self.fanout.parts.is_empty() {
                return Ok(self.finish_groups()?.map(|rows| self.fanout.page(rows, None)));
            }
            self.fanout.start_fetches()?;
            let rows = match &self.fanout.source.plan.merge {
                Merge::Concatenate => self.concatenate(),
                Merge::Sort { directions, .. } => {
                    let directions = directions.clone();
                    self.merge_sorted(&directions)
                }
                Merge::Group { .. } => {
                    self.collect_groups()?;
                    Vec::new()
                }
            };
            // However many empty pages a server gives, the caller is asked in time whether to look on.
            let is_late =
                self.groups.is_none() && !self.fanout.parts.is_empty() && self.fanout.is_after(deadline);
            if !rows.is_empty() || is_late {
                let continuation = self.continuation()?;
                return Ok(Some(self.fanout.page(rows, continuation)));
            }
            if self.needs_to_wait() {
                self.fanout.wait(self.cursor.as_ref()).await?;
            }
        }
    }

    fn needs_to_wait(&self) -> bool {
        let is_empty = |part: &Part| part.has_more && part.pages.is_empty();
        match &self.fanout.source.plan.merge {
            Merge::Concatenate => self.fanout.parts.first().is_some_and(is_empty),
            Merge::Sort { .. } | Merge::Group { .. } => self.fanout.parts.iter().any(is_empty),
        }
    }

    /// The first part's next page, whole: then its token says where to go on.
    fn concatenate(&mut self) -> Vec<Box<RawValue>> {
        while let Some(part) = self.fanout.parts.first_mut() {
            let Some(page) = part.pages.pop_front() else {
                if part.has_more {
                    return Vec::new();
                }
                self.fanout.parts.remove(0);
                continue;
            };
            let mut rows = Vec::with_capacity(page.rows.len());
            for row in page.rows {
                let Row::Plain(row) = row else { continue };
                if self.seen.is_new(&row) && self.window() {
                    rows.push(row);
                }
            }
            if page.token_after.is_none() {
                self.fanout.parts.remove(0);
            }
            if !rows.is_empty() {
                return rows;
            }
        }
        Vec::new()
    }

    /// The smallest heads, as long as every part that may still have rows shows one.
    fn merge_sorted(&mut self, directions: &[Direction]) -> Vec<Box<RawValue>> {
        let most = self.fanout.source.options.page_size.map_or(MERGED_PAGE_ROWS, |size| size as usize).max(1);
        let mut rows = Vec::new();
        while rows.len() < most && self.take != Some(0) {
            for part in &mut self.fanout.parts {
                while part.pages.front().is_some_and(|page| page.rows.is_empty()) {
                    part.pages.pop_front();
                }
            }
            self.fanout.parts.retain(|part| part.has_more || !part.pages.is_empty());
            if self.fanout.parts.is_empty() || self.fanout.parts.iter().any(|part| part.pages.is_empty()) {
                break;
            }
            let Some(at) = self.smallest(directions) else { break };
            let part = &mut self.fanout.parts[at];
            let popped = part.pages.front_mut().and_then(|page| page.rows.pop_front());
            let Some(Row::Sorted(row)) = popped else { break };
            let bounds = if self.replay > 0 { &self.fanout.source.bounds } else { &part.bounds };
            self.cursor = Some(match &self.cursor {
                Some(cursor) => cursor.next(&row, bounds, directions),
                None => MergeCursor::of(&row, bounds),
            });
            if let Some(payload) = row.payload
                && self.seen.is_new(&payload)
                && self.window()
            {
                if self.replay > 0 {
                    self.replay -= 1;
                } else {
                    rows.push(payload);
                }
            }
        }
        rows
    }

    /// The part whose head comes first.
    fn smallest(&self, directions: &[Direction]) -> Option<usize> {
        let is_tied = |part: &Part, row: &SortedRow| {
            self.cursor.as_ref().is_some_and(|cursor| cursor.is_tied(row, &part.bounds, directions))
        };
        let heads =
            self.fanout.parts.iter().enumerate().filter_map(|(i, part)| Some((i, part, part.head()?)));
        // Parts are in the order of the key space and `min_by` keeps the first of equals.
        let first = heads.min_by(|(_, left, a), (_, right, b)| {
            sort::compare(a, b, directions).then_with(|| {
                if self.replay > 0 || (is_tied(left, a) && is_tied(right, b)) {
                    sort::compare_rids(&a.rid, &b.rid, directions)
                } else {
                    Ordering::Equal
                }
            })
        });
        first.map(|(at, _, _)| at)
    }

    fn collect_groups(&mut self) -> Result<(), Error> {
        let Some(groups) = &mut self.groups else { return Ok(()) };
        for part in &mut self.fanout.parts {
            while let Some(page) = part.pages.front_mut() {
                while let Some(row) = page.rows.front() {
                    if let Row::Plain(row) = row {
                        // A row that cannot be counted stays: a caller that asks again is told again, not given the rest.
                        groups.add(row)?;
                    }
                    page.rows.pop_front();
                }
                part.pages.pop_front();
            }
        }
        self.fanout.parts.retain(|part| part.has_more);
        Ok(())
    }

    fn finish_groups(&mut self) -> Result<Option<Vec<Box<RawValue>>>, Error> {
        let Some(groups) = self.groups.take() else { return Ok(None) };
        let rows = groups.finish()?;
        Ok(Some(rows.into_iter().filter(|row| self.seen.is_new(row) && self.window()).collect()))
    }

    /// Whether the next row is past the offset and within the limit.
    fn window(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        match &mut self.take {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// `None` when nothing is left. Groups come in one page, the last.
    fn continuation(&self) -> Result<Option<String>, Error> {
        let is_over = self.take == Some(0) || self.fanout.parts.is_empty();
        if is_over || self.groups.is_some() {
            return Ok(None);
        }
        let mut continuation = Continuation::new(&self.fanout.body, self.skip, self.take);
        match &self.fanout.source.plan.merge {
            Merge::Sort { .. } => continuation.cursor.clone_from(&self.cursor),
            Merge::Concatenate | Merge::Group { .. } => {
                continuation.parts = self.fanout.parts.iter().map(Part::position).collect();
            }
        }
        match &self.seen {
            Seen::All => {}
            Seen::Ordered { last, nested } => {
                continuation.last.clone_from(last);
                if !nested.is_empty() {
                    continuation.keep_seen(nested);
                }
            }
            Seen::Set(seen) => continuation.keep_seen(seen),
        }
        continuation.write().map(Some)
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("parts", &self.fanout.parts.len()).finish_non_exhaustive()
    }
}

/// Rows of one merged page when the caller does not say.
const MERGED_PAGE_ROWS: usize = 1000;
