//! Messages to an instance that has not begun.
//!
//! A start may be on its way: committed by a parent and still in its outbox, written by a process whose clock is ahead, or
//! put off by a runtime that does not know the orchestration. So mail, events and cancellations wait for it. They are
//! *parked*: searches do not see them before a time that moves away as they grow older, and whichever turn begins the
//! instance takes them along at once, in their order. After [`early_mail_retention`] without a start they become dead
//! letters, which an operator can list, send again or drop; not while a start is in the queue whose time is to come.
//!
//! Answers are dropped when there is no such instance at all: whoever asked for them was deleted, and no later life of the
//! instance wants them.
//!
//! [`early_mail_retention`]: crate::CosmosDBProviderConfig::early_mail_retention

use duroxide::providers::WorkItem;

use crate::core::Core;
use crate::documents::{DeadLetter, Message, MessageHint, START_PREFIX, Tombstone, start_keys_below};
use crate::error::Fault;
use crate::finder::Verdict;
use crate::queries::{self, Query};
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op, decode};

use crate::staging::pieces;

/// Decides about the messages of an instance that has not begun: they are in `messages`, all of them or the first of a long
/// queue, and the first ones, decoded, in `batch` and `items`. None of them begins it: what does comes first in the queue.
pub(super) async fn settle(
    core: &Core,
    call: Call,
    messages: &[Message],
    is_long_queue: bool,
    batch: &[&Message],
    items: &[WorkItem],
) -> Result<Verdict, Fault> {
    let Some(instance) = messages.first().map(|message| message.instance_id.as_str()) else {
        return Ok(Verdict::RestUntil(0));
    };
    let now = core.clock.now_ms();
    // The head is asked for after the messages were seen: had the instance begun before, it would be there.
    if items.iter().any(is_answer) && core.store.patient(call).head(instance).await?.is_none() {
        for (message, _) in batch.iter().zip(items).filter(|(_, item)| is_answer(item)) {
            drop_answer(core, call, message).await?;
        }
        return Ok(Verdict::RestUntil(now));
    }
    let is_due = |message: &Message| message.visible_at <= now;
    let is_overdue = |message: &Message| {
        is_due(message) && message.enqueued_at.saturating_add(core.settings.early_mail_ms) <= now
    };
    let (mut expired, mut waiting): (Vec<&Message>, Vec<&Message>) =
        messages.iter().partition(|message| is_overdue(message));
    if !expired.is_empty() && start_waits(core, call, instance, now).await? {
        waiting.append(&mut expired);
    }
    for message in expired {
        bury(core, call, message).await?;
    }
    for group in waiting.iter().copied().filter(|message| is_due(message)).collect::<Vec<_>>().chunks(GROUP) {
        park(core, call, instance, group, now).await?;
    }
    if is_long_queue {
        park_the_rest(core, call, instance, now).await?;
    }
    // What another process has parked is looked at again when it says.
    for message in waiting.iter().filter(|message| !is_due(message)) {
        core.turns.hint(MessageHint::from(*message));
    }
    Ok(Verdict::RestUntil(0))
}

/// Whether a start is there whose time is still to come: it was sent for later, by a fast clock, or was put off.
async fn start_waits(core: &Core, call: Call, instance: &str, now: u64) -> Result<bool, Fault> {
    let query = Query::new(queries::LATER_START)
        .with("@now", now)
        .with("@start", START_PREFIX)
        .with("@below", start_keys_below(now));
    let rows = core.store.patient(call).query(instance, &query).await?;
    Ok(!rows.is_empty())
}

/// How long a message that was sent so long ago is put aside: a quarter of the time it has waited already. So it is looked
/// at some fifty times a day, and should the process that knows it die, it is late by no more than that.
fn parking_ms(age_ms: u64) -> u64 {
    (age_ms / 4).clamp(PARKING_MS_MIN, PARKING_MS_MAX)
}

