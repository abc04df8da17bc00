//! Whether this process is there: it may have been frozen, and its runtime may have ended.
//!
//! Worked examples, with a lease of ten seconds:
//!
//! - A container is paused for a minute and goes on. Its workers look for activities before its heartbeat has been
//!   answered, in slots that have been another's for long. [`Presence::tick`] comes ten times a second; the first one after
//!   the pause, or whoever asks before it, sees that none came for half a lease. Until a heartbeat that was begun after that
//!   has ended, well or not, [`Presence::was_away`].
//! - A program shuts its runtime down and keeps the provider, as a client. Nobody fetches any more: after a lease the
//!   process [is deserted](Presence::is_deserted) and leaves the fleet. The next fetch joins again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What is known of this process itself.
#[derive(Debug)]
pub(crate) struct Presence {
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last tick came; `None` while nobody ticks.
    ticked_at: Option<Instant>,
    /// When it was noticed that none had come for long, until a heartbeat begun after that has ended.
    back_since: Option<Instant>,
    /// How many fetches are under way, and when the last one ended.
    asking: usize,
    asked_at: Instant,
}

impl State {
    fn look(&mut self, now: Instant, lease: Duration) {
        if self.ticked_at.is_some_and(|at| now.duration_since(at) > lease / 2) {
            self.back_since.get_or_insert(now);
        }
    }
}

impl Presence {
    pub(crate) fn new(lease: Duration) -> Self {
        let state = State { ticked_at: None, back_since: None, asking: 0, asked_at: Instant::now() };
        Self { lease, state: Mutex::new(state) }
    }

    /// Says that this process goes on. True if it was away, and this is the first tick since then.
    pub(crate) fn tick(&self) -> bool {
        let now = Instant::now();
        let mut state = self.lock();
        let is_known = state.back_since.is_some();
        state.look(now, self.lease);
        state.ticked_at = Some(now);
        state.back_since.is_some() && !is_known
    }

    /// Nobody ticks from now on.
    pub(crate) fn rest(&self) {
        let mut state = self.lock();
        (state.ticked_at, state.back_since) = (None, None);
    }

    /// A heartbeat that was begun then has ended. True if this process was away before it began.
    pub(crate) fn heard(&self, begun: Instant) -> bool {
        self.lock().back_since.take_if(|since| *since <= begun).is_some()
    }

    /// Whether this process was away, and has not asked since then what became of the fleet.
    pub(crate) fn was_away(&self) -> bool {
        let mut state = self.lock();
        state.look(Instant::now(), self.lease);
        state.back_since.is_some()
    }

    /// Notes a fetch, as long as the guard lives.
    pub(crate) fn asking(&self) -> Asking<'_> {
        self.lock().asking += 1;
        Asking { presence: self }
    }

    /// Whether nobody here has asked for anything for as long as three leases last.
    pub(crate) fn is_deserted(&self) -> bool {
        let state = self.lock();
        state.asking == 0 && state.asked_at.elapsed() > (3 * self.lease).max(DESERTED_MIN)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A fetch that is under way.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    presence: &'a Presence,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.presence.lock();
        state.asking -= 1;
        state.asked_at = Instant::now();
    }
}

/// Between two fetches of a dispatcher may be a pause of its runtime.
const DESERTED_MIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn who_was_frozen_is_away_until_a_heartbeat_begun_after_that_has_ended() {
        let presence = Presence::new(LEASE);
        tokio::time::advance(LEASE).await;
        assert!(!presence.was_away(), "nobody ticks yet");
        assert!(!presence.tick());
        let begun_before = Instant::now();
        tokio::time::advance(LEASE / 2).await;
        assert!(!presence.was_away());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(presence.was_away(), "whoever asks first sees it");
        assert!(!presence.tick() && presence.was_away(), "a tick does not say what became of the fleet");
        assert!(!presence.heard(begun_before) && presence.was_away(), "nor does what was asked before");
        assert!(presence.heard(Instant::now()) && !presence.was_away());
        tokio::time::advance(LEASE).await;
        assert!(presence.tick(), "the first one tells");
        presence.rest();
        tokio::time::advance(LEASE).await;
        assert!(!presence.was_away());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_deserted_three_leases_after_the_last_fetch() {
        let presence = Presence::new(LEASE);
        let asking = presence.asking();
        tokio::time::advance(LEASE * 3).await;
        assert!(!presence.is_deserted(), "somebody waits");
        drop(asking);
        tokio::time::advance(3 * LEASE).await;
        assert!(!presence.is_deserted());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(presence.is_deserted());
        drop(presence.asking());
        assert!(!presence.is_deserted());
    }
}
