//! The gateway's plan for a query: what to send to the ranges, and how to put their answers together.

use serde::Deserialize;
use serde_json::Map;
use serde_json::Value;

use cosmos_wire::epk::{Epk, EpkRange};

use crate::error::Error;

/// A plan, as the gateway sends it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlanDocument {
    query_info: Option<QueryInfo>,
    #[serde(default)]
    query_ranges: Vec<PlanRange>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlanRange {
    min: String,
    max: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QueryInfo {
    distinct_type: Option<Distinct>,
    top: Option<u64>,
    offset: Option<u64>,
    limit: Option<u64>,
    order_by: Vec<Direction>,
    order_by_expressions: Vec<String>,
    group_by_expressions: Vec<String>,
    group_by_aliases: Vec<String>,
    aggregates: Vec<Aggregate>,
    group_by_alias_to_aggregate_type: Map<String, Value>,
    rewritten_query: Option<String>,
    has_select_value: bool,
    has_non_streaming_order_by: bool,
    d_count_info: Option<Value>,
}

/// Whether rows are made unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Distinct {
    #[default]
    None,
    /// Equal rows follow each other.
    Ordered,
    /// Equal rows may be anywhere.
    Unordered,
}

/// The direction of one sort key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Direction {
    Ascending,
    Descending,
}

/// An aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Aggregate {
    Average,
    Count,
    Max,
    Min,
    Sum,
}

/// How the ranges' rows become the query's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// One range after the other.
    Concatenate,
    /// By sort keys.
    Sort { directions: Vec<Direction>, first_expression: Option<String> },
    /// Into groups; without expressions there is one group of everything.
    Group { columns: Columns, has_keys: bool },
}

/// What a group's row is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// `SELECT VALUE`: one aggregate, or the first payload of the group.
    Value(Option<Aggregate>),
    /// Named columns, aggregated or taken from the group's first row.
    Named(Vec<(String, Option<Aggregate>)>),
}

/// A plan, understood.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The text for the ranges; empty means the query's own.
    pub(crate) text: String,
    pub(crate) merge: Merge,
    pub(crate) distinct: Distinct,
    pub(crate) offset: u64,
    pub(crate) limit: Option<u64>,
    /// The parts of the key space that can hold rows.
    ranges: Vec<EpkRange>,
}

impl Plan {
    pub(crate) fn read(document: PlanDocument) -> Result<Self, Error> {
        let info = document.query_info.unwrap_or_default();
        if info.has_non_streaming_order_by || info.d_count_info.is_some() {
            return Err(Error::protocol("the plan needs a feature this driver did not offer"));
        }
        let mut ranges = Vec::with_capacity(document.query_ranges.len());
        for range in &document.query_ranges {
            let epk = |text: &str| {
                text.parse::<Epk>()
                    .map_err(|_| Error::protocol(format!("the plan has the range bound {text:?}")))
            };
            ranges.push(EpkRange::new(epk(&range.min)?, epk(&range.max)?));
        }
        let limit = match (info.top, info.limit) {
            (Some(top), Some(limit)) => Some(top.min(limit)),
            (top, limit) => top.or(limit),
        };
        Ok(Self {
            text: info.rewritten_query.clone().unwrap_or_default(),
            merge: merge(&info)?,
            distinct: info.distinct_type.unwrap_or_default(),
            offset: info.offset.unwrap_or(0),
            limit,
            ranges,
        })
    }

    /// Whether the ranges run the query's own text and their rows are the query's, one by one.
    pub(crate) fn is_plain(&self) -> bool {
        let is_whole = self.offset == 0 && self.limit.is_none() && self.distinct == Distinct::None;
        self.merge == Merge::Concatenate && is_whole && self.text.is_empty()
    }

    /// Whether a part of the key space can hold rows. A point is a range whose ends are equal.
    pub(crate) fn touches(&self, bounds: &EpkRange) -> bool {
        self.ranges.is_empty()
            || self.ranges.iter().any(|range| bounds.overlaps(range) || bounds.contains(&range.min))
    }
}

