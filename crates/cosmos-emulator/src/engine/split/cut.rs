//! Where a range of keys is cut.

use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::Version;

use super::SplitMode;
use crate::Failure;
use crate::engine::Engine;
use crate::engine::container::Container;
use crate::engine::key;
use crate::engine::partition::Partition;

impl Engine {
    /// The two ranges a partition is split into.
    pub(super) fn halves(
        &self,
        container: &Container,
        partition: &Partition,
        mode: &SplitMode,
    ) -> Result<Vec<EpkRange>, Failure> {
        let range = &partition.range;
        let at = match mode {
            SplitMode::Midpoint => range.midpoint(container.partition_key().version()),
            SplitMode::At(hex) => {
                let at: Epk = hex.parse().map_err(|_| {
                    Failure::bad_request(format!(
                        "'{hex}' is no effective partition key: it must be hex digits."
                    ))
                })?;
                Some(at).filter(|at| range.min < *at && *at < range.max)
            }
            SplitMode::Storage => self.middle_of_storage(container, partition)?,
        };
        let at = at.ok_or_else(|| {
            Failure::bad_request(format!(
                "The partition {} with the keys {range} cannot be cut {}.",
                partition.id(),
                match mode {
                    SplitMode::Midpoint => "in the middle: it has too few".to_owned(),
                    SplitMode::At(hex) => format!("at '{hex}': that must lie inside"),
                    SplitMode::Storage => "by what it stores: it needs two logical partitions".to_owned(),
                }
            ))
        })?;
        Ok(vec![EpkRange::new(range.min.clone(), at.clone()), EpkRange::new(at, range.max.clone())])
    }

    /// The first key of the logical partition that has half of what is stored before it.
    fn middle_of_storage(
        &self,
        container: &Container,
        partition: &Partition,
    ) -> Result<Option<Epk>, Failure> {
        let mut sizes: Vec<(Epk, u64)> = Vec::new();
        self.each_item(container, partition, |item, stored| {
            let Some((epk, _)) = key::split_item(item) else { return };
            let epk = Epk::from_bytes(epk.unescaped());
            match sizes.last_mut() {
                Some((last, bytes)) if *last == epk => *bytes += stored.body.len() as u64,
                _ => sizes.push((epk, stored.body.len() as u64)),
            }
        })?;
        let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        let mut before = 0_u64;
        let mut best: Option<(u64, Epk)> = None;
        for (epk, bytes) in sizes {
            let uneven = (2 * before).abs_diff(total);
            if partition.range.min < epk && best.as_ref().is_none_or(|(least, _)| uneven < *least) {
                best = Some((uneven, epk));
            }
            before += bytes;
        }
        Ok(best.map(|(_, epk)| epk))
    }
}

/// A range in this many parts, as even as halving makes them.
pub(super) fn divided(range: &EpkRange, version: Version, count: usize) -> Vec<EpkRange> {
    let mut parts = vec![range.clone()];
    while parts.len() < count {
        let round = parts.len();
        let mut next = Vec::with_capacity(2 * round);
        for (done, part) in parts.iter().enumerate() {
            let wanted = next.len() + (round - done) < count;
            match part.midpoint(version).filter(|_| wanted) {
                Some(at) => {
                    next.push(EpkRange::new(part.min.clone(), at.clone()));
                    next.push(EpkRange::new(at, part.max.clone()));
                }
                None => next.push(part.clone()),
            }
        }
        if next.len() == round {
            break;
        }
        parts = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_without_gaps() {
        for count in 1..=9 {
            let parts = divided(&EpkRange::full(), Version::V2, count);
            assert_eq!(parts.len(), count);
            assert_eq!((&parts[0].min, &parts[count - 1].max), (&Epk::MIN, &Epk::max()));
            assert!(parts.windows(2).all(|pair| pair[0].max == pair[1].min));
        }
    }
}
