//! Locks that this process holds: on the head of an instance for a turn, on a work item for an activity.
//!
//! A worked example, a turn whose lock lasts 5 s in a throttled account:
//!
//! 1. At 0 s a dispatcher fetches the turn; [`Lease::new`] keeps the locked head as it was written.
//! 2. At 3 s the runtime calls ack. It takes `ending`, sends the commit and is answered 429. It waits and tries again, and
//!    holds nothing meanwhile that a renewal needs.
//! 3. At 3 s, too, the runtime's timer calls renew. It takes `renewing`, writes the head with a later end and
//!    [`Lease::note`]s it: the lock now ends at 8 s, and so does the patience of the ack, which asks
//!    [`Lease::until_ms`] before every try.
//! 4. The ack's next try names an ETag that is not current any more. It is answered 412, looks at the head, finds its own
//!    lock in it and goes on with the new ETag.
//! 5. If the lock ends before a try gets through, ack returns an error. The runtime reacts to any error of an ack by
//!    committing the instance as failed, and to any error of an activity's renewal by acking it as cancelled. Therefore a
//!    lease that was [given up](Lease::give_up) is never used again: those calls are refused, the lock runs out, and the
//!    turn or activity is fetched again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duroxide::providers::WorkItem;
use tokio::time::Instant;

use crate::claims::UnsettledClaims;
use crate::clock::{Clock, millis};
use crate::documents::{Head, Lockable, Message, Tagged, WorkDocument};
use crate::error::{Fault, Lost};
use crate::store::settle::{self, Next, Seen, Verdict};
use crate::store::{Patience, Store};

/// One lock of this process, on a document `D`; `C` is what only the call that ends the lock needs.
#[derive(Debug)]
pub(crate) struct Lease<D, C = ()> {
    secret: String,
    /// The locked document as this process last wrote or read it. An ETag that has become old costs one look.
    stored: Mutex<Tagged<Arc<D>>>,
    /// The latest end that this process knows to be stored. It never goes back.
    until_ms: AtomicU64,
    is_given_up: AtomicBool,
    /// Whether the lock is stored. One that is only in this process's memory rests on the ETag of the document as it was
    /// read, which is empty if there was none.
    is_written: AtomicBool,
    /// The slot of what is locked, and by when a lock that is only in memory has to be written.
    unwritten: Unwritten,
    /// Acks and abandons of one token take turns. Renewals do not wait for them, because an ack goes on trying for as
    /// long as renewals make its lock last.
    pub(crate) ending: tokio::sync::Mutex<C>,
    /// Renewals of one token take turns.
    pub(crate) renewing: tokio::sync::Mutex<()>,
}

/// What is to be known of a lock that is only in this process's memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unwritten {
    pub(crate) slot: u8,
    /// In milliseconds since the Unix epoch.
    pub(crate) write_by: u64,
}

impl<D: Lockable, C> Lease<D, C> {
    /// A lock that is kept in memory: `locked` is the document as it would be stored, with the ETag it was read with.
    pub(crate) fn unwritten(secret: &str, locked: Tagged<Arc<D>>, contents: C, unwritten: Unwritten) -> Self {
        Self { is_written: AtomicBool::new(false), unwritten, ..Self::new(secret, locked, contents) }
    }

    pub(crate) fn new(secret: &str, stored: Tagged<Arc<D>>, contents: C) -> Self {
        Self {
            is_written: AtomicBool::new(true),
            unwritten: Unwritten::default(),
            secret: secret.to_owned(),
            until_ms: AtomicU64::new(stored.document.locked_until().unwrap_or(0)),
            stored: Mutex::new(stored),
            is_given_up: AtomicBool::new(false),
            ending: tokio::sync::Mutex::new(contents),
            renewing: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Whether the lock is stored.
    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }

    /// The lock is stored, from now on.
    pub(crate) fn set_written(&self) {
        self.is_written.store(true, Ordering::Release);
    }

    /// Whether a stored document is locked by this lease.
    pub(crate) fn locks(&self, document: &D) -> bool {
        document.lock_token() == Some(self.secret.as_str())
    }

    /// The document as it was last known, if it is locked by this lease: another call may have ended it meanwhile.
    pub(crate) fn held(&self) -> Result<Tagged<Arc<D>>, Lost> {
        let stored = self.stored();
        if self.locks(&stored.document) { Ok(stored) } else { Err(Lost::NotHeld) }
    }

    /// The document as it was last known.
    pub(crate) fn stored(&self) -> Tagged<Arc<D>> {
        let stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        Tagged { document: Arc::clone(&stored.document), etag: stored.etag.clone() }
    }

    /// Takes note of the document as it is stored now.
    pub(crate) fn note(&self, stored: Tagged<Arc<D>>) {
        if self.locks(&stored.document) {
            self.until_ms.fetch_max(stored.document.locked_until().unwrap_or(0), Ordering::AcqRel);
        }
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = stored;
    }

    /// When the lock ends, as far as is known by now.
    pub(crate) fn until_ms(&self) -> u64 {
        self.until_ms.load(Ordering::Acquire)
    }

    /// Ends every use of the token in this process.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Ends every use of the token because the account did not let its lock be kept. That says nothing about the code that
    /// ran under it, so the attempt does not count: this process takes it back when it meets the lock.
    pub(crate) fn give_up_blameless(&self, claims: &UnsettledClaims) {
        self.give_up();
        let document = self.stored().document;
        drop(claims.begin(document.partition(), document.id(), &self.secret));
    }

    /// Whether the lock is this token's, used and in time.
    pub(crate) fn state(&self, clock: &Clock) -> Result<(), Lost> {
        self.owned()?;
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(Lost::GivenUp);
        }
        if self.until_ms() > clock.now_ms() { Ok(()) } else { Err(Lost::Expired) }
    }

