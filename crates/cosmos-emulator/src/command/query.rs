//! SQL over items.

use cosmos_wire::header;
use cosmos_wire::number::Style;
use serde_json::Value;

use super::{Envelope, Reply, container, decoded, invalid_payload, page_size, scope, session_token, text};
use crate::engine::QueryRequest;
use crate::failure::Failure;
use crate::http::{Account, Call};

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
    let scope = scope(&asked)?;
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

/// The plan of a query.
pub(crate) fn plan(_account: &Account, _call: &Call) -> Result<Reply, Failure> {
    Err(invalid_payload())
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
