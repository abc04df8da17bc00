//! Which physical partitions, and which keys in them, a query or a feed looks at.

use std::sync::Arc;

use cosmos_wire::epk::{self, Epk, EpkRange};
use cosmos_wire::status::Status;

use super::container::{Container, Shape, epk_key, too_few_components};
use super::index::choice::KeyScope;
use super::key;
use super::partition::Partition;
use super::request::Scope;
use crate::Failure;

/// One physical partition's part of a scope.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) partition: Arc<Partition>,
    pub(crate) scope: KeyScope,
    /// The keys of the scope.
    pub(crate) range: EpkRange,
}

impl Part {
    /// The keys of a partition that lie in a range, if any.
    fn of(partition: &Arc<Partition>, range: &EpkRange) -> Option<Self> {
        let range = partition.range.intersection(range)?;
        let scope = if range == partition.range {
            KeyScope::Partition
        } else {
            let bound = |epk: &Epk| key::epk_bound(epk.significant_bytes());
            KeyScope::Range(bound(&range.min), bound(&range.max))
        };
        Some(Self { partition: Arc::clone(partition), scope, range })
    }

    fn within(&self, range: &EpkRange) -> Option<Self> {
        match &self.scope {
            KeyScope::Key(_) => range.contains(&self.range.min).then(|| self.clone()),
            KeyScope::Partition | KeyScope::Range(..) => {
                Self::of(&self.partition, &self.range.intersection(range)?)
            }
        }
    }
}

/// Keys of which a part has been read. Continuations carry keys and not ids, so that they survive splits and merges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: EpkRange,
    /// Behind what to go on.
    pub(crate) after: Vec<u8>,
}

/// What is left of a scope: the pieces that were begun, then everything behind them.
pub(crate) fn left(parts: &[Part], pieces: &[Piece]) -> Vec<(Part, Option<Vec<u8>>)> {
    let mut left = Vec::new();
    for piece in pieces {
        let begun = parts.iter().filter_map(|part| part.within(&piece.range));
        left.extend(begun.map(|part| (part, Some(piece.after.clone()))));
    }
    let behind = pieces.last().map_or(Epk::MIN, |piece| piece.range.max.clone());
    let rest = EpkRange::new(behind, Epk::from_bytes(vec![0xff; 2]));
    left.extend(parts.iter().filter_map(|part| part.within(&rest)).map(|part| (part, None)));
    left
}

/// What begins the bytes of pieces, and nothing else that stands in their place.
pub(crate) const PIECES: u8 = 0xc0;

/// Pieces as bytes.
pub(crate) fn encode_pieces<'p>(pieces: impl Iterator<Item = (&'p EpkRange, &'p [u8])>) -> Vec<u8> {
    let mut out = vec![PIECES];
    for (range, after) in pieces {
        for bytes in [range.min.significant_bytes(), range.max.significant_bytes(), after] {
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(bytes);
        }
    }
    out
}

/// The pieces in bytes of [`encode_pieces`].
pub(crate) fn decode_pieces(bytes: &[u8]) -> Option<Vec<Piece>> {
    fn take<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        let (taken, behind) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        *rest = behind;
        Some(taken)
    }
    let mut rest = bytes.strip_prefix(&[PIECES])?;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (min, max) = (take(&mut rest)?.to_vec(), take(&mut rest)?.to_vec());
        let range = EpkRange::new(Epk::from_bytes(min), Epk::from_bytes(max));
        pieces.push(Piece { range, after: take(&mut rest)?.to_vec() });
    }
    Some(pieces)
}

