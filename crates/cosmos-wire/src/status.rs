//! Status and sub-status of an answer.
//!
//! The sub-status (`x-ms-substatus`) has a meaning only together with the status: 1002 is a lagging
//! replica under 404 and a vanished range under 410. So the two travel as one [`Status`].

use std::fmt;

/// An HTTP status with Cosmos DB's sub-status; zero when the answer has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Value of `x-ms-substatus`, zero when absent.
    pub sub: u32,
}

impl Status {
    /// A status with its sub-status.
    #[must_use]
    pub const fn new(code: u16, sub: u32) -> Self {
        Self { code, sub }
    }

    /// A status without sub-status.
    #[must_use]
    pub const fn of(code: u16) -> Self {
        Self { code, sub: 0 }
    }

    /// 2xx.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code >= 200 && self.code < 300
    }

    /// 429 of any kind: wait for `x-ms-retry-after-ms`.
    #[must_use]
    pub const fn is_throttled(self) -> bool {
        self.code == 429
    }

    /// 410 of any kind: the cached routing is old.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        self.code == 410
    }

    /// The range map must be read again before the retry.
    #[must_use]
    pub const fn is_range_gone(self) -> bool {
        self.code == 410 && matches!(self.sub, 1002 | 1007 | 1008)
    }

    /// The name must be resolved again before the retry.
    #[must_use]
    pub const fn is_name_stale(self) -> bool {
        matches!((self.code, self.sub), (410, 1000) | (400, 1024))
    }

    /// The resource is missing, not merely behind.
    #[must_use]
    pub const fn is_not_found(self) -> bool {
        self.code == 404 && self.sub != 1002
    }

    /// The replica is behind the session.
    #[must_use]
    pub const fn is_session_not_available(self) -> bool {
        self.code == 404 && self.sub == 1002
    }

    /// The region refuses: no writes here, or the account is not here.
    #[must_use]
    pub const fn is_wrong_region(self) -> bool {
        self.code == 403 && matches!(self.sub, 3 | 1008)
    }

    /// An item or unique key exists already.
    #[must_use]
    pub const fn is_conflict(self) -> bool {
        self.code == 409
    }

    /// An etag or patch condition did not hold.
    #[must_use]
    pub const fn is_precondition_failed(self) -> bool {
        self.code == 412
    }

    /// `code` of the error body for this status.
    #[must_use]
    pub const fn code_text(self) -> &'static str {
        match self.code {
            200 => "Ok",
            201 => "Created",
            202 => "Accepted",
            204 => "NoContent",
            207 => "MultiStatus",
            304 => "NotModified",
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            408 => "RequestTimeout",
            409 => "Conflict",
            410 => "Gone",
            412 => "PreconditionFailed",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            423 => "Locked",
            424 => "FailedDependency",
            429 => "TooManyRequests",
            449 => "RetryWith",
            500 => "InternalServerError",
            501 => "NotImplemented",
            503 => "ServiceUnavailable",
            _ => "Unknown",
        }
    }

    /// Constant's name of a status in the table, for logs; `None` for others.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        TABLE.iter().find(|(status, _)| *status == self).map(|(_, name)| *name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sub == 0 { write!(f, "{}", self.code) } else { write!(f, "{}/{}", self.code, self.sub) }
    }
}

