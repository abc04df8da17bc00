//! Time and chance, in one place.
//!
//! Monotonic time is tokio's, so a paused runtime controls every timer. Wall time (request dates) can be
//! shifted, so that a jumping clock is a test and not a surprise. Randomness is a counter put through a mixing
//! function: no lock, no thread-local state, and a fixed seed replays the same choices.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Shared handle to time and chance.
#[derive(Clone, Debug)]
pub(crate) struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Instant,
    state: AtomicU64,
    shift_ms: AtomicI64,
}

impl Clock {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let seed = seed.unwrap_or_else(entropy);
        Self(Arc::new(Inner {
            epoch: Instant::now(),
            state: AtomicU64::new(seed),
            shift_ms: AtomicI64::new(0),
        }))
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::now()
    }

    /// Milliseconds since this clock was made; small enough to live in an atomic.
    pub(crate) fn tick_ms(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Seconds since 1970 by the (possibly corrected) wall clock.
    pub(crate) fn unix_secs(&self) -> u64 {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        u64::try_from(ms.saturating_add(self.0.shift_ms.load(Ordering::Relaxed)).max(0) / 1000).unwrap_or(0)
    }

    /// Moves the wall clock so that it reads `unix_secs` now: the service's own date after it refused ours.
    pub(crate) fn set_unix_secs(&self, unix_secs: u64) {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = i64::try_from(wall.as_millis()).unwrap_or(i64::MAX);
        let wanted = i64::try_from(unix_secs).unwrap_or(i64::MAX).saturating_mul(1000);
        self.0.shift_ms.store(wanted.saturating_sub(ms), Ordering::Relaxed);
    }

    pub(crate) fn random(&self) -> u64 {
        let mut z = self.0.state.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A fraction in `[0, 1)`.
    pub(crate) fn fraction(&self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `base`, spread evenly over `base/2 ..= base * 3/2`, so that clients that failed together return apart.
    pub(crate) fn jitter(&self, base: Duration) -> Duration {
        base.mul_f64(0.5 + self.fraction())
    }
}

fn entropy() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library's hasher keys are the one source of process randomness that needs no dependency.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u8(0);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn same_seed_makes_the_same_choices() {
        let (a, b) = (Clock::new(Some(7)), Clock::new(Some(7)));
        let left: Vec<u64> = (0..8).map(|_| a.random()).collect();
        let right: Vec<u64> = (0..8).map(|_| b.random()).collect();
        assert_eq!(left, right);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&a.fraction())));
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_stays_within_half_of_the_base() {
        let clock = Clock::new(Some(1));
        for _ in 0..1000 {
            let wait = clock.jitter(Duration::from_millis(100));
            assert!(wait >= Duration::from_millis(50) && wait <= Duration::from_millis(150), "{wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wall_clock_follows_a_correction() {
        let clock = Clock::new(Some(1));
        clock.set_unix_secs(1_000_000);
        assert!(clock.unix_secs().abs_diff(1_000_000) <= 1);
    }
}
