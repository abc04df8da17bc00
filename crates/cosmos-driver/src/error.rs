//! The one error of this crate.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::status::Status;

use crate::diagnostics::Diagnostics;

/// Why an operation failed, and what is known about its effect.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    status: Option<Status>,
    activity_id: Option<String>,
    retry_after: Option<Duration>,
    charge: f64,
    may_have_been_applied: bool,
    body: Bytes,
    diagnostics: Diagnostics,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What sort of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The driver was set up wrongly.
    Configuration,
    /// The request breaks one of the service's limits and was not sent.
    Limit,
    /// A value could not be turned into JSON, or an answer could not be read as the type asked for.
    Serialization,
    /// The service says the request is wrong.
    BadRequest,
    /// The credential was not accepted.
    Unauthorized,
    /// The credential does not allow it, or a quota is used up.
    Forbidden,
    /// No such item, container or database.
    NotFound,
    /// An item with this id or unique key exists.
    Conflict,
    /// The ETag or condition did not hold.
    PreconditionFailed,
    /// The service found the request or the answer too large.
    TooLarge,
    /// Still throttled after all retries.
    Throttled,
    /// No region had caught up with the session.
    SessionNotAvailable,
    /// The service is unavailable in every region tried.
    Unavailable,
    /// No connection, or it broke.
    Connection,
    /// The operation's deadline passed.
    Deadline,
    /// The service failed, or gave up with a timeout of its own.
    Service,
    /// The answer is not what the protocol says.
    Protocol,
    /// The account does not promise what the driver's configuration requires.
    AccountUnfit,
}

impl ErrorKind {
    /// The kind an answer's status stands for.
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::WRITE_FORBIDDEN
            | Status::DATABASE_ACCOUNT_NOT_FOUND
            | Status::SYSTEM_RESOURCE_UNAVAILABLE
            | Status { code: 410 | 503, .. } => Self::Unavailable,
            Status::READ_SESSION_NOT_AVAILABLE => Self::SessionNotAvailable,
            Status { code: 401, .. } => Self::Unauthorized,
            Status { code: 403, .. } => Self::Forbidden,
            Status { code: 404, .. } => Self::NotFound,
            Status { code: 409, .. } => Self::Conflict,
            Status { code: 412, .. } => Self::PreconditionFailed,
            Status { code: 413, .. } => Self::TooLarge,
            Status { code: 429, .. } => Self::Throttled,
            Status { code: 408 | 449 | 500.., .. } => Self::Service,
            Status { code: 400..=499, .. } => Self::BadRequest,
            Status { .. } => Self::Protocol,
        }
    }
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            status: None,
            activity_id: None,
            retry_after: None,
            charge: 0.0,
            may_have_been_applied: false,
            body: Bytes::new(),
            diagnostics: Diagnostics::default(),
            source: None,
        }))
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }

    pub(crate) fn account_unfit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::AccountUnfit, message)
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadRequest, message)
    }

    pub(crate) fn serialization(what: &str, source: serde_json::Error) -> Self {
        let mut error = Self::new(ErrorKind::Serialization, format!("{what}: {source}"));
        error.0.source = Some(Box::new(source));
        error
    }

    pub(crate) fn connection(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Connection, message)
    }

    pub(crate) fn deadline(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Deadline, message)
    }

    #[cfg(feature = "entra")]
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unauthorized, message)
    }

    /// An error the service answered with.
    pub(crate) fn answered(status: Status, body: Bytes) -> Self {
        let mut error = Self::new(ErrorKind::of(status), service_message(&body));
        error.0.status = Some(status);
        error.0.body = body;
        error
    }

    pub(crate) fn with_activity_id(mut self, activity_id: Option<String>) -> Self {
        self.0.activity_id = activity_id;
        self
    }

    pub(crate) fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.0.retry_after = retry_after;
        self
    }

    pub(crate) fn with_charge(mut self, charge: f64) -> Self {
        self.0.charge = charge;
        self
    }

    pub(crate) fn with_applied(mut self, may_have_been_applied: bool) -> Self {
        self.0.may_have_been_applied = may_have_been_applied;
        self
    }

    pub(crate) fn with_diagnostics(mut self, diagnostics: Diagnostics) -> Self {
        self.0.diagnostics = diagnostics;
        self
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// HTTP status, if the service answered.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.0.status.map(|status| status.code)
    }

    /// Cosmos sub-status, if the service answered; 0 when it gave none.
    #[must_use]
    pub fn sub_status(&self) -> Option<u32> {
        self.0.status.map(|status| status.sub)
    }

    /// The id to quote to support.
    #[must_use]
    pub fn activity_id(&self) -> Option<&str> {
        self.0.activity_id.as_deref()
    }

    /// How long the service asked to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Request units charged for the failed answer.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.0.charge
    }

    /// True if a write may have taken effect although it failed here. Read before writing again.
    #[must_use]
    pub fn may_have_been_applied(&self) -> bool {
        self.0.may_have_been_applied && !cosmos_wire::mutant!(28)
    }

    /// Everything that was tried.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.0.diagnostics
    }

    /// The body the service answered with; empty if it did not answer.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// The explanation without status and ids.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

/// The `message` of an error body, or the start of whatever came instead.
fn service_message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Body {
        message: String,
    }
    match serde_json::from_slice::<Body>(body) {
        Ok(body) => body.message,
        Err(_) if body.is_empty() => "the service gave no explanation".to_owned(),
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]).into_owned(),
    }
}

const MESSAGE_BYTES_MAX: usize = 512;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match inner.status {
            Some(status) => write!(f, "{:?} ({status}): {}", inner.kind, inner.message)?,
            None => write!(f, "{:?}: {}", inner.kind, inner.message)?,
        }
        if inner.may_have_been_applied {
            f.write_str(" (the write may have been applied)")?;
        }
        if let Some(id) = &inner.activity_id {
            write!(f, " [activity {id}]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} {}", self.0.diagnostics)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_status_and_sub_status() {
        use ErrorKind as K;
        let cases = [
            (400, 0, K::BadRequest),
            (401, 0, K::Unauthorized),
            (403, 0, K::Forbidden),
            (403, 3, K::Unavailable),
            (403, 1008, K::Unavailable),
            (404, 0, K::NotFound),
            (404, 1003, K::NotFound),
            (404, 1002, K::SessionNotAvailable),
            (408, 0, K::Service),
            (409, 0, K::Conflict),
            (410, 1002, K::Unavailable),
            (412, 0, K::PreconditionFailed),
            (413, 0, K::TooLarge),
            (429, 3200, K::Throttled),
            (429, 3092, K::Unavailable),
            (449, 0, K::Service),
            (500, 0, K::Service),
            (503, 0, K::Unavailable),
            (302, 0, K::Protocol),
        ];
        for (code, sub, kind) in cases {
            assert_eq!(ErrorKind::of(Status::new(code, sub)), kind, "{code}/{sub}");
        }
    }

    #[test]
    fn text_says_what_happened_and_what_is_unknown() {
        let body = Bytes::from_static(br#"{"code":"NotFound","message":"Entity is gone."}"#);
        let error = Error::answered(Status::new(404, 0), body).with_activity_id(Some("abc".to_owned()));
        assert_eq!(error.to_string(), "NotFound (404): Entity is gone. [activity abc]");
        let error = Error::connection("reset").with_applied(true);
        assert_eq!(error.to_string(), "Connection: reset (the write may have been applied)");
    }
}
