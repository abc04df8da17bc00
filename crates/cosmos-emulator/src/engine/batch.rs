//! Batches: all or nothing under one lock and one LSN, or one step after the other.

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::partition_key::PartitionKey;

use super::Engine;
use super::container::{Container, epk_key, too_few_components};
use super::document;
use super::item::{self, Done};
use super::request::{BatchMode, BatchOperation, BatchReply, BatchRequest, BatchResult, ItemOp, ItemRequest};
use super::writer::Writer;
use crate::Failure;

/// The most steps of one batch.
pub(crate) const OPERATIONS_MAX: usize = 100;

/// What the service says of a batch whose key does not fit its container.
const WRONG_KEY: &str = "Partition key provided either doesn't correspond to definition in the collection or doesn't \
                         match partition key field values specified in the document.";

impl Engine {
    /// A transactional batch or a bulk request.
    ///
    /// # Errors
    /// 400 or 413 when the request as a whole is refused; failures of steps are results inside a 207.
    pub fn batch(&self, container: &Container, request: BatchRequest) -> Result<BatchReply, Failure> {
        container.check_exists()?;
        if request.operations.is_empty() {
            return Err(Failure::bad_request("Batch request has no operations."));
        }
        if request.operations.len() > OPERATIONS_MAX {
            return Err(Failure::bad_request("Batch request has more operations than what is supported."));
        }
        if request.body_bytes > document::BYTES_MAX {
            return Err(document::too_large());
        }
        match request.mode {
            BatchMode::Atomic => self.atomic(container, request),
            BatchMode::Bulk | BatchMode::BulkUntilFailure => self.bulk(container, request),
        }
    }

    fn atomic(&self, container: &Container, request: BatchRequest) -> Result<BatchReply, Failure> {
        let key = request.partition_key.as_ref().ok_or_else(too_few_components)?;
        let epk =
            container.epk(key).map_err(|failure| Failure { message: WRONG_KEY.to_owned(), ..failure })?;
        let shape = self.current_shape(container)?;
        let partition = Arc::clone(shape.partition_of(container.region, &epk));
        self.catch_up(container, &partition)?;
        let topology = self.topology();
        partition.check_session(&topology, request.session_token.as_deref())?;
        let turn = self
            .admit(container, &shape, &partition)
            .map_err(|failure| item::from_partition(failure, container, partition.standing(&topology, 0)))?;
        let epk = epk_key(&epk);
        let mut writer = Writer::begin(self, container, &partition)?;
        let count = request.operations.len();
        let mut results = Vec::with_capacity(count);
        let (mut failed, mut spent) = (None, 0.0);
        for operation in request.operations {
            let done = turn
                .check(spent)
                .and_then(|()| prepare(container, key, operation))
                .and_then(|(prepared, conditions)| item::apply(&mut writer, &epk, prepared, &conditions));
            match done {
                Ok(done) => {
                    spent += done.charge;
                    results.push(succeeded(done));
                }
                Err(failure) => {
                    failed = Some((results.len(), failure));
                    break;
                }
            }
        }
        if let Some((at, failure)) = failed {
            drop(writer);
            let standing = partition.standing(&topology, 0);
            let charge = spent + failure.charge;
            turn.settle(charge);
            let mut results: Vec<_> = (0..count).map(|_| dependent()).collect();
            results[at] = refused(failure);
            return Ok(BatchReply { status: 207, results, charge, standing, ticket: None });
        }
        let (lsn, acted) = (writer.lsn(), writer.topology());
        let ticket = writer.commit()?;
        turn.settle(spent);
        Ok(BatchReply {
            status: 200,
            results,
            charge: spent,
            standing: partition.standing(acted.as_ref().unwrap_or(&topology), lsn),
            ticket,
        })
    }

    fn bulk(&self, container: &Container, request: BatchRequest) -> Result<BatchReply, Failure> {
        let stop_at_failure = request.mode == BatchMode::BulkUntilFailure;
        let mut results = Vec::with_capacity(request.operations.len());
        let (mut standing, mut ticket, mut stopped) = (None, None, false);
        for operation in request.operations {
            if stopped {
                results.push(dependent());
                continue;
            }
            let done = self.item(
                container,
                ItemRequest {
                    partition_key: operation.partition_key.or_else(|| request.partition_key.clone()),
                    op: operation.op,
                    conditions: operation.conditions,
                    session_token: request.session_token.clone(),
                },
            );
            match done {
                Ok(reply) => {
                    ticket = ticket.max(reply.ticket);
                    standing = Some(reply.standing);
                    let (status, body, etag, charge) = (reply.status, reply.body, reply.etag, reply.charge);
                    results.push(succeeded(Done { status, body, etag, charge, item_lsn: None }));
                }
                Err(failure) => {
                    stopped = stop_at_failure;
                    results.push(refused(failure));
                }
            }
        }
        let failed = results.iter().any(|result| result.status >= 400);
        let charge = results.iter().map(|result| result.charge).sum();
        let standing = standing.unwrap_or_else(|| {
            container.shape().partitions_in(container.region)[0].standing(&self.topology(), 0)
        });
        Ok(BatchReply { status: if failed { 207 } else { 200 }, results, charge, standing, ticket })
    }
}

fn prepare(
    container: &Container,
    key: &PartitionKey,
    operation: BatchOperation,
) -> Result<(item::Prepared, super::request::Conditions), Failure> {
    if operation.partition_key.is_some_and(|own| own != *key) {
        return Err(Failure::bad_request("The partition key of an operation is not the one of its batch.")
            .with_sub_status(1001));
    }
    if let ItemOp::Replace { id, .. }
    | ItemOp::Read { id }
    | ItemOp::Delete { id }
    | ItemOp::Patch { id, .. } = &operation.op
    {
        document::check_id(id)?;
    }
    Ok((item::prepare(container, key, operation.op)?, operation.conditions))
}

fn succeeded(done: Done) -> BatchResult {
    let Done { status, body, etag, charge, item_lsn: _ } = done;
    BatchResult { status, sub_status: 0, etag, body, charge, retry_after: None, message: None }
}

fn refused(failure: Failure) -> BatchResult {
    BatchResult {
        status: failure.status,
        sub_status: failure.sub_status,
        etag: None,
        body: Bytes::new(),
        charge: failure.charge,
        retry_after: failure.retry_after,
        message: Some(failure.message),
    }
}

fn dependent() -> BatchResult {
    BatchResult {
        status: 424,
        sub_status: 0,
        etag: None,
        body: Bytes::new(),
        charge: 0.0,
        retry_after: None,
        message: None,
    }
}
