//! Searching for work items that other processes wrote.

use std::sync::Arc;

use duroxide::TagFilter;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::core::Core;
use crate::documents::WorkDocument;
use crate::error::Fault;
use crate::finder::{Crew, Glance, Glimpse, Left, Mark, Outcome, Stretch, Wish, lanes};
use crate::fleet::Hand;
use crate::queries::{self, Query};
use crate::slots;
use crate::store::{Call, Page, visible_at};

use super::fetch::OPERATION;

/// Searches every range for free work items that a crew may take.
pub(super) async fn search(
    core: &Core,
    crew: &Crew,
    wish: Wish,
    sessions: bool,
    tags: &TagFilter,
) -> Result<(), Fault> {
    let Some(_searching) = crew.pace.enter(wish).await else { return Ok(()) };
    let reach = crew.pace.begin(core.clock.instant(), core.fleet.net_round());
    let call = core.store.quick_call(OPERATION);
    core.store.settle_clock(call).await;
    let now = core.clock.now_ms();
    let is_idle = core.ready_works(now).count() == 0;
    let search = Search { core, call, now, sessions, tags, is_idle, is_net: reach.is_net };
    let rows = reach.rows.min(ROWS_MAX);
    let oldest = search.ask(Query::new(queries::FIND_WORK).with("@from", reach.from), rows).await;
    let (mut found, mut failed) = (oldest.found, oldest.failed);
    let mut is_covered = true;
    let mut marks = Vec::new();
    let mut is_barren = false;
    for (stretch, mark) in crew.detours(reach.from, &oldest.pages, tags, sessions) {
        // Only the lanes of sessions are passed in larger steps: what is in them may all be somebody else's.
        let rows = if matches!(stretch, Stretch::Between(..)) { reach.rows } else { rows };
        let seen = search.ask(query_of(&stretch, &mark), rows).await;
        found |= seen.found;
        is_barren |= lanes::is_crowded(&seen.pages);
        marks.push(match &seen.failed {
            Some(fault) if fault.is_transient() => mark,
            _ => stretch.mark_behind(&mark, &seen.pages),
        });
        match seen.failed {
            // The index is not built yet: everybody's pages are turned instead.
            Some(fault) if !fault.is_transient() => {
                tracing::debug!(%fault, "a lane cannot be searched");
                is_covered = false;
            }
            fault => failed = failed.or(fault),
        }
    }
    let is_on_the_way = marks.iter().any(|mark| *mark != Mark::Beginning);
    // Behind a crowd whose items are in lanes there is nothing that the own lanes do not show, but for what older
    // versions write meanwhile: its pages are turned at leisure.
    let is_shown = is_covered && !marks.is_empty() && !lanes::has_unlisted(&oldest.pages);
    let cursor = lanes::next_time(reach.from, &oldest.pages);
    let left = Left { cursor, is_promising: is_on_the_way || (cursor > 0 && !is_shown), is_barren };
    crew.came_to(marks);
    let outcome = if found { Outcome::Found } else { Outcome::NothingToDo };
    crew.pace.end(core.clock.instant(), outcome, left, core.fleet.net_in());
    crew.pace.put_off(core.clock.instant() + core.store.pause());
    failed.map_or(Ok(()), Err)
}

fn query_of(stretch: &Stretch, mark: &Mark) -> Query {
    match (stretch, mark) {
        (Stretch::Unlisted, _) => Query::new(queries::FIND_WORK_IN_NO_LANE),
        (Stretch::Lane(lane), mark) => {
            let from = if let Mark::From(from) = mark { *from } else { 0 };
            Query::new(queries::FIND_WORK_IN_LANE).with("@lane", lane.as_str()).with("@from", from)
        }
        (Stretch::Between(low, high), mark) => {
            let low = if let Mark::Behind(lane) = mark { lane } else { low };
            Query::new(queries::FIND_WORK_IN_LANES).with("@low", low.as_str()).with("@high", high.as_str())
        }
    }
}

/// What all questions of one search have in common.
struct Search<'a> {
    core: &'a Core,
    call: Call,
    now: u64,
    sessions: bool,
    tags: &'a TagFilter,
    /// Nothing waits to be taken by this process.
    is_idle: bool,
    /// This search looks at everybody's part of the container.
    is_net: bool,
}

/// What a question brought.
#[derive(Default)]
struct Seen {
    found: bool,
    pages: Vec<Glance>,
    failed: Option<Fault>,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(default)]
    lane: Option<String>,
    /// Null if it is for others.
    #[serde(borrow)]
    item: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(flatten)]
    document: WorkDocument,
    #[serde(rename = "_etag")]
    etag: String,
}

