//! The tree back to text, in one of two spellings: [`Display`] writes the parentheses that precedence needs and no
//! others, so that what was parsed can be parsed again; [`in_service_spelling`] writes rewritten queries as the service
//! does: every operation in parentheses. Both have one clause per line, strings in double quotes, doubles with 17
//! digits.

use std::fmt::{self, Display, Formatter, Write as _};

use serde_json::{Number, Value};

use super::ast::{
    Callee, Collection, Count, Expr, Input, InputMode, Kind, OrderKey, Polarity, Query, Select, UnaryOp,
};
use super::parser::{AND, COALESCE, CONDITIONAL, EQUALITY, NOT, OR, RELATION, UNARY, strength_of};
use super::source::Direction;

/// What a client replaces by a filter of its own.
pub(crate) const FILTER_PLACEHOLDER: &str = "{documentdb-formattableorderbyquery-filter}";

/// The text of a query as the service writes it.
pub(crate) fn in_service_spelling(query: &Query) -> String {
    Spelled(query, Spelling::Service).to_string()
}

/// The text of an expression as the service writes it.
pub(crate) fn expr_in_service_spelling(expr: &Expr) -> String {
    SpelledExpr(expr, Spelling::Service).to_string()
}

/// Which parentheses are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// Those that precedence needs.
    Plain,
    /// Those around every operation.
    Service,
}

struct Spelled<'q>(&'q Query, Spelling);

struct SpelledExpr<'q>(&'q Expr, Spelling);

impl Display for Spelled<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_query(f, self.0, self.1)
    }
}

impl Display for SpelledExpr<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_expr(f, self.0, Place::WHOLE, self.1)
    }
}

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_query(f, self, Spelling::Plain)
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_expr(f, self, Place::WHOLE, Spelling::Plain)
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Count::Number(number) => write!(f, "{number}"),
            Count::Parameter(name) => f.write_str(name),
        }
    }
}

fn write_query(f: &mut Formatter<'_>, query: &Query, spelling: Spelling) -> fmt::Result {
    f.write_str("SELECT ")?;
    if query.distinct.is_some() {
        f.write_str("DISTINCT ")?;
    }
    if let Some(top) = &query.top {
        write!(f, "TOP {top} ")?;
    }
    match &query.select {
        Select::Star(_) => f.write_str("*")?,
        Select::Value(expr) => {
            f.write_str("VALUE ")?;
            write_expr(f, expr, Place::WHOLE, spelling)?;
        }
        Select::List(items) => {
            for (at, item) in items.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { ", " })?;
                write_expr(f, &item.expr, Place::WHOLE, spelling)?;
                if let Some(alias) = &item.alias {
                    write!(f, " AS {alias}")?;
                }
            }
        }
    }
    for (at, input) in query.from.iter().enumerate() {
        f.write_str(if at == 0 { "\nFROM " } else { "\nJOIN " })?;
        write_input(f, input, spelling)?;
    }
    if let Some(filter) = &query.filter {
        f.write_str("\nWHERE ")?;
        write_expr(f, filter, Place::WHOLE, spelling)?;
    }
    if !query.group_by.is_empty() {
        f.write_str("\nGROUP BY ")?;
        write_list(f, &query.group_by, spelling)?;
    }
    if let Some(rank) = &query.rank {
        f.write_str("\nORDER BY RANK ")?;
        write_expr(f, rank, Place::WHOLE, spelling)?;
    }
    for (at, OrderKey { expr, direction }) in query.order_by.iter().enumerate() {
        f.write_str(if at == 0 { "\nORDER BY " } else { ", " })?;
        write_expr(f, expr, Place::WHOLE, spelling)?;
        f.write_str(match direction {
            None => "",
            Some(Direction::Ascending) => " ASC",
            Some(Direction::Descending) => " DESC",
        })?;
    }
    if let Some((offset, limit)) = &query.offset_limit {
        write!(f, "\nOFFSET {offset} LIMIT {limit}")?;
    }
    Ok(())
}

fn write_input(f: &mut Formatter<'_>, input: &Input, spelling: Spelling) -> fmt::Result {
    if let (InputMode::Each, Some(alias)) = (input.mode, &input.alias) {
        write!(f, "{alias} IN ")?;
    }
    match &input.collection {
        Collection::Path(expr) => write_expr(f, expr, Place::WHOLE, spelling)?,
        Collection::Subquery(query) => {
            f.write_str("(")?;
            write_query(f, query, spelling)?;
            f.write_str(")")?;
        }
    }
    match (input.mode, &input.alias) {
        (InputMode::Whole, Some(alias)) => write!(f, " AS {alias}"),
        (InputMode::Whole, None) | (InputMode::Each, _) => Ok(()),
    }
}

/// Where an operand stands: what binds less than `floor` needs parentheses there, and `next` is how strongly the
/// operator behind it binds, 0 where there is none.
#[derive(Clone, Copy)]
struct Place {
    floor: u8,
    next: u8,
}

