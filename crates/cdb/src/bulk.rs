//! Doing the same to many: so many at once, fewer while the account throttles.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};

use crate::interrupt::Interrupt;

/// How a bulk operation came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything was done, or the listener had seen enough.
    All,
    /// Somebody asked to stop; what had begun was finished.
    Stopped,
    /// Somebody asked twice: what had begun may be done or not.
    GivenUp,
}

/// Does something to each, so many at once. `done` is told of each as it ends, in whatever order that is, and may end it.
/// After Ctrl-C nothing new is begun.
pub(crate) async fn each<'a, T, R>(
    items: impl IntoIterator<Item = T>,
    is_throttled: impl Fn() -> bool,
    interrupt: &mut Interrupt,
    work: impl Fn(T) -> BoxFuture<'a, R>,
    mut done: impl FnMut(R) -> ControlFlow<()>,
) -> Ended {
    let mut items = items.into_iter();
    let mut running = FuturesUnordered::new();
    let mut width = Width::default();
    let mut is_stopped = false;
    loop {
        while !is_stopped && running.len() < width.now() {
            match items.next() {
                Some(item) => running.push(work(item)),
                None => break,
            }
        }
        tokio::select! {
            result = running.next() => match result {
                None => return if is_stopped { Ended::Stopped } else { Ended::All },
                Some(result) => {
                    width.adapt(is_throttled());
                    if done(result).is_break() {
                        return Ended::All;
                    }
                }
            },
            () = interrupt.wait() => {
                if is_stopped {
                    return Ended::GivenUp;
                }
                is_stopped = true;
            }
        }
    }
}

/// How many are done at once: half as many when the account throttles, one more after each round in which it does not.
#[derive(Debug)]
struct Width {
    now: usize,
    /// Ends since the last change.
    since: usize,
}

impl Default for Width {
    fn default() -> Self {
        Self { now: WIDTH_MAX, since: 0 }
    }
}

impl Width {
    fn now(&self) -> usize {
        self.now
    }

    fn adapt(&mut self, is_throttled: bool) {
        self.since += 1;
        // What was under way when it was halved tells nothing new.
        if self.since < self.now {
            return;
        }
        self.since = 0;
        self.now = if is_throttled { (self.now / 2).max(1) } else { (self.now + 1).min(WIDTH_MAX) };
    }
}

/// So many requests are in flight at most.
pub(crate) const WIDTH_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn fewer_are_done_at_once_while_the_account_throttles() {
        let mut width = Width::default();
        let mut seen = vec![width.now()];
        for is_throttled in [true, true, true, true, true, true, false, false] {
            for _ in 0..width.now() {
                width.adapt(is_throttled);
            }
            seen.push(width.now());
        }
        assert_eq!(seen, [32, 16, 8, 4, 2, 1, 1, 2, 3]);
    }

    #[tokio::test]
    async fn all_are_done_and_never_more_than_so_many_at_once() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (running, most) = (&running, &most);
        let mut interrupt = Interrupt::listen().unwrap();
        let mut told = 0;
        let work = |number: usize| -> BoxFuture<'_, usize> {
            Box::pin(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                number
            })
        };
        let done = |_| {
            told += 1;
            ControlFlow::Continue(())
        };
        assert_eq!(each(0..200, || false, &mut interrupt, work, done).await, Ended::All);
        assert_eq!((told, most.load(Ordering::SeqCst)), (200, WIDTH_MAX));
    }
}
