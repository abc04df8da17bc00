//! The container's documents as they are stored, for what the framework's interface does not show.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cosmos_driver::{
    Batch, CallOptions, Container, ContentResponse, Diagnostics, Error, ErrorKind, FeedRange, ItemOptions,
    Page, PartitionKey, Query, QueryOptions, Response, Scope,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::clock::ServiceClock;
use crate::model::{Head, Partition, legible, text_of};
use crate::output::{plural, say};

/// The documents of one container.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    container: Container,
    meter: Arc<Meter>,
    clock: Arc<ServiceClock>,
    /// The physical partitions when somebody first asked: their parts of the key space stay good when they split.
    parts: Arc<OnceCell<Vec<FeedRange>>>,
}

/// What reading and writing documents was charged.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    requests: AtomicU64,
    /// Thousandths of a request unit.
    milli_units: AtomicU64,
    /// Whether the account throttled the last request.
    is_throttled: AtomicBool,
}

impl Meter {
    /// Adds an answer.
    pub(crate) fn add(&self, request_units: f64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // Charges are positive and have two digits.
        self.milli_units.fetch_add((request_units * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Takes note of how a request went.
    fn note(&self, tried: &Diagnostics) {
        let is_throttled =
            tried.attempts().iter().any(|attempt| attempt.status.is_some_and(|status| status.code == 429));
        self.is_throttled.store(is_throttled, Ordering::Relaxed);
    }

    /// Whether the account throttled the last request.
    pub(crate) fn is_throttled(&self) -> bool {
        self.is_throttled.load(Ordering::Relaxed)
    }

    /// Answers, and request units, so far.
    pub(crate) fn read(&self) -> (u64, f64) {
        let units = self.milli_units.load(Ordering::Relaxed) as f64 / 1000.0;
        (self.requests.load(Ordering::Relaxed), units)
    }
}

/// Rows of a query, and those that cannot be read.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) unreadable: Vec<Value>,
}

/// Says which instances are passed over because they cannot be read, and how to look at them.
pub(crate) fn tell_unreadable(rows: &[Value]) {
    if let Some(sentence) = unreadable_sentence(rows) {
        say(sentence);
    }
}

/// The sentence about instances that are passed over, if any are.
pub(crate) fn unreadable_sentence(rows: &[Value]) -> Option<String> {
    let names: Vec<&str> = rows.iter().map(|row| text_of(row, "instanceId")).collect();
    let first = names.first()?;
    let shown: Vec<String> = names.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    Some(format!(
        "{} cannot be read: {}{more}. `cdb why {first:?}` says why, `cdb fsck` finds all of them, \
         `cdb delete {first:?} --force` removes one",
        plural(names.len(), "instance"),
        shown.join(", ")
    ))
}

/// How a conditional or creating write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It was done.
    Done,
    /// The document is there already, has changed, or is gone.
    Refused,
}

impl Documents {
    /// Of this container.
    pub(crate) fn new(container: Container) -> Self {
        Self { container, meter: Arc::default(), clock: Arc::default(), parts: Arc::default() }
    }

    /// The same with a meter of its own.
    pub(crate) fn metered(&self) -> Self {
        Self { meter: Arc::default(), ..self.clone() }
    }

    /// What was charged so far.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The service's time, as far as the answers so far tell it.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The container itself.
    pub(crate) fn container(&self) -> &Container {
        &self.container
    }

    /// Rows of a query in every physical partition, one partition after the other: the order is that of the parts. Each
    /// is read as far as it can be.
    pub(crate) async fn query_all<T: DeserializeOwned>(&self, query: Query) -> anyhow::Result<Vec<T>> {
        Ok(self.raw(query).await?.iter().filter_map(legible).collect())
    }

