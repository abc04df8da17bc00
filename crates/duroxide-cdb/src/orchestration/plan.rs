//! What a commit holds: a pure function of the head and the turn's result.

use std::collections::HashSet;

use duroxide::providers::{ExecutionMetadata, ScheduledActivityIdentifier, WorkItem};
use duroxide::{Event, EventKind};

use crate::clock::Clock;
use crate::documents::{
    self, Cancellation, ChunkRef, Chunks, ExecutionRecord, FORMAT_VERSION, HEAD_VALUE_BYTES_MAX,
    HEAD_VALUES_BYTES_MAX, Head, HistoryDocument, Intent, KvChange, Message, Status, Stored, Tombstone,
    ValueDocument, WorkDocument, addressee, ids, kind,
};
use crate::load::backlog::MESSAGES_MAX;
use crate::retention::{Retention, expiry};
use crate::slots::SLOTS;
use crate::staging::layout::Writes;
use crate::store::Op;

/// The result of a turn, as the runtime hands it over.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) execution_id: u64,
    pub(crate) history_delta: Vec<Event>,
    pub(crate) worker_items: Vec<WorkItem>,
    pub(crate) orchestrator_items: Vec<WorkItem>,
    pub(crate) metadata: ExecutionMetadata,
    pub(crate) cancelled: Vec<ScheduledActivityIdentifier>,
}

/// What a plan takes from its surroundings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub(crate) clock: &'a Clock,
    pub(crate) commit: &'a str,
    pub(crate) tombstone_ttl_seconds: u64,
    /// How long an intent is left to the process that made it.
    pub(crate) intent_age_ms: u64,
    /// How long ended instances are kept.
    pub(crate) retention: &'a Retention,
    /// How many processes there are to run activities.
    pub(crate) members: usize,
    /// The slot that a few activities are given to, if not to the instance's own.
    pub(crate) home: Option<u8>,
}

/// Everything a commit has to do.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The head after the commit.
    pub(crate) head: Head,
    /// Must be in the commit batch.
    pub(crate) pinned: Vec<Op>,
    /// Creates that may wait for publication, the most urgent first.
    pub(crate) movable: Vec<Op>,
    /// Work items to remove, whether or not they exist.
    pub(crate) cancels: Vec<String>,
    /// Documents to remove that are known to exist.
    pub(crate) deletes: Vec<String>,
    /// Large texts of consumed messages and of cancelled activities.
    pub(crate) drops: Vec<ChunkRef>,
    /// Values in the public crate's layout that the head points to.
    pub(crate) adopted: Vec<String>,
    /// Large texts of the commit itself.
    pub(crate) chunks: Chunks,
    pub(crate) events: Vec<(u64, String)>,
    pub(crate) messages: Vec<Message>,
    pub(crate) works: Vec<WorkDocument>,
    pub(crate) intents: Vec<Intent>,
    /// Values that the head only points to.
    pub(crate) values: Vec<ValueDocument>,
}

impl Plan {
    /// What the commit writes beside the head, for [`layout`](crate::staging::layout::layout).
    pub(crate) fn writes(&self) -> Writes<'_> {
        Writes {
            instance: &self.head.instance_id,
            commit: self.head.commit.as_deref().unwrap_or_default(),
            pinned: &self.pinned,
            movable: &self.movable,
            cancels: &self.cancels,
            deletes: &self.deletes,
            drops: &self.drops,
            chunks: &self.chunks,
        }
    }
}

/// Why a turn cannot be committed as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// An event of the turn has an id that history has already.
    DuplicateEvent(u64),
    /// An item goes to an instance whose name is not allowed.
    Name(String),
    /// Something cannot be written as JSON.
    Unserializable(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DuplicateEvent(id) => {
                write!(f, "Duplicate event id {id}: history has it already; nothing was written.")
            }
            Self::Name(reason) | Self::Unserializable(reason) => f.write_str(reason),
        }
    }
}

