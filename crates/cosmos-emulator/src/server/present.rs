//! Who is connected, and since when without a request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Present {
    begun: Instant,
    next: AtomicU64,
    all: Arc<Mutex<HashMap<u64, Arc<State>>>>,
}

/// One connection, for as long as it is open. Its copies are the same connection.
#[derive(Debug, Clone)]
pub(super) struct Presence {
    state: Arc<State>,
    begun: Instant,
    _place: Arc<Place>,
}

#[derive(Debug)]
struct State {
    /// Requests under way.
    requests: AtomicU64,
    /// Microseconds since the listener began, when the last request ended or the connection was opened.
    idle_since: AtomicU64,
    dismissed: Notify,
}

/// Takes the connection off the list when its last copy goes.
#[derive(Debug)]
struct Place {
    number: u64,
    all: Arc<Mutex<HashMap<u64, Arc<State>>>>,
}

impl Default for Present {
    fn default() -> Self {
        Self { begun: Instant::now(), next: AtomicU64::new(0), all: Arc::default() }
    }
}

impl Present {
    /// Takes note of a connection that was accepted.
    pub(super) fn enter(&self) -> Presence {
        let state = Arc::new(State {
            requests: AtomicU64::new(0),
            idle_since: AtomicU64::new(micros(self.begun)),
            dismissed: Notify::new(),
        });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, state.clone());
        let place = Arc::new(Place { number, all: self.all.clone() });
        Presence { state, begun: self.begun, _place: place }
    }

    /// Tells the connection that has been without a request for longest to leave, if there is one.
    pub(super) fn dismiss_idlest(&self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = all.iter().filter(|(_, state)| state.requests.load(Ordering::Relaxed) == 0);
        let idlest = idle.min_by_key(|(_, state)| state.idle_since.load(Ordering::Relaxed));
        if let Some(number) = idlest.map(|(number, _)| *number)
            // Told once: the next one is another.
            && let Some(state) = all.remove(&number)
        {
            state.dismissed.notify_one();
        }
    }
}

impl Presence {
    /// A request has come; the connection is not idle until the value goes.
    pub(super) fn busy(&self) -> Busy {
        self.state.requests.fetch_add(1, Ordering::Relaxed);
        Busy { state: self.state.clone(), begun: self.begun }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state.requests.load(Ordering::Relaxed) == 0
    }

    /// Waits until others need the place.
    pub(super) async fn dismissed(&self) {
        self.state.dismissed.notified().await;
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy {
    state: Arc<State>,
    begun: Instant,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.state.idle_since.store(micros(self.begun), Ordering::Relaxed);
        self.state.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
