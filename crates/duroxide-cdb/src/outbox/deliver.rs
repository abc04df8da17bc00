//! Delivering intents.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::WorkItem;
use duroxide::{AppErrorKind, ErrorDetails};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;

use crate::core::Core;
use crate::documents::{
    Cancellation, ChunkRef, Chunks, DeadLetter, Deletion, Intent, Manifest, Message, Tagged, Tombstone,
    WorkDocument, ids, kind, name_parent,
};
use crate::error::{Fault, Trouble};
use crate::outbox_faults::OutboxFaultInjector;
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::staging::{Outlet, join, pieces, publish};
use crate::store::settle::{Rests, Settled, settled};
use crate::store::{Call, Op};

/// Delivers intents right after their commit. Somebody waits for that, so what fails soon is left to the reconciler.
///
/// Boxed, because delivering may finish a commit, and that may have something to deliver.
pub(crate) fn deliver<'a>(
    core: &'a Core,
    operation: &'static str,
    intents: Vec<Intent>,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let skip = {
            let faults = core.outbox_faults.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            !intents.is_empty() && faults.as_ref().is_some_and(OutboxFaultInjector::takes_round)
        };
        if intents.is_empty() || skip {
            return;
        }
        if let Err(fault) = deliver_all(core, core.store.quick_call(operation), &intents).await {
            tracing::warn!(instance = intents[0].instance_id, %fault, "messages to other instances are delayed");
        }
    })
}

/// What a staged commit publishes goes the way of what a small commit writes at once.
impl Outlet for Core {
    fn work_written(&self, work: Arc<WorkDocument>, etag: String) {
        self.tell_of_work(work, etag);
    }

    fn work_removed(&self, instance: &str, id: &str) {
        self.works.remove(instance, id);
    }

    fn message_written(&self, message: &Message) {
        self.tell_of_message(message);
    }

    fn deliver(&self, operation: &'static str, intents: Vec<Intent>) -> BoxFuture<'_, ()> {
        deliver(self, operation, intents)
    }
}

/// What an instance has to send. What cannot be read is left where it is.
pub(crate) async fn pending(core: &Core, call: Call, instance: &str) -> Result<Vec<Intent>, Fault> {
    Ok(Outbox::read(core, call, instance, queries::INTENTS).await?.intents)
}

/// What an instance has to send, and the commits that may bring more.
#[derive(Debug, Default)]
struct Outbox {
    intents: Vec<Intent>,
    manifests: Vec<Manifest>,
    /// Removals of what cannot be read.
    unreadable: Vec<Op>,
}

impl Outbox {
    async fn read(core: &Core, call: Call, instance: &str, text: &'static str) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        struct Envelope {
            id: String,
            #[serde(rename = "type")]
            kind: String,
            #[serde(rename = "_etag", default)]
            etag: Option<String>,
        }
        let query = Query::new(text);
        let rows = core.store.patient(call).query(instance, &query).await?;
        let mut outbox = Self::default();
        for row in &rows {
            let Some(Envelope { id, kind, etag }) = core.strays.read(call.operation, row) else { continue };
            let is_read = if kind == kind::INTENT {
                let intent = core.strays.read::<Intent>(call.operation, row);
                intent.map(|intent| outbox.intents.push(intent)).is_some()
            } else {
                let manifest = core.strays.read::<Manifest>(call.operation, row);
                manifest.map(|manifest| outbox.manifests.push(manifest)).is_some()
            };
            if !is_read {
                outbox.unreadable.push(Op::delete(&id, etag.as_deref()));
            }
        }
        Ok(outbox)
    }

    fn is_empty(&self) -> bool {
        self.intents.is_empty() && self.manifests.is_empty() && self.unreadable.is_empty()
    }
}

/// A message that an instance still has to send.
#[derive(Debug)]
pub(crate) struct Unsent {
    /// The id it has, or will have, in the partition of its target.
    pub(crate) id: String,
    pub(crate) target: String,
    /// Whether it starts a child that is to be deleted with its parent.
    pub(crate) begins_child: bool,
}

