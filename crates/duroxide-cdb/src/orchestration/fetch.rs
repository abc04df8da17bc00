//! Fetching a turn: candidate, look, lock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::{DispatcherCapabilityFilter, KvEntry, OrchestrationItem, ProviderError, WorkItem};
use duroxide::{Event, EventKind};
use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::futures::OwnedNotified;

use crate::cache::Known;
use crate::contain::contained;
use crate::core::Core;
use crate::documents::{
    self, Forgive, Head, Held, Message, MessageHint, MissingValue, Pairs, Tagged, ids, kind,
};
use crate::error::{About, Fault};
use crate::finder::{Candidate, Pace, Verdict, Waiting, Wish};
use crate::fleet::Hand;
use crate::history::finish_commits;
use crate::lease::{Lease, TurnContents, Unwritten};
use crate::poll::{Pollable, Tried, poll};
use crate::queries::{self, Query};
use crate::slots;
use crate::staging::join;
use crate::store::{Call, decode};
use crate::token::Token;

use super::lock::{acquire, give_back};
use super::orphans;
use super::search::{screen, search};
use crate::load::backlog::{MESSAGE_BYTES_MAX, MESSAGES_MAX, RESULTS_MAX, next_window};
use crate::load::{self, Partition};

pub(super) const OPERATION: &str = "fetch_orchestration_item";

type Fetched = (OrchestrationItem, String, u32);

/// Fetches the next turn, waiting up to `poll_timeout` for one.
pub(crate) async fn fetch(
    core: &Core,
    lock_timeout: Duration,
    poll_timeout: Duration,
    filter: Option<&DispatcherCapabilityFilter>,
) -> Result<Option<Fetched>, ProviderError> {
    if filter.is_some_and(|filter| filter.supported_duroxide_versions.is_empty()) {
        return Ok(None);
    }
    if core.turns.wake(filter) {
        core.turn_pace.begin_anew();
    }
    let turns = Turns { core, lock_timeout, filter };
    poll(core, &turns, poll_timeout).await.map_err(|fault| fault.surface(OPERATION, About::All))
}

/// The turns that a dispatcher polls.
struct Turns<'a> {
    core: &'a Core,
    lock_timeout: Duration,
    filter: Option<&'a DispatcherCapabilityFilter>,
}

impl Pollable for Turns<'_> {
    type Fetched = Fetched;

    fn pace(&self) -> &Pace {
        &self.core.turn_pace
    }

    fn changed(&self) -> OwnedNotified {
        self.core.turns.changed()
    }

    fn wait(&self) -> Waiting<'_> {
        self.core.turns.wait()
    }

    fn next_at(&self, _now_ms: u64) -> Option<u64> {
        self.core.turns.next_at_for(self.filter)
    }

    fn search(&self, wish: Wish) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(search(self.core, wish))
    }

    fn attempt(&self) -> BoxFuture<'_, Tried<Fetched>> {
        Box::pin(async move {
            screen(self.core).await;
            let now = self.core.clock.now_ms();
            let Some(candidate) = self.core.turns.take_for(now, self.filter) else { return Tried::NoneLeft };
            let fetched = attempt(self.core, candidate, self.lock_timeout, self.filter).await;
            fetched.map_or(Tried::InVain, Tried::Fetched)
        })
    }

    fn is_search_first(&self) -> bool {
        true
    }
}

