//! What changes something. What destroys is counted first, and done only for who typed what was counted.

use duroxide::Client;
use duroxide::providers::PruneOptions;
use duroxide_cdb::{BulkMode, CosmosDBProvider};
use serde_json::{Value, json};

use super::super::Store;
use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::told;
use crate::clock::now_ms;
use crate::commands::delete::{Tally, count_tree};
use crate::commands::prune as pruning;
use crate::commands::send::{require, require_free};
use crate::documents::Documents;
use crate::output::{parse_moment, say, utc};

/// What was done by whom does not matter here: one person has the token. When does.
pub(super) fn audit(what: &str) {
    say(format!("{} UTC {what}", utc(now_ms())));
}

pub(in super::super) async fn start(store: &Store, asked: &Asked) -> Outcome {
    let (id, name, input) = (asked.text("id"), asked.text("name"), asked.text("input"));
    if id.is_empty() || name.is_empty() {
        return Err(Failure::usage("a start needs an id and the name of an orchestration"));
    }
    let documents = store.documents();
    let client = Client::new(store.provider().await?);
    require_free(&documents, id).await?;
    match asked.text("version") {
        "" => client.start_orchestration(id, name, input).await?,
        version => client.start_orchestration_versioned(id, name, version, input).await?,
    }
    audit(&format!("start {id:?} of {name:?}"));
    Ok(told(store, &documents, json!({"sent": "start", "instance": id})))
}

pub(in super::super) async fn raise(store: &Store, asked: &Asked) -> Outcome {
    let (id, event) = (asked.text("id"), asked.text("event"));
    let documents = store.documents();
    require(&documents, id).await?;
    Client::new(store.provider().await?).raise_event(id, event, asked.text("data")).await?;
    audit(&format!("raise {event:?} for {id:?}"));
    Ok(told(store, &documents, json!({"sent": "raise", "instance": id})))
}

pub(in super::super) async fn enqueue(store: &Store, asked: &Asked) -> Outcome {
    let (id, queue) = (asked.text("id"), asked.text("queue"));
    let documents = store.documents();
    require(&documents, id).await?;
    Client::new(store.provider().await?).enqueue_event(id, queue, asked.text("data")).await?;
    audit(&format!("enqueue to {queue:?} of {id:?}"));
    Ok(told(store, &documents, json!({"sent": "enqueue", "instance": id})))
}

/// Asks workflows to stop. One is asked at once, several after they were counted.
pub(in super::super) async fn cancel(store: &Store, asked: &Asked) -> Outcome {
    let ids = ids(asked)?;
    let documents = store.documents();
    let mut running = Vec::new();
    let mut left_out = 0;
    for id in &ids {
        match documents.head(id).await? {
            Some(head) if head.has_ended() => left_out += 1,
            _ => running.push(id.clone()),
        }
    }
    let word = format!("cancel {}", running.len());
    if asked.body["rehearse"] == true {
        return Ok(told(
            store,
            &documents,
            json!({"count": running.len(), "leftOut": left_out, "word": word}),
        ));
    }
    confirmed(asked, &word, running.len())?;
    let client = Client::new(store.provider().await?);
    let reason =
        Some(asked.text("reason")).filter(|reason| !reason.is_empty()).unwrap_or("cancelled by an operator");
    let mut failures = Vec::new();
    for id in &running {
        if let Err(error) = client.cancel_instance(id, reason).await {
            failures.push(format!("{id}: {error}"));
        }
    }
    let done = running.len() - failures.len();
    audit(&format!("cancel {} ({done} of {}): {reason}", named(&running), running.len()));
    Ok(told(store, &documents, json!({"done": done, "leftOut": left_out, "failures": failures})))
}

/// Deletes instances with their trees.
pub(in super::super) async fn delete(store: &Store, asked: &Asked) -> Outcome {
    let ids = ids(asked)?;
    let is_forced = asked.body["force"] == true;
    let documents = store.documents();
    let provider = store.provider().await?;
    let counted = count_trees(&documents, &provider, &ids, is_forced).await?;
    let count = counted.ids.len();
    let word = format!("delete {count}");
    if asked.body["rehearse"] == true {
        let answer =
            json!({"count": count, "tally": counted.tally, "running": counted.running, "word": word});
        return Ok(told(store, &documents, answer));
    }
    confirmed(asked, &word, count)?;
    let (mut tally, mut failures, mut done) = (Tally::default(), Vec::new(), 0);
    for id in &counted.ids {
        match provider.delete_tree(id, is_forced).await {
            Ok(deleted) => {
                done += 1;
                tally.add(&Tally {
                    instances: deleted.instances_deleted,
                    executions: deleted.executions_deleted,
                    events: deleted.events_deleted,
                    messages: deleted.queue_messages_deleted,
                });
            }
            Err(error) => failures.push(format!("{id}: {}", error.message)),
        }
    }
    audit(&format!("delete {} ({done} of {count})", named(&counted.ids)));
    Ok(told(store, &documents, json!({"done": done, "tally": tally, "failures": failures})))
}

/// What a deletion of these would take, and whose trees still run.
struct Counted {
    /// Only these are deleted: what ends between the question and the answer was not counted.
    ids: Vec<String>,
    tally: Tally,
    running: Vec<Value>,
}

