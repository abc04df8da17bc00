//! What the provider spent, by operation and by instance. The bill of an account is in request units, and the question
//! is always which workflow they went to.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::documents::ids;

/// Requests and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Spending {
    /// Requests answered, or given up on.
    pub requests: u64,
    /// Request units charged.
    pub request_units: f64,
    /// Time until the answers, added up.
    pub waited: Duration,
}

impl Spending {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.request_units += other.request_units;
        self.waited += other.waited;
    }
}

/// Everything a provider spent since it was made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LedgerSnapshot {
    /// All of it.
    pub total: Spending,
    /// By operation of the storage contract, in order of their names.
    pub operations: Vec<(&'static str, Spending)>,
    /// By instance, the most expensive first. Only so many are kept apart; the cheapest are forgotten first.
    pub instances: Vec<(String, Spending)>,
}

/// Counts what is spent.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    total: Spending,
    operations: BTreeMap<&'static str, Spending>,
    instances: HashMap<String, Spending>,
}

impl Ledger {
    /// Counts one request: in the partition of an instance, or over ranges.
    pub(crate) fn record(
        &self,
        operation: &'static str,
        partition: Option<&str>,
        charge: f64,
        waited: Duration,
    ) {
        let spent = Spending { requests: 1, request_units: charge, waited };
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.total.add(&spent);
            state.operations.entry(operation).or_default().add(&spent);
            if let Some(instance) = partition.filter(|partition| !ids::is_reserved(partition)) {
                state.of(instance).add(&spent);
            }
        }
        metrics::counter!("duroxide_cdb_requests_total", "operation" => operation).increment(1);
        metrics::histogram!("duroxide_cdb_request_units", "operation" => operation).record(charge);
        metrics::histogram!("duroxide_cdb_request_seconds", "operation" => operation).record(waited);
        tracing::trace!(operation, instance = partition, charge, ?waited, "request");
    }

    /// What is spent so far.
    pub(crate) fn snapshot(&self) -> LedgerSnapshot {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut instances: Vec<(String, Spending)> =
            state.instances.iter().map(|(name, spent)| (name.clone(), *spent)).collect();
        instances.sort_by(|a, b| b.1.request_units.total_cmp(&a.1.request_units).then_with(|| a.0.cmp(&b.0)));
        let operations = state.operations.iter().map(|(name, spent)| (*name, *spent)).collect();
        LedgerSnapshot { total: state.total, operations, instances }
    }
}

impl State {
    fn of(&mut self, instance: &str) -> &mut Spending {
        if self.instances.len() >= INSTANCES_MAX && !self.instances.contains_key(instance) {
            let mut charges: Vec<f64> = self.instances.values().map(|spent| spent.request_units).collect();
            let (_, median, _) = charges.select_nth_unstable_by(INSTANCES_MAX / 2, f64::total_cmp);
            let median = *median;
            self.instances.retain(|_, spent| spent.request_units > median);
        }
        self.instances.entry(instance.to_owned()).or_default()
    }
}

const INSTANCES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spending_is_told_by_operation_and_by_instance() {
        let ledger = Ledger::default();
        let moment = Duration::from_millis(2);
        ledger.record("read", Some("cheap"), 1.0, moment);
        ledger.record("ack_orchestration_item", Some("dear"), 20.0, moment);
        ledger.record("ack_orchestration_item", Some("dear"), 5.0, moment);
        ledger.record("fetch_work_item", None, 2.5, moment);
        ledger.record("fetch_work_item", Some("__session__:s"), 1.0, moment);
        let told = ledger.snapshot();
        assert_eq!((told.total.requests, told.total.request_units), (5, 29.5));
        let names: Vec<&str> = told.operations.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["ack_orchestration_item", "fetch_work_item", "read"]);
        assert_eq!(told.instances.len(), 2);
        let (name, spent) = &told.instances[0];
        assert_eq!((name.as_str(), spent.requests, spent.request_units), ("dear", 2, 25.0));
        assert_eq!(spent.waited, moment * 2);
    }

    #[test]
    fn the_expensive_ones_are_kept_when_there_are_too_many() {
        let ledger = Ledger::default();
        ledger.record("read", Some("dear"), 1000.0, Duration::ZERO);
        for n in 0..2 * INSTANCES_MAX {
            ledger.record("read", Some(&format!("i{n}")), 1.0, Duration::ZERO);
        }
        let told = ledger.snapshot();
        assert!(told.instances.len() <= INSTANCES_MAX);
        assert_eq!(told.instances[0].0, "dear");
        assert_eq!(told.total.requests, 2 * INSTANCES_MAX as u64 + 1);
    }
}
