//! Instances with messages.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use duroxide::providers::DispatcherCapabilityFilter;
use tokio::sync::Notify;

use super::agenda::{Agenda, Place, Shelf, Standing, Trial};
use super::pace::Left;
use super::pins::Pins;
use super::ready::Ready;
use super::sweep::{Seen, Sweep};
use super::waiting::Waiting;
use crate::documents::{MessageHint, Version, is_supported};
use crate::slots::{self, SlotSet};

/// Who tells of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// This process has just written it.
    Sender,
    /// A search has met it.
    Search,
}

/// Which instances may have a turn to run.
#[derive(Debug, Default)]
pub(crate) struct TurnFinder {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    /// Dispatchers that have nothing to do.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    instances: HashMap<String, Entry>,
    agenda: Agenda,
    /// Counts hints, to tell those a load could have seen from later ones.
    hints: u64,
    /// Nobody has asked yet: hints are not kept.
    asleep: bool,
    pins: Pins,
    sweep: Sweep,
    /// Until then many are likely to be pinned to versions that a dispatcher here does not support.
    wary_until: u64,
    /// The heads of some are being read.
    is_screening: bool,
    /// How many in a row were found locked by other processes.
    locked_in_row: u32,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    seq: u64,
    visible_at: u64,
    /// The number of the hint.
    hint: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// Known messages.
    pending: HashMap<String, Pending>,
    /// Not to be tried before this time: somebody holds the lock, or nothing could be done.
    rest_until: u64,
    rest_step: u64,
    /// How often in a row nothing could be done.
    parks: u32,
    in_hand: bool,
    /// When it was handed out the last time.
    taken_at: u64,
    /// This process holds the lock.
    locked: bool,
    /// Another process held it when it was looked at the last time.
    was_foreign: bool,
    /// The runtime of this process has put its turn off: others come first when its time is there.
    is_put_off: bool,
    shelf: Shelf,
    scheduled: Option<Place>,
}

impl Entry {
    fn standing(&self) -> Standing {
        if self.parks > 0 { Standing::Troubled } else { Standing::Sound }
    }

    /// The message that is due first.
    fn first_hint(&self, instance: &str) -> Option<MessageHint> {
        let (id, first) = self.pending.iter().min_by_key(|(_, pending)| (pending.visible_at, pending.seq))?;
        let (seq, visible_at) = (first.seq, first.visible_at);
        Some(MessageHint { instance: instance.to_owned(), id: id.clone(), seq, visible_at })
    }

    /// Whether a message is not the first thing to do at its time.
    fn is_busy(&self, visible_at: u64) -> bool {
        self.in_hand || self.locked || self.pending.values().any(|pending| pending.visible_at <= visible_at)
    }
}

/// What became of a candidate.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Locked by this process until the time given; the messages listed are in the turn.
    Locked { until: u64, taken: Vec<String>, left: Vec<MessageHint> },
    /// Not to be tried before the time given, unless something new arrives.
    RestUntil(u64),
    /// Not to be tried for a while that grows each time, unless something new arrives: nothing can be done with it yet.
    Park { now: u64 },
    /// The same, because its partition does not answer.
    Trouble { now: u64 },
}

/// An instance handed out. Dropping it undecided puts it back.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) instance: String,
    /// How often in a row its partition did not answer.
    pub(crate) parks: u32,
    /// Many messages wait, and another process had its turn: its head tells whether a look is worth it.
    pub(crate) is_head_first: bool,
    /// The runtime of this process has put its turn off, and this is the first of its messages: others come first.
    pub(crate) put_off: Option<MessageHint>,
    /// As it was handed out.
    standing: Standing,
    /// Hints up to this one were made before the candidate was handed out.
    hints: u64,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    decided: bool,
}

