//! Effective partition keys: the hash space containers are split by.
//!
//! A partition key is hashed to bytes, written in upper-case hexadecimal on the wire. Ranges of a
//! container divide the space from `""` to `"FF"`; a range holds its lower bound and not its upper.
//! Bytes compare from the left, and zero bytes at the end do not count, so `"05"` and `"0500"` are one
//! place.

mod hash;
mod murmur;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::partition_key::{Coverage, Definition, PartitionKey, Version};

/// A place in the hash space.
#[derive(Clone)]
pub struct Epk(Vec<u8>);

/// Places from `min` up to but not including `max`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EpkRange {
    /// First place inside.
    pub min: Epk,
    /// First place after.
    pub max: Epk,
}

/// What a partition key addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One logical partition.
    Point(Epk),
    /// All logical partitions under a prefix of a hierarchical key.
    Range(EpkRange),
}

/// The text is not an effective partition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidEpk;

/// The key has more values than the definition has paths, or too few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyMismatch;

impl Epk {
    /// Start of the space, `""`.
    pub const MIN: Self = Self(Vec::new());

    /// End of the space, `"FF"`; no key has it.
    #[must_use]
    pub fn max() -> Self {
        Self(vec![0xFF])
    }

    /// Place of a key under a definition. For a prefix of a hierarchical key this is where its range
    /// begins; [`Scope::of`] tells the two apart.
    #[must_use]
    pub fn of(key: &PartitionKey, definition: &Definition) -> Self {
        hash::effective(key.components(), definition)
    }

    /// A place from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes as computed, of full width.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes that count: without zeros at the end. They order as the places do.
    #[must_use]
    pub fn significant_bytes(&self) -> &[u8] {
        let length = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        &self.0[..length]
    }

    /// Upper-case hexadecimal, as the wire has it.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.to_string()
    }
}

impl EpkRange {
    /// The whole space.
    #[must_use]
    pub fn full() -> Self {
        Self { min: Epk::MIN, max: Epk::max() }
    }

    /// From `min` up to but not including `max`.
    #[must_use]
    pub const fn new(min: Epk, max: Epk) -> Self {
        Self { min, max }
    }

    /// Whether no place is inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.min >= self.max
    }

    /// Whether a place is inside.
    #[must_use]
    pub fn contains(&self, epk: &Epk) -> bool {
        self.min <= *epk && *epk < self.max
    }

    /// Whether every place of `other` is inside.
    #[must_use]
    pub fn contains_range(&self, other: &Self) -> bool {
        other.is_empty() || (self.min <= other.min && other.max <= self.max)
    }

    /// Whether some place is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.intersection(other).is_some()
    }

    /// Places in both, if any.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let min = (&self.min).max(&other.min);
        let max = (&self.max).min(&other.max);
        (min < max).then(|| Self::new(min.clone(), max.clone()))
    }

    /// Where to divide this range into two with as many hashes each; `None` when it holds too few.
    #[must_use]
    pub fn midpoint(&self, version: Version) -> Option<Epk> {
        let middle = match version {
            Version::V1 => {
                let low = if self.min == Epk::MIN { 0 } else { hash::hash_of_v1(self.min.as_bytes())? };
                let high =
                    if self.max == Epk::max() { u32::MAX } else { hash::hash_of_v1(self.max.as_bytes())? };
                Epk(hash::hash_prefix_v1(low.midpoint(high)))
            }
            Version::V2 => midpoint_v2(&self.min, &self.max),
        };
        (self.min < middle && middle < self.max).then_some(middle)
    }

    /// Divides the whole space into `count` ranges with as many hashes each, bounded as the service
    /// bounds the ranges of a new container.
    #[must_use]
    pub fn equal(version: Version, count: u32) -> Vec<Self> {
        let count = count.max(1);
        let bound = |index: u32| match index {
            0 => Epk::MIN,
            _ if index == count => Epk::max(),
            _ => match version {
                // The product of two 32-bit numbers fits 64 bits, and the quotient 32 again.
                Version::V1 => Epk(hash::hash_prefix_v1(
                    (u64::from(u32::MAX) * u64::from(index) / u64::from(count)) as u32,
                )),
                Version::V2 => {
                    let place = HASH_V2_MAX / u128::from(count) * u128::from(index);
                    Epk(place.to_be_bytes().to_vec())
                }
            },
        };
        (0..count).map(|index| Self::new(bound(index), bound(index + 1))).collect()
    }
}

impl Scope {
    /// What a key addresses under a definition. No values address the point of items without key,
    /// or everything where keys are hierarchical.
    ///
    /// # Errors
    /// When the key does not fit the definition.
    pub fn of(key: &PartitionKey, definition: &Definition) -> Result<Self, KeyMismatch> {
        let epk = Epk::of(key, definition);
        match definition.coverage(key) {
            Coverage::Full => Ok(Self::Point(epk)),
            Coverage::Prefix => {
                let mut max = epk.0.clone();
                max.push(0xFF);
                Ok(Self::Range(EpkRange::new(epk, Epk(max))))
            }
            Coverage::Empty if definition.paths().len() > 1 => Ok(Self::Range(EpkRange::full())),
            Coverage::Empty => Ok(Self::Point(epk)),
            Coverage::Mismatch => Err(KeyMismatch),
        }
    }
}

/// Half of the sum, as numbers of enough bytes to tell the bounds apart.
fn midpoint_v2(min: &Epk, max: &Epk) -> Epk {
    let last = HASH_V2_MAX.to_be_bytes();
    let max = if *max >= Epk::max() { &last[..] } else { max.as_bytes() };
    let width = min.0.len().max(max.len()).max(last.len());
    let byte = |bytes: &[u8], index: usize| u16::from(bytes.get(index).copied().unwrap_or(0));
    let mut sum = vec![0u8; width];
    let mut carry = 0;
    for index in (0..width).rev() {
        let digit = byte(&min.0, index) + byte(max, index) + carry;
        sum[index] = (digit & 0xFF) as u8;
        carry = digit >> 8;
    }
    for digit in &mut sum {
        let both = carry << 8 | u16::from(*digit);
        *digit = (both >> 1) as u8;
        carry = both & 1;
    }
    Epk(sum)
}

/// Largest hash of V2: 126 bits.
const HASH_V2_MAX: u128 = (1 << 126) - 1;

impl Ord for Epk {
    fn cmp(&self, other: &Self) -> Ordering {
        self.significant_bytes().cmp(other.significant_bytes())
    }
}

impl PartialOrd for Epk {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Epk {
    fn eq(&self, other: &Self) -> bool {
        self.significant_bytes() == other.significant_bytes()
    }
}

impl Eq for Epk {}

impl Hash for Epk {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.significant_bytes().hash(state);
    }
}

impl FromStr for Epk {
    type Err = InvalidEpk;

    fn from_str(text: &str) -> Result<Self, InvalidEpk> {
        let (pairs, odd) = text.as_bytes().as_chunks::<2>();
        if !odd.is_empty() {
            return Err(InvalidEpk);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let bytes =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect::<Option<_>>();
        bytes.map(Self).ok_or(InvalidEpk)
    }
}

impl fmt::Display for Epk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

impl fmt::Debug for Epk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epk({self})")
    }
}

impl fmt::Display for EpkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.min, self.max)
    }
}

impl fmt::Debug for EpkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EpkRange{self}")
    }
}

impl fmt::Display for InvalidEpk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an effective partition key is an even number of hexadecimal digits")
    }
}

impl std::error::Error for InvalidEpk {}

impl fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the partition key does not have one value per path of the container's definition")
    }
}

impl std::error::Error for KeyMismatch {}
