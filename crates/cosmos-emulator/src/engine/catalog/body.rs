//! Bodies of databases and containers: checked, completed with the service's defaults.

use cosmos_wire::partition_key::Definition;
use cosmos_wire::status::Status;
use serde_json::{Map, Value, json};

use super::{encryption, full_text, vector};
use crate::Failure;
use crate::engine::index::path::Pattern;
use crate::engine::index::policy::{self, Mode, Policy};
use crate::engine::json as text;
use crate::sql::Schema;
use crate::sql::source::Path;

/// What a container's body says, in types.
#[derive(Debug)]
pub(crate) struct ContainerBody {
    pub(crate) name: String,
    /// The properties clients may set, completed; system properties are still missing.
    pub(crate) fields: Map<String, Value>,
    pub(crate) definition: Definition,
    pub(crate) policy: Policy,
    pub(crate) default_ttl: Option<i32>,
    /// Seconds for which versions are kept.
    pub(crate) retention: Option<u64>,
    pub(crate) unique_keys: Vec<Vec<Path>>,
}

/// Parses a body that must be an object.
pub(crate) fn object(body: &[u8]) -> Result<Map<String, Value>, Failure> {
    match text::parse(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) | Err(_) => Err(Failure::bad_request(INVALID)),
    }
}

/// The body of a database or container has no usable id.
pub(crate) fn name(body: &Map<String, Value>) -> Result<String, Failure> {
    let Some(name) = body.get("id").and_then(Value::as_str) else {
        return Err(Failure::bad_request(
            "The input content is invalid because the required properties - 'id; ' - are missing",
        ));
    };
    let illegal =
        name.contains(['/', '\\', '#', '?']) || name.ends_with(' ') || name.contains(char::is_control);
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || illegal {
        return Err(Failure::bad_request(format!(
            "The input name '{name}' is invalid. Ensure to provide a unique non-empty string less than '255' \
             characters. It has no '/', '\\', '#' and '?', and no space at its end."
        )));
    }
    Ok(name.to_owned())
}

/// Checks and completes a container's body.
pub(crate) fn container(body: &[u8]) -> Result<ContainerBody, Failure> {
    let body = object(body)?;
    let name = name(&body)?;
    let (indexing, policy) = policy::normalise(body.get("indexingPolicy"))?;
    let key = body.get("partitionKey").filter(|key| !key.is_null()).ok_or_else(|| {
        Failure::of(
            Status::PARTITION_KEY_DEFINITION_NOT_SPECIFIED,
            "The container needs a 'partitionKey' with 'paths', for example [\"/pk\"].",
        )
    })?;
    let definition = Definition::from_json(key).map_err(|error| Failure::bad_request(error.to_string()))?;
    let key_paths: Vec<&str> =
        key["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    encryption::check_policy(body.get("clientEncryptionPolicy"), &key_paths)?;
    let default_ttl = default_ttl(body.get("defaultTtl"))?;
    let unique_keys = unique_keys(body.get("uniqueKeyPolicy"))?;
    let schema = json!({"computedProperties": body.get("computedProperties"), "indexingPolicy": indexing});
    Schema::check(&schema)?;
    vector::check(body.get("vectorEmbeddingPolicy"), &indexing)?;
    full_text::check(body.get("fullTextPolicy"), &indexing)?;
    let geospatial = geospatial(body.get("geospatialConfig"))?;
    check_bounding_boxes(&geospatial, &indexing)?;
    if policy.mode == Mode::None && default_ttl.is_some() {
        return Err(Failure::bad_request(
            "The collection cannot have a default time to live with the indexing mode 'none': set the mode to \
             'consistent' or leave 'defaultTtl' out.",
        ));
    }
    let mut fields = Map::new();
    fields.insert("id".into(), json!(name));
    fields.insert("indexingPolicy".into(), indexing);
    fields.insert("partitionKey".into(), key.clone());
    if let Some(seconds) = default_ttl {
        fields.insert("defaultTtl".into(), json!(seconds));
    }
    let unique = json!({"uniqueKeys": []});
    fields.insert(
        "uniqueKeyPolicy".into(),
        body.get("uniqueKeyPolicy").filter(|p| p.is_object()).cloned().unwrap_or(unique),
    );
    if unique_keys.is_empty() {
        fields.shift_remove("uniqueKeyPolicy");
    }
    fields.insert("conflictResolutionPolicy".into(), conflicts(body.get("conflictResolutionPolicy"))?);
    fields.insert("geospatialConfig".into(), geospatial);
    for kept in KEPT {
        if let Some(value) = body.get(kept).filter(|value| !value.is_null()) {
            fields.insert(kept.into(), value.clone());
        }
    }
    let is_nothing = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if let Some(name) =
        NOT_EVALUATED.iter().find(|name| body.get(**name).is_some_and(|value| !is_nothing(value)))
    {
        return Err(Failure::bad_request(format!(
            "The emulator does not evaluate '{name}': its queries would not find what it promises. Leave it out."
        )));
    }
    let retention = retention(body.get("changeFeedPolicy"))?;
    Ok(ContainerBody { name, fields, definition, policy, default_ttl, retention, unique_keys })
}

/// How long versions are kept, in seconds, as a change feed policy says it in minutes.
pub(crate) fn retention(policy: Option<&Value>) -> Result<Option<u64>, Failure> {
    let Some(policy) = policy.filter(|policy| !policy.is_null()) else { return Ok(None) };
    match &policy["retentionDuration"] {
        Value::Null => Ok(None),
        minutes => match minutes.as_u64().filter(|minutes| *minutes <= RETENTION_MINUTES_MAX) {
            Some(minutes) => Ok(Some(minutes * 60).filter(|seconds| *seconds > 0)),
            None => Err(Failure::bad_request(format!(
                "The retentionDuration '{minutes}' of the change feed policy is invalid: it must be a whole number of \
                 minutes between 0 and {RETENTION_MINUTES_MAX}."
            ))),
        },
    }
}

/// Thirty days.
const RETENTION_MINUTES_MAX: u64 = 30 * 24 * 60;

fn default_ttl(value: Option<&Value>) -> Result<Option<i32>, Failure> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    match value.as_i64().and_then(|seconds| i32::try_from(seconds).ok()) {
        Some(seconds) if seconds == -1 || seconds > 0 => Ok(Some(seconds)),
        Some(_) | None => Err(Failure::bad_request(format!(
            "The input ttl '{value}' is invalid. Ensure to provide a nonzero positive integer less than or equal to \
             '2147483647', or '-1' which means never expire."
        ))),
    }
}

