//! What could be begun at once and has not been: how much, since when, and how old it is.

/// What is ready, by age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    /// So many of each [age](AGES).
    pub(crate) by_age: [usize; AGES.len()],
    /// Since when the first of them is ready.
    pub(crate) oldest: Option<u64>,
}

impl Ready {
    /// Counts one that is ready since then.
    pub(crate) fn add(&mut self, since: u64, now: u64) {
        let age = now.saturating_sub(since);
        let place = AGES.iter().position(|(_, below)| age < *below).unwrap_or(AGES.len() - 1);
        self.by_age[place] += 1;
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.by_age.iter().sum()
    }
}

/// Ages that are told apart, each with where it ends, in milliseconds.
pub(crate) const AGES: [(&str, u64); 4] =
    [("below 1 s", 1_000), ("below 10 s", 10_000), ("below 1 min", 60_000), ("older", u64::MAX)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ready_is_counted_by_its_age() {
        let mut ready = Ready::default();
        for since in [99_999, 99_001, 99_000, 90_001, 40_001, 40_000, 0] {
            ready.add(since, 100_000);
        }
        ready.add(100_001, 100_000);
        assert_eq!(ready, Ready { by_age: [3, 2, 1, 2], oldest: Some(0) });
        assert_eq!(ready.count(), 8);
    }
}
