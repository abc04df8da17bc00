//! A whole logical partition: delete its items.

use cosmos_wire::partition_key::PartitionKey;
use serde::Deserialize;

use super::{Reply, container, partition_key};
use crate::engine::{
    Conditions, Container, ItemOp, ItemReply, ItemRequest, PageSize, ReadFeedRequest, Scope,
};
use crate::failure::Failure;
use crate::http::{Account, Call};

/// Items deleted between two looks at the partition.
const PAGE: PageSize = PageSize::AtMost(100);

#[derive(Deserialize)]
struct Named {
    id: String,
}

/// Deletes every item with the partition key of the request. The service does so in the background, one item after
/// the other; here it is done when the answer comes.
pub(crate) fn delete(account: &Account, call: &Call) -> Result<Reply, Failure> {
    let container = container(account, call)?;
    let key = partition_key(&call.asked())?.ok_or_else(|| {
        Failure::bad_request("x-ms-documentdb-partitionkey is required to delete a partition.")
    })?;
    let mut reply = Reply { status: 200, ..Reply::default() };
    loop {
        let request = ReadFeedRequest {
            scope: Scope::PartitionKey(key.clone()),
            page_size: PAGE,
            continuation: None,
            session_token: None,
        };
        let page = account.engine.read_feed(&container, request)?;
        reply.charge += page.charge;
        if page.documents.is_empty() {
            return Ok(Reply {
                charge: reply.charge,
                ticket: reply.ticket,
                documents_visited: reply.documents_visited,
                ..Reply::standing(&container, page.standing, None)
            });
        }
        for document in &page.documents {
            let named: Named = serde_json::from_slice(document)
                .map_err(|_| Failure::new(500, "A stored item cannot be read; its data is damaged."))?;
            reply.documents_visited += 1;
            if let Some(deleted) = delete_one(account, &container, &key, named.id)? {
                reply.charge += deleted.charge;
                reply.ticket = deleted.ticket.or(reply.ticket);
            }
        }
    }
}

/// Deletes one item; nothing if somebody else did so first.
fn delete_one(
    account: &Account,
    container: &Container,
    key: &PartitionKey,
    id: String,
) -> Result<Option<ItemReply>, Failure> {
    let request = ItemRequest {
        partition_key: Some(key.clone()),
        op: ItemOp::Delete { id },
        conditions: Conditions::default(),
        session_token: None,
    };
    match account.engine.item(container, request) {
        Ok(reply) => Ok(Some(reply)),
        Err(failure) if failure.status == 404 => Ok(None),
        Err(failure) => Err(failure),
    }
}
