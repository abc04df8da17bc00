//! The management API: its index, its errors, snapshots, connections.

use cosmos_emulator::{Config, Emulator, Fsync};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// A client of the management port.
pub(crate) struct Manager(Client);

impl Manager {
    pub(crate) fn of(emulator: &Emulator) -> Self {
        Self(Client::at(&emulator.management_endpoint().expect("it is served"), emulator.key()))
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.0.get(path).unsigned().send()
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.0.post(path, body).unsigned().send()
    }

    pub(crate) fn put(&mut self, path: &str, body: &Value) -> Answer {
        self.0.put(path, body).unsigned().send()
    }

    pub(crate) fn delete(&mut self, path: &str) -> Answer {
        self.0.delete(path).unsigned().send()
    }
}

fn managed() -> (Emulator, Manager) {
    let emulator = Emulator::start(Config::default().with_management()).unwrap();
    let manager = Manager::of(&emulator);
    (emulator, manager)
}

#[test]
fn the_index_lists_every_endpoint_and_each_answers() {
    let (_emulator, mut manager) = managed();
    let index = manager.get("/").expect(200).json();
    let endpoints = index["endpoints"].as_array().unwrap().clone();
    assert!(endpoints.len() > 10);
    for endpoint in endpoints {
        assert!(endpoint["about"].as_str().is_some_and(|about| !about.is_empty()));
        if endpoint["method"] == "GET" && !endpoint["path"].as_str().unwrap().contains('{') {
            let path = endpoint["path"].as_str().unwrap();
            let status = manager.get(path).status;
            assert!(status == 200 || (status == 404 && path == "/certificate"), "{path}: {status}");
        }
    }
}

#[test]
fn errors_say_what_is_wrong_and_what_is_allowed() {
    let (_emulator, mut manager) = managed();
    let nowhere = manager.get("/helth").expect(404).json();
    assert!(nowhere["error"].as_str().unwrap().contains("GET / lists"), "{nowhere}");
    let wrong = manager.delete("/health").expect(405);
    assert_eq!(wrong.header("allow"), "GET");
    assert_eq!(wrong.json()["allowed"], json!(["GET"]));
    let body = manager.post("/clock/advance", &json!({"secs": 1})).expect(400).json();
    assert!(body["error"].as_str().unwrap().contains("unknown field `secs`"), "{body}");
    assert_eq!(body["example"], json!({"seconds": 3600}));
    let range = manager.post("/clock/advance", &json!({"seconds": -1})).expect(400).json();
    assert!(range["error"].as_str().unwrap().contains("from 0"), "{range}");
    let id = manager.delete("/faults/abc").expect(400).json();
    assert!(id["error"].as_str().unwrap().contains("whole number"), "{id}");
    manager.delete("/faults/7").expect(404);
    let age = manager.put("/config/connection-age", &json!({"seconds": 0})).expect(400).json();
    assert!(age["error"].as_str().unwrap().contains("0.001"), "{age}");
}

#[test]
fn the_clock_is_put_forward() {
    let (emulator, mut manager) = managed();
    let before = manager.get("/clock").expect(200).json()["milliseconds"].as_u64().unwrap();
    let after = manager.post("/clock/advance", &json!({"seconds": 60})).expect(200).json();
    assert!(after["milliseconds"].as_u64().unwrap() >= before + 60_000);
    assert!(emulator.clock().now_millis() >= before + 60_000);
}

#[test]
fn connections_are_told_to_leave_by_command() {
    let (emulator, mut manager) = managed();
    let mut client = Client::new(&emulator);
    client.get("/dbs").send().expect(200);
    assert_eq!(manager.post("/goaway", &json!({})).expect(200).json()["connections"], 1);
    // An idle connection is closed; the next one is welcome.
    while client.get("/dbs").try_send().is_ok() {}
    client.get("/dbs").send().expect(200);
    let set = manager.put("/config/connection-age", &json!({"seconds": 0.001})).expect(200).json();
    assert_eq!(set["seconds"], 0.001);
    while client.get("/dbs").try_send().is_ok_and(|answer| answer.header("connection") != "close") {}
    assert_eq!(
        manager.put("/config/connection-age", &json!({"seconds": null})).expect(200).json()["seconds"],
        Value::Null
    );
    let metrics = String::from_utf8(manager.get("/metrics").expect(200).body).unwrap();
    assert!(metrics.contains("\ncosmos_emulator_goaways_total "), "{metrics}");
}

#[test]
fn the_certificate_is_there_under_tls_only() {
    let (_emulator, mut manager) = managed();
    assert!(manager.get("/certificate").expect(404).json()["error"].as_str().unwrap().contains("--tls"));
    let emulator = Emulator::start(Config::default().with_management().with_tls()).unwrap();
    let pem = Manager::of(&emulator).get("/certificate").expect(200);
    assert_eq!(pem.body, emulator.certificate().unwrap().as_bytes());
}

#[test]
fn a_snapshot_taken_under_writes_is_consistent_and_can_be_started_and_restored() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let config = Config::default().with_management().with_folder(&data, Fsync::Off);
    let emulator = Emulator::start(config).unwrap();
    let mut client = Client::new(&emulator).with_container();
    let batch = |number: u32| {
        let create = |id: &str| json!({"operationType": "Create", "resourceBody": {"id": format!("{number}-{id}"), "pk": "k"}});
        json!([create("a"), create("b")])
    };
    let mut send = move |number: u32| {
        client
            .post("/dbs/d/colls/c/docs", &batch(number))
            .key("k")
            .header("x-ms-cosmos-is-batch-request", "True")
            .header("x-ms-cosmos-batch-atomic", "True")
            .send()
            .expect(200);
    };
    (0..20).for_each(&mut send);
    let snapshot = place.path().join("snapshot");
    let taken = std::thread::scope(|scope| {
        let taken = scope.spawn(|| Manager::of(&emulator).post("/snapshot", &json!({"folder": snapshot})));
        (20..60).for_each(&mut send);
        taken.join().unwrap()
    });
    assert!(taken.expect(201).json()["rows"].as_u64().unwrap() > 40);
    let again = Manager::of(&emulator).post("/snapshot", &json!({"folder": snapshot})).expect(409).json();
    assert!(again["error"].as_str().unwrap().contains("is not empty"), "{again}");
    let started = Config::default().with_folder(&snapshot, Fsync::Off);
    let restored = Config { restore_from: Some(snapshot.clone()), ..Config::default() };
    for config in [started, restored] {
        let copy = Emulator::start(config).unwrap();
        let found = Client::new(&copy).query("SELECT VALUE c.id FROM c").expect(200).json();
        let ids: Vec<&str> =
            found["Documents"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(ids.len() >= 40 && ids.len() % 2 == 0, "whole batches only: {}", ids.len());
        let numbers: std::collections::BTreeSet<u32> =
            ids.iter().map(|id| id.split('-').next().unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.last().map(|last| *last as usize + 1), Some(numbers.len()), "no gap");
        assert_eq!(numbers.len() * 2, ids.len());
    }
    let occupied =
        Config { restore_from: Some(snapshot), ..Config::default().with_folder(&data, Fsync::Off) };
    drop(emulator);
    let refused = Emulator::start(occupied).unwrap_err().to_string();
    assert!(refused.contains("is not empty"), "{refused}");
}
