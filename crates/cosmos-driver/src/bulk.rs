//! Many operations on items of any partitions, in few requests; each stands for itself.
//!
//! Operations are put together by the physical partition that holds their key, up to the service's limits per
//! request, and sent in parallel. What the service refuses for a while (429, 449, 410, 503) is sent again, alone.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::batch::{OPERATIONS_MAX, OperationResult, OperationType};
use cosmos_wire::epk::{Epk, EpkRange};
use cosmos_wire::partition_key::PartitionKey;
use cosmos_wire::resource::ResourceKind;
use futures::StreamExt;
use futures::stream;
use tokio::time::sleep;

use crate::attempt::throttle::backoff;
use crate::batch::{BatchResult, Step, append_item, append_patch, no_body, unread};
use crate::container::{Container, ToBody};
use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::limits::{self, BODY_BYTES_MAX};
use crate::metadata::container::ContainerInfo;
use crate::operation::Call;
use crate::options::{CallOptions, ContentResponse, OnUnknown};
use crate::patch::Patch;
use crate::query::range_target;
use crate::request::{Kind, Operation};

/// Operations on items of any partitions, each with its own key, in any number.
#[derive(Debug, Default)]
#[must_use]
pub struct Bulk {
    /// Each operation's key, and where its text is.
    steps: Vec<(PartitionKey, Range<usize>)>,
    text: Vec<u8>,
    content: ContentResponse,
    /// The first operation that cannot be sent; reported when the bulk is executed.
    broken: Option<Error>,
}

impl Bulk {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many operations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Sets whether writes answer with their items. Default: they do not.
    pub fn with_content(mut self, content: ContentResponse) -> Self {
        self.content = content;
        self
    }

    /// Creates an item.
    pub fn create(self, key: impl Into<PartitionKey>, item: impl ToBody) -> Self {
        self.with(key.into(), Step::new(OperationType::Create), |out| append_item(item, out))
    }

    /// Creates or replaces an item.
    pub fn upsert(self, key: impl Into<PartitionKey>, item: impl ToBody) -> Self {
        self.with(key.into(), Step::new(OperationType::Upsert), |out| append_item(item, out))
    }

    /// Replaces an item, under an ETag if one is given.
    pub fn replace(
        self,
        key: impl Into<PartitionKey>,
        id: &str,
        item: impl ToBody,
        if_match: Option<&str>,
    ) -> Self {
        let step = Step { id: Some(id), if_match, ..Step::new(OperationType::Replace) };
        self.with(key.into(), step, |out| append_item(item, out))
    }

    /// Reads an item.
    pub fn read(self, key: impl Into<PartitionKey>, id: &str) -> Self {
        self.with(key.into(), Step { id: Some(id), ..Step::new(OperationType::Read) }, no_body)
    }

    /// Deletes an item, under an ETag if one is given.
    pub fn delete(self, key: impl Into<PartitionKey>, id: &str, if_match: Option<&str>) -> Self {
        self.with(key.into(), Step { id: Some(id), if_match, ..Step::new(OperationType::Delete) }, no_body)
    }

    /// Changes parts of an item, under an ETag if one is given.
    pub fn patch(
        self,
        key: impl Into<PartitionKey>,
        id: &str,
        patch: &Patch,
        if_match: Option<&str>,
    ) -> Self {
        let step = Step { id: Some(id), if_match, ..Step::new(OperationType::Patch) };
        self.with(key.into(), step, |out| append_patch(patch, out))
    }

    fn with(
        mut self,
        key: PartitionKey,
        step: Step<'_>,
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Self {
        let before = self.text.len();
        match (Step { key: Some(&key), ..step }).append(&mut self.text, body) {
            Ok(()) => self.steps.push((key, before..self.text.len())),
            Err(error) => {
                self.text.truncate(before);
                let message = format!("bulk operation {}: {}", self.steps.len(), error.message());
                self.broken.get_or_insert_with(|| Error::limit(message));
            }
        }
        self
    }
}

/// What became of a bulk: one result per operation, in order.
#[derive(Debug)]
#[must_use]
pub struct BulkResponse {
    results: Vec<Result<BatchResult, Arc<Error>>>,
    charge: f64,
    diagnostics: Diagnostics,
}

impl BulkResponse {
    /// One result per operation, in order. An error is that of the request the operation was last part of.
    pub fn results(&self) -> &[Result<BatchResult, Arc<Error>>] {
        &self.results
    }

