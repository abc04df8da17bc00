//! Header names, lower case, as the REST API and the public SDKs spell them.
//!
//! Values are plain text; the modules named in the constants' docs parse the ones that have a grammar.
//! Booleans arrive as `True`, `true` or `TRUE` depending on the SDK: read them with [`is_true`].

/// Whether a boolean header value means yes. SDKs differ in case and some leave spaces around it.
#[must_use]
pub fn is_true(value: &str) -> bool {
    value.trim().eq_ignore_ascii_case("true")
}

// Identity, authentication and versioning.

/// The URL-encoded `type=..&ver=..&sig=..` token; see [`crate::signature`].
pub const AUTHORIZATION: &str = "authorization";
/// Standard date header, used for signing only where `x-ms-date` is absent.
pub const DATE: &str = "date";
/// RFC 1123 date covered by the signature.
pub const X_DATE: &str = "x-ms-date";
/// API version; see [`crate::API_VERSION`].
pub const VERSION: &str = "x-ms-version";
/// Name and version of the calling SDK.
pub const USER_AGENT: &str = "user-agent";
/// Id of one operation, chosen by the client and echoed by the service.
pub const ACTIVITY_ID: &str = "x-ms-activity-id";
/// Counter of requests on one connection of the service.
pub const TRANSPORT_REQUEST_ID: &str = "x-ms-transport-request-id";
/// Bit set of SDK abilities, such as partition merge.
pub const SDK_SUPPORTED_CAPABILITIES: &str = "x-ms-cosmos-sdk-supportedcapabilities";

// Content and preconditions.

/// Media types the client reads.
pub const ACCEPT: &str = "accept";
/// Media type of the body; `application/query+json` marks a query.
pub const CONTENT_TYPE: &str = "content-type";
/// Body length in bytes.
pub const CONTENT_LENGTH: &str = "content-length";
/// Address of the resource answered.
pub const CONTENT_LOCATION: &str = "content-location";
/// Always `no-store, no-cache` in answers.
pub const CACHE_CONTROL: &str = "cache-control";
/// Version of an item, or the continuation of a change feed.
pub const ETAG: &str = "etag";
/// Write only when the item still has this etag.
pub const IF_MATCH: &str = "if-match";
/// Read only when changed; also the change-feed continuation.
pub const IF_NONE_MATCH: &str = "if-none-match";
/// Start of a change feed in time, RFC 1123.
pub const IF_MODIFIED_SINCE: &str = "if-modified-since";
/// `return=minimal` leaves the body of a write out of the answer.
pub const PREFER: &str = "prefer";
/// `Incremental Feed` or `Full-Fidelity Feed`.
pub const A_IM: &str = "a-im";
/// Redirect target.
pub const LOCATION: &str = "location";
/// Name of the answering server.
pub const SERVER: &str = "server";
/// Host and port of the request.
pub const HOST: &str = "host";
/// `JsonText`, `CosmosBinary`, or both.
pub const SUPPORTED_SERIALIZATION_FORMATS: &str = "x-ms-cosmos-supported-serialization-formats";
/// Serialization asked for in query answers.
pub const CONTENT_SERIALIZATION_FORMAT: &str = "x-ms-documentdb-content-serialization-format";
/// Whether a write answers with the item.
pub const POPULATE_CONTENT_RESPONSE_ON_WRITE: &str = "x-ms-cosmos-populate-content-response-on-write";
/// Largest item the container accepts, on container answers.
pub const MAX_CONTENT_LENGTH: &str = "x-ms-cosmos-max-content-length";

// Partitioning and routing.

/// Partition key as a JSON array; see [`crate::partition_key`].
pub const PARTITION_KEY: &str = "x-ms-documentdb-partitionkey";
/// Id of the range a request is for, or was served by.
pub const PARTITION_KEY_RANGE_ID: &str = "x-ms-documentdb-partitionkeyrangeid";
/// Lower bound of an effective-partition-key range.
pub const START_EPK: &str = "x-ms-start-epk";
/// Upper bound of an effective-partition-key range.
pub const END_EPK: &str = "x-ms-end-epk";
/// `EffectivePartitionKeyRange` when the epk bounds are set.
pub const READ_KEY_TYPE: &str = "x-ms-read-key-type";
/// Resource id of the container.
pub const COLLECTION_RID: &str = "x-ms-documentdb-collection-rid";
/// Container rid the client has cached; a mismatch is 400/1024.
pub const INTENDED_COLLECTION_RID: &str = "x-ms-cosmos-intended-collection-rid";
/// Physical partition that answered.
pub const PHYSICAL_PARTITION_ID: &str = "x-ms-cosmos-physical-partition-id";
/// Internal id of the partition that answered.
pub const INTERNAL_PARTITION_ID: &str = "x-ms-cosmos-internal-partition-id";
/// Container rid; the JavaScript SDK keys session tokens by it.
pub const CONTENT_PATH: &str = "x-ms-content-path";
/// Container link by name; the Python SDK keys session tokens by it.
pub const ALT_CONTENT_PATH: &str = "x-ms-alt-content-path";

