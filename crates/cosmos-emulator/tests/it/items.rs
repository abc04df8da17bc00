//! Items over the wire: statuses, conditions, bodies.

use serde_json::json;

use crate::client::with_container;

const ITEM: &str = "/dbs/d/colls/c/docs/a";
const ITEMS: &str = "/dbs/d/colls/c/docs";

#[test]
fn an_item_is_created_read_replaced_and_deleted() {
    let (_emulator, mut client) = with_container();
    let created = client.create(&json!({"id": "a", "pk": "x", "n": 1})).expect(201);
    let body = created.json();
    let members: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["id", "pk", "n", "_rid", "_self", "_etag", "_attachments", "_ts"]);
    assert_eq!(client.create(&json!({"id": "a", "pk": "x"})).status(), (409, 0));
    let read = client.get(ITEM).key("x").send().expect(200);
    assert_eq!(read.body, created.body, "a read answers what the create did");
    let replaced = client.put(ITEM, &json!({"id": "a", "pk": "x", "n": 2})).key("x").send().expect(200);
    assert_eq!(replaced.json()["n"], 2);
    assert_ne!(replaced.header("etag"), created.header("etag"));
    let deleted = client.delete(ITEM).key("x").send().expect(204);
    assert!(deleted.body.is_empty());
    let gone = client.get(ITEM).key("x").send();
    assert_eq!(gone.status(), (404, 0));
    assert!(gone.message().starts_with("Entity with the specified id does not exist in the system."));
    client.delete(ITEM).key("x").send().expect(404);
}

#[test]
fn an_upsert_says_whether_it_created() {
    let (_emulator, mut client) = with_container();
    let mut upsert = |n: u32| {
        client
            .post(ITEMS, &json!({"id": "a", "pk": "x", "n": n}))
            .key("x")
            .header("x-ms-documentdb-is-upsert", "True")
            .send()
            .status
    };
    assert_eq!([upsert(1), upsert(2)], [201, 200]);
}

#[test]
fn etags_guard_reads_and_writes() {
    let (_emulator, mut client) = with_container();
    let etag = client.create(&json!({"id": "a", "pk": "x"})).expect(201).header("etag").to_owned();
    let unchanged = client.get(ITEM).key("x").header("if-none-match", &etag).send();
    assert_eq!(unchanged.status, 304);
    assert!(unchanged.body.is_empty());
    client.get(ITEM).key("x").header("if-none-match", "\"other\"").send().expect(200);
    let mut replace = |etag: &str| {
        client.put(ITEM, &json!({"id": "a", "pk": "x"})).key("x").header("if-match", etag).send()
    };
    let lost = replace("\"stale\"");
    assert_eq!((lost.status, lost.json()["code"].clone()), (412, json!("PreconditionFailed")));
    replace(&etag).expect(200);
    replace(&etag).expect(412);
    client.delete(ITEM).key("x").header("if-match", &etag).send().expect(412);
}

#[test]
fn a_minimal_answer_has_headers_and_no_body() {
    let (_emulator, mut client) = with_container();
    let answer = client
        .post(ITEMS, &json!({"id": "a", "pk": "x"}))
        .key("x")
        .header("prefer", "return=minimal")
        .send()
        .expect(201);
    assert!(answer.body.is_empty());
    assert!(!answer.header("etag").is_empty());
}

#[test]
fn a_patch_comes_as_an_object_or_as_a_bare_array() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "x", "n": 1})).expect(201);
    let add = json!([{"op": "add", "path": "/tag", "value": "t"}]);
    client.request("PATCH", ITEM).json(&add).key("x").send().expect(200);
    let increment = json!({"operations": [{"op": "incr", "path": "/n", "value": 4}]});
    let answer = client.request("PATCH", ITEM).json(&increment).key("x").send().expect(200).json();
    assert_eq!((answer["n"].clone(), answer["tag"].clone()), (json!(5), json!("t")));
    let conditional =
        json!({"condition": "from c where c.n = 1", "operations": [{"op": "set", "path": "/n", "value": 0}]});
    client.request("PATCH", ITEM).json(&conditional).key("x").send().expect(412);
    let holds =
        json!({"condition": "from c where c.n = 5", "operations": [{"op": "set", "path": "/n", "value": 0}]});
    client.request("PATCH", ITEM).json(&holds).key("x").send().expect(200);
    let mut many = Vec::new();
    many.resize(11, json!({"op": "set", "path": "/n", "value": 0}));
    client.request("PATCH", ITEM).json(&json!(many)).key("x").send().expect(400);
}

