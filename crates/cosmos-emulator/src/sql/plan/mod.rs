//! The query plan: what a client must know to run a query over many partitions, and what the gateway refuses to run
//! by itself. Pure functions; nothing here reads a document.

mod gateway;
mod hybrid;
mod ranges;
mod rewrite;

use cosmos_wire::partition_key::Definition;
use serde::Serialize;
use serde_json::{Map, Value};

pub use self::gateway::{GatewayRequest, Verdict, gateway_verdict};
pub use self::hybrid::HybridSearch;
pub use self::ranges::QueryRange;

use super::ast::{Aggregate, Collection, Kind, Query, Select};
use super::bind::{Parameters, bind, count_of};
use super::error::refusal;
use super::exec::check_order_keys;
use super::parser::parse_query;
use super::print::{FILTER_PLACEHOLDER, expr_in_service_spelling, in_service_spelling};
use super::schema::{Schema, is_vector_distance};
use super::source::Direction;
use crate::Failure;

/// The answer to a plan request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryPlan {
    /// Always 2.
    pub partitioned_query_execution_info_version: u8,
    /// What the client does with the partitions' answers; null for a search.
    pub query_info: Option<QueryInfo>,
    /// Where the answers are.
    pub query_ranges: Vec<QueryRange>,
    /// How the client searches; null for all other queries.
    pub hybrid_search_query_info: Option<HybridSearch>,
}

/// What the client does with the partitions' answers.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryInfo {
    /// Whether and how duplicates are dropped.
    pub distinct_type: DistinctType,
    /// TOP.
    pub top: Option<u64>,
    /// OFFSET.
    pub offset: Option<u64>,
    /// LIMIT.
    pub limit: Option<u64>,
    /// Direction of each key.
    pub order_by: Vec<&'static str>,
    /// Each key as text.
    pub order_by_expressions: Vec<String>,
    /// Each group expression as text.
    pub group_by_expressions: Vec<String>,
    /// Properties of a grouped or aggregated list, in order.
    pub group_by_aliases: Vec<String>,
    /// The aggregate of `SELECT VALUE`.
    pub aggregates: Vec<&'static str>,
    /// The aggregate of each property of a list, null where it has none.
    pub group_by_alias_to_aggregate_type: Map<String, Value>,
    /// What to send to the partitions; empty means the query as it is.
    pub rewritten_query: String,
    /// Whether results are bare values.
    pub has_select_value: bool,
    /// Present if the query counts distinct values.
    pub d_count_info: Option<DCountInfo>,
    /// Whether the client must sort everything before it yields the first row.
    pub has_non_streaming_order_by: bool,
}

/// How duplicates are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum DistinctType {
    /// Not at all.
    None,
    /// Equal rows come one after the other.
    Ordered,
    /// Equal rows come anywhere.
    Unordered,
}

/// A count of distinct values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DCountInfo {
    /// The property that holds the count; empty for a bare value.
    pub d_count_alias: String,
}

/// What the calling client can do, from `x-ms-cosmos-supported-query-features`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features(Option<Vec<String>>);

impl Features {
    /// Everything: for the gateway's own plans.
    pub fn all() -> Self {
        Self(None)
    }

    /// From the header; without it the client can do nothing.
    pub fn parse(header: Option<&str>) -> Self {
        let names = header.unwrap_or_default().split(',').map(|name| name.trim().to_ascii_lowercase());
        Self(Some(names.filter(|name| !name.is_empty()).collect()))
    }

    fn has(&self, feature: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(&feature.to_ascii_lowercase()))
    }
}

/// Plans a query over a container keyed by `definition`.
pub fn plan(
    query: &Query,
    parameters: &Parameters,
    definition: &Definition,
    features: &Features,
) -> Result<QueryPlan, Failure> {
    plan_in_container(query, parameters, definition, features, &Schema::default())
}

