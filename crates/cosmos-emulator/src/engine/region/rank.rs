//! Which of two writes wins, where several regions write: the same one in every region, in whatever order they arrive.

use std::cmp::{Ordering, Reverse};

use super::RegionId;
use crate::engine::container::Shape;
use crate::engine::document::Stored;
use crate::engine::index::path::value_at;
use crate::sql::source::{Path, Step};

/// The rank of a write of one item. The highest wins, and a write outranks the one it replaces, so the outcome does
/// not depend on the order in which regions learn of writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rank {
    /// How often the item was deleted and created anew: odd when it is deleted. A deletion wins against whatever it
    /// did not know of, as in the service.
    lives: u32,
    /// The value at the container's conflict-resolution path, or of a write it replaced if that was higher.
    value: f64,
    /// Microseconds since 1970, and later than those of the write it replaces.
    micros: u64,
    /// Lower numbers win where everything else is equal.
    origin: RegionId,
}

/// What an item was written with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occasion {
    pub(crate) micros: u64,
    pub(crate) origin: RegionId,
}

impl Rank {
    /// Of an item that nobody has written since all regions agreed.
    pub(crate) const LOWEST: Self =
        Self { lives: 0, value: f64::NEG_INFINITY, micros: 0, origin: RegionId::LAST };

    /// Of a write over this one; without a value it is a deletion.
    pub(crate) fn replaced(self, value: Option<f64>, occasion: Occasion) -> Self {
        let was_deleted = self.lives % 2 == 1;
        let is_deleted = value.is_none();
        let lives = if was_deleted == is_deleted { self.lives } else { self.lives + 1 };
        let inherited = if lives == self.lives { self.value } else { f64::NEG_INFINITY };
        Self {
            lives,
            value: value.unwrap_or(f64::NEG_INFINITY).max(inherited),
            micros: occasion.micros.max(self.micros + 1),
            origin: occasion.origin,
        }
    }

    /// As kept in the store and in the log.
    pub(crate) fn to_bytes(self) -> [u8; RANK_BYTES] {
        let mut out = [0; RANK_BYTES];
        out[..4].copy_from_slice(&self.lives.to_be_bytes());
        out[4..12].copy_from_slice(&self.value.to_bits().to_be_bytes());
        out[12..20].copy_from_slice(&self.micros.to_be_bytes());
        out[20] = self.origin.byte();
        out
    }

    /// From the store or the log.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RANK_BYTES] = bytes.first_chunk()?;
        Some(Self {
            lives: u32::from_be_bytes(bytes[..4].try_into().ok()?),
            value: f64::from_bits(u64::from_be_bytes(bytes[4..12].try_into().ok()?)),
            micros: u64::from_be_bytes(bytes[12..20].try_into().ok()?),
            origin: RegionId::from_byte(bytes[20]),
        })
    }

    /// When it was written: later than whatever it replaced.
    pub(crate) fn micros(self) -> u64 {
        self.micros
    }

    /// Whether it wins against another.
    pub(crate) fn beats(self, other: Self) -> bool {
        self.compare(other) == Ordering::Greater
    }

    /// Whether another wins against it.
    pub(crate) fn loses_to(self, other: Self) -> bool {
        other.beats(self)
    }

    fn compare(self, other: Self) -> Ordering {
        let key = |rank: Self| (rank.micros, Reverse(rank.origin));
        (self.lives.cmp(&other.lives))
            .then(self.value.total_cmp(&other.value))
            .then(key(self).cmp(&key(other)))
    }
}

/// Bytes of a rank.
pub(crate) const RANK_BYTES: usize = 21;

/// The value of an item by which conflicts are resolved. One without a number there loses.
pub(crate) fn value_of(shape: &Shape, stored: &Stored) -> f64 {
    let path = shape.body["conflictResolutionPolicy"]["conflictResolutionPath"].as_str().unwrap_or("/_ts");
    if path.is_empty() || path == "/_ts" {
        return stored.timestamp as f64;
    }
    let steps: Path =
        path.split('/').filter(|name| !name.is_empty()).map(|name| Step::Property(name.into())).collect();
    let document = stored.value().unwrap_or_default();
    value_at(&document, &steps).and_then(serde_json::Value::as_f64).unwrap_or(f64::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64, origin: u8) -> Occasion {
        Occasion { micros, origin: RegionId::from_byte(origin) }
    }

    #[test]
    fn the_higher_value_wins_then_the_later_write_then_the_lower_region() {
        let base = Rank::LOWEST;
        let (high, low) = (base.replaced(Some(9.0), at(1, 0)), base.replaced(Some(2.0), at(5, 1)));
        assert!(high.beats(low) && !low.beats(high));
        let (late, early) = (base.replaced(Some(2.0), at(6, 1)), base.replaced(Some(2.0), at(5, 0)));
        assert!(late.beats(early));
        let (first, second) = (base.replaced(Some(2.0), at(6, 0)), base.replaced(Some(2.0), at(6, 1)));
        assert!(first.beats(second));
    }

    #[test]
    fn a_write_beats_the_one_it_replaces_whatever_its_value() {
        let old = Rank::LOWEST.replaced(Some(9.0), at(50, 0));
        let new = old.replaced(Some(1.0), at(3, 1));
        assert!(new.beats(old));
        // What lost against the old one loses against the new one, too.
        let other = Rank::LOWEST.replaced(Some(7.0), at(40, 2));
        assert!(new.beats(other));
    }

    #[test]
    fn a_deletion_beats_what_it_did_not_know_and_not_what_came_after_it() {
        let old = Rank::LOWEST.replaced(Some(5.0), at(1, 0));
        let deleted = old.replaced(None, at(2, 0));
        let updated = old.replaced(Some(99.0), at(9, 1));
        assert!(deleted.beats(updated));
        let anew = deleted.replaced(Some(0.0), at(3, 1));
        assert!(anew.beats(deleted));
    }

    #[test]
    fn ranks_survive_their_bytes() {
        let rank = Rank::LOWEST.replaced(Some(-2.5), at(77, 3)).replaced(None, at(80, 2));
        assert_eq!(Rank::from_bytes(&rank.to_bytes()), Some(rank));
        assert_eq!(Rank::from_bytes(b"short"), None);
    }
}
