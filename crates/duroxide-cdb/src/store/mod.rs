//! The container: typed reads, writes, batches and queries. With `call.rs` and `error.rs` the only file that
//! names the driver.

mod call;
mod oldest;
mod patience;
mod patient;
pub(crate) mod settle;
mod stray;
mod write;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cosmos_driver::{
    Batch, BatchResponse, BatchResult, CallOptions, Container, ContainerProperties, ContentResponse,
    Credential, Database, Diagnostics, Driver, ErrorKind, FeedRange, Patch, QueryOptions, Requirements,
    Response, Scope,
};
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::clock::{Clock, millis_until};
use crate::config::CosmosDBProviderConfig;
use crate::documents::ids;
use crate::error::{Fault, Trouble};
use crate::ledger::{Ledger, LedgerSnapshot};
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::slots::{self, Watch};
use crate::weather::Weather;

pub(crate) use call::Call;
pub(crate) use patience::{Backoff, Patience};
pub(crate) use stray::{Strays, visible_at};
pub(crate) use write::{Op, OpKind};

/// What a point read found.
#[derive(Debug, Clone)]
pub(crate) enum Read {
    /// The document and its ETag.
    Found { body: Bytes, etag: String },
    /// It still has the ETag the caller knows.
    NotModified,
    /// There is none.
    Missing,
}

/// One page of a search.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rows: Vec<Box<RawValue>>,
    /// Where the next page begins, if there is one.
    next: Option<String>,
}

impl Page {
    /// Whether there may be more behind a page that so many rows were asked for.
    pub(crate) fn is_full(&self, rows: u32) -> bool {
        self.rows.len() >= rows as usize || (self.next.is_some() && !self.rows.is_empty())
    }
}

/// A walk over all rows of a query: one page in memory at a time.
pub(crate) struct Walk<'a> {
    store: &'a Store,
    query: Query,
    ranges: VecDeque<FeedRange>,
    next: Option<String>,
}

impl Walk<'_> {
    /// The next page; `None` at the end. After an error the same page is asked for again.
    pub(crate) async fn next(&mut self, call: Call) -> Result<Option<Vec<Box<RawValue>>>, Fault> {
        let Some(range) = self.ranges.front() else { return Ok(None) };
        let page = self.store.page(call, range.clone(), &self.query, SEARCH_ROWS, self.next.clone()).await?;
        self.next = page.next;
        if self.next.is_none() {
            self.ranges.pop_front();
        }
        Ok(Some(page.rows))
    }
}

/// The provider's container.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    container: Container,
    ranges: Mutex<Option<(Vec<FeedRange>, Instant)>>,
    ledger: Ledger,
    clock: Arc<Clock>,
    operation_timeout: Duration,
    /// Since when searches have to do without the index that holds what is due in order.
    unordered: Mutex<Option<Instant>>,
    weather: Weather,
}

impl Store {
    /// Connects to an account. One that does not promise what workflows need is refused, now and whenever it changes: a
    /// process must see what it has written, and two processes must never write in two places.
    pub(crate) async fn connect(config: &CosmosDBProviderConfig) -> Result<Self, Fault> {
        let credential = match &config.credential {
            Some(credential) => credential.clone(),
            None => Credential::key(&config.key)?,
        };
        let driver = Driver::builder(&config.endpoint, credential)
            .config(config.driver.clone())
            .requirements(Requirements { session_reads: true, single_write: true })
            .application_name(APPLICATION)
            .build()
            .await?;
        let database = driver.database(&config.database);
        let container = database.container(&config.container)?;
        let clock = Arc::new(Clock::shifted(config.clock_offset_ms));
        let (ranges, unordered) = Default::default();
        let (ledger, weather) = (Ledger::default(), Weather::default());
        let operation_timeout = config.operation_timeout;
        Ok(Self { database, container, ranges, ledger, clock, operation_timeout, unordered, weather })
    }

    /// The clock that the answers of the container put right.
    pub(crate) fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// A call with the usual time limit.
    pub(crate) fn call(&self, operation: &'static str) -> Call {
        Call { operation, deadline: self.clock.instant() + self.operation_timeout }
    }

