//! The connections of one endpoint: reserve a slot, grow, drain.
//!
//! HTTP/2 connections carry up to `streams_target` requests each (`streams_max` when no further connection may be
//! opened); HTTP/1.1 connections carry one. Otherwise they are the same thing. New requests go to the oldest
//! connections the load needs, so that the younger ones fall idle and close after a spike. A connection that owes answers
//! and has gone quiet is passed over; where all have, one more is opened.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::Connector;
use super::health::{self, EvictionReason, Verdict};
use super::shard::Shard;
use super::{
    Address, HttpError, HttpErrorKind, HttpRequest, HttpResponse, Limit, PoolSnapshot, Progress, Sending,
    Sent, Timing, Via,
};
use crate::clock::Clock;
use crate::config::Sharding;
use crate::diagnostics::Protocol;

#[derive(Debug)]
pub(crate) struct Pool {
    address: Address,
    connector: Arc<Connector>,
    rules: Sharding,
    clock: Clock,
    /// In order of creation.
    shards: ArcSwap<Vec<Arc<Shard>>>,
    protocol: ArcSwapOption<Protocol>,
    connecting: AtomicU32,
    waiting: AtomicU32,
    /// Those of them that ask for metadata.
    waiting_for_metadata: AtomicU32,
    next_id: AtomicU32,
    /// Wakes requests that wait for a slot: one per slot given back, all when a connection opened or failed to.
    wake: Notify,
    /// The same for slots that only metadata may take. A request for an item that was told of one could not use it, and
    /// those behind it in the queue would not hear of it.
    wake_metadata: Notify,
    /// The last failed connect, numbered so that a waiter can tell a new failure from an old one.
    failure: ArcSwapOption<(u64, HttpError)>,
    failures: AtomicU64,
    /// Failed connects since the last that did not.
    failures_in_row: AtomicU32,
    evictions: [AtomicU64; EvictionReason::ALL.len()],
}

impl Pool {
    pub(super) fn new(
        address: Address,
        connector: Arc<Connector>,
        rules: Sharding,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            connector,
            rules,
            clock,
            shards: ArcSwap::from_pointee(Vec::new()),
            protocol: ArcSwapOption::empty(),
            connecting: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            waiting_for_metadata: AtomicU32::new(0),
            next_id: AtomicU32::new(0),
            wake: Notify::new(),
            wake_metadata: Notify::new(),
            failure: ArcSwapOption::empty(),
            failures: AtomicU64::new(0),
            failures_in_row: AtomicU32::new(0),
            evictions: Default::default(),
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.failures_in_row.load(Ordering::Relaxed) > 0
            && !self.shards.load().iter().any(|shard| shard.is_usable())
    }

