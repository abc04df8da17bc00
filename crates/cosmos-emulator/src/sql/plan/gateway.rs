//! What the gateway runs by itself, and what it leaves to the client.

use cosmos_wire::status::Status;

use super::{DistinctType, QueryPlan};
use crate::Failure;

/// What a query request says about itself. Requests that name a partition key or a partition key range never come
/// here: they are run as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct GatewayRequest {
    /// `x-ms-documentdb-query-enablecrosspartition`.
    pub cross_partition_enabled: bool,
    /// `x-ms-documentdb-query-parallelizecrosspartitionquery`.
    pub parallelize: bool,
    /// `x-ms-documentdb-query-iscontinuationexpected`.
    pub continuation_expected: bool,
}

/// What the gateway does.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Runs it, range by range.
    Serve,
    /// Answers with this.
    Refuse(Failure),
}

const DISABLED: &str = "Cross partition query is required but disabled. Please set \
                        x-ms-documentdb-query-enablecrosspartition to true, specify x-ms-documentdb-partitionkey, or \
                        revise your query to avoid this exception.";
const NOT_SERVED: &str = "The provided cross partition query can not be directly served by the gateway. This is a \
                          first chance (internal) exception that all newer clients will know how to handle \
                          gracefully. This exception is traced, but unless you see it bubble up as an exception \
                          (which only happens on older SDK clients), then you can safely ignore this message.";
const VALUE_ONLY: &str = "Cross partition query only supports 'VALUE <AggregateFunc>' for aggregates.";

/// Decides what becomes of a query that names no partition.
pub fn gateway_verdict(plan: &QueryPlan, request: GatewayRequest) -> Verdict {
    let is_single = matches!(plan.query_ranges.as_slice(), [range] if range.is_single_value());
    let Some(info) = &plan.query_info else {
        // A search within one key is run as it is; over more of them only the client can rank.
        return match (is_single, request.cross_partition_enabled) {
            (true, _) => Verdict::Serve,
            (false, true) => Verdict::Refuse(not_served(plan)),
            (false, false) => Verdict::Refuse(with_plan(Failure::bad_request(DISABLED), plan)),
        };
    };
    let has_listed_aggregate = info.group_by_alias_to_aggregate_type.values().any(|name| !name.is_null());
    if has_listed_aggregate {
        return Verdict::Refuse(Failure::bad_request(VALUE_ONLY));
    }
    let is_distinct = info.distinct_type != DistinctType::None;
    let is_grouped = !info.group_by_expressions.is_empty();
    let has_aggregates = !info.aggregates.is_empty() || info.d_count_info.is_some();
    if is_single {
        let needs_client = is_distinct || is_grouped || (has_aggregates && request.continuation_expected);
        return if needs_client { Verdict::Refuse(not_served(plan)) } else { Verdict::Serve };
    }
    if !request.cross_partition_enabled {
        return Verdict::Refuse(with_plan(Failure::bad_request(DISABLED), plan));
    }
    let needs_client = is_distinct
        || is_grouped
        || has_aggregates
        || request.parallelize
        || info.top.is_some()
        || info.offset.is_some()
        || info.limit.is_some()
        || !info.order_by.is_empty();
    if needs_client { Verdict::Refuse(not_served(plan)) } else { Verdict::Serve }
}

fn not_served(plan: &QueryPlan) -> Failure {
    with_plan(Failure::of(Status::CROSS_PARTITION_QUERY_NOT_SERVABLE, NOT_SERVED), plan)
}

fn with_plan(mut failure: Failure, plan: &QueryPlan) -> Failure {
    failure.additional_error_info = serde_json::to_string(plan).ok();
    failure
}
