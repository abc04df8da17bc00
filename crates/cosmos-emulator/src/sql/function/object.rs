//! Functions over objects and documents.

use base64::Engine as _;
use serde_json::{Map, Value};

use super::{Arguments, Function};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("ObjectToArray", 1, 3, object_to_array),
    Function::pure("DOCUMENTID", 1, 1, document_id),
];

fn object_to_array(arguments: &Arguments<'_>) -> Option<Value> {
    let key_name = arguments.optional(1, "k", |a, at| a.0.get(at)?.as_ref()?.as_str())?;
    let value_name = arguments.optional(2, "v", |a, at| a.0.get(at)?.as_ref()?.as_str())?;
    let entries = arguments.value(0)?.as_object()?.iter().map(|(name, value)| {
        let mut entry = Map::new();
        entry.insert(key_name.to_owned(), name.clone().into());
        entry.insert(value_name.to_owned(), value.clone());
        Value::Object(entry)
    });
    Some(entries.collect())
}

fn document_id(arguments: &Arguments<'_>) -> Option<Value> {
    document_number(arguments.value(0)?).map(Value::from)
}

/// The number of a document in its partition, in order of creation: the last eight bytes of its `_rid`.
pub(crate) fn document_number(document: &Value) -> Option<u64> {
    let rid = document.get("_rid")?.as_str()?.replace('-', "/");
    let bytes = base64::engine::general_purpose::STANDARD.decode(rid).ok()?;
    Some(u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?))
}