/// Decides what the commit of `turn` on a locked `head` holds.
pub(crate) fn plan(head: &Head, turn: &Turn, around: Surroundings<'_>) -> Result<Plan, Refusal> {
    let now = around.clock.now_ms();
    let mut plan = Plan {
        head: head.clone(),
        pinned: Vec::new(),
        movable: Vec::new(),
        cancels: Vec::new(),
        deletes: Vec::new(),
        drops: Vec::new(),
        adopted: Vec::new(),
        chunks: Chunks::new(around.commit),
        events: Vec::new(),
        messages: Vec::new(),
        works: Vec::new(),
        intents: Vec::new(),
        values: Vec::new(),
    };
    // Nobody counts as far as these numbers go, but a damaged head may say that it has.
    plan.head.turn = plan.head.turn.saturating_add(1);
    plan.head.format_version = FORMAT_VERSION;
    plan.head.commit = Some(around.commit.to_owned());
    plan.head.updated_at = now;
    plan.head.put_off.retain(|put_off| put_off.until > now);
    consume_messages(&mut plan, around.tombstone_ttl_seconds)?;
    let mut history = enter_execution(&mut plan, turn, now)?;
    history.extend(append_history(&mut plan, turn)?);
    advance_execution(&mut plan, turn, now)?;
    let values = apply_values(&mut plan, turn)?;
    let outgoing = send_items(&mut plan, turn, around)?;
    let works = schedule_work(&mut plan, turn, around)?;
    // Own messages and intents first: somebody waits for them.
    for op in outgoing.into_iter().chain(history).chain(values).chain(works) {
        plan.movable.push(op);
    }
    if !cosmos_wire::mutant!(7) {
        plan.head.clear_lock();
    }
    plan.head.ttl = expire(&plan, around.retention, now);
    Ok(plan)
}

/// The time to live of the head, if the commit makes it all there is of an ended instance: written with the commit, it costs
/// no request. A head that somebody wants kept for ever stays so.
fn expire(plan: &Plan, policy: &Retention, now: u64) -> Option<i64> {
    let leaves_nothing = plan.movable.is_empty()
        && plan.cancels.is_empty()
        && plan.deletes.is_empty()
        && plan.drops.is_empty()
        && plan.chunks.parts().is_empty();
    if plan.head.ttl == Some(KEPT_FOR_EVER) {
        return plan.head.ttl;
    }
    expiry::time_to_live(&plan.head, policy, now).filter(|_| leaves_nothing)
}

/// Removes the messages the lock held; those that may come again leave a tombstone. Of very many the last ones may be
/// removed after the commit: who looks at the instance does that first.
fn consume_messages(plan: &mut Plan, tombstone_ttl_seconds: u64) -> Result<(), Refusal> {
    for (index, held) in plan.head.batch.iter().enumerate().skip(usize::from(cosmos_wire::mutant!(6))) {
        plan.drops.extend(held.chunks.clone());
        if index >= MESSAGES_MAX && !held.delivered {
            plan.deletes.push(held.id.clone());
            continue;
        }
        plan.pinned.push(if held.delivered && !cosmos_wire::mutant!(3) {
            let tombstone = Tombstone::new(&plan.head.instance_id, &held.id, tombstone_ttl_seconds);
            Op::replace(&held.id, &tombstone, None).map_err(unserializable)?
        } else {
            Op::delete(&held.id, None)
        });
    }
    Ok(())
}

/// Begins the instance, or its next execution, if this turn is the first of it. The head is the new execution's then: the
/// events of the last one that are in it move into documents.
fn enter_execution(plan: &mut Plan, turn: &Turn, now: u64) -> Result<Vec<Op>, Refusal> {
    let head = &mut plan.head;
    if head.started && turn.execution_id <= head.current_execution_id {
        return Ok(Vec::new());
    }
    let moved = head.move_events_out(&mut plan.chunks);
    if head.started {
        if !head.record_written {
            let record = ExecutionRecord::of(head, head.output.as_deref(), &mut plan.chunks);
            plan.pinned.push(Op::upsert(&record).map_err(unserializable)?);
        }
        head.pinned_version = None;
        head.pinned_duroxide_version_packed = None;
    } else {
        head.started = true;
        head.created_at = now;
        head.parent_instance_id.clone_from(&turn.metadata.parent_instance_id);
    }
    head.current_execution_id = turn.execution_id;
    head.execution_count = head.execution_count.saturating_add(1);
    head.execution_started_at = now;
    head.status = Status::RUNNING.to_owned();
    head.output = None;
    head.output_in_record = false;
    head.completed_at = None;
    head.record_written = false;
    head.last_event_id = 0;
    head.event_count = 0;
    head.event_bytes = 0;
    head.carry_forward = 0;
    create_all(&moved)
}

