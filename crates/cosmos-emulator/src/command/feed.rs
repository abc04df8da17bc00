//! Items without a query: all of them, or those that changed.

use bytes::Bytes;

use super::{Envelope, Reply, container, page_size, scope, session_token, text};
use crate::engine::{FeedRequest, FeedStart, ReadFeedRequest};
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::{Account, Call};

/// All items of a scope, page by page.
pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let page = account.engine.read_feed(
        &container,
        ReadFeedRequest {
            scope: scope(&asked, &container)?,
            page_size: page_size(&asked)?,
            continuation: text(&asked, name::CONTINUATION),
            session_token: session_token(account, &asked),
        },
    )?;
    let count = page.documents.len();
    Ok(Reply {
        body: Envelope::new(&container.rid(), "Documents").texts(&page.documents),
        charge: page.charge,
        continuation: page.continuation,
        item_count: Some(count),
        documents_visited: count as u64,
        ..Reply::standing(&container, page.standing, None)
    })
}

/// Items in the order they changed.
pub(crate) fn changes(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let request = FeedRequest {
        scope: scope(&asked, &container)?,
        start: start(&asked)?,
        page_size: page_size(&asked)?,
        session_token: session_token(account, &asked),
    };
    let mut page = if asked.is_full_fidelity() {
        account.engine.all_versions(&container, request)?
    } else {
        account.engine.change_feed(&container, request)?
    };
    if !asked.is_full_fidelity() && asked.text(name::CHANGE_FEED_WIRE_FORMAT_VERSION).is_some() {
        page.documents = page.documents.iter().map(enveloped).collect();
    }
    let count = page.documents.len();
    let body = if page.status == 304 {
        Bytes::new()
    } else {
        Envelope::new(&container.rid(), "Documents").texts(&page.documents)
    };
    Ok(Reply {
        status: page.status,
        body,
        charge: page.charge,
        etag: Some(page.etag),
        item_count: Some(count),
        documents_visited: count as u64,
        ..Reply::standing(&container, page.standing, None)
    })
}

/// An item as the form of full fidelity shows it.
fn enveloped(document: &Bytes) -> Bytes {
    Bytes::from([b"{\"current\":", &document[..], b"}"].concat())
}

fn start(asked: &Asked<'_>) -> Result<FeedStart, Failure> {
    if let Some(token) = asked.text(name::IF_NONE_MATCH) {
        return Ok(match token.trim() {
            "*" | "\"*\"" => FeedStart::Now,
            token => FeedStart::After(token.to_owned()),
        });
    }
    match asked.text(name::IF_MODIFIED_SINCE) {
        None => Ok(FeedStart::Beginning),
        Some(text) => cosmos_wire::date::parse(text).map(FeedStart::Time).ok_or_else(|| {
            Failure::bad_request("Invalid If-Modified-Since header: it must be an RFC 1123 date.")
        }),
    }
}