/// Plans a query over a container that has told its queries something.
pub fn plan_in_container(
    query: &Query,
    parameters: &Parameters,
    definition: &Definition,
    features: &Features,
    schema: &Schema,
) -> Result<QueryPlan, Failure> {
    let mut bound = bind(query, parameters)?;
    schema.resolve(&mut bound)?;
    let query_ranges = ranges::query_ranges(&bound, definition);
    let (mut query_info, mut hybrid_search_query_info) = (None, None);
    if query.rank.is_some() {
        hybrid_search_query_info = Some(hybrid::describe(query, &bound, parameters, features)?);
    } else {
        let info = describe(query, &bound, parameters)?;
        refuse_unsupported(query, &info, features)?;
        query_info = Some(info);
    }
    Ok(QueryPlan {
        partitioned_query_execution_info_version: 2,
        query_info,
        query_ranges,
        hybrid_search_query_info,
    })
}

/// The plan without its ranges.
fn describe(query: &Query, bound: &Query, parameters: &Parameters) -> Result<QueryInfo, Failure> {
    let (counted, d_count_info) = match distinct_count(query) {
        Some((inner, alias)) => (inner, Some(DCountInfo { d_count_alias: alias })),
        None => (query, None),
    };
    let bound = match bound.from.first().map(|input| &input.collection) {
        Some(Collection::Subquery(inner)) => {
            if d_count_info.is_some() {
                inner
            } else {
                bound
            }
        }
        _ => {
            check_order_keys(bound)?;
            bound
        }
    };
    let shape = rewrite::shape_of(counted)?;
    let count = |count: Option<&super::ast::Count>, clause| {
        count.map(|count| count_of(count, clause, parameters)).transpose()
    };
    let (offset, limit) = match &counted.offset_limit {
        Some((offset, limit)) => (count(Some(offset), "OFFSET")?, count(Some(limit), "LIMIT")?),
        None => (None, None),
    };
    let has_order = matches!(shape, rewrite::Shape::Ordered) || !counted.group_by.is_empty();
    let order: &[_] = if has_order { &counted.order_by } else { &[] };
    let rewritten = match d_count_info {
        Some(_) => text_of(counted)?,
        None => match rewrite::rewritten(counted, &shape, offset, limit) {
            Some(rewritten) => text_of(&rewritten)?,
            None => String::new(),
        },
    };
    let mut info = QueryInfo {
        distinct_type: distinct_type(counted),
        // Without FROM there is one row, and nothing to cut.
        top: count(counted.top.as_ref().filter(|_| !counted.from.is_empty()), "TOP")?,
        offset,
        limit,
        order_by: bound.order_by.iter().take(order.len()).map(|key| direction_name(key.direction)).collect(),
        order_by_expressions: order.iter().map(|key| expr_in_service_spelling(&key.expr)).collect(),
        group_by_expressions: counted.group_by.iter().map(expr_in_service_spelling).collect(),
        group_by_aliases: Vec::new(),
        aggregates: Vec::new(),
        group_by_alias_to_aggregate_type: Map::new(),
        rewritten_query: rewritten,
        has_select_value: matches!(query.select, Select::Value(_)),
        d_count_info,
        has_non_streaming_order_by: order.iter().any(|key| is_vector_distance(&key.expr)),
    };
    if let rewrite::Shape::Reduced(outputs) = &shape {
        match outputs {
            rewrite::Outputs::Value(aggregate, _) => {
                info.aggregates.extend(aggregate.map(Aggregate::plan_name));
            }
            rewrite::Outputs::List(items) => {
                for (alias, aggregate, _) in items {
                    let name = aggregate.map_or(Value::Null, |aggregate| aggregate.plan_name().into());
                    info.group_by_aliases.push(alias.clone());
                    info.group_by_alias_to_aggregate_type.insert(alias.clone(), name);
                }
            }
        }
    }
    Ok(info)
}

