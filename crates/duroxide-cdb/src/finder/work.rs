//! Work items: documents with their ETags, so that taking one is a single request.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duroxide::TagFilter;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ready::Ready;
use super::waiting::Waiting;
use crate::documents::{Tagged, WorkDocument};
use crate::fleet::ServedWork;
use crate::slots::SlotSet;

/// Which work items may be taken.
#[derive(Debug, Default)]
pub(crate) struct WorkFinder {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// Workers that have nothing to do.
    waiting: AtomicUsize,
}

/// What a caller may take: by tag, and whether items of sessions are for it.
#[derive(Clone, Copy)]
pub(crate) struct WorkQuestion<'a> {
    pub(crate) tags: &'a TagFilter,
    /// Says of a session whether the caller may have its items; `None` if it takes no session items at all.
    pub(crate) sessions: Option<&'a (dyn Fn(&str) -> bool + Send + Sync)>,
}

type Key = (String, String);

#[derive(Debug, Default)]
struct State {
    items: HashMap<Key, Entry>,
    order: BTreeMap<(u64, Key), ()>,
    /// The size of all items.
    bytes: usize,
    asked: Asked,
    gone: Gone,
}

/// Items that went a moment ago, and when. A search that began before then may still bring them: as their locks may be in
/// memory only, nothing in what it brings says that they are taken.
#[derive(Debug, Default)]
struct Gone {
    since: HashMap<Key, Instant>,
    order: VecDeque<(Instant, Key)>,
}

impl Gone {
    fn note(&mut self, key: Key, now: Instant) {
        while let Some((at, _)) = self.order.front()
            && (now.duration_since(*at) > GONE_FOR || self.order.len() >= GONE_MAX)
        {
            if let Some((at, key)) = self.order.pop_front()
                && self.since.get(&key) == Some(&at)
            {
                self.since.remove(&key);
            }
        }
        self.order.push_back((now, key.clone()));
        self.since.insert(key, now);
    }

    /// Whether an item went at that moment or later.
    fn has(&self, key: &Key, from: Instant) -> bool {
        !cosmos_wire::mutant!(35) && self.since.get(key).is_some_and(|at| *at >= from)
    }
}

/// What the fetches of this process have asked for. What nobody here takes is not kept: nothing would remove it.
#[derive(Debug, Default)]
struct Asked {
    any_tag: bool,
    untagged: bool,
    tags: HashSet<String>,
    sessions: bool,
}

#[derive(Debug)]
struct Entry {
    item: Tagged<Arc<WorkDocument>>,
    /// Not before this time, whatever the document says; zero if it was never put off.
    rest_until: u64,
    /// How often in a row nothing could be done.
    rests: u32,
    in_hand: bool,
    /// When this state of it became known.
    since: Instant,
    /// This process wrote it into a slot of its own, and told nobody else.
    is_own: bool,
}

/// A work item handed out. Dropping it undecided puts it back as it was.
#[derive(Debug)]
pub(crate) struct WorkCandidate {
    pub(crate) item: Tagged<Arc<WorkDocument>>,
    /// How often in a row nothing could be done with it.
    pub(crate) rests: u32,
    /// This process wrote it into a slot of its own, and told nobody else.
    pub(crate) is_own: bool,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    decided: bool,
}

impl WorkFinder {
    /// Notes that somebody looks for such items. Its search finds those that were there before.
    pub(crate) fn ask(&self, question: WorkQuestion<'_>) {
        lock(&self.state).asked.add(question);
    }

