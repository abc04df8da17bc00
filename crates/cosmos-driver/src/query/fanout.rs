//! The parts of a query over many ranges: what is asked of each, and the pages that came.
//!
//! Each part is a piece of the key space within one physical range. Requests of different parts run at the same time.
//! When a range splits under a part, the part becomes several and goes on where it was. What becomes of the rows is the
//! pipeline's business.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use cosmos_wire::epk::EpkRange;
use cosmos_wire::header;
use cosmos_wire::resource::ResourceKind;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::HeaderValue;
use http::header::HeaderName;
use serde_json::value::RawValue;

use super::continuation::PartPosition;
use super::plan::{Direction, Merge, Plan};
use super::progress::{self, Progress};
use super::rows::SortedRow;
use super::sort::MergeCursor;
use super::{Feed, Page, Query, QueryOptions, range_target};
use crate::body::json;
use crate::container::Container;
use crate::diagnostics::Diagnostics;
use crate::error::{Error, ErrorKind};
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::request::{Kind, Operation};
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

pub(super) struct Fanout {
    pub(super) source: Source,
    pub(super) body: Bytes,
    /// In the order of the key space.
    pub(super) parts: Vec<Part>,
    next_id: u64,
    /// Never locked, only reached through `&mut`: the mutex is what makes a pager shareable between threads.
    in_flight: Mutex<FuturesUnordered<Fetch>>,
    /// Counts the pages that were asked for.
    turn: u64,
    charge: f64,
    log: Diagnostics,
    /// The latest date of the answers that this turn asked for.
    date: Option<SystemTime>,
}

type Fetch = Pin<Box<dyn Future<Output = (u64, Result<Response, Error>)> + Send>>;

pub(super) struct Part {
    id: u64,
    pub(super) bounds: EpkRange,
    /// Where this part's rows were left, when it began.
    cursor: Option<MergeCursor>,
    /// Rows at that very cursor which were given before and are still to come again.
    repeats: u64,
    token: Option<String>,
    region: Option<Arc<str>>,
    pub(super) has_more: bool,
    is_fetching: bool,
    /// The turn in which the last fetch began.
    turn: u64,
    pub(super) pages: VecDeque<Fetched>,
    progress: Progress,
}

/// One page of one range, and where it and the next one start.
pub(super) struct Fetched {
    pub(super) rows: VecDeque<Row>,
    token_before: Option<String>,
    pub(super) token_after: Option<String>,
}

pub(super) enum Row {
    Plain(Box<RawValue>),
    Sorted(Box<SortedRow>),
}

impl Fanout {
    /// Nothing is asked before [`Fanout::add`] has said of what.
    pub(super) fn new(source: Source) -> Result<Self, Error> {
        let body = json(&source.query)?;
        Ok(Self {
            source,
            body,
            parts: Vec::new(),
            next_id: 0,
            in_flight: Mutex::new(FuturesUnordered::new()),
            turn: 0,
            charge: 0.0,
            log: Diagnostics::default(),
            date: None,
        })
    }

    /// One more piece of the key space, from a token on.
    pub(super) fn add(&mut self, bounds: &EpkRange, token: Option<&str>, cursor: Option<&MergeCursor>) {
        let parts = self.parts_of(bounds, token, cursor);
        self.parts.extend(parts);
    }

    /// A page is asked for. Returns when its time is over.
    pub(super) fn begin_turn(&mut self) -> tokio::time::Instant {
        self.turn += 1;
        self.date = None;
        Call::start(&self.source.container.driver().core, &self.source.options.call).deadline
    }

    pub(super) fn is_after(&self, deadline: tokio::time::Instant) -> bool {
        self.source.container.driver().core.clock.now() >= deadline
    }

