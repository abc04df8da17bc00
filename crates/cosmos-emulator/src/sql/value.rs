//! Values as the query language sees them: equality, numbers, and a canonical form for sets.

use std::cmp::Ordering;
use std::fmt::Write as _;

use cosmos_wire::value_order::{compare_numbers, rank};
use serde_json::{Number, Value};

pub(crate) use cosmos_wire::value_order::compare;

/// Whether two values are of one type.
pub(crate) fn is_same_type(left: &Value, right: &Value) -> bool {
    rank(Some(left)) == rank(Some(right))
}

/// Equality of two defined values; numbers by value, objects whatever the order of their properties.
pub(crate) fn equals(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b) == Ordering::Equal,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(x, y)| equals(x, y))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, x)| b.get(key).is_some_and(|y| equals(x, y)))
        }
        (left, right) => left == right,
    }
}

fn integer(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// The number as a double.
pub(crate) fn to_double(number: &Number) -> f64 {
    number.as_f64().unwrap_or(0.0)
}

/// The number as a 64-bit integer where it is one, also when it is written as a double.
pub(crate) fn to_integer(number: &Number) -> Option<i64> {
    if let Some(integer) = number.as_i64() {
        return Some(integer);
    }
    let double = number.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "the guard keeps it inside the range of i64")]
    (double.fract() == 0.0 && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&double))
        .then_some(double as i64)
}

/// A double as a value: whole numbers become integers, as the service writes `1.0` as `1`; no value for what JSON
/// cannot write.
pub(crate) fn number(double: f64) -> Option<Value> {
    #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
    if double.fract() == 0.0 && double.abs() < 9_007_199_254_740_992.0 {
        return Some(Value::from(double as i64));
    }
    Number::from_f64(double).map(Value::Number)
}

/// Writes a form that is equal exactly for equal values: the key of sets and groups.
pub(crate) fn write_key(value: Option<&Value>, key: &mut String) {
    match value {
        None => key.push('u'),
        Some(Value::Null) => key.push('n'),
        Some(Value::Bool(flag)) => key.push(if *flag { 't' } else { 'f' }),
        Some(Value::Number(number)) => match (integer(number), to_integer(number)) {
            (Some(integer), _) => {
                let _ = write!(key, "#{integer};");
            }
            (None, Some(integer)) => {
                let _ = write!(key, "#{integer};");
            }
            (None, None) => {
                let _ = write!(key, "d{:x};", to_double(number).to_bits());
            }
        },
        Some(Value::String(text)) => {
            let _ = write!(key, "s{}:{text}", text.len());
        }
        Some(Value::Array(items)) => {
            key.push('[');
            for item in items {
                write_key(Some(item), key);
            }
            key.push(']');
        }
        Some(Value::Object(map)) => {
            key.push('{');
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            for (name, item) in entries {
                let _ = write!(key, "{}:{name}", name.len());
                write_key(Some(item), key);
            }
            key.push('}');
        }
    }
}

/// [`write_key`] into a fresh string.
pub(crate) fn key_of(value: Option<&Value>) -> String {
    let mut key = String::new();
    write_key(value, &mut key);
    key
}

/// How many bytes the value takes as JSON text, near enough for page sizes.
pub(crate) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(number) => match integer(number) {
            Some(integer) => 1 + integer.unsigned_abs().checked_ilog10().unwrap_or(0) as usize,
            None => 18,
        },
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| json_bytes(item) + 1).sum::<usize>(),
        Value::Object(map) => {
            2 + map.iter().map(|(name, item)| name.len() + 4 + json_bytes(item)).sum::<usize>()
        }
    }
}

/// How many bytes the value takes in memory, about.
pub(crate) fn kept_bytes(value: &Value) -> usize {
    let own = size_of::<Value>();
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => own,
        Value::String(text) => own + text.len(),
        Value::Array(items) => own + items.iter().map(kept_bytes).sum::<usize>(),
        Value::Object(map) => {
            own + map.iter().map(|(name, item)| ENTRY_BYTES + name.len() + kept_bytes(item)).sum::<usize>()
        }
    }
}

/// What an entry of an object or of a set takes besides its name and value.
pub(crate) const ENTRY_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn large_integers_keep_their_low_digits() {
        let (a, b) = (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992.0));
        assert_eq!(compare(Some(&a), Some(&b)), Ordering::Greater);
        assert!(equals(&json!(1), &json!(1.0)));
        assert_eq!(key_of(Some(&json!(1))), key_of(Some(&json!(1.0))));
    }

    #[test]
    fn objects_are_equal_whatever_the_order_of_their_properties() {
        let (a, b) = (json!({"x": 1, "y": [2]}), json!({"y": [2], "x": 1}));
        assert!(equals(&a, &b));
        assert_eq!(key_of(Some(&a)), key_of(Some(&b)));
    }
}
