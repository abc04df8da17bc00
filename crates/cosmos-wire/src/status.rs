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
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sub == 0 { write!(f, "{}", self.code) } else { write!(f, "{}/{}", self.code, self.sub) }
    }
}

/// The statuses with a meaning of their own.
impl Status {
    /// Created.
    pub const CREATED: Self = Self::new(201, 0);
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
    /// This region does not take writes now.
    pub const WRITE_FORBIDDEN: Self = Self::new(403, 3);
    /// The account is not served in this region.
    pub const DATABASE_ACCOUNT_NOT_FOUND: Self = Self::new(403, 1008);
    /// Too many containers share the database's throughput.
    pub const SHARED_THROUGHPUT_CONTAINER_COUNT_EXCEEDED: Self = Self::new(403, 1019);
    /// This replica has not yet seen the session's writes.
    pub const READ_SESSION_NOT_AVAILABLE: Self = Self::new(404, 1002);
    /// The database or container around the resource is missing.
    pub const OWNER_RESOURCE_NOT_FOUND: Self = Self::new(404, 1003);
    /// The container is still being created.
    pub const CONTAINER_CREATE_IN_PROGRESS: Self = Self::new(404, 1013);
    /// A unique key has this value already.
    pub const UNIQUE_INDEX_CONFLICT: Self = Self::new(409, 3301);
    /// The name now means another resource: refresh and retry.
    pub const NAME_CACHE_STALE: Self = Self::new(410, 1000);
    /// The range was split or merged away: refresh the map.
    pub const PARTITION_KEY_RANGE_GONE: Self = Self::new(410, 1002);
    /// The range is finishing a split or merge.
    pub const COMPLETING_SPLIT_OR_MERGE: Self = Self::new(410, 1007);
    /// The partition is finishing a move.
    pub const COMPLETING_PARTITION_MIGRATION: Self = Self::new(410, 1008);
    /// The patch's condition is false.
    pub const PATCH_CONDITION_NOT_MET: Self = Self::new(412, 1110);
    /// The batch's answer would be larger than allowed.
    pub const BATCH_RESPONSE_TOO_LARGE: Self = Self::new(413, 3402);
    /// Not run because another operation of the batch failed.
    pub const FAILED_DEPENDENCY: Self = Self::new(424, 0);
    /// Throttled: the node is short of resources.
    pub const SYSTEM_RESOURCE_UNAVAILABLE: Self = Self::new(429, 3092);
    /// Throttled: the request-unit budget of this second is used.
    pub const REQUEST_UNITS_EXCEEDED: Self = Self::new(429, 3200);
    /// The service cannot be reached or is overloaded.
    pub const SERVICE_UNAVAILABLE: Self = Self::new(503, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_status_is_read_together_with_the_status() {
        assert_ne!(Status::new(410, 1002), Status::READ_SESSION_NOT_AVAILABLE);
        assert_eq!(Status::new(404, 1002), Status::READ_SESSION_NOT_AVAILABLE);
        assert_ne!(Status::new(410, 1008), Status::DATABASE_ACCOUNT_NOT_FOUND);
        assert!(Status::new(429, 3210).is_throttled());
    }

    #[test]
    fn statuses_print_as_people_write_them() {
        assert_eq!(Status::of(409).to_string(), "409");
        assert_eq!(Status::PARTITION_KEY_RANGE_GONE.to_string(), "410/1002");
        assert_eq!(Status::of(404).code_text(), "NotFound");
    }
}
