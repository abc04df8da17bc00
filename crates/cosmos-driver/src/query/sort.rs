//! Order across ranges: comparing sort keys, and finding the cursor again after a pause or a split.
//!
//! An example, `ORDER BY c.n` over two ranges. A has rows (n, rid) 1/a1, 5/a2, 5/a3, and B has 5/b1, 7/b2. The merge gives
//! 1/a1, 5/a2, 5/a3, 5/b1, 7/b2: equal keys go range by range. A pager that stops after 5/a2 has the cursor
//! `keys [5], rid a2, range A`, and that is all its continuation has to say. A pager that goes on asks each range for
//! `c.n >= 5` ([`MergeCursor::filter`]) and leaves out what comes before the cursor ([`MergeCursor::compare`]): in A
//! everything up to a2, in B nothing, since B stands to the right of A. Had the cursor been at 5/b1, all of A's fives would
//! be left out as well.
//!
//! Should A split into A1 (a2) and A2 (a3) in between, both are heirs of the cursor's range: their fives are still told apart
//! by rid alone ([`MergeCursor::is_tied`]), so a3 comes next although it is in another range now. Should A and B merge, the
//! merged range is read in pieces cut at the cursor's bounds ([`MergeCursor::cut`]), so that B's fives are not left out with
//! A's. `count` is for documents that are joined: rows of one document have one rid, and the cursor says how many of them
//! were given.
//!
//! Rows are ordered by their keys, then by range, then as the range sends them, which is by resource id in the
//! direction of the first key. So one emitted row tells for every range what has been emitted from it. Where ranges
//! change among rows with equal keys, those rows keep to the ranges as they were.

use std::cmp::Ordering;

use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::rid::Rid;
use cosmos_wire::value_order;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use super::plan::Direction;
use super::rows::{Item, SortedRow};

/// The last row that was emitted, and the part of the key space it came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MergeCursor {
    /// Sort keys; an empty list stands for an undefined one.
    pub(crate) keys: Vec<Vec<Value>>,
    pub(crate) rid: String,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    min: Epk,
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    max: Epk,
    /// Rows of its document that were emitted with these keys: a document that is joined has several.
    #[serde(default = "one")]
    pub(crate) count: u64,
}

fn to_hex<S: Serializer>(epk: &Epk, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&epk.to_hex())
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Epk, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| de::Error::custom("a bound that is not hexadecimal"))
}

/// What was written before rows were counted came from documents with one row each.
fn one() -> u64 {
    1
}

impl MergeCursor {
    pub(crate) fn of(row: &SortedRow, bounds: &EpkRange) -> Self {
        Self {
            keys: row.order_by_items.iter().map(|item| item.item.iter().cloned().collect()).collect(),
            rid: row.rid.clone(),
            min: bounds.min.clone(),
            max: bounds.max.clone(),
            count: 1,
        }
    }

    /// The cursor of the row that is emitted after the one of this cursor.
    pub(crate) fn next(&self, row: &SortedRow, bounds: &EpkRange, directions: &[Direction]) -> Self {
        let mut next = Self::of(row, bounds);
        if self.is_tied(row, bounds, directions) {
            // The other heirs of the range go on behind this row too.
            next.min.clone_from(&self.min);
            next.max.clone_from(&self.max);
            if self.compare_rid(row, directions) == Ordering::Equal {
                next.count = self.count + 1;
            }
        }
        next
    }

    fn key(&self, i: usize) -> Option<&Value> {
        self.keys.get(i).and_then(|key| key.first())
    }

    /// Cuts a part of the key space where the cursor's range begins and ends, so that each piece is on one side of it
    /// or inside.
    pub(crate) fn cut(&self, bounds: EpkRange) -> Vec<EpkRange> {
        let mut pieces = Vec::new();
        let mut rest = bounds;
        for at in [&self.min, &self.max] {
            if rest.min < *at && *at < rest.max {
                pieces.push(EpkRange::new(rest.min, at.clone()));
                rest.min = at.clone();
            }
        }
        pieces.push(rest);
        pieces
    }

    /// Where a row from this part of the key space stands: `Less` before the cursor, `Greater` after it.
    pub(crate) fn compare(&self, row: &SortedRow, bounds: &EpkRange, directions: &[Direction]) -> Ordering {
        self.compare_keys(row, directions).then_with(|| self.compare_ties(row, bounds, directions))
    }

    fn compare_keys(&self, row: &SortedRow, directions: &[Direction]) -> Ordering {
        let mut order = Ordering::Equal;
        for (i, direction) in directions.iter().enumerate() {
            let key = row.order_by_items.get(i).and_then(Item::value);
            order =
                order.then_with(|| directed(value_order::compare_sort_keys(key, self.key(i)), *direction));
        }
        order
    }

    /// Rows with equal keys: ranges on the left were emitted, ranges on the right were not, the same range by rid.
    fn compare_ties(&self, row: &SortedRow, bounds: &EpkRange, directions: &[Direction]) -> Ordering {
        if bounds.max <= self.min {
            return Ordering::Less;
        }
        if bounds.min >= self.max {
            return Ordering::Greater;
        }
        self.compare_rid(row, directions)
    }

