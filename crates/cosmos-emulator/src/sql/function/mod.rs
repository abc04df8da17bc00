//! Built-in functions: one table of name, number of arguments and body.
//!
//! Arguments come evaluated; a missing or wrong one makes the result undefined, which the bodies say with `?`.

mod array;
mod date;
mod full_text;
mod math;
mod object;
mod spatial;
mod string;
mod type_check;

use std::borrow::Cow;
use std::fmt::{self, Debug, Formatter};

use serde_json::Value;

pub(crate) use self::full_text::LANGUAGE;
pub(crate) use self::object::document_number;

use super::eval::{Computed, Context};
use super::value;
use crate::Failure;

/// One built-in function.
pub(crate) struct Function {
    /// Its name as the service spells it.
    pub(crate) name: &'static str,
    /// Fewest arguments.
    pub(crate) arguments_min: usize,
    /// Most arguments.
    pub(crate) arguments_max: usize,
    body: Body,
}

/// The ways a function comes to its value.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// From its arguments alone.
    Pure(fn(&Arguments<'_>) -> Option<Value>),
    /// Also from the request: time, randomness, cached patterns.
    Contextual(fn(&Arguments<'_>, &Context) -> Option<Value>),
}

/// Any number of arguments.
const MANY: usize = usize::MAX;

impl Function {
    const fn pure(
        name: &'static str,
        arguments_min: usize,
        arguments_max: usize,
        body: fn(&Arguments<'_>) -> Option<Value>,
    ) -> Self {
        Self { name, arguments_min, arguments_max, body: Body::Pure(body) }
    }

    const fn contextual(
        name: &'static str,
        arguments_min: usize,
        arguments_max: usize,
        body: fn(&Arguments<'_>, &Context) -> Option<Value>,
    ) -> Self {
        Self { name, arguments_min, arguments_max, body: Body::Contextual(body) }
    }

    /// Runs it.
    pub(crate) fn call(
        &self,
        arguments: &[Computed<'_>],
        context: &Context,
    ) -> Result<Option<Value>, Failure> {
        let arguments = Arguments(arguments);
        Ok(match self.body {
            Body::Pure(body) => body(&arguments),
            Body::Contextual(body) => body(&arguments, context),
        })
    }

    /// Whether it may be run once at planning time: its value depends on its arguments only.
    pub(crate) fn is_pure(&self) -> bool {
        matches!(self.body, Body::Pure(_))
    }

    /// What is wrong with this number of arguments, in the service's words.
    pub(crate) fn check_count(&self, count: usize) -> Result<(), String> {
        let (min, max) = (self.arguments_min, self.arguments_max);
        if (min..=max).contains(&count) {
            return Ok(());
        }
        Err(match max {
            _ if min == max => format!("The {} function requires {min} argument(s).", self.name),
            MANY => format!("The {} function requires at least {min} argument(s).", self.name),
            _ => format!("The {} function requires {min} to {max} argument(s).", self.name),
        })
    }
}

impl Debug for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The function of a name, whatever its case.
pub(crate) fn by_name(name: &str) -> Option<&'static Function> {
    TABLES.iter().flat_map(|table| table.iter()).find(|function| function.name.eq_ignore_ascii_case(name))
}

const TABLES: [&[Function]; 8] = [
    string::FUNCTIONS,
    math::FUNCTIONS,
    array::FUNCTIONS,
    object::FUNCTIONS,
    type_check::FUNCTIONS,
    date::FUNCTIONS,
    spatial::FUNCTIONS,
    full_text::FUNCTIONS,
];

/// The arguments of a call, read by type.
pub(crate) struct Arguments<'a>(&'a [Computed<'a>]);

impl Arguments<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn value(&self, at: usize) -> Option<&Value> {
        self.0.get(at)?.as_ref().map(Cow::as_ref)
    }

    fn text(&self, at: usize) -> Option<&str> {
        self.value(at)?.as_str()
    }

    fn flag(&self, at: usize) -> Option<bool> {
        self.value(at)?.as_bool()
    }

    fn double(&self, at: usize) -> Option<f64> {
        self.value(at)?.as_f64()
    }

    fn integer(&self, at: usize) -> Option<i64> {
        match self.value(at)? {
            Value::Number(number) => value::to_integer(number),
            _ => None,
        }
    }

    fn array(&self, at: usize) -> Option<&[Value]> {
        self.value(at)?.as_array().map(Vec::as_slice)
    }

    /// An argument that may be left out: the default then, and undefined if it is of the wrong type.
    fn optional<T>(&self, at: usize, default: T, read: impl FnOnce(&Self, usize) -> Option<T>) -> Option<T> {
        if at < self.len() { read(self, at) } else { Some(default) }
    }
}