/// Puts messages aside, in one batch. Those that another process has parked or taken meanwhile are left to it.
async fn park(core: &Core, call: Call, instance: &str, group: &[&Message], now: u64) -> Result<(), Fault> {
    let mut parked: Vec<Message> = group.iter().copied().cloned().collect();
    for message in &mut parked {
        message.visible_at = now + parking_ms(now.saturating_sub(message.enqueued_at));
    }
    while !parked.is_empty() {
        let park = |message: &Message| {
            Op::set(&message.id, "/visibleAt", message.visible_at).and_set("/parkedAt", now).on(&message.etag)
        };
        let ops: Vec<Op> = parked.iter().map(park).collect();
        match core.store.patient(call).settle(instance, &ops, Rests::Shared).await? {
            Settled::Applied(_) | Settled::Arrived => {
                parked.iter().for_each(|message| {
                    core.turns.hint(MessageHint::from(message));
                });
                return Ok(());
            }
            Settled::Superseded(fault) => {
                let Some(index) = fault.index.filter(|index| *index < parked.len()) else {
                    return Err(fault);
                };
                parked.remove(index);
            }
        }
    }
    Ok(())
}

/// Puts aside what waits behind the part of a long queue that a look shows: it shows the same part again, and every search
/// would find what is behind it.
async fn park_the_rest(core: &Core, call: Call, instance: &str, now: u64) -> Result<(), Fault> {
    let query = Query::new(queries::DUE_OUTLINES).with("@now", now).with("@rows", PARKED_AT_ONCE);
    let rows = core.store.patient(call).query(instance, &query).await?;
    let rest =
        rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<Vec<Message>, Fault>>()?;
    for group in rest.chunks(GROUP) {
        park(core, call, instance, &group.iter().collect::<Vec<_>>(), now).await?;
    }
    Ok(())
}

/// Replaces a message whose instance never began by a dead letter. What is sent again from there has an id of its own: the
/// tombstone that guards against a late second copy keeps the old one.
async fn bury(core: &Core, call: Call, message: &Message) -> Result<(), Fault> {
    let instance = message.instance_id.as_str();
    let reason = "no start of this instance came in time";
    tracing::warn!(instance, id = message.id, reason, "a message becomes a dead letter");
    let letter = DeadLetter::of_message(message, reason.to_owned(), core.clock.now_ms())?;
    let removal = if message.delivered {
        let tombstone = Tombstone::new(instance, &message.id, core.settings.tombstone_ttl_seconds);
        Op::replace(&message.id, &tombstone, Some(&message.etag))?
    } else {
        Op::delete(&message.id, Some(&message.etag))
    };
    let ops = [removal, Op::create(&letter)?];
    // Superseded: another process, or an unanswered try of this one, has done so.
    core.store.patient(call).settle(instance, &ops, Rests::Shared).await.map(drop)
}

/// Drops an answer. Its sender may not know yet that it arrived, and the next life of the instance must not get it.
async fn drop_answer(core: &Core, call: Call, message: &Message) -> Result<(), Fault> {
    let instance = message.instance_id.as_str();
    let removal = if message.delivered {
        let tombstone = Tombstone::new(instance, &message.id, core.settings.tombstone_ttl_seconds);
        Op::replace(&message.id, &tombstone, None)?
    } else {
        Op::delete(&message.id, None)
    };
    pieces::remove(core.staging(), call, instance, removal, message.chunks.clone()).await
}

/// What only an instance that began can have asked for.
fn is_answer(item: &WorkItem) -> bool {
    matches!(
        item,
        WorkItem::ActivityCompleted { .. }
            | WorkItem::ActivityFailed { .. }
            | WorkItem::TimerFired { .. }
            | WorkItem::SubOrchCompleted { .. }
            | WorkItem::SubOrchFailed { .. }
    )
}

/// A batch holds a hundred operations.
const GROUP: usize = 100;
/// So many of a long queue are put aside by one look; the next search finds the rest.
const PARKED_AT_ONCE: usize = 1_000;
const PARKING_MS_MIN: u64 = 1_000;
const PARKING_MS_MAX: u64 = 10 * 60 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_waited_long_is_looked_at_rarely() {
        let day = 24 * 60 * 60 * 1_000;
        let (mut age, mut looks) = (0, 0);
        while age < day {
            let parking = parking_ms(age);
            assert!(parking <= PARKING_MS_MIN.max(age / 4));
            age += parking;
            looks += 1;
        }
        assert!((20..200).contains(&looks), "{looks}");
    }
}
