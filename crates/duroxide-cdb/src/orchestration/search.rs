//! Searching for turns that other processes made possible, and telling those that this process cannot run.

use std::collections::HashMap;

use serde::Deserialize;

use crate::clock::sequence_of;
use crate::core::{Core, decode};
use crate::documents::{Pinned, Version, ids};
use crate::error::Fault;
use crate::finder::{MessageHint, Outcome, Reach, Seen, Wish, behind, visible_at};
use crate::queries::{self, Query};
use crate::store::Call;

use super::fetch::OPERATION;

/// Searches every range for messages that are due: a page of the round over all of them and, while others are in the
/// way, the latest.
pub(super) async fn search(core: &Core, wish: Wish) -> Result<(), Fault> {
    let Some(_searching) = core.turn_pace.enter(wish).await else { return Ok(()) };
    let reach = core.turn_pace.begin(core.clock.instant());
    let call = core.quick_call(OPERATION);
    core.store.settle_clock(call).await;
    let now = core.clock.now_ms();
    let latest = core.turns.latest();
    let (page, newest) = tokio::join!(ask(core, call, reach, reach.from, now), async {
        match latest {
            Some(from) => Some(ask(core, call, reach, from, now).await),
            None => None,
        }
    });
    let (latest, late_fault) = newest.map_or((None, None), |(seen, fault)| (Some(seen), fault));
    let (page, fault) = page;
    let news = page.news + latest.map_or(0, |seen| seen.news);
    let left = core.turns.came(now, reach.from, page, latest);
    let waiting = core.turns.next_at().is_some_and(|at| at <= core.clock.now_ms());
    let outcome = match (news > 0, waiting) {
        (true, _) => Outcome::Found,
        (false, true) => Outcome::NothingNew,
        (false, false) => Outcome::NothingToDo,
    };
    core.turn_pace.end(core.clock.instant(), outcome, left);
    core.turn_pace.put_off(core.clock.instant() + core.store.pause());
    fault.or(late_fault).map_or(Ok(()), Err)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    id: String,
    instance_id: String,
    #[serde(default)]
    seq: u64,
    enqueued_at: u64,
    visible_at: u64,
}

/// Asks every range for the messages that became due from a time on, and hands them to the finder.
async fn ask(core: &Core, call: Call, reach: Reach, from: u64, now: u64) -> (Seen, Option<Fault>) {
    let query =
        Query::new(queries::FIND_TURNS).with("@now", now).with("@from", from).with("@rows", reach.rows);
    let mut seen = Seen::default();
    let mut failed = None;
    let mut lasts = Vec::new();
    for page in core.store.query_oldest(call, &query, &core.watch(reach.number)).await {
        let page = match page {
            Ok(page) => page,
            Err(fault) => {
                failed = Some(fault);
                continue;
            }
        };
        if page.is_full(reach.rows) {
            lasts.extend(page.rows.last().map(|row| visible_at(row)));
        }
        seen.rows += page.rows.len();
        let rows = page.rows.iter().filter_map(|row| core.strays.read::<Row>(OPERATION, row));
        let rows = rows.inspect(|row| core.elders.saw_message(&row.instance_id, row.seq, row.enqueued_at));
        let ours = rows.filter(|row| core.is_ours(&row.instance_id, row.visible_at));
        seen.news += core.turns.sight(ours.map(hint).collect(), now);
    }
    seen.next = behind(from, lasts.into_iter());
    seen.is_partial = failed.is_some();
    (seen, failed)
}

fn hint(row: Row) -> MessageHint {
    let seq = if row.seq == 0 { sequence_of(row.enqueued_at) } else { row.seq };
    MessageHint { instance: row.instance_id, id: row.id, seq, visible_at: row.visible_at }
}

/// Reads the heads of many candidates with one request per range, when some before them were pinned to versions that
/// the dispatchers of this process do not support: trying each would take a request each.
pub(super) async fn screen(core: &Core) {
    let Some(screening) = core.turns.screen(core.clock.now_ms()) else { return };
    let call = core.quick_call(OPERATION);
    let heads = screening.instances.iter().map(|instance| (instance.as_str(), ids::head(instance)));
    let rows = match core.store.query_ids(call, queries::PINNED, heads).await {
        Ok(rows) => rows,
        Err(fault) => {
            tracing::debug!(%fault, "the heads of many instances cannot be read together now");
            return screening.failed();
        }
    };
    // One that cannot be read is tried, and tells why.
    let pinned = rows.iter().filter_map(|row| decode::<Pinned>(row.get().as_bytes()).ok());
    let versions: HashMap<String, Option<Version>> =
        pinned.map(|pinned| (pinned.instance_id.clone(), pinned.version())).collect();
    screening.done(|instance| versions.get(instance).copied().flatten());
}
