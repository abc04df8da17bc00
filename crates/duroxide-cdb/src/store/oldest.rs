//! What is due, the oldest first, also while no index holds it in that order.
//!
//! A container that is opened by this version for the first time gets the composite indexes that searches need, and the
//! service builds them in the background. Until then it refuses to sort by what they hold. It still answers the same
//! question without an order, so all of the answer is read and sorted here. That costs as much as there is to read, so
//! it is done only while the sorted question is refused.

use std::sync::PoisonError;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    Call, FeedRange, PAGE_ROWS, Page, Query, RANGES_AT_ONCE, Store, Watch, in_parallel, visible_at, watched,
};
use crate::error::{Fault, Trouble};

impl Store {
    /// The first rows of a query by the time of visibility, from every range.
    pub(crate) async fn query_oldest(
        &self,
        call: Call,
        query: &Query,
        watch: &Watch,
    ) -> Vec<Result<Page, Fault>> {
        if !self.has_no_order() {
            let pages = self.query_ranges(call, query, watch).await;
            let is_refused = |page: &Result<Page, Fault>| {
                page.as_ref().is_err_and(|fault| fault.trouble == Trouble::Refused)
            };
            let Some(Err(fault)) = pages.iter().find(|page| is_refused(page)) else { return pages };
            tracing::warn!(%fault, "due work cannot be read in order: is the index being built? it is sorted here");
            self.note_no_order();
        }
        let ranges = match self.ranges(call).await {
            Ok(ranges) => watched(&ranges, watch),
            Err(fault) => return vec![Err(fault)],
        };
        let (unordered, rows) = without_order(query);
        let pages = ranges.into_iter().map(|range| -> BoxFuture<'_, Result<Page, Fault>> {
            Box::pin(self.sorted(call, range, &unordered, rows))
        });
        in_parallel(RANGES_AT_ONCE, pages).await
    }

    /// The first rows of a query over one partition by a number in them.
    pub(crate) async fn query_in_order(
        &self,
        call: Call,
        partition: &str,
        query: &Query,
        number: &str,
    ) -> Result<Vec<Box<RawValue>>, Fault> {
        match self.query(call, partition, query).await {
            Err(fault) if fault.trouble == Trouble::Refused => {}
            outcome => return outcome,
        }
        let (unordered, rows) = without_order(query);
        let mut all = self.query(call, partition, &unordered).await?;
        let number_of = |row: &RawValue| {
            let row: serde_json::Value = serde_json::from_str(row.get()).unwrap_or_default();
            row[number].as_u64().unwrap_or_default()
        };
        all.sort_by_cached_key(|row| number_of(row));
        all.truncate(rows);
        Ok(all)
    }

    /// Reads all rows of a range and returns the first so many by the time of visibility. When half of the time is over
    /// those count that were seen by then: some work is better than none.
    async fn sorted(&self, call: Call, range: FeedRange, query: &Query, rows: usize) -> Result<Page, Fault> {
        let enough = Instant::now() + call.remaining() / 2;
        let mut first: Vec<Box<RawValue>> = Vec::new();
        let mut next = None;
        loop {
            let page = self.page(call, range.clone(), query, PAGE_ROWS, next.take()).await?;
            first.extend(page.rows);
            first.sort_by_key(|row| visible_at(row));
            first.truncate(rows);
            next = page.next;
            if next.is_none() || Instant::now() >= enough {
                return Ok(Page { rows: first, next });
            }
        }
    }

    /// Whether sorted searches were refused a moment ago.
    fn has_no_order(&self) -> bool {
        let refused = self.unordered.lock().unwrap_or_else(PoisonError::into_inner);
        refused.is_some_and(|at| at.elapsed() < UNORDERED_FOR)
    }

    fn note_no_order(&self) {
        *self.unordered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The same question without an order, for all rows, and how many of them are wanted.
fn without_order(query: &Query) -> (Query, usize) {
    let text = query.text.replacen("SELECT TOP @rows ", "SELECT ", 1);
    let text = text.rsplit_once(" ORDER BY ").map_or(text.as_str(), |(text, _)| text).to_owned();
    let (rows, parameters): (Vec<_>, Vec<_>) =
        query.parameters.iter().cloned().partition(|(name, _)| *name == "@rows");
    let rows = rows.first().and_then(|(_, rows)| rows.as_u64()).and_then(|rows| usize::try_from(rows).ok());
    (Query { text: text.into(), parameters, ..query.clone() }, rows.unwrap_or(PAGE_ROWS as usize))
}

/// For so long a refusal is remembered before the index is asked again.
const UNORDERED_FOR: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queries;

    #[test]
    fn the_question_stays_the_same_but_for_order_and_number() {
        for text in [queries::FIND_TURNS, queries::FIND_WORK, queries::FIRST_MESSAGES] {
            let query = Query::new(text).with("@now", 5).with("@rows", 7).with("@from", 1);
            let (plain, rows) = without_order(&query);
            assert_eq!(rows, 7);
            assert!(!plain.text.contains("ORDER BY") && !plain.text.contains("@rows"), "{}", plain.text);
            assert!(plain.text.starts_with("SELECT c."), "{}", plain.text);
            let names: Vec<&str> = plain.parameters.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, ["@now", "@from"]);
        }
    }
}