    pub(super) async fn send(
        self: &Arc<Self>,
        request: HttpRequest,
        limit: Limit,
        avoid: Option<u32>,
    ) -> Sending {
        let until = limit.deadline.min(limit.attempt);
        let expired = |sent: Sent| {
            let (kind, text) = if limit.deadline <= limit.attempt {
                (HttpErrorKind::Deadline, "the operation's deadline passed")
            } else {
                (HttpErrorKind::AttemptTimeout, "no answer within the time of one attempt")
            };
            HttpError::new(kind, sent, text)
        };
        let mut timing = Timing::default();
        let want = SlotWanted { avoid, is_metadata: request.is_metadata };
        let mut slot = match timeout_at(until, self.reserve(want, &mut timing)).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(error)) => return Sending { result: Err(error), via: None, timing },
            Err(_) => return Sending { result: Err(expired(Sent::No)), via: None, timing },
        };
        let via = Some(Via { shard: slot.shard.id, protocol: slot.shard.protocol });
        let progress = Progress::begin(self.clock.now());
        let result = match timeout_at(until, slot.shard.service.call(request, &progress)).await {
            Ok(result) => result,
            Err(_) => Err(expired(progress.sent())),
        };
        slot.finish(&result);
        (timing.headers, timing.body) = progress.times();
        Sending { result, via, timing }
    }

    /// A slot on a usable connection, opening one when all are full. Waits; the caller bounds the wait.
    async fn reserve(self: &Arc<Self>, want: SlotWanted, timing: &mut Timing) -> Result<Slot, HttpError> {
        // Requests that wait come first; only an empty queue may be passed by.
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Some(slot) = self.try_reserve(want)
        {
            return Ok(slot);
        }
        let _waiting = Waiting::enter(&self.waiting);
        let _asking = want.is_metadata.then(|| Waiting::enter(&self.waiting_for_metadata));
        let avoid = want.avoid;
        let seen = self.failures.load(Ordering::Acquire);
        let mut is_turn = self.waiting.load(Ordering::Relaxed) <= 1;
        loop {
            let mut woken = pin!(self.wake.notified());
            woken.as_mut().enable();
            let mut woken_for_metadata = pin!(self.wake_metadata.notified());
            if want.is_metadata {
                woken_for_metadata.as_mut().enable();
            }
            if is_turn && let Some(slot) = self.try_reserve(want) {
                self.pass_on();
                return Ok(slot);
            }
            if let Some(failure) = self.failure.load_full()
                && failure.0 > seen
                && !self.shards.load().iter().any(|shard| shard.is_usable())
            {
                return Err(failure.1.clone());
            }
            let has_failed = self.failures.load(Ordering::Acquire) > seen;
            let is_opening = self.open_what_is_wanted(u32::from(avoid.is_some()));
            if avoid.is_some()
                && (has_failed || !is_opening)
                && let Some(slot) = self.try_reserve(SlotWanted { avoid: None, ..want })
            {
                // No other connection can be had: better the same one than none.
                return Ok(slot);
            }
            let is_open = self.shards.load().iter().any(|shard| shard.is_usable());
            let cause = if is_open { &mut timing.slot } else { &mut timing.connect };
            let _spent = Stopwatch::start(cause, self.clock.now());
            tokio::select! {
                () = woken => {}
                () = woken_for_metadata, if want.is_metadata => {}
            }
            is_turn = true;
        }
    }

    /// More than one slot may have become free at once: the next in line is told.
    fn pass_on(&self) {
        let target = self.slots_target();
        let has_room =
            || self.shards.load().iter().any(|shard| shard.is_calm() && shard.in_flight() < target);
        if self.waiting.load(Ordering::Relaxed) > 1 && has_room() {
            self.wake.notify_one();
        }
    }

    /// Tells one request that waits of a slot that was given back on this connection.
    fn tell_of_slot(&self, id: u32) {
        let shards = self.shards.load();
        // Most pools have no connections of metadata.
        let limit = self.connections_max();
        if shards.len() > limit && shards.iter().skip(limit).any(|shard| shard.id == id) {
            self.wake_metadata.notify_one();
        } else {
            self.wake.notify_one();
        }
    }

    fn tell_all(&self) {
        self.wake.notify_waiters();
        self.wake_metadata.notify_waiters();
    }

    fn try_reserve(self: &Arc<Self>, want: SlotWanted) -> Option<Slot> {
        let SlotWanted { avoid, is_metadata } = want;
        let shards = self.shards.load();
        // Those above the limit were opened for metadata, and stay free for it.
        let within = if is_metadata { usize::MAX } else { self.connections_max() };
        let now_ms = self.clock.tick_ms();
        // A connection that owes a sign of life gets no new work while another can take it.
        let has_calm = shards.iter().any(|shard| shard.is_calm() && Some(shard.id) != avoid);
        let is_refused = self.failures_in_row.load(Ordering::Relaxed) > 0;
        if !has_calm && !shards.is_empty() && self.open_what_is_wanted(0) && !is_refused {
            // A new connection is a matter of moments; one that may be dead is not.
            return None;
        }
        let is_fit = |shard: &Shard| if has_calm { shard.is_calm() } else { shard.is_usable() };
        let usable = || shards.iter().filter(|shard| is_fit(shard) && Some(shard.id) != avoid).take(within);
        if self.is_http1() {
            // One request each: the oldest that is free.
            let taken = usable().find(|shard| shard.try_take(1, now_ms))?;
            return Some(Slot { shard: taken.clone(), pool: self.clone(), is_finished: false });
        }
        let in_flight: u32 = usable().map(|shard| shard.in_flight()).sum();
        let target = self.slots_target();
        let active = health::active_set(in_flight, target);
        let lively = || usable().filter(|shard| !shard.is_quiet(now_ms));
        if lively().next().is_none() && health::wants_spare(in_flight, shards.len(), target) {
            self.open_what_is_wanted(1);
        }
        let taken = lively()
            .take(active)
            .min_by_key(|shard| shard.in_flight())
            .filter(|shard| shard.try_take(target, now_ms))
            .or_else(|| lively().find(|shard| shard.try_take(target, now_ms)))
            // The counts moved under us, or the active ones are full: take any free slot, oldest first.
            .or_else(|| usable().find(|shard| shard.try_take(target, now_ms)))
            .or_else(|| {
                let may_overfill = shards.len() >= self.connections_max();
                usable().filter(|_| may_overfill).find(|shard| shard.try_take(self.slots_max(), now_ms))
            })?;
        let slot = Slot { shard: taken.clone(), pool: self.clone(), is_finished: false };
        if health::wants_growth(in_flight + 1, shards.len(), target, self.rules.growth_threshold) {
            self.open_what_is_wanted(1);
        }
        Some(slot)
    }

    /// Starts the connects the present load wants, plus `extra`. True if one is under way afterwards.
    ///
    /// Wanted are `ceil((in flight + waiting) / slots per connection)` calm connections, at least one, and at least `extra`
    /// more than there are. Never more are open or being opened than the limit, to which metadata that waits adds its own.
    /// Example: 30 requests in flight on 2 connections of 16 slots, 5 waiting: `ceil(35 / 16) = 3`, so one is opened.
    fn open_what_is_wanted(self: &Arc<Self>, extra: u32) -> bool {
        // Until the first connection has told the protocol, one connect at a time is enough.
        let known = self.protocol.load().is_some();
        let is_asked = self.waiting_for_metadata.load(Ordering::Relaxed) > 0;
        let spare = if is_asked { self.rules.metadata_connections } else { 0 };
        let max = self.connections_max().max(1) + spare;
        loop {
            // Read before the connections: one that opens in between is counted twice rather than not at all.
            let connecting = self.connecting.load(Ordering::Acquire);
            let shards = self.shards.load();
            let calm = shards.iter().filter(|shard| shard.is_calm());
            let (count, in_flight) = calm.fold((0u32, 0u32), |(n, f), shard| (n + 1, f + shard.in_flight()));
            let by_load =
                (in_flight + self.waiting.load(Ordering::Relaxed)).div_ceil(self.slots_target()).max(1);
            let wanted = match (known, extra) {
                (false, _) => 1,
                (true, 0) => by_load,
                (true, extra) => by_load.max(count + extra),
            };
            // A connection that may be dead does not count as one that serves, but it counts as one that is open.
            if count + connecting >= wanted || shards.len() + connecting as usize >= max {
                return connecting > 0;
            }
            let with_ours = connecting + 1;
            let claimed =
                self.connecting.compare_exchange(connecting, with_ours, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_err() {
                continue;
            }
            if self.shards.load().len() + with_ours as usize > max {
                // One opened and another was begun since they were counted.
                self.connecting.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            tokio::spawn(connect(self.clone()));
        }
    }

    fn is_http1(&self) -> bool {
        self.protocol.load().as_deref() == Some(&Protocol::Http1)
    }

    fn slots_target(&self) -> u32 {
        if self.is_http1() { 1 } else { self.rules.streams_target }
    }

    fn slots_max(&self) -> u32 {
        if self.is_http1() { 1 } else { self.rules.streams_max.max(self.rules.streams_target) }
    }

    fn connections_max(&self) -> usize {
        if self.is_http1() { self.rules.http1_connections_max } else { self.rules.connections_max }
    }

    fn add(&self, shard: &Arc<Shard>) {
        self.shards.rcu(|shards| {
            let mut shards = Vec::clone(shards);
            shards.push(shard.clone());
            shards
        });
    }

    fn remove(&self, id: u32, reason: EvictionReason) {
        let before = self
            .shards
            .rcu(|shards| shards.iter().filter(|shard| shard.id != id).cloned().collect::<Vec<_>>());
        if before.iter().any(|shard| shard.id == id) {
            self.evictions[reason.index()].fetch_add(1, Ordering::Relaxed);
            metrics::counter!("cosmos_driver_shard_evictions").increment(1);
            tracing::debug!(endpoint = %self.address, shard = id, ?reason, "connection evicted");
        }
    }

    /// Applies the health verdicts; keeps the minimum open; opens the next connection before it is needed.
    pub(super) fn sweep(self: &Arc<Self>, is_busy_machine: bool) {
        let shards = self.shards.load_full();
        let now_ms = self.clock.tick_ms();
        let all: Vec<health::Stats> = shards.iter().map(|shard| shard.stats()).collect();
        let mut kept = shards.len();
        for (i, shard) in shards.iter().enumerate().rev() {
            let peers: Vec<health::Stats> =
                all.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, stats)| *stats).collect();
            match health::check(&all[i], &peers, now_ms, &self.rules, is_busy_machine) {
                Verdict::Keep => {}
                Verdict::Evict(EvictionReason::Idle) if kept <= self.rules.connections_min => {}
                Verdict::Evict(reason) => {
                    kept -= 1;
                    shard.retire();
                    self.remove(shard.id, reason);
                    match reason {
                        // What waits on a dead connection must learn it now.
                        EvictionReason::Closed | EvictionReason::ReadHang => shard.service.kill(),
                        // Answers still come on it: those that are under way get some time.
                        EvictionReason::FailuresWithHealthyPeers => {
                            tokio::spawn(drain(shard.clone(), self.rules.drain_timeout));
                        }
                        EvictionReason::Idle | EvictionReason::Abandoned => {}
                    }
                }
            }
        }
        let in_flight: u32 = all.iter().map(|stats| stats.in_flight).sum();
        if health::wants_growth(in_flight, kept, self.slots_target(), self.rules.growth_threshold) {
            self.open_what_is_wanted(1);
        } else if kept < self.rules.connections_min && !shards.is_empty() {
            self.open_what_is_wanted(0);
        }
    }

    pub(super) fn snapshot(&self) -> PoolSnapshot {
        PoolSnapshot {
            endpoint: self.address.to_string(),
            protocol: self.protocol.load().as_deref().copied(),
            shards: self.shards.load().iter().map(|shard| shard.snapshot()).collect(),
            waiting: self.waiting.load(Ordering::Relaxed),
            connecting: self.connecting.load(Ordering::Relaxed),
            evictions: EvictionReason::ALL
                .iter()
                .map(|reason| (*reason, self.evictions[reason.index()].load(Ordering::Relaxed)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

/// Opens one connection for the pool. A task of its own: the request that asked for it may be gone by then.
async fn connect(pool: Arc<Pool>) {
    let _claim = Connecting(&pool);
    let id = pool.next_id.fetch_add(1, Ordering::Relaxed);
    let has_live = pool.shards.load().iter().any(|shard| shard.is_usable());
    // An endpoint that lost all its connections may have been replaced by one that speaks something else.
    let known = if has_live { pool.protocol.load().as_deref().copied() } else { None };
    match pool.connector.connect(&pool.address, id, known).await {
        Ok(connected) => {
            pool.failures_in_row.store(0, Ordering::Relaxed);
            pool.protocol.store(Some(Arc::new(connected.protocol)));
            let capacity = connected.service.capacity().max(1);
            let now_ms = pool.clock.tick_ms();
            pool.add(&Arc::new(Shard::new(id, connected.protocol, connected.service, capacity, now_ms)));
        }
        Err(error) => {
            tracing::debug!(endpoint = %pool.address, error = %error.message, "connect failed");
            let number = pool.failures.fetch_add(1, Ordering::AcqRel) + 1;
            pool.failure.store(Some(Arc::new((number, error))));
            let in_row = pool.failures_in_row.fetch_add(1, Ordering::Relaxed) + 1;
            pool.tell_all();
            // While another connection serves, an endpoint that refuses is not asked over and over.
            if pool.shards.load().iter().any(|shard| shard.is_usable()) {
                tokio::time::sleep(health::connect_pause(in_row)).await;
            }
        }
    }
}

/// Closes a connection that gets no new requests when its last one has ended, or its time.
async fn drain(shard: Arc<Shard>, limit: Duration) {
    let _late = timeout(limit, shard.emptied()).await;
    shard.service.kill();
}

/// What a slot is wanted for.
#[derive(Clone, Copy, Debug)]
struct SlotWanted {
    /// A connection that just failed.
    avoid: Option<u32>,
    is_metadata: bool,
}

/// Adds the time until it is dropped.
struct Stopwatch<'a> {
    sum: &'a mut Duration,
    begun: Instant,
}

impl<'a> Stopwatch<'a> {
    fn start(sum: &'a mut Duration, begun: Instant) -> Self {
        Self { sum, begun }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.sum += self.begun.elapsed();
    }
}

/// Counts a connect under way; ending it, either way, is news for everyone who waits.
struct Connecting<'a>(&'a Pool);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.fetch_sub(1, Ordering::AcqRel);
        self.0.tell_all();
    }
}

struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One slot on one connection, given back on drop whatever happened.
struct Slot {
    shard: Arc<Shard>,
    pool: Arc<Pool>,
    is_finished: bool,
}

impl Slot {
    fn finish(&mut self, result: &Result<HttpResponse, HttpError>) {
        match result {
            Ok(_) => {
                self.is_finished = true;
                self.shard.succeeded(self.pool.clock.tick_ms());
            }
            Err(error) => {
                self.shard.failed();
                match error.kind {
                    HttpErrorKind::Closed | HttpErrorKind::Protocol | HttpErrorKind::TooLarge
                        if self.shard.protocol == Protocol::Http1 => {}
                    HttpErrorKind::Connect
                    | HttpErrorKind::Tls
                    | HttpErrorKind::Closed
                    | HttpErrorKind::Refused
                    | HttpErrorKind::Protocol
                    | HttpErrorKind::TooLarge => self.is_finished = true,
                    HttpErrorKind::AttemptTimeout | HttpErrorKind::Deadline => {}
                }
                if self.shard.service.is_closed() {
                    self.shard.retire();
                    self.pool.remove(self.shard.id, EvictionReason::Closed);
                }
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_finished && self.shard.protocol == Protocol::Http1 {
            self.shard.retire();
            self.pool.remove(self.shard.id, EvictionReason::Abandoned);
        }
        self.shard.give_back();
        self.pool.tell_of_slot(self.shard.id);
    }
}
