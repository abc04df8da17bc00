//! Replies and failures -> responses, with the headers SDKs depend on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::header;
use cosmos_wire::status::Status;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE, ETAG, SERVER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::command::Reply;
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
        let mut base = HeaderMap::with_capacity(40);
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
            put_lsn(&mut headers, position.lsn);
            let item_lsn = HeaderValue::from(position.item_lsn);
            headers.insert(ITEM_LSN, item_lsn.clone());
            headers.insert(ITEM_LOCAL_LSN, item_lsn);
        }
        if let Some(container) = &reply.container {
            put_container(&mut headers, &container.rid, &container.link);
        }
        if let Some(range) = &reply.range_id {
            put_range(&mut headers, range);
        }
        for (name, value) in
            [(SESSION_TOKEN, &reply.session_token), (CONTINUATION, &reply.continuation), (ETAG, &reply.etag)]
        {
            if let Some(value) = value {
                put(&mut headers, name, value);
            }
        }
        if let Some(count) = reply.item_count {
            headers.insert(ITEM_COUNT, HeaderValue::from(count));
        }
        headers.extend(reply.extra.into_iter().map(|(name, value)| (Some(name), value)));
        response(reply.status, headers, reply.body)
    }

    /// The response to a request that was refused.
    pub(crate) fn failure(&self, failure: &Failure, stamp: &Stamp<'_>) -> Response<Bytes> {
        let mut headers = self.stamped(stamp, failure.charge);
        if failure.sub_status != 0 {
            headers.insert(SUBSTATUS, HeaderValue::from(failure.sub_status));
        }
        if let Some(origin) = &failure.origin {
            put_lsn(&mut headers, origin.lsn);
            put_container(&mut headers, &origin.container_rid, &origin.container_link);
            put_range(&mut headers, &origin.range_id.to_string());
            put(&mut headers, SESSION_TOKEN, &origin.session_token);
        }
        if let Some(pause) = failure.retry_after {
            let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
        }
        let body = if matches!(failure.status, 204 | 304) {
            Bytes::new()
        } else {
            body_of(failure, stamp.activity_id)
        };
        response(failure.status, headers, body)
    }

    fn stamped(&self, stamp: &Stamp<'_>, charge: f64) -> HeaderMap {
        let mut headers = self.base.clone();
        put(&mut headers, ACTIVITY_ID, stamp.activity_id);
        put(&mut headers, REQUEST_CHARGE, &charge_text(charge));
        put(&mut headers, REQUEST_DURATION, &format!("{:.3}", stamp.elapsed.as_secs_f64() * 1000.0));
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        headers.insert(TRANSPORT_REQUEST_ID, HeaderValue::from(number));
        if let Some(location) = &stamp.location {
            put(&mut headers, CONTENT_LOCATION, location);
        }
        headers
    }
}

/// A charge as the service writes it: at most two decimals, none when it is whole.
fn charge_text(charge: f64) -> String {
    ((charge * 100.0).round() / 100.0).to_string()
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

fn put_lsn(headers: &mut HeaderMap, lsn: u64) {
    for name in [LSN, LOCAL_LSN, QUORUM_ACKED_LSN, GLOBAL_COMMITTED_LSN] {
        headers.insert(name, HeaderValue::from(lsn));
    }
}

fn put_container(headers: &mut HeaderMap, rid: &str, link: &str) {
    put(headers, CONTENT_PATH, rid);
    put(headers, ALT_CONTENT_PATH, link);
    headers.insert(RESOURCE_QUOTA, QUOTA);
    headers.insert(RESOURCE_USAGE, USAGE);
}

fn put_range(headers: &mut HeaderMap, range: &str) {
    for name in [PHYSICAL_PARTITION_ID, INTERNAL_PARTITION_ID, RANGE_ID] {
        put(headers, name, range);
    }
}

/// Sets a header, leaving out a value that cannot be one; names may be any UTF-8.
fn put(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        headers.insert(name, value);
    }
}

fn response(status: u16, mut headers: HeaderMap, body: Bytes) -> Response<Bytes> {
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
        assert_eq!(charge_text(1.0), "1");
        assert_eq!(charge_text(6.666_666), "6.67");
        assert_eq!(charge_text(0.1 + 0.2), "0.3");
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
