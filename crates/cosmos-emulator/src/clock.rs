//! Time as the emulator sees it: the machine's clock, or one that a test moves by hand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A handle to a clock; clones show the same time, also after one of them was put forward.
#[derive(Clone)]
pub struct Clock(Kind);

#[derive(Clone)]
enum Kind {
    /// The machine's clock and how far it was put forward, in microseconds.
    Real(Arc<AtomicU64>),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    pub fn real() -> Self {
        Self(Kind::Real(Arc::default()))
    }

    /// A clock that stands still at `start` (since 1970) until its hand moves it.
    pub fn manual(start: Duration) -> (Self, ManualClock) {
        let micros = Arc::new(AtomicU64::new(micros_of(start)));
        (Self(Kind::Manual(Arc::clone(&micros))), ManualClock(micros))
    }

    /// Microseconds since 1970.
    pub fn now_micros(&self) -> u64 {
        match &self.0 {
            Kind::Real(ahead) => {
                let machine = micros_of(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
                machine.saturating_add(ahead.load(Ordering::SeqCst))
            }
            Kind::Manual(micros) => micros.load(Ordering::SeqCst),
        }
    }

    /// Milliseconds since 1970.
    pub fn now_millis(&self) -> u64 {
        self.now_micros() / 1_000
    }

    /// Whole seconds since 1970: the unit of `_ts`.
    pub fn now_seconds(&self) -> u64 {
        self.now_micros() / 1_000_000
    }

    /// Puts the clock forward, whichever kind it is: what expires in an hour can be seen to expire now.
    pub fn advance(&self, by: Duration) {
        let (Kind::Real(micros) | Kind::Manual(micros)) = &self.0;
        micros.fetch_add(micros_of(by), Ordering::SeqCst);
    }

    /// Whether it was put forward from the machine's: then answers must tell its time, which nobody else knows.
    pub(crate) fn is_ahead(&self) -> bool {
        match &self.0 {
            Kind::Real(ahead) => ahead.load(Ordering::SeqCst) > 0,
            Kind::Manual(_) => false,
        }
    }

    /// The time as the standard library has it.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.now_micros())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Real(ahead) => write!(f, "Clock(real, {} µs ahead)", ahead.load(Ordering::SeqCst)),
            Kind::Manual(micros) => write!(f, "Clock(manual at {} µs)", micros.load(Ordering::SeqCst)),
        }
    }
}

/// The hand of a manual clock.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(micros_of(by), Ordering::SeqCst);
    }
}

fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_by_hand() {
        let (clock, hand) = Clock::manual(Duration::from_secs(100));
        assert_eq!((clock.now_seconds(), clock.now_seconds()), (100, 100));
        hand.advance(Duration::from_millis(1_500));
        assert_eq!((clock.now_seconds(), clock.now_millis()), (101, 101_500));
    }

    #[test]
    fn any_clock_can_be_put_forward() {
        let clock = Clock::real();
        let before = clock.now_seconds();
        clock.clone().advance(Duration::from_secs(3_600));
        assert!(clock.now_seconds() >= before + 3_600);
    }

    #[test]
    fn real_clock_shows_this_century() {
        assert!(Clock::real().now_seconds() > 1_700_000_000);
    }
}
