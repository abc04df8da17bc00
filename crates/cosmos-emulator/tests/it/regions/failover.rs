//! The write region moves.

use cosmos_emulator::{Config, Failover, Offline, ReplicationDelay, WriteMode};
use serde_json::json;

use super::{DELAY, World, create, delayed, read, read_with, token, upsert};

#[test]
fn a_read_region_refuses_writes_with_403_3() {
    let world = World::two();
    let mut west = world.at("West");
    assert_eq!(create(&mut west, "a").status(), (403, 3));
    assert_eq!(west.post("/dbs", &json!({"id": "e"})).send().status(), (403, 3));
    assert_eq!(west.delete("/dbs/d").send().status(), (403, 3));
    let batch = json!([{"operationType": "Create", "resourceBody": {"id": "a", "pk": "k"}}]);
    let batch =
        west.post("/dbs/d/colls/c/docs", &batch).key("k").header("x-ms-cosmos-is-batch-request", "True");
    assert_eq!(batch.header("x-ms-cosmos-batch-atomic", "True").send().status(), (403, 3));
    west.get("/dbs/d").send().expect(200);
    west.query("SELECT * FROM c").expect(200);
}

#[test]
fn a_planned_failover_brings_every_write_along() {
    let world = World::two();
    let regions = world.emulator.regions();
    for index in 0..300 {
        create(&mut world.at("East"), &format!("i{index}")).expect(201);
    }
    regions.fail_over("West", Failover::Planned).unwrap();
    assert_eq!(regions.write_region(), "West");
    assert_eq!(world.items("West").len(), 300, "however long they would still have been on their way");
    assert_eq!(create(&mut world.at("East"), "late").status(), (403, 3));
    create(&mut world.at("West"), "late").expect(201);
    assert_eq!(read(&mut world.at("East"), "late").status(), (404, 0));
    world.arrive();
    read(&mut world.at("East"), "late").expect(200);
    let document = world.at("East").get("/").send().json();
    assert_eq!(document["writableLocations"][0]["name"], "West");
    assert_eq!(document["readableLocations"][0]["name"], "West");
    regions.fail_over("East", Failover::Planned).unwrap();
    create(&mut world.at("East"), "back").expect(201);
    assert_eq!(world.items("East").len(), 302);
}

#[test]
fn a_planned_failover_needs_both_regions() {
    let world = World::two();
    let regions = world.emulator.regions();
    regions.take_offline("East", Offline::Unavailable).unwrap();
    let error = regions.fail_over("West", Failover::Planned).unwrap_err();
    assert!(error.to_string().contains("force the failover"), "{error}");
    assert_eq!(regions.write_region(), "East");
}

#[test]
fn a_forced_failover_loses_what_was_not_replicated_everywhere() {
    let config = delayed(&["East", "West", "North"]);
    let world = World::new(config).with_container();
    let regions = world.emulator.regions();
    let mut east = world.at("East");
    upsert(&mut east, &json!({"id": "a", "pk": "k", "n": 1})).expect(201);
    create(&mut east, "stays").expect(201);
    world.arrive();
    world.items("West");
    // North gets the following, West does not.
    regions.set_replication_delay(ReplicationDelay::between("East", "North", DELAY / 10));
    upsert(&mut east, &json!({"id": "a", "pk": "k", "n": 2})).expect(200);
    create(&mut east, "lost").expect(201);
    east.delete("/dbs/d/colls/c/docs/stays").key("k").send().expect(204);
    world.hand.advance(DELAY / 10);
    assert_eq!(world.items("North").len(), 2);
    regions.take_offline("East", Offline::Refuse).unwrap();
    regions.fail_over("West", Failover::Forced).unwrap();
    let expected = [json!({"id": "a", "pk": "k", "n": 1}), json!({"id": "stays", "pk": "k"})];
    assert_eq!(world.items("West"), expected);
    assert_eq!(world.items("North"), expected);
    create(&mut world.at("West"), "new").expect(201);
    regions.bring_online("East").unwrap();
    assert_eq!(world.items("East"), expected);
    world.arrive();
    for region in ["East", "West", "North"] {
        assert_eq!(world.items(region).len(), 3, "{region}");
    }
    assert_eq!(create(&mut world.at("East"), "x").status(), (403, 3));
}

#[test]
fn sessions_go_on_over_a_failover() {
    let world = World::two();
    let before = create(&mut world.at("East"), "a").expect(201);
    world.emulator.regions().fail_over("West", Failover::Planned).unwrap();
    read_with(&mut world.at("West"), "a", &token(&before)).expect(200);
    let after = create(&mut world.at("West"), "b").expect(201);
    assert_eq!(token(&before), "0:1#2#2=-1");
    assert_eq!(token(&after), "0:2#3#1=-1");
    assert_eq!(read_with(&mut world.at("East"), "b", &token(&after)).status(), (404, 1002));
    // A forced move may lose what a token speaks of; asking for it would never end.
    create(&mut world.at("West"), "c").expect(201);
    let lost = token(&create(&mut world.at("West"), "d").expect(201));
    world.emulator.regions().fail_over("East", Failover::Forced).unwrap();
    assert_eq!(read_with(&mut world.at("East"), "d", &lost).status(), (404, 0));
}

#[test]
fn a_multi_write_account_loses_nothing_in_a_forced_failover() {
    let config = delayed(&["East", "West"]).with_write_mode(WriteMode::Multiple);
    let world = World::new(config).with_container();
    create(&mut world.at("East"), "east").expect(201);
    create(&mut world.at("West"), "west").expect(201);
    world.emulator.regions().fail_over("West", Failover::Forced).unwrap();
    create(&mut world.at("East"), "later").expect(201);
    world.arrive();
    assert_eq!(world.items("East").len(), 3);
    assert_eq!(world.items("West"), world.items("East"));
}

#[test]
fn failing_over_to_the_write_region_changes_nothing() {
    let world = World::new(Config::default().with_regions(&["East", "West"])).with_container();
    world.emulator.regions().fail_over("East", Failover::Forced).unwrap();
    let written = create(&mut world.at("East"), "a").expect(201);
    assert!(token(&written).starts_with("0:1#"));
}
