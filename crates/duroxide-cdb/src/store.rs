//! The container: typed reads, writes, batches and queries. With `error.rs` the only file that names the driver.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cosmos_driver::{
    Batch, CallOptions, Container, ContainerProperties, Credential, Database, Driver, ErrorKind, FeedRange,
    ItemOptions, QueryOptions, Response, Scope,
};
use futures::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::core::in_parallel;
use crate::documents::Document;
use crate::error::Fault;
use crate::queries::Query;

/// What a request is part of and how long it may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The provider operation, for errors and metrics.
    pub(crate) operation: &'static str,
    pub(crate) deadline: Instant,
}

impl Call {
    /// The time left.
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// One write.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    kind: OpKind,
    id: String,
    body: Option<String>,
    if_match: Option<String>,
}

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Create,
    Upsert,
    Replace,
    Delete,
}

impl Op {
    /// Creates a document.
    pub(crate) fn create<T: Document>(document: &T) -> Result<Self, serde_json::Error> {
        Self::with_body(OpKind::Create, document, None)
    }

    /// Creates or overwrites a document.
    pub(crate) fn upsert<T: Document>(document: &T) -> Result<Self, serde_json::Error> {
        Self::with_body(OpKind::Upsert, document, None)
    }

    /// Overwrites the document `id`, if it has the ETag given.
    pub(crate) fn replace<T: Document>(
        id: &str,
        document: &T,
        etag: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        let op = Self::with_body(OpKind::Replace, document, etag)?;
        debug_assert_eq!(op.id, id, "a document is replaced under its own id");
        Ok(op)
    }

    /// Deletes the document `id`, if it has the ETag given.
    pub(crate) fn delete(id: &str, etag: Option<&str>) -> Self {
        Self { kind: OpKind::Delete, id: id.to_owned(), body: None, if_match: etag.map(ToOwned::to_owned) }
    }

    /// Creates or overwrites the document whose JSON text is given.
    pub(crate) fn upsert_text(id: &str, text: &str) -> Self {
        Self { kind: OpKind::Upsert, id: id.to_owned(), body: Some(text.to_owned()), if_match: None }
    }

    /// Creates the document whose JSON text is given.
    pub(crate) fn create_text(id: &str, text: &str) -> Self {
        Self { kind: OpKind::Create, id: id.to_owned(), body: Some(text.to_owned()), if_match: None }
    }

    /// The same write on condition of an ETag.
    pub(crate) fn on(mut self, etag: &str) -> Self {
        self.if_match = Some(etag.to_owned());
        self
    }

    pub(crate) fn kind(&self) -> OpKind {
        self.kind
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn body(&self) -> Option<&str> {
        self.body.as_deref()
    }

    /// Bytes it adds to a request.
    pub(crate) fn len(&self) -> usize {
        OPERATION_BYTES + self.id.len() + self.body.as_ref().map_or(0, String::len)
    }

    fn with_body<T: Document>(
        kind: OpKind,
        document: &T,
        etag: Option<&str>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            kind,
            id: document.id().to_owned(),
            body: Some(serde_json::to_string(document)?),
            if_match: etag.map(ToOwned::to_owned),
        })
    }
}

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
    /// Whether there is more behind it.
    pub(crate) more: bool,
}

/// The provider's container.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    container: Container,
    ranges: Mutex<Option<(Vec<FeedRange>, Instant)>>,
}

impl Store {
    /// Connects to an account.
    pub(crate) async fn connect(
        endpoint: &str,
        key: &str,
        database: &str,
        container: &str,
    ) -> Result<Self, Fault> {
        let credential = Credential::key(key)?;
        let driver = Driver::builder(endpoint, credential).application_name(APPLICATION).build().await?;
        let database = driver.database(database);
        let container = database.container(container)?;
        Ok(Self { database, container, ranges: Mutex::default() })
    }

