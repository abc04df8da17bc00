//! Client encryption keys of a database, and the policies of containers that name them.
//!
//! Clients encrypt: the server keeps keys that it cannot unwrap, and tells them. What it checks is that a container names
//! keys which are there, in a way that every client can follow.

use serde_json::{Map, Value, json};

use super::user::{answer, target, text, written};
use super::{Database, Put, body, not_found};
use crate::Failure;
use crate::engine::request::{ResourceFeed, ResourceReply};
use crate::engine::{Engine, key, quota};
use crate::storage::{Batch, Change, StorageError};

/// The algorithm all SDKs speak.
const ALGORITHM: &str = "AEAD_AES_256_CBC_HMAC_SHA256";
/// Fields of a key besides its name.
const FIELDS: [&str; 3] = ["encryptionAlgorithm", "wrappedDataEncryptionKey", "keyWrapMetadata"];

impl Engine {
    /// Creates or changes a client encryption key.
    ///
    /// # Errors
    /// 400, 404, 409, 412.
    pub fn put_encryption_key(
        &self,
        database: &str,
        body: &[u8],
        put: Put<'_>,
    ) -> Result<ResourceReply, Failure> {
        let given = body::object(body)?;
        let name = body::name(&given)?;
        check_key(&given)?;
        let mut control = self.control();
        let mut catalog = self.catalog_mut();
        let database = catalog.database_mut(database)?;
        let old = target(put, &name, database.encryption_keys.iter().map(|(number, body)| (*number, body)))?;
        let mut numbers = control.clone();
        let number = old.unwrap_or_else(|| numbers.next_user());
        let (rid, now) = (database.rid.user(number), self.clock().now_seconds());
        let mut fields = Map::new();
        fields.insert("id".into(), name.into());
        fields.extend(FIELDS.iter().map(|field| ((*field).to_owned(), given[*field].clone())));
        fields.insert("_rid".into(), rid.to_string().into());
        let link = format!("dbs/{}/clientencryptionkeys/{rid}/", database.rid);
        fields.insert("_self".into(), link.into());
        fields.insert("_etag".into(), numbers.next_etag(now).into());
        fields.insert("_ts".into(), now.into());
        let kept = Value::Object(fields);
        let changes = vec![
            Change::Put(key::meta(), numbers.to_record().into()),
            Change::Put(key::encryption_key(database.number, number), kept.to_string().into_bytes().into()),
        ];
        let ticket = self.commit(Batch { changes })?;
        let reply = written(old, &kept);
        database.encryption_keys.insert(number, kept);
        *control = numbers;
        Ok(ResourceReply { ticket: Some(ticket), ..reply })
    }

    /// Reads a client encryption key by name or resource id.
    ///
    /// # Errors
    /// 404.
    pub fn read_encryption_key(&self, database: &str, name: &str) -> Result<ResourceReply, Failure> {
        let catalog = self.catalog();
        let keys = &catalog.database(database)?.encryption_keys;
        let named = |body: &&Value| text(body, "id") == name || text(body, "_rid") == name;
        Ok(answer(200, keys.values().find(named).ok_or_else(not_found)?))
    }

    /// The client encryption keys of a database, in order of creation.
    ///
    /// # Errors
    /// 404.
    pub fn encryption_keys(&self, database: &str) -> Result<ResourceFeed, Failure> {
        let catalog = self.catalog();
        let database = catalog.database(database)?;
        let resources = database.encryption_keys.values().cloned().collect();
        Ok(ResourceFeed { rid: database.rid.to_string(), resources, charge: quota::METADATA })
    }
}

/// A key from the store.
pub(super) fn load_key(bytes: &[u8]) -> Result<Value, StorageError> {
    serde_json::from_slice(bytes).map_err(|_| {
        StorageError(
            "the record of a client encryption key cannot be read; restore the data folder from a copy"
                .into(),
        )
    })
}

fn check_key(given: &Map<String, Value>) -> Result<(), Failure> {
    let refuse = |what: &str| Err(Failure::bad_request(format!("The client encryption key {what}.")));
    if given.get("encryptionAlgorithm").and_then(Value::as_str) != Some(ALGORITHM) {
        return refuse(&format!("needs the 'encryptionAlgorithm' {ALGORITHM}"));
    }
    let is_text = |value: Option<&Value>| value.and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if !is_text(given.get("wrappedDataEncryptionKey")) {
        return refuse("needs a 'wrappedDataEncryptionKey', in base64");
    }
    let metadata = given.get("keyWrapMetadata");
    match ["type", "name", "value", "algorithm"]
        .iter()
        .find(|field| !is_text(metadata.and_then(|m| m.get(field))))
    {
        Some(field) => refuse(&format!("needs 'keyWrapMetadata' with a '{field}'")),
        None => Ok(()),
    }
}

