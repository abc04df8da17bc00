//! Queries.
//!
//! A query over one logical partition is one stream of pages, served by the service as it is. A query over more asks
//! the gateway for a plan first, then runs the planned text on every range it touches, in parallel, and puts the
//! parts together here.

use bytes::Bytes;
use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::header;
use cosmos_wire::partition_key::PartitionKey;
use http::HeaderValue;
use http::header::HeaderName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::container::{Container, FeedRange};
use crate::database::{json, resume};
use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::limits;
use crate::operation::Call;
use crate::operation::request::{Kind, Operation, Target};
use crate::options::CallOptions;
use crate::response::Response;

/// A query text with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[must_use]
pub struct Query {
    query: String,
    parameters: Vec<Parameter>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Parameter {
    name: String,
    value: Value,
}

impl Query {
    /// A query without parameters.
    pub fn new(text: impl Into<String>) -> Self {
        Self { query: text.into(), parameters: Vec::new() }
    }

    /// Adds a parameter, such as `@id`.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.parameters.push(Parameter { name: name.into(), value: value.into() });
        self
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.query
    }
}

impl From<&str> for Query {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Query {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// Which part of a container a query or change feed covers.
#[derive(Clone, Debug, PartialEq)]
pub enum Scope {
    /// One logical partition.
    PartitionKey(PartitionKey),
    /// One part of the key space, from [`Container::ranges`].
    Range(FeedRange),
    /// Everything.
    Container,
}

impl From<PartitionKey> for Scope {
    fn from(key: PartitionKey) -> Self {
        Self::PartitionKey(key)
    }
}

impl From<FeedRange> for Scope {
    fn from(range: FeedRange) -> Self {
        Self::Range(range)
    }
}

impl FeedRange {
    pub(crate) fn bounds(&self) -> Result<EpkRange, Error> {
        let epk = |text: &str| {
            text.parse::<Epk>()
                .map_err(|_| Error::bad_request(format!("range bound {text:?} is not hexadecimal")))
        };
        Ok(EpkRange::new(epk(&self.min)?, epk(&self.max)?))
    }
}

/// Options of queries.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct QueryOptions {
    /// What every call can say. The timeout counts per page.
    pub call: CallOptions,
    /// Most items per page. Default: the service chooses.
    pub page_size: Option<u32>,
    /// Where an earlier page's [`Page::continuation`] left off.
    pub continuation: Option<String>,
    /// Ranges asked at the same time. Default 16.
    pub parallelism: Option<usize>,
}

impl QueryOptions {
    /// Sets the most items per page.
    #[must_use]
    pub fn with_page_size(mut self, items: u32) -> Self {
        self.page_size = Some(items);
        self
    }

    /// Goes on where an earlier page left off.
    #[must_use]
    pub fn with_continuation(mut self, continuation: impl Into<String>) -> Self {
        self.continuation = Some(continuation.into());
        self
    }

    /// Sets how many ranges are asked at the same time.
    #[must_use]
    pub fn with_parallelism(mut self, ranges: usize) -> Self {
        self.parallelism = Some(ranges);
        self
    }

    /// Sets what every call can say.
    #[must_use]
    pub fn with_call(mut self, call: CallOptions) -> Self {
        self.call = call;
        self
    }
}

/// One page of results.
#[derive(Debug)]
pub struct Page {
    rows: Rows,
    continuation: Option<String>,
    charge: f64,
    diagnostics: Diagnostics,
    session_token: Option<String>,
}

#[derive(Debug)]
enum Rows {
    /// As the service sent it; read once, straight into the caller's type.
    Body(Bytes),
    /// Put together here.
    Values(Vec<Box<RawValue>>),
}

/// The body of a feed answer.
#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(crate) struct Feed<T> {
    #[serde(rename = "Documents")]
    pub(crate) documents: Vec<T>,
}

impl Page {
    fn direct(response: Response, continuation: Option<String>) -> Self {
        Self {
            continuation,
            charge: response.charge(),
            session_token: response.session_token().map(str::to_owned),
            rows: Rows::Body(response.body().clone()),
            diagnostics: response.into_diagnostics(),
        }
    }

