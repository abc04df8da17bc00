//! The fleet: many processes share one container, and each one makes it faster.
//!
//! A process joins when its runtime fetches for the first time; one that only starts and reads never does. The members
//! divide the 256 slots of the key space among them ([`leases`], [`table`]). A member searches its own slots only, so two
//! members do not race for the same work. What is in somebody else's slots it takes when that member has passed it over,
//! or when it has nothing else to do and the work is old.
//!
//! Hints exist only inside a process. Who writes into a slot of somebody else rings the [bell](bell): one small document
//! that members look at. A search remains as the safety net, so a lost ring costs time and nothing else.
//!
//! Ownership also saves the writing of locks. A worked example, one process alone, its slots promised to it for some
//! seconds:
//!
//! 1. A client of the same process starts an orchestration. The message is a moment old and in a slot of this process:
//!    nobody else touches it before `steal_after` is over. The dispatcher that fetches the turn keeps the lock in memory
//!    ([`Fleet::may_hold_unwritten`]); nothing is written.
//! 2. The turn is committed within milliseconds, on condition of the ETag the head was read with, as under a written lock.
//! 3. Had it taken long, the [lock writer](tasks) would have written the lock after some seconds, well before anybody else
//!    may take the work; from then on the lock is like any other. So are locks on what is old, was tried before, or is
//!    somebody else's.
//!
//! Safety does not rest on any of this. If a member was frozen and its slots were taken over, it finds the ETag changed
//! when it commits, and nothing it did counts.

mod bell;
mod cosmos;
mod machine;
mod presence;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use crate::slot_leases::{
    InMemoryLeaseProvider, LeaseProvider, MemberReport, NoLeases, OtherShare, ServedWork, Serves, SlotShare,
};
pub use cosmos::CosmosLeaseProvider;

use crate::clock::{Clock, millis};
use crate::config::CosmosDBProviderConfig;
use crate::documents::MessageHint;
use crate::slots::{self, SlotSet, Watch};
use crate::store::Store;
use bell::BellRinger;
pub(crate) use bell::{Heard, News};
use presence::Presence;

pub(crate) use presence::Asking;

/// This process's part in the fleet.
pub(crate) struct Fleet {
    pub(crate) leases: Arc<dyn LeaseProvider>,
    pub(crate) owner: String,
    clock: Arc<Clock>,
    steal_after: Duration,
    pub(crate) lease: Duration,
    pub(crate) look: Duration,
    /// So long after the last ring the fleet looks often.
    pub(crate) rests_after: Duration,
    view: RwLock<Arc<View>>,
    pub(crate) is_joined: AtomicBool,
    /// Who joins and who leaves take turns.
    pub(crate) moving: tokio::sync::Mutex<()>,
    pub(crate) tasks: Mutex<Option<BackgroundTasks>>,
    /// Asks for a heartbeat before its time.
    pub(crate) beat_now: Arc<Notify>,
    /// Whether somebody here has asked for turns, and for activities.
    pub(crate) hands: [AtomicBool; 2],
    /// From when on all others know that this process runs turns, and activities.
    known_hands: Mutex<[Option<Instant>; 2]>,
    pub(crate) bell: BellRinger,
    /// Whether the members of this fleet hear the bell.
    pub(crate) has_bell: bool,
    /// From one look at the whole container to the next, by whichever member, in milliseconds.
    net_ms: AtomicU64,
    /// Slots of others in whose part of the container there are activities for everybody, and until when to look there.
    places: Mutex<HashMap<u8, Instant>>,
    /// The most turns and activities that were held or waited for at the same time.
    capacity: AtomicU64,
    pub(crate) presence: Presence,
}

/// What a member does beside its work; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundTasks(pub(crate) [JoinHandle<()>; 3]);

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// The share of this process, and until when it can count on it.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) share: SlotShare,
    pub(crate) until: Option<Instant>,
    /// Since when each slot of the share is its own without a break, in milliseconds since the Unix epoch.
    pub(crate) since: Vec<u64>,
}

impl View {
    /// What follows this view: slots that it had as well are this process's since they were.
    pub(crate) fn next(&self, share: SlotShare, until: Option<Instant>, now_ms: u64) -> Self {
        let had =
            |slot: u8| self.share.slots.contains(slot).then(|| self.since.get(usize::from(slot)).copied());
        let since = (0..=u8::MAX).map(|slot| had(slot).flatten().unwrap_or(now_ms)).collect();
        Self { share, until, since }
    }