/// Tries one candidate. Trouble with it is its own: others are not held up.
async fn attempt(
    core: &Core,
    candidate: Candidate,
    lock_timeout: Duration,
    filter: Option<&DispatcherCapabilityFilter>,
) -> Option<Fetched> {
    // A dispatcher of this process had this turn and its runtime put it off, as one does that lacks the orchestration while a
    // deployment is under way. As the owner of the slot it would get it again and again, until the turn has no attempts
    // left, and the members that have the orchestration would never see it. So they are told, and come first.
    if let Some(hint) = &candidate.put_off
        && let Some(rest) = core.fleet.yields_to_others(Hand::Turns)
    {
        core.fleet.ring_message(hint);
        candidate.decide(Verdict::RestUntil(core.clock.after(rest)));
        return None;
    }
    let call = core.store.quick_call_after(OPERATION, candidate.parks);
    let examined = Box::pin(examine(core, call, &candidate, lock_timeout, filter));
    match contained(&core.strays, OPERATION, &candidate.instance, examined).await {
        Ok(Examined::Ready(ready)) => {
            candidate.decide(ready.verdict);
            Some(*ready.fetched)
        }
        // Put back where only those who can run it look.
        Ok(Examined::TurnedAway) => None,
        Ok(Examined::Pass(verdict)) => {
            candidate.decide(verdict);
            None
        }
        Err(fault) => {
            tracing::warn!(instance = candidate.instance, %fault, "cannot fetch a turn of this instance now");
            candidate.decide(Verdict::Trouble { now: core.clock.now_ms() });
            None
        }
    }
}

struct Ready {
    fetched: Box<Fetched>,
    verdict: Verdict,
}

enum Examined {
    Ready(Ready),
    TurnedAway,
    Pass(Verdict),
}

async fn examine(
    core: &Core,
    call: Call,
    candidate: &Candidate,
    lock_timeout: Duration,
    filter: Option<&DispatcherCapabilityFilter>,
) -> Result<Examined, Fault> {
    let instance = &candidate.instance;
    if candidate.is_head_first {
        // A look at a long queue reads much of it, and comes to nothing as long as another process has the turn.
        let head = core.store.patient(call).head(instance).await?;
        if let Some(rest) = head.as_ref().and_then(|head| rest_of_foreign(core, &head.document)) {
            return Ok(Examined::Pass(rest));
        }
    }
    let mut partition = load::look(core, call, instance).await?;
    let now = core.clock.now_ms();
    // A part of a long queue in which nothing is left tells nothing of what waits behind it.
    if partition.upto.is_none() || !partition.messages.is_empty() {
        let waiting = partition.put_off.iter().map(|(id, _)| id.as_str());
        let ids = partition.messages.iter().map(|message| message.id.as_str()).chain(waiting);
        candidate.saw(partition.as_of, &ids.collect::<HashSet<_>>());
    }
    if let Some(head) = partition.head.as_mut().map(|head| &mut head.document) {
        // A lock that an earlier try of this process left without knowing it: that was no attempt.
        if core.claims.is_ours(instance, &head.id, head.lock_token.as_deref()) {
            head.unlock(Forgive::ThisAttempt);
        }
        if head.kind == kind::DELETING {
            return Ok(Examined::Pass(Verdict::Park { now }));
        }
        if let Some(rest) = rest_of_foreign(core, head) {
            return Ok(Examined::Pass(rest));
        }
        if !head.is_compatible(filter) {
            core.turns.turned_away(instance, head.pinned(), now);
            pass_on(core, &partition.messages);
            return Ok(Examined::TurnedAway);
        }
    }
    if partition.messages.is_empty() {
        let until = partition.put_off.iter().map(|(_, until)| *until).min().unwrap_or(0);
        return Ok(Examined::Pass(Verdict::RestUntil(until)));
    }
    let (batch, items) = choose(core, call, instance, &partition).await?;
    if batch.is_empty() {
        return Ok(Examined::Pass(Verdict::Park { now }));
    }
    let history = load::history(core, call, instance, &partition).await?;
    let head = partition.head.clone().map(|head| {
        let adopted = head.document.adopted(history.legacy_start, partition.legacy.cells.clone());
        Tagged { document: adopted, etag: head.etag }
    });
    if !head.as_ref().is_some_and(|head| head.document.started) && !items.iter().any(begins) {
        let is_long = partition.upto.is_some();
        let settled = orphans::settle(core, call, &partition.messages, is_long, &batch, &items).await;
        return settled.map(Examined::Pass);
    }
    let known = partition.known.clone();
    let mut values = known.map_or_else(HashMap::new, |known| HashMap::clone(&known.values));
    values.extend(partition.values.clone());
    let kv = head.as_ref().map(|head| &head.document.kv);
    let snapshot = match (&partition.damage, kv) {
        (Some(damage), _) => Err(damage.clone()),
        (None, Some(kv)) => snapshot(core, call, instance, kv, &mut values).await?,
        (None, None) => Ok(HashMap::new()),
    };
    let replay = history.events.and_then(|events| Ok((events, snapshot?)));
    let view = View { head, batch, items, replay, values };
    take(core, call, instance, lock_timeout, &partition, view).await
}