async fn count_trees(
    documents: &Documents,
    provider: &CosmosDBProvider,
    ids: &[String],
    is_forced: bool,
) -> anyhow::Result<Counted> {
    let mut counted = Counted { ids: Vec::new(), tally: Tally::default(), running: Vec::new() };
    for id in ids {
        match count_tree(documents, provider, id).await? {
            (_, Some(member)) if !is_forced => {
                counted.running.push(json!({"instance": id, "running": member}));
            }
            (tree, _) => {
                counted.tally.add(&tree);
                counted.ids.push(id.clone());
            }
        }
    }
    Ok(counted)
}

/// Deletes old executions.
pub(in super::super) async fn prune(store: &Store, asked: &Asked) -> Outcome {
    let ids = ids(asked)?;
    let keep_last =
        asked.body["keepLast"].as_u64().and_then(|keep| u32::try_from(keep).ok()).filter(|keep| *keep > 0);
    let before = match asked.text("before") {
        "" => None,
        text => Some(parse_moment(text, now_ms()).map_err(Failure::usage)?),
    };
    if keep_last.is_none() && before.is_none() {
        return Err(Failure::usage("say how many executions stay, or until when they go"));
    }
    let options = PruneOptions { keep_last, completed_before: before };
    let documents = store.documents();
    let provider = store.provider().await?;
    let counted = prune_each(&provider, &ids, &options, BulkMode::Rehearse).await?;
    let word = format!("prune {}", counted.executions);
    if asked.body["rehearse"] == true {
        return Ok(told(store, &documents, counted.to_json(&word)));
    }
    confirmed(asked, &word, counted.instances.len())?;
    let pruned = prune_each(&provider, &counted.instances, &options, BulkMode::Perform).await?;
    audit(&format!("prune {}: {} executions", named(&pruned.instances), pruned.executions));
    Ok(told(store, &documents, pruned.to_json(&word)))
}

/// What went, or would go, of several instances.
#[derive(Default)]
struct PrunedMany {
    executions: u64,
    events: u64,
    instances: Vec<String>,
}

impl PrunedMany {
    fn to_json(&self, word: &str) -> Value {
        let (executions, events) = (self.executions, self.events);
        json!({"count": executions, "events": events, "instances": self.instances.len(), "word": word})
    }
}

async fn prune_each(
    provider: &CosmosDBProvider,
    ids: &[String],
    options: &PruneOptions,
    mode: BulkMode,
) -> anyhow::Result<PrunedMany> {
    let mut all = PrunedMany::default();
    for id in ids {
        if let pruning::Outcome::Done(Some(pruned)) = pruning::prune(provider, id, options, mode).await? {
            all.executions += pruned.executions;
            all.events += pruned.events;
            all.instances.push(pruned.instance);
        }
    }
    Ok(all)
}

/// Sends dead letters again, or drops them.
pub(in super::super) async fn dead_letters(store: &Store, asked: &Asked) -> Outcome {
    let letters: Vec<(String, String)> = asked.body["letters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|letter| Some((letter["from"].as_str()?.to_owned(), letter["id"].as_str()?.to_owned())))
        .collect();
    let is_drop = asked.text("what") == "drop";
    if is_drop {
        let word = format!("drop {}", letters.len());
        if asked.body["rehearse"] == true {
            return Ok(json!({"count": letters.len(), "word": word}));
        }
        if letters.is_empty() || asked.text("confirm") != word {
            return Err(Failure::usage(format!("type \"{word}\" to confirm")));
        }
    }
    let documents = store.documents();
    let provider = store.provider().await?;
    let mut failures = Vec::new();
    for (from, id) in &letters {
        let outcome = match is_drop {
            true => provider.drop_dead_letter(from, id).await,
            false => provider.requeue_dead_letter(from, id).await,
        };
        if let Err(error) = outcome {
            failures.push(format!("{id}: {}", error.message));
        }
    }
    let done = letters.len() - failures.len();
    audit(&format!("{} {done} dead letters", if is_drop { "drop" } else { "requeue" }));
    Ok(told(store, &documents, json!({"done": done, "failures": failures})))
}

fn ids(asked: &Asked) -> Result<Vec<String>, Failure> {
    let ids: Vec<String> = asked.body["ids"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|id| !duroxide_cdb::is_reserved(id))
        .map(str::to_owned)
        .collect();
    match ids.len() {
        0 => Err(Failure::usage("say which instances")),
        1..=IDS_MAX => Ok(ids),
        _ => Err(Failure::usage(format!(
            "at most {IDS_MAX} at once; `cdb delete` and `cdb prune` take filters"
        ))),
    }
}

/// One may be meant by a slip of the hand only where it can be undone, which nothing here can.
fn confirmed(asked: &Asked, word: &str, count: usize) -> Result<(), Failure> {
    let is_confirmed = count > 0 && asked.text("confirm") == word;
    if is_confirmed {
        return Ok(());
    }
    Err(Failure::usage(format!("type \"{word}\" to confirm")))
}

fn named(ids: &[String]) -> String {
    let shown: Vec<String> = ids.iter().take(3).map(|id| format!("{id:?}")).collect();
    let more = if ids.len() > 3 { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

const IDS_MAX: usize = 1000;
