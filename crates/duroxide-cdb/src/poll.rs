//! Waiting for something to run: the one loop in which dispatchers fetch turns and workers fetch activities.
//!
//! A worked example, a dispatcher that waits up to 30 s while another process starts an instance after 10 s:
//!
//! 1. It asks the finder for a candidate and there is none. The next search is due in 2 s, so it sleeps that long.
//! 2. Several dispatchers of the process wake when the search is due. One of them makes it ([`Wish::Due`]); it finds nothing,
//!    and the pace of searches gets slower. All sleep again.
//! 3. The search after 10 s finds the message of the new instance and tells the finder, which wakes the sleepers. One of them
//!    is handed the candidate and locks it; the others find none and sleep on.
//!
//! A caller that does not wait (`poll_timeout` is zero) gets the same in one go: a search that began after its call
//! ([`Wish::BegunAt`]), and page after page until everything that is there has been looked at. Trouble ends it after the
//! time of an ordinary operation, so that partitions that fail cannot hold it for ever.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::futures::OwnedNotified;

use crate::clock::millis_until;
use crate::core::Core;
use crate::error::Fault;
use crate::finder::{Pace, Waiting, Wish};

/// What a caller polls: a finder, the searches that feed it, and what is done with a candidate.
pub(crate) trait Pollable: Send + Sync {
    /// What a fetch returns.
    type Fetched: Send;
    /// When searches are due.
    fn pace(&self) -> &Pace;
    /// Ends when the finder has learnt something. What it learns from this call on is not missed.
    fn changed(&self) -> OwnedNotified;
    /// Counts the caller among those that have nothing to do, as long as the guard lives.
    fn wait(&self) -> Waiting<'_>;
    /// When the next candidate may be tried, in milliseconds since the Unix epoch.
    fn next_at(&self, now_ms: u64) -> Option<u64>;
    /// Searches the container for what other processes wrote.
    fn search(&self, wish: Wish) -> BoxFuture<'_, Result<(), Fault>>;
    /// Tries the next candidate. Trouble with it is its own: others are not held up.
    fn attempt(&self) -> BoxFuture<'_, Tried<Self::Fetched>>;
    /// Whether a search that is due is made before the remaining candidates are tried.
    fn is_search_first(&self) -> bool;
}

/// What came of trying the next candidate.
pub(crate) enum Tried<T> {
    /// It is locked and in the caller's hands.
    Fetched(T),
    /// It was another's, or gave trouble: there may be more candidates.
    InVain,
    /// There is none.
    NoneLeft,
}

/// Fetches the next thing to run, waiting up to `poll_timeout` for it. `Err` is the trouble of the last search.
pub(crate) async fn poll<P: Pollable>(
    core: &Core,
    polled: &P,
    poll_timeout: Duration,
) -> Result<Option<P::Fetched>, Fault> {
    let begun = core.clock.instant();
    let deadline = begun + poll_timeout;
    let is_waiting = !poll_timeout.is_zero();
    let patience = if is_waiting { poll_timeout } else { core.settings.operation_timeout };
    let is_late = || core.clock.instant() >= begun + patience;
    let is_due = || polled.pace().due().is_none_or(|due| due <= core.clock.instant());
    let mut searches = 0;
    let mut trouble = None;
    loop {
        // Before anything is looked at: what the finder learns meanwhile must end the sleep below.
        let changed = polled.changed();
        let now = core.clock.instant();
        if polled.pace().due().unwrap_or(now) <= now && (is_waiting || searches == 0) {
            // Work of other processes is looked for at its pace even while this process has plenty of its own.
            searches += 1;
            let wish = if is_waiting { Wish::Due } else { Wish::BegunAt(now) };
            trouble = polled.search(wish).await.err();
        }
        loop {
            match polled.attempt().await {
                Tried::Fetched(fetched) => return Ok(Some(fetched)),
                Tried::NoneLeft => break,
                Tried::InVain => {}
            }
            // However many candidates come to nothing, the search for others is made in time.
            if is_late() || (is_waiting && polled.is_search_first() && is_due()) {
                break;
            }
        }
        // A caller that does not wait is told no only after everything that is there has been looked at.
        let is_unseen =
            searches == 0 || (polled.pace().has_more() && searches < SEARCHES_MAX && trouble.is_none());
        if is_unseen && !is_waiting && !is_late() {
            let since = if searches == 0 { begun } else { core.clock.instant() };
            searches += 1;
            trouble = polled.search(Wish::BegunAt(since)).await.err();
            continue;
        }
        let now = core.clock.instant();
        if now >= deadline {
            return trouble.map_or(Ok(None), Err);
        }
        let mut wake = deadline.min(polled.pace().due().unwrap_or(now));
        let now_ms = core.clock.now_ms();
        if let Some(at) = polled.next_at(now_ms) {
            wake = wake.min(now + millis_until(at, now_ms).max(Duration::from_millis(1)));
        }
        let _has_nothing_to_do = polled.wait();
        core.note_capacity();
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

/// So many pages are turned before a fetch that does not wait gives up.
const SEARCHES_MAX: u32 = 100;
