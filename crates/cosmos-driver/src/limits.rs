//! The service's limits, checked before anything is sent, with an error that says which.

use cosmos_wire::partition_key::{Coverage, Definition, PartitionKey};

use crate::error::Error;

/// Largest item or batch body.
pub(crate) const BODY_BYTES_MAX: usize = cosmos_wire::batch::BODY_BYTES_MAX;
const ITEM_ID_BYTES_MAX: usize = 1023;
const NAME_BYTES_MAX: usize = 255;
const QUERY_BYTES_MAX: usize = 512 << 10;

/// Ids of items.
pub(crate) fn item_id(id: &str) -> Result<(), Error> {
    characters("item", id)?;
    if id.len() > ITEM_ID_BYTES_MAX {
        let length = id.len();
        return Err(Error::limit(format!(
            "item id: {length} bytes, at most {ITEM_ID_BYTES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// Names of databases and containers.
pub(crate) fn resource_id(what: &str, id: &str) -> Result<(), Error> {
    characters(what, id)?;
    if id.len() > NAME_BYTES_MAX {
        let length = id.len();
        return Err(Error::limit(format!("{what} id: {length} bytes, at most {NAME_BYTES_MAX} are allowed")));
    }
    Ok(())
}

fn characters(what: &str, id: &str) -> Result<(), Error> {
    if id.is_empty() {
        return Err(Error::limit(format!("{what} id: empty; give it at least one character")));
    }
    match id.chars().find(|c| matches!(c, '/' | '\\' | '?' | '#')) {
        Some(c) => Err(Error::limit(format!("{what} id {id:?}: the character {c:?} is not allowed"))),
        None => Ok(()),
    }
}

/// Bodies of items and batches.
pub(crate) fn body(what: &str, bytes: usize) -> Result<(), Error> {
    if bytes > BODY_BYTES_MAX {
        return Err(Error::limit(format!(
            "{what}: {bytes} bytes, at most {BODY_BYTES_MAX} (2 MB) are allowed"
        )));
    }
    Ok(())
}

pub(crate) fn query(text: &str) -> Result<(), Error> {
    if text.len() > QUERY_BYTES_MAX {
        let length = text.len();
        return Err(Error::limit(format!(
            "query: {length} bytes of text, at most {QUERY_BYTES_MAX} are allowed"
        )));
    }
    Ok(())
}

/// A batch's number of operations.
pub(crate) fn batch(operations: usize) -> Result<(), Error> {
    let most = cosmos_wire::batch::OPERATIONS_MAX;
    match operations {
        0 => Err(Error::limit("batch: no operations; add at least one")),
        n if n > most => Err(Error::limit(format!("batch: {n} operations, at most {most} are allowed"))),
        _ => Ok(()),
    }
}

/// A patch's number of operations.
pub(crate) fn patch(operations: usize) -> Result<(), Error> {
    let most = cosmos_wire::patch::OPERATIONS_MAX;
    match operations {
        0 => Err(Error::limit("patch: no operations; add at least one")),
        n if n > most => Err(Error::limit(format!("patch: {n} operations, at most {most} are allowed"))),
        _ => Ok(()),
    }
}

/// A key that names one logical partition of this container.
pub(crate) fn full_key(key: &PartitionKey, definition: &Definition) -> Result<(), Error> {
    let (has, wants) = (key.components().len(), definition.paths().len());
    match definition.coverage(key) {
        Coverage::Full => {}
        Coverage::Prefix | Coverage::Empty | Coverage::Mismatch => {
            return Err(Error::limit(format!(
                "partition key {key}: {has} components, the container's key has {wants}"
            )));
        }
    }
    let (size, most) = (key.size_bytes(), definition.key_bytes_max());
    if size > most {
        return Err(Error::limit(format!("partition key: {size} bytes, at most {most} are allowed")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_which_limit() {
        let cases: Vec<(Result<(), Error>, &str)> = vec![
            (item_id(""), "item id: empty"),
            (item_id("a/b"), "'/'"),
            (item_id("a\\b"), "'\\\\'"),
            (item_id("a?b"), "'?'"),
            (item_id("a#b"), "'#'"),
            (item_id(&"x".repeat(1024)), "1024 bytes, at most 1023"),
            (resource_id("container", &"x".repeat(256)), "container id: 256 bytes"),
            (batch(0), "no operations"),
            (batch(101), "101 operations, at most 100"),
            (patch(11), "11 operations, at most 10"),
            (body("batch", (2 << 20) + 1), "at most 2097152"),
            (query(&"x".repeat((512 << 10) + 1)), "query: 524289 bytes"),
        ];
        for (result, text) in cases {
            let error = result.expect_err(text);
            assert!(error.to_string().contains(text), "{error} should contain {text}");
            assert_eq!(error.kind(), crate::ErrorKind::Limit);
        }
        for result in [item_id("ordinary id é"), batch(100), patch(10), body("item", 2 << 20)] {
            result.expect("within limits");
        }
    }

    #[test]
    fn partial_keys_are_refused_where_a_whole_one_is_needed() {
        let definition = Definition::multi_hash(&["/a", "/b"]).expect("valid");
        let key: PartitionKey = r#"["x"]"#.parse().expect("valid");
        let error = full_key(&key, &definition).expect_err("prefix");
        assert!(error.to_string().contains("1 components, the container's key has 2"), "{error}");
    }
}
