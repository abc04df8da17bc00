//! Who to send to: immutable snapshots, changed by pure functions, read without a lock.
//!
//! An operation loads both snapshots, asks [`resolve::resolve`] for a route, and reports afterwards what happened;
//! the [`Router`] turns such reports into new snapshots.

pub(crate) mod account;
pub(crate) mod gateway2;
pub(crate) mod partition;
pub(crate) mod resolve;
pub(crate) mod sessions;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::time::Instant;

use crate::config::Breaker;
use crate::transport::Address;
use account::AccountRoutes;
use partition::{Cell, Failure, PartitionHealth};

/// One place requests can be sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) region: Arc<str>,
    pub(crate) address: Address,
}

/// Holds the snapshots.
#[derive(Debug)]
pub(crate) struct Router {
    account: ArcSwap<AccountRoutes>,
    health: ArcSwap<PartitionHealth>,
}

impl Router {
    pub(crate) fn new(routes: AccountRoutes) -> Self {
        Self {
            account: ArcSwap::from_pointee(routes),
            health: ArcSwap::from_pointee(PartitionHealth::default()),
        }
    }

    pub(crate) fn account(&self) -> Guard<Arc<AccountRoutes>> {
        self.account.load()
    }

    pub(crate) fn health(&self) -> Guard<Arc<PartitionHealth>> {
        self.health.load()
    }

    /// Takes a fresh account document's routes, keeping what is known about availability.
    pub(crate) fn replace_account(&self, routes: &AccountRoutes) {
        self.account.rcu(|old| routes.clone().keeping_marks_of(old));
    }

    /// Avoids an endpoint from now on. True if it was not avoided before.
    pub(crate) fn mark_unavailable(&self, address: &Address, until: Instant) -> bool {
        let before = self.account.rcu(|routes| routes.marking_unavailable(address, until));
        !before.is_unavailable(address)
    }

    pub(crate) fn mark_available(&self, address: &Address) {
        if self.account.load().is_unavailable(address) {
            self.account.rcu(|routes| routes.marking_available(address));
        }
    }

    /// Asks nothing of an endpoint of Gateway 2.0 until a probe was answered. True if something was.
    pub(crate) fn gateway2_failed(&self, address: &Address, until: Instant) -> bool {
        let before = self.account.rcu(|routes| {
            let mut next = AccountRoutes::clone(routes);
            next.gateway2.mark_down(address, until);
            next
        });
        before.gateway2.in_use().any(|used| used == address)
    }

    pub(crate) fn gateway2_answered(&self, address: &Address) {
        self.account.rcu(|routes| {
            let mut next = AccountRoutes::clone(routes);
            next.gateway2.mark_ready(address);
            next
        });
    }

    pub(crate) fn partition_failed(
        &self,
        cell: &Cell,
        failure: Failure,
        now: Instant,
        open_for: Duration,
        rules: &Breaker,
    ) {
        self.health.rcu(|health| health.failed(cell, failure, now, open_for, rules));
    }

    pub(crate) fn partition_succeeded(&self, cell: &Cell, began: Instant) {
        if self.health.load().is_known(cell) {
            self.health.rcu(|health| health.succeeded(cell, began));
        }
    }

    /// Claims the one probe of an open breaker. False if another operation was quicker.
    pub(crate) fn claim_probe(&self, cell: &Cell, now: Instant, rules: &Breaker) -> bool {
        let mut won = false;
        self.health.rcu(|health| match health.probing(cell, now, rules) {
            Some(next) => {
                won = true;
                Arc::new(next)
            }
            None => {
                won = false;
                Arc::clone(health)
            }
        });
        won
    }

    /// Forgets partitions that have been quiet for the window.
    pub(crate) fn sweep(&self, now: Instant, rules: &Breaker) {
        if !self.health.load().is_empty() {
            self.health.rcu(|health| health.swept(now, rules));
        }
    }
}
