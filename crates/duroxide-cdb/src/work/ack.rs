//! Completing a work item: it goes and its completion comes, in one batch.

use std::sync::Arc;

use duroxide::providers::{ProviderError, WorkItem};

use crate::core::Core;
use crate::documents::{Chunks, Intent, Manifest, Message, Tombstone, WorkDocument, ids};
use crate::error::{Fault, Lost, Trouble};
use crate::staging::layout::PREPARING_MS;
use crate::staging::publish;
use crate::store::settle::{Seen, Verdict};
use crate::store::{Backoff, Op, Patience};

use super::lock::{about, gone, lease_of, lost};
use crate::lease::WorkLease;

const OPERATION: &str = "ack_work_item";

/// Removes a work item and enqueues its completion, if there is one.
pub(crate) async fn ack(
    core: &Arc<Core>,
    token: &str,
    completion: Option<WorkItem>,
) -> Result<(), ProviderError> {
    let lease = lease_of(core, core.store.call(OPERATION), token).await?;
    let mut contents = lease.ending.lock().await;
    if let Some((name, begun)) = contents.begun.take() {
        core.habits.note(&name, core.fleet.is_quick(begun.elapsed()));
    }
    let document = lease.stored().document;
    let parting = complete(core, &lease, completion.as_ref()).await?;
    let partition = document.instance_id.as_str();
    metrics::counter!("duroxide_cdb_activities_total").increment(1);
    core.work_leases.remove(lease.secret());
    core.works.remove(partition, &document.id);
    if let Some(session) = &document.session_id {
        core.sessions.touch(session, core.clock.now_ms());
    }
    if let Some(message) = &parting.message {
        core.tell_of_message(message);
    }
    let call = core.store.call(OPERATION);
    if let Some(manifest) = &parting.manifest
        && let Err(fault) = publish::publish(core.staging(), call, manifest, None).await
    {
        tracing::warn!(instance = partition, %fault, "the pieces of a completed item are not removed yet; they will be");
    }
    crate::outbox::deliver(core, OPERATION, parting.intent.into_iter().collect()).await;
    Ok(())
}

/// Sends the batch that completes an item, for as long as its lock lasts. After an error the lease is given up: the activity
/// is fetched again. Returns what was written.
async fn complete(
    core: &Core,
    lease: &WorkLease,
    completion: Option<&WorkItem>,
) -> Result<Parting, ProviderError> {
    let document = lease.stored().document;
    let patience = lease.patience(&core.store, OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, about(&document));
    let part = || {
        parting(core, &document, completion)
            .map_err(|error| surface(Fault::refused(format!("the completion cannot be written: {error}"))))
    };
    let mut parting = part()?;
    let (mut unsure, mut met_trouble) = (false, false);
    let mut backoff = Backoff::default();
    loop {
        if let Err(why) = lease.state_after_renewal(&core.clock).await {
            // An unanswered try may have been applied: the item is gone then.
            let last = core.store.quick_call(OPERATION);
            if unsure && matches!(lease.look(&core.store, last.into(), "", |_| false).await, Ok(Seen::Gone)) {
                return Ok(parting);
            }
            if met_trouble && why == Lost::Expired {
                lease.give_up_blameless(&core.claims);
            }
            lease.give_up();
            return Err(lost(OPERATION, &document, why));
        }
        let (fault, etag) = match send(core, lease, patience, &mut parting).await {
            Ok(()) => return Ok(parting),
            // The completion's id is this call's own: it is there because an earlier try arrived.
            Err((fault, _)) if parting.is_prepared && fault.trouble == Trouble::Exists => return Ok(parting),
            Err(failed) => failed,
        };
        unsure |= fault.may_have_been_applied;
        met_trouble |= fault.may_pass();
        let verdict = lease.settle(&core.store, patience, &etag, &fault, |_| false).await.map_err(surface)?;
        match verdict {
            Verdict::Done | Verdict::Again => {}
            // An earlier, unanswered try arrived; or the item was cancelled, which comes to the same.
            Verdict::Gone if unsure => return Ok(parting),
            // A sweep took what was prepared for left behind: it is prepared again, under another id.
            Verdict::Blocked if parting.lacks_mark(&fault) => parting = part()?,
            Verdict::Blocked => return Err(surface(fault)),
            Verdict::Lost | Verdict::Gone => {
                lease.give_up();
                core.works.remove(&document.instance_id, &document.id);
                return Err(gone(OPERATION, &document));
            }
        }
        patience.wait(&mut backoff, &fault).await;
    }
}