    /// A call that must end when a lock does.
    pub(crate) fn call_until(&self, operation: &'static str, until_ms: u64) -> Call {
        Call { operation, deadline: self.clock.instant() + millis_until(until_ms, self.clock.now_ms()) }
    }

    /// A call that gives up soon, so that one bad partition does not hold up all others.
    pub(crate) fn quick_call(&self, operation: &'static str) -> Call {
        self.quick_call_after(operation, 0)
    }

    /// A call that gives up later the more often it was tried in vain: a partition may be large and not bad.
    pub(crate) fn quick_call_after(&self, operation: &'static str, failures: u32) -> Call {
        let patience = QUICK.saturating_mul(1 << failures.min(8)).min(self.operation_timeout);
        Call { operation, deadline: self.clock.instant() + patience }
    }

    /// The container's definition; `None` if there is no such container or database.
    pub(crate) async fn definition(&self, call: Call) -> Result<Option<ContainerProperties>, Fault> {
        let begun = Instant::now();
        match self.container.read(call.options()?).await {
            Ok(response) => {
                self.learn(begun, response.date());
                Ok(Some(response.json()?))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the database.
    pub(crate) async fn create_database(&self, call: Call) -> Result<(), Fault> {
        self.database.create(call.options()?).await?;
        Ok(())
    }

    /// Creates the container.
    pub(crate) async fn create_container(
        &self,
        call: Call,
        properties: &ContainerProperties,
    ) -> Result<(), Fault> {
        self.database.create_container(properties, None, call.options()?).await?;
        Ok(())
    }

    /// Changes the container's definition.
    pub(crate) async fn replace_definition(
        &self,
        call: Call,
        properties: &ContainerProperties,
    ) -> Result<(), Fault> {
        self.container.replace(properties, call.options()?).await?;
        Ok(())
    }

    /// Deletes the container.
    pub(crate) async fn delete_container(&self, call: Call) -> Result<(), Fault> {
        self.container.delete(call.options()?).await?;
        Ok(())
    }

    /// Reads one document, unless it still has the ETag the caller knows.
    pub(crate) async fn read(
        &self,
        call: Call,
        partition: &str,
        id: &str,
        known: Option<&str>,
    ) -> Result<Read, Fault> {
        let mut options = call.item_options()?;
        options.if_none_match = known.map(ToOwned::to_owned);
        let begun = Instant::now();
        match self.container.read_item(partition, id, options).await {
            Ok(response) => {
                self.record_answer(call, partition, begun, &response);
                if response.is_not_modified() {
                    return Ok(Read::NotModified);
                }
                let etag = etag_of(&response);
                Ok(Read::Found { etag, body: response.into_body() })
            }
            Err(error) => {
                self.record_error(call, Some(partition), begun, &error);
                if error.kind() == ErrorKind::NotFound {
                    return Ok(Read::Missing);
                }
                Err(error.into())
            }
        }
    }

    /// Reads one document where it is written, so that it is not older than this moment, whoever wrote it last. From then
    /// on this process reads nothing older in the same range. An ordinary read may be answered by a region, or a
    /// replica, that does not have the latest writes of other processes yet.
    pub(crate) async fn read_latest(&self, call: Call, partition: &str, id: &str) -> Result<Read, Fault> {
        match self.execute(call, partition, Batch::new(partition).read(id)).await {
            Ok(done) => Ok(done.results().first().map_or(Read::Missing, read_of)),
            Err(fault) if fault.trouble == Trouble::Missing => Ok(Read::Missing),
            Err(fault) => Err(fault),
        }
    }

    /// Carries out one write and returns the new ETag.
    pub(crate) async fn write(&self, call: Call, partition: &str, op: &Op) -> Result<String, Fault> {
        let mut options = call.item_options()?;
        options.if_match = op.if_match().map(ToOwned::to_owned);
        let body = op.body().cloned().unwrap_or_default();
        let begun = Instant::now();
        let outcome = match op.kind() {
            OpKind::Create => self.container.create_item(partition, body, options).await,
            OpKind::Upsert => self.container.upsert_item(partition, body, options).await,
            OpKind::Replace => self.container.replace_item(partition, op.id(), body, options).await,
            OpKind::Delete => self.container.delete_item(partition, op.id(), options).await,
            OpKind::Set => self.container.patch_item(partition, op.id(), &patch_of(op), options).await,
        };
        match outcome {
            Ok(response) => {
                self.record_answer(call, partition, begun, &response);
                Ok(etag_of(&response))
            }
            Err(error) => {
                self.record_error(call, Some(partition), begun, &error);
                let fault = Fault::from(error);
                if op.is_conditional() {
                    count_refused(call, &fault);
                }
                Err(fault)
            }
        }
    }

    /// Carries out several writes, all or none, and returns the new ETags.
    pub(crate) async fn batch(&self, call: Call, partition: &str, ops: &[Op]) -> Result<Vec<String>, Fault> {
        // The caller knows what it wrote. Answers with all bodies could be larger than an answer may be.
        let batch = ops.iter().fold(Batch::new(partition).with_content(ContentResponse::Minimal), add);
        let done = self.execute(call, partition, batch).await;
        let done = done.inspect_err(|fault| count_refused(call, fault))?;
        Ok(done.results().iter().map(|result| result.etag().unwrap_or_default().to_owned()).collect())
    }

    /// Carries out one write and reads another document of its partition, in one request. Returns the new ETag and the
    /// document; without the document nothing is written.
    pub(crate) async fn write_beside(
        &self,
        call: Call,
        partition: &str,
        op: &Op,
        id: &str,
    ) -> Result<(String, Read), Fault> {
        let batch = add(Batch::new(partition), op).read(id);
        let done = self.execute(call, partition, batch).await;
        let done = done.inspect_err(|fault| count_refused(call, fault))?;
        let etag = done.results().first().and_then(BatchResult::etag).unwrap_or_default();
        Ok((etag.to_owned(), done.results().get(1).map_or(Read::Missing, read_of)))
    }

    async fn execute(&self, call: Call, partition: &str, batch: Batch) -> Result<BatchResponse, Fault> {
        let begun = Instant::now();
        let response = match self.container.batch(batch, call.options()?).await {
            Ok(response) => response,
            Err(error) => {
                self.record_error(call, Some(partition), begun, &error);
                return Err(error.into());
            }
        };
        self.record_answer(call, partition, begun, response.response());
        if let Some((index, failed)) = response.failed() {
            let activity = response.response().activity_id();
            return Err(Fault::of_operation(index, failed.status(), failed.sub_status(), activity));
        }
        Ok(response)
    }

    /// All rows of a query over one partition.
    pub(crate) async fn query(
        &self,
        call: Call,
        partition: &str,
        query: &Query,
    ) -> Result<Vec<Box<RawValue>>, Fault> {
        self.collect(call, Scope::PartitionKey(partition.into()), Some(partition), query).await
    }

    /// The pages of a query over one partition, as long as the caller wants another page after each; `None` when it did
    /// not. Each page shows one moment, and what is on a later page was read later.
    pub(crate) async fn query_while(
        &self,
        call: Call,
        partition: &str,
        query: &Query,
        goes_on: impl FnMut(&[Box<RawValue>]) -> bool,
    ) -> Result<Option<Vec<Vec<Box<RawValue>>>>, Fault> {
        self.collect_while(call, Scope::PartitionKey(partition.into()), Some(partition), query, goes_on).await
    }

    /// The first rows of a query, from every range.
    pub(crate) async fn query_ranges(
        &self,
        call: Call,
        query: &Query,
        watch: &Watch,
    ) -> Vec<Result<Page, Fault>> {
        let ranges = match self.ranges(call).await {
            Ok(ranges) => watched(&ranges, watch),
            Err(fault) => return vec![Err(fault)],
        };
        let pages = ranges.into_iter().map(|range| -> BoxFuture<'_, Result<Page, Fault>> {
            Box::pin(self.first_rows(call, range, query))
        });
        in_parallel(RANGES_AT_ONCE, pages).await
    }

    /// How many requests it takes to look at what is watched, as far as is known.
    pub(crate) fn count_parts(&self, watch: &Watch) -> usize {
        let known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map_or(1, |(ranges, _)| watched(ranges, watch).len())
    }

    /// The first page of a query over one range that has rows. The server may end a page before it has found any.
    async fn first_rows(&self, call: Call, range: FeedRange, query: &Query) -> Result<Page, Fault> {
        let rows = query.rows().unwrap_or(0).max(SEARCH_ROWS);
        let mut page = self.page(call, range.clone(), query, rows, None).await?;
        while page.rows.is_empty() && page.next.is_some() {
            page = self.page(call, range.clone(), query, rows, page.next).await?;
        }
        Ok(page)
    }

    /// What a query about documents with certain ids finds, given the partitions that they are in: only the ranges that
    /// hold some are asked, each for its own.
    pub(crate) async fn query_ids(
        &self,
        call: Call,
        text: &'static str,
        documents: impl Iterator<Item = (&str, String)>,
    ) -> Result<Vec<Box<RawValue>>, Fault> {
        let ranges = self.ranges(call).await?;
        let mut ids: Vec<Vec<String>> = vec![Vec::new(); ranges.len()];
        for (partition, id) in documents {
            let place = slots::place_of(partition);
            let holds = |range: &FeedRange| *range.min <= *place && *place < *range.max;
            if let Some(ids) = ranges.iter().position(holds).and_then(|at| ids.get_mut(at)) {
                ids.push(id);
            }
        }
        let asked = ranges.into_iter().zip(ids).filter(|(_, ids)| !ids.is_empty());
        let parts = asked.map(|(range, ids)| -> BoxFuture<'_, Result<Vec<Box<RawValue>>, Fault>> {
            let query = Query::new(text).with("@ids", ids);
            Box::pin(async move { self.collect(call, Scope::Range(range), None, &query).await })
        });
        let rows = in_parallel(RANGES_AT_ONCE, parts).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// One page of a query over one range, from the beginning or from where another page ended.
    async fn page(
        &self,
        call: Call,
        range: FeedRange,
        query: &Query,
        rows: u32,
        from: Option<String>,
    ) -> Result<Page, Fault> {
        let mut options = QueryOptions::default().with_page_size(rows).with_call(options_of(call, query)?);
        if let Some(from) = from {
            options = options.with_continuation(from);
        }
        let begun = Instant::now();
        let mut pager = self.container.query(query_of(query), range, options);
        let page = match pager.next().await {
            Ok(page) => page,
            Err(error) => {
                self.record_error(call, None, begun, &error);
                return Err(error.into());
            }
        };
        let Some(page) = page else { return Ok(Page::default()) };
        self.record(call, None, begun, page.charge());
        self.weather.note(is_throttled(page.diagnostics()));
        self.learn(begun, page.date());
        Ok(Page { rows: page.items()?, next: page.continuation().map(ToOwned::to_owned) })
    }

    /// Begins a walk over all rows of a query, a page at a time.
    pub(crate) async fn walk(&self, call: Call, query: Query) -> Result<Walk<'_>, Fault> {
        let ranges = self.ranges(call).await?.into();
        Ok(Walk { store: self, query, ranges, next: None })
    }

    /// All rows of a query, from every range; transient trouble is sat out.
    pub(crate) async fn query_all(&self, call: Call, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        let ranges = self.ranges(call).await?;
        let parts = ranges.into_iter().map(|range| -> BoxFuture<'_, Result<Vec<Box<RawValue>>, Fault>> {
            Box::pin(self.collect(call, Scope::Range(range), None, query))
        });
        let mut rows = Vec::new();
        for part in in_parallel(RANGES_AT_ONCE, parts).await {
            rows.extend(part?);
        }
        Ok(rows)
    }