    /// Whether a slot is this process's, and was when something became visible.
    fn had(&self, slot: u8, visible_at: u64) -> bool {
        let since = self.since.get(usize::from(slot)).copied().unwrap_or(u64::MAX);
        self.share.slots.contains(slot) && since <= visible_at
    }

    /// The other members that are heard of and run such work.
    fn able(&self, hand: Hand) -> impl Iterator<Item = &OtherShare> {
        self.share.others.iter().filter(move |other| hand.is_of(other.serves) && !other.is_silent)
    }

    /// Whether it says nothing about now: since a lease was over, nothing has been heard of the fleet. The others may be
    /// dead, and nobody can tell.
    fn is_outdated(&self, lease: Duration) -> bool {
        self.until.is_some_and(|until| Instant::now() > until + lease)
    }

    /// Whether the others still leave the fresh work in these slots to this process, as far as it knows.
    pub(crate) fn is_promised(&self) -> bool {
        self.until.is_some_and(|until| until > Instant::now())
    }
}

/// Whose an entry is, for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In its own slots.
    Own,
    /// Nobody's, or left by its owner: anybody may take it.
    Free,
    /// To be left to its owner.
    Others,
}

impl Fleet {
    pub(crate) fn new(store: &Arc<Store>, owner: &str, config: &CosmosDBProviderConfig) -> Self {
        let lease = config.lease_duration;
        let leases = config.leases.clone();
        Self {
            leases: leases.unwrap_or_else(|| Arc::new(CosmosLeaseProvider::new(Arc::clone(store), lease))),
            owner: owner.to_owned(),
            clock: Arc::clone(store.clock()),
            steal_after: config.steal_after,
            lease,
            look: config.bell_interval,
            rests_after: config.bell_rests_after,
            view: RwLock::new(Arc::new(View { share: SlotShare::everything(), ..View::default() })),
            is_joined: AtomicBool::new(false),
            moving: tokio::sync::Mutex::default(),
            tasks: Mutex::default(),
            beat_now: Arc::default(),
            hands: Default::default(),
            known_hands: Mutex::default(),
            bell: BellRinger::new(Arc::clone(store)),
            has_bell: config.leases.is_none(),
            net_ms: AtomicU64::new(millis(NET_MIN)),
            places: Mutex::default(),
            capacity: AtomicU64::default(),
            presence: Presence::new(lease),
        }
    }

    /// What the runtime of this process has asked for.
    pub(crate) fn serves(&self) -> Serves {
        let has = |hand: Hand| self.hands[hand as usize].load(Ordering::Acquire);
        Serves { turns: has(Hand::Turns), work: has(Hand::Work) }
    }

    /// The leases and the name under which this process has a share, for who gives it back when there is no time to wait.
    pub(crate) fn parting(&self) -> Option<(Arc<dyn LeaseProvider>, String)> {
        self.is_member().then(|| (Arc::clone(&self.leases), self.owner.clone()))
    }