    /// Whether the lock is this token's, as far as is known: giving it back is possible also when it has ended or was given
    /// up.
    pub(crate) fn owned(&self) -> Result<(), Lost> {
        self.held().map(drop)
    }

    /// As [`state`](Self::state), for an ack: a lock that seems to have ended may just be being renewed, and what becomes
    /// of that renewal decides.
    pub(crate) async fn state_after_renewal(&self, clock: &Clock) -> Result<(), Lost> {
        match self.state(clock) {
            Err(Lost::Expired) => {
                let _renewal_is_over = self.renewing.lock().await;
                self.state(clock)
            }
            state => state,
        }
    }

    /// Looks at the stored document after a write on condition of `etag`, and takes note of it if it is still this lease's:
    /// under the ETag of another's lock nothing may be written. `is_applied` tells by the document whether the write happened.
    pub(crate) async fn look(
        &self,
        store: &Store,
        patience: Patience<'_>,
        etag: &str,
        is_applied: impl Fn(&D) -> bool,
    ) -> Result<Seen, Fault> {
        let sent = self.stored().document;
        let found = store.patient(patience).read_lockable::<D>(sent.partition(), sent.id()).await?;
        let base = self.stored().etag;
        let Some(Tagged { document, etag: found }) = found else {
            // A lock in memory on what is to be created is still good as long as nobody else has created it.
            let is_to_come = !self.is_written() && base.is_empty();
            return Ok(if is_to_come { Seen::Held { moved: false } } else { Seen::Gone });
        };
        let seen = if is_applied(&document) {
            Seen::Applied
        } else if self.locks(&document) {
            self.set_written();
            Seen::Held { moved: found != etag }
        } else if !self.is_written() && found == base {
            // Nobody has touched what this lock in memory rests on.
            return Ok(Seen::Held { moved: false });
        } else {
            Seen::Lost
        };
        match seen {
            Seen::Applied | Seen::Held { .. } => {
                self.note(Tagged { document: Arc::new(document), etag: found });
            }
            Seen::Lost | Seen::Gone => {}
        }
        Ok(seen)
    }

    /// What is to be done after a failed write of the locked document, alone or in a batch, on condition of `etag`. `Err`: it
    /// will never succeed.
    ///
    /// The document is looked at even when the lock has just ended, for no answer does not mean that nothing happened. If
    /// the look brings no answer either, the write may be tried again: its condition makes that harmless.
    pub(crate) async fn settle(
        &self,
        store: &Store,
        patience: Patience<'_>,
        etag: &str,
        fault: &Fault,
        is_applied: impl Fn(&D) -> bool,
    ) -> Result<Verdict, Fault> {
        match settle::after(fault) {
            Next::Refuse => Err(fault.clone()),
            Next::Again => Ok(Verdict::Again),
            Next::Look => {
                let mut seen = self.look(store, patience, etag, &is_applied).await;
                if seen.is_err() && self.state(store.clock()) == Err(Lost::Expired) {
                    let last = store.quick_call(patience.call().operation);
                    seen = self.look(store, last.into(), etag, &is_applied).await;
                }
                Ok(seen.map_or(Verdict::Again, |seen| settle::judge(fault, seen)))
            }
        }
    }

    /// Patience until the lock ends.
    pub(crate) fn patience<'a>(&'a self, store: &'a Store, operation: &'static str) -> Patience<'a> {
        Patience::WhileHeld { operation, clock: store.clock(), until_ms: &self.until_ms, tries: 1 }
    }

    /// The same for a renewal. It is small, so a request that takes half of what is left of the lock is a lost one: there
    /// is time for another.
    pub(crate) fn patience_to_renew<'a>(&'a self, store: &'a Store, operation: &'static str) -> Patience<'a> {
        Patience::to_renew(operation, store.clock(), &self.until_ms)
    }
}

/// A turn this process holds.
pub(crate) type TurnLease = Lease<Head, TurnContents>;

/// What the call that ends a turn has to know of it.
#[derive(Debug, Default)]
pub(crate) struct TurnContents {
    /// The held messages, each with the ETag it was read with, if this process fetched them.
    pub(crate) messages: Vec<Message>,
    /// Documents of the public crate's layout that the first commit replaces.
    pub(crate) legacy: Vec<String>,
    /// The order keys of messages that were there when the turn was fetched and did not fit into it: those above the
    /// first key, up to the second.
    pub(crate) left: Option<(u64, u64)>,
}

