//! Databases, containers, ranges and offers over the wire.

use cosmos_emulator::{Config, Emulator};
use serde_json::{Value, json};

use crate::client::{Client, emulator, with_container};

#[test]
fn databases_come_and_go() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let created = client.post("/dbs", &json!({"id": "d"})).send().expect(201).json();
    assert_eq!(created["_self"], format!("dbs/{}/", created["_rid"].as_str().unwrap()));
    client.post("/dbs", &json!({"id": "d"})).send().expect(409);
    assert_eq!(client.get("/dbs/d").send().expect(200).json(), created);
    let list = client.get("/dbs").send().expect(200).json();
    assert_eq!((list["_count"].clone(), list["Databases"][0]["id"].clone()), (json!(1), json!("d")));
    client.delete("/dbs/d").send().expect(204);
    client.get("/dbs/d").send().expect(404);
}

#[test]
fn a_container_answers_its_policies() {
    let (_emulator, mut client) = with_container();
    let answer = client.get("/dbs/d/colls/c").send().expect(200);
    assert_eq!(answer.header("x-ms-cosmos-max-content-length"), "2097152");
    let container = answer.json();
    assert_eq!(container["partitionKey"], json!({"paths": ["/pk"], "kind": "Hash", "version": 2}));
    assert_eq!(container["indexingPolicy"]["indexingMode"], "consistent");
    assert_eq!(container["_docs"], "docs/");
    let changed = json!({"id": "c", "partitionKey": container["partitionKey"], "defaultTtl": 60});
    assert_eq!(client.put("/dbs/d/colls/c", &changed).send().expect(200).json()["defaultTtl"], 60);
    client.delete("/dbs/d/colls/c").send().expect(204);
    client.get("/dbs/d/colls/c").send().expect(404);
}

#[test]
fn lists_are_paged() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    for id in ["a", "b", "c"] {
        client.post("/dbs", &json!({"id": id})).send().expect(201);
    }
    let first = client.get("/dbs").header("x-ms-max-item-count", "2").send().expect(200);
    assert_eq!(first.json()["_count"], 2);
    let token = first.header("x-ms-continuation").to_owned();
    let second = client
        .get("/dbs")
        .header("x-ms-max-item-count", "2")
        .header("x-ms-continuation", &token)
        .send()
        .expect(200);
    assert_eq!(
        (second.json()["Databases"][0]["id"].clone(), second.header("x-ms-continuation")),
        (json!("c"), "")
    );
    client.get("/dbs").header("x-ms-continuation", "odd").send().expect(400);
}

#[test]
fn ranges_cover_all_keys_and_end_with_304() {
    let emulator = Emulator::start(Config::default().with_partitions(4)).unwrap();
    let mut client = Client::new(&emulator).with_container();
    let path = "/dbs/d/colls/c/pkranges";
    let first = client
        .get(path)
        .header("a-im", "Incremental Feed")
        .header("x-ms-max-item-count", "-1")
        .send()
        .expect(200);
    let body = first.json();
    let ranges = body["PartitionKeyRanges"].as_array().unwrap();
    assert_eq!(ranges.len(), 4);
    assert_eq!(
        (ranges[0]["minInclusive"].clone(), ranges[3]["maxExclusive"].clone()),
        (json!(""), json!("FF"))
    );
    for pair in ranges.windows(2) {
        assert_eq!(pair[0]["maxExclusive"], pair[1]["minInclusive"]);
    }
    let etag = first.header("etag").to_owned();
    let again = client.get(path).header("a-im", "Incremental Feed").header("if-none-match", &etag).send();
    assert_eq!((again.status, again.header("etag")), (304, etag.as_str()));
}

#[test]
fn resources_are_found_by_their_resource_ids() {
    let (_emulator, mut client) = with_container();
    let container = client.get("/dbs/d/colls/c").send().expect(200).json();
    let path = format!("/{}", container["_self"].as_str().unwrap());
    assert_eq!(client.get(&path).send().expect(200).json()["id"], "c");
}

fn ask(client: &mut Client, path: &str, text: &str, parameters: &Value) -> Value {
    client
        .post(path, &json!({"query": text, "parameters": parameters}))
        .header("content-type", "application/query+json")
        .header("x-ms-documentdb-isquery", "True")
        .send()
        .expect(200)
        .json()
}

