//! Which partitions a filter can reach: the values it allows for the partition key, as ranges of hashes.

use std::time::SystemTime;

use cosmos_wire::epk::{Epk, EpkRange, Scope};
use cosmos_wire::partition_key::{Component, Definition, PartitionKey};
use serde::Serialize;
use serde_json::Value;

use super::super::access::document_path;
use super::super::ast::{BinaryOp, Callee, Expr, Kind, Polarity, Query, UnaryOp};
use super::super::eval::{Context, Env, is_true};
use super::super::like;
use super::super::source::{Path, Step};

/// A range of effective partition keys as a plan names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryRange {
    /// Its start, as hexadecimal text.
    pub min: String,
    /// Its end.
    pub max: String,
    /// Whether the start belongs to it.
    pub is_min_inclusive: bool,
    /// Whether the end belongs to it.
    pub is_max_inclusive: bool,
}

impl QueryRange {
    /// Whether it is one key and not a range of them.
    pub fn is_single_value(&self) -> bool {
        self.min == self.max && self.is_min_inclusive && self.is_max_inclusive
    }

    fn point(epk: &Epk) -> Self {
        let text = epk.to_hex();
        Self { min: text.clone(), max: text, is_min_inclusive: true, is_max_inclusive: true }
    }

    fn range(range: &EpkRange) -> Self {
        Self {
            min: range.min.to_hex(),
            max: range.max.to_hex(),
            is_min_inclusive: true,
            is_max_inclusive: false,
        }
    }
}

/// More key values than this are not told apart.
const KEYS_MAX: usize = 2000;

/// The values a filter allows for the parts of a partition key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Keys {
    /// Any.
    Any,
    /// One of these; a part without value may have any.
    OneOf(Vec<Vec<Option<Component>>>),
}

/// The ranges that hold everything a bound query can find.
pub(super) fn query_ranges(query: &Query, definition: &Definition) -> Vec<QueryRange> {
    let paths: Vec<Path> = definition
        .paths()
        .iter()
        .map(|path| path.segments().iter().map(|name| Step::Property(name.as_str().into())).collect())
        .collect();
    match keys_of(query, &paths) {
        Keys::Any => vec![QueryRange::range(&EpkRange::full())],
        // Nothing can match; one place is as good as any to find nothing.
        Keys::OneOf(keys) if keys.is_empty() => vec![QueryRange::point(&Epk::MIN)],
        Keys::OneOf(keys) => {
            let scopes: Option<Vec<Scope>> = keys.iter().map(|key| scope_of(key, definition)).collect();
            let Some(mut scopes) = scopes else { return vec![QueryRange::range(&EpkRange::full())] };
            scopes.sort_by(|a, b| start_of(a).cmp(start_of(b)));
            scopes.dedup();
            scopes
                .iter()
                .map(|scope| match scope {
                    Scope::Point(epk) => QueryRange::point(epk),
                    Scope::Range(range) => QueryRange::range(range),
                })
                .collect()
        }
    }
}

fn start_of(scope: &Scope) -> &Epk {
    match scope {
        Scope::Point(epk) => epk,
        Scope::Range(range) => &range.min,
    }
}

/// Where a key lies; nothing if too few of its parts are known.
fn scope_of(key: &[Option<Component>], definition: &Definition) -> Option<Scope> {
    let known: Vec<Component> = key.iter().map_while(Clone::clone).collect();
    if known.is_empty() {
        return None;
    }
    Scope::of(&known.into_iter().collect::<PartitionKey>(), definition).ok()
}

/// What the filter of a bound query allows.
pub(super) fn keys_of(query: &Query, paths: &[Path]) -> Keys {
    if query.from.is_empty() {
        return Keys::OneOf(Vec::new());
    }
    match &query.filter {
        Some(filter) => Analysis { query, paths }.keys(filter),
        None => Keys::Any,
    }
}

struct Analysis<'q> {
    query: &'q Query,
    paths: &'q [Path],
}

