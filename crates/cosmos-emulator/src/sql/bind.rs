//! What the grammar cannot see: names, functions and their arguments, aggregates and groups; then the parameters
//! put in, after which a query is ready to run.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::ast::{Callee, Collection, Count, Expr, Input, Kind, Query, Select};
use super::error::{Code, SyntaxError};
use super::lexer::Span;
use super::value::key_of;
use crate::Failure;

/// The name documents are bound to; no text can spell it.
pub(crate) const ROOT: &str = "#root";
/// From this many literals on, IN looks up a set.
const LOOKUP_MIN: usize = 8;
/// Everything wrong with the query beyond its grammar.
pub(crate) fn check(query: &Query) -> Vec<SyntaxError> {
    let mut checker = Checker { errors: Vec::new(), names: Vec::new(), is_rank: false };
    checker.query(query, Level::Top);
    checker.errors
}

/// Whether a query stands at the top, where FROM names the container.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Top,
    Inner,
}

struct Checker {
    errors: Vec<SyntaxError>,
    names: Vec<String>,
    /// Whether it is behind ORDER BY RANK.
    is_rank: bool,
}

impl Checker {
    fn fail(&mut self, code: Code, span: Span, message: impl Into<String>) {
        self.errors.push(SyntaxError::new(code, span, message));
    }

    fn query(&mut self, query: &Query, level: Level) {
        let outer = self.names.len();
        for (at, input) in query.from.iter().enumerate() {
            self.input(input, level == Level::Top && at == 0, outer);
        }
        self.star(query);
        self.duplicates(query);
        let is_grouped = !query.group_by.is_empty() || query.has_aggregate();
        if is_grouped {
            let groups: Vec<String> = query.group_by.iter().map(Expr::to_string).collect();
            match &query.select {
                Select::Star(_) => {}
                Select::Value(expr) => self.grouped(expr, &groups),
                Select::List(items) => items.iter().for_each(|item| self.grouped(&item.expr, &groups)),
            }
            if !groups.is_empty() {
                query.order_by.iter().for_each(|key| self.grouped(&key.expr, &groups));
            }
        }
        for expr in query.filter.iter().chain(&query.group_by) {
            if expr.has_aggregate() {
                let message = "An aggregate is only allowed in the SELECT clause.";
                self.fail(Code::MisplacedAggregate, expr.span, message);
            }
        }
        match &query.select {
            Select::Star(_) => {}
            Select::Value(expr) => self.expr(expr),
            Select::List(items) => items.iter().for_each(|item| self.expr(&item.expr)),
        }
        query.filter.iter().chain(&query.group_by).for_each(|expr| self.expr(expr));
        query.order_by.iter().for_each(|key| self.expr(&key.expr));
        if let Some(rank) = &query.rank {
            self.is_rank = level == Level::Top;
            self.expr(rank);
            self.is_rank = false;
        }
        self.names.truncate(outer);
    }

    fn input(&mut self, input: &Input, is_container: bool, outer: usize) {
        match &input.collection {
            Collection::Subquery(query) => {
                self.query(query, if is_container { Level::Top } else { Level::Inner });
            }
            Collection::Path(expr) if !is_container => self.expr(expr),
            Collection::Path(_) => {}
        }
        if let Some(name) = input.name() {
            if self.names[outer..].iter().any(|known| known == name) {
                let message =
                    format!("The input alias '{name}' is specified more than once in the FROM clause.");
                self.fail(Code::DuplicateAlias, input.span, message);
            }
            self.names.push(name.to_owned());
        }
    }

    fn star(&mut self, query: &Query) {
        let Select::Star(span) = query.select else { return };
        if !query.group_by.is_empty() {
            self.fail(Code::StarWithGroupBy, span, "'SELECT *' is not allowed with GROUP BY.");
        } else if query.from.is_empty() {
            self.fail(Code::StarWithoutFrom, span, "'SELECT *' is not valid if FROM clause is omitted.");
        } else if query.from.len() > 1 {
            self.fail(Code::StarOverJoin, span, "'SELECT *' is only valid with a single input set.");
        }
    }

    fn duplicates(&mut self, query: &Query) {
        let Select::List(items) = &query.select else { return };
        let mut seen = BTreeSet::new();
        for item in items {
            let name = item.alias.as_deref().or_else(|| item.expr.last_name());
            if let Some(name) = name.filter(|name| !seen.insert(*name)) {
                let message =
                    format!("The property name '{name}' is specified more than once in the SELECT clause.");
                self.fail(Code::DuplicateAlias, item.expr.span, message);
            }
        }
    }

