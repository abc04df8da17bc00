//! How long the vectors of a container may be.

use serde_json::Value;

use crate::Failure;

/// Most dimensions of a vector.
const DIMENSIONS_MAX: i64 = 4096;
/// Most dimensions of a vector that an index of the type `flat` holds.
const FLAT_DIMENSIONS_MAX: i64 = 505;

/// Checks the dimensions that a vector embedding policy names, by themselves and for the indexes over them.
pub(super) fn check(embeddings: Option<&Value>, indexing: &Value) -> Result<(), Failure> {
    let list = |value: Option<&Value>, name: &str| -> Vec<Value> {
        value.and_then(|value| value.get(name)).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let indexes = list(Some(indexing), "vectorIndexes");
    for embedding in list(embeddings, "vectorEmbeddings") {
        let Some(dimensions) = embedding.get("dimensions") else { continue };
        let is_flat = indexes.iter().any(|index| {
            index["path"] == embedding["path"]
                && index["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("flat"))
        });
        let most = if is_flat { FLAT_DIMENSIONS_MAX } else { DIMENSIONS_MAX };
        let of = if is_flat { " of an index of the type flat" } else { "" };
        let told = dimensions.as_i64();
        if told.is_some_and(|told| (1..=most).contains(&told)) {
            continue;
        }
        let why = if told.is_some_and(|told| told > most) {
            format!(" which is more than the maximum supported value {most}{of}")
        } else {
            format!(": they must be a whole number between 1 and {most}")
        };
        return Err(Failure::bad_request(format!(
            "The Vector Embedding Policy has Dimensions:{dimensions}{why}."
        )));
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
}
