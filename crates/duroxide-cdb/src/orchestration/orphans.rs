//! Messages to an instance that has not begun.
//!
//! Queue messages are dropped, as the contract wants. Answers are dropped when there is no such instance at all: whoever
//! asked for them was deleted, and nobody else ever will want them. Events and cancellations wait for a start.

use duroxide::providers::WorkItem;

use crate::core::Core;
use crate::documents::{Message, Tombstone};
use crate::error::Fault;
use crate::finder::Verdict;
use crate::store::{Call, Op};

use super::pieces;

/// Drops what nobody will take. `items` are the messages of `batch`, decoded; `rest` are all others.
pub(super) async fn settle(
    core: &Core,
    call: Call,
    instance: &str,
    batch: &[&Message],
    rest: &[&Message],
    items: &[WorkItem],
) -> Result<Verdict, Fault> {
    let now = core.clock.now_ms();
    let is_unwanted: fn(&WorkItem) -> bool = if are_mail(items, rest) {
        is_mail
    } else if items.iter().any(is_answer) && core.head(call, instance).await?.is_none() {
        // The head was asked for after the messages were seen: had the instance begun before, it would be there.
        is_answer
    } else {
        return Ok(Verdict::Park { now });
    };
    for (message, item) in batch.iter().zip(items).filter(|(_, item)| is_unwanted(item)) {
        // Its sender may not know yet that it arrived, and the next life of the instance must not get it.
        let removal = if message.delivered && is_answer(item) {
            let tombstone = Tombstone::new(instance, &message.id, core.settings.tombstone_ttl_seconds);
            Op::replace(&message.id, &tombstone, None).map_err(|error| Fault::refused(error.to_string()))?
        } else {
            Op::delete(&message.id, None)
        };
        pieces::remove(core, call, instance, removal, message.chunks.clone()).await?;
    }
    Ok(Verdict::RestUntil(now))
}

/// Whether a queue holds nothing but queue messages. The pieces of large ones behind the batch are not read: they show
/// when it is their turn.
fn are_mail(items: &[WorkItem], rest: &[&Message]) -> bool {
    items.iter().all(is_mail)
        && rest.iter().filter(|message| message.chunks.is_none()).all(|message| {
            serde_json::from_str(&message.work_item).is_ok_and(|item: WorkItem| is_mail(&item))
        })
}

fn is_mail(item: &WorkItem) -> bool {
    matches!(item, WorkItem::QueueMessage { .. })
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