    /// The same, with those that cannot be read as a whole apart.
    pub(crate) async fn query_strictly<T: DeserializeOwned>(&self, query: Query) -> anyhow::Result<Rows<T>> {
        let mut found = Rows { rows: Vec::new(), unreadable: Vec::new() };
        for row in self.raw(query).await? {
            match T::deserialize(&row) {
                Ok(read) => found.rows.push(read),
                Err(_) => found.unreadable.push(row),
            }
        }
        Ok(found)
    }

    async fn raw(&self, query: Query) -> anyhow::Result<Vec<Value>> {
        let mut rows = Vec::new();
        for range in self.ranges().await? {
            rows.append(&mut self.collect(query.clone(), Scope::Range(range)).await?);
        }
        Ok(rows)
    }

    /// Takes note of what a page cost, and of the time.
    fn note(&self, page: &Page) {
        self.meter.add(page.charge());
        self.meter.note(page.diagnostics());
        self.clock.learn(page.date());
    }

    async fn collect(&self, query: Query, scope: Scope) -> anyhow::Result<Vec<Value>> {
        let mut rows = Vec::new();
        let mut pages = self.container.query(query, scope, QueryOptions::default());
        while let Some(page) = pages.next().await? {
            self.note(&page);
            rows.append(&mut page.items()?);
        }
        Ok(rows)
    }

    /// Rows of a query in every physical partition, in no order, until there are so many; and whether there are more.
    pub(crate) async fn up_to(&self, query: Query, rows: u32) -> anyhow::Result<(Vec<Value>, bool)> {
        let mut found: Vec<Value> = Vec::new();
        for part in self.parts.get_or_try_init(|| self.ranges()).await? {
            let options = QueryOptions::default().with_page_size(rows.min(PAGE_ROWS_MAX));
            let mut pages = self.container.query(query.clone(), Scope::Range(part.clone()), options);
            while let Some(page) = pages.next().await? {
                self.note(&page);
                found.append(&mut page.items()?);
                if found.len() >= rows as usize {
                    return Ok((found, true));
                }
            }
        }
        Ok((found, false))
    }

    /// One page of a query over the whole container, in the query's order, and where the next begins.
    pub(crate) async fn page(
        &self,
        query: Query,
        rows: u32,
        continuation: Option<&str>,
    ) -> anyhow::Result<(Vec<Value>, Option<String>)> {
        let mut options = QueryOptions::default().with_page_size(rows);
        if let Some(continuation) = continuation {
            options = options.with_continuation(continuation);
        }
        // As one range: where one physical partition holds all of it the query needs no plan, and a page without rows
        // tells what it cost.
        let all = FeedRange { id: String::new(), min: String::new(), max: "FF".to_owned() };
        let page = self.container.query(query, Scope::Range(all), options).next().await?;
        let Some(page) = page else { return Ok((Vec::new(), None)) };
        self.note(&page);
        Ok((page.items()?, page.continuation().map(str::to_owned)))
    }

    /// The physical partitions.
    pub(crate) async fn ranges(&self) -> anyhow::Result<Vec<FeedRange>> {
        Ok(self.container.ranges(cosmos_driver::CallOptions::default()).await?)
    }

    /// Rows of a query, page by page.
    pub(crate) fn pages(&self, query: Query, scope: Scope) -> cosmos_driver::Pager {
        self.container.query(query, scope, QueryOptions::default().with_page_size(PAGE_ROWS))
    }

    /// Rows of a query in one instance's partition, each read as far as it can be.
    pub(crate) async fn query<T: DeserializeOwned>(
        &self,
        partition: &str,
        query: Query,
    ) -> anyhow::Result<Vec<T>> {
        let scope = Scope::PartitionKey(PartitionKey::from(partition));
        let rows = self.collect(query, scope).await?;
        Ok(rows.iter().filter_map(legible).collect())
    }

    /// Everything in one instance's partition.
    pub(crate) async fn partition(&self, partition: &str) -> anyhow::Result<Vec<Value>> {
        self.query(partition, Query::new("SELECT * FROM c")).await
    }

