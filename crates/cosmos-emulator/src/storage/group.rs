//! Group commit: however many callers wait for their commit to be on disk, one of them flushes for all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{StorageError, Ticket};

/// Counts commits and knows which of them the disk has.
///
/// There is no thread behind it: the first caller whose commit is not yet on disk becomes the leader and flushes,
/// the others wait for it. While the leader waits for the disk the next group gathers.
#[derive(Debug, Default)]
pub(super) struct Group {
    committed: AtomicU64,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    durable: u64,
    has_leader: bool,
    /// After a failed flush nobody can say what the disk has, so every later wait fails too.
    failure: Option<StorageError>,
}

impl Group {
    /// Numbers a commit. Call it only after the operating system has the commit's bytes: a flush that starts later
    /// then covers it.
    pub(super) fn committed(&self) -> Ticket {
        Ticket(self.committed.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Blocks until the disk has everything up to `ticket`, calling `flush` if nobody else does.
    pub(super) fn wait(
        &self,
        ticket: Ticket,
        flush: impl Fn() -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let mut state = self.lock();
        loop {
            if state.durable >= ticket.0 {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.has_leader {
                state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.has_leader = true;
            drop(state);
            let leader = Leader(self);
            let target = self.committed.load(Ordering::Acquire);
            let outcome = flush();
            state = self.lock();
            match outcome {
                Ok(()) => state.durable = state.durable.max(target),
                Err(failure) => state.failure = Some(failure),
            }
            drop(state);
            drop(leader);
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands leadership back and wakes the others, also when the flush panics.
struct Leader<'a>(&'a Group);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.lock().has_leader = false;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn many_waiters_share_one_flush() {
        let group = Group::default();
        let flushes = AtomicUsize::new(0);
        let tickets: Vec<Ticket> = (0..WAITERS).map(|_| group.committed()).collect();
        let start = Barrier::new(WAITERS);
        thread::scope(|scope| {
            for ticket in tickets {
                let (group, flushes, start) = (&group, &flushes, &start);
                scope.spawn(move || {
                    start.wait();
                    group.wait(ticket, || {
                        flushes.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    })
                });
            }
        });
        assert_eq!(flushes.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_flush_covers_only_what_was_committed_before_it_began() {
        let group = Group::default();
        let first = group.committed();
        let late = std::sync::OnceLock::new();
        group
            .wait(first, || {
                late.get_or_init(|| group.committed());
                Ok(())
            })
            .unwrap();
        let flushes = AtomicUsize::new(0);
        group
            .wait(*late.get().unwrap(), || {
                flushes.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .unwrap();
        assert_eq!(flushes.load(Ordering::Relaxed), 1, "the late commit needs a flush of its own");
    }

    #[test]
    fn a_failed_flush_fails_every_later_wait() {
        let group = Group::default();
        let ticket = group.committed();
        let failure = group.wait(ticket, || Err(StorageError("broken disk".into()))).unwrap_err();
        assert_eq!(failure.to_string(), "broken disk");
        let later = group.committed();
        let failure = group.wait(later, || Ok(())).unwrap_err();
        assert_eq!(failure.to_string(), "broken disk");
    }

    #[test]
    fn a_flush_that_panics_leaves_the_next_waiter_to_flush() {
        let group = Group::default();
        let ticket = group.committed();
        let outcome = thread::scope(|scope| {
            scope.spawn(|| group.wait(ticket, || panic!("a broken flush (expected by this test)"))).join()
        });
        assert!(outcome.is_err());
        group.wait(ticket, || Ok(())).unwrap();
    }

    const WAITERS: usize = 16;
}