/// What an instance that is to be deleted with these still has to send. Its unfinished commits are finished first: they
/// may have more to send.
pub(crate) async fn unsent(
    core: &Core,
    call: Call,
    instance: &str,
    deleted: &[String],
) -> Result<Vec<Unsent>, Fault> {
    // Of these it is not known any more what they would have brought: they go with the instance.
    let mut damaged = HashSet::new();
    loop {
        let mut outbox = Outbox::read(core, call, instance, queries::UNSENT).await?;
        outbox.manifests.retain(|manifest| !damaged.contains(&manifest.id));
        for manifest in &outbox.manifests {
            match publish::publish(core.staging(), call, manifest, None).await {
                Err(fault) if fault.is_damage => {
                    damaged.insert(manifest.id.clone());
                }
                outcome => outcome?,
            }
        }
        if outbox.manifests.is_empty() {
            let mut unsent = Vec::with_capacity(outbox.intents.len());
            for intent in outbox.intents {
                let Ok(document) = intent.target_document() else { continue };
                let text = text_of(core, call, &intent).await?;
                let begins_child = ids::refusal(&intent.target_instance_id).is_none()
                    && text.is_some_and(|text| begins_child_of(&text, deleted));
                let id = document["id"].as_str().unwrap_or_default().to_owned();
                unsent.push(Unsent { id, target: intent.target_instance_id, begins_child });
            }
            return Ok(unsent);
        }
    }
}

/// Delivers everything that an instance which is being deleted still has to send, except to those that are deleted with
/// it, and except the starts of its children. What cannot be read is removed: nobody could send it any more.
pub(crate) async fn deliver_pending(
    core: &Core,
    call: Call,
    instance: &str,
    deleted: &[String],
) -> Result<(), Fault> {
    loop {
        let outbox = Outbox::read(core, call, instance, queries::UNSENT).await?;
        // Others may have finished meanwhile, and what was listed may belong to the next life already.
        if outbox.is_empty() || !is_deleted_with(core, call, instance, deleted).await? {
            return Ok(());
        }
        for removal in outbox.unreadable {
            pieces::remove(core.staging(), call, instance, removal, None).await?;
        }
        for manifest in &outbox.manifests {
            match publish::publish(core.staging(), call, manifest, None).await {
                Err(fault) if fault.is_damage => {
                    core.store.patient(call).delete(instance, &manifest.id).await?;
                }
                outcome => outcome?,
            }
        }
        // What is done about a group is noted before the next one: there may be no time for all of them.
        for group in outbox.intents.chunks(REMOVALS_PER_BATCH) {
            settle(core, call, group, deleted).await?;
        }
    }
}

/// Whether an instance carries the fence of a recorded deletion of exactly these.
async fn is_deleted_with(core: &Core, call: Call, instance: &str, deleted: &[String]) -> Result<bool, Fault> {
    let Some(head) = core.store.patient(call).head(instance).await? else { return Ok(false) };
    let Some(deletion) = head.document.deletion else { return Ok(false) };
    let record = core.store.patient(call).read_as::<Deletion>(ids::DELETIONS, &deletion).await?;
    Ok(record.is_some_and(|record| record.document.instances == deleted))
}

/// Delivers or forecloses intents of an instance that is deleted with these. The first trouble is returned, after all
/// were tried.
async fn settle(core: &Core, call: Call, intents: &[Intent], deleted: &[String]) -> Result<(), Fault> {
    let foreclosures = intents.iter().map(|intent| -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(foreclose_if_moot(core, call, intent, deleted))
    });
    let outcomes = in_parallel(DELIVERIES_AT_ONCE, foreclosures).await;
    let (mut moot, mut live) = (Vec::new(), Vec::new());
    let mut trouble = None;
    for (intent, outcome) in intents.iter().zip(outcomes) {
        match outcome {
            Ok(true) => moot.push(intent.clone()),
            Ok(false) => live.push(intent.clone()),
            Err(fault) => trouble = Some(fault),
        }
    }
    // One target that cannot be reached may have used up the time; the others are not to be begun again.
    remove(core, core.store.quick_call(call.operation), &moot).await?;
    deliver_all(core, call, &live).await?;
    trouble.map_or(Ok(()), Err)
}

