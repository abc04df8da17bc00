//! Writes on their way from region to region.

use std::time::Duration;

use cosmos_emulator::ReplicationDelay;
use serde_json::{Value, json};

use super::{DELAY, World, create, delayed, delete, read, upsert};

#[test]
fn a_write_arrives_in_the_other_region_when_its_time_has_come() {
    let world = World::two();
    let (mut east, mut west) = (world.at("East"), world.at("West"));
    let written = create(&mut east, "a").expect(201);
    assert_eq!(read(&mut west, "a").status(), (404, 0));
    world.hand.advance(DELAY - Duration::from_millis(1));
    assert_eq!(read(&mut west, "a").status(), (404, 0));
    world.hand.advance(Duration::from_millis(1));
    let copy = read(&mut west, "a").expect(200);
    assert_eq!(copy.body, written.body, "with its etag, its time and its resource id");
    delete(&mut east, "a").expect(204);
    read(&mut west, "a").expect(200);
    world.arrive();
    assert_eq!(read(&mut west, "a").status(), (404, 0));
}

#[test]
fn without_a_delay_the_next_read_anywhere_sees_a_write() {
    let world = World::two();
    world.emulator.regions().set_replication_delay(ReplicationDelay::everywhere(Duration::ZERO));
    for id in ["a", "b", "c"] {
        create(&mut world.at("East"), id).expect(201);
        read(&mut world.at("West"), id).expect(200);
    }
}

#[test]
fn replicas_answer_queries_feeds_and_changes_alike() {
    let world = World::two();
    let mut east = world.at("East");
    let policy = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": -1,
        "indexingPolicy": {"indexingMode": "consistent", "includedPaths": [{"path": "/*"}],
            "excludedPaths": [{"path": "/text/?"}],
            "compositeIndexes": [[{"path": "/n", "order": "ascending"}, {"path": "/m", "order": "descending"}]]}});
    for index in 0..40 {
        let item = json!({"id": format!("i{index}"), "pk": "k", "n": index % 4, "m": index, "text": "x"});
        upsert(&mut east, &item).expect(201);
        if index == 20 {
            world.arrive();
            world.items("West");
            east.put("/dbs/d/colls/c", &policy).send().expect(200);
        }
        if index % 3 == 0 {
            upsert(&mut east, &json!({"id": format!("i{index}"), "pk": "k", "n": 9, "m": -index}))
                .expect(200);
        }
        if index % 5 == 0 {
            delete(&mut east, &format!("i{index}")).expect(204);
        }
    }
    let batch = json!([{"operationType": "Create", "resourceBody": {"id": "b1", "pk": "k", "n": 1, "ttl": 5}},
        {"operationType": "Upsert", "resourceBody": {"id": "i1", "pk": "k", "n": 100}},
        {"operationType": "Delete", "id": "i2"}]);
    let answer = east.post("/dbs/d/colls/c/docs", &batch).key("k");
    let answer =
        answer.header("x-ms-cosmos-is-batch-request", "True").header("x-ms-cosmos-batch-atomic", "True");
    assert!(
        answer
            .send()
            .expect(200)
            .json()
            .as_array()
            .unwrap()
            .iter()
            .all(|step| { step["statusCode"].as_u64().unwrap() < 300 })
    );
    let seen = |region: &str| -> Vec<Value> {
        let mut client = world.at(region);
        let ask = |client: &mut crate::client::Client, text: &str| {
            client.question(&json!({"query": text})).key("k").send().expect(200).json()["Documents"].take()
        };
        let mut all = vec![
            ask(&mut client, "SELECT * FROM c WHERE c.n = 9"),
            ask(&mut client, "SELECT * FROM c WHERE c.m > 3 ORDER BY c.m DESC"),
            ask(&mut client, "SELECT VALUE c.id FROM c ORDER BY c.n ASC, c.m DESC"),
            ask(&mut client, "SELECT VALUE COUNT(1) FROM c WHERE NOT IS_DEFINED(c.text)"),
        ];
        let feed = client.get("/dbs/d/colls/c/docs").key("k").send().expect(200);
        let changes =
            client.get("/dbs/d/colls/c/docs").key("k").header("a-im", "Incremental Feed").send().expect(200);
        all.extend([feed.json()["Documents"].take(), changes.json()["Documents"].take()]);
        all.push(json!(changes.header("etag")));
        all
    };
    assert_ne!(seen("West"), seen("East"));
    world.arrive();
    assert_eq!(seen("West"), seen("East"));
}

#[test]
fn items_expire_everywhere_and_leave_every_replica() {
    let world = World::new(delayed(&["East", "West"]));
    let mut east = world.at("East");
    east.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": 30});
    east.post("/dbs/d/colls", &body).send().expect(201);
    create(&mut east, "a").expect(201);
    world.arrive();
    read(&mut world.at("West"), "a").expect(200);
    world.hand.advance(Duration::from_secs(21));
    assert_eq!(read(&mut world.at("West"), "a").status(), (404, 0));
    create(&mut east, "a").expect(201);
    world.arrive();
    assert_eq!(read(&mut world.at("West"), "a").expect(200).body, read(&mut east, "a").body);
}

#[test]
fn each_pair_of_regions_has_its_own_delay() {
    let world = World::new(delayed(&["East", "West", "North"])).with_container();
    let regions = world.emulator.regions();
    regions.set_replication_delay(ReplicationDelay::between("East", "West", Duration::from_secs(2)));
    regions.set_replication_delay(ReplicationDelay::to("North", Duration::from_secs(4)));
    create(&mut world.at("East"), "a").expect(201);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(["West", "North"].map(|region| read(&mut world.at(region), "a").status));
        world.hand.advance(Duration::from_secs(2));
    }
    assert_eq!(seen, [[404, 404], [200, 404], [200, 200]]);
}

#[test]
fn a_paused_region_gets_nothing_until_it_is_resumed() {
    let world = World::two();
    let regions = world.emulator.regions();
    create(&mut world.at("East"), "before").expect(201);
    world.arrive();
    regions.pause_replication("West").unwrap();
    create(&mut world.at("East"), "after").expect(201);
    world.arrive();
    let mut west = world.at("West");
    read(&mut west, "before").expect(200);
    assert_eq!(read(&mut west, "after").status(), (404, 0));
    assert!(regions.list()[1].is_replication_paused);
    regions.resume_replication("West").unwrap();
    read(&mut west, "after").expect(200);
}

#[test]
fn the_lag_of_a_region_is_told_in_commits_and_time() {
    let world = World::two();
    let lag = || {
        let lag = world.emulator.regions().replication_lag("West").unwrap();
        (lag.commits, lag.oldest.as_secs())
    };
    assert_eq!(lag(), (0, 0));
    for id in ["a", "b"] {
        create(&mut world.at("East"), id).expect(201);
        world.hand.advance(Duration::from_secs(3));
    }
    assert_eq!(lag(), (2, 6));
    world.hand.advance(Duration::from_secs(5));
    assert_eq!(lag(), (1, 8));
    world.arrive();
    assert_eq!(lag(), (0, 0));
}

#[test]
fn regions_nobody_knows_are_told_with_those_that_exist() {
    let world = World::two();
    let error = world.emulator.regions().pause_replication("Nowhere").unwrap_err();
    assert_eq!(error.to_string(), "there is no region 'Nowhere'; the account has East, West");
}
