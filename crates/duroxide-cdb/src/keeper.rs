//! Retention in the background: what the service cannot remove by itself one member of the fleet deletes, tree by tree.
//!
//! The member that owns one certain slot does it. Two may believe that they own it for a moment: a deletion that meets
//! another is refused, and nothing is deleted that has not ended, whoever asks.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use duroxide::providers::ProviderError;
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::admin::delete;
use crate::core::Core;
use crate::documents::{Head, ids, lenient};
use crate::error::{About, Fault, Trouble, is_damage};
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::retention::{Ending, Retention, expiry};
use crate::slots;
use crate::store::{Call, Op};

const OPERATION: &str = "retention";

/// What retention has done, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionProgress {
    /// Ended root instances that were looked at.
    pub examined: u64,
    /// Instances deleted, children included. A rehearsal counts the roots that would be.
    pub deleted: u64,
    /// Roots that are due and stay for now: a child has not ended, somebody else was at work on them, or a dead letter of
    /// theirs waits for a decision.
    pub kept: u64,
    /// Roots whose head cannot be read.
    pub unreadable: u64,
    /// Heads whose expiry was put off or taken back, because the policy keeps them longer than the one they ended under.
    pub prolonged: u64,
}

/// An ended root instance, and when it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetentionRow {
    /// The instance.
    pub instance: String,
    /// Its orchestration.
    pub name: String,
    /// How it ended.
    pub ending: Ending,
    /// When it ended, in milliseconds since the Unix epoch by the service's clock.
    pub ended_at: u64,
    /// When it goes by the policy that was asked about; none if it stays for ever.
    pub due_at: Option<u64>,
    /// When the service removes it by itself, as it is stored now.
    pub expires_at: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ended {
    instance_id: String,
    #[serde(default, deserialize_with = "lenient")]
    orchestration_name: String,
    #[serde(default, deserialize_with = "lenient")]
    completed_at: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    updated_at: u64,
    #[serde(default, deserialize_with = "lenient")]
    ttl: Option<i64>,
    #[serde(default, deserialize_with = "lenient", rename = "_ts")]
    written_at: u64,
}

impl Ended {
    fn row(self, ending: Ending, policy: &Retention) -> RetentionRow {
        let ended_at = self.completed_at.unwrap_or(self.updated_at);
        let ttl = self.ttl.and_then(|ttl| u64::try_from(ttl).ok());
        RetentionRow {
            due_at: due_at(&self.orchestration_name, ending.status(), ended_at, policy),
            expires_at: ttl.map(|ttl| self.written_at.saturating_add(ttl).saturating_mul(1000)),
            instance: self.instance_id,
            name: self.orchestration_name,
            ending,
            ended_at,
        }
    }
}

/// When something that ended then goes.
fn due_at(name: &str, status: &str, ended_at: u64, policy: &Retention) -> Option<u64> {
    let keep = policy.keep(name, status)?;
    Some(ended_at.saturating_add(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX)))
}

/// Whether a head is of a root that has ended, and has been kept for its time.
fn is_due(head: &Head, policy: &Retention, now_ms: u64) -> bool {
    let ended_at = head.completed_at.unwrap_or(head.updated_at);
    let due = due_at(&head.orchestration_name, &head.status, ended_at, policy);
    head.is_visible() && head.parent_instance_id.is_none() && due.is_some_and(|due| due <= now_ms)
}

