//! Dispatch slots: which part of the key space an instance is in.
//!
//! A slot is the top eight bits of the effective partition key, so the 256 slots are 256 contiguous key ranges and
//! the number is the same for every build of every program. Who looks after which slots is the
//! business of the fleet; safety is the head's ETag.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use cosmos_wire::epk::Epk;
use cosmos_wire::partition_key::{Component, Definition, PartitionKey};

/// The slot of an instance: which of the 256 parts of the key space it is in.
#[must_use]
pub fn of(instance: &str) -> u8 {
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

/// A set of slots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SlotSet {
    words: [u64; 4],
}

impl SlotSet {
    /// No slots.
    pub const EMPTY: Self = Self { words: [0; 4] };
    /// All slots.
    pub const ALL: Self = Self { words: [u64::MAX; 4] };

    /// Adds a slot.
    pub fn insert(&mut self, slot: u8) {
        self.words[usize::from(slot >> 6)] |= 1 << (slot & 63);
    }

    /// Whether a slot is among them.
    #[must_use]
    pub fn contains(&self, slot: u8) -> bool {
        self.words[usize::from(slot >> 6)] >> (slot & 63) & 1 == 1
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Those of this set that are not in the other.
    #[must_use]
    pub fn without(mut self, other: Self) -> Self {
        for (word, other) in self.words.iter_mut().zip(other.words) {
            *word &= !other;
        }
        self
    }

    /// All slots of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|slot| self.contains(*slot))
    }

    /// The same as ranges of neighbours.
    #[must_use]
    pub fn ranges(&self) -> Vec<RangeInclusive<u8>> {
        let mut ranges: Vec<RangeInclusive<u8>> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some(last) if slot.checked_sub(1) == Some(*last.end()) => *last = *last.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        ranges
    }
}

impl FromIterator<u8> for SlotSet {
    fn from_iter<I: IntoIterator<Item = u8>>(slots: I) -> Self {
        let mut set = Self::EMPTY;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// Which slots a search looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Watch {
    /// All of them.
    All,
    /// Those of the caller.
    Own(SlotSet),
}

impl Watch {
    /// The parts of a range of effective partition keys, given by its hexadecimal bounds, that hold the slots.
    pub(crate) fn parts(&self, min: &str, max: &str) -> Vec<(String, String)> {
        let Self::Own(slots) = self else { return vec![(min.to_owned(), max.to_owned())] };
        let within = |own: RangeInclusive<u8>| {
            let low = bound(u32::from(*own.start()));
            let high = bound(u32::from(*own.end()) + 1);
            let low = if low.as_str() > min { low } else { min.to_owned() };
            let high = if high.as_str() < max { high } else { max.to_owned() };
            (low < high).then_some((low, high))
        };
        slots.ranges().into_iter().filter_map(within).collect()
    }
}

/// Where a slot begins in the key space, in hexadecimal.
fn bound(slot: u32) -> String {
    match slot {
        0 => String::new(),
        SLOTS_U32.. => "FF".to_owned(),
        // The hash leaves the two top bits of the first byte zero.
        _ => format!("{:04X}", slot * STEPS),
    }
}

/// How many slots there are.
pub(crate) const SLOTS: usize = 256;
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
    fn a_search_asks_for_its_slots_and_no_others() {
        let own = |slots: RangeInclusive<u8>| Watch::Own(slots.collect());
        let half = "20000000000000000000000000000000";
        for (watch, min, max, expected) in [
            (Watch::All, "", "FF", vec![("", "FF")]),
            (own(0..=255), "", "FF", vec![("", "FF")]),
            (own(0..=0), "", "FF", vec![("", "0040")]),
            (own(255..=255), "", "FF", vec![("3FC0", "FF")]),
            (own(1..=1), "", "0040", vec![]),
            (own(1..=1), "", "0041", vec![("0040", "0041")]),
            (own(1..=1), "0041", "FF", vec![("0041", "0080")]),
            (own(0..=127), half, "FF", vec![]),
            (own(100..=255), half, "FF", vec![(half, "FF")]),
            (own(100..=255), "", half, vec![("1900", half)]),
            (Watch::Own([1, 2, 9].into_iter().collect()), "", "FF", vec![("0040", "00C0"), ("0240", "0280")]),
            (Watch::Own(SlotSet::EMPTY), "", "FF", vec![]),
        ] {
            let parts = watch.parts(min, max);
            let parts: Vec<(&str, &str)> =
                parts.iter().map(|(min, max)| (min.as_str(), max.as_str())).collect();
            assert_eq!(parts, expected, "{watch:?} {min:?}..{max:?}");
        }
        for n in 0..500 {
            let name = format!("i{n}");
            let parts = own(of(&name)..=of(&name)).parts("", "FF");
            let place = place_of(&name).to_uppercase();
            assert!(parts.iter().any(|(min, max)| min <= &place && &place < max), "{name} {place} {parts:?}");
        }
    }

    #[test]
    fn a_set_of_slots_is_its_ranges() {
        let set: SlotSet = [0, 1, 2, 7, 63, 64, 65, 255].into_iter().collect();
        assert_eq!(set.ranges(), [0..=2, 7..=7, 63..=65, 255..=255]);
        assert_eq!((set.len(), SlotSet::ALL.len(), SlotSet::EMPTY.is_empty()), (8, SLOTS, true));
        assert_eq!(SlotSet::ALL.ranges(), [0..=255]);
        let rest = SlotSet::ALL.without(set);
        assert!(!rest.contains(64) && rest.contains(66) && rest.len() == SLOTS - 8);
    }
}
