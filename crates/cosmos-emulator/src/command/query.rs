//! SQL over items.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cosmos_wire::epk::EpkRange;
use cosmos_wire::header;
use cosmos_wire::number::Style;
use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Envelope, Reply, container, decoded, index_metrics, invalid_payload, page_size, scope, session_token,
    text,
};
use crate::config::Gateway;
use crate::engine::{Container, QueryPage, QueryRequest, Scope};
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::{Account, Call};
use crate::sql::plan::{Features, GatewayRequest, Verdict, gateway_verdict, plan_in_container};
use crate::sql::{self, Leash, Prepared};

/// A query as its body spells it.
pub(super) struct Question {
    pub(super) text: String,
    pub(super) parameters: Vec<(String, Value)>,
    /// The row behind which the client goes on, as it spells it.
    pub(super) resume: Option<Value>,
}

/// One page of a query.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let started = Instant::now();
    let asked = call.asked();
    let container = container(account, call)?;
    let question = question(call)?;
    let scope = match scope(&asked, &container)? {
        Scope::All if account.gateway == Gateway::AsService => gate(&asked, &container, &question)?,
        named => named,
    };
    let mut extra = Vec::new();
    if asked.wants_index_metrics() {
        let query = sql::parse(&question.text)?;
        let prepared = Prepared::in_container(&query, &question.parameters, &container.schema())?;
        extra.push(index_metrics::header(&container, &prepared, &scope));
    }
    let request = QueryRequest {
        text: question.text,
        parameters: question.parameters,
        scope,
        page_size: page_size(&asked)?,
        // A place among the documents of another account is before all of ours.
        continuation: text(&asked, name::CONTINUATION).filter(|token| !token.starts_with(FOREIGN_PLACE)),
        session_token: session_token(account, &asked),
        resume: question.resume,
    };
    let page = match (&request.scope, account.gateway) {
        (Scope::All, Gateway::AsService) => range_by_range(account, &container, request, &call.leash)?,
        _ => account.engine.query_within(&container, request, call.leash.clone())?,
    };
    let body = Envelope::new(&container.rid(), "Documents").values(&page.rows, Style::Query);
    extra.extend(asked.wants_query_metrics().then(|| metrics(&page, body.len(), started.elapsed())));
    Ok(Reply {
        body,
        charge: page.charge,
        continuation: page.continuation,
        item_count: Some(page.rows.len()),
        documents_visited: page.documents_visited,
        extra,
        ..Reply::standing(&container, page.standing, None)
    })
}

/// How the service's own continuations begin, which clients may have kept.
const FOREIGN_PLACE: &str = "-RID:~";

/// What the gateway does with a query that names no partition: refuses it, or says where to look.
fn gate(asked: &Asked<'_>, container: &Container, question: &Question) -> Result<Scope, Failure> {
    let query = sql::parse(&question.text)?;
    let (definition, schema) = (container.partition_key(), container.schema());
    let plan = plan_in_container(&query, &question.parameters, definition, &Features::all(), &schema)?;
    let request = GatewayRequest {
        cross_partition_enabled: asked.allows_cross_partition(),
        parallelize: asked.wants_parallel_query(),
        continuation_expected: asked.expects_continuation(),
    };
    match gateway_verdict(&plan, request) {
        Verdict::Refuse(failure) => Err(failure),
        // One value of the key: there is no need to look anywhere else.
        Verdict::Serve => Ok(match plan.query_ranges.as_slice() {
            [range] if range.is_single_value() => {
                Scope::EpkRange(range.min.clone(), format!("{}FF", range.max))
            }
            _ => Scope::All,
        }),
    }
}

/// Keys that a query over all partitions has begun to read, between two pages.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// The first key, in hex.
    min: String,
    /// The first key beyond, in hex.
    max: String,
    /// The engine's own continuation there; none at its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl Place {
    fn range(&self) -> Result<EpkRange, Failure> {
        let bound = |hex: &str| hex.parse().map_err(|_| invalid_continuation());
        Ok(EpkRange::new(bound(&self.min)?, bound(&self.max)?))
    }

    fn of(range: &EpkRange, token: Option<String>) -> Self {
        Self { min: range.min.to_hex(), max: range.max.to_hex(), token }
    }
}

fn invalid_continuation() -> Failure {
    Failure::bad_request("Invalid Continuation Token")
}

