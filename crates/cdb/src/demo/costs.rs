//! What each workflow cost, from the provider's own ledger: it knows the instance of every request, on an embedded
//! emulator and on an account alike.

use std::collections::BTreeMap;

use duroxide_cdb::{LedgerSnapshot, Spending};

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
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.request_units += other.request_units;
    }

    fn without(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            request_units: (self.request_units - other.request_units).max(0.0),
        }
    }
}

impl From<&Spending> for Cost {
    fn from(spent: &Spending) -> Self {
        Self { requests: spent.requests, request_units: spent.request_units }
    }
}

/// What a run costs: what the provider spent since it began.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    before: Sums,
    now: Sums,
}

/// Sums over requests.
#[derive(Debug, Default)]
struct Sums {
    total: Cost,
    by_workflow: BTreeMap<String, Cost>,
}

impl Costs {
    /// Counts from now on.
    pub(crate) fn since(ledger: &LedgerSnapshot) -> Self {
        let total = Cost::from(&ledger.total);
        let rows = ledger.instances.iter().map(|(name, spent)| (name.as_str(), Cost::from(spent)));
        Self { before: Sums::new(total, rows), now: Sums::default() }
    }

    /// Takes what was spent until now.
    pub(crate) fn read(&mut self, ledger: &LedgerSnapshot) {
        let total = Cost::from(&ledger.total);
        let rows = ledger.instances.iter().map(|(name, spent)| (name.as_str(), Cost::from(spent)));
        self.now = Sums::new(total, rows);
    }

    /// What one workflow and its children cost.
    pub(crate) fn of(&self, instance: &str) -> Cost {
        self.now.of(instance).without(self.before.of(instance))
    }

    /// What no single workflow is to blame for: looking for work, sessions.
    pub(crate) fn shared(&self) -> Cost {
        let mut workflows = Cost::default();
        for name in self.now.by_workflow.keys() {
            workflows.add(self.of(name));
        }
        self.total().without(workflows)
    }

    /// Everything.
    pub(crate) fn total(&self) -> Cost {
        self.now.total.without(self.before.total)
    }
}

impl Sums {
    fn new<'a>(total: Cost, rows: impl Iterator<Item = (&'a str, Cost)>) -> Self {
        let mut sums = Self { total, by_workflow: BTreeMap::new() };
        for (name, cost) in rows {
            sums.by_workflow.entry(root(name).to_owned()).or_default().add(cost);
        }
        sums
    }

    fn of(&self, instance: &str) -> Cost {
        self.by_workflow.get(instance).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(requests: u64) -> Cost {
        Cost { requests, request_units: requests as f64 * 1.5 }
    }

    #[test]
    fn a_workflow_costs_what_it_and_its_children_cost_since_the_beginning() {
        let before = Sums::new(cost(3), [("a", cost(2))].into_iter());
        let now = Sums::new(cost(12), [("a", cost(5)), ("a::sub::2", cost(2)), ("b", cost(1))].into_iter());
        let costs = Costs { before, now };
        assert_eq!((costs.of("a"), costs.of("b"), costs.of("c")), (cost(5), cost(1), cost(0)));
        assert_eq!((costs.total(), costs.shared()), (cost(9), cost(3)), "the parts are the whole");
    }
}
