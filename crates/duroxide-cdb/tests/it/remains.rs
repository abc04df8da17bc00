//! What a container may hold when all is done, and what must not be left over: no message, no work item, no intent, no
//! lock, nothing staged or prepared, no piece of a text that nothing refers to.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cosmos_driver::{CallOptions, Container, ItemOptions, QueryOptions, Scope};
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use serde_json::Value;

use crate::world::until;

/// What became of the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are over, and stay.
    Over,
    /// They were deleted.
    Deleted,
}

/// Waits until nothing is left over, or says what is.
///
/// What a dead process had prepared and not committed is left alone for minutes: a process that lives then clears it.
pub(crate) async fn settled(
    container: &Container,
    config: CosmosDBProviderConfig,
    fate: Fate,
    patience: Duration,
) -> Result<(), String> {
    without(container, patience, fate, |document| !is_preparation(document)).await?;
    if leftover(container, fate, |_| true).await.is_none() {
        return Ok(());
    }
    come_of_age(container).await;
    let _living = CosmosDBProvider::new_with_config(config).await.map_err(|error| error.to_string())?;
    without(container, patience, fate, |_| true).await
}

/// Whether something is prepared for a commit that has not happened.
pub(crate) async fn is_preparing(container: &Container) -> bool {
    all(container).await.iter().any(|document| document["type"] == "manifest" && is_preparation(document))
}

/// Makes all preparations as old as they must be for others to clear them.
async fn come_of_age(container: &Container) {
    for mut mark in all(container).await {
        if mark["type"] != "manifest" || mark["committed"] != false {
            continue;
        }
        mark["sweepAt"] = 1.into();
        let (partition, id) = (mark["instanceId"].as_str().unwrap(), mark["id"].as_str().unwrap());
        // It may be cleared, or committed, at this moment.
        let mut options = ItemOptions::default();
        options.if_match = mark["_etag"].as_str().map(ToOwned::to_owned);
        drop(container.replace_item(partition, id, &mark, options).await);
    }
}

/// Waits until none of the chosen documents is left over, or says which is.
async fn without(
    container: &Container,
    patience: Duration,
    fate: Fate,
    chosen: impl Fn(&Value) -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    let mut left = None;
    until("nothing is left over", async || {
        left = leftover(container, fate, &chosen).await;
        left.is_none() || begun.elapsed() > patience
    })
    .await;
    left.map_or(Ok(()), |left| Err(format!("left over: {left}").chars().take(1000).collect()))
}

/// A mark of what is being prepared, or something that only such a mark can explain.
fn is_preparation(document: &Value) -> bool {
    match document["type"].as_str().unwrap_or_default() {
        "manifest" => document["committed"] == false,
        kind => kind == "staged" || kind == "chunk",
    }
}

/// A document of the chosen ones that should not be there when all is done.
async fn leftover(container: &Container, fate: Fate, chosen: impl Fn(&Value) -> bool) -> Option<Value> {
    let documents = all(container).await;
    let needed = pieces(&documents);
    documents.into_iter().find(|document| !may_stay(document, fate, &needed) && chosen(document))
}

fn may_stay(document: &Value, fate: Fate, needed: &HashSet<String>) -> bool {
    match document["type"].as_str().unwrap_or_default() {
        "tombstone" | "session" | "format" | "member" | "slot_table" | "bell" => true,
        "instance" => fate == Fate::Over && document["lockToken"].is_null() && document["started"] == true,
        "execution" | "history" | "value" => fate == Fate::Over,
        "chunk" => document["id"].as_str().is_some_and(|id| needed.contains(id)),
        _ => false,
    }
}

/// The ids of the pieces that what is recorded refers to.
fn pieces(documents: &[Value]) -> HashSet<String> {
    let recorded = |document: &&Value| {
        matches!(document["type"].as_str(), Some("instance" | "execution" | "history" | "value"))
    };
    let mut ids = HashSet::new();
    for document in documents.iter().filter(recorded) {
        refer(document, &mut ids);
    }
    ids
}

fn refer(value: &Value, ids: &mut HashSet<String>) {
    match value {
        Value::Object(fields) => {
            let number = |name| fields.get(name).and_then(Value::as_u64);
            let commit = fields.get("commit").and_then(Value::as_str);
            if let (Some(commit), Some(first), Some(count)) = (commit, number("first"), number("count")) {
                ids.extend((first..first + count).map(|index| format!("chunk:{commit}:{index}")));
            }
            fields.values().for_each(|field| refer(field, ids));
        }
        Value::Array(values) => values.iter().for_each(|value| refer(value, ids)),
        _ => {}
    }
}

/// Every document of the container.
async fn all(container: &Container) -> Vec<Value> {
    let mut documents: Vec<Value> = Vec::new();
    for range in container.ranges(CallOptions::default()).await.unwrap() {
        let query = container.query("SELECT * FROM c", Scope::Range(range), QueryOptions::default());
        documents.extend(query.collect::<Value>().await.unwrap());
    }
    documents
}