    /// The container's definition; `None` if there is no such container or database.
    pub(crate) async fn definition(&self, call: Call) -> Result<Option<ContainerProperties>, Fault> {
        match self.container.read(options(call)?).await {
            Ok(response) => Ok(Some(response.json()?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the database.
    pub(crate) async fn create_database(&self, call: Call) -> Result<(), Fault> {
        self.database.create(options(call)?).await?;
        Ok(())
    }

    /// Creates the container.
    pub(crate) async fn create_container(
        &self,
        call: Call,
        properties: &ContainerProperties,
    ) -> Result<(), Fault> {
        self.database.create_container(properties, None, options(call)?).await?;
        Ok(())
    }

    /// Changes the container's definition.
    pub(crate) async fn replace_definition(
        &self,
        call: Call,
        properties: &ContainerProperties,
    ) -> Result<(), Fault> {
        self.container.replace(properties, options(call)?).await?;
        Ok(())
    }

    /// Deletes the container.
    pub(crate) async fn delete_container(&self, call: Call) -> Result<(), Fault> {
        self.container.delete(options(call)?).await?;
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
        let mut options = item_options(call)?;
        options.if_none_match = known.map(ToOwned::to_owned);
        let begun = Instant::now();
        match self.container.read_item(partition, id, options).await {
            Ok(response) => {
                record(call, begun, response.charge());
                if response.is_not_modified() {
                    return Ok(Read::NotModified);
                }
                let etag = etag_of(&response);
                Ok(Read::Found { etag, body: response.into_body() })
            }
            Err(error) => {
                record(call, begun, error.charge());
                if error.kind() == ErrorKind::NotFound {
                    return Ok(Read::Missing);
                }
                Err(error.into())
            }
        }
    }

    /// Carries out one write and returns the new ETag.
    pub(crate) async fn write(&self, call: Call, partition: &str, op: &Op) -> Result<String, Fault> {
        let mut options = item_options(call)?;
        options.if_match.clone_from(&op.if_match);
        let body = Bytes::from(op.body.clone().unwrap_or_default());
        let begun = Instant::now();
        let outcome = match op.kind {
            OpKind::Create => self.container.create_item(partition, body, options).await,
            OpKind::Upsert => self.container.upsert_item(partition, body, options).await,
            OpKind::Replace => self.container.replace_item(partition, &op.id, body, options).await,
            OpKind::Delete => self.container.delete_item(partition, &op.id, options).await,
        };
        match outcome {
            Ok(response) => {
                record(call, begun, response.charge());
                Ok(etag_of(&response))
            }
            Err(error) => {
                record(call, begun, error.charge());
                Err(error.into())
            }
        }
    }

    /// Carries out several writes, all or none, and returns the new ETags.
    pub(crate) async fn batch(&self, call: Call, partition: &str, ops: &[Op]) -> Result<Vec<String>, Fault> {
        let mut batch = Batch::new(partition);
        for op in ops {
            let body = || Bytes::from(op.body.clone().unwrap_or_default());
            batch = match op.kind {
                OpKind::Create => batch.create(body()),
                OpKind::Upsert => batch.upsert(body()),
                OpKind::Replace => batch.replace(&op.id, body(), op.if_match.as_deref()),
                OpKind::Delete => batch.delete(&op.id, op.if_match.as_deref()),
            };
        }
        let begun = Instant::now();
        let response = match self.container.batch(batch, options(call)?).await {
            Ok(response) => response,
            Err(error) => {
                record(call, begun, error.charge());
                return Err(error.into());
            }
        };
        record(call, begun, response.charge());
        if let Some((index, failed)) = response.failed() {
            let activity = response.response().activity_id();
            return Err(Fault::of_operation(index, failed.status(), failed.sub_status(), activity));
        }
        Ok(response.results().iter().map(|result| result.etag().unwrap_or_default().to_owned()).collect())
    }

    /// All rows of a query over one partition.
    pub(crate) async fn query(
        &self,
        call: Call,
        partition: &str,
        query: &Query,
    ) -> Result<Vec<Box<RawValue>>, Fault> {
        self.collect(call, Scope::PartitionKey(partition.into()), query).await
    }

    /// The first page of a query, from every range.
    pub(crate) async fn query_ranges(&self, call: Call, query: &Query) -> Vec<Result<Page, Fault>> {
        let ranges = match self.ranges(call).await {
            Ok(ranges) => ranges,
            Err(fault) => return vec![Err(fault)],
        };
        let pages = ranges.into_iter().map(|range| -> BoxFuture<'_, Result<Page, Fault>> {
            Box::pin(async move {
                let options = QueryOptions::default().with_page_size(SEARCH_ROWS).with_call(options(call)?);
                let begun = Instant::now();
                let mut pager = self.container.query(query_of(query), range, options);
                let page = match pager.next().await {
                    Ok(page) => page,
                    Err(error) => {
                        record(call, begun, error.charge());
                        return Err(error.into());
                    }
                };
                let Some(page) = page else { return Ok(Page::default()) };
                record(call, begun, page.charge());
                Ok(Page { rows: page.items()?, more: page.continuation().is_some() })
            })
        });
        in_parallel(RANGES_AT_ONCE, pages).await
    }

    /// All rows of a query, from every range; transient trouble is sat out.
    pub(crate) async fn query_all(&self, call: Call, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        let ranges = self.ranges(call).await?;
        let parts = ranges.into_iter().map(|range| -> BoxFuture<'_, Result<Vec<Box<RawValue>>, Fault>> {
            Box::pin(self.collect(call, Scope::Range(range), query))
        });
        let mut rows = Vec::new();
        for part in in_parallel(RANGES_AT_ONCE, parts).await {
            rows.extend(part?);
        }
        Ok(rows)
    }

    async fn collect(&self, call: Call, scope: Scope, query: &Query) -> Result<Vec<Box<RawValue>>, Fault> {
        let options = QueryOptions::default().with_page_size(PAGE_ROWS).with_call(options(call)?);
        let mut pager = self.container.query(query_of(query), scope, options);
        let mut rows = Vec::new();
        loop {
            let begun = Instant::now();
            match pager.next().await {
                Ok(Some(page)) => {
                    record(call, begun, page.charge());
                    rows.extend(page.items::<Box<RawValue>>()?);
                    // The last page says so: another request would only be told that there is nothing.
                    if page.continuation().is_none() {
                        return Ok(rows);
                    }
                }
                Ok(None) => return Ok(rows),
                Err(error) => {
                    record(call, begun, error.charge());
                    return Err(error.into());
                }
            }
        }
    }

    /// The container's ranges. Stale ones still cover the whole key space, so they are asked for rarely.
    async fn ranges(&self, call: Call) -> Result<Vec<FeedRange>, Fault> {
        let known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((ranges, read)) = known
            && read.elapsed() < RANGES_FOR
        {
            return Ok(ranges);
        }
        let ranges = self.container.ranges(options(call)?).await?;
        let mut known = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((ranges.clone(), Instant::now()));
        Ok(ranges)
    }
}

fn query_of(query: &Query) -> cosmos_driver::Query {
    let text = cosmos_driver::Query::new(query.text);
    query.parameters.iter().fold(text, |text, (name, value)| text.with(*name, value.clone()))
}

fn options(call: Call) -> Result<CallOptions, Fault> {
    let remaining = call.remaining();
    if remaining.is_zero() {
        return Err(Fault::transient(format!("{}: no time is left (timeout)", call.operation)));
    }
    Ok(CallOptions::default().with_timeout(remaining))
}

fn item_options(call: Call) -> Result<ItemOptions, Fault> {
    Ok(ItemOptions::from(options(call)?))
}

fn etag_of(response: &Response) -> String {
    response.etag().unwrap_or_default().to_owned()
}

fn record(call: Call, begun: Instant, charge: f64) {
    metrics::counter!("duroxide_cdb_requests_total", "operation" => call.operation).increment(1);
    metrics::histogram!("duroxide_cdb_request_units", "operation" => call.operation).record(charge);
    metrics::histogram!("duroxide_cdb_request_seconds", "operation" => call.operation)
        .record(begun.elapsed());
}

const APPLICATION: &str = concat!("duroxide-cdb/", env!("CARGO_PKG_VERSION"));
const PAGE_ROWS: u32 = 1000;
const SEARCH_ROWS: u32 = 100;
const RANGES_AT_ONCE: usize = 16;
const RANGES_FOR: Duration = Duration::from_secs(60);
/// Room for the wrapping of one operation in a batch.
const OPERATION_BYTES: usize = 160;
