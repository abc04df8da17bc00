//! Expressions to values. The rules for undefined and null live here and nowhere else.
//!
//! `None` is undefined: a missing property, a comparison across types, an operation on the wrong types. Logic has
//! three values; anything that is not a boolean counts as undefined in it.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::SystemTime;

use cosmos_wire::status::Status;
use regex::Regex;
use serde_json::{Map, Value};

use super::ast::{BinaryOp, Callee, Expr, Kind, Polarity, SubqueryKind, UnaryOp};
use super::exec::subquery;
use super::leash::Leash;
use super::schema::Functions;
use super::{like, value};
use crate::Failure;
use crate::script::Machine;

/// The result of an expression; `None` is undefined.
pub(crate) type Computed<'a> = Option<Cow<'a, Value>>;

/// What is the same for all rows of a page.
pub(crate) struct Context {
    /// The time of the request.
    pub(crate) now: SystemTime,
    /// Tuples that inner loops may still build.
    work: Cell<u64>,
    /// Bytes of values that may still be built for the current document.
    bytes: Cell<usize>,
    /// Bytes that may still be kept beyond the current document.
    kept: Cell<usize>,
    rows: Cell<u64>,
    tuple: Cell<u64>,
    random: Cell<u64>,
    patterns: RefCell<Vec<(String, Option<Regex>)>>,
    leash: Leash,
    /// Work done since the leash was looked at.
    toil: Cell<u64>,
    /// User defined functions, and the machine that runs them once one is called.
    functions: Arc<Functions>,
    machine: OnceCell<Machine>,
    /// What one tuple counts for: the more a query says, the longer each takes.
    tuple_toil: u64,
}

/// Tuples that the inner loops of a page may build, and as many more for each document it reads. A join over large
/// arrays multiplies; this bounds it.
const WORK_PER_PAGE: u64 = 5_000_000;
const WORK_PER_ROW: u64 = 1_000;
/// Bytes of values that are built for one document, about, as JSON. Values that are built of themselves double.
const BYTES_PER_ROW: usize = 64 << 20;
/// Bytes that a page keeps over its rows, about as they take memory. Each of them may be small and yet there are many.
pub(crate) const KEPT_BYTES_MAX: usize = 256 << 20;
/// Work between two looks at the clock, in units of about a microsecond on a slow machine.
const TOIL_MAX: u64 = 4_096;
/// Bytes of arguments that count as one unit of work.
const BYTES_PER_TOIL: usize = 256;
/// What one call of a user defined function counts for.
const CALL_TOIL: u64 = 64;
/// Most steps of one regular expression, as the length of the pattern times that of the text.
const PATTERN_STEPS_MAX: usize = 1 << 32;
/// Compiled regular expressions kept at a time.
const PATTERNS_MAX: usize = 16;

