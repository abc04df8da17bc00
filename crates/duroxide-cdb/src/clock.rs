//! Time, in one place.
//!
//! Lock times and visibility are wall-clock milliseconds because other processes read them; waiting and
//! deadlines use the monotonic clock. `Clock::shifted` is the seam where an estimate of the server's clock
//! enters later: everything asks this type, nobody asks the system.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Wall-clock milliseconds, a monotonic clock, and strictly increasing sequence numbers.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    offset_ms: i64,
    last_sequence: Mutex<u64>,
}

impl Clock {
    /// A clock that differs from the system's by a fixed amount.
    pub(crate) fn shifted(offset_ms: i64) -> Self {
        Self { offset_ms, last_sequence: Mutex::new(0) }
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        u64::try_from(millis.saturating_add(self.offset_ms)).unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

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