fn append_history(plan: &mut Plan, turn: &Turn) -> Result<Vec<Op>, Refusal> {
    let current = turn.execution_id == plan.head.current_execution_id;
    let mut seen = HashSet::new();
    for event in &turn.history_delta {
        let duplicate = current && event.event_id <= plan.head.last_event_id && plan.head.event_count > 0;
        if duplicate || !seen.insert(event.event_id) {
            return Err(Refusal::DuplicateEvent(event.event_id));
        }
        if cosmos_wire::mutant!(14) && event.event_id == 5 {
            continue;
        }
        plan.events.push((event.event_id, serde_json::to_string(event).map_err(unserializable)?));
    }
    let head = &mut plan.head;
    let count = plan.events.len() as u64;
    head.total_event_count = head.total_event_count.saturating_add(count);
    if current && count > 0 {
        let bytes = plan.events.iter().map(|(_, text)| text.len() as u64).sum();
        head.event_count = head.event_count.saturating_add(count);
        head.event_bytes = head.event_bytes.saturating_add(bytes);
        head.last_event_id = plan.events.iter().map(|(id, _)| *id).max().unwrap_or(0).max(head.last_event_id);
        if let Some(EventKind::OrchestrationStarted { carry_forward_events, .. }) =
            turn.history_delta.iter().find(|event| event.event_id == 1).map(|event| &event.kind)
        {
            head.carry_forward = carry_forward_events.as_ref().map_or(0, |events| events.len() as u64);
        }
    }
    create_all(&if current {
        head.append(&plan.events, &mut plan.chunks)
    } else {
        documents::pack(&head.instance_id, turn.execution_id, head.turn, &plan.events, &mut plan.chunks)
    })
}

fn create_all(documents: &[HistoryDocument]) -> Result<Vec<Op>, Refusal> {
    documents.iter().map(|document| Op::create(document).map_err(unserializable)).collect()
}

/// Name, version, status, output and the record of the execution.
fn advance_execution(plan: &mut Plan, turn: &Turn, now: u64) -> Result<(), Refusal> {
    let head = &mut plan.head;
    let metadata = &turn.metadata;
    if let Some(name) = &metadata.orchestration_name {
        head.orchestration_name.clone_from(name);
    }
    if let Some(version) = &metadata.orchestration_version {
        head.orchestration_version.clone_from(version);
    }
    if turn.execution_id < head.current_execution_id {
        return Ok(());
    }
    if let Some(pinned) = &metadata.pinned_duroxide_version {
        head.pinned_version = Some([pinned.major, pinned.minor, pinned.patch]);
    }
    let output = metadata.output.as_deref();
    if let Some(status) = &metadata.status {
        head.status.clone_from(status);
        head.completed_at = Status::ends_execution(status).then_some(now);
        let small = output.is_none_or(|text| text.len() <= HEAD_OUTPUT_BYTES_MAX);
        head.output = output.filter(|_| small).map(ToOwned::to_owned);
        head.output_in_record = !small;
    }
    // What the head holds needs no record before another execution takes its place there.
    if head.output_in_record && metadata.status.is_some() {
        head.record_written = true;
        let record = ExecutionRecord::of(head, output, &mut plan.chunks);
        plan.pinned.push(Op::upsert(&record).map_err(unserializable)?);
    }
    Ok(())
}

