//! Which entries are looked at together.

use std::ops::Bound;

use crate::storage::group_bytes;

/// The start of the keys of entries that are looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Group {
    len: u8,
    bytes: [u8; GROUP_BYTES_MAX],
}

const GROUP_BYTES_MAX: usize = 17;

impl Group {
    pub(super) fn of(key: &[u8]) -> Self {
        let prefix = &key[..group_bytes(key).min(key.len())];
        let mut bytes = [0; GROUP_BYTES_MAX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        Self { len: prefix.len() as u8, bytes }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Of whose items its entries are.
    pub(super) fn family(&self) -> u32 {
        let [_, number @ .., _, _, _, _, _, _, _, _, _, _, _, _] = self.bytes;
        u32::from_be_bytes(number)
    }

    /// The only group that has keys between two bounds, where that is plain to see.
    pub(super) fn between(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Option<Self> {
        let (Bound::Included(low) | Bound::Excluded(low)) = lower else { return None };
        let group = Self::of(low);
        let is_whole = group.as_slice().len() == group_bytes(low);
        (is_whole && !group.may_be_below(upper)).then_some(group)
    }

    /// Whether keys of other groups behind this one can be below a bound.
    fn may_be_below(&self, upper: Bound<&[u8]>) -> bool {
        let own = self.as_slice();
        match upper {
            Bound::Unbounded => true,
            Bound::Included(high) => !high.starts_with(own),
            Bound::Excluded(high) => !high.starts_with(own) && Some(high) != after(own).as_deref(),
        }
    }

    /// Whether keys of this group can lie between two bounds.
    pub(super) fn overlaps(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let own = self.as_slice();
        let begins = match lower {
            Bound::Included(low) | Bound::Excluded(low) => own >= &low[..low.len().min(own.len())],
            Bound::Unbounded => true,
        };
        let ends = match upper {
            Bound::Included(high) => own <= high,
            Bound::Excluded(high) => own < high,
            Bound::Unbounded => true,
        };
        begins && ends
    }
}

/// The least key beyond all that begin like this.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut next = prefix[..=kept].to_vec();
    next[kept] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_within_a_group_are_told_from_wider_ones() {
        let entry =
            |path: u8| [&[0x11, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, path][..], &[0; 4]].concat();
        let (one, two) = (entry(1), entry(2));
        let (start, next) = (&one[..17], &two[..17]);
        let own = Some(Group::of(&one));
        for (lower, upper, expected) in [
            (Bound::Included(start), Bound::Excluded(next), own),
            (Bound::Excluded(&one[..]), Bound::Excluded(next), own),
            (Bound::Included(&one[..]), Bound::Included(&one[..]), own),
            (Bound::Included(start), Bound::Included(next), None),
            (Bound::Included(start), Bound::Excluded(&two[..]), None),
            (Bound::Included(&one[..16]), Bound::Excluded(next), None),
            (Bound::Included(start), Bound::Unbounded, None),
            (Bound::Unbounded, Bound::Excluded(next), None),
        ] {
            assert_eq!(Group::between(lower, upper), expected, "{lower:?} {upper:?}");
        }
        assert_eq!(after(&[1, 255, 255]), Some(vec![2]));
        assert_eq!(after(&[255]), None);
    }
}
