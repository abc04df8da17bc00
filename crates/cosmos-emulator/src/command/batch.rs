//! Transactional batches and bulk requests.

use bytes::{BufMut, Bytes, BytesMut};
use cosmos_wire::batch::{Operation as Step, OperationType};
use serde_json::Value;

use super::{Reply, container, parse_key, partition_key, range_id, session_token};
use crate::engine::{
    BatchMode, BatchOperation, BatchRequest, BatchResult, Conditions, Content, ItemOp, Patch,
};
use crate::failure::Failure;
use crate::http::{Account, Call};
use crate::operation::Operation;

/// Serves a batch or a bulk request.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let steps = steps(&call.body)?;
    let count = steps.len();
    let request = BatchRequest {
        mode: match (call.operation, asked.continues_on_error()) {
            (Operation::Batch, _) => BatchMode::Atomic,
            (_, true) => BatchMode::Bulk,
            (_, false) => BatchMode::BulkUntilFailure,
        },
        partition_key: partition_key(&asked)?,
        range: range_id(&asked),
        operations: steps.into_iter().map(operation).collect::<Result<_, _>>()?,
        content: if asked.wants_minimal() { Content::Reads } else { Content::All },
        body_bytes: call.body.len(),
        session_token: session_token(account, &asked),
    };
    let answer = account.engine.batch(&container, request)?;
    Ok(Reply {
        status: answer.status,
        body: body(&answer.results),
        charge: answer.charge,
        item_count: Some(count),
        ticket: answer.ticket,
        documents_visited: count as u64,
        ..Reply::standing(&container, answer.standing, None)
    })
}

fn steps(body: &[u8]) -> Result<Vec<Step>, Failure> {
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

/// The steps of a body, as the engine takes them.
#[cfg(test)]
pub(crate) fn batch_operations(body: &[u8]) -> Result<Vec<BatchOperation>, Failure> {
    steps(body)?.into_iter().map(operation).collect()
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::bad_request(format!(
        "The request payload is invalid. Ensure to provide a valid request payload. A batch is a JSON array of \
         operations: {error}."
    ))
}

fn operation(step: Step) -> Result<BatchOperation, Failure> {
    let kind = step.operation_type;
    let lacks = |what: &str| Failure::bad_request(format!("A {kind:?} operation of a batch needs {what}."));
    let id = || step.id.clone().ok_or_else(|| lacks("an id"));
    let body = || match &step.resource_body {
        Some(raw) => Ok(Bytes::copy_from_slice(raw.get().as_bytes())),
        None => Err(lacks("a resourceBody")),
    };
    let op = match kind {
        OperationType::Create => ItemOp::Create { body: body()? },
        OperationType::Upsert => ItemOp::Upsert { body: body()? },
        OperationType::Replace => ItemOp::Replace { id: id()?, body: body()? },
        OperationType::Read => ItemOp::Read { id: id()? },
        OperationType::Delete => ItemOp::Delete { id: id()? },
        OperationType::Patch => ItemOp::Patch { id: id()?, patch: Patch::parse(&body()?)? },
    };
    Ok(BatchOperation {
        op,
        partition_key: step.partition_key.as_deref().map(parse_key).transpose()?,
        conditions: Conditions { if_match: step.if_match, if_none_match: step.if_none_match },
    })
}

/// The results as the service writes them.
fn body(results: &[BatchResult]) -> Bytes {
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
        if let Some(pause) = result.retry_after {
            out.put_slice(format!(",\"retryAfterMilliseconds\":{}", pause.as_millis()).as_bytes());
        }
        if let Some(etag) = &result.etag {
            out.put_slice(b",\"eTag\":");
            out.put_slice(Value::from(etag.as_str()).to_string().as_bytes());
        }
        if !result.body.is_empty() {
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
        let steps: Vec<Step> = serde_json::from_str(text).map_err(|error| unreadable(&error).status)?;
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
            retry_after: None,
            message: None,
        };
        let results = [
            result(201, Some("\"e\""), r#"{"id":"a"}"#),
            BatchResult { sub_status: 1001, ..result(400, None, "") },
        ];
        assert_eq!(
            body(&results),
            r#"[{"statusCode":201,"requestCharge":6.2857,"eTag":"\"e\"","resourceBody":{"id":"a"}},{"statusCode":400,"requestCharge":6.2857,"subStatusCode":1001}]"#
        );
    }
}
