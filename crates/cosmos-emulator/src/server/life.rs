//! How long a connection may live: what its gate orders, and how old it may become.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::Instant;

use super::present::Presence;
use super::{Gate, Orders, Traffic};

/// The orders of a gate as one connection hears them, from the moment it was accepted: what is ordered before anybody
/// serves it is for it, too.
#[derive(Debug, Clone)]
pub(super) struct Life {
    opened: Instant,
    first: Orders,
    known: Orders,
    orders: watch::Receiver<Orders>,
    traffic: Arc<Traffic>,
    pub(super) presence: Presence,
    is_leaving: bool,
    is_dismissed: bool,
}

/// What a connection is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Answer what is in flight and go.
    Leave,
    /// The same, and go at once where nothing is: another connection needs the place.
    Dismissed,
    /// Go.
    Cut,
}

impl Life {
    pub(super) fn new(gate: &Gate, presence: Presence) -> Self {
        let mut orders = gate.orders.subscribe();
        let first = *orders.borrow_and_update();
        let traffic = Arc::clone(&gate.traffic);
        let (opened, known) = (Instant::now(), first);
        Self { opened, first, known, orders, traffic, presence, is_leaving: false, is_dismissed: false }
    }

    /// Waits for the next news. It owns what it waits with, so that one wait can span many requests.
    pub(super) async fn next(mut self) -> (News, Self) {
        loop {
            let old = self.known.age_max.filter(|_| !self.is_leaving).map(|age| self.opened + age);
            tokio::select! {
                () = until(old) => {
                    self.traffic.goaways_total.fetch_add(1, Ordering::Relaxed);
                    self.is_leaving = true;
                    return (News::Leave, self);
                }
                () = self.presence.dismissed(), if !self.is_dismissed => {
                    self.is_dismissed = true;
                    self.is_leaving = true;
                    return (News::Dismissed, self);
                }
                // The gate outlives its connections, so the channel only ever changes.
                _ = self.orders.changed() => {
                    self.known = *self.orders.borrow_and_update();
                    if self.known.cuts != self.first.cuts {
                        return (News::Cut, self);
                    }
                    let leaves = self.known.goaways != self.first.goaways || self.known.is_stopping;
                    if leaves && !self.is_leaving {
                        self.is_leaving = true;
                        return (News::Leave, self);
                    }
                }
            }
        }
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}
