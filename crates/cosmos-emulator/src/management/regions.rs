//! Regions by command: offline, online, cut off, made the write region, added, removed.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::config::ReplicationDelay;
use crate::regions::{Failover, Offline, RegionError, Regions};

/// Longest delay of replication.
const DELAY_MS_MAX: u64 = 60 * 60 * 1000;

/// Nothing but a place for fields that do not exist to be refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeOffline {
    manner: Option<Offline>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MoveWrites {
    write_region: String,
    kind: Option<Failover>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct To {
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flag {
    enabled: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Delay {
    from: Option<String>,
    to: Option<String>,
    delay_ms: u64,
}

pub(super) fn list(context: &Context, _: &Request<'_>) -> Outcome {
    let regions = regions(context);
    let lines: Vec<Value> = regions
        .list()
        .into_iter()
        .map(|region| {
            let lag = regions.replication_lag(&region.name).ok();
            let mut line = json!(region);
            if let Some(lag) = lag {
                line["replicationLag"] =
                    json!({"commits": lag.commits, "oldestMs": u64::try_from(lag.oldest.as_millis()).ok()});
            }
            line
        })
        .collect();
    Answer::ok(&json!({"writeRegion": regions.write_region(), "regions": lines}))
}

pub(super) fn offline(context: &Context, request: &Request<'_>) -> Outcome {
    let TakeOffline { manner } = request.body()?;
    let name = known(context, request)?;
    let manner = manner.unwrap_or(Offline::Refuse);
    regions(context).take_offline(&name, manner).map_err(|error| conflict(&error))?;
    list(context, request)
}

pub(super) fn online(context: &Context, request: &Request<'_>) -> Outcome {
    let Nothing {} = request.body()?;
    let name = known(context, request)?;
    regions(context).bring_online(&name).map_err(|error| conflict(&error))?;
    list(context, request)
}

pub(super) fn pause(context: &Context, request: &Request<'_>) -> Outcome {
    let Nothing {} = request.body()?;
    let name = known(context, request)?;
    regions(context).pause_replication(&name).map_err(|error| conflict(&error))?;
    list(context, request)
}

pub(super) fn resume(context: &Context, request: &Request<'_>) -> Outcome {
    let Nothing {} = request.body()?;
    let name = known(context, request)?;
    regions(context).resume_replication(&name).map_err(|error| conflict(&error))?;
    list(context, request)
}

pub(super) fn fail_over(context: &Context, request: &Request<'_>) -> Outcome {
    let MoveWrites { write_region, kind } = request.body()?;
    check_known(context, &write_region)?;
    regions(context)
        .fail_over(&write_region, kind.unwrap_or(Failover::Planned))
        .map_err(|error| conflict(&error))?;
    list(context, request)
}

pub(super) fn add(context: &Context, request: &Request<'_>) -> Outcome {
    let Nothing {} = request.body()?;
    let endpoint = regions(context).add_region(request.parameter(0)).map_err(|error| conflict(&error))?;
    Answer::json(StatusCode::CREATED, &json!({"name": request.parameter(0), "endpoint": endpoint}))
}

pub(super) fn remove(context: &Context, request: &Request<'_>) -> Outcome {
    let name = known(context, request)?;
    regions(context).remove_region(&name).map_err(|error| conflict(&error))?;
    Answer::done()
}

pub(super) fn delay(context: &Context, request: &Request<'_>) -> Outcome {
    let Delay { from, to, delay_ms } = request.body()?;
    if delay_ms > DELAY_MS_MAX {
        return Err(request.bad_body(&format!("delayMs must be at most {DELAY_MS_MAX}")));
    }
    for name in from.iter().chain(&to) {
        check_known(context, name)?;
    }
    let delay = Duration::from_millis(delay_ms);
    regions(context).set_replication_delay(ReplicationDelay { from, to, delay });
    Answer::done()
}

pub(super) fn has_per_partition_failover(context: &Context, _: &Request<'_>) -> Outcome {
    Answer::ok(&json!({"enabled": regions(context).has_per_partition_failover()}))
}

pub(super) fn set_per_partition_failover(context: &Context, request: &Request<'_>) -> Outcome {
    let Flag { enabled } = request.body()?;
    regions(context).set_per_partition_failover(enabled);
    has_per_partition_failover(context, request)
}

pub(super) fn fail_over_partition(context: &Context, request: &Request<'_>) -> Outcome {
    let To { to } = request.body()?;
    check_known(context, &to)?;
    let (database, container, range) = partition(context, request)?;
    regions(context)
        .fail_over_partition(&database, &container, range, &to)
        .map_err(|error| conflict(&error))?;
    Answer::done()
}

pub(super) fn return_partition(context: &Context, request: &Request<'_>) -> Outcome {
    let Nothing {} = request.body()?;
    let (database, container, range) = partition(context, request)?;
    regions(context).return_partition(&database, &container, range);
    Answer::done()
}

/// The partition that the path names.
fn partition(context: &Context, request: &Request<'_>) -> Result<(String, String, u32), Answer> {
    let (database, container) = (request.parameter(0), request.parameter(1));
    let missing = |what: &str| Answer::problem(StatusCode::NOT_FOUND, what);
    let found = context.account.engine.container(database, container);
    let found = found.map_err(|failure| missing(&failure.message))?;
    let range = request.parameter(2);
    if !found.has_range(range) {
        return Err(missing(&format!("there is no partition {range:?}")));
    }
    Ok((database.to_owned(), container.to_owned(), range.parse().unwrap_or_default()))
}

fn regions(context: &Context) -> &Regions {
    &context.account.regions
}

/// The region that the path names.
fn known(context: &Context, request: &Request<'_>) -> Result<String, Answer> {
    check_known(context, request.parameter(0))?;
    Ok(request.parameter(0).to_owned())
}

/// Says which regions there are when one is asked for that is not.
pub(super) fn check_known(context: &Context, name: &str) -> Result<(), Answer> {
    let names: Vec<String> = regions(context).list().into_iter().map(|region| region.name).collect();
    if names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let message = format!("there is no region {name:?}; the account has {}", names.join(", "));
    Err(Answer::problem(StatusCode::NOT_FOUND, &message))
}

/// What the account refuses as it is now.
fn conflict(error: &RegionError) -> Answer {
    Answer::problem(StatusCode::CONFLICT, &error.to_string())
}
