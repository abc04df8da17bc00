//! Regions join and leave.

use cosmos_emulator::{Config, Failover, WriteMode};
use serde_json::json;

use super::{World, create, delayed, read, upsert};

#[test]
fn a_region_that_joins_has_everything_and_is_served_at_once() {
    let world = World::new(Config::default().with_partitions(3)).with_container();
    for index in 0..60 {
        let item = json!({"id": format!("i{index}"), "pk": format!("k{index}"), "n": index % 7});
        world.at("Local").create(&item).expect(201);
    }
    let endpoint = world.emulator.regions().add_region("West").unwrap().unwrap();
    assert_eq!(world.emulator.regions().endpoint_of("west"), Some(endpoint));
    assert_eq!(world.items("West"), world.items("Local"));
    let ordered = |region: &str| {
        let text = "SELECT VALUE c.id FROM c WHERE c.n = 3";
        world.at(region).query(text).expect(200).json()["Documents"].clone()
    };
    assert_eq!(ordered("West"), ordered("Local"));
    create(&mut world.at("Local"), "new").expect(201);
    read(&mut world.at("West"), "new").expect(200);
    world
        .at("Local")
        .post("/dbs/d/colls", &json!({"id": "c2", "partitionKey": {"paths": ["/pk"], "kind": "Hash"}}))
        .send()
        .expect(201);
    world.at("West").get("/dbs/d/colls/c2").send().expect(200);
}

#[test]
fn a_region_that_left_answers_403_1008() {
    let world = World::two();
    let mut west = world.at("West");
    create(&mut world.at("East"), "a").expect(201);
    world.arrive();
    read(&mut west, "a").expect(200);
    world.emulator.regions().remove_region("West").unwrap();
    for answer in [read(&mut west, "a"), west.get("/").send(), create(&mut west, "b")] {
        assert_eq!(answer.status(), (403, 1008));
        let body = answer.json();
        assert_eq!(body["code"], "Forbidden");
        assert_eq!(body["message"], "Database Account emulator does not exist");
        assert_eq!((&body["writableLocations"], &body["readableLocations"]), (&json!([]), &json!([])));
        assert_eq!(body["id"], "emulator");
    }
    let document = world.at("East").get("/").send().expect(200).json();
    assert_eq!(document["readableLocations"].as_array().unwrap().len(), 1);
    assert_eq!(world.emulator.regions().list().len(), 1);
    read(&mut world.at("East"), "a").expect(200);
}

#[test]
fn the_write_region_and_the_last_region_cannot_leave() {
    let world = World::two();
    let regions = world.emulator.regions();
    let error = regions.remove_region("East").unwrap_err();
    assert!(error.to_string().contains("fail over"), "{error}");
    regions.fail_over("West", Failover::Planned).unwrap();
    regions.remove_region("East").unwrap();
    let error = regions.remove_region("West").unwrap_err();
    assert!(error.to_string().contains("last one"), "{error}");
    create(&mut world.at("West"), "a").expect(201);
    assert_eq!(world.items("West").len(), 1);
    let error = regions.add_region("west").unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
}

#[test]
fn a_region_that_leaves_and_comes_back_begins_anew() {
    let world = World::two();
    let regions = world.emulator.regions();
    create(&mut world.at("East"), "a").expect(201);
    world.arrive();
    let mut old = world.at("West");
    read(&mut old, "a").expect(200);
    regions.remove_region("West").unwrap();
    upsert(&mut world.at("East"), &json!({"id": "a", "pk": "k", "n": 2})).expect(200);
    create(&mut world.at("East"), "b").expect(201);
    regions.add_region("West").unwrap();
    assert_eq!(world.items("West"), world.items("East"));
    assert_eq!(read(&mut old, "a").status(), (403, 1008), "the endpoint it had is gone for good");
}

#[test]
fn a_multi_write_region_hands_its_writes_over_before_it_leaves() {
    let world =
        World::new(delayed(&["East", "West", "North"]).with_write_mode(WriteMode::Multiple)).with_container();
    create(&mut world.at("East"), "east").expect(201);
    create(&mut world.at("West"), "west").expect(201);
    world.emulator.regions().remove_region("East").unwrap();
    assert_eq!(world.emulator.regions().write_region(), "West");
    world.arrive();
    assert_eq!(world.items("North").len(), 2);
    assert_eq!(world.items("West"), world.items("North"));
    world.emulator.regions().add_region("South").unwrap();
    create(&mut world.at("South"), "south").expect(201);
    world.arrive();
    for region in ["West", "North", "South"] {
        assert_eq!(world.items(region).len(), 3, "{region}");
    }
}