impl Context {
    pub(crate) fn new(now: SystemTime) -> Self {
        let nanos = now.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.subsec_nanos());
        Self {
            now,
            work: Cell::new(WORK_PER_PAGE),
            bytes: Cell::new(BYTES_PER_ROW),
            kept: Cell::new(KEPT_BYTES_MAX),
            rows: Cell::new(0),
            tuple: Cell::new(0),
            random: Cell::new(0x9E37_79B9_7F4A_7C15 ^ (u64::from(nanos) << 20)),
            patterns: RefCell::default(),
            leash: Leash::default(),
            toil: Cell::new(0),
            functions: Arc::default(),
            machine: OnceCell::new(),
            tuple_toil: 1,
        }
    }

    /// The same on a leash, for a query whose text has this many bytes.
    pub(crate) fn with_leash(self, leash: Leash, text_bytes: usize) -> Self {
        Self { leash, tuple_toil: 1 + text_bytes as u64 / 64, ..self }
    }

    /// The same with user defined functions.
    pub(crate) fn with_functions(self, functions: &Arc<Functions>) -> Self {
        Self { functions: Arc::clone(functions), ..self }
    }

    /// The value of a user defined function.
    fn apply(&self, name: &str, values: &[Computed<'_>]) -> Result<Option<Value>, Failure> {
        self.toil(CALL_TOIL)?;
        let machine = match self.machine.get() {
            Some(machine) => machine,
            None => {
                let machine = Machine::new()?;
                for (name, source) in &*self.functions {
                    machine.call("hostDefine", &[name, source])?;
                }
                self.machine.get_or_init(|| machine)
            }
        };
        let values: Vec<Value> =
            values.iter().map(|value| value.iter().map(|value| (**value).clone()).collect()).collect();
        machine.rest();
        let text = machine.call("hostApply", &[name, &Value::Array(values).to_string()])?;
        self.grow(text.len())?;
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).map(Some).map_err(|_| {
            Failure::bad_request(format!(
                "The user defined function '{name}' yields a value that cannot be read."
            ))
        })
    }

    /// Counts work and, once enough has come together, looks whether to go on.
    pub(crate) fn toil(&self, units: u64) -> Result<(), Failure> {
        let done = self.toil.get().saturating_add(units);
        if done < TOIL_MAX {
            self.toil.set(done);
            return Ok(());
        }
        self.toil.set(0);
        self.leash.check()
    }

    /// Whether the page should end where it can.
    pub(crate) fn is_due(&self) -> bool {
        self.leash.is_due()
    }

    /// The same for a page that keeps no more than this over its rows.
    pub(crate) fn with_kept_bytes_max(self, bytes: usize) -> Self {
        Self { kept: Cell::new(bytes), ..self }
    }

    /// Counts work of an inner loop and refuses more than a page may do.
    pub(crate) fn spend(&self, amount: u64) -> Result<(), Failure> {
        let Some(rest) = self.work.get().checked_sub(amount) else {
            return Err(Failure::bad_request(
                "The query multiplies too many array elements for one page. Filter inside a subquery before joining.",
            ));
        };
        self.work.set(rest);
        self.toil(amount.saturating_mul(self.tuple_toil))
    }

    /// Counts the bytes of a value that is built and refuses more than a document may take.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), Failure> {
        let Some(rest) = self.bytes.get().checked_sub(bytes) else {
            return Err(Failure::bad_request(
                "The query builds too large values of one document. Select less of it, or shorten its values.",
            ));
        };
        self.bytes.set(rest);
        Ok(())
    }

    /// Counts bytes that are kept over rows and refuses more than a page may keep.
    pub(crate) fn keep(&self, bytes: usize) -> Result<(), Failure> {
        let Some(rest) = self.kept.get().checked_sub(bytes) else {
            return Err(Failure::bad_request(
                "The query keeps too much of its documents at once. Filter more of them, or select less of each.",
            ));
        };
        self.kept.set(rest);
        Ok(())
    }

    /// Gives back what was kept and is no more.
    pub(crate) fn release(&self, bytes: usize) {
        self.kept.set(self.kept.get().saturating_add(bytes));
    }

    /// Does what keeps nothing beyond itself.
    pub(crate) fn in_passing<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.kept.get();
        let done = work();
        self.kept.set(before);
        done
    }

    /// A value of one's own, of which a copy counts.
    pub(crate) fn own(&self, value: Cow<'_, Value>) -> Result<Value, Failure> {
        if let Cow::Borrowed(value) = &value {
            self.grow(value::json_bytes(value))?;
        }
        Ok(value.into_owned())
    }

    /// Goes on to the next document, and grants the work of it.
    pub(crate) fn begin_row(&self) {
        self.rows.set(self.rows.get() + 1);
        self.work.set(self.work.get().saturating_add(WORK_PER_ROW));
        self.bytes.set(BYTES_PER_ROW);
    }

    /// Numbers the current document otherwise than by the order in which they come.
    pub(crate) fn number_row(&self, number: u64) {
        self.rows.set(number);
    }

    /// The number of the current document.
    pub(crate) fn row(&self) -> u64 {
        self.rows.get()
    }

    /// Says which tuple of the current document is looked at; the first is 1.
    pub(crate) fn number_tuple(&self, number: u64) {
        self.tuple.set(number);
    }

    /// The number of the tuple of the current document.
    pub(crate) fn tuple(&self) -> u64 {
        self.tuple.get()
    }

    /// A number in [0, 1).
    pub(crate) fn random(&self) -> f64 {
        let mut state = self.random.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.set(state);
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit into a double")]
        let fraction = (state >> 11) as f64 / (1_u64 << 53) as f64;
        fraction
    }

    /// Whether `text` matches a regular expression; `None` if the expression is none.
    pub(crate) fn matches(&self, pattern: &str, text: &str) -> Option<bool> {
        self.with_pattern(pattern, text, |regex| regex.is_match(text))
    }

    /// The first matches of a regular expression in `text`; `None` if the expression is none.
    pub(crate) fn extract(&self, pattern: &str, text: &str, matches_max: usize) -> Option<Vec<Value>> {
        self.with_pattern(pattern, text, |regex| {
            regex.find_iter(text).take(matches_max).map(|found| found.as_str().into()).collect()
        })
    }

    fn with_pattern<T>(&self, pattern: &str, text: &str, work: impl FnOnce(&Regex) -> T) -> Option<T> {
        if pattern.len().saturating_mul(text.len()) > PATTERN_STEPS_MAX {
            return None;
        }
        let mut patterns = self.patterns.borrow_mut();
        if let Some((_, regex)) = patterns.iter().find(|(known, _)| known == pattern) {
            return regex.as_ref().map(work);
        }
        let regex = regex::RegexBuilder::new(pattern).size_limit(1 << 20).nest_limit(100).build().ok();
        let result = regex.as_ref().map(work);
        if patterns.len() >= PATTERNS_MAX {
            patterns.remove(0);
        }
        patterns.push((pattern.to_owned(), regex));
        result
    }
}

