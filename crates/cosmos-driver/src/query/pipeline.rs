//! A query over many ranges: bounded parallel requests, and the merge of their rows.
//!
//! Each part is a piece of the key space within one physical range. Requests of different parts run at the same
//! time; rows leave in the order the plan asks for. When a range splits under a part, the part becomes several and
//! goes on where it was. All state lives here, so a dropped `next` loses nothing.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use cosmos_wire::epk::EpkRange;
use cosmos_wire::header;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::HeaderValue;
use http::header::HeaderName;
use serde_json::value::RawValue;

use super::continuation::{Continuation, PartPosition};
use super::group::Groups;
use super::plan::{Direction, Distinct, Merge, Plan};
use super::progress::{self, Progress};
use super::rows::SortedRow;
use super::seen::Seen;
use super::sort::{self, Place};
use super::{Feed, Page, Query, QueryOptions, range_target};
use crate::container::Container;
use crate::database::{json, resume};
use crate::diagnostics::Diagnostics;
use crate::error::{Error, ErrorKind};
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::operation::request::{Kind, Operation};
use crate::response::Response;

/// What all parts share.
pub(super) struct Source {
    pub(super) container: Container,
    pub(super) info: Arc<ContainerInfo>,
    pub(super) query: Query,
    pub(super) options: QueryOptions,
    pub(super) plan: Arc<Plan>,
    /// The part of the key space the query covers.
    pub(super) bounds: EpkRange,
}

pub(super) struct Pipeline {
    source: Source,
    body: Bytes,
    parts: Vec<Part>,
    next_id: u64,
    /// Never locked, only reached through `&mut`: the mutex is what makes a pager shareable between threads.
    in_flight: Mutex<FuturesUnordered<Fetch>>,
    place: Option<Place>,
    /// Rows that were given while one range still held them all; they come again first, and in its order.
    replay: u64,
    /// Counts calls of `next`.
    turn: u64,
    groups: Option<Groups>,
    seen: Seen,
    skip: u64,
    take: Option<u64>,
    charge: f64,
    log: Diagnostics,
    /// The latest date of the answers that this turn asked for.
    date: Option<SystemTime>,
}

type Fetch = Pin<Box<dyn Future<Output = (u64, Result<Response, Error>)> + Send>>;

struct Part {
    id: u64,
    bounds: EpkRange,
    /// Where this part's rows were left, when it began.
    place: Option<Place>,
    /// Rows at that very place which were given before and are still to come again.
    repeats: u64,
    token: Option<String>,
    region: Option<Arc<str>>,
    has_more: bool,
    is_fetching: bool,
    /// The turn in which the last fetch began.
    turn: u64,
    pages: VecDeque<Fetched>,
    progress: Progress,
}

/// One page of one range, and where it and the next one start.
struct Fetched {
    rows: VecDeque<Row>,
    token_before: Option<String>,
    token_after: Option<String>,
}

enum Row {
    Plain(Box<RawValue>),
    Sorted(Box<SortedRow>),
}

