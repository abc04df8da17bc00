//! Replies and failures -> responses, with the headers SDKs depend on.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cosmos_wire::header;
use cosmos_wire::status::Status;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE, ETAG, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::command::Reply;
use crate::engine::ContentPath;
use crate::failure::Failure;

const ACTIVITY_ID: HeaderName = HeaderName::from_static(header::ACTIVITY_ID);
const REQUEST_CHARGE: HeaderName = HeaderName::from_static(header::REQUEST_CHARGE);
const REQUEST_DURATION: HeaderName = HeaderName::from_static(header::REQUEST_DURATION_MS);
const TRANSPORT_REQUEST_ID: HeaderName = HeaderName::from_static(header::TRANSPORT_REQUEST_ID);
const SUBSTATUS: HeaderName = HeaderName::from_static(header::SUBSTATUS);
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static(header::RETRY_AFTER_MS);
const SESSION_TOKEN: HeaderName = HeaderName::from_static(header::SESSION_TOKEN);
const CONTINUATION: HeaderName = HeaderName::from_static(header::CONTINUATION);
const ITEM_COUNT: HeaderName = HeaderName::from_static(header::ITEM_COUNT);
const RANGE_ID: HeaderName = HeaderName::from_static(header::PARTITION_KEY_RANGE_ID);
const PHYSICAL_PARTITION_ID: HeaderName = HeaderName::from_static(header::PHYSICAL_PARTITION_ID);
const INTERNAL_PARTITION_ID: HeaderName = HeaderName::from_static(header::INTERNAL_PARTITION_ID);
const CONTENT_PATH: HeaderName = HeaderName::from_static(header::CONTENT_PATH);
const ALT_CONTENT_PATH: HeaderName = HeaderName::from_static(header::ALT_CONTENT_PATH);
const LSN: HeaderName = HeaderName::from_static(header::LSN);
const ITEM_LSN: HeaderName = HeaderName::from_static(header::ITEM_LSN);
const LOCAL_LSN: HeaderName = HeaderName::from_static(header::LOCAL_LSN);
const ITEM_LOCAL_LSN: HeaderName = HeaderName::from_static(header::ITEM_LOCAL_LSN);
const QUORUM_ACKED_LSN: HeaderName = HeaderName::from_static(header::QUORUM_ACKED_LSN);
const GLOBAL_COMMITTED_LSN: HeaderName = HeaderName::from_static(header::GLOBAL_COMMITTED_LSN);
const RESOURCE_QUOTA: HeaderName = HeaderName::from_static(header::RESOURCE_QUOTA);
const RESOURCE_USAGE: HeaderName = HeaderName::from_static(header::RESOURCE_USAGE);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const QUOTA: HeaderValue = HeaderValue::from_static(
    "documentSize=10240;documentsSize=10485760;documentsCount=-1;collectionSize=10485760;",
);
const USAGE: HeaderValue =
    HeaderValue::from_static("documentSize=0;documentsSize=0;documentsCount=0;collectionSize=0;");

/// What a response says about its request.
pub(crate) struct Stamp<'a> {
    /// The client's id of the operation, or ours.
    pub(crate) activity_id: &'a str,
    pub(crate) elapsed: Duration,
    /// Address of the resource as the client spelled it.
    pub(crate) location: Option<String>,
}

/// Builds responses on headers prepared once.
#[derive(Debug)]
pub(crate) struct Renderer {
    base: HeaderMap,
    requests: AtomicU64,
}

impl Renderer {
    pub(crate) fn new(started: &str) -> Self {
        let mut base = HeaderMap::new();
        base.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-cache"));
        base.insert(SERVER, HeaderValue::from_static(concat!("cosmos-emulator/", env!("CARGO_PKG_VERSION"))));
        let fixed: [(&'static str, &str); 4] = [
            (header::GATEWAY_VERSION, "2.0.0"),
            (header::SERVICE_VERSION, "version=2.14.0.0"),
            (header::NUMBER_OF_READ_REGIONS, "0"),
            (header::LAST_STATE_CHANGE_UTC, started),
        ];
        for (name, value) in fixed {
            if let Ok(value) = HeaderValue::from_str(value) {
                base.insert(name, value);
            }
        }
        Self { base, requests: AtomicU64::new(0) }
    }

    /// The response to a request that was served.
    pub(crate) fn reply(&self, reply: Reply, stamp: &Stamp<'_>) -> Response<Bytes> {
        let mut headers = self.stamped(stamp, reply.charge);
        if let Some(position) = &reply.position {
            headers.put_lsn(position.lsn);
            headers.put_all([ITEM_LSN, ITEM_LOCAL_LSN], format_args!("{}", position.item_lsn));
        }
        if let Some(path) = reply.container {
            headers.put_container(path);
        }
        if let Some(range) = reply.range_id {
            headers.put_range(range);
        }
        for (name, value) in
            [(SESSION_TOKEN, &reply.session_token), (CONTINUATION, &reply.continuation), (ETAG, &reply.etag)]
        {
            if let Some(value) = value {
                headers.put(name, format_args!("{value}"));
            }
        }
        if let Some(count) = reply.item_count {
            headers.put(ITEM_COUNT, format_args!("{count}"));
        }
        headers.map.extend(reply.extra.into_iter().map(|(name, value)| (Some(name), value)));
        response(reply.status, headers, reply.body)
    }

    /// The response to a request that was refused.
    pub(crate) fn failure(&self, failure: &Failure, stamp: &Stamp<'_>) -> Response<Bytes> {
        let mut headers = self.stamped(stamp, failure.charge);
        if failure.sub_status != 0 {
            headers.put(SUBSTATUS, format_args!("{}", failure.sub_status));
        }
        if let Some(origin) = &failure.origin {
            headers.put_lsn(origin.lsn);
            headers.put_container(origin.container.clone());
            headers.put_range(origin.range_id);
            headers.put(SESSION_TOKEN, format_args!("{}", origin.session_token));
        }
        if let Some(pause) = failure.retry_after {
            headers.put(RETRY_AFTER_MS, format_args!("{}", pause.as_millis()));
        }
        let body = if matches!(failure.status, 204 | 304) {
            Bytes::new()
        } else {
            body_of(failure, stamp.activity_id)
        };
        response(failure.status, headers, body)
    }

    fn stamped(&self, stamp: &Stamp<'_>, charge: f64) -> Headers {
        let mut headers = Headers::with(&self.base);
        headers.put(ACTIVITY_ID, format_args!("{}", stamp.activity_id));
        headers.put(REQUEST_CHARGE, format_args!("{}", Charge(charge)));
        let micros = stamp.elapsed.as_micros();
        headers.put(REQUEST_DURATION, format_args!("{}.{:03}", micros / 1000, micros % 1000));
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        headers.put(TRANSPORT_REQUEST_ID, format_args!("{number}"));
        if let Some(location) = &stamp.location {
            headers.put(CONTENT_LOCATION, format_args!("{location}"));
        }
        headers
    }
}

/// A charge as the service writes it: at most two decimals, none when it is whole.
struct Charge(f64);

impl fmt::Display for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.0 * 100.0).round() as u64;
        match (hundredths / 100, hundredths % 100) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}"),
        }
    }
}