    /// All rows of a query whose rows the ranges can only answer together: groups and sums.
    pub(crate) async fn query_merged(&self, call: Call, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        self.collect(call, Scope::Container, None, query).await
    }

    async fn collect(
        &self,
        call: Call,
        scope: Scope,
        partition: Option<&str>,
        query: &Query,
    ) -> Result<Vec<Box<RawValue>>, Fault> {
        let pages = self.collect_while(call, scope, partition, query, |_| true).await?;
        Ok(pages.unwrap_or_default().into_iter().flatten().collect())
    }

    async fn collect_while(
        &self,
        call: Call,
        scope: Scope,
        partition: Option<&str>,
        query: &Query,
        mut goes_on: impl FnMut(&[Box<RawValue>]) -> bool,
    ) -> Result<Option<Vec<Vec<Box<RawValue>>>>, Fault> {
        let options = QueryOptions::default().with_page_size(PAGE_ROWS).with_call(options_of(call, query)?);
        let mut pager = self.container.query(query_of(query), scope, options);
        let mut pages = Vec::new();
        let mut bytes = 0;
        loop {
            let begun = Instant::now();
            match pager.next().await {
                Ok(Some(page)) => {
                    self.record(call, partition, begun, page.charge());
                    self.weather.note(is_throttled(page.diagnostics()));
                    self.learn(begun, page.date());
                    let rows = page.items::<Box<RawValue>>()?;
                    bytes += rows.iter().map(|row| row.get().len()).sum::<usize>();
                    if bytes > PARTITION_BYTES_MAX && partition.is_some() {
                        let sentence =
                            format!("more than {PARTITION_BYTES_MAX} bytes are to be read at once");
                        return Err(Fault::damaged(sentence));
                    }
                    // The last page says so: another request would only be told that there is nothing.
                    let is_last = page.continuation().is_none();
                    let is_enough = !is_last && !goes_on(&rows);
                    pages.push(rows);
                    if is_last {
                        return Ok(Some(pages));
                    }
                    if is_enough {
                        return Ok(None);
                    }
                }
                Ok(None) => return Ok(Some(pages)),
                Err(error) => {
                    self.record_error(call, partition, begun, &error);
                    return Err(error.into());
                }
            }
        }
    }