impl TurnFinder {
    /// A finder that keeps nothing until somebody asks: a process may send and work without ever running a turn, and
    /// nothing would remove what it keeps.
    pub(crate) fn asleep() -> Self {
        let state = State { asleep: true, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), ..Self::default() }
    }

    /// A dispatcher looks for turns. Its search finds those that were there before. True if no dispatcher that supports
    /// the same has asked before: then searches must begin anew, because what is for it was passed over.
    pub(crate) fn wake(&self, filter: Option<&DispatcherCapabilityFilter>) -> bool {
        let mut state = lock(&self.state);
        state.asleep = false;
        let is_new = state.pins.ask(filter);
        if is_new {
            state.sweep.begin_anew();
        }
        is_new
    }

    /// Adds a message and says whether it gives its instance something to do that had nothing to do at its time.
    pub(crate) fn hint(&self, hint: MessageHint) -> bool {
        let mut state = lock(&self.state);
        let is_news = state.hint(hint, Source::Sender);
        drop(state);
        self.changed.notify_waiters();
        is_news
    }

    /// Adds messages that a search has met, but for those of instances that only other processes can run. Returns how
    /// many instances have something to do that had nothing to do before.
    pub(crate) fn sight(&self, hints: Vec<MessageHint>, now: u64) -> usize {
        let mut state = lock(&self.state);
        let is_for_us = |state: &State, hint: &MessageHint| {
            !state.pins.is_for_others(&hint.instance, hint.visible_at, now)
        };
        let mut news = 0;
        for hint in hints {
            news += usize::from(is_for_us(&state, &hint) && state.hint(hint, Source::Search));
        }
        drop(state);
        self.changed.notify_waiters();
        news
    }

    /// From when on a search asks for the latest messages, besides its page.
    pub(crate) fn latest(&self) -> Option<u64> {
        lock(&self.state).sweep.latest()
    }

    /// Notes what a search saw: see [`Sweep::came`].
    pub(crate) fn came(&self, now: u64, from: u64, page: Seen, latest: Option<Seen>) -> Left {
        let mut state = lock(&self.state);
        let left = state.sweep.came(now, from, page, latest);
        // What looks like news may be for others: their pages are passed in large steps too, and hide nothing new.
        let is_wary = now < state.wary_until;
        if is_wary && left.cursor > 0 {
            state.sweep.distrust(now);
        }
        Left { is_barren: left.is_barren || is_wary, ..left }
    }

    /// The next instance that may be tried at `now`.
    #[cfg(test)]
    pub(crate) fn take(&self, now: u64) -> Option<Candidate> {
        self.take_for(now, None)
    }

    /// The next instance that may be tried at `now` by a dispatcher that supports what its filter says.
    pub(crate) fn take_for(
        &self,
        now: u64,
        filter: Option<&DispatcherCapabilityFilter>,
    ) -> Option<Candidate> {
        let accepts = |version| is_supported(filter, Some(version));
        let mut state = lock(&self.state);
        let taken = if state.is_wary(now) {
            state.agenda.take_warily(now, &accepts)
        } else {
            state.agenda.take(now, &accepts)
        };
        let (instance, standing) = taken?;
        let entry = state.instances.entry(instance.clone()).or_default();
        entry.scheduled = None;
        entry.in_hand = true;
        entry.taken_at = now;
        entry.locked = false;
        let parks = entry.parks;
        let is_head_first = entry.was_foreign && entry.pending.len() >= TURNFUL;
        let put_off = std::mem::take(&mut entry.is_put_off).then(|| entry.first_hint(&instance)).flatten();
        Some(Candidate {
            instance,
            parks,
            is_head_first,
            put_off,
            standing,
            hints: state.hints,
            state: Arc::clone(&self.state),
            changed: Arc::clone(&self.changed),
            decided: false,
        })
    }

    /// When the next instance may be tried.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.next_at_for(None)
    }

    /// When the next instance may be tried by a dispatcher that supports what its filter says.
    pub(crate) fn next_at_for(&self, filter: Option<&DispatcherCapabilityFilter>) -> Option<u64> {
        lock(&self.state).agenda.next_at(&|version| is_supported(filter, Some(version)))
    }

    /// A dispatcher that was handed an instance found it pinned to a version that it does not support.
    pub(crate) fn turned_away(&self, instance: &str, version: Option<Version>, now: u64) {
        let mut state = lock(&self.state);
        let as_of = state.instances.get(instance).map_or(now, |entry| entry.taken_at);
        state.wary_until = now + WARY_MS;
        state.read(instance, version, as_of);
    }

    /// A dispatcher that was handed an instance found that another process has its turn. After several in a row many are
    /// likely to be locked, as when a large process has died, and trying each would take a request each.
    pub(crate) fn found_locked(&self, instance: &str, now: u64) {
        let mut state = lock(&self.state);
        state.locked_in_row += 1;
        if let Some(entry) = state.instances.get_mut(instance) {
            entry.was_foreign = true;
        }
        if state.locked_in_row >= LOCKED_ROW {
            state.wary_until = state.wary_until.max(now + LOCKED_WARY_MS);
        }
    }

    /// The instances whose heads are to be read before any of them is handed out: many wait, and others of their kind
    /// were pinned to versions that a dispatcher here does not support, or locked. `None` if there are few, or if some are
    /// being read.
    pub(crate) fn screen(&self, now: u64) -> Option<Screening> {
        let mut state = lock(&self.state);
        if state.is_screening || !state.is_wary(now) {
            return None;
        }
        state.is_screening = true;
        let instances = state.agenda.unread(now).take(SCREENED_MAX).map(ToOwned::to_owned).collect();
        Some(Screening {
            instances,
            as_of: now,
            state: Arc::clone(&self.state),
            changed: Arc::clone(&self.changed),
        })
    }

    /// A future that ends when something changes after this call.
    pub(crate) fn changed(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(&self.changed).notified_owned()
    }

    /// The lock is gone: `consumed` messages with it. What is left may be tried at once.
    pub(crate) fn released(&self, instance: &str, consumed: &[String]) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.instances.get_mut(instance) {
            for id in consumed {
                entry.pending.remove(id);
            }
            entry.locked = false;
            (entry.rest_until, entry.rest_step) = (0, 0);
        }
        state.schedule(instance);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The runtime of this process has put a turn off. It may be that it does not know the orchestration and that another
    /// member does: when the time comes, the others are asked first.
    pub(crate) fn put_off(&self, instance: &str) {
        if let Some(entry) = lock(&self.state).instances.get_mut(instance) {
            entry.is_put_off = true;
        }
    }

    /// A lock of this process lasts longer.
    pub(crate) fn extended(&self, instance: &str, until: u64) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.instances.get_mut(instance).filter(|entry| entry.locked) {
            entry.rest_until = until;
        }
        state.schedule(instance);
    }

    /// Wakes those who wait, because a search is due.
    pub(crate) fn poke(&self) {
        self.changed.notify_waiters();
    }

    /// Forgets what waits in slots that are another member's from now on, but for turns that somebody here has.
    pub(crate) fn disown(&self, slots: SlotSet) {
        let state = lock(&self.state);
        let is_lost = |(instance, entry): &(&String, &Entry)| {
            !entry.in_hand && !entry.locked && slots.contains(slots::of(instance))
        };
        let lost: Vec<String> =
            state.instances.iter().filter(is_lost).map(|(instance, _)| instance.clone()).collect();
        drop(state);
        lost.iter().for_each(|instance| self.forget(instance));
    }

    /// Whether a dispatcher of this process waits for something to do.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Notes that a dispatcher waits, as long as the guard lives.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        Waiting::begin(&self.waiting)
    }

    /// How many dispatchers of this process have nothing to do.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// The instances that could be tried at once. Those that only other processes can run
    /// are not among them: who waits for them must be told that they were passed over.
    pub(crate) fn ready(&self, now: u64) -> Ready {
        let state = lock(&self.state);
        state.agenda.ready(now, &|version| state.pins.is_supported(Some(version)))
    }

    /// The instance is gone.
    pub(crate) fn forget(&self, instance: &str) {
        let mut state = lock(&self.state);
        state.pins.forget(instance);
        if let Some(entry) = state.instances.remove(instance)
            && let Some(place) = entry.scheduled
        {
            state.agenda.remove(place, instance);
        }
    }

    /// Whether an instance is known.
    #[cfg(test)]
    pub(crate) fn knows(&self, instance: &str) -> bool {
        lock(&self.state).instances.contains_key(instance)
    }
}

