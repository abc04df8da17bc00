//! Enqueueing: one write, recognised when it is repeated.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{ProviderError, WorkItem};

use crate::clock::millis;
use crate::core::Core;
use crate::documents::{Chunks, Manifest, Message, WorkDocument, addressee, ids};
use crate::error::{Fault, Trouble};
use crate::staging::layout::PREPARING_MS;
use crate::staging::publish;
use crate::store::settle::{Rests, Settled, settled};
use crate::store::{Call, Op};

/// Enqueues a message for an instance.
pub(crate) async fn for_orchestrator(
    core: &Core,
    item: &WorkItem,
    delay: Option<Duration>,
) -> Result<(), ProviderError> {
    const OPERATION: &str = "enqueue_for_orchestrator";
    let call = core.store.call(OPERATION);
    let instance = addressable(OPERATION, item)?;
    let surface = |fault: Fault| fault.surface(OPERATION, &instance);
    let mut chunks = Chunks::new(&uuid::Uuid::new_v4().simple().to_string());
    let message = Message::new(item, delay.map(millis), &core.clock, 0, &mut chunks).and_then(|message| {
        let message = Message { delivered: counts_twice(item), ..message };
        Ok((Op::create(&message)?, message))
    });
    let (op, message) = message.map_err(|error| surface(error.into()))?;
    match put(core, call, &instance, op, &chunks).await {
        Err(fault) if cosmos_wire::mutant!(19) && fault.may_have_been_applied => {}
        // The id is this call's own: what is there arrived with an earlier try. It may have been consumed since.
        outcome => {
            settled(outcome, Rests::OwnId).and_then(Settled::unless_superseded).map_err(surface)?;
        }
    }
    core.tell_of_message(&message);
    Ok(())
}

/// Whether an instance that gets a message again takes it for another one. A second start or cancel changes nothing.
fn counts_twice(item: &WorkItem) -> bool {
    matches!(item, WorkItem::ExternalRaised { .. } | WorkItem::QueueMessage { .. })
}

/// Enqueues a work item.
pub(crate) async fn for_worker(core: &Core, item: &WorkItem) -> Result<(), ProviderError> {
    const OPERATION: &str = "enqueue_for_worker";
    let call = core.store.call(OPERATION);
    let instance = addressable(OPERATION, item)?;
    let surface = |fault: Fault| fault.surface(OPERATION, &instance);
    let refused = |error: serde_json::Error| surface(error.into());
    let mut chunks = Chunks::new(&uuid::Uuid::new_v4().simple().to_string());
    let mut work = WorkDocument::new(item, &core.clock, 0, &mut chunks).map_err(refused)?;
    work.nonce = Some(uuid::Uuid::new_v4().simple().to_string());
    let op = Op::create(&work).map_err(refused)?;
    let etag = match put(core, call, &instance, op, &chunks).await {
        Err(fault) if fault.trouble == Trouble::Exists => {
            // Another item has the deterministic id, or this one arrived without an answer.
            let found = core
                .store
                .patient(call)
                .read_as::<WorkDocument>(&instance, &work.id)
                .await
                .map_err(surface)?;
            match found {
                Some(found) if found.document.nonce == work.nonce => found.etag,
                _ => {
                    work.id = ids::another_work(&work.id);
                    let op = Op::create(&work).map_err(refused)?;
                    put(core, call, &instance, op, &chunks).await.map_err(surface)?
                }
            }
        }
        outcome => outcome.map_err(surface)?,
    };
    // Without an answer there is no ETag to lock it with: a search will bring both.
    if !etag.is_empty() {
        core.tell_of_work(Arc::new(work), etag);
    }
    Ok(())
}

fn addressable(operation: &str, item: &WorkItem) -> Result<String, ProviderError> {
    let instance = addressee(item);
    match ids::refusal(&instance) {
        Some(reason) => Err(ProviderError::permanent(operation, reason)),
        None => Ok(instance),
    }
}

/// Writes a document, and before it the pieces of its text if it has any.
pub(crate) async fn put(
    core: &Core,
    call: Call,
    partition: &str,
    op: Op,
    chunks: &Chunks,
) -> Result<String, Fault> {
    let parts = chunks.parts().len();
    if parts == 0 {
        return core.store.patient(call).write(partition, &op).await;
    }
    let mark = Manifest::prepared(partition, chunks.commit(), 0, parts, core.clock.now_ms() + PREPARING_MS);
    publish::prepare(&core.store, call.into(), &mark, &[], chunks).await?;
    let ops = [op, Op::delete(&mark.id, None)];
    // The mark goes only with this document: if it is gone after a try without an answer, that try arrived.
    let etags =
        core.store.patient(call).settle(partition, &ops, Rests::Removal(1)).await?.unless_superseded()?;
    Ok(etags.map(|mut etags| etags.swap_remove(0)).unwrap_or_default())
}