#[test]
fn databases_containers_and_offers_are_queried() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    client.post("/dbs", &json!({"id": "e"})).send().expect(201);
    let container = json!({"id": "c", "partitionKey": {"paths": ["/pk"]}});
    let created = client
        .post("/dbs/d/colls", &container)
        .header("x-ms-offer-throughput", "500")
        .send()
        .expect(201)
        .json();
    let parameters = json!([{"name": "@id", "value": "e"}]);
    let found = ask(&mut client, "/dbs", "SELECT * FROM root r WHERE r.id=@id", &parameters);
    assert_eq!((found["_count"].clone(), found["Databases"][0]["id"].clone()), (json!(1), json!("e")));
    let found = ask(&mut client, "/dbs/d/colls", "SELECT VALUE r.id FROM r", &json!([]));
    assert_eq!(found["DocumentCollections"], json!(["c"]));
    let link = json!([{"name": "@link", "value": created["_self"]}]);
    let found = ask(&mut client, "/offers", "SELECT * FROM root WHERE root.resource=@link", &link);
    assert_eq!(found["Offers"][0]["content"]["offerThroughput"], 500);
}

#[test]
fn throughput_is_changed_through_its_offer() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let container = json!({"id": "c", "partitionKey": {"paths": ["/pk"]}});
    client.post("/dbs/d/colls", &container).header("x-ms-offer-throughput", "400").send().expect(201);
    let mut offer = client.get("/offers").send().expect(200).json()["Offers"][0].clone();
    offer["content"]["offerThroughput"] = json!(1000);
    let path = format!("/{}", offer["_self"].as_str().unwrap());
    let replaced = client.put(&path, &offer).send().expect(200);
    assert_eq!(replaced.json()["content"]["offerThroughput"], 1000);
    assert_eq!(replaced.header("x-ms-offer-replace-pending"), "false");
    assert_eq!(client.get(&path).send().expect(200).json()["content"]["offerThroughput"], 1000);
}

#[test]
fn a_container_begins_without_scripts() {
    let (_emulator, mut client) = with_container();
    assert_eq!(client.get("/dbs/d/colls/c/sprocs").send().expect(200).json()["StoredProcedures"], json!([]));
    client.get("/dbs/d/colls/c/sprocs/s").send().expect(404);
}

#[test]
fn a_resource_token_opens_what_its_permission_names() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    client.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let permission = json!({"id": "p", "permissionMode": "Read", "resource": "dbs/d/colls/c"});
    let made = client.post("/dbs/d/users/u/permissions", &permission).send().expect(201).json();
    let token = made["_token"].as_str().unwrap().replace('=', "%3D").replace('&', "%26").replace('+', "%2B");
    let mut read = |path: &str| client.get(path).header("authorization", &token).send().status;
    assert_eq!(read("/dbs/d/colls/c"), 200);
    assert_eq!(read("/dbs/d/colls/c/pkranges"), 200);
    assert_eq!(read("/dbs/d"), 403);
    let forged = token.replace("sig%3D", "sig%3Dx");
    assert_eq!(client.get("/dbs/d/colls/c").header("authorization", &forged).send().status, 401);
    let write = client.delete("/dbs/d/colls/c").header("authorization", &token).send();
    assert_eq!(write.status, 403);
}

#[test]
fn a_container_counts_its_items_when_asked() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let answer = client
        .get("/dbs/d/colls/c")
        .header("x-ms-documentdb-populatepartitionstatistics", "True")
        .header("x-ms-documentdb-populatequotainfo", "True")
        .send()
        .expect(200);
    assert_eq!(answer.json()["statistics"][0]["documentCount"], 1);
    assert!(!answer.header("x-ms-resource-usage").is_empty());
}

#[test]
fn hierarchical_keys_need_a_version_that_knows_them() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let container =
        json!({"id": "h", "partitionKey": {"paths": ["/a", "/b"], "kind": "MultiHash", "version": 2}});
    let old = client.post("/dbs/d/colls", &container).header("x-ms-version", "2018-12-31").send();
    assert_eq!(old.status, 400);
    assert!(old.message().contains("'MultiHash'"), "{}", old.message());
    client.post("/dbs/d/colls", &container).send().expect(201);
    let item = json!({"id": "i", "a": "x", "b": 1});
    client
        .post("/dbs/d/colls/h/docs", &item)
        .header("x-ms-documentdb-partitionkey", r#"["x",1]"#)
        .send()
        .expect(201);
    let prefix = client
        .get("/dbs/d/colls/h/docs")
        .header("x-ms-documentdb-partitionkey", r#"["x"]"#)
        .send()
        .expect(200);
    assert_eq!(prefix.json()["_count"], 1);
}
