//! Replies and failures -> responses, with the headers SDKs depend on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::header;
use cosmos_wire::status::Status;
use http::HeaderName;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, CONTENT_TYPE, ETAG, SERVER};
use serde_json::json;

use crate::command::Reply;
use crate::engine::ContentPath;
use crate::failure::Failure;
use crate::server::answer::{Answer, Base};

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

const NUMBER_OF_READ_REGIONS: HeaderName = HeaderName::from_static(header::NUMBER_OF_READ_REGIONS);

const QUOTA: &str = "documentSize=10240;documentsSize=10485760;documentsCount=-1;collectionSize=10485760;";
const USAGE: &str = "documentSize=0;documentsSize=0;documentsCount=0;collectionSize=0;";

/// What a response says about its request.
pub(crate) struct Stamp<'a> {
    /// The client's id of the operation, or ours.
    pub(crate) activity_id: &'a str,
    pub(crate) elapsed: Duration,
    /// Address of the resource as the client spelled it.
    pub(crate) location: Option<String>,
    /// Regions besides the one that writes.
    pub(crate) read_regions: usize,
    /// The account's time, where its clock was put forward; otherwise connections tell the machine's.
    pub(crate) date: Option<String>,
}

/// Builds responses on headers prepared once.
#[derive(Debug)]
pub(crate) struct Renderer {
    base: Base,
    requests: AtomicU64,
}

impl Renderer {
    pub(crate) fn new(started: &str) -> Self {
        let base = Base::new(&[
            (CACHE_CONTROL, "no-store, no-cache"),
            (SERVER, concat!("cosmos-emulator/", env!("CARGO_PKG_VERSION"))),
            (HeaderName::from_static(header::GATEWAY_VERSION), "2.0.0"),
            (HeaderName::from_static(header::SERVICE_VERSION), "version=2.14.0.0"),
            (HeaderName::from_static(header::LAST_STATE_CHANGE_UTC), started),
        ]);
        Self { base, requests: AtomicU64::new(0) }
    }

    /// The response to a request that was served.
    pub(crate) fn reply<A: Answer>(&self, reply: Reply, stamp: &Stamp<'_>) -> A {
        let mut answer: A = self.stamped(reply.status, stamp, reply.charge);
        if let Some(position) = &reply.position {
            put_lsn(&mut answer, position.lsn);
            answer.put_number(&[ITEM_LSN, ITEM_LOCAL_LSN], position.item_lsn);
        }
        if let Some(path) = &reply.container {
            put_container(&mut answer, path);
            // Those who know more of it say so.
            if !reply.extra.iter().any(|(name, _)| *name == RESOURCE_QUOTA) {
                put_usage(&mut answer);
            }
        }
        if let Some(range) = reply.range_id {
            put_range(&mut answer, range);
        }
        for (name, value) in
            [(SESSION_TOKEN, &reply.session_token), (CONTINUATION, &reply.continuation), (ETAG, &reply.etag)]
        {
            if let Some(value) = value {
                answer.put(&[name], value);
            }
        }
        if let Some(count) = reply.item_count {
            answer.put_number(&[ITEM_COUNT], count as u64);
        }
        for (name, value) in reply.extra {
            answer.put(&[name], &String::from_utf8_lossy(value.as_bytes()));
        }
        finish(answer, reply.body)
    }

