//! What a new item leaves in the index: one list of terms instead of two keys for each of them.

use bytes::Bytes;

use super::path::PathId;
use super::terms::Terms;
use crate::engine::key::{self, EpkKey, Segment};
use crate::storage::NewEntries;

/// A new item, as the index knows it.
pub(crate) struct Fresh {
    pub(crate) segment: Segment,
    pub(crate) place: Bytes,
    pub(crate) rid: u64,
    pub(crate) lsn: u64,
    pub(crate) terms: Terms,
}

impl Fresh {
    /// Each path once: terms are sorted.
    fn paths(&self) -> impl Iterator<Item = PathId> {
        let mut last = PathId::CREATION;
        let others = self.terms.iter().map(|(path, _)| path);
        let others = others.filter(move |path| std::mem::replace(&mut last, *path) != *path);
        std::iter::once(PathId::CREATION).chain(others)
    }

    /// Each path with its values, once or several times.
    fn values(&self) -> impl Iterator<Item = (PathId, &[u8])> {
        std::iter::once((PathId::CREATION, &[][..])).chain(self.terms.iter())
    }

    fn by_value(&self, path: PathId, value: &[u8]) -> Bytes {
        key::value_entry(self.segment, path.get(), value, self.rid)
    }

    fn by_partition(&self, epk: &EpkKey, path: PathId, value: &[u8]) -> Bytes {
        key::partition_entry(self.segment.container, path.get(), epk, value, self.rid)
    }

    fn change(&self) -> Bytes {
        key::change(self.segment, self.lsn, self.rid)
    }

    fn epk(&self) -> Option<EpkKey> {
        key::split_place(&self.place).map(|(epk, _)| epk)
    }
}

impl NewEntries for Fresh {
    fn family(&self) -> u32 {
        self.segment.container
    }

    fn count(&self) -> usize {
        2 * (self.terms.len() + 1) + 1
    }

    // As with paths, two forms in billions are taken for one; here entries of the second would stay unseen.
    fn form(&self) -> u64 {
        let start = u64::from(self.segment.range);
        self.paths().fold(start, |form, path| (form.rotate_left(5) ^ path.get()).wrapping_mul(FORM_FACTOR))
    }

    fn groups(&self) -> Vec<Vec<u8>> {
        let paths = self.paths().map(PathId::get);
        let orders = paths.flat_map(|path| {
            [key::by_value(self.segment, path), key::by_partition(self.segment.container, path)]
        });
        orders.chain([key::changes(self.segment)]).collect()
    }

    fn each(&self, put: &mut dyn FnMut(Bytes, Bytes)) {
        let Some(epk) = self.epk() else { return };
        for (path, value) in self.values() {
            put(self.by_value(path, value), self.place.clone());
            put(self.by_partition(&epk, path, value), self.place.clone());
        }
        put(self.change(), self.place.clone());
    }

    fn of_group(&self, group: &[u8], put: &mut dyn FnMut([&[u8]; 3], &Bytes)) {
        let Some(wanted) = key::Group::of(group) else { return };
        let values = |path: u64| {
            let path = PathId::from_number(path);
            let created = (path == PathId::CREATION).then_some(&[][..]);
            created.into_iter().chain(self.terms.of_path(path))
        };
        let rid = self.rid.to_be_bytes();
        match wanted {
            key::Group::ByValue(segment, path) if segment == self.segment => {
                values(path).for_each(|value| put([value, &rid, &[]], &self.place));
            }
            key::Group::ByPartition(container, path) if container == self.segment.container => {
                let Some(epk) = key::epk_bytes(&self.place) else { return };
                values(path).for_each(|value| put([&self.place[..epk], value, &rid], &self.place));
            }
            key::Group::Changes(segment) if segment == self.segment => {
                put([&self.lsn.to_be_bytes(), &rid, &[]], &self.place);
            }
            key::Group::ByValue(..) | key::Group::ByPartition(..) | key::Group::Changes(_) => {}
        }
    }
}

const FORM_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::index::policy::normalise;
    use crate::engine::index::terms;

    #[test]
    fn its_groups_have_all_of_its_entries_and_no_others() {
        let (_, policy) = normalise(None).expect("default");
        let document = json!({"id": "1", "pk": "p", "list": [1, 2, {"a": true}], "n": 5});
        let epk = EpkKey::new(&[7, 0, 9]);
        let fresh = Fresh {
            segment: Segment { container: 3, range: 4 },
            place: key::place(&epk, "1"),
            rid: 11,
            lsn: 12,
            terms: terms::terms(&document, 5, 11, &policy, &[]),
        };
        let mut all = Vec::new();
        fresh.each(&mut |key, value| all.push((key, value)));
        assert!(all.len() > 15, "{}", all.len());
        assert_eq!(all.len(), fresh.count());
        let mut groups = fresh.groups();
        groups.sort_unstable();
        assert!(groups.windows(2).all(|pair| pair[0] != pair[1]));
        let mut found = Vec::new();
        for group in groups {
            let before = found.len();
            fresh.of_group(&group, &mut |[first, second, third], value| {
                found.push((Bytes::from([&group, first, second, third].concat()), value.clone()));
            });
            assert!(found.len() > before);
        }
        all.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, all);
        let elsewhere = Segment { container: 3, range: 5 };
        for group in [key::by_value(elsewhere, 0), key::changes(elsewhere), key::by_partition(4, 0)] {
            fresh.of_group(&group, &mut |rest, _| panic!("{rest:?}"));
        }
    }

    #[test]
    fn items_of_other_paths_or_partitions_have_another_form() {
        let (_, policy) = normalise(None).expect("default");
        let form = |document: serde_json::Value, range: u32| {
            let terms = terms::terms(&document, 5, 1, &policy, &[]);
            let segment = Segment { container: 1, range };
            Fresh { segment, place: Bytes::new(), rid: 1, lsn: 1, terms }.form()
        };
        let usual = form(json!({"id": "1", "a": 1}), 0);
        assert_eq!(form(json!({"id": "2", "a": "x"}), 0), usual);
        assert_eq!(form(json!({"id": "1", "a": [1, 2]}), 0), form(json!({"id": "1", "a": [1, 2, 3]}), 0));
        assert_ne!(form(json!({"id": "2", "b": "x"}), 0), usual);
        assert_ne!(form(json!({"id": "1", "a": 1}), 1), usual);
    }
}