    /// True if every operation was done.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.results.iter().all(|result| result.as_ref().is_ok_and(BatchResult::is_success))
    }

    /// Request units of all requests.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.charge
    }

    /// Everything that was tried.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }
}

/// The state of one bulk between its rounds.
struct Rounds<'a> {
    container: &'a Container,
    info: Arc<ContainerInfo>,
    call: Call<'a>,
    is_minimal: bool,
    keys: Vec<Epk>,
    text: Vec<u8>,
    places: Vec<Range<usize>>,
    results: Vec<Option<Result<BatchResult, Arc<Error>>>>,
    charge: f64,
    log: Diagnostics,
}

impl Container {
    /// Executes many operations, each for itself, in as few requests as the service's limits allow.
    ///
    /// # Errors
    /// When the container cannot be read, or an operation cannot be sent at all. What became of each operation is in
    /// the answer.
    pub async fn bulk(&self, bulk: Bulk, options: CallOptions) -> Result<BulkResponse, Error> {
        if let Some(error) = bulk.broken {
            return Err(error);
        }
        let call = Call::start(&self.driver().core, &options);
        let info = self.cell().info(&self.driver().core, &call).await?;
        let mut keys = Vec::with_capacity(bulk.steps.len());
        let mut places = Vec::with_capacity(bulk.steps.len());
        for (key, place) in bulk.steps {
            limits::full_key(&key, &info.definition)?;
            limits::body("bulk operation", place.len() + 2)?;
            keys.push(Epk::of(&key, &info.definition));
            places.push(place);
        }
        let rounds = Rounds {
            container: self,
            info,
            call,
            is_minimal: bulk.content == ContentResponse::Minimal,
            results: (0..keys.len()).map(|_| None).collect(),
            keys,
            text: bulk.text,
            places,
            charge: 0.0,
            log: Diagnostics::default(),
        };
        rounds.go().await
    }
}