fn body_of(failure: &Failure, activity_id: &str) -> Bytes {
    let mut body = json!({
        "code": Status::new(failure.status, failure.sub_status).code_text(),
        "message": format!("{}\r\nActivityId: {activity_id}, cosmos-emulator/{}", failure.message, env!("CARGO_PKG_VERSION")),
    });
    if let Some(info) = &failure.additional_error_info {
        body["additionalErrorInfo"] = info.clone().into();
    }
    body.to_string().into()
}

/// The headers of one response. Their values are parts of one buffer instead of two dozen.
struct Headers {
    map: HeaderMap,
    values: BytesMut,
}

impl Headers {
    fn with(base: &HeaderMap) -> Self {
        // A clone of the base would have no room for more.
        let mut map = HeaderMap::with_capacity(HEADERS_USUAL);
        for (name, value) in base {
            map.insert(name, value.clone());
        }
        Self { map, values: BytesMut::with_capacity(VALUE_BYTES_USUAL) }
    }

    /// Sets a header, leaving out a value that cannot be one; names may be any UTF-8.
    fn put(&mut self, name: HeaderName, value: fmt::Arguments<'_>) {
        self.put_all([name], value);
    }

    /// Sets several headers to the same value.
    fn put_all<const N: usize>(&mut self, names: [HeaderName; N], value: fmt::Arguments<'_>) {
        // A buffer in memory takes everything.
        let _ = self.values.write_fmt(value);
        let Ok(value) = HeaderValue::from_maybe_shared(self.values.split().freeze()) else { return };
        for name in names {
            self.map.insert(name, value.clone());
        }
    }

    fn put_lsn(&mut self, lsn: u64) {
        self.put_all([LSN, LOCAL_LSN, QUORUM_ACKED_LSN, GLOBAL_COMMITTED_LSN], format_args!("{lsn}"));
    }

    fn put_container(&mut self, path: ContentPath) {
        for (name, value) in [(CONTENT_PATH, path.rid), (ALT_CONTENT_PATH, path.link)] {
            if let Ok(value) = HeaderValue::from_maybe_shared(value) {
                self.map.insert(name, value);
            }
        }
        self.map.insert(RESOURCE_QUOTA, QUOTA);
        self.map.insert(RESOURCE_USAGE, USAGE);
    }

    fn put_range(&mut self, range: u32) {
        self.put_all([PHYSICAL_PARTITION_ID, INTERNAL_PARTITION_ID, RANGE_ID], format_args!("{range}"));
    }
}

/// Room for the headers of an answer about an item.
const HEADERS_USUAL: usize = 40;
/// Room for their values.
const VALUE_BYTES_USUAL: usize = 512;

fn response(status: u16, headers: Headers, body: Bytes) -> Response<Bytes> {
    let mut headers = headers.map;
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, JSON);
    }
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp<'static> {
        Stamp { activity_id: "a-1", elapsed: Duration::from_millis(2), location: None }
    }

    #[test]
    fn charges_have_at_most_two_decimals() {
        for (charge, text) in
            [(1.0, "1"), (6.666_666, "6.67"), (0.1 + 0.2, "0.3"), (10.05, "10.05"), (0.0, "0")]
        {
            assert_eq!(Charge(charge).to_string(), text);
        }
    }

    #[test]
    fn a_failure_has_the_services_body_and_headers() {
        let failure = Failure {
            retry_after: Some(Duration::from_millis(12)),
            additional_error_info: Some("{}".into()),
            ..Failure::new(429, "slow down").with_sub_status(3200)
        };
        let response = Renderer::new("now").failure(&failure, &stamp());
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["x-ms-substatus"], "3200");
        assert_eq!(response.headers()["x-ms-retry-after-ms"], "12");
        assert_eq!(response.headers()["x-ms-activity-id"], "a-1");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["code"], "TooManyRequests");
        assert!(body["message"].as_str().unwrap().starts_with("slow down\r\nActivityId: a-1"));
        assert_eq!(body["additionalErrorInfo"], "{}");
    }

    #[test]
    fn not_modified_has_no_body() {
        let response = Renderer::new("now").failure(&Failure::new(304, ""), &stamp());
        assert_eq!(response.status(), 304);
        assert!(response.body().is_empty());
        assert!(!response.headers().contains_key("content-type"));
    }
}
