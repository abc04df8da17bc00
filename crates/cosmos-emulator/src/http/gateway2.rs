//! Endpoints of Gateway 2.0: a frame is what elsewhere is a method, a path and headers, and is answered with one.
//!
//! The frame is turned into the request that it stands for, which goes the way of all requests: who signed it, what fault
//! rules say, what it costs and what the ledger notes of it is the same.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use cosmos_wire::epk::Epk;
use cosmos_wire::gateway2::{self, Operation, PROBE_PATH, Request, Response};
use cosmos_wire::header;
use cosmos_wire::resource::percent_encode;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use super::account::{Entrance, Place};
use super::headers::name;
use crate::regions::{DoorState, Offline};
use crate::server::answer::Answer;
use crate::server::head::Head;
use crate::server::{BodyError, Handler, Received, Reset};

/// An account as clients reach it that send frames.
pub(crate) struct Gateway2Entrance(pub(crate) Entrance);

/// Where the client's frame says that its partition key lies.
#[derive(Clone)]
pub(crate) struct RoutedTo(pub(crate) Epk);

impl Handler for Gateway2Entrance {
    async fn handle<A: Answer>(&self, request: Received) -> Result<A, Reset> {
        if request.head.path() == PROBE_PATH {
            return self.probed().await.map(A::from);
        }
        self.answer(request).await.map(A::from)
    }
}

impl Gateway2Entrance {
    /// Whether frames are taken. Nobody has to say who asks.
    async fn probed(&self) -> Result<http::Response<Bytes>, Reset> {
        let door = &self.0.door;
        if door.offline() == Some(Offline::Hang) {
            door.unhung().await;
        }
        let status = match door.state() {
            DoorState::Open => StatusCode::OK,
            DoorState::Offline(Offline::Refuse) => return Err(Reset),
            DoorState::Offline(Offline::Unavailable | Offline::Hang) | DoorState::Removed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        let mut response = http::Response::new(Bytes::new());
        *response.status_mut() = status;
        Ok(response)
    }

    async fn answer(&self, request: Received) -> Result<http::Response<Bytes>, Reset> {
        let Entrance { account, door } = &self.0;
        door.count_frame();
        let body = match request.body {
            Ok(body) => body,
            Err(BodyError::TooLarge) => return Ok(refused(413, 0, "Request size is too large", [0; 16])),
            Err(BodyError::TooSlow) => {
                return Ok(refused(408, 0, "The body of the request did not arrive in time.", [0; 16]));
            }
            Err(BodyError::NoRoom) => {
                return Ok(refused(503, 0, "Too many large bodies are under way.", [0; 16]));
            }
            Err(BodyError::Truncated | BodyError::Unwanted) => return Err(Reset),
        };
        if request.head.method() != http::Method::POST {
            return Ok(refused(405, 0, "The requested verb is not supported.", [0; 16]));
        }
        let frame = match Request::decode(&body) {
            Ok(frame) => frame,
            Err(error) => return Ok(refused(400, UNROUTABLE, error, [0; 16])),
        };
        let activity_id = frame.activity_id;
        let head = match translated(&request.head, &frame) {
            Ok(head) => head,
            Err(why) => return Ok(refused(400, why.sub_status, why.message, activity_id)),
        };
        let body = frame.body.map_or_else(Bytes::new, |part| body.slice_ref(part));
        let inner = Received { head, body: Ok(body) };
        let answer: http::Response<Bytes> = account.answer(door, inner, Place::Aside).await?;
        Ok(framed(&answer, activity_id))
    }
}

/// Why a frame is not served.
struct Unfit {
    sub_status: u32,
    message: &'static str,
}

/// The head of the request that a frame stands for.
fn translated(outer: &Head, frame: &Request<'_>) -> Result<Head, Unfit> {
    check(frame)?;
    let mut path = String::from("/dbs/");
    percent_encode(&mut path, frame.database);
    path.push_str("/colls/");
    percent_encode(&mut path, frame.container);
    path.push_str("/docs");
    if let Some(item) = frame.item {
        path.push('/');
        percent_encode(&mut path, item);
    }
    let request = http::Request::builder().method(frame.operation.method()).uri(path).body(());
    let (mut parts, ()) =
        request.map_err(|_| Unfit { sub_status: 0, message: "Request url is invalid." })?.into_parts();
    parts.headers = headers(outer, frame);
    if let gateway2::Place::Key(epk) = frame.place {
        parts.extensions.insert(RoutedTo(Epk::from_bytes(epk.to_vec())));
    }
    Ok(Head::of_parts(parts, outer.is_secure))
}

/// What such an endpoint cannot route, or does not serve.
fn check(frame: &Request<'_>) -> Result<(), Unfit> {
    let is_placed = match frame.operation {
        Operation::QueryPlan => true,
        Operation::Query | Operation::ReadFeed => frame.place != gateway2::Place::Anywhere,
        Operation::Create
        | Operation::Patch
        | Operation::Read
        | Operation::Delete
        | Operation::Replace
        | Operation::Upsert
        | Operation::Batch => matches!(frame.place, gateway2::Place::Key(_)),
    };
    if !is_placed {
        let message = "The request does not say which partition it is for.";
        return Err(Unfit { sub_status: UNROUTABLE, message });
    }
    let field = |wanted: &str| frame.fields.iter().find(|(name, _)| *name == wanted).map(|(_, text)| &**text);
    let has_key = field(header::PARTITION_KEY).is_some();
    if matches!(frame.place, gateway2::Place::Key(_)) && !has_key && frame.operation != Operation::QueryPlan {
        let message = "The request does not name its partition key.";
        return Err(Unfit { sub_status: UNROUTABLE, message });
    }
    if field(header::SESSION_TOKEN).is_some_and(|token| token.contains(',')) {
        let message = "The session token is of several partitions; the request is for one.";
        return Err(Unfit { sub_status: 0, message });
    }
    let is_full = |feed: &str| feed.trim().eq_ignore_ascii_case(header::value::FULL_FIDELITY_FEED);
    if field(header::A_IM).is_some_and(is_full) {
        let message = "The change feed of all versions and deletes is not served here.";
        return Err(Unfit { sub_status: 0, message });
    }
    Ok(())
}

fn headers(outer: &Head, frame: &Request<'_>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(24);
    let mut put = |name: HeaderName, value: &[u8]| {
        // What is no value of a header was refused when the frame was read.
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    };
    let activity_id = uuid::Uuid::from_bytes(frame.activity_id);
    put(
        name::ACTIVITY_ID,
        activity_id.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()).as_bytes(),
    );
    for (name, value) in
        [(name::VERSION, outer.fields().get(name::VERSION)), (HOST, outer.host().map(str::as_bytes))]
    {
        if let Some(value) = value {
            put(name, value);
        }
    }
    for (name, value) in of_operation(frame.operation) {
        put(HeaderName::from_static(name), value.as_bytes());
    }
    for (name, text) in &frame.fields {
        put(HeaderName::from_static(name), text.as_bytes());
    }
    if let Some(rid) = frame.container_rid {
        put(name::INTENDED_COLLECTION_RID, rid.as_bytes());
    }
    if let gateway2::Place::Range(min, max) = frame.place {
        let hex = |bytes: &[u8]| Epk::from_bytes(bytes.to_vec()).to_hex();
        put(name::READ_KEY_TYPE, header::value::EPK_RANGE.as_bytes());
        put(name::START_EPK, hex(min).as_bytes());
        put(name::END_EPK, hex(max).as_bytes());
    }
    headers
}

