//! Acking a turn: prepare if it is big, commit in one batch, then finish and deliver.

use std::collections::HashMap;
use std::sync::Arc;

use duroxide::providers::{ProviderError, ScheduledActivityIdentifier};
use serde::Deserialize;

use crate::cache::Known;
use crate::core::{Backoff, Core, decode};
use crate::documents::{Head, Intent, Tagged};
use crate::error::{Fault, Lost, Trouble, invalid_token};
use crate::store::{Call, Op};

use super::fetch::hint;
use super::layout::{Layout, Limits, layout};
use super::lock::{LeaseState, check, lease_of};
use super::plan::{Plan, Surroundings, Turn, plan};
use super::{adopt, pieces, publish};

const OPERATION: &str = "ack_orchestration_item";

/// Commits a turn.
pub(crate) async fn ack(core: &Arc<Core>, token: &str, turn: Turn) -> Result<(), ProviderError> {
    let (instance, secret, lease) = lease_of(core, core.call(OPERATION), token).await?;
    let mut draft = draft(core, &*lease.state.lock().await, &turn, &secret).await?;
    let mut backoff = Backoff::default();
    let (mut state, etags) = loop {
        // Preparing a large turn may take longer than the lock: it can be renewed meanwhile.
        draft.prepare(core, &secret).await.map_err(|fault| fault.surface(OPERATION, &instance))?;
        let mut state = lease.state.lock().await;
        match commit(core, &mut state, &turn, &secret, &mut draft, &mut backoff).await {
            Ok(Some(etags)) => break (state, etags),
            Ok(None) => {}
            Err(error) => {
                if state.head.document.lock_token.as_deref() != Some(secret.as_str()) {
                    core.turn_leases.remove(&secret);
                    core.turns.released(&instance, &[]);
                }
                return Err(error);
            }
        }
    };
    let committed = Committed { plan: draft.plan, layout: draft.layout, etags };
    core.turn_leases.remove(&secret);
    remember(core, &instance, &committed, &turn);
    let consumed: Vec<String> = state.head.document.batch.iter().map(|held| held.id.clone()).collect();
    state.head = Tagged { document: committed.plan.head.clone(), etag: committed.etags[0].clone() };
    drop(state);
    announce(core, &instance, &committed, &consumed);
    finish(core, &instance, committed).await;
    Ok(())
}

/// A commit that is ready to be sent, under an id of its own.
struct Draft {
    /// The head it was made from.
    of: Tagged<Head>,
    commit: String,
    plan: Plan,
    layout: Layout,
}

impl Draft {
    /// Whether a head is still what the draft was made from. A renewal changes nothing, a recount of a pruned history
    /// does.
    fn fits(&self, head: &Tagged<Head>) -> bool {
        self.of.etag == head.etag || self.of.document.is_same_but_for_lock_time(&head.document)
    }

    /// Writes what the commit needs to find.
    async fn prepare(&self, core: &Core, secret: &str) -> Result<(), Fault> {
        let Some(mark) = &self.layout.prepared else { return Ok(()) };
        let time = || core.call_while_held(OPERATION, &core.turn_leases, secret);
        publish::prepare(core, &time, mark, &self.layout.staged, &self.plan.chunks).await
    }
}

async fn draft(core: &Core, state: &LeaseState, turn: &Turn, secret: &str) -> Result<Draft, ProviderError> {
    let until = check(core, OPERATION, &state.head.document, secret)?;
    let commit = uuid::Uuid::new_v4().simple().to_string();
    let (plan, layout) = compose(core, core.call_until(OPERATION, until), state, turn, &commit).await?;
    Ok(Draft { of: state.head.clone(), commit, plan, layout })
}

struct Committed {
    plan: Plan,
    layout: Layout,
    /// ETags of the commit's operations, if its answer arrived; else only the head's.
    etags: Vec<String>,
}

