//! Transactional batches.

use bytes::Bytes;
use cosmos_wire::batch::{OperationResult, OperationType};
use cosmos_wire::partition_key::PartitionKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::container::{ToBody, check_own_id};
use crate::diagnostics::Diagnostics;
use crate::error::Error;
use crate::limits;
use crate::options::ContentResponse;
use crate::patch::Patch;
use crate::response::Response;

/// Operations on items of one logical partition that happen together or not at all: at most 100, at most 2 MB.
#[derive(Debug)]
#[must_use]
pub struct Batch {
    key: PartitionKey,
    /// The request so far, without its last bracket.
    text: Vec<u8>,
    count: usize,
    content: ContentResponse,
    /// The first operation that cannot be sent; reported when the batch is executed.
    broken: Option<Error>,
}

impl Batch {
    /// An empty batch for one logical partition.
    pub fn new(key: impl Into<PartitionKey>) -> Self {
        Self { key: key.into(), text: Vec::new(), count: 0, content: ContentResponse::Full, broken: None }
    }

    /// Sets whether operations answer with their items. Default: they do; without, reads may
    /// have none either.
    pub fn with_content(mut self, content: ContentResponse) -> Self {
        self.content = content;
        self
    }

    pub(crate) fn content(&self) -> ContentResponse {
        self.content
    }

    /// How many operations it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Creates an item.
    pub fn create(self, item: impl ToBody) -> Self {
        self.with(&Step::new(OperationType::Create), |out| append_item(item, out))
    }

    /// Creates or replaces an item.
    pub fn upsert(self, item: impl ToBody) -> Self {
        self.with(&Step::new(OperationType::Upsert), |out| append_item(item, out))
    }

    /// Creates an item, or replaces the one there is if it has this ETag.
    pub fn upsert_if_match(self, item: impl ToBody, etag: &str) -> Self {
        let step = Step { if_match: Some(etag), ..Step::new(OperationType::Upsert) };
        self.with(&step, |out| append_item(item, out))
    }

    /// Replaces an item, under an ETag if one is given.
    pub fn replace(self, id: &str, item: impl ToBody, if_match: Option<&str>) -> Self {
        let step = Step { id: Some(id), if_match, ..Step::new(OperationType::Replace) };
        self.with(&step, |out| append_item(item, out))
    }

    /// Reads an item.
    pub fn read(self, id: &str) -> Self {
        self.with(&Step { id: Some(id), ..Step::new(OperationType::Read) }, no_body)
    }

    /// Deletes an item, under an ETag if one is given.
    pub fn delete(self, id: &str, if_match: Option<&str>) -> Self {
        self.with(&Step { id: Some(id), if_match, ..Step::new(OperationType::Delete) }, no_body)
    }

    /// Changes parts of an item, under an ETag if one is given.
    pub fn patch(self, id: &str, patch: &Patch, if_match: Option<&str>) -> Self {
        let step = Step { id: Some(id), if_match, ..Step::new(OperationType::Patch) };
        self.with(&step, |out| append_patch(patch, out))
    }

    fn with(mut self, step: &Step<'_>, body: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>) -> Self {
        let before = self.text.len();
        self.text.push(if self.count == 0 { b'[' } else { b',' });
        match step.append(&mut self.text, body) {
            Ok(()) => self.count += 1,
            Err(error) => {
                self.text.truncate(before);
                let message = format!("batch operation {}: {}", self.count, error.message());
                self.broken.get_or_insert_with(|| Error::limit(message));
            }
        }
        self
    }

    pub(crate) fn into_body(mut self) -> Result<(PartitionKey, Bytes), Error> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        limits::batch(self.count)?;
        self.text.push(b']');
        limits::body("batch", self.text.len())?;
        Ok((self.key, self.text.into()))
    }
}

/// One operation of a batch or bulk, without its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) kind: OperationType,
    pub(crate) id: Option<&'a str>,
    /// Only operations of a bulk have keys of their own.
    pub(crate) key: Option<&'a PartitionKey>,
    pub(crate) if_match: Option<&'a str>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(kind: OperationType) -> Self {
        Self { kind, id: None, key: None, if_match: None }
    }

    /// Writes the operation as the service reads it, checked as far as it can be before it is sent. The body is
    /// written in place: a batch of many items is one buffer.
    pub(crate) fn append(
        &self,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.extend_from_slice(b"{\"operationType\":");
        append_json(out, &self.kind)?;
        if let Some(id) = self.id {
            limits::item_id(id)?;
            out.extend_from_slice(b",\"id\":");
            append_json(out, id)?;
        }
        if let Some(key) = self.key {
            out.extend_from_slice(b",\"partitionKey\":");
            append_json(out, &key.to_string())?;
        }
        let before = out.len();
        out.extend_from_slice(RESOURCE_BODY);
        body(out)?;
        if out.len() == before + RESOURCE_BODY.len() {
            out.truncate(before);
        }
        if let Some(etag) = self.if_match {
            out.extend_from_slice(b",\"ifMatch\":");
            append_json(out, etag)?;
        }
        out.push(b'}');
        Ok(())
    }
}

fn append_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) -> Result<(), Error> {
    serde_json::to_writer(out, value).map_err(|e| Error::serialization("an operation", e))
}

pub(crate) fn append_item(item: impl ToBody, out: &mut Vec<u8>) -> Result<(), Error> {
    let before = out.len();
    item.append_body(out)?;
    check_own_id(&out[before..])
}

pub(crate) fn append_patch(patch: &Patch, out: &mut Vec<u8>) -> Result<(), Error> {
    out.extend_from_slice(&patch.to_bytes()?);
    Ok(())
}

