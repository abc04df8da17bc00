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
    /// How many of the events are in documents. The others are in the head.
    pub(crate) fn in_documents(&self) -> usize {
        self.events.len().saturating_sub(self.head.document.events.len())
    }

    fn bytes(&self) -> usize {
        let head = &self.head.document;
        let values: usize = self.values.values().map(String::len).sum();
        let events = usize::try_from(head.event_bytes).unwrap_or(usize::MAX).saturating_mul(2);
        let texts: usize = head.events.iter().map(String::len).sum();
        ENTRY_BYTES.saturating_add(events).saturating_add(texts).saturating_add(values)
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
    /// Since when this life of the instance has been known and nobody else has asked for its head. A head that was asked
    /// for before may be older than a deletion by this process, or than what it was told.
    since: u64,
    used: u64,
    bytes: usize,
    seen: Option<Seen>,
    looked: Option<Looked>,
}

/// That the account said which head is the present one.
#[derive(Debug)]
struct Looked {
    etag: String,
    asked: Instant,
}

/// A head that came with claims a moment ago.
#[derive(Debug)]
struct Seen {
    head: Arc<Tagged<Head>>,
    asked: Instant,
    /// How many of the claims' readers have not come yet.
    readers: u32,
}

/// That an instance is known, for who asks for its head.
#[derive(Debug, Clone)]
pub(crate) struct Acquaintance {
    pub(crate) head: Arc<Tagged<Head>>,
    since: u64,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Instances that are not there, and when the account was asked.
    missing: HashMap<String, Instant>,
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
        state.missing.remove(instance);
        state.tick += 1;
        let tick = state.tick;
        let (mut since, mut seen) = (tick, None);
        if let Some(entry) = state.remove(instance)
            && entry.known.head.document.incarnation == known.head.document.incarnation
        {
            if entry.known.head.document.turn > known.head.document.turn {
                state.insert(instance, entry);
                return;
            }
            since = entry.since;
            seen = entry.seen.map(|seen| Seen { head: newest(seen.head, &known.head), ..seen });
        }
        let bytes = known.bytes();
        if bytes > self.bytes_max / 2 {
            return;
        }
        state.insert(instance, Entry { known, since, used: tick, bytes, seen, looked: None });
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

    /// What to tell [`see`](Self::see) later.
    pub(crate) fn acquaintance(&self, instance: &str) -> Option<Acquaintance> {
        let state = self.lock();
        let entry = state.entries.get(instance)?;
        Some(Acquaintance { head: Arc::clone(&entry.known.head), since: entry.since })
    }