/// A name and what it stands for; inner scopes point to outer ones.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) parent: Option<&'a Scope<'a>>,
    pub(crate) name: &'a str,
    pub(crate) value: &'a Value,
}

/// Everything an expression can see.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) context: &'a Context,
    pub(crate) scope: Option<&'a Scope<'a>>,
    /// Results of the aggregates of a group, by their number in the query.
    pub(crate) aggregates: &'a [(u32, Option<Value>)],
    /// Values of the expressions of GROUP BY.
    pub(crate) groups: &'a [Option<Value>],
}

impl<'a> Env<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, scope: None, aggregates: &[], groups: &[] }
    }

    /// The same with one more name.
    pub(crate) fn within(self, scope: &'a Scope<'a>) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// What a name stands for.
    pub(crate) fn lookup(self, name: &str) -> Option<&'a Value> {
        let mut scope = self.scope;
        while let Some(found) = scope {
            if found.name == name {
                return Some(found.value);
            }
            scope = found.parent;
        }
        None
    }
}

/// Whether the expression is true; false and undefined are both no.
pub(crate) fn is_true(expr: &Expr, env: Env<'_>) -> Result<bool, Failure> {
    Ok(matches!(eval(expr, env)?.as_deref(), Some(Value::Bool(true))))
}

/// The value of an expression.
pub(crate) fn eval<'a>(expr: &'a Expr, env: Env<'a>) -> Result<Computed<'a>, Failure> {
    Ok(match &expr.kind {
        Kind::Undefined | Kind::Parameter(_) => None,
        Kind::FilterPlaceholder | Kind::Verbatim(_) => None,
        Kind::Literal(value) => Some(Cow::Borrowed(value)),
        Kind::Name(name) => env.lookup(name).map(Cow::Borrowed),
        Kind::Property(base, name) => eval(base, env)?.and_then(|base| property(base, name)),
        Kind::Index(base, index) => match (eval(base, env)?, eval(index, env)?) {
            (Some(base), Some(index)) => element(base, &index),
            _ => None,
        },
        Kind::Array(items) => array(items, env)?,
        Kind::Object(entries) => object(entries, env)?,
        Kind::Unary(op, operand) => unary(*op, eval(operand, env)?),
        Kind::Binary(op, left, right) => binary(*op, &eval(left, env)?, &eval(right, env)?, env.context)?,
        Kind::And(operands) => junction(operands, env, false)?,
        Kind::Or(operands) => junction(operands, env, true)?,
        Kind::Between(polarity, three) => truth(is_between(three, env)?, *polarity),
        Kind::In(polarity, needle, items, lookup) => {
            let found = match (eval(needle, env)?, lookup) {
                (None, _) => None,
                (Some(needle), Some(lookup)) => Some(lookup.contains(&value::key_of(Some(&needle)))),
                (Some(needle), None) => Some(is_in(&needle, items, env)?),
            };
            truth(found, *polarity)
        }
        Kind::Like(polarity, two, escape) => truth(is_like(two, *escape, env)?, *polarity),
        Kind::Conditional(three) => {
            let branch = if is_true(&three[0], env)? { &three[1] } else { &three[2] };
            eval(branch, env)?
        }
        Kind::Coalesce(two) => match eval(&two[0], env)? {
            Some(value) => Some(value),
            None => eval(&two[1], env)?,
        },
        Kind::Call(callee, _, arguments) => call(callee, arguments, env)?,
        Kind::Aggregate(_, id, _) => {
            let result = env.aggregates.iter().find(|(known, _)| known == id);
            result.and_then(|(_, value)| value.as_ref()).map(Cow::Borrowed)
        }
        Kind::Computed(_, expr) => eval(expr, env)?,
        Kind::Group(at) => env.groups.get(*at).and_then(Option::as_ref).map(Cow::Borrowed),
        Kind::Subquery(kind, query) => from_subquery(*kind, query, env)?,
    })
}

