//! One item: create, upsert, read, replace, patch, delete.

use cosmos_wire::partition_key::PartitionKey;

use super::{Reply, container, decoded, partition_key, session_token, text};
use crate::engine::{Conditions, Container, ItemOp, ItemRequest, Patch, Triggers};
use crate::failure::Failure;
use crate::http::headers::{Asked, name};
use crate::http::route::Target;
use crate::http::{Account, Call};
use crate::operation::Operation;

/// Serves one item operation.
pub(crate) fn run(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let asked = call.asked();
    let container = container(account, call)?;
    let partition_key = partition_key(&asked)?;
    let id = id(account, call, &container, partition_key.as_ref())?;
    let request = ItemRequest {
        partition_key,
        op: operation(call, id)?,
        conditions: Conditions {
            if_match: text(&asked, name::IF_MATCH),
            if_none_match: text(&asked, name::IF_NONE_MATCH),
        },
        session_token: session_token(account, &asked),
    };
    let triggers = Triggers {
        pre: triggers(&asked, name::PRE_TRIGGER_INCLUDE),
        post: triggers(&asked, name::POST_TRIGGER_INCLUDE),
    };
    let reply = if triggers.is_empty() {
        account.engine.item(&container, request)?
    } else {
        account.engine.item_with_triggers(&container, request, &triggers)?
    };
    let minimal = call.operation.is_write() && asked.wants_minimal();
    Ok(Reply {
        status: reply.status,
        body: if minimal { bytes::Bytes::new() } else { reply.body },
        charge: reply.charge,
        etag: reply.etag,
        ticket: reply.ticket,
        documents_visited: u64::from(call.operation != Operation::CreateItem),
        ..Reply::standing(&container, reply.standing, reply.item_lsn)
    })
}

/// The triggers that a header names, with commas between them.
fn triggers(asked: &Asked<'_>, header: http::HeaderName) -> Vec<String> {
    let names = asked.text(header).unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The id of the item in the path. Below a container that is addressed by its resource id, so is the item.
fn id(
    account: &Account,
    call: &Call,
    container: &Container,
    key: Option<&PartitionKey>,
) -> Result<String, Failure> {
    match (&call.route.target, key) {
        (Target::Item(path, rid), Some(key)) if path.container != container.name() => {
            account.engine.item_id_of_rid(container, key, rid)
        }
        (Target::Item(_, id), _) => Ok(id.clone()),
        _ => Ok(String::new()),
    }
}

fn operation(call: &Call, id: String) -> Result<ItemOp, Failure> {
    Ok(match call.operation {
        Operation::CreateItem => ItemOp::Create { body: decoded(&call.body)? },
        Operation::UpsertItem => ItemOp::Upsert { body: decoded(&call.body)? },
        Operation::ReplaceItem => ItemOp::Replace { id, body: decoded(&call.body)? },
        Operation::PatchItem => ItemOp::Patch { id, patch: Patch::parse(&decoded(&call.body)?)? },
        Operation::DeleteItem => ItemOp::Delete { id },
        _ => ItemOp::Read { id },
    })
}