    /// Asks the service for its time, if this machine's clock is wrong and dates alone tell too little.
    pub(crate) async fn settle_clock(&self, call: Call) {
        if !self.clock.wants_to_ask() {
            return;
        }
        let begun = Instant::now();
        let query = Query::new(queries::TIME);
        let told = self.query(call, ids::META, &query).await;
        let time = told.map(|rows| rows.first().and_then(|row| serde_json::from_str::<u64>(row.get()).ok()));
        match time {
            Ok(Some(time)) => self.clock.learn_exactly(time, begun),
            // Dates go on telling it.
            Ok(None) => {}
            Err(fault) => tracing::debug!(%fault, "the service does not tell its time now"),
        }
    }

    /// What was spent so far.
    pub(crate) fn spending(&self) -> LedgerSnapshot {
        self.ledger.snapshot()
    }

    /// Takes note of what an answer cost and of the date in it.
    fn record_answer(&self, call: Call, partition: &str, begun: Instant, response: &Response) {
        self.record(call, Some(partition), begun, response.charge());
        self.weather.note(is_throttled(response.diagnostics()));
        self.learn(begun, response.date());
    }

    fn record_error(
        &self,
        call: Call,
        partition: Option<&str>,
        begun: Instant,
        error: &cosmos_driver::Error,
    ) {
        self.record(call, partition, begun, error.charge());
        self.weather.note(is_throttled(error.diagnostics()));
    }

