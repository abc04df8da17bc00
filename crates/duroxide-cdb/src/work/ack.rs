//! Completing a work item: it goes and its completion comes, in one batch.

use std::sync::Arc;

use duroxide::providers::{ProviderError, WorkItem};

use crate::core::{Backoff, Core};
use crate::documents::{Chunks, Intent, Manifest, Message, Tombstone, WorkDocument, ids, kind};
use crate::error::{Fault, Trouble};
use crate::orchestration::fetch::hint;
use crate::orchestration::layout::PREPARING_MS;
use crate::orchestration::publish;
use crate::store::Op;

use super::lock::{about, check, gone, lease_of};

const OPERATION: &str = "ack_work_item";

/// Removes a work item and enqueues its completion, if there is one.
pub(crate) async fn ack(
    core: &Arc<Core>,
    token: &str,
    completion: Option<WorkItem>,
) -> Result<(), ProviderError> {
    let (secret, lease) = lease_of(core, core.call(OPERATION), token).await?;
    let document = Arc::clone(&lease.item.lock().await.document);
    check(core, OPERATION, &document, &secret)?;
    let partition = document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(OPERATION, about(&document));
    let parting = parting(core, &document, completion.as_ref())
        .map_err(|error| surface(Fault::refused(format!("the completion cannot be written: {error}"))))?;
    if let Some(mark) = &parting.prepared {
        // A large completion may take longer to write than the lock lasts: it can be renewed meanwhile.
        let time = || core.call_while_held(OPERATION, &core.work_leases, &secret);
        publish::prepare(core, &time, mark, &[], &parting.chunks).await.map_err(surface)?;
    }
    let mut item = lease.item.lock().await;
    let until = check(core, OPERATION, &item.document, &secret)?;
    let call = core.call_until(OPERATION, until);
    let mut ops = parting.ops;
    let mut unsure = false;
    let mut backoff = Backoff::default();
    loop {
        ops[0] = ops[0].clone().on(&item.etag);
        let fault = match core.store.batch(call, &partition, &ops).await {
            Ok(_) => break,
            Err(fault) => fault,
        };
        unsure |= fault.may_have_been_applied;
        match fault.trouble {
            Trouble::Missing | Trouble::Changed => {
                let found =
                    core.read_as::<WorkDocument>(call, &partition, &document.id).await.map_err(surface)?;
                match found.filter(|found| found.document.kind == kind::WORK) {
                    // An earlier, unanswered try arrived; or the item was cancelled, which comes to the same.
                    None if unsure => break,
                    Some(found) if found.document.lock_token.as_deref() == Some(secret.as_str()) => {
                        item.etag = found.etag;
                    }
                    _ => {
                        core.work_leases.remove(&secret);
                        core.works.remove(&partition, &document.id);
                        return Err(gone(OPERATION, &document));
                    }
                }
            }
            // The completion's id is this call's own: it is there because an earlier try arrived.
            Trouble::Exists => break,
            Trouble::Transient => {}
            Trouble::Refused => return Err(surface(fault)),
        }
        if !backoff.wait(call, &fault).await {
            if unsure && is_gone(core, &document).await {
                break;
            }
            return Err(surface(fault));
        }
    }
    core.work_leases.remove(&secret);
    core.works.remove(&partition, &document.id);
    if let Some(session) = &document.session_id {
        core.sessions.touch(session, core.clock.now_ms());
    }
    if let Some(message) = &parting.message {
        core.turns.hint(hint(message));
    }
    let call = core.call(OPERATION);
    if let Some(manifest) = &parting.manifest
        && let Err(fault) = publish::publish(core, call, manifest, None).await
    {
        tracing::warn!(instance = partition, %fault, "the pieces of a completed item are not removed yet; they will be");
    }
    crate::outbox::deliver(core, OPERATION, parting.intent.into_iter().collect()).await;
    Ok(())
}

/// Whether an item is gone, asked when its lock has just ended and the last answer is missing.
async fn is_gone(core: &Core, document: &WorkDocument) -> bool {
    let call = core.quick_call(OPERATION);
    let found = core.read_as::<WorkDocument>(call, &document.instance_id, &document.id).await;
    found.is_ok_and(|found| found.is_none_or(|found| found.document.kind != kind::WORK))
}

/// What completing an item writes.
struct Parting {
    /// The removal first; its ETag condition is added when it is sent.
    ops: Vec<Op>,
    message: Option<Message>,
    intent: Option<Intent>,
    chunks: Chunks,
    prepared: Option<Manifest>,
    manifest: Option<Manifest>,
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
    let mut ops = vec![if document.delivered {
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
    if let Some(message) = &message {
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
    Ok(Parting { ops, message, intent, chunks, prepared, manifest })
}
