//! Fields that are read as far as they can be.
//!
//! Whoever lists documents, or removes them, must not fail at a field that is malformed: to them it is one that is not
//! there. Whoever runs a workflow reads strictly.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A field of a row, or its default if it is not what it should be: `#[serde(default, deserialize_with = "lenient")]`.
///
/// The text is taken as it is first, so that a value of any depth is passed over.
pub(crate) fn lenient<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let text = <Box<RawValue>>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        #[serde(default, deserialize_with = "lenient")]
        number: u64,
        #[serde(default, deserialize_with = "lenient")]
        text: Option<String>,
    }

    #[test]
    fn what_is_malformed_is_as_if_it_were_not_there() {
        let read = |text: &str| serde_json::from_str::<Row>(text).unwrap();
        assert_eq!(read(r#"{"number":7,"text":"x"}"#), Row { number: 7, text: Some("x".to_owned()) });
        let nothing = Row { number: 0, text: None };
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for malformed in ["-1", "1e300", "null", "{}", "[1]", "true", deep.as_str()] {
            assert_eq!(
                read(&format!(r#"{{"number":{malformed},"text":{malformed}}}"#)),
                nothing,
                "{malformed:.20}"
            );
        }
        assert_eq!(read("{}"), nothing);
        assert_eq!(serde_json::from_value::<Row>(serde_json::json!({ "text": 5 })).unwrap(), nothing);
    }
}
