//! One partition leaves the write region on its own.

use cosmos_emulator::{Config, WriteMode};
use serde_json::json;

use super::{World, create, read, token};
use crate::management::Manager;

#[test]
fn a_partition_that_moved_is_written_where_it_went_and_nowhere_else() {
    let world = World::two();
    let regions = world.emulator.regions();
    create(&mut world.at("East"), "a").expect(201);
    regions.fail_over_partition("d", "c", 0, "West").unwrap();
    create(&mut world.at("East"), "b").expect(503);
    read(&mut world.at("East"), "a").expect(503);
    create(&mut world.at("West"), "b").expect(201);
    read(&mut world.at("West"), "a").expect(200);
    read(&mut world.at("West"), "b").expect(200);
    assert_eq!(
        world.at("West").post("/dbs", &json!({"id": "e"})).send().status(),
        (403, 3),
        "the rest stays"
    );
    world.at("East").post("/dbs", &json!({"id": "e"})).send().expect(201);
    regions.return_partition("d", "c", 0);
    read(&mut world.at("East"), "b").expect(200);
    create(&mut world.at("East"), "c").expect(201);
    assert_eq!(create(&mut world.at("West"), "d").status(), (403, 3));
    world.arrive();
    assert_eq!(world.items("West"), world.items("East"));
}

#[test]
fn other_partitions_stay_where_they_are() {
    let config = Config { partitions: Some(2), ..super::delayed(&["East", "West"]) };
    let world = World::new(config).with_container();
    let here = (0..).map(|n| format!("k{n}")).find(|key| partition_of(&world, key) == 1).unwrap();
    world.emulator.regions().fail_over_partition("d", "c", 0, "West").unwrap();
    let item = json!({"id": "x", "pk": here});
    world.at("East").create(&item).expect(201);
    assert_eq!(world.at("West").create(&item).status(), (403, 3));
}

/// The partition that a fresh item of this key lands in, by the range of its session token.
fn partition_of(world: &World, key: &str) -> u32 {
    let created = world.at("East").create(&json!({"id": "probe", "pk": key}));
    let token = created.header("x-ms-session-token").to_owned();
    token.split(':').next().unwrap().parse().unwrap()
}

#[test]
fn what_cannot_move_is_refused() {
    let world = World::two();
    let regions = world.emulator.regions();
    assert!(regions.fail_over_partition("d", "c", 0, "Mars").is_err());
    assert!(regions.fail_over_partition("d", "c", 0, "East").is_err(), "it is there");
    let several =
        World::new(Config::default().with_regions(&["East", "West"]).with_write_mode(WriteMode::Multiple));
    assert!(several.emulator.regions().fail_over_partition("d", "c", 0, "West").is_err());
}

#[test]
fn partitions_move_and_return_by_command() {
    let world = World::new(super::delayed(&["East", "West"]).with_management()).with_container();
    let mut manager = Manager::of(&world.emulator);
    let path = "/databases/d/containers/c/partitions/0";
    manager.post(&format!("{path}/failover"), &json!({"to": "West"})).expect(204);
    create(&mut world.at("East"), "a").expect(503);
    create(&mut world.at("West"), "a").expect(201);
    manager.post(&format!("{path}/return"), &json!({})).expect(204);
    create(&mut world.at("East"), "b").expect(201);
    manager.post(&format!("{path}/failover"), &json!({"to": "Mars"})).expect(404);
    manager.post(&format!("{path}/failover"), &json!({"to": "East"})).expect(409);
    manager.post("/databases/d/containers/c/partitions/9/failover", &json!({"to": "West"})).expect(404);
}

#[test]
fn a_read_says_how_it_is_to_be_made() {
    let world = World::two();
    let written = token(&create(&mut world.at("East"), "a").expect(201));
    let ask = |strategy: &str| {
        let mut east = world.at("East");
        east.get("/dbs/d/colls/c/docs/a")
            .key("k")
            .header("x-ms-cosmos-read-consistency-strategy", strategy)
            .send()
    };
    for strategy in ["Eventual", "Session", "LatestCommitted"] {
        ask(strategy).expect(200);
    }
    ask("GlobalStrong").expect(400);
    ask("Whatever").expect(400);
    // Only a session read owes what its token says.
    let behind = |strategy: &str| {
        let mut west = world.at("West");
        let read = west.get("/dbs/d/colls/c/docs/a").key("k").header("x-ms-session-token", &written);
        read.header("x-ms-cosmos-read-consistency-strategy", strategy).send().status()
    };
    assert_eq!(behind("Session"), (404, 1002));
    assert_eq!(behind("LatestCommitted"), (404, 0));
}