    /// Whether everything outside of aggregates follows from the group.
    fn grouped(&mut self, expr: &Expr, groups: &[String]) {
        if !groups.is_empty() && groups.contains(&expr.to_string()) {
            return;
        }
        match &expr.kind {
            Kind::Aggregate(..) | Kind::Subquery(..) => {}
            // What a group has in common, all of its rows have below it, too.
            Kind::Property(base, _) if is_below_group(base, groups) => {}
            Kind::Index(base, index) if is_below_group(base, groups) => self.grouped(index, groups),
            Kind::Name(_) | Kind::Property(..) | Kind::Index(..) => {
                let message = format!(
                    "Property reference '{expr}' is invalid in the select list because it is not contained in either \
                     an aggregate function or the GROUP BY clause."
                );
                self.fail(Code::NotGrouped, expr.span, message);
            }
            _ => {
                let mut children = Vec::new();
                expr.each_child(&mut |child| children.push(child));
                children.into_iter().for_each(|child| self.grouped(child, groups));
            }
        }
    }

    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::Name(name) if !self.names.contains(name) => {
                self.fail(
                    Code::UnknownName,
                    expr.span,
                    format!("Identifier '{name}' could not be resolved."),
                );
            }
            Kind::Call(Callee::Unknown(name), name_span, _) => {
                let message = format!("'{name}' is not a recognized built-in function name.");
                self.fail(Code::UnknownFunction, *name_span, message);
            }
            Kind::Call(Callee::Builtin(function), _, arguments) => {
                if let Err(message) = function.check_count(arguments.len()) {
                    self.fail(Code::ArgumentCount, expr.span, message);
                }
                if matches!(function.name, "RRF" | "FullTextScore") && !self.is_rank {
                    let message = format!(
                        "The {} function is only allowed in the ORDER BY RANK clause of the outermost query.",
                        function.name
                    );
                    self.fail(Code::MisplacedRank, expr.span, message);
                }
            }
            Kind::Aggregate(_, _, argument) if argument.has_aggregate() || has_subquery(argument) => {
                let message = "Cannot perform an aggregate function on an expression containing an aggregate or a \
                               subquery.";
                self.fail(Code::NestedAggregate, expr.span, message);
            }
            Kind::Subquery(_, query) => self.query(query, Level::Inner),
            _ => {}
        }
        let mut children = Vec::new();
        expr.each_child(&mut |child| children.push(child));
        children.into_iter().for_each(|child| self.expr(child));
    }
}

/// Whether a path begins with an expression of GROUP BY.
fn is_below_group(expr: &Expr, groups: &[String]) -> bool {
    groups.contains(&expr.to_string())
        || match &expr.kind {
            Kind::Property(base, _) | Kind::Index(base, _) => is_below_group(base, groups),
            _ => false,
        }
}

fn has_subquery(expr: &Expr) -> bool {
    if matches!(expr.kind, Kind::Subquery(..)) {
        return true;
    }
    let mut found = false;
    expr.each_child(&mut |child| found |= has_subquery(child));
    found
}

/// Values for the parameters of a query, by name with the `@`.
pub type Parameters = [(String, Value)];

/// Names of the user defined functions that a query calls, one for each call.
pub(crate) fn called_functions(query: &Query, names: &mut Vec<String>) {
    fn within(expr: &Expr, names: &mut Vec<String>) {
        match &expr.kind {
            Kind::Call(Callee::Udf(name), _, arguments) => {
                names.push(name.clone());
                arguments.iter().for_each(|argument| within(argument, names));
            }
            Kind::Subquery(_, query) => called_functions(query, names),
            _ => expr.each_child(&mut |child| within(child, names)),
        }
    }
    query.each_expr(&mut |expr| within(expr, names));
    for input in &query.from {
        if let Collection::Subquery(query) = &input.collection {
            called_functions(query, names);
        }
    }
}

/// The query with its parameters put in.
pub(crate) fn bind(query: &Query, parameters: &Parameters) -> Result<Query, Failure> {
    let mut names = BTreeSet::new();
    for (name, _) in parameters {
        if !names.insert(name) {
            return Err(Failure::bad_request(format!(
                "The parameter '{name}' is given more than once. Send each parameter name once."
            )));
        }
    }
    let mut bound = query.clone();
    if let Some(first) = bound.from.first_mut() {
        rename_root(first);
    }
    bind_query(&mut bound, parameters)?;
    Ok(bound)
}

/// FROM names the container by any name; its own alias keeps that name.
fn rename_root(input: &mut Input) {
    match &mut input.collection {
        Collection::Path(expr) => {
            if input.alias.is_none() {
                input.alias = expr.last_name().map(str::to_owned);
            }
            replace_root(expr);
        }
        Collection::Subquery(query) => {
            if let Some(first) = query.from.first_mut() {
                rename_root(first);
            }
        }
    }
}

