//! The background sweep: whatever a process left unfinished, another finishes.
//!
//! It is owned by the provider and ends with it. It looks at everything whose time for being left alone is over:
//! intents, manifests, and deletions.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::admin;
use crate::contain::contained;
use crate::core::Core;
use crate::documents::{Deletion, Head, Intent, Manifest, Tagged, kind};
use crate::error::Fault;
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::staging::publish;
use crate::store::decode;

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
    if cosmos_wire::mutant!(23) {
        return std::future::pending().await;
    }
    // Processes that start together should not sweep together.
    let jitter = interval.mul_f64(f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 512.0);
    let mut pause = interval + jitter;
    let mut number: u64 = 0;
    let mut passed = Vec::new();
    let mut held_back = 0;
    loop {
        tokio::time::sleep(pause).await;
        let Some(core) = core.upgrade() else { return };
        if let Some(longer) = hold_back(core.store.pause(), interval, held_back) {
            (pause, held_back) = (longer, held_back + 1);
            continue;
        }
        held_back = 0;
        number += 1;
        if number.is_multiple_of(LAYOUT_EVERY) {
            match core.layout.look(&core.store, core.store.quick_call(OPERATION)).await {
                // What is unfinished may be of the newer layout: it is left to those who know it.
                Ok(true) => return,
                Ok(false) => {}
                Err(fault) => tracing::debug!(%fault, "the layout of the container could not be looked at"),
            }
        }
        pause = match sweep(&core, &mut passed).await {
            // Twice with nothing to do: it stays so for a while.
            Ok(0) if pause > interval * 2 => idle_pause(&core, interval + jitter),
            Ok(0) => pause * 2,
            Ok(_) => interval,
            Err(fault) => {
                tracing::warn!(%fault, "the sweep for unfinished work met trouble");
                interval + jitter
            }
        };
    }
}

/// How long sweeps pause while there is nothing to do: longer the more requests one of them takes, so that a container of
/// many parts does not cost more to watch, and longer the more members make them, each of its own part.
fn idle_pause(core: &Core, interval: Duration) -> Duration {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let parts = count(core.store.count_parts(&core.fleet.watch(false)));
    let by_parts = IDLE_PER_PART.saturating_mul(parts).min(IDLE_MAX);
    let by_members = interval * count(core.fleet.members()).clamp(IDLE_FACTOR, IDLE_FACTOR_MAX);
    by_members.max(by_parts)
}

/// How much longer a sweep waits that is due, after it was held back so often: while the account throttles, what others
/// left unfinished waits for those who are at work, as searches do. It does not wait for ever: the account may throttle
/// for as long as it is used.
fn hold_back(weather: Duration, interval: Duration, times: u32) -> Option<Duration> {
    (!weather.is_zero() && times < HELD_BACK_MAX).then(|| weather.max(interval))
}

/// One sweep, over the part of the container that this process looks after. Returns how many things it found to do.
///
/// Each thing has time of its own and several are done at once: one that cannot be done holds no other up. Nor do many:
/// where more waits than one page holds, those are `passed` over until the rest has been seen.
async fn sweep(core: &Arc<Core>, passed: &mut Vec<String>) -> Result<usize, Fault> {
    let query = Query::new(queries::UNFINISHED)
        .with("@now", core.clock.now_ms())
        .with("@rows", PAGE_ROWS)
        .with("@passed", passed.clone());
    // Nobody's work is left unfinished because its owner is stuck.
    let watch = core.fleet.watch(core.fleet.net_round().is_some());
    let mut found = 0;
    let mut has_more = false;
    let mut trouble = None;
    let mut intents: BTreeMap<String, (Vec<String>, Vec<Intent>)> = BTreeMap::new();
    let mut work = Vec::new();
    let mut left = Vec::new();
    for page in core.store.query_ranges(core.store.call(OPERATION), &query, &watch).await {
        let page = match page {
            Ok(page) => page,
            Err(fault) => {
                trouble = Some(fault);
                continue;
            }
        };
        has_more |= page.is_full(PAGE_ROWS);
        for row in page.rows {
            let rid = rid_of(&row);
            match Unfinished::read(row.get().as_bytes()) {
                Ok(Unfinished::Intents(source, mut some)) => {
                    let (rids, intents) = intents.entry(source).or_default();
                    rids.push(rid);
                    intents.append(&mut some);
                }
                Ok(other) => work.push((vec![rid], other)),
                // It is not counted: a row that stays as it is gives no reason to sweep more often.
                Err(fault) => {
                    core.strays.meet(OPERATION, &row, &fault);
                    left.push(rid);
                    continue;
                }
            }
            found += 1;
        }
    }
    work.extend(intents.into_iter().map(|(source, (rids, some))| (rids, Unfinished::Intents(source, some))));
    let (rids, work): (Vec<Vec<String>>, Vec<Unfinished>) = work.into_iter().unzip();
    let in_turn = &tokio::sync::Mutex::new(());
    let finished = work.into_iter().map(|work| -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            // One after the other, with the pauses that searches make, while the account throttles.
            let _turn = if core.store.pause().is_zero() { None } else { Some(in_turn.lock().await) };
            tokio::time::sleep(core.store.pause()).await;
            let of = work.owner();
            contained(&core.strays, OPERATION, &of, Box::pin(work.finish(core))).await
        })
    });
    for (outcome, rids) in in_parallel(FINISHED_AT_ONCE, finished).await.into_iter().zip(rids) {
        if let Err(fault) = outcome {
            trouble = Some(fault);
            left.extend(rids);
        }
    }
    if has_more && passed.len() + left.len() <= PASSED_MAX {
        passed.extend(left);
    } else {
        passed.clear();
    }
    trouble.map_or(Ok(found), Err)
}