/// The statuses with a meaning of their own.
impl Status {
    /// Done.
    pub const OK: Self = Self::new(200, 0);
    /// Created.
    pub const CREATED: Self = Self::new(201, 0);
    /// Accepted, still running.
    pub const ACCEPTED: Self = Self::new(202, 0);
    /// Done, nothing to return.
    pub const NO_CONTENT: Self = Self::new(204, 0);
    /// Batch in which at least one operation failed.
    pub const MULTI_STATUS: Self = Self::new(207, 0);
    /// Nothing new since the etag given.
    pub const NOT_MODIFIED: Self = Self::new(304, 0);
    /// The request is wrong and will stay wrong.
    pub const BAD_REQUEST: Self = Self::new(400, 0);
    /// The partition key given is not the one in the item, or has too few components.
    pub const PARTITION_KEY_MISMATCH: Self = Self::new(400, 1001);
    /// The client must fetch a plan and fan out itself.
    pub const CROSS_PARTITION_QUERY_NOT_SERVABLE: Self = Self::new(400, 1004);
    /// A container of this size needs a partition key.
    pub const PARTITION_KEY_DEFINITION_NOT_SPECIFIED: Self = Self::new(400, 1013);
    /// The container behind the name is another one now.
    pub const COLLECTION_RID_MISMATCH: Self = Self::new(400, 1024);
    /// A query divided by zero.
    pub const DIVISION_BY_ZERO: Self = Self::new(400, 4001);
    /// A stored script does not compile.
    pub const SCRIPT_COMPILE_ERROR: Self = Self::new(400, 65535);
    /// Missing, malformed or wrong authorization.
    pub const UNAUTHORIZED: Self = Self::new(401, 0);
    /// Known caller, not allowed; also a date outside the accepted window.
    pub const FORBIDDEN: Self = Self::new(403, 0);
    /// This region does not take writes now.
    pub const WRITE_FORBIDDEN: Self = Self::new(403, 3);
    /// No more throughput or containers may be provisioned.
    pub const PROVISION_LIMIT_REACHED: Self = Self::new(403, 1005);
    /// The account is not served in this region.
    pub const DATABASE_ACCOUNT_NOT_FOUND: Self = Self::new(403, 1008);
    /// The shared-throughput database is full.
    pub const SHARED_THROUGHPUT_DATABASE_QUOTA_EXCEEDED: Self = Self::new(403, 1010);
    /// The logical partition is at its size limit.
    pub const PARTITION_KEY_QUOTA_OVER_LIMIT: Self = Self::new(403, 1014);
    /// Too many containers share the database's throughput.
    pub const SHARED_THROUGHPUT_CONTAINER_COUNT_EXCEEDED: Self = Self::new(403, 1019);
    /// The account's throughput cap would be passed.
    pub const THROUGHPUT_CAP_EXCEEDED: Self = Self::new(403, 1028);
    /// No such resource.
    pub const NOT_FOUND: Self = Self::new(404, 0);
    /// This replica has not yet seen the session's writes.
    pub const READ_SESSION_NOT_AVAILABLE: Self = Self::new(404, 1002);
    /// The database or container around the resource is missing.
    pub const OWNER_RESOURCE_NOT_FOUND: Self = Self::new(404, 1003);
    /// The container is still being created.
    pub const CONTAINER_CREATE_IN_PROGRESS: Self = Self::new(404, 1013);
    /// The verb does not fit the path.
    pub const METHOD_NOT_ALLOWED: Self = Self::new(405, 0);
    /// The service gave up; a write may have happened.
    pub const REQUEST_TIMEOUT: Self = Self::new(408, 0);
    /// An item with this id exists.
    pub const CONFLICT: Self = Self::new(409, 0);
    /// Another change of the same resource is running.
    pub const CONFLICT_WITH_CONTROL_PLANE: Self = Self::new(409, 1006);
    /// A unique key has this value already.
    pub const UNIQUE_INDEX_CONFLICT: Self = Self::new(409, 3301);
    /// The replica or address is gone.
    pub const GONE: Self = Self::new(410, 0);
    /// The name now means another resource: refresh and retry.
    pub const NAME_CACHE_STALE: Self = Self::new(410, 1000);
    /// The range was split or merged away: refresh the map.
    pub const PARTITION_KEY_RANGE_GONE: Self = Self::new(410, 1002);
    /// The range is finishing a split or merge.
    pub const COMPLETING_SPLIT_OR_MERGE: Self = Self::new(410, 1007);
    /// The partition is finishing a move.
    pub const COMPLETING_PARTITION_MIGRATION: Self = Self::new(410, 1008);
    /// The partition's lease was lost.
    pub const LEASE_NOT_FOUND: Self = Self::new(410, 1022);
    /// The etag no longer matches.
    pub const PRECONDITION_FAILED: Self = Self::new(412, 0);
    /// The patch's condition is false.
    pub const PATCH_CONDITION_NOT_MET: Self = Self::new(412, 1110);
    /// The body is larger than allowed.
    pub const ENTITY_TOO_LARGE: Self = Self::new(413, 0);
    /// The batch's answer would be larger than allowed.
    pub const BATCH_RESPONSE_TOO_LARGE: Self = Self::new(413, 3402);
    /// The offer is being scaled.
    pub const LOCKED: Self = Self::new(423, 0);
    /// Not run because another operation of the batch failed.
    pub const FAILED_DEPENDENCY: Self = Self::new(424, 0);
    /// Throttled, reason not given.
    pub const TOO_MANY_REQUESTS: Self = Self::new(429, 0);
    /// Throttled: replicas are behind.
    pub const REPLICATION_QUEUE_FULL: Self = Self::new(429, 3075);
    /// Throttled: the partition is splitting.
    pub const THROTTLED_BY_SPLIT: Self = Self::new(429, 3088);
    /// Throttled: the node is short of resources.
    pub const SYSTEM_RESOURCE_UNAVAILABLE: Self = Self::new(429, 3092);
    /// Throttled: the request-unit budget of this second is used.
    pub const REQUEST_UNITS_EXCEEDED: Self = Self::new(429, 3200);
    /// Throttled by the gateway.
    pub const GATEWAY_THROTTLED: Self = Self::new(429, 3201);
    /// Throttled: too much is queued on the connection.
    pub const CLIENT_CHANNEL_FULL: Self = Self::new(429, 3208);
    /// Throttled: too many metadata requests.
    pub const MASTER_REQUEST_UNITS_EXCEEDED: Self = Self::new(429, 3210);
    /// Throttled: the throughput bucket is used up.
    pub const THROUGHPUT_BUCKET_EXHAUSTED: Self = Self::new(429, 3212);
    /// Throttled: one partition key takes too much.
    pub const HOT_PARTITION_KEY: Self = Self::new(429, 3214);
    /// A concurrent write got in between: retry.
    pub const RETRY_WITH: Self = Self::new(449, 0);
    /// The service failed.
    pub const INTERNAL_SERVER_ERROR: Self = Self::new(500, 0);
    /// The service does not know this operation.
    pub const NOT_IMPLEMENTED: Self = Self::new(501, 0);
    /// The service cannot be reached or is overloaded.
    pub const SERVICE_UNAVAILABLE: Self = Self::new(503, 0);
    /// No partitions can be bound right now.
    pub const INSUFFICIENT_BINDABLE_PARTITIONS: Self = Self::new(503, 1007);
}