fn replace_root(expr: &mut Expr) {
    match &mut expr.kind {
        Kind::Property(base, _) | Kind::Index(base, _) => replace_root(base),
        kind => *kind = Kind::Name(ROOT.to_owned()),
    }
}

fn bind_query(query: &mut Query, parameters: &Parameters) -> Result<(), Failure> {
    query.top.iter_mut().try_for_each(|count| bind_count(count, "TOP", parameters))?;
    if let Some((offset, limit)) = &mut query.offset_limit {
        bind_count(offset, "OFFSET", parameters)?;
        bind_count(limit, "LIMIT", parameters)?;
    }
    for input in &mut query.from {
        match &mut input.collection {
            Collection::Path(expr) => bind_expr(expr, parameters)?,
            Collection::Subquery(query) => bind_query(query, parameters)?,
        }
    }
    let groups: Vec<String> = query.group_by.iter().map(Expr::to_string).collect();
    let items: Vec<&mut Expr> = match &mut query.select {
        Select::Star(_) => Vec::new(),
        Select::Value(expr) => vec![expr],
        Select::List(items) => {
            for item in items.iter_mut() {
                // A path names its property; that must outlast its place being taken by a group.
                if item.alias.is_none() {
                    item.alias = item.expr.last_name().map(str::to_owned);
                }
            }
            items.iter_mut().map(|item| &mut item.expr).collect()
        }
    };
    for expr in items {
        if !groups.is_empty() {
            use_groups(expr, &groups);
        }
        bind_expr(expr, parameters)?;
    }
    for expr in query.filter.iter_mut().chain(&mut query.group_by) {
        bind_expr(expr, parameters)?;
    }
    for key in &mut query.order_by {
        if !groups.is_empty() {
            use_groups(&mut key.expr, &groups);
        }
        bind_expr(&mut key.expr, parameters)?;
    }
    query.rank.iter_mut().try_for_each(|rank| bind_expr(rank, parameters))
}

fn use_groups(expr: &mut Expr, groups: &[String]) {
    if matches!(expr.kind, Kind::Aggregate(..)) {
        return;
    }
    let text = expr.to_string();
    match groups.iter().position(|group| *group == text) {
        Some(at) => expr.kind = Kind::Group(at),
        None => expr.each_child_mut(&mut |child| use_groups(child, groups)),
    }
}

/// The count behind a number or a parameter.
pub(crate) fn count_of(count: &Count, clause: &str, parameters: &Parameters) -> Result<u64, Failure> {
    match count {
        Count::Number(number) => Ok(*number),
        Count::Parameter(name) => parameters
            .iter()
            .find(|(known, _)| known == name)
            .and_then(|(_, value)| value.as_u64())
            .filter(|count| i32::try_from(*count).is_ok())
            .ok_or_else(|| {
                let message =
                    format!("The count value provided for a {clause} clause must be a non-negative integer.");
                Failure::bad_request(message)
            }),
    }
}

fn bind_count(count: &mut Count, clause: &str, parameters: &Parameters) -> Result<(), Failure> {
    *count = Count::Number(count_of(count, clause, parameters)?);
    Ok(())
}

fn bind_expr(expr: &mut Expr, parameters: &Parameters) -> Result<(), Failure> {
    match &mut expr.kind {
        Kind::Parameter(name) => {
            let value = parameters.iter().find(|(known, _)| known == name);
            expr.kind = value.map_or(Kind::Undefined, |(_, value)| Kind::Literal(value.clone()));
            return Ok(());
        }
        Kind::Subquery(_, query) => return bind_query(query, parameters),
        _ => {}
    }
    let mut result = Ok(());
    expr.each_child_mut(&mut |child| {
        if result.is_ok() {
            result = bind_expr(child, parameters);
        }
    });
    result?;
    fold(expr);
    Ok(())
}

/// Constants written as expressions become literals; long IN lists get a set.
fn fold(expr: &mut Expr) {
    match &mut expr.kind {
        Kind::Array(items) if items.iter().all(|item| item.as_literal().is_some()) => {
            let values: Vec<Value> = items.iter().filter_map(|item| item.as_literal().cloned()).collect();
            expr.kind = Kind::Literal(values.into());
        }
        Kind::Object(entries) if entries.iter().all(|(_, item)| item.as_literal().is_some()) => {
            let pairs =
                entries.iter().filter_map(|(name, item)| Some((name.clone(), item.as_literal()?.clone())));
            let map: serde_json::Map<String, Value> = pairs.collect();
            expr.kind = Kind::Literal(map.into());
        }
        Kind::In(_, _, items, lookup) if items.len() >= LOOKUP_MIN => {
            let keys: Option<BTreeSet<String>> =
                items.iter().map(|item| item.as_literal().map(|value| key_of(Some(value)))).collect();
            *lookup = keys.map(Arc::new);
        }
        _ => {}
    }
}