    pub(crate) fn see(&self, view: View) {
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    pub(crate) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this process runs work.
    pub(crate) fn is_member(&self) -> bool {
        self.is_joined.load(Ordering::Acquire)
    }

    /// How many processes run work, as far as this one knows.
    pub(crate) fn members(&self) -> usize {
        self.view().share.members
    }

    /// Whether a slot is this process's.
    pub(crate) fn owns(&self, slot: u8) -> bool {
        self.is_member() && self.view().share.slots.contains(slot)
    }

    /// Notes how many turns and activities are held or waited for now, and returns the most that ever were.
    pub(crate) fn note_capacity(&self, now: usize) -> u64 {
        let now = now as u64;
        self.capacity.fetch_max(now, Ordering::AcqRel).max(now)
    }

    /// Counts an entry that this process has locked, if it was in the slot of another member.
    pub(crate) fn count_steal(&self, hand: Hand, slot: u8) {
        let view = self.view();
        if self.is_member() && view.share.members > 1 && !view.share.slots.contains(slot) {
            metrics::counter!("duroxide_cdb_steals_total", "queue" => hand.queue()).increment(1);
        }
    }

    /// Whether what is written into a slot is for another process: this one runs no work, or another member owns the slot.
    pub(crate) fn is_elsewhere(&self, slot: u8) -> bool {
        let view = self.view();
        self.has_bell && (!self.is_member() || !view.share.slots.contains(slot))
    }

    /// Tells the fleet of a message.
    pub(crate) fn ring_message(&self, hint: &MessageHint) {
        self.bell.ring_message(hint);
    }

    /// Tells the fleet of activities of an instance in this slot.
    pub(crate) fn ring_work(&self, slot: u8) {
        if self.has_bell {
            self.bell.ring_work(slot);
        }
    }

    /// How long others come first with what the runtime of this process has put off, for perhaps it cannot run it: they
    /// take what is not in their slots only when it is `steal_after` old, and need a while for it. `None` if nobody else is
    /// there who could.
    pub(crate) fn yields_to_others(&self, hand: Hand) -> Option<Duration> {
        let view = self.view();
        (self.has_bell && self.is_member() && view.able(hand).next().is_some())
            .then_some(self.steal_after * 2)
    }

    /// A slot of another member for what the runtime of this process has put off after so many attempts: another one each
    /// time, so that one that lacks the activity does not keep it from those that have it. A member that has just been given
    /// its slots is known before they are: then any slot will do that is not this process's.
    pub(crate) fn next_home(&self, hand: Hand, attempts: u32) -> Option<u8> {
        let view = self.view();
        let number = view.able(hand).count();
        let next = (attempts as usize).checked_rem(number)?;
        let known = view.able(hand).nth(next)?.slots.iter().next();
        known.or_else(|| SlotSet::ALL.without(view.share.slots).iter().next())
    }

    /// Whose an entry of a slot is that became visible then, for a process that has nothing else to do, or has.
    pub(crate) fn standing(&self, hand: Hand, slot: u8, visible_at: u64, is_idle: bool) -> Standing {
        let view = self.view();
        let is_outdated = view.is_outdated(self.lease);
        let age = self.clock.now_ms().saturating_sub(visible_at);
        let steal_after = millis(self.steal_after);
        let was_away = self.presence.was_away() && view.share.promised.is_some();
        standing(
            &view.share,
            slot,
            age,
            Rule { hand, visible_at, is_idle, is_outdated, was_away, steal_after },
        )
    }

    /// Notes that somebody here asks for work, as long as the guard lives.
    pub(crate) fn asking(&self) -> Asking<'_> {
        self.presence.asking()
    }

    /// Which part of the container a search looks at: the own slots, or all of it when it holds the net.
    pub(crate) fn watch(&self, is_net: bool) -> Watch {
        let view = self.view();
        let is_everything = is_net || view.share.members <= 1 || view.is_outdated(self.lease);
        if is_everything { Watch::All } else { Watch::Own(view.share.slots) }
    }

    /// The round of the net that is this member's, if one is now. The members take turns to look at everything, because
    /// nobody may be left waiting for an owner that is stuck, cannot run the work, or has not heard of it.
    pub(crate) fn net_round(&self) -> Option<u64> {
        let share = &self.view().share;
        let round = self.clock.now_ms() / self.net_ms();
        (share.members > 1 && round % share.members as u64 == share.rank as u64).then_some(round)
    }

    /// How long until this member's next turn to hold the net. `None` if members do not hear of everything else.
    pub(crate) fn net_in(&self) -> Option<Duration> {
        let view = self.view();
        // Who cannot read what the fleet has written cannot hear the bell either, and does not know who else is there.
        let hears_everything =
            self.has_bell && view.share.promised.is_some() && !view.is_outdated(self.lease);
        let (members, rank) = (view.share.members.max(1) as u64, view.share.rank as u64);
        hears_everything.then(|| until_turn(self.clock.now_ms(), self.net_ms(), members, rank))
    }

    /// Notes how many parts the container has: the more, the more a look at all of them costs.
    pub(crate) fn net_of(&self, parts: usize) {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let period = NET_PER_PART.saturating_mul(parts).clamp(NET_MIN, NET_MAX);
        self.net_ms.store(millis(period), Ordering::Relaxed);
    }

    fn net_ms(&self) -> u64 {
        self.net_ms.load(Ordering::Relaxed).max(1)
    }