/// Refuses a policy that clients cannot follow.
pub(super) fn check_policy(policy: Option<&Value>, key_paths: &[&str]) -> Result<(), Failure> {
    let Some(policy) = policy.filter(|policy| !policy.is_null()) else { return Ok(()) };
    let refuse =
        |what: String| Err(Failure::bad_request(format!("The client encryption policy is invalid: {what}.")));
    let version = policy["policyFormatVersion"].as_u64();
    if !matches!(version, Some(1 | 2)) {
        return refuse("supported versions of its format are 1 and 2".into());
    }
    let Some(paths) = policy["includedPaths"].as_array() else {
        return refuse("'includedPaths' must be an array".into());
    };
    let mut seen = Vec::new();
    for included in paths {
        let field = |name: &str| included[name].as_str().unwrap_or_default();
        let (path, kind) = (field("path"), field("encryptionType"));
        if !path.starts_with('/') || path.len() < 2 || path[1..].contains('/') {
            return refuse(format!("'{path}' is not the path of a property at the top, like /name"));
        }
        if seen.contains(&path) {
            return refuse(format!("'{path}' is there twice"));
        }
        seen.push(path);
        if field("clientEncryptionKeyId").is_empty() {
            return refuse(format!("'{path}' needs a 'clientEncryptionKeyId'"));
        }
        if !matches!(kind, "Deterministic" | "Randomized") {
            return refuse(format!("the 'encryptionType' of '{path}' must be Deterministic or Randomized"));
        }
        if field("encryptionAlgorithm") != ALGORITHM {
            return refuse(format!("the 'encryptionAlgorithm' of '{path}' must be {ALGORITHM}"));
        }
        let is_address = path == "/id" || key_paths.contains(&path);
        if is_address && (version != Some(2) || kind != "Deterministic") {
            return refuse(format!(
                "'{path}' is the id or part of the partition key: that takes format 2 and Deterministic"
            ));
        }
    }
    Ok(())
}

/// Refuses a policy that names keys which are not there.
pub(super) fn check_keys(policy: &Value, database: &Database) -> Result<(), Failure> {
    let named = policy["includedPaths"].as_array().into_iter().flatten();
    for id in named.filter_map(|included| included["clientEncryptionKeyId"].as_str()) {
        if !database.encryption_keys.values().any(|known| text(known, "id") == id) {
            return Err(Failure::bad_request(format!(
                "The client encryption policy names the key '{id}', which does not exist in the database."
            )));
        }
    }
    Ok(())
}

/// What was encrypted by one policy cannot be read by another.
pub(super) fn check_unchanged(old: &Value, new: &Map<String, Value>) -> Result<(), Failure> {
    let none = json!(null);
    if old["clientEncryptionPolicy"] == *new.get("clientEncryptionPolicy").unwrap_or(&none) {
        return Ok(());
    }
    Err(Failure::bad_request(
        "The client encryption policy of a container cannot be changed after it was created.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(change: impl FnOnce(&mut Value)) -> String {
        let mut policy = json!({"policyFormatVersion": 1, "includedPaths": [{"path": "/ssn",
            "clientEncryptionKeyId": "k", "encryptionType": "Randomized", "encryptionAlgorithm": ALGORITHM}]});
        change(&mut policy);
        check_policy(Some(&policy), &["/pk"]).map_or_else(|failure| failure.message, |()| String::new())
    }

    #[test]
    fn policies_that_clients_cannot_follow_are_refused() {
        assert_eq!(told(|_| {}), "");
        assert!(told(|policy| policy["policyFormatVersion"] = json!(3)).contains("1 and 2"));
        assert!(told(|policy| policy["includedPaths"] = json!(1)).contains("array"));
        for (field, value) in [
            ("path", "ssn"),
            ("path", "/a/b"),
            ("path", "/"),
            ("path", "/id"),
            ("path", "/pk"),
            ("clientEncryptionKeyId", ""),
            ("encryptionType", "None"),
            ("encryptionAlgorithm", "ROT13"),
        ] {
            assert_ne!(
                told(|policy| policy["includedPaths"][0][field] = json!(value)),
                "",
                "{field} {value}"
            );
        }
        let twice = |policy: &mut Value| {
            let path = policy["includedPaths"][0].clone();
            policy["includedPaths"].as_array_mut().unwrap().push(path);
        };
        assert!(told(twice).contains("twice"));
        let address = |policy: &mut Value| {
            policy["policyFormatVersion"] = json!(2);
            policy["includedPaths"][0]["path"] = json!("/pk");
            policy["includedPaths"][0]["encryptionType"] = json!("Deterministic");
        };
        assert_eq!(told(address), "");
    }
}
