//! Array and set functions.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::Value;

use super::{Arguments, Function, MANY};
use crate::sql::value::{compare, equals, key_of, number};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("ARRAY_CONCAT", 2, MANY, |a| {
        let mut all = Vec::new();
        for at in 0..a.len() {
            all.extend_from_slice(a.array(at)?);
        }
        Some(all.into())
    }),
    Function::pure("ARRAY_CONTAINS", 2, 3, contains),
    Function::pure("_TRY_ARRAY_CONTAINS", 2, 3, contains),
    Function::pure("ARRAY_CONTAINS_ANY", 2, MANY, |a| {
        let array = a.array(0)?;
        Some((1..a.len()).any(|at| a.value(at).is_some_and(|v| array.iter().any(|e| equals(e, v)))).into())
    }),
    Function::pure("ARRAY_CONTAINS_ALL", 2, MANY, |a| {
        let array = a.array(0)?;
        Some((1..a.len()).all(|at| a.value(at).is_some_and(|v| array.iter().any(|e| equals(e, v)))).into())
    }),
    Function::pure("ARRAY_LENGTH", 1, 1, |a| Some(a.array(0)?.len().into())),
    Function::pure("ARRAY_SLICE", 2, 3, slice),
    Function::pure("ARRAY_SUM", 1, 1, |a| number(numbers(a)?.iter().sum())),
    Function::pure("ARRAY_AVG", 1, 1, |a| {
        let numbers = numbers(a)?;
        #[expect(clippy::cast_precision_loss, reason = "an array is far shorter than 2^53")]
        let count = numbers.len() as f64;
        number(numbers.iter().sum::<f64>() / count)
    }),
    Function::pure("ARRAY_MIN", 1, 1, |a| extreme(a, Ordering::Less)),
    Function::pure("ARRAY_MAX", 1, 1, |a| extreme(a, Ordering::Greater)),
    Function::pure("ARRAY_MEDIAN", 1, 1, |a| {
        let mut numbers = numbers(a)?;
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len() / 2;
        let high = *numbers.get(middle)?;
        number(if numbers.len() % 2 == 1 { high } else { f64::midpoint(numbers[middle - 1], high) })
    }),
    Function::pure("SetIntersect", 2, 2, |a| {
        let right = keys(a.array(1)?);
        distinct(a.array(0)?.iter().filter(|item| right.contains(&key_of(Some(item)))))
    }),
    Function::pure("SetEqual", 2, 2, |a| Some((keys(a.array(0)?) == keys(a.array(1)?)).into())),
    Function::pure("SetUnion", 2, 2, |a| distinct(a.array(0)?.iter().chain(a.array(1)?))),
    Function::pure("SetDifference", 2, 2, |a| {
        let right = keys(a.array(1)?);
        distinct(a.array(0)?.iter().filter(|item| !right.contains(&key_of(Some(item)))))
    }),
];

fn contains(arguments: &Arguments<'_>) -> Option<Value> {
    let (array, wanted) = (arguments.array(0)?, arguments.value(1)?);
    let partial = arguments.optional(2, false, Arguments::flag)?;
    Some(array.iter().any(|item| equals(item, wanted) || (partial && is_part(wanted, item))).into())
}

/// Whether every property of `part` is in `whole` with an equal value.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|found| is_part(value, found)))
        }
        (part, whole) => equals(part, whole),
    }
}

fn slice(arguments: &Arguments<'_>) -> Option<Value> {
    let (array, start) = (arguments.array(0)?, arguments.integer(1)?);
    let length = i64::try_from(array.len()).ok()?;
    let start = if start < 0 { (length + start).max(0) } else { start.min(length) };
    let count = arguments.optional(2, length, Arguments::integer)?.clamp(0, length - start);
    let (start, end) = (usize::try_from(start).ok()?, usize::try_from(start + count).ok()?);
    Some(array[start..end].to_vec().into())
}

/// The numbers of a non-empty array that holds nothing else.
fn numbers(arguments: &Arguments<'_>) -> Option<Vec<f64>> {
    let numbers: Vec<f64> = arguments.array(0)?.iter().map(Value::as_f64).collect::<Option<_>>()?;
    (!numbers.is_empty()).then_some(numbers)
}

fn extreme(arguments: &Arguments<'_>, wanted: Ordering) -> Option<Value> {
    let mut items = arguments.array(0)?.iter();
    let mut best = items.next()?;
    for item in items {
        if compare(Some(item), Some(best)) == wanted {
            best = item;
        }
    }
    Some(best.clone())
}

fn keys(items: &[Value]) -> BTreeSet<String> {
    items.iter().map(|item| key_of(Some(item))).collect()
}

fn distinct<'v>(items: impl Iterator<Item = &'v Value>) -> Option<Value> {
    let mut seen = BTreeSet::new();
    Some(items.filter(|item| seen.insert(key_of(Some(item)))).cloned().collect())
}