    /// So long searches and looks are put off, because the account throttles.
    pub(crate) fn pause(&self) -> Duration {
        self.weather.pause()
    }

    fn learn(&self, begun: Instant, date: Option<SystemTime>) {
        if let Some(date) = date {
            self.clock.learn(date, begun);
        }
    }

    fn record(&self, call: Call, partition: Option<&str>, begun: Instant, charge: f64) {
        self.ledger.record(call.operation, partition, charge, begun.elapsed());
    }

    /// The container's ranges. Stale ones still cover the whole key space, so they are asked for rarely.
    async fn ranges(&self, call: Call) -> Result<Vec<FeedRange>, Fault> {
        let known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((ranges, read)) = known
            && read.elapsed() < RANGES_FOR
        {
            return Ok(ranges);
        }
        let ranges = self.container.ranges(call.options()?).await?;
        let mut known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((ranges.clone(), Instant::now()));
        Ok(ranges)
    }
}

/// Decodes a document, with an error that says which text failed.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        Fault::damaged(format!(
            "a stored document cannot be decoded as {}: {error}",
            std::any::type_name::<T>()
        ))
    })
}

/// The parts of ranges that hold what is watched.
fn watched(ranges: &[FeedRange], watch: &Watch) -> Vec<FeedRange> {
    let parts_of = |range: &FeedRange| {
        let id = range.id.clone();
        let parts = watch.parts(&range.min, &range.max).into_iter();
        parts.map(move |(min, max)| FeedRange { id: id.clone(), min, max })
    };
    ranges.iter().flat_map(parts_of).collect()
}

