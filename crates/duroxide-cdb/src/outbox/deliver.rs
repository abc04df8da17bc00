//! Delivering intents.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::core::{Core, decode, in_parallel};
use crate::documents::{
    ChunkRef, Chunks, DeadLetter, Document as _, Intent, Manifest, Message, WorkDocument, ids, kind,
};
use crate::error::{Fault, Trouble};
use crate::orchestration::fetch::hint;
use crate::orchestration::{load, publish};
use crate::queries::{self, Query};
use crate::store::{Call, Op};

/// Delivers intents right after their commit. What fails is left to the reconciler.
pub(crate) async fn deliver(core: &Core, call: Call, intents: Vec<Intent>) {
    let skip = {
        let faults = core.outbox_faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        !intents.is_empty() && faults.as_ref().is_some_and(super::OutboxFaultInjector::takes_round)
    };
    if intents.is_empty() || skip {
        return;
    }
    if let Err(fault) = deliver_all(core, call, &intents).await {
        tracing::warn!(instance = intents[0].instance_id, %fault, "messages to other instances are delayed");
    }
}

/// Delivers everything an instance still has to send. Targets in `except` are not to be reached any more.
pub(crate) async fn deliver_pending(
    core: &Core,
    call: Call,
    instance: &str,
    except: &[String],
) -> Result<(), Fault> {
    let query = Query::new(queries::INTENTS);
    loop {
        let rows = core.patiently(call, || core.store.query(call, instance, &query)).await?;
        let intents: Vec<Intent> =
            rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, Fault>>()?;
        if intents.is_empty() {
            return Ok(());
        }
        let (moot, live): (Vec<Intent>, Vec<Intent>) =
            intents.into_iter().partition(|intent| except.contains(&intent.target_instance_id));
        remove(core, call, &moot).await?;
        deliver_all(core, call, &live).await?;
    }
}

/// Delivers intents of one source and removes those that arrived. The first trouble is returned, after all were tried.
pub(crate) async fn deliver_all(core: &Core, call: Call, intents: &[Intent]) -> Result<(), Fault> {
    let deliveries = intents
        .iter()
        .map(|intent| -> BoxFuture<'_, Result<(), Fault>> { Box::pin(deliver_one(core, call, intent)) });
    let outcomes = in_parallel(DELIVERIES_AT_ONCE, deliveries).await;
    let mut arrived = Vec::with_capacity(intents.len());
    let mut trouble = None;
    for (intent, outcome) in intents.iter().zip(outcomes) {
        match outcome {
            Ok(()) => arrived.push(intent.clone()),
            Err(fault) => trouble = Some(fault),
        }
    }
    remove(core, call, &arrived).await?;
    trouble.map_or(Ok(()), Err)
}

/// Creates the target document. Finding it, or its tombstone, means that it was delivered before.
async fn deliver_one(core: &Core, call: Call, intent: &Intent) -> Result<(), Fault> {
    let target = intent.target_instance_id.as_str();
    let mut document = match intent.target_document() {
        Ok(document) => document,
        Err(reason) => return bury(core, call, intent, Value::Null, reason).await,
    };
    if let Some(reason) = ids::refusal(target) {
        return bury(core, call, intent, document, reason).await;
    }
    let mut chunks = Chunks::new(&uuid::Uuid::new_v4().simple().to_string());
    if let Some(pieces) = &intent.chunks {
        let text = load::join(core, call, &intent.instance_id, pieces).await?;
        let (inline, moved) = chunks.hold(text);
        document["workItem"] = inline.into();
        document["chunks"] = serde_json::to_value(moved).unwrap_or_default();
    }
    let id = document["id"].as_str().unwrap_or_default().to_owned();
    let op = Op::create_text(&id, &document.to_string());
    match crate::queue::put(core, call, target, op, &chunks).await {
        Ok(etag) => announce(core, &document, etag),
        Err(fault) if fault.trouble == Trouble::Exists => {}
        Err(fault) if fault.trouble == Trouble::Refused => {
            return bury(core, call, intent, document, fault.to_string()).await;
        }
        Err(fault) => return Err(fault),
    }
    Ok(())
}

fn announce(core: &Core, document: &Value, etag: String) {
    if document["type"] == kind::WORK {
        if let (Ok(work), false) = (WorkDocument::deserialize_from(document), etag.is_empty()) {
            core.works.put(Arc::new(work), etag);
        }
    } else if let Ok(message) = Message::deserialize_from(document) {
        core.turns.hint(hint(&message));
    }
}

trait DeserializeFrom: Sized + serde::de::DeserializeOwned {
    fn deserialize_from(value: &Value) -> Result<Self, serde_json::Error> {
        serde::Deserialize::deserialize(value)
    }
}

impl DeserializeFrom for WorkDocument {}
impl DeserializeFrom for Message {}

/// Keeps a message that can never be delivered, with the reason.
async fn bury(
    core: &Core,
    call: Call,
    intent: &Intent,
    document: Value,
    reason: String,
) -> Result<(), Fault> {
    tracing::error!(
        source = intent.instance_id,
        target = intent.target_instance_id,
        reason,
        "a message is undeliverable"
    );
    let letter = DeadLetter {
        id: format!("dead:{}", intent.id),
        instance_id: intent.instance_id.clone(),
        kind: kind::DEAD_LETTER.to_owned(),
        target_instance_id: intent.target_instance_id.clone(),
        document,
        reason,
        died_at: core.clock.now_ms(),
    };
    let op = Op::create(&letter).map_err(|error| Fault::refused(error.to_string()))?;
    debug_assert_eq!(op.id(), letter.id());
    core.create_own(call, &letter.instance_id, &op).await.map(drop)
}

/// Removes delivered intents, and the pieces of their texts with them.
async fn remove(core: &Core, call: Call, intents: &[Intent]) -> Result<(), Fault> {
    let Some(first) = intents.first() else { return Ok(()) };
    let source = first.instance_id.as_str();
    let refused = |error: serde_json::Error| Fault::refused(error.to_string());
    let drops: Vec<ChunkRef> = intents.iter().filter_map(|intent| intent.chunks.clone()).collect();
    let mut manifest = None;
    if !drops.is_empty() {
        let now = core.clock.now_ms();
        let commit = uuid::Uuid::new_v4().simple().to_string();
        let mark = Manifest::prepared(source, &commit, 0, 0, now + core.settings.age_threshold_ms);
        manifest = Some(Manifest { committed: true, drops, ..mark });
    }
    if let Some(manifest) = &manifest {
        core.create_own(call, source, &Op::create(manifest).map_err(refused)?).await?;
    }
    for group in intents.chunks(REMOVALS_PER_BATCH) {
        let ops: Vec<Op> = group.iter().map(|intent| Op::delete(&intent.id, None)).collect();
        match core.patiently(call, || core.store.batch(call, source, &ops)).await {
            Ok(_) => {}
            // Somebody else removed some of them: one by one then.
            Err(fault) if fault.trouble == Trouble::Missing => {
                for intent in group {
                    core.delete(call, source, &intent.id).await?;
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    match &manifest {
        Some(manifest) => Box::pin(publish::publish(core, call, manifest, None)).await,
        None => Ok(()),
    }
}

const DELIVERIES_AT_ONCE: usize = 16;
const REMOVALS_PER_BATCH: usize = 100;