/// Deletes every tree whose root is due by the policy.
pub(crate) async fn sweep(core: &Arc<Core>, policy: &Retention) -> Result<RetentionProgress, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let mut progress = RetentionProgress::default();
    let mut held: Option<HashSet<String>> = None;
    for ending in Ending::ALL {
        let Some(shortest) = policy.shortest(ending) else { continue };
        let now = core.clock.now_ms();
        let before = now.saturating_sub(u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX)) / 1000;
        let query = Query::new(queries::ENDED_ROOTS).with("@status", ending.status()).with("@before", before);
        let mut walk = core.store.walk(core.store.call(OPERATION), query).await.map_err(surface)?;
        while let Some(rows) = walk.next(core.store.call(OPERATION)).await.map_err(surface)? {
            let found: Vec<Ended> = rows.iter().filter_map(|row| core.strays.read(OPERATION, row)).collect();
            progress.examined += rows.len() as u64;
            progress.unreadable += (rows.len() - found.len()) as u64;
            let found = found.into_iter().map(|row| row.row(ending, policy));
            let due: Vec<String> = found
                .filter(|row| row.due_at.is_some_and(|due| due <= now))
                .map(|row| row.instance)
                .collect();
            if due.is_empty() {
                continue;
            }
            let held = match &mut held {
                Some(held) => held,
                none => {
                    none.insert(with_dead_letters(core, core.store.call(OPERATION)).await.map_err(surface)?)
                }
            };
            let held = &*held;
            let deletions = due.iter().map(|root| -> BoxFuture<'_, _> {
                Box::pin(async move {
                    tokio::time::sleep(core.store.pause()).await;
                    retire(core, root, policy, held).await
                })
            });
            for outcome in in_parallel(DELETED_AT_ONCE, deletions).await {
                match outcome? {
                    Retired::Deleted(instances) => progress.deleted += instances,
                    Retired::Kept => progress.kept += 1,
                    Retired::Unreadable => progress.unreadable += 1,
                }
            }
        }
    }
    metrics::counter!("duroxide_cdb_retention_deleted_total").increment(progress.deleted);
    Ok(progress)
}

enum Retired {
    Deleted(u64),
    Kept,
    Unreadable,
}

async fn retire(
    core: &Arc<Core>,
    root: &str,
    policy: &Retention,
    held: &HashSet<String>,
) -> Result<Retired, ProviderError> {
    // Children are asked for their letters, too. One that comes after this question is deleted with its sender.
    if !held.is_empty() {
        let tree = crate::admin::list::tree(core, core.store.call(OPERATION), root).await;
        let tree = tree.map_err(|fault| fault.surface(OPERATION, root))?;
        if tree.iter().any(|instance| held.contains(instance)) {
            return Ok(Retired::Kept);
        }
    }
    let now = core.clock.now_ms();
    let still_due = |head: &Head| is_due(head, policy, now);
    match delete::retired(core, root, &still_due).await {
        Ok(Some(done)) => Ok(Retired::Deleted(done.instances_deleted)),
        Ok(None) => Ok(Retired::Kept),
        Err(error) if is_damage(&error) => Ok(Retired::Unreadable),
        Err(error) => {
            tracing::debug!(instance = root, %error, "an instance that is due stays for now");
            Ok(Retired::Kept)
        }
    }
}

/// The instances that have dead letters: nobody has decided yet what becomes of those.
async fn with_dead_letters(core: &Core, call: Call) -> Result<HashSet<String>, Fault> {
    let rows = core.store.query_all(call, &Query::new(queries::SENDERS_OF_DEAD_LETTERS)).await?;
    Ok(rows.iter().filter_map(|row| core.strays.read::<String>(OPERATION, row)).collect())
}

/// Tells when each ended root instance goes by a policy.
pub(crate) async fn foresee(
    core: &Core,
    policy: &Retention,
    listener: &mut (dyn FnMut(RetentionRow) + Send),
) -> Result<(), ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    for ending in Ending::ALL {
        let query = Query::new(queries::ENDED_ROOTS)
            .with("@status", ending.status())
            .with("@before", core.clock.now_ms() / 1000 + AHEAD_SECONDS);
        let mut walk = core.store.walk(core.store.call(OPERATION), query).await.map_err(surface)?;
        while let Some(rows) = walk.next(core.store.call(OPERATION)).await.map_err(surface)? {
            for row in rows.iter().filter_map(|row| core.strays.read::<Ended>(OPERATION, row)) {
                listener(row.row(ending, policy));
            }
        }
    }
    Ok(())
}