    /// The pieces of `bounds`, one per physical range as known now; where ranges merged around the cursor, it parts them
    /// once more.
    fn parts_of(
        &mut self,
        bounds: &EpkRange,
        token: Option<&str>,
        cursor: Option<&MergeCursor>,
    ) -> Vec<Part> {
        let ranges = self.source.info.ranges.load();
        let cut = |piece| match cursor {
            Some(cursor) => cursor.cut(piece),
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
                    cursor: cursor.cloned(),
                    repeats: cursor.map_or(0, |cursor| cursor.count),
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

    fn in_flight(&mut self) -> &mut FuturesUnordered<Fetch> {
        self.in_flight.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one of the requests under way has ended, and takes what it brought. `cursor` is where the merged rows
    /// were left.
    pub(super) async fn wait(&mut self, cursor: Option<&MergeCursor>) -> Result<(), Error> {
        match self.in_flight().next().await {
            Some((id, result)) => self.absorb(id, result, cursor),
            None => Ok(()),
        }
    }

    pub(super) fn page(&mut self, rows: Vec<Box<RawValue>>, continuation: Option<String>) -> Page {
        let mut log = std::mem::take(&mut self.log);
        log.span_attempts();
        Page::merged(rows, continuation, std::mem::take(&mut self.charge), log, self.date)
    }

    /// Starts what can run: parts in order, within the limit, one page ahead of what is being read.
    pub(super) fn start_fetches(&mut self) -> Result<(), Error> {
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
        let mut operation =
            Operation::new(Kind::Query, ResourceKind::Document, cell.link.clone(), cell.docs_path.clone());
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
        operation.resume(part.token.as_deref())?;
        Ok(operation)
    }

    fn filter(&self, part: &Part) -> String {
        match (&self.source.plan.merge, &part.cursor) {
            (Merge::Sort { directions, first_expression: Some(expression) }, Some(cursor)) => {
                cursor.filter(expression, directions.first().copied().unwrap_or(Direction::Ascending))
            }
            (Merge::Sort { .. } | Merge::Concatenate | Merge::Group { .. }, _) => "true".to_owned(),
        }
    }

    /// Takes a finished request. An error leaves the part where it was, so that asking again goes on.
    fn absorb(
        &mut self,
        id: u64,
        result: Result<Response, Error>,
        cursor: Option<&MergeCursor>,
    ) -> Result<(), Error> {
        let Some(at) = self.parts.iter().position(|part| part.id == id) else { return Ok(()) };
        self.parts[at].is_fetching = false;
        let response = match result {
            Ok(response) => response,
            Err(error) if error.status() == Some(410) && self.has_split(at) => {
                self.split(at, cursor);
                return Ok(());
            }
            // No task polls a fetch between two calls of `next`, but its clock runs on: it is begun again, not given up.
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
                let Part { cursor, repeats, bounds, .. } = &mut self.parts[at];
                let is_new = |row: &SortedRow| {
                    let Some(cursor) = cursor else { return true };
                    match cursor.compare(row, bounds, directions) {
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
    fn split(&mut self, at: usize, cursor: Option<&MergeCursor>) {
        let old = self.parts.remove(at);
        let is_sorted = matches!(self.source.plan.merge, Merge::Sort { .. });
        // Pages read ahead are read again: their rows now belong to several parts.
        let token = if is_sorted { None } else { old.position().token };
        let parts = self.parts_of(&old.bounds, token.as_deref(), cursor);
        self.parts.splice(at..at, parts);
    }
}

/// Whether a request may have failed for nothing but the time it took.
fn is_of_time(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Deadline | ErrorKind::Connection)
}

impl Part {
    pub(super) fn head(&self) -> Option<&SortedRow> {
        match self.pages.front().and_then(|page| page.rows.front()) {
            Some(Row::Sorted(row)) => Some(row),
            Some(Row::Plain(_)) | None => None,
        }
    }

    /// Where reading goes on: before the pages that were read ahead.
    pub(super) fn position(&self) -> PartPosition {
        let token = match self.pages.front() {
            Some(unread) => unread.token_before.clone(),
            None => self.token.clone(),
        };
        PartPosition::new(&self.bounds, token)
    }
}

const PLACEHOLDER: &str = "{documentdb-formattableorderbyquery-filter}";
/// Ranges asked at the same time.
const PARALLELISM: usize = 32;
/// Pages of one part kept in memory.
const PAGES_AHEAD: usize = 2;