/// Every named status with its name.
pub const TABLE: &[(Status, &str)] = &[
    (Status::OK, "OK"),
    (Status::CREATED, "CREATED"),
    (Status::ACCEPTED, "ACCEPTED"),
    (Status::NO_CONTENT, "NO_CONTENT"),
    (Status::MULTI_STATUS, "MULTI_STATUS"),
    (Status::NOT_MODIFIED, "NOT_MODIFIED"),
    (Status::BAD_REQUEST, "BAD_REQUEST"),
    (Status::PARTITION_KEY_MISMATCH, "PARTITION_KEY_MISMATCH"),
    (Status::CROSS_PARTITION_QUERY_NOT_SERVABLE, "CROSS_PARTITION_QUERY_NOT_SERVABLE"),
    (Status::PARTITION_KEY_DEFINITION_NOT_SPECIFIED, "PARTITION_KEY_DEFINITION_NOT_SPECIFIED"),
    (Status::COLLECTION_RID_MISMATCH, "COLLECTION_RID_MISMATCH"),
    (Status::DIVISION_BY_ZERO, "DIVISION_BY_ZERO"),
    (Status::SCRIPT_COMPILE_ERROR, "SCRIPT_COMPILE_ERROR"),
    (Status::UNAUTHORIZED, "UNAUTHORIZED"),
    (Status::FORBIDDEN, "FORBIDDEN"),
    (Status::WRITE_FORBIDDEN, "WRITE_FORBIDDEN"),
    (Status::PROVISION_LIMIT_REACHED, "PROVISION_LIMIT_REACHED"),
    (Status::DATABASE_ACCOUNT_NOT_FOUND, "DATABASE_ACCOUNT_NOT_FOUND"),
    (Status::SHARED_THROUGHPUT_DATABASE_QUOTA_EXCEEDED, "SHARED_THROUGHPUT_DATABASE_QUOTA_EXCEEDED"),
    (Status::PARTITION_KEY_QUOTA_OVER_LIMIT, "PARTITION_KEY_QUOTA_OVER_LIMIT"),
    (Status::SHARED_THROUGHPUT_CONTAINER_COUNT_EXCEEDED, "SHARED_THROUGHPUT_CONTAINER_COUNT_EXCEEDED"),
    (Status::THROUGHPUT_CAP_EXCEEDED, "THROUGHPUT_CAP_EXCEEDED"),
    (Status::NOT_FOUND, "NOT_FOUND"),
    (Status::READ_SESSION_NOT_AVAILABLE, "READ_SESSION_NOT_AVAILABLE"),
    (Status::OWNER_RESOURCE_NOT_FOUND, "OWNER_RESOURCE_NOT_FOUND"),
    (Status::CONTAINER_CREATE_IN_PROGRESS, "CONTAINER_CREATE_IN_PROGRESS"),
    (Status::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
    (Status::REQUEST_TIMEOUT, "REQUEST_TIMEOUT"),
    (Status::CONFLICT, "CONFLICT"),
    (Status::CONFLICT_WITH_CONTROL_PLANE, "CONFLICT_WITH_CONTROL_PLANE"),
    (Status::UNIQUE_INDEX_CONFLICT, "UNIQUE_INDEX_CONFLICT"),
    (Status::GONE, "GONE"),
    (Status::NAME_CACHE_STALE, "NAME_CACHE_STALE"),
    (Status::PARTITION_KEY_RANGE_GONE, "PARTITION_KEY_RANGE_GONE"),
    (Status::COMPLETING_SPLIT_OR_MERGE, "COMPLETING_SPLIT_OR_MERGE"),
    (Status::COMPLETING_PARTITION_MIGRATION, "COMPLETING_PARTITION_MIGRATION"),
    (Status::LEASE_NOT_FOUND, "LEASE_NOT_FOUND"),
    (Status::PRECONDITION_FAILED, "PRECONDITION_FAILED"),
    (Status::PATCH_CONDITION_NOT_MET, "PATCH_CONDITION_NOT_MET"),
    (Status::ENTITY_TOO_LARGE, "ENTITY_TOO_LARGE"),
    (Status::BATCH_RESPONSE_TOO_LARGE, "BATCH_RESPONSE_TOO_LARGE"),
    (Status::LOCKED, "LOCKED"),
    (Status::FAILED_DEPENDENCY, "FAILED_DEPENDENCY"),
    (Status::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS"),
    (Status::REPLICATION_QUEUE_FULL, "REPLICATION_QUEUE_FULL"),
    (Status::THROTTLED_BY_SPLIT, "THROTTLED_BY_SPLIT"),
    (Status::SYSTEM_RESOURCE_UNAVAILABLE, "SYSTEM_RESOURCE_UNAVAILABLE"),
    (Status::REQUEST_UNITS_EXCEEDED, "REQUEST_UNITS_EXCEEDED"),
    (Status::GATEWAY_THROTTLED, "GATEWAY_THROTTLED"),
    (Status::CLIENT_CHANNEL_FULL, "CLIENT_CHANNEL_FULL"),
    (Status::MASTER_REQUEST_UNITS_EXCEEDED, "MASTER_REQUEST_UNITS_EXCEEDED"),
    (Status::THROUGHPUT_BUCKET_EXHAUSTED, "THROUGHPUT_BUCKET_EXHAUSTED"),
    (Status::HOT_PARTITION_KEY, "HOT_PARTITION_KEY"),
    (Status::RETRY_WITH, "RETRY_WITH"),
    (Status::INTERNAL_SERVER_ERROR, "INTERNAL_SERVER_ERROR"),
    (Status::NOT_IMPLEMENTED, "NOT_IMPLEMENTED"),
    (Status::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE"),
    (Status::INSUFFICIENT_BINDABLE_PARTITIONS, "INSUFFICIENT_BINDABLE_PARTITIONS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_share_a_status() {
        for (index, (status, name)) in TABLE.iter().enumerate() {
            assert!(TABLE[..index].iter().all(|(other, _)| other != status), "{name} is there twice");
            assert_ne!(status.code_text(), "Unknown", "{name}");
        }
    }

    #[test]
    fn sub_status_is_read_together_with_the_status() {
        assert!(Status::new(410, 1002).is_range_gone());
        assert!(!Status::new(404, 1002).is_range_gone());
        assert!(Status::new(404, 1002).is_session_not_available());
        assert!(!Status::new(404, 1002).is_not_found());
        assert!(Status::new(404, 1003).is_not_found());
        assert!(Status::new(403, 1008).is_wrong_region());
        assert!(!Status::new(410, 1008).is_wrong_region());
        assert!(Status::new(410, 1000).is_name_stale());
        assert!(Status::new(429, 3210).is_throttled());
    }

    #[test]
    fn statuses_print_as_people_write_them() {
        assert_eq!(Status::CONFLICT.to_string(), "409");
        assert_eq!(Status::PARTITION_KEY_RANGE_GONE.to_string(), "410/1002");
        assert_eq!(Status::PARTITION_KEY_RANGE_GONE.name(), Some("PARTITION_KEY_RANGE_GONE"));
        assert_eq!(Status::of(404).code_text(), "NotFound");
    }
}
