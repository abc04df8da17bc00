//! The filter and the order as wishes to the engine: which conjuncts an index can answer, and over which paths.
//!
//! Everything found here only narrows the scan; the filter is evaluated again on every row.

use std::ops::Bound;

use serde_json::Value;

use super::ast::{BinaryOp, Callee, Collection, Expr, InputMode, Kind, Polarity, Query};
use super::bind::ROOT;
use super::like;
use super::source::{Access, Direction, Path, Predicate, Step};
use super::value::is_same_type;

/// Longest list of values handed to an index.
const VALUES_MAX: usize = 10_000;

/// What a bound query wants from its source.
pub(crate) fn access_of(query: &Query) -> Access {
    let aliases = aliases(query);
    let mut predicates = Vec::new();
    if let Some(filter) = &query.filter {
        collect(filter, &aliases, &mut predicates);
    }
    let is_reduced = !query.group_by.is_empty() || query.has_aggregate();
    let order = if is_reduced { Vec::new() } else { order_of(query).unwrap_or_default() };
    Access { predicates: merge(predicates), order }
}

/// ORDER BY as paths from the root; nothing if one key is no such path.
pub(crate) fn order_of(query: &Query) -> Option<Vec<(Path, Direction)>> {
    let aliases = aliases(query);
    query
        .order_by
        .iter()
        .map(|key| {
            let path = path_of(&key.expr, &aliases)
                .filter(|path| !path.contains(&Step::Each) && !path.is_empty())?;
            Some((path, key.direction.unwrap_or(Direction::Ascending)))
        })
        .collect()
}

/// The place in the document an expression of this query names.
pub(crate) fn document_path(expr: &Expr, query: &Query) -> Option<Path> {
    path_of(expr, &aliases(query))
}

/// Names of inputs that stand for a place in the document.
type Aliases<'q> = Vec<(&'q str, Path)>;

fn aliases(query: &Query) -> Aliases<'_> {
    let mut aliases: Aliases<'_> = vec![(ROOT, Path::new())];
    for input in &query.from {
        let (Collection::Path(expr), Some(name)) = (&input.collection, input.name()) else { continue };
        if let Some(mut path) = path_of(expr, &aliases) {
            if input.mode == InputMode::Each {
                path.push(Step::Each);
            }
            aliases.push((name, path));
        }
    }
    aliases
}

fn path_of(expr: &Expr, aliases: &Aliases<'_>) -> Option<Path> {
    match &expr.kind {
        Kind::Name(name) => {
            aliases.iter().rev().find(|(known, _)| known == name).map(|(_, path)| path.clone())
        }
        Kind::Property(base, name) => {
            let mut path = path_of(base, aliases)?;
            path.push(Step::Property(name.as_str().into()));
            Some(path)
        }
        Kind::Index(base, index) => {
            let mut path = path_of(base, aliases)?;
            path.push(match index.as_literal()? {
                Value::String(name) => Step::Property(name.as_str().into()),
                Value::Number(number) => Step::Index(u32::try_from(number.as_u64()?).ok()?),
                _ => return None,
            });
            Some(path)
        }
        _ => None,
    }
}

/// A path that leads somewhere into the document, not to all of it.
fn inner_path(expr: &Expr, aliases: &Aliases<'_>) -> Option<Path> {
    path_of(expr, aliases).filter(|path| !path.is_empty())
}

fn scalar(expr: &Expr) -> Option<&Value> {
    expr.as_literal().filter(|value| !value.is_array() && !value.is_object())
}

/// Adds what an index can use of one conjunct.
fn collect(expr: &Expr, aliases: &Aliases<'_>, predicates: &mut Vec<Predicate>) {
    match &expr.kind {
        Kind::And(operands) => operands.iter().for_each(|operand| collect(operand, aliases, predicates)),
        Kind::Or(operands) => predicates.extend(any_of(operands, aliases)),
        _ => predicates.extend(predicate(expr, aliases)),
    }
}

/// `a = 1 OR a IN (2, 3)`: one list, if all stand on one path.
fn any_of(operands: &[Expr], aliases: &Aliases<'_>) -> Option<Predicate> {
    let mut all: Option<(Path, Vec<Value>)> = None;
    for operand in operands {
        let found = match &operand.kind {
            Kind::Or(inner) => any_of(inner, aliases)?,
            _ => predicate(operand, aliases)?,
        };
        let Predicate::In { path, values } = found else { return None };
        match &mut all {
            None => all = Some((path, values)),
            Some((known, list)) if *known == path && list.len() + values.len() <= VALUES_MAX => {
                list.extend(values);
            }
            Some(_) => return None,
        }
    }
    all.map(|(path, values)| Predicate::In { path, values })
}

fn predicate(expr: &Expr, aliases: &Aliases<'_>) -> Option<Predicate> {
    match &expr.kind {
        Kind::Name(_) | Kind::Property(..) | Kind::Index(..) => {
            Some(Predicate::In { path: inner_path(expr, aliases)?, values: vec![true.into()] })
        }
        Kind::Binary(op, left, right) => comparison(*op, left, right, aliases),
        Kind::In(Polarity::Plain, needle, items, _) if items.len() <= VALUES_MAX => {
            let values: Vec<Value> = items.iter().map(|item| scalar(item).cloned()).collect::<Option<_>>()?;
            Some(Predicate::In { path: inner_path(needle, aliases)?, values })
        }
        Kind::Between(Polarity::Plain, three) => {
            let [value, low, high] = &**three;
            let (low, high) = (scalar(low)?, scalar(high)?);
            if !is_same_type(low, high) {
                return None;
            }
            let (lower, upper) = (Bound::Included(low.clone()), Bound::Included(high.clone()));
            Some(Predicate::Range { path: inner_path(value, aliases)?, lower, upper })
        }
        Kind::Like(Polarity::Plain, two, escape) => {
            let prefix = like::literal_prefix(two[1].as_literal()?.as_str()?, *escape);
            starts_with(inner_path(&two[0], aliases)?, &prefix)
        }
        Kind::Call(Callee::Builtin(function), _, arguments) => call(function.name, arguments, aliases),
        _ => None,
    }
}

