//! What one fetch costs beside a great many documents that are not its business. They are put into the emulator past
//! the provider, so that a million of them take seconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosmos_emulator::{Auth, Config, Emulator, Operation};
use duroxide::TagFilter;
use duroxide::providers::Provider as _;
use duroxide_cdb::{CosmosDBProvider, CosmosDBProviderConfig};
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::world::{activity, start};

/// What is in the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Instances that wait for their first turn.
    pub(crate) waiting: usize,
    /// Activities that wait for a worker.
    pub(crate) activities: usize,
    /// Timers that are due in an hour.
    pub(crate) timers: usize,
    /// Activities that other workers have locked.
    pub(crate) locked: usize,
    /// Instances that have ended.
    pub(crate) finished: usize,
    /// Physical partitions.
    pub(crate) partitions: u32,
}

/// Ten of everything that waits, in one partition.
pub(crate) const FEW: Crowd =
    Crowd { waiting: 10, activities: 10, timers: 0, locked: 0, finished: 10, partitions: 1 };

/// What a fetch cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    /// Requests to the partition of an instance.
    pub(crate) requests: u64,
    /// Searches: one per range.
    pub(crate) searches: u64,
    /// Documents read by the most expensive search.
    pub(crate) read_per_search: u64,
    /// Documents read outside of searches.
    pub(crate) read_besides: u64,
    pub(crate) request_units: f64,
}

/// What the first fetch of a turn and of an activity cost a process that knows nothing.
pub(crate) async fn measure(crowd: Crowd) -> (Cost, Cost) {
    let config = Config::default().with_partitions(crowd.partitions).with_auth(Auth::Open);
    let emulator = Emulator::start(config).expect("a free port");
    let provider = open(&emulator).await;
    fill(&emulator, crowd).await;
    let lock = Duration::from_secs(60);
    emulator.ledger().reset();
    let turn = provider.fetch_orchestration_item(lock, Duration::ZERO, None).await.expect("served");
    assert!(turn.is_some(), "{crowd:?}: no turn");
    let turn = cost(&emulator);
    emulator.ledger().reset();
    let work = provider.fetch_work_item(lock, Duration::ZERO, None, &TagFilter::Any).await.expect("served");
    assert!(work.is_some(), "{crowd:?}: no activity");
    (turn, cost(&emulator))
}

async fn open(emulator: &Emulator) -> CosmosDBProvider {
    let config = CosmosDBProviderConfig {
        poll_interval_min: Duration::from_secs(600),
        poll_interval_max: Duration::from_secs(600),
        reconciler_interval: Duration::from_secs(600),
        operation_timeout: Duration::from_secs(120),
        leases: Some(std::sync::Arc::new(duroxide_cdb::NoLeases)),
        ..CosmosDBProviderConfig::new(emulator.endpoint(), emulator.key())
    };
    CosmosDBProvider::new_with_config(config).await.expect("the emulator answers")
}

fn cost(emulator: &Emulator) -> Cost {
    let recent = emulator.ledger().snapshot().recent;
    let is_item = |operation: Operation| operation != Operation::ReadRanges;
    let (searches, others): (Vec<_>, Vec<_>) = recent
        .iter()
        .filter(|request| is_item(request.operation))
        .partition(|request| request.operation == Operation::Query && request.partition_key.is_none());
    Cost {
        requests: others.len() as u64,
        searches: searches.len() as u64,
        read_per_search: searches.iter().map(|search| search.documents_visited).max().unwrap_or(0),
        read_besides: others.iter().map(|request| request.documents_visited).sum(),
        request_units: recent.iter().map(|request| request.request_units).sum(),
    }
}

pub(crate) async fn fill(emulator: &Emulator, crowd: Crowd) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let now = u64::try_from(now).expect("before the year 584 million") - 1000;
    let later = now + 3_600_000;
    for n in 0..crowd.waiting {
        let name = format!("w{n}");
        let item = serde_json::to_string(&start(&name, "Hello", "")).expect("it serializes");
        put(emulator, &name, &queued("orch_queue", &name, "m", &item, now)).await;
    }
    for n in 0..crowd.timers {
        let name = format!("t{n}");
        put(emulator, &name, &queued("orch_queue", &name, "m", "{}", later)).await;
    }
    for (count, letter, visible_at) in [(crowd.activities, 'a', now), (crowd.locked, 'l', later)] {
        for n in 0..count {
            let name = format!("{letter}{n}");
            let item = serde_json::to_string(&activity(&name, 1)).expect("it serializes");
            let mut document = queued("worker_queue", &name, "work:1:1", &item, visible_at);
            if letter == 'l' {
                document["lockToken"] = "somebody".into();
                document["lockedUntil"] = later.into();
            }
            put(emulator, &name, &document).await;
        }
    }
    for n in 0..crowd.finished {
        let name = format!("f{n}");
        let document = json!({
            "id": format!("{name}:instance"), "instanceId": name, "type": "instance", "formatVersion": 2,
            "started": true, "orchestrationName": "Hello", "currentExecutionId": 1, "status": "Completed",
            "createdAt": now, "updatedAt": now,
        });
        put(emulator, &name, &document).await;
    }
}

pub(crate) fn queued(kind: &str, instance: &str, id: &str, item: &str, visible_at: u64) -> Value {
    json!({
        "id": id, "instanceId": instance, "type": kind, "workItem": item, "visibleAt": visible_at,
        "enqueuedAt": visible_at,
    })
}

pub(crate) async fn put(emulator: &Emulator, partition: &str, document: &Value) {
    let request = Request::post("/dbs/duroxide/colls/duroxide/docs")
        .header("host", "localhost")
        .header("x-ms-version", "2020-07-15")
        .header("x-ms-documentdb-partitionkey", json!([partition]).to_string())
        .header("prefer", "return=minimal")
        .body(Bytes::from(document.to_string()))
        .expect("it is a request");
    let answer = emulator.handle(request).await.expect("no faults");
    assert!(answer.status().is_success(), "{}: {:?}", answer.status(), answer.body());
}
