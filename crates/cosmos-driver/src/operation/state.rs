//! What an operation has been through so far.

use std::sync::Arc;

use tokio::time::Instant;

/// Replaced between attempts, never shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryState {
    /// Retries in another region.
    pub(crate) regions: u32,
    /// Retries because the session's writes had not arrived.
    pub(crate) sessions: u32,
    /// Retries after routing was refreshed.
    pub(crate) reroutes: u32,
    /// Retries in place after a transient conflict.
    pub(crate) in_place: u32,
    /// Retries because no connection could be had in the only region.
    pub(crate) connects: u32,
    /// Since when the service refuses writes where we send them.
    pub(crate) forbidden_since: Option<Instant>,
    /// Regions that failed, once per failure.
    pub(crate) tried: Vec<Arc<str>>,
    /// Go where writes go.
    pub(crate) at_write_region: bool,
    /// An earlier attempt may have been executed.
    pub(crate) has_unknown: bool,
    /// The account was read again because a read at the level it should have was refused.
    pub(crate) has_checked_account: bool,
    /// The wall clock was set by the service's date.
    pub(crate) has_set_clock: bool,
}