impl Rounds<'_> {
    async fn go(mut self) -> Result<BulkResponse, Error> {
        let rules = self.container.driver().core.config.retry.clone();
        let mut pending: Vec<usize> = (0..self.keys.len()).collect();
        let mut round = 0;
        while !pending.is_empty() {
            let chunks = self.chunks(&pending);
            let mut wait = Duration::ZERO;
            pending.clear();
            let (call, this) = (self.call, &self);
            let sent = chunks.into_iter().map(|(bounds, chunk)| async move {
                let answer = this.send(bounds, &chunk, &call).await;
                (chunk, answer)
            });
            let answers: Vec<_> = stream::iter(sent).buffer_unordered(REQUESTS_AT_ONCE).collect().await;
            for (chunk, answer) in answers {
                self.absorb(&chunk, answer, &mut pending, &mut wait);
            }
            if wait.is_zero() && !pending.is_empty() {
                wait = if round == 0 { wait } else { backoff(&rules, round) };
            }
            round += 1;
            let is_late = self.container.driver().core.clock.now() + wait >= self.call.deadline;
            if round > rules.throttle_max || is_late {
                break;
            }
            pending.sort_unstable();
            if !pending.is_empty() && !wait.is_zero() {
                sleep(wait).await;
            }
        }
        self.log.span_attempts();
        let lost = || {
            let error = Error::protocol("the service left out an operation of a bulk").with_applied(true);
            Err(Arc::new(error))
        };
        let results = self.results.into_iter().map(|result| result.unwrap_or_else(lost)).collect();
        Ok(BulkResponse { results, charge: self.charge, diagnostics: self.log })
    }

    /// Requests for the pending operations: within one range, within the limits of one request.
    fn chunks(&self, pending: &[usize]) -> Vec<(EpkRange, Vec<usize>)> {
        let keys = pending.iter().map(|at| (*at, &self.keys[*at]));
        let mut chunks = Vec::new();
        for (bounds, group) in self.info.ranges.load().grouped(keys) {
            let sizes = group.iter().map(|at| self.places[*at].len());
            for chunk in cut(&group, sizes) {
                chunks.push((bounds.clone(), chunk));
            }
        }
        chunks
    }

    async fn send(
        &self,
        bounds: EpkRange,
        chunk: &[usize],
        call: &Call<'_>,
    ) -> Result<(Vec<OperationResult>, f64, Diagnostics), Error> {
        let cell = self.container.cell();
        let mut operation =
            Operation::new(Kind::Bulk, ResourceKind::Document, cell.link.clone(), cell.docs_path.clone());
        operation.container = Some(self.info.clone());
        operation.target = range_target(bounds)?;
        operation.body = self.body(chunk);
        operation.is_minimal = self.is_minimal;
        operation.on_unknown = call.options.on_unknown;
        let response = self.container.run(operation, call).await?;
        match response.json() {
            Ok(results) => Ok((results, response.charge(), response.into_diagnostics())),
            Err(error) => Err(unread(error, response)),
        }
    }

    fn body(&self, chunk: &[usize]) -> Bytes {
        let bytes: usize = chunk.iter().map(|at| self.places[*at].len() + 1).sum();
        let mut body = Vec::with_capacity(bytes + 1);
        for at in chunk {
            body.push(if body.is_empty() { b'[' } else { b',' });
            body.extend_from_slice(&self.text[self.places[*at].clone()]);
        }
        body.push(b']');
        body.into()
    }

    /// Keeps what is settled; what may be tried again becomes pending.
    fn absorb(
        &mut self,
        chunk: &[usize],
        answer: Result<(Vec<OperationResult>, f64, Diagnostics), Error>,
        pending: &mut Vec<usize>,
        wait: &mut Duration,
    ) {
        match answer {
            Ok((results, charge, log)) => {
                self.charge += charge;
                self.log.merge(log);
                let mut results = results.into_iter();
                for at in chunk {
                    // One that is left out loses what an earlier round said of it.
                    let result = results.next();
                    if let Some(result) = result.as_ref().filter(|result| is_passing(result)) {
                        pending.push(*at);
                        let asked = result.retry_after_milliseconds.map(Duration::from_millis);
                        *wait = (*wait).max(asked.unwrap_or_default());
                    }
                    self.results[*at] = result.map(|result| Ok(BatchResult(result)));
                }
            }
            Err(error) => {
                // The range has split: the next round groups anew. Nothing of the request was done, or it may be
                // done twice.
                let is_repeatable =
                    !error.may_have_been_applied() || self.call.options.on_unknown == OnUnknown::Repeat;
                if error.status() == Some(410) && is_repeatable {
                    pending.extend_from_slice(chunk);
                }
                self.log.merge(error.diagnostics().clone());
                let error = Arc::new(error);
                for at in chunk {
                    self.results[*at] = Some(Err(error.clone()));
                }
            }
        }
    }
}

/// Refused for now, and not done. Pure.
fn is_passing(result: &OperationResult) -> bool {
    matches!(result.status_code, 410 | 429 | 449 | 503)
}

/// Cuts a group into requests within the service's limits. Pure.
fn cut(group: &[usize], sizes: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut chunks: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for (at, size) in group.iter().zip(sizes) {
        // A comma or bracket per operation, and one more bracket.
        let is_full = chunks.last().is_none_or(|chunk| chunk.len() >= OPERATIONS_MAX)
            || bytes + size + 1 > BODY_BYTES_MAX;
        if is_full {
            chunks.push(Vec::new());
            bytes = 1;
        }
        bytes += size + 1;
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(*at);
        }
    }
    chunks
}

/// Requests of one bulk in flight.
const REQUESTS_AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_within_the_limits() {
        let group: Vec<usize> = (0..250).collect();
        let lengths = |chunks: Vec<Vec<usize>>| chunks.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(cut(&group, group.iter().map(|_| 100))), [100, 100, 50]);
        let megabyte = 1 << 20;
        assert_eq!(lengths(cut(&group[..5], [megabyte; 5].into_iter())), [1, 1, 1, 1, 1]);
        assert_eq!(lengths(cut(&group[..5], [megabyte - 2; 5].into_iter())), [2, 2, 1]);
        assert!(cut(&[], std::iter::empty()).is_empty());
    }

    #[test]
    fn an_operation_that_cannot_be_sent_is_named() {
        let bulk = Bulk::new().read("p", "fine").read("p", "not/fine");
        assert!(bulk.broken.expect("broken").to_string().contains("bulk operation 1"));
    }
}
