//! Partial updates: parsed once, applied by a pure function.
//!
//! The body is `{"condition": "from c where ..", "operations": [..]}` or, as the JavaScript SDK sends it, the bare
//! array of operations. Paths are JSON pointers. The service applies the operations in order and stores the
//! document only if all of them work.

use serde_json::{Map, Number, Value};

use super::json;
use crate::Failure;

/// A parsed patch.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// In order; at most [`OPERATIONS_MAX`].
    pub operations: Vec<Operation>,
    /// A filter that must hold for the document: `from c where c.a = 1`.
    pub condition: Option<String>,
}

/// The most operations one patch may have.
pub const OPERATIONS_MAX: usize = 10;

/// A JSON pointer, taken apart; never empty.
pub type Pointer = Vec<String>;

/// One change of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Sets a property, or inserts into an array.
    Add(Pointer, Value),
    /// Sets a property or an array element.
    Set(Pointer, Value),
    /// Sets what already exists.
    Replace(Pointer, Value),
    /// Removes what exists.
    Remove(Pointer),
    /// Adds to a number; an absent property becomes the number.
    Increment(Pointer, Number),
    /// Takes a value from one place to another.
    Move {
        /// Where it is.
        from: Pointer,
        /// Where it goes.
        to: Pointer,
    },
}

impl Patch {
    /// Reads a request body.
    ///
    /// # Errors
    /// 400 with a reason.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let body = json::parse(body).map_err(|_| Failure::bad_request(INVALID_PAYLOAD))?;
        Self::from_value(body)
    }

    /// The same, for a body that is part of a batch.
    ///
    /// # Errors
    /// 400 with a reason.
    pub fn from_value(body: Value) -> Result<Self, Failure> {
        let (operations, condition) = match body {
            Value::Array(operations) => (operations, None),
            Value::Object(mut body) => {
                let condition = match body.remove("condition") {
                    None | Some(Value::Null) => None,
                    Some(Value::String(text)) => Some(text),
                    Some(_) => {
                        return Err(Failure::bad_request("The 'condition' of a patch must be a string."));
                    }
                };
                match body.remove("operations") {
                    Some(Value::Array(operations)) => (operations, condition),
                    Some(_) | None => {
                        return Err(Failure::bad_request("A patch needs an array of 'operations'."));
                    }
                }
            }
            _ => return Err(Failure::bad_request(INVALID_PAYLOAD)),
        };
        if operations.is_empty() {
            return Err(Failure::bad_request("A patch needs at least one operation."));
        }
        if operations.len() > OPERATIONS_MAX {
            return Err(Failure::bad_request(format!(
                "The number of patch operations can't exceed {OPERATIONS_MAX}; this one has {}.",
                operations.len()
            )));
        }
        let operations = operations.into_iter().map(operation).collect::<Result<_, _>>()?;
        Ok(Self { operations, condition })
    }

    /// Applies all operations, or none.
    ///
    /// `is_immutable` tells of a path whether it, or something below it, must stay as it is.
    ///
    /// # Errors
    /// 400 naming the operation that does not work.
    pub fn apply(
        &self,
        document: &Value,
        is_immutable: impl Fn(&[String]) -> bool,
    ) -> Result<Value, Failure> {
        let mut document = document.clone();
        for operation in &self.operations {
            for path in operation.changed_paths() {
                if is_immutable(path) {
                    return Err(Failure::bad_request(format!(
                        "The path '{}' is immutable: the id, the partition key and system properties cannot be \
                         patched.",
                        text_of(path)
                    )));
                }
            }
            operation.apply(&mut document)?;
        }
        Ok(document)
    }
}

impl Operation {
    fn changed_paths(&self) -> impl Iterator<Item = &[String]> {
        let (first, second) = match self {
            Self::Add(path, _) | Self::Set(path, _) | Self::Replace(path, _) | Self::Increment(path, _) => {
                (path, None)
            }
            Self::Remove(path) => (path, None),
            Self::Move { from, to } => (to, Some(from)),
        };
        std::iter::once(first.as_slice()).chain(second.map(Vec::as_slice))
    }

