//! What databases, containers and offers have in common.

use cosmos_wire::number::Style;
use serde_json::Value;

use super::query::question;
use super::{Envelope, Reply, page_size, text};
use crate::engine::{ResourceFeed, ResourceReply, Throughput, increment_percent};
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::{Account, Call};
use crate::sql::{self, List, PageLimits, Prepared};

/// The id that session tokens give the partition of the catalog.
const MASTER_RANGE: u32 = u32::MAX;

/// The answer to a request for one resource.
pub(super) fn reply(answer: ResourceReply) -> Reply {
    Reply {
        charge: answer.charge,
        etag: Some(answer.etag).filter(|etag| !etag.is_empty()),
        // Databases and containers are kept in a partition of their own, which nobody ever reads by session.
        session_token: answer.ticket.map(|ticket| format!("{MASTER_RANGE}:-1#{}", ticket.0)),
        ticket: answer.ticket,
        ..Reply::json(answer.status, &answer.body)
    }
}

/// A page of a list of resources.
pub(super) fn feed(call: &Call, list: &ResourceFeed, member: &'static str) -> Result<Reply, Failure> {
    let asked = call.asked();
    let rows_max = page_size(&asked)?.rows_max();
    let start = start(&asked)?.min(list.resources.len());
    let end = start.saturating_add(rows_max).min(list.resources.len());
    let page = &list.resources[start..end];
    Ok(Reply {
        status: 200,
        body: Envelope::new(&list.rid, member).values(page, Style::Point),
        charge: list.charge,
        item_count: Some(page.len()),
        continuation: (end < list.resources.len()).then(|| format!("{CONTINUATION_MARK}{end}")),
        ..Reply::default()
    })
}

/// A page of what a query makes of the resources.
pub(super) fn query(
    account: &Account,
    call: &Call,
    list: ResourceFeed,
    member: &'static str,
) -> Result<Reply, Failure> {
    let asked = call.asked();
    let question = question(call)?;
    let prepared = Prepared::new(&sql::parse(&question.text)?, &question.parameters)?;
    let limits = PageLimits {
        items_max: page_size(&asked)?.rows_max(),
        leash: call.leash.clone(),
        ..PageLimits::default()
    };
    let continuation = asked.text(name::CONTINUATION);
    let page = prepared.page(&List::new(list.resources), &limits, continuation, account.clock.now())?;
    Ok(Reply {
        status: 200,
        body: Envelope::new(&list.rid, member).values(&page.rows, Style::Query),
        charge: list.charge,
        item_count: Some(page.rows.len()),
        continuation: page.continuation,
        documents_visited: page.visited,
        ..Reply::default()
    })
}

/// Continuations of these lists say how many resources were passed.
const CONTINUATION_MARK: &str = "#OFFSET:";

fn start(asked: &Asked<'_>) -> Result<usize, Failure> {
    let Some(token) = text(asked, name::CONTINUATION) else { return Ok(0) };
    token
        .strip_prefix(CONTINUATION_MARK)
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| Failure::bad_request("Invalid Continuation Token"))
}

/// The throughput a create asks for.
pub(super) fn throughput(asked: &Asked<'_>) -> Result<Option<Throughput>, Failure> {
    let manual = asked.text(name::OFFER_THROUGHPUT);
    let autoscale = asked.text(name::OFFER_AUTOPILOT_SETTINGS);
    match (manual, autoscale) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Failure::bad_request(
            "x-ms-offer-throughput and x-ms-cosmos-offer-autopilot-settings exclude each other.",
        )),
        (Some(text), None) => match text.trim().parse() {
            Ok(units) => Ok(Some(Throughput::Manual(units))),
            Err(_) => Err(Failure::bad_request(
                "Invalid x-ms-offer-throughput header: it must be a number of RU/s.",
            )),
        },
        (None, Some(text)) => {
            let settings: Value = serde_json::from_str(text).unwrap_or_default();
            let units = &settings["maxThroughput"];
            if let Some(units) = units.as_i64().filter(|units| *units < 0) {
                return Err(Failure::bad_request(format!(
                    "Requested throughput {units} is less than required minimum throughput 1000"
                )));
            }
            match units.as_u64() {
                Some(units) => Ok(Some(Throughput::Autoscale(units, increment_percent(&settings)))),
                None => Err(Failure::bad_request(
                    "Invalid x-ms-cosmos-offer-autopilot-settings header: it must be {\"maxThroughput\": RU/s}.",
                )),
            }
        }
    }
}
