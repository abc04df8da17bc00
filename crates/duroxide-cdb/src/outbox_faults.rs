//! A switch for tests: skip deliveries, so that the reconciler has to do them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Makes the next rounds of immediate delivery do nothing. The reconciler delivers instead.
#[derive(Debug, Clone, Default)]
pub struct OutboxFaultInjector {
    remaining: Arc<AtomicU32>,
}

impl OutboxFaultInjector {
    /// An injector that skips the next `rounds` rounds of delivery.
    #[must_use]
    pub fn fail_next(rounds: u32) -> Self {
        Self { remaining: Arc::new(AtomicU32::new(rounds)) }
    }

    /// Whether this round is to be skipped.
    pub(crate) fn takes_round(&self) -> bool {
        self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_asked_number_of_rounds_is_skipped() {
        let injector = OutboxFaultInjector::fail_next(2);
        assert_eq!([true, true, false], [(); 3].map(|()| injector.takes_round()));
    }
}
