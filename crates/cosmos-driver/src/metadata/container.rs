//! Containers by name: their identity, key definition, ranges and session.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use cosmos_wire::header;
use cosmos_wire::partition_key::Definition;
use cosmos_wire::resource::{Link, ResourceKind};
use http::HeaderValue;
use http::header::HeaderName;
use http::uri::PathAndQuery;
use serde::Deserialize;
use tokio::sync::Mutex;

use super::ranges::{RangeDocument, RangeMap};
use crate::driver::Core;
use crate::error::Error;
use crate::operation::{Call, run};
use crate::options::CallOptions;
use crate::request::{Kind, Operation};
use crate::response::Response;
use crate::routing::sessions::Sessions;

/// What is known about one container. Replaced when the name turns out to mean another container.
#[derive(Debug)]
pub(crate) struct ContainerInfo {
    /// `database/container`, for logs and fault rules.
    pub(crate) name: Arc<str>,
    pub(crate) rid: Arc<str>,
    pub(crate) rid_header: HeaderValue,
    pub(crate) definition: Definition,
    pub(crate) ranges: ArcSwap<RangeMap>,
    pub(crate) sessions: Sessions,
}

impl ContainerInfo {
    /// Replaces the ranges.
    fn set_ranges(&self, ranges: Arc<RangeMap>) {
        self.ranges.store(ranges);
        self.relist();
    }

    /// Learns a session token from an answer.
    pub(crate) fn learn(&self, token: &HeaderValue) {
        if self.sessions.learn(token, |range| self.ranges.load().knows(range)) {
            self.relist();
        }
    }

    fn relist(&self) {
        self.sessions.relist(|range| self.ranges.load().knows(range));
    }
}

/// A container by name, with what is known about it.
#[derive(Debug)]
pub(crate) struct ContainerCell {
    pub(crate) database: String,
    pub(crate) id: String,
    /// As signed: `dbs/d/colls/c`.
    pub(crate) link: Arc<str>,
    /// As sent: `/dbs/d/colls/c`, encoded.
    pub(crate) path: PathAndQuery,
    /// Its feed of items.
    pub(crate) docs_path: PathAndQuery,
    /// Its feed of partition key ranges.
    ranges_path: PathAndQuery,
    info: ArcSwapOption<ContainerInfo>,
    fetching: Mutex<()>,
}

#[derive(Deserialize)]
struct ContainerDocument {
    #[serde(rename = "_rid")]
    rid: String,
    #[serde(rename = "partitionKey")]
    partition_key: serde_json::Value,
}

#[derive(Deserialize)]
struct RangeFeed {
    #[serde(rename = "PartitionKeyRanges")]
    ranges: Vec<RangeDocument>,
}

impl ContainerCell {
    pub(crate) fn new(database: &str, id: &str) -> Result<Self, Error> {
        crate::limits::resource_id("database", database)?;
        crate::limits::resource_id("container", id)?;
        let link = Link::container(database, id);
        Ok(Self {
            database: database.to_owned(),
            id: id.to_owned(),
            link: link.to_string().into(),
            path: path_of(link.to_path())?,
            docs_path: path_of(link.clone().feed(ResourceKind::Document).to_path())?,
            ranges_path: path_of(link.feed(ResourceKind::PartitionKeyRange).to_path())?,
            info: ArcSwapOption::empty(),
            fetching: Mutex::new(()),
        })
    }

    /// What is known, read from the service the first time.
    pub(crate) async fn info(&self, core: &Arc<Core>, call: &Call<'_>) -> Result<Arc<ContainerInfo>, Error> {
        if let Some(info) = self.info.load_full() {
            return Ok(info);
        }
        // The lock makes the first read single-flight; a dropped caller releases it.
        let fetch = async {
            let _one = self.fetching.lock().await;
            if let Some(info) = self.info.load_full() {
                return Ok(info);
            }
            let fresh = Arc::new(self.fetch(core, call).await?);
            self.info.store(Some(fresh.clone()));
            Ok(fresh)
        };
        call.within(Box::pin(fetch)).await
    }

    /// Reads the container again after the service said that the name is stale. `seen` is what the caller used.
    pub(crate) async fn refresh(
        &self,
        core: &Arc<Core>,
        call: &Call<'_>,
        seen: &Arc<ContainerInfo>,
    ) -> Result<Arc<ContainerInfo>, Error> {
        let _one = self.fetching.lock().await;
        if let Some(info) = self.info.load_full()
            && !Arc::ptr_eq(&info, seen)
        {
            return Ok(info);
        }
        let fresh = Arc::new(self.fetch(core, call).await?);
        if fresh.rid == seen.rid {
            seen.set_ranges(fresh.ranges.load_full());
            return Ok(seen.clone());
        }
        self.info.store(Some(fresh.clone()));
        Ok(fresh)
    }