impl Pipeline {
    pub(super) fn new(source: Source, start: Option<Continuation>) -> Result<Self, Error> {
        let body = json(&source.query)?;
        let plan = source.plan.clone();
        let anew = || Continuation::new(&body, plan.offset, plan.limit);
        let mut start = start.unwrap_or_else(anew);
        let mut replay = 0;
        if let Some(direct) = start.direct.take() {
            start = anew();
            match (&plan.merge, direct.rows) {
                _ if plan.is_plain() => {
                    start.parts.push(PartPosition::new(&source.bounds, Some(direct.token)));
                }
                (_, Some(0)) => {}
                (Merge::Sort { .. }, Some(rows)) => replay = rows,
                (Merge::Sort { .. } | Merge::Concatenate | Merge::Group { .. }, _) => {
                    return Err(Error::bad_request(
                        "the range has split since this continuation was given, and this query can only be read \
                         from its beginning",
                    ));
                }
            }
        }
        let groups = match &plan.merge {
            Merge::Group { columns, has_keys } => Some(Groups::new(columns.clone(), *has_keys)),
            Merge::Concatenate | Merge::Sort { .. } => None,
        };
        let seen = match plan.distinct {
            Distinct::None => Seen::All,
            Distinct::Ordered => Seen::Ordered { last: start.last.clone(), nested: start.seen()? },
            Distinct::Unordered => Seen::Set(start.seen()?),
        };
        let mut pipeline = Self {
            source,
            body,
            parts: Vec::new(),
            next_id: 0,
            in_flight: Mutex::new(FuturesUnordered::new()),
            place: start.place.clone(),
            replay,
            turn: 0,
            groups,
            seen,
            skip: start.skip,
            take: start.take,
            charge: 0.0,
            log: Diagnostics::default(),
            date: None,
        };
        if start.parts.is_empty() {
            let bounds = pipeline.source.bounds.clone();
            pipeline.parts = pipeline.parts_of(&bounds, None);
            pipeline.parts.retain(|part| plan.touches(&part.bounds));
        } else {
            for position in &start.parts {
                let parts = pipeline.parts_of(&position.bounds()?, position.token.as_deref());
                pipeline.parts.extend(parts);
            }
        }
        Ok(pipeline)
    }

    /// The pieces of `bounds`, one per physical range as known now; where ranges merged around the place, it parts them
    /// once more.
    fn parts_of(&mut self, bounds: &EpkRange, token: Option<&str>) -> Vec<Part> {
        let ranges = self.source.info.ranges.load();
        let place = self.place.clone();
        let cut = |piece| match &place {
            Some(place) => place.cut(piece),
            None => vec![piece],
        };
        let pieces: Vec<EpkRange> = ranges
            .overlapping(bounds)
            .filter_map(|range| range.bounds.intersection(bounds))
            .flat_map(cut)
            .collect();
        pieces
            .into_iter()
            .map(|bounds| {
                self.next_id += 1;
                Part {
                    id: self.next_id,
                    bounds,
                    place: place.clone(),
                    repeats: place.as_ref().map_or(0, |place| place.count),
                    token: token.map(str::to_owned),
                    region: None,
                    has_more: true,
                    is_fetching: false,
                    turn: 0,
                    pages: VecDeque::new(),
                    progress: Progress::default(),
                }
            })
            .collect()
    }

