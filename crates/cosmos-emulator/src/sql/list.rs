//! A list of documents as a source: the rows of a query in FROM, and the reference in tests.

use serde_json::Value;

use super::source::{Access, Direction, Path, Position, Row, Rows, Source};
use crate::Failure;

/// Documents in a list, read front to back. It has no index: it ignores predicates and never orders.
#[derive(Debug, Clone, Default)]
pub struct List {
    documents: Vec<Value>,
}

impl List {
    /// Of these documents.
    pub fn new(documents: Vec<Value>) -> Self {
        Self { documents }
    }
}

impl Source for List {
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure> {
        let next = match resume {
            None => 0,
            Some(position) => <[u8; 8]>::try_from(position.as_slice())
                .ok()
                .and_then(|bytes| usize::try_from(u64::from_be_bytes(bytes)).ok())
                .ok_or_else(|| Failure::bad_request("Invalid Continuation Token"))?,
        };
        Ok(Box::new(Cursor { documents: &self.documents, next, is_ordered: access.order.is_empty() }))
    }

    fn check_order(&self, _order: &[(Path, Direction)]) -> Result<(), Failure> {
        Ok(())
    }
}

struct Cursor<'a> {
    documents: &'a [Value],
    next: usize,
    is_ordered: bool,
}

impl Rows for Cursor<'_> {
    fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    fn next(&mut self) -> Result<Option<Row>, Failure> {
        let Some(document) = self.documents.get(self.next) else { return Ok(None) };
        self.next += 1;
        let position = (self.next as u64).to_be_bytes().to_vec();
        Ok(Some(Row { document: document.clone(), position }))
    }
}
