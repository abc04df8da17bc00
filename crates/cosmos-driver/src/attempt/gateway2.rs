//! Requests and answers in the form of Gateway 2.0.
//!
//! A request is built and signed as for the ordinary gateway; [`wrapped`] turns it into a frame, and [`unwrapped`] turns
//! the frame that answers it into what the ordinary gateway would have said. What a frame cannot carry without losing
//! something goes to the ordinary gateway.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::gateway2::{self, Operation as Asked, Place, Request, Response};
use cosmos_wire::header;
use http::header::{CACHE_CONTROL, DATE, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use uuid::Uuid;

use super::Try;
use super::build::{Ask, Message};
use crate::driver::Core;
use crate::options::Consistency;
use crate::request::{Kind, Operation, Target};
use crate::routing::gateway2::Gateway2Endpoint;
use crate::transport::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, Sent};

/// The way to a region by Gateway 2.0.
#[derive(Clone, Debug)]
pub(super) struct Gateway2Route {
    pub(super) endpoint: Arc<Gateway2Endpoint>,
    account: Arc<str>,
    /// What the account promises.
    level: Option<Consistency>,
}

/// The way an attempt takes, if there is one besides the ordinary gateway and the operation may take it.
pub(super) fn way(core: &Core, operation: &Operation, attempt: &Try<'_>) -> Option<Gateway2Route> {
    let account = core.router.account();
    let endpoint = account.gateway2.ready(&attempt.endpoint.region, operation.kind.is_read())?;
    is_eligible(operation, &attempt.message).then(|| Gateway2Route {
        endpoint: endpoint.clone(),
        account: account.gateway2.account.clone(),
        level: account.consistency,
    })
}

/// What is asked, in the words of frames.
fn asked(kind: Kind) -> Option<Asked> {
    match kind {
        Kind::CreateItem => Some(Asked::Create),
        Kind::ReadItem => Some(Asked::Read),
        Kind::ReplaceItem => Some(Asked::Replace),
        Kind::UpsertItem => Some(Asked::Upsert),
        Kind::DeleteItem => Some(Asked::Delete),
        Kind::PatchItem => Some(Asked::Patch),
        Kind::Batch => Some(Asked::Batch),
        Kind::Query => Some(Asked::Query),
        Kind::QueryPlan => Some(Asked::QueryPlan),
        Kind::ChangeFeed => Some(Asked::ReadFeed),
        // No public client sends bulk requests this way, and everything else is not about items.
        Kind::Bulk
        | Kind::ReadAccount
        | Kind::CreateDatabase
        | Kind::ReadDatabase
        | Kind::ListDatabases
        | Kind::DeleteDatabase
        | Kind::CreateContainer
        | Kind::ReadContainer
        | Kind::ListContainers
        | Kind::ReplaceContainer
        | Kind::DeleteContainer
        | Kind::ReadRanges
        | Kind::QueryOffers
        | Kind::ReplaceOffer => None,
    }
}

/// Whether a frame says everything that the request says, and one partition can answer it. Pure.
fn is_eligible(operation: &Operation, message: &Message<'_>) -> bool {
    let is_placed = match &operation.target {
        Target::Key { epk, .. } => !epk.as_bytes().is_empty(),
        Target::Range { .. } => message.range.is_some(),
        Target::None => operation.kind == Kind::QueryPlan,
    };
    // A token of several ranges is refused there.
    let is_of_one_range = message.session.is_none_or(|token| !token.as_bytes().contains(&b','));
    let is_latest_version = operation.headers.iter().all(|(name, value)| {
        name.as_str() != header::A_IM || value.as_bytes() != header::value::FULL_FIDELITY_FEED.as_bytes()
    });
    asked(operation.kind).is_some()
        && operation.container.is_some()
        && is_placed
        && is_of_one_range
        && is_latest_version
        && operation.headers.iter().all(|(name, _)| gateway2::carries(name.as_str()))
}

