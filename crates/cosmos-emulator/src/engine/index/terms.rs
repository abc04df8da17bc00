//! What a document contributes to the index: a sorted list of (path, value) terms.

use serde_json::Value;

use super::encode;
use super::path::{PathId, value_at};
use super::policy::{Cursor, Mode, Policy};
use crate::sql::source::{Direction, Path, Step};

/// The terms of one document, in one buffer: they may stay in memory as long as their document.
#[derive(Debug, Default)]
pub(crate) struct Terms {
    /// Of each term its path and the end of its value, then the values, one after the other.
    packed: Box<[u8]>,
    count: u32,
    /// Values of the user's document that are in the index, without the id: what a write is charged for.
    pub(crate) indexed_properties: usize,
}

/// A path and an end.
const ENTRY_BYTES: usize = 12;

impl Terms {
    /// Path and encoded value of each term, sorted and without duplicates.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PathId, &[u8])> + Clone {
        self.from(0)
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// The encoded values of one path.
    pub(crate) fn of_path(&self, path: PathId) -> impl Iterator<Item = &[u8]> {
        let (entries, _) = self.split();
        let first = entries.partition_point(|entry| parts(*entry).0 < path);
        self.from(first).take_while(move |(own, _)| *own == path).map(|(_, value)| value)
    }

    /// Paths at which the document has a value, sorted. The absence at a tracked path is a term too.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathId> {
        self.iter().filter(|(_, value)| *value != [encode::UNDEFINED]).map(|(path, _)| path)
    }

    /// Whether it has one at this path.
    pub(crate) fn has_path(&self, path: PathId) -> bool {
        self.of_path(path).next().is_some_and(|value| value != [encode::UNDEFINED])
    }

    /// Those from one on.
    fn from(&self, first: usize) -> impl Iterator<Item = (PathId, &[u8])> + Clone {
        let (entries, values) = self.split();
        let mut start = first.checked_sub(1).map_or(0, |before| parts(entries[before]).1);
        entries[first..].iter().map(move |entry| {
            let (path, end) = parts(*entry);
            (path, &values[std::mem::replace(&mut start, end)..end])
        })
    }

    fn split(&self) -> (&[[u8; ENTRY_BYTES]], &[u8]) {
        let (entries, values) = self.packed.split_at(self.len() * ENTRY_BYTES);
        (entries.as_chunks().0, values)
    }
}

fn parts(entry: [u8; ENTRY_BYTES]) -> (PathId, usize) {
    let [path @ .., a, b, c, d] = entry;
    (PathId::from_number(u64::from_le_bytes(path)), u32::from_le_bytes([a, b, c, d]) as usize)
}

/// Terms that are being found.
#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    list: Vec<Term>,
}

#[derive(Debug, Clone, Copy)]
struct Term {
    path: PathId,
    start: u32,
    end: u32,
}

impl Found {
    fn push(&mut self, path: PathId, value: Option<&Value>) {
        let start = self.mark();
        encode::push(&mut self.bytes, value);
        self.close(path, start);
    }

    fn mark(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("documents are smaller than 4 GB")
    }

    fn close(&mut self, path: PathId, start: u32) {
        let end = self.mark();
        self.list.push(Term { path, start, end });
    }

    fn pack(mut self, indexed_properties: usize) -> Terms {
        let value = |term: &Term| &self.bytes[term.start as usize..term.end as usize];
        self.list.sort_unstable_by(|a, b| (a.path, value(a)).cmp(&(b.path, value(b))));
        self.list.dedup_by(|a, b| a.path == b.path && value(a) == value(b));
        let mut packed = Vec::with_capacity(self.list.len() * ENTRY_BYTES + self.bytes.len());
        let mut end = 0;
        for term in &self.list {
            end += term.end - term.start;
            packed.extend_from_slice(&term.path.get().to_le_bytes());
            packed.extend_from_slice(&end.to_le_bytes());
        }
        self.list.iter().for_each(|term| packed.extend_from_slice(value(term)));
        let count = u32::try_from(self.list.len()).expect("documents are smaller than 4 GB");
        Terms { packed: packed.into(), count, indexed_properties }
    }
}

