//! Options of single calls, laid over the driver's configuration.

use std::time::Duration;

use crate::config::HedgingMode;

/// What every call can say.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CallOptions {
    /// Time for the whole operation. Default: the driver's.
    pub timeout: Option<Duration>,
    /// Read at least up to this token instead of the driver's own session.
    pub session_token: Option<String>,
    /// Regions not to use for this call, besides the driver's.
    pub excluded_regions: Vec<String>,
    /// Hedging for this call. Default: the driver's.
    pub hedging: Option<HedgingMode>,
    /// A weaker consistency for this read than the account's.
    pub consistency: Option<Consistency>,
    /// How this read is made; goes before `consistency`. Default: the driver's.
    pub read_consistency: Option<ReadConsistencyStrategy>,
    /// Read in the region that takes writes, and in no other. Default: wherever reads go.
    pub at_write_region: bool,
    /// What to do with a write that may or may not have happened.
    pub on_unknown: OnUnknown,
}

/// What to do when a write broke after it may have reached the service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// Send it again only if that cannot do harm: a replace or delete under an ETag.
    #[default]
    Report,
    /// Send it again in any case: the caller knows that a second execution is recognised or harmless.
    Repeat,
}

/// Consistency of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Linearizable.
    Strong,
    /// Bounded lag.
    BoundedStaleness,
    /// Read your writes.
    Session,
    /// No gaps.
    ConsistentPrefix,
    /// Whatever is nearest.
    Eventual,
}

/// How reads of items are made, whatever consistency the account has by default. Unlike [`Consistency`] it can ask for
/// more than the account promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadConsistencyStrategy {
    /// As the account promises.
    #[default]
    Default,
    /// Whatever a replica of the region has. No session token is sent.
    Eventual,
    /// At least what this driver has written and read, or what the call's token says; a region that does not have it is
    /// left for another, in the end for the one that takes writes.
    Session,
    /// The latest that a majority of the region's replicas has. No session token is sent, and no race is run: what is the
    /// latest elsewhere may be older.
    LatestCommitted,
    /// The latest in all regions. Only accounts whose default is strong serve it; on others such a read is refused
    /// before it is sent.
    GlobalStrong,
}

impl ReadConsistencyStrategy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Default => "Default",
            Self::Eventual => "Eventual",
            Self::Session => "Session",
            Self::LatestCommitted => "LatestCommitted",
            Self::GlobalStrong => "GlobalStrong",
        }
    }
}

impl Consistency {
    /// The level that the account document names.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Strong, Self::BoundedStaleness, Self::Session, Self::ConsistentPrefix, Self::Eventual]
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(text))
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Strong => "Strong",
            Self::BoundedStaleness => "BoundedStaleness",
            Self::Session => "Session",
            Self::ConsistentPrefix => "ConsistentPrefix",
            Self::Eventual => "Eventual",
        }
    }
}

impl CallOptions {
    /// Limits the whole operation.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Reads at least up to this token.
    #[must_use]
    pub fn with_session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// Leaves regions out.
    #[must_use]
    pub fn with_excluded_regions(mut self, regions: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.excluded_regions = regions.into_iter().map(Into::into).collect();
        self
    }

    /// Sets hedging for this call.
    #[must_use]
    pub fn with_hedging(mut self, mode: HedgingMode) -> Self {
        self.hedging = Some(mode);
        self
    }

    /// Reads with a weaker consistency than the account's.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = Some(consistency);
        self
    }

    /// Sets how this read is made.
    #[must_use]
    pub fn with_read_consistency(mut self, strategy: ReadConsistencyStrategy) -> Self {
        self.read_consistency = Some(strategy);
        self
    }

    /// Reads in the region that takes writes: others may not have the latest of what other clients wrote.
    #[must_use]
    pub fn at_write_region(mut self) -> Self {
        self.at_write_region = true;
        self
    }

    /// Says what to do with a write that may or may not have happened.
    #[must_use]
    pub fn with_on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.on_unknown = on_unknown;
        self
    }
}

/// Options of item operations.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ItemOptions {
    /// What every call can say.
    pub call: CallOptions,
    /// Write only if the item still has this ETag.
    pub if_match: Option<String>,
    /// Read only if the item no longer has this ETag; an unchanged item answers 304.
    pub if_none_match: Option<String>,
    /// Whether writes answer with the item.
    pub content: ContentResponse,
}

/// Whether a write answers with what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentResponse {
    /// Status and headers only: the caller has the item already.
    #[default]
    Minimal,
    /// The item as stored.
    Full,
}

impl ItemOptions {
    /// Writes only if the item still has this ETag.
    #[must_use]
    pub fn with_if_match(mut self, etag: impl Into<String>) -> Self {
        self.if_match = Some(etag.into());
        self
    }

    /// Reads only if the item no longer has this ETag.
    #[must_use]
    pub fn with_if_none_match(mut self, etag: impl Into<String>) -> Self {
        self.if_none_match = Some(etag.into());
        self
    }

    /// Sets whether a write answers with the item.
    #[must_use]
    pub fn with_content(mut self, content: ContentResponse) -> Self {
        self.content = content;
        self
    }

    /// Sets what every call can say.
    #[must_use]
    pub fn with_call(mut self, call: CallOptions) -> Self {
        self.call = call;
        self
    }

    /// Limits the whole operation.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.call.timeout = Some(timeout);
        self
    }
}

impl From<CallOptions> for ItemOptions {
    fn from(call: CallOptions) -> Self {
        Self { call, ..Self::default() }
    }
}

/// How much throughput a new database or container gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throughput {
    /// Fixed request units per second.
    Manual(u32),
    /// Scaled by the service up to this many.
    Autoscale {
        /// Most request units per second.
        max: u32,
    },
}
