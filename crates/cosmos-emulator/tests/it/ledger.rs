//! What the ledger and the management port tell.

use cosmos_emulator::{Config, Emulator, Operation};
use serde_json::json;

use crate::client::{Client, with_container};

#[test]
fn requests_are_counted_by_operation_and_container() {
    let (emulator, mut client) = with_container();
    emulator.ledger().reset();
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let charge: f64 =
        client.get("/dbs/d/colls/c/docs/a").key("x").send().header("x-ms-request-charge").parse().unwrap();
    client.get("/dbs/d/colls/c/docs/b").key("x").send().expect(404);
    let ledger = emulator.ledger().snapshot();
    let reads = ledger.lines.iter().find(|line| line.operation == Operation::ReadItem).unwrap();
    assert_eq!(&*reads.container, "dbs/d/colls/c");
    assert_eq!((reads.totals.requests, reads.totals.failures), (2, 1));
    assert!(reads.totals.request_units >= charge);
    let last = ledger.recent.last().unwrap();
    assert_eq!((last.status, last.path.as_str()), (404, "/dbs/d/colls/c/docs/b"));
    assert_eq!(last.partition_key.as_deref(), Some(r#"["x"]"#));
    assert_eq!(ledger.recent.len(), 3);
}

#[test]
fn the_management_port_tells_health_account_ledger_and_metrics() {
    let emulator = Emulator::start(Config::default().with_management()).unwrap();
    let mut client = Client::new(&emulator).with_container();
    let mut manager = Client::at(&emulator.management_endpoint().unwrap(), emulator.key());
    let mut ask = |path: &'static str| manager.request("GET", path).unsigned().send();
    assert_eq!(ask("/health").expect(200).json()["status"], "ok");
    let account = ask("/account").expect(200).json();
    assert_eq!(account["writableLocations"][0]["databaseAccountEndpoint"], emulator.endpoint());
    let ledger = ask("/ledger").expect(200).json();
    assert_eq!(ledger["totals"]["requests"], 2);
    let metrics = String::from_utf8(ask("/metrics").expect(200).body).unwrap();
    assert!(
        metrics.contains("cosmos_emulator_requests_total{operation=\"createDatabase\",container=\"\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("cosmos_emulator_connections_open 1"), "{metrics}");
    assert_eq!(ask("/elsewhere").status, 404);
    assert_eq!(manager.request("PUT", "/health").unsigned().send().status, 405);
    manager.request("DELETE", "/ledger").unsigned().send().expect(204);
    assert_eq!(emulator.ledger().snapshot().totals.requests, 0);
    client.get("/dbs").send().expect(200);
}

#[test]
fn the_clock_is_put_forward_and_items_expire() {
    let emulator = Emulator::start(Config::default().with_management()).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let container = json!({"id": "c", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": 600});
    client.post("/dbs/d/colls", &container).send().expect(201);
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    let mut manager = Client::at(&emulator.management_endpoint().unwrap(), emulator.key());
    manager.request("POST", "/clock/advance").unsigned().json(&json!({"seconds": 500})).send().expect(200);
    client.get("/dbs/d/colls/c/docs/a").key("x").send().expect(200);
    manager.request("POST", "/clock/advance").unsigned().json(&json!({"seconds": 3600})).send().expect(200);
    // Whoever keeps time by the account's dates hears of it, on every kind of connection.
    let told = client.get("/dbs/d/colls/c/docs/a").key("x").send().expect(404);
    let told = cosmos_wire::date::parse(told.header("date")).expect("a date");
    let ahead = told.duration_since(std::time::SystemTime::now()).expect("in the future").as_secs();
    assert!((4050..=4100).contains(&ahead), "{ahead}");
    manager.request("POST", "/clock/advance").unsigned().json(&json!({"seconds": -1})).send().expect(400);
}
