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
