//! The ledger: what clients asked for and what it cost, by operation and container, with a short log of the last
//! requests. For tests ("what did this client just send") and for the management port.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::operation::Operation;

/// How many of the last requests are kept.
const RECENT_MAX: usize = 1024;
/// How many containers are told apart; requests to further ones are counted together.
const CONTAINERS_MAX: usize = 4096;
/// Where requests beyond [`CONTAINERS_MAX`] are counted.
const OVERFLOW: &str = "(other containers)";

/// Sums over requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Requests answered.
    pub requests: u64,
    /// Those answered with a status of 400 or more.
    pub failures: u64,
    /// Those that were refused because of what was stored: 404, 409, 412, and batches with a failed step.
    pub refused: u64,
    /// Request units charged.
    pub request_units: f64,
    /// Documents read by the engine to answer.
    pub documents_visited: u64,
    /// Queries without a partition key: every page counts, as it does for the service.
    pub cross_partition_queries: u64,
    /// Bytes in the bodies of requests.
    pub request_bytes: u64,
    /// Bytes in the bodies of answers; those of refusals are not counted.
    pub response_bytes: u64,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.cross_partition_queries += other.cross_partition_queries;
        self.request_bytes += other.request_bytes;
        self.response_bytes += other.response_bytes;
        self.requests += other.requests;
        self.failures += other.failures;
        self.refused += other.refused;
        self.request_units += other.request_units;
        self.documents_visited += other.documents_visited;
    }
}

/// The totals of one operation on one container.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerLine {
    /// What was asked.
    pub operation: Operation,
    /// `dbs/{db}/colls/{container}`; empty for requests about the account or a database.
    pub container: Arc<str>,
    /// Sums.
    #[serde(flatten)]
    pub totals: Totals,
}

/// One answered request.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRecord {
    /// Counts all requests since the start, from 1.
    pub number: u64,
    /// What was asked.
    pub operation: Operation,
    /// `dbs/{db}/colls/{container}`; empty for requests about the account or a database.
    pub container: Arc<str>,
    /// Path of the request.
    pub path: String,
    /// The partition key header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<String>,
    /// HTTP status; 0 when the connection was reset instead.
    pub status: u16,
    /// `x-ms-substatus`.
    pub sub_status: u32,
    /// Request units charged.
    pub request_units: f64,
    /// Documents read by the engine to answer.
    pub documents_visited: u64,
}

/// The ledger as it is now.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerSnapshot {
    /// Sums over everything.
    pub totals: Totals,
    /// By container and operation, in that order; only what was asked at least once.
    pub lines: Vec<LedgerLine>,
    /// The last requests, oldest first.
    pub recent: Vec<RequestRecord>,
}

impl LedgerSnapshot {
    /// The totals of one operation over all containers.
    pub fn operation(&self, operation: Operation) -> Totals {
        let mut sum = Totals::default();
        for line in self.lines.iter().filter(|line| line.operation == operation) {
            sum.add(&line.totals);
        }
        sum
    }
}

/// Counts requests. Shared by every connection; one short lock per request.
#[derive(Debug, Default)]
pub struct Ledger {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    number: u64,
    containers: BTreeMap<Arc<str>, Box<[Totals; Operation::ALL.len()]>>,
    recent: VecDeque<RequestRecord>,
}