fn owned<'a>(value: impl Into<Value>) -> Computed<'a> {
    Some(Cow::Owned(value.into()))
}

fn truth<'a>(value: Option<bool>, polarity: Polarity) -> Computed<'a> {
    value.map(|flag| Cow::Owned(Value::Bool(flag == (polarity == Polarity::Plain))))
}

/// An array has a place for each element, so undefined becomes null there.
fn array<'a>(items: &[Expr], env: Env<'_>) -> Result<Computed<'a>, Failure> {
    let mut array = Vec::with_capacity(items.len());
    for item in items {
        array.push(match eval(item, env)? {
            Some(item) => env.context.own(item)?,
            None => Value::Null,
        });
    }
    Ok(owned(Value::Array(array)))
}

/// An object leaves undefined out.
fn object<'a>(entries: &[(String, Expr)], env: Env<'_>) -> Result<Computed<'a>, Failure> {
    let mut map = Map::new();
    for (name, item) in entries {
        if let Some(item) = eval(item, env)? {
            map.insert(name.clone(), env.context.own(item)?);
        }
    }
    Ok(owned(Value::Object(map)))
}

fn is_between(three: &[Expr; 3], env: Env<'_>) -> Result<Option<bool>, Failure> {
    let [value, low, high] = three;
    let value = eval(value, env)?;
    let low = relation(value.as_deref(), eval(low, env)?.as_deref()).map(Ordering::is_ge);
    let high = relation(value.as_deref(), eval(high, env)?.as_deref()).map(Ordering::is_le);
    Ok(match (low, high) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    })
}

fn is_like(two: &[Expr; 2], escape: Option<char>, env: Env<'_>) -> Result<Option<bool>, Failure> {
    let (text, pattern) = (eval(&two[0], env)?, eval(&two[1], env)?);
    match (text.as_deref(), pattern.as_deref()) {
        (Some(Value::String(text)), Some(Value::String(pattern))) => {
            // Each character may be met by each part of the pattern, up to the limit that LIKE has itself.
            env.context.toil(1 + ((text.len() + pattern.len()) / BYTES_PER_TOIL) as u64)?;
            like::is_match(text, pattern, escape).map(Some)
        }
        _ => Ok(None),
    }
}

fn property<'a>(base: Cow<'a, Value>, name: &str) -> Computed<'a> {
    match base {
        Cow::Borrowed(Value::Object(map)) => map.get(name).map(Cow::Borrowed),
        Cow::Owned(Value::Object(mut map)) => map.swap_remove(name).map(Cow::Owned),
        _ => None,
    }
}

