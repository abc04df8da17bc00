//! Following a container's changes: the latest version of each changed item, in the order of change within a
//! logical partition.

use std::time::SystemTime;

use cosmos_wire::epk::{Epk, EpkRange, Scope as KeyScope};
use cosmos_wire::resource::ResourceKind;
use cosmos_wire::{date, header};
use http::HeaderValue;
use http::header::{HeaderName, IF_MODIFIED_SINCE};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::container::Container;
use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::options::CallOptions;
use crate::query::{Feed, Scope, range_target};
use crate::request::{Kind, Operation};
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
    /// Where it begins as long as there is no ETag.
    #[serde(default, skip_serializing_if = "Start::is_beginning")]
    start: Start,
}

/// A [`ChangeFeedStart`] as a continuation keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Start {
    #[default]
    Beginning,
    Now,
    /// A date as the service reads it.
    Since(String),
}

impl Start {
    fn is_beginning(&self) -> bool {
        *self == Self::Beginning
    }
}

impl Position {
    fn new(bounds: &EpkRange, start: Start) -> Self {
        Self { min: bounds.min.to_hex(), max: bounds.max.to_hex(), etag: None, start }
    }

    /// A logical partition is addressed by its key; its bounds only say where it is.
    fn is_key(&self) -> bool {
        self.min == self.max
    }

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
                Err(error) if error.status() == Some(410) && self.has_split(index, &info)? => {
                    self.split(index, &info)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            charge += response.charge();
            // Read first: what cannot be read must not be passed by.
            let has_changes = !response.is_not_modified()
                && !response.json::<Feed<serde::de::IgnoredAny>>()?.documents.is_empty();
            if let Some(etag) = response.etag() {
                let position = &mut self.positions[index];
                (position.etag, position.start) = (Some(etag.to_owned()), Start::Beginning);
            }
            self.next = index + 1;
            if has_changes {
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
        let start = match &self.start {
            ChangeFeedStart::Beginning => Start::Beginning,
            ChangeFeedStart::Now => Start::Now,
            ChangeFeedStart::Since(time) => Start::Since(date::format(*time)),
            ChangeFeedStart::Continuation(text) => {
                let positions: Vec<Position> = serde_json::from_str(text).map_err(|_| bad_continuation())?;
                return if positions.is_empty() { Err(bad_continuation()) } else { Ok(positions) };
            }
        };
        let bounds = match &self.scope {
            Scope::Container => EpkRange::full(),
            Scope::Range(range) => range.bounds()?,
            Scope::PartitionKey(key) => match KeyScope::of(key, &info.definition) {
                Ok(KeyScope::Point(epk)) => {
                    return Ok(vec![Position::new(&EpkRange::new(epk.clone(), epk), start)]);
                }
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
            .map(|b| Position::new(&b, start.clone()))
            .collect())
    }

    fn has_split(&self, index: usize, info: &ContainerInfo) -> Result<bool, Error> {
        let bounds = self.positions[index].bounds()?;
        Ok(!info.ranges.load().holding(&bounds.min).bounds.contains_range(&bounds))
    }

    /// A part whose range was split goes on in the parts' ranges, from where it was.
    fn split(&mut self, index: usize, info: &ContainerInfo) -> Result<(), Error> {
        let old = self.positions.remove(index);
        let bounds = old.bounds()?;
        let ranges = info.ranges.load();
        let parts = ranges.overlapping(&bounds).filter_map(|range| range.bounds.intersection(&bounds));
        let parts: Vec<Position> = parts
            .map(|part| Position { etag: old.etag.clone(), ..Position::new(&part, old.start.clone()) })
            .collect();
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
        let mut operation = Operation::new(
            Kind::ChangeFeed,
            ResourceKind::Document,
            cell.link.clone(),
            cell.docs_path.clone(),
        );
        let position = &self.positions[index];
        match &self.scope {
            Scope::PartitionKey(key) if position.is_key() => {
                self.container.aim(&mut operation, key, call).await?;
            }
            // Also the prefix of a hierarchical key.
            Scope::PartitionKey(_) | Scope::Range(_) | Scope::Container => {
                operation.target = range_target(position.bounds()?)?;
                operation.container = Some(info.clone());
            }
        }
        operation
            .headers
            .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from(self.page_size)));
        let header = |text: &str| HeaderValue::from_str(text).map_err(|_| bad_continuation());
        match (&position.etag, &position.start) {
            (Some(etag), _) => operation.if_none_match = Some(header(etag)?),
            (None, Start::Now) => operation.if_none_match = Some(HeaderValue::from_static("*")),
            (None, Start::Since(date)) => operation.headers.push((IF_MODIFIED_SINCE, header(date)?)),
            (None, Start::Beginning) => {}
        }
        self.container.run(operation, call).await
    }
}

fn bad_continuation() -> Error {
    Error::bad_request("this is not a continuation of a change feed of this driver")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_as_before_unless_their_start_matters() {
        let bounds = EpkRange::full();
        let cases = [
            (Start::Beginning, r#"{"min":"","max":"FF"}"#),
            (Start::Now, r#"{"min":"","max":"FF","start":"now"}"#),
            (Start::Since("then".to_owned()), r#"{"min":"","max":"FF","start":{"since":"then"}}"#),
        ];
        for (start, text) in cases {
            let position = Position::new(&bounds, start.clone());
            assert_eq!(serde_json::to_string(&position).expect("json"), text);
            assert_eq!(serde_json::from_str::<Position>(text).expect("a position").start, start);
        }
    }
}