impl Ledger {
    /// What was counted since the start or the last reset.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let book = self.book();
        let mut totals = Totals::default();
        let mut lines = Vec::new();
        for (container, columns) in &book.containers {
            for (operation, column) in Operation::ALL.into_iter().zip(columns.iter()) {
                if column.requests > 0 {
                    totals.add(column);
                    lines.push(LedgerLine { operation, container: container.clone(), totals: *column });
                }
            }
        }
        LedgerSnapshot { totals, lines, recent: book.recent.iter().cloned().collect() }
    }

    /// Forgets everything counted so far.
    pub fn reset(&self) {
        let mut book = self.book();
        book.containers.clear();
        book.recent.clear();
    }

    pub(crate) fn record(&self, entry: &Entry<'_>) {
        let mut book = self.book();
        book.number += 1;
        let number = book.number;
        let container = book.column(
            entry.container.unwrap_or_default(),
            entry.operation,
            &Totals {
                requests: 1,
                failures: u64::from(entry.status >= 400 || entry.status == 0),
                refused: u64::from(matches!(entry.status, 207 | 404 | 409 | 412)),
                request_units: entry.charge,
                documents_visited: entry.documents_visited,
                cross_partition_queries: u64::from(
                    entry.operation == Operation::Query && entry.partition_key.is_none(),
                ),
                request_bytes: entry.request_bytes,
                response_bytes: entry.response_bytes,
            },
        );
        // The oldest record lends its texts to the newest.
        let oldest = if book.recent.len() == RECENT_MAX { book.recent.pop_front() } else { None };
        let (path, partition_key) =
            oldest.map_or_else(Default::default, |oldest| (oldest.path, oldest.partition_key));
        book.recent.push_back(RequestRecord {
            number,
            operation: entry.operation,
            container,
            path: rewritten(path, entry.path),
            partition_key: entry.partition_key.map(|key| rewritten(partition_key.unwrap_or_default(), key)),
            status: entry.status,
            sub_status: entry.sub_status,
            request_units: entry.charge,
            documents_visited: entry.documents_visited,
        });
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rewritten(mut text: String, new: &str) -> String {
    text.clear();
    text.push_str(new);
    text
}

impl Book {
    fn column(&mut self, container: &str, operation: Operation, totals: &Totals) -> Arc<str> {
        let name = match self.containers.get_key_value(container) {
            Some((name, _)) => name.clone(),
            None if self.containers.len() >= CONTAINERS_MAX => OVERFLOW.into(),
            None => container.into(),
        };
        let columns = self.containers.entry(name.clone()).or_insert_with(|| Box::new([Totals::default(); _]));
        columns[operation as usize].add(totals);
        name
    }
}

/// What [`Ledger::record`] wants to know about one request.
pub(crate) struct Entry<'a> {
    pub(crate) operation: Operation,
    pub(crate) container: Option<&'a str>,
    pub(crate) path: &'a str,
    pub(crate) partition_key: Option<&'a str>,
    pub(crate) status: u16,
    pub(crate) sub_status: u32,
    pub(crate) charge: f64,
    pub(crate) documents_visited: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(container: &str, status: u16) -> Entry<'_> {
        Entry {
            operation: Operation::ReadItem,
            container: Some(container),
            path: "/p",
            partition_key: None,
            status,
            sub_status: 0,
            charge: 1.5,
            documents_visited: 2,
            request_bytes: 10,
            response_bytes: 20,
        }
    }

    #[test]
    fn requests_are_summed_by_operation_and_container() {
        let ledger = Ledger::default();
        ledger.record(&entry("a", 200));
        ledger.record(&entry("a", 404));
        ledger.record(&entry("b", 200));
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.lines.len(), 2);
        assert_eq!(
            snapshot.lines[0].totals,
            Totals {
                requests: 2,
                failures: 1,
                refused: 1,
                request_units: 3.0,
                documents_visited: 4,
                cross_partition_queries: 0,
                request_bytes: 20,
                response_bytes: 40,
            }
        );
        assert_eq!(snapshot.operation(Operation::ReadItem).requests, 3);
        assert_eq!(snapshot.totals.requests, 3);
        ledger.reset();
        assert!(ledger.snapshot().lines.is_empty());
    }

    #[test]
    fn queries_without_a_partition_key_are_counted_beyond_the_log() {
        let ledger = Ledger::default();
        for number in 0..2 * RECENT_MAX {
            let partition_key = (number % 2 == 0).then_some("[\"a\"]");
            ledger.record(&Entry { operation: Operation::Query, partition_key, ..entry("a", 200) });
        }
        assert_eq!(ledger.snapshot().totals.cross_partition_queries, RECENT_MAX as u64);
    }

    #[test]
    fn the_log_and_the_list_of_containers_are_bounded() {
        let ledger = Ledger::default();
        for index in 0..CONTAINERS_MAX + 50 {
            ledger.record(&entry(&format!("c{index:05}"), 200));
        }
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.recent.len(), RECENT_MAX);
        assert_eq!(snapshot.lines.len(), CONTAINERS_MAX + 1);
        assert_eq!(snapshot.totals.requests, (CONTAINERS_MAX + 50) as u64);
    }
}