fn unique_keys(policy: Option<&Value>) -> Result<Vec<Vec<Path>>, Failure> {
    let Some(policy) = policy.filter(|policy| !policy.is_null()) else { return Ok(Vec::new()) };
    let wrong = |what: &str| Failure::bad_request(format!("The unique key policy is invalid: {what}."));
    let keys = match policy.get("uniqueKeys") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(keys) => keys.as_array().ok_or_else(|| wrong("'uniqueKeys' must be an array"))?,
    };
    if keys.len() > UNIQUE_KEYS_MAX {
        return Err(wrong("a container can have at most 10 unique keys"));
    }
    keys.iter()
        .map(|key| {
            let paths = key["paths"].as_array().ok_or_else(|| wrong("each key needs an array of 'paths'"))?;
            if paths.is_empty() || paths.len() > UNIQUE_PATHS_MAX {
                return Err(wrong("each key has between 1 and 16 paths"));
            }
            paths
                .iter()
                .map(|path| {
                    let text = path.as_str().ok_or_else(|| wrong("paths are strings"))?;
                    Pattern::parse_plain(text)
                        .map_err(|_| wrong(&format!("'{text}' is not a path like '/a/b'")))
                })
                .collect::<Result<Vec<Path>, Failure>>()
        })
        .collect()
}

fn conflicts(given: Option<&Value>) -> Result<Value, Failure> {
    let given = given.filter(|given| !given.is_null());
    let mode = given.and_then(|given| given.get("mode")).and_then(Value::as_str).unwrap_or("LastWriterWins");
    let text = |field: &str| {
        given.and_then(|given| given.get(field)).and_then(Value::as_str).unwrap_or("").to_owned()
    };
    match mode.to_ascii_lowercase().as_str() {
        "lastwriterwins" => {
            let path = text("conflictResolutionPath");
            let path = if path.is_empty() { "/_ts".to_owned() } else { path };
            Ok(
                json!({"mode": "LastWriterWins", "conflictResolutionPath": path, "conflictResolutionProcedure": ""}),
            )
        }
        "custom" => Ok(json!({"mode": "Custom", "conflictResolutionPath": "",
            "conflictResolutionProcedure": text("conflictResolutionProcedure")})),
        _ => Err(Failure::bad_request("The conflict resolution mode must be 'LastWriterWins' or 'Custom'.")),
    }
}

fn geospatial(given: Option<&Value>) -> Result<Value, Failure> {
    match given.and_then(|given| given.get("type")).map(|kind| kind.as_str()) {
        None => Ok(json!({"type": "Geography"})),
        Some(Some(kind @ ("Geography" | "Geometry"))) => Ok(json!({"type": kind})),
        Some(_) => {
            Err(Failure::bad_request("The 'type' of a geospatialConfig must be 'Geography' or 'Geometry'."))
        }
    }
}

