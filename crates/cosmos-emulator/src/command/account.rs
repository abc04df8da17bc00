//! The account document.

use cosmos_wire::header;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::Reply;
use crate::config::WriteMode;
use crate::engine::RegionId;
use crate::failure::Failure;
use crate::http::{Account, Call, origin};
use crate::regions::Door;

/// What the service tells about its query engine; SDKs read the limits from it.
const QUERY_ENGINE: &str = r#"{"allowNewKeywords":true,"maxJoinsPerSqlQuery":10,"maxQueryRequestTimeoutFraction":0.9,"maxSqlQueryInputLength":524288,"maxUdfRefPerSqlQuery":10,"queryMaxInMemorySortDocumentCount":-500,"spatialMaxGeometryPointCount":256,"sqlAllowAggregateFunctions":true,"sqlAllowGroupByClause":true,"sqlAllowLike":true,"sqlAllowNonFiniteNumbers":false,"sqlAllowScalarSubQuery":true,"sqlAllowSubQuery":true,"sqlAllowTop":true,"sqlDisableOptimizationFlags":0,"sqlDisableQueryILOptimization":false,"sqlQueryILDisableOptimizationFlags":0,"clientDisableOptimisticDirectExecution":false,"queryEnableFullText":false,"enableSpatialIndexing":true,"maxInExpressionItemsCount":2147483647,"maxLogicalAndPerSqlQuery":2147483647,"maxLogicalOrPerSqlQuery":2147483647,"maxSpatialQueryCells":2147483647}"#;

/// `GET /`.
pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let origin = origin(&call.head).ok_or_else(|| Failure::bad_request("Invalid Host header."))?;
    let mut document = document(account, Some(call.region), &origin);
    if call.asked().wants_gateway2() {
        name_gateway2(account, &origin, &mut document);
    }
    Ok(Reply { charge: 0.0, ..Reply::json(200, &document) })
}

/// The account as it is reached through `origin`, an address without a trailing slash, which is that of `region`.
pub(crate) fn document(account: &Account, region: Option<RegionId>, origin: &str) -> Value {
    let topology = account.engine.topology();
    let region = region.unwrap_or_else(|| account.regions.first_door().id);
    let location = |id: RegionId, name: &str| {
        let announced = account.regions.door(id).and_then(|door| door.announced().map(str::to_owned));
        let endpoint = announced.unwrap_or_else(|| {
            if id == region { format!("{origin}/") } else { elsewhere(account, id, origin) }
        });
        json!({"name": name, "databaseAccountEndpoint": endpoint})
    };
    // The write region comes first; clients without preferences begin there.
    let mut live: Vec<_> = topology.live().collect();
    live.sort_by_key(|region| region.id != topology.hub);
    let readable: Vec<_> = live.iter().map(|region| location(region.id, &region.name)).collect();
    let writable: Vec<_> = match topology.mode {
        WriteMode::Single => readable.iter().take(1).cloned().collect(),
        WriteMode::Multiple => readable.clone(),
    };
    let id = account.id();
    json!({
        "_self": "",
        "id": id,
        "_rid": host(origin),
        "media": "//media/",
        "addresses": "//addresses/",
        "_dbs": "//dbs/",
        "writableLocations": writable,
        "readableLocations": readable,
        "enableMultipleWriteLocations": topology.mode == WriteMode::Multiple,
        "continuousBackupEnabled": account.engine.options().continuous_backup,
        "enableNRegionSynchronousCommit": false,
        "enablePerPartitionFailoverBehavior": account.regions.has_per_partition_failover(),
        "disableCrossRegionalHedging": false,
        "userReplicationPolicy": {"asyncReplication": false, "minReplicaSetSize": 3, "maxReplicasetSize": 4},
        "userConsistencyPolicy": {"defaultConsistencyLevel": account.consistency.name()},
        "systemReplicationPolicy": {"minReplicaSetSize": 3, "maxReplicasetSize": 4},
        "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
        "queryEngineConfiguration": QUERY_ENGINE,
    })
}

/// Adds the endpoints of Gateway 2.0, of which the service tells only those who ask for them.
fn name_gateway2(account: &Account, origin: &str, document: &mut Value) {
    let topology = account.engine.topology();
    for (from, to) in [
        ("writableLocations", "thinClientWritableLocations"),
        ("readableLocations", "thinClientReadableLocations"),
    ] {
        let location = |location: &Value| {
            let name = location["name"].as_str()?;
            let door = account.regions.gateway2_door(topology.named(name)?.id)?;
            Some(json!({"name": name, "databaseAccountEndpoint": at(&door, origin)?}))
        };
        let locations: Vec<Value> =
            document[from].as_array().into_iter().flatten().filter_map(location).collect();
        if !locations.is_empty() {
            document[to] = locations.into();
        }
    }
}

/// The endpoint of another region.
fn elsewhere(account: &Account, region: RegionId, origin: &str) -> String {
    let door = account.regions.door(region);
    door.and_then(|door| at(&door, origin)).unwrap_or_else(|| format!("{origin}/"))
}

/// Where a door is: at the host the client used, and its own port. None without a socket.
fn at(door: &Door, origin: &str) -> Option<String> {
    let port = door.socket()?.address.port();
    let scheme = origin.split_once("://").map_or("http", |(scheme, _)| scheme);
    Some(format!("{scheme}://{}:{port}/", host(origin)))
}

/// The host of an origin, without its port.
fn host(origin: &str) -> &str {
    let authority = origin.split_once("://").map_or(origin, |(_, authority)| authority);
    // What follows the last colon is a port, unless it is the end of an IPv6 address.
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    }
}

/// The answer of a region that left the account, whatever was asked.
pub(crate) fn removed(account: &Account) -> Reply {
    let id = account.id();
    let body = json!({
        "code": "Forbidden",
        "message": format!("Database Account {id} does not exist"),
        "writableLocations": [],
        "readableLocations": [],
        "id": id,
    });
    let sub_status = (HeaderName::from_static(header::SUBSTATUS), HeaderValue::from_static("1008"));
    Reply { extra: vec![sub_status], ..Reply::json(403, &body) }
}
