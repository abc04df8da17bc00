//! Vector policies: what a container may say of its vectors, in the service's words where they are known.

use serde_json::Value;

use crate::Failure;
use crate::engine::index::path::Pattern;

/// Most dimensions of a vector.
const DIMENSIONS_MAX: i64 = 4096;
/// Most dimensions of a vector that an index of the type `flat` holds.
const FLAT_DIMENSIONS_MAX: i64 = 505;
/// Most bytes to which a vector is compressed; never more than it has dimensions.
const QUANTIZATION_BYTES_MAX: i64 = 512;

/// Checks a vector embedding policy and the indexes over its vectors.
pub(super) fn check(embeddings: Option<&Value>, indexing: &Value) -> Result<(), Failure> {
    let embeddings = list(embeddings, "vectorEmbeddings")?;
    let indexes = list(Some(indexing), "vectorIndexes")?;
    for embedding in embeddings {
        check_embedding(embedding, indexes)?;
    }
    for index in indexes {
        check_index(index, embeddings)?;
    }
    Ok(())
}

/// Refuses to change what vectors were stored or indexed by.
pub(super) fn check_unchanged(old: &Value, new: &serde_json::Map<String, Value>) -> Result<(), Failure> {
    let new_indexing = new.get("indexingPolicy").unwrap_or(&Value::Null);
    let is_kept = |old: &[Value], new: &[Value]| {
        old.iter().all(|old| new.iter().all(|new| new["path"] != old["path"] || new == old))
    };
    let old_indexes = list(Some(&old["indexingPolicy"]), "vectorIndexes")?;
    if !is_kept(old_indexes, list(Some(new_indexing), "vectorIndexes")?) {
        let message = "Paths in existing vector indexing policy cannot be modified in Collection Replace.";
        return Err(Failure::bad_request(message));
    }
    let old_embeddings = list(old.get("vectorEmbeddingPolicy"), "vectorEmbeddings")?;
    if !is_kept(old_embeddings, list(new.get("vectorEmbeddingPolicy"), "vectorEmbeddings")?) {
        let message = "Paths in existing embedding policy cannot be modified in Collection Replace.";
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

fn list<'v>(value: Option<&'v Value>, name: &str) -> Result<&'v [Value], Failure> {
    match value.and_then(|value| value.get(name)) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(invalid_input(name)),
    }
}

fn invalid_input(name: &str) -> Failure {
    Failure::bad_request(format!("One of the specified inputs is invalid: '{name}' must be an array."))
}

fn check_embedding(embedding: &Value, indexes: &[Value]) -> Result<(), Failure> {
    let path = embedding["path"].as_str().unwrap_or_default();
    if Pattern::parse_plain(path).is_err() {
        return Err(Failure::bad_request(format!("The Vector Embedding Policy has an invalid Path:{path}.")));
    }
    let text = |name: &str| embedding[name].as_str().unwrap_or_default();
    let kind = text("dataType");
    if !["float32", "float16", "int8", "uint8"].iter().any(|known| known.eq_ignore_ascii_case(kind)) {
        return Err(Failure::bad_request(format!(
            "The Vector Embedding Policy has an invalid DataType:{kind}."
        )));
    }
    check_dimensions(embedding, indexes)?;
    let function = text("distanceFunction");
    if crate::sql::is_distance_function(function) {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "The Vector Embedding Policy has an invalid DistanceFunction:{function}."
    )))
}

