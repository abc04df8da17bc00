//! The query a client sends to each partition in place of the user's, so that it can put the answers together.

use super::super::ast::{Aggregate, Collection, Count, Expr, Input, Item, Kind, Query, Select};
use super::super::function;
use super::super::lexer::Span;
use crate::Failure;

/// What the client must put together.
pub(super) enum Shape<'q> {
    /// Rows as they come.
    Plain,
    /// Rows to merge by their keys.
    Ordered,
    /// Groups or aggregates to combine.
    Reduced(Outputs<'q>),
}

/// What a grouped or aggregated query yields.
pub(super) enum Outputs<'q> {
    /// `SELECT VALUE`: an aggregate, or an expression of the group.
    Value(Option<Aggregate>, &'q Expr),
    /// A list: name, aggregate if it is one, expression.
    List(Vec<(String, Option<Aggregate>, &'q Expr)>),
}

/// How a query's answers from several partitions are put together; refuses what cannot be.
pub(super) fn shape_of(query: &Query) -> Result<Shape<'_>, Failure> {
    if query.group_by.is_empty() && !query.has_aggregate() {
        return Ok(if query.order_by.is_empty() { Shape::Plain } else { Shape::Ordered });
    }
    let outputs = match &query.select {
        Select::Star(_) => return Ok(Shape::Plain),
        Select::Value(expr) => Outputs::Value(aggregate_of(expr)?, expr),
        Select::List(items) => {
            let mut unnamed = 0;
            let mut outputs = Vec::with_capacity(items.len());
            for item in items {
                outputs.push((name_of(item, &mut unnamed), aggregate_of(&item.expr)?, &item.expr));
            }
            Outputs::List(outputs)
        }
    };
    Ok(Shape::Reduced(outputs))
}

/// The aggregate an expression is; none if it holds none; refused if it holds one among other things.
fn aggregate_of(expr: &Expr) -> Result<Option<Aggregate>, Failure> {
    match &expr.kind {
        Kind::Aggregate(aggregate, ..) => Ok(Some(*aggregate)),
        _ if expr.has_aggregate() => Err(Failure::bad_request(
            r#"{"Errors":["Compositions of aggregates and other expressions are not allowed."]}"#,
        )),
        _ => Ok(None),
    }
}

fn name_of(item: &Item, unnamed: &mut usize) -> String {
    match item.alias.as_deref().or_else(|| item.expr.last_name()) {
        Some(name) => name.to_owned(),
        None => {
            *unnamed += 1;
            format!("${unnamed}")
        }
    }
}

/// The query for the partitions; nothing if it is the user's own.
pub(super) fn rewritten(
    query: &Query,
    shape: &Shape<'_>,
    offset: Option<u64>,
    limit: Option<u64>,
) -> Option<Query> {
    if query.distinct.is_some() && !matches!(shape, Shape::Reduced(_)) {
        return distinct(query, shape);
    }
    let window = match (offset, limit) {
        (Some(offset), Some(limit)) => Some((Count::Number(0), Count::Number(offset.saturating_add(limit)))),
        _ => None,
    };
    match shape {
        Shape::Plain => window.map(|window| Query { offset_limit: Some(window), ..query.clone() }),
        Shape::Ordered => Some(Query { offset_limit: window, ..ordered(query) }),
        Shape::Reduced(outputs) => Some(reduced(query, outputs)),
    }
}

/// Where the client takes duplicates out, only it can count what is left.
fn distinct(query: &Query, shape: &Shape<'_>) -> Option<Query> {
    let is_cut = query.top.is_some() || query.offset_limit.is_some();
    let whole = Query { top: None, offset_limit: None, ..query.clone() };
    match shape {
        Shape::Ordered => Some(ordered(&whole)),
        Shape::Plain | Shape::Reduced(_) => is_cut.then_some(whole),
    }
}

fn ordered(query: &Query) -> Query {
    let keys = query.order_by.iter().map(|key| object(vec![("item", key.expr.clone())])).collect();
    let items = vec![
        Item { expr: expr(Kind::Property(Box::new(name(root_of(query))), "_rid".to_owned())), alias: None },
        named(expr(Kind::Array(keys)), "orderByItems"),
        named(payload_of(query), "payload"),
    ];
    let mut filter = with_placeholder(query);
    if let (Select::Value(value), Some(is_defined)) = (&query.select, function::by_name("IS_DEFINED")) {
        let callee = super::super::ast::Callee::Builtin(is_defined);
        let is_defined = expr(Kind::Call(callee, Span::default(), vec![value.clone()]));
        filter = expr(Kind::And(vec![filter, is_defined]));
    }
    Query { distinct: None, select: Select::List(items), filter: Some(filter), ..query.clone() }
}

/// What the client hands on of each row.
pub(super) fn payload_of(query: &Query) -> Expr {
    match &query.select {
        Select::Star(_) => name(root_of(query)),
        Select::Value(expr) => expr.clone(),
        Select::List(items) => {
            let mut unnamed = 0;
            let entries = items.iter().map(|item| (name_of(item, &mut unnamed), item.expr.clone())).collect();
            expr(Kind::Object(entries))
        }
    }
}

/// The filter, and the place of the one that a client adds.
pub(super) fn with_placeholder(query: &Query) -> Expr {
    let placeholder = expr(Kind::FilterPlaceholder);
    match &query.filter {
        Some(filter) => expr(Kind::And(vec![filter.clone(), placeholder])),
        None => placeholder,
    }
}

/// The name by which the query calls a document.
pub(super) fn root_of(query: &Query) -> &str {
    query.from.first().and_then(root_name).unwrap_or("c")
}

/// The name that stands for the document.
fn root_name(input: &Input) -> Option<&str> {
    match &input.collection {
        Collection::Path(path) if matches!(path.kind, Kind::Name(_)) => input.name(),
        Collection::Path(_) | Collection::Subquery(_) => input.name(),
    }
}

fn reduced(query: &Query, outputs: &Outputs<'_>) -> Query {
    let part = |aggregate: &Option<Aggregate>, source: &Expr| match (aggregate, &source.kind) {
        (Some(aggregate), Kind::Aggregate(_, _, argument)) => partial(*aggregate, argument),
        _ => source.clone(),
    };
    let payload = match outputs {
        Outputs::Value(Some(aggregate), source) => expr(Kind::Array(vec![part(&Some(*aggregate), source)])),
        Outputs::Value(None, source) => (*source).clone(),
        Outputs::List(items) => {
            let entries =
                items.iter().map(|(alias, aggregate, source)| (alias.clone(), part(aggregate, source)));
            expr(Kind::Object(entries.collect()))
        }
    };
    let select = if query.group_by.is_empty() {
        match outputs {
            Outputs::Value(..) => Select::Value(payload),
            Outputs::List(_) => Select::List(vec![named(payload, "payload")]),
        }
    } else {
        let keys = query.group_by.iter().map(|key| object(vec![("item", key.clone())])).collect();
        Select::List(vec![named(expr(Kind::Array(keys)), "groupByItems"), named(payload, "payload")])
    };
    Query { distinct: None, top: None, offset_limit: None, select, ..query.clone() }
}

/// What one partition knows of an aggregate: enough to combine it with the others.
fn partial(aggregate: Aggregate, argument: &Expr) -> Expr {
    let call = |aggregate| expr(Kind::Aggregate(aggregate, 0, Box::new(argument.clone())));
    let with_count = |key: &'static str| {
        let inner = object(vec![(key, call(aggregate)), ("count", call(Aggregate::Count))]);
        object(vec![("item", call(aggregate)), ("item2", inner)])
    };
    match aggregate {
        Aggregate::Avg => {
            let inner = object(vec![("sum", call(Aggregate::Sum)), ("count", call(Aggregate::Count))]);
            object(vec![("item", inner)])
        }
        Aggregate::Min => with_count("min"),
        Aggregate::Max => with_count("max"),
        Aggregate::Count | Aggregate::CountIf | Aggregate::Sum | Aggregate::MakeList | Aggregate::MakeSet => {
            object(vec![("item", call(aggregate))])
        }
    }
}

pub(super) fn expr(kind: Kind) -> Expr {
    Expr::new(kind, Span::default())
}

pub(super) fn name(text: &str) -> Expr {
    expr(Kind::Name(text.to_owned()))
}

pub(super) fn object(entries: Vec<(&str, Expr)>) -> Expr {
    expr(Kind::Object(entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()))
}

pub(super) fn named(expr: Expr, alias: &str) -> Item {
    Item { expr, alias: Some(alias.to_owned()) }
}
