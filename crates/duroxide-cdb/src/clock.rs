//! Time, in one place.
//!
//! Lock times and visibility are wall-clock milliseconds because other processes read them; waiting and
//! deadlines use the monotonic clock. Everything asks this type, nobody asks the system.
//!
//! The clocks of processes differ, the service's is one: every answer, also to a search, carries its date, in whole seconds.
//! Each date says between which bounds the service's clock was, and the bounds of many answers are close together. As long
//! as the system's clock is within all of them it is believed. From the moment it is not, time is the earliest that the
//! service's can be, and goes by the monotonic clock, so that nobody who sets the system's clock changes it.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Wall-clock milliseconds, a monotonic clock, and strictly increasing sequence numbers.
#[derive(Debug)]
pub(crate) struct Clock {
    /// What the system's clock is taken to lack, until answers say otherwise.
    offset_ms: i64,
    /// Where the monotonic clock is zero.
    zero: std::time::Instant,
    known: RwLock<Known>,
    last_sequence: Mutex<u64>,
}

/// What the answers have told.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What has to be added to the monotonic clock.
    span: Option<Span>,
    /// Dates may be a second old: the server makes a new one only once a second.
    are_dates_old: bool,
    /// The system's clock was outside of the bounds.
    is_system_wrong: bool,
    /// When the service was asked for its time, by the monotonic clock.
    asked_at: Option<i64>,
}

/// Bounds of what has to be added to the monotonic clock to get the service's, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    least: i64,
    most: i64,
    /// When they were told, by the monotonic clock.
    at: i64,
}

impl Span {
    /// What an answer says whose question was asked at `asked` and that came at `received`, by the monotonic clock: in
    /// between the service's clock showed `shown` or up to `step` later.
    fn told(shown: i64, step: i64, asked: i64, received: i64) -> Self {
        // A millisecond more: each time is rounded down.
        Self { least: shown - received - 1, most: shown + step - asked, at: received }
    }

    /// The same at a later time: monotonic clocks drift apart.
    fn at(self, now: i64) -> Self {
        let drift = (now - self.at).max(0) / DRIFT_PER;
        Self { least: self.least - drift, most: self.most + drift, at: now }
    }

    /// What both allow.
    fn and(self, other: Self) -> Option<Self> {
        let both = Self { least: self.least.max(other.least), most: self.most.min(other.most), at: other.at };
        (both.least <= both.most).then_some(both)
    }

    fn width(self) -> i64 {
        self.most - self.least
    }

    /// Whether the system's clock is wrong that showed `system` at some time from `before` to `after`, by the monotonic
    /// clock. On a busy machine a thread may stop between the two clocks for as long as a second: what passed there says
    /// nothing about either. A right clock that was taken for wrong would set time back by as much as the bounds are
    /// apart, and what was sent a moment ago would not be visible yet.
    fn excludes(self, system: i64, before: i64, after: i64) -> bool {
        system - before < self.least || self.most < system - after
    }
}

impl Known {
    /// Takes note of a date. What does not agree with what was known is either older than it looks, or the service's clock
    /// was moved, or this machine slept: then only the last answer counts.
    fn learn(&mut self, date: i64, asked: i64, received: i64) {
        let told = |step| Span::told(date, step, asked, received);
        let step = if self.are_dates_old { OLD_DATE_STEP_MS } else { DATE_STEP_MS };
        let before = self.span.map(|span| span.at(received));
        let Some(before) = before else {
            self.span = Some(told(step));
            return;
        };
        let agreed = before.and(told(step));
        let agreed = agreed.or_else(|| {
            let agreed = before.and(told(OLD_DATE_STEP_MS));
            self.are_dates_old |= agreed.is_some();
            agreed
        });
        self.span = Some(agreed.unwrap_or_else(|| told(step)));
    }