    /// Reads the ranges again, unless another operation already did since `seen`.
    pub(crate) async fn refresh_ranges(
        &self,
        core: &Arc<Core>,
        call: &Call<'_>,
        info: &Arc<ContainerInfo>,
        seen: &Arc<RangeMap>,
    ) -> Result<(), Error> {
        let _one = self.fetching.lock().await;
        if Arc::ptr_eq(&info.ranges.load_full(), seen) {
            info.set_ranges(Arc::new(self.fetch_ranges(core, call).await?));
        }
        Ok(())
    }

    /// Reads the ranges again because one has answered that is not among them, unless something is being read already.
    pub(crate) async fn list_ranges(&self, core: &Arc<Core>, info: &Arc<ContainerInfo>) {
        let Ok(_one) = self.fetching.try_lock() else { return };
        if !info.sessions.has_unlisted() {
            return;
        }
        let options = CallOptions::default();
        let call = Call::start(core, &options);
        match call.within(self.fetch_ranges(core, &call)).await {
            Ok(ranges) => info.set_ranges(Arc::new(ranges)),
            Err(error) => tracing::debug!(%error, "range refresh failed"),
        }
    }

    /// What is known already.
    pub(crate) fn known(&self) -> Option<Arc<ContainerInfo>> {
        self.info.load_full()
    }

    /// Forgets what is known: the container was deleted or replaced through this driver.
    pub(crate) fn forget(&self) {
        self.info.store(None);
    }

    async fn fetch(&self, core: &Arc<Core>, call: &Call<'_>) -> Result<ContainerInfo, Error> {
        let operation = self.operation(Kind::ReadContainer, ResourceKind::Container, &self.path);
        let document: ContainerDocument = metadata(core, operation, call).await?.json()?;
        let definition = Definition::from_json(&document.partition_key)
            .map_err(|e| Error::protocol(format!("container {}: {e}", self.link)))?;
        let ranges = self.fetch_ranges(core, call).await?;
        let rid_header = HeaderValue::from_str(&document.rid).map_err(|_| {
            Error::protocol(format!("container {} has the rid {:?}", self.link, document.rid))
        })?;
        Ok(ContainerInfo {
            name: format!("{}/{}", self.database, self.id).into(),
            rid: document.rid.into(),
            rid_header,
            definition,
            ranges: ArcSwap::from_pointee(ranges),
            sessions: Sessions::default(),
        })
    }

    /// Drains the range feed: it is complete only when the service says that nothing is left.
    async fn fetch_ranges(&self, core: &Arc<Core>, call: &Call<'_>) -> Result<RangeMap, Error> {
        let mut documents = Vec::new();
        let mut etag: Option<HeaderValue> = None;
        let mut region = None;
        for _ in 0..RANGE_PAGES_MAX {
            let mut operation =
                self.operation(Kind::ReadRanges, ResourceKind::PartitionKeyRange, &self.ranges_path);
            operation
                .headers
                .push((HeaderName::from_static(header::MAX_ITEM_COUNT), HeaderValue::from_static("-1")));
            operation.if_none_match.clone_from(&etag);
            // Regions learn of a split at different times: what one began, it also ends.
            operation.pinned = region;
            let page = metadata(core, operation, call).await?;
            region = page.diagnostics().winner().map(|attempt| attempt.region.clone());
            if page.is_not_modified() {
                break;
            }
            let feed: RangeFeed = page.json()?;
            let is_last = feed.ranges.is_empty() || page.etag().is_none();
            documents.extend(feed.ranges);
            etag = page.etag().and_then(|text| HeaderValue::from_str(text).ok());
            if is_last {
                break;
            }
        }
        RangeMap::build(&documents)
    }

    pub(crate) fn operation(&self, kind: Kind, resource: ResourceKind, path: &PathAndQuery) -> Operation {
        Operation::new(kind, resource, self.link.clone(), path.clone())
    }
}

/// Metadata goes through the same pipeline. Boxed: an operation may refresh metadata on its way.
async fn metadata(core: &Arc<Core>, operation: Operation, call: &Call<'_>) -> Result<Response, Error> {
    Box::pin(run(core, operation, call)).await
}

pub(crate) fn path_of(path: String) -> Result<PathAndQuery, Error> {
    PathAndQuery::try_from(path).map_err(|e| Error::limit(format!("the resource's path cannot be sent: {e}")))
}

const RANGE_PAGES_MAX: usize = 1000;
