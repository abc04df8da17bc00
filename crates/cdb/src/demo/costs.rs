//! What each workflow cost, from the embedded emulator's ledger: every request names the partition it went to, and a
//! partition is an instance.

use std::collections::BTreeMap;

use cosmos_emulator::{Emulator, RequestRecord};

use super::board::root;
use crate::meters::Meters;

/// Requests and request units.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Requests.
    pub(crate) requests: u64,
    /// Request units.
    pub(crate) request_units: f64,
}

impl Cost {
    fn add(&mut self, record: &RequestRecord) {
        self.requests += 1;
        self.request_units += record.request_units;
    }
}

/// What a run costs. An embedded emulator says whom it served; of an account only the provider's sum is known.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// Number of the last request counted; none where there is no log of requests.
    seen: Option<u64>,
    /// Whether requests fell out of the log before they were counted.
    pub(crate) is_incomplete: bool,
    by_instance: BTreeMap<String, Cost>,
    shared: Cost,
    total: Cost,
}

impl Costs {
    /// Counts from now on.
    pub(crate) fn starting_now(emulator: Option<&Emulator>, meters: &Meters) -> Self {
        meters.reset();
        let last = |emulator: &Emulator| {
            emulator.ledger().snapshot().recent.last().map_or(0, |record| record.number)
        };
        Self { seen: emulator.map(last), ..Self::default() }
    }

    /// Counts what came since the last time. The log keeps the last requests only: it has to be read often.
    pub(crate) fn read(&mut self, emulator: Option<&Emulator>, meters: &Meters) {
        match emulator {
            Some(emulator) => self.count(&emulator.ledger().snapshot().recent),
            None => {
                let (requests, request_units) = meters.totals();
                self.total = Cost { requests, request_units };
            }
        }
    }

    fn count(&mut self, recent: &[RequestRecord]) {
        let seen = self.seen.unwrap_or(0);
        if recent.first().is_some_and(|first| first.number > seen + 1) {
            self.is_incomplete = true;
        }
        for record in recent.iter().filter(|record| record.number > seen) {
            self.total.add(record);
            match record.partition_key.as_deref().and_then(instance_of) {
                Some(instance) => self.by_instance.entry(instance).or_default().add(record),
                None => self.shared.add(record),
            }
        }
        self.seen = Some(recent.last().map_or(seen, |record| record.number));
    }

    /// What one workflow and its children cost, if that is known.
    pub(crate) fn of(&self, instance: &str) -> Option<Cost> {
        self.seen.map(|_| self.by_instance.get(instance).copied().unwrap_or_default())
    }

    /// What no single workflow is to blame for: looking for work, sessions, metadata.
    pub(crate) fn shared(&self) -> Option<Cost> {
        self.seen.map(|_| self.shared)
    }

    /// Everything.
    pub(crate) fn total(&self) -> Cost {
        self.total
    }
}

/// The workflow a partition key header (`["bakery-1-order"]`) belongs to; reserved partitions belong to none.
fn instance_of(header: &str) -> Option<String> {
    let key: Vec<serde_json::Value> = serde_json::from_str(header).ok()?;
    let name = key.first()?.as_str()?;
    (!name.starts_with("__")).then(|| root(name).to_owned())
}

#[cfg(test)]
mod tests {
    use cosmos_emulator::Operation;

    use super::*;

    fn record(number: u64, key: Option<&str>) -> RequestRecord {
        RequestRecord {
            number,
            operation: Operation::ReadItem,
            container: "c".into(),
            path: String::new(),
            partition_key: key.map(str::to_owned),
            status: 200,
            sub_status: 0,
            request_units: 1.5,
            documents_visited: 1,
        }
    }

    #[test]
    fn requests_go_to_the_workflow_whose_partition_they_name() {
        let mut costs = Costs::default();
        costs.count(&[record(1, Some("[\"a\"]")), record(2, Some("[\"a::sub::2\"]")), record(3, None)]);
        costs.count(&[record(3, None), record(4, Some("[\"__session__:oven\"]"))]);
        assert_eq!(costs.of("a"), Some(Cost { requests: 2, request_units: 3.0 }));
        assert_eq!(costs.shared().map(|cost| cost.requests), Some(2));
        assert_eq!(costs.total().requests, 4);
        assert!(!costs.is_incomplete);
    }

    #[test]
    fn requests_that_fell_out_of_the_log_are_noticed() {
        let mut costs = Costs::default();
        costs.count(&[record(1, None)]);
        costs.count(&[record(5, None)]);
        assert!(costs.is_incomplete);
    }
}
