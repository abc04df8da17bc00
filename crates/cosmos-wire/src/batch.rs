//! Bodies of batch and bulk requests and of their answers.
//!
//! Both are JSON arrays, one element per operation. With `x-ms-cosmos-batch-atomic: True` all
//! operations belong to one partition key and happen together or not at all; the one that failed has
//! its own status and the others 424. Otherwise each stands for itself and names its key.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::partition_key::PartitionKey;
use crate::status::Status;

/// Most operations in one request.
pub const OPERATIONS_MAX: usize = 100;

/// Largest request body.
pub const BODY_BYTES_MAX: usize = 2 << 20;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OperationType {
    /// Create an item that must not exist.
    Create,
    /// Create or replace an item.
    Upsert,
    /// Replace an item that must exist.
    Replace,
    /// Read an item.
    Read,
    /// Delete an item.
    Delete,
    /// Change parts of an item; the body is a [`crate::patch::Patch`].
    Patch,
}

/// One operation of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// What to do.
    pub operation_type: OperationType,
    /// Id of the item; create and upsert have it in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Header form of the partition key, in bulk requests. Some SDKs send the array itself.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "key_text")]
    pub partition_key: Option<String>,
    /// Item or patch, as JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_body: Option<Box<RawValue>>,
    /// Go on only when the item has this etag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<String>,
    /// Go on only when the item does not have this etag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_match: Option<String>,
}

/// Outcome of one operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationResult {
    /// HTTP status of this operation.
    pub status_code: u16,
    /// Sub-status, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_status_code: Option<u32>,
    /// Request units of this operation.
    #[serde(default)]
    pub request_charge: f64,
    /// New etag of the item.
    #[serde(default, rename = "eTag", skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// The item, unless the answer is to be minimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_body: Option<Box<RawValue>>,
    /// How long to wait before this operation is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_milliseconds: Option<u64>,
}

impl Operation {
    /// An operation without id, key, body or conditions.
    #[must_use]
    pub const fn new(operation_type: OperationType) -> Self {
        Self {
            operation_type,
            id: None,
            partition_key: None,
            resource_body: None,
            if_match: None,
            if_none_match: None,
        }
    }

    /// Sets the id of the item.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the partition key, as bulk requests need.
    #[must_use]
    pub fn with_partition_key(mut self, key: &PartitionKey) -> Self {
        self.partition_key = Some(key.to_string());
        self
    }

    /// Sets the item or patch.
    #[must_use]
    pub fn with_body(mut self, body: Box<RawValue>) -> Self {
        self.resource_body = Some(body);
        self
    }

    /// Sets the etag the item must have.
    #[must_use]
    pub fn with_if_match(mut self, etag: impl Into<String>) -> Self {
        self.if_match = Some(etag.into());
        self
    }
}

impl OperationResult {
    /// An outcome without charge, etag or body.
    #[must_use]
    pub fn new(status: Status) -> Self {
        Self {
            status_code: status.code,
            sub_status_code: (status.sub != 0).then_some(status.sub),
            request_charge: 0.0,
            etag: None,
            resource_body: None,
            retry_after_milliseconds: None,
        }
    }

    /// Status and sub-status together.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::new(self.status_code, self.sub_status_code.unwrap_or(0))
    }
}

fn key_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match Option::<Value>::deserialize(deserializer)? {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(array @ Value::Array(_)) => Ok(Some(array.to_string())),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            Err(D::Error::custom("partitionKey must be a JSON array or its text"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    /// Bodies as the Python and JavaScript SDKs write them.
    #[test]
    fn requests_of_the_sdks_are_read() {
        let body = r#"[
            {"operationType": "Create", "resourceBody": {"id": "1",  "n": 1.0}},
            {"operationType": "Upsert", "resourceBody": {"id": "2"}, "partitionKey": "[\"a\"]", "ifMatch": "\"e\""},
            {"operationType": "Read", "id": "1", "partitionKey": ["a", 1]},
            {"operationType": "Delete", "id": "1", "ifNoneMatch": null},
            {"operationType": "Replace", "id": "2", "resourceBody": {"id": "2"}},
            {"operationType": "Patch", "id": "2", "resourceBody": {"operations": []}}
        ]"#;
        let operations: Vec<Operation> = serde_json::from_str(body).unwrap();
        let types: Vec<_> = operations.iter().map(|operation| operation.operation_type).collect();
        use OperationType::{Create, Delete, Patch, Read, Replace, Upsert};
        assert_eq!(types, [Create, Upsert, Read, Delete, Replace, Patch]);
        assert_eq!(
            operations[0].resource_body.as_ref().unwrap().get(),
            r#"{"id": "1",  "n": 1.0}"#,
            "kept as sent"
        );
        assert_eq!(operations[1].partition_key.as_deref(), Some(r#"["a"]"#));
        assert_eq!(operations[1].if_match.as_deref(), Some("\"e\""));
        assert_eq!(operations[2].partition_key.as_deref(), Some(r#"["a",1]"#));
        assert_eq!(operations[3].if_none_match, None);
        for broken in
            [r#"{"operationType":"Move"}"#, r#"{"id":"1"}"#, r#"{"operationType":"Read","partitionKey":5}"#]
        {
            assert!(serde_json::from_str::<Operation>(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn requests_are_written_as_the_sdks_write_them() {
        let item = to_raw_value(&serde_json::json!({"id": "1"})).unwrap();
        let create = Operation::new(OperationType::Create).with_body(item).with_partition_key(&"a".into());
        assert_eq!(
            serde_json::to_string(&create).unwrap(),
            r#"{"operationType":"Create","partitionKey":"[\"a\"]","resourceBody":{"id":"1"}}"#
        );
        let delete = Operation::new(OperationType::Delete).with_id("1").with_if_match("\"e\"");
        assert_eq!(
            serde_json::to_string(&delete).unwrap(),
            r#"{"operationType":"Delete","id":"1","ifMatch":"\"e\""}"#
        );
    }

    /// An element of a recorded answer, and a failed one.
    #[test]
    fn results_are_read_and_written() {
        let recorded =
            r#"{"statusCode":201,"requestCharge":7.05,"eTag":"\"6201e654\"","resourceBody":{"id":"1"}}"#;
        let result: OperationResult = serde_json::from_str(recorded).unwrap();
        assert_eq!((result.status(), result.etag.as_deref()), (Status::CREATED, Some("\"6201e654\"")));
        assert_eq!(serde_json::to_string(&result).unwrap(), recorded);
        let failed = OperationResult::new(Status::PARTITION_KEY_MISMATCH);
        assert_eq!(
            serde_json::to_string(&failed).unwrap(),
            r#"{"statusCode":400,"subStatusCode":1001,"requestCharge":0.0}"#
        );
        let minimal: OperationResult =
            serde_json::from_str(r#"{"statusCode":424,"requestCharge":0,"resourceBody":null}"#).unwrap();
        assert!(minimal.resource_body.is_none());
    }
}