    fn compare_rid(&self, row: &SortedRow, directions: &[Direction]) -> Ordering {
        compare_rids(&row.rid, &self.rid, directions)
    }

    /// Whether a row has the cursor's keys and is from its range, or from an heir of that. Such rows are emitted by rid
    /// even if they are in several ranges by now.
    pub(crate) fn is_tied(&self, row: &SortedRow, bounds: &EpkRange, directions: &[Direction]) -> bool {
        self.min <= bounds.min
            && bounds.max <= self.max
            && self.compare_keys(row, directions) == Ordering::Equal
    }

    /// A filter that spares the ranges what was emitted long ago: the first key is not before the cursor's. What
    /// remains is skipped by [`MergeCursor::compare`].
    pub(crate) fn filter(&self, expression: &str, direction: Direction) -> String {
        let Some(key) = self.key(0) else {
            return match direction {
                Direction::Ascending => "true".to_owned(),
                Direction::Descending => format!("NOT IS_DEFINED({expression})"),
            };
        };
        let sign = match direction {
            Direction::Ascending => ">=",
            Direction::Descending => "<=",
        };
        let same = match key {
            Value::Null => format!("IS_NULL({expression})"),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => format!("{expression} {sign} {key}"),
            // Arrays and objects have no order in the language; read them all and skip here.
            Value::Array(_) => format!("IS_ARRAY({expression})"),
            Value::Object(_) => format!("IS_OBJECT({expression})"),
        };
        let rank = value_order::rank(Some(key));
        let others = TYPES.iter().filter(|(_, example)| {
            let other = value_order::rank(example().as_ref());
            match direction {
                Direction::Ascending => other > rank,
                Direction::Descending => other < rank,
            }
        });
        let mut filter = format!("({same}");
        for (test, _) in others {
            filter.push_str(" OR ");
            filter.push_str(&test.replace('$', expression));
        }
        filter.push(')');
        filter
    }
}

type Example = fn() -> Option<Value>;

/// Each type's test and an example to rank it by.
const TYPES: [(&str, Example); 7] = [
    ("NOT IS_DEFINED($)", || None),
    ("IS_NULL($)", || Some(Value::Null)),
    ("IS_BOOL($)", || Some(Value::Bool(true))),
    ("IS_NUMBER($)", || Some(Value::from(1))),
    ("IS_STRING($)", || Some(Value::from(""))),
    ("IS_ARRAY($)", || Some(Value::Array(Vec::new()))),
    ("IS_OBJECT($)", || Some(Value::Object(serde_json::Map::new()))),
];

/// Which of two rows comes first, by keys alone.
pub(crate) fn compare(left: &SortedRow, right: &SortedRow, directions: &[Direction]) -> Ordering {
    let mut order = Ordering::Equal;
    for (i, direction) in directions.iter().enumerate() {
        let (left, right) = (left.order_by_items.get(i), right.order_by_items.get(i));
        let compared =
            || value_order::compare_sort_keys(left.and_then(Item::value), right.and_then(Item::value));
        order = order.then_with(|| directed(compared(), *direction));
    }
    order
}

/// The order in which a range sends documents with equal keys.
pub(crate) fn compare_rids(left: &str, right: &str, directions: &[Direction]) -> Ordering {
    let number = |rid: &str| rid.parse::<Rid>().ok().and_then(|rid| rid.counter());
    directed(number(left).cmp(&number(right)), directions.first().copied().unwrap_or(Direction::Ascending))
}

