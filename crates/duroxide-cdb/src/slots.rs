//! Dispatch slots: which part of the key space an instance is in.
//!
//! A slot is the top eight bits of the effective partition key, so the 256 slots are 256 contiguous key ranges and
//! the number is the same for every build of every program. Slots are affinity only; safety is the head's ETag.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, OnceLock, PoisonError};

use cosmos_wire::epk::Epk;
use cosmos_wire::partition_key::{Component, Definition, PartitionKey};

/// The slot of an instance.
pub(crate) fn of(instance: &str) -> u8 {
    // Version 2 hashes leave the two top bits of the first byte zero.
    match key_of(instance).as_bytes() {
        [first, second, ..] => (first << 2) | (second >> 6),
        _ => 0,
    }
}

/// Where an instance is in the key space, in hexadecimal.
pub(crate) fn place_of(instance: &str) -> String {
    key_of(instance).to_hex()
}

fn key_of(instance: &str) -> Epk {
    static DEFINITION: OnceLock<Definition> = OnceLock::new();
    let definition =
        DEFINITION.get_or_init(|| Definition::hash("/instanceId").expect("a constant path is valid"));
    Epk::of(&PartitionKey::new(vec![Component::String(instance.to_owned())]), definition)
}

/// Which slots a search looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Watch {
    /// All of them.
    All,
    /// Those of the caller.
    Own(Vec<RangeInclusive<u8>>),
}

impl Watch {
    /// Whether any of the slots lies in a range of effective partition keys, given by its hexadecimal bounds.
    pub(crate) fn covers(&self, min: &str, max: &str) -> bool {
        let Self::Own(slots) = self else { return true };
        let (first, end) = (place(min), place(max));
        // A bound within a slot leaves that slot in both ranges.
        let last = if end.is_multiple_of(STEPS) { (end / STEPS).saturating_sub(1) } else { end / STEPS };
        slots.iter().any(|own| u32::from(*own.start()) <= last && first / STEPS <= u32::from(*own.end()))
    }

    /// Whether an instance is in the slots.
    pub(crate) fn holds(&self, instance: &str) -> bool {
        match self {
            Self::All => true,
            Self::Own(slots) => {
                let slot = of(instance);
                slots.iter().any(|own| own.contains(&slot))
            }
        }
    }
}

/// Where a bound lies, in steps of a slot. The end of the key space is beyond all slots.
fn place(bound: &str) -> u32 {
    let digit = |at: usize| bound.as_bytes().get(at).and_then(|digit| char::from(*digit).to_digit(16));
    let bytes = (0..4).fold(0, |sum, at| sum * 16 + digit(at).unwrap_or(0));
    // The hash leaves the two top bits zero, so a larger bound is the end: FF.
    bytes.min(SLOTS_U32 * STEPS)
}

/// Who looks after which slots. Holding a slot is a preference: anybody may take work that is old enough.
pub trait LeaseProvider: Send + Sync {
    /// The slots the caller should look after now.
    fn slots_for(&self, caller: &str) -> Vec<RangeInclusive<u8>>;
    /// Gives the caller's slots back.
    fn release(&self, caller: &str);
}

/// Divides the slots among the callers of this process in contiguous, equal parts.
#[derive(Debug, Default)]
pub struct InMemoryLeaseProvider {
    callers: Mutex<BTreeMap<String, ()>>,
}

impl InMemoryLeaseProvider {
    /// No callers yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl LeaseProvider for InMemoryLeaseProvider {
    fn slots_for(&self, caller: &str) -> Vec<RangeInclusive<u8>> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.entry(caller.to_owned()).or_default();
        let total = callers.len();
        let index = callers.keys().position(|name| name == caller).unwrap_or(0);
        let bound = |position: usize| position * SLOTS / total;
        let (first, end) = (bound(index), bound(index + 1));
        if first == end {
            return Vec::new();
        }
        let slot = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        vec![slot(first)..=slot(end - 1)]
    }

    fn release(&self, caller: &str) {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner).remove(caller);
    }
}

const SLOTS: usize = 256;
const SLOTS_U32: u32 = 256;
/// Values of the first two bytes of a key in one slot.
const STEPS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_stable_and_spread() {
        assert_eq!(of("order-1"), of("order-1"));
        let distinct: std::collections::BTreeSet<u8> = (0..4000).map(|n| of(&format!("i{n}"))).collect();
        assert_eq!(distinct.len(), SLOTS);
    }

    #[test]
    fn a_search_asks_the_ranges_that_hold_its_slots_and_no_others() {
        let own = |slots: RangeInclusive<u8>| Watch::Own(vec![slots]);
        for (watch, min, max, expected) in [
            (Watch::All, "", "FF", true),
            (own(0..=255), "", "FF", true),
            (own(0..=0), "", "0040", true),
            (own(1..=1), "", "0040", false),
            (own(1..=1), "", "0041", true),
            (own(1..=1), "0041", "FF", true),
            (own(0..=127), "20000000000000000000000000000000", "FF", false),
            (own(128..=255), "20000000000000000000000000000000", "FF", true),
            (own(128..=255), "", "20000000000000000000000000000000", false),
            (Watch::Own(Vec::new()), "", "FF", false),
        ] {
            assert_eq!(watch.covers(min, max), expected, "{watch:?} {min:?}..{max:?}");
        }
        for n in 0..500 {
            let name = format!("i{n}");
            assert!(own(of(&name)..=of(&name)).holds(&name));
            assert!(!Watch::Own(Vec::new()).holds(&name));
        }
    }

    #[test]
    fn the_live_callers_share_all_slots_whatever_their_number() {
        let leases = InMemoryLeaseProvider::new();
        for callers in 1..=7 {
            let name = |n: usize| format!("caller-{n}");
            for n in 0..callers {
                leases.slots_for(&name(n));
            }
            let covered: usize =
                (0..callers).flat_map(|n| leases.slots_for(&name(n))).map(|range| range.count()).sum();
            assert_eq!(covered, SLOTS, "{callers} callers");
        }
        leases.release("caller-0");
        let covered: usize =
            (1..7).flat_map(|n| leases.slots_for(&format!("caller-{n}"))).map(|range| range.count()).sum();
        assert_eq!(covered, SLOTS);
    }
}