/// Custom status and key-values: small ones into the head, large ones into documents of their own.
fn apply_values(plan: &mut Plan, turn: &Turn) -> Result<Vec<Op>, Refusal> {
    let mut values: Vec<ValueDocument> = Vec::new();
    let (instance, number) = (plan.head.instance_id.clone(), plan.head.turn);
    let mut inline_bytes: usize = plan
        .head
        .kv
        .values()
        .flat_map(|cell| [&cell.stored, &cell.changed])
        .filter_map(|stored| stored.as_ref()?.inline.as_ref().map(String::len))
        .sum();
    let mut spill = |text: &str, chunks: &mut Chunks| {
        let id = ids::value(number, values.len());
        let (value, pieces) = chunks.hold(text.to_owned());
        let document = ValueDocument {
            id: id.clone(),
            instance_id: instance.clone(),
            kind: kind::VALUE.to_owned(),
            turn: number,
            value,
            chunks: pieces.clone(),
        };
        values.push(document);
        (id, pieces)
    };
    let status = turn.history_delta.iter().rev().find_map(|event| match &event.kind {
        EventKind::CustomStatusUpdated { status } => Some(status),
        _ => None,
    });
    if let Some(status) = status {
        let head = &mut plan.head;
        head.custom_status_version = head.custom_status_version.saturating_add(1);
        plan.deletes.extend(head.custom_status_value.take());
        plan.deletes.extend(head.custom_status_pieces.take().iter().flat_map(ChunkRef::ids));
        head.custom_status = None;
        match status {
            Some(text) if text.len() > HEAD_VALUE_BYTES_MAX => {
                let (id, pieces) = spill(text, &mut plan.chunks);
                (head.custom_status_value, head.custom_status_pieces) = (Some(id), pieces);
            }
            _ if cosmos_wire::mutant!(15) => {}
            small => head.custom_status.clone_from(small),
        }
    }
    let Plan { head, deletes, chunks, .. } = plan;
    for change in turn.history_delta.iter().filter_map(KvChange::of) {
        let mut store = |text: &str, updated_at: u64| {
            if text.len() <= HEAD_VALUE_BYTES_MAX && inline_bytes + text.len() <= HEAD_VALUES_BYTES_MAX {
                inline_bytes += text.len();
                return Stored::inline(text, updated_at);
            }
            let (id, pieces) = spill(text, chunks);
            Stored { inline: None, document: Some(id), pieces, bytes: text.len() as u64, updated_at }
        };
        documents::apply(&mut head.kv, &change, &mut store, deletes);
    }
    if turn.metadata.status.as_deref().is_some_and(Status::ends_execution) {
        documents::settle(&mut head.kv, deletes);
    }
    // A value that was written and replaced within the turn never comes to exist.
    values.retain(|value| {
        let gone = deletes.iter().position(|id| *id == value.id);
        if let Some(position) = gone {
            deletes.swap_remove(position);
        }
        gone.is_none()
    });
    let ops = values.iter().map(|value| Op::create(value).map_err(unserializable)).collect();
    plan.values = values;
    ops
}

/// Messages to the instance itself, and intents for all others. What begins the next execution is part of the commit: it
/// must be visible as soon as that is.
fn send_items(plan: &mut Plan, turn: &Turn, around: Surroundings<'_>) -> Result<Vec<Op>, Refusal> {
    let mut ops = Vec::new();
    for item in &turn.orchestrator_items {
        let message = Message::new(item, None, around.clock, plan.head.last_sequence, &mut plan.chunks)
            .map_err(unserializable)?;
        // What begins an execution has a key far below those of its time.
        plan.head.last_sequence = plan.head.last_sequence.max(message.seq);
        if message.instance_id == plan.head.instance_id {
            let op = Op::create(&message).map_err(unserializable)?;
            if matches!(item, WorkItem::ContinueAsNew { .. }) { &mut plan.pinned } else { &mut ops }.push(op);
            plan.messages.push(message);
        } else {
            let target = message.instance_id.clone();
            ops.push(intend(plan, &target, serde_json::to_value(&message), around)?);
        }
    }
    Ok(ops)
}

/// Work items, minus those that the same turn cancels, and cancellations.
fn schedule_work(plan: &mut Plan, turn: &Turn, around: Surroundings<'_>) -> Result<Vec<Op>, Refusal> {
    let mut ops = Vec::new();
    let mut cancelled: Vec<&ScheduledActivityIdentifier> = turn.cancelled.iter().collect();
    let scheduled = turn.worker_items.len();
    for (index, item) in turn.worker_items.iter().enumerate() {
        if let WorkItem::ActivityExecute { instance, execution_id, id, .. } = item {
            let before = cancelled.len();
            cancelled.retain(|cancel| {
                (&cancel.instance, cancel.execution_id, cancel.activity_id) != (instance, *execution_id, *id)
            });
            if cancelled.len() < before {
                continue;
            }
        }
        let mut work = WorkDocument::new(item, around.clock, plan.head.last_sequence, &mut plan.chunks)
            .map_err(unserializable)?;
        // One process can begin a few at once. Many are dealt out over all slots, so that all members take some.
        if around.members > 1 && scheduled > SPREAD_FROM {
            work.spread_to = Some(dealt_to(index));
            work.visible_at = work.visible_at.saturating_sub(head_start_ms(index, scheduled));
        } else {
            work.spread_to = around.home;
        }
        if work.instance_id == plan.head.instance_id {
            ops.push(Op::create(&work).map_err(unserializable)?);
            plan.works.push(work);
        } else {
            let target = addressee(item);
            ops.push(intend(plan, &target, serde_json::to_value(&work), around)?);
        }
    }
    for cancel in cancelled {
        if cancel.instance == plan.head.instance_id {
            plan.cancels.push(ids::work(cancel.execution_id, cancel.activity_id));
        } else if ids::refusal(&cancel.instance).is_none() {
            let cancellation = Cancellation::of(cancel.execution_id, cancel.activity_id);
            ops.push(intend(plan, &cancel.instance, serde_json::to_value(cancellation), around)?);
        }
    }
    Ok(ops)
}