    fn apply(&self, document: &mut Value) -> Result<(), Failure> {
        match self {
            Self::Add(path, value) => put(document, path, value.clone(), Element::Insert, "Add"),
            Self::Set(path, value) => put(document, path, value.clone(), Element::Overwrite, "Set"),
            Self::Replace(path, value) => {
                *find(document, path).ok_or_else(|| missing("Replace", path))? = value.clone();
                Ok(())
            }
            Self::Remove(path) => take(document, path).map(drop).ok_or_else(|| missing("Remove", path)),
            Self::Increment(path, by) => increment(document, path, by),
            Self::Move { from, to } => {
                if to.len() > from.len() && to.starts_with(from) {
                    return Err(Failure::bad_request(format!(
                        "Move Operation cannot take '{}' into itself.",
                        text_of(from)
                    )));
                }
                let value = take(document, from).ok_or_else(|| missing("Move", from))?;
                put(document, to, value, Element::Insert, "Move")
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Insert,
    Overwrite,
}

fn operation(value: Value) -> Result<Operation, Failure> {
    let Value::Object(mut fields) = value else { return Err(Failure::bad_request(INVALID_PAYLOAD)) };
    let Some(Value::String(name)) = fields.remove("op") else {
        return Err(Failure::bad_request("A patch operation needs an 'op'."));
    };
    let path = pointer(&mut fields, "path")?;
    let mut given = || {
        fields
            .remove("value")
            .ok_or_else(|| Failure::bad_request(format!("Patch operation '{name}' needs a 'value'.")))
    };
    Ok(match name.to_ascii_lowercase().as_str() {
        "add" => Operation::Add(path, given()?),
        "set" => Operation::Set(path, given()?),
        "replace" => Operation::Replace(path, given()?),
        "remove" => Operation::Remove(path),
        "incr" | "increment" => match given()? {
            Value::Number(by) => Operation::Increment(path, by),
            _ => return Err(Failure::bad_request("The 'value' of an incr operation must be a number.")),
        },
        "move" => Operation::Move { from: pointer(&mut fields, "from")?, to: path },
        _ => {
            return Err(Failure::bad_request(format!(
                "Unknown patch operation '{name}'. Use add, set, replace, remove, incr or move."
            )));
        }
    })
}

fn pointer(fields: &mut Map<String, Value>, field: &str) -> Result<Pointer, Failure> {
    let Some(Value::String(text)) = fields.remove(field) else {
        return Err(Failure::bad_request(format!("A patch operation needs a '{field}'.")));
    };
    let Some(rest) = text.strip_prefix('/') else {
        return Err(Failure::bad_request(format!(
            "The {field} '{text}' of a patch operation must begin with '/'."
        )));
    };
    if rest.is_empty() {
        return Err(Failure::bad_request(format!("The {field} of a patch operation must name a property.")));
    }
    rest.split('/')
        .map(|part| {
            let mut name = String::with_capacity(part.len());
            let mut chars = part.chars();
            while let Some(c) = chars.next() {
                match (c, if c == '~' { chars.next() } else { None }) {
                    ('~', Some('0')) => name.push('~'),
                    ('~', Some('1')) => name.push('/'),
                    ('~', _) => {
                        return Err(Failure::bad_request(format!(
                            "The {field} '{text}' has a '~' without 0 or 1."
                        )));
                    }
                    (c, _) => name.push(c),
                }
            }
            Ok(name)
        })
        .collect()
}

fn find<'a>(document: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(document, |node, name| match node {
        Value::Object(map) => map.get_mut(name),
        Value::Array(items) => index(name).and_then(|at| items.get_mut(at)),
        _ => None,
    })
}

