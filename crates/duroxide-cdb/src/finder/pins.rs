//! Instances that no dispatcher of this process can run: each is pinned to a version of duroxide that none of them
//! supports, as after a deployment was rolled back. They are remembered apart from all others, in a few bytes each, so
//! that they neither take the place of runnable ones nor are looked at with every search.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use duroxide::providers::DispatcherCapabilityFilter;

use crate::documents::{Version, is_supported};

/// What is remembered of them.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    hasher: RandomState,
    /// By a hash of the instance's name.
    pinned: HashMap<u64, Pin>,
    /// What the dispatchers of this process support.
    filters: Vec<Option<DispatcherCapabilityFilter>>,
}

#[derive(Debug, Clone, Copy)]
struct Pin {
    version: Version,
    /// When its head was asked for.
    as_of: u64,
}

impl Pins {
    /// Notes what a dispatcher supports, and says whether it is the first such dispatcher.
    pub(crate) fn ask(&mut self, filter: Option<&DispatcherCapabilityFilter>) -> bool {
        if self.filters.iter().any(|known| is_same(known.as_ref(), filter)) {
            return false;
        }
        // A process with very many kinds of dispatchers can run everything, or nearly.
        let filter = filter.filter(|_| self.filters.len() < FILTERS_MAX).cloned();
        self.filters.push(filter);
        true
    }

    /// Whether any dispatcher of this process can run what is pinned to a version.
    pub(crate) fn is_supported(&self, version: Option<Version>) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| is_supported(filter.as_ref(), version))
    }

    /// Remembers a version that the head of an instance had when it was asked for.
    pub(crate) fn note(&mut self, instance: &str, version: Version, as_of: u64) {
        if self.pinned.len() >= PINNED_MAX {
            let mut times: Vec<u64> = self.pinned.values().map(|pin| pin.as_of).collect();
            let (_, median, _) = times.select_nth_unstable(PINNED_MAX / 2);
            let median = *median;
            self.pinned.retain(|_, pin| pin.as_of > median);
        }
        let name = self.hasher.hash_one(instance);
        self.pinned.insert(name, Pin { version, as_of });
    }

    /// Whether a message that becomes visible at `visible_at` waits for another process. Its instance may have ended and
    /// begun anew since its head was read, but then by a later message; and nothing is believed for ever.
    pub(crate) fn is_for_others(&self, instance: &str, visible_at: u64, now: u64) -> bool {
        self.pinned.get(&self.hasher.hash_one(instance)).is_some_and(|pin| {
            visible_at < pin.as_of
                && now < pin.as_of.saturating_add(PINNED_FOR_MS)
                && !self.is_supported(Some(pin.version))
        })
    }

    /// Forgets an instance.
    pub(crate) fn forget(&mut self, instance: &str) {
        self.pinned.remove(&self.hasher.hash_one(instance));
    }
}

/// Whether two dispatchers support the same. Only the first range counts.
fn is_same(one: Option<&DispatcherCapabilityFilter>, other: Option<&DispatcherCapabilityFilter>) -> bool {
    let range = |filter: Option<&DispatcherCapabilityFilter>| {
        filter
            .map(|filter| filter.supported_duroxide_versions.first().map(|r| (r.min.clone(), r.max.clone())))
    };
    range(one) == range(other)
}

/// Some thirty megabytes. Above this the older half is forgotten, and read again when a search meets it.
const PINNED_MAX: usize = 500_000;
const PINNED_FOR_MS: u64 = 600_000;
const FILTERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use duroxide::providers::SemverRange;

    use super::*;

    fn filter(min: &str, max: &str) -> DispatcherCapabilityFilter {
        let range = SemverRange::new(min.parse().unwrap(), max.parse().unwrap());
        DispatcherCapabilityFilter { supported_duroxide_versions: vec![range] }
    }

    #[test]
    fn what_is_pinned_elsewhere_is_passed_over_until_something_new_arrives_or_time_is_over() {
        let mut pins = Pins::default();
        assert!(pins.ask(Some(&filter("0.0.0", "0.1.32"))));
        assert!(!pins.ask(Some(&filter("0.0.0", "0.1.32"))), "it is the same");
        pins.note("a", [9, 0, 0], 1000);
        pins.note("b", [0, 1, 5], 1000);
        assert!(pins.is_for_others("a", 999, 1000));
        assert!(!pins.is_for_others("a", 1000, 1000), "it may begin a new life");
        assert!(!pins.is_for_others("a", 999, 1000 + PINNED_FOR_MS));
        assert!(!pins.is_for_others("b", 999, 1000), "it is supported");
        assert!(!pins.is_for_others("c", 999, 1000), "nothing is known of it");
        assert!(pins.ask(None));
        assert!(!pins.is_for_others("a", 999, 1000), "there is a dispatcher for it now");
    }

    #[test]
    fn however_many_are_pinned_elsewhere_little_is_kept() {
        let mut pins = Pins::default();
        for n in 0..=PINNED_MAX {
            pins.note(&n.to_string(), [9, 0, 0], n as u64);
        }
        assert!(pins.pinned.len() <= PINNED_MAX);
        assert!(pins.pinned.contains_key(&pins.hasher.hash_one(PINNED_MAX.to_string())), "the last is kept");
    }
}
