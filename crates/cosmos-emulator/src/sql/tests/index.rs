//! What the planner asks of an index. A source that takes every wish literally, dropping what a predicate does not
//! cover and sorting as asked, must give the same answers as a plain list.

use std::cmp::Ordering;
use std::ops::Bound;

use serde_json::{Value, json};

use super::super::source::{Access, Direction, Path, Position, Predicate, Row, Rows, Source, Step};
use super::super::value::{compare, equals, is_same_type};
use super::super::{List, Prepared, parse};
use super::script::scripts;
use crate::Failure;

/// A list with a perfect index on everything.
struct Indexed {
    documents: Vec<Value>,
}

struct Cursor {
    rows: std::vec::IntoIter<Row>,
}

impl Rows for Cursor {
    fn is_ordered(&self) -> bool {
        true
    }

    fn next(&mut self) -> Result<Option<Row>, Failure> {
        Ok(self.rows.next())
    }
}

impl Source for Indexed {
    fn open<'a>(&'a self, access: &Access, resume: Option<&Position>) -> Result<Box<dyn Rows + 'a>, Failure> {
        let covers = |document: &Value| access.predicates.iter().all(|predicate| holds(predicate, document));
        let mut found: Vec<&Value> = self.documents.iter().filter(|document| covers(document)).collect();
        if matches!(access.order.first(), Some((_, Direction::Descending))) {
            found.reverse();
        }
        found.sort_by(|left, right| by_order(&access.order, left, right));
        let rows = found.into_iter().enumerate().map(|(at, document)| Row {
            document: document.clone(),
            position: (at as u64).to_be_bytes().to_vec(),
        });
        let rows: Vec<Row> = rows.filter(|row| resume.is_none_or(|resume| row.position > *resume)).collect();
        Ok(Box::new(Cursor { rows: rows.into_iter() }))
    }

    fn check_order(&self, _order: &[(Path, Direction)]) -> Result<(), Failure> {
        Ok(())
    }
}

fn by_order(order: &[(Path, Direction)], left: &Value, right: &Value) -> Ordering {
    for (path, direction) in order {
        let (a, b) = (find(path, left), find(path, right));
        let order = compare(a.first().copied(), b.first().copied());
        let order = if *direction == Direction::Descending { order.reverse() } else { order };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

fn find<'v>(path: &[Step], value: &'v Value) -> Vec<&'v Value> {
    let Some((step, rest)) = path.split_first() else { return vec![value] };
    match (step, value) {
        (Step::Property(name), Value::Object(map)) => {
            map.get(&**name).map(|inner| find(rest, inner)).unwrap_or_default()
        }
        (Step::Index(at), Value::Array(items)) => {
            items.get(*at as usize).map(|inner| find(rest, inner)).unwrap_or_default()
        }
        (Step::Each, Value::Array(items)) => items.iter().flat_map(|item| find(rest, item)).collect(),
        _ => Vec::new(),
    }
}

fn holds(predicate: &Predicate, document: &Value) -> bool {
    match predicate {
        Predicate::In { path, values } => {
            assert!(!values.is_empty() && values.iter().all(|value| !value.is_array() && !value.is_object()));
            find(path, document).iter().any(|found| values.iter().any(|value| equals(found, value)))
        }
        Predicate::Range { path, lower, upper } => {
            find(path, document).iter().any(|found| is_above(found, lower) && is_below(found, upper))
        }
        Predicate::Defined { path } => !find(path, document).is_empty(),
    }
}

fn is_above(found: &Value, lower: &Bound<Value>) -> bool {
    match lower {
        Bound::Included(value) => is_same_type(found, value) && compare(Some(found), Some(value)).is_ge(),
        Bound::Excluded(value) => is_same_type(found, value) && compare(Some(found), Some(value)).is_gt(),
        Bound::Unbounded => true,
    }
}

fn is_below(found: &Value, upper: &Bound<Value>) -> bool {
    match upper {
        Bound::Included(value) => is_same_type(found, value) && compare(Some(found), Some(value)).is_le(),
        Bound::Excluded(value) => is_same_type(found, value) && compare(Some(found), Some(value)).is_lt(),
        Bound::Unbounded => true,
    }
}

#[test]
fn every_script_holds_over_a_perfect_index() {
    for script in scripts() {
        script.run(&Indexed { documents: script.documents.clone() });
    }
}

