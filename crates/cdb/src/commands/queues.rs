//! `cdb queues`: what waits to be done.

use std::collections::BTreeMap;

use clap::Args;
use cosmos_driver::Query;
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::{Documents, Rows};
use crate::model::{Queued, kind, text_of, type_of};
use crate::output::{Column, Output, Paint, Style, Table, plain, span};
use crate::watch::{Frame, WatchArgs, watch};

/// Show what waits: messages for workflows, activities for workers, timers, undelivered and dead messages.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cdb queues --data cdb-demo\n  cdb queues --watch\n  cdb queues --json | jq 'select(.overdue > 0)'"
)]
pub(crate) struct QueuesArgs {
    /// Print JSON, one pile per line.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Things of one sort that wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pile {
    /// Free to be taken now.
    pub(crate) ready: u64,
    /// Taken by somebody.
    pub(crate) locked: u64,
    /// Not visible yet: timers, and what was put back.
    pub(crate) later: u64,
    /// Age of the oldest one that is free, milliseconds.
    pub(crate) oldest_ms: u64,
    /// Free for so long that nobody seems to take them.
    pub(crate) overdue: u64,
}

/// Shows the queues.
pub(crate) async fn run(args: &QueuesArgs) -> anyhow::Result<()> {
    let output = Output::new(args.json);
    watch(&args.connection, &args.watch, output, async |connection: &Connection| {
        let piles = read(&connection.documents()?).await?;
        let Value::Array(rows) = to_json(&piles) else { return Ok(Frame::default()) };
        if piles.is_empty() {
            return Ok(Frame { rows, notes: vec!["nothing waits".to_owned()], ..Frame::default() });
        }
        Ok(Frame {
            lines: table("QUEUE", &piles).lines(output.columns, output.style),
            rows,
            notes: Vec::new(),
        })
    })
    .await
}

/// What waits, as an array.
pub(crate) fn to_json(piles: &BTreeMap<(String, String), Pile>) -> Value {
    piles
        .iter()
        .map(|((queue, what), pile)| {
            json!({"queue": queue, "what": what, "ready": pile.ready, "locked": pile.locked, "later": pile.later,
                "oldestMs": pile.oldest_ms, "overdue": pile.overdue})
        })
        .collect()
}

/// What waits, as a table.
pub(crate) fn table(head: &'static str, piles: &BTreeMap<(String, String), Pile>) -> Table {
    let mut table = Table::new(vec![
        Column::new(head),
        Column::flexible("WHAT", 16),
        Column::number("READY"),
        Column::number("LOCKED"),
        Column::number("LATER"),
        Column::number("OLDEST"),
    ]);
    for ((queue, what), pile) in piles {
        let oldest = if pile.ready > 0 { span(pile.oldest_ms) } else { String::new() };
        let paint: Paint = if pile.overdue > 0 { Style::warn } else { plain };
        table.painted_row(
            [
                queue.clone(),
                what.clone(),
                pile.ready.to_string(),
                pile.locked.to_string(),
                pile.later.to_string(),
                oldest,
            ],
            5,
            paint,
        );
    }
    table
}

/// What waits, by queue and sort.
pub(crate) async fn read(documents: &Documents) -> anyhow::Result<BTreeMap<(String, String), Pile>> {
    let found: Rows<Queued> = documents.query_strictly(Query::new(WAITING)).await?;
    let mut piles = pile_up(&found.rows, now_ms());
    // They are somebody's, and nobody will take them.
    for row in &found.unreadable {
        let what = format!("{} of {:?}", type_of(row), text_of(row, "instanceId"));
        piles.entry((UNREADABLE.to_owned(), what)).or_default().ready += 1;
    }
    Ok(piles)
}

/// Rows of queues by queue and sort.
pub(crate) fn pile_up(rows: &[Queued], now: u64) -> BTreeMap<(String, String), Pile> {
    let mut piles: BTreeMap<(String, String), Pile> = BTreeMap::new();
    for row in rows {
        let pile = piles.entry(name_of(row)).or_default();
        if row.is_locked(now) {
            pile.locked += 1;
        } else if row.visible_at > now {
            pile.later += 1;
        } else {
            pile.ready += 1;
            let age_ms = now.saturating_sub(row.waits_since());
            pile.oldest_ms = pile.oldest_ms.max(age_ms);
            pile.overdue += u64::from(age_ms > OVERDUE_MS);
        }
    }
    piles
}

/// The queue that a row waits in, and what it is.
pub(crate) fn name_of(row: &Queued) -> (String, String) {
    let (variant, fields) = row.item();
    let field = |name: &str| fields.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    match row.kind.as_str() {
        kind::WORK => {
            let tag = row.tag.as_ref().map(|tag| format!(" [{tag}]")).unwrap_or_default();
            ("activities".to_owned(), format!("{}{tag}", field("name")))
        }
        kind::MESSAGE if variant == "TimerFired" => ("timers".to_owned(), "timer".to_owned()),
        kind::MESSAGE => ("workflows".to_owned(), variant),
        kind::DEAD_LETTER => ("dead letters".to_owned(), String::new()),
        _ => ("undelivered".to_owned(), "outbox intent".to_owned()),
    }
}

/// The queue of what cannot be read.
const UNREADABLE: &str = "unreadable";
/// Free for longer than this means that nobody takes it.
pub(crate) const OVERDUE_MS: u64 = 10_000;
/// Undelivered messages wait since they were created, dead letters since they died.
pub(crate) const WAITING: &str = "SELECT c.type, c.instanceId, c.workItem, c.visibleAt, c.enqueuedAt ?? c.createdAt ?? c.diedAt AS enqueuedAt, \
    c.lockToken, c.lockedUntil, c.tag, c.attemptCount FROM c \
    WHERE c.type IN ('orch_queue', 'worker_queue', 'outbox_intent', 'dead_letter')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_counted_by_sort_and_state() {
        let work = |name: &str, visible_at: u64, locked_until: Option<u64>| Queued {
            kind: kind::WORK.to_owned(),
            work_item: json!({"ActivityExecute": {"name": name}}).to_string(),
            visible_at,
            lock_token: locked_until.map(|_| "t".to_owned()),
            locked_until,
            ..Queued::default()
        };
        let rows = [
            work("Bake", 100, None),
            work("Bake", 400, None),
            work("Bake", 100, Some(10_900)),
            work("Bake", 20_600, None),
        ];
        let piles = pile_up(&rows, 10_300);
        let pile = &piles[&("activities".to_owned(), "Bake".to_owned())];
        assert_eq!(*pile, Pile { ready: 2, locked: 1, later: 1, oldest_ms: 10_200, overdue: 1 });
    }
}