/// Forecloses an intent that is for one of the deleted, or starts a child of one. Says whether it is such an intent.
async fn foreclose_if_moot(
    core: &Core,
    call: Call,
    intent: &Intent,
    deleted: &[String],
) -> Result<bool, Fault> {
    let is_inside = deleted.contains(&intent.target_instance_id);
    let is_moot =
        is_inside || text_of(core, call, intent).await?.is_some_and(|text| begins_child_of(&text, deleted));
    if is_moot {
        foreclose(core, call, intent, is_inside).await?;
    }
    Ok(is_moot)
}

/// Makes sure that an intent which is not to be delivered never will be: somebody else may be about to. If the message
/// has arrived already, it goes with what else waits for its target, and leaves its tombstone if that is deleted too.
async fn foreclose(core: &Core, call: Call, intent: &Intent, is_inside: bool) -> Result<(), Fault> {
    #[derive(Deserialize)]
    struct Arrived {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        chunks: Option<ChunkRef>,
    }
    let target = intent.target_instance_id.as_str();
    let Ok(document) = intent.target_document() else { return Ok(()) };
    if ids::refusal(target).is_some() {
        return Ok(());
    }
    let id = document["id"].as_str().unwrap_or_default();
    let tombstone = Tombstone::new(target, id, core.settings.tombstone_ttl_seconds);
    let op = Op::create(&tombstone)?;
    loop {
        match core.store.patient(call).settle_one(target, &op, Rests::Shared).await {
            Ok(Settled::Superseded(_)) if is_inside => {}
            Err(fault) if !fault.is_final_refusal() => return Err(fault),
            Ok(_) | Err(_) => return Ok(()),
        }
        // Removed by others in between, it would leave nothing: then it is tried again.
        let Some(found) = core.store.patient(call).read_as::<Arrived>(target, id).await? else { continue };
        if found.document.kind == kind::TOMBSTONE {
            return Ok(());
        }
        let replacement = Op::replace(id, &tombstone, Some(&found.etag))?;
        pieces::remove(core.staging(), call, target, replacement, found.document.chunks).await?;
    }
}

/// Delivers intents of one source and removes those that arrived. The first trouble is returned, after all were tried.
pub(crate) async fn deliver_all(core: &Core, call: Call, intents: &[Intent]) -> Result<(), Fault> {
    deliver_each(core, call, intents, &mut Vec::new()).await
}

