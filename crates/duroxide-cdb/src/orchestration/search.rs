//! Searching for turns that other processes made possible, and telling those that this process cannot run.

use std::collections::HashMap;

use serde::Deserialize;

use crate::clock::sequence_of;
use crate::core::Core;
use crate::documents::{HeadOutline, MessageHint, ids};
use crate::error::Fault;
use crate::finder::{Outcome, Outline, Reach, Seen, Wish, behind};
use crate::fleet::Hand;
use crate::queries::{self, Query};
use crate::slots;
use crate::store::{Call, decode, visible_at};

use super::fetch::OPERATION;

/// Searches every range for messages that are due: a page of the round over all of them and, while others are in the
/// way, the latest.
pub(super) async fn search(core: &Core, wish: Wish) -> Result<(), Fault> {
    let Some(_searching) = core.turn_pace.enter(wish).await else { return Ok(()) };
    let reach = core.turn_pace.begin(core.clock.instant(), core.fleet.net_round());
    let call = core.store.quick_call(OPERATION);
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
    core.turn_pace.end(core.clock.instant(), outcome, left, core.fleet.net_in());
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
    let is_idle = core.turns.ready(now).count() == 0;
    for page in core.store.query_oldest(call, &query, &core.fleet.watch(reach.is_net)).await {
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
        let (ours, others): (Vec<Row>, Vec<Row>) = rows.partition(|row| {
            core.may_take(Hand::Turns, slots::of(&row.instance_id), row.visible_at, is_idle)
        });
        // Whoever they are left to may not have heard of them: a ring may have been lost.
        let late = others.into_iter().filter(|row| reach.is_net && core.fleet.is_late(row.visible_at));
        late.take(RUNG_MAX).for_each(|row| core.fleet.ring_message(&hint(row)));
        seen.news += core.turns.sight(ours.into_iter().map(hint).collect(), now);
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
/// the dispatchers of this process do not support, or locked by others: trying each would take a request each.
pub(super) async fn screen(core: &Core) {
    let Some(screening) = core.turns.screen(core.clock.now_ms()) else { return };
    let call = core.store.quick_call(OPERATION);
    let heads = screening.instances.iter().map(|instance| (instance.as_str(), ids::head(instance)));
    let rows = match core.store.query_ids(call, queries::HEAD_OUTLINES, heads).await {
        Ok(rows) => rows,
        Err(fault) => {
            tracing::debug!(%fault, "the heads of many instances cannot be read together now");
            return screening.failed();
        }
    };
    // One that cannot be read is tried, and tells why.
    let heads = rows.iter().filter_map(|row| decode::<HeadOutline>(row.get().as_bytes()).ok());
    let outlines: HashMap<String, Outline> = heads.map(|head| outline(core, head)).collect();
    screening.done(|instance| outlines.get(instance).copied().unwrap_or_default());
}

fn outline(core: &Core, head: HeadOutline) -> (String, Outline) {
    // A lock that an earlier try of this process left without knowing it keeps nobody out.
    let is_ours = core.claims.is_ours(&head.instance_id, &head.id, head.lock_token.as_deref());
    let locked_until = head.lock_token.as_ref().filter(|_| !is_ours).and(head.locked_until).unwrap_or(0);
    let outline = Outline { version: head.version(), locked_until };
    (head.instance_id, outline)
}

/// So many are rung for again: who hears a ring that is not listed searches anyway.
const RUNG_MAX: usize = 8;