#[test]
fn a_wrong_or_missing_partition_key_is_400_1001() {
    let (_emulator, mut client) = with_container();
    let mismatch = client.post(ITEMS, &json!({"id": "a", "pk": "x"})).key("y").send();
    assert_eq!(mismatch.status(), (400, 1001));
    let broken =
        client.post(ITEMS, &json!({"id": "a", "pk": "x"})).header("x-ms-documentdb-partitionkey", "x").send();
    assert_eq!(broken.status, 400);
    assert_eq!(client.get(ITEM).send().status, 400);
}

#[test]
fn a_missing_container_or_database_is_404() {
    let (_emulator, mut client) = with_container();
    let item = json!({"id": "a", "pk": "x"});
    client.post("/dbs/d/colls/none/docs", &item).key("x").send().expect(404);
    client.post("/dbs/none/colls/c/docs", &item).key("x").send().expect(404);
    client.get("/dbs/none").send().expect(404);
}

#[test]
fn a_wrong_container_rid_is_400_1024() {
    let (_emulator, mut client) = with_container();
    let rid =
        client.create(&json!({"id": "a", "pk": "x"})).expect(201).header("x-ms-content-path").to_owned();
    let mut read = |rid: &str| {
        client.get(ITEM).key("x").header("x-ms-cosmos-intended-collection-rid", rid).send().status()
    };
    assert_eq!(read(&rid), (200, 0));
    assert_eq!(read("AAAAAAAAAAA="), (400, 1024));
}

#[test]
fn ids_with_blanks_and_other_letters_are_found_again() {
    let (_emulator, mut client) = with_container();
    for (id, path) in [("a b", "a%20b"), ("ö", "%C3%B6"), ("100%", "100%25"), ("q+r", "q+r")] {
        client.create(&json!({"id": id, "pk": "x"})).expect(201);
        let answer = client.get(&format!("{ITEMS}/{path}")).key("x").send().expect(200);
        assert_eq!(answer.json()["id"], id);
    }
}

#[test]
fn items_are_addressed_by_resource_ids_as_well() {
    let (_emulator, mut client) = with_container();
    let item = client.create(&json!({"id": "a", "pk": "x"})).expect(201).json();
    let path = format!("/{}", item["_self"].as_str().unwrap());
    assert_eq!(client.get(&path).key("x").send().expect(200).json(), item);
}

#[test]
fn a_session_ahead_of_the_server_is_404_1002() {
    let (_emulator, mut client) = with_container();
    let token =
        client.create(&json!({"id": "a", "pk": "x"})).expect(201).header("x-ms-session-token").to_owned();
    let mut read =
        |token: &str| client.get(ITEM).key("x").header("x-ms-session-token", token).send().status();
    assert_eq!(read(&token), (200, 0));
    assert_eq!(read("0:-1#999999"), (404, 1002));
}

#[test]
fn a_binary_body_is_read_like_text() {
    let (_emulator, mut client) = with_container();
    let body = cosmos_wire::binary_json::encode(&json!({"id": "bin", "pk": "x", "n": [1, 2.5, null, true]}));
    let answer = client.request("POST", ITEMS).body(body).key("x").send().expect(201).json();
    assert_eq!(answer["n"], json!([1, 2.5, null, true]));
    let broken = client.request("POST", ITEMS).body(vec![0x80, 0xff, 0xff]).key("x").send();
    assert_eq!(broken.status, 400);
}

#[test]
fn a_logical_partition_is_deleted_at_once() {
    let (_emulator, mut client) = with_container();
    for index in 0..120 {
        client.create(&json!({"id": format!("i{index}"), "pk": "x"})).expect(201);
    }
    client.create(&json!({"id": "a", "pk": "y"})).expect(201);
    let path = "/dbs/d/colls/c/operations/partitionkeydelete";
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let key = cosmos_wire::signature::Key::from_base64(cosmos_wire::EMULATOR_KEY).unwrap();
    let signed = cosmos_wire::signature::Signable::new("POST", "colls", "dbs/d/colls/c", &date);
    let token = key.authorization(&signed);
    let request = client.request("POST", path).unsigned().key("x");
    request.header("x-ms-date", &date).header("authorization", &token).send().expect(200);
    let left = client.get(ITEMS).send().expect(200).json();
    assert_eq!((left["_count"].clone(), left["Documents"][0]["pk"].clone()), (json!(1), json!("y")));
}
