//! Who is let in.

use cosmos_emulator::{Auth, Config, Emulator};
use serde_json::json;

use crate::client::{Client, emulator};

const READ_ONLY: &str = "cmVhZC1vbmx5LWtleS1mb3ItdGVzdHM=";

#[test]
fn unsigned_requests_are_refused() {
    let emulator = emulator();
    let answer = Client::new(&emulator).get("/dbs").unsigned().send();
    assert_eq!(answer.status, 401);
    assert_eq!(answer.json()["code"], "Unauthorized");
    assert!(
        answer.message().starts_with("Required Header authorization is missing."),
        "{}",
        answer.message()
    );
}

#[test]
fn the_wrong_key_is_refused_and_told_what_should_have_been_signed() {
    let emulator = emulator();
    let answer = Client::with_key(&emulator, "b3RoZXI=").get("/dbs/MyDb").send();
    assert_eq!(answer.status, 401);
    assert!(answer.message().contains("'get\\ndbs\\ndbs/MyDb\\n"), "{}", answer.message());
}

#[test]
fn an_old_date_is_forbidden() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    let date = "Mon, 02 Nov 2020 10:00:00 GMT";
    let key = cosmos_wire::signature::Key::from_base64(emulator.key()).unwrap();
    let token = key.authorization(&cosmos_wire::signature::Signable::new("GET", "dbs", "", date));
    let answer = client.get("/dbs").header("x-ms-date", date).header("authorization", &token).send();
    assert_eq!(answer.status, 403);
    assert!(answer.message().contains("not valid at the current time"), "{}", answer.message());
}

#[test]
fn every_sdk_encodes_its_token_differently_and_all_are_let_in() {
    let emulator = emulator();
    let key = cosmos_wire::signature::Key::from_base64(emulator.key()).unwrap();
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let signature = key.sign(&cosmos_wire::signature::Signable::new("GET", "dbs", "", &date));
    let plain = format!("type=master&ver=1.0&sig={signature}");
    let javascript = plain.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D").replace('&', "%26");
    let python = javascript.to_lowercase().replace(&signature.to_lowercase(), &signature);
    let python = if python.contains(&signature) { python } else { javascript.clone() };
    for token in [plain, javascript, python] {
        Client::new(&emulator)
            .get("/dbs")
            .header("x-ms-date", &date)
            .header("authorization", &token)
            .send()
            .expect(200);
    }
}

#[test]
fn the_read_only_key_reads_and_does_not_write() {
    let config = Config { read_only_key: Some(READ_ONLY.to_owned()), ..Config::default() };
    let emulator = Emulator::start(config).unwrap();
    Client::new(&emulator).post("/dbs", &json!({"id": "d"})).send().expect(201);
    let mut reader = Client::with_key(&emulator, READ_ONLY);
    reader.get("/dbs/d").send().expect(200);
    let refused = reader.post("/dbs", &json!({"id": "e"})).send();
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["code"], "Forbidden");
}

#[test]
fn the_read_only_key_reads_users_but_not_permissions_whose_tokens_write() {
    let config = Config { read_only_key: Some(READ_ONLY.to_owned()), ..Config::default() };
    let emulator = Emulator::start(config).unwrap();
    let mut admin = Client::new(&emulator).with_container();
    admin.post("/dbs/d/users", &json!({"id": "u"})).send().expect(201);
    let permission = json!({"id": "p", "permissionMode": "All", "resource": "dbs/d/colls/c"});
    admin.post("/dbs/d/users/u/permissions", &permission).send().expect(201);
    let mut reader = Client::with_key(&emulator, READ_ONLY);
    reader.get("/dbs/d/users/u").send().expect(200);
    reader.get("/dbs/d/users").send().expect(200);
    let list = "/dbs/d/users/u/permissions";
    let query = json!({"query": "SELECT * FROM p", "parameters": []});
    for refused in [
        reader.get(list).send(),
        reader.get("/dbs/d/users/u/permissions/p").send(),
        reader.post(list, &query).header("x-ms-documentdb-isquery", "True").send(),
    ] {
        assert_eq!(refused.status, 403);
        assert!(!String::from_utf8_lossy(&refused.body).contains("_token"));
    }
    admin.get(list).send().expect(200);
}

/// Deletes the database at a path with a signature over another link.
fn delete_signed_over(client: &mut Client, path: &str, link: &str) -> u16 {
    let key = cosmos_wire::signature::Key::from_base64(cosmos_wire::EMULATOR_KEY).unwrap();
    let date = cosmos_wire::date::format(std::time::SystemTime::now());
    let token = key.authorization(&cosmos_wire::signature::Signable::new("DELETE", "dbs", link, &date));
    client.delete(path).header("x-ms-date", &date).header("authorization", &token).send().status
}

#[test]
fn a_signature_covers_the_whole_link_of_names_and_the_rid_alone_of_rids() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    for name in ["MyDb", "Other"] {
        client.post("/dbs", &json!({"id": name})).send().expect(201);
    }
    for link in ["mydb", "MyDb", "dbs/mydb", "", "dbs"] {
        assert_eq!(delete_signed_over(&mut client, "/dbs/MyDb", link), 401, "{link}");
    }
    assert_eq!(delete_signed_over(&mut client, "/dbs/MyDb", "dbs/MyDb"), 204);
    let rid = client.get("/dbs/Other").send().expect(200).json()["_rid"].as_str().unwrap().to_owned();
    assert_eq!(delete_signed_over(&mut client, "/dbs/Other", &rid.to_lowercase()), 401);
    let by_rid = format!("/dbs/{}", rid.replace('=', "%3D").replace('+', "%2B"));
    assert_eq!(delete_signed_over(&mut client, &by_rid, &rid.to_lowercase()), 204);
}

#[test]
fn without_auth_everyone_is_let_in() {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).unwrap();
    Client::new(&emulator).get("/dbs").unsigned().send().expect(200);
    Client::with_key(&emulator, "b3RoZXI=").get("/dbs").send().expect(200);
}

#[test]
fn a_request_without_version_is_400() {
    let emulator = emulator();
    for version in ["", "latest"] {
        let answer = Client::new(&emulator).get("/dbs").header("x-ms-version", version).send();
        assert_eq!(answer.status, 400);
        assert!(answer.message().starts_with("Invalid API version"), "{}", answer.message());
    }
}

#[test]
fn names_with_blanks_and_other_letters_are_signed_decoded() {
    let emulator = emulator();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "my böx"})).send().expect(201);
    let answer = client.get("/dbs/my%20b%C3%B6x").send().expect(200);
    assert_eq!(answer.json()["id"], "my böx");
}
