//! The background sweep: whatever a process left unfinished, another finishes.
//!
//! It is owned by the provider and ends with it. It looks at everything whose time for being left alone is over:
//! intents, manifests, and deletions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;

use crate::admin;
use crate::core::{Core, decode};
use crate::documents::{Deletion, Head, Intent, Manifest, Tagged, kind};
use crate::error::Fault;
use crate::orchestration::publish;
use crate::queries::{self, Query};

const OPERATION: &str = "reconcile";

/// The running sweep; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Reconciler {
    task: tokio::task::JoinHandle<()>,
}

impl Reconciler {
    /// Starts sweeping every `interval`, slower while there is nothing to do.
    pub(crate) fn start(core: &Arc<Core>, interval: Duration) -> Self {
        let core = Arc::downgrade(core);
        Self { task: tokio::spawn(run(core, interval.max(INTERVAL_MIN))) }
    }

    /// Stops sweeping.
    pub(crate) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(core: Weak<Core>, interval: Duration) {
    // Processes that start together should not sweep together.
    let jitter = interval.mul_f64(f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 512.0);
    let mut pause = interval + jitter;
    let mut number = 0;
    loop {
        tokio::time::sleep(pause).await;
        let Some(core) = core.upgrade() else { return };
        number += 1;
        pause = match sweep(&core, number).await {
            Ok(0) => (pause * 2).min((interval + jitter) * IDLE_FACTOR),
            Ok(_) => interval,
            Err(fault) => {
                tracing::warn!(%fault, "the sweep for unfinished work met trouble");
                interval + jitter
            }
        };
    }
}

/// The `number`th sweep, over the ranges this process looks after. Returns how many things it found to do.
pub(crate) async fn sweep(core: &Arc<Core>, number: u64) -> Result<usize, Fault> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "type")]
        kind: String,
        #[serde(rename = "_etag")]
        etag: String,
    }
    let call = core.call(OPERATION);
    let query = Query::new(queries::UNFINISHED).with("@now", core.clock.now_ms());
    let mut found = 0;
    let mut trouble = None;
    let mut intents: BTreeMap<String, Vec<Intent>> = BTreeMap::new();
    for page in core.store.query_ranges(call, &query, &core.watch(number)).await {
        let page = match page {
            Ok(page) => page,
            Err(fault) => {
                trouble = Some(fault);
                continue;
            }
        };
        found += page.rows.len();
        for row in page.rows {
            let text = row.get().as_bytes();
            let envelope: Envelope = decode(text)?;
            let outcome = match envelope.kind.as_str() {
                kind::INTENT => {
                    let intent: Intent = decode(text)?;
                    intents.entry(intent.instance_id.clone()).or_default().push(intent);
                    Ok(())
                }
                kind::MANIFEST => {
                    let manifest: Manifest = decode(text)?;
                    if manifest.committed {
                        publish::publish(core, call, &manifest, None).await
                    } else {
                        publish::sweep(core, call, &manifest, &envelope.etag).await
                    }
                }
                kind::DELETING => {
                    let head: Head = decode(text)?;
                    admin::delete::resume_head(core, call, Tagged { document: head, etag: envelope.etag })
                        .await
                }
                kind::DELETION => admin::delete::resume(core, &decode::<Deletion>(text)?).await,
                _ => Ok(()),
            };
            if let Err(fault) = outcome {
                trouble = Some(fault);
            }
        }
    }
    for group in intents.values() {
        if let Err(fault) = super::deliver::deliver_all(core, call, group).await {
            trouble = Some(fault);
        }
    }
    trouble.map_or(Ok(found), Err)
}

const INTERVAL_MIN: Duration = Duration::from_millis(10);
const IDLE_FACTOR: u32 = 4;