impl Search<'_> {
    /// Asks every range for so many rows and hands what is for this process to the finder.
    async fn ask(&self, query: Query, rows: u32) -> Seen {
        let core = self.core;
        let names = match self.tags {
            TagFilter::Tags(set) | TagFilter::DefaultAnd(set) => set.iter().cloned().collect(),
            TagFilter::DefaultOnly | TagFilter::Any | TagFilter::None => Vec::new(),
        };
        let query = query
            .with("@now", self.now)
            .with("@rows", rows)
            .with("@anyTag", matches!(self.tags, TagFilter::Any))
            .with("@untagged", matches!(self.tags, TagFilter::DefaultOnly | TagFilter::DefaultAnd(_)))
            .with("@tags", names)
            .with("@sessions", self.sessions)
            .with("@foreign", core.sessions.foreign(self.now, FOREIGN_MAX));
        let mut seen = Seen::default();
        let begun = core.clock.instant();
        let watch = core.fleet.watch_for_work(self.is_net);
        let is_of_all_ages = query.text.as_ref() == queries::FIND_WORK;
        let pages = if is_of_all_ages {
            core.store.query_oldest(self.call, &query, &watch).await
        } else {
            // Lanes that cannot be searched are left out until they can.
            core.store.query_ranges(self.call, &query, &watch).await
        };
        let mut read = Vec::new();
        for page in pages {
            match page {
                Ok(page) => read.push((page.is_full(rows), self.read(&page))),
                Err(fault) => seen.failed = Some(fault),
            }
        }
        let items = read.iter().flat_map(|(_, rows)| rows).filter_map(|(_, item)| item.as_ref());
        let sessions = items.filter_map(|item| item.document.session_id.clone()).collect();
        core.sessions.look_up(&core.store, self.call, &sessions).await;
        let mut offers = Vec::new();
        for (is_full, rows) in read {
            let (mut own, count) = (Vec::new(), rows.len());
            let rows = rows.into_iter().map(|(glimpse, item)| self.sort_out(glimpse, item, &mut own));
            seen.pages.push(Glance { is_full, rows: rows.collect() });
            offers.push(Offer { is_full, rows: count, own });
        }
        let horizon = if is_of_all_ages { horizon(&offers) } else { u64::MAX };
        for Item { document, etag } in offers.into_iter().flat_map(|offer| offer.own) {
            if document.visible_at <= horizon {
                seen.found |= core.works.found(Arc::new(document), etag, begun);
            }
        }
        seen
    }

    fn may_take(&self, document: &WorkDocument) -> bool {
        let is_ours = |slot| self.core.may_take(Hand::Work, slot, document.visible_at, self.is_idle);
        document.dispatched_to().is_none_or(is_ours)
    }

    /// The rows of a page, and the items that may be for this process.
    fn read(&self, page: &Page) -> Vec<(Glimpse, Option<Item>)> {
        let read = |row: &RawValue| {
            let read: Option<Row<'_>> = serde_json::from_str(row.get()).ok();
            let (lane, item) = read.map_or((None, None), |row| (row.lane, row.item));
            let item = item.and_then(|item| self.core.strays.read::<Item>(OPERATION, item));
            (Glimpse { visible_at: visible_at(row), lane, is_for_us: item.is_some() }, item)
        };
        page.rows.iter().map(AsRef::as_ref).map(read).collect()
    }

    /// Puts an item among the process's own, if it may take it. One of a session that is known to be somebody else's is not
    /// kept: when the session ends a search brings it again, and until then each fetch would step over it.
    fn sort_out(&self, glimpse: Glimpse, item: Option<Item>, own: &mut Vec<Item>) -> Glimpse {
        let Some(item) = item else { return glimpse };
        let is_foreign = |session: &String| self.core.sessions.is_foreign(session, self.now);
        if item.document.session_id.as_ref().is_some_and(is_foreign) {
            return Glimpse { is_for_us: false, ..glimpse };
        }
        if self.may_take(&item.document) {
            own.push(item);
        } else if self.is_net && self.core.fleet.is_late(item.document.visible_at) {
            // Whoever it is left to may not have heard of it: a ring may have been lost.
            self.core.fleet.ring_work(slots::of(&item.document.instance_id));
        }
        glimpse
    }
}

/// What the page of a range offers to this process.
struct Offer {
    is_full: bool,
    rows: usize,
    own: Vec<Item>,
}

/// Up to which time of visibility the pages of all ranges show everything. Behind a full page there may be items that are
/// older than what the other ranges show beyond its end: those are left to the next search, which begins there. A page that
/// is mostly for others says little about what is behind it, and holds up nothing.
fn horizon(offers: &[Offer]) -> u64 {
    let telling = offers.iter().filter(|offer| offer.is_full && offer.own.len() * 2 > offer.rows);
    let lasts = telling.filter_map(|offer| offer.own.last()).map(|item| item.document.visible_at);
    lasts.min().unwrap_or(u64::MAX)
}

const FOREIGN_MAX: usize = 256;
/// Rows that bring whole items: more of them would take long to read.
const ROWS_MAX: u32 = 100;