fn element<'a>(base: Cow<'a, Value>, index: &Value) -> Computed<'a> {
    match index {
        Value::String(name) => property(base, name),
        Value::Number(number) => {
            let at = usize::try_from(value::to_integer(number)?).ok()?;
            match base {
                Cow::Borrowed(Value::Array(items)) => items.get(at).map(Cow::Borrowed),
                Cow::Owned(Value::Array(mut items)) if at < items.len() => {
                    Some(Cow::Owned(items.swap_remove(at)))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn is_in(needle: &Value, items: &[Expr], env: Env<'_>) -> Result<bool, Failure> {
    for item in items {
        if eval(item, env)?.is_some_and(|item| value::equals(needle, &item)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// AND (which `false` decides) and OR (which `true` decides).
fn junction<'a>(operands: &[Expr], env: Env<'_>, decisive: bool) -> Result<Computed<'a>, Failure> {
    let mut is_known = true;
    for operand in operands {
        match eval(operand, env)?.as_deref() {
            Some(Value::Bool(flag)) if *flag == decisive => return Ok(owned(decisive)),
            Some(Value::Bool(_)) => {}
            _ => is_known = false,
        }
    }
    Ok(is_known.then(|| Cow::Owned(Value::Bool(!decisive))))
}

fn unary<'a>(op: UnaryOp, operand: Computed<'a>) -> Computed<'a> {
    match (op, operand.as_deref()?) {
        (UnaryOp::Not, Value::Bool(flag)) => owned(!flag),
        (UnaryOp::Plus, Value::Number(_)) => operand,
        (UnaryOp::Minus, Value::Number(number)) => match number.as_i64().and_then(i64::checked_neg) {
            Some(integer) => owned(integer),
            None => value::number(-value::to_double(number)).map(Cow::Owned),
        },
        (UnaryOp::BitNot, Value::Number(number)) => owned(!value::to_integer(number)?),
        _ => None,
    }
}

/// How two values of one type stand to each other; nothing across types.
fn relation(left: Option<&Value>, right: Option<&Value>) -> Option<Ordering> {
    let (left, right) = (left?, right?);
    let is_ordered = !matches!(left, Value::Array(_) | Value::Object(_));
    (is_ordered && value::is_same_type(left, right)).then(|| value::compare(Some(left), Some(right)))
}

fn binary<'a>(
    op: BinaryOp,
    left: &Computed<'_>,
    right: &Computed<'_>,
    context: &Context,
) -> Result<Computed<'a>, Failure> {
    let (Some(left), Some(right)) = (left.as_deref(), right.as_deref()) else { return Ok(None) };
    let relation = |test: fn(Ordering) -> bool| {
        relation(Some(left), Some(right)).map(|order| Cow::Owned(Value::Bool(test(order))))
    };
    Ok(match op {
        BinaryOp::Equal => owned(value::equals(left, right)),
        BinaryOp::NotEqual => owned(!value::equals(left, right)),
        BinaryOp::Less => relation(Ordering::is_lt),
        BinaryOp::LessOrEqual => relation(Ordering::is_le),
        BinaryOp::Greater => relation(Ordering::is_gt),
        BinaryOp::GreaterOrEqual => relation(Ordering::is_ge),
        BinaryOp::Concat => match (left, right) {
            (Value::String(left), Value::String(right)) => {
                context.grow(left.len() + right.len())?;
                owned(format!("{left}{right}"))
            }
            _ => None,
        },
        BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Modulo => {
            arithmetic(op, left, right)?.map(Cow::Owned)
        }
        BinaryOp::BitAnd
        | BinaryOp::BitOr
        | BinaryOp::BitXor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRight
        | BinaryOp::ShiftRightZero => bits(op, left, right).map(Cow::Owned),
    })
}

/// Exact on 64-bit integers where the result is one; doubles otherwise.
fn arithmetic(op: BinaryOp, left: &Value, right: &Value) -> Result<Option<Value>, Failure> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else { return Ok(None) };
    let (a, b) = (value::to_double(left), value::to_double(right));
    if b == 0.0 && matches!(op, BinaryOp::Divide | BinaryOp::Modulo) {
        return Err(Failure::of(Status::DIVISION_BY_ZERO, "Encountered a division by zero."));
    }
    let exact = match (left.as_i64(), right.as_i64()) {
        (Some(a), Some(b)) => match op {
            BinaryOp::Add => a.checked_add(b),
            BinaryOp::Subtract => a.checked_sub(b),
            BinaryOp::Multiply => a.checked_mul(b),
            BinaryOp::Divide => a.checked_rem(b).filter(|rest| *rest == 0).and_then(|_| a.checked_div(b)),
            BinaryOp::Modulo => a.checked_rem(b),
            _ => None,
        },
        _ => None,
    };
    if let Some(exact) = exact {
        return Ok(Some(exact.into()));
    }
    Ok(value::number(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Subtract => a - b,
        BinaryOp::Multiply => a * b,
        BinaryOp::Divide => a / b,
        _ => a % b,
    }))
}

