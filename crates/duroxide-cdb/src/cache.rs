//! What this process knows of instances. Before it is used it is validated by the head's ETag, or by a head that came
//! with the claim of one of the instance's activities a moment ago.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duroxide::Event;
use tokio::time::Instant;

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

#[derive(Debug)]
struct Entry {
    known: Known,
    used: u64,
    bytes: usize,
    /// A head that was read a moment ago, and when. Whatever this process does to the instance afterwards replaces or
    /// removes the entry, so it never hides this process's own writes.
    seen: Option<(Arc<Tagged<Head>>, Instant)>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
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
        let entry = state.entries.get_mut(instance)?;
        entry.used = tick;
        Some(entry.known.clone())
    }

    /// Remembers an instance, unless something newer is known already.
    pub(crate) fn put(&self, instance: &str, known: Known) {
        let mut state = self.lock();
        let newer = state.entries.get(instance).is_some_and(|entry| {
            let (old, new) = (&entry.known.head.document, &known.head.document);
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
        state.entries.insert(instance.to_owned(), Entry { known, used: tick, bytes, seen: None });
        while state.bytes > self.bytes_max {
            let oldest =
                state.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { break };
            state.remove(&oldest);
        }
    }

    /// Notes a head that changed in nothing but its lock. One of another life ends what is known of the last: the ids of
    /// values repeat.
    pub(crate) fn relock(&self, instance: &str, head: &Head, etag: &str) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(instance) else { return };
        let old = &entry.known.head.document;
        if old.incarnation != head.incarnation {
            state.remove(instance);
        } else if old.turn == head.turn {
            entry.known.head = Arc::new(Tagged { document: head.clone(), etag: etag.to_owned() });
        }
    }

    /// Notes a head that was read at `now`, for the reader that is about to ask for it.
    pub(crate) fn see(&self, instance: &str, head: Tagged<Head>, now: Instant) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(instance) else { return };
        let (old, new) = (&entry.known.head.document, &head.document);
        // An answer that was overtaken tells less than is known.
        if old.incarnation == new.incarnation && old.turn <= new.turn {
            entry.seen = Some((Arc::new(head), now));
        }
    }

    /// The head that was read a moment before `now`. Once: the next reader asks again.
    pub(crate) fn take_seen(&self, instance: &str, now: Instant) -> Option<Arc<Tagged<Head>>> {
        let (head, at) = self.lock().entries.get_mut(instance)?.seen.take()?;
        (now.saturating_duration_since(at) <= SEEN_FOR).then_some(head)
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
        if let Some(entry) = self.entries.remove(instance) {
            self.bytes -= entry.bytes;
        }
    }
}

const ENTRY_BYTES: usize = 2048;
/// A worker reads its instance as soon as it has its activity. Longer than that, and what other processes commit would be
/// seen late.
const SEEN_FOR: Duration = Duration::from_millis(100);

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

    fn head(turn: u64) -> Tagged<Head> {
        Tagged::clone(&known(turn, 0).head)
    }

    #[test]
    fn a_head_that_was_seen_serves_one_reader_for_a_moment() {
        let cache = Cache::new(1 << 20);
        let now = Instant::now();
        cache.see("a", head(1), now);
        assert!(cache.take_seen("a", now).is_none(), "nothing else is known of it");
        cache.put("a", known(1, 0));
        cache.see("a", head(2), now);
        assert_eq!(cache.take_seen("a", now + SEEN_FOR).unwrap().etag, "2");
        assert!(cache.take_seen("a", now).is_none(), "it served");
        cache.see("a", head(2), now);
        assert!(cache.take_seen("a", now + SEEN_FOR + Duration::from_millis(1)).is_none(), "too old");
    }

    #[test]
    fn what_this_process_did_since_hides_a_head_that_was_seen() {
        let cache = Cache::new(1 << 20);
        let now = Instant::now();
        cache.put("a", known(1, 0));
        cache.see("a", head(1), now);
        cache.put("a", known(2, 0));
        assert!(cache.take_seen("a", now).is_none(), "it committed");
        cache.see("a", head(1), now);
        assert!(cache.take_seen("a", now).is_none(), "the answer was overtaken by the commit");
        cache.see("a", head(2), now);
        cache.forget("a");
        assert!(cache.take_seen("a", now).is_none(), "it deleted it");
        let mut other = head(9);
        other.document.incarnation = "last life".to_owned();
        cache.put("a", known(1, 0));
        cache.see("a", other, now);
        assert!(cache.take_seen("a", now).is_none(), "it is of another life");
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
