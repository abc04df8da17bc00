//! A copy of the data while it is in use.

use std::path::PathBuf;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::storage::snapshot;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    folder: PathBuf,
}

pub(super) fn take(context: &Context, request: &Request<'_>) -> Outcome {
    let Snapshot { folder } = request.body()?;
    let copied = snapshot::save(context.account.engine.storage().as_ref(), &folder)
        .map_err(|error| Answer::problem(StatusCode::CONFLICT, &error.to_string()))?;
    Answer::json(StatusCode::CREATED, &json!({"folder": folder, "rows": copied.rows, "bytes": copied.bytes}))
}
