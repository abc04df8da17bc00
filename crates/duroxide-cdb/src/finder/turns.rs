//! Instances with messages.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::agenda::{Agenda, Standing, Trial, Turn};

/// A message somebody knows to be in an instance's queue.
#[derive(Debug, Clone)]
pub(crate) struct MessageHint {
    pub(crate) instance: String,
    pub(crate) id: String,
    pub(crate) seq: u64,
    pub(crate) visible_at: u64,
}

/// Which instances may have a turn to run.
#[derive(Debug, Default)]
pub(crate) struct TurnFinder {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    instances: HashMap<String, Entry>,
    agenda: Agenda,
    /// Counts hints, to tell those a load could have seen from later ones.
    hints: u64,
    /// Nobody has asked yet: hints are not kept.
    asleep: bool,
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
    /// This process holds the lock.
    locked: bool,
    scheduled: Option<(Standing, Turn)>,
}

impl Entry {
    fn standing(&self) -> Standing {
        if self.parks > 0 { Standing::Troubled } else { Standing::Sound }
    }

    /// Whether this process has the instance's turn, or takes it as soon as it may.
    fn is_busy(&self, now: u64) -> bool {
        let is_due = || self.pending.values().any(|pending| pending.visible_at <= now);
        self.in_hand || self.locked || (self.rest_step == 0 && is_due())
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
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() }
    }

    /// Somebody looks for turns. Its search finds those that were there before.
    pub(crate) fn wake(&self) {
        lock(&self.state).asleep = false;
    }

    /// Adds a message and says whether it was new. A new one ends an instance's rest.
    pub(crate) fn hint(&self, hint: MessageHint) -> bool {
        let mut state = lock(&self.state);
        if state.asleep || !state.has_room_for(&hint) {
            return false;
        }
        state.hints += 1;
        let number = state.hints;
        let entry = state.instances.entry(hint.instance.clone()).or_default();
        let pending = Pending { seq: hint.seq, visible_at: hint.visible_at, hint: number };
        let new = entry.keep(hint.id, pending);
        if new && !entry.locked {
            (entry.rest_until, entry.rest_step) = (0, 0);
        }
        state.schedule(&hint.instance);
        drop(state);
        self.changed.notify_waiters();
        new
    }

    /// The next instance that may be tried at `now`.
    #[cfg(test)]
    pub(crate) fn take(&self, now: u64) -> Option<Candidate> {
        self.take_except(now, &HashSet::new())
    }

    /// The next instance that may be tried at `now`, without those that are not for the caller.
    pub(crate) fn take_except(&self, now: u64, except: &HashSet<String>) -> Option<Candidate> {
        let mut state = lock(&self.state);
        let (instance, standing) = state.agenda.take(now, except)?;
        let entry = state.instances.entry(instance.clone()).or_default();
        entry.scheduled = None;
        entry.in_hand = true;
        entry.locked = false;
        let parks = entry.parks;
        Some(Candidate {
            instance,
            parks,
            standing,
            hints: state.hints,
            state: Arc::clone(&self.state),
            changed: Arc::clone(&self.changed),
            decided: false,
        })
    }

    /// When the next instance may be tried.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.next_at_except(&HashSet::new())
    }

    /// When the next instance may be tried, without those that are not for the caller.
    pub(crate) fn next_at_except(&self, except: &HashSet<String>) -> Option<u64> {
        lock(&self.state).agenda.next_at(except)
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

    /// A lock of this process lasts longer.
    pub(crate) fn extended(&self, instance: &str, until: u64) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.instances.get_mut(instance).filter(|entry| entry.locked) {
            entry.rest_until = until;
        }
        state.schedule(instance);
    }

    /// The instance is gone.
    pub(crate) fn forget(&self, instance: &str) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.instances.remove(instance)
            && let Some((standing, turn)) = entry.scheduled
        {
            state.agenda.remove(standing, turn, instance);
        }
    }

    /// Instances that a search need not return: this process has their turn, or takes it as soon as it may. Those
    /// that wait for a timer, or rest because nothing could be done, are not among them: what others send them must be
    /// noticed.
    pub(crate) fn known(&self, limit: usize, now: u64) -> Vec<String> {
        let state = lock(&self.state);
        let busy = state.instances.iter().filter(|(_, entry)| entry.is_busy(now));
        let mut known: Vec<String> = busy.map(|(instance, _)| instance.clone()).take(limit).collect();
        known.sort_unstable();
        known
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
        let entry = state.instances.entry(self.instance.clone()).or_default();
        entry.in_hand = false;
        entry.parks = if trial == Trial::Failed { entry.parks + 1 } else { 0 };
        match verdict {
            Verdict::Locked { until, taken, left } => {
                entry.locked = true;
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

impl State {
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
        if let Some((standing, turn)) = entry.scheduled.take() {
            self.agenda.remove(standing, turn, instance);
        }
        if entry.in_hand {
            return;
        }
        let first = entry.pending.values().map(|pending| (pending.visible_at, pending.seq)).min();
        match first {
            Some((visible_at, seq)) => {
                let at = visible_at.max(entry.rest_until);
                let (standing, turn) = (entry.standing(), (at, seq));
                entry.scheduled = Some((standing, turn));
                self.agenda.insert(standing, turn, instance);
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
const PARK_MS_MIN: u64 = 200;
const PARK_MS_MAX: u64 = 30_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(instance: &str, id: &str, seq: u64, visible_at: u64) -> MessageHint {
        MessageHint { instance: instance.to_owned(), id: id.to_owned(), seq, visible_at }
    }

    fn locked(until: u64, taken: &[&str]) -> Verdict {
        Verdict::Locked { until, taken: taken.iter().map(|id| (*id).to_owned()).collect(), left: Vec::new() }
    }

    #[test]
    fn an_instance_is_handed_out_once_and_in_order() {
        let finder = TurnFinder::default();
        finder.hint(hint("b", "2", 2, 5));
        finder.hint(hint("a", "1", 1, 5));
        let first = finder.take(10).unwrap();
        assert_eq!(first.instance, "a");
        assert_eq!(finder.take(10).unwrap().instance, "b");
        assert!(finder.knows("b"), "a dropped candidate is put back");
        assert_eq!(finder.take(10).unwrap().instance, "b");
        drop(first);
    }

    #[test]
    fn what_is_not_for_one_caller_is_there_for_another() {
        let finder = TurnFinder::default();
        finder.hint(hint("new", "1", 1, 5));
        finder.hint(hint("old", "2", 2, 7));
        let except = HashSet::from(["new".to_owned()]);
        assert_eq!(finder.next_at_except(&except), Some(7));
        let other = finder.take_except(10, &except).unwrap();
        assert_eq!(other.instance, "old");
        assert!(finder.take_except(10, &except).is_none());
        assert_eq!(finder.next_at_except(&except), None);
        assert_eq!(finder.take(10).unwrap().instance, "new");
    }

    #[test]
    fn a_message_that_arrives_during_the_lock_waits_for_its_end() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "1", 1, 5));
        finder.take(10).unwrap().decide(locked(100, &["1"]));
        finder.hint(hint("a", "2", 2, 10));
        assert!(finder.take(50).is_none());
        finder.released("a", &["1".to_owned()]);
        assert_eq!(finder.take(50).unwrap().instance, "a");
    }

    #[test]
    fn a_lock_that_expires_brings_the_instance_back() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "1", 1, 5));
        finder.take(10).unwrap().decide(locked(100, &["1"]));
        assert_eq!(finder.next_at(), Some(100));
        finder.extended("a", 200);
        assert!(finder.take(150).is_none());
        assert_eq!(finder.take(200).unwrap().instance, "a");
    }

    #[test]
    fn everything_consumed_leaves_nothing_behind() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "1", 1, 5));
        finder.take(10).unwrap().decide(locked(100, &["1"]));
        finder.released("a", &["1".to_owned()]);
        assert!(!finder.knows("a"));
        assert_eq!(finder.next_at(), None);
    }

    #[test]
    fn timers_wait_until_they_are_due_and_something_new_ends_a_rest() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "timer", 1, 1000));
        assert!(finder.take(999).is_none());
        let candidate = finder.take(1000).unwrap();
        candidate.decide(Verdict::Park { now: 1000 });
        assert!(finder.take(1001).is_none());
        finder.hint(hint("a", "start", 2, 1001));
        assert_eq!(finder.take(1001).unwrap().instance, "a");
    }

    #[test]
    fn a_search_leaves_out_what_is_in_hand_locked_or_due_and_nothing_else() {
        let finder = TurnFinder::default();
        finder.hint(hint("due", "1", 1, 5));
        finder.hint(hint("timer", "2", 2, 500));
        assert_eq!(finder.known(10, 10), ["due"]);
        let candidate = finder.take(10).unwrap();
        assert_eq!(finder.known(10, 10), ["due"], "in hand");
        candidate.decide(locked(100, &["1"]));
        assert_eq!(finder.known(10, 10), ["due"], "locked");
        finder.released("due", &["1".to_owned()]);
        assert!(finder.known(10, 10).is_empty());
        assert_eq!(finder.known(10, 500), ["timer"]);
        finder.take(500).unwrap().decide(Verdict::Park { now: 500 });
        assert!(finder.known(10, 500).is_empty(), "nothing could be done");
    }

    #[test]
    fn a_message_that_arrives_while_its_instance_is_loaded_is_not_forgotten() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "1", 1, 5));
        let candidate = finder.take(10).unwrap();
        finder.hint(hint("a", "2", 2, 8));
        candidate.saw(10, &HashSet::from(["1"]));
        candidate.decide(locked(100, &["1"]));
        finder.released("a", &["1".to_owned()]);
        assert_eq!(finder.take(10).unwrap().instance, "a");
    }

    #[test]
    fn of_many_that_gave_trouble_one_is_tried_at_a_time_and_the_others_go_on() {
        let finder = TurnFinder::default();
        for n in 0..10 {
            finder.hint(hint(&format!("bad {n}"), "1", n, 5));
        }
        while let Some(bad) = finder.take(10) {
            bad.decide(Verdict::Trouble { now: 10 });
        }
        for n in 0..5 {
            finder.hint(hint(&format!("good {n}"), "1", 100 + n, 1000));
        }
        let bad = finder.take(1000).unwrap();
        assert_eq!(bad.instance, "bad 0");
        let good: Vec<Candidate> = std::iter::from_fn(|| finder.take(1000)).collect();
        assert_eq!(good.len(), 5);
        assert_eq!(finder.next_at(), None, "nobody waits for what may not be tried now");
        bad.decide(Verdict::Trouble { now: 1000 });
        assert_eq!(finder.next_at(), Some(210));
        let next = finder.take(1000).unwrap();
        assert_eq!(next.instance, "bad 1");
        drop(next);
        assert_eq!(finder.take(1000).unwrap().instance, "bad 1", "dropped, it makes room too");
    }

    #[test]
    fn trouble_that_is_over_holds_nobody_up() {
        let finder = TurnFinder::default();
        for n in 0..10 {
            finder.hint(hint(&n.to_string(), "1", n, 5));
        }
        while let Some(all) = finder.take(10) {
            all.decide(Verdict::Trouble { now: 10 });
        }
        let mut at_a_time = Vec::new();
        while finder.next_at().is_some_and(|at| at <= 1000) {
            let taken: Vec<Candidate> = std::iter::from_fn(|| finder.take(1000)).collect();
            at_a_time.push(taken.len());
            taken.into_iter().for_each(|candidate| candidate.decide(locked(5000, &["1"])));
        }
        assert_eq!(at_a_time, [1, 2, 7]);
    }

    #[test]
    fn what_only_waited_for_something_is_not_among_those_that_gave_trouble() {
        let finder = TurnFinder::default();
        finder.hint(hint("bad", "1", 1, 5));
        finder.hint(hint("early", "event", 2, 5));
        finder.take(10).unwrap().decide(Verdict::Trouble { now: 10 });
        finder.take(10).unwrap().decide(Verdict::Park { now: 10 });
        finder.hint(hint("early", "start", 3, 20));
        let bad = finder.take(1000).unwrap();
        let early = finder.take(1000).unwrap();
        assert_eq!((early.instance.as_str(), bad.instance.as_str()), ("bad", "early"));
    }

    #[test]
    fn nothing_is_kept_where_nobody_asks() {
        let finder = TurnFinder::asleep();
        assert!(!finder.hint(hint("a", "1", 1, 5)));
        assert!(!finder.knows("a"));
        finder.wake();
        assert!(finder.hint(hint("a", "1", 1, 5)));
        assert!(finder.knows("a"));
    }

    #[test]
    fn however_many_messages_an_instance_has_the_first_ones_are_kept() {
        let finder = TurnFinder::default();
        for n in 0..5000 {
            finder.hint(hint("a", &format!("timer {n}"), n, 1000 + n));
            assert!(lock(&finder.state).instances["a"].pending.len() <= PENDING_MAX);
        }
        assert_eq!(finder.next_at(), Some(1000));
        finder.hint(hint("a", "due", 5000, 5));
        assert_eq!(finder.take(10).unwrap().instance, "a");
    }

    #[test]
    fn a_full_finder_keeps_what_may_be_tried_first() {
        let finder = TurnFinder::default();
        for n in 0..INSTANCES_MAX {
            finder.hint(hint(&n.to_string(), "timer", 1, 1_000_000));
        }
        assert!(finder.hint(hint("due", "start", 2, 5)));
        assert!(!finder.hint(hint("late", "timer", 2, 2_000_000)));
        assert_eq!(finder.take(10).unwrap().instance, "due");
        let state = lock(&finder.state);
        assert_eq!((state.instances.len(), state.agenda.len()), (INSTANCES_MAX, INSTANCES_MAX));
    }

    #[test]
    fn what_a_load_did_not_see_is_forgotten_but_future_messages_are_kept() {
        let finder = TurnFinder::default();
        finder.hint(hint("a", "gone", 1, 5));
        finder.hint(hint("a", "timer", 2, 500));
        let candidate = finder.take(10).unwrap();
        candidate.saw(10, &HashSet::new());
        candidate.decide(Verdict::RestUntil(0));
        assert_eq!(finder.next_at(), Some(500));
    }
}