impl Analysis<'_> {
    fn keys(&self, expr: &Expr) -> Keys {
        match &expr.kind {
            Kind::And(operands) => {
                operands.iter().fold(Keys::Any, |keys, operand| both(keys, self.keys(operand)))
            }
            Kind::Or(operands) => operands
                .iter()
                .fold(Keys::OneOf(Vec::new()), |keys, operand| either(keys, self.keys(operand))),
            _ if is_constant(expr) => {
                let context = Context::new(SystemTime::UNIX_EPOCH);
                match is_true(expr, Env::new(&context)) {
                    Ok(false) => Keys::OneOf(Vec::new()),
                    Ok(true) | Err(_) => Keys::Any,
                }
            }
            _ => self.values(expr).unwrap_or(Keys::Any),
        }
    }

    /// The values a comparison allows for one part of the key.
    fn values(&self, expr: &Expr) -> Option<Keys> {
        match &expr.kind {
            Kind::Name(_) | Kind::Property(..) | Kind::Index(..) => self.one_of(expr, &[Value::Bool(true)]),
            Kind::Binary(BinaryOp::Equal, left, right) => match (left.as_literal(), right.as_literal()) {
                (None, Some(value)) => self.equal(left, value),
                (Some(value), None) => self.equal(right, value),
                _ => None,
            },
            Kind::Unary(UnaryOp::Not, operand) => match operand.kind {
                Kind::Property(..) | Kind::Index(..) => self.one_of(operand, &[Value::Bool(false)]),
                _ => None,
            },
            Kind::Like(Polarity::Plain, two, escape) => {
                let pattern = two[1].as_literal()?.as_str()?;
                let text = like::whole_text(pattern, *escape)?;
                self.one_of(&two[0], &[Value::String(text)])
            }
            Kind::In(Polarity::Plain, needle, items, _) if items.len() <= KEYS_MAX => {
                let values: Vec<Value> =
                    items.iter().map(|item| item.as_literal().cloned()).collect::<Option<_>>()?;
                self.one_of(needle, &values)
            }
            Kind::Call(Callee::Builtin(function), _, arguments) => {
                match (function.name, arguments.as_slice()) {
                    ("IS_NULL", [argument]) => self.one_of(argument, &[Value::Null]),
                    ("IS_BOOL", [argument]) => {
                        self.one_of(argument, &[Value::Bool(false), Value::Bool(true)])
                    }
                    ("STRINGEQUALS", [argument, text]) => {
                        let text = text.as_literal().filter(|text| text.is_string())?;
                        self.one_of(argument, std::slice::from_ref(text))
                    }
                    ("ARRAY_CONTAINS" | "_TRY_ARRAY_CONTAINS", [array, wanted]) => {
                        self.one_of(wanted, array.as_literal()?.as_array()?)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn equal(&self, expr: &Expr, value: &Value) -> Option<Keys> {
        if let Kind::Call(Callee::Builtin(function), _, arguments) = &expr.kind
            && function.name == "ABS"
        {
            let number = value.as_f64()?;
            let both = [super::super::value::number(number)?, super::super::value::number(-number)?];
            return self.one_of(arguments.first()?, &both);
        }
        self.one_of(expr, std::slice::from_ref(value))
    }

    fn one_of(&self, expr: &Expr, values: &[Value]) -> Option<Keys> {
        let path = document_path(expr, self.query)?;
        let part = self.paths.iter().position(|known| *known == path)?;
        if values.len() > KEYS_MAX {
            return None;
        }
        let keys = values.iter().map(|value| {
            let mut key = vec![None; self.paths.len()];
            key[part] = Some(Component::from_document(Some(value)));
            key
        });
        let mut unique = Vec::with_capacity(values.len());
        for key in keys {
            if values.len() > KEYS_MAX / 10 || !unique.contains(&key) {
                unique.push(key);
            }
        }
        Some(Keys::OneOf(unique))
    }
}

fn either(left: Keys, right: Keys) -> Keys {
    match (left, right) {
        (Keys::OneOf(mut left), Keys::OneOf(right)) if left.len() + right.len() <= KEYS_MAX => {
            left.extend(right);
            Keys::OneOf(left)
        }
        _ => Keys::Any,
    }
}

fn both(left: Keys, right: Keys) -> Keys {
    match (left, right) {
        (Keys::Any, keys) | (keys, Keys::Any) => keys,
        (Keys::OneOf(left), Keys::OneOf(right)) if left.len() * right.len() <= KEYS_MAX => {
            let pairs = left.iter().flat_map(|a| right.iter().filter_map(|b| merged(a, b)));
            Keys::OneOf(pairs.collect())
        }
        // Too many to combine: either alone holds all that can match.
        (keys @ Keys::OneOf(_), Keys::OneOf(_)) => keys,
    }
}

/// Both keys at once, unless they contradict each other.
fn merged(left: &[Option<Component>], right: &[Option<Component>]) -> Option<Vec<Option<Component>>> {
    left.iter()
        .zip(right)
        .map(|(a, b)| match (a, b) {
            (Some(a), Some(b)) if a != b => None,
            (Some(a), _) => Some(Some(a.clone())),
            (None, b) => Some(b.clone()),
        })
        .collect()
}

/// Whether an expression has the same value for every document.
fn is_constant(expr: &Expr) -> bool {
    let is_fixed = match &expr.kind {
        Kind::Name(_)
        | Kind::Subquery(..)
        | Kind::Aggregate(..)
        | Kind::Group(_)
        | Kind::FilterPlaceholder
        | Kind::Verbatim(_) => false,
        // The service leaves this one to the partitions.
        Kind::Call(Callee::Builtin(function), ..) => function.is_pure() && function.name != "ST_ISVALID",
        Kind::Call(Callee::Udf(_) | Callee::Unknown(_), ..) => false,
        _ => true,
    };
    let mut result = is_fixed;
    expr.each_child(&mut |child| result = result && is_constant(child));
    result
}
