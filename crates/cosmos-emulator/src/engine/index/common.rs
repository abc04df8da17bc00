//! Paths at which every document of a partition has a value, so that ORDER BY over them misses none.
//!
//! Every document that a partition ever held counts: the paths only get fewer, until the index is built anew. So a
//! write merely looks whether its document has them all, and they are written down only when one of them goes.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::path::PathId;
use super::terms::Terms;
use crate::engine::key::{self, Segment};
use crate::storage::{Change, Order, Storage, StorageError};

/// Further paths of a partition's first document are not looked after.
const PATHS_MAX: usize = 1_024;

/// Sorted; nothing as long as there was no document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CommonPaths(Option<Arc<[PathId]>>);

impl CommonPaths {
    /// Whether every document has a value at a path.
    pub(crate) fn contains(&self, path: PathId) -> bool {
        self.0.as_ref().is_none_or(|paths| paths.binary_search(&path).is_ok())
    }

    /// What one more document leaves of them, if that is less.
    pub(crate) fn narrowed(&self, terms: &Terms) -> Option<Self> {
        let Some(paths) = &self.0 else {
            let mut all: Vec<_> = terms.paths().collect();
            all.dedup();
            all.truncate(PATHS_MAX);
            return Some(Self(Some(all.into())));
        };
        let left = || paths.iter().copied().filter(|path| terms.has_path(*path));
        (left().count() < paths.len()).then(|| Self(Some(left().collect())))
    }

    /// Those of several partitions that become one.
    pub(crate) fn of_all<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        parts.fold(Self::default(), |common, part| common.and(part))
    }

    fn and(&self, other: &Self) -> Self {
        let (Some(own), Some(_)) = (&self.0, &other.0) else {
            return if self.0.is_none() { other.clone() } else { self.clone() };
        };
        Self(Some(own.iter().copied().filter(|path| other.contains(*path)).collect()))
    }

    /// As the store keeps them.
    pub(crate) fn row(&self, segment: Segment) -> Option<Change> {
        let bytes: Vec<_> = self.0.as_ref()?.iter().flat_map(|path| path.get().to_be_bytes()).collect();
        Some(Change::Put(key::common_paths(segment), bytes.into()))
    }

    /// As a store has them. Where documents are and nothing is known of them, no path is common.
    pub(crate) fn load(storage: &dyn Storage, segment: Segment) -> Result<Self, StorageError> {
        if let Some(row) = storage.get(&key::common_paths(segment))? {
            return Ok(Self(Some(from_bytes(&row))));
        }
        let lower = key::by_value(segment, PathId::CREATION.get());
        let upper = key::beyond(lower.clone());
        let first = storage.scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward).next();
        Ok(if first.transpose()?.is_some() { Self(Some([].into())) } else { Self::default() })
    }
}

fn from_bytes(row: &Bytes) -> Arc<[PathId]> {
    let (paths, _) = row.as_chunks();
    paths.iter().map(|path| PathId::from_number(u64::from_be_bytes(*path))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::index::policy::normalise;
    use crate::engine::index::terms;

    fn of(document: &Value) -> Terms {
        let (_, policy) = normalise(None).expect("default");
        terms::terms(document, 5, 1, &policy, &[])
    }

    fn after(documents: &[Value]) -> CommonPaths {
        documents
            .iter()
            .fold(CommonPaths::default(), |common, document| common.narrowed(&of(document)).unwrap_or(common))
    }

    fn at(names: &[&str]) -> PathId {
        names.iter().fold(PathId::ROOT, |path, name| path.property(name))
    }

    #[test]
    fn a_path_is_common_until_a_document_lacks_it() {
        assert!(CommonPaths::default().contains(at(&["a"])), "nobody lacks it");
        let common =
            after(&[json!({"id": "1", "a": 1, "o": {"b": 1}}), json!({"id": "2", "o": {"b": []}, "c": 1})]);
        assert!(common.contains(at(&["id"])) && common.contains(at(&["o", "b"])));
        assert!(!common.contains(at(&["a"])) && !common.contains(at(&["c"])));
        assert_eq!(common.narrowed(&of(&json!({"id": "3", "o": {"b": 2}, "z": 1}))), None, "it has them all");
    }

    #[test]
    fn partitions_that_become_one_share_what_each_of_them_has() {
        let (left, right) = (after(&[json!({"a": 1, "b": 1})]), after(&[json!({"b": 1, "c": 1})]));
        let both = CommonPaths::of_all([&left, &CommonPaths::default(), &right].into_iter());
        assert!(both.contains(at(&["b"])) && !both.contains(at(&["a"])) && !both.contains(at(&["c"])));
        assert_eq!(CommonPaths::of_all(std::iter::once(&CommonPaths::default())), CommonPaths::default());
    }

    #[test]
    fn they_survive_their_bytes_and_however_many_a_document_has() {
        let many: Value = (0..PATHS_MAX + 7).map(|at| (format!("p{at}"), json!(at))).collect();
        let segment = Segment { container: 1, range: 0 };
        for common in [after(&[json!({"a": 1})]), after(&[json!({"a": 1}), json!({"b": 1})]), after(&[many])]
        {
            let Some(Change::Put(_, bytes)) = common.row(segment) else { panic!("a row") };
            assert!(bytes.len() <= PATHS_MAX * 8);
            assert_eq!(CommonPaths(Some(from_bytes(&bytes))), common);
        }
    }
}
