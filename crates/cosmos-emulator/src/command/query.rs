//! SQL over items.

use cosmos_wire::header;
use cosmos_wire::number::Style;
use serde_json::Value;

use super::{Envelope, Reply, container, decoded, invalid_payload, page_size, scope, session_token, text};
use crate::config::Gateway;
use crate::engine::{Container, QueryRequest, Scope};
use crate::failure::Failure;
use crate::http::headers::Asked;
use crate::http::{Account, Call};
use crate::sql;
use crate::sql::plan::{Features, GatewayRequest, Verdict, gateway_verdict};

/// A query as its body spells it.
pub(super) struct Question {
    pub(super) text: String,
    pub(super) parameters: Vec<(String, Value)>,
}

/// One page of a query.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let question = question(call)?;
    let scope = match scope(&asked)? {
        Scope::All if account.gateway == Gateway::AsService => gate(&asked, &container, &question)?,
        named => named,
    };
    let page = account.engine.query(
        &container,
        QueryRequest {
            text: question.text,
            parameters: question.parameters,
            scope,
            page_size: page_size(&asked)?,
            continuation: text(&asked, header::CONTINUATION),
            session_token: session_token(account, &asked),
        },
    )?;
    Ok(Reply {
        body: Envelope::new(&container.rid(), "Documents").values(&page.rows, Style::Query),
        charge: page.charge,
        continuation: page.continuation,
        item_count: Some(page.rows.len()),
        documents_visited: page.documents_visited,
        ..Reply::standing(&container, &page.standing, None)
    })
}

/// What the gateway does with a query that names no partition: refuses it, or says where to look.
fn gate(asked: &Asked<'_>, container: &Container, question: &Question) -> Result<Scope, Failure> {
    let query = sql::parse(&question.text)?;
    let plan = sql::plan::plan(&query, &question.parameters, container.partition_key(), &Features::all())?;
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

/// The plan of a query, for a client that fans out by itself.
pub(crate) fn plan(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let question = question(call)?;
    let features = Features::parse(asked.text(header::SUPPORTED_QUERY_FEATURES));
    let query = sql::parse(&question.text)?;
    let plan = sql::plan::plan(&query, &question.parameters, container.partition_key(), &features)?;
    let body = serde_json::to_value(&plan).map_err(|_| Failure::new(500, "The plan cannot be written."))?;
    Ok(Reply { charge: 1.0, ..Reply::json(200, &body) })
}

/// Reads the query of a request: JSON with parameters, or bare SQL.
pub(super) fn question(call: &Call) -> Result<Question, Failure> {
    if call.asked().is_sql_text() {
        let text = std::str::from_utf8(&call.body).map_err(|_| invalid_payload())?;
        return Ok(Question { text: text.to_owned(), parameters: Vec::new() });
    }
    let body: Value = serde_json::from_slice(&decoded(&call.body)?).map_err(|_| invalid_payload())?;
    let Value::Object(mut body) = body else { return Err(invalid_payload()) };
    let Some(Value::String(text)) = body.remove("query") else { return Err(invalid_payload()) };
    let parameters = match body.remove("parameters") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.into_iter().map(parameter).collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid_payload()),
    };
    Ok(Question { text, parameters })
}

fn parameter(given: Value) -> Result<(String, Value), Failure> {
    let Value::Object(mut given) = given else { return Err(invalid_payload()) };
    let Some(Value::String(name)) = given.remove("name") else { return Err(invalid_payload()) };
    Ok((name, given.remove("value").unwrap_or(Value::Null)))
}