/// On a plane nobody knows how far a spatial index goes unless it says so.
fn check_bounding_boxes(geospatial: &Value, indexing: &Value) -> Result<(), Failure> {
    if geospatial["type"] != "Geometry" {
        return Ok(());
    }
    let indexes = indexing["spatialIndexes"].as_array();
    for index in indexes.into_iter().flatten() {
        let corner = |name: &str| index["boundingBox"][name].as_f64();
        let is_box = match (corner("xmin"), corner("ymin"), corner("xmax"), corner("ymax")) {
            (Some(left), Some(low), Some(right), Some(high)) => left < right && low < high,
            _ => false,
        };
        if !is_box {
            return Err(Failure::bad_request(format!(
                "The spatial index of {} needs a boundingBox with xmin, ymin, xmax and ymax, because the container's \
                 geospatialConfig is Geometry.",
                index["path"]
            )));
        }
    }
    Ok(())
}

/// Properties that are stored and shown as they came.
const KEPT: [&str; 6] = [
    "computedProperties",
    "changeFeedPolicy",
    "vectorEmbeddingPolicy",
    "fullTextPolicy",
    "clientEncryptionPolicy",
    "analyticalStorageTtl",
];

/// Properties that would have to be evaluated.
const NOT_EVALUATED: [&str; 1] = ["materializedViewDefinition"];

/// What the service says to a body it cannot read.
pub(crate) const INVALID: &str = "The request payload is invalid. Ensure to provide a valid request payload.";

const NAME_CHARS_MAX: usize = 255;
const UNIQUE_KEYS_MAX: usize = 10;
const UNIQUE_PATHS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_container_gets_the_services_defaults() {
        let body = container(br#"{"id":"c","partitionKey":{"paths":["/pk"],"kind":"Hash"}}"#).expect("valid");
        let mut expected = json!({
            "id": "c",
            "indexingPolicy": {"indexingMode": "consistent", "automatic": true, "includedPaths": [{"path": "/*"}],
                "excludedPaths": [{"path": "/\"_etag\"/?"}]},
            "partitionKey": {"paths": ["/pk"], "kind": "Hash"},
            "conflictResolutionPolicy": {"mode": "LastWriterWins", "conflictResolutionPath": "/_ts",
                "conflictResolutionProcedure": ""},
            "geospatialConfig": {"type": "Geography"}
        });
        assert_eq!(Value::Object(body.fields), expected.take());
    }

    #[test]
    fn what_would_be_ignored_in_silence_is_refused() {
        let with = |field: &str, value: Value| {
            let mut body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash"}});
            body[field] = value;
            container(body.to_string().as_bytes()).map(drop).map_err(|f| (f.status, f.message))
        };
        let field = "materializedViewDefinition";
        let value = json!({"sourceCollectionId": "c", "definition": "SELECT * FROM c"});
        let (status, message) = with(field, value).expect_err("refused");
        assert!(status == 400 && message.contains(field), "{status} {message}");
        assert_eq!(with(field, json!([])), Ok(()), "nothing to ignore");
        assert_eq!(with(field, Value::Null), Ok(()));
    }

    #[test]
    fn bodies_the_service_refuses_are_refused() {
        let with = |field: &str, value: Value| {
            let mut body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash"}});
            body[field] = value;
            container(body.to_string().as_bytes()).map(drop).map_err(|f| f.status)
        };
        assert_eq!(with("id", json!("ok")), Ok(()));
        for (field, value) in [
            ("id", json!("")),
            ("id", json!(1)),
            ("id", json!("a/b")),
            ("id", json!("a?")),
            ("id", json!("a ")),
            ("id", json!("x".repeat(256))),
            ("partitionKey", json!(null)),
            ("partitionKey", json!({"paths": []})),
            ("partitionKey", json!({"paths": ["pk"], "kind": "Hash"})),
            ("defaultTtl", json!(0)),
            ("defaultTtl", json!(-2)),
            ("defaultTtl", json!("1")),
            ("defaultTtl", json!(2_147_483_648_u64)),
            ("uniqueKeyPolicy", json!({"uniqueKeys": [{"paths": []}]})),
            ("uniqueKeyPolicy", json!({"uniqueKeys": [{"paths": ["a"]}]})),
            ("uniqueKeyPolicy", json!({"uniqueKeys": vec![json!({"paths": ["/a"]}); 11]})),
            ("conflictResolutionPolicy", json!({"mode": "Guess"})),
            ("geospatialConfig", json!({"type": "Flat"})),
            (
                "vectorEmbeddingPolicy",
                json!({"vectorEmbeddings": [{"path": "/v", "dimensions": 4_294_967_295_u32}]}),
            ),
        ] {
            assert_eq!(with(field, value.clone()), Err(400), "{field} {value}");
        }
    }
}