fn check_dimensions(embedding: &Value, indexes: &[Value]) -> Result<(), Failure> {
    let dimensions = &embedding["dimensions"];
    let is_flat = indexes.iter().any(|index| {
        index["path"] == embedding["path"]
            && index["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("flat"))
    });
    let most = if is_flat { FLAT_DIMENSIONS_MAX } else { DIMENSIONS_MAX };
    let of = if is_flat { " of an index of the type flat" } else { "" };
    let told = dimensions.as_i64();
    if told.is_some_and(|told| (1..=most).contains(&told)) {
        return Ok(());
    }
    let why = if told.is_some_and(|told| told > most) {
        format!(" which is more than the maximum supported value {most}{of}")
    } else {
        format!(": they must be a whole number between 1 and {most}")
    };
    Err(Failure::bad_request(format!("The Vector Embedding Policy has Dimensions:{dimensions}{why}.")))
}

fn check_index(index: &Value, embeddings: &[Value]) -> Result<(), Failure> {
    let refuse = |message: String| Err(Failure::bad_request(message));
    let path = index["path"].as_str().unwrap_or_default();
    let Some(embedding) = embeddings.iter().find(|embedding| embedding["path"] == path) else {
        return refuse(format!(
            "The Vector Indexing Policy's path::{path} not matching in Embedding's path."
        ));
    };
    let kind = index["type"].as_str().unwrap_or_default();
    if !["flat", "quantizedFlat", "diskANN"].iter().any(|known| known.eq_ignore_ascii_case(kind)) {
        return refuse(format!("The Vector Indexing Policy's Index Type::{kind} is invalid."));
    }
    let quantized_max = embedding["dimensions"].as_i64().unwrap_or(i64::MAX).min(QUANTIZATION_BYTES_MAX);
    for (field, name, least, most) in [
        ("quantizationByteSize", "QuantizationByteSize", 1, quantized_max),
        ("indexingSearchListSize", "IndexingSearchListSize", 25, 500),
    ] {
        let told = &index[field];
        if !told.is_null() && !told.as_i64().is_some_and(|told| (least..=most).contains(&told)) {
            return refuse(format!(
                "The Vector Indexing Policy parameter {name} value :: {told} is out of range. The allowed range is \
                 between {least} and {most}."
            ));
        }
    }
    let shards = match &index["vectorIndexShardKey"] {
        Value::Null => return Ok(()),
        Value::Array(shards) => shards,
        _ => return Err(invalid_input("vectorIndexShardKey")),
    };
    if shards.len() > 1 {
        return refuse(format!(
            "The number of shard paths defined in the Vector Indexing Policy: {} exceeds the maximum: 1.",
            shards.len()
        ));
    }
    for shard in shards.iter().map(|shard| shard.as_str().unwrap_or_default()) {
        if Pattern::parse_plain(shard).is_err() {
            return refuse(format!("The Vector Indexing Policy has an invalid Shard Path: {shard}."));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vectors_are_as_long_as_the_service_takes_them() {
        let told = |dimensions: Value, kind: &str| {
            let embeddings = json!({"vectorEmbeddings": [{"path": "/v", "dataType": "float32",
                "distanceFunction": "cosine", "dimensions": dimensions}]});
            let indexing = json!({"vectorIndexes": [{"path": "/v", "type": kind}]});
            check(Some(&embeddings), &indexing).map_err(|failure| (failure.status, failure.message))
        };
        for (dimensions, kind) in [(1, "flat"), (505, "flat"), (4096, "quantizedFlat"), (4096, "diskANN")] {
            assert_eq!(told(json!(dimensions), kind), Ok(()), "{dimensions} {kind}");
        }
        for (dimensions, kind) in [
            (json!(506), "flat"),
            (json!(4097), "diskANN"),
            (json!(4_294_967_295_u32), "quantizedFlat"),
            (json!(u64::MAX), "diskANN"),
            (json!(0), "flat"),
            (json!(-1), "flat"),
            (json!(1.5), "flat"),
            (json!("12"), "flat"),
            (json!(null), "flat"),
        ] {
            let (status, message) = told(dimensions.clone(), kind).unwrap_err();
            let begin = format!("The Vector Embedding Policy has Dimensions:{dimensions}");
            assert!(status == 400 && message.starts_with(&begin), "{message}");
        }
        assert_eq!(check(None, &json!({})), Ok(()));
    }

    #[test]
    fn policies_say_what_the_service_knows() {
        let refusal = |field: &str, value: Value, of_index: bool| {
            let mut embedding = json!({"path": "/v", "dataType": "float32", "dimensions": 256,
                "distanceFunction": "cosine"});
            let mut index = json!({"path": "/v", "type": "quantizedFlat"});
            if of_index {
                index[field] = value;
            } else {
                embedding[field] = value;
            }
            let told =
                check(Some(&json!({"vectorEmbeddings": [embedding]})), &json!({"vectorIndexes": [index]}));
            told.map_or_else(|failure| failure.message, |()| String::new())
        };
        for (field, value, of_index, part) in [
            ("dataType", json!("int8"), false, ""),
            ("dataType", json!("float33"), false, "invalid DataType:float33"),
            ("distanceFunction", json!("handMeasured"), false, "invalid DistanceFunction:handMeasured"),
            ("path", json!("v"), false, "invalid Path:v"),
            ("path", json!("/w"), true, "path::/w not matching in Embedding's path."),
            ("type", json!("notFlat"), true, "Index Type::notFlat is invalid"),
            ("quantizationByteSize", json!(256), true, ""),
            (
                "quantizationByteSize",
                json!(0),
                true,
                "value :: 0 is out of range. The allowed range is between 1 and 256.",
            ),
            (
                "indexingSearchListSize",
                json!(5),
                true,
                "value :: 5 is out of range. The allowed range is between 25 and 500.",
            ),
            ("vectorIndexShardKey", json!(["/a"]), true, ""),
            ("vectorIndexShardKey", json!(["a"]), true, "invalid Shard Path: a."),
            ("vectorIndexShardKey", json!(["/a", "/b"]), true, "Policy: 2 exceeds the maximum: 1."),
            ("vectorIndexShardKey", json!("/a"), true, "One of the specified inputs is invalid"),
        ] {
            let message = refusal(field, value.clone(), of_index);
            assert!(
                message.contains(part) && message.is_empty() == part.is_empty(),
                "{field} {value}: {message}"
            );
        }
    }
}
