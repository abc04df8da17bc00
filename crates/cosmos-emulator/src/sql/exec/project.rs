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
        Select::Star(_) => Ok(env.scope.map(|scope| scope.value.clone())),
        Select::Value(expr) => Ok(eval(expr, env)?.map(Cow::into_owned)),
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
                    map.insert(name.into_owned(), value.into_owned());
                }
            }
            Ok(Some(Value::Object(map)))
        }
    }
}
