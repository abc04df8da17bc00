//! Acking a turn: prepare if it is big, commit in one batch, then finish and deliver.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use duroxide::providers::{ProviderError, ScheduledActivityIdentifier};

use crate::cache::Known;
use crate::core::Core;
use crate::documents::{Head, Intent, Tagged};
use crate::error::{Fault, Lost, Trouble, invalid_token};
use crate::store::settle::{Seen, Verdict};
use crate::store::{Backoff, Op, Patience};

use super::adopt;
use super::lock::{give_back, lease_of, read_held, read_messages, write_of};
use super::plan::{Plan, Surroundings, Turn, plan};
use crate::lease::{TurnContents, TurnLease};
use crate::staging::layout::{Layout, Limits, layout};
use crate::staging::publish::OwnGroups;
use crate::staging::{pieces, publish};

const OPERATION: &str = "ack_orchestration_item";

/// Commits a turn.
pub(crate) async fn ack(core: &Arc<Core>, token: &str, turn: Turn) -> Result<(), ProviderError> {
    let (instance, lease) = lease_of(core, core.store.call(OPERATION), token).await?;
    let mut contents = lease.ending.lock().await;
    let committed = match commit(core, &lease, &mut contents, &turn).await {
        Ok(committed) => committed,
        Err(error) => {
            if lease.state(&core.clock).is_err() {
                core.turns.released(&instance, &[]);
            }
            return Err(error);
        }
    };
    drop(contents);
    metrics::counter!("duroxide_cdb_turns_total").increment(1);
    core.turn_leases.remove(lease.secret());
    remember(core, &instance, &committed, &turn);
    let head = Arc::new(committed.plan.head.clone());
    lease.note(Tagged { document: head, etag: committed.etags[0].clone() });
    announce(core, &instance, &committed);
    finish(core, &instance, committed).await;
    Ok(())
}

/// A commit that is ready to be sent, under an id of its own.
struct Draft {
    /// The head it was made from.
    of: Tagged<Arc<Head>>,
    commit: String,
    plan: Plan,
    layout: Layout,
    /// Whether what the commit needs to find has been written.
    is_prepared: bool,
}

impl Draft {
    /// Whether a head is still what the draft was made from. A renewal changes nothing, a recount of a pruned history
    /// does.
    fn fits(&self, head: &Tagged<Arc<Head>>) -> bool {
        self.of.etag == head.etag || self.of.document.is_same_but_for_lock_time(&head.document)
    }

    /// Writes what the commit needs to find, once.
    async fn prepare(&mut self, core: &Core, patience: Patience<'_>) -> Result<(), Fault> {
        if let Some(mark) = self.layout.prepared.as_ref().filter(|_| !self.is_prepared) {
            publish::prepare(&core.store, patience, mark, &self.layout.staged, &self.plan.chunks).await?;
        }
        self.is_prepared = true;
        Ok(())
    }
}

struct Committed {
    plan: Plan,
    layout: Layout,
    /// ETags of the commit's operations, if its answer arrived; else only the head's.
    etags: Vec<String>,
    /// The messages that the turn held.
    consumed: Vec<String>,
}

impl Committed {
    fn new(draft: Draft, etags: Vec<String>) -> Self {
        let consumed = draft.of.document.batch.iter().map(|held| held.id.clone()).collect();
        Self { plan: draft.plan, layout: draft.layout, etags, consumed }
    }
}

/// Why a try to commit came to nothing.
enum Failed {
    /// A request failed.
    Request(Fault),
    /// The turn cannot be committed as it is.
    Turn(ProviderError),
    /// A message that the turn holds is gone.
    Message,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Request(fault)
    }
}

