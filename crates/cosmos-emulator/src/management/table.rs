//! Everything the management API offers.

use http::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Outcome};
use super::route::{Endpoint, Request};
use super::{Context, clock, connections, faults, ledger, metrics, partitions, regions, snapshot};

macro_rules! endpoints {
    ($($method:ident $path:literal $body:literal => $run:path, $about:literal;)*) => {
        &[$(Endpoint {
            method: stringify!($method),
            path: $path,
            about: $about,
            body: $body,
            run: $run,
        }),*]
    };
}

/// Every endpoint. `GET /` shows this table.
pub(super) const ENDPOINTS: &[Endpoint] = endpoints! {
    GET "/" "" => index, "this list";
    GET "/health" "" => health, "whether it serves";
    GET "/account" "" => connections::account, "the account document";
    GET "/certificate" "" => connections::certificate, "the certificate clients have to trust, as PEM";
    GET "/metrics" "" => metrics::read, "counters in the text format of Prometheus";
    GET "/ledger" "" => ledger::read, "requests by operation and container, and the last ones";
    DELETE "/ledger" "" => ledger::reset, "starts counting anew";
    GET "/faults" "" => faults::list, "the fault rules in force and what they did";
    POST "/faults" r#"{"operation": "readItem", "count": 2, "verdict": {"kind": "status", "code": 429, "subStatus": 3200, "retryAfterMs": 10}}"#
        => faults::add, "puts a fault rule in force";
    DELETE "/faults" "" => faults::clear, "removes every fault rule";
    DELETE "/faults/{id}" "" => faults::remove, "removes a fault rule";
    GET "/clock" "" => clock::read, "the time of the account";
    POST "/clock/advance" r#"{"seconds": 3600}"# => clock::advance, "puts the clock of the account forward";
    POST "/goaway" r#"{"region": "East US"}"# => connections::goaway, "tells open connections to leave, all or those of one region";
    GET "/config/connection-age" "" => connections::age, "how old connections may become";
    PUT "/config/connection-age" r#"{"seconds": 30}"# => connections::limit_age,
        "how old connections may become before they are told to leave; null for any age";
    GET "/regions" "" => regions::list, "the regions, their endpoints, which one writes, how far each is behind";
    PUT "/regions/{region}" r#"{}"# => regions::add, "adds a region, with everything the account holds";
    DELETE "/regions/{region}" "" => regions::remove, "removes a region; its endpoint answers 403/1008 from now on";
    POST "/regions/{region}/offline" r#"{"manner": "refuse"}"# => regions::offline,
        "makes a region unreachable: manner refuse (connections), unavailable (503) or hang";
    POST "/regions/{region}/online" r#"{}"# => regions::online, "makes a region reachable again";
    POST "/regions/{region}/replication/pause" r#"{}"# => regions::pause, "cuts a region off from the others";
    POST "/regions/{region}/replication/resume" r#"{}"# => regions::resume, "connects it again";
    POST "/failover" r#"{"writeRegion": "West US", "kind": "planned"}"# => regions::fail_over,
        "moves the write region: kind planned (nothing is lost) or forced (what has not arrived is)";
    PUT "/config/replication-delay" r#"{"from": "East US", "to": "West US", "delayMs": 50}"# => regions::delay,
        "how long writes take from region to region; from and to may be left out";
    GET "/config/per-partition-failover" "" => regions::has_per_partition_failover,
        "whether the account tells clients to fail over partition by partition";
    PUT "/config/per-partition-failover" r#"{"enabled": true}"# => regions::set_per_partition_failover,
        "tells clients to fail over partition by partition, or not to";
    POST "/databases/{database}/containers/{container}/partitions/{id}/failover" r#"{"to": "West US"}"#
        => regions::fail_over_partition, "takes a partition down in the write region; another region takes its writes";
    POST "/databases/{database}/containers/{container}/partitions/{id}/return" r#"{}"# => regions::return_partition,
        "brings a partition back to the write region";
    GET "/databases/{database}/containers/{container}/partitions" "" => partitions::list,
        "the physical partitions of a container: range, LSN, items, bytes, consumption and its share of the budget";
    POST "/databases/{database}/containers/{container}/partitions/{id}/split"
        r#"{"mode": "midpoint", "progressionMode": "automatic", "lockDurationMs": 0}"# => partitions::split,
        "splits a physical partition: mode midpoint, epk (with epk) or storage; progressionMode automatic or manual";
    POST "/databases/{database}/containers/{container}/partitions/merge"
        r#"{"partitionIds": [1, 2], "progressionMode": "automatic"}"# => partitions::merge,
        "merges two neighbouring physical partitions";
    GET "/operations" "" => partitions::operations, "splits and merges";
    GET "/operations/{id}" "" => partitions::operation, "a split or merge as far as it is";
    POST "/operations/{id}/advance" "" => partitions::advance,
        "moves a split or merge on: Preparing, Swapping (410/1007), Succeeded";
    POST "/snapshot" r#"{"folder": "/tmp/snapshot"}"# => snapshot::take,
        "copies the data as it is now into a new folder, which `cdb emulator --data` or `--restore` opens";
};

fn health(context: &Context, _: &Request<'_>) -> Outcome {
    match context.account.engine.storage().failure() {
        None => Answer::ok(&json!({"status": "ok"})),
        Some(failure) => Err(Answer::problem(StatusCode::SERVICE_UNAVAILABLE, &failure.to_string())),
    }
}

fn index(_: &Context, _: &Request<'_>) -> Outcome {
    let lines: Vec<Value> = ENDPOINTS
        .iter()
        .map(|endpoint| {
            let mut line = json!({"method": endpoint.method, "path": endpoint.path, "about": endpoint.about});
            if let Ok(body) = serde_json::from_str::<Value>(endpoint.body) {
                line["body"] = body;
            }
            line
        })
        .collect();
    Answer::ok(&json!({
        "name": concat!("cosmos-emulator/", env!("CARGO_PKG_VERSION")),
        "endpoints": lines,
    }))
}
