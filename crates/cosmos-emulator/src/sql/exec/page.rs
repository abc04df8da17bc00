//! One page of results and its limits.

use serde_json::Value;

use super::super::eval::KEPT_BYTES_MAX;
use super::super::leash::Leash;
use super::super::value::json_bytes;

/// How much one page may hold and do.
#[derive(Debug, Clone)]
pub struct PageLimits {
    /// Most result rows; the service takes 1000 when the client does not say.
    pub items_max: usize,
    /// Most bytes of result rows as JSON; the service stops at 4 MB. A single larger row still comes, alone.
    pub bytes_max: usize,
    /// Most documents read. A streaming query or an aggregate then ends the page early, with a continuation; a
    /// sort or a group must see all of its rows and goes on.
    pub rows_visited_max: u64,
    /// Most bytes of what a query keeps over its rows, about as they take memory: groups, lists, values seen before,
    /// rows to sort. A query that needs more is refused.
    pub kept_bytes_max: usize,
    /// How long it may take. A streaming query or an aggregate ends the page early when its time is up, with a
    /// continuation; what must see all of its rows, or works on one for too long, is refused at the end.
    pub leash: Leash,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self {
            items_max: 1000,
            bytes_max: 4 << 20,
            rows_visited_max: 100_000,
            kept_bytes_max: KEPT_BYTES_MAX,
            leash: Leash::default(),
        }
    }
}

/// What one request gets.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The results, in order.
    pub rows: Vec<Value>,
    /// Where the next page begins; absent on the last page.
    pub continuation: Option<String>,
    /// Documents read from the source.
    pub visited: u64,
    /// About how many bytes the rows take as JSON.
    pub body_bytes: usize,
}

impl Page {
    /// Whether another row of this size still fits.
    pub(crate) fn has_room(&self, limits: &PageLimits, bytes: usize) -> bool {
        let items_max = limits.items_max.max(1);
        self.rows.is_empty() || (self.rows.len() < items_max && self.body_bytes + bytes <= limits.bytes_max)
    }

    /// Takes the row if it fits, or gives it back.
    pub(crate) fn offer(&mut self, row: Value, limits: &PageLimits) -> Result<(), Value> {
        let bytes = json_bytes(&row) + 1;
        if !self.has_room(limits, bytes) {
            return Err(row);
        }
        self.body_bytes += bytes;
        self.rows.push(row);
        Ok(())
    }
}
