//! The seam between the query language and the engine that holds the documents.
//!
//! The planner describes which rows it wants ([`Access`]); the engine answers with a cursor ([`Rows`]) over the
//! cheapest index or key range that covers them. An access may yield rows that do not match (the filter is always
//! evaluated again), never fewer than match.

use std::ops::Bound;

use serde_json::Value;

use crate::Failure;

/// One step into a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// `.name` or `["name"]`.
    Property(Box<str>),
    /// `[3]`.
    Index(u32),
    /// Any element of an array: `JOIN x IN c.tags`, `ARRAY_CONTAINS(c.tags, v)`.
    Each,
}

/// Where a value stands in a document, from its root.
pub type Path = Vec<Step>;

/// A conjunct of the filter that an index can answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Predicate {
    /// `path = v`, or `path IN (..)`.
    In {
        /// Where the value stands.
        path: Path,
        /// Scalars; never empty.
        values: Vec<Value>,
    },
    /// `path > v AND path <= w`, BETWEEN, STARTSWITH. Both bounds, where present, are of one type, and only
    /// values of that type match.
    Range {
        /// Where the value stands.
        path: Path,
        /// Lower bound.
        lower: Bound<Value>,
        /// Upper bound.
        upper: Bound<Value>,
    },
    /// `IS_DEFINED(path)`.
    Defined {
        /// Where the value stands.
        path: Path,
    },
}

/// Direction of one sort key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `ASC`.
    Ascending,
    /// `DESC`.
    Descending,
}

/// Which rows a query wants, and in which order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Access {
    /// All of them hold for every row that matters. An empty list asks for everything.
    pub predicates: Vec<Predicate>,
    /// The wished order; empty asks for none (then rows come in rid order).
    pub order: Vec<(Path, Direction)>,
}

/// Opaque place of a row in its access path; a cursor opened there goes on behind it.
pub type Position = Vec<u8>;

/// One document on its way through a query.
#[derive(Debug, Clone)]
pub struct Row {
    /// The whole document with its system properties.
    pub document: Value,
    /// Where to resume behind this row.
    pub position: Position,
}

/// A cursor over documents.
pub trait Rows {
    /// Whether rows come in the order that was asked for; otherwise the caller sorts them.
    fn is_ordered(&self) -> bool;

    /// Where the next row is, or `None` at the end, without its document.
    fn pass(&mut self) -> Result<Option<Position>, Failure> {
        Ok(self.next()?.map(|row| row.position))
    }

    /// The next row, or `None` at the end. Each call that yields a row reads one document.
    fn next(&mut self) -> Result<Option<Row>, Failure>;
}

/// Something that holds documents: one physical partition, one logical partition, or a list in a test.
pub trait Source {
    /// Opens a cursor, behind `resume` if given. The same `access` always chooses the same path, so that positions
    /// stay valid between pages.
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure>;

    /// Whether the index allows this ORDER BY: the service refuses a multi-key order without a composite index
    /// and an order over an excluded path.
    fn check_order(&self, order: &[(Path, Direction)]) -> Result<(), Failure>;

    /// Changes with what the source is made of: rows in another layout come in another order. Always 0 where they
    /// cannot.
    fn layout(&self) -> u64 {
        0
    }

    /// Whether what a continuation carries along counts here. When a partition was split, each child goes on behind
    /// the same row, but only one of them with the sums of the rows before it.
    fn is_heir(&self) -> bool {
        true
    }
}