    /// Whether what became visible then should have been taken by its owner, if that has heard of it.
    pub(crate) fn is_late(&self, visible_at: u64) -> bool {
        self.clock.now_ms().saturating_sub(visible_at) > millis(self.steal_after) / 2
    }

    /// As [`watch`](Self::watch), for activities: also where others have some for everybody.
    pub(crate) fn watch_for_work(&self, is_net: bool) -> Watch {
        let Watch::Own(mut slots) = self.watch(is_net) else { return Watch::All };
        let now = Instant::now();
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, until| *until > now);
        places.keys().for_each(|slot| slots.insert(*slot));
        Watch::Own(slots)
    }

    /// Notes that there are activities for everybody in a slot's part of the container.
    pub(crate) fn look_at(&self, slot: u8) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert(slot, Instant::now() + PLACE_FOR);
    }

    /// Whether a lock on an entry of this slot, visible since then and never tried before, may be kept in memory. Nobody else
    /// takes the entry for a while: the slot is this process's and promised to it; it was so when the entry became visible,
    /// so that no earlier owner can be about to take it; and all others know that somebody here runs such entries.
    pub(crate) fn may_hold_unwritten(&self, hand: Hand, slot: u8, visible_at: u64) -> bool {
        let view = self.view();
        let now = Instant::now();
        let is_promised = view.is_promised() || cosmos_wire::mutant!(31);
        let is_fresh = self.clock.now_ms().saturating_sub(visible_at) < millis(self.steal_after / 2);
        let known_from = self.known_hands.lock().unwrap_or_else(PoisonError::into_inner)[hand as usize];
        let is_known = known_from.is_some_and(|from| from <= now);
        is_promised && is_fresh && is_known && view.had(slot, visible_at) && !view.share.wanted.contains(slot)
    }

    /// Notes what the others are told of this process: what it tells from the beginning they know as soon as they know it;
    /// what it begins later, when all of them have looked again.
    pub(crate) fn tell_hands(&self, serves: Serves) {
        let mut known = self.known_hands.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let from = if self.is_member() { now + self.lease.mul_f64(HEARD_BY_ALL) } else { now };
        for hand in [Hand::Turns, Hand::Work] {
            let known = &mut known[hand as usize];
            *known = hand.is_of(serves).then(|| known.unwrap_or(from));
        }
    }

    /// A slot of this process for activities of an instance that is another's, whose turn was run here: they are this
    /// process's then, too. `None` where the owner of the instance takes them.
    pub(crate) fn home_for(&self, instance: &str) -> Option<u8> {
        let view = self.view();
        if !self.is_elsewhere(slots::of(instance)) || view.share.promised.is_none() {
            return None;
        }
        view.share.slots.without(view.share.wanted).iter().next()
    }

    /// Whether nobody else touches what is written into a slot now, as long as nobody is told.
    pub(crate) fn is_ours_alone(&self, slot: u8) -> bool {
        let view = self.view();
        self.is_member() && view.is_promised() && view.share.slots.contains(slot)
    }

    /// Whether an activity that takes so long is over long before its lock would have to be written.
    pub(crate) fn is_quick(&self, took: Duration) -> bool {
        took < self.steal_after.mul_f64(QUICK_PART)
    }

    /// When a lock has to be written that is kept in memory for an entry visible since then, and taken now for so long:
    /// before others may take the entry, and before it ends.
    pub(crate) fn write_by(&self, visible_at: u64, timeout: Duration) -> u64 {
        let others = visible_at.saturating_add(millis(self.steal_after.mul_f64(WRITE_AT)));
        others.min(self.clock.now_ms().saturating_add(millis(timeout / 2)))
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("owner", &self.owner)
            .field("view", &self.view())
            .finish_non_exhaustive()
    }
}

/// What an entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hand {
    /// Dispatchers of turns.
    Turns,
    /// Workers.
    Work,
}

impl Hand {
    /// What it takes from, in metrics.
    fn queue(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Work => "activities",
        }
    }

    /// Whether a member has such hands.
    fn is_of(self, serves: Serves) -> bool {
        match self {
            Self::Turns => serves.turns,
            Self::Work => serves.work,
        }
    }
}

