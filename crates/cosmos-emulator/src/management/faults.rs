//! Fault rules by command.

use http::StatusCode;
use serde_json::json;

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::fault::FaultRule;

pub(super) fn list(context: &Context, _: &Request<'_>) -> Outcome {
    Answer::ok(&json!({"faults": context.account.faults.list()}))
}

pub(super) fn add(context: &Context, request: &Request<'_>) -> Outcome {
    let rule: FaultRule = request.body()?;
    rule.validate().map_err(|reason| request.bad_body(&reason))?;
    Answer::json(StatusCode::CREATED, &json!({"id": context.account.faults.install(rule)}))
}

pub(super) fn clear(context: &Context, _: &Request<'_>) -> Outcome {
    context.account.faults.clear();
    Answer::done()
}

pub(super) fn remove(context: &Context, request: &Request<'_>) -> Outcome {
    if context.account.faults.remove(request.number(0)?) {
        return Answer::done();
    }
    Err(Answer::problem(StatusCode::NOT_FOUND, "no fault rule has this id; GET /faults lists them"))
}