// Consistency and sessions.

/// Progress of the session; see [`crate::session_token`].
pub const SESSION_TOKEN: &str = "x-ms-session-token";
/// `Strong`, `BoundedStaleness`, `Session`, `ConsistentPrefix` or `Eventual`.
pub const CONSISTENCY_LEVEL: &str = "x-ms-consistency-level";
/// Newer per-read form of the consistency level.
pub const READ_CONSISTENCY_STRATEGY: &str = "x-ms-cosmos-read-consistency-strategy";
/// Accept writes in a satellite region of a multi-write account.
pub const ALLOW_TENTATIVE_WRITES: &str = "x-ms-cosmos-allow-tentative-writes";
/// Log sequence number of the answering replica.
pub const LSN: &str = "lsn";
/// Log sequence number of the item.
pub const ITEM_LSN: &str = "x-ms-item-lsn";
/// Log sequence number local to the region.
pub const LOCAL_LSN: &str = "x-ms-cosmos-llsn";
/// Regional log sequence number of the item.
pub const ITEM_LOCAL_LSN: &str = "x-ms-cosmos-item-llsn";
/// Log sequence number a quorum has acknowledged.
pub const QUORUM_ACKED_LSN: &str = "x-ms-quorum-acked-lsn";
/// Log sequence number committed in all regions.
pub const GLOBAL_COMMITTED_LSN: &str = "x-ms-global-committed-lsn";
/// Replicas in the set.
pub const CURRENT_REPLICA_SET_SIZE: &str = "x-ms-current-replica-set-size";
/// Replicas a write needs.
pub const CURRENT_WRITE_QUORUM: &str = "x-ms-current-write-quorum";
/// Read regions of the account, less one.
pub const NUMBER_OF_READ_REGIONS: &str = "x-ms-number-of-read-regions";
/// Last role change of the replica.
pub const LAST_STATE_CHANGE_UTC: &str = "x-ms-last-state-change-utc";

// Paging, queries and plans.

/// Opaque place to resume a feed or query.
pub const CONTINUATION: &str = "x-ms-continuation";
/// Page size; -1 lets the service choose.
pub const MAX_ITEM_COUNT: &str = "x-ms-max-item-count";
/// Items in this page or batch answer.
pub const ITEM_COUNT: &str = "x-ms-item-count";
/// Marks a POST as a query.
pub const IS_QUERY: &str = "x-ms-documentdb-isquery";
/// The same marker as the Go SDK spells it.
pub const IS_QUERY_GO: &str = "x-ms-documentdb-query";
/// Allow a query to fan out.
pub const QUERY_ENABLE_CROSS_PARTITION: &str = "x-ms-documentdb-query-enablecrosspartition";
/// Client runs the fan-out itself.
pub const QUERY_PARALLELIZE_CROSS_PARTITION: &str = "x-ms-documentdb-query-parallelizecrosspartitionquery";
/// Whether the caller can resume.
pub const QUERY_IS_CONTINUATION_EXPECTED: &str = "x-ms-documentdb-query-iscontinuationexpected";
/// Ask for query metrics.
pub const POPULATE_QUERY_METRICS: &str = "x-ms-documentdb-populatequerymetrics";
/// Semicolon list of query metrics.
pub const QUERY_METRICS: &str = "x-ms-documentdb-query-metrics";
/// Ask for index metrics.
pub const POPULATE_INDEX_METRICS: &str = "x-ms-cosmos-populateindexmetrics";
/// Index metrics of a query.
pub const INDEX_UTILIZATION: &str = "x-ms-cosmos-index-utilization";
/// Ask for the plan instead of rows.
pub const IS_QUERY_PLAN_REQUEST: &str = "x-ms-cosmos-is-query-plan-request";
/// Plan features the client can run.
pub const SUPPORTED_QUERY_FEATURES: &str = "x-ms-cosmos-supported-query-features";
/// Version of the plan format.
pub const QUERY_VERSION: &str = "x-ms-cosmos-query-version";

// Writes, scripts and batches.

/// Create or replace.
pub const IS_UPSERT: &str = "x-ms-documentdb-is-upsert";
/// Triggers run before the write.
pub const PRE_TRIGGER_INCLUDE: &str = "x-ms-documentdb-pre-trigger-include";
/// Triggers run after the write.
pub const POST_TRIGGER_INCLUDE: &str = "x-ms-documentdb-post-trigger-include";
/// Return what a script logged.
pub const SCRIPT_ENABLE_LOGGING: &str = "x-ms-documentdb-script-enable-logging";
/// What a script logged.
pub const SCRIPT_LOG_RESULTS: &str = "x-ms-documentdb-script-log-results";
/// The body is an array of operations.
pub const IS_BATCH_REQUEST: &str = "x-ms-cosmos-is-batch-request";
/// All operations or none.
pub const BATCH_ATOMIC: &str = "x-ms-cosmos-batch-atomic";
/// Bulk: go on after a failed operation.
pub const BATCH_CONTINUE_ON_ERROR: &str = "x-ms-cosmos-batch-continue-on-error";
/// Life of a resource token.
pub const RESOURCE_TOKEN_EXPIRY: &str = "x-ms-documentdb-expiry-seconds";