impl Candidate {
    /// Says what became of the candidate.
    pub(crate) fn decide(mut self, verdict: Verdict) {
        self.decided = true;
        let mut state = lock(&self.state);
        let trial = match &verdict {
            // Its partition has answered.
            Verdict::Locked { .. } | Verdict::RestUntil(_) | Verdict::Park { .. } => Trial::Passed,
            Verdict::Trouble { .. } => Trial::Failed,
        };
        state.agenda.tried(self.standing, trial);
        if matches!(verdict, Verdict::Locked { .. }) {
            state.locked_in_row = 0;
        }
        let entry = state.instances.entry(self.instance.clone()).or_default();
        entry.in_hand = false;
        entry.parks = if trial == Trial::Failed { entry.parks + 1 } else { 0 };
        match verdict {
            Verdict::Locked { until, taken, left } => {
                (entry.locked, entry.was_foreign) = (true, false);
                entry.rest_until = until;
                entry.rest_step = 0;
                // Should the lock expire, its messages must be found again without a search.
                for id in taken {
                    entry.pending.entry(id).or_insert(Pending { seq: 0, visible_at: 0, hint: 0 });
                }
                for left in left.into_iter().take(PENDING_MAX) {
                    let pending = Pending { seq: left.seq, visible_at: left.visible_at, hint: 0 };
                    entry.keep(left.id, pending);
                }
            }
            Verdict::RestUntil(until) => entry.rest_until = until,
            Verdict::Park { now } | Verdict::Trouble { now } => {
                entry.rest_step = (entry.rest_step * 2).clamp(PARK_MS_MIN, PARK_MS_MAX);
                entry.rest_until = now + entry.rest_step;
            }
        }
        state.schedule(&self.instance);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Forgets messages that a load of the partition should have seen and did not: those visible at `as_of`, the time
    /// it asked for, and hinted before the candidate was handed out.
    pub(crate) fn saw(&self, as_of: u64, ids: &HashSet<&str>) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.instances.get_mut(&self.instance) {
            entry.pending.retain(|id, pending| {
                pending.visible_at > as_of || pending.hint > self.hints || ids.contains(id.as_str())
            });
        }
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        let mut state = lock(&self.state);
        state.agenda.tried(self.standing, Trial::Moot);
        if let Some(entry) = state.instances.get_mut(&self.instance) {
            entry.in_hand = false;
        }
        state.schedule(&self.instance);
        drop(state);
        self.changed.notify_waiters();
    }
}