    /// The response to a request that was refused.
    pub(crate) fn failure<A: Answer>(&self, failure: &Failure, stamp: &Stamp<'_>) -> A {
        let mut answer: A = self.stamped(failure.status, stamp, failure.charge);
        if failure.sub_status != 0 {
            answer.put_number(&[SUBSTATUS], failure.sub_status.into());
        }
        if let Some(origin) = &failure.origin {
            put_lsn(&mut answer, origin.lsn);
            put_container(&mut answer, &origin.container);
            put_usage(&mut answer);
            put_range(&mut answer, origin.range_id);
            answer.put(&[SESSION_TOKEN], &origin.session_token);
        }
        if let Some(pause) = failure.retry_after {
            answer.put_number(&[RETRY_AFTER_MS], u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        }
        let body = if matches!(failure.status, 204 | 304) {
            Bytes::new()
        } else {
            body_of(failure, stamp.activity_id)
        };
        finish(answer, body)
    }

    fn stamped<A: Answer>(&self, status: u16, stamp: &Stamp<'_>, charge: f64) -> A {
        let mut answer = A::begin(status, &self.base);
        answer.put_number(&[NUMBER_OF_READ_REGIONS], stamp.read_regions as u64);
        answer.put(&[ACTIVITY_ID], stamp.activity_id);
        put_decimal(&mut answer, REQUEST_CHARGE, (charge * 100.0).round() as u64, 2, Zeros::Leave);
        // Division of 128 bits is a function of its own.
        let micros = u64::try_from(stamp.elapsed.as_micros()).unwrap_or(u64::MAX);
        put_decimal(&mut answer, REQUEST_DURATION, micros, 3, Zeros::Keep);
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        answer.put_number(&[TRANSPORT_REQUEST_ID], number);
        if let Some(location) = &stamp.location {
            answer.put(&[CONTENT_LOCATION], location);
        }
        if let Some(date) = &stamp.date {
            answer.put_date(date);
        }
        answer
    }
}

fn put_lsn(answer: &mut impl Answer, lsn: u64) {
    answer.put_number(&[LSN, LOCAL_LSN, QUORUM_ACKED_LSN, GLOBAL_COMMITTED_LSN], lsn);
}

fn put_container(answer: &mut impl Answer, path: &ContentPath) {
    for (name, value) in [(CONTENT_PATH, &path.rid), (ALT_CONTENT_PATH, &path.link)] {
        answer.put(&[name], &String::from_utf8_lossy(value));
    }
}

fn put_usage(answer: &mut impl Answer) {
    answer.put(&[RESOURCE_QUOTA], QUOTA);
    answer.put(&[RESOURCE_USAGE], USAGE);
}

fn put_range(answer: &mut impl Answer, range: u32) {
    answer.put_number(&[PHYSICAL_PARTITION_ID, INTERNAL_PARTITION_ID, RANGE_ID], range.into());
}

fn finish<A: Answer>(mut answer: A, body: Bytes) -> A {
    if !body.is_empty() {
        answer.put(&[CONTENT_TYPE], "application/json");
    }
    answer.finish(body)
}

/// What becomes of zeros at the end of a number's decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zeros {
    Keep,
    /// They are left out, and the point with them, as the service writes charges.
    Leave,
}

/// A number of hundredths or thousandths, without the machinery that formats anything: every answer has two.
fn put_decimal(answer: &mut impl Answer, name: HeaderName, units: u64, decimals: usize, zeros: Zeros) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(units);
    let mut text = String::with_capacity(digits.len() + decimals + 1);
    let (whole, part) = digits.split_at(digits.len().saturating_sub(decimals));
    text.push_str(if whole.is_empty() { "0" } else { whole });
    text.push('.');
    (part.len()..decimals).for_each(|_| text.push('0'));
    text.push_str(part);
    let shown = match zeros {
        Zeros::Keep => text.as_str(),
        Zeros::Leave => text.trim_end_matches('0').trim_end_matches('.'),
    };
    answer.put(&[name], shown);
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

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn stamp() -> Stamp<'static> {
        Stamp {
            activity_id: "a-1",
            elapsed: Duration::from_millis(2),
            location: None,
            read_regions: 0,
            date: None,
        }
    }

    #[test]
    fn charges_have_at_most_two_decimals_and_times_have_three() {
        for (charge, text) in [
            (1.0, "1"),
            (6.666_666, "6.67"),
            (0.1 + 0.2, "0.3"),
            (10.05, "10.05"),
            (0.0, "0"),
            (0.04, "0.04"),
        ] {
            let reply = Reply { status: 200, charge, ..Reply::default() };
            let response: Response<Bytes> = Renderer::new("now").reply(reply, &stamp());
            assert_eq!(response.headers()["x-ms-request-charge"], text);
        }
        for (micros, text) in [(0, "0.000"), (7, "0.007"), (2_000, "2.000"), (12_345, "12.345")] {
            let stamp = Stamp { elapsed: Duration::from_micros(micros), ..stamp() };
            let response: Response<Bytes> = Renderer::new("now").reply(Reply::default(), &stamp);
            assert_eq!(response.headers()["x-ms-request-duration-ms"], text);
        }
    }

    #[test]
    fn a_failure_has_the_services_body_and_headers() {
        let failure = Failure {
            retry_after: Some(Duration::from_millis(12)),
            additional_error_info: Some("{}".into()),
            ..Failure::new(429, "slow down").with_sub_status(3200)
        };
        let response: Response<Bytes> = Renderer::new("now").failure(&failure, &stamp());
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
        let response: Response<Bytes> = Renderer::new("now").failure(&Failure::new(304, ""), &stamp());
        assert_eq!(response.status(), 304);
        assert!(response.body().is_empty());
        assert!(!response.headers().contains_key("content-type"));
    }
}
