//! What waits for an instance that is to be deleted.

use std::collections::HashSet;

use serde::Deserialize;

use crate::core::Core;
use crate::documents::{ChunkRef, begins_instance, lenient, order_of};
use crate::error::{Fault, Trouble};
use crate::queries::{self, Query};
use crate::staging::join;
use crate::store::{Call, decode};

/// A message that waits for an instance, as far as a deletion has to know it. One that is malformed goes as well.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Waiting {
    id: String,
    #[serde(default, deserialize_with = "lenient")]
    seq: u64,
    #[serde(default, deserialize_with = "lenient")]
    enqueued_at: u64,
    /// Whose child it starts.
    #[serde(default, deserialize_with = "lenient")]
    parent_instance_id: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    chunks: Option<ChunkRef>,
    /// The beginning of its text.
    #[serde(default, deserialize_with = "lenient")]
    item: String,
}

/// The messages that wait for an instance; if they are too many for a list, one more than fits.
pub(super) async fn messages(core: &Core, call: Call, instance: &str) -> Result<Vec<Waiting>, Fault> {
    let query = Query::new(queries::QUEUED).for_latest().with("@rows", LISTED_MAX + 1);
    let rows = core.store.patient(call).query(instance, &query).await?;
    rows.iter().map(|row| decode(row.get().as_bytes())).collect()
}

/// Reads the texts whose beginning is in a piece of them. The start of a child says what it is by itself.
pub(super) async fn open(
    core: &Core,
    call: Call,
    instance: &str,
    queue: &mut [Waiting],
) -> Result<(), Fault> {
    for message in queue.iter_mut().filter(|message| message.parent_instance_id.is_none()) {
        let Some(chunks) = &message.chunks else { continue };
        match join(&core.store, call, instance, chunks).await {
            Ok(text) => message.item = text,
            Err(fault) if fault.trouble == Trouble::Refused => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// The ids of waiting messages; `None` if they are too many for a list.
pub(super) fn list(queue: Vec<Waiting>) -> Option<Vec<String>> {
    (queue.len() <= LISTED_MAX).then(|| queue.into_iter().map(|message| message.id).collect())
}

/// Whether the instance that these messages begin is none of the family's: the first start counts, all others are
/// duplicates to the runtime.
pub(super) fn begins_stranger(queue: &[Waiting], family: &HashSet<String>) -> bool {
    let starts =
        queue.iter().filter(|message| message.parent_instance_id.is_some() || begins_instance(&message.item));
    let first = starts.min_by_key(|start| order_of(start.seq, start.enqueued_at, &start.item));
    first
        .is_some_and(|start| !start.parent_instance_id.as_ref().is_some_and(|parent| family.contains(parent)))
}

/// How many waiting messages the fence lists: far below what fits into a document.
const LISTED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: u64, parent: Option<&str>, item: &str) -> Waiting {
        let row = serde_json::json!({ "id": "m", "seq": seq, "parentInstanceId": parent, "item": item });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn the_first_start_says_whose_instance_it_is() {
        let family = HashSet::from(["parent".to_owned()]);
        let start = r#"{"StartOrchestration":{"inst"#;
        let mail = message(1, None, r#"{"QueueMessage":{"instance":"#);
        let (ours, theirs) = (message(5, Some("parent"), start), message(3, None, start));
        let late = message(7, Some("somebody"), start);
        assert!(begins_stranger(&[ours, theirs], &family));
        let ours = message(5, Some("parent"), start);
        assert!(!begins_stranger(&[late, ours, mail], &family));
        assert!(!begins_stranger(&[], &family), "its start is on its way");
    }
}
