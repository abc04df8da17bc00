//! What a query asks for.

use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::PartitionKey;
use serde::Serialize;
use serde_json::Value;

use crate::container::FeedRange;
use crate::error::Error;
use crate::options::CallOptions;

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

    pub(super) fn with_text(&self, text: String) -> Self {
        Self { query: text, parameters: self.parameters.clone() }
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
    /// Ranges asked at the same time. Default 32.
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
