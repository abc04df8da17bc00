//! The first page: what runs, what waits, what needs somebody.

use std::collections::BTreeMap;

use cosmos_driver::Query;
use serde_json::{Value, json};

use super::super::Store;
use super::super::answer::Outcome;
use super::instances::row;
use super::lists::waiting;
use super::told;
use crate::clock::now_ms;
use crate::commands::queues;
use crate::context::Place;
use crate::documents::Documents;
use crate::listing::COLUMNS;
use crate::model::{InWords as _, Queued, kind, text_of};
use crate::output::span;

/// What does not change while the pages are served.
pub(in super::super) async fn meta(store: &Store) -> Outcome {
    let target = &store.connection.target;
    let place = match &target.place {
        Place::Folder(folder) => format!("folder {}", folder.display()),
        Place::Memory => "memory".to_owned(),
        Place::Account { endpoint, .. } => endpoint.clone(),
    };
    let missing = store.connection.require_container().await.err().map(|error| format!("{error:#}"));
    Ok(json!({
        "place": place,
        "database": target.database,
        "container": target.container,
        "options": target.options(),
        "readOnly": store.is_read_only,
        "emulator": store.management.is_some(),
        "budget": store.budget,
        "version": env!("CARGO_PKG_VERSION"),
        "missing": missing,
        "spent": store.live.spent(),
        "now": now_ms(),
    }))
}

/// Three queries that indexes answer: running ones are counted, failures of the last hour and all that waits are read.
pub(in super::super) async fn overview(store: &Store) -> Outcome {
    let documents = store.documents();
    let now = now_ms();
    let running = counted(&documents, "Running").await?;
    let failures = Query::new(format!(
        "SELECT {COLUMNS} FROM c WHERE c.status = 'Failed' AND c.type = 'instance' AND c._ts >= @since"
    ));
    let failures = failures.with("@since", now.saturating_sub(HOUR_MS) / 1000);
    let (failures, more_failures) = documents.up_to(failures, FAILURES_MAX).await?;
    let mut failures: Vec<Value> = failures.iter().map(row).collect();
    failures.sort_by_key(|row| std::cmp::Reverse(row["updatedAt"].as_u64()));
    let (waiting, more_waiting) = waiting(&documents).await?;
    let piles = queues::pile_up(&waiting, now);
    let (looks, tabs) = store.live.looks();
    let answer = json!({
        "running": running,
        "failed": failures.iter().filter(|row| row["status"] == "Failed").count(),
        "cancelled": failures.iter().filter(|row| row["status"] == "Cancelled").count(),
        "moreFailures": more_failures,
        "groups": groups(&failures),
        "queues": queues::to_json(&piles),
        "moreWaiting": more_waiting,
        "ready": piles.values().map(|pile| pile.ready).sum::<u64>(),
        "oldestMs": piles.values().map(|pile| pile.oldest_ms).max().unwrap_or(0),
        "deadLetters": waiting.iter().filter(|row| row.kind == kind::DEAD_LETTER).count(),
        "stuck": stuck(&waiting, now),
        "looks": looks,
        "tabs": tabs,
    });
    Ok(told(store, &documents, answer))
}

/// All instances by status. It reads every entry of an index, so somebody has to ask for it.
pub(in super::super) async fn count(store: &Store) -> Outcome {
    let documents = store.documents();
    let mut counts = json!({});
    for status in ["Running", "Completed", "Failed"] {
        counts[status] = json!(counted(&documents, status).await?);
    }
    Ok(told(store, &documents, json!({"counts": counts})))
}

/// When the latest ones moved, for a picture of the last hours; somebody has to ask for it as well.
pub(in super::super) async fn activity(store: &Store) -> Outcome {
    let documents = store.documents();
    let query = Query::new(
        "SELECT c._ts, c.status, SUBSTRING(c.output, 0, 10) AS output FROM c WHERE c.type = 'instance' \
         AND c._ts >= @since ORDER BY c._ts DESC",
    );
    let since = now_ms().saturating_sub(24 * HOUR_MS) / 1000;
    let (rows, more) = documents.page(query.with("@since", since), ACTIVITY_MAX, None).await?;
    let moments: Vec<Value> = rows.iter().map(|found| json!([found["_ts"], row(found)["status"]])).collect();
    Ok(told(store, &documents, json!({"moments": moments, "more": more.is_some()})))
}

