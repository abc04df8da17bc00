//! One logical operation: what is wanted, independent of where and how often it is tried.

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::header;
use cosmos_wire::resource::ResourceKind;
use http::header::HeaderName;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method};

use crate::error::Error;
use crate::metadata::container::ContainerInfo;
use crate::options::{Consistency, OnUnknown};

/// What is done to which kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ReadAccount,
    CreateDatabase,
    ReadDatabase,
    ListDatabases,
    DeleteDatabase,
    CreateContainer,
    ReadContainer,
    ListContainers,
    ReplaceContainer,
    DeleteContainer,
    ReadRanges,
    QueryOffers,
    ReplaceOffer,
    CreateItem,
    ReadItem,
    ReplaceItem,
    UpsertItem,
    DeleteItem,
    PatchItem,
    Batch,
    Bulk,
    Query,
    QueryPlan,
    ChangeFeed,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ReadAccount => "read_account",
            Self::CreateDatabase => "create_database",
            Self::ReadDatabase => "read_database",
            Self::ListDatabases => "list_databases",
            Self::DeleteDatabase => "delete_database",
            Self::CreateContainer => "create_container",
            Self::ReadContainer => "read_container",
            Self::ListContainers => "list_containers",
            Self::ReplaceContainer => "replace_container",
            Self::DeleteContainer => "delete_container",
            Self::ReadRanges => "read_ranges",
            Self::QueryOffers => "query_offers",
            Self::ReplaceOffer => "replace_offer",
            Self::CreateItem => "create_item",
            Self::ReadItem => "read_item",
            Self::ReplaceItem => "replace_item",
            Self::UpsertItem => "upsert_item",
            Self::DeleteItem => "delete_item",
            Self::PatchItem => "patch_item",
            Self::Batch => "batch",
            Self::Bulk => "bulk",
            Self::Query => "query",
            Self::QueryPlan => "query_plan",
            Self::ChangeFeed => "change_feed",
        }
    }

    pub(crate) fn method(self) -> Method {
        match self {
            Self::ReadAccount
            | Self::ReadDatabase
            | Self::ListDatabases
            | Self::ReadContainer
            | Self::ListContainers
            | Self::ReadRanges
            | Self::ReadItem
            | Self::ChangeFeed => Method::GET,
            Self::CreateDatabase
            | Self::CreateContainer
            | Self::CreateItem
            | Self::UpsertItem
            | Self::Batch
            | Self::Bulk
            | Self::QueryOffers
            | Self::Query
            | Self::QueryPlan => Method::POST,
            Self::ReplaceContainer | Self::ReplaceItem | Self::ReplaceOffer => Method::PUT,
            Self::DeleteDatabase | Self::DeleteContainer | Self::DeleteItem => Method::DELETE,
            Self::PatchItem => Method::PATCH,
        }
    }

    pub(crate) fn is_read(self) -> bool {
        match self {
            Self::ReadAccount
            | Self::ReadDatabase
            | Self::ListDatabases
            | Self::ReadContainer
            | Self::ListContainers
            | Self::ReadRanges
            | Self::QueryOffers
            | Self::ReadItem
            | Self::Query
            | Self::QueryPlan
            | Self::ChangeFeed => true,
            Self::CreateDatabase
            | Self::DeleteDatabase
            | Self::CreateContainer
            | Self::ReplaceContainer
            | Self::DeleteContainer
            | Self::CreateItem
            | Self::ReplaceItem
            | Self::UpsertItem
            | Self::DeleteItem
            | Self::PatchItem
            | Self::Batch
            | Self::Bulk
            | Self::ReplaceOffer => false,
        }
    }

    /// Answers that may be large and slow.
    pub(crate) fn is_feed(self) -> bool {
        matches!(
            self,
            Self::Query
                | Self::ChangeFeed
                | Self::Batch
                | Self::Bulk
                | Self::ListContainers
                | Self::ListDatabases
        )
    }

    /// Items and what is read through them: the operations sessions and partitions are about.
    pub(crate) fn is_data(self) -> bool {
        matches!(
            self,
            Self::CreateItem
                | Self::ReadItem
                | Self::ReplaceItem
                | Self::UpsertItem
                | Self::DeleteItem
                | Self::PatchItem
                | Self::Batch
                | Self::Bulk
                | Self::Query
                | Self::ChangeFeed
        )
    }

    /// What the driver has to know before it can ask for items.
    pub(crate) fn is_metadata(self) -> bool {
        matches!(self, Self::ReadAccount | Self::ReadContainer | Self::ReadRanges | Self::QueryPlan)
    }

    /// Data reads, and writes where several regions take them. Feeds stay where they began.
    pub(crate) fn may_hedge(self) -> bool {
        self.is_data() && self != Self::ChangeFeed
    }
}

