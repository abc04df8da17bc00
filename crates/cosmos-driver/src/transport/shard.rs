//! One connection with its slots and its health counters.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::health::{self, Stats};
use super::{HttpService, ShardSnapshot};
use crate::diagnostics::Protocol;

pub(super) struct Shard {
    pub(super) id: u32,
    pub(super) protocol: Protocol,
    pub(super) service: Arc<dyn HttpService>,
    capacity: u32,
    in_flight: AtomicU32,
    retired: AtomicBool,
    consecutive_failures: AtomicU32,
    last_success: AtomicU64,
    last_request: AtomicU64,
    busy_since: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    /// Told when the last request of a retired connection ends.
    empty: Notify,
}

impl Shard {
    pub(super) fn new(
        id: u32,
        protocol: Protocol,
        service: Arc<dyn HttpService>,
        capacity: u32,
        now_ms: u64,
    ) -> Self {
        Self {
            id,
            protocol,
            service,
            capacity,
            in_flight: AtomicU32::new(0),
            retired: AtomicBool::new(false),
            consecutive_failures: AtomicU32::new(0),
            last_success: AtomicU64::new(now_ms),
            last_request: AtomicU64::new(now_ms),
            busy_since: AtomicU64::new(now_ms),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            empty: Notify::new(),
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.retired.load(Ordering::Relaxed) && !self.service.is_closed()
    }

    /// Usable, and not waiting for a sign of life.
    pub(super) fn is_calm(&self) -> bool {
        self.is_usable() && !self.service.is_suspect()
    }

    /// Owes answers, and has given none for a moment.
    pub(super) fn is_quiet(&self, now_ms: u64) -> bool {
        let heard_ms = self.last_success.load(Ordering::Relaxed).max(self.busy_since.load(Ordering::Relaxed));
        health::is_quiet(self.in_flight(), heard_ms, now_ms)
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Takes one of the first `limit` slots, if one is free and the peer has as many.
    pub(super) fn try_take(&self, limit: u32, now_ms: u64) -> bool {
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
            (n < limit.min(self.capacity)).then_some(n + 1)
        });
        match taken {
            Ok(before) => {
                if before == 0 {
                    self.busy_since.store(now_ms, Ordering::Relaxed);
                }
                self.last_request.store(now_ms, Ordering::Relaxed);
                self.requests.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn give_back(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.empty.notify_waiters();
        }
    }

    /// Returns when nothing is under way.
    pub(super) async fn emptied(&self) {
        loop {
            let mut told = pin!(self.empty.notified());
            told.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            told.await;
        }
    }

    pub(super) fn succeeded(&self, now_ms: u64) {
        self.last_success.store(now_ms, Ordering::Relaxed);
        self.consecutive_failures.store(0, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.consecutive_failures.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            in_flight: self.in_flight(),
            consecutive_failures: self.consecutive_failures.load(Ordering::Relaxed),
            last_success_ms: self.last_success.load(Ordering::Relaxed),
            last_request_ms: self.last_request.load(Ordering::Relaxed),
            busy_since_ms: self.busy_since.load(Ordering::Relaxed),
            is_closed: self.service.is_closed(),
        }
    }

    pub(super) fn snapshot(&self) -> ShardSnapshot {
        ShardSnapshot {
            id: self.id,
            in_flight: self.in_flight(),
            capacity: self.capacity,
            consecutive_failures: self.consecutive_failures.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("id", &self.id)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
