//! What each workflow cost, from the account's own ledger: every request names the partition it went to, and a
//! partition is an instance.

use std::collections::BTreeMap;

use cosmos_emulator::{Emulator, RequestRecord};

use super::board::root;

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

/// Adds up the ledger's log, which keeps the last requests only: it has to be read often.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// Number of the last request counted.
    seen: u64,
    /// Whether requests fell out of the log before they were counted.
    pub(crate) is_incomplete: bool,
    by_instance: BTreeMap<String, Cost>,
    shared: Cost,
    total: Cost,
}

impl Costs {
    /// Counts from now on.
    pub(crate) fn starting_at(emulator: &Emulator) -> Self {
        let seen = emulator.ledger().snapshot().recent.last().map_or(0, |record| record.number);
        Self { seen, ..Self::default() }
    }

    /// Counts what came since the last time.
    pub(crate) fn read(&mut self, emulator: &Emulator) {
        self.count(&emulator.ledger().snapshot().recent);
    }

    fn count(&mut self, recent: &[RequestRecord]) {
        if recent.first().is_some_and(|first| first.number > self.seen + 1) {
            self.is_incomplete = true;
        }
        for record in recent.iter().filter(|record| record.number > self.seen) {
            self.total.add(record);
            match record.partition_key.as_deref().and_then(instance_of) {
                Some(instance) => self.by_instance.entry(instance).or_default().add(record),
                None => self.shared.add(record),
            }
        }
        self.seen = recent.last().map_or(self.seen, |record| record.number);
    }

    /// What one workflow and its children cost.
    pub(crate) fn of(&self, instance: &str) -> Cost {
        self.by_instance.get(instance).copied().unwrap_or_default()
    }

    /// What no single workflow is to blame for: looking for work, sessions, metadata.
    pub(crate) fn shared(&self) -> Cost {
        self.shared
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
        assert_eq!(costs.of("a"), Cost { requests: 2, request_units: 3.0 });
        assert_eq!(costs.shared().requests, 2);
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