    /// The rows.
    ///
    /// # Errors
    /// When they do not fit the type.
    pub fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        let misfit = |e| Error::serialization("a row does not fit the type asked for", e);
        match &self.rows {
            Rows::Body(body) => Ok(serde_json::from_slice::<Feed<T>>(body).map_err(misfit)?.documents),
            Rows::Values(values) => {
                values.iter().map(|value| serde_json::from_str(value.get()).map_err(misfit)).collect()
            }
        }
    }

    /// Where to go on, if there is more. Survives splits and restarts.
    #[must_use]
    pub fn continuation(&self) -> Option<&str> {
        self.continuation.as_deref()
    }

    /// Request units of this page, over all ranges asked for it.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.charge
    }

    /// The session token after this page, for queries over one partition.
    #[must_use]
    pub fn session_token(&self) -> Option<&str> {
        self.session_token.as_deref()
    }

    /// Everything that was tried for this page.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }
}

/// Reads a query page by page.
#[derive(Debug)]
pub struct Pager {
    container: Container,
    query: Query,
    scope: Scope,
    options: QueryOptions,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Direct { continuation: Option<String> },
    Done,
}

impl Pager {
    pub(crate) fn new(container: Container, query: Query, scope: Scope, options: QueryOptions) -> Self {
        Self { container, query, scope, options, state: State::New }
    }

    /// The next page; `None` after the last. A page may be empty and still have a successor.
    ///
    /// # Errors
    /// As any operation. The pager can be asked again after an error; it has not moved.
    pub async fn next(&mut self) -> Result<Option<Page>, Error> {
        limits::query(&self.query.query)?;
        let call_options = self.options.call.clone();
        let core = self.container.driver().core.clone();
        let call = Call::start(&core, &call_options);
        let continuation = match &self.state {
            State::Done => return Ok(None),
            State::New => self.options.continuation.clone(),
            State::Direct { continuation } => continuation.clone(),
        };
        let mut operation = self.operation(&self.query)?;
        match &self.scope {
            Scope::PartitionKey(key) => self.container.aim(&mut operation, key, &call).await?,
            Scope::Range(range) => {
                operation.container = Some(self.container.cell().info(&core, &call).await?);
                operation.target = range_target(range.bounds()?)?;
            }
            Scope::Container => {
                operation.container = Some(self.container.cell().info(&core, &call).await?);
                operation.target = Target::All;
            }
        }
        resume(&mut operation, continuation.as_deref())?;
        let response = self.container.run(operation, &call).await?;
        let continuation = response.continuation().map(str::to_owned);
        self.state = match &continuation {
            Some(_) => State::Direct { continuation: continuation.clone() },
            None => State::Done,
        };
        Ok(Some(Page::direct(response, continuation)))
    }

    /// All remaining rows.
    ///
    /// # Errors
    /// As any operation, or when a row does not fit the type.
    pub async fn collect<T: DeserializeOwned>(mut self) -> Result<Vec<T>, Error> {
        let mut rows = Vec::new();
        while let Some(page) = self.next().await? {
            rows.append(&mut page.items()?);
        }
        Ok(rows)
    }

    fn operation(&self, query: &Query) -> Result<Operation, Error> {
        let cell = self.container.cell();
        let mut operation = Operation::new(Kind::Query, "docs", cell.link.clone(), cell.docs_path.clone());
        operation.body = json(query)?;
        operation.consistency = self.options.call.consistency;
        if let Some(size) = self.options.page_size {
            operation
                .headers
                .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from(size)));
        }
        Ok(operation)
    }
}

/// Points an operation at part of the key space.
pub(crate) fn range_target(want: EpkRange) -> Result<Target, Error> {
    let header = |epk: &Epk| {
        HeaderValue::try_from(epk.to_hex())
            .map_err(|_| Error::bad_request("a range bound cannot be sent in a header"))
    };
    let bounds = (header(&want.min)?, header(&want.max)?);
    Ok(Target::Range { want, bounds })
}
