//! The circuit breaker: which partition is avoided in which region.
//!
//! Failures in a row open it; while open, requests go to other regions; after a while one request may try again, and
//! its success closes it. Connect failures never come here: they say something about the endpoint, not a partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Breaker;

/// One partition in one region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) container: Arc<str>,
    pub(crate) range: Arc<str>,
    pub(crate) region: Arc<str>,
}

/// Whether requests may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Closed,
    Open,
    /// Open, and one request may find out whether it still has to be.
    ProbeDue,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Read,
    Write,
    /// Another region answered first.
    LostRace,
}

#[derive(Clone, Debug)]
struct Entry {
    reads: u32,
    writes: u32,
    races: u32,
    last_failure: Instant,
    /// While open: until when no operation may try.
    open_until: Option<Instant>,
}

/// All partitions that failed lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionHealth {
    entries: BTreeMap<Cell, Entry>,
}

impl PartitionHealth {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_known(&self, cell: &Cell) -> bool {
        !self.entries.is_empty() && self.entries.contains_key(cell)
    }

    pub(crate) fn gate(&self, cell: &Cell, now: Instant) -> Gate {
        match self.entries.get(cell).and_then(|entry| entry.open_until) {
            None => Gate::Closed,
            Some(until) if now < until => Gate::Open,
            Some(_) => Gate::ProbeDue,
        }
    }

    /// One more failure. `open_for` is the (jittered) time to stay open, should this one open it.
    pub(crate) fn failed(
        &self,
        cell: &Cell,
        failure: Failure,
        now: Instant,
        open_for: Duration,
        rules: &Breaker,
    ) -> Self {
        let mut next = self.clone();
        let entry = next.entries.entry(cell.clone()).or_insert(Entry {
            reads: 0,
            writes: 0,
            races: 0,
            last_failure: now,
            open_until: None,
        });
        if now.duration_since(entry.last_failure) > rules.window {
            (entry.reads, entry.writes, entry.races) = (0, 0, 0);
        }
        entry.last_failure = now;
        match failure {
            Failure::Read => entry.reads += 1,
            Failure::Write => entry.writes += 1,
            Failure::LostRace => entry.races += 1,
        }
        let is_too_many = entry.reads >= rules.read_failures
            || entry.writes >= rules.write_failures
            || entry.races >= rules.lost_races;
        if is_too_many {
            entry.open_until = Some(now + open_for);
        }
        next
    }

    /// A success of what began at this time. What was under way when the last failure came proves nothing: a slow
    /// region answers in the end, and would get its requests back each time it does.
    pub(crate) fn succeeded(&self, cell: &Cell, began: Instant) -> Self {
        let mut next = self.clone();
        if next.entries.get(cell).is_some_and(|entry| began >= entry.last_failure) {
            next.entries.remove(cell);
        }
        next
    }

    /// Claims the probe: until it answers, or for as long as the breaker stays open, no other operation tries.
    pub(crate) fn probing(&self, cell: &Cell, now: Instant, rules: &Breaker) -> Option<Self> {
        if self.gate(cell, now) != Gate::ProbeDue {
            return None;
        }
        let mut next = self.clone();
        if let Some(entry) = next.entries.get_mut(cell) {
            entry.open_until = Some(now + rules.probe_after);
        }
        Some(next)
    }

    /// Drops what has not failed for the window: the way back for partitions that no operation asked about.
    pub(crate) fn swept(&self, now: Instant, rules: &Breaker) -> Self {
        let mut next = self.clone();
        next.entries.retain(|_, entry| now.duration_since(entry.last_failure) <= rules.window);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(region: &str) -> Cell {
        Cell { container: "rid".into(), range: "0".into(), region: region.into() }
    }

    const OPEN: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn reads_open_after_two_and_writes_and_lost_races_after_five() {
        let (rules, now) = (Breaker::default(), Instant::now());
        for (failure, limit) in [(Failure::Read, 2), (Failure::Write, 5), (Failure::LostRace, 5)] {
            let mut health = PartitionHealth::default();
            for n in 1..=limit {
                assert_eq!(health.gate(&cell("a"), now), Gate::Closed, "before failure {n}");
                health = health.failed(&cell("a"), failure, now, OPEN, &rules);
            }
            assert_eq!(health.gate(&cell("a"), now), Gate::Open);
            assert_eq!(health.gate(&cell("b"), now), Gate::Closed, "another region is not touched");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn old_failures_do_not_add_up() {
        let (rules, now) = (Breaker::default(), Instant::now());
        let later = now + rules.window + Duration::from_secs(1);
        let health = PartitionHealth::default().failed(&cell("a"), Failure::Read, now, OPEN, &rules);
        let health = health.failed(&cell("a"), Failure::Read, later, OPEN, &rules);
        assert_eq!(health.gate(&cell("a"), later), Gate::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_and_its_success_closes() {
        let (rules, now) = (Breaker::default(), Instant::now());
        let mut health = PartitionHealth::default();
        for _ in 0..2 {
            health = health.failed(&cell("a"), Failure::Read, now, OPEN, &rules);
        }
        let due = now + OPEN;
        assert_eq!(health.gate(&cell("a"), due), Gate::ProbeDue);
        let claimed = health.probing(&cell("a"), due, &rules).expect("first claim wins");
        assert_eq!(claimed.gate(&cell("a"), due), Gate::Open);
        assert!(claimed.probing(&cell("a"), due, &rules).is_none(), "second claim loses");
        // A probe that never reports frees its place after the same time again.
        assert_eq!(claimed.gate(&cell("a"), due + rules.probe_after), Gate::ProbeDue);
        let failed = claimed.failed(&cell("a"), Failure::Read, due, OPEN, &rules);
        assert_eq!(failed.gate(&cell("a"), due), Gate::Open);
        assert_eq!(claimed.succeeded(&cell("a"), due).gate(&cell("a"), due), Gate::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_that_began_before_the_last_failure_proves_nothing() {
        let (rules, now) = (Breaker::default(), Instant::now());
        let later = now + Duration::from_millis(100);
        let mut health = PartitionHealth::default();
        for _ in 0..5 {
            health = health.failed(&cell("a"), Failure::LostRace, later, OPEN, &rules);
        }
        let health = health.succeeded(&cell("a"), now);
        assert_eq!(health.gate(&cell("a"), later), Gate::Open);
        assert!(health.succeeded(&cell("a"), later).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_partitions_are_forgotten() {
        let (rules, now) = (Breaker::default(), Instant::now());
        let health = PartitionHealth::default().failed(&cell("a"), Failure::Read, now, OPEN, &rules);
        assert!(!health.swept(now + rules.window, &rules).is_empty());
        assert!(health.swept(now + rules.window + Duration::from_millis(1), &rules).is_empty());
    }
}
