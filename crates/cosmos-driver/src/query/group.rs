//! Groups and aggregates over ranges.

use std::collections::HashMap;

use cosmos_wire::value_order;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use super::plan::{Aggregate, Columns};
use super::rows::{GroupRow, Item};
use crate::error::Error;

/// Groups in the order they were first seen.
#[derive(Debug)]
pub(crate) struct Groups {
    columns: Columns,
    has_keys: bool,
    groups: Vec<Group>,
    /// Canonical key text to index; only looked up, never walked.
    index: HashMap<String, usize>,
}

#[derive(Debug)]
enum Group {
    Value(Cell),
    Named(Vec<Cell>),
}

#[derive(Debug)]
enum Cell {
    First(Option<Value>),
    Total(Total),
}

impl Groups {
    pub(crate) fn new(columns: Columns, has_keys: bool) -> Self {
        Self { columns, has_keys, groups: Vec::new(), index: HashMap::new() }
    }

    /// Adds one row as a range sent it.
    pub(crate) fn add(&mut self, row: &RawValue) -> Result<(), Error> {
        let bad = |e| Error::serialization("a row of a grouped query", e);
        let is_bare = !self.has_keys && matches!(self.columns, Columns::Value(_));
        let row: GroupRow = if is_bare {
            GroupRow {
                group_by_items: Vec::new(),
                payload: Some(serde_json::from_str(row.get()).map_err(bad)?),
            }
        } else {
            serde_json::from_str(row.get()).map_err(bad)?
        };
        let mut key = String::new();
        for item in &row.group_by_items {
            match &item.item {
                Some(value) => canonical(value, &mut key),
                None => key.push('-'),
            }
            key.push('\u{1}');
        }
        let at = match self.index.get(&key) {
            Some(at) => *at,
            None => {
                self.groups.push(empty(&self.columns));
                self.index.insert(key, self.groups.len() - 1);
                self.groups.len() - 1
            }
        };
        self.groups[at].add(&self.columns, row.payload.as_ref())
    }

    /// The finished rows. Undefined values do not show; a row that is undefined as a whole does not either.
    pub(crate) fn finish(mut self) -> Result<Vec<Box<RawValue>>, Error> {
        if self.groups.is_empty() && !self.has_keys {
            self.groups.push(empty(&self.columns));
        }
        let columns = &self.columns;
        let rows = self.groups.iter().filter_map(|group| match (group, columns) {
            (Group::Value(cell), _) => cell.result(),
            (Group::Named(cells), Columns::Named(names)) => {
                let mut row = Map::new();
                for (cell, (name, _)) in cells.iter().zip(names) {
                    if let Some(value) = cell.result() {
                        row.insert(name.clone(), value);
                    }
                }
                Some(Value::Object(row))
            }
            (Group::Named(_), Columns::Value(_)) => None,
        });
        rows.map(|row| serde_json::value::to_raw_value(&row).map_err(|e| Error::serialization("a row", e)))
            .collect()
    }
}

fn empty(columns: &Columns) -> Group {
    let cell = |kind: &Option<Aggregate>| match kind {
        Some(kind) => Cell::Total(Total::new(*kind)),
        None => Cell::First(None),
    };
    match columns {
        Columns::Value(kind) => Group::Value(cell(kind)),
        Columns::Named(names) => Group::Named(names.iter().map(|(_, kind)| cell(kind)).collect()),
    }
}

impl Group {
    fn add(&mut self, columns: &Columns, payload: Option<&Value>) -> Result<(), Error> {
        let column = |name: &str| payload.and_then(|payload| payload.get(name));
        match (self, columns) {
            (Self::Value(Cell::First(first)), _) => {
                if first.is_none() {
                    *first = payload.cloned();
                }
                Ok(())
            }
            // `SELECT VALUE <aggregate>` sends an array of one item.
            (Self::Value(Cell::Total(total)), _) => total.add(payload.and_then(|payload| payload.get(0))),
            (Self::Named(cells), Columns::Named(names)) => {
                for (cell, (name, _)) in cells.iter_mut().zip(names) {
                    match cell {
                        Cell::First(first) if first.is_none() => *first = column(name).cloned(),
                        Cell::First(_) => {}
                        Cell::Total(total) => total.add(column(name))?,
                    }
                }
                Ok(())
            }
            (Self::Named(_), Columns::Value(_)) => Err(Error::protocol("a named group in a value query")),
        }
    }
}