/// For operations that have none.
#[allow(clippy::unnecessary_wraps)] // Bodies are written by functions that can fail.
pub(crate) fn no_body(_: &mut Vec<u8>) -> Result<(), Error> {
    Ok(())
}

const RESOURCE_BODY: &[u8] = b",\"resourceBody\":";

/// What became of a batch: one result per operation, in order.
#[derive(Debug)]
#[must_use]
pub struct BatchResponse {
    response: Response,
    results: Vec<BatchResult>,
}

/// What became of one operation.
#[derive(Debug)]
pub struct BatchResult(pub(crate) OperationResult);

impl BatchResponse {
    pub(crate) fn new(response: Response) -> Result<Self, Error> {
        match response.json::<Vec<OperationResult>>() {
            Ok(results) => Ok(Self { response, results: results.into_iter().map(BatchResult).collect() }),
            Err(error) => Err(unread(error, response)),
        }
    }

    /// True if everything was done; otherwise nothing was.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failed().is_none()
    }

    /// One result per operation, in order.
    #[must_use]
    pub fn results(&self) -> &[BatchResult] {
        &self.results
    }

    /// The operation that failed, with its index. The others say 424: not done because of it.
    #[must_use]
    pub fn failed(&self) -> Option<(usize, &BatchResult)> {
        let has_failed = |result: &&BatchResult| result.status() >= 400;
        let cause = self.results.iter().position(|result| has_failed(&result) && result.status() != 424);
        let index = cause.or_else(|| self.results.iter().position(|result| has_failed(&result)))?;
        Some((index, &self.results[index]))
    }

    /// The batch as a plain success, or an error with the failed operation's status.
    ///
    /// # Errors
    /// When an operation failed.
    pub fn into_result(self) -> Result<Self, Error> {
        let Some((index, failed)) = self.failed() else { return Ok(self) };
        let text = format!(r#"{{"message":"batch operation {index} failed; nothing was done"}}"#);
        let error = Error::answered(failed.0.status(), Bytes::from(text))
            .with_activity_id(self.response.activity_id().map(str::to_owned))
            .with_charge(self.response.charge())
            .with_retry_after(failed.0.retry_after_milliseconds.map(std::time::Duration::from_millis));
        Err(error.with_diagnostics(self.response.into_diagnostics()))
    }

    /// Request units of the whole batch.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.response.charge()
    }

    /// The session token after the batch.
    #[must_use]
    pub fn session_token(&self) -> Option<&str> {
        self.response.session_token()
    }

    /// The whole answer.
    #[must_use]
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// Everything that was tried.
    #[must_use]
    pub fn diagnostics(&self) -> &Diagnostics {
        self.response.diagnostics()
    }
}

/// A success that cannot be read is one all the same: what was asked for may have been done.
pub(crate) fn unread(error: Error, response: Response) -> Error {
    error
        .with_activity_id(response.activity_id().map(str::to_owned))
        .with_charge(response.charge())
        .with_applied(true)
        .with_diagnostics(response.into_diagnostics())
}

impl BatchResult {
    /// HTTP status of this operation.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status_code
    }

    /// Cosmos sub-status of this operation, 0 when there is none.
    #[must_use]
    pub fn sub_status(&self) -> u32 {
        self.0.sub_status_code.unwrap_or(0)
    }

    /// True for 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.0.status().is_success()
    }

    /// Request units of this operation.
    #[must_use]
    pub fn charge(&self) -> f64 {
        self.0.request_charge
    }

    /// The item's ETag after this operation.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.0.etag.as_deref()
    }

    /// The item, as JSON text, where the operation answers with one.
    #[must_use]
    pub fn body(&self) -> Option<&str> {
        self.0.resource_body.as_deref().map(RawValue::get)
    }

    /// The item as a value.
    ///
    /// # Errors
    /// When there is none, or it does not fit the type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(self.body().unwrap_or("null"))
            .map_err(|e| Error::serialization("the operation's item does not fit the type asked for", e))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_has_one_entry_per_operation() {
        let batch = Batch::new("p")
            .create(&json!({ "id": "a" }))
            .replace("b", &json!({ "id": "b" }), Some("\"1\""))
            .read("c")
            .delete("d", None)
            .patch("e", &Patch::new().set("/x", 1), None);
        let (key, body) = batch.into_body().expect("valid");
        assert_eq!(key, PartitionKey::from("p"));
        assert_eq!(
            std::str::from_utf8(&body).expect("utf8"),
            concat!(
                r#"[{"operationType":"Create","resourceBody":{"id":"a"}},"#,
                r#"{"operationType":"Replace","id":"b","resourceBody":{"id":"b"},"ifMatch":"\"1\""},"#,
                r#"{"operationType":"Read","id":"c"},{"operationType":"Delete","id":"d"},"#,
                r#"{"operationType":"Patch","id":"e","resourceBody":{"operations":[{"op":"set","path":"/x","value":1}]}}]"#
            )
        );
    }

    #[test]
    fn limits_are_checked_before_sending() {
        let many = (0..101).fold(Batch::new("p"), |batch, n| batch.create(&json!({ "id": n.to_string() })));
        let big = Batch::new("p").create(&json!({ "id": "a", "x": "y".repeat(2 << 20) }));
        let cases = [
            (Batch::new("p"), "no operations"),
            (many, "101 operations"),
            (big, "(2 MB)"),
            (Batch::new("p").read("a/b"), "batch operation 0"),
            (Batch::new("p").read("ok").create(&json!({ "name": 1 })), "batch operation 1"),
            (Batch::new("p").create(Bytes::from_static(b"{")), "batch operation 0"),
        ];
        for (batch, text) in cases {
            let error = batch.into_body().expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