    /// Adds a work item, or its newer state, if somebody here may take it, and says whether somebody may.
    pub(crate) fn put(&self, document: Arc<WorkDocument>, etag: String) -> bool {
        let mut state = lock(&self.state);
        if !state.asked.allows(&document) {
            return false;
        }
        state.put(key_of(&document), Tagged { document, etag });
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// Which activities anybody here has asked for.
    pub(crate) fn asked(&self) -> ServedWork {
        let state = lock(&self.state);
        let mut tags: Vec<String> = state.asked.tags.iter().cloned().collect();
        tags.sort_unstable();
        ServedWork { any_tag: state.asked.any_tag, untagged: state.asked.untagged, tags }
    }

    /// Adds an item that this process has just written, unless a search was quicker to find it: then more is known of it
    /// than that it is new. `is_own`: nobody else touches it. False if nobody here may take it.
    pub(crate) fn add(&self, document: Arc<WorkDocument>, etag: String, is_own: bool) -> bool {
        let key = key_of(&document);
        let is_known = {
            let state = lock(&self.state);
            state.items.contains_key(&key) || state.gone.since.contains_key(&key)
        };
        let is_kept = is_known || self.put(document, etag);
        if let Some(entry) = lock(&self.state).items.get_mut(&key) {
            entry.is_own |= is_own;
        }
        is_kept
    }

    /// Forgets what waits in slots that are another member's from now on. What is locked may be in somebody's hands here.
    pub(crate) fn disown(&self, slots: SlotSet) {
        let mut state = lock(&self.state);
        let is_lost = |entry: &Entry| {
            let document = &entry.item.document;
            let slot = document.dispatched_to();
            !entry.in_hand && document.lock_token.is_none() && slot.is_some_and(|slot| slots.contains(slot))
        };
        let lost = state.items.iter().filter(|(_, entry)| is_lost(entry)).map(|(key, _)| key.clone());
        let lost: Vec<Key> = lost.collect();
        for key in lost {
            state.remove(&key);
        }
    }

    /// Adds what a search found that began at `begun`; an item in somebody's hand is left alone, and so is one of which
    /// something newer is known.
    pub(crate) fn found(&self, document: Arc<WorkDocument>, etag: String, begun: Instant) -> bool {
        let state = lock(&self.state);
        let key = key_of(&document);
        let is_old = match state.items.get(&key) {
            Some(entry) => entry.in_hand || entry.item.etag == etag || entry.since >= begun,
            None => state.gone.has(&key, begun),
        };
        drop(state);
        if is_old {
            return false;
        }
        self.put(document, etag);
        true
    }

    /// The item is gone.
    pub(crate) fn remove(&self, partition: &str, id: &str) {
        let key = (partition.to_owned(), id.to_owned());
        let mut state = lock(&self.state);
        state.remove(&key);
        state.gone.note(key, Instant::now());
    }

    /// All items of an instance are gone.
    pub(crate) fn forget(&self, partition: &str) {
        let mut state = lock(&self.state);
        let gone: Vec<Key> = state.items.keys().filter(|key| key.0 == partition).cloned().collect();
        for key in gone {
            state.remove(&key);
        }
    }

    /// The first item by order of enqueueing that the caller may take at `now`. Those that gave trouble come after all
    /// others, the one that has rested longest first: trouble takes time, which the others do not have to pay.
    pub(crate) fn take(&self, now: u64, question: WorkQuestion<'_>) -> Option<WorkCandidate> {
        let mut state = lock(&self.state);
        let mut rested: Option<(u64, &Key)> = None;
        for (_, key) in state.order.keys() {
            let Some(entry) = state.items.get(key) else { continue };
            let free = !entry.in_hand
                && entry.rest_until <= now
                && entry.item.document.available_at() <= now
                && question.allows(&entry.item.document);
            if free && rested.is_none_or(|(since, _)| entry.rest_until < since) {
                rested = Some((entry.rest_until, key));
            }
            if rested.is_some_and(|(since, _)| since == 0) {
                break;
            }
        }
        let key = rested.map(|(_, key)| key.clone())?;
        let entry = state.items.get_mut(&key)?;
        entry.in_hand = true;
        Some(WorkCandidate {
            item: entry.item.clone(),
            rests: entry.rests,
            is_own: entry.is_own,
            state: Arc::clone(&self.state),
            changed: Arc::clone(&self.changed),
            decided: false,
        })
    }

    /// When the next item the caller may take becomes available.
    pub(crate) fn next_at(&self, now: u64, question: WorkQuestion<'_>) -> Option<u64> {
        let state = lock(&self.state);
        state
            .items
            .values()
            .filter(|entry| !entry.in_hand && question.allows(&entry.item.document))
            .map(|entry| entry.item.document.available_at().max(entry.rest_until))
            .filter(|at| *at > now)
            .min()
    }

    /// Wakes those who wait, because a search is due.
    pub(crate) fn poke(&self) {
        self.changed.notify_waiters();
    }

    /// Whether a worker of this process waits for something to do.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Notes that a worker waits, as long as the guard lives.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        Waiting::begin(&self.waiting)
    }

