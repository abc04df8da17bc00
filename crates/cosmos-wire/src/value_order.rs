//! One order over all JSON values.
//!
//! Types come first: undefined, null, booleans, numbers, strings, arrays, objects. A client that
//! merges sorted pages and a server that sorts them must agree on it. Undefined is `None`.

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

/// Compares two values; `None` is undefined.
#[must_use]
pub fn compare(left: Option<&Value>, right: Option<&Value>) -> Ordering {
    match (left, right) {
        (Some(Value::Bool(left)), Some(Value::Bool(right))) => left.cmp(right),
        (Some(Value::Number(left)), Some(Value::Number(right))) => compare_numbers(left, right),
        (Some(Value::String(left)), Some(Value::String(right))) => left.cmp(right),
        (Some(Value::Array(left)), Some(Value::Array(right))) => compare_arrays(left, right),
        (Some(Value::Object(left)), Some(Value::Object(right))) => compare_objects(left, right),
        (left, right) => rank(left).cmp(&rank(right)),
    }
}

/// Compares two values as ORDER BY does: arrays come at the same place as all other arrays, and objects as all other
/// objects, because an index does not look into them.
#[must_use]
pub fn compare_sort_keys(left: Option<&Value>, right: Option<&Value>) -> Ordering {
    match (left, right) {
        (Some(Value::Array(_)), Some(Value::Array(_))) | (Some(Value::Object(_)), Some(Value::Object(_))) => {
            Ordering::Equal
        }
        (left, right) => compare(left, right),
    }
}

/// Position of a value's type in the order.
#[must_use]
pub fn rank(value: Option<&Value>) -> u8 {
    match value {
        None => 0,
        Some(Value::Null) => 1,
        Some(Value::Bool(_)) => 2,
        Some(Value::Number(_)) => 3,
        Some(Value::String(_)) => 4,
        Some(Value::Array(_)) => 5,
        Some(Value::Object(_)) => 6,
    }
}

/// Compares numbers by their exact value, whether they are held as integers or doubles.
#[must_use]
pub fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    match (whole(left), whole(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(left), None) => compare_whole_with_double(left, double(right)),
        (None, Some(right)) => compare_whole_with_double(right, double(left)).reverse(),
        // JSON has no NaN, so any two doubles compare.
        (None, None) => double(left).partial_cmp(&double(right)).unwrap_or(Ordering::Equal),
    }
}

/// Element by element; a prefix comes first.
fn compare_arrays(left: &[Value], right: &[Value]) -> Ordering {
    let elements = left.iter().zip(right).map(|(left, right)| compare(Some(left), Some(right)));
    first_difference(elements).then(left.len().cmp(&right.len()))
}

/// Property by property in the order of names, so that the order of writing does not matter.
fn compare_objects(left: &Map<String, Value>, right: &Map<String, Value>) -> Ordering {
    let sorted = |map: &Map<String, Value>| {
        let mut names: Vec<_> = map.keys().cloned().collect();
        names.sort_unstable();
        names
    };
    let (left_names, right_names) = (sorted(left), sorted(right));
    let properties = left_names.iter().zip(&right_names).map(|(left_name, right_name)| {
        left_name.cmp(right_name).then_with(|| compare(left.get(left_name), right.get(right_name)))
    });
    first_difference(properties).then(left.len().cmp(&right.len()))
}

fn first_difference(mut comparisons: impl Iterator<Item = Ordering>) -> Ordering {
    comparisons.find(|ordering| ordering.is_ne()).unwrap_or(Ordering::Equal)
}

fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

fn double(number: &Number) -> f64 {
    number.as_f64().unwrap_or(0.0)
}

fn compare_whole_with_double(whole: i128, double: f64) -> Ordering {
    let floor = double.floor();
    // The cast saturates beyond 128 bits, which no whole number here reaches.
    whole.cmp(&(floor as i128)).then(if double > floor { Ordering::Less } else { Ordering::Equal })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_come_in_the_order_of_the_service() {
        let ascending = [
            None,
            Some(json!(null)),
            Some(json!(false)),
            Some(json!(true)),
            Some(json!(-1e300)),
            Some(json!(i64::MIN)),
            Some(json!(-1)),
            Some(json!(0)),
            Some(json!(0.5)),
            Some(json!(1)),
            Some(json!(9_007_199_254_740_992.0)),
            Some(json!(9_007_199_254_740_993_i64)),
            Some(json!(i64::MAX)),
            Some(json!(u64::MAX)),
            Some(json!(1e19_f64 * 10.0)),
            Some(json!("")),
            Some(json!("A")),
            Some(json!("a")),
            Some(json!("aa")),
            Some(json!("日")),
            Some(json!([])),
            Some(json!([1])),
            Some(json!([1, 2])),
            Some(json!([2])),
            Some(json!({})),
            Some(json!({"a": 1})),
            Some(json!({"a": 1, "b": 0})),
            Some(json!({"a": 2})),
        ];
        for (left_index, left) in ascending.iter().enumerate() {
            for (right_index, right) in ascending.iter().enumerate() {
                assert_eq!(
                    compare(left.as_ref(), right.as_ref()),
                    left_index.cmp(&right_index),
                    "{left:?} {right:?}"
                );
            }
        }
    }

    #[test]
    fn equal_values_are_equal_however_they_are_written() {
        let pairs = [
            (json!(1), json!(1.0)),
            (json!(0), json!(-0.0)),
            (json!({"a": 1, "b": 2}), json!({"b": 2.0, "a": 1})),
            (json!([1.0]), json!([1])),
        ];
        for (left, right) in pairs {
            assert_eq!(compare(Some(&left), Some(&right)), Ordering::Equal, "{left} {right}");
        }
    }
}