fn directed(order: Ordering, direction: Direction) -> Ordering {
    match direction {
        Direction::Ascending => order,
        Direction::Descending => order.reverse(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(keys: &Value, rid: u64) -> SortedRow {
        let rid = Rid::database(1).container(1).document(rid).to_string();
        serde_json::from_value(json!({ "_rid": rid, "orderByItems": keys, "payload": 1 })).expect("a row")
    }

    fn part(min: &str, max: &str) -> EpkRange {
        EpkRange::new(min.parse().expect("hex"), max.parse().expect("hex"))
    }

    #[test]
    fn keys_decide_in_turn_and_direction() {
        use Direction::{Ascending, Descending};
        let a = row(&json!([{ "item": 1 }, { "item": "x" }]), 1);
        let b = row(&json!([{ "item": 1 }, { "item": "y" }]), 2);
        let undefined = row(&json!([{}, {}]), 3);
        assert_eq!(compare(&a, &b, &[Ascending, Ascending]), Ordering::Less);
        assert_eq!(compare(&a, &b, &[Ascending, Descending]), Ordering::Greater);
        assert_eq!(compare(&undefined, &a, &[Ascending]), Ordering::Less);
        assert_eq!(compare(&undefined, &a, &[Descending]), Ordering::Greater);
    }

    #[test]
    fn one_place_tells_what_every_range_has_given() {
        use Direction::{Ascending, Descending};
        let middle = part("1F", "2F");
        let cursor = MergeCursor::of(&row(&json!([{ "item": 5 }]), 10), &middle);
        let cases = [
            ("later key", json!([{ "item": 6 }]), 1, &middle, Ascending, true),
            ("earlier key", json!([{ "item": 4 }]), 99, &middle, Ascending, false),
            ("itself", json!([{ "item": 5 }]), 10, &middle, Ascending, false),
            ("tie, later rid", json!([{ "item": 5 }]), 11, &middle, Ascending, true),
            ("tie, earlier rid", json!([{ "item": 5 }]), 9, &middle, Ascending, false),
            ("tie, descending", json!([{ "item": 5 }]), 9, &middle, Descending, true),
            ("tie on the left", json!([{ "item": 5 }]), 11, &part("", "1F"), Ascending, false),
            ("tie on the right", json!([{ "item": 5 }]), 9, &part("2F", "FF"), Ascending, true),
            (
                "tie in a half of the split range",
                json!([{ "item": 5 }]),
                11,
                &part("1F", "27"),
                Ascending,
                true,
            ),
            ("given half of the split range", json!([{ "item": 5 }]), 9, &part("27", "2F"), Ascending, false),
        ];
        for (name, keys, rid, bounds, direction, expected) in cases {
            let is_after = cursor.compare(&row(&keys, rid), bounds, &[direction]) == Ordering::Greater;
            assert_eq!(is_after, expected, "{name}");
        }
    }

    #[test]
    fn parts_are_cut_at_the_ends_of_the_range_of_the_place() {
        let cursor = MergeCursor::of(&row(&json!([{ "item": 5 }]), 10), &part("1F", "2F"));
        let cases: [(_, &[(&str, &str)]); 5] = [
            (("", "FF"), &[("", "1F"), ("1F", "2F"), ("2F", "FF")]),
            (("", "2F"), &[("", "1F"), ("1F", "2F")]),
            (("20", "30"), &[("20", "2F"), ("2F", "30")]),
            (("20", "21"), &[("20", "21")]),
            (("2F", "FF"), &[("2F", "FF")]),
        ];
        for ((min, max), expected) in cases {
            let expected: Vec<EpkRange> = expected.iter().map(|(min, max)| part(min, max)).collect();
            assert_eq!(cursor.cut(part(min, max)), expected, "{min} to {max}");
        }
    }

    #[test]
    fn places_of_equal_keys_keep_to_the_range_as_it_was() {
        let directions = [Direction::Ascending];
        let cursor = MergeCursor::of(&row(&json!([{ "item": 5 }]), 10), &part("1F", "2F"));
        let half = part("1F", "27");
        let tied = cursor.next(&row(&json!([{ "item": 5 }]), 11), &half, &directions);
        assert_eq!((tied.min.to_hex(), tied.max.to_hex(), tied.count), ("1F".into(), "2F".into(), 1));
        let again = tied.next(&row(&json!([{ "item": 5 }]), 11), &half, &directions);
        assert_eq!(again.count, 2, "another row of the same document");
        let later = again.next(&row(&json!([{ "item": 6 }]), 11), &half, &directions);
        assert_eq!((later.min.to_hex(), later.max.to_hex(), later.count), ("1F".into(), "27".into(), 1));
    }

    #[test]
    fn places_without_a_count_are_read_as_one_row() {
        let text = json!({ "keys": [[5]], "rid": "x", "min": "1F", "max": "2F" });
        let cursor: MergeCursor = serde_json::from_value(text).expect("a cursor");
        assert_eq!(cursor.count, 1);
        assert!(
            serde_json::from_value::<MergeCursor>(json!({ "keys": [], "rid": "", "min": "?", "max": "" }))
                .is_err()
        );
    }

    #[test]
    fn filters_respect_types() {
        use Direction::{Ascending, Descending};
        let filter = |key: &Value, direction| {
            MergeCursor::of(&row(&json!([{ "item": key }]), 1), &EpkRange::full()).filter("c.a", direction)
        };
        assert_eq!(
            filter(&json!(5), Ascending),
            "(c.a >= 5 OR IS_STRING(c.a) OR IS_ARRAY(c.a) OR IS_OBJECT(c.a))"
        );
        assert_eq!(
            filter(&json!(5), Descending),
            "(c.a <= 5 OR NOT IS_DEFINED(c.a) OR IS_NULL(c.a) OR IS_BOOL(c.a))"
        );
        assert_eq!(filter(&json!("x"), Ascending), r#"(c.a >= "x" OR IS_ARRAY(c.a) OR IS_OBJECT(c.a))"#);
        assert_eq!(filter(&json!(null), Descending), "(IS_NULL(c.a) OR NOT IS_DEFINED(c.a))");
        let undefined = MergeCursor::of(&row(&json!([{}]), 1), &EpkRange::full());
        assert_eq!(undefined.filter("c.a", Ascending), "true");
        assert_eq!(undefined.filter("c.a", Descending), "NOT IS_DEFINED(c.a)");
    }
}
