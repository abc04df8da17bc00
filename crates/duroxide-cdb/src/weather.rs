//! How hard the account throttles, told by its answers, and what may wait for better weather.
//!
//! At the limit of an account every request that could wait takes the place of one that could not: a commit, or the
//! renewal of a lock. So while answers say that the account is throttled, searches come further apart, and readers take
//! a head that was looked at a moment ago for the present one. Commits, claims and renewals never wait here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long what can wait is put off; nothing while the account answers.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    pause_us: AtomicU64,
}

impl Weather {
    /// Takes note of an answer.
    pub(crate) fn note(&self, is_throttled: bool) {
        if !is_throttled && self.pause_us.load(Ordering::Relaxed) == 0 {
            return;
        }
        if is_throttled {
            metrics::counter!("duroxide_cdb_throttled_total").increment(1);
        }
        let next = |pause: u64| Some(next(pause, is_throttled));
        // It never refuses to change: the closure always gives a value.
        let _ = self.pause_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// So long searches and looks are put off.
    pub(crate) fn pause(&self) -> Duration {
        Duration::from_micros(self.pause_us.load(Ordering::Relaxed))
    }
}

/// It doubles with every throttled answer, and with every other becomes a little less.
fn next(pause_us: u64, is_throttled: bool) -> u64 {
    if is_throttled {
        return (pause_us * 2).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
    }
    let less = pause_us - pause_us.div_ceil(16);
    if less < PAUSE_MIN_US / 8 { 0 } else { less }
}

const PAUSE_MIN_US: u64 = 50_000;
const PAUSE_MAX_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_waits_until_the_account_throttles_and_soon_after_it_has_stopped() {
        let weather = Weather::default();
        weather.note(false);
        assert_eq!(weather.pause(), Duration::ZERO);
        for expected in [50, 100, 200, 400, 800, 1000, 1000] {
            weather.note(true);
            assert_eq!(weather.pause(), Duration::from_millis(expected));
        }
        let answers = (1..).take_while(|_| {
            weather.note(false);
            !weather.pause().is_zero()
        });
        let answers = answers.count();
        assert!((30..150).contains(&answers), "{answers}");
    }

    #[test]
    fn where_every_tenth_answer_is_throttled_much_is_put_off() {
        let weather = Weather::default();
        for n in 0..200 {
            weather.note(n % 10 == 0);
        }
        assert!(weather.pause() >= Duration::from_millis(150), "{:?}", weather.pause());
    }
}
