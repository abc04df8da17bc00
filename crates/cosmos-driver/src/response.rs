//! What the service answered.

use std::time::SystemTime;

use bytes::Bytes;
use cosmos_wire::{date, header, status::Status};
use http::HeaderMap;
use serde::de::DeserializeOwned;

use crate::diagnostics::Diagnostics;
use crate::error::Error;

/// One successful answer. The body is raw; [`Response::json`] reads it.
#[derive(Debug)]
pub struct Response {
    status: Status,
    headers: HeaderMap,
    body: Bytes,
    diagnostics: Diagnostics,
}

impl Response {
    pub(crate) fn new(status: Status, headers: HeaderMap, body: Bytes, diagnostics: Diagnostics) -> Self {
        Self { status, headers, body, diagnostics }
    }

    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status.code
    }

    /// Cosmos sub-status, 0 when there is none.
    #[must_use]
    pub fn sub_status(&self) -> u32 {
        self.status.sub
    }

    /// True if the item still has the ETag given with `if_none_match`; the body is empty then.
    #[must_use]
    pub fn is_not_modified(&self) -> bool {
        self.status.code == 304
    }

    /// Request units of this answer. [`Diagnostics::charge`] adds those of failed and losing attempts.
    #[must_use]
    pub fn charge(&self) -> f64 {
        charge(&self.headers)
    }

    /// The item's or resource's ETag.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.header(header::ETAG)
    }

    /// The session token after this operation.
    #[must_use]
    pub fn session_token(&self) -> Option<&str> {
        self.header(header::SESSION_TOKEN)
    }

    /// The id to quote to support.
    #[must_use]
    pub fn activity_id(&self) -> Option<&str> {
        self.header(header::ACTIVITY_ID)
    }

    /// What the service's clock showed when it answered, in whole seconds.
    #[must_use]
    pub fn date(&self) -> Option<SystemTime> {
        self.header(header::DATE).and_then(date::parse)
    }

    /// Where the next page starts, if there is one.
    #[must_use]
    pub fn continuation(&self) -> Option<&str> {
        self.header(header::CONTINUATION).filter(|text| !text.is_empty())
    }

    /// Any header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as it came.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body, without copying it.
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.body
    }

    /// The body as a value.
    ///
    /// # Errors
    /// When it does not fit the type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|e| Error::serialization("the answer does not fit the type asked for", e))
    }

    /// Everything that was tried.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    pub(crate) fn into_diagnostics(self) -> Diagnostics {
        self.diagnostics
    }
}

pub(crate) fn charge(headers: &HeaderMap) -> f64 {
    headers
        .get(header::REQUEST_CHARGE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse().ok())
        .unwrap_or(0.0)
}
