//! What the engine is asked and what it answers: the vocabulary between the HTTP layer and the engine.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;
use serde_json::Value;

use super::patch::Patch;
use crate::Failure;
use crate::storage::Ticket;

/// Headers that make a request conditional, as they came (with their quotes).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match`: write only if the item still has this etag; `*` matches any item.
    pub if_match: Option<String>,
    /// `If-None-Match`: answer 304 if the item still has this etag; `*` on a write refuses an existing item.
    pub if_none_match: Option<String>,
}

/// One operation on one item.
#[derive(Debug, Clone)]
pub struct ItemRequest {
    /// The partition-key header; `None` when it was absent.
    pub partition_key: Option<PartitionKey>,
    /// What to do.
    pub op: ItemOp,
    /// When to do it.
    pub conditions: Conditions,
    /// `x-ms-session-token` of a read.
    pub session_token: Option<String>,
}

/// What can be done to an item.
#[derive(Debug, Clone)]
pub enum ItemOp {
    /// Adds an item whose id must be new in its logical partition.
    Create {
        /// The document, JSON text.
        body: Bytes,
    },
    /// Adds or replaces the item with the document's id.
    Upsert {
        /// The document, JSON text.
        body: Bytes,
    },
    /// Replaces an existing item.
    Replace {
        /// Id in the URL.
        id: String,
        /// The document, JSON text.
        body: Bytes,
    },
    /// Reads an item.
    Read {
        /// Id in the URL.
        id: String,
    },
    /// Removes an item.
    Delete {
        /// Id in the URL.
        id: String,
    },
    /// Changes parts of an item.
    Patch {
        /// Id in the URL.
        id: String,
        /// What to change; see [`Patch::parse`].
        patch: Patch,
    },
}

/// Where a container stood when it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Id of the physical partition that answered.
    pub range_id: u32,
    /// Its LSN after the request.
    pub lsn: u64,
    /// `x-ms-session-token` of the answer.
    pub session_token: String,
}

/// The answer to one item operation.
#[derive(Debug, Clone)]
pub struct ItemReply {
    /// 200, 201, 204 or 304.
    pub status: u16,
    /// The stored document; empty for 204 and 304.
    pub body: Bytes,
    /// The item's etag, with its quotes.
    pub etag: Option<String>,
    /// RUs.
    pub charge: f64,
    /// LSN of the item's last change.
    pub item_lsn: Option<u64>,
    /// Which partition answered, and how far it is.
    pub standing: Standing,
    /// For writes: wait for it before answering.
    pub ticket: Option<Ticket>,
}

/// One step of a batch.
#[derive(Debug, Clone)]
pub struct BatchOperation {
    /// What to do.
    pub op: ItemOp,
    /// When to do it.
    pub conditions: Conditions,
    /// Key of this step; a bulk request has one per step, an atomic batch may repeat its own.
    pub partition_key: Option<PartitionKey>,
}

/// A batch or a bulk request.
#[derive(Debug, Clone)]
pub struct BatchRequest {
    /// How the steps depend on each other.
    pub mode: BatchMode,
    /// The partition-key header: required for an atomic batch.
    pub partition_key: Option<PartitionKey>,
    /// Id of the physical partition that a bulk request is for, where it names one.
    pub range: Option<String>,
    /// In order.
    pub operations: Vec<BatchOperation>,
    /// Which documents are wanted back.
    pub content: Content,
    /// Size of the request's body, for the 2 MB limit.
    pub body_bytes: usize,
    /// `x-ms-session-token`.
    pub session_token: Option<String>,
}

/// How the steps of a batch depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchMode {
    /// All or nothing, one logical partition, one LSN.
    Atomic,
    /// Each step on its own; a failed step does not stop the others.
    Bulk,
    /// Each step on its own; the first failed step stops the rest (424).
    BulkUntilFailure,
}

/// Whose documents the answer to a batch brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Those of all steps.
    All,
    /// Those that were read; what was written is known to the client.
    Reads,
}

/// The answer to one step of a batch.
#[derive(Debug, Clone)]
pub struct BatchResult {
    /// HTTP status of the step.
    pub status: u16,
    /// Sub-status; 0 when there is none.
    pub sub_status: u32,
    /// Etag of the item, with its quotes.
    pub etag: Option<String>,
    /// The stored document of a successful step, if it is wanted back; empty otherwise.
    pub body: Bytes,
    /// RUs of the step.
    pub charge: f64,
    /// How long to wait before a step that was refused with 429 is tried again.
    pub retry_after: Option<Duration>,
    /// Why the step failed.
    pub message: Option<String>,
}

/// The answer to a batch.
#[derive(Debug, Clone)]
pub struct BatchReply {
    /// 200, or 207 when a step failed.
    pub status: u16,
    /// One per step, in order.
    pub results: Vec<BatchResult>,
    /// RUs of the whole batch.
    pub charge: f64,
    /// The partition that answered: the one of the key, or of the last step of a bulk request.
    pub standing: Standing,
    /// Wait for it before answering.
    pub ticket: Option<Ticket>,
}

/// Which part of a container a query or a feed looks at.
#[derive(Debug, Clone, PartialEq)]
pub enum Scope {
    /// Every physical partition, one after the other.
    All,
    /// The physical partition with this id.
    Range(String),
    /// Effective partition keys from the first (inclusive) to the second (exclusive), upper-case hex.
    EpkRange(String, String),
    /// One logical partition, or with fewer components than the container's key all that share the prefix.
    PartitionKey(PartitionKey),
}