/// Tells the fleet of an instance that the owner of its slot cannot run. Who can may have sent the message itself and told
/// nobody but the owner; without this it would come by it after `steal_after`, with a search of everything. What is not fresh is
/// left to that search: there may be very many.
fn pass_on(core: &Core, messages: &[Message]) {
    let fresh = messages.iter().min_by_key(|message| message.visible_at);
    if let Some(message) = fresh.filter(|message| !core.fleet.is_late(message.visible_at))
        && core.fleet.members() > 1
    {
        core.fleet.ring_message(&message.into());
    }
}

/// That an instance rests because another process has its turn; `None` if none has.
fn rest_of_foreign(core: &Core, head: &Head) -> Option<Verdict> {
    let now = core.clock.now_ms();
    let is_ours = core.claims.is_ours(&head.instance_id, &head.id, head.lock_token.as_deref());
    if is_ours || !head.is_locked(now) {
        return None;
    }
    core.turns.found_locked(&head.instance_id, now);
    let until = head.locked_until.unwrap_or(now).min(now + LOCKED_REST_MS);
    Some(Verdict::RestUntil(until))
}

/// The messages of one turn: the first of the queue, bounded. What cannot be decoded stays there, as a newer runtime may
/// know its kind, and is passed over; but nothing goes before a message that begins an execution.
async fn choose<'a>(
    core: &Core,
    call: Call,
    instance: &str,
    partition: &'a Partition,
) -> Result<(Vec<&'a Message>, Vec<WorkItem>), Fault> {
    let mut batch = Vec::new();
    let mut items = Vec::new();
    let mut bytes = 0;
    for message in &partition.messages {
        if !has_room(batch.len(), partition.is_of_one_moment, message) {
            break;
        }
        let text = match &message.chunks {
            Some(chunks) => join(&core.store, call, instance, chunks).await,
            None => Ok(message.work_item.clone()),
        };
        bytes += text.as_ref().map_or(0, String::len);
        if bytes > MESSAGE_BYTES_MAX && !batch.is_empty() {
            break;
        }
        let item = match text.and_then(|text| decode(text.as_bytes())) {
            Ok(item) => item,
            Err(fault) if fault.is_damage => {
                core.strays.pass_over(OPERATION, instance, &message.id, &fault);
                if message.begins_execution() {
                    break;
                }
                continue;
            }
            Err(fault) => return Err(fault),
        };
        batch.push(message);
        items.push(item);
    }
    Ok((batch, items))
}

/// Whether a turn that has so many messages takes one more. Those that its commit does not consume itself are removed after
/// it, by whoever comes by: until then they are there, so they must have been read together with the list of what is still
/// to be removed. One that may come a second time needs a tombstone in its place from the commit on. Those of the public crate
/// are told by their ids.
fn has_room(taken: usize, is_of_one_moment: bool, message: &Message) -> bool {
    let is_removable = is_of_one_moment && !message.delivered && ids::is_message(&message.id);
    taken < MESSAGES_MAX || (taken < RESULTS_MAX && is_removable)
}

