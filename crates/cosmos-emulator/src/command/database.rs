//! Databases: create, read, list, query, delete.

use super::resource::{self, feed, reply, throughput};
use super::{Reply, decoded};
use crate::failure::Failure;
use crate::http::headers::name;
use crate::http::route::Target;
use crate::http::{Account, Call};

pub(crate) fn create(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let throughput = throughput(&call.asked())?;
    Ok(reply(account.engine.create_database(&decoded(&call.body)?, throughput)?))
}

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(reply(account.engine.read_database(name(call)?)?))
}

pub(crate) fn list(account: &Account, call: &Call) -> Result<Reply, Failure> {
    feed(call, &account.engine.databases()?, "Databases")
}

pub(crate) fn query(account: &Account, call: &Call) -> Result<Reply, Failure> {
    resource::query(account, call, account.engine.databases()?, "Databases")
}

pub(crate) fn delete(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let if_match = call.asked().text(name::IF_MATCH);
    Ok(reply(account.engine.delete_database(name(call)?, if_match)?))
}

/// The database a call is about.
pub(super) fn name(call: &Call) -> Result<&str, Failure> {
    match &call.route.target {
        Target::Database(name) | Target::Containers(name) => Ok(name),
        _ => Err(Failure::bad_request("Request url is invalid.")),
    }
}
