//! Physical partitions by command: watched, split, merged.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::engine::{Container, Progression, SplitMode};

/// Longest time that requests get 410/1007.
const LOCK_MS_MAX: u64 = 10 * 60 * 1000;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
enum Mode {
    #[default]
    Midpoint,
    Epk,
    Storage,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
enum ProgressionMode {
    #[default]
    Automatic,
    Manual,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Split {
    #[serde(default)]
    mode: Mode,
    epk: Option<String>,
    #[serde(default)]
    progression_mode: ProgressionMode,
    lock_duration_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Merge {
    partition_ids: Vec<PartitionId>,
    #[serde(default)]
    progression_mode: ProgressionMode,
    lock_duration_ms: Option<u64>,
}

/// Ranges are named by numbers, which clients know as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum PartitionId {
    Number(u32),
    Text(String),
}

impl PartitionId {
    fn number(&self) -> Option<u32> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

pub(super) fn list(context: &Context, request: &Request<'_>) -> Outcome {
    let container = container(context, request)?;
    Answer::ok(&json!({"partitions": context.account.engine.partition_reports(&container)?}))
}

pub(super) fn split(context: &Context, request: &Request<'_>) -> Outcome {
    let body: Split = request.body()?;
    let mode = match (body.mode, body.epk) {
        (Mode::Midpoint, None) => SplitMode::Midpoint,
        (Mode::Storage, None) => SplitMode::Storage,
        (Mode::Epk, Some(epk)) => SplitMode::At(epk),
        (Mode::Epk, None) => {
            return Err(
                request.bad_body("mode epk needs the key to split at: {\"mode\": \"epk\", \"epk\": \"1F…\"}")
            );
        }
        (Mode::Midpoint | Mode::Storage, Some(_)) => {
            return Err(request.bad_body("epk is for mode epk; leave it out, or set mode to epk"));
        }
    };
    let progression = progression(request, &body.progression_mode, body.lock_duration_ms)?;
    let container = container(context, request)?;
    let begun = context.account.engine.split(&container, request.number(2)?, &mode, progression)?;
    Answer::json(StatusCode::ACCEPTED, &begun)
}

pub(super) fn merge(context: &Context, request: &Request<'_>) -> Outcome {
    let body: Merge = request.body()?;
    let ids: Option<Vec<u32>> = body.partition_ids.iter().map(PartitionId::number).collect();
    let Some(Ok(ids)) = ids.map(<[u32; 2]>::try_from) else {
        return Err(request.bad_body("partitionIds must be the ids of two neighbours"));
    };
    let progression = progression(request, &body.progression_mode, body.lock_duration_ms)?;
    let begun = context.account.engine.merge(&*container(context, request)?, ids, progression)?;
    Answer::json(StatusCode::ACCEPTED, &begun)
}

pub(super) fn operations(context: &Context, _: &Request<'_>) -> Outcome {
    Answer::ok(&json!({"operations": context.account.engine.operations()?}))
}

pub(super) fn operation(context: &Context, request: &Request<'_>) -> Outcome {
    Answer::ok(&context.account.engine.operation(request.number(0)?)?)
}

pub(super) fn advance(context: &Context, request: &Request<'_>) -> Outcome {
    Answer::ok(&context.account.engine.advance(request.number(0)?)?)
}

fn progression(
    request: &Request<'_>,
    mode: &ProgressionMode,
    lock_ms: Option<u64>,
) -> Result<Progression, Answer> {
    match (mode, lock_ms) {
        (ProgressionMode::Manual, None) => Ok(Progression::Manual),
        (ProgressionMode::Manual, Some(_)) => {
            Err(request
                .bad_body("lockDurationMs is for progressionMode automatic; with manual you decide when"))
        }
        (ProgressionMode::Automatic, lock) if lock.unwrap_or(0) <= LOCK_MS_MAX => {
            Ok(Progression::Automatic { lock_duration: Duration::from_millis(lock.unwrap_or(0)) })
        }
        (ProgressionMode::Automatic, _) => {
            Err(request.bad_body(&format!("lockDurationMs must be at most {LOCK_MS_MAX}")))
        }
    }
}

fn container(context: &Context, request: &Request<'_>) -> Result<Arc<Container>, Answer> {
    let (database, name) = (request.parameter(0), request.parameter(1));
    context.account.engine.container(database, name).map_err(|_| {
        let message = format!("there is no container {name:?} in a database {database:?}");
        Answer::problem(StatusCode::NOT_FOUND, &message)
    })
}