    /// Takes note of an exact time. Dates that are always old by the same fraction of a second agree with each other, and
    /// make a right clock look wrong: only an exact time shows it.
    fn learn_exactly(&mut self, told: Span) {
        let Some(before) = self.span.map(|span| span.at(told.at)) else { return };
        let as_old = Span { most: before.most + OLD_DATE_STEP_MS - DATE_STEP_MS, ..before };
        if let Some(agreed) = before.and(told) {
            self.span = Some(agreed);
        } else if let Some(agreed) = as_old.and(told) {
            (self.span, self.are_dates_old, self.is_system_wrong) = (Some(agreed), true, false);
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::shifted(0)
    }
}

impl Clock {
    /// A clock that takes the system's to differ from the service's by so much, until it learns better.
    pub(crate) fn shifted(offset_ms: i64) -> Self {
        Self {
            offset_ms,
            zero: std::time::Instant::now(),
            known: RwLock::default(),
            last_sequence: Mutex::default(),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        let known = *self.known.read().unwrap_or_else(PoisonError::into_inner);
        let now = match known.span {
            Some(span) if known.is_system_wrong => {
                let now = self.monotonic_ms();
                u64::try_from(now.saturating_add(span.at(now).least)).unwrap_or(0)
            }
            _ => self.system_guess(),
        };
        now.min(TIME_MAX_MS)
    }

    /// The service's time when the system's clock shows, showed or will show `system_ms`: what the runtime says about
    /// time it has from the system's clock.
    pub(crate) fn of_system(&self, system_at_ms: u64) -> u64 {
        let offset = difference(self.now_ms(), system_ms());
        system_at_ms.saturating_add_signed(offset).min(TIME_MAX_MS)
    }

    /// Takes note of the service's date, from an answer that has just come to what was asked at `begun`.
    pub(crate) fn learn(&self, date: SystemTime, begun: Instant) {
        let date = unix_ms(date);
        if date > DATE_MAX_MS {
            return;
        }
        let (asked, received) = self.since(begun);
        self.note(|known| known.learn(signed(date), asked, received));
    }

    /// Takes note of what the service said its time was, in milliseconds, to a question asked at `begun`. What its dates
    /// do not allow is not believed.
    pub(crate) fn learn_exactly(&self, service_ms: u64, begun: Instant) {
        let (asked, received) = self.since(begun);
        let told = Span::told(signed(service_ms.min(DATE_MAX_MS)), 1, asked, received);
        self.note(|known| known.learn_exactly(told));
    }

    /// Whether it is time to ask the service for its time: this machine's clock is wrong, and dates alone tell too little.
    pub(crate) fn wants_to_ask(&self) -> bool {
        let now = self.monotonic_ms();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_vague = known.span.is_some_and(|span| span.at(now).width() > VAGUE_MS);
        let is_early = known.asked_at.is_some_and(|at| now < at + ASK_AGAIN_MS);
        let is_first = known.asked_at.is_none();
        let wants = known.is_system_wrong && (is_first || (is_vague && !is_early));
        if wants {
            known.asked_at = Some(now);
        }
        wants
    }

    fn note(&self, learn: impl FnOnce(&mut Known)) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        learn(&mut known);
        let Some(span) = known.span.filter(|_| !known.is_system_wrong) else { return };
        let before = self.monotonic_ms();
        let system = signed(self.system_guess());
        if span.excludes(system, before, self.monotonic_ms()) {
            known.is_system_wrong = true;
            let wrong_by = system - before - span.least;
            if wrong_by.abs() >= WORTH_TELLING_MS {
                tracing::warn!(
                    "this machine's clock is wrong by about {} s; the service's time is used",
                    wrong_by / 1000
                );
            }
        }
    }

    /// When something was begun, and now, by the monotonic clock.
    fn since(&self, begun: Instant) -> (i64, i64) {
        let received = self.monotonic_ms();
        // Read after the other: what passes between the two makes the question older, never younger.
        (received - signed(millis(begun.elapsed())) - 1, received)
    }

    fn monotonic_ms(&self) -> i64 {
        signed(millis(self.zero.elapsed()))
    }