fn access(text: &str) -> Access {
    Prepared::new(&parse(text).expect("a query"), &[]).expect("a prepared query").access().clone()
}

fn path(names: &[&str]) -> Path {
    let step = |name: &&str| if *name == "*" { Step::Each } else { Step::Property((*name).into()) };
    names.iter().map(step).collect()
}

#[test]
fn conjuncts_become_predicates() {
    let found = access(
        "SELECT * FROM c WHERE c.a = 1 AND c.b IN ('x', 'y') AND c.n > 1 AND c.n <= 5 AND (c.k = 1 OR 2 = c.k OR c.k IN (3)) \
         AND IS_DEFINED(c.d) AND STARTSWITH(c.s, 'ab') AND ARRAY_CONTAINS(c.tags, 'q') AND c.o.p BETWEEN 1 AND 2 AND c.flag",
    );
    let one_of = |names: &[&str], values: Value| Predicate::In {
        path: path(names),
        values: values.as_array().expect("a list").clone(),
    };
    let range = |names: &[&str], lower, upper| Predicate::Range { path: path(names), lower, upper };
    let expected = [
        one_of(&["a"], json!([1])),
        one_of(&["b"], json!(["x", "y"])),
        range(&["n"], Bound::Excluded(json!(1)), Bound::Included(json!(5))),
        one_of(&["k"], json!([1, 2, 3])),
        Predicate::Defined { path: path(&["d"]) },
        range(&["s"], Bound::Included(json!("ab")), Bound::Excluded(json!("ac"))),
        one_of(&["tags", "*"], json!(["q"])),
        range(&["o", "p"], Bound::Included(json!(1)), Bound::Included(json!(2))),
        one_of(&["flag"], json!([true])),
    ];
    assert_eq!(found.predicates, expected);
}

#[test]
fn joined_elements_become_paths_through_arrays() {
    let found = access("SELECT VALUE 1 FROM c JOIN t IN c.tags JOIN p IN t.parts WHERE t.n = 1 AND p = 'x'");
    let paths: Vec<&Path> = found
        .predicates
        .iter()
        .map(|predicate| match predicate {
            Predicate::In { path, .. } | Predicate::Range { path, .. } | Predicate::Defined { path } => path,
        })
        .collect();
    assert_eq!(paths, [&path(&["tags", "*", "n"]), &path(&["tags", "*", "parts", "*"])]);
}

#[test]
fn what_does_not_narrow_is_left_out() {
    for text in [
        "SELECT * FROM c",
        "SELECT * FROM c WHERE c.a != 1",
        "SELECT * FROM c WHERE NOT (c.a = 1)",
        "SELECT * FROM c WHERE c.a = 1 OR c.b = 2",
        "SELECT * FROM c WHERE c.a NOT IN (1, 2)",
        "SELECT * FROM c WHERE c.a = c.b",
        "SELECT * FROM c WHERE c.a = {}",
        "SELECT * FROM c WHERE UPPER(c.a) = 'X'",
        "SELECT * FROM c WHERE c.a BETWEEN 1 AND 'x'",
        "SELECT * FROM c WHERE CONTAINS(c.a, 'x')",
        "SELECT * FROM c WHERE STARTSWITH(c.a, 'x', true)",
    ] {
        assert_eq!(access(text), Access::default(), "{text}");
    }
}

#[test]
fn order_by_is_a_wish_for_an_order() {
    let found = access("SELECT * FROM c WHERE c.a > 1 ORDER BY c.a, c.o.p DESC");
    let expected = [(path(&["a"]), Direction::Ascending), (path(&["o", "p"]), Direction::Descending)];
    assert_eq!(found.order, expected);
    assert!(access("SELECT VALUE COUNT(1) FROM c").order.is_empty());
}

#[test]
fn an_ordered_source_is_not_read_beyond_the_top() {
    let documents: Vec<Value> = (0..1000).map(|n| json!({"n": (n * 7919) % 1000})).collect();
    let query =
        Prepared::new(&parse("SELECT TOP 3 VALUE c.n FROM c ORDER BY c.n DESC").unwrap(), &[]).unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH;
    let limits = super::super::PageLimits::default();
    let indexed = query.page(&Indexed { documents: documents.clone() }, &limits, None, now).unwrap();
    let sorted = query.page(&List::new(documents), &limits, None, now).unwrap();
    assert_eq!((indexed.visited, &indexed.rows), (3, &sorted.rows));
    assert_eq!(sorted.visited, 1000);
}
