//! Client encryption keys and the policies that name them.

use cosmos_emulator::{Config, Emulator, Fsync, Store};
use serde_json::{Value, json};

use crate::client::Client;

const KEYS: &str = "/dbs/d/clientencryptionkeys";

fn key(id: &str) -> Value {
    json!({"id": id, "encryptionAlgorithm": "AEAD_AES_256_CBC_HMAC_SHA256", "wrappedDataEncryptionKey": "AAECAw==",
        "keyWrapMetadata": {"type": "AZURE_KEY_VAULT", "name": "k", "value": "https://vault/k", "algorithm": "RSA-OAEP"}})
}

fn container(id: &str, key: &str) -> Value {
    json!({"id": id, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "clientEncryptionPolicy": {"policyFormatVersion": 1, "includedPaths": [{"path": "/secret",
            "clientEncryptionKeyId": key, "encryptionType": "Randomized",
            "encryptionAlgorithm": "AEAD_AES_256_CBC_HMAC_SHA256"}]}})
}

#[test]
fn keys_are_kept_listed_and_rewrapped_and_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::Folder { path: folder.path().to_owned(), fsync: Fsync::Off };
    let config = Config { store, ..Config::default() };
    let emulator = Emulator::start(config.clone()).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let made = client.post(KEYS, &key("one")).send().expect(201).json();
    for (field, value) in key("one").as_object().unwrap() {
        assert_eq!(made[field], *value, "{field}");
    }
    client.post(KEYS, &key("one")).send().expect(409);
    let mut wrapped = key("one");
    wrapped["wrappedDataEncryptionKey"] = json!("BAUGBw==");
    client.put(&format!("{KEYS}/one"), &wrapped).header("if-match", "\"other\"").send().expect(412);
    client
        .put(&format!("{KEYS}/one"), &wrapped)
        .header("if-match", made["_etag"].as_str().unwrap())
        .send()
        .expect(200);
    client.delete(&format!("{KEYS}/one")).send().expect(405);
    for field in ["encryptionAlgorithm", "wrappedDataEncryptionKey", "keyWrapMetadata"] {
        let mut broken = key("two");
        broken[field] = json!("");
        client.post(KEYS, &broken).send().expect(400);
    }
    drop(client);
    drop(emulator);
    let emulator = Emulator::start(config).unwrap();
    let mut client = Client::new(&emulator);
    let listed = client.get(KEYS).send().expect(200).json();
    assert_eq!(listed["_count"], 1);
    assert_eq!(listed["ClientEncryptionKeys"][0]["wrappedDataEncryptionKey"], "BAUGBw==");
    client.get(&format!("{KEYS}/two")).send().expect(404);
    client.delete("/dbs/d").send().expect(204);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    assert_eq!(client.get(KEYS).send().expect(200).json()["_count"], 0, "they went with their database");
}

#[test]
fn a_policy_names_keys_that_are_there_and_stays_as_it_is() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let refused = client.post("/dbs/d/colls", &container("c", "one")).send().expect(400).message();
    assert!(refused.contains("'one'"), "{refused}");
    client.post(KEYS, &key("one")).send().expect(201);
    client.post(KEYS, &key("two")).send().expect(201);
    let made = client.post("/dbs/d/colls", &container("c", "one")).send().expect(201).json();
    assert_eq!(made["clientEncryptionPolicy"], container("c", "one")["clientEncryptionPolicy"]);
    client.put("/dbs/d/colls/c", &container("c", "one")).send().expect(200);
    client.put("/dbs/d/colls/c", &container("c", "two")).send().expect(400);
}
