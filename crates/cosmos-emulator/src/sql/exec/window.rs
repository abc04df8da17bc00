//! TOP, OFFSET and LIMIT as one window over the rows.

use serde_json::Value;

use super::super::ast::{Count, Query};

/// Which rows of the result are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) offset: usize,
    /// Rows behind the offset; all of them if absent.
    pub(crate) limit: Option<usize>,
}

impl Window {
    /// Of a bound query.
    pub(crate) fn of(query: &Query) -> Self {
        let number = |count: &Count| match count {
            Count::Number(number) => usize::try_from(*number).unwrap_or(usize::MAX),
            Count::Parameter(_) => 0,
        };
        let top = query.top.as_ref().map(number);
        match &query.offset_limit {
            Some((offset, limit)) => {
                let limit = number(limit);
                Self { offset: number(offset), limit: Some(top.map_or(limit, |top| top.min(limit))) }
            }
            None => Self { offset: 0, limit: top },
        }
    }

    /// Behind the last wanted row.
    pub(crate) fn end(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| self.offset.saturating_add(limit))
    }

    /// The wanted ones of all rows, none behind `end`.
    pub(crate) fn cut(&self, mut rows: Vec<Value>, end: usize) -> Vec<Value> {
        rows.truncate(end.min(self.end()));
        if self.offset > 0 {
            rows.drain(..self.offset.min(rows.len()));
        }
        rows
    }
}