/// Puts off, or takes back, the expiry of heads that ended under a policy which kept them for a shorter time. Those that are
/// kept for a shorter time now are found by the sweep.
pub(crate) async fn prolong(core: &Core, policy: &Retention) -> Result<u64, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let mut prolonged = 0;
    for ending in Ending::ALL {
        let query = Query::new(queries::EXPIRING).with("@status", ending.status());
        let mut walk = core.store.walk(core.store.call(OPERATION), query).await.map_err(surface)?;
        while let Some(rows) = walk.next(core.store.call(OPERATION)).await.map_err(surface)? {
            let rows = rows.iter().filter_map(|row| core.strays.read::<Ended>(OPERATION, row));
            let rows = rows.map(|row| row.row(ending, policy)).filter(|row| {
                let goes = row.expires_at.unwrap_or(u64::MAX).saturating_add(SLACK_MS);
                row.due_at.is_none_or(|due| due > goes)
            });
            let rows: Vec<RetentionRow> = rows.collect();
            let writes = rows.iter().map(|row| -> BoxFuture<'_, Result<bool, Fault>> {
                Box::pin(prolong_one(core, &row.instance, policy))
            });
            for outcome in in_parallel(DELETED_AT_ONCE, writes).await {
                prolonged += u64::from(outcome.map_err(surface)?);
            }
        }
    }
    Ok(prolonged)
}

async fn prolong_one(core: &Core, instance: &str, policy: &Retention) -> Result<bool, Fault> {
    let call = core.store.call(OPERATION);
    let found = core.store.patient(call).read_latest_as::<Head>(instance, &ids::head(instance)).await?;
    let Some(found) = found.filter(|found| found.document.ttl.is_some()) else { return Ok(false) };
    let mut head = found.document;
    head.ttl = expiry::time_to_live(&head, policy, core.clock.now_ms());
    let op = Op::replace(&head.id, &head, Some(&found.etag));
    let op = op.map_err(|error| Fault::refused(error.to_string()))?;
    match core.store.patient(call).write(instance, &op).await {
        Ok(_) => Ok(true),
        // A turn was committed meanwhile, under a policy that is looked at again, or it is gone.
        Err(fault) if matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// The running sweep; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    task: tokio::task::JoinHandle<()>,
}

impl Keeper {
    /// Starts looking every `interval` for what is due, as long as there is a policy.
    pub(crate) fn start(core: &Arc<Core>, interval: Duration) -> Self {
        Self { task: tokio::spawn(run(Arc::downgrade(core), interval)) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(core: Weak<Core>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(core) = core.upgrade() else { return };
        if !core.fleet.owns(slots::of(ids::META)) || core.layout.check(OPERATION).is_err() {
            continue;
        }
        if let Err(error) = look_after(&core).await {
            tracing::warn!(%error, "what is not to be kept any longer could not be removed; it will be tried again");
        }
    }
}

/// One round: what is due goes; and for some time after the policy has changed, heads that other processes wrote before
/// they knew of it are put right.
async fn look_after(core: &Arc<Core>) -> Result<RetentionProgress, ProviderError> {
    let (policy, changed_at) = core.layout.retention();
    let is_new = changed_at.is_some_and(|at| core.clock.now_ms() < at.saturating_add(KNOWN_WITHIN_MS));
    let prolonged = if is_new { prolong(core, &policy).await? } else { 0 };
    if policy.keeps_everything() {
        return Ok(RetentionProgress { prolonged, ..RetentionProgress::default() });
    }
    Ok(RetentionProgress { prolonged, ..sweep(core, &policy).await? })
}

const DELETED_AT_ONCE: usize = 8;
/// Clocks and whole seconds.
const SLACK_MS: u64 = 60_000;
/// All processes know of a new policy within this time, or have ended.
const KNOWN_WITHIN_MS: u64 = 2 * 60 * 60 * 1000;
/// What is written while a list is made is on it.
const AHEAD_SECONDS: u64 = 3600;
