//! Queues, runtimes and dead letters.

use std::collections::BTreeMap;

use cosmos_driver::Query;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Store;
use super::super::answer::Outcome;
use super::told;
use crate::clock::now_ms;
use crate::commands::{dead_letters as letters, queues};
use crate::documents::Documents;
use crate::fleet::Fleet;
use crate::model::{InWords as _, Queued, kind, legible, text_of};

/// What waits, by queue and sort, with the longest waiting of each.
pub(in super::super) async fn queues(store: &Store) -> Outcome {
    let documents = store.documents();
    let (rows, more) = waiting(&documents).await?;
    let now = now_ms();
    let mut piles = queues::to_json(&queues::pile_up(&rows, now));
    let mut examples: BTreeMap<(String, String), Vec<&Queued>> = BTreeMap::new();
    for row in &rows {
        examples.entry(queues::name_of(row)).or_default().push(row);
    }
    for pile in piles.as_array_mut().into_iter().flatten() {
        let name = (text_of(pile, "queue").to_owned(), text_of(pile, "what").to_owned());
        let Some(rows) = examples.get_mut(&name) else { continue };
        rows.sort_by_key(|row| (row.is_locked(now), row.waits_since()));
        let shown = rows.iter().take(EXAMPLES_MAX);
        pile["examples"] = shown
            .map(|row| {
                json!({"instance": row.instance_id, "what": row.describe(), "visibleAt": row.visible_at,
                    "enqueuedAt": row.enqueued_at, "since": row.waits_since(), "attempts": row.attempt_count, "locked": row.is_locked(now)})
            })
            .collect();
    }
    Ok(told(store, &documents, json!({"queues": piles, "more": more})))
}

/// Who works on this container.
pub(in super::super) async fn runtimes(store: &Store) -> Outcome {
    let documents = store.documents();
    let fleet = Fleet::read(&documents).await?;
    let owners = owners(&documents).await?;
    let answer = json!({"members": fleet.to_json(), "remarks": fleet.remarks(), "owners": owners});
    Ok(told(store, &documents, answer))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Holding {
    #[serde(rename = "type")]
    kind: String,
    instance_id: String,
    session_id: String,
    owner_id: String,
    lock_owner: String,
    locked_until: u64,
}

/// What each process holds now: turns and sessions.
async fn owners(documents: &Documents) -> anyhow::Result<Vec<Value>> {
    let query = Query::new(
        "SELECT c.type, c.instanceId, c.sessionId, c.ownerId, c.lockOwner, c.lockedUntil FROM c \
         WHERE (c.status = 'Running' AND c.type = 'instance' AND IS_STRING(c.lockOwner)) OR c.type = 'session'",
    );
    let (rows, _) = documents.up_to(query, HOLDINGS_MAX).await?;
    let now = now_ms();
    let mut owners: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for holding in rows.iter().filter_map(legible::<Holding>) {
        if holding.locked_until <= now {
            continue;
        }
        let (owner, what) = if holding.kind == kind::SESSION {
            (holding.owner_id, json!({"session": holding.session_id, "until": holding.locked_until}))
        } else {
            (holding.lock_owner, json!({"instance": holding.instance_id, "until": holding.locked_until}))
        };
        owners.entry(owner).or_default().push(what);
    }
    Ok(owners.into_iter().map(|(owner, holds)| json!({"owner": owner, "holds": holds})).collect())
}

/// Messages that could never be delivered, the latest first.
pub(in super::super) async fn dead_letters(store: &Store) -> Outcome {
    let documents = store.documents();
    let found = letters::read(&documents).await?;
    let shown: Vec<Value> = found.iter().take(LETTERS_MAX).map(letters::to_json).collect();
    Ok(told(store, &documents, json!({"letters": shown, "count": found.len()})))
}

/// Rows of all queues, as many as a page shows, and whether there are more.
pub(super) async fn waiting(documents: &Documents) -> anyhow::Result<(Vec<Queued>, bool)> {
    let (rows, has_more) = documents.up_to(Query::new(queues::WAITING), WAITING_MAX).await?;
    Ok((rows.iter().filter_map(legible).collect(), has_more))
}

const WAITING_MAX: u32 = 1000;
const HOLDINGS_MAX: u32 = 1000;
const LETTERS_MAX: usize = 200;
const EXAMPLES_MAX: usize = 20;