/// What a read that was part of a batch found.
fn read_of(result: &BatchResult) -> Read {
    let etag = result.etag().unwrap_or_default().to_owned();
    match result.body() {
        Some(body) => Read::Found { body: Bytes::copy_from_slice(body.as_bytes()), etag },
        None => Read::Missing,
    }
}

/// Whether the service refused one of the attempts because the budget was spent.
fn is_throttled(tried: &Diagnostics) -> bool {
    tried.attempts().iter().any(|attempt| attempt.status.is_some_and(|status| status.code == 429))
}

/// Counts a write that was refused because somebody else had written, or removed, what it rests on: work that was done
/// for nothing. Few of them are the sign that members leave each other's work alone.
fn count_refused(call: Call, fault: &Fault) {
    let why = match fault.trouble {
        Trouble::Changed => "changed",
        Trouble::Missing => "missing",
        Trouble::Exists => "exists",
        Trouble::Transient | Trouble::Refused => return,
    };
    metrics::counter!("duroxide_cdb_refused_writes_total", "operation" => call.operation, "why" => why)
        .increment(1);
}

/// Adds a write to a batch.
fn add(batch: Batch, op: &Op) -> Batch {
    let body = || op.body().cloned().unwrap_or_default();
    match op.kind() {
        OpKind::Create => batch.create(body()),
        OpKind::Upsert => batch.upsert(body()),
        OpKind::Replace => batch.replace(op.id(), body(), op.if_match()),
        OpKind::Delete => batch.delete(op.id(), op.if_match()),
        OpKind::Set => batch.patch(op.id(), &patch_of(op), op.if_match()),
    }
}

fn patch_of(op: &Op) -> Patch {
    op.sets().iter().fold(Patch::new(), |patch, (path, value)| patch.set(path.as_str(), value.clone()))
}

fn options_of(call: Call, query: &Query) -> Result<CallOptions, Fault> {
    let options = call.options()?;
    Ok(if query.is_for_latest { options.at_write_region() } else { options })
}

fn query_of(query: &Query) -> cosmos_driver::Query {
    let text = cosmos_driver::Query::new(query.text.as_ref());
    query.parameters.iter().fold(text, |text, (name, value)| text.with(*name, value.clone()))
}

fn etag_of(response: &Response) -> String {
    response.etag().unwrap_or_default().to_owned()
}

const APPLICATION: &str = concat!("duroxide-cdb/", env!("CARGO_PKG_VERSION"));
/// The time limit of a call that gives up soon.
const QUICK: Duration = Duration::from_secs(3);
const PAGE_ROWS: u32 = 1000;
/// What one query brings from the partition of one instance at most: what a turn needs is in memory at once. A partition
/// may be filled with twenty times as much.
const PARTITION_BYTES_MAX: usize = 1 << 30;
const SEARCH_ROWS: u32 = 100;
const RANGES_AT_ONCE: usize = 16;
const RANGES_FOR: Duration = Duration::from_secs(60);