fn put(document: &mut Value, path: &[String], value: Value, mode: Element, op: &str) -> Result<(), Failure> {
    let (last, parents) = path.split_last().expect("pointers are not empty");
    match find(document, parents) {
        Some(Value::Object(map)) => {
            map.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            if last == "-" {
                items.push(value);
                return Ok(());
            }
            match (index(last), mode) {
                (Some(at), Element::Overwrite) if at < items.len() => items[at] = value,
                (Some(at), _) if at <= items.len() => items.insert(at, value),
                _ => {
                    return Err(Failure::bad_request(format!(
                        "{op} Operation: '{}' is not an index of an array of {} elements; use '-' to append.",
                        text_of(path),
                        items.len()
                    )));
                }
            }
            Ok(())
        }
        Some(_) | None => Err(Failure::bad_request(format!(
            "{op} Operation only support adding a leaf node of an existing node(array or object), no path found \
             beyond: '{}'",
            text_of(parents)
        ))),
    }
}

fn take(document: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    match find(document, parents)? {
        Value::Object(map) => map.shift_remove(last),
        Value::Array(items) => index(last).filter(|at| *at < items.len()).map(|at| items.remove(at)),
        _ => None,
    }
}

fn increment(document: &mut Value, path: &[String], by: &Number) -> Result<(), Failure> {
    match find(document, path) {
        Some(Value::Number(number)) => {
            *number = sum(number, by).ok_or_else(|| {
                Failure::bad_request(format!(
                    "Incr Operation: '{}' leaves the range of numbers.",
                    text_of(path)
                ))
            })?;
            Ok(())
        }
        Some(_) => {
            Err(Failure::bad_request(format!("Incr Operation: '{}' does not hold a number.", text_of(path))))
        }
        None => put(document, path, Value::Number(by.clone()), Element::Overwrite, "Incr"),
    }
}

fn sum(a: &Number, b: &Number) -> Option<Number> {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64())
        && let Some(total) = a.checked_add(b)
    {
        return Some(total.into());
    }
    json::normal_number(a.as_f64()? + b.as_f64()?)
}

fn index(name: &str) -> Option<usize> {
    let canonical = name == "0" || (!name.starts_with('0') && name.bytes().all(|b| b.is_ascii_digit()));
    canonical.then(|| name.parse().ok()).flatten()
}

fn missing(op: &str, path: &[String]) -> Failure {
    Failure::bad_request(format!(
        "{op} Operation: the path '{}' does not exist in the document.",
        text_of(path)
    ))
}

fn text_of(path: &[String]) -> String {
    path.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect()
}

