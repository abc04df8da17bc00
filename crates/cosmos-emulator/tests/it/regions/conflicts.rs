//! Several regions write, and agree in the end.

use std::time::Duration;

use cosmos_emulator::{Config, WriteMode};
use serde_json::{Value, json};

use super::{World, create, delayed, delete, read, upsert};

const REGIONS: [&str; 3] = ["East", "West", "North"];

fn multi() -> Config {
    delayed(&REGIONS).with_write_mode(WriteMode::Multiple)
}

fn item(id: &str, text: &str) -> Value {
    json!({"id": id, "pk": "k", "text": text})
}

/// What all regions show of an item, once everything has arrived; they must agree.
#[track_caller]
fn agreed(world: &World, id: &str) -> Option<Value> {
    world.arrive();
    let shown = REGIONS.map(|region| {
        let answer = read(&mut world.at(region), id);
        (answer.status == 200).then(|| answer.json())
    });
    assert_eq!(shown[0], shown[1]);
    assert_eq!(shown[0], shown[2]);
    shown[0].clone()
}

#[test]
fn the_last_writer_wins_in_every_region() {
    let world = World::new(multi()).with_container();
    upsert(&mut world.at("West"), &item("a", "first")).expect(201);
    world.hand.advance(Duration::from_secs(1));
    upsert(&mut world.at("East"), &item("a", "second")).expect(201);
    assert_eq!(
        read(&mut world.at("West"), "a").json()["text"],
        "first",
        "each region reads its own meanwhile"
    );
    assert_eq!(agreed(&world, "a").unwrap()["text"], "second");
}

#[test]
fn writes_of_the_same_moment_have_one_winner_too() {
    let world = World::new(multi()).with_container();
    for region in ["North", "West", "East"] {
        upsert(&mut world.at(region), &item("a", region)).expect(201);
    }
    assert_eq!(agreed(&world, "a").unwrap()["text"], "East");
}

#[test]
fn the_containers_own_path_decides_where_it_has_one() {
    let world = World::new(multi());
    let mut east = world.at("East");
    east.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "conflictResolutionPolicy": {"mode": "LastWriterWins", "conflictResolutionPath": "/rank"}});
    east.post("/dbs/d/colls", &body).send().expect(201);
    let ranked = |rank: i64| json!({"id": "a", "pk": "k", "rank": rank});
    upsert(&mut east, &ranked(9)).expect(201);
    world.hand.advance(Duration::from_secs(2));
    upsert(&mut world.at("West"), &ranked(5)).expect(201);
    assert_eq!(agreed(&world, "a").unwrap()["rank"], 9);
    // One who has seen the other may write what he likes.
    upsert(&mut world.at("North"), &ranked(1)).expect(200);
    assert_eq!(agreed(&world, "a").unwrap()["rank"], 1);
}

#[test]
fn a_deletion_wins_against_what_it_did_not_know_of() {
    let world = World::new(multi()).with_container();
    create(&mut world.at("East"), "a").expect(201);
    assert!(agreed(&world, "a").is_some());
    delete(&mut world.at("East"), "a").expect(204);
    world.hand.advance(Duration::from_secs(2));
    upsert(&mut world.at("West"), &item("a", "later")).expect(200);
    assert_eq!(agreed(&world, "a"), None);
    upsert(&mut world.at("West"), &item("a", "again")).expect(201);
    assert_eq!(agreed(&world, "a").unwrap()["text"], "again");
}

#[test]
fn etags_and_resource_ids_of_different_regions_never_meet() {
    let world = World::new(multi()).with_container();
    let written = REGIONS.map(|region| create(&mut world.at(region), region).expect(201).json());
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        assert_ne!(written[one]["_etag"], written[other]["_etag"]);
        assert_ne!(written[one]["_rid"], written[other]["_rid"]);
    }
    world.arrive();
    for region in REGIONS {
        assert_eq!(world.items(region).len(), 3);
    }
}

#[test]
fn a_value_of_a_unique_key_has_one_holder_in_the_end() {
    let world = World::new(multi());
    let mut east = world.at("East");
    east.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/mail"]}]}});
    east.post("/dbs/d/colls", &body).send().expect(201);
    let user = |id: &str| json!({"id": id, "pk": "k", "mail": "m"});
    upsert(&mut east, &user("one")).expect(201);
    world.hand.advance(Duration::from_secs(1));
    upsert(&mut world.at("West"), &user("two")).expect(201);
    upsert(&mut world.at("North"), &user("three")).expect(201);
    world.arrive();
    assert_eq!(world.items("East"), [user("two")], "the write region of the account decides");
    world.arrive();
    for region in REGIONS {
        assert_eq!(world.items(region), [user("two")], "{region}");
        assert_eq!(upsert(&mut world.at(region), &user("four")).status, 409);
    }
}

#[test]
fn an_item_that_is_renewed_elsewhere_does_not_expire() {
    let world = World::new(multi());
    let mut east = world.at("East");
    east.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": 40});
    east.post("/dbs/d/colls", &body).send().expect(201);
    create(&mut east, "a").expect(201);
    assert!(agreed(&world, "a").is_some());
    world.hand.advance(Duration::from_secs(29));
    upsert(&mut world.at("West"), &item("a", "renewed")).expect(200);
    world.hand.advance(Duration::from_secs(2));
    assert_eq!(read(&mut east, "a").status, 404);
    assert_eq!(agreed(&world, "a").unwrap()["text"], "renewed");
}