    /// Notes a head that was asked for at `asked`, for the reader that is about to want it.
    pub(crate) fn see(&self, before: &Acquaintance, head: Tagged<Head>, asked: Instant) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&head.document.instance_id) else { return };
        if entry.since != before.since || entry.known.head.document.incarnation != head.document.incarnation {
            return;
        }
        let mut head = newest(Arc::new(head), &entry.known.head);
        let mut readers = 1;
        if let Some(other) = entry.seen.take()
            && asked.saturating_duration_since(other.asked) <= SEEN_FOR
        {
            head = newest(head, &other.head);
            readers += other.readers;
        }
        entry.seen = Some(Seen { head, asked, readers });
    }

    /// The head that came with a claim a moment before `now`: once for each claim, then readers ask again.
    pub(crate) fn take_seen(&self, instance: &str, now: Instant) -> Option<Arc<Tagged<Head>>> {
        let mut state = self.lock();
        let entry = state.entries.get_mut(instance)?;
        let mut seen = entry.seen.take()?;
        if now.saturating_duration_since(seen.asked) > SEEN_FOR {
            return None;
        }
        let head = Arc::clone(&seen.head);
        seen.readers -= 1;
        entry.seen = (seen.readers > 0).then_some(seen);
        Some(head)
    }

    /// Ends what was seen, and what claims on their way will have seen: somebody asked the account, and no answer may be
    /// older than the last.
    pub(crate) fn unsee(&self, instance: &str) {
        let mut state = self.lock();
        state.tick += 1;
        let tick = state.tick;
        if let Some(entry) = state.entries.get_mut(instance) {
            (entry.since, entry.seen) = (tick, None);
        }
    }

    /// The head of an instance, or that it has none, if the account said so no longer than `age` before `now`, and this
    /// process has changed nothing since.
    pub(crate) fn looked_at(
        &self,
        instance: &str,
        age: Duration,
        now: Instant,
    ) -> Option<Option<Arc<Tagged<Head>>>> {
        let state = self.lock();
        let is_recent = |asked: Instant| !age.is_zero() && now.saturating_duration_since(asked) <= age;
        let Some(entry) = state.entries.get(instance) else {
            return state.missing.get(instance).is_some_and(|asked| is_recent(*asked)).then_some(None);
        };
        let looked = entry.looked.as_ref().filter(|looked| is_recent(looked.asked));
        looked.filter(|looked| looked.etag == entry.known.head.etag)?;
        Some(Some(Arc::clone(&entry.known.head)))
    }

    /// Notes that the account, asked at `asked`, said that the head with this ETag is the present one, or that there is
    /// none.
    pub(crate) fn look(&self, instance: &str, etag: Option<&str>, asked: Instant) {
        let mut state = self.lock();
        match (etag, state.entries.get_mut(instance)) {
            (Some(etag), Some(entry)) => entry.looked = Some(Looked { etag: etag.to_owned(), asked }),
            (None, None) => {
                if state.missing.len() >= MISSING_MAX {
                    state.missing.clear();
                }
                state.missing.insert(instance.to_owned(), asked);
            }
            _ => {}
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
    fn insert(&mut self, instance: &str, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.insert(instance.to_owned(), entry);
    }

    fn remove(&mut self, instance: &str) -> Option<Entry> {
        let entry = self.entries.remove(instance)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

/// Of two heads of one life the one of the later turn.
fn newest(one: Arc<Tagged<Head>>, other: &Arc<Tagged<Head>>) -> Arc<Tagged<Head>> {
    if other.document.turn > one.document.turn { Arc::clone(other) } else { one }
}

const ENTRY_BYTES: usize = 2048;
const MISSING_MAX: usize = 10_000;
/// From the sending of a claim until its worker reads the instance: an account at the other end of the world answers
/// within it. Longer than that, and what other processes commit would be seen late.
const SEEN_FOR: Duration = Duration::from_millis(500);

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

    /// A cache that knows turn 1, and as whom it knows the instance.
    fn acquainted() -> (Cache, Acquaintance, Instant) {
        let cache = Cache::new(1 << 20);
        cache.put("a", known(1, 0));
        let before = cache.acquaintance("a").unwrap();
        (cache, before, Instant::now())
    }

    #[test]
    fn a_head_that_was_seen_serves_one_reader_for_a_moment() {
        let (cache, before, now) = acquainted();
        cache.see(&before, head(2), now);
        assert_eq!(cache.take_seen("a", now + SEEN_FOR).unwrap().etag, "2");
        assert!(cache.take_seen("a", now).is_none(), "it served");
        cache.see(&before, head(2), now);
        assert!(cache.take_seen("a", now + SEEN_FOR + Duration::from_millis(1)).is_none(), "too old");
    }

    #[test]
    fn of_heads_that_were_seen_by_several_each_gets_the_newest() {
        let (cache, before, now) = acquainted();
        cache.see(&before, head(3), now);
        cache.see(&before, head(2), now);
        assert_eq!(cache.take_seen("a", now).unwrap().etag, "3");
        assert_eq!(cache.take_seen("a", now).unwrap().etag, "3");
        assert!(cache.take_seen("a", now).is_none());
        cache.see(&before, head(3), now);
        cache.see(&before, head(4), now + SEEN_FOR * 2);
        assert_eq!(cache.take_seen("a", now + SEEN_FOR * 2).unwrap().etag, "4");
        assert!(cache.take_seen("a", now + SEEN_FOR * 2).is_none(), "the first reader never came");
    }

    #[test]
    fn what_was_seen_is_never_older_than_what_this_process_committed() {
        let (cache, before, now) = acquainted();
        cache.see(&before, head(1), now);
        cache.put("a", known(2, 0));
        assert_eq!(cache.take_seen("a", now).unwrap().etag, "2", "it committed");
        cache.put("a", known(3, 0));
        cache.see(&before, head(1), now);
        assert_eq!(cache.take_seen("a", now).unwrap().etag, "3", "it committed after it asked");
    }

    #[test]
    fn what_was_seen_ends_with_a_deletion_and_with_any_newer_answer() {
        let (cache, before, now) = acquainted();
        cache.see(&before, head(1), now);
        cache.forget("a");
        assert!(cache.take_seen("a", now).is_none(), "it deleted it");
        cache.put("a", known(1, 0));
        cache.see(&before, head(1), now);
        assert!(cache.take_seen("a", now).is_none(), "it deleted it, and a late reader put it back");
        let before = cache.acquaintance("a").unwrap();
        cache.see(&before, head(1), now);
        cache.unsee("a");
        assert!(cache.take_seen("a", now).is_none(), "it asked again");
        cache.see(&before, head(1), now);
        assert!(cache.take_seen("a", now).is_none(), "it asked again while the claim was on its way");
        let before = cache.acquaintance("a").unwrap();
        let mut other = head(9);
        other.document.incarnation = "last life".to_owned();
        cache.see(&before, other, now);
        assert!(cache.take_seen("a", now).is_none(), "it is of another life");
    }

    #[test]
    fn a_head_that_was_looked_at_serves_others_until_it_is_too_old_or_this_process_changes_it() {
        let (cache, _, now) = acquainted();
        let age = Duration::from_millis(100);
        let served = |at: Instant, age| {
            cache.looked_at("a", age, at).map(|head| head.map_or(String::new(), |head| head.etag.clone()))
        };
        assert_eq!(served(now, age), None, "it was not looked at");
        cache.look("a", Some("1"), now);
        assert_eq!(served(now + age, age).as_deref(), Some("1"));
        assert_eq!(served(now, Duration::ZERO), None, "in calm weather everybody asks");
        assert_eq!(served(now + age * 2, age), None);
        cache.put("a", known(2, 0));
        assert_eq!(served(now, age), None, "it committed");
        cache.look("a", Some("1"), now);
        assert_eq!(served(now, age), None, "it committed after it asked");
        cache.forget("a");
        assert_eq!(served(now, age), None);
        cache.look("a", None, now);
        assert_eq!(served(now, age).as_deref(), Some(""), "there is none");
        cache.put("a", known(1, 0));
        assert_eq!(served(now, age), None, "it began");
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
