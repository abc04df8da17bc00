//! Two stores that must agree: every call goes to both, and a difference panics.
//!
//! This is for tests: what runs on `Mirror<MemoryStorage, DiskStorage>` is proven on both.

use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{Batch, NewEntries, Order, Scan, Storage, StorageError, Ticket, View};

/// Runs everything on a reference and on a subject.
#[derive(Debug)]
pub struct Mirror<A, B> {
    reference: A,
    subject: B,
    /// Commits, and the moments scans and reads begin, happen in one order on both.
    order: Mutex<()>,
}

impl<A: Storage, B: Storage> Mirror<A, B> {
    /// Pairs two stores that hold the same, usually nothing.
    pub fn new(reference: A, subject: B) -> Self {
        Self { reference, subject, order: Mutex::new(()) }
    }

    /// The two stores again, to close or reopen them.
    pub fn into_parts(self) -> (A, B) {
        (self.reference, self.subject)
    }
}

impl<A: Storage, B: Storage> Storage for Mirror<A, B> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(same_value(key, self.reference.get(key)?.as_ref(), self.subject.get(key)?))
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        same_rows(self.reference.scan(lower, upper, order), self.subject.scan(lower, upper, order))
    }

    fn view(&self) -> Box<dyn View + '_> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(Both { reference: self.reference.view(), subject: self.subject.view() })
    }

    fn let_in_waiting(&self) {
        self.reference.let_in_waiting();
        self.subject.let_in_waiting();
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        self.commit_with(Vec::new(), batch)
    }

    fn commit_with(&self, entries: Vec<Arc<dyn NewEntries>>, batch: Batch) -> Result<Ticket, StorageError> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let reference = self.reference.commit_with(entries.clone(), batch.clone());
        match (reference, self.subject.commit_with(entries, batch)) {
            (Ok(reference), Ok(subject)) => {
                assert_eq!(reference, subject, "the stores count commits differently");
                Ok(subject)
            }
            (Err(_), Err(error)) => Err(error),
            (reference, subject) => panic!("one store refused a batch: {reference:?} and {subject:?}"),
        }
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
        self.reference.wait_durable(ticket)?;
        self.subject.wait_durable(ticket)
    }

    fn is_slow_to_sync(&self) -> bool {
        self.reference.is_slow_to_sync() || self.subject.is_slow_to_sync()
    }
}

struct Both<'a> {
    reference: Box<dyn View + 'a>,
    subject: Box<dyn View + 'a>,
}

impl View for Both<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(same_value(key, self.reference.get(key)?.as_ref(), self.subject.get(key)?))
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        same_rows(self.reference.scan(lower, upper, order), self.subject.scan(lower, upper, order))
    }
}

fn same_value(key: &[u8], reference: Option<&Bytes>, subject: Option<Bytes>) -> Option<Bytes> {
    assert_eq!(reference, subject.as_ref(), "the stores differ at key {key:?}");
    subject
}

fn same_rows<'a>(mut reference: Scan<'a>, mut subject: Scan<'a>) -> Scan<'a> {
    Box::new(std::iter::from_fn(move || match (reference.next(), subject.next()) {
        (Some(Err(error)), _) | (_, Some(Err(error))) => Some(Err(error)),
        (Some(Ok(reference)), Some(Ok(subject))) => {
            assert_eq!(reference, subject, "the stores differ in a scan");
            Some(Ok(subject))
        }
        (None, None) => None,
        (reference, subject) => {
            panic!("one store has more rows than the other: {reference:?} and {subject:?}")
        }
    }))
}