/// The request as a frame. None if a frame cannot carry it: a value may be too long, or no text.
pub(super) fn wrapped(
    request: &HttpRequest,
    operation: &Operation,
    message: &Message<'_>,
    way: &Gateway2Route,
) -> Option<HttpRequest> {
    let container = operation.container.as_ref()?;
    let (database, name) = container.name.split_once('/')?;
    let operation_asked = asked(operation.kind)?;
    let mut fields = Vec::with_capacity(16);
    for name in gateway2::request_headers() {
        if let Some(value) = request.headers.get(name) {
            fields.push((name, Cow::Borrowed(std::str::from_utf8(value.as_bytes()).ok()?)));
        }
    }
    // What the account promises is said as well: other clients do so, and say what they can do.
    if let (Ask::Nothing, Some(level)) = (message.consistency, way.level) {
        fields.push((header::CONSISTENCY_LEVEL, Cow::Borrowed(level.as_str())));
    }
    fields.push((header::SDK_SUPPORTED_CAPABILITIES, Cow::Borrowed(CAPABILITIES)));
    let place = match &operation.target {
        Target::None => Place::Anywhere,
        Target::Key { epk, .. } => Place::Key(epk.as_bytes()),
        Target::Range { want, .. } => Place::Range(want.min.as_bytes(), want.max.as_bytes()),
    };
    let item = operation.link.strip_prefix("dbs/").and_then(|link| {
        link.strip_prefix(database)?.strip_prefix("/colls/")?.strip_prefix(name)?.strip_prefix("/docs/")
    });
    let activity = Uuid::parse_str(message.activity.to_str().ok()?).ok()?;
    let frame = Request {
        operation: operation_asked,
        activity_id: activity.into_bytes(),
        account: &way.account,
        database,
        container: name,
        container_rid: Some(&container.rid),
        item: item.filter(|_| operation_asked.names_an_item()),
        place,
        fields,
        body: (!request.body.is_empty()).then_some(&request.body),
    };
    // A small body goes with its frame, in one piece; a large one is not copied.
    let is_joined = request.body.len() <= JOINED_BYTES_MAX;
    let before_body = if is_joined { frame.encode() } else { frame.encode_before_body() };
    let before_body = before_body.ok()?.into();
    Some(HttpRequest {
        method: Method::POST,
        path: request.path.clone(),
        headers: outer_headers(request, &frame, &container.rid_header)?,
        before_body,
        body: if is_joined { Bytes::new() } else { request.body.clone() },
        may_leave: request.may_leave,
        is_metadata: request.is_metadata,
        label: request.label.clone(),
    })
}

