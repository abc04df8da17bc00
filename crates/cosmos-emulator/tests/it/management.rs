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

    pub(crate) fn at(endpoint: &str) -> Self {
        Self(Client::at(endpoint, cosmos_wire::EMULATOR_KEY))
    }

    /// Asks for something without waiting for it.
    pub(crate) fn post_only(&mut self, path: &str, body: &Value) -> std::net::TcpStream {
        self.0.post(path, body).unsigned().send_only()
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
        assert!(ids.len() >= 40 && ids.len().is_multiple_of(2), "whole batches only: {}", ids.len());
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

/// Two regions with a container, the first one writes.
fn two_regions() -> (Emulator, Manager) {
    let config = Config::default().with_management().with_regions(&["East US", "West US"]);
    let emulator = Emulator::start(config).unwrap();
    Client::new(&emulator).with_container();
    let manager = Manager::of(&emulator);
    (emulator, manager)
}

fn at(emulator: &Emulator, region: &str) -> Client {
    Client::at(&emulator.regions().endpoint_of(region).unwrap(), emulator.key())
}

#[test]
fn regions_go_offline_and_come_back_by_command() {
    let (emulator, mut manager) = two_regions();
    let listed = manager.get("/regions").expect(200).json();
    assert_eq!(listed["writeRegion"], "East US");
    assert_eq!(listed["regions"][1]["name"], "West US");
    assert_eq!(listed["regions"][1]["isWritable"], false);
    assert_eq!(listed["regions"][1]["replicationLag"]["commits"], 0);
    at(&emulator, "West US").get("/dbs/d").send().expect(200);
    manager.post("/regions/West%20US/offline", &json!({})).expect(200);
    assert!(at(&emulator, "West US").get("/dbs/d").try_send().is_err(), "connections are refused");
    manager.post("/regions/West%20US/offline", &json!({"manner": "unavailable"})).expect(200);
    at(&emulator, "West US").get("/dbs/d").send().expect(503);
    manager.post("/regions/West%20US/online", &json!({})).expect(200);
    at(&emulator, "West US").get("/dbs/d").send().expect(200);
    let unknown = manager.post("/regions/Mars/offline", &json!({})).expect(404).json();
    assert!(unknown["error"].as_str().unwrap().contains("East US, West US"), "{unknown}");
    let wrong = manager.post("/regions/West%20US/offline", &json!({"manner": "gently"})).expect(400).json();
    assert!(wrong["error"].as_str().unwrap().contains("refuse"), "{wrong}");
}

#[test]
fn the_write_region_moves_and_replication_pauses_by_command() {
    let (emulator, mut manager) = two_regions();
    manager.post("/regions/West%20US/replication/pause", &json!({})).expect(200);
    let mut east = at(&emulator, "East US");
    east.create(&json!({"id": "a", "pk": "k"})).expect(201);
    let listed = manager.get("/regions").expect(200).json();
    assert_eq!(listed["regions"][1]["isReplicationPaused"], true);
    assert_eq!(listed["regions"][1]["replicationLag"]["commits"], 1);
    at(&emulator, "West US").get("/dbs/d/colls/c/docs/a").key("k").send().expect(404);
    let refused = manager.post("/failover", &json!({"writeRegion": "West US"})).expect(409).json();
    assert!(refused["error"].is_string(), "a planned failover needs both: {refused}");
    manager.post("/regions/West%20US/replication/resume", &json!({})).expect(200);
    let moved = manager.post("/failover", &json!({"writeRegion": "West US", "kind": "planned"})).expect(200);
    assert_eq!(moved.json()["writeRegion"], "West US");
    at(&emulator, "West US").get("/dbs/d/colls/c/docs/a").key("k").send().expect(200);
    assert_eq!(east.create(&json!({"id": "b", "pk": "k"})).status(), (403, 3));
    manager.post("/failover", &json!({"writeRegion": "Mars"})).expect(404);
    manager.post("/failover", &json!({})).expect(400);
}

#[test]
fn regions_join_and_leave_by_command_and_the_flag_is_advertised() {
    let (emulator, mut manager) = two_regions();
    let joined = manager.put("/regions/North", &json!({})).expect(201).json();
    let mut north = Client::at(joined["endpoint"].as_str().unwrap(), emulator.key());
    north.get("/dbs/d").send().expect(200);
    manager.put("/regions/north", &json!({})).expect(409);
    manager.delete("/regions/North").expect(204);
    assert_eq!(north.get("/dbs/d").send().status(), (403, 1008));
    manager.delete("/regions/East%20US").expect(409);
    let set = manager.put("/config/per-partition-failover", &json!({"enabled": true})).expect(200).json();
    assert_eq!(set["enabled"], true);
    let account = manager.get("/account").expect(200).json();
    assert_eq!(account["enablePerPartitionFailoverBehavior"], true);
    manager.put("/config/replication-delay", &json!({"to": "West US", "delayMs": 60_000})).expect(204);
    at(&emulator, "East US").create(&json!({"id": "a", "pk": "k"})).expect(201);
    at(&emulator, "West US").get("/dbs/d/colls/c/docs/a").key("k").send().expect(404);
    manager.post("/clock/advance", &json!({"seconds": 60})).expect(200);
    at(&emulator, "West US").get("/dbs/d/colls/c/docs/a").key("k").send().expect(200);
}

#[test]
fn goaway_reaches_one_region_only() {
    let (emulator, mut manager) = two_regions();
    let mut clients = [at(&emulator, "East US"), at(&emulator, "West US")];
    for client in &mut clients {
        client.get("/dbs").send().expect(200);
    }
    let told = manager.post("/goaway", &json!({"region": "West US"})).expect(200).json();
    assert_eq!(told["connections"], 1);
    let [east, west] = &mut clients;
    while west.get("/dbs").try_send().is_ok() {}
    east.get("/dbs").send().expect(200);
    manager.post("/goaway", &json!({"region": "Mars"})).expect(404);
}

#[test]
fn wrong_orders_for_partitions_are_explained() {
    let (emulator, mut manager) = managed();
    Client::new(&emulator).with_container();
    let base = "/databases/d/containers/c/partitions";
    let listed = manager.get(base).expect(200).json();
    assert_eq!(listed["partitions"][0]["id"], 0);
    assert!(listed["partitions"][0]["normalizedLastMinute"].is_number(), "hot-partition telemetry: {listed}");
    manager.get("/databases/d/containers/nothing/partitions").expect(404);
    for (path, body, reason) in [
        (format!("{base}/0/split"), json!({"mode": "epk"}), "needs the key"),
        (format!("{base}/0/split"), json!({"epk": "05"}), "epk is for mode epk"),
        (format!("{base}/0/split"), json!({"mode": "random"}), "midpoint"),
        (format!("{base}/x/split"), json!({}), "whole number"),
        (
            format!("{base}/0/split"),
            json!({"progressionMode": "manual", "lockDurationMs": 5}),
            "lockDurationMs is for",
        ),
        (format!("{base}/merge"), json!({"partitionIds": [0]}), "two neighbours"),
        (format!("{base}/merge"), json!({}), "partitionIds"),
    ] {
        let refused = manager.post(&path, &body).expect(400).json();
        assert!(refused["error"].as_str().unwrap().contains(reason), "{body}: {refused}");
    }
    manager.get("/operations/99").expect(404);
}

/// Set in the process whose disk is full.
#[cfg(unix)]
const FULL_DISK: &str = "COSMOS_EMULATOR_TEST_FULL_DISK";

/// A limit on the size of files holds for a whole process, so this test runs itself in one of its own.
#[cfg(unix)]
#[test]
fn health_tells_a_store_that_failed_while_reads_go_on() {
    if std::env::var_os(FULL_DISK).is_none() {
        // A write beyond the limit fails instead of ending the process.
        let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
        let name = "management::health_tells_a_store_that_failed_while_reads_go_on";
        let ended = std::process::Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(FULL_DISK, "1")
            .output()
            .unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config::default().with_management().with_folder(folder.path(), Fsync::Off);
    let emulator = Emulator::start(config).unwrap();
    let mut manager = Manager::of(&emulator);
    let mut client = Client::new(&emulator).with_container();
    client.create(&json!({"id": "kept", "pk": "k"})).expect(201);
    assert_eq!(manager.get("/health").expect(200).json()["status"], "ok");
    let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    client.create(&json!({"id": "late", "pk": "k"})).expect(500);
    let health = manager.get("/health").expect(503).json();
    let why = health["error"].as_str().unwrap();
    assert!(why.contains("reached the size limit") && !why.contains("fjall"), "{health}");
    client.get("/dbs/d/colls/c/docs/kept").key("k").send().expect(200);
    assert!(emulator.failure().is_some());
}