    fn system_guess(&self) -> u64 {
        system_ms().saturating_add_signed(self.offset_ms)
    }

    /// When a time from now on is over, in milliseconds since the Unix epoch; the end of all times if it is that long.
    pub(crate) fn after(&self, duration: Duration) -> u64 {
        self.now_ms().saturating_add(millis(duration)).min(TIME_MAX_MS)
    }

    /// The monotonic clock.
    pub(crate) fn instant(&self) -> Instant {
        Instant::now()
    }

    /// The next order key: wall time first, then a counter; greater than all this process made, and than `floor`.
    ///
    /// A floor that no clock can have made is an instance's own damage: its next key is beyond it, and the counter, which
    /// all instances of this process share, stays where it is.
    pub(crate) fn next_sequence_after(&self, floor: u64) -> u64 {
        let by_time = self.now_ms().saturating_mul(SEQUENCES_PER_MS);
        let mut last = self.last_sequence.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = by_time.max(last.saturating_add(1));
        if floor > next.saturating_add(FAST_CLOCK_MS * SEQUENCES_PER_MS) {
            return floor.saturating_add(1);
        }
        *last = next.max(floor + 1);
        *last
    }
}

fn difference(minuend_ms: u64, subtrahend_ms: u64) -> i64 {
    signed(minuend_ms).saturating_sub(signed(subtrahend_ms))
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

fn system_ms() -> u64 {
    unix_ms(SystemTime::now())
}

fn unix_ms(time: SystemTime) -> u64 {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The order key of a document that has only a time of enqueueing.
pub(crate) fn sequence_of(enqueued_at_ms: u64) -> u64 {
    enqueued_at_ms.saturating_mul(SEQUENCES_PER_MS)
}

/// How long it is until a stored time, and not so long that a clock could not count it.
pub(crate) fn millis_until(at_ms: u64, now_ms: u64) -> Duration {
    Duration::from_millis(at_ms.saturating_sub(now_ms).min(UNTIL_MAX_MS))
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Order keys must stay below 2^53, the largest integer JSON numbers keep exactly: 1024 per millisecond lasts
/// until the year 2248.
const SEQUENCES_PER_MS: u64 = 1024;

/// The largest integer that JSON numbers keep exactly.
const TIME_MAX_MS: u64 = (1 << 53) - 1;

/// Who waits for a stored time looks again after a year.
const UNTIL_MAX_MS: u64 = 365 * 24 * 3600 * 1000;
/// Clocks of other processes are not ahead by more: each is put right by the service's dates.
const FAST_CLOCK_MS: u64 = 24 * 3600 * 1000;

/// A date tells seconds.
const DATE_STEP_MS: i64 = 1000;
/// One of a server that makes a new one only once a second may be a second old.
const OLD_DATE_STEP_MS: i64 = 2000;
/// A clock that is wrong by less is put right without a word.
const WORTH_TELLING_MS: i64 = 1000;
/// Bounds that are further apart are worth a question.
const VAGUE_MS: i64 = 250;
const ASK_AGAIN_MS: i64 = 60_000;
/// Two clocks drift apart by a millisecond in so many: a hundred parts in a million.
const DRIFT_PER: i64 = 10_000;
/// Order keys are made of times up to this one.
const DATE_MAX_MS: u64 = TIME_MAX_MS / SEQUENCES_PER_MS / 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known after dates of a service whose clock is `ahead` of the monotonic one, at these times of the latter;
    /// each answer takes ten milliseconds.
    fn after(ahead: i64, at: impl Iterator<Item = i64>, shown: impl Fn(i64) -> i64) -> Known {
        let mut known = Known::default();
        for asked in at {
            known.learn(shown(asked + 5 + ahead), asked, asked + 10);
        }
        known
    }

    #[test]
    fn a_thread_that_stops_between_two_clocks_does_not_make_one_of_them_wrong() {
        let span = Span { least: 100_000, most: 100_050, at: 0 };
        for (system, before, after, expected) in [
            (101_020, 1000, 1000, false),
            (101_020, 1000, 1001, false),
            (101_320, 1000, 1300, false),
            (101_320, 1020, 1020, true),
            (101_320, 1020, 1269, true),
            (100_900, 1000, 1000, true),
            (100_900, 1000, 1900, true),
        ] {
            assert_eq!(span.excludes(system, before, after), expected, "{system} {before} {after}");
        }
    }

    #[test]
    fn many_dates_tell_the_time_better_than_one() {
        const AHEAD: i64 = 1_000_000_123;
        let whole = |ms: i64| ms / 1000 * 1000;
        let one = after(AHEAD, std::iter::once(400), whole).span.unwrap();
        assert!(one.least <= AHEAD && AHEAD <= one.most && one.width() <= 1020, "{one:?}");
        let many = after(AHEAD, (0..100).map(|n| n * 137), whole).span.unwrap();
        assert!(many.least <= AHEAD && AHEAD <= many.most && many.width() <= 60, "{many:?}");
    }

    #[test]
    fn dates_that_are_a_fraction_of_a_second_old_are_recognised() {
        const AHEAD: i64 = 1_000_000_123;
        let whole = |ms: i64| ms / 1000 * 1000;
        // A server that makes a new date once a second, some time after the second has begun: by an exact time.
        let mut known = after(AHEAD, (0..100).map(|n| n * 137), |ms| whole(ms - 700));
        assert!(known.span.unwrap().most < AHEAD, "they agree, and are wrong");
        known.is_system_wrong = true;
        known.learn_exactly(Span::told(15_005 + AHEAD, 1, 15_000, 15_010));
        let span = known.span.unwrap();
        assert!(known.are_dates_old && !known.is_system_wrong, "{known:?}");
        assert!(span.least <= AHEAD && AHEAD <= span.most && span.width() <= 20, "{span:?}");
        known.learn(whole(16_005 + AHEAD - 700), 16_000, 16_010);
        assert!(known.span.is_some_and(|span| span.least <= AHEAD && AHEAD <= span.most), "{known:?}");
        // Or by another server that makes them at another time.
        let of_two = |ms: i64| whole(ms - if ms / 137 % 2 == 0 { 700 } else { 100 });
        let known = after(AHEAD, (0..100).map(|n| n * 137), of_two);
        assert!(known.are_dates_old, "{known:?}");
    }

    #[test]
    fn a_service_whose_clock_is_moved_is_followed_at_once() {
        let mut known = after(1_000_000_000, (0..100).map(|n| n * 137), |ms| ms / 1000 * 1000);
        for ahead in [1_003_600_000, 999_000_000] {
            known.learn((20_005 + ahead) / 1000 * 1000, 20_000, 20_010);
            let span = known.span.unwrap();
            assert!(span.least <= ahead && ahead <= span.most && span.width() <= 2020, "{span:?}");
        }
    }

    #[test]
    fn bounds_become_vague_with_time() {
        let span = Span { least: 10, most: 20, at: 0 };
        assert_eq!(span.at(36_000_000), Span { least: 10 - 3600, most: 20 + 3600, at: 36_000_000 });
    }

    #[test]
    fn the_systems_clock_is_believed_as_long_as_the_dates_allow_it() {
        let clock = Clock::shifted(0);
        for _ in 0..10 {
            let asked = Instant::now();
            clock.learn(at_ms(system_ms() / 1000 * 1000), asked);
        }
        assert!(!known_to(&clock).is_system_wrong);
        assert!(clock.now_ms().abs_diff(system_ms()) <= 1000);
        assert!(!clock.wants_to_ask());
    }

    #[test]
    fn a_clock_that_is_a_second_or_two_ahead_is_never_ahead_after_the_first_answer() {
        for ahead in [1100, 2500, 700_000] {
            let clock = Clock::shifted(ahead);
            clock.learn(at_ms(system_ms() / 1000 * 1000), Instant::now());
            let now = clock.now_ms();
            let system = system_ms();
            assert!(now <= system && system - now <= 1500, "{ahead}: {now} {system}");
            // One question makes it exact, and one is enough.
            assert!(clock.wants_to_ask() && !clock.wants_to_ask());
            let asked = Instant::now();
            clock.learn_exactly(system_ms(), asked);
            let now = clock.now_ms();
            assert!(now <= system_ms(), "{now}");
            assert!(known_to(&clock).span.unwrap().width() <= signed(millis(asked.elapsed())) + 4);
        }
    }

    #[test]
    fn a_wrong_clock_goes_on_from_the_dates_whatever_the_systems_shows() {
        let clock = Clock::shifted(0);
        let begun = std::time::Instant::now();
        clock.learn(at_ms(1_000_000_000_000), Instant::now());
        let shown = clock.now_ms() + 2 - 1_000_000_000_000;
        assert!(shown <= millis(begun.elapsed()) + 2, "it goes on from there: {shown}");
        // An absurd answer is not believed, nor one that the dates do not allow.
        let before = known_to(&clock).span;
        clock.learn(at_ms(20_000_000_000_000), Instant::now());
        clock.learn_exactly(2_000_000_000_000, Instant::now());
        assert_eq!(known_to(&clock).span.map(|span| span.least), before.map(|span| span.least));
        let in_an_hour = clock.now_ms() + 3_600_000;
        clock.learn(at_ms(in_an_hour), Instant::now());
        assert!(clock.now_ms() + 2 >= in_an_hour);
    }

    #[test]
    fn what_the_runtime_says_about_time_is_meant_by_the_systems_clock() {
        let clock = Clock::shifted(0);
        let begun = std::time::Instant::now();
        clock.learn(at_ms(1_000_000_000), Instant::now());
        let in_a_minute = clock.of_system(system_ms() + 60_000);
        // The clocks go on from one line to the next, and each is rounded.
        let off = in_a_minute.abs_diff(1_000_060_000);
        assert!(off <= millis(begun.elapsed()) + 4, "{in_a_minute}");
    }

    fn at_ms(unix_ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(unix_ms)
    }

    fn known_to(clock: &Clock) -> Known {
        *clock.known.read().unwrap()
    }

    #[test]
    fn sequences_of_one_millisecond_keep_their_order() {
        let clock = Clock::default();
        let keys: Vec<u64> = (0..5000).map(|_| clock.next_sequence_after(0)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(keys[4999] < 1 << 53);
    }

    #[test]
    fn a_slow_clock_does_not_order_its_items_before_what_it_has_seen() {
        let fast = Clock::shifted(60_000).next_sequence_after(0);
        assert!(Clock::default().next_sequence_after(fast) > fast);
    }

    #[test]
    fn a_key_that_no_clock_made_moves_no_other() {
        let clock = Clock::default();
        let before = clock.next_sequence_after(0);
        for absurd in [1 << 60, u64::MAX - 1, u64::MAX] {
            assert!(clock.next_sequence_after(absurd) >= absurd, "{absurd}");
        }
        let after = clock.next_sequence_after(0);
        assert!(before < after && after < 1 << 53, "{after}");
    }

    #[test]
    fn a_stored_time_is_waited_for_as_long_as_a_clock_can_count() {
        assert_eq!(millis_until(7, 5), Duration::from_millis(2));
        assert_eq!(millis_until(5, 7), Duration::ZERO);
        assert_eq!(millis_until(u64::MAX, 7), Duration::from_millis(UNTIL_MAX_MS));
    }

    #[test]
    fn the_longest_time_ends_where_numbers_do() {
        let clock = Clock::default();
        assert_eq!(clock.after(Duration::MAX), TIME_MAX_MS);
        assert!(clock.after(Duration::from_secs(1)) < clock.now_ms() + 2000);
    }
}