/// An activity this process holds.
pub(crate) type WorkLease = Lease<WorkDocument, WorkContents>;

/// What the call that ends an activity has to know of it.
#[derive(Debug, Default)]
pub(crate) struct WorkContents {
    /// Its name, and when it was handed out, if this process did.
    pub(crate) begun: Option<(String, Instant)>,
}

impl WorkContents {
    /// An activity that is handed out now.
    pub(crate) fn of(item: &WorkItem) -> Self {
        let WorkItem::ActivityExecute { name, .. } = item else { return Self::default() };
        Self { begun: Some((name.clone(), Instant::now())) }
    }
}

/// The locks of this process, by the random part of their token. Those that were given up stay among them for a while, so
/// that their tokens are refused.
#[derive(Debug)]
pub(crate) struct Leases<D, C = ()> {
    held: Mutex<HashMap<String, Arc<Lease<D, C>>>>,
}

impl<D, C> Default for Leases<D, C> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

impl<D: Lockable, C> Leases<D, C> {
    pub(crate) fn get(&self, secret: &str) -> Option<Arc<Lease<D, C>>> {
        self.lock().get(secret).map(Arc::clone)
    }

    /// Keeps a lease; those that ended long ago and that no call came back for are dropped on the way.
    pub(crate) fn put(&self, clock: &Clock, lease: Lease<D, C>) -> Arc<Lease<D, C>> {
        let lease = Arc::new(lease);
        let mut held = self.lock();
        if held.len() >= LEASES_SWEPT_FROM {
            let long_ago = clock.now_ms().saturating_sub(millis(FORGET_AFTER));
            held.retain(|_, lease| lease.until_ms() > long_ago);
        }
        held.insert(lease.secret().to_owned(), Arc::clone(&lease));
        lease
    }

    pub(crate) fn remove(&self, secret: &str) {
        self.lock().remove(secret);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// All of them, whether or not they are still good.
    pub(crate) fn all(&self) -> Vec<Arc<Lease<D, C>>> {
        self.lock().values().map(Arc::clone).collect()
    }

    /// Whether there is one that lasts longer than that.
    pub(crate) fn has_until(&self, until_ms: u64) -> bool {
        self.lock().values().any(|lease| lease.until_ms() > until_ms)
    }

    /// The locks kept in memory that a question about their slot and the time by which to write them selects.
    pub(crate) fn unwritten(&self, is_meant: impl Fn(u8, u64) -> bool) -> Vec<Arc<Lease<D, C>>> {
        let is_meant = |lease: &&Arc<Lease<D, C>>| {
            !lease.is_written()
                && !lease.is_given_up.load(Ordering::Acquire)
                && is_meant(lease.unwritten.slot, lease.unwritten.write_by)
        };
        self.lock().values().filter(is_meant).map(Arc::clone).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Lease<D, C>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LEASES_SWEPT_FROM: usize = 256;
const FORGET_AFTER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(secret: &str, until_ms: u64) -> Tagged<Arc<Head>> {
        let mut head = Head::unstarted("a", 1);
        head.lock(secret, until_ms, "me", Vec::new());
        Tagged { document: Arc::new(head), etag: until_ms.to_string() }
    }

    fn lease(secret: &str, until_ms: u64) -> Lease<Head> {
        Lease::new(secret, locked(secret, until_ms), ())
    }

    #[test]
    fn a_lock_never_ends_earlier_because_an_older_answer_comes_later() {
        let clock = Clock::default();
        let now = clock.now_ms();
        let lease = lease("s", now + 1_000);
        lease.note(locked("s", now + 9_000));
        lease.note(locked("s", now + 5_000));
        assert_eq!((lease.until_ms(), lease.state(&clock)), (now + 9_000, Ok(())));
        lease.note(locked("another", now + 20_000));
        assert_eq!((lease.until_ms(), lease.state(&clock)), (now + 9_000, Err(Lost::NotHeld)));
    }

    #[test]
    fn a_lease_that_was_given_up_stays_so_however_long_its_lock_lasts() {
        let clock = Clock::default();
        let lease = lease("s", clock.now_ms() + 60_000);
        lease.give_up();
        lease.note(locked("s", clock.now_ms() + 90_000));
        assert_eq!(lease.state(&clock), Err(Lost::GivenUp));
        assert_eq!(lease.owned(), Ok(()), "it can be given back");
    }

    #[test]
    fn leases_that_ended_long_ago_are_forgotten_and_others_are_not() {
        let clock = Clock::default();
        let leases: Leases<Head> = Leases::default();
        leases.put(&clock, lease("mine", clock.now_ms() + 1_000));
        for n in 0..10_000 {
            leases.put(&clock, lease(&n.to_string(), 5));
        }
        assert!(leases.lock().len() <= LEASES_SWEPT_FROM + 1);
        assert!(leases.get("mine").is_some());
    }
}