/// What decides about an entry besides its age.
#[derive(Debug, Clone, Copy)]
struct Rule {
    hand: Hand,
    visible_at: u64,
    is_idle: bool,
    /// Who owns which slots has not been known for long.
    is_outdated: bool,
    /// This process was frozen, and has not asked since then what is still its own.
    was_away: bool,
    steal_after: u64,
}

/// Whose an entry is.
///
/// While its owner is busy with what came before, an entry may become as old as it likes: others leave it, or all would run
/// after the same oldest entries. But an entry that the owner has passed over, for it cannot run it, is everybody's; so is
/// what has waited for a while, for one who has nothing to do; and so it is for everybody while the owner is silent, or
/// while nobody can know whether it is.
fn standing(share: &SlotShare, slot: u8, age: u64, rule: Rule) -> Standing {
    if rule.was_away && rule.hand == Hand::Work {
        return if age < rule.steal_after { Standing::Others } else { Standing::Free };
    }
    if share.members <= 1 && share.slots == SlotSet::ALL {
        return if share.promised.is_some() { Standing::Own } else { Standing::Free };
    }
    if share.slots.contains(slot) {
        return Standing::Own;
    }
    let owner = share.others.iter().find(|other| other.slots.contains(slot));
    // A turn is committed once, whoever runs it. An activity would run twice if its owner is only slow.
    let is_taken_from_silent = rule.is_idle && rule.hand == Hand::Turns;
    let is_left =
        |owner: &OtherShare| !rule.hand.is_of(owner.serves) || (owner.is_silent && is_taken_from_silent);
    if owner.is_some_and(is_left) {
        return Standing::Free;
    }
    if age < rule.steal_after {
        return Standing::Others;
    }
    let is_passed = |owner: &OtherShare| owner.passed > rule.visible_at.saturating_add(rule.steal_after);
    let is_left_behind = owner.is_none_or(|owner| owner.is_silent || is_passed(owner));
    if rule.is_idle || rule.is_outdated || is_left_behind { Standing::Free } else { Standing::Others }
}

/// How long until the next round that is this member's begins, where each round takes `period` and the members take turns.
fn until_turn(now: u64, period: u64, members: u64, rank: u64) -> Duration {
    let round = now / period + 1;
    let next = round + (rank + members - round % members) % members;
    Duration::from_millis(next * period - now)
}