/// Which part of a container is meant.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// No part of it in particular.
    None,
    /// One logical partition.
    Key { header: HeaderValue, epk: Epk },
    /// Part of the key space, within one physical range; the bounds are sent when it is not all of it.
    Range { want: EpkRange, bounds: (HeaderValue, HeaderValue) },
}

/// Whether it may be executed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Safe,
    Unsafe,
}

/// An operation, ready to be tried.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// Kind of resource and link, which are signed.
    pub(crate) resource: ResourceKind,
    pub(crate) link: Arc<str>,
    pub(crate) path: PathAndQuery,
    pub(crate) container: Option<Arc<ContainerInfo>>,
    pub(crate) target: Target,
    pub(crate) body: Bytes,
    pub(crate) if_match: Option<HeaderValue>,
    pub(crate) if_none_match: Option<HeaderValue>,
    pub(crate) is_minimal: bool,
    pub(crate) consistency: Option<Consistency>,
    pub(crate) on_unknown: OnUnknown,
    /// Region of the pages before this one.
    pub(crate) pinned: Option<Arc<str>>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Operation {
    pub(crate) fn new(kind: Kind, resource: ResourceKind, link: Arc<str>, path: PathAndQuery) -> Self {
        Self {
            kind,
            resource,
            link,
            path,
            container: None,
            target: Target::None,
            body: Bytes::new(),
            if_match: None,
            if_none_match: None,
            is_minimal: false,
            consistency: None,
            on_unknown: OnUnknown::Report,
            pinned: None,
            headers: Vec::new(),
        }
    }

    /// Continues a feed.
    pub(crate) fn resume(&mut self, continuation: Option<&str>) -> Result<(), Error> {
        if let Some(token) = continuation {
            let value = HeaderValue::from_str(token).map_err(|_| {
                Error::bad_request("the continuation contains characters that no header can carry")
            })?;
            self.headers.push((HeaderName::from_static(header::CONTINUATION), value));
        }
        Ok(())
    }

    /// Reads always; writes under an ETag, because the second execution fails its condition (but `*` holds again);
    /// others if the caller says.
    pub(crate) fn repeat(&self) -> Repeat {
        let is_conditional =
            matches!(self.kind, Kind::ReplaceItem | Kind::DeleteItem | Kind::ReplaceContainer)
                && self.if_match.as_ref().is_some_and(|etag| etag != "*");
        // The same throughput set twice is set once.
        let is_idempotent = self.kind == Kind::ReplaceOffer;
        if self.kind.is_read() || is_conditional || is_idempotent || self.on_unknown == OnUnknown::Repeat {
            Repeat::Safe
        } else {
            Repeat::Unsafe
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_nothing_the_second_time_is_repeated() {
        use Repeat::{Safe, Unsafe};
        let cases = [
            (Kind::ReadItem, None, Safe),
            (Kind::Query, None, Safe),
            (Kind::CreateItem, None, Unsafe),
            (Kind::UpsertItem, Some("\"1\""), Unsafe),
            (Kind::PatchItem, Some("\"1\""), Unsafe),
            (Kind::ReplaceItem, None, Unsafe),
            (Kind::ReplaceItem, Some("\"1\""), Safe),
            (Kind::ReplaceItem, Some("*"), Unsafe),
            (Kind::DeleteItem, Some("\"1\""), Safe),
            (Kind::DeleteItem, Some("*"), Unsafe),
            (Kind::ReplaceOffer, None, Safe),
            (Kind::Batch, None, Unsafe),
        ];
        for (kind, if_match, expected) in cases {
            let mut operation =
                Operation::new(kind, ResourceKind::Document, "".into(), PathAndQuery::from_static("/"));
            operation.if_match = if_match.map(HeaderValue::from_static);
            assert_eq!(operation.repeat(), expected, "{kind:?} {if_match:?}");
            operation.on_unknown = OnUnknown::Repeat;
            assert_eq!(operation.repeat(), Safe, "{kind:?}, allowed by the caller");
        }
    }
}