fn bits(op: BinaryOp, left: &Value, right: &Value) -> Option<Value> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else { return None };
    let (a, b) = (value::to_integer(left)?, value::to_integer(right)?);
    let shift = u32::try_from(b & 63).ok()?;
    Some(Value::from(match op {
        BinaryOp::BitAnd => a & b,
        BinaryOp::BitOr => a | b,
        BinaryOp::BitXor => a ^ b,
        BinaryOp::ShiftLeft => a.wrapping_shl(shift),
        BinaryOp::ShiftRight => a.wrapping_shr(shift),
        _ => a.cast_unsigned().wrapping_shr(shift).cast_signed(),
    }))
}

fn call<'a>(callee: &Callee, arguments: &'a [Expr], env: Env<'a>) -> Result<Computed<'a>, Failure> {
    let mut values = Vec::with_capacity(arguments.len());
    for argument in arguments {
        values.push(eval(argument, env)?);
    }
    let function = match callee {
        Callee::Builtin(function) => function,
        Callee::Udf(name) => return Ok(env.context.apply(name, &values)?.map(Cow::Owned)),
        Callee::Unknown(_) => return Ok(None),
    };
    env.context.toil(values.iter().map(|value| toil_of(value.as_deref())).sum())?;
    let result = function.call(&values, env.context)?;
    env.context.grow(result.as_ref().map_or(0, value::json_bytes))?;
    Ok(result.map(Cow::Owned))
}

/// What looking through a value counts for.
fn toil_of(value: Option<&Value>) -> u64 {
    let bytes = match value {
        Some(Value::String(text)) => text.len(),
        Some(value @ (Value::Array(_) | Value::Object(_))) => value::json_bytes(value),
        _ => 0,
    };
    1 + (bytes / BYTES_PER_TOIL) as u64
}

fn from_subquery<'a>(
    kind: SubqueryKind,
    query: &super::ast::Query,
    env: Env<'a>,
) -> Result<Computed<'a>, Failure> {
    let rows_max = match kind {
        SubqueryKind::Exists | SubqueryKind::First => Some(1),
        SubqueryKind::Scalar => Some(2),
        SubqueryKind::Array | SubqueryKind::All | SubqueryKind::Last => None,
    };
    let mut rows = subquery::run(query, env, rows_max)?;
    Ok(match kind {
        SubqueryKind::Scalar if rows.len() > 1 => {
            return Err(Failure::bad_request(
                "The cardinality of a scalar subquery result set cannot be greater than one.",
            ));
        }
        SubqueryKind::Scalar | SubqueryKind::First | SubqueryKind::Last => rows.pop().map(Cow::Owned),
        SubqueryKind::Array => owned(Value::Array(rows)),
        SubqueryKind::Exists => owned(!rows.is_empty()),
        SubqueryKind::All => owned(rows.iter().all(|row| row == &Value::Bool(true))),
    })
}
