//! The one place that asks what time it is.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    since_1970(SystemTime::now())
}

fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    u64::try_from(since).unwrap_or(u64::MAX)
}

/// The service's time. What is stored is dated by it, and an operator's clock may be minutes off.
#[derive(Debug, Default)]
pub(crate) struct ServiceClock {
    /// How far it is ahead of this machine's, in milliseconds; zero as long as nothing else is sure.
    ahead_ms: AtomicI64,
}

impl ServiceClock {
    /// Takes note of the date of an answer that has just arrived.
    pub(crate) fn learn(&self, date: Option<SystemTime>) {
        if let Some(date) = date {
            self.ahead_ms.store(ahead(since_1970(date), now_ms()), Ordering::Relaxed);
        }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        now_ms().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed))
    }
}

/// How far a date is ahead of a clock. Dates have whole seconds and answers take a while, so clocks that are about the same
/// are taken to be the same.
fn ahead(date: u64, now: u64) -> i64 {
    let middle = date.saturating_add(HALF_A_SECOND_MS).cast_signed();
    let ahead = middle.saturating_sub(now.cast_signed());
    if ahead.unsigned_abs() <= ABOUT_MS { 0 } else { ahead }
}

const HALF_A_SECOND_MS: u64 = 500;
const ABOUT_MS: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_about_right_is_believed_and_a_wrong_one_is_not() {
        for (date, now, expected) in [
            (10_000, 10_000, 0),
            (10_000, 12_400, 0),
            (10_000, 8_600, 0),
            (10_000, 200_500, -190_000),
            (200_000, 10_500, 190_000),
        ] {
            assert_eq!(ahead(date, now), expected, "{date} {now}");
        }
    }
}
