//! The forms in which ranges send rows when a plan rewrote the query.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// A row of a sorted query.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SortedRow {
    #[serde(rename = "_rid")]
    pub(crate) rid: String,
    pub(crate) order_by_items: Vec<Item>,
    /// Absent when the projection is undefined; such a row sorts but does not show.
    #[serde(default, deserialize_with = "present")]
    pub(crate) payload: Option<Box<RawValue>>,
}

/// A row of a grouped or aggregated query.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupRow {
    #[serde(default)]
    pub(crate) group_by_items: Vec<Item>,
    /// Absent when the projection is undefined.
    #[serde(default, deserialize_with = "present")]
    pub(crate) payload: Option<Value>,
}

/// One value, possibly undefined, possibly with the second form that minima and maxima have.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Item {
    #[serde(default, deserialize_with = "present")]
    pub(crate) item: Option<Value>,
    #[serde(default)]
    pub(crate) item2: Option<Value>,
}

impl Item {
    pub(crate) fn value(&self) -> Option<&Value> {
        self.item.as_ref()
    }
}

/// A null that is there is a value; only what is missing is undefined.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_not_undefined() {
        let row: SortedRow =
            serde_json::from_str(r#"{"_rid":"x","orderByItems":[{"item":null},{}],"payload":{"a":1}}"#)
                .expect("a row");
        assert_eq!(row.order_by_items[0].value(), Some(&Value::Null));
        assert_eq!(row.order_by_items[1].value(), None);
        assert_eq!(row.payload.expect("a payload").get(), r#"{"a":1}"#);
        let payload = |text: &str| serde_json::from_str::<SortedRow>(text).expect("a row").payload;
        let null = payload(r#"{"_rid":"x","orderByItems":[],"payload":null}"#);
        assert_eq!(null.expect("a payload").get(), "null");
        assert!(payload(r#"{"_rid":"x","orderByItems":[]}"#).is_none());
    }
}