    /// Whether listings show an instance with this id.
    pub(crate) async fn is_instance(&self, partition: &str) -> anyhow::Result<bool> {
        let heads: Vec<Head> =
            self.query(partition, Query::new("SELECT * FROM c WHERE c.type = 'instance'")).await?;
        Ok(heads.iter().any(Head::is_visible))
    }

    /// The head of an instance, also while it is being deleted.
    pub(crate) async fn head(&self, partition: &str) -> anyhow::Result<Option<Head>> {
        let heads = Query::new("SELECT * FROM c WHERE c.type IN ('instance', 'deleting')");
        Ok(self.query(partition, heads).await?.into_iter().next())
    }

    /// Whether the head of an instance cannot be read as a whole.
    pub(crate) async fn is_unreadable(&self, partition: &str) -> anyhow::Result<bool> {
        let heads = Query::new("SELECT * FROM c WHERE c.type IN ('instance', 'deleting')");
        Ok(!Partition::new(self.query(partition, heads).await?).unreadable().is_empty())
    }

    /// One document.
    pub(crate) async fn read(&self, partition: &str, id: &str) -> anyhow::Result<Option<Value>> {
        match self.container.read_item(partition, id, ItemOptions::default()).await {
            Ok(response) => {
                self.meter.add(response.charge());
                self.clock.learn(response.date());
                Ok(Some(response.json()?))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a document.
    pub(crate) async fn create(&self, partition: &str, document: &Value) -> anyhow::Result<Written> {
        written(self.noted(self.container.create_item(partition, document, ItemOptions::default()).await))
    }

    /// Takes note of what a write cost and how it went.
    fn noted(&self, outcome: Result<Response, Error>) -> Result<Response, Error> {
        let (charge, tried) = match &outcome {
            Ok(response) => (response.charge(), response.diagnostics()),
            Err(error) => (error.charge(), error.diagnostics()),
        };
        self.meter.add(charge);
        self.meter.note(tried);
        outcome
    }

    /// Creates documents of one partition, all or none.
    pub(crate) async fn create_all(&self, partition: &str, documents: &[Value]) -> anyhow::Result<Written> {
        let batch = Batch::new(partition).with_content(ContentResponse::Minimal);
        let batch =
            documents.iter().fold(batch, |batch, document| batch.create(Bytes::from(document.to_string())));
        let response = self.container.batch(batch, CallOptions::default()).await?;
        self.meter.add(response.response().charge());
        self.meter.note(response.response().diagnostics());
        Ok(if response.failed().is_none() { Written::Done } else { Written::Refused })
    }

    /// Replaces a document that still has this ETag.
    pub(crate) async fn replace(
        &self,
        partition: &str,
        id: &str,
        document: &Value,
        etag: &str,
    ) -> anyhow::Result<Written> {
        let options = ItemOptions::default().with_if_match(etag);
        written(self.container.replace_item(partition, id, document, options).await)
    }

    /// Deletes a document that still has this ETag.
    pub(crate) async fn delete(&self, partition: &str, id: &str, etag: &str) -> anyhow::Result<Written> {
        let options = ItemOptions::default().with_if_match(etag);
        written(self.container.delete_item(partition, id, options).await)
    }
}

fn written(outcome: Result<cosmos_driver::Response, cosmos_driver::Error>) -> anyhow::Result<Written> {
    match outcome {
        Ok(_) => Ok(Written::Done),
        Err(error) => match error.kind() {
            ErrorKind::Conflict | ErrorKind::PreconditionFailed | ErrorKind::NotFound => Ok(Written::Refused),
            _ => Err(error.into()),
        },
    }
}

/// More than this nobody asks for at once.
const PAGE_ROWS_MAX: u32 = 1000;
/// Rows asked for at once; the service cuts pages at 4 MB anyway.
const PAGE_ROWS: u32 = 500;
/// So many instances are named in one sentence.
const NAMED_MAX: usize = 5;