impl Entry {
    /// Adds a message and says whether it was new. With very many the one that comes last makes room: as long as one is
    /// known a load shows all that are due, and searches find those whose time comes later.
    fn keep(&mut self, id: String, pending: Pending) -> bool {
        if self.pending.len() >= PENDING_MAX && !self.pending.contains_key(&id) {
            let last = self.pending.iter().max_by_key(|(_, pending)| (pending.visible_at, pending.seq));
            if let Some(last) = last.map(|(id, _)| id.clone()) {
                self.pending.remove(&last);
            }
        }
        self.pending.insert(id, pending).is_none()
    }
}

/// What the head of an instance says about who can run it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outline {
    /// The version it is pinned to.
    pub(crate) version: Option<Version>,
    /// Until when another process has its turn; zero if none has.
    pub(crate) locked_until: u64,
}

/// The heads of instances are being read. Dropping this undecided lets others try.
#[derive(Debug)]
pub(crate) struct Screening {
    pub(crate) instances: Vec<String>,
    as_of: u64,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl Screening {
    /// Notes what the heads say.
    pub(crate) fn done(self, outline_of: impl Fn(&str) -> Outline) {
        let mut state = lock(&self.state);
        let mut locked = 0;
        for instance in &self.instances {
            let Outline { version, locked_until } = outline_of(instance);
            let is_for_others = !state.pins.is_supported(version);
            if is_for_others || locked_until <= self.as_of {
                state.read(instance, version, self.as_of);
            } else {
                // It stays among the unread: when its rest is over its head is read again together with others.
                locked += 1;
                state.leave(instance, locked_until.min(self.as_of + SCREENED_REST_MS));
            }
            state.schedule(instance);
            if is_for_others {
                state.wary_until = self.as_of + WARY_MS;
            }
        }
        if locked * 2 > self.instances.len() {
            state.wary_until = state.wary_until.max(self.as_of + LOCKED_WARY_MS);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// The heads could not be read: for a while instances are tried one by one.
    pub(crate) fn failed(self) {
        lock(&self.state).wary_until = 0;
    }
}

impl Drop for Screening {
    fn drop(&mut self) {
        lock(&self.state).is_screening = false;
    }
}

impl State {
    /// Adds a message and says whether it gives its instance something to do that had nothing to do at its time. A new
    /// message ends the instance's rest. But one that rests because another process has its turn is not looked at anew for
    /// every page of its queue: only for what this process sends, and not for more than a turn takes.
    fn hint(&mut self, hint: MessageHint, source: Source) -> bool {
        if self.asleep || !self.has_room_for(&hint) {
            return false;
        }
        self.hints += 1;
        let number = self.hints;
        let entry = self.instances.entry(hint.instance.clone()).or_default();
        let is_busy = entry.is_busy(hint.visible_at);
        let is_first = source == Source::Sender && entry.pending.len() < TURNFUL;
        let matters = entry.rest_step > 0 || is_first;
        let pending = Pending { seq: hint.seq, visible_at: hint.visible_at, hint: number };
        let is_new = entry.keep(hint.id, pending);
        if is_new && !entry.locked && matters {
            (entry.rest_until, entry.rest_step) = (0, 0);
        }
        self.schedule(&hint.instance);
        is_new && !is_busy
    }

    /// Whether many wait whose heads have not been read, and that may be for others.
    fn is_wary(&self, now: u64) -> bool {
        now < self.wary_until && self.agenda.unread(now).nth(SCREENED_MIN).is_some()
    }

    /// The head of an instance says which version it is pinned to.
    fn read(&mut self, instance: &str, version: Option<Version>, as_of: u64) {
        if let Some(version) = version
            && !self.pins.is_supported(Some(version))
        {
            self.pins.note(instance, version, as_of);
        }
        if let Some(entry) = self.instances.get_mut(instance) {
            entry.shelf = Shelf::Read(version);
        }
    }

    /// Another process has the turn of an instance; it rests, unless something happened to it here meanwhile.
    fn leave(&mut self, instance: &str, until: u64) {
        if let Some(entry) = self.instances.get_mut(instance).filter(|entry| !entry.in_hand && !entry.locked)
        {
            entry.rest_until = until;
        }
    }

    /// Whether a message can be kept. An instance whose time comes later makes room.
    fn has_room_for(&mut self, hint: &MessageHint) -> bool {
        if self.instances.len() < INSTANCES_MAX || self.instances.contains_key(&hint.instance) {
            return true;
        }
        let Some(last) = self.agenda.pop_behind((hint.visible_at, hint.seq)) else { return false };
        self.instances.remove(&last);
        true
    }

    /// Puts an instance where it belongs in the agenda.
    fn schedule(&mut self, instance: &str) {
        let Some(entry) = self.instances.get_mut(instance) else { return };
        if let Some(place) = entry.scheduled.take() {
            self.agenda.remove(place, instance);
        }
        if entry.in_hand {
            return;
        }
        let is_for_others =
            matches!(entry.shelf, Shelf::Read(Some(version)) if !self.pins.is_supported(Some(version)));
        if is_for_others && !entry.locked {
            self.instances.remove(instance);
            return;
        }
        let first = entry.pending.values().map(|pending| (pending.visible_at, pending.seq)).min();
        match first {
            Some((visible_at, seq)) => {
                let at = visible_at.max(entry.rest_until);
                let place = Place { standing: entry.standing(), shelf: entry.shelf, turn: (at, seq) };
                entry.scheduled = Some(place);
                self.agenda.insert(place, instance);
            }
            None if entry.locked => {}
            None => {
                self.instances.remove(instance);
            }
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Above this the finder keeps those that may be tried first; searches find the others when their time comes.
const INSTANCES_MAX: usize = 50_000;
/// So many messages of an instance are kept.
const PENDING_MAX: usize = 1024;
/// A turn takes so many messages.
const TURNFUL: usize = 64;
/// After an instance was turned away, so long others are likely to be.
const WARY_MS: u64 = 60_000;
/// After so many in a row that other processes had, so long others are likely to be locked.
const LOCKED_ROW: u32 = 8;
const LOCKED_WARY_MS: u64 = 15_000;
/// So long one that was found locked together with others rests at most: if its lock is given back before its end, who
/// gave it back goes on with it.
const SCREENED_REST_MS: u64 = 10_000;
/// More than so many must wait before their heads are read together, and so many are read at once.
const SCREENED_MIN: usize = 8;
const SCREENED_MAX: usize = 500;
const PARK_MS_MIN: u64 = 200;
const PARK_MS_MAX: u64 = 30_000;

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
