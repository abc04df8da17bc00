//! The layout of the container: which one it has, and whether this version knows it.
//!
//! A document in the container is stamped with the layout. A version that knows a newer layout raises the stamp when it
//! opens the container, and from then on a version that does not is refused. One that runs already looks at the stamp
//! from time to time and takes no more work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use duroxide::providers::ProviderError;
use serde::{Deserialize, Serialize};

use crate::documents::{Document, FORMAT_VERSION, Tagged, ids, lenient};
use crate::error::{Fault, Trouble};
use crate::retention::Retention;
use crate::store::settle::{Rests, Settled, settled};
use crate::store::{Backoff, Call, Op, Read, Store, decode};

/// The stamp.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stamp {
    id: String,
    instance_id: String,
    #[serde(rename = "type")]
    kind: String,
    format_version: u32,
    /// How long ended instances are kept, if that was set for the container; else processes do as they are configured.
    /// Kept as it is, so that what only a later version can read is not lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retention: Option<serde_json::Value>,
    /// When that was last changed.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient")]
    retention_changed_at: Option<u64>,
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
            retention: None,
            retention_changed_at: None,
        }
    }

    /// The policy of the container. One that cannot be read keeps everything: nothing is removed by a guess.
    pub(crate) fn retention(&self) -> Option<Retention> {
        let policy = serde_json::from_value(self.retention.clone()?);
        Some(policy.unwrap_or_else(|error| {
            tracing::error!(%error, "the retention policy of the container cannot be read: everything is kept");
            Retention::default()
        }))
    }

    /// A stamp with every field.
    #[cfg(test)]
    pub(crate) fn filled() -> Self {
        Self { retention: Some(serde_json::json!([])), retention_changed_at: Some(1), ..Self::ours() }
    }

    /// The same stamp with another policy, or with none.
    fn with_retention(&self, policy: Option<&Retention>, now_ms: u64) -> Result<Self, serde_json::Error> {
        let retention = policy.map(serde_json::to_value).transpose()?;
        Ok(Self { retention, retention_changed_at: Some(now_ms), ..self.clone() })
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
        (self.document.format_version < FORMAT_VERSION)
            .then(|| Stamp { format_version: FORMAT_VERSION, ..self.document.clone() })
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

/// Stores a policy in the container, or removes it. Returns the stamp as it is then.
pub(crate) async fn put_retention(
    store: &Store,
    call: Call,
    policy: Option<&Retention>,
    now_ms: u64,
) -> Result<Stamp, Fault> {
    let mut backoff = Backoff::default();
    loop {
        let Some(found) = Stamp::read(store, call).await? else {
            return Err(Fault::refused("the container has no stamp of its layout"));
        };
        let stamp = found.document.with_retention(policy, now_ms);
        let stamp = stamp.map_err(|error| Fault::refused(error.to_string()))?;
        let op = Op::replace(ids::FORMAT, &stamp, Some(&found.etag));
        let op = op.map_err(|error| Fault::refused(error.to_string()))?;
        match store.write(call, ids::META, &op).await {
            Ok(_) => return Ok(stamp),
            // Read again and written again: what is lost is only another policy.
            Err(fault) if fault.trouble == Trouble::Changed || fault.is_transient() => {
                if !backoff.wait(call, &fault).await {
                    return Err(fault);
                }
            }
            Err(fault) => return Err(fault),
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
    /// What this process is configured with.
    configured: Arc<Retention>,
    /// What the container says, and since when.
    stored: RwLock<(Option<Arc<Retention>>, Option<u64>)>,
}

impl Layout {
    /// What is known when a container has been opened.
    pub(crate) fn new(configured: Option<&Retention>, stamp: Option<&Stamp>) -> Self {
        let layout =
            Self { configured: Arc::new(configured.cloned().unwrap_or_default()), ..Self::default() };
        if let Some(stamp) = stamp {
            layout.note(stamp);
        }
        layout
    }

    /// Takes note of what a stamp says about retention.
    pub(crate) fn note(&self, stamp: &Stamp) {
        let stored = (stamp.retention().map(Arc::new), stamp.retention_changed_at);
        *self.stored.write().unwrap_or_else(PoisonError::into_inner) = stored;
    }

    /// The policy in force, and when the container's was last changed. The container's goes before this process's: it was
    /// set later, by somebody who meant all processes.
    pub(crate) fn retention(&self) -> (Arc<Retention>, Option<u64>) {
        let (stored, changed_at) = &*self.stored.read().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(stored.as_ref().unwrap_or(&self.configured)), *changed_at)
    }

    /// The policy that the container has of its own.
    pub(crate) fn stored_retention(&self) -> Option<Arc<Retention>> {
        self.stored.read().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Looks at the stamp. Says whether the container has a layout by now that this version does not know.
    pub(crate) async fn look(&self, store: &Store, call: Call) -> Result<bool, Fault> {
        let Some(stamp) = Stamp::read(store, call).await? else { return Ok(false) };
        self.note(&stamp.document);
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
        let kept = Stamp { retention: Some(serde_json::json!("later")), format_version: 1, ..Stamp::ours() };
        let raised = Tagged { document: kept, etag: String::new() }.raised().unwrap();
        assert_eq!(raised.retention, Some(serde_json::json!("later")), "raising keeps the policy");
        assert!(raised.retention().unwrap().keeps_everything(), "what cannot be read removes nothing");
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