/// `SELECT VALUE COUNT(1) FROM (SELECT DISTINCT ..)`: the inner query and the name of the count.
fn distinct_count(query: &Query) -> Option<(&Query, String)> {
    let [input] = query.from.as_slice() else { return None };
    let Collection::Subquery(inner) = &input.collection else { return None };
    let is_plain = query.filter.is_none() && query.group_by.is_empty() && query.order_by.is_empty();
    if !is_plain || inner.distinct.is_none() || inner.has_aggregate() || !inner.group_by.is_empty() {
        return None;
    }
    let (expr, alias) = match &query.select {
        Select::Value(expr) => (expr, String::new()),
        Select::List(items) => match items.as_slice() {
            [item] => (&item.expr, item.alias.clone().unwrap_or_else(|| "$1".to_owned())),
            _ => return None,
        },
        Select::Star(_) => return None,
    };
    matches!(expr.kind, Kind::Aggregate(Aggregate::Count, ..)).then_some((inner, alias))
}

fn distinct_type(query: &Query) -> DistinctType {
    // Without FROM there is one row, which is distinct by itself.
    if query.distinct.is_none() || query.from.is_empty() {
        return DistinctType::None;
    }
    // Only here do equal rows follow each other.
    match (&query.select, query.order_by.as_slice()) {
        (Select::Value(value), [key]) if key.expr.to_string() == value.to_string() => DistinctType::Ordered,
        _ => DistinctType::Unordered,
    }
}

fn direction_name(direction: Option<Direction>) -> &'static str {
    match direction {
        Some(Direction::Descending) => "Descending",
        Some(Direction::Ascending) | None => "Ascending",
    }
}

/// The text of a rewritten query: as the service writes it, with the fewest parentheses where that would be nested too
/// deep to be run, or refused where even that is.
fn text_of(query: &Query) -> Result<String, Failure> {
    let filled = |text: &str| hybrid::filled(&text.replace(FILTER_PLACEHOLDER, "true"));
    let text = in_service_spelling(query);
    if query.depth() <= DEPTH_CERTAIN || parse_query(&filled(&text)).is_ok() {
        return Ok(text);
    }
    let text = query.to_string();
    let filled = filled(&text);
    parse_query(&filled).map_err(|error| refusal(&filled, &[error]))?;
    Ok(text)
}

/// Trees up to this height can be parsed, however many parentheses they are written with.
const DEPTH_CERTAIN: u16 = 40;

/// 400 if the client lacks what the plan needs of it.
fn refuse_unsupported(query: &Query, info: &QueryInfo, features: &Features) -> Result<(), Failure> {
    let list_aggregates = info.group_by_alias_to_aggregate_type.values().filter_map(Value::as_str);
    let aggregates: Vec<&str> = info.aggregates.iter().copied().chain(list_aggregates).collect();
    let is_listed = !aggregates.is_empty() && info.aggregates.is_empty();
    let makes_lists = aggregates.iter().any(|name| matches!(*name, "MakeList" | "MakeSet"));
    let needs = [
        ("Aggregate", !aggregates.is_empty()),
        ("MultipleAggregates", aggregates.len() > 1),
        ("NonValueAggregate", is_listed),
        ("CountIf", aggregates.contains(&"CountIf")),
        ("ListAndSetAggregate", makes_lists),
        ("Distinct", info.distinct_type != DistinctType::None),
        ("DCount", info.d_count_info.is_some()),
        ("GroupBy", !query.group_by.is_empty()),
        ("OffsetAndLimit", info.offset.is_some()),
        ("OrderBy", info.order_by.len() == 1),
        ("MultipleOrderBy", info.order_by.len() > 1),
        ("NonStreamingOrderBy", info.has_non_streaming_order_by),
        ("Top", info.top.is_some()),
    ];
    refuse_missing(&needs, features)
}

/// 400 if the client lacks one of the features that are needed.
fn refuse_missing(needs: &[(&str, bool)], features: &Features) -> Result<(), Failure> {
    let missing: Vec<String> = needs
        .iter()
        .filter(|(feature, is_needed)| *is_needed && !features.has(feature))
        .map(|(feature, _)| format!("Query contained {feature}, which the calling client does not support."))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "Query contains 1 or more unsupported features. Upgrade your SDK to a version that does support the requested \
         features:\n{}",
        missing.join("\n")
    )))
}
