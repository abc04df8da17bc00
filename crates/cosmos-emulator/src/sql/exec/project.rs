//! The SELECT clause: `*`, `VALUE`, or a list of properties.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::ast::{Query, Select};
use super::super::eval::{Env, eval};
use crate::Failure;

/// What the query yields for what is bound; nothing if that is undefined.
pub(crate) fn project(query: &Query, env: Env<'_>) -> Result<Option<Value>, Failure> {
    match &query.select {
        // The checker allows `*` over one input only, and that is the innermost name.
        Select::Star(_) => env.scope.map(|scope| env.context.own(Cow::Borrowed(scope.value))).transpose(),
        Select::Value(expr) => eval(expr, env)?.map(|value| env.context.own(value)).transpose(),
        Select::List(items) => {
            let mut map = Map::new();
            let mut unnamed = 0;
            for item in items {
                let name = match item.alias.as_deref().or_else(|| item.expr.last_name()) {
                    Some(name) => Cow::Borrowed(name),
                    None => {
                        unnamed += 1;
                        Cow::Owned(format!("${unnamed}"))
                    }
                };
                if let Some(value) = eval(&item.expr, env)? {
                    map.insert(name.into_owned(), env.context.own(value)?);
                }
            }
            Ok(Some(Value::Object(map)))
        }
    }
}