/// The messages that are not in a turn.
fn rest_of<'a>(messages: &'a [Message], batch: &[&Message]) -> Vec<&'a Message> {
    let taken: HashSet<&str> = batch.iter().map(|message| message.id.as_str()).collect();
    messages.iter().filter(|message| !taken.contains(message.id.as_str())).collect()
}

/// What the execution began with; `Err` says which value cannot be read. The look may not have shown all of them: it may
/// straddle a commit, and those in pieces are put together now.
async fn snapshot(
    core: &Core,
    call: Call,
    instance: &str,
    kv: &Pairs,
    values: &mut HashMap<String, String>,
) -> Result<Result<HashMap<String, KvEntry>, String>, Fault> {
    let mut is_finished = false;
    loop {
        let MissingValue { key, document } = match documents::snapshot(kv, values) {
            Ok(snapshot) => return Ok(Ok(snapshot)),
            Err(missing) => missing,
        };
        let lost = match load::value(core, call, instance, &document).await {
            Ok(Some(value)) => {
                values.insert(document, value);
                continue;
            }
            Ok(None) if !is_finished => {
                // The commit that made it may not be published yet.
                finish_commits(core, call, instance).await?;
                is_finished = true;
                continue;
            }
            Ok(None) => "it is missing".to_owned(),
            Err(fault) if fault.is_damage => fault.to_string(),
            Err(fault) => return Err(fault),
        };
        return Ok(Err(format!("the value of key {key:?}, in the document {document}, is lost: {lost}")));
    }
}

fn begins(item: &WorkItem) -> bool {
    matches!(item, WorkItem::StartOrchestration { .. } | WorkItem::ContinueAsNew { .. })
}

struct View<'a> {
    head: Option<Tagged<Head>>,
    batch: Vec<&'a Message>,
    items: Vec<WorkItem>,
    /// The history and what the execution began with, or why they cannot be read.
    replay: Result<(Vec<Event>, HashMap<String, KvEntry>), String>,
    values: HashMap<String, String>,
}

