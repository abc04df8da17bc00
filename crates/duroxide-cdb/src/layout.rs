//! The layout of the container: which one it has, and whether this version knows it.
//!
//! A document in the container is stamped with the layout. A version that knows a newer layout raises the stamp when it
//! opens the container, and from then on a version that does not is refused. One that runs already looks at the stamp
//! from time to time and takes no more work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duroxide::providers::ProviderError;
use serde::{Deserialize, Serialize};

use crate::documents::{Document, FORMAT_VERSION, Tagged, ids};
use crate::error::Fault;
use crate::store::settle::{Rests, Settled, settled};
use crate::store::{Call, Op, Read, Store, decode};

/// The stamp.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stamp {
    id: String,
    instance_id: String,
    #[serde(rename = "type")]
    kind: String,
    format_version: u32,
}

impl Document for Stamp {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Stamp {
    /// The stamp of the layout that this crate writes.
    pub(crate) fn ours() -> Self {
        Self {
            id: ids::FORMAT.to_owned(),
            instance_id: ids::META.to_owned(),
            kind: ids::FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
        }
    }

    /// Reads the stamp, if there is one. Where that shows an earlier state than the latest, the stamp is not overwritten
    /// by this version, because it is written on condition; and a running process looks again.
    pub(crate) async fn read(store: &Store, call: Call) -> Result<Option<Tagged<Self>>, Fault> {
        match store.read(call, ids::META, ids::FORMAT, None).await? {
            Read::Found { body, etag } => Ok(Some(Tagged { document: decode(&body)?, etag })),
            Read::NotModified | Read::Missing => Ok(None),
        }
    }

    /// Why this version must leave the container alone, if so.
    pub(crate) fn refusal(&self) -> Option<String> {
        refusal(self.format_version)
    }
}

impl Tagged<Stamp> {
    /// The stamp, raised to the layout of this version; none if it is that already.
    fn raised(&self) -> Option<Stamp> {
        (self.document.format_version < FORMAT_VERSION).then(Stamp::ours)
    }
}

/// Stamps the container with the layout of this version, unless it is. A stamp that another process has changed
/// meanwhile is trouble that passes: the container is looked at again.
pub(crate) async fn put_stamp(store: &Store, call: Call, found: Option<&Tagged<Stamp>>) -> Result<(), Fault> {
    let op = match found.map(|found| (found.raised(), found.etag.as_str())) {
        None => Op::create(&Stamp::ours()),
        Some((Some(raised), etag)) => Op::replace(ids::FORMAT, &raised, Some(etag)),
        Some((None, _)) => return Ok(()),
    };
    let op = op?;
    match settled(store.write(call, ids::META, &op).await, Rests::Shared)? {
        Settled::Applied(_) | Settled::Arrived => Ok(()),
        Settled::Superseded(_) => {
            Err(Fault::transient("another process has stamped the container at the same time"))
        }
    }
}

fn refusal(found: u32) -> Option<String> {
    (found > FORMAT_VERSION).then(|| {
        format!(
            "The container has layout {found}, this version of duroxide-cdb knows up to {FORMAT_VERSION}: upgrade it."
        )
    })
}

/// What a running process knows of the container's layout.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    seen: AtomicU32,
}

impl Layout {
    /// Looks at the stamp. Says whether the container has a layout by now that this version does not know.
    pub(crate) async fn look(&self, store: &Store, call: Call) -> Result<bool, Fault> {
        let Some(stamp) = Stamp::read(store, call).await? else { return Ok(false) };
        let found = stamp.document.format_version;
        let is_new = self.seen.swap(found, Ordering::Relaxed) < found;
        let refusal = refusal(found);
        if let (true, Some(refusal)) = (is_new, &refusal) {
            tracing::error!("this process takes no more work: {refusal}");
        }
        Ok(refusal.is_some())
    }

    /// Refuses an operation that could harm documents of a newer layout.
    pub(crate) fn check(&self, operation: &str) -> Result<(), ProviderError> {
        let refusal = refusal(self.seen.load(Ordering::Relaxed));
        refusal.map_or(Ok(()), |sentence| Err(ProviderError::permanent(operation, sentence)))
    }

    /// As [`check`](Self::check), for a caller that would wait for work and asks again at once.
    pub(crate) async fn check_waiting(&self, operation: &str, wait: Duration) -> Result<(), ProviderError> {
        let outcome = self.check(operation);
        if outcome.is_err() {
            tokio::time::sleep(wait).await;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_raised_and_never_lowered() {
        let stamp = |format_version| {
            let document = Stamp { format_version, ..Stamp::ours() };
            Tagged { document, etag: String::new() }
        };
        assert_eq!(stamp(FORMAT_VERSION - 1).raised().unwrap().format_version, FORMAT_VERSION);
        assert!(stamp(FORMAT_VERSION).raised().is_none());
        assert!(stamp(FORMAT_VERSION + 1).raised().is_none());
        assert!(stamp(FORMAT_VERSION).document.refusal().is_none());
        assert!(stamp(FORMAT_VERSION + 1).document.refusal().unwrap().contains("upgrade"));
    }

    #[test]
    fn only_a_newer_layout_stops_a_process() {
        let layout = Layout::default();
        assert!(layout.check("fetch").is_ok());
        layout.seen.store(FORMAT_VERSION + 1, Ordering::Relaxed);
        assert!(!layout.check("fetch").unwrap_err().retryable);
    }
}