const INVALID_PAYLOAD: &str = "The request payload is invalid. Ensure to provide a valid request payload.";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(document: &Value, operations: Value) -> Result<Value, Failure> {
        let immutable = |path: &[String]| path[0] == "id" || path[0].starts_with('_');
        Patch::from_value(operations)?.apply(document, immutable)
    }

    #[test]
    fn operations_change_documents_as_the_service_does() {
        let document = json!({"id": "1", "a": 1, "o": {"x/y": 1, "t~": 2}, "l": [1, 2, 3], "s": "t"});
        for (operations, changed) in [
            (json!([{"op": "add", "path": "/b", "value": 2}]), json!({"b": 2})),
            (json!([{"op": "add", "path": "/a", "value": null}]), json!({"a": null})),
            (json!([{"op": "add", "path": "/l/1", "value": 9}]), json!({"l": [1, 9, 2, 3]})),
            (json!([{"op": "add", "path": "/l/3", "value": 9}]), json!({"l": [1, 2, 3, 9]})),
            (json!([{"op": "add", "path": "/l/-", "value": 9}]), json!({"l": [1, 2, 3, 9]})),
            (json!([{"op": "set", "path": "/l/1", "value": 9}]), json!({"l": [1, 9, 3]})),
            (json!([{"op": "set", "path": "/o/n", "value": 9}]), json!({"o": {"x/y": 1, "t~": 2, "n": 9}})),
            (json!([{"op": "replace", "path": "/o/x~1y", "value": 9}]), json!({"o": {"x/y": 9, "t~": 2}})),
            (json!([{"op": "remove", "path": "/o/t~0"}]), json!({"o": {"x/y": 1}})),
            (json!([{"op": "remove", "path": "/l/0"}]), json!({"l": [2, 3]})),
            (json!([{"op": "incr", "path": "/a", "value": -3}]), json!({"a": -2})),
            (json!([{"op": "incr", "path": "/a", "value": 0.5}]), json!({"a": 1.5})),
            (json!([{"op": "incr", "path": "/n", "value": 4}]), json!({"n": 4})),
            (
                json!([{"op": "move", "from": "/a", "path": "/o/a"}]),
                json!({"a": (), "o": {"x/y": 1, "t~": 2, "a": 1}}),
            ),
            (json!({"operations": [{"op": "set", "path": "/a", "value": 7}]}), json!({"a": 7})),
        ] {
            let mut expected = document.clone();
            for (name, value) in changed.as_object().expect("object") {
                expected[name] = value.clone();
            }
            if operations[0]["op"] == "move" {
                expected.as_object_mut().expect("object").shift_remove("a");
            }
            assert_eq!(apply(&document, operations.clone()), Ok(expected), "{operations}");
        }
    }

    #[test]
    fn operations_that_cannot_work_are_refused_with_400() {
        let document = json!({"id": "1", "a": 1, "o": {"x": 1}, "l": [1, 2, 3], "s": "t"});
        for operations in [
            json!([]),
            Value::Array(vec![json!({"op": "set", "path": "/a", "value": 1}); 11]),
            json!([{"op": "copy", "path": "/a", "value": 1}]),
            json!([{"op": "add", "path": "a", "value": 1}]),
            json!([{"op": "add", "path": "/", "value": 1}]),
            json!([{"op": "add", "path": "/a~2", "value": 1}]),
            json!([{"op": "add", "path": "/a"}]),
            json!([{"op": "add", "path": "/missing/a", "value": 1}]),
            json!([{"op": "add", "path": "/a/b", "value": 1}]),
            json!([{"op": "add", "path": "/l/4", "value": 1}]),
            json!([{"op": "add", "path": "/l/01", "value": 1}]),
            json!([{"op": "replace", "path": "/missing", "value": 1}]),
            json!([{"op": "remove", "path": "/missing"}]),
            json!([{"op": "remove", "path": "/l/3"}]),
            json!([{"op": "incr", "path": "/s", "value": 1}]),
            json!([{"op": "incr", "path": "/a", "value": "1"}]),
            json!([{"op": "move", "from": "/missing", "path": "/a"}]),
            json!([{"op": "move", "from": "/o", "path": "/o/x"}]),
            json!([{"op": "move", "from": "/id", "path": "/o/x"}]),
            json!([{"op": "set", "path": "/id", "value": "2"}]),
            json!([{"op": "set", "path": "/_ts", "value": 1}]),
            json!({"condition": 1, "operations": [{"op": "remove", "path": "/a"}]}),
        ] {
            assert_eq!(apply(&document, operations.clone()).map_err(|f| f.status), Err(400), "{operations}");
        }
    }

    #[test]
    fn a_failing_operation_leaves_the_document_as_it_was() {
        let document = json!({"a": 1});
        let operations = json!([{"op": "set", "path": "/a", "value": 2}, {"op": "remove", "path": "/b"}]);
        assert!(apply(&document, operations).is_err());
        assert_eq!(document, json!({"a": 1}));
    }

    #[test]
    fn a_condition_is_kept_for_the_query_engine() {
        let patch = Patch::parse(
            br#"{"condition":"from c where c.a = 1","operations":[{"op":"remove","path":"/a"}]}"#,
        );
        assert_eq!(patch.expect("valid").condition.as_deref(), Some("from c where c.a = 1"));
    }
}
