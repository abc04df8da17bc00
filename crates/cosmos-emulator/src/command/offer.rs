//! Offers: the throughput of databases and containers.

use cosmos_wire::header;
use http::{HeaderName, HeaderValue};

use super::resource::{self, feed, reply};
use super::{Reply, decoded};
use crate::engine::OfferMigration;
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::route::Target;
use crate::http::{Account, Call};

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(settled(reply(account.engine.read_offer(id(call)?)?)))
}

pub(crate) fn list(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(settled(feed(call, &account.engine.offers()?, "Offers")?))
}

pub(crate) fn query(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(settled(resource::query(account, call, account.engine.offers()?, "Offers")?))
}

pub(crate) fn replace(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let wanted = |name| asked.text(name).is_some_and(header::is_true);
    let migration = if wanted(name::MIGRATE_OFFER_TO_AUTOPILOT) {
        OfferMigration::ToAutoscale
    } else if wanted(name::MIGRATE_OFFER_TO_MANUAL) {
        OfferMigration::ToManual
    } else {
        OfferMigration::None
    };
    Ok(settled(reply(account.engine.replace_offer(id(call)?, &decoded(&call.body)?, migration)?)))
}

fn id(call: &Call) -> Result<&str, Failure> {
    match &call.route.target {
        Target::Offer(id) => Ok(id),
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}

/// Changes of throughput take effect at once here.
fn settled(mut reply: Reply) -> Reply {
    const REPLACE_PENDING: HeaderName = HeaderName::from_static(header::OFFER_REPLACE_PENDING);
    const MIN_THROUGHPUT: HeaderName = HeaderName::from_static(header::MIN_THROUGHPUT);
    reply.extra.push((REPLACE_PENDING, HeaderValue::from_static("false")));
    reply.extra.push((MIN_THROUGHPUT, HeaderValue::from_static("400")));
    reply
}
