//! Texts in pieces go with the document they belong to.
//!
//! Whoever removes such a document lists its pieces in the same batch: what is listed is removed by whoever comes by,
//! and pieces that no list and no document names would be kept for ever.

use duroxide::providers::ScheduledActivityIdentifier;
use duroxide::{Event, EventKind};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _};
use serde::Deserialize;

use crate::documents::{Chunk, ChunkRef, Manifest, Tagged, WorkDocument, ids};
use crate::error::Fault;
use crate::queries::{self, Query};
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op, Read, Store, decode};

use super::{Staging, publish};

/// Removes a document that may be gone already, and the pieces of its text if it has any.
pub(crate) async fn remove(
    staging: Staging<'_>,
    call: Call,
    partition: &str,
    removal: Op,
    pieces: Option<ChunkRef>,
) -> Result<(), Fault> {
    let Some(pieces) = pieces else {
        return staging.store.patient(call).settle_one(partition, &removal, Rests::Shared).await.map(drop);
    };
    let list = list(staging, partition, vec![pieces], Vec::new());
    let ops = [Op::create(&list)?, removal];
    // The list is this call's own.
    match staging.store.patient(call).settle(partition, &ops, Rests::OwnId).await? {
        Settled::Applied(_) | Settled::Arrived => {}
        // Whoever removed the document has listed its pieces.
        Settled::Superseded(_) => return Ok(()),
    }
    publish::publish(staging, call, &list, None).await
}

/// Removes a work item of any instance, whether or not it is still there.
pub(crate) async fn remove_work(
    staging: Staging<'_>,
    call: Call,
    partition: &str,
    id: &str,
) -> Result<(), Fault> {
    let found = staging.store.patient(call).read_lockable::<WorkDocument>(partition, id).await?;
    let Some(Tagged { document, .. }) = found else { return Ok(()) };
    remove(staging, call, partition, Op::delete(id, None), document.chunks).await
}

/// A list of what is to be removed from a partition, under an id of its own.
pub(crate) fn list(
    staging: Staging<'_>,
    partition: &str,
    drops: Vec<ChunkRef>,
    deletes: Vec<String>,
) -> Manifest {
    let commit = uuid::Uuid::new_v4().simple().to_string();
    let sweep_at = staging.store.clock().now_ms() + staging.age_threshold_ms;
    let mark = Manifest::prepared(partition, &commit, 0, 0, sweep_at);
    Manifest { committed: true, drops, deletes, ..mark }
}

/// Puts the pieces of a large text together. A reference may claim any number of them and any length: they are read in
/// order, a few at a time, so that the first one that is missing, or is too much, ends it before the rest is asked for.
pub(crate) async fn join(
    store: &Store,
    call: Call,
    partition: &str,
    chunks: &ChunkRef,
) -> Result<String, Fault> {
    let unfit = || Fault::damaged("the pieces of a large text do not fit together");
    if let Some(reason) = chunks.absurdity() {
        return Err(Fault::damaged(format!("a reference to a large text cannot be right: {reason}")));
    }
    let pieces = chunks.ids().map(|id| -> BoxFuture<'_, _> { Box::pin(piece(store, call, partition, id)) });
    let pieces: Vec<BoxFuture<'_, Result<String, Fault>>> = pieces.collect();
    let mut pieces = stream::iter(pieces).buffered(PIECES_AT_ONCE);
    let mut whole = String::new();
    while let Some(piece) = pieces.next().await {
        whole.push_str(&piece?);
        if whole.len() as u64 > chunks.stored_bytes_max() {
            return Err(unfit());
        }
    }
    drop(pieces);
    chunks.text(whole).ok_or_else(unfit)
}

/// One piece of a large text.
async fn piece(store: &Store, call: Call, partition: &str, id: String) -> Result<String, Fault> {
    match store.patient(call).read(partition, &id, None).await? {
        Read::Found { body, .. } => Ok(decode::<Chunk>(&body)?.data),
        Read::NotModified | Read::Missing => {
            Err(Fault::damaged(format!("the piece {id} of a large text is missing")))
        }
    }
}

/// What a turn has to know about the activities it cancels.
#[derive(Debug, Default)]
pub(crate) struct Cancelled {
    /// Work items with ids that cannot be foreseen, as the public crate wrote them.
    pub(crate) named: Vec<String>,
    /// The pieces of their texts.
    pub(crate) pieces: Vec<ChunkRef>,
}

/// Looks up the work items that a turn cancels.
pub(crate) async fn cancelled(
    store: &Store,
    call: Call,
    instance: &str,
    cancels: &[ScheduledActivityIdentifier],
) -> Result<Cancelled, Fault> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Row {
        id: String,
        #[serde(alias = "execution")]
        execution_id: Option<u64>,
        activity_id: Option<u64>,
        #[serde(default)]
        chunks: Option<ChunkRef>,
    }
    let query = Query::new(queries::WORK_OF_INSTANCE);
    let rows = store.patient(call).query(instance, &query).await?;
    let mut found = Cancelled::default();
    for row in rows {
        let row: Row = decode(row.get().as_bytes())?;
        let is_meant = |cancel: &&ScheduledActivityIdentifier| {
            cancel.instance == instance
                && Some(cancel.execution_id) == row.execution_id
                && Some(cancel.activity_id) == row.activity_id
        };
        let Some(cancel) = cancels.iter().find(is_meant) else { continue };
        if row.id != ids::work(cancel.execution_id, cancel.activity_id) {
            found.named.push(row.id);
        }
        found.pieces.extend(row.chunks);
    }
    Ok(found)
}

/// Whether the history shows that the work item of an activity is not in pieces: what is in it was in the event.
pub(crate) fn is_whole(events: &[Event], cancel: &ScheduledActivityIdentifier) -> bool {
    let scheduled = events.iter().find(|event| event.event_id == cancel.activity_id);
    scheduled.is_some_and(|event| match &event.kind {
        EventKind::ActivityScheduled { name, input, .. } => {
            event.execution_id == cancel.execution_id && name.len() + input.len() <= WHOLE_BYTES_MAX
        }
        _ => false,
    })
}

const PIECES_AT_ONCE: usize = 8;
/// Far below what a document holds, however much of it has to be escaped.
const WHOLE_BYTES_MAX: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled(id: u64, bytes: usize) -> Event {
        let kind = EventKind::ActivityScheduled {
            name: "Echo".to_owned(),
            input: "x".repeat(bytes),
            session_id: None,
            tag: None,
        };
        Event::with_event_id(id, "a", 1, None, kind)
    }

    #[test]
    fn only_the_event_of_a_small_input_shows_that_a_work_item_is_whole() {
        let events = [scheduled(2, 10), scheduled(3, 1 << 20)];
        let cancel = |execution_id, activity_id| ScheduledActivityIdentifier {
            instance: "a".to_owned(),
            execution_id,
            activity_id,
        };
        assert!(is_whole(&events, &cancel(1, 2)));
        assert!(!is_whole(&events, &cancel(1, 3)), "large");
        assert!(!is_whole(&events, &cancel(2, 2)), "of another execution");
        assert!(!is_whole(&events, &cancel(1, 4)), "unknown");
    }
}