/// What stands outside of the frame.
fn outer_headers(request: &HttpRequest, frame: &Request<'_>, rid: &HeaderValue) -> Option<HeaderMap> {
    let named = HeaderName::from_static;
    let text = HeaderValue::from_static;
    let mut headers = HeaderMap::with_capacity(12);
    for name in [USER_AGENT, CACHE_CONTROL, named(header::VERSION), named(header::ACTIVITY_ID)] {
        if let Some(value) = request.headers.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(named(header::THINCLIENT_USE), text("true"));
    headers.insert(named(header::THINCLIENT_OPERATION_TYPE), text(frame.operation.name()));
    headers.insert(named(header::THINCLIENT_RESOURCE_TYPE), text("Document"));
    headers.insert(named(header::GLOBAL_DATABASE_ACCOUNT_NAME), HeaderValue::from_str(frame.account).ok()?);
    headers.insert(named(header::COLLECTION_RID), rid.clone());
    if frame.operation == Asked::Query && matches!(frame.place, Place::Range(..)) {
        // They say that the bounds are in the frame.
        headers.insert(named(header::THINCLIENT_RANGE_MIN), text("true"));
        headers.insert(named(header::THINCLIENT_RANGE_MAX), text("true"));
    }
    Some(headers)
}

/// The answer that a frame holds.
pub(super) fn unwrapped(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let frame = match Response::decode(&response.body) {
        Ok(frame) => frame,
        Err(error) => return no_frame(&error, response),
    };
    let broken = |why: &str| HttpError::new(HttpErrorKind::Protocol, Sent::Unknown, why.to_owned());
    let status = StatusCode::from_u16(frame.status).map_err(|_| broken("an answer has no status of HTTP"))?;
    let mut headers = HeaderMap::with_capacity(frame.fields.len() + 2);
    for (name, text) in &frame.fields {
        let value = HeaderValue::from_bytes(text.as_bytes())
            .map_err(|_| broken("an answer has a value that no header can have"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    if let Some(date) = response.headers.get(DATE) {
        headers.insert(DATE, date.clone());
    }
    let body = response.body.slice_ref(frame.body);
    Ok(HttpResponse { status, headers, body })
}

/// An answer without a frame comes from a proxy on the way. One that throttles is as good as ever; one that refuses has
/// not let the request through; after all others the request may have been executed.
fn no_frame(error: &gateway2::InvalidFrame, response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let code = response.status.as_u16();
    let sent = match code {
        429 => return Ok(response),
        400..=407 | 409..=499 => Sent::No,
        _ => Sent::Unknown,
    };
    let why = format!("Gateway 2.0 answered {code}; {error}");
    Err(HttpError::new(HttpErrorKind::Protocol, sent, why))
}

/// Bodies up to this length are copied behind their frame.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// Bits of what a client can do: partitions may merge (1), tokens may come that it does not know (8).
const CAPABILITIES: &str = "9";

#[cfg(test)]
mod tests {
    use cosmos_wire::resource::ResourceKind;
    use http::uri::PathAndQuery;

    use super::*;

    fn response(status: u16, body: Vec<u8>) -> HttpResponse {
        let status = StatusCode::from_u16(status).expect("a status");
        HttpResponse { status, headers: HeaderMap::new(), body: Bytes::from(body) }
    }

    fn frame(status: u16) -> Vec<u8> {
        let fields = vec![(header::SUBSTATUS, "1002".into()), (header::REQUEST_CHARGE, "2.5".into())];
        Response { status, activity_id: [0; 16], fields, body: b"{}" }.encode().expect("a frame")
    }

    #[test]
    fn the_frame_says_what_was_answered_whatever_stands_outside() {
        for outer in [200, 404, 503] {
            let answer = unwrapped(response(outer, frame(404))).expect("an answer");
            assert_eq!(answer.status, 404, "outside {outer}");
            assert_eq!(answer.headers["x-ms-substatus"], "1002");
            assert_eq!(answer.headers["x-ms-request-charge"], "2.5");
            assert_eq!(answer.body, "{}");
        }
    }

    #[test]
    fn an_answer_without_a_frame_says_whether_the_request_can_have_arrived() {
        for (status, sent) in [
            (200, Sent::Unknown),
            (204, Sent::Unknown),
            (302, Sent::Unknown),
            (400, Sent::No),
            (404, Sent::No),
            (405, Sent::No),
            (408, Sent::Unknown),
            (413, Sent::No),
            (500, Sent::Unknown),
            (502, Sent::Unknown),
            (503, Sent::Unknown),
        ] {
            let cut = frame(200)[..30].to_vec();
            for body in [Vec::new(), b"<html>no</html>".to_vec(), cut] {
                let error = unwrapped(response(status, body)).expect_err("no frame");
                assert_eq!((error.kind, error.sent), (HttpErrorKind::Protocol, sent), "{status}");
            }
        }
        assert_eq!(unwrapped(response(429, Vec::new())).expect("it throttles").status, 429);
    }

    #[test]
    fn operations_that_lose_nothing_in_a_frame_are_eligible() {
        let activity = HeaderValue::from_static("0");
        let message = Message {
            activity: &activity,
            session: None,
            range: None,
            is_part_of_range: false,
            is_tentative_write: false,
            consistency: Ask::Nothing,
        };
        let plan = Operation::new(
            Kind::QueryPlan,
            ResourceKind::Document,
            "".into(),
            PathAndQuery::from_static("/"),
        );
        assert!(!is_eligible(&plan, &message), "of no container");
        for kind in [Kind::Bulk, Kind::ReadContainer, Kind::ReadRanges, Kind::ReadAccount] {
            assert_eq!(asked(kind), None, "{kind:?}");
        }
        for kind in [Kind::ReadItem, Kind::Batch, Kind::Query, Kind::ChangeFeed, Kind::QueryPlan] {
            assert!(asked(kind).is_some(), "{kind:?}");
        }
    }
}