    /// The next page, or `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Page>, Error> {
        self.turn += 1;
        self.date = None;
        let options = self.source.options.call.clone();
        let deadline = Call::start(&self.source.container.driver().core, &options).deadline;
        loop {
            if self.take == Some(0) || self.parts.is_empty() {
                return Ok(self.finish_groups()?.map(|rows| self.page(rows, None)));
            }
            self.start_fetches()?;
            let rows = match &self.source.plan.merge {
                Merge::Concatenate => self.concatenate(),
                Merge::Sort { directions, .. } => {
                    let directions = directions.clone();
                    self.merge_sorted(&directions)
                }
                Merge::Group { .. } => {
                    self.collect_groups()?;
                    Vec::new()
                }
            };
            // However many empty pages a server gives, the caller is asked in time whether to look on.
            let is_late = self.groups.is_none() && !self.parts.is_empty() && self.is_after(deadline);
            if !rows.is_empty() || is_late {
                let continuation = self.continuation()?;
                return Ok(Some(self.page(rows, continuation)));
            }
            if self.needs_to_wait() {
                let Some((id, result)) = self.in_flight().next().await else { continue };
                self.absorb(id, result)?;
            }
        }
    }

    fn is_after(&self, deadline: tokio::time::Instant) -> bool {
        self.source.container.driver().core.clock.now() >= deadline
    }

    fn in_flight(&mut self) -> &mut FuturesUnordered<Fetch> {
        self.in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn needs_to_wait(&self) -> bool {
        let is_empty = |part: &Part| part.has_more && part.pages.is_empty();
        match &self.source.plan.merge {
            Merge::Concatenate => self.parts.first().is_some_and(is_empty),
            Merge::Sort { .. } | Merge::Group { .. } => self.parts.iter().any(is_empty),
        }
    }

    fn page(&mut self, rows: Vec<Box<RawValue>>, continuation: Option<String>) -> Page {
        let mut log = std::mem::take(&mut self.log);
        log.span_attempts();
        Page::merged(rows, continuation, std::mem::take(&mut self.charge), log, self.date)
    }

    /// Starts what can run: parts in order, within the limit, one page ahead of what is being read.
    fn start_fetches(&mut self) -> Result<(), Error> {
        let at_once = self.source.options.parallelism.unwrap_or(PARALLELISM).max(1);
        for i in 0..self.parts.len() {
            if self.in_flight().len() >= at_once {
                return Ok(());
            }
            let part = &self.parts[i];
            if part.has_more && !part.is_fetching && part.pages.len() < PAGES_AHEAD {
                let operation = self.operation(part)?;
                let (id, container, options) =
                    (part.id, self.source.container.clone(), self.source.options.call.clone());
                self.in_flight().push(Box::pin(async move {
                    let call = Call::start(&container.driver().core, &options);
                    (id, container.run(operation, &call).await)
                }));
                self.parts[i].is_fetching = true;
                self.parts[i].turn = self.turn;
            }
        }
        Ok(())
    }

    fn operation(&self, part: &Part) -> Result<Operation, Error> {
        let source = &self.source;
        let cell = source.container.cell();
        let mut operation = Operation::new(Kind::Query, "docs", cell.link.clone(), cell.docs_path.clone());
        operation.body = if source.plan.text.is_empty() {
            self.body.clone()
        } else {
            json(&source.query.with_text(source.plan.text.replace(PLACEHOLDER, &self.filter(part))))?
        };
        operation.consistency = source.options.call.consistency;
        operation.container = Some(source.info.clone());
        operation.target = range_target(part.bounds.clone())?;
        operation.pinned.clone_from(&part.region);
        if let Some(size) = source.options.page_size {
            operation
                .headers
                .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from(size)));
        }
        resume(&mut operation, part.token.as_deref())?;
        Ok(operation)
    }

    fn filter(&self, part: &Part) -> String {
        match (&self.source.plan.merge, &part.place) {
            (Merge::Sort { directions, first_expression: Some(expression) }, Some(place)) => {
                place.filter(expression, directions.first().copied().unwrap_or(Direction::Ascending))
            }
            (Merge::Sort { .. } | Merge::Concatenate | Merge::Group { .. }, _) => "true".to_owned(),
        }
    }

    /// Takes a finished request. An error leaves the part where it was, so that asking again goes on.
    fn absorb(&mut self, id: u64, result: Result<Response, Error>) -> Result<(), Error> {
        let Some(at) = self.parts.iter().position(|part| part.id == id) else { return Ok(()) };
        self.parts[at].is_fetching = false;
        let response = match result {
            Ok(response) => response,
            Err(error) if error.status() == Some(410) && self.has_split(at) => {
                self.split(at);
                return Ok(());
            }
            // Nobody attends to a fetch between two turns, but its clock runs on: it is begun again, not given up.
            Err(error) if self.parts[at].turn < self.turn && is_of_time(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let asked_with = self.parts[at].token.clone();
        let is_empty = progress::is_empty(response.body());
        self.parts[at].progress.note(asked_with.as_deref(), response.continuation(), is_empty)?;
        let rows = self.rows(at, response.body())?;
        let part = &mut self.parts[at];
        let token_before = std::mem::replace(&mut part.token, response.continuation().map(str::to_owned));
        part.has_more = part.token.is_some();
        part.region = response.diagnostics().winner().map(|attempt| attempt.region.clone());
        part.pages.push_back(Fetched { rows, token_before, token_after: part.token.clone() });
        // What was read ahead may have been answered long before this page was asked for.
        if part.turn == self.turn {
            self.date = self.date.max(response.date());
        }
        self.charge += response.charge();
        self.log.merge(response.into_diagnostics());
        Ok(())
    }

    fn rows(&mut self, at: usize, body: &[u8]) -> Result<VecDeque<Row>, Error> {
        let bad = |e| Error::serialization("a page of a query", e);
        match &self.source.plan.merge {
            Merge::Sort { directions, .. } => {
                let feed: Feed<SortedRow> = serde_json::from_slice(body).map_err(bad)?;
                let Part { place, repeats, bounds, .. } = &mut self.parts[at];
                let is_new = |row: &SortedRow| {
                    let Some(place) = place else { return true };
                    match place.compare(row, bounds, directions) {
                        Ordering::Less => false,
                        Ordering::Equal if *repeats > 0 => {
                            *repeats -= 1;
                            false
                        }
                        Ordering::Equal | Ordering::Greater => true,
                    }
                };
                Ok(feed.documents.into_iter().filter(is_new).map(|row| Row::Sorted(Box::new(row))).collect())
            }
            Merge::Concatenate | Merge::Group { .. } => {
                let feed: Feed<Box<RawValue>> = serde_json::from_slice(body).map_err(bad)?;
                Ok(feed.documents.into_iter().map(Row::Plain).collect())
            }
        }
    }

    fn has_split(&self, at: usize) -> bool {
        let bounds = &self.parts[at].bounds;
        !self.source.info.ranges.load().holding(&bounds.min).bounds.contains_range(bounds)
    }

    /// The part goes on in the ranges that now hold it: from its token, or for sorted rows from the last row given.
    fn split(&mut self, at: usize) {
        let old = self.parts.remove(at);
        let is_sorted = matches!(self.source.plan.merge, Merge::Sort { .. });
        // Pages read ahead are read again: their rows now belong to several parts.
        let token = if is_sorted { None } else { old.position().token };
        let parts = self.parts_of(&old.bounds, token.as_deref());
        self.parts.splice(at..at, parts);
    }

    /// The first part's next page, whole: then its token says where to go on.
    fn concatenate(&mut self) -> Vec<Box<RawValue>> {
        while let Some(part) = self.parts.first_mut() {
            let Some(page) = part.pages.pop_front() else {
                if part.has_more {
                    return Vec::new();
                }
                self.parts.remove(0);
                continue;
            };
            let mut rows = Vec::with_capacity(page.rows.len());
            for row in page.rows {
                let Row::Plain(row) = row else { continue };
                if self.seen.is_new(&row) && self.window() {
                    rows.push(row);
                }
            }
            if page.token_after.is_none() {
                self.parts.remove(0);
            }
            if !rows.is_empty() {
                return rows;
            }
        }
        Vec::new()
    }

    /// The smallest heads, as long as every part that may still have rows shows one.
    fn merge_sorted(&mut self, directions: &[Direction]) -> Vec<Box<RawValue>> {
        let most = self.source.options.page_size.map_or(MERGED_PAGE_ROWS, |size| size as usize).max(1);
        let mut rows = Vec::new();
        while rows.len() < most && self.take != Some(0) {
            for part in &mut self.parts {
                while part.pages.front().is_some_and(|page| page.rows.is_empty()) {
                    part.pages.pop_front();
                }
            }
            self.parts.retain(|part| part.has_more || !part.pages.is_empty());
            if self.parts.is_empty() || self.parts.iter().any(|part| part.pages.is_empty()) {
                break;
            }
            let Some(at) = self.smallest(directions) else { break };
            let part = &mut self.parts[at];
            let popped = part.pages.front_mut().and_then(|page| page.rows.pop_front());
            let Some(Row::Sorted(row)) = popped else { break };
            let bounds = if self.replay > 0 { &self.source.bounds } else { &part.bounds };
            self.place = Some(match &self.place {
                Some(place) => place.next(&row, bounds, directions),
                None => Place::of(&row, bounds),
            });
            if let Some(payload) = row.payload
                && self.seen.is_new(&payload)
                && self.window()
            {
                if self.replay > 0 {
                    self.replay -= 1;
                } else {
                    rows.push(payload);
                }
            }
        }
        rows
    }

    /// The part whose head comes first.
    fn smallest(&self, directions: &[Direction]) -> Option<usize> {
        let is_tied = |part: &Part, row: &SortedRow| {
            self.place.as_ref().is_some_and(|place| place.is_tied(row, &part.bounds, directions))
        };
        let heads = self.parts.iter().enumerate().filter_map(|(i, part)| Some((i, part, part.head()?)));
        // Parts are in the order of the key space and `min_by` keeps the first of equals.
        let first = heads.min_by(|(_, left, a), (_, right, b)| {
            sort::compare(a, b, directions).then_with(|| {
                if self.replay > 0 || (is_tied(left, a) && is_tied(right, b)) {
                    sort::compare_rids(&a.rid, &b.rid, directions)
                } else {
                    Ordering::Equal
                }
            })
        });
        first.map(|(at, _, _)| at)
    }

    fn collect_groups(&mut self) -> Result<(), Error> {
        let Some(groups) = &mut self.groups else { return Ok(()) };
        for part in &mut self.parts {
            while let Some(page) = part.pages.front_mut() {
                while let Some(row) = page.rows.front() {
                    if let Row::Plain(row) = row {
                        // A row that cannot be counted stays: whoever asks again is told again, not given the rest.
                        groups.add(row)?;
                    }
                    page.rows.pop_front();
                }
                part.pages.pop_front();
            }
        }
        self.parts.retain(|part| part.has_more);
        Ok(())
    }

    fn finish_groups(&mut self) -> Result<Option<Vec<Box<RawValue>>>, Error> {
        let Some(groups) = self.groups.take() else { return Ok(None) };
        let rows = groups.finish()?;
        Ok(Some(rows.into_iter().filter(|row| self.seen.is_new(row) && self.window()).collect()))
    }

    /// Whether the next row is past the offset and within the limit.
    fn window(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        match &mut self.take {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// `None` when nothing is left. Groups come in one page, the last.
    fn continuation(&self) -> Result<Option<String>, Error> {
        let is_over = self.take == Some(0) || self.parts.is_empty();
        if is_over || self.groups.is_some() {
            return Ok(None);
        }
        let mut continuation = Continuation::new(&self.body, self.skip, self.take);
        match &self.source.plan.merge {
            Merge::Sort { .. } => continuation.place.clone_from(&self.place),
            Merge::Concatenate | Merge::Group { .. } => {
                continuation.parts = self.parts.iter().map(Part::position).collect();
            }
        }
        match &self.seen {
            Seen::All => {}
            Seen::Ordered { last, nested } => {
                continuation.last.clone_from(last);
                if !nested.is_empty() {
                    continuation.keep_seen(nested);
                }
            }
            Seen::Set(seen) => continuation.keep_seen(seen),
        }
        continuation.write().map(Some)
    }
}

/// Whether a request may have failed for nothing but the time it took.
fn is_of_time(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Deadline | ErrorKind::Connection)
}

impl Part {
    fn head(&self) -> Option<&SortedRow> {
        match self.pages.front().and_then(|page| page.rows.front()) {
            Some(Row::Sorted(row)) => Some(row),
            Some(Row::Plain(_)) | None => None,
        }
    }

    /// Where reading goes on: before the pages that were read ahead.
    fn position(&self) -> PartPosition {
        let token = match self.pages.front() {
            Some(unread) => unread.token_before.clone(),
            None => self.token.clone(),
        };
        PartPosition::new(&self.bounds, token)
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").field("parts", &self.parts.len()).finish_non_exhaustive()
    }
}

const PLACEHOLDER: &str = "{documentdb-formattableorderbyquery-filter}";
/// Ranges asked at the same time.
const PARALLELISM: usize = 32;
/// Pages of one part kept in memory.
const PAGES_AHEAD: usize = 2;
/// Rows of one merged page when the caller does not say.
const MERGED_PAGE_ROWS: usize = 1000;
