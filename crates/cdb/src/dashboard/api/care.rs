//! Looking after a container: examining it, mending it, and whether it is as it should be.

use std::sync::{Arc, MutexGuard, PoisonError};

use cosmos_driver::{CallOptions, Query, Throughput};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::super::Store;
use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::act::audit;
use super::told;
use crate::clock::now_ms;
use crate::commands::fsck;
use crate::fsck::{Defect, Family, carry_out};

/// How far an examination is, or what it found.
#[derive(Debug, Default)]
pub(in super::super) struct Examination {
    state: State,
    done: usize,
    all: usize,
    began_at: u64,
    ended_at: u64,
    units: f64,
    defects: Vec<Defect>,
    error: Option<String>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Never,
    Running,
    Done,
}

impl Store {
    fn examination(&self) -> MutexGuard<'_, Examination> {
        self.examination.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the container is made, and how far its examination is.
pub(in super::super) async fn report(store: &Store) -> Outcome {
    let documents = store.documents();
    let target = &store.connection.target;
    let container = store.connection.driver().container(&target.database, &target.container)?;
    let read = container.read(CallOptions::default()).await?;
    documents.meter().add(read.charge());
    let definition: Value = read.json()?;
    let wanted = serde_json::to_value(duroxide_cdb::container_definition(&target.container))?;
    let format = documents.read("__meta__", "format").await?;
    let throughput = container.throughput(CallOptions::default()).await;
    let throughput = throughput.ok().flatten().map(|throughput| match throughput {
        Throughput::Manual(units) => format!("{units} RU/s"),
        Throughput::Autoscale { max } => format!("up to {max} RU/s, as needed"),
    });
    let ranges = documents.ranges().await?.len();
    let answer = json!({
        "examination": store.examination().to_json(),
        "format": format.map(|format| format["formatVersion"].clone()),
        "formatWanted": duroxide_cdb::FORMAT_VERSION,
        "indexing": definition["indexingPolicy"],
        "indexingLacks": lacking(&definition["indexingPolicy"], &wanted["indexingPolicy"]),
        "ttl": definition["defaultTtl"],
        "throughput": throughput,
        "partitions": ranges,
        "budget": store.budget,
    });
    Ok(told(store, &documents, answer))
}

/// Begins to examine the whole container, unless that is going on. It reads everything.
pub(in super::super) fn begin(store: &Arc<Store>) -> Outcome {
    {
        let mut examination = store.examination();
        if examination.state == State::Running {
            return Ok(json!({"examination": examination.to_json()}));
        }
        *examination = Examination { state: State::Running, began_at: now_ms(), ..Examination::default() };
    }
    let shared = store.clone();
    let task = tokio::spawn(async move {
        let outcome = examine(&shared).await;
        let mut examination = shared.examination();
        examination.state = State::Done;
        examination.ended_at = now_ms();
        examination.error = outcome.err().map(|error| format!("{error:#}"));
    });
    let mut examination = store.examination();
    examination.task = Some(task);
    Ok(json!({"examination": examination.to_json()}))
}

/// Ends an examination that is going on, for the pages end.
pub(in super::super) async fn end(store: &Store) {
    let task = store.examination().task.take();
    if let Some(task) = task {
        task.abort();
        // It has ended, one way or the other.
        let _ = task.await;
    }
}

async fn examine(store: &Store) -> anyhow::Result<()> {
    let documents = store.documents();
    let partitions = fsck::all(&documents).await?;
    store.examination().all = partitions.len();
    let family = Family::new(documents.query_all(Query::new(Family::QUERY)).await?);
    let found = fsck::examine_all(&documents, &partitions, &family, &[], |_| {
        let mut examination = store.examination();
        examination.done += 1;
        examination.units = documents.meter().read().1;
    })
    .await?;
    store.examination().defects.extend(found);
    store.live.charge(documents.meter().read().1);
    Ok(())
}

/// Mends what can be mended of what was found.
pub(in super::super) async fn repair(store: &Store, asked: &Asked) -> Outcome {
    let defects: Vec<Defect> =
        store.examination().defects.iter().filter(|defect| defect.repair.is_some()).cloned().collect();
    let word = format!("repair {}", defects.len());
    if asked.body["rehearse"] == true {
        return Ok(json!({"count": defects.len(), "word": word}));
    }
    if defects.is_empty() || asked.text("confirm") != word {
        return Err(Failure::usage(format!("type \"{word}\" to confirm")));
    }
    let documents = store.documents();
    let provider = store.provider().await?;
    let mut mended = 0;
    for defect in &defects {
        if let Some(repair) = &defect.repair
            && carry_out(defect, repair, &documents, provider.as_ref()).await?
        {
            mended += 1;
        }
    }
    audit(&format!("repair: {mended} of {} defects mended", defects.len()));
    store.examination().defects.retain(|defect| defect.repair.is_none());
    Ok(told(store, &documents, json!({"mended": mended, "of": defects.len()})))
}

impl Examination {
    fn to_json(&self) -> Value {
        let defects: Vec<Value> = self
            .defects
            .iter()
            .take(DEFECTS_MAX)
            .map(|defect| {
                json!({"instance": defect.instance, "level": defect.level, "defect": defect.text,
                    "repairable": defect.repair.is_some()})
            })
            .collect();
        json!({
            "state": match self.state { State::Never => "never", State::Running => "running", State::Done => "done" },
            "done": self.done, "all": self.all, "beganAt": self.began_at, "endedAt": self.ended_at,
            "units": self.units, "defects": defects, "found": self.defects.len(), "error": self.error,
        })
    }
}

/// The paths that queries want an index for and this container has none.
fn lacking(policy: &Value, wanted: &Value) -> Vec<String> {
    let paths = |policy: &Value| -> Vec<String> {
        let included = policy["includedPaths"].as_array().into_iter().flatten();
        included.filter_map(|entry| entry["path"].as_str().map(str::to_owned)).collect()
    };
    let there = paths(policy);
    if there.iter().any(|path| path == "/*") {
        return Vec::new();
    }
    paths(wanted).into_iter().filter(|path| !there.contains(path)).collect()
}

const DEFECTS_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_everything_lacks_nothing() {
        let wanted = json!({"includedPaths": [{"path": "/type/?"}, {"path": "/status/?"}]});
        assert_eq!(lacking(&json!({"includedPaths": [{"path": "/*"}]}), &wanted), Vec::<String>::new());
        assert_eq!(lacking(&json!({"includedPaths": [{"path": "/type/?"}]}), &wanted), ["/status/?"]);
    }
}
