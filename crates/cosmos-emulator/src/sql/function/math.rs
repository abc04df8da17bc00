//! Numeric functions.

use serde_json::Value;

use super::{Arguments, Function, MANY};
use crate::sql::schema::Distance;
use crate::sql::value::number;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("ABS", 1, 1, |a| match a.value(0)?.as_i64().and_then(i64::checked_abs) {
        Some(integer) => Some(integer.into()),
        None => number(a.double(0)?.abs()),
    }),
    Function::pure("ACOS", 1, 1, |a| number(a.double(0)?.acos())),
    Function::pure("ASIN", 1, 1, |a| number(a.double(0)?.asin())),
    Function::pure("ATAN", 1, 1, |a| number(a.double(0)?.atan())),
    Function::pure("ATN2", 2, 2, |a| number(a.double(0)?.atan2(a.double(1)?))),
    Function::pure("CEILING", 1, 1, |a| whole(a, f64::ceil)),
    Function::pure("COS", 1, 1, |a| number(a.double(0)?.cos())),
    Function::pure("COT", 1, 1, |a| number(1.0 / a.double(0)?.tan())),
    Function::pure("DEGREES", 1, 1, |a| number(a.double(0)?.to_degrees())),
    Function::pure("EXP", 1, 1, |a| number(a.double(0)?.exp())),
    Function::pure("FLOOR", 1, 1, |a| whole(a, f64::floor)),
    Function::pure("LOG", 1, 2, |a| {
        let logarithm = a.double(0)?.ln();
        number(if a.len() == 2 { logarithm / a.double(1)?.ln() } else { logarithm })
    }),
    Function::pure("LOG10", 1, 1, |a| number(a.double(0)?.log10())),
    Function::pure("PI", 0, 0, |_| number(std::f64::consts::PI)),
    Function::pure("POWER", 2, 2, |a| number(a.double(0)?.powf(a.double(1)?))),
    Function::pure("RADIANS", 1, 1, |a| number(a.double(0)?.to_radians())),
    Function::contextual("RAND", 0, 0, |_, context| number(context.random())),
    Function::pure("ROUND", 1, 2, round),
    Function::pure("SIGN", 1, 1, |a| {
        let double = a.double(0)?;
        Some(Value::from(i64::from(double > 0.0) - i64::from(double < 0.0)))
    }),
    Function::pure("SIN", 1, 1, |a| number(a.double(0)?.sin())),
    Function::pure("SQRT", 1, 1, |a| number(a.double(0)?.sqrt())),
    Function::pure("SQUARE", 1, 1, |a| number(a.double(0)?.powi(2))),
    Function::pure("TAN", 1, 1, |a| number(a.double(0)?.tan())),
    Function::pure("TRUNC", 1, 1, |a| whole(a, f64::trunc)),
    Function::pure("NumberBin", 1, 2, |a| {
        let bin = a.optional(1, 1.0, Arguments::double)?;
        number((a.double(0)? / bin).floor() * bin)
    }),
    Function::pure("IntAdd", 2, 2, |a| integers(a, |x, y| Some(x.wrapping_add(y)))),
    Function::pure("IntSub", 2, 2, |a| integers(a, |x, y| Some(x.wrapping_sub(y)))),
    Function::pure("IntMul", 2, 2, |a| integers(a, |x, y| Some(x.wrapping_mul(y)))),
    Function::pure("IntDiv", 2, 2, |a| integers(a, i64::checked_div)),
    Function::pure("IntMod", 2, 2, |a| integers(a, i64::checked_rem)),
    Function::pure("IntBitAnd", 2, 2, |a| integers(a, |x, y| Some(x & y))),
    Function::pure("IntBitOr", 2, 2, |a| integers(a, |x, y| Some(x | y))),
    Function::pure("IntBitXor", 2, 2, |a| integers(a, |x, y| Some(x ^ y))),
    Function::pure("IntBitNot", 1, 1, |a| Some((!a.integer(0)?).into())),
    Function::pure("IntBitLeftShift", 2, 2, |a| integers(a, |x, y| shift(x, y, i64::checked_shl))),
    Function::pure("IntBitRightShift", 2, 2, |a| integers(a, |x, y| shift(x, y, i64::checked_shr))),
    Function::pure("CHOOSE", 2, MANY, |a| {
        let at = usize::try_from(a.integer(0)?).ok()?;
        if at == 0 { None } else { a.value(at).cloned() }
    }),
    Function::pure("IIF", 3, 3, |a| {
        let branch = if a.flag(0) == Some(true) { 1 } else { 2 };
        a.value(branch).cloned()
    }),
    Function::pure("VectorDistance", 2, 4, vector_distance),
    // What clients of hybrid search send in place of it: the nearest has the highest.
    Function::pure("_VectorScore", 2, 4, |a| {
        let distance = vector_distance(a)?;
        if function_of(a)? == Distance::Euclidean { number(-distance.as_f64()?) } else { Some(distance) }
    }),
];

/// Rounding to whole numbers leaves integers alone, however large.
fn whole(arguments: &Arguments<'_>, round: fn(f64) -> f64) -> Option<Value> {
    match arguments.value(0)?.as_i64() {
        Some(integer) => Some(integer.into()),
        None => number(round(arguments.double(0)?)),
    }
}

fn round(arguments: &Arguments<'_>) -> Option<Value> {
    let digits = arguments.optional(1, 0, Arguments::integer)?;
    if digits == 0 {
        return whole(arguments, f64::round);
    }
    let scale = 10_f64.powi(i32::try_from(digits.clamp(-300, 300)).ok()?);
    number((arguments.double(0)? * scale).round() / scale)
}

fn integers(arguments: &Arguments<'_>, apply: fn(i64, i64) -> Option<i64>) -> Option<Value> {
    apply(arguments.integer(0)?, arguments.integer(1)?).map(Value::from)
}

fn shift(value: i64, by: i64, apply: fn(i64, u32) -> Option<i64>) -> Option<i64> {
    apply(value, u32::try_from(by).ok()?)
}

/// Cosine similarity by default; `distanceFunction` in the options chooses another: the caller's, or the container's.
fn vector_distance(arguments: &Arguments<'_>) -> Option<Value> {
    let read = |at: usize| -> Option<Vec<f64>> { arguments.array(at)?.iter().map(Value::as_f64).collect() };
    let (left, right) = (read(0)?, read(1)?);
    if left.len() != right.len() || left.is_empty() {
        return None;
    }
    let dot: f64 = left.iter().zip(&right).map(|(a, b)| a * b).sum();
    match function_of(arguments)? {
        Distance::Euclidean => {
            number(left.iter().zip(&right).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt())
        }
        Distance::DotProduct => number(dot),
        Distance::Cosine => {
            let length = |vector: &[f64]| vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            number(dot / (length(&left) * length(&right)))
        }
    }
}

/// How a call compares vectors.
fn function_of(arguments: &Arguments<'_>) -> Option<Distance> {
    let options = arguments.optional(3, &Value::Null, |a, at| a.0.get(at)?.as_deref())?;
    let named = options["distanceFunction"].as_str().map(Distance::by_name);
    named.unwrap_or(Some(Distance::Cosine))
}