impl Place {
    /// A whole expression: nothing stands beside it.
    const WHOLE: Self = Self { floor: CONDITIONAL, next: 0 };

    /// The left operand of an operator.
    fn left(strength: u8) -> Self {
        Self { floor: strength, next: strength }
    }

    /// The right operand of an operator of this strength.
    fn right(self, floor: u8) -> Self {
        Self { floor, next: self.next }
    }
}

/// How strongly the outermost operator of an expression binds; nothing if it has none.
fn strength(expr: &Expr) -> Option<u8> {
    match &expr.kind {
        Kind::Conditional(_) => Some(CONDITIONAL),
        Kind::Coalesce(_) => Some(COALESCE),
        Kind::Or(_) => Some(OR),
        Kind::And(_) => Some(AND),
        Kind::Unary(UnaryOp::Not, _) => Some(NOT),
        Kind::Unary(..) => Some(UNARY),
        Kind::Binary(op, ..) => Some(strength_of(*op)),
        Kind::Between(..) | Kind::In(..) | Kind::Like(..) => Some(EQUALITY),
        _ => None,
    }
}

fn write_expr(f: &mut Formatter<'_>, expr: &Expr, place: Place, spelling: Spelling) -> fmt::Result {
    let is_enclosed = match (strength(expr), spelling) {
        (None, _) => false,
        (Some(_), Spelling::Service) => true,
        // A NOT takes in whatever binds stronger behind it, and stands anywhere where nothing does.
        (Some(NOT), Spelling::Plain) => NOT < place.floor && NOT < place.next,
        (Some(strength), Spelling::Plain) => strength < place.floor,
    };
    if !is_enclosed {
        return write_operation(f, expr, place, spelling);
    }
    f.write_str("(")?;
    write_operation(f, expr, Place::WHOLE, spelling)?;
    f.write_str(")")
}

fn write_operation(f: &mut Formatter<'_>, expr: &Expr, place: Place, spelling: Spelling) -> fmt::Result {
    let whole = |f: &mut Formatter<'_>, expr: &Expr| write_expr(f, expr, Place::WHOLE, spelling);
    let put = |f: &mut Formatter<'_>, expr: &Expr, place: Place| write_expr(f, expr, place, spelling);
    match &expr.kind {
        Kind::Undefined => f.write_str("undefined"),
        Kind::Literal(value) => write_value(f, value),
        Kind::Parameter(name) | Kind::Name(name) => f.write_str(name),
        Kind::Property(base, name) => {
            write_base(f, base, spelling)?;
            write!(f, ".{name}")
        }
        Kind::Index(base, index) => {
            write_base(f, base, spelling)?;
            f.write_str("[")?;
            whole(f, index)?;
            f.write_str("]")
        }
        Kind::Array(items) => {
            f.write_str("[")?;
            write_list(f, items, spelling)?;
            f.write_str("]")
        }
        Kind::Object(entries) => {
            f.write_str("{")?;
            for (at, (name, item)) in entries.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { ", " })?;
                write_text(f, name)?;
                f.write_str(": ")?;
                whole(f, item)?;
            }
            f.write_str("}")
        }
        Kind::Unary(op, operand) => {
            f.write_str(match op {
                UnaryOp::Not => "NOT ",
                // Two of them would begin a comment.
                UnaryOp::Minus if spelling == Spelling::Plain && begins_with_minus(operand) => "- ",
                UnaryOp::Minus => "-",
                UnaryOp::Plus => "+",
                UnaryOp::BitNot => "~",
            })?;
            let floor = match op {
                UnaryOp::Not => NOT + 1,
                UnaryOp::Minus | UnaryOp::Plus | UnaryOp::BitNot => UNARY,
            };
            put(f, operand, place.right(floor))
        }
        Kind::Binary(op, left, right) => {
            let strength = strength_of(*op);
            put(f, left, Place::left(strength))?;
            write!(f, " {} ", op.sign())?;
            put(f, right, place.right(strength + 1))
        }
        Kind::And(operands) => write_chain(f, operands, ("AND", AND), place, spelling),
        Kind::Or(operands) => write_chain(f, operands, ("OR", OR), place, spelling),
        Kind::Between(polarity, three) => {
            let [value, low, high] = &**three;
            put(f, value, Place::left(EQUALITY))?;
            write!(f, "{} BETWEEN ", not(*polarity))?;
            put(f, low, Place { floor: RELATION, next: AND })?;
            f.write_str(" AND ")?;
            put(f, high, place.right(RELATION))
        }
        Kind::In(polarity, needle, items, _) => {
            put(f, needle, Place::left(EQUALITY))?;
            write!(f, "{} IN (", not(*polarity))?;
            write_list(f, items, spelling)?;
            f.write_str(")")
        }
        Kind::Like(polarity, two, escape) => {
            put(f, &two[0], Place::left(EQUALITY))?;
            write!(f, "{} LIKE ", not(*polarity))?;
            put(f, &two[1], place.right(RELATION))?;
            if let Some(escape) = escape {
                f.write_str(" ESCAPE ")?;
                write_text(f, &escape.to_string())?;
            }
            Ok(())
        }
        Kind::Conditional(three) => {
            put(f, &three[0], Place { floor: CONDITIONAL + 1, next: CONDITIONAL })?;
            f.write_str(" ? ")?;
            whole(f, &three[1])?;
            f.write_str(" : ")?;
            put(f, &three[2], place.right(CONDITIONAL))
        }
        Kind::Coalesce(two) => {
            put(f, &two[0], Place::left(COALESCE))?;
            f.write_str(" ?? ")?;
            put(f, &two[1], place.right(COALESCE + 1))
        }
        Kind::Call(callee, _, arguments) => {
            match callee {
                Callee::Builtin(function) => f.write_str(function.name)?,
                Callee::Udf(name) => write!(f, "udf.{name}")?,
                Callee::Unknown(name) => f.write_str(name)?,
            }
            f.write_str("(")?;
            write_list(f, arguments, spelling)?;
            f.write_str(")")
        }
        Kind::Aggregate(aggregate, _, argument) => {
            write!(f, "{}(", aggregate.name())?;
            whole(f, argument)?;
            f.write_str(")")
        }
        Kind::Subquery(kind, query) => {
            write!(f, "{}(", kind.keyword())?;
            write_query(f, query, spelling)?;
            f.write_str(")")
        }
        Kind::Computed(_, expr) => whole(f, expr),
        Kind::Group(at) => write!(f, "#group{at}"),
        Kind::FilterPlaceholder => write!(f, "({FILTER_PLACEHOLDER})"),
        Kind::Verbatim(text) => f.write_str(text),
    }
}

