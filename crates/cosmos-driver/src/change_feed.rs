//! Following a container's changes: the latest version of each changed item, in the order of change within a
//! logical partition.

use std::time::SystemTime;

use cosmos_wire::epk::{Epk, EpkRange, Scope as KeyScope};
use cosmos_wire::{date, header};
use http::HeaderValue;
use http::header::{HeaderName, IF_MODIFIED_SINCE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::diagnostics::Diagnostics;
use crate::error::{Error, ErrorKind};
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::operation::request::{Kind, Operation};
use crate::options::CallOptions;
use crate::query::{Feed, Scope, range_target};
use crate::response::Response;

/// Where a change feed begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeFeedStart {
    /// With the first change there is.
    Beginning,
    /// With changes from now on.
    Now,
    /// With changes since a time.
    Since(SystemTime),
    /// Where a page's [`ChangePage::continuation`] left off.
    Continuation(String),
}

/// A change feed being followed.
#[derive(Debug)]
pub struct ChangeFeed {
    container: Container,
    scope: Scope,
    start: ChangeFeedStart,
    options: CallOptions,
    page_size: i32,
    positions: Vec<Position>,
    next: usize,
}

/// How far one part of the key space has been read.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Position {
    min: String,
    max: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

impl Position {
    fn bounds(&self) -> Result<EpkRange, Error> {
        let epk = |text: &str| text.parse::<Epk>().map_err(|_| bad_continuation());
        Ok(EpkRange::new(epk(&self.min)?, epk(&self.max)?))
    }
}

/// Some changes. An empty page means that nothing has changed anywhere since the last one.
#[derive(Debug)]
pub struct ChangePage {
    response: Option<Response>,
    continuation: String,
    charge: f64,
}

impl ChangePage {
    /// The changed items.
    ///
    /// # Errors
    /// When they do not fit the type.
    pub fn items<T: DeserializeOwned>(&self) -> Result<Vec<T>, Error> {
        match &self.response {
            Some(response) => Ok(response.json::<Feed<T>>()?.documents),
            None => Ok(Vec::new()),
        }
    }

    /// True if nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.response.is_none()
    }

    /// Where to go on later, also after an empty page. Survives splits and restarts.
    #[must_use]
    pub fn continuation(&self) -> &str {
        &self.continuation
    }

    /// Request units of this page, with the ranges that had nothing.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.charge
    }

    /// Everything that was tried for the last answer.
    #[must_use]
    pub fn diagnostics(&self) -> Option<&Diagnostics> {
        self.response.as_ref().map(Response::diagnostics)
    }
}

impl ChangeFeed {
    pub(crate) fn new(
        container: Container,
        scope: Scope,
        start: ChangeFeedStart,
        options: CallOptions,
    ) -> Self {
        Self { container, scope, start, options, page_size: 100, positions: Vec::new(), next: 0 }
    }

    /// Sets the most items per page. Default 100.
    #[must_use]
    pub fn with_page_size(mut self, items: u16) -> Self {
        self.page_size = i32::from(items.max(1));
        self
    }