// Change feed.

/// `2021-09-15` for full-fidelity feeds.
pub const CHANGE_FEED_WIRE_FORMAT_VERSION: &str = "x-ms-cosmos-changefeed-wire-format-version";

// Throughput and accounting.

/// Manual throughput of a new database or container.
pub const OFFER_THROUGHPUT: &str = "x-ms-offer-throughput";
/// Autoscale settings as JSON.
pub const OFFER_AUTOPILOT_SETTINGS: &str = "x-ms-cosmos-offer-autopilot-settings";
/// Switch an offer to autoscale.
pub const MIGRATE_OFFER_TO_AUTOPILOT: &str = "x-ms-cosmos-migrate-offer-to-autopilot";
/// Switch an offer to manual.
pub const MIGRATE_OFFER_TO_MANUAL: &str = "x-ms-cosmos-migrate-offer-to-manual-throughput";
/// A throughput change is still running.
pub const OFFER_REPLACE_PENDING: &str = "x-ms-offer-replace-pending";
/// Lowest throughput the offer can have.
pub const MIN_THROUGHPUT: &str = "x-ms-cosmos-min-throughput";
/// Ask for quota headers.
pub const POPULATE_QUOTA_INFO: &str = "x-ms-documentdb-populatequotainfo";
/// Ask for partition statistics.
pub const POPULATE_PARTITION_STATISTICS: &str = "x-ms-documentdb-populatepartitionstatistics";
/// Ask for range statistics in the container.
pub const POPULATE_PARTITION_KEY_RANGE_STATISTICS: &str =
    "x-ms-documentdb-populatepartitionkeyrangestatistics";
/// Request units used.
pub const REQUEST_CHARGE: &str = "x-ms-request-charge";
/// Time the backend took.
pub const REQUEST_DURATION_MS: &str = "x-ms-request-duration-ms";
/// Limits of the container.
pub const RESOURCE_QUOTA: &str = "x-ms-resource-quota";
/// Use of those limits.
pub const RESOURCE_USAGE: &str = "x-ms-resource-usage";
/// Percent of an index change done.
pub const INDEX_TRANSFORMATION_PROGRESS: &str = "x-ms-documentdb-collection-index-transformation-progress";

// Outcome.

/// Finer meaning of the status; see [`crate::status`].
pub const SUBSTATUS: &str = "x-ms-substatus";
/// Milliseconds to wait after 429 or 449.
pub const RETRY_AFTER_MS: &str = "x-ms-retry-after-ms";
/// Version of the service.
pub const SERVICE_VERSION: &str = "x-ms-serviceversion";
/// Version of the gateway.
pub const GATEWAY_VERSION: &str = "x-ms-gatewayversion";
/// Version of the stored schema.
pub const SCHEMA_VERSION: &str = "x-ms-schemaversion";

// Gateway 2.0 proxy.

/// Ask the account for proxy endpoints.
pub const THINCLIENT_USE: &str = "x-ms-cosmos-use-thinclient";
/// Name of the account, for the proxy.
pub const GLOBAL_DATABASE_ACCOUNT_NAME: &str = "globaldatabaseaccountname";
/// Operation code for the proxy.
pub const THINCLIENT_OPERATION_TYPE: &str = "x-ms-thinclient-proxy-operation-type";
/// Resource code for the proxy.
pub const THINCLIENT_RESOURCE_TYPE: &str = "x-ms-thinclient-proxy-resource-type";
/// Lower bound for the proxy.
pub const THINCLIENT_RANGE_MIN: &str = "x-ms-thinclient-range-min";
/// Upper bound for the proxy.
pub const THINCLIENT_RANGE_MAX: &str = "x-ms-thinclient-range-max";

/// Values several headers share.
pub mod value {
    /// `a-im`: every version and every delete.
    pub const FULL_FIDELITY_FEED: &str = "Full-Fidelity Feed";
    /// `prefer`: leave the body out of a write's answer.
    pub const RETURN_MINIMAL: &str = "return=minimal";
    /// `content-type` of a query.
    pub const QUERY_JSON: &str = "application/query+json";
    /// `content-type` of plain query text.
    pub const SQL: &str = "application/sql";
    /// `content-type` of a patch.
    pub const PATCH_JSON: &str = "application/json_patch+json";
    /// `content-type` of everything else.
    pub const JSON: &str = "application/json";
    /// `x-ms-read-key-type` of a request with epk bounds.
    pub const EPK_RANGE: &str = "EffectivePartitionKeyRange";
    /// Text serialization format.
    pub const JSON_TEXT: &str = "JsonText";
    /// Binary serialization format; see [`crate::binary_json`].
    pub const COSMOS_BINARY: &str = "CosmosBinary";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_read_as_each_sdk_writes_them() {
        for yes in ["True", "true", "TRUE", " true "] {
            assert!(is_true(yes), "{yes}");
        }
        for no in ["False", "false", "", "1", "yes"] {
            assert!(!is_true(no), "{no}");
        }
    }
}