fn begins_with_minus(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Unary(UnaryOp::Minus, _) => true,
        Kind::Literal(Value::Number(number)) => super::value::to_double(number).is_sign_negative(),
        _ => false,
    }
}

/// What a step goes into: operations need parentheses, and so does a number: its point would run into the step's, its
/// sign bind behind it.
fn write_base(f: &mut Formatter<'_>, base: &Expr, spelling: Spelling) -> fmt::Result {
    match &base.kind {
        Kind::Literal(Value::Number(number)) => {
            f.write_str("(")?;
            write_number(f, number)?;
            f.write_str(")")
        }
        _ => write_expr(f, base, Place::left(u8::MAX), spelling),
    }
}

fn not(polarity: Polarity) -> &'static str {
    match polarity {
        Polarity::Plain => "",
        Polarity::Negated => " NOT",
    }
}

fn write_list(f: &mut Formatter<'_>, items: &[Expr], spelling: Spelling) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        f.write_str(if at == 0 { "" } else { ", " })?;
        write_expr(f, item, Place::WHOLE, spelling)?;
    }
    Ok(())
}

/// `a AND b AND c`, or `((a AND b) AND c)`, whose outer parentheses stand already: a chain leans to the left.
fn write_chain(
    f: &mut Formatter<'_>,
    operands: &[Expr],
    (word, strength): (&str, u8),
    place: Place,
    spelling: Spelling,
) -> fmt::Result {
    let last = operands.len().saturating_sub(1);
    if spelling == Spelling::Service {
        for _ in 1..last {
            f.write_str("(")?;
        }
    }
    for (at, operand) in operands.iter().enumerate() {
        if at > 0 {
            write!(f, " {word} ")?;
        }
        let next = if at == last { place.next } else { strength };
        write_expr(f, operand, Place { floor: strength + 1, next }, spelling)?;
        if spelling == Spelling::Service && at > 0 && at < last {
            f.write_str(")")?;
        }
    }
    Ok(())
}

fn write_text(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str(&Value::from(text).to_string())
}

fn write_value(f: &mut Formatter<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::Null => f.write_str("null"),
        Value::Bool(flag) => write!(f, "{flag}"),
        Value::Number(number) => write_number(f, number),
        Value::String(text) => write_text(f, text),
        Value::Array(items) => {
            f.write_str("[")?;
            for (at, item) in items.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { ", " })?;
                write_value(f, item)?;
            }
            f.write_str("]")
        }
        Value::Object(map) => {
            f.write_str("{")?;
            for (at, (name, item)) in map.iter().enumerate() {
                f.write_str(if at == 0 { "" } else { ", " })?;
                write_text(f, name)?;
                f.write_str(": ")?;
                write_value(f, item)?;
            }
            f.write_str("}")
        }
    }
}

/// Integers in full; doubles as C's `%.17g` writes them.
fn write_number(f: &mut Formatter<'_>, number: &Number) -> fmt::Result {
    if number.is_i64() || number.is_u64() {
        return write!(f, "{number}");
    }
    let double = super::value::to_double(number);
    let scientific = format!("{double:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-5..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or(0);
        let fixed = format!("{double:.decimals$}");
        return f.write_str(trim_zeros(&fixed));
    }
    let mut text = String::from(trim_zeros(mantissa));
    let sign = if exponent < 0 { '-' } else { '+' };
    let _ = write!(text, "e{sign}{:02}", exponent.abs());
    f.write_str(&text)
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}
