//! The ranges of a container: which physical partition holds which part of the key space.

use std::sync::Arc;

use cosmos_wire::epk::{Epk, EpkRange};
use http::HeaderValue;
use serde::Deserialize;

use crate::error::Error;

/// One range as the service lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RangeDocument {
    id: String,
    min_inclusive: String,
    max_exclusive: String,
    #[serde(default)]
    parents: Option<Vec<String>>,
}

/// One range.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) id: Arc<str>,
    pub(crate) id_header: HeaderValue,
    pub(crate) bounds: EpkRange,
    /// The ranges it was split or merged from, oldest first.
    pub(crate) parents: Vec<String>,
}

/// All ranges, ordered and without gaps.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap {
    ranges: Vec<Range>,
}

impl RangeMap {
    /// Orders the listed ranges, drops parents that live on in their children, and refuses gaps and overlaps.
    pub(crate) fn build(documents: &[RangeDocument]) -> Result<Self, Error> {
        let is_parent = |id: &str| {
            documents.iter().any(|document| document.parents.iter().flatten().any(|parent| parent == id))
        };
        let mut ranges = Vec::with_capacity(documents.len());
        for document in documents.iter().filter(|document| !is_parent(&document.id)) {
            let epk = |text: &str| {
                text.parse::<Epk>()
                    .map_err(|_| Error::protocol(format!("range {:?} has the bound {text:?}", document.id)))
            };
            let id_header = HeaderValue::from_str(&document.id)
                .map_err(|_| Error::protocol(format!("range id {:?} cannot be sent", document.id)))?;
            ranges.push(Range {
                id: Arc::from(document.id.as_str()),
                id_header,
                bounds: EpkRange::new(epk(&document.min_inclusive)?, epk(&document.max_exclusive)?),
                parents: document.parents.clone().unwrap_or_default(),
            });
        }
        ranges.sort_by(|a, b| a.bounds.min.cmp(&b.bounds.min));
        ranges.dedup_by(|b, a| a.id == b.id);
        let full = EpkRange::full();
        let is_whole = ranges.first().is_some_and(|first| first.bounds.min == full.min)
            && ranges.last().is_some_and(|last| last.bounds.max == full.max)
            && ranges.windows(2).all(|pair| pair[0].bounds.max == pair[1].bounds.min);
        if is_whole {
            Ok(Self { ranges })
        } else {
            let listed: Vec<String> =
                ranges.iter().map(|range| format!("{}={}", range.id, range.bounds)).collect();
            Err(Error::protocol(format!(
                "the listed ranges do not cover the key space once: {}",
                listed.join(" ")
            )))
        }
    }

    pub(crate) fn all(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether a range is among these, or one of them comes from it.
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.ranges.iter().any(|range| &*range.id == id || range.parents.iter().any(|parent| parent == id))
    }

    /// The range that holds a key.
    pub(crate) fn holding(&self, epk: &Epk) -> &Range {
        let after = self.ranges.partition_point(|range| range.bounds.min <= *epk);
        &self.ranges[after.saturating_sub(1)]
    }

    /// Which of these keys lie in which range: the range's bounds and the positions of its keys, in order.
    pub(crate) fn grouped<'a>(
        &self,
        keys: impl Iterator<Item = (usize, &'a Epk)>,
    ) -> Vec<(EpkRange, Vec<usize>)> {
        let mut groups = vec![Vec::new(); self.ranges.len()];
        for (position, epk) in keys {
            let after = self.ranges.partition_point(|range| range.bounds.min <= *epk);
            groups[after.saturating_sub(1)].push(position);
        }
        let bounds = self.ranges.iter().map(|range| range.bounds.clone());
        bounds.zip(groups).filter(|(_, group)| !group.is_empty()).collect()
    }

    /// The ranges that overlap these bounds, in order.
    pub(crate) fn overlapping<'a>(&'a self, bounds: &'a EpkRange) -> impl Iterator<Item = &'a Range> {
        self.ranges.iter().filter(|range| range.bounds.overlaps(bounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str, min: &str, max: &str, parents: &[&str]) -> RangeDocument {
        RangeDocument {
            id: id.to_owned(),
            min_inclusive: min.to_owned(),
            max_exclusive: max.to_owned(),
            parents: Some(parents.iter().map(|p| (*p).to_owned()).collect()),
        }
    }

    #[test]
    fn lookup_follows_splits() {
        let map = RangeMap::build(&[
            document("2", "1F", "FF", &["0"]),
            document("0", "", "FF", &[]),
            document("1", "", "1F", &["0"]),
        ])
        .expect("whole");
        let ids: Vec<&str> = map.all().iter().map(|range| &*range.id).collect();
        assert_eq!(ids, ["1", "2"]);
        for (epk, id) in [("", "1"), ("00", "1"), ("1E", "1"), ("1F", "2"), ("1F00", "2"), ("FE", "2")] {
            assert_eq!(&*map.holding(&epk.parse().expect("hex")).id, id, "{epk}");
        }
    }

    #[test]
    fn keys_are_grouped_by_the_range_that_holds_them() {
        let map = RangeMap::build(&[
            document("0", "", "10", &[]),
            document("1", "10", "20", &[]),
            document("2", "20", "FF", &[]),
        ])
        .expect("whole");
        let keys: Vec<Epk> = ["25", "05", "30", "00"].iter().map(|hex| hex.parse().expect("hex")).collect();
        let groups: Vec<Vec<usize>> =
            map.grouped(keys.iter().enumerate()).into_iter().map(|(_, group)| group).collect();
        assert_eq!(groups, [vec![1, 3], vec![0, 2]]);
    }

    #[test]
    fn gaps_and_overlaps_are_refused() {
        for documents in [
            vec![],
            vec![document("0", "", "1F", &[])],
            vec![document("0", "", "1F", &[]), document("1", "2F", "FF", &[])],
            vec![document("0", "", "3F", &[]), document("1", "2F", "FF", &[])],
        ] {
            assert!(RangeMap::build(&documents).is_err(), "{documents:?}");
        }
    }
}
