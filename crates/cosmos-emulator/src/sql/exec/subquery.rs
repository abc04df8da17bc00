//! A query inside another: run at once, over what the outer row binds.

use std::ops::ControlFlow;

use serde_json::Value;

use super::super::ast::Query;
use super::super::eval::{Env, is_true};
use super::distinct::Distinct;
use super::group::Groups;
use super::join::each_tuple;
use super::order::Sorter;
use super::project::project;
use super::window::Window;
use crate::Failure;

/// Its rows; no more than `rows_max`, where the caller needs no more.
pub(crate) fn run(query: &Query, env: Env<'_>, rows_max: Option<usize>) -> Result<Vec<Value>, Failure> {
    env.context.in_passing(|| rows(query, env, rows_max))
}

fn rows(query: &Query, env: Env<'_>, rows_max: Option<usize>) -> Result<Vec<Value>, Failure> {
    let window = Window::of(query);
    let wanted = window.end().min(rows_max.map_or(usize::MAX, |rows| window.offset.saturating_add(rows)));
    let mut rows = if !query.group_by.is_empty() || query.has_aggregate() {
        let mut groups = Groups::new(query);
        let _ = each_match(query, env, &mut |env| groups.add(env).map(ControlFlow::Continue))?;
        groups.into_rows(env)?
    } else if query.order_by.is_empty() {
        return collect(query, env, &window, wanted);
    } else {
        let mut sorter = Sorter::new(query, if query.distinct.is_some() { usize::MAX } else { wanted }, None);
        let _ = each_match(query, env, &mut |env| sorter.add(env).map(ControlFlow::Continue))?;
        sorter.into_entries().into_iter().map(|entry| entry.row).collect()
    };
    if query.distinct.is_some() {
        rows = Distinct::default().new_of(rows, env.context, |row| row)?;
    }
    Ok(window.cut(rows, wanted))
}

/// Rows in the order they come, stopping when there are enough.
fn collect(query: &Query, env: Env<'_>, window: &Window, wanted: usize) -> Result<Vec<Value>, Failure> {
    let mut rows = Vec::new();
    if wanted == 0 {
        return Ok(rows);
    }
    let mut distinct = query.distinct.is_some().then(Distinct::default);
    let _ = each_match(query, env, &mut |env| {
        if let Some(row) = project(query, env)?
            && distinct.as_mut().map_or(Ok(true), |distinct| distinct.insert(&row, env.context))?
        {
            rows.push(row);
        }
        Ok(if rows.len() >= wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(window.cut(rows, wanted))
}

/// Visits the tuples of the inputs that pass the filter.
fn each_match(
    query: &Query,
    env: Env<'_>,
    visit: &mut super::join::Visit<'_>,
) -> Result<ControlFlow<()>, Failure> {
    each_tuple(&query.from, env, &mut |env| {
        env.context.spend(1)?;
        let passes = query.filter.as_ref().map_or(Ok(true), |filter| is_true(filter, env))?;
        if passes { visit(env) } else { Ok(ControlFlow::Continue(())) }
    })
}
