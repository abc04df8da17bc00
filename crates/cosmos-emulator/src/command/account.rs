//! The account document.

use serde_json::{Value, json};

use super::Reply;
use crate::failure::Failure;
use crate::http::{Account, Call, origin};

/// What the service tells about its query engine; SDKs read the limits from it.
const QUERY_ENGINE: &str = r#"{"allowNewKeywords":true,"maxJoinsPerSqlQuery":10,"maxQueryRequestTimeoutFraction":0.9,"maxSqlQueryInputLength":524288,"maxUdfRefPerSqlQuery":10,"queryMaxInMemorySortDocumentCount":-500,"spatialMaxGeometryPointCount":256,"sqlAllowAggregateFunctions":true,"sqlAllowGroupByClause":true,"sqlAllowLike":true,"sqlAllowNonFiniteNumbers":false,"sqlAllowScalarSubQuery":true,"sqlAllowSubQuery":true,"sqlAllowTop":true,"sqlDisableOptimizationFlags":0,"sqlDisableQueryILOptimization":false,"sqlQueryILDisableOptimizationFlags":0,"clientDisableOptimisticDirectExecution":false,"queryEnableFullText":false,"enableSpatialIndexing":true,"maxInExpressionItemsCount":2147483647,"maxLogicalAndPerSqlQuery":2147483647,"maxLogicalOrPerSqlQuery":2147483647,"maxSpatialQueryCells":2147483647}"#;

/// `GET /`.
pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let origin = origin(&call.parts).ok_or_else(|| Failure::bad_request("Invalid Host header."))?;
    Ok(Reply { charge: 0.0, ..Reply::json(200, &document(account, &origin)) })
}

/// The account as it is reached through `origin`, an address without a trailing slash.
pub(crate) fn document(account: &Account, origin: &str) -> Value {
    let here = json!([{"name": account.region, "databaseAccountEndpoint": format!("{origin}/")}]);
    json!({
        "_self": "",
        "id": account.id,
        "_rid": account.id,
        "media": "//media/",
        "addresses": "//addresses/",
        "_dbs": "//dbs/",
        "writableLocations": here,
        "readableLocations": here,
        "enableMultipleWriteLocations": false,
        "continuousBackupEnabled": false,
        "enableNRegionSynchronousCommit": false,
        "enablePerPartitionFailoverBehavior": false,
        "disableCrossRegionalHedging": false,
        "userReplicationPolicy": {"asyncReplication": false, "minReplicaSetSize": 1, "maxReplicasetSize": 4},
        "userConsistencyPolicy": {"defaultConsistencyLevel": account.consistency.name()},
        "systemReplicationPolicy": {"minReplicaSetSize": 1, "maxReplicasetSize": 4},
        "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
        "queryEngineConfiguration": QUERY_ENGINE,
    })
}