/// Sends the batch on condition of the item as it is known now, and once before it what it needs to find: a large completion
/// may take longer to write than one lock lasts. With a fault comes the ETag that the batch asked for.
async fn send(
    core: &Core,
    lease: &WorkLease,
    patience: Patience<'_>,
    parting: &mut Parting,
) -> Result<(), (Fault, String)> {
    if let Some(mark) = parting.prepared.as_ref().filter(|_| !parting.is_prepared) {
        let prepared = publish::prepare(&core.store, patience, mark, &[], &parting.chunks).await;
        prepared.map_err(|fault| (fault, lease.stored().etag))?;
    }
    parting.is_prepared = true;
    let stored = lease.held().map_err(|why| (Fault::of_lost_lock(why), lease.stored().etag))?;
    parting.ops[0] = parting.ops[0].clone().on(&stored.etag);
    let sent = core.store.batch(patience.call(), &stored.document.instance_id, &parting.ops).await;
    sent.map(drop).map_err(|fault| (fault, stored.etag))
}

/// What completing an item writes.
struct Parting {
    /// The removal first; its ETag condition is added when it is sent.
    ops: Vec<Op>,
    message: Option<Message>,
    intent: Option<Intent>,
    chunks: Chunks,
    prepared: Option<Manifest>,
    /// Whether what the batch needs to find has been written.
    is_prepared: bool,
    manifest: Option<Manifest>,
}

impl Parting {
    /// Whether the batch failed because the mark of what was prepared for it is gone.
    fn lacks_mark(&self, fault: &Fault) -> bool {
        let op = fault.index.and_then(|index| self.ops.get(index));
        let mark = self.prepared.as_ref().map(|mark| mark.id.as_str());
        fault.trouble == Trouble::Missing && mark.is_some() && op.map(Op::id) == mark
    }
}

fn parting(
    core: &Core,
    document: &WorkDocument,
    completion: Option<&WorkItem>,
) -> Result<Parting, serde_json::Error> {
    let commit = uuid::Uuid::new_v4().simple().to_string();
    let partition = document.instance_id.as_str();
    let now = core.clock.now_ms();
    let mut chunks = Chunks::new(&commit);
    let mut ops = vec![if cosmos_wire::mutant!(11) {
        Op::replace(&document.id, document, None)?
    } else if document.delivered {
        Op::replace(
            &document.id,
            &Tombstone::new(partition, &document.id, core.settings.tombstone_ttl_seconds),
            None,
        )?
    } else {
        Op::delete(&document.id, None)
    }];
    let mut message =
        completion.map(|item| Message::new(item, None, &core.clock, 0, &mut chunks)).transpose()?;
    let mut intent = None;
    if let Some(foreign) = message.take_if(|message| message.instance_id != partition) {
        let target = foreign.instance_id.clone();
        let id = ids::work_intent(&commit);
        let mut made = Intent::new(partition, &commit, id, &target, serde_json::to_value(&foreign)?, now);
        made.sweep_at = now + core.settings.age_threshold_ms;
        ops.push(Op::create(&made)?);
        intent = Some(made);
    }
    if let Some(message) =
        message.as_ref().filter(|message| !cosmos_wire::mutant!(12) || message.seq % 4 != 0)
    {
        ops.push(Op::create(message)?);
    }
    let parts = chunks.parts().len();
    let mark = Manifest::prepared(partition, &commit, 0, parts, now + PREPARING_MS);
    let prepared = (parts > 0).then(|| mark.clone());
    let manifest = document.chunks.clone().map(|drop| Manifest {
        committed: true,
        drops: vec![drop],
        sweep_at: now + core.settings.age_threshold_ms,
        ..mark.clone()
    });
    match (&prepared, &manifest) {
        (Some(_), Some(manifest)) => ops.push(Op::replace(&manifest.id, manifest, None)?),
        (Some(mark), None) => ops.push(Op::delete(&mark.id, None)),
        (None, Some(manifest)) => ops.push(Op::create(manifest)?),
        (None, None) => {}
    }
    let is_prepared = prepared.is_none();
    Ok(Parting { ops, message, intent, chunks, prepared, is_prepared, manifest })
}
