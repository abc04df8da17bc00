//! `cdb runtimes`, and what `why` and `fsck` say of the fleet.

use serde_json::{Value, json};

use crate::stage::{Stage, begun};

const LEASES: &str = "__leases__";
/// Later than any test ends: the lease of a member that lives.
fn later() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap() + 3_600_000
}

fn member(owner: &str, lease_until: u64) -> Value {
    json!({"id": format!("member:{owner}"), "instanceId": LEASES, "type": "member", "owner": owner, "life": "l",
        "joinedAt": 1, "beatAt": lease_until - 3_600_000, "leaseUntil": lease_until, "running": 1, "capacity": 4,
        "backlog": 2, "passed": lease_until - 3_603_000, "servesTurns": true, "servesWork": true,
        "servesUntagged": true, "build": "0.2.0", "host": "oven", "machine": "m", "process": 7, "ttl": 3600})
}

fn table(shares: &Value) -> Value {
    json!({"id": "slots", "instanceId": LEASES, "type": "slot_table", "epoch": 1_000_000, "shares": shares})
}

/// A container with a workflow that waits, whose runtime is gone.
fn left(name: &str) -> Stage {
    let stage = Stage::new(name);
    stage.play(&[("w", "waits", "")], async |client| begun(client, "w").await);
    drop(stage);
    let stage = Stage::new(name);
    clear(&stage);
    stage
}

fn clear(stage: &Stage) {
    for document in stage.documents(LEASES) {
        stage.remove(LEASES, document["id"].as_str().unwrap());
    }
}

#[test]
fn runtimes_are_listed_with_what_they_own_and_do() {
    let stage = Stage::new("fleet-runtimes");
    let nobody = stage.run(&["runtimes"]).with_code(0);
    assert!(nobody.stdout.is_empty() && nobody.stderr.contains("nobody is there"), "{nobody:?}");
    stage.play(&[("w", "waits", "")], async |client| begun(client, "w").await);
    let told = loop {
        let told = stage.run(&["runtimes", "--json"]).with_code(0).json_lines();
        // With its second heartbeat it says what its runtime has asked for.
        if told[0]["serves"] == json!(["turns", "activities"]) {
            break told;
        }
    };
    assert_eq!((told.len(), &told[0]["slots"], &told[0]["slotRanges"]), (1, &json!(256), &json!("0-255")));
    assert!(told[0]["capacity"].as_u64().is_some_and(|capacity| capacity > 0), "{told:?}");
    assert_eq!(told[0]["build"], env!("CARGO_PKG_VERSION"));

    let stage = left("fleet-runtimes-left");
    stage.put(LEASES, &member("node-1", later()));
    stage.put(LEASES, &member("node-2", 5_000_000));
    let shares =
        json!([{"first": 0, "last": 99, "owner": "node-1"}, {"first": 100, "last": 255, "owner": "node-2"}]);
    stage.put(LEASES, &table(&shares));
    let told = stage.run(&["runtimes"]).with_code(0);
    assert!(told.stdout.contains("node-1") && told.stdout.contains("1 of 4"), "{told:?}");
    assert!(told.stdout.contains("lease ended"), "{told:?}");
    assert!(told.stderr.contains("156 slots (100-255) have no living owner"), "{told:?}");
}

#[test]
fn why_names_the_owner_of_the_slot() {
    let stage = left("fleet-why");
    let why = stage.run(&["why", "w"]).with_code(0);
    assert!(why.stdout.contains("nobody is there"), "{why:?}");
    stage.put(LEASES, &member("node-1", later()));
    stage.put(LEASES, &table(&json!([{"first": 0, "last": 255, "owner": "node-1"}])));
    let why = stage.run(&["why", "w"]).with_code(0);
    assert!(why.stdout.contains("is looked after by \"node-1\" on oven (7)"), "{why:?}");
    let mut idle = member("node-1", later());
    idle["servesTurns"] = json!(false);
    stage.put(LEASES, &idle);
    let why = stage.run(&["why", "w"]).with_code(8);
    assert!(why.stdout.contains("no living member runs orchestrations"), "{why:?}");
}

#[test]
fn what_is_wrong_with_the_fleet_is_said_and_nothing_has_to_be_done() {
    let stage = left("fleet-fsck");
    let deleted = stage.run(&["fsck"]).with_code(0);
    assert!(deleted.stdout.contains("the partition of the leases is empty"), "{deleted:?}");
    assert!(deleted.stdout.contains("nothing has to be done"), "{deleted:?}");
    stage.put(LEASES, &member("node-1", later()));
    stage.put(LEASES, &table(&json!([{"first": 0, "last": 255, "owner": "nobody"}])));
    let found = stage.run(&["fsck", "--json"]).with_code(0);
    let rows = found.json_lines();
    let texts: Vec<&str> = rows.iter().map(|row| row["defect"].as_str().unwrap()).collect();
    assert!(rows.iter().all(|row| row["level"] == "passing"), "{found:?}");
    assert!(texts.iter().any(|text| text.contains("names nobody who lives (nobody)")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("the bell is missing")), "{texts:?}");
    let mut broken = member("node-9", later());
    broken["beatAt"] = json!("yesterday");
    stage.put(LEASES, &broken);
    let mended = stage.run(&["fsck", "--repair"]).with_code(0);
    assert!(mended.stdout.contains("member:node-9") && mended.stdout.contains("mended"), "{mended:?}");
    assert_eq!(stage.documents(LEASES).len(), 2);
    // A runtime puts the rest right.
    stage.remove(LEASES, "member:node-1");
    stage.play(&[("e", "echo", "x")], async |client| drop(crate::stage::ended(client, "e").await));
    let kinds: Vec<Value> = stage.documents(LEASES).iter().map(|row| row["type"].clone()).collect();
    assert!(kinds.contains(&json!("bell")) && kinds.contains(&json!("slot_table")), "{kinds:?}");
}
