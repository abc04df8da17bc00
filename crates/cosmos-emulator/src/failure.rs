//! A refusal as it goes over the wire: a value, not a Rust error.

use std::time::Duration;

use cosmos_wire::status::Status;

use crate::engine::ContentPath;

/// What the service answers when it does not do what was asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// HTTP status.
    pub status: u16,
    /// `x-ms-substatus`; 0 means the header is absent.
    pub sub_status: u32,
    /// The `message` of the answer's body.
    pub message: String,
    /// `additionalErrorInfo` of the body: the query plan that comes with a 400/1004.
    pub additional_error_info: Option<String>,
    /// `x-ms-retry-after-ms`.
    pub retry_after: Option<Duration>,
    /// RUs charged for the refused request.
    pub charge: f64,
    /// The partition that refused, where it was a partition.
    pub origin: Option<Box<Origin>>,
}

/// Where a refusal came from: it carries the same headers as an answer from there.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    /// Id of the partition.
    pub range_id: u32,
    /// Its LSN.
    pub lsn: u64,
    /// `x-ms-session-token`.
    pub session_token: String,
    /// Its container.
    pub container: ContentPath,
}

impl Failure {
    /// A refusal without sub-status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            sub_status: 0,
            message: message.into(),
            additional_error_info: None,
            retry_after: None,
            charge: 0.0,
            origin: None,
        }
    }

    /// A refusal with the sub-status of its kind.
    pub fn of(status: Status, message: impl Into<String>) -> Self {
        Self::new(status.code, message).with_sub_status(status.sub)
    }

    /// The same refusal with a sub-status.
    #[must_use]
    pub fn with_sub_status(mut self, sub_status: u32) -> Self {
        self.sub_status = sub_status;
        self
    }

    /// A request the service does not understand.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// An item that does not exist.
    pub fn not_found() -> Self {
        Self::new(404, "Entity with the specified id does not exist in the system.")
    }
}
