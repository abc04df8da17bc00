//! Conflicts that the owner of a container settles himself.

use super::resource::{feed, query, reply};
use super::{Reply, container, partition_key};
use crate::failure::Failure;
use crate::http::route::Target;
use crate::http::{Account, Call};

pub(crate) fn list(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let key = partition_key(&asked)?;
    if asked.is_query() && key.is_none() && !asked.allows_cross_partition() {
        return Err(Failure::bad_request(
            "Cross partition query is required but disabled. Please set \
             x-ms-documentdb-query-enablecrosspartition to true, or specify x-ms-documentdb-partitionkey.",
        ));
    }
    let conflicts = account.engine.conflicts(&*container(account, call)?, key.as_ref())?;
    if asked.is_query() {
        return query(account, call, conflicts, "Conflicts");
    }
    feed(call, &conflicts, "Conflicts")
}

pub(crate) fn read(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(reply(account.engine.conflict(&*container(account, call)?, id(call)?)?))
}

pub(crate) fn delete(account: &Account, call: &Call) -> Result<Reply, Failure> {
    Ok(reply(account.engine.delete_conflict(&*container(account, call)?, id(call)?)?))
}

fn id(call: &Call) -> Result<&str, Failure> {
    match &call.route.target {
        Target::Conflict(_, id) => Ok(id),
        _ => Err(Failure::not_found()),
    }
}
