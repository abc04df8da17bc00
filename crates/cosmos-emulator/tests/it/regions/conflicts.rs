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

/// A container whose owner settles conflicts himself.
fn custom(world: &World) {
    let mut east = world.at("East");
    east.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "conflictResolutionPolicy": {"mode": "Custom"}, "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/mail"]}]}});
    east.post("/dbs/d/colls", &body).send().expect(201);
}

fn conflicts(world: &World, region: &str) -> Vec<Value> {
    let answer = world.at(region).get("/dbs/d/colls/c/conflicts").send().expect(200).json();
    answer["Conflicts"].as_array().cloned().expect("a list")
}

/// What lost, as operation and text of the item.
fn lost(world: &World) -> Vec<(String, String)> {
    let shown = conflicts(world, "East");
    assert_eq!(conflicts(world, "North"), shown, "it is one feed for all regions");
    let mut lost: Vec<_> = shown
        .iter()
        .map(|conflict| {
            let content = conflict["content"].as_str().unwrap();
            let text =
                serde_json::from_str::<Value>(content).map_or(Value::Null, |item| item["text"].clone());
            let operation = conflict["operationType"].as_str().unwrap();
            (operation.to_owned(), text.as_str().unwrap_or_default().to_owned())
        })
        .collect();
    lost.sort();
    lost
}

#[test]
fn what_the_last_writer_wins_over_is_kept_nowhere() {
    let world = World::new(multi()).with_container();
    for region in REGIONS {
        upsert(&mut world.at(region), &item("a", region)).expect(201);
    }
    assert!(agreed(&world, "a").is_some());
    assert_eq!(lost(&world), []);
}

#[test]
fn a_custom_policy_keeps_what_lost_until_its_owner_deletes_it() {
    let world = World::new(multi());
    custom(&world);
    let text = |region: &str| {
        let mut written = item("a", region);
        written["mail"] = Value::from(region);
        written
    };
    for region in ["West", "East", "North"] {
        upsert(&mut world.at(region), &text(region)).expect(201);
    }
    assert_eq!(lost(&world), [], "nothing has arrived");
    let winner = agreed(&world, "a").unwrap()["text"].clone();
    let losers: Vec<_> = ["East", "North", "West"]
        .into_iter()
        .filter(|region| winner != *region)
        .map(|region| ("create".to_owned(), region.to_owned()))
        .collect();
    assert_eq!(lost(&world), losers);
    // One who knew of the winner conflicts with nobody.
    world.hand.advance(Duration::from_secs(1));
    upsert(&mut world.at("North"), &text("settled")).expect(200);
    assert_eq!(agreed(&world, "a").unwrap()["text"], "settled");
    assert_eq!(lost(&world), losers);
    let shown = conflicts(&world, "West");
    let path = format!("/dbs/d/colls/c/conflicts/{}", shown[0]["id"].as_str().unwrap());
    let read = world.at("West").get(&path).key("k").send().expect(200).json();
    assert_eq!(read, shown[0]);
    assert_eq!((&read["resourceType"], &read["_rid"]), (&json!("document"), &read["id"]));
    world.at("West").delete(&path).key("k").send().expect(204);
    world.at("East").get(&path).key("k").send().expect(404);
    world.at("East").delete(&path).key("k").send().expect(404);
    assert_eq!(conflicts(&world, "North"), shown[1..]);
}

#[test]
fn a_custom_policy_keeps_what_a_deletion_or_a_unique_key_won_over() {
    let world = World::new(multi());
    custom(&world);
    let user =
        |id: &str, mail: &str| json!({"id": id, "pk": "k", "mail": mail, "text": format!("{id} {mail}")});
    upsert(&mut world.at("East"), &user("a", "1")).expect(201);
    world.arrive();
    delete(&mut world.at("East"), "a").expect(204);
    upsert(&mut world.at("West"), &user("a", "2")).expect(200);
    assert_eq!(agreed(&world, "a"), None);
    let by_deletion = ("replace".to_owned(), "a 2".to_owned());
    assert_eq!(lost(&world), std::slice::from_ref(&by_deletion));
    upsert(&mut world.at("West"), &user("b", "same")).expect(201);
    world.hand.advance(Duration::from_secs(1));
    upsert(&mut world.at("North"), &user("c", "same")).expect(201);
    world.arrive();
    world.arrive();
    for region in REGIONS {
        assert_eq!(world.items(region), [user("c", "same")], "{region}");
    }
    assert_eq!(lost(&world), [("create".to_owned(), "b same".to_owned()), by_deletion]);
}