/// The headers that say elsewhere what is asked.
fn of_operation(operation: Operation) -> &'static [(&'static str, &'static str)] {
    const JSON: (&str, &str) = (header::CONTENT_TYPE, header::value::JSON);
    const SQL: (&str, &str) = (header::CONTENT_TYPE, header::value::QUERY_JSON);
    const EVERYWHERE: (&str, &str) = (header::QUERY_ENABLE_CROSS_PARTITION, "True");
    match operation {
        Operation::Read | Operation::ReadFeed | Operation::Delete => &[],
        Operation::Create | Operation::Replace => &[JSON],
        Operation::Upsert => &[JSON, (header::IS_UPSERT, "True")],
        Operation::Patch => &[(header::CONTENT_TYPE, header::value::PATCH_JSON)],
        Operation::Query => &[SQL, EVERYWHERE, (header::IS_QUERY, "True")],
        Operation::QueryPlan => &[SQL, EVERYWHERE, (header::IS_QUERY_PLAN_REQUEST, "True")],
        // One that does not say so is all or nothing: clients without bulk leave the token out.
        Operation::Batch => &[JSON, (header::IS_BATCH_REQUEST, "True"), (header::BATCH_ATOMIC, "True")],
    }
}

/// An answer in a frame. HTTP has a status, too: that of the frame, where it lets an answer have a body.
fn framed(answer: &http::Response<Bytes>, activity_id: [u8; 16]) -> http::Response<Bytes> {
    let text = |name: &str| std::str::from_utf8(answer.headers().get(name)?.as_bytes()).ok();
    let fields = gateway2::response_headers().filter_map(|name| Some((name, Cow::Borrowed(text(name)?))));
    let (status, fields) = (answer.status().as_u16(), fields.collect());
    let frame = Response { status, activity_id, fields, body: answer.body() }.encode();
    let (status, frame) = frame.map_or_else(
        |_| (500, failure(500, 0, "A header of the answer is too long for a frame.", activity_id)),
        |frame| (status, frame),
    );
    let outer = if matches!(status, 204 | 304) { 200 } else { status };
    let mut response = http::Response::new(Bytes::from(frame));
    *response.status_mut() = StatusCode::from_u16(outer).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response
}

/// The answer to a frame that stands for no request.
fn refused(status: u16, sub_status: u32, why: impl fmt::Display, id: [u8; 16]) -> http::Response<Bytes> {
    let mut response = http::Response::new(Bytes::from(failure(status, sub_status, why, id)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    response
}

fn failure(status: u16, sub_status: u32, why: impl fmt::Display, activity_id: [u8; 16]) -> Vec<u8> {
    let code = cosmos_wire::status::Status::new(status, sub_status).code_text();
    let body = json!({"code": code, "message": why.to_string()}).to_string();
    let fields = vec![(header::SUBSTATUS, Cow::Owned(sub_status.to_string()))];
    // Nothing of this is long.
    Response { status, activity_id, fields, body: body.as_bytes() }.encode().unwrap_or_default()
}

/// The sub-status of what cannot be routed.
const UNROUTABLE: u32 = 13007;