/// What tells a row from those of all partitions: ids are unique only in theirs.
fn rid_of(row: &RawValue) -> String {
    #[derive(Deserialize)]
    struct Row {
        #[serde(rename = "_rid")]
        rid: String,
    }
    serde_json::from_str(row.get()).map(|Row { rid }| rid).unwrap_or_default()
}

/// What a process left unfinished.
enum Unfinished {
    /// Messages of one source.
    Intents(String, Vec<Intent>),
    Manifest(Tagged<Manifest>),
    Fence(Box<Tagged<Head>>),
    Deletion(Deletion),
}

impl Unfinished {
    fn read(text: &[u8]) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope {
            id: String,
            instance_id: String,
            #[serde(rename = "type")]
            kind: String,
            #[serde(rename = "_etag")]
            etag: String,
        }
        let Envelope { id, instance_id, kind, etag } = decode(text)?;
        let named = |fault: Fault| Fault::refused(format!("{kind} {id:?} of {instance_id:?}: {fault}"));
        match kind.as_str() {
            kind::INTENT => {
                let intent: Intent = decode(text).map_err(named)?;
                Ok(Self::Intents(intent.instance_id.clone(), vec![intent]))
            }
            kind::MANIFEST => Ok(Self::Manifest(Tagged { document: decode(text).map_err(named)?, etag })),
            kind::DELETING => {
                Ok(Self::Fence(Box::new(Tagged { document: decode(text).map_err(named)?, etag })))
            }
            kind::DELETION => Ok(Self::Deletion(decode(text).map_err(named)?)),
            _ => Err(named(Fault::refused("nobody knows how to finish it"))),
        }
    }

    /// The partition it is in, or what it is called there.
    fn owner(&self) -> String {
        match self {
            Self::Intents(source, _) => source.clone(),
            Self::Manifest(manifest) => manifest.document.instance_id.clone(),
            Self::Fence(head) => head.document.instance_id.clone(),
            Self::Deletion(deletion) => deletion.id.clone(),
        }
    }

    async fn finish(self, core: &Arc<Core>) -> Result<(), Fault> {
        let call = core.store.call(OPERATION);
        match self {
            Self::Intents(_, intents) => crate::outbox::deliver_again(core, call, &intents).await,
            Self::Manifest(manifest) if manifest.document.committed => {
                publish::publish(core.staging(), call, &manifest.document, None).await
            }
            Self::Manifest(mark) => publish::sweep(core.staging(), call, &mark.document, &mark.etag).await,
            Self::Fence(head) => admin::delete::resume_head(core, call, *head).await,
            Self::Deletion(deletion) => admin::delete::resume(core, &deletion).await,
        }
    }
}

/// One sweep in so many also looks at the layout: every few minutes in a calm process.
const LAYOUT_EVERY: u64 = 30;
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const IDLE_PER_PART: Duration = Duration::from_secs(6);
const IDLE_MAX: Duration = Duration::from_secs(60);
const IDLE_FACTOR: u32 = 4;
/// Of a fleet: what a dead process has not delivered is not to wait for longer.
const IDLE_FACTOR_MAX: u32 = 8;
const FINISHED_AT_ONCE: usize = 8;
/// So often in a row a sweep is held back.
const HELD_BACK_MAX: u32 = 8;
/// Rows of one range that a sweep looks at.
const PAGE_ROWS: u32 = 100;
/// So many ids fit into a query.
const PASSED_MAX: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_account_throttles_a_sweep_waits_but_not_for_ever() {
        let ms = Duration::from_millis;
        for (weather, interval, times, expected) in [
            (0, 100, 0, None),
            (50, 100, 0, Some(100)),
            (1000, 100, 0, Some(1000)),
            (1000, 100, HELD_BACK_MAX - 1, Some(1000)),
            (1000, 100, HELD_BACK_MAX, None),
        ] {
            let longer = hold_back(ms(weather), ms(interval), times);
            assert_eq!(longer, expected.map(ms), "{weather} {interval} {times}");
        }
    }
}
