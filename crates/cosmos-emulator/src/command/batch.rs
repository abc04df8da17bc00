//! Transactional batches and bulk requests.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Reply, container, parse_key, partition_key, session_token};
use crate::engine::{BatchMode, BatchOperation, BatchRequest, BatchResult, Conditions, ItemOp, Patch};
use crate::failure::Failure;
use crate::http::{Account, Call};
use crate::operation::Operation;

/// Operations in one body; the engine refuses a batch of more than a hundred with the service's words.
const OPERATIONS_MAX: usize = 100_000;

/// One operation as the body spells it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Step<'a> {
    operation_type: String,
    id: Option<String>,
    #[serde(borrow)]
    resource_body: Option<&'a RawValue>,
    if_match: Option<String>,
    if_none_match: Option<String>,
    partition_key: Option<Value>,
    #[serde(default)]
    minimal_return_preference: bool,
}

/// Serves a batch or a bulk request.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let steps: Vec<Step<'_>> = serde_json::from_slice(&call.body).map_err(|error| unreadable(&error))?;
    if steps.len() > OPERATIONS_MAX {
        return Err(Failure::bad_request("Batch request has more operations than what is supported."));
    }
    let minimal: Vec<bool> =
        steps.iter().map(|step| step.minimal_return_preference || asked.wants_minimal()).collect();
    let is_read: Vec<bool> =
        steps.iter().map(|step| step.operation_type.eq_ignore_ascii_case("read")).collect();
    let count = steps.len();
    let request = BatchRequest {
        mode: match (call.operation, asked.continues_on_error()) {
            (Operation::Batch, _) => BatchMode::Atomic,
            (_, true) => BatchMode::Bulk,
            (_, false) => BatchMode::BulkUntilFailure,
        },
        partition_key: partition_key(&asked)?,
        operations: steps.into_iter().map(operation).collect::<Result<_, _>>()?,
        body_bytes: call.body.len(),
        session_token: session_token(account, &asked),
    };
    let answer = account.engine.batch(&container, request)?;
    let keep = |index: usize| is_read[index] || !minimal[index];
    Ok(Reply {
        status: answer.status,
        body: body(&answer.results, keep),
        charge: answer.charge,
        item_count: Some(count),
        ticket: answer.ticket,
        documents_visited: count as u64,
        ..Reply::standing(&container, &answer.standing, None)
    })
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::bad_request(format!(
        "The request payload is invalid. Ensure to provide a valid request payload. A batch is a JSON array of \
         operations: {error}."
    ))
}

fn operation(step: Step<'_>) -> Result<BatchOperation, Failure> {
    let named = step.operation_type.to_ascii_lowercase();
    let id = || {
        step.id
            .clone()
            .ok_or_else(|| Failure::bad_request(format!("A {named} operation of a batch needs an id.")))
    };
    let body = || match step.resource_body {
        Some(raw) => Ok(Bytes::copy_from_slice(raw.get().as_bytes())),
        None => Err(Failure::bad_request(format!("A {named} operation of a batch needs a resourceBody."))),
    };
    let op = match named.as_str() {
        "create" => ItemOp::Create { body: body()? },
        "upsert" => ItemOp::Upsert { body: body()? },
        "replace" => ItemOp::Replace { id: id()?, body: body()? },
        "read" => ItemOp::Read { id: id()? },
        "delete" => ItemOp::Delete { id: id()? },
        "patch" => ItemOp::Patch { id: id()?, patch: Patch::parse(&body()?)? },
        other => {
            return Err(Failure::bad_request(format!(
                "The operationType '{other}' of a batch is not supported."
            )));
        }
    };
    let partition_key = match &step.partition_key {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(parse_key(text)?),
        Some(key) => Some(parse_key(&key.to_string())?),
    };
    Ok(BatchOperation {
        op,
        conditions: Conditions { if_match: step.if_match, if_none_match: step.if_none_match },
        partition_key,
    })
}

/// The results as the service writes them; `keep` says whose document is wanted back.
fn body(results: &[BatchResult], keep: impl Fn(usize) -> bool) -> Bytes {
    let mut out =
        BytesMut::with_capacity(64 + results.iter().map(|result| result.body.len() + 96).sum::<usize>());
    out.put_u8(b'[');
    for (index, result) in results.iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        let charge = (result.charge * 10_000.0).round() / 10_000.0;
        out.put_slice(format!("{{\"statusCode\":{},\"requestCharge\":{charge}", result.status).as_bytes());
        if result.sub_status != 0 {
            out.put_slice(format!(",\"subStatusCode\":{}", result.sub_status).as_bytes());
        }
        if let Some(etag) = &result.etag {
            out.put_slice(b",\"eTag\":");
            out.put_slice(Value::from(etag.as_str()).to_string().as_bytes());
        }
        if !result.body.is_empty() && keep(index) {
            out.put_slice(b",\"resourceBody\":");
            out.put_slice(&result.body);
        }
        out.put_u8(b'}');
    }
    out.put_u8(b']');
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<BatchOperation>, u16> {
        let steps: Vec<Step<'_>> = serde_json::from_str(text).map_err(|error| unreadable(&error).status)?;
        steps.into_iter().map(operation).collect::<Result<_, _>>().map_err(|failure| failure.status)
    }

    #[test]
    fn bodies_keep_their_text() {
        let steps = parse(r#"[{"operationType":"Create","resourceBody":{"id":"a","n":1.50}}]"#).unwrap();
        let ItemOp::Create { body } = &steps[0].op else { panic!("not a create") };
        assert_eq!(body, r#"{"id":"a","n":1.50}"#);
    }

    #[test]
    fn what_cannot_be_meant_is_400() {
        for wrong in [
            "{}",
            "[1]",
            r#"[{"operationType":"Fly"}]"#,
            r#"[{"operationType":"Create"}]"#,
            r#"[{"operationType":"Read"}]"#,
            r#"[{"operationType":"Read","id":"a","partitionKey":"not json"}]"#,
        ] {
            assert_eq!(parse(wrong).err(), Some(400), "{wrong}");
        }
    }

    #[test]
    fn results_are_written_as_the_service_does() {
        let result = |status, etag: Option<&str>, body: &'static str| BatchResult {
            status,
            sub_status: 0,
            etag: etag.map(str::to_owned),
            body: Bytes::from_static(body.as_bytes()),
            charge: 6.285_714_28,
            message: None,
        };
        let results = [
            result(201, Some("\"e\""), r#"{"id":"a"}"#),
            BatchResult { sub_status: 1001, ..result(400, None, "") },
        ];
        assert_eq!(
            body(&results, |_| true),
            r#"[{"statusCode":201,"requestCharge":6.2857,"eTag":"\"e\"","resourceBody":{"id":"a"}},{"statusCode":400,"requestCharge":6.2857,"subStatusCode":1001}]"#
        );
        assert!(!body(&results, |_| false).windows(12).any(|part| part == b"resourceBody"));
    }
}