/// As [`deliver_all`], by the reconciler, which comes by again: each intent that could not be delivered counts that, and is
/// left alone for longer each time. Messages for a target in trouble then do not keep those for others waiting.
pub(crate) async fn deliver_again(core: &Core, call: Call, intents: &[Intent]) -> Result<(), Fault> {
    let mut late = Vec::new();
    let outcome = deliver_each(core, call, intents, &mut late).await;
    let puttings_off =
        late.into_iter().map(|intent| -> BoxFuture<'_, ()> { Box::pin(put_off(core, intent)) });
    in_parallel(DELIVERIES_AT_ONCE, puttings_off).await;
    outcome
}

/// Notes on an intent that it was tried in vain, and when to try it again. Where that cannot be written, nothing is lost: it
/// is tried again at once.
async fn put_off(core: &Core, intent: &Intent) {
    let attempts = intent.attempt_count.saturating_add(1);
    let next = core.clock.after(pause_after(attempts));
    let mut op = Op::set(&intent.id, "/attemptCount", attempts).and_set("/sweepAt", next);
    if let Some(etag) = &intent.etag {
        op = op.on(etag);
    }
    if let Err(fault) = core.store.write(core.store.quick_call(OPERATION), &intent.instance_id, &op).await {
        tracing::debug!(instance = intent.instance_id, %fault, "a message that is delayed could not be put off");
    }
}

/// How long an intent is left alone that was tried in vain so often.
fn pause_after(attempts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(PAUSE_MAX)
}

/// Tries all intents of one source and removes those that arrived; names those that did not.
async fn deliver_each<'a>(
    core: &Core,
    call: Call,
    intents: &'a [Intent],
    late: &mut Vec<&'a Intent>,
) -> Result<(), Fault> {
    if cosmos_wire::mutant!(5) {
        remove(core, call, intents).await?;
    }
    let deliveries = intents
        .iter()
        .map(|intent| -> BoxFuture<'_, Result<Fate, Fault>> { Box::pin(deliver_one(core, call, intent)) });
    let outcomes = in_parallel(DELIVERIES_AT_ONCE, deliveries).await;
    let mut arrived = Vec::with_capacity(intents.len());
    let mut trouble = None;
    for (intent, outcome) in intents.iter().zip(outcomes) {
        match outcome {
            Ok(Fate::Delivered) => arrived.push(intent.clone()),
            Ok(Fate::Buried) => {}
            Err(fault) => {
                trouble = Some(fault);
                late.push(intent);
            }
        }
    }
    // One target that cannot be reached may have used up the time; what arrived is not to be sent for ever.
    remove(core, core.store.quick_call(call.operation), &arrived).await?;
    trouble.map_or(Ok(()), Err)
}

/// What became of an intent.
enum Fate {
    /// Its message is where it belongs.
    Delivered,
    /// It never will be; the intent is gone, a dead letter is kept.
    Buried,
}

/// Creates the target document, or removes what is cancelled. Finding the document, or its tombstone, means that it was
/// delivered before.
async fn deliver_one(core: &Core, call: Call, intent: &Intent) -> Result<Fate, Fault> {
    let target = intent.target_instance_id.as_str();
    let mut document = match intent.target_document() {
        Ok(document) => document,
        Err(reason) => return bury(core, call, intent, reason).await,
    };
    if let Some(reason) = ids::refusal(target) {
        return bury(core, call, intent, reason).await;
    }
    if let Some(Cancellation { work_id, .. }) = Cancellation::in_document(&document) {
        pieces::remove_work(core.staging(), call, target, &work_id).await?;
        core.works.remove(target, &work_id);
        return Ok(Fate::Delivered);
    }
    let mut chunks = Chunks::new(&uuid::Uuid::new_v4().simple().to_string());
    if let Some(pieces) = &intent.chunks {
        let text = match join(&core.store, call, &intent.instance_id, pieces).await {
            Ok(text) => text,
            Err(fault) if fault.is_final_refusal() => {
                return unreadable(core, call, intent, &fault).await;
            }
            Err(fault) => return Err(fault),
        };
        name_parent(&mut document, Some(&text));
        let (inline, moved) = chunks.hold(text);
        document["workItem"] = inline.into();
        document["chunks"] = serde_json::to_value(moved).unwrap_or_default();
    }
    if cosmos_wire::mutant!(4) {
        document["id"] = ids::message().into();
    }
    let id = document["id"].as_str().unwrap_or_default().to_owned();
    let op = Op::create_text(&id, document.to_string());
    // The id is derived from the intent: whoever wrote the document, or consumed it, delivered this message.
    match settled(crate::queue::put(core, call, target, op, &chunks).await, Rests::OwnId) {
        Ok(Settled::Applied(etag)) => announce(core, &document, etag),
        Ok(Settled::Arrived) => {}
        Ok(Settled::Superseded(fault)) => return Err(fault),
        // A refusal of access is no reason to give a message up: it is tried again when the reconciler comes by.
        Err(fault) if fault.is_final_refusal() => {
            return bury(core, call, intent, fault.to_string()).await;
        }
        Err(fault) => return Err(fault),
    }
    Ok(Fate::Delivered)
}

/// The text of an intent is not there any more. Either somebody else has just sent and removed it, or it never can be.
async fn unreadable(core: &Core, call: Call, intent: &Intent, fault: &Fault) -> Result<Fate, Fault> {
    let found = core.store.patient(call).read_as::<Intent>(&intent.instance_id, &intent.id).await?;
    let is_same = |found: Tagged<Intent>| intent.etag.as_ref().is_none_or(|etag| *etag == found.etag);
    if found.is_some_and(is_same) {
        return bury(core, call, intent, fault.to_string()).await;
    }
    Ok(Fate::Delivered)
}

fn announce(core: &Core, document: &Value, etag: String) {
    if document["type"] == kind::WORK {
        if let (Ok(work), false) = (WorkDocument::deserialize_from(document), etag.is_empty()) {
            core.tell_of_work(Arc::new(work), etag);
        }
    } else if let Ok(message) = Message::deserialize_from(document) {
        core.tell_of_message(&message);
    }
}

trait DeserializeFrom: Sized + serde::de::DeserializeOwned {
    fn deserialize_from(value: &Value) -> Result<Self, serde_json::Error> {
        Deserialize::deserialize(value)
    }
}

impl DeserializeFrom for WorkDocument {}
impl DeserializeFrom for Message {}

/// Replaces an intent that can never be delivered by a dead letter with the reason. A parent that waits for what it was
/// to start is told in the same batch.
async fn bury(core: &Core, call: Call, intent: &Intent, reason: String) -> Result<Fate, Fault> {
    let source = intent.instance_id.as_str();
    let target = intent.target_instance_id.as_str();
    tracing::error!(source, target, reason, "a message is undeliverable");
    let telling = failure(core, call, intent, &reason).await?;
    let letter = DeadLetter::of(intent, reason, core.clock.now_ms());
    let mut ops = vec![Op::create(&letter)?, removal(intent)];
    if let Some(message) = &telling {
        ops.push(Op::create(message)?);
    }
    match core.store.patient(call).batch(source, &ops).await {
        // It died before and was revived: the sender has been told.
        Err(fault) if fault.trouble == Trouble::Exists && fault.index == Some(2) => {
            core.store.patient(call).batch(source, &ops[..2]).await?;
        }
        // Somebody else, or an earlier try, has buried it.
        outcome => drop(settled(outcome, Rests::Shared)?),
    }
    if let Some(message) = &telling {
        core.tell_of_message(message);
    }
    Ok(Fate::Buried)
}

/// The message that tells the sender that the child it waits for will not start.
async fn failure(core: &Core, call: Call, intent: &Intent, reason: &str) -> Result<Option<Message>, Fault> {
    let Some(text) = text_of(core, call, intent).await? else { return Ok(None) };
    let Ok(WorkItem::StartOrchestration {
        instance,
        parent_instance: Some(parent_instance),
        parent_id: Some(parent_id),
        parent_execution_id,
        ..
    }) = serde_json::from_str(&text)
    else {
        return Ok(None);
    };
    if parent_instance != intent.instance_id {
        return Ok(None);
    }
    let item = WorkItem::SubOrchFailed {
        parent_instance,
        parent_execution_id: parent_execution_id.unwrap_or(1),
        parent_id,
        details: ErrorDetails::Application {
            kind: AppErrorKind::OrchestrationFailed,
            message: format!("{instance} could not be started: {reason}"),
            retryable: false,
        },
    };
    let mut message = Message::new(&item, None, &core.clock, 0, &mut Chunks::new(""))?;
    message.id = ids::failure(&intent.instance_id, &intent.id);
    Ok(Some(message))
}

/// The text of the message that an intent is for, if it can be read.
async fn text_of(core: &Core, call: Call, intent: &Intent) -> Result<Option<String>, Fault> {
    match (&intent.chunks, intent.target_document()) {
        (Some(pieces), _) => match join(&core.store, call, &intent.instance_id, pieces).await {
            Ok(text) => Ok(Some(text)),
            Err(fault) if fault.is_final_refusal() => Ok(None),
            Err(fault) => Err(fault),
        },
        (None, Ok(document)) => Ok(document["workItem"].as_str().map(ToOwned::to_owned)),
        (None, Err(_)) => Ok(None),
    }
}

/// Whether a message starts a child of one of these instances.
fn begins_child_of(text: &str, parents: &[String]) -> bool {
    match serde_json::from_str(text) {
        Ok(WorkItem::StartOrchestration { parent_instance: Some(parent), .. }) => parents.contains(&parent),
        _ => false,
    }
}

/// Removes delivered intents, and the pieces of their texts with them.
async fn remove(core: &Core, call: Call, intents: &[Intent]) -> Result<(), Fault> {
    for group in intents.chunks(REMOVALS_PER_BATCH) {
        if remove_together(core, call, group).await? == Removal::SomeGone {
            // Somebody else removed some of them: one by one then.
            for intent in group {
                remove_together(core, call, std::slice::from_ref(intent)).await?;
            }
        }
    }
    Ok(())
}

/// What came of removing intents together.
#[derive(Debug, PartialEq, Eq)]
enum Removal {
    Done,
    /// At least one was not there any more, or was another one of the same name, so nothing was removed.
    SomeGone,
}

/// Removes intents in one batch with the list of their pieces: an intent without its pieces could not be sent again,
/// and pieces without their intent would be kept for ever.
async fn remove_together(core: &Core, call: Call, intents: &[Intent]) -> Result<Removal, Fault> {
    let Some(first) = intents.first() else { return Ok(Removal::Done) };
    let source = first.instance_id.as_str();
    let manifest = pieces_of(intents, core.clock.now_ms() + core.settings.age_threshold_ms);
    let mut ops = Vec::with_capacity(intents.len() + 1);
    if let Some(manifest) = &manifest {
        ops.push(Op::create(manifest)?);
    }
    ops.extend(intents.iter().map(removal));
    // The list is this call's own.
    match core.store.patient(call).settle(source, &ops, Rests::OwnId).await? {
        Settled::Applied(_) | Settled::Arrived => {}
        Settled::Superseded(_) => return Ok(Removal::SomeGone),
    }
    if let Some(manifest) = &manifest {
        publish::publish(core.staging(), call, manifest, None).await?;
    }
    Ok(Removal::Done)
}

/// Removes an intent as it was listed: the next life of its source may have one of the same name.
fn removal(intent: &Intent) -> Op {
    Op::delete(&intent.id, intent.etag.as_deref())
}

/// The list of the pieces of intents of one source, if they have any.
fn pieces_of(intents: &[Intent], sweep_at: u64) -> Option<Manifest> {
    let drops: Vec<ChunkRef> = intents.iter().filter_map(|intent| intent.chunks.clone()).collect();
    let source = intents.first().filter(|_| !drops.is_empty())?;
    let commit = uuid::Uuid::new_v4().simple().to_string();
    let mark = Manifest::prepared(&source.instance_id, &commit, 0, 0, sweep_at);
    Some(Manifest { committed: true, drops, ..mark })
}

const OPERATION: &str = "put-off";
/// The first pause is as long as that between two sweeps: a passing trouble delays nothing more.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const DELIVERIES_AT_ONCE: usize = 16;
/// One place of a batch is the list's of their pieces.
const REMOVALS_PER_BATCH: usize = 99;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_in_vain_is_followed_by_a_longer_pause() {
        let seconds: Vec<u64> =
            [1, 2, 3, 4, 5, 6, 7, u32::MAX].map(|attempts| pause_after(attempts).as_secs()).to_vec();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