/// Commits a draft and returns the ETags. `None`: it did not fit any more and was made anew, under a new id. What was
/// prepared under the old one will be swept.
async fn commit(
    core: &Core,
    state: &mut LeaseState,
    turn: &Turn,
    secret: &str,
    draft: &mut Draft,
    backoff: &mut Backoff,
) -> Result<Option<Vec<String>>, ProviderError> {
    let instance = state.head.document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(OPERATION, &instance);
    loop {
        let until = check(core, OPERATION, &state.head.document, secret)?;
        let call = core.call_until(OPERATION, until);
        if !draft.fits(&state.head) {
            *draft = self::draft(core, state, turn, secret).await?;
            return Ok(None);
        }
        let ops = &mut draft.layout.commit;
        ops[0] = ops[0].clone().on(&state.head.etag);
        let fault = match core.store.batch(call, &instance, ops).await {
            Ok(etags) => return Ok(Some(etags)),
            Err(fault) => fault,
        };
        if fault.trouble == Trouble::Refused {
            return Err(surface(fault));
        }
        if fault.may_have_been_applied || fault.trouble != Trouble::Transient {
            // The head tells whether the commit happened, is still possible, or never will be. It is asked even when
            // the lock has just ended: no answer is not a failure.
            let head = core.head(core.quick_call(OPERATION), &instance).await.map_err(surface)?;
            let Some(head) = head else {
                state.head.document.clear_lock();
                return Err(invalid_token(OPERATION, &instance, Lost::Deleted));
            };
            if head.document.commit.as_deref() == Some(draft.commit.as_str()) {
                return Ok(Some(vec![head.etag]));
            }
            if head.document.lock_token.as_deref() != Some(secret) {
                state.head = head;
                return Err(invalid_token(OPERATION, &instance, Lost::TakenOver));
            }
            let moved = head.etag != state.head.etag;
            state.refresh(head);
            if !moved && fault.trouble != Trouble::Transient {
                repair(state, &draft.layout.commit, &fault).map_err(surface)?;
                *draft = self::draft(core, state, turn, secret).await?;
                return Ok(None);
            }
        }
        if !backoff.wait(call, &fault).await {
            return Err(surface(fault));
        }
    }
}

async fn compose(
    core: &Core,
    call: Call,
    state: &LeaseState,
    turn: &Turn,
    commit: &str,
) -> Result<(Plan, Layout), ProviderError> {
    let instance = &state.head.document.instance_id;
    let around = Surroundings {
        clock: &core.clock,
        commit,
        tombstone_ttl_seconds: core.settings.tombstone_ttl_seconds,
        intent_age_ms: core.settings.age_threshold_ms,
    };
    let mut plan = plan(&state.head.document, turn, around).map_err(|refusal| {
        ProviderError::permanent(OPERATION, format!("{refusal} (instance {instance:?})"))
    })?;
    let (removed, adopted) = adopt::divide(&state.legacy, &plan.head.kv, &plan.deletes);
    plan.deletes.extend(removed);
    plan.adopted = adopted;
    if needs_look_at_cancelled(core, &state.head.document, turn, &plan) {
        let found = pieces::cancelled(core, call, instance, &turn.cancelled)
            .await
            .map_err(|fault| fault.surface(OPERATION, instance))?;
        plan.cancels.extend(found.named);
        plan.drops.extend(found.pieces);
    }
    let sweep_at = core.clock.now_ms() + core.settings.age_threshold_ms;
    let head = Op::replace(&plan.head.id, &plan.head, None);
    let layout = head
        .and_then(|head| layout(&plan, head, sweep_at, Limits::default()))
        .map_err(|error| ProviderError::permanent(OPERATION, error.to_string()))?;
    Ok((plan, layout))
}

/// Whether the documents of cancelled activities have to be looked at: those of the public crate have random ids, and
/// the text of a large one is in pieces. Mostly the known history shows that they are small.
fn needs_look_at_cancelled(core: &Core, head: &Head, turn: &Turn, plan: &Plan) -> bool {
    if plan.cancels.is_empty() {
        return false;
    }
    let of_this_life = |known: &Known| known.head.document.incarnation == head.incarnation;
    let known = core.cache.get(&head.instance_id).filter(of_this_life);
    let events = known.as_ref().map_or(&[][..], |known| known.events.as_slice());
    let own = |cancel: &&ScheduledActivityIdentifier| cancel.instance == head.instance_id;
    head.incarnation.starts_with("legacy-")
        || !turn.cancelled.iter().filter(own).all(|cancel| pieces::is_whole(events, cancel))
}

/// Takes out of the turn what stands in the way of its commit, if that is harmless.
fn repair(state: &mut LeaseState, ops: &[Op], fault: &Fault) -> Result<(), Fault> {
    let failed = fault.index.and_then(|index| ops.get(index));
    match (fault.trouble, failed) {
        // A held message, or a document to remove, that is gone already.
        (Trouble::Missing, Some(op)) => {
            let before = (state.head.document.batch.len(), state.legacy.len());
            state.head.document.batch.retain(|held| held.id != op.id());
            state.gone.insert(op.id().to_owned());
            state.legacy.retain(|id| id != op.id());
            if before == (state.head.document.batch.len(), state.legacy.len()) {
                return Err(fault.clone());
            }
            Ok(())
        }
        (Trouble::Exists, Some(op)) if op.id().contains(":history:") => {
            Err(Fault::refused("Duplicate event id: history has it already; nothing was written"))
        }
        _ => Err(fault.clone()),
    }
}