/// A page holds the rows of one partition, and none where that partition has none, as with the service. Places are
/// ranges of keys, so that they outlive the partitions they were made in.
fn range_by_range(
    account: &Account,
    container: &Container,
    request: QueryRequest,
    leash: &Leash,
) -> Result<QueryPage, Failure> {
    let ranges = container.ranges();
    let mut places: VecDeque<Place> = match &request.continuation {
        Some(token) => serde_json::from_str(token).map_err(|_| invalid_continuation())?,
        None => ranges.first().map(|range| Place::of(range, None)).into_iter().collect(),
    };
    let place = places.pop_front().ok_or_else(invalid_continuation)?;
    let mut range = place.range()?;
    let rows_max = request.page_size.rows_max();
    // A partition that was split goes on in each of its children behind the same row.
    if let Some(held) = ranges.iter().find(|held| held.contains(&range.min) && held.max < range.max) {
        places.push_front(Place::of(&EpkRange::new(held.max.clone(), range.max), place.token.clone()));
        range.max = held.max.clone();
    }
    if range.min == range.max {
        return nothing_left(account, container, request, leash);
    }
    let scope = Scope::EpkRange(range.min.to_hex(), range.max.to_hex());
    let request = QueryRequest { scope, continuation: place.token, ..request };
    let page = account.engine.query_within(container, request, leash.clone())?;
    if let Some(token) = page.continuation {
        places.push_front(Place::of(&range, Some(token)));
    } else if places.is_empty()
        && let Some(next) = ranges.iter().find(|next| next.contains(&range.max))
    {
        places.push_back(Place::of(&EpkRange::new(range.max, next.max.clone()), None));
    } else if places.is_empty() && page.rows.len() >= rows_max {
        // A full page does not know that it is the last: the service gives an empty one behind it.
        places.push_back(Place::of(&EpkRange::new(range.max.clone(), range.max), None));
    }
    let continuation = match places.is_empty() {
        true => None,
        false => Some(serde_json::to_string(&places).map_err(|_| invalid_continuation())?),
    };
    Ok(QueryPage { continuation, ..page })
}

/// The page behind a full last one.
fn nothing_left(
    account: &Account,
    container: &Container,
    request: QueryRequest,
    leash: &Leash,
) -> Result<QueryPage, Failure> {
    let last = container.range_ids().last().map(u32::to_string).unwrap_or_default();
    let request = QueryRequest {
        text: "SELECT VALUE undefined".to_owned(),
        scope: Scope::Range(last),
        continuation: None,
        resume: None,
        ..request
    };
    account.engine.query_within(container, request, leash.clone())
}

/// What a query cost, as the service lists it.
fn metrics(page: &QueryPage, body_bytes: usize, elapsed: Duration) -> (HeaderName, HeaderValue) {
    const QUERY_METRICS: HeaderName = HeaderName::from_static(header::QUERY_METRICS);
    let rows = page.rows.len();
    let ratio = if page.documents_visited == 0 {
        1.0
    } else {
        (rows as f64 / page.documents_visited as f64).min(1.0)
    };
    let millis = elapsed.as_secs_f64() * 1000.0;
    let text = format!(
        "totalExecutionTimeInMs={millis:.2};queryCompileTimeInMs=0.00;queryLogicalPlanBuildTimeInMs=0.00;\
         queryPhysicalPlanBuildTimeInMs=0.00;queryOptimizationTimeInMs=0.00;VMExecutionTimeInMs={millis:.2};\
         indexLookupTimeInMs=0.00;documentLoadTimeInMs=0.00;systemFunctionExecuteTimeInMs=0.00;\
         userFunctionExecuteTimeInMs=0.00;retrievedDocumentCount={};retrievedDocumentSize={};\
         outputDocumentCount={rows};outputDocumentSize={body_bytes};writeOutputTimeInMs=0.00;\
         indexUtilizationRatio={ratio:.2}",
        page.documents_visited,
        if page.documents_visited == 0 { 0 } else { body_bytes },
    );
    (QUERY_METRICS, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")))
}

/// The plan of a query, for a client that fans out by itself.
pub(crate) fn plan(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let question = question(call)?;
    let features = Features::parse(asked.text(name::SUPPORTED_QUERY_FEATURES));
    let query = sql::parse(&question.text)?;
    let (definition, schema) = (container.partition_key(), container.schema());
    let plan = plan_in_container(&query, &question.parameters, definition, &features, &schema)?;
    let body = serde_json::to_value(&plan).map_err(|_| Failure::new(500, "The plan cannot be written."))?;
    Ok(Reply { charge: 1.0, ..Reply::json(200, &body) })
}

/// Reads the query of a request: JSON with parameters, or bare SQL.
pub(super) fn question(call: &Call) -> Result<Question, Failure> {
    if call.asked().is_sql_text() {
        let text = std::str::from_utf8(&call.body).map_err(|_| invalid_payload())?;
        return Ok(Question { text: text.to_owned(), parameters: Vec::new(), resume: None });
    }
    let body: Value = serde_json::from_slice(&decoded(&call.body)?).map_err(|_| invalid_payload())?;
    let Value::Object(mut body) = body else { return Err(invalid_payload()) };
    let Some(Value::String(text)) = body.remove("query") else { return Err(invalid_payload()) };
    let parameters = match body.remove("parameters") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.into_iter().map(parameter).collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid_payload()),
    };
    let resume = body.remove("resumeFilter").filter(|filter| !filter.is_null());
    Ok(Question { text, parameters, resume })
}

fn parameter(given: Value) -> Result<(String, Value), Failure> {
    let Value::Object(mut given) = given else { return Err(invalid_payload()) };
    let Some(Value::String(name)) = given.remove("name") else { return Err(invalid_payload()) };
    Ok((name, given.remove("value").unwrap_or(Value::Null)))
}