/// Finds the terms of a document. `tracked` paths have a term even where the document has no value.
pub(crate) fn terms(document: &Value, timestamp: u64, rid: u64, policy: &Policy, tracked: &[Path]) -> Terms {
    let Value::Object(map) = document else { return Terms::default() };
    if policy.mode == Mode::None {
        return Terms::default();
    }
    let mut terms = Found { bytes: Vec::with_capacity(BYTES_USUAL), list: Vec::with_capacity(COUNT_USUAL) };
    for (name, value) in map {
        if name == "id" {
            terms.push(PathId::ROOT.property(name), Some(value));
        } else if !is_system_property(name) {
            walk(value, PathId::ROOT.property(name), policy.cursor().property(name), &mut terms);
        }
    }
    let indexed_properties = terms.list.len().saturating_sub(1);
    terms.push(PathId::ROOT.property("_ts"), Some(&Value::from(timestamp)));
    for path in tracked {
        if value_at(document, path).is_none() {
            terms.push(PathId::of(path), None);
        }
    }
    for composite in &policy.composites {
        let start = terms.mark();
        for (path, direction) in &composite.paths {
            let from = terms.bytes.len();
            match path.as_slice() {
                [Step::Property(name)] if &**name == "_ts" => {
                    encode::push(&mut terms.bytes, Some(&Value::from(timestamp)));
                }
                path => encode::push(&mut terms.bytes, value_at(document, path)),
            }
            if *direction == Direction::Descending {
                terms.bytes[from..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        // Ties follow the first direction, so where that is descending the creation order is turned around too.
        if composite.paths.first().is_some_and(|(_, direction)| *direction == Direction::Descending) {
            terms.bytes.extend_from_slice(&(!rid).to_be_bytes());
        }
        terms.close(composite.id, start);
    }
    terms.pack(indexed_properties)
}

/// Room for the terms of a usual document.
const BYTES_USUAL: usize = 512;
const COUNT_USUAL: usize = 32;

/// The properties the service adds to every document.
pub(crate) fn is_system_property(name: &str) -> bool {
    matches!(name, "_rid" | "_self" | "_etag" | "_attachments" | "_ts")
}

/// Values at a path with array steps, encoded.
pub(crate) fn encoded_values(document: &Value, path: &[Step]) -> Vec<Vec<u8>> {
    let mut nodes = vec![document];
    for step in path {
        nodes = nodes
            .into_iter()
            .flat_map(|node| match (step, node) {
                (Step::Property(name), Value::Object(map)) => {
                    map.get(&**name).into_iter().collect::<Vec<_>>()
                }
                (Step::Index(_) | Step::Each, Value::Array(items)) => items.iter().collect(),
                _ => Vec::new(),
            })
            .collect();
    }
    nodes.into_iter().map(|node| encode::encoded(Some(node))).collect()
}

fn walk(value: &Value, path: PathId, cursor: Cursor<'_>, terms: &mut Found) {
    if cursor.is_dead() {
        return;
    }
    if cursor.includes_value() {
        terms.push(path, Some(value));
    }
    match value {
        Value::Array(items) => {
            let (path, cursor) = (path.each(), cursor.each());
            for item in items {
                walk(item, path, cursor, terms);
            }
        }
        Value::Object(map) => {
            for (name, item) in map {
                walk(item, path.property(name), cursor.property(name), terms);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// What changes in the index when `old` becomes `new`, both sorted.
pub(crate) fn difference(old: &Terms, new: &Terms, mut changed: impl FnMut(Side, PathId, &[u8])) {
    let (mut left, mut right) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(gone), Some(kept)) if gone == kept => {
                left.next();
                right.next();
            }
            (Some(gone), next) if next.is_none_or(|next| gone < next) => {
                changed(Side::Removed, gone.0, gone.1);
                left.next();
            }
            (_, Some(added)) => {
                changed(Side::Added, added.0, added.1);
                right.next();
            }
            (Some(_), None) => unreachable!("the arm above takes it"),
        }
    }
}

/// Which way an index entry goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It is no longer true.
    Removed,
    /// It became true.
    Added,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engine::index::policy::normalise;

    #[test]
    fn equal_documents_change_nothing_and_others_only_what_differs() {
        let (_, policy) = normalise(None).expect("default");
        let old = terms(&json!({"id": "1", "a": 1, "l": ["x", "y", "x"]}), 5, 1, &policy, &[]);
        let new = terms(&json!({"id": "1", "a": 2, "l": ["y", "x"]}), 5, 1, &policy, &[]);
        let mut seen = Vec::new();
        difference(&old, &new, |side, path, value| seen.push((side, path, value.to_vec())));
        let a = PathId::ROOT.property("a");
        let one = encode::encoded(Some(&json!(1)));
        let two = encode::encoded(Some(&json!(2)));
        assert_eq!(seen, [(Side::Removed, a, one), (Side::Added, a, two)]);
        difference(&new, &new, |_, _, _| panic!("nothing differs"));
    }

    #[test]
    fn charged_properties_are_the_indexed_values_without_the_id() {
        let (_, policy) = normalise(None).expect("default");
        assert_eq!(
            terms(&json!({"id": "1", "pk": "p", "n": 1, "s": "t"}), 5, 1, &policy, &[]).indexed_properties,
            3
        );
    }

    #[test]
    fn tracked_paths_have_a_term_without_a_value() {
        let (_, policy) = normalise(None).expect("default");
        let path = vec![Step::Property("x".into())];
        let found = terms(&json!({"id": "1"}), 5, 1, &policy, std::slice::from_ref(&path));
        assert!(found.iter().any(|(id, value)| id == PathId::of(&path) && value == [encode::UNDEFINED]));
    }
}