/// Locks the head and hands the turn out.
async fn take(
    core: &Core,
    call: Call,
    instance: &str,
    lock_timeout: Duration,
    partition: &Partition,
    view: View<'_>,
) -> Result<Examined, Fault> {
    let now = core.clock.now_ms();
    let unlocked =
        view.head.as_ref().map_or_else(|| Head::unstarted(instance, now), |head| head.document.clone());
    let held: Vec<Held> = view
        .batch
        .iter()
        .map(|message| Held {
            id: message.id.clone(),
            attempts: unlocked
                .attempts_of(&message.id)
                .max(message.attempt_count)
                .saturating_add(1 + u32::from(cosmos_wire::mutant!(9))),
            delivered: message.delivered,
            chunks: message.chunks.clone(),
        })
        .collect();
    let attempt = held.iter().map(|held| held.attempts).max().unwrap_or(1);
    let token = Token::turn(instance);
    let etag = view.head.as_ref().map(|head| head.etag.as_str());
    let stays_in_memory = stays_in_memory(core, partition, &unlocked, &view.batch, attempt);
    let stored_head = view.head.clone().filter(|_| stays_in_memory);
    let locked = if stays_in_memory {
        let until = core.clock.after(lock_timeout);
        let mut document = unlocked;
        document.lock(token.secret(), until, &core.settings.owner, held);
        Some(Tagged { document, etag: etag.unwrap_or_default().to_owned() })
    } else {
        acquire(core, call, unlocked, etag, &token, lock_timeout, held).await?
    };
    let Some(locked) = locked else {
        return Ok(Examined::Pass(Verdict::RestUntil(now + RACE_REST_MS)));
    };
    let until = locked.document.locked_until.unwrap_or(0);
    // An accepted lock proves that nothing was committed since the head was read: history, values and the messages that
    // were read with the head or after it are still there. Those that were read before it are looked at again.
    // Until that is known the lock is not used: should there be no answer, or should the caller stop waiting for it, the
    // next look of this process takes it back.
    let claiming = core.claims.begin(instance, &locked.document.id, token.secret());
    // A lock in memory proves nothing; the commit does, which is refused if anything it rests on has changed.
    if !stays_in_memory && !are_still_there(core, call, partition, &view.batch).await? {
        let stored = Tagged { document: Arc::new(locked.document), etag: locked.etag };
        give_back(core, &Lease::new(token.secret(), stored, TurnContents::default())).await;
        return Ok(Examined::Pass(Verdict::RestUntil(now)));
    }
    claiming.settle();
    core.fleet.count_steal(Hand::Turns, slots::of(instance));
    let ((events, kv_snapshot), history_error) = match view.replay {
        Ok(replay) => (replay, None),
        Err(error) => (Default::default(), Some(error)),
    };
    let (name, version) = name_and_version(&locked.document, &events, &view.items);
    let item = OrchestrationItem {
        instance: instance.to_owned(),
        orchestration_name: name,
        execution_id: execution_of(&locked.document, &view.items),
        version,
        history: events,
        messages: view.items,
        history_error,
        kv_snapshot,
    };
    // Also those that were parked, whose time is still to come: the instance takes them now.
    let is_due = |message: &Message| MessageHint {
        visible_at: message.visible_at.min(now),
        ..MessageHint::from(message)
    };
    let left: Vec<MessageHint> = rest_of(&partition.messages, &view.batch).into_iter().map(is_due).collect();
    if item.history_error.is_none() && locked.document.started {
        // Where some are put off, the messages may be those behind them: they do not tell where the next look begins.
        let upto = next_window(&partition.messages, partition.upto).filter(|_| partition.put_off.is_empty());
        // What is not stored is no part of what others may be shown.
        let known = Known {
            head: Arc::new(stored_head.unwrap_or_else(|| locked.clone())),
            events: Arc::new(item.history.clone()),
            values: Arc::new(view.values),
            upto,
        };
        core.cache.put(instance, known);
    }
    let taken = locked.document.batch.iter().map(|held| held.id.clone()).collect();
    let contents = TurnContents {
        left: left_behind(core, partition, &view.batch),
        messages: view.batch.into_iter().cloned().collect(),
        legacy: partition.legacy.documents.clone(),
    };
    let stored = Tagged { document: Arc::new(locked.document), etag: locked.etag };
    let lease = if stays_in_memory {
        let write_by = core.fleet.write_by(visible_since(&contents.messages), lock_timeout);
        let unwritten = Unwritten { slot: slots::of(instance), write_by };
        Lease::unwritten(token.secret(), stored, contents, unwritten)
    } else {
        Lease::new(token.secret(), stored, contents)
    };
    core.turn_leases.put(&core.clock, lease);
    let fetched = Box::new((item, token.to_string(), attempt));
    Ok(Examined::Ready(Ready { fetched, verdict: Verdict::Locked { until, taken, left } }))
}

/// Whether the lock of a turn may be kept in memory: nobody else touches the instance for a while, nothing of the turn was
/// tried before, and the look that brought it shows one moment.
fn stays_in_memory(
    core: &Core,
    partition: &Partition,
    head: &Head,
    batch: &[&Message],
    attempt: u32,
) -> bool {
    let since = batch.iter().map(|message| message.visible_at).min().unwrap_or(0);
    attempt == 1
        && head.lock_token.is_none()
        && partition.read_before_head.is_empty()
        && partition.legacy.documents.is_empty()
        && core.fleet.may_hold_unwritten(Hand::Turns, slots::of(&head.instance_id), since)
}

/// Since when the first of some messages has been visible.
fn visible_since(messages: &[Message]) -> u64 {
    messages.iter().map(|message| message.visible_at).min().unwrap_or(0)
}

