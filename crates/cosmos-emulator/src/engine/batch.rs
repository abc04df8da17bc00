//! Batches: all or nothing under one lock and one LSN, or one step after the other.

use std::sync::Arc;

use bytes::Bytes;
use cosmos_wire::epk::EpkRange;
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::status::Status;

use super::Engine;
use super::container::{Container, epk_key, too_few_components};
use super::document;
use super::item::{self, Done};
use super::request::{
    BatchMode, BatchOperation, BatchReply, BatchRequest, BatchResult, Content, ItemOp, ItemRequest, Scope,
};
use super::scope::{Part, parts, range_gone};
use super::writer::Writer;
use crate::Failure;

/// The most steps of one batch.
pub(crate) const OPERATIONS_MAX: usize = 100;

/// Most bytes of documents in the answer to a batch.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// What the service says of a batch whose key does not fit its container.
const WRONG_KEY: &str = "Partition key provided either doesn't correspond to definition in the collection or doesn't \
                         match partition key field values specified in the document.";

impl Engine {
    /// A transactional batch or a bulk request.
    ///
    /// # Errors
    /// 400 or 413 when the request as a whole is refused, 410/1002 when the range that it names is gone; failures of
    /// steps are results inside a 207.
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
        let count = request.operations.len();
        let prepared: Vec<_> = request
            .operations
            .into_iter()
            .map(|operation| {
                let is_read = matches!(operation.op, ItemOp::Read { .. });
                (is_read, self.prepare_step(container, key, operation))
            })
            .collect();
        let mut writer = Writer::begin(self, container, &partition)?;
        let mut results = Vec::with_capacity(count);
        let mut answer = Answer { content: request.content, bytes: 0 };
        let (mut failed, mut spent) = (None, 0.0);
        for (is_read, prepared) in prepared {
            let done = turn
                .check(spent)
                .and(prepared)
                .and_then(|(prepared, conditions)| item::apply(&mut writer, &epk, prepared, &conditions))
                .map(|done| answer.wanted(done, is_read))
                .and_then(|done| answer.take_if_it_fits(done));
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
            if cosmos_wire::mutant!(30) && at > 0 {
                writer.commit()?;
            } else {
                drop(writer);
            }
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
        let shape = self.current_shape(container)?;
        let range = request.range.map(|id| parts(container, &shape, &Scope::Range(id))).transpose()?;
        let range = range.as_deref().and_then(<[Part]>::first).map(|part| &part.range);
        let mut answer = Answer { content: request.content, bytes: 0 };
        let mut results = Vec::with_capacity(request.operations.len());
        let (mut standing, mut ticket, mut stopped) = (None, None, false);
        for operation in request.operations {
            if stopped {
                results.push(dependent());
                continue;
            }
            let is_read = matches!(operation.op, ItemOp::Read { .. });
            let step = ItemRequest {
                partition_key: operation.partition_key.or_else(|| request.partition_key.clone()),
                op: operation.op,
                conditions: operation.conditions,
                session_token: request.session_token.clone(),
            };
            let done = answer
                .check_room()
                .and_then(|()| check_range(container, range, step.partition_key.as_ref()))
                .and_then(|()| self.item(container, step))
                .and_then(|reply| {
                    ticket = ticket.max(reply.ticket);
                    standing = Some(reply.standing);
                    let (status, body, etag, charge) = (reply.status, reply.body, reply.etag, reply.charge);
                    let done = answer.wanted(Done { status, body, etag, charge, item_lsn: None }, is_read);
                    // What was written is said in any case, or the client would write it again.
                    if is_read { answer.take_if_it_fits(done) } else { Ok(answer.take(done)) }
                });
            match done {
                Ok(done) => results.push(succeeded(done)),
                Err(failure) => {
                    stopped = stop_at_failure;
                    results.push(refused(failure));
                }
            }
        }
        let failed = results.iter().any(|result| result.status >= 400);
        let charge = results.iter().map(|result| result.charge).sum();
        let standing = standing
            .unwrap_or_else(|| shape.partitions_in(container.region)[0].standing(&self.topology(), 0));
        Ok(BatchReply { status: if failed { 207 } else { 200 }, results, charge, standing, ticket })
    }

    /// Checks what a batch demands of a step, and prepares it.
    fn prepare_step(
        &self,
        container: &Container,
        key: &PartitionKey,
        operation: BatchOperation,
    ) -> Result<(item::Prepared, super::request::Conditions), Failure> {
        if operation.partition_key.is_some_and(|own| own != *key) {
            return Err(Failure::of(
                Status::PARTITION_KEY_MISMATCH,
                "The partition key of an operation is not the one of its batch.",
            ));
        }
        if let ItemOp::Replace { id, .. }
        | ItemOp::Read { id }
        | ItemOp::Delete { id }
        | ItemOp::Patch { id, .. } = &operation.op
        {
            document::check_id(id)?;
        }
        Ok((self.prepare(container, key, operation.op)?, operation.conditions))
    }
}

/// The documents that an answer brings.
struct Answer {
    content: Content,
    /// Of those so far.
    bytes: usize,
}

impl Answer {
    /// A result with its document only if that is wanted.
    fn wanted(&self, done: Done, is_read: bool) -> Done {
        if is_read || self.content == Content::All { done } else { Done { body: Bytes::new(), ..done } }
    }

    fn take(&mut self, done: Done) -> Done {
        self.bytes += done.body.len();
        done
    }

    fn take_if_it_fits(&mut self, done: Done) -> Result<Done, Failure> {
        if self.bytes + done.body.len() > ANSWER_BYTES_MAX {
            return Err(Failure { charge: done.charge, ..answer_too_large() });
        }
        Ok(self.take(done))
    }

    /// Refuses a step before it is done if nothing more can be said.
    fn check_room(&self) -> Result<(), Failure> {
        if self.bytes >= ANSWER_BYTES_MAX { Err(answer_too_large()) } else { Ok(()) }
    }
}

fn answer_too_large() -> Failure {
    Failure::of(Status::BATCH_RESPONSE_TOO_LARGE, "The response of the batch is too large.")
}

/// A step for a key that another physical partition has is refused as the range would be: its client routes it anew.
fn check_range(
    container: &Container,
    range: Option<&EpkRange>,
    key: Option<&PartitionKey>,
) -> Result<(), Failure> {
    let (Some(range), Some(key)) = (range, key) else { return Ok(()) };
    if range.contains(&container.epk(key)?) { Ok(()) } else { Err(range_gone()) }
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
