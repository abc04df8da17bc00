//! Endpoints of Gateway 2.0: which the account names, and which of them are used.
//!
//! One is used after a probe was answered with 200, until something breaks there. Then its region is reached by the
//! ordinary gateway, and a probe after a while finds out whether it has to be.

use std::sync::Arc;

use tokio::time::Instant;

use super::Endpoint;
use super::account::{Traffic, same_region};
use crate::transport::Address;

/// One endpoint, and which region it is a way to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway2Endpoint {
    pub(crate) region: Arc<str>,
    pub(crate) address: Address,
    reads: bool,
    writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untried,
    Ready,
    /// Not asked for anything but, from then on, for a sign of life.
    Down {
        until: Instant,
    },
}

/// What is known of an account's endpoints of this kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gateway2 {
    /// As the account document names them, whether they may be asked or not.
    pub(crate) announced: Vec<String>,
    /// The account's name, which frames carry.
    pub(crate) account: Arc<str>,
    endpoints: Vec<(Arc<Gateway2Endpoint>, State)>,
}

impl Gateway2 {
    pub(crate) fn new(account: &str, announced: Vec<String>) -> Self {
        Self { announced, account: account.into(), endpoints: Vec::new() }
    }

    /// Adds the way to a region that the account has.
    pub(crate) fn add(&mut self, name: &str, address: &Address, traffic: Traffic, regions: &[Arc<Endpoint>]) {
        let Some(region) = regions.iter().find(|endpoint| same_region(&endpoint.region, name)) else {
            return;
        };
        let address = address.clone().needing_http2();
        let (reads, writes) = match traffic {
            Traffic::Read => (true, false),
            Traffic::Write | Traffic::PartitionWrite => (false, true),
        };
        let known = self
            .endpoints
            .iter_mut()
            .find(|(known, _)| known.region == region.region && known.address == address);
        match known {
            Some((known, _)) => {
                let Gateway2Endpoint { reads: r, writes: w, .. } = **known;
                *known = Arc::new(Gateway2Endpoint {
                    reads: r || reads,
                    writes: w || writes,
                    ..(**known).clone()
                });
            }
            None => {
                let endpoint = Gateway2Endpoint { region: region.region.clone(), address, reads, writes };
                self.endpoints.push((Arc::new(endpoint), State::Untried));
            }
        }
    }

    /// Asks none of them for anything; they stay announced.
    pub(crate) fn use_none(&mut self) {
        self.endpoints.clear();
    }

    /// Where requests to a region go, if not to its ordinary endpoint.
    pub(crate) fn ready(&self, region: &str, is_read: bool) -> Option<&Arc<Gateway2Endpoint>> {
        let is_right = |endpoint: &Gateway2Endpoint| {
            (if is_read { endpoint.reads } else { endpoint.writes }) && *endpoint.region == *region
        };
        let found =
            self.endpoints.iter().find(|(endpoint, state)| *state == State::Ready && is_right(endpoint));
        found.map(|(endpoint, _)| endpoint)
    }

    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Address> {
        self.endpoints
            .iter()
            .filter(|(_, state)| *state == State::Ready)
            .map(|(endpoint, _)| &endpoint.address)
    }

    /// Endpoints that want a probe.
    pub(crate) fn due(&self, now: Instant) -> Vec<Address> {
        let is_due = |state: &State| match state {
            State::Untried => true,
            State::Ready => false,
            State::Down { until } => *until <= now,
        };
        let mut due: Vec<Address> = Vec::new();
        for (endpoint, _) in self.endpoints.iter().filter(|(_, state)| is_due(state)) {
            if !due.contains(&endpoint.address) {
                due.push(endpoint.address.clone());
            }
        }
        due
    }

    pub(crate) fn mark_ready(&mut self, address: &Address) {
        self.mark(address, State::Ready);
    }

    pub(crate) fn mark_down(&mut self, address: &Address, until: Instant) {
        self.mark(address, State::Down { until });
    }

    fn mark(&mut self, address: &Address, state: State) {
        let marked = self.endpoints.iter_mut().filter(|(endpoint, _)| endpoint.address == *address);
        marked.for_each(|(_, known)| *known = state);
    }

    /// What was found out about endpoints that are still there.
    pub(crate) fn keep_marks_of(&mut self, old: &Self) {
        for (endpoint, state) in &mut self.endpoints {
            let known = old.endpoints.iter().find(|(known, _)| known.address == endpoint.address);
            if let Some((_, known)) = known {
                *state = *known;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::account::tests::endpoint;
    use super::*;

    fn address(port: u16) -> Address {
        Address::parse(&format!("https://acct.db.example:{port}/")).expect("valid")
    }

    fn two_regions() -> Gateway2 {
        let regions = [endpoint("East US"), endpoint("West US")];
        let mut gateway2 = Gateway2::new("acct", Vec::new());
        gateway2.add("eastus", &address(1), Traffic::Read, &regions);
        gateway2.add("East US", &address(1), Traffic::Write, &regions);
        gateway2.add("West US", &address(2), Traffic::Read, &regions);
        gateway2.add("North Europe", &address(3), Traffic::Read, &regions);
        gateway2
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_is_used_between_a_probe_and_a_failure() {
        let now = Instant::now();
        let mut gateway2 = two_regions();
        let east = address(1).needing_http2();
        let ports = |due: Vec<Address>| due.iter().map(Address::port).collect::<Vec<_>>();
        assert_eq!(
            ports(gateway2.due(now)),
            [1, 2],
            "a region that the account does not have has no way to it"
        );
        assert_eq!(gateway2.ready("East US", true), None, "nobody has answered");
        gateway2.mark_ready(&east);
        assert_eq!(gateway2.ready("East US", true).map(|found| found.address.port()), Some(1));
        assert_eq!(gateway2.ready("East US", false).map(|found| found.address.port()), Some(1));
        assert_eq!(ports(gateway2.due(now)), [2]);
        gateway2.mark_down(&east, now + Duration::from_secs(60));
        assert_eq!(gateway2.ready("East US", true), None);
        assert_eq!(ports(gateway2.due(now + Duration::from_secs(59))), [2]);
        assert_eq!(ports(gateway2.due(now + Duration::from_secs(60))), [1, 2]);
    }

    #[test]
    fn writes_go_only_where_the_account_says_that_they_are_taken() {
        let mut gateway2 = two_regions();
        gateway2.mark_ready(&address(2).needing_http2());
        assert!(gateway2.ready("West US", true).is_some());
        assert_eq!(gateway2.ready("West US", false), None);
    }

    #[test]
    fn what_is_known_of_an_endpoint_outlives_the_account_document() {
        let mut old = two_regions();
        old.mark_ready(&address(1).needing_http2());
        let mut fresh = two_regions();
        fresh.keep_marks_of(&old);
        assert!(fresh.ready("East US", true).is_some() && fresh.ready("West US", true).is_none());
    }
}