fn merge(info: &QueryInfo) -> Result<Merge, Error> {
    let is_aggregate = !info.aggregates.is_empty()
        || info.group_by_alias_to_aggregate_type.values().any(|kind| !kind.is_null());
    let has_keys = !info.group_by_expressions.is_empty();
    if is_aggregate || has_keys {
        return Ok(Merge::Group { columns: columns(info)?, has_keys });
    }
    if info.order_by.is_empty() {
        return Ok(Merge::Concatenate);
    }
    Ok(Merge::Sort {
        directions: info.order_by.clone(),
        first_expression: info.order_by_expressions.first().cloned(),
    })
}

fn columns(info: &QueryInfo) -> Result<Columns, Error> {
    if info.has_select_value {
        return Ok(Columns::Value(info.aggregates.first().copied()));
    }
    let kinds = &info.group_by_alias_to_aggregate_type;
    let aliases: Vec<String> = if info.group_by_aliases.is_empty() {
        kinds.keys().cloned().collect()
    } else {
        info.group_by_aliases.clone()
    };
    let named = aliases.into_iter().map(|alias| {
        let kind = match kinds.get(&alias) {
            None | Some(Value::Null) => None,
            Some(kind) => Some(
                Aggregate::deserialize(kind)
                    .map_err(|e| Error::serialization("an aggregate of the plan", e))?,
            ),
        };
        Ok((alias, kind))
    });
    Ok(Columns::Named(named.collect::<Result<_, Error>>()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(info: &Value) -> Plan {
        let document = json!({ "queryInfo": info, "queryRanges": [{ "min": "", "max": "FF" }] });
        Plan::read(serde_json::from_value(document).expect("a plan")).expect("understood")
    }

    #[test]
    fn plans_say_how_to_merge() {
        let plain = plan(&json!({ "distinctType": "None", "rewrittenQuery": "" }));
        assert!(plain.is_plain());
        assert_eq!((plain.merge, plain.limit, plain.offset), (Merge::Concatenate, None, 0));

        let window =
            plan(&json!({ "distinctType": "Unordered", "offset": 3, "limit": 4, "rewrittenQuery": "x" }));
        assert!(!window.is_plain());
        assert_eq!((window.distinct, window.offset, window.limit), (Distinct::Unordered, 3, Some(4)));

        let sorted = plan(&json!({
            "orderBy": ["Ascending", "Descending"], "orderByExpressions": ["c.a", "c.b"], "top": 5
        }));
        let directions = vec![Direction::Ascending, Direction::Descending];
        assert!(!sorted.is_plain());
        assert_eq!(sorted.merge, Merge::Sort { directions, first_expression: Some("c.a".to_owned()) });
        assert_eq!(sorted.limit, Some(5));

        let count = plan(&json!({ "aggregates": ["Count"], "hasSelectValue": true }));
        let columns = Columns::Value(Some(Aggregate::Count));
        assert_eq!(count.merge, Merge::Group { columns, has_keys: false });

        let grouped = plan(&json!({
            "groupByExpressions": ["c.k"], "groupByAliases": ["k", "n"],
            "groupByAliasToAggregateType": { "k": null, "n": "Average" }
        }));
        let columns =
            Columns::Named(vec![("k".to_owned(), None), ("n".to_owned(), Some(Aggregate::Average))]);
        assert_eq!(grouped.merge, Merge::Group { columns, has_keys: true });
    }

    #[test]
    fn points_touch_the_range_that_holds_them() {
        let document = json!({ "queryInfo": {}, "queryRanges": [{ "min": "2A", "max": "2A" }] });
        let plan = Plan::read(serde_json::from_value(document).expect("a plan")).expect("understood");
        let part = |min: &str, max: &str| EpkRange::new(min.parse().expect("hex"), max.parse().expect("hex"));
        assert!(!plan.touches(&part("", "1F")));
        assert!(plan.touches(&part("1F", "3F")));
        assert!(!plan.touches(&part("3F", "FF")));
    }
}