/// Keeps what the commit made of the instance, so that the next read and turn need not load it.
fn remember(core: &Core, instance: &str, committed: &Committed, turn: &Turn) {
    let head = &committed.plan.head;
    let before = core.cache.get(instance);
    let mut events = match &before {
        Some(known)
            if known.head.document.incarnation == head.incarnation
                && known.head.document.current_execution_id == head.current_execution_id =>
        {
            Vec::clone(&known.events)
        }
        _ => Vec::new(),
    };
    if turn.execution_id == head.current_execution_id {
        events.extend(turn.history_delta.iter().cloned());
    }
    if events.len() as u64 != head.event_count {
        core.cache.forget(instance);
        return;
    }
    let mut values = before.as_ref().map_or_else(HashMap::new, |known| HashMap::clone(&known.values));
    for op in &committed.plan.movable {
        if op.id().starts_with("value:")
            && let Some(value) = op.body().and_then(|text| decode(text.as_bytes()).ok())
        {
            let value: crate::documents::ValueDocument = value;
            // One in pieces is put together when somebody asks for it.
            if value.chunks.is_none() {
                values.insert(value.id, value.value);
            }
        }
    }
    values.retain(|id, _| !committed.plan.deletes.contains(id));
    let known = Known {
        head: Arc::new(Tagged { document: head.clone(), etag: committed.etags[0].clone() }),
        events: Arc::new(events),
        values: Arc::new(values),
        upto: before.and_then(|known| known.upto),
    };
    core.cache.put(instance, known);
}

/// Tells the finders what the commit made and took away.
fn announce(core: &Core, instance: &str, committed: &Committed, consumed: &[String]) {
    let plan = &committed.plan;
    let etags: HashMap<&str, &String> =
        committed.layout.commit.iter().map(Op::id).zip(&committed.etags).collect();
    for id in &plan.cancels {
        core.works.remove(instance, id);
    }
    for work in &plan.works {
        if let Some(etag) = etags.get(work.id.as_str()) {
            core.works.put(Arc::new(work.clone()), (*etag).clone());
        }
    }
    for message in &plan.messages {
        core.turns.hint(hint(message));
    }
    core.turns.released(instance, consumed);
}

/// Publishes and delivers. The commit stands whatever happens here; others finish what this cannot.
async fn finish(core: &Arc<Core>, instance: &str, committed: Committed) {
    let call = core.call(OPERATION);
    let Committed { plan, layout, etags } = committed;
    let staged: std::collections::HashSet<String> = layout
        .staged
        .iter()
        .flat_map(|group| &group.documents)
        .filter_map(|document| decode::<IdOnly>(document.get().as_bytes()).ok())
        .map(|document| document.id)
        .collect();
    if let Some(manifest) = &layout.manifest
        && let Err(fault) = publish::publish(core, call, manifest, Some(&layout.staged)).await
    {
        tracing::warn!(instance, %fault, "a large commit is not published yet; it will be");
    }
    if let Err(fault) = adopt::rewrite(core, call, instance, &plan.adopted, plan.head.turn).await {
        tracing::warn!(instance, %fault, "values in an old layout are not rewritten yet; they will be");
    }
    let written: HashMap<&str, String> = layout.commit.iter().map(Op::id).zip(etags).collect();
    let intents = plan.intents.into_iter().filter(|intent| !staged.contains(&intent.id));
    let intents = intents.map(|intent| Intent { etag: written.get(intent.id.as_str()).cloned(), ..intent });
    let mut intents: Vec<Intent> = intents.collect();
    if intents.iter().any(|intent| intent.etag.is_none()) {
        // The answer that would have told their versions is missing.
        let listed = crate::outbox::pending(core, core.quick_call(OPERATION), instance).await;
        intents = listed.unwrap_or_else(|fault| {
            tracing::warn!(instance, %fault, "messages to other instances are delayed");
            Vec::new()
        });
    }
    crate::outbox::deliver(core, OPERATION, intents).await;
}

#[derive(Deserialize)]
struct IdOnly {
    id: String,
}