    /// How many workers of this process have nothing to do.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// The items that could be taken at once. Those of sessions that are somebody else's could not.
    pub(crate) fn ready(&self, now: u64, is_foreign: impl Fn(&str) -> bool) -> Ready {
        let state = lock(&self.state);
        let is_ours = |entry: &&Entry| !entry.item.document.session_id.as_deref().is_some_and(&is_foreign);
        let free = state.items.values().filter(|entry| !entry.in_hand).filter(is_ours);
        let since = free.map(|entry| entry.item.document.available_at().max(entry.rest_until));
        let mut ready = Ready::default();
        since.filter(|at| *at <= now).for_each(|at| ready.add(at, now));
        ready
    }

    /// A future that ends when something changes after this call.
    pub(crate) fn changed(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.changed).notified_owned()
    }
}

impl WorkCandidate {
    /// The item has this newer state.
    pub(crate) fn update(mut self, document: Arc<WorkDocument>, etag: String) {
        self.decided = true;
        lock(&self.state).put(key_of(&document), Tagged { document, etag });
        self.changed.notify_waiters();
    }

    /// The item is gone.
    pub(crate) fn remove(mut self) {
        self.decided = true;
        let key = key_of(&self.item.document);
        let mut state = lock(&self.state);
        state.remove(&key);
        state.gone.note(key, Instant::now());
    }

    /// The item is as it was, but not to be tried for a while that grows each time.
    pub(crate) fn rest(self, now: u64) {
        let pause = REST_MS_MIN.saturating_mul(1 << self.rests.min(16)).min(REST_MS_MAX);
        self.rest_until(now + pause);
    }

    /// The item has this newer state and, as above, is not to be tried for a while.
    pub(crate) fn rest_as(self, document: Arc<WorkDocument>, etag: String, now: u64) {
        lock(&self.state).put(key_of(&document), Tagged { document, etag });
        self.rest(now);
    }

    /// The item is as it was, but not to be tried before the time given.
    pub(crate) fn rest_until(mut self, until: u64) {
        self.decided = true;
        if let Some(entry) = lock(&self.state).items.get_mut(&key_of(&self.item.document)) {
            entry.in_hand = false;
            entry.rest_until = until;
            entry.rests = self.rests + 1;
        }
    }
}

impl Drop for WorkCandidate {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        if let Some(entry) = lock(&self.state).items.get_mut(&key_of(&self.item.document)) {
            entry.in_hand = false;
        }
        self.changed.notify_waiters();
    }
}

impl WorkQuestion<'_> {
    fn allows(&self, document: &WorkDocument) -> bool {
        self.tags.matches(document.tag.as_deref())
            && match (&document.session_id, self.sessions) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(session), Some(may_have)) => may_have(session),
            }
    }
}

impl Asked {
    fn add(&mut self, question: WorkQuestion<'_>) {
        self.sessions |= question.sessions.is_some();
        match question.tags {
            TagFilter::None => {}
            TagFilter::Any => self.any_tag = true,
            TagFilter::DefaultOnly => self.untagged = true,
            TagFilter::Tags(tags) => self.tags.extend(tags.iter().cloned()),
            TagFilter::DefaultAnd(tags) => {
                self.untagged = true;
                self.tags.extend(tags.iter().cloned());
            }
        }
    }