/// A look at the whole container takes two requests for each part. So many that the fleet sends less than one of them a
/// second, however many it is.
const NET_PER_PART: Duration = Duration::from_millis(4500);
/// Members look at each other within their lease; this part of it is enough for a slow one.
const HEARD_BY_ALL: f64 = 1.5;
const NET_MIN: Duration = Duration::from_secs(6);
const NET_MAX: Duration = Duration::from_secs(120);
/// Locks are written when this part of the time is over after which others may take the work.
const WRITE_AT: f64 = 0.6;
/// Half of that: an activity may take twice as long as the last one of its name.
const QUICK_PART: f64 = 0.3;
/// So long after a ring others' parts of the container are looked at.
const PLACE_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_a_slot_was_gained_may_be_in_the_hands_of_its_earlier_owner() {
        let shared = |slots: std::ops::RangeInclusive<u8>| SlotShare {
            slots: slots.collect(),
            ..SlotShare::default()
        };
        let view = View::default().next(shared(0..=9), None, 1_000);
        let view = view.next(shared(5..=14), None, 2_000);
        let cases =
            [(7, 999, false), (7, 1_000, true), (12, 1_500, false), (12, 2_000, true), (3, 5_000, false)];
        for (slot, visible_at, expected) in cases {
            assert_eq!(view.had(slot, visible_at), expected, "{slot} {visible_at}");
        }
        let view = view.next(shared(0..=9), None, 3_000);
        assert!(!view.had(3, 2_500) && view.had(7, 2_500), "a slot that comes back is new");
    }

    #[test]
    fn the_members_take_turns_to_hold_the_net() {
        let mut turns = Vec::new();
        for rank in 0..3 {
            let mut now = 1_000;
            for _ in 0..3 {
                now += u64::try_from(until_turn(now, 600, 3, rank).as_millis()).unwrap();
                turns.push((now, rank));
            }
        }
        turns.sort_unstable();
        assert!(
            turns.windows(2).all(|pair| pair[1].0 - pair[0].0 == 600 && pair[0].1 != pair[1].1),
            "{turns:?}"
        );
        assert_eq!(until_turn(1_000, 600, 1, 0), Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_known_of_the_fleet_counts_for_a_lease_longer_than_it_was_promised() {
        let lease = Duration::from_secs(10);
        let view = View { until: Some(Instant::now() + lease), ..View::default() };
        tokio::time::advance(2 * lease).await;
        assert!(!view.is_outdated(lease));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(view.is_outdated(lease));
        assert!(!View::default().is_outdated(lease), "who was promised nothing has nothing to lose");
    }

    #[test]
    fn an_entry_is_its_owners_until_it_was_passed_over_or_somebody_is_idle() {
        let mine: SlotSet = (0..=99).collect();
        let serves = Serves { turns: true, work: false };
        let busy = OtherShare { slots: (100..=199).collect(), passed: 10_000, serves, is_silent: false };
        let share = SlotShare {
            slots: mine,
            members: 2,
            promised: Some(Duration::from_secs(8)),
            others: vec![busy],
            ..SlotShare::default()
        };
        use Standing::{Free, Others, Own};
        for (slot, visible_at, age, is_idle, expected) in [
            (5, 9_000, 0, false, Own),
            (5, 9_000, 90_000, false, Own),
            (150, 9_000, 4_999, true, Others),
            (150, 9_000, 5_000, true, Free),
            (150, 9_000, 60_000, false, Others),
            (150, 4_000, 60_000, false, Free),
            (250, 9_000, 4_999, false, Others),
            (250, 9_000, 5_000, false, Free),
        ] {
            let rule = Rule {
                hand: Hand::Turns,
                visible_at,
                is_idle,
                is_outdated: false,
                was_away: false,
                steal_after: 5_000,
            };
            assert_eq!(standing(&share, slot, age, rule), expected, "{slot} {visible_at} {age} {is_idle}");
        }
        let silent = OtherShare { is_silent: true, ..share.others[0].clone() };
        let beside_the_dead = SlotShare { others: vec![silent], ..share.clone() };
        for (is_idle, expected) in [(true, Free), (false, Others)] {
            let rule = Rule {
                hand: Hand::Turns,
                visible_at: 9_000,
                is_idle,
                is_outdated: false,
                was_away: false,
                steal_after: 5_000,
            };
            assert_eq!(
                standing(&beside_the_dead, 150, 0, rule),
                expected,
                "who seems to be dead does not hide work"
            );
        }
        let busy = Rule {
            hand: Hand::Turns,
            visible_at: 9_000,
            is_idle: false,
            is_outdated: false,
            was_away: false,
            steal_after: 5_000,
        };
        assert_eq!(
            standing(&beside_the_dead, 150, 5_000, busy),
            Free,
            "nor from those who are busy, for long"
        );
        let outdated = Rule { is_outdated: true, ..busy };
        for (age, expected) in [(4_999, Others), (5_000, Free)] {
            assert_eq!(standing(&share, 150, age, outdated), expected, "nobody knows who is dead");
        }
        let rule = Rule {
            hand: Hand::Work,
            visible_at: 0,
            is_idle: true,
            is_outdated: false,
            was_away: false,
            steal_after: 5_000,
        };
        let worker = OtherShare {
            is_silent: true,
            serves: Serves { turns: true, work: true },
            ..share.others[0].clone()
        };
        let beside_a_slow_worker = SlotShare { others: vec![worker], ..share.clone() };
        assert_eq!(standing(&beside_a_slow_worker, 150, 4_999, rule), Others, "it may be at it");
        let rule = Rule {
            hand: Hand::Work,
            visible_at: 0,
            is_idle: false,
            is_outdated: false,
            was_away: false,
            steal_after: 5_000,
        };
        assert_eq!(standing(&share, 150, 0, rule), Free, "its owner runs no activities");
        let back = Rule { was_away: true, ..rule };
        for (age, expected) in [(4_999, Others), (5_000, Free)] {
            assert_eq!(standing(&share, 5, age, back), expected, "it may be another's by now");
        }
        assert_eq!(
            standing(&share, 5, 0, Rule { hand: Hand::Turns, ..back }),
            Own,
            "a turn is committed once"
        );
        assert_eq!(standing(&SlotShare::everything(), 7, 0, rule), Free, "who shares nothing takes all");
    }
}
