//! Full text policies: which paths hold texts, and of which language.

use serde_json::Value;

use crate::Failure;
use crate::engine::index::path::Pattern;

/// Languages the service has analysers for.
const LANGUAGES: [&str; 7] = ["en-US", "de-DE", "es-ES", "fr-FR", "it-IT", "pt-BR", "pt-PT"];

/// Checks a full text policy and the indexes over its paths.
pub(super) fn check(policy: Option<&Value>, indexing: &Value) -> Result<(), Failure> {
    let policy = policy.filter(|policy| !policy.is_null());
    let refuse = |message: String| Err(Failure::bad_request(message));
    let is_known = |language: &Value| language.as_str().is_some_and(|language| LANGUAGES.contains(&language));
    if let Some(policy) = policy {
        let default = &policy["defaultLanguage"];
        if !default.is_null() && !is_known(default) {
            return refuse(format!(
                "The Full Text Policy contains an unsupported default language {default}."
            ));
        }
        for entry in entries(policy, "fullTextPaths")? {
            let path = entry["path"].as_str().unwrap_or_default();
            if Pattern::parse_plain(path).is_err() {
                return refuse(format!("The Full Text Policy contains an invalid Path: {path}"));
            }
            let language = &entry["language"];
            if !language.is_null() && !is_known(language) {
                return refuse(format!("The Full Text Policy contains an unsupported language {language}."));
            }
        }
    }
    for index in entries(indexing, "fullTextIndexes")? {
        let Some(path) = index["path"].as_str() else {
            return refuse("Missing path in the full text indexing policy.".to_owned());
        };
        if Pattern::parse_plain(path).is_err() {
            return refuse(format!("The full text indexing policy contains an invalid path: {path}"));
        }
        let paths = policy.map(|policy| entries(policy, "fullTextPaths")).transpose()?.unwrap_or_default();
        if !paths.iter().any(|known| known["path"] == path) {
            return refuse(format!(
                "The path of the full text index {path} does not match the full text policy."
            ));
        }
    }
    Ok(())
}

fn entries<'v>(value: &'v Value, name: &str) -> Result<&'v [Value], Failure> {
    match &value[name] {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(Failure::bad_request(format!(
            "One of the specified inputs is invalid: '{name}' must be an array."
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_languages_and_indexes_fit_together() {
        let told = |policy: Value, indexing: Value| {
            check(Some(&policy), &indexing).map_or_else(|failure| failure.message, |()| String::new())
        };
        let policy = |path: &str, language: &str| json!({"defaultLanguage": "en-US", "fullTextPaths": [{"path": path, "language": language}]});
        let none = json!({});
        assert_eq!(
            told(policy("/abstract", "en-US"), json!({"fullTextIndexes": [{"path": "/abstract"}]})),
            ""
        );
        assert_eq!(told(json!({"defaultLanguage": "en-US"}), none.clone()), "");
        assert!(told(policy("abstract", "en-US"), none.clone()).contains("an invalid Path: abstract"));
        assert!(told(policy("/abstract", "spa-SPA"), none.clone()).contains("unsupported language"));
        assert!(told(json!({"defaultLanguage": "spa-SPA"}), none).contains("unsupported default language"));
        for indexes in
            [json!([{"path": "/other"}]), json!([{"path": "abstract"}]), json!([{"not_path": "/a"}])]
        {
            assert_ne!(told(policy("/abstract", "en-US"), json!({"fullTextIndexes": indexes})), "");
        }
    }
}