/// Commits a turn, for as long as its lock lasts.
///
/// The runtime answers any error of this with a commit of the instance as failed, under the same token. So trouble is sat
/// out here as long as the lock is held; and when it is lost, or a message of the turn is, the lease is given up first:
/// that other commit is refused, and the turn is fetched again.
async fn commit(
    core: &Core,
    lease: &TurnLease,
    contents: &mut TurnContents,
    turn: &Turn,
) -> Result<Committed, ProviderError> {
    let instance = lease.stored().document.instance_id.clone();
    let patience = lease.patience(&core.store, OPERATION);
    let lose = |lost: Lost| {
        lease.give_up();
        invalid_token(OPERATION, &instance, lost)
    };
    let mut draft: Option<Draft> = None;
    let mut is_doubtful = false;
    let mut backoff = Backoff::default();
    let mut met_trouble = false;
    loop {
        let held = match lease.state_after_renewal(&core.clock).await {
            Ok(()) => lease.held(),
            Err(lost) => Err(lost),
        };
        let head = match held {
            Ok(head) => head,
            Err(lost) => {
                let doubtful = draft.filter(|_| is_doubtful);
                return conclude(core, lease, doubtful).await.ok_or_else(|| {
                    if met_trouble && lost == Lost::Expired {
                        lease.give_up_blameless(&core.claims);
                    }
                    lose(lost)
                });
            }
        };
        let fresh = match draft.take().filter(|draft| draft.fits(&head)) {
            Some(draft) => Ok(draft),
            // Anew, under a new id. What was prepared under the old one will be swept, and an old one that is still on its
            // way cannot be applied any more: the head has changed.
            None => self::draft(core, patience, lease, contents, turn).await,
        };
        let (fault, sent) = match fresh {
            Err(Failed::Turn(error)) => return Err(error),
            Err(Failed::Message) => {
                give_back(core, lease).await;
                return Err(lose(Lost::MessageGone));
            }
            Err(Failed::Request(fault)) => (fault, None),
            Ok(mut fresh) => match send(core, patience, lease, &mut fresh).await {
                Ok(etags) => return Ok(Committed::new(fresh, etags)),
                Err(fault) => (fault, Some(fresh)),
            },
        };
        is_doubtful |= fault.may_have_been_applied;
        met_trouble |= fault.may_pass();
        let id = sent.as_ref().map(|draft| draft.commit.clone());
        let is_applied = |found: &Head| id.is_some() && (found.commit == id || cosmos_wire::mutant!(2));
        let verdict = lease
            .settle(&core.store, patience, &head.etag, &fault, is_applied)
            .await
            .map_err(|fault| fault.surface(OPERATION, &instance))?;
        match (verdict, sent) {
            (Verdict::Done, Some(sent)) => return Ok(Committed::new(sent, vec![lease.stored().etag])),
            (Verdict::Lost, _) => return Err(lose(Lost::TakenOver)),
            (Verdict::Gone, _) => return Err(lose(Lost::Deleted)),
            (Verdict::Blocked, Some(sent)) => {
                let blocked = unblock(core, patience, lease, contents, &sent.layout, &fault).await;
                blocked.map_err(|fault| fault.surface(OPERATION, &instance))?.map_err(lose)?;
            }
            (Verdict::Blocked, None) => return Err(fault.surface(OPERATION, &instance)),
            (Verdict::Again | Verdict::Done, sent) => draft = sent,
        }
        // When this says that no time is left, so does the check of the lock, after a renewal that is under way.
        patience.wait(&mut backoff, &fault).await;
    }
}

/// Whether a draft that was sent without an answer was applied after all: asked once more when the lock is over.
async fn conclude(core: &Core, lease: &TurnLease, doubtful: Option<Draft>) -> Option<Committed> {
    let draft = doubtful?;
    let is_applied = |found: &Head| found.commit.as_deref() == Some(draft.commit.as_str());
    let call = core.store.quick_call(OPERATION);
    let seen = lease.look(&core.store, call.into(), "", is_applied).await;
    matches!(seen, Ok(Seen::Applied)).then(|| Committed::new(draft, vec![lease.stored().etag]))
}

/// Makes a draft of the commit.
async fn draft(
    core: &Core,
    patience: Patience<'_>,
    lease: &TurnLease,
    contents: &mut TurnContents,
    turn: &Turn,
) -> Result<Draft, Failed> {
    let of = lease.stored();
    // A process that did not fetch the turn does not know the versions of its messages. It has to, where a message that is
    // gone would not be missed: in the place of one that may be delivered twice there is a tombstone.
    let may_leave_tombstone = of.document.batch.iter().any(|held| held.delivered);
    if may_leave_tombstone && !read_held(core, patience, lease, contents).await? {
        return Err(Failed::Message);
    }
    let commit = uuid::Uuid::new_v4().simple().to_string();
    let (plan, layout) = compose(core, patience, &of.document, contents, turn, &commit).await?;
    Ok(Draft { of, commit, plan, layout, is_prepared: false })
}

/// Sends a draft, on condition of the head as it is known now: preparing may have taken longer than a renewal.
async fn send(
    core: &Core,
    patience: Patience<'_>,
    lease: &TurnLease,
    draft: &mut Draft,
) -> Result<Vec<String>, Fault> {
    draft.prepare(core, patience).await?;
    let head = lease.held().map_err(Fault::of_lost_lock)?;
    let ops = &mut draft.layout.commit;
    // A lock in memory may have been written since the draft was made: then the head is there.
    ops[0] = write_of(&draft.plan.head, &head.etag)?;
    if cosmos_wire::mutant!(1) {
        ops[0] = Op::upsert(&draft.plan.head)?;
    }
    core.store.batch(patience.call(), &head.document.instance_id, ops).await
}