/// How many rows a page may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// As many as fit into one answer.
    Dynamic,
    /// At most this many.
    AtMost(usize),
}

impl PageSize {
    /// What the service takes when the client names none, or zero.
    pub const DEFAULT: Self = Self::AtMost(1_000);

    /// The number of rows to stop at.
    pub fn rows_max(self) -> usize {
        match self {
            Self::Dynamic => usize::MAX,
            Self::AtMost(rows) => rows,
        }
    }
}

/// One page of a query is wanted.
#[derive(Debug, Clone)]
pub struct QueryRequest {
    /// SQL.
    pub text: String,
    /// Name (with `@`) and value, in order.
    pub parameters: Vec<(String, Value)>,
    /// Where to look.
    pub scope: Scope,
    /// Rows on the page.
    pub page_size: PageSize,
    /// The token of the page before, as the engine made it.
    pub continuation: Option<String>,
    /// `x-ms-session-token`.
    pub session_token: Option<String>,
    /// The last row the client had, where it goes on by that: `resumeFilter` of the request.
    pub resume: Option<Value>,
}

/// One page of a query or a read feed.
#[derive(Debug, Clone)]
pub struct QueryPage {
    /// In order.
    pub rows: Vec<Value>,
    /// Absent on the last page.
    pub continuation: Option<String>,
    /// RUs.
    pub charge: f64,
    /// Documents read to find the rows.
    pub documents_visited: u64,
    /// The partition that answered last.
    pub standing: Standing,
}

/// One page of documents as they are stored.
#[derive(Debug, Clone)]
pub struct DocumentPage {
    /// JSON texts, in order.
    pub documents: Vec<Bytes>,
    /// Absent on the last page.
    pub continuation: Option<String>,
    /// RUs.
    pub charge: f64,
    /// The partition that answered last.
    pub standing: Standing,
}

/// All items of a scope are wanted, page by page.
#[derive(Debug, Clone)]
pub struct ReadFeedRequest {
    /// Where to look.
    pub scope: Scope,
    /// Rows on the page.
    pub page_size: PageSize,
    /// The token of the page before.
    pub continuation: Option<String>,
    /// `x-ms-session-token`.
    pub session_token: Option<String>,
}

/// Where a change feed begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedStart {
    /// With the oldest change.
    Beginning,
    /// With the next change: `If-None-Match: *`.
    Now,
    /// With the first change at or after a time: `If-Modified-Since`.
    Time(SystemTime),
    /// Behind a page: `If-None-Match` with that page's etag, quotes or not.
    After(String),
}

/// Changes of a scope are wanted.
#[derive(Debug, Clone)]
pub struct FeedRequest {
    /// Where to look. A feed answers for one physical partition: `All` is only possible while there is one.
    pub scope: Scope,
    /// Where to begin.
    pub start: FeedStart,
    /// Documents on the page; whole transactions are never cut.
    pub page_size: PageSize,
    /// `x-ms-session-token`.
    pub session_token: Option<String>,
}

/// One page of a change feed.
#[derive(Debug, Clone)]
pub struct FeedPage {
    /// 200, or 304 when nothing changed.
    pub status: u16,
    /// JSON texts with `_lsn`, in order of change.
    pub documents: Vec<Bytes>,
    /// Where to go on, with quotes; always there.
    pub etag: String,
    /// RUs.
    pub charge: f64,
    /// The partition that answered.
    pub standing: Standing,
}

/// How much throughput is wanted, from the headers of a create or of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throughput {
    /// A fixed number of RU/s.
    Manual(u64),
    /// Between a tenth of it and this many RU/s, and the percentage by which the maximum grows with the data.
    Autoscale(u64, Option<u32>),
}

/// Whether replacing an offer may change its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OfferMigration {
    /// The kind stays; the body says the new number.
    #[default]
    None,
    /// `x-ms-cosmos-migrate-offer-to-autopilot`.
    ToAutoscale,
    /// `x-ms-cosmos-migrate-offer-to-manual-throughput`.
    ToManual,
}

/// The answer to an operation on a database, a container or an offer.
#[derive(Debug, Clone)]
pub struct ResourceReply {
    /// 200, 201 or 204.
    pub status: u16,
    /// The resource; `Null` for 204.
    pub body: Value,
    /// Its etag, with quotes; empty for 204.
    pub etag: String,
    /// Its resource id.
    pub rid: String,
    /// RUs.
    pub charge: f64,
    /// For writes: wait for it before answering.
    pub ticket: Option<Ticket>,
}

/// A list of resources.
#[derive(Debug, Clone)]
pub struct ResourceFeed {
    /// Resource id of the parent; empty for databases and offers.
    pub rid: String,
    /// In order of creation.
    pub resources: Vec<Value>,
    /// RUs.
    pub charge: f64,
}

/// The partition-key ranges of a container.
#[derive(Debug, Clone)]
pub struct RangesReply {
    /// 200, or 304 when nothing changed since the etag that was sent.
    pub status: u16,
    /// Documents as the service writes them; empty for 304.
    pub ranges: Vec<Value>,
    /// Of this state of the ranges, with quotes.
    pub etag: String,
    /// RUs.
    pub charge: f64,
}

/// The answer a request gets when our own disk fails.
pub(crate) fn storage_failed(error: &crate::storage::StorageError) -> Failure {
    Failure::new(
        500,
        format!("The store cannot serve the request: {error}. Check the data folder and its disk."),
    )
}
