//! Time, in one place.
//!
//! Lock times and visibility are wall-clock milliseconds because other processes read them; waiting and
//! deadlines use the monotonic clock. Everything asks this type, nobody asks the system.
//!
//! The clocks of processes differ, the service's is one: every answer carries its date, and a clock that cannot be
//! right by it is put right. A clock that may be right stays as it is, so that on machines whose clocks are kept right
//! nothing ever moves.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Wall-clock milliseconds, a monotonic clock, and strictly increasing sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// What has to be added to the system's clock to get the service's.
    offset_ms: AtomicI64,
    last_sequence: Mutex<u64>,
}

impl Clock {
    /// A clock that takes the system's to differ from the service's by so much, until it learns better.
    pub(crate) fn shifted(offset_ms: i64) -> Self {
        Self { offset_ms: AtomicI64::new(offset_ms), last_sequence: Mutex::new(0) }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.of_system(system_ms())
    }

    /// The service's time when the system's clock shows, showed or will show `system_ms`: what the runtime says about
    /// time it has from the system's clock.
    pub(crate) fn of_system(&self, system_ms: u64) -> u64 {
        let offset = self.offset_ms.load(Ordering::Relaxed);
        system_ms.saturating_add_signed(offset).min(TIME_MAX_MS)
    }

    /// Takes note of the service's date, from an answer that has just come after so long a time.
    pub(crate) fn learn(&self, date: SystemTime, took: Duration) {
        let received = system_ms();
        let asked = received.saturating_sub(millis(took)).saturating_sub(1);
        let date = unix_ms(date);
        let learned = self.offset_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |offset| {
            let right = put_right(offset, date, asked, received);
            (right != offset).then_some(right)
        });
        if let Ok(before) = learned
            && before.abs_diff(difference(date, received)) > NOTABLE_MS
        {
            tracing::warn!(
                "this machine's clock is wrong by about {} s; the service's time is used",
                difference(received, date) / 1000
            );
        }
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
    pub(crate) fn next_sequence_after(&self, floor: u64) -> u64 {
        let by_time = self.now_ms().saturating_mul(SEQUENCES_PER_MS);
        let mut last = self.last_sequence.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *last = by_time.max(*last + 1).max(floor + 1);
        *last
    }
}

/// What to add to the system's clock, given that between the times `asked` and `received` of it the service's clock
/// showed `date`, which has no fractions of a second. What may be right stays. What cannot be is set to the earliest
/// time that can: a clock that was wrong is then behind by up to a second until later answers bring it closer, and what
/// it stamps is not in the future of others.
fn put_right(offset_ms: i64, date_ms: u64, asked_ms: u64, received_ms: u64) -> i64 {
    let earliest = difference(date_ms, received_ms);
    let latest = difference(date_ms + DATE_STEP_MS, asked_ms);
    if (earliest..=latest).contains(&offset_ms) { offset_ms } else { earliest }
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

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Order keys must stay below 2^53, the largest integer JSON numbers keep exactly: 1024 per millisecond lasts
/// until the year 2248.
const SEQUENCES_PER_MS: u64 = 1024;

/// The largest integer that JSON numbers keep exactly.
const TIME_MAX_MS: u64 = (1 << 53) - 1;

/// A date tells seconds.
const DATE_STEP_MS: u64 = 1000;
/// A difference that somebody should look into.
const NOTABLE_MS: u64 = 5000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_may_be_right_stays_and_a_wrong_one_is_put_right_from_below() {
        // The service's clock shows 100.000 to 100.999 at some time between asking and answering.
        let cases = [
            // (offset, asked, received, right)
            (0, 100_000, 100_040, 0),
            (0, 100_900, 100_999, 0),
            (0, 99_990, 100_010, 0),
            (250, 100_100, 100_140, 250),
            (0, 400_500, 400_540, -300_540),
            (-299_600, 400_500, 400_540, -299_600),
            (0, 40_500, 40_540, 59_460),
            (600_000, 100_500, 100_540, -540),
        ];
        for (offset, asked, received, right) in cases {
            assert_eq!(put_right(offset, 100_000, asked, received), right, "{offset} {asked} {received}");
        }
    }

    #[test]
    fn the_answers_of_a_second_bring_a_wrong_clock_close_and_never_ahead() {
        // This clock shows five minutes more than the service's.
        let mut offset = 0;
        for service in (7_300..9_000).step_by(50) {
            let (date, received) = (service / 1000 * 1000, service + 300_000 + 2);
            offset = put_right(offset, date, received - 4, received);
            assert!(offset <= -300_000, "ahead by {} ms", offset + 300_000);
        }
        assert!(offset > -300_060, "behind by {} ms", -300_000 - offset);
    }

    #[test]
    fn what_the_runtime_says_about_time_is_meant_by_the_systems_clock() {
        let clock = Clock::shifted(0);
        clock.learn(UNIX_EPOCH + Duration::from_secs(1_000_000), Duration::ZERO);
        let in_a_minute = clock.of_system(system_ms() + 60_000);
        assert!((1_000_059_000..=1_000_061_000).contains(&in_a_minute), "{in_a_minute}");
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
    fn the_longest_time_ends_where_numbers_do() {
        let clock = Clock::default();
        assert_eq!(clock.after(Duration::MAX), TIME_MAX_MS);
        assert!(clock.after(Duration::from_secs(1)) < clock.now_ms() + 2000);
    }
}
