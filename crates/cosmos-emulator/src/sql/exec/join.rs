//! FROM and JOIN: every combination of the inputs' elements, built one at a time and never stored.

use std::ops::ControlFlow;

use serde_json::Value;

use super::super::ast::{Collection, Input, InputMode};
use super::super::eval::{Env, Scope, eval};
use super::subquery;
use crate::Failure;

/// Called with each combination bound; breaks to stop.
pub(crate) type Visit<'v> = dyn FnMut(Env<'_>) -> Result<ControlFlow<()>, Failure> + 'v;

/// Visits every tuple of the inputs.
pub(crate) fn each_tuple(
    inputs: &[Input],
    env: Env<'_>,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let Some((input, rest)) = inputs.split_first() else { return visit(env) };
    let name = input.name().unwrap_or_default();
    let mut bind = |value: &Value| {
        env.context.spend(1)?;
        let scope = Scope { parent: env.scope, name, value };
        each_tuple(rest, env.within(&scope), visit)
    };
    let mut bind_input = |value: &Value| match (input.mode, value) {
        (InputMode::Whole, value) => bind(value),
        (InputMode::Each, Value::Array(items)) => {
            for item in items {
                if bind(item)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        }
        (InputMode::Each, _) => Ok(ControlFlow::Continue(())),
    };
    match &input.collection {
        Collection::Path(expr) => match eval(expr, env)? {
            Some(value) => bind_input(&value),
            None => Ok(ControlFlow::Continue(())),
        },
        Collection::Subquery(query) => {
            for row in subquery::run(query, env, None)? {
                if bind_input(&row)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        }
    }
}
