//! Processes of the public crate up to 0.1.10 that still run on the container.
//!
//! They must be stopped before this version starts: they do not know its documents, and whatever they rewrite loses what
//! they do not know of. Nothing keeps them out, but what they write tells of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::documents::Head;

/// What this process has noticed of them.
#[derive(Debug)]
pub(crate) struct Elders {
    /// What they enqueued before was left by them, and is carried on.
    since_ms: u64,
    told: Mutex<Option<Instant>>,
}

impl Elders {
    /// Nothing is noticed yet by a process that was opened at this time.
    pub(crate) fn since(opened_ms: u64) -> Self {
        Self { since_ms: opened_ms.saturating_add(CLOCKS_DIFFER_MS), told: Mutex::default() }
    }

    /// A search has found a message. Every message of this version has an order key.
    pub(crate) fn saw_message(&self, instance: &str, seq: u64, enqueued_at: u64) {
        if seq == 0 && enqueued_at > self.since_ms {
            self.tell(instance, "message");
        }
    }

    /// The head of an instance is not the one this process knew. Nothing of this version takes the format off a head.
    pub(crate) fn saw_head(&self, now: Option<&Head>, before: &Head) {
        let is_rewritten =
            |now: &Head| now.is_legacy() && !before.is_legacy() && now.created_at == before.created_at;
        if let Some(now) = now.filter(|now| is_rewritten(now)) {
            self.tell(&now.instance_id, "instance");
        }
    }

    fn tell(&self, instance: &str, what: &'static str) {
        metrics::counter!("duroxide_cdb_old_writes_total", "what" => what).increment(1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            return;
        }
        *told = Some(Instant::now());
        tracing::error!(
            instance,
            what,
            "a process of duroxide-cdb 0.1.10 or earlier writes to this container: stop it, it destroys values and \
             history that this version has written"
        );
    }
}

/// Clocks of machines that are this far apart cause no alarm.
const CLOCKS_DIFFER_MS: u64 = 60_000;
const TOLD_EVERY: Duration = Duration::from_secs(300);