impl Cell {
    fn result(&self) -> Option<Value> {
        match self {
            Self::First(first) => first.clone(),
            Self::Total(total) => total.result(),
        }
    }
}

/// One aggregate over the ranges' partial results.
#[derive(Debug)]
pub(crate) enum Total {
    Count(u64),
    /// `None` once a partial sum was undefined.
    Sum(Option<Sum>),
    Average {
        sum: Option<Sum>,
        count: u64,
    },
    Min(Option<Value>),
    Max(Option<Value>),
}

/// Exact as long as it can be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sum {
    Exact(i64),
    Rounded(f64),
}

impl Sum {
    fn plus(self, number: &Number) -> Self {
        if let (Self::Exact(sum), Some(more)) = (self, number.as_i64())
            && let Some(total) = sum.checked_add(more)
        {
            return Self::Exact(total);
        }
        Self::Rounded(self.as_f64() + number.as_f64().unwrap_or(0.0))
    }

    fn as_f64(self) -> f64 {
        match self {
            Self::Exact(sum) => sum as f64,
            Self::Rounded(sum) => sum,
        }
    }

    fn value(self) -> Value {
        match self {
            Self::Exact(sum) => Value::from(sum),
            Self::Rounded(sum) => number(sum),
        }
    }
}

/// Whole numbers are written without a fraction, as the service does.
fn number(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        #[allow(clippy::cast_possible_truncation)] // Whole and within the exact range.
        let whole = value as i64;
        return Value::from(whole);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

impl Total {
    fn new(kind: Aggregate) -> Self {
        match kind {
            Aggregate::Count => Self::Count(0),
            Aggregate::Sum => Self::Sum(Some(Sum::Exact(0))),
            Aggregate::Average => Self::Average { sum: Some(Sum::Exact(0)), count: 0 },
            Aggregate::Min => Self::Min(None),
            Aggregate::Max => Self::Max(None),
        }
    }

    fn add(&mut self, partial: Option<&Value>) -> Result<(), Error> {
        let item: Item = match partial {
            Some(partial) => serde_json::from_value(partial.clone())
                .map_err(|e| Error::serialization("a partial aggregate", e))?,
            None => Item::default(),
        };
        let value = item.item;
        match self {
            Self::Count(count) => *count += value.as_ref().and_then(Value::as_u64).unwrap_or(0),
            Self::Sum(sum) => {
                *sum = sum.zip(value.as_ref().and_then(Value::as_number)).map(|(s, n)| s.plus(n));
            }
            Self::Average { sum, count } => {
                let parts = value.unwrap_or_default();
                let more = parts.get("count").and_then(Value::as_u64).unwrap_or(0);
                *count += more;
                *sum = match parts.get("sum").and_then(Value::as_number) {
                    Some(number) => sum.map(|sum| sum.plus(number)),
                    // A range without rows has nothing to say; one with rows but no sum makes all undefined.
                    None if more == 0 => *sum,
                    None => None,
                };
            }
            Self::Min(best) => keep(best, extreme(value, item.item2, "min"), std::cmp::Ordering::Less),
            Self::Max(best) => keep(best, extreme(value, item.item2, "max"), std::cmp::Ordering::Greater),
        }
        Ok(())
    }

    fn result(&self) -> Option<Value> {
        match self {
            Self::Count(count) => Some(Value::from(*count)),
            Self::Sum(sum) => sum.map(Sum::value),
            Self::Average { count: 0, .. } => None,
            Self::Average { sum, count } => sum.map(|sum| number(sum.as_f64() / *count as f64)),
            Self::Min(best) | Self::Max(best) => best.clone(),
        }
    }
}

/// The second form tells an undefined extreme from that of a range without rows.
fn extreme(value: Option<Value>, second: Option<Value>, name: &str) -> Option<Value> {
    match second {
        Some(second) if second.get("count").and_then(Value::as_u64) == Some(0) => None,
        Some(mut second) => second.get_mut(name).map(Value::take).or(value),
        None => value,
    }
}

fn keep(best: &mut Option<Value>, candidate: Option<Value>, wanted: std::cmp::Ordering) {
    let Some(candidate) = candidate else { return };
    let is_better =
        best.as_ref().is_none_or(|best| value_order::compare(Some(&candidate), Some(best)) == wanted);
    if is_better {
        *best = Some(candidate);
    }
}

/// One text per value: properties in order, numbers by value.
pub(crate) fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
        Value::Number(n) => match n.as_i64() {
            Some(whole) => text.push_str(&whole.to_string()),
            None => text.push_str(&number(n.as_f64().unwrap_or(0.0)).to_string()),
        },
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(properties) => {
            let mut names: Vec<&String> = properties.keys().collect();
            names.sort();
            text.push('{');
            for name in names {
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                canonical(&properties[name], text);
                text.push(',');
            }
            text.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(columns: Columns, has_keys: bool, rows: &[Value]) -> Vec<Value> {
        let mut groups = Groups::new(columns, has_keys);
        for row in rows {
            groups.add(&serde_json::value::to_raw_value(row).expect("raw")).expect("a row");
        }
        let rows = groups.finish().expect("rows");
        rows.iter().map(|row| serde_json::from_str(row.get()).expect("json")).collect()
    }

    #[test]
    fn aggregates_over_ranges() {
        use Aggregate::{Average, Count, Max, Min, Sum};
        let cases = [
            ("counts add up", Count, json!([[{ "item": 3 }], [{ "item": 4 }]]), json!([7])),
            ("no rows at all", Count, json!([]), json!([0])),
            ("sums", Sum, json!([[{ "item": 1.5 }], [{ "item": 2 }]]), json!([3.5])),
            ("whole sums stay whole", Sum, json!([[{ "item": 1.5 }], [{ "item": 1.5 }]]), json!([3])),
            ("an undefined sum spoils all", Sum, json!([[{ "item": 1 }], [{}]]), json!([])),
            (
                "averages by weight",
                Average,
                json!([[{ "item": { "sum": 10, "count": 4 } }], [{ "item": { "sum": 2, "count": 1 } }]]),
                json!([2.4]),
            ),
            ("average of nothing", Average, json!([[{ "item": { "sum": 0, "count": 0 } }]]), json!([])),
            (
                "minimum ignores ranges without rows",
                Min,
                json!([[{ "item2": { "count": 0 } }], [{ "item": 5, "item2": { "min": 5, "count": 2 } }], [{ "item": 3, "item2": { "min": 3, "count": 1 } }]]),
                json!([3]),
            ),
            (
                "maximum across types",
                Max,
                json!([[{ "item": 5, "item2": { "max": 5, "count": 2 } }], [{ "item": "a", "item2": { "max": "a", "count": 1 } }]]),
                json!(["a"]),
            ),
        ];
        for (name, kind, rows, expected) in cases {
            let rows = rows.as_array().expect("rows").clone();
            assert_eq!(Value::Array(merged(Columns::Value(Some(kind)), false, &rows)), expected, "{name}");
        }
    }

    #[test]
    fn groups_meet_across_ranges() {
        let columns = Columns::Named(vec![("k".to_owned(), None), ("n".to_owned(), Some(Aggregate::Count))]);
        let row = |k: Value, n: i64| json!({ "groupByItems": [{ "item": k }], "payload": { "k": k, "n": { "item": n } } });
        let undefined = json!({ "groupByItems": [{}], "payload": { "n": { "item": 2 } } });
        let rows = [
            row(json!("a"), 1),
            row(json!(1), 2),
            undefined.clone(),
            row(json!("a"), 5),
            row(json!(1.0), 3),
            undefined,
        ];
        assert_eq!(
            merged(columns, true, &rows),
            [json!({ "k": "a", "n": 6 }), json!({ "k": 1, "n": 5 }), json!({ "n": 4 })]
        );
    }

    #[test]
    fn named_aggregates_without_groups() {
        let columns = Columns::Named(vec![
            ("n".to_owned(), Some(Aggregate::Count)),
            ("m".to_owned(), Some(Aggregate::Sum)),
        ]);
        let rows = [
            json!({ "payload": { "n": { "item": 1 }, "m": { "item": 2 } } }),
            json!({ "payload": { "n": { "item": 3 }, "m": { "item": 4 } } }),
        ];
        assert_eq!(merged(columns, false, &rows), [json!({ "n": 4, "m": 6 })]);
    }

    #[test]
    fn canonical_text_ignores_property_order_and_number_form() {
        let text = |value: Value| {
            let mut text = String::new();
            canonical(&value, &mut text);
            text
        };
        assert_eq!(text(json!({ "a": 1, "b": [1.0] })), text(json!({ "b": [1], "a": 1.0 })));
        assert_ne!(text(json!("1")), text(json!(1)));
    }
}
