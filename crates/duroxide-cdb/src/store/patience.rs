//! How long a caller goes on trying, and how long it waits between two tries.
//!
//! Three levels below this one try again, too: the driver repeats a request on another connection, after a throttled answer
//! and in another region. What comes up to here has outlasted those.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Call;
use crate::clock::Clock;
use crate::error::Fault;

/// How long a caller goes on trying.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience<'a> {
    /// Until a moment that is known from the beginning.
    Until(Call),
    /// As long as a lock is held, which renewals make longer meanwhile.
    WhileHeld {
        operation: &'static str,
        clock: &'a Clock,
        until_ms: &'a AtomicU64,
        /// One request gets this part of the time that is left.
        tries: u32,
    },
}

impl From<Call> for Patience<'_> {
    fn from(call: Call) -> Self {
        Self::Until(call)
    }
}

impl<'a> Patience<'a> {
    /// Patience of a renewal, until the lock ends that it is to extend.
    pub(crate) fn to_renew(operation: &'static str, clock: &'a Clock, until_ms: &'a AtomicU64) -> Self {
        Self::WhileHeld { operation, clock, until_ms, tries: 2 }
    }

    /// A call that ends when patience does, as far as is known by now, or earlier if there is time for several.
    pub(crate) fn call(&self) -> Call {
        match self {
            Self::Until(call) => *call,
            Self::WhileHeld { operation, clock, until_ms, tries } => {
                let left = until_ms.load(Ordering::Acquire).saturating_sub(clock.now_ms());
                let left = Duration::from_millis(left);
                let time = (left / *tries).max(TRY_MIN).min(left);
                Call { operation, deadline: clock.instant() + time }
            }
        }
    }

    /// Waits before the next try. False when there is no time for one.
    ///
    /// Under a lock the server's wish to be left alone for longer than the lock lasts is not granted in full: giving up
    /// costs the whole turn or activity, one more request does not.
    pub(crate) async fn wait(&self, backoff: &mut Backoff, fault: &Fault) -> bool {
        match self {
            Self::Until(call) => backoff.wait(*call, fault).await,
            Self::WhileHeld { .. } => backoff.wait_within(self.call(), fault).await,
        }
    }

    /// Whether a fault is sat out. Under a lock a refusal of access is, too: access was granted when the lock was taken.
    pub(super) fn sits_out(&self, fault: &Fault) -> bool {
        match self {
            Self::Until(_) => fault.is_transient(),
            Self::WhileHeld { .. } => fault.may_pass(),
        }
    }
}

/// How long to wait before the next try, if there is time for one. Towards the end tries come closer together, so that
/// what passes just in time is not missed; but none comes before the server wants it.
fn pause(next: Duration, asked: Option<Duration>, remaining: Duration) -> Option<Duration> {
    let pause = next.min(remaining / 2).max(PAUSE_MIN).max(asked.unwrap_or_default());
    Some(pause).filter(|pause| *pause < remaining)
}

/// How long to wait before the next try of what must not be given up before its time is over: as long as the server asked,
/// but never so long that there is no time left for another try.
fn pause_within(next: Duration, asked: Option<Duration>, remaining: Duration) -> Option<Duration> {
    let wanted = next.max(asked.unwrap_or_default());
    let pause = wanted.min(remaining / 2).max(PAUSE_MIN).min(remaining);
    Some(pause).filter(|pause| !pause.is_zero())
}

/// Growing pauses between tries.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: PAUSE_MIN }
    }
}

impl Backoff {
    /// Waits, at least as long as the server asked. False when there is no time left to try again.
    pub(crate) async fn wait(&mut self, call: Call, fault: &Fault) -> bool {
        let Some(pause) = pause(self.pause, fault.retry_after, call.remaining()) else { return false };
        tracing::debug!(operation = call.operation, %fault, ?pause, "trying again");
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }

    /// Waits at most for half of the time that is left, even if the server asked for more. False when none is left.
    pub(crate) async fn wait_within(&mut self, call: Call, fault: &Fault) -> bool {
        let Some(pause) = pause_within(self.pause, fault.retry_after, call.remaining()) else { return false };
        tracing::debug!(operation = call.operation, %fault, ?pause, "trying again while the lock is held");
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
/// A request is given this time, if the lock lasts as long.
const TRY_MIN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_go_on_until_the_time_is_over() {
        let ms = Duration::from_millis;
        for (next, asked, remaining, expected) in [
            (10, None, 5000, Some(10)),
            (1000, None, 5000, Some(1000)),
            (1000, None, 900, Some(450)),
            (1000, None, 12, Some(10)),
            (1000, None, 10, None),
            (10, Some(300), 5000, Some(300)),
            (1000, Some(300), 400, Some(300)),
            (1000, Some(300), 300, None),
        ] {
            let pause = pause(ms(next), asked.map(ms), ms(remaining));
            assert_eq!(pause, expected.map(ms), "{next} {asked:?} {remaining}");
        }
    }

    #[test]
    fn who_must_not_give_up_tries_until_no_time_is_left() {
        let ms = Duration::from_millis;
        for (next, asked, remaining, expected) in [
            (10, None, 5000, Some(10)),
            (10, Some(300), 5000, Some(300)),
            (10, Some(6000), 5000, Some(2500)),
            (1000, None, 400, Some(200)),
            (10, Some(6000), 8, Some(8)),
            (10, None, 0, None),
        ] {
            let pause = pause_within(ms(next), asked.map(ms), ms(remaining));
            assert_eq!(pause, expected.map(ms), "{next} {asked:?} {remaining}");
        }
    }
}
