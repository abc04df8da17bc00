//! Where the next attempt goes. Pure.

use std::sync::Arc;

use tokio::time::Instant;

use super::Endpoint;
use super::account::{AccountRoutes, Traffic, same_region};
use super::partition::{Cell, Gate, PartitionHealth};

/// What an attempt needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) traffic: Traffic,
    /// Go where writes go: the one place that certainly has the session's writes.
    pub(crate) at_write_region: bool,
    /// Regions the caller does not want.
    pub(crate) excluded: &'a [String],
    /// Regions that failed in this operation, once per failure.
    pub(crate) tried: &'a [Arc<str>],
    /// Container and range, where the operation has one.
    pub(crate) partition: Option<(&'a Arc<str>, &'a Arc<str>)>,
    /// The region of earlier pages; they continue there while it serves.
    pub(crate) pinned: Option<&'a str>,
}

impl Want<'_> {
    /// Where writes go, of the partition if it is about one.
    fn writes(&self) -> Traffic {
        if self.partition.is_some() { Traffic::PartitionWrite } else { Traffic::Write }
    }
}

/// Where to go.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Set when only the operation that claims this probe may make the attempt.
    pub(crate) probe: Option<Cell>,
}

/// The best endpoint: not excluded, not avoided, not yet tried, in the order of preference. When nothing is left, the
/// least bad one; there is always a route.
pub(crate) fn resolve(
    want: &Want<'_>,
    account: &AccountRoutes,
    health: &PartitionHealth,
    now: Instant,
) -> Route {
    let candidates = account.candidates(if want.at_write_region { want.writes() } else { want.traffic });
    let serves = |pinned: &str| {
        let endpoint = candidates.iter().find(|endpoint| *endpoint.region == *pinned);
        endpoint
            .is_some_and(|endpoint| !is_avoided(want, account, gate(want, health, now, endpoint), endpoint))
    };
    // Pages that go on elsewhere are better than none.
    let want = &Want { pinned: want.pinned.filter(|pinned| serves(pinned)), ..*want };
    let best = candidates
        .iter()
        .map(|endpoint| (rank(want, account, health, now, endpoint), endpoint))
        .min_by_key(|((rank, _), _)| *rank);
    match best {
        Some(((_, gate), endpoint)) => {
            let probe = match gate {
                Gate::ProbeDue => cell(want, &endpoint.region),
                Gate::Closed | Gate::Open => None,
            };
            Route { endpoint: endpoint.clone(), probe }
        }
        None => Route { endpoint: account.default.clone(), probe: None },
    }
}

/// A second endpoint for a race, if there is a healthy one besides `primary`.
pub(crate) fn resolve_hedge(
    want: &Want<'_>,
    primary: &Endpoint,
    account: &AccountRoutes,
    health: &PartitionHealth,
    now: Instant,
) -> Option<Route> {
    account
        .candidates(want.traffic)
        .iter()
        .filter(|endpoint| endpoint.region != primary.region)
        .find(|endpoint| rank(want, account, health, now, endpoint) == ((0, 0, 0, 0), Gate::Closed))
        .map(|endpoint| Route { endpoint: endpoint.clone(), probe: None })
}

/// Smaller is better: not the pinned region, excluded, avoided or tried, how often tried.
type Rank = (u8, u8, u8, usize);

fn rank(
    want: &Want<'_>,
    account: &AccountRoutes,
    health: &PartitionHealth,
    now: Instant,
    endpoint: &Endpoint,
) -> (Rank, Gate) {
    let region = &*endpoint.region;
    let is_excluded = want.excluded.iter().any(|name| same_region(name, region));
    let is_unpinned = want.pinned.is_some_and(|pinned| pinned != region);
    let gate = gate(want, health, now, endpoint);
    let is_avoided = is_avoided(want, account, gate, endpoint);
    ((u8::from(is_unpinned), u8::from(is_excluded), u8::from(is_avoided), tried(want, region)), gate)
}

fn tried(want: &Want<'_>, region: &str) -> usize {
    want.tried.iter().filter(|name| ***name == *region).count()
}

fn gate(want: &Want<'_>, health: &PartitionHealth, now: Instant, endpoint: &Endpoint) -> Gate {
    match cell(want, &endpoint.region) {
        Some(cell) if !health.is_empty() => health.gate(&cell, now),
        Some(_) | None => Gate::Closed,
    }
}

fn is_avoided(want: &Want<'_>, account: &AccountRoutes, gate: Gate, endpoint: &Endpoint) -> bool {
    account.is_unavailable(&endpoint.address) || gate == Gate::Open || tried(want, &endpoint.region) > 0
}