async fn counted(documents: &Documents, status: &str) -> anyhow::Result<u64> {
    let query = Query::new("SELECT VALUE COUNT(1) FROM c WHERE c.status = @status AND c.type = 'instance'");
    let (rows, _) = documents.up_to(query.with("@status", status), u32::MAX).await?;
    Ok(rows.iter().filter_map(Value::as_u64).sum())
}

/// Failures by orchestration and the first line of the error, the most frequent first.
fn groups(failures: &[Value]) -> Vec<Value> {
    let mut groups: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for failure in failures.iter().filter(|row| row["status"] == "Failed") {
        groups
            .entry((text_of(failure, "orchestration"), text_of(failure, "error")))
            .or_default()
            .push(failure);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.len()));
    groups.truncate(GROUPS_MAX);
    groups
        .into_iter()
        .map(|((orchestration, error), rows)| {
            let ids: Vec<&Value> = rows.iter().map(|row| &row["instance"]).take(GROUP_IDS_MAX).collect();
            json!({"orchestration": orchestration, "error": error, "count": rows.len(), "ids": ids,
                "last": rows.iter().map(|row| row["updatedAt"].as_u64()).max()})
        })
        .collect()
}

/// What is free and nobody takes, the longest first, with the sentence that says so.
fn stuck(waiting: &[Queued], now: u64) -> Vec<Value> {
    let since = Queued::waits_since;
    let mut late: Vec<&Queued> = waiting
        .iter()
        .filter(|row| matches!(row.kind.as_str(), kind::WORK | kind::MESSAGE | kind::INTENT))
        .filter(|row| !row.is_locked(now) && row.visible_at <= now)
        .filter(|row| now.saturating_sub(since(row)) > queues::OVERDUE_MS)
        .collect();
    late.sort_by_key(|row| since(row));
    late.truncate(STUCK_MAX);
    late.iter()
        .map(|row| {
            let what = if row.kind == kind::INTENT { "a message to another instance".to_owned() } else { row.describe() };
            let tried = if row.attempt_count > 0 { format!(" after {} attempts", row.attempt_count) } else { String::new() };
            json!({"instance": row.instance_id, "since": since(row),
                "text": format!("{what} waits for {}{tried} and nobody takes it", span(now.saturating_sub(since(row))))})
        })
        .collect()
}

const HOUR_MS: u64 = 3_600_000;
const FAILURES_MAX: u32 = 100;
const ACTIVITY_MAX: u32 = 2000;
const GROUPS_MAX: usize = 20;
const GROUP_IDS_MAX: usize = 200;
const STUCK_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_grouped_by_what_they_say() {
        let failure = |id: &str, error: &str| json!({"instance": id, "orchestration": "order", "status": "Failed", "error": error});
        let mut failures = vec![failure("a", "no"), failure("b", "busy"), failure("c", "busy")];
        failures
            .push(json!({"instance": "d", "orchestration": "order", "status": "Cancelled", "error": "busy"}));
        let groups = groups(&failures);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            (&groups[0]["error"], &groups[0]["count"], &groups[0]["ids"]),
            (&json!("busy"), &json!(2), &json!(["b", "c"]))
        );
    }

    #[test]
    fn only_what_is_free_for_long_is_stuck() {
        let work = |id: &str, visible_at: u64, locked_until: Option<u64>| Queued {
            instance_id: id.to_owned(),
            kind: kind::WORK.to_owned(),
            visible_at,
            lock_token: locked_until.map(|_| "t".to_owned()),
            locked_until,
            ..Queued::default()
        };
        let rows = [
            work("late", 1, None),
            work("held", 1, Some(99_000)),
            work("young", 49_000, None),
            work("later", 60_000, None),
        ];
        let stuck = stuck(&rows, 50_000);
        assert_eq!(stuck.iter().map(|row| text_of(row, "instance")).collect::<Vec<_>>(), ["late"]);
    }
}
