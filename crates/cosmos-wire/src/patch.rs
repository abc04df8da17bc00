//! Body of a patch: a condition and a list of changes.
//!
//! `{"condition": "from c where ...", "operations": [...]}`, or the list alone, as the JavaScript SDK
//! sends it. Paths are JSON pointers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most changes in one patch.
pub const OPERATIONS_MAX: usize = 10;

/// A patch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Body")]
pub struct Patch {
    /// Filter the item must match, beginning with `from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Changes in the order they are made.
    pub operations: Vec<PatchOperation>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOperation {
    /// Set a property, or insert into an array.
    Add {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Set a property or array element, whether or not it exists.
    Set {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Set a property or array element that must exist.
    Replace {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Remove a property or array element that must exist.
    Remove {
        /// Where.
        path: String,
    },
    /// Add to a number, creating it when missing.
    #[serde(alias = "increment")]
    Incr {
        /// Where.
        path: String,
        /// How much.
        value: Value,
    },
    /// Move a value.
    Move {
        /// Where from.
        from: String,
        /// Where to.
        path: String,
    },
}

impl PatchOperation {
    /// The path that is changed.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Add { path, .. }
            | Self::Set { path, .. }
            | Self::Replace { path, .. }
            | Self::Remove { path }
            | Self::Incr { path, .. }
            | Self::Move { path, .. } => path,
        }
    }
}

/// Both shapes a body may have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Body {
    List(Vec<PatchOperation>),
    Object {
        #[serde(default)]
        condition: Option<String>,
        operations: Vec<PatchOperation>,
    },
}

impl From<Body> for Patch {
    fn from(body: Body) -> Self {
        match body {
            Body::List(operations) => Self { condition: None, operations },
            Body::Object { condition, operations } => Self { condition, operations },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_shapes_are_read() {
        let operations = json!([
            {"op": "add", "path": "/tags/-", "value": "x"},
            {"op": "set", "path": "/a", "value": null},
            {"op": "replace", "path": "/b", "value": {"c": 1}},
            {"op": "remove", "path": "/d"},
            {"op": "incr", "path": "/n", "value": 1.5},
            {"op": "move", "from": "/e", "path": "/f"},
        ]);
        let list: Patch = serde_json::from_value(operations.clone()).unwrap();
        let object: Patch =
            serde_json::from_value(json!({"condition": "from c where c.n = 1", "operations": operations}))
                .unwrap();
        assert_eq!(list.operations, object.operations);
        assert_eq!((list.condition, object.condition.as_deref()), (None, Some("from c where c.n = 1")));
        let paths: Vec<_> = list.operations.iter().map(PatchOperation::path).collect();
        assert_eq!(paths, ["/tags/-", "/a", "/b", "/d", "/n", "/f"]);
        let written = serde_json::to_value(&object.operations).unwrap();
        assert_eq!(written, operations);
    }

    #[test]
    fn other_bodies_are_refused() {
        for body in [
            json!({}),
            json!({"operations": 1}),
            json!([{"op": "copy", "path": "/a"}]),
            json!([{"op": "add", "path": "/a"}]),
            json!("x"),
        ] {
            assert!(serde_json::from_value::<Patch>(body.clone()).is_err(), "{body}");
        }
    }
}
