//! Searching for work items that other processes wrote.

use std::sync::Arc;

use duroxide::TagFilter;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::core::Core;
use crate::documents::WorkDocument;
use crate::error::Fault;
use crate::finder::{Crew, Glance, Glimpse, Left, Mark, Outcome, Reach, Stretch, Wish, lanes, visible_at};
use crate::queries::{self, Query};
use crate::store::{Call, Page};

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
    let reach = crew.pace.begin(core.clock.instant());
    let call = core.quick_call(OPERATION);
    core.store.settle_clock(call).await;
    let search = Search { core, call, now: core.clock.now_ms(), reach, sessions, tags };
    let oldest = search.ask(Query::new(queries::FIND_WORK).with("@from", reach.from)).await;
    let (mut found, mut failed) = (oldest.found, oldest.failed);
    let mut is_covered = true;
    let mut marks = Vec::new();
    for (stretch, mark) in crew.detours(reach.from, &oldest.pages, tags, sessions) {
        let seen = search.ask(query_of(&stretch, &mark)).await;
        found |= seen.found;
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
    let left = Left { cursor, is_promising: is_on_the_way || (cursor > 0 && !is_shown), is_barren: false };
    crew.came_to(marks);
    let outcome = if found { Outcome::Found } else { Outcome::NothingToDo };
    crew.pace.end(core.clock.instant(), outcome, left);
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
    reach: Reach,
    sessions: bool,
    tags: &'a TagFilter,
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
    /// Asks every range and hands what is for this process to the finder.
    async fn ask(&self, query: Query) -> Seen {
        let core = self.core;
        let names = match self.tags {
            TagFilter::Tags(set) | TagFilter::DefaultAnd(set) => set.iter().cloned().collect(),
            TagFilter::DefaultOnly | TagFilter::Any | TagFilter::None => Vec::new(),
        };
        let query = query
            .with("@now", self.now)
            .with("@rows", self.reach.rows)
            .with("@anyTag", matches!(self.tags, TagFilter::Any))
            .with("@untagged", matches!(self.tags, TagFilter::DefaultOnly | TagFilter::DefaultAnd(_)))
            .with("@tags", names)
            .with("@sessions", self.sessions)
            .with("@foreign", core.sessions.foreign(self.now, FOREIGN_MAX));
        let mut seen = Seen::default();
        let watch = core.watch(self.reach.number);
        let pages = match query.text.as_ref() {
            queries::FIND_WORK => core.store.query_oldest(self.call, &query, &watch).await,
            // Lanes that cannot be searched are left out until they can.
            _ => core.store.query_ranges(self.call, &query, &watch).await,
        };
        for page in pages {
            match page {
                Ok(page) => {
                    let glance = self.read(&page, &mut seen.found);
                    seen.pages.push(glance);
                }
                Err(fault) => seen.failed = Some(fault),
            }
        }
        seen
    }

    fn read(&self, page: &Page, found: &mut bool) -> Glance {
        let glimpse = |row: &RawValue| {
            let read: Option<Row<'_>> = serde_json::from_str(row.get()).ok();
            let (lane, item) = read.map_or((None, None), |row| (row.lane, row.item));
            let item = item.and_then(|item| self.core.strays.read::<Item>(OPERATION, item));
            let glimpse = Glimpse { visible_at: visible_at(row), lane, is_for_us: item.is_some() };
            if let Some(Item { document, etag }) = item
                && self.core.is_ours(&document.instance_id, document.visible_at)
            {
                *found |= self.core.works.found(Arc::new(document), etag);
            }
            glimpse
        };
        Glance {
            is_full: page.is_full(self.reach.rows),
            rows: page.rows.iter().map(AsRef::as_ref).map(glimpse).collect(),
        }
    }
}

const FOREIGN_MAX: usize = 256;
