//! Transactional batches.

use bytes::Bytes;
use cosmos_wire::batch::{Operation, OperationResult, OperationType};
use cosmos_wire::partition_key::PartitionKey;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::container::{ToBody, check_own_id};
use crate::database::json;
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
    operations: Vec<Operation>,
    content: ContentResponse,
    /// The first operation that cannot be sent; reported when the batch is executed.
    broken: Option<Error>,
}

impl Batch {
    /// An empty batch for one logical partition.
    pub fn new(key: impl Into<PartitionKey>) -> Self {
        Self { key: key.into(), operations: Vec::new(), content: ContentResponse::Full, broken: None }
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
        self.operations.len()
    }

    /// True if it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Creates an item.
    pub fn create(self, item: impl ToBody) -> Self {
        self.with_item(OperationType::Create, None, item, None)
    }

    /// Creates or replaces an item.
    pub fn upsert(self, item: impl ToBody) -> Self {
        self.with_item(OperationType::Upsert, None, item, None)
    }

    /// Creates an item, or replaces the one there is if it has this ETag.
    pub fn upsert_if_match(self, item: impl ToBody, etag: &str) -> Self {
        self.with_item(OperationType::Upsert, None, item, Some(etag))
    }

    /// Replaces an item, under an ETag if one is given.
    pub fn replace(self, id: &str, item: impl ToBody, if_match: Option<&str>) -> Self {
        self.with_item(OperationType::Replace, Some(id), item, if_match)
    }

    /// Reads an item.
    pub fn read(self, id: &str) -> Self {
        self.with(OperationType::Read, Some(id), Ok(None), None)
    }

    /// Deletes an item, under an ETag if one is given.
    pub fn delete(self, id: &str, if_match: Option<&str>) -> Self {
        self.with(OperationType::Delete, Some(id), Ok(None), if_match)
    }

    /// Changes parts of an item, under an ETag if one is given.
    pub fn patch(self, id: &str, patch: &Patch, if_match: Option<&str>) -> Self {
        self.with(OperationType::Patch, Some(id), patch_body(patch), if_match)
    }

    fn with_item(
        self,
        kind: OperationType,
        id: Option<&str>,
        item: impl ToBody,
        if_match: Option<&str>,
    ) -> Self {
        let body = item_body(item);
        self.with(kind, id, body, if_match)
    }

    fn with(
        mut self,
        kind: OperationType,
        id: Option<&str>,
        body: Result<Option<Box<RawValue>>, Error>,
        if_match: Option<&str>,
    ) -> Self {
        match step(kind, id, body, if_match) {
            Ok(step) => self.operations.push(step),
            Err(error) => {
                let index = self.operations.len();
                let message = format!("batch operation {index}: {}", error.message());
                self.broken.get_or_insert_with(|| Error::limit(message));
            }
        }
        self
    }

    pub(crate) fn into_body(self) -> Result<(PartitionKey, Bytes), Error> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        limits::batch(self.operations.len())?;
        let body = json(&self.operations)?;
        limits::body("batch", body.len())?;
        Ok((self.key, body))
    }
}

/// One operation, checked as far as it can be before it is sent.
pub(crate) fn step(
    kind: OperationType,
    id: Option<&str>,
    body: Result<Option<Box<RawValue>>, Error>,
    if_match: Option<&str>,
) -> Result<Operation, Error> {
    id.map_or(Ok(()), limits::item_id)?;
    Ok(Operation {
        id: id.map(str::to_owned),
        resource_body: body?,
        if_match: if_match.map(str::to_owned),
        ..Operation::new(kind)
    })
}

pub(crate) fn item_body(item: impl ToBody) -> Result<Option<Box<RawValue>>, Error> {
    let bytes = item.to_body()?;
    check_own_id(&bytes)?;
    raw(&bytes).map(Some)
}

pub(crate) fn patch_body(patch: &Patch) -> Result<Option<Box<RawValue>>, Error> {
    patch.to_bytes().and_then(|bytes| raw(&bytes)).map(Some)
}

fn raw(bytes: &[u8]) -> Result<Box<RawValue>, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::serialization("the item is not JSON", e))
}

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
        let results: Vec<OperationResult> = response.json()?;
        Ok(Self { response, results: results.into_iter().map(BatchResult).collect() })
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