/// The slot that an activity of many is for. A member owns neighbouring slots and searches the oldest activities first, so
/// each few of them in a row are dealt to slots far apart: whichever page a member reads, its share is in it.
fn dealt_to(index: usize) -> u8 {
    u8::try_from(index * FAR_APART % SLOTS).unwrap_or(0)
}

/// How much older than the last of so many an activity is made. A search goes on behind a full page by its last time, so no
/// more than a page may be of one.
fn head_start_ms(index: usize, scheduled: usize) -> u64 {
    ((scheduled - index) / OF_ONE_MOMENT) as u64
}

fn intend(
    plan: &mut Plan,
    target: &str,
    document: Result<serde_json::Value, serde_json::Error>,
    around: Surroundings<'_>,
) -> Result<Op, Refusal> {
    if let Some(reason) = ids::refusal(target) {
        return Err(Refusal::Name(reason));
    }
    let id = ids::intent(plan.head.turn, plan.intents.len());
    let now = around.clock.now_ms();
    let document = document.map_err(unserializable)?;
    let mut intent = Intent::new(&plan.head.instance_id, &plan.head.incarnation, id, target, document, now);
    intent.sweep_at = now + around.intent_age_ms;
    let op = Op::create(&intent).map_err(unserializable)?;
    plan.intents.push(intent);
    Ok(op)
}

#[allow(clippy::needless_pass_by_value, reason = "used as a function of map_err")]
fn unserializable(error: serde_json::Error) -> Refusal {
    Refusal::Unserializable(format!("A document of the turn cannot be written as JSON: {error}."))
}

const KEPT_FOR_EVER: i64 = -1;
/// Each lock and renewal rewrites the head, so it stays light.
const HEAD_OUTPUT_BYTES_MAX: usize = 4 << 10;

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

/// Plans a turn that begins, appends, sends and perhaps ends, on any head.
#[cfg(any(fuzzing, test))]
pub(crate) fn commit_for_fuzzing(head: &Head, clock: &Clock, ends: bool) {
    let execution_id = head.current_execution_id.saturating_add(u64::from(ends));
    let kinds = [
        EventKind::CustomStatusUpdated { status: Some("status".to_owned()) },
        EventKind::KeyValueSet { key: "key".to_owned(), value: "value".to_owned(), last_updated_at_ms: 1 },
        EventKind::KeyValuesCleared,
    ];
    let event = |(id, kind)| Event::with_event_id(id, head.instance_id.clone(), execution_id, None, kind);
    let first = head.last_event_id.saturating_add(1);
    let mail = |instance: &str| WorkItem::QueueMessage {
        instance: instance.to_owned(),
        name: String::new(),
        data: String::new(),
    };
    let turn = Turn {
        execution_id,
        history_delta: (first..=u64::MAX).zip(kinds).map(event).collect(),
        orchestrator_items: vec![mail(&head.instance_id), mail("another")],
        metadata: ExecutionMetadata {
            status: ends.then(|| Status::COMPLETED.to_owned()),
            output: ends.then(String::new),
            ..ExecutionMetadata::default()
        },
        ..Turn::default()
    };
    let around = Surroundings {
        clock,
        commit: "commit",
        tombstone_ttl_seconds: 60,
        intent_age_ms: 1,
        retention: &Retention::default(),
        members: 1,
        home: None,
    };
    if let Ok(plan) = plan(head, &turn, around)
        && let Ok(op) = Op::replace(&plan.head.id, &plan.head, None)
    {
        let _ =
            crate::staging::layout::layout(plan.writes(), op, 1, crate::staging::layout::Limits::default());
    }
}

/// A turn that schedules more activities than this deals them out to all members.
const SPREAD_FROM: usize = 8;
/// The golden section of all slots: the multiples of it, as many as there are, lie evenly among them.
const FAR_APART: usize = 159;
/// Fewer than the first page of a search returns, which are ten.
const OF_ONE_MOMENT: usize = 8;
