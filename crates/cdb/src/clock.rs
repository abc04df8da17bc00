//! The one place that asks what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
    u64::try_from(since).unwrap_or(u64::MAX)
}
