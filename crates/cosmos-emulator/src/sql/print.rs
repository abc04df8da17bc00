//! The tree back to text, in the spelling the service uses for rewritten queries: one clause per line, every
//! operation in parentheses, strings in double quotes, doubles with 17 digits.

use std::fmt::{self, Display, Formatter, Write as _};

use serde_json::{Number, Value};

use super::ast::{
    Callee, Collection, Count, Expr, Input, InputMode, Kind, OrderKey, Polarity, Query, Select, UnaryOp,
};
use super::source::Direction;

impl Display for Query {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("SELECT ")?;
        if self.distinct.is_some() {
            f.write_str("DISTINCT ")?;
        }
        if let Some(top) = &self.top {
            write!(f, "TOP {top} ")?;
        }
        match &self.select {
            Select::Star(_) => f.write_str("*")?,
            Select::Value(expr) => write!(f, "VALUE {expr}")?,
            Select::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", item.expr)?;
                    if let Some(alias) = &item.alias {
                        write!(f, " AS {alias}")?;
                    }
                }
            }
        }
        for (at, input) in self.from.iter().enumerate() {
            write!(f, "\n{} {input}", if at == 0 { "FROM" } else { "JOIN" })?;
        }
        if let Some(filter) = &self.filter {
            write!(f, "\nWHERE {filter}")?;
        }
        if !self.group_by.is_empty() {
            f.write_str("\nGROUP BY ")?;
            write_list(f, &self.group_by)?;
        }
        if !self.order_by.is_empty() {
            f.write_str("\nORDER BY ")?;
            write_list(f, &self.order_by)?;
        }
        if let Some((offset, limit)) = &self.offset_limit {
            write!(f, "\nOFFSET {offset} LIMIT {limit}")?;
        }
        Ok(())
    }
}

impl Display for Input {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let (InputMode::Each, Some(alias)) = (self.mode, &self.alias) {
            write!(f, "{alias} IN ")?;
        }
        match &self.collection {
            Collection::Path(expr) => write!(f, "{expr}")?,
            Collection::Subquery(query) => write!(f, "({query})")?,
        }
        match (self.mode, &self.alias) {
            (InputMode::Whole, Some(alias)) => write!(f, " AS {alias}"),
            (InputMode::Whole, None) | (InputMode::Each, _) => Ok(()),
        }
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

impl Display for OrderKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expr)?;
        f.write_str(match self.direction {
            None => "",
            Some(Direction::Ascending) => " ASC",
            Some(Direction::Descending) => " DESC",
        })
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Undefined => f.write_str("undefined"),
            Kind::Literal(value) => write_value(f, value),
            Kind::Parameter(name) | Kind::Name(name) => f.write_str(name),
            Kind::Property(base, name) => {
                write_base(f, base)?;
                write!(f, ".{name}")
            }
            Kind::Index(base, index) => {
                write_base(f, base)?;
                write!(f, "[{index}]")
            }
            Kind::Array(items) => {
                f.write_str("[")?;
                write_list(f, items)?;
                f.write_str("]")
            }
            Kind::Object(entries) => {
                f.write_str("{")?;
                for (at, (name, item)) in entries.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    write_text(f, name)?;
                    write!(f, ": {item}")?;
                }
                f.write_str("}")
            }
            Kind::Unary(op, operand) => {
                let sign = match op {
                    UnaryOp::Not => "NOT ",
                    UnaryOp::Minus => "-",
                    UnaryOp::Plus => "+",
                    UnaryOp::BitNot => "~",
                };
                write!(f, "({sign}{operand})")
            }
            Kind::Binary(op, left, right) => write!(f, "({left} {} {right})", op.sign()),
            Kind::And(operands) => write_chain(f, operands, "AND"),
            Kind::Or(operands) => write_chain(f, operands, "OR"),
            Kind::Between(polarity, three) => {
                let [value, low, high] = &**three;
                write!(f, "({value}{} BETWEEN {low} AND {high})", not(*polarity))
            }
            Kind::In(polarity, needle, items, _) => {
                write!(f, "({needle}{} IN (", not(*polarity))?;
                write_list(f, items)?;
                f.write_str("))")
            }
            Kind::Like(polarity, two, escape) => {
                write!(f, "({}{} LIKE {}", two[0], not(*polarity), two[1])?;
                if let Some(escape) = escape {
                    f.write_str(" ESCAPE ")?;
                    write_text(f, &escape.to_string())?;
                }
                f.write_str(")")
            }
            Kind::Conditional(three) => write!(f, "({} ? {} : {})", three[0], three[1], three[2]),
            Kind::Coalesce(two) => write!(f, "({} ?? {})", two[0], two[1]),
            Kind::Call(callee, _, arguments) => {
                match callee {
                    Callee::Builtin(function) => f.write_str(function.name)?,
                    Callee::Udf(name) => write!(f, "udf.{name}")?,
                    Callee::Unknown(name) => f.write_str(name)?,
                }
                f.write_str("(")?;
                write_list(f, arguments)?;
                f.write_str(")")
            }
            Kind::Aggregate(aggregate, _, argument) => write!(f, "{}({argument})", aggregate.name()),
            Kind::Subquery(kind, query) => write!(f, "{}({query})", kind.keyword()),
            Kind::Group(at) => write!(f, "#group{at}"),
            Kind::FilterPlaceholder => f.write_str("({documentdb-formattableorderbyquery-filter})"),
        }
    }
}

/// What a step goes into. A number needs parentheses: its point would run into the step's, its sign bind behind it.
fn write_base(f: &mut Formatter<'_>, base: &Expr) -> fmt::Result {
    match &base.kind {
        Kind::Literal(Value::Number(number)) => {
            f.write_str("(")?;
            write_number(f, number)?;
            f.write_str(")")
        }
        _ => write!(f, "{base}"),
    }
}

fn not(polarity: Polarity) -> &'static str {
    match polarity {
        Polarity::Plain => "",
        Polarity::Negated => " NOT",
    }
}

fn write_list<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    for (at, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// `((a AND b) AND c)`: a chain leans to the left.
fn write_chain(f: &mut Formatter<'_>, operands: &[Expr], word: &str) -> fmt::Result {
    for _ in 1..operands.len() {
        f.write_str("(")?;
    }
    for (at, operand) in operands.iter().enumerate() {
        if at == 0 {
            write!(f, "{operand}")?;
        } else {
            write!(f, " {word} {operand})")?;
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
