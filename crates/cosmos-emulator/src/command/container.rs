//! Containers: create, read, replace, list, query, delete; and the feeds below one that are always empty.

use cosmos_wire::header;
use http::{HeaderName, HeaderValue};

use super::resource::{self, feed, reply, throughput};
use super::{Envelope, Reply, container_path, database, decoded};
use crate::engine::ResourceReply;
use crate::failure::Failure;
use crate::http::route::Target;
use crate::http::{Account, Call};

pub(crate) fn create(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let throughput = throughput(&call.asked())?;
    let body = decoded(&call.body)?;
    Ok(with_limits(account.engine.create_container(database::name(call)?, &body, throughput)?))
}

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    Ok(with_limits(account.engine.read_container(&path.database, &path.container)?))
}

pub(crate) fn replace(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    let if_match = call.asked().text(header::IF_MATCH);
    let body = decoded(&call.body)?;
    Ok(with_limits(account.engine.replace_container(&path.database, &path.container, &body, if_match)?))
}

pub(crate) fn list(account: &Account, call: &Call) -> Result<Reply, Failure> {
    feed(call, &account.engine.containers(database::name(call)?)?, "DocumentCollections")
}

pub(crate) fn query(account: &Account, call: &Call) -> Result<Reply, Failure> {
    resource::query(account, call, account.engine.containers(database::name(call)?)?, "DocumentCollections")
}

pub(crate) fn delete(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let path = container_path(call)?;
    let if_match = call.asked().text(header::IF_MATCH);
    Ok(reply(account.engine.delete_container(&path.database, &path.container, if_match)?))
}

/// A feed of things this server does not keep.
pub(crate) fn empty_feed(_: &Account, call: &Call) -> Result<Reply, Failure> {
    let member = match call.route.target {
        Target::Absent(member) => member,
        _ => "Resources",
    };
    let body = Envelope::new("", member).texts(&[]);
    Ok(Reply { status: 200, body, charge: 1.0, item_count: Some(0), ..Reply::default() })
}

/// A container's answer says how large its items may be, and that its index is complete.
fn with_limits(answer: ResourceReply) -> Reply {
    const MAX_CONTENT_LENGTH: HeaderName = HeaderName::from_static(header::MAX_CONTENT_LENGTH);
    const INDEX_PROGRESS: HeaderName = HeaderName::from_static(header::INDEX_TRANSFORMATION_PROGRESS);
    let mut reply = reply(answer);
    reply.extra.push((MAX_CONTENT_LENGTH, HeaderValue::from_static("2097152")));
    reply.extra.push((INDEX_PROGRESS, HeaderValue::from_static("100")));
    reply
}