    fn allows(&self, document: &WorkDocument) -> bool {
        let tag = document.tag.as_ref();
        let tagged = self.any_tag || tag.map_or(self.untagged, |tag| self.tags.contains(tag));
        tagged && (self.sessions || document.session_id.is_none())
    }
}

impl State {
    fn put(&mut self, key: Key, item: Tagged<Arc<WorkDocument>>) {
        self.remove(&key);
        self.bytes += bytes_of(&item.document);
        while self.items.len() >= ITEMS_MAX || self.bytes > BYTES_MAX {
            if !self.evict() {
                break;
            }
        }
        self.order.insert((item.document.order(), key.clone()), ());
        self.items.insert(
            key,
            Entry { item, rest_until: 0, rests: 0, in_hand: false, since: Instant::now(), is_own: false },
        );
    }

    /// Forgets the last item that nobody has in hand. Searches find it again. The newest is always let in: those before
    /// it may wait for somebody else, such as the owner of their session.
    fn evict(&mut self) -> bool {
        // One that is locked by this process may be so in memory only: forgetting it would hand it out again.
        let is_free = |entry: &Entry| !entry.in_hand && entry.item.document.lock_token.is_none();
        let free = |key: &Key| self.items.get(key).is_some_and(is_free);
        let last = self.order.keys().rev().map(|(_, key)| key).find(|key| free(key)).cloned();
        last.inspect(|key| self.remove(key)).is_some()
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.items.remove(key) {
            self.bytes -= bytes_of(&entry.item.document);
            self.order.remove(&(entry.item.document.order(), key.clone()));
        }
    }
}

fn bytes_of(document: &WorkDocument) -> usize {
    document.work_item.len() + ITEM_BYTES
}

