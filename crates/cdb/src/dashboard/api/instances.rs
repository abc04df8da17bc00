//! The list of instances, a page at a time.

use clap::ValueEnum as _;
use serde_json::{Value, json};

use super::super::Store;
use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::told;
use crate::clock::now_ms;
use crate::ending::shown_status;
use crate::listing::{Order, Status, Wanted, pending};
use crate::model::text_of;
use crate::output::parse_moment;

/// One page. The order is that of the last change, which every container has an index for; what a filter asks for in
/// addition is looked for in that order, or among the few that have a status.
pub(in super::super) async fn list(store: &Store, asked: &Asked) -> Outcome {
    let documents = store.documents();
    let wanted = wanted(asked)?;
    let limit = u32::try_from(asked.number("limit").unwrap_or(PAGE)).unwrap_or(u32::MAX).clamp(1, PAGE_MAX);
    if wanted.is_only_pending() {
        let rows = pending(&documents, &wanted).await?;
        return Ok(told(store, &documents, json!({"rows": rows, "next": null})));
    }
    // Few have one of these: all of them are read by their status, and put in order here.
    if wanted.is_rare() && asked.parameter("cursor").is_none() {
        let (rows, has_more) = documents.up_to(wanted.query(Order::Stored), RARE_MAX).await?;
        if !has_more {
            let mut rows: Vec<Value> = rows.iter().map(row).collect();
            latest_first(&mut rows);
            return Ok(told(store, &documents, json!({"rows": rows, "next": null, "all": true})));
        }
    }
    let (rows, next) = documents.page(wanted.query(Order::Latest), limit, asked.parameter("cursor")).await?;
    let mut rows: Vec<Value> = rows.iter().map(row).collect();
    latest_first(&mut rows);
    Ok(told(store, &documents, json!({"rows": rows, "next": next})))
}

/// The service knows seconds; within one the provider's milliseconds decide.
fn latest_first(rows: &mut [Value]) {
    rows.sort_by_key(|row| std::cmp::Reverse((row["ts"].as_u64(), row["updatedAt"].as_u64())));
}

/// What a row of the list shows, from a head.
pub(in super::super) fn row(head: &Value) -> Value {
    let output = text_of(head, "output");
    let status = shown_status(text_of(head, "status"), output);
    let error =
        matches!(status, "Failed" | "Cancelled").then(|| clipped(output.lines().next().unwrap_or_default()));
    json!({
        "instance": head["instanceId"],
        "orchestration": head["orchestrationName"],
        "version": head["orchestrationVersion"],
        "status": status,
        "execution": head["currentExecutionId"],
        "parent": head["parentInstanceId"],
        "customStatus": head["customStatus"].as_str().map(clipped),
        "createdAt": head["createdAt"],
        "updatedAt": head["updatedAt"],
        "completedAt": head["completedAt"],
        "locked": head["lockedUntil"].as_u64().is_some_and(|until| until > now_ms()),
        "error": error,
        "ts": head["_ts"],
    })
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(CELL_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// What the filters of the page ask for.
fn wanted(asked: &Asked) -> Result<Wanted, Failure> {
    let moment = |name: &str| {
        asked.parameter(name).map(|text| parse_moment(text, now_ms())).transpose().map_err(Failure::usage)
    };
    let text = |name: &str| asked.parameter(name).map(str::to_owned);
    let status = |name: &str| {
        Status::from_str(name, true).map_err(|_| Failure::usage(format!("there is no status {name:?}")))
    };
    let statuses = asked.parameter("status").map(|list| list.split(',').map(status).collect());
    let parent = text("parent");
    Ok(Wanted {
        statuses: statuses.transpose()?.unwrap_or_default(),
        name: text("name"),
        prefix: text("prefix"),
        since_ms: moment("since")?,
        before_ms: moment("before")?,
        is_roots: asked.parameter("children").is_none() && parent.is_none(),
        parent,
        ..Wanted::default()
    })
}

const PAGE: u64 = 50;
const PAGE_MAX: u32 = 200;
/// So many rows are put in order here; about twenty request units.
const RARE_MAX: u32 = 1000;
const CELL_MAX: usize = 300;
