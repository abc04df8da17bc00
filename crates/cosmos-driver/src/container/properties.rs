//! What a container is made of.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A container's definition, as sent and as read back. Whatever the service adds is kept in `other`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ContainerProperties {
    /// Its name.
    pub id: String,
    /// Which properties form the partition key.
    pub partition_key: PartitionKeyPaths,
    /// What is indexed. Default: everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexing_policy: Option<Value>,
    /// Seconds after which items expire; -1 means only those that say so themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_ttl: Option<i32>,
    /// Sets of paths whose values must be unique within a logical partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key_policy: Option<Value>,
    /// Everything else: conflict resolution, computed properties, system properties.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The paths of a partition key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionKeyPaths {
    /// Paths such as `/customer`.
    pub paths: Vec<String>,
    /// `Hash`, or `MultiHash` for hierarchical keys.
    pub kind: String,
    /// Hash version; absent means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u8>,
}

impl ContainerProperties {
    /// A container with a key of one path, or of several (hierarchical).
    #[must_use]
    pub fn new(id: impl Into<String>, paths: &[&str]) -> Self {
        let kind = if paths.len() > 1 { "MultiHash" } else { "Hash" };
        Self {
            id: id.into(),
            partition_key: PartitionKeyPaths {
                paths: paths.iter().map(|path| (*path).to_owned()).collect(),
                kind: kind.to_owned(),
                version: Some(2),
            },
            indexing_policy: None,
            default_ttl: None,
            unique_key_policy: None,
            other: Map::new(),
        }
    }

    /// Sets what is indexed, as the service's JSON.
    #[must_use]
    pub fn with_indexing_policy(mut self, policy: Value) -> Self {
        self.indexing_policy = Some(policy);
        self
    }

    /// Sets the default time to live in seconds; -1 turns expiry on without a default.
    #[must_use]
    pub fn with_default_ttl(mut self, seconds: i32) -> Self {
        self.default_ttl = Some(seconds);
        self
    }

    /// Adds a unique key over these paths.
    #[must_use]
    pub fn with_unique_key(mut self, paths: &[&str]) -> Self {
        let policy = self.unique_key_policy.get_or_insert_with(|| serde_json::json!({ "uniqueKeys": [] }));
        if let Some(keys) = policy.get_mut("uniqueKeys").and_then(Value::as_array_mut) {
            keys.push(serde_json::json!({ "paths": paths }));
        }
        self
    }

    /// Sets any other property.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: Value) -> Self {
        self.other.insert(name.into(), value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_the_service_expects() {
        let properties =
            ContainerProperties::new("c", &["/pk"]).with_default_ttl(-1).with_unique_key(&["/email"]);
        assert_eq!(
            serde_json::to_string(&properties).expect("serializes"),
            r#"{"id":"c","partitionKey":{"paths":["/pk"],"kind":"Hash","version":2},"defaultTtl":-1,"uniqueKeyPolicy":{"uniqueKeys":[{"paths":["/email"]}]}}"#
        );
    }

    #[test]
    fn what_is_unknown_survives_a_round_trip() {
        let text = r#"{"id":"c","partitionKey":{"paths":["/a","/b"],"kind":"MultiHash","version":2},"_rid":"x","geospatialConfig":{"type":"Geography"}}"#;
        let properties: ContainerProperties = serde_json::from_str(text).expect("parses");
        assert_eq!(serde_json::to_string(&properties).expect("serializes"), text);
    }
}