/// Whether the messages of a turn that were read before its head are still as they were read. One request, and only where
/// a look took several pages.
async fn are_still_there(
    core: &Core,
    call: Call,
    partition: &Partition,
    batch: &[&Message],
) -> Result<bool, Fault> {
    #[derive(Deserialize)]
    struct Row {
        id: String,
        #[serde(rename = "_etag")]
        etag: String,
    }
    let doubtful = batch.iter().filter(|message| partition.read_before_head.contains(&message.id));
    let doubtful: HashMap<&str, &str> =
        doubtful.map(|message| (message.id.as_str(), message.etag.as_str())).collect();
    let Some(any) = batch.first().filter(|_| !doubtful.is_empty()) else { return Ok(true) };
    let ids: Vec<&str> = doubtful.keys().copied().collect();
    let query = Query::new(queries::VERSIONS_BY_ID).with("@ids", ids);
    let rows = core.store.patient(call).query(&any.instance_id, &query).await?;
    let found = rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<Vec<Row>, Fault>>()?;
    let same = found.iter().filter(|row| doubtful.get(row.id.as_str()) == Some(&row.etag.as_str()));
    Ok(same.count() == doubtful.len())
}

/// The order keys of the messages that are there and do not fit into a turn.
fn left_behind(core: &Core, partition: &Partition, batch: &[&Message]) -> Option<(u64, u64)> {
    let after = batch.iter().map(|message| message.order()).max()?;
    let last = partition.messages.iter().map(Message::order).max()?;
    // Of a long queue only a part was read: the rest has keys below any that this process makes from now on.
    let upto = if partition.upto.is_some() { core.clock.next_sequence_after(last) } else { last };
    (upto > after).then_some((after, upto))
}

/// Name and version: of the head, else of the first event, else of the message that begins the instance.
fn name_and_version(head: &Head, events: &[Event], items: &[WorkItem]) -> (String, String) {
    let unknown = |version: &str| if version.is_empty() { "unknown".to_owned() } else { version.to_owned() };
    if !head.orchestration_name.is_empty() {
        return (head.orchestration_name.clone(), unknown(&head.orchestration_version));
    }
    let started = events.iter().find_map(|event| match &event.kind {
        EventKind::OrchestrationStarted { name, version, .. } => Some((name.clone(), unknown(version))),
        _ => None,
    });
    let begun = || {
        items.iter().find_map(|item| match item {
            WorkItem::StartOrchestration { orchestration, version, .. }
            | WorkItem::ContinueAsNew { orchestration, version, .. } => {
                Some((orchestration.clone(), unknown(version.as_deref().unwrap_or_default())))
            }
            _ => None,
        })
    };
    started.or_else(begun).unwrap_or_else(|| (String::new(), "unknown".to_owned()))
}

fn execution_of(head: &Head, items: &[WorkItem]) -> u64 {
    if head.started {
        return head.current_execution_id;
    }
    let start = items.iter().find_map(|item| match item {
        WorkItem::StartOrchestration { execution_id, .. } => Some(*execution_id),
        _ => None,
    });
    start.unwrap_or(head.current_execution_id)
}

const LOCKED_REST_MS: u64 = 1000;
const RACE_REST_MS: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::documents::Chunks;

    #[test]
    fn a_turn_takes_many_results_but_not_what_may_come_twice_or_was_read_bit_by_bit() {
        let item = WorkItem::ActivityCompleted {
            instance: "a".into(),
            execution_id: 1,
            id: 1,
            result: String::new(),
        };
        let result = Message::new(&item, None, &Clock::default(), 0, &mut Chunks::new("c")).unwrap();
        let mail = Message { delivered: true, ..result.clone() };
        for (taken, is_of_one_moment, message, expected) in [
            (63, false, &mail, true),
            (64, true, &mail, false),
            (64, false, &result, false),
            (64, true, &result, true),
            (255, true, &result, true),
            (256, true, &result, false),
        ] {
            let has_room = has_room(taken, is_of_one_moment, message);
            assert_eq!(has_room, expected, "{taken} {is_of_one_moment} {}", message.delivered);
        }
    }
}