fn comparison(op: BinaryOp, left: &Expr, right: &Expr, aliases: &Aliases<'_>) -> Option<Predicate> {
    let (path, value, op) = match (inner_path(left, aliases), inner_path(right, aliases)) {
        (Some(path), None) => (path, scalar(right)?, op),
        (None, Some(path)) => (path, scalar(left)?, mirrored(op)),
        _ => return None,
    };
    let value = value.clone();
    let (lower, upper) = match op {
        BinaryOp::Equal => return Some(Predicate::In { path, values: vec![value] }),
        BinaryOp::Less => (Bound::Unbounded, Bound::Excluded(value)),
        BinaryOp::LessOrEqual => (Bound::Unbounded, Bound::Included(value)),
        BinaryOp::Greater => (Bound::Excluded(value), Bound::Unbounded),
        BinaryOp::GreaterOrEqual => (Bound::Included(value), Bound::Unbounded),
        _ => return None,
    };
    Some(Predicate::Range { path, lower, upper })
}

fn mirrored(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessOrEqual => BinaryOp::GreaterOrEqual,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterOrEqual => BinaryOp::LessOrEqual,
        other => other,
    }
}

fn call(name: &str, arguments: &[Expr], aliases: &Aliases<'_>) -> Option<Predicate> {
    match (name, arguments) {
        ("IS_DEFINED", [argument]) => Some(Predicate::Defined { path: inner_path(argument, aliases)? }),
        ("IS_NULL", [argument]) => {
            Some(Predicate::In { path: inner_path(argument, aliases)?, values: vec![Value::Null] })
        }
        ("STARTSWITH", [argument, prefix]) => {
            starts_with(inner_path(argument, aliases)?, prefix.as_literal()?.as_str()?)
        }
        ("STRINGEQUALS", [argument, text]) => {
            let text = text.as_literal().filter(|text| text.is_string())?;
            Some(Predicate::In { path: inner_path(argument, aliases)?, values: vec![text.clone()] })
        }
        ("ARRAY_CONTAINS" | "_TRY_ARRAY_CONTAINS", [array, wanted]) => match inner_path(array, aliases) {
            Some(mut path) => {
                path.push(Step::Each);
                Some(Predicate::In { path, values: vec![scalar(wanted)?.clone()] })
            }
            None => {
                let values = array.as_literal()?.as_array()?;
                let all_scalar = values.iter().all(|value| !value.is_array() && !value.is_object());
                if values.is_empty() || values.len() > VALUES_MAX || !all_scalar {
                    return None;
                }
                Some(Predicate::In { path: inner_path(wanted, aliases)?, values: values.clone() })
            }
        },
        _ => None,
    }
}

fn starts_with(path: Path, prefix: &str) -> Option<Predicate> {
    if prefix.is_empty() {
        return None;
    }
    let upper = match following_prefix(prefix) {
        Some(upper) => Bound::Excluded(upper.into()),
        None => Bound::Unbounded,
    };
    Some(Predicate::Range { path, lower: Bound::Included(prefix.into()), upper })
}

/// The least text behind all texts that begin with `prefix`.
fn following_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = if last == '\u{d7ff}' { Some('\u{e000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Two half-open ranges on one path become one range. Paths through array elements stay apart: two elements may
/// satisfy one half each.
fn merge(predicates: Vec<Predicate>) -> Vec<Predicate> {
    let mut merged: Vec<Predicate> = Vec::with_capacity(predicates.len());
    for next in predicates {
        let is_merged = merged.iter_mut().any(|known| join_ranges(known, &next));
        if !is_merged {
            merged.push(next);
        }
    }
    merged
}

fn join_ranges(known: &mut Predicate, next: &Predicate) -> bool {
    let Predicate::Range { path, lower, upper } = known else { return false };
    let Predicate::Range { path: next_path, lower: next_lower, upper: next_upper } = next else {
        return false;
    };
    if path != next_path || path.contains(&Step::Each) {
        return false;
    }
    let is_half =
        |a: &Bound<Value>, b: &Bound<Value>| matches!((a, b), (Bound::Unbounded, _) | (_, Bound::Unbounded));
    if !is_half(lower, next_lower) || !is_half(upper, next_upper) {
        return false;
    }
    let values = [&*lower, &*upper, next_lower, next_upper].into_iter().filter_map(|bound| match bound {
        Bound::Included(value) | Bound::Excluded(value) => Some(value),
        Bound::Unbounded => None,
    });
    let values: Vec<&Value> = values.collect();
    if !values.windows(2).all(|pair| is_same_type(pair[0], pair[1])) {
        return false;
    }
    if *lower == Bound::Unbounded {
        *lower = next_lower.clone();
    }
    if *upper == Bound::Unbounded {
        *upper = next_upper.clone();
    }
    true
}
