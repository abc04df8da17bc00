//! What this process knows of instances, always validated by the head's ETag before it is used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use duroxide::Event;

use crate::documents::{Head, Tagged};

/// An instance as of its last known head.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) head: Arc<Tagged<Head>>,
    /// All events of the head's current execution.
    pub(crate) events: Arc<Vec<Event>>,
    /// Documents that the head's cells point to.
    pub(crate) values: Arc<HashMap<String, String>>,
    /// Order key up to which messages need to be loaded, when more are waiting than one turn takes.
    pub(crate) upto: Option<u64>,
}

impl Known {
    fn bytes(&self) -> usize {
        let head = &self.head.document;
        let values: usize = self.values.values().map(String::len).sum();
        let events = usize::try_from(head.event_bytes).unwrap_or(usize::MAX).saturating_mul(2);
        ENTRY_BYTES.saturating_add(events).saturating_add(values)
    }
}

/// A bounded set of known instances; the one unused for longest goes first.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, (Known, u64, usize)>,
    bytes: usize,
    tick: u64,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::new(State::default()) }
    }

    /// What is known of an instance.
    pub(crate) fn get(&self, instance: &str) -> Option<Known> {
        let mut state = self.lock();
        state.tick += 1;
        let tick = state.tick;
        let (known, used, _) = state.entries.get_mut(instance)?;
        *used = tick;
        Some(known.clone())
    }

    /// Remembers an instance, unless something newer is known already.
    pub(crate) fn put(&self, instance: &str, known: Known) {
        let mut state = self.lock();
        let newer = state.entries.get(instance).is_some_and(|(old, ..)| {
            let (old, new) = (&old.head.document, &known.head.document);
            old.incarnation == new.incarnation && old.turn > new.turn
        });
        if newer {
            return;
        }
        state.remove(instance);
        let bytes = known.bytes();
        if bytes > self.bytes_max / 2 {
            return;
        }
        state.tick += 1;
        let tick = state.tick;
        state.bytes += bytes;
        state.entries.insert(instance.to_owned(), (known, tick, bytes));
        while state.bytes > self.bytes_max {
            let oldest =
                state.entries.iter().min_by_key(|(_, (_, used, _))| *used).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { break };
            state.remove(&oldest);
        }
    }

    /// Notes a head that changed in nothing but its lock. One of another life ends what is known of the last: the ids of
    /// values repeat.
    pub(crate) fn relock(&self, instance: &str, head: &Head, etag: &str) {
        let mut state = self.lock();
        let Some((known, ..)) = state.entries.get_mut(instance) else { return };
        let old = &known.head.document;
        if old.incarnation != head.incarnation {
            state.remove(instance);
        } else if old.turn == head.turn {
            known.head = Arc::new(Tagged { document: head.clone(), etag: etag.to_owned() });
        }
    }

    /// Forgets an instance.
    pub(crate) fn forget(&self, instance: &str) {
        self.lock().remove(instance);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, instance: &str) {
        if let Some((.., bytes)) = self.entries.remove(instance) {
            self.bytes -= bytes;
        }
    }
}

const ENTRY_BYTES: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn known(turn: u64, event_bytes: u64) -> Known {
        let mut head = Head::unstarted("a", 1);
        head.incarnation = "life".to_owned();
        head.turn = turn;
        head.event_bytes = event_bytes;
        Known {
            head: Arc::new(Tagged { document: head, etag: turn.to_string() }),
            events: Arc::default(),
            values: Arc::default(),
            upto: None,
        }
    }

    #[test]
    fn an_older_turn_never_replaces_a_newer_one() {
        let cache = Cache::new(1 << 20);
        cache.put("a", known(2, 0));
        cache.put("a", known(1, 0));
        assert_eq!(cache.get("a").unwrap().head.etag, "2");
    }

    #[test]
    fn a_head_of_another_life_ends_what_is_known_of_the_last() {
        let cache = Cache::new(1 << 20);
        cache.put("a", known(2, 0));
        let mut head = Head::unstarted("a", 1);
        head.incarnation = "next life".to_owned();
        cache.relock("a", &head, "3");
        assert!(cache.get("a").is_none());
    }

    #[test]
    fn the_least_recently_used_entry_makes_room() {
        let cache = Cache::new(80_000);
        for name in ["a", "b", "c"] {
            cache.put(name, known(1, 15_000));
        }
        assert!(cache.get("a").is_none() || cache.get("b").is_none());
        assert!(cache.get("c").is_some());
        cache.put("huge", known(1, 1_000_000));
        assert!(cache.get("huge").is_none());
    }
}