fn key_of(document: &WorkDocument) -> Key {
    (document.instance_id.clone(), document.id.clone())
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Above this the finder forgets items; searches find what it does not keep.
const ITEMS_MAX: usize = 20_000;
const BYTES_MAX: usize = 64 << 20;
/// What an item takes besides its text.
const ITEM_BYTES: usize = 512;
const REST_MS_MIN: u64 = 250;
const REST_MS_MAX: u64 = 30_000;

/// A search is over by then.
const GONE_FOR: Duration = Duration::from_secs(30);
const GONE_MAX: usize = 50_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::documents::Chunks;
    use crate::slots;
    use duroxide::providers::WorkItem;

    fn item(clock: &Clock, id: u64, session: Option<&str>, tag: Option<&str>) -> Arc<WorkDocument> {
        let item = WorkItem::ActivityExecute {
            instance: format!("i{id}"),
            execution_id: 1,
            id,
            name: "a".into(),
            input: String::new(),
            session_id: session.map(Into::into),
            tag: tag.map(Into::into),
        };
        Arc::new(WorkDocument::new(&item, clock, 0, &mut Chunks::new("c")).unwrap())
    }

    /// A finder that somebody asks for everything.
    fn finder() -> WorkFinder {
        let finder = WorkFinder::default();
        finder.ask(WorkQuestion { tags: &TagFilter::Any, sessions: Some(&|_: &str| true) });
        finder
    }

    fn question(tags: &TagFilter) -> WorkQuestion<'_> {
        WorkQuestion { tags, sessions: None }
    }

    #[test]
    fn items_come_in_the_order_of_enqueueing_over_all_instances() {
        let clock = Clock::default();
        let finder = finder();
        let items: Vec<_> = (1..=3).map(|id| item(&clock, id, None, None)).collect();
        for item in items.iter().rev() {
            finder.put(Arc::clone(item), "e".into());
        }
        let now = clock.now_ms();
        let mut taken = Vec::new();
        while let Some(candidate) = finder.take(now, question(&TagFilter::DefaultOnly)) {
            taken.push(candidate.item.document.activity_id.unwrap());
            candidate.remove();
        }
        assert_eq!(taken, [1, 2, 3]);
    }

    #[test]
    fn other_tags_and_foreign_sessions_hide_nothing() {
        let clock = Clock::default();
        let finder = finder();
        for id in 1..=10 {
            finder.put(item(&clock, id, Some("theirs"), None), "e".into());
        }
        finder.put(item(&clock, 11, None, Some("gpu")), "e".into());
        finder.put(item(&clock, 12, None, None), "e".into());
        let now = clock.now_ms();
        let not_theirs = |session: &str| session != "theirs";
        let question = WorkQuestion { tags: &TagFilter::DefaultOnly, sessions: Some(&not_theirs) };
        assert_eq!(finder.take(now, question).unwrap().item.document.activity_id, Some(12));
    }

    #[test]
    fn what_nobody_here_takes_is_not_kept() {
        let clock = Clock::default();
        let finder = WorkFinder::default();
        finder.put(item(&clock, 1, None, None), "e".into());
        assert!(lock(&finder.state).items.is_empty(), "nobody has asked yet");
        finder.ask(question(&TagFilter::DefaultOnly));
        finder.put(item(&clock, 2, None, Some("gpu")), "e".into());
        finder.put(item(&clock, 3, Some("session"), None), "e".into());
        assert!(lock(&finder.state).items.is_empty());
        finder.ask(question(&TagFilter::tags(["gpu"])));
        finder.put(item(&clock, 2, None, Some("gpu")), "e".into());
        finder.put(item(&clock, 4, None, None), "e".into());
        assert_eq!(lock(&finder.state).items.len(), 2);
    }

    #[test]
    fn a_full_finder_lets_new_items_in_and_keeps_within_its_bounds() {
        let clock = Clock::default();
        let finder = finder();
        for id in 0..=ITEMS_MAX as u64 {
            finder.put(item(&clock, id, None, Some("gpu")), "e".into());
        }
        finder.put(item(&clock, 1 << 40, None, None), "e".into());
        let now = clock.now_ms();
        let taken = finder.take(now, question(&TagFilter::DefaultOnly)).expect("it was let in");
        assert_eq!(taken.item.document.activity_id, Some(1 << 40));
        let mut large = WorkDocument::clone(&item(&clock, 0, None, None));
        large.work_item = "x".repeat(1 << 20);
        for id in 0..100 {
            large.id = format!("large {id}");
            finder.put(Arc::new(large.clone()), "e".into());
        }
        let state = lock(&finder.state);
        assert!(state.items.len() <= ITEMS_MAX && state.bytes <= BYTES_MAX);
        let bytes: usize = state.items.values().map(|entry| bytes_of(&entry.item.document)).sum();
        assert_eq!(state.bytes, bytes);
        assert_eq!(state.order.len(), state.items.len());
    }

    #[test]
    fn an_item_that_gave_trouble_comes_after_all_others_and_rests_longer_each_time() {
        let clock = Clock::default();
        let finder = finder();
        let tags = TagFilter::DefaultOnly;
        for id in 1..=2 {
            finder.put(item(&clock, id, None, None), "e".into());
        }
        let now = clock.now_ms();
        finder.take(now, question(&tags)).unwrap().rest(now);
        assert_eq!(finder.next_at(now, question(&tags)), Some(now + REST_MS_MIN));
        let later = now + REST_MS_MIN;
        let other = finder.take(later, question(&tags)).unwrap();
        assert_eq!((other.item.document.activity_id, other.rests), (Some(2), 0));
        let again = finder.take(later, question(&tags)).unwrap();
        assert_eq!((again.item.document.activity_id, again.rests), (Some(1), 1));
        again.rest(later);
        assert!(finder.take(later + REST_MS_MIN, question(&tags)).is_none());
        assert!(finder.take(later + 2 * REST_MS_MIN, question(&tags)).is_some());
    }

    #[test]
    fn a_locked_item_comes_back_when_its_lock_ends() {
        let clock = Clock::default();
        let finder = finder();
        let tags = TagFilter::DefaultOnly;
        finder.put(item(&clock, 1, None, None), "e1".into());
        let now = clock.now_ms();
        let candidate = finder.take(now, question(&tags)).unwrap();
        assert!(finder.take(now, question(&tags)).is_none(), "handed out once");
        let mut locked = WorkDocument::clone(&candidate.item.document);
        locked.locked_until = Some(now + 50);
        candidate.update(Arc::new(locked), "e2".into());
        assert!(finder.take(now, question(&tags)).is_none());
        assert_eq!(finder.next_at(now, question(&tags)), Some(now + 50));
        assert_eq!(finder.take(now + 50, question(&tags)).unwrap().item.etag, "e2");
    }

    #[test]
    fn what_was_found_in_a_slot_that_went_is_forgotten_but_for_what_is_held() {
        let clock = Clock::default();
        let finder = finder();
        let tags = TagFilter::Any;
        let items: Vec<_> = (1..=3).map(|id| item(&clock, id, None, None)).collect();
        let session = item(&clock, 4, Some("s"), None);
        for item in items.iter().chain([&session]) {
            finder.add(Arc::clone(item), "e".into(), true);
        }
        let slot = |n: usize| slots::of(&items[n].instance_id);
        let lost: SlotSet = [slot(0), slot(1), slots::of(&session.instance_id)].into_iter().collect();
        assert!(!lost.contains(slot(2)), "the names were chosen so");
        let in_hand = finder.take(clock.now_ms(), question(&tags)).unwrap();
        assert!(in_hand.is_own && in_hand.item.document.id == items[0].id);
        finder.disown(lost);
        let mut left: Vec<u64> =
            lock(&finder.state).items.values().filter_map(|entry| entry.item.document.activity_id).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3, 4], "one is in hand, one in another slot, one is of a session");
        assert!(finder.found(Arc::clone(&items[1]), "e".into(), Instant::now()), "a search brings it again");
        drop(in_hand);
        let found: Vec<bool> = std::iter::from_fn(|| finder.take(clock.now_ms(), question(&tags)))
            .map(|candidate| {
                let is_own = candidate.is_own;
                candidate.remove();
                is_own
            })
            .collect();
        assert_eq!(found, [true, false, true], "what a search brings may be known to others");
    }

    #[test]
    fn what_a_search_brings_that_began_before_an_item_was_taken_or_went_is_old() {
        let clock = Clock::default();
        let finder = finder();
        let tags = TagFilter::DefaultOnly;
        let begun = Instant::now();
        let one = item(&clock, 1, None, None);
        assert!(finder.found(Arc::clone(&one), "e".into(), begun));
        let now = clock.now_ms();
        let candidate = finder.take(now, question(&tags)).unwrap();
        let mut locked = WorkDocument::clone(&one);
        locked.locked_until = Some(now + 60_000);
        // The lock is in memory, or was written and has another ETag: either way the page shows what was before.
        candidate.update(Arc::new(locked), "e2".into());
        assert!(!finder.found(Arc::clone(&one), "e".into(), begun));
        assert!(finder.add(Arc::clone(&one), "e".into(), true), "its writer comes late");
        assert!(finder.take(now, question(&tags)).is_none());
        finder.remove(&one.instance_id, &one.id);
        assert!(
            !finder.found(Arc::clone(&one), "e".into(), begun)
                && finder.add(Arc::clone(&one), "e".into(), true)
        );
        assert!(finder.take(now, question(&tags)).is_none(), "it is gone");
        let later = Instant::now() + Duration::from_millis(1);
        assert!(finder.found(one, "e3".into(), later), "another one of its name");
    }
}
