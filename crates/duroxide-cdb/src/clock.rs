//! Time, in one place.
//!
//! Lock times and visibility are wall-clock milliseconds because other processes read them; waiting and
//! deadlines use the monotonic clock. Everything asks this type, nobody asks the system.
//!
//! The clocks of processes differ, the service's is one: every answer, also to a search, carries its date, and a clock
//! that is wrong by seconds by it is put right. From then on time goes by the monotonic clock, so that nobody who sets
//! the system's clock changes it. A clock that is right within seconds stays as it is.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Wall-clock milliseconds, a monotonic clock, and strictly increasing sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// What the system's clock is taken to lack, until an answer says otherwise.
    offset_ms: i64,
    /// When the system's clock was found to be wrong: the service's time, and the moment.
    anchor: RwLock<Option<(u64, std::time::Instant)>>,
    last_sequence: Mutex<u64>,
}

impl Clock {
    /// A clock that takes the system's to differ from the service's by so much, until it learns better.
    pub(crate) fn shifted(offset_ms: i64) -> Self {
        Self { offset_ms, ..Self::default() }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        let anchor = *self.anchor.read().unwrap_or_else(PoisonError::into_inner);
        let now = match anchor {
            Some((service_ms, at)) => service_ms.saturating_add(millis(at.elapsed())),
            None => system_ms().saturating_add_signed(self.offset_ms),
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
        let received = self.now_ms();
        // Read after the other: what passes between the two makes the question older, never younger.
        let asked = received.saturating_sub(millis(begun.elapsed()));
        let date = unix_ms(date);
        if !is_wrong(date, asked, received) || date > DATE_MAX_MS {
            return;
        }
        tracing::warn!(
            "this machine's clock is wrong by about {} s; the service's time is used",
            difference(received, date) / 1000
        );
        // The earliest time it can be: what this process stamps is not in the future of others.
        let anchor = Some((date, std::time::Instant::now()));
        *self.anchor.write().unwrap_or_else(PoisonError::into_inner) = anchor;
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

/// Whether a clock is wrong by seconds that showed `asked_ms` and `received_ms` when a question was asked and its answer
/// received, given that in between the service's clock showed `date_ms`. Small differences are not worth a jump: dates
/// are told in whole seconds, and some servers make a new one only once a second.
fn is_wrong(date_ms: u64, asked_ms: u64, received_ms: u64) -> bool {
    let (earliest, latest) = (date_ms, date_ms + DATE_STEP_MS);
    received_ms + TOLERANCE_MS < earliest || latest + TOLERANCE_MS < asked_ms
}

fn difference(minuend_ms: u64, subtrahend_ms: u64) -> i64 {
    let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    signed(minuend_ms).saturating_sub(signed(subtrahend_ms))
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

/// A date tells seconds, and may be one second old.
const DATE_STEP_MS: u64 = 2000;
/// A clock that is wrong by less stays as it is.
const TOLERANCE_MS: u64 = 3000;
/// Order keys are made of times up to this one.
const DATE_MAX_MS: u64 = TIME_MAX_MS / SEQUENCES_PER_MS / 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_when_it_is_wrong_by_seconds() {
        // The service's clock showed 100.000 to 101.999 at some time between asking and answering.
        let cases = [
            // (asked, received, wrong)
            (100_000, 100_040, false),
            (101_900, 101_999, false),
            (99_000, 99_010, false),
            (97_010, 97_040, false),
            (104_900, 104_950, false),
            (96_000, 96_040, true),
            (105_010, 105_050, true),
            // A slow answer says little.
            (60_000, 140_000, false),
            (400_500, 400_540, true),
        ];
        for (asked, received, wrong) in cases {
            assert_eq!(is_wrong(100_000, asked, received), wrong, "{asked} {received}");
        }
    }

    #[test]
    fn a_wrong_clock_is_put_right_once_and_goes_on_whatever_the_systems_shows() {
        let clock = Clock::shifted(0);
        let begun = std::time::Instant::now();
        clock.learn(at_ms(1_000_000_000_000), Instant::now());
        let shown = clock.now_ms() - 1_000_000_000_000;
        assert!(shown <= millis(begun.elapsed()), "it goes on from there: {shown}");
        // Answers that agree move nothing, and an absurd one is not believed.
        let before = anchor_of(&clock);
        let asked = Instant::now();
        clock.learn(at_ms(clock.now_ms() - 1000), asked);
        clock.learn(at_ms(20_000_000_000_000), Instant::now());
        assert_eq!(anchor_of(&clock), before);
        // A later one that does not puts it right again.
        let in_an_hour = clock.now_ms() + 3_600_000;
        clock.learn(at_ms(in_an_hour), Instant::now());
        assert_eq!(anchor_of(&clock).map(|(service_ms, _)| service_ms), Some(in_an_hour));
        assert!(clock.now_ms() >= in_an_hour);
    }

    #[test]
    fn what_the_runtime_says_about_time_is_meant_by_the_systems_clock() {
        let clock = Clock::shifted(0);
        let begun = std::time::Instant::now();
        clock.learn(at_ms(1_000_000_000), Instant::now());
        let in_a_minute = clock.of_system(system_ms() + 60_000);
        // The clocks go on from one line to the next, and each is rounded.
        let off = in_a_minute.abs_diff(1_000_060_000);
        assert!(off <= millis(begun.elapsed()) + 3, "{in_a_minute}");
    }

    fn at_ms(unix_ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(unix_ms)
    }

    fn anchor_of(clock: &Clock) -> Option<(u64, std::time::Instant)> {
        *clock.anchor.read().unwrap()
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
