//! Who owns a session. Sessions are global: each has a partition of its own.

use serde::{Deserialize, Serialize};

use super::{ids, kind};

/// Ownership of a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) session_id: String,
    /// The same, where only sessions have it: owners are looked up by it without a look at the sessions' items. Earlier
    /// versions wrote none, so the owners of their sessions are found out by trying.
    #[serde(default)]
    pub(crate) owned_session: String,
    pub(crate) owner_id: String,
    pub(crate) locked_until: u64,
    pub(crate) last_activity: u64,
    #[serde(default)]
    pub(crate) created_at: u64,
}

impl Session {
    /// A session claimed by `owner`.
    pub(crate) fn claimed(session_id: &str, owner: &str, until_ms: u64, now_ms: u64) -> Self {
        Self {
            id: ids::SESSION.to_owned(),
            instance_id: ids::session_partition(session_id),
            kind: kind::SESSION.to_owned(),
            session_id: session_id.to_owned(),
            owned_session: session_id.to_owned(),
            owner_id: owner.to_owned(),
            locked_until: until_ms,
            last_activity: now_ms,
            created_at: now_ms,
        }
    }
}