fn cell(want: &Want<'_>, region: &Arc<str>) -> Option<Cell> {
    want.partition.map(|(container, range)| Cell {
        container: container.clone(),
        range: range.clone(),
        region: region.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::account::tests::{endpoint, routes};
    use super::super::partition::Failure;
    use super::*;
    use crate::config::{Breaker, Regions};

    fn want() -> Want<'static> {
        Want {
            traffic: Traffic::Read,
            at_write_region: false,
            excluded: &[],
            tried: &[],
            partition: None,
            pinned: None,
        }
    }

    fn account() -> AccountRoutes {
        routes(&["East US", "West US", "North Europe"], &["East US"], false, &Regions::default())
    }

    fn go(want: &Want<'_>, account: &AccountRoutes, health: &PartitionHealth, now: Instant) -> String {
        resolve(want, account, health, now).endpoint.region.to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn routes_follow_exclusion_trial_and_avoidance() {
        let (account, healthy, now) = (account(), PartitionHealth::default(), Instant::now());
        let east: Arc<str> = "East US".into();
        let west: Arc<str> = "West US".into();
        let north: Arc<str> = "North Europe".into();
        let excluded = vec!["eastus".to_owned()];
        let all_excluded: Vec<String> = ["East US", "West US", "North Europe"].map(str::to_owned).to_vec();
        let tried_east = [east.clone()];
        let tried_west = [west.clone()];
        let tried_all = [east.clone(), east.clone(), west.clone(), north.clone()];
        let cases: [(&str, Want<'_>, &str); 12] = [
            ("first choice", want(), "East US"),
            ("excluded", Want { excluded: &excluded, ..want() }, "West US"),
            ("tried", Want { tried: &tried_east, ..want() }, "West US"),
            (
                "excluded and tried",
                Want { excluded: &excluded, tried: &tried_west, ..want() },
                "North Europe",
            ),
            ("all tried: the least tried", Want { tried: &tried_all, ..want() }, "West US"),
            ("all excluded: still somewhere", Want { excluded: &all_excluded, ..want() }, "East US"),
            (
                "writes have one place",
                Want { traffic: Traffic::Write, tried: &tried_east, ..want() },
                "East US",
            ),
            ("pages continue where they began", Want { pinned: Some("West US"), ..want() }, "West US"),
            (
                "pages continue there after another region failed",
                Want { pinned: Some("West US"), tried: &tried_east, ..want() },
                "West US",
            ),
            (
                "pages go on elsewhere when their region failed",
                Want { pinned: Some("East US"), tried: &tried_east, ..want() },
                "West US",
            ),
            (
                "not in a region that is excluded",
                Want { pinned: Some("West US"), tried: &tried_west, excluded: &excluded, ..want() },
                "North Europe",
            ),
            ("a region that is no more pins nothing", Want { pinned: Some("South"), ..want() }, "East US"),
        ];
        for (name, want, region) in cases {
            assert_eq!(go(&want, &account, &healthy, now), region, "{name}");
        }
        let marked = account.marking_unavailable(&endpoint("East US").address, now + Duration::from_secs(60));
        assert_eq!(go(&want(), &marked, &healthy, now), "West US");
        let pinned = Want { pinned: Some("East US"), ..want() };
        assert_eq!(go(&pinned, &marked, &healthy, now), "West US", "no page comes from where nothing does");
        let later = now + Duration::from_secs(61);
        assert_eq!(go(&want(), &marked, &healthy, later), "West US", "time alone does not bring it back");
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_breaker_moves_one_partition_and_offers_a_probe_later() {
        let (account, now, rules) = (account(), Instant::now(), Breaker::default());
        let (container, range): (Arc<str>, Arc<str>) = ("rid".into(), "0".into());
        let other: Arc<str> = "1".into();
        let cell = Cell { container: container.clone(), range: range.clone(), region: "East US".into() };
        let mut health = PartitionHealth::default();
        for _ in 0..2 {
            health = health.failed(&cell, Failure::Read, now, Duration::from_secs(5), &rules);
        }
        let here = Want { partition: Some((&container, &range)), ..want() };
        let elsewhere = Want { partition: Some((&container, &other)), ..want() };
        assert_eq!(go(&here, &account, &health, now), "West US");
        assert_eq!(go(&elsewhere, &account, &health, now), "East US");
        let pinned = Want { pinned: Some("East US"), ..here };
        assert_eq!(go(&pinned, &account, &health, now), "West US");
        let due = resolve(&here, &account, &health, now + Duration::from_secs(5));
        assert_eq!((&*due.endpoint.region, due.probe), ("East US", Some(cell)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hedge_goes_to_a_healthy_second_region_only() {
        let (account, healthy, now) = (account(), PartitionHealth::default(), Instant::now());
        let hedge =
            resolve_hedge(&want(), &endpoint("East US"), &account, &healthy, now).expect("two regions");
        assert_eq!(&*hedge.endpoint.region, "West US");
        let excluded = vec!["West US".to_owned(), "North Europe".to_owned()];
        let want = Want { excluded: &excluded, ..want() };
        assert!(resolve_hedge(&want, &endpoint("East US"), &account, &healthy, now).is_none());
    }
}