/// The parts of a scope, in order of keys; never empty.
pub(crate) fn parts(container: &Container, shape: &Shape, scope: &Scope) -> Result<Vec<Part>, Failure> {
    let whole = |partition: &Arc<Partition>| Part {
        partition: Arc::clone(partition),
        scope: KeyScope::Partition,
        range: partition.range.clone(),
    };
    match scope {
        Scope::All => Ok(shape.partitions_in(container.region).iter().map(whole).collect()),
        Scope::Range(id) => {
            let partitions = shape.partitions_in(container.region);
            let found = partitions.iter().find(|partition| partition.id().to_string() == *id);
            found.map(|partition| vec![whole(partition)]).ok_or_else(range_gone)
        }
        Scope::EpkRange(min, max) => {
            let bound =
                |text: &str| text.parse::<Epk>().map_err(|error| Failure::bad_request(error.to_string()));
            of_range(shape.partitions_in(container.region), &EpkRange::new(bound(min)?, bound(max)?))
        }
        Scope::PartitionKey(key) => {
            match epk::Scope::of(key, container.partition_key()).map_err(|_| too_few_components())? {
                epk::Scope::Point(epk) => {
                    let partition = Arc::clone(shape.partition_of(container.region, &epk));
                    let scope = KeyScope::Key(epk_key(&epk));
                    // Not empty, so that a continuation finds its piece again and nothing behind it.
                    let beyond = Epk::from_bytes([epk.as_bytes(), &[0xff]].concat());
                    Ok(vec![Part { partition, scope, range: EpkRange::new(epk, beyond) }])
                }
                epk::Scope::Range(range) => of_range(shape.partitions_in(container.region), &range),
            }
        }
    }
}

fn of_range(partitions: &[Arc<Partition>], range: &EpkRange) -> Result<Vec<Part>, Failure> {
    let parts: Vec<_> = partitions.iter().filter_map(|partition| Part::of(partition, range)).collect();
    if parts.is_empty() {
        return Err(Failure::bad_request(format!("The range {range} of effective partition keys is empty.")));
    }
    Ok(parts)
}

/// A physical partition that was split, merged, or never there.
pub(crate) fn range_gone() -> Failure {
    Failure::of(
        Status::PARTITION_KEY_RANGE_GONE,
        "The requested resource is no longer available at the server.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::key::Segment;
    use super::super::partition::{Counters, Lineage};
    use super::*;

    fn range(min: u8, max: u8) -> EpkRange {
        EpkRange::new(Epk::from_bytes(vec![min]), Epk::from_bytes(vec![max]))
    }

    fn part(id: u32, min: u8, max: u8) -> Part {
        let segment = Segment { container: 1, range: id };
        let partition = Partition::new(segment, range(min, max), Lineage::default(), Counters::new(id));
        Part::of(&Arc::new(partition), &range(0, 0xff)).expect("not empty")
    }

    fn shown(left: &[(Part, Option<Vec<u8>>)]) -> Vec<(u32, EpkRange, Option<Vec<u8>>)> {
        left.iter().map(|(part, after)| (part.partition.id(), part.range.clone(), after.clone())).collect()
    }

    #[test]
    fn pieces_survive_their_bytes() {
        let pieces =
            [Piece { range: range(0, 7), after: vec![1, 2] }, Piece { range: range(7, 9), after: vec![] }];
        let bytes = encode_pieces(pieces.iter().map(|piece| (&piece.range, &piece.after[..])));
        assert_eq!(decode_pieces(&bytes), Some(pieces.to_vec()));
        assert_eq!(decode_pieces(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_pieces(b"x"), None);
    }

    #[test]
    fn a_piece_goes_on_in_every_child_and_in_its_part_of_a_merged_partition() {
        let piece = |min, max| vec![Piece { range: range(min, max), after: vec![7] }];
        let split = [part(1, 0, 4), part(2, 4, 8), part(3, 8, 16)];
        let after = || Some(vec![7]);
        assert_eq!(
            shown(&left(&split, &piece(0, 8))),
            [(1, range(0, 4), after()), (2, range(4, 8), after()), (3, range(8, 16), None)]
        );
        let merged = [part(4, 0, 8), part(3, 8, 16)];
        assert_eq!(
            shown(&left(&merged, &piece(2, 4))),
            [(4, range(2, 4), after()), (4, range(4, 8), None), (3, range(8, 16), None)]
        );
        assert_eq!(shown(&left(&merged, &[])).len(), 2);
    }
}