/// Takes out of the turn what is in the way of its commit, if that is harmless. `Ok(Err)`: the turn holds a message that is
/// gone, so it must not be committed; the lock is given back without counting the attempt.
async fn unblock(
    core: &Core,
    patience: Patience<'_>,
    lease: &TurnLease,
    contents: &mut TurnContents,
    layout: &Layout,
    fault: &Fault,
) -> Result<Result<(), Lost>, Fault> {
    let Some(op) = fault.index.and_then(|index| layout.commit.get(index)) else { return Err(fault.clone()) };
    let head = lease.stored().document;
    if head.batch.iter().any(|held| held.id == op.id()) {
        // Its ETag is another, or it is gone. As long as it waits in the queue nothing has happened to it but that another
        // process moved its time.
        contents.messages = read_messages(core, patience, &head).await?;
        if contents.messages.len() == head.batch.len() {
            return Ok(Ok(()));
        }
        give_back(core, lease).await;
        return Ok(Err(Lost::MessageGone));
    }
    match fault.trouble {
        // A document of the old layout that the commit replaces, and that is gone already.
        Trouble::Missing if contents.legacy.iter().any(|id| id == op.id()) => {
            contents.legacy.retain(|id| id != op.id());
            Ok(Ok(()))
        }
        // A sweep took what was prepared for left behind: it is prepared again, under another id.
        Trouble::Missing if layout.prepared.as_ref().is_some_and(|mark| mark.id == op.id()) => Ok(Ok(())),
        Trouble::Exists if op.id().contains(":history:") => {
            Err(Fault::refused("Duplicate event id: history has it already; nothing was written"))
        }
        _ => Err(fault.clone()),
    }
}

async fn compose(
    core: &Core,
    patience: Patience<'_>,
    head: &Head,
    contents: &TurnContents,
    turn: &Turn,
    commit: &str,
) -> Result<(Plan, Layout), Failed> {
    let instance = &head.instance_id;
    let (retention, _) = core.layout.retention();
    let around = Surroundings {
        clock: &core.clock,
        commit,
        tombstone_ttl_seconds: core.settings.tombstone_ttl_seconds,
        intent_age_ms: core.settings.age_threshold_ms,
        retention: &retention,
        members: core.fleet.members(),
        // A worker that has nothing to do here runs them sooner than anybody else.
        home: core.works.is_waited_for().then(|| core.fleet.home_for(instance)).flatten(),
    };
    let mut plan = plan(head, turn, around).map_err(|refusal| {
        Failed::Turn(ProviderError::permanent(OPERATION, format!("{refusal} (instance {instance:?})")))
    })?;
    // A message that the turn holds is consumed as it was read, or not at all.
    let etags: HashMap<&str, &str> =
        contents.messages.iter().map(|message| (message.id.as_str(), message.etag.as_str())).collect();
    for op in &mut plan.pinned {
        if let Some(etag) = etags.get(op.id()).filter(|etag| !etag.is_empty()) {
            *op = op.clone().on(etag);
        }
    }
    let (removed, adopted) = adopt::divide(&contents.legacy, &plan.head.kv, &plan.deletes);
    plan.deletes.extend(removed);
    plan.adopted = adopted;
    if needs_look_at_cancelled(core, head, turn, &plan) {
        let found = pieces::cancelled(&core.store, patience.call(), instance, &turn.cancelled).await?;
        plan.cancels.extend(found.named);
        plan.drops.extend(found.pieces);
    }
    let sweep_at = core.clock.now_ms() + core.settings.age_threshold_ms;
    let head = Op::replace(&plan.head.id, &plan.head, None);
    let layout = head
        .and_then(|head| layout(plan.writes(), head, sweep_at, Limits::default()))
        .map_err(|error| Failed::Turn(ProviderError::permanent(OPERATION, error.to_string())))?;
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
    // One in pieces is put together when a client asks for it.
    for value in committed.plan.values.iter().filter(|value| value.chunks.is_none()) {
        values.insert(value.id.clone(), value.value.clone());
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
fn announce(core: &Core, instance: &str, committed: &Committed) {
    let plan = &committed.plan;
    let etags: HashMap<&str, &String> =
        committed.layout.commit.iter().map(Op::id).zip(&committed.etags).collect();
    for id in &plan.cancels {
        core.works.remove(instance, id);
    }
    for work in &plan.works {
        if let Some(etag) = etags.get(work.id.as_str()) {
            core.tell_of_work(Arc::new(work.clone()), (*etag).clone());
        }
    }
    for message in &plan.messages {
        core.tell_of_message(message);
    }
    core.turns.released(instance, &committed.consumed);
}

/// Publishes and delivers. The commit stands whatever happens here; others finish what this cannot.
async fn finish(core: &Arc<Core>, instance: &str, committed: Committed) {
    let call = core.store.call(OPERATION);
    let Committed { plan, layout, etags, .. } = committed;
    let staged: HashSet<&String> = layout.staged.iter().flat_map(|group| &group.ids).collect();
    let own = OwnGroups::new(&layout.staged, &plan.works, &plan.messages, &plan.intents);
    if let Some(manifest) = &layout.manifest
        && let Err(fault) = publish::publish(core.staging(), call, manifest, Some(&own)).await
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
        let listed = crate::outbox::pending(core, core.store.quick_call(OPERATION), instance).await;
        intents = listed.unwrap_or_else(|fault| {
            tracing::warn!(instance, %fault, "messages to other instances are delayed");
            Vec::new()
        });
    }
    crate::outbox::deliver(core, OPERATION, intents).await;
}