    /// The next changes, from whichever part of the key space has some. An empty page means: ask again later.
    ///
    /// # Errors
    /// As any operation.
    pub async fn next(&mut self) -> Result<ChangePage, Error> {
        let options = self.options.clone();
        let core = self.container.driver().core.clone();
        let call = Call::start(&core, &options);
        let info = self.container.cell().info(&core, &call).await?;
        if self.positions.is_empty() {
            self.positions = self.first_positions(&info)?;
        }
        let mut charge = 0.0;
        let mut silent = 0;
        while silent < self.positions.len() {
            let index = self.next % self.positions.len();
            let response = match self.ask(index, &info, &call).await {
                Ok(response) => response,
                Err(error) if error.kind() == ErrorKind::Unavailable && error.status() == Some(410) => {
                    self.split(index, &info)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            charge += response.charge();
            if let Some(etag) = response.etag() {
                self.positions[index].etag = Some(etag.to_owned());
            }
            self.next = index + 1;
            if !response.is_not_modified()
                && !response.json::<Feed<serde::de::IgnoredAny>>()?.documents.is_empty()
            {
                // Stay with a part that has more, so that its changes come in order without gaps.
                self.next = index;
                return Ok(ChangePage {
                    response: Some(response),
                    continuation: self.continuation()?,
                    charge,
                });
            }
            silent += 1;
        }
        Ok(ChangePage { response: None, continuation: self.continuation()?, charge })
    }

    fn continuation(&self) -> Result<String, Error> {
        serde_json::to_string(&self.positions).map_err(|e| Error::serialization("the continuation", e))
    }

    fn first_positions(&self, info: &ContainerInfo) -> Result<Vec<Position>, Error> {
        if let ChangeFeedStart::Continuation(text) = &self.start {
            let positions: Vec<Position> = serde_json::from_str(text).map_err(|_| bad_continuation())?;
            return if positions.is_empty() { Err(bad_continuation()) } else { Ok(positions) };
        }
        let bounds = match &self.scope {
            Scope::Container => EpkRange::full(),
            Scope::Range(range) => range.bounds()?,
            Scope::PartitionKey(key) => match KeyScope::of(key, &info.definition) {
                // A logical partition is addressed by its key; the bounds only say where it is.
                Ok(KeyScope::Point(epk)) => return Ok(vec![position(&EpkRange::new(epk.clone(), epk))]),
                Ok(KeyScope::Range(range)) => range,
                Err(_) => {
                    return Err(Error::limit(format!("partition key {key} does not fit the container's")));
                }
            },
        };
        let ranges = info.ranges.load();
        Ok(ranges
            .overlapping(&bounds)
            .filter_map(|r| r.bounds.intersection(&bounds))
            .map(|b| position(&b))
            .collect())
    }

    /// A part whose range was split goes on in the parts' ranges, from where it was.
    fn split(&mut self, index: usize, info: &ContainerInfo) -> Result<(), Error> {
        let old = self.positions.remove(index);
        let bounds = old.bounds()?;
        let ranges = info.ranges.load();
        let parts = ranges.overlapping(&bounds).filter_map(|range| range.bounds.intersection(&bounds));
        let parts: Vec<Position> =
            parts.map(|part| Position { etag: old.etag.clone(), ..position(&part) }).collect();
        self.positions.splice(index..index, parts);
        Ok(())
    }

    async fn ask(
        &self,
        index: usize,
        info: &std::sync::Arc<ContainerInfo>,
        call: &Call<'_>,
    ) -> Result<Response, Error> {
        let cell = self.container.cell();
        let mut operation =
            Operation::new(Kind::ChangeFeed, "docs", cell.link.clone(), cell.docs_path.clone());
        match &self.scope {
            Scope::PartitionKey(key) => self.container.aim(&mut operation, key, call).await?,
            Scope::Range(_) | Scope::Container => {
                let bounds = self.positions[index].bounds()?;
                operation.target = range_target(bounds)?;
                operation.container = Some(info.clone());
            }
        }
        operation
            .headers
            .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from(self.page_size)));
        match (&self.positions[index].etag, &self.start) {
            (Some(etag), _) => {
                operation.if_none_match = Some(HeaderValue::from_str(etag).map_err(|_| bad_continuation())?);
            }
            (None, ChangeFeedStart::Now) => operation.if_none_match = Some(HeaderValue::from_static("*")),
            (None, ChangeFeedStart::Since(time)) => {
                let date = HeaderValue::try_from(date::format(*time)).expect("a date is plain ASCII");
                operation.headers.push((IF_MODIFIED_SINCE, date));
            }
            (None, ChangeFeedStart::Beginning | ChangeFeedStart::Continuation(_)) => {}
        }
        self.container.run(operation, call).await
    }
}

fn position(bounds: &EpkRange) -> Position {
    Position { min: bounds.min.to_hex(), max: bounds.max.to_hex(), etag: None }
}

fn bad_continuation() -> Error {
    Error::bad_request("this is not a continuation of a change feed of this driver")
}
