//! Databases, containers, offers, ranges.

use super::*;
use crate::storage::Change;

fn throughput(world: &World, name: &str, throughput: Throughput) -> Vec<Value> {
    let body = json!({"id": name, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    world.engine.create_container("d", body.to_string().as_bytes(), Some(throughput)).expect("created");
    let container = world.engine.container("d", name).expect("there");
    world.engine.ranges(&container, None).expect("listed").ranges
}

#[test]
fn databases_are_made_read_listed_and_removed() {
    let world = World::new();
    let made = world.engine.create_database(br#"{"id":"e"}"#, None).expect("created");
    assert_eq!((made.status, made.body["id"].as_str()), (201, Some("e")));
    assert_eq!(made.body["_self"], format!("dbs/{}/", made.rid));
    assert_eq!(made.body["_colls"], "colls/");
    assert_eq!(made.body["_ts"], START);
    assert_eq!(made.rid.len(), 8);
    assert_eq!(world.engine.read_database("e").expect("by name").body, made.body);
    assert_eq!(world.engine.read_database(&made.rid).expect("by resource id").body, made.body);
    assert_eq!(status(world.engine.create_database(br#"{"id":"e"}"#, None)), (409, 0));
    for body in ["{}", "nonsense", r#"{"id":"a/b"}"#, r#"{"id":"a#"}"#] {
        assert_eq!(status(world.engine.create_database(body.as_bytes(), None)), (400, 0), "{body}");
    }
    let names = |world: &World| {
        let feed = world.engine.databases().expect("listed");
        feed.resources.iter().map(|d| d["id"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&world), ["d", "e"]);
    assert_eq!(status(world.engine.delete_database("e", Some("\"old\""))), (412, 0));
    assert_eq!(world.engine.delete_database("e", Some(&made.etag)).expect("removed").status, 204);
    assert_eq!(status(world.engine.read_database("e")), (404, 0));
    assert_eq!(names(&world.reopened()), ["d"]);
}

#[test]
fn containers_are_addressed_by_name_and_resource_id() {
    let world = World::new();
    let read = world.engine.read_container("d", "c").expect("by name");
    let database = world.engine.read_database("d").expect("there").rid;
    assert_eq!(world.engine.read_container(&database, &read.rid).expect("by resource id").body, read.body);
    assert_eq!(read.body["_self"], format!("dbs/{database}/colls/{}/", read.rid));
    assert_eq!(read.body["_docs"], "docs/");
    assert_eq!(status(world.engine.read_container("d", "none")), (404, 0));
    assert_eq!(status(world.engine.container("d", "none")), (404, 1003));
    assert_eq!(status(world.engine.container("none", "c")), (404, 1003));
    assert_eq!(status(world.create_container("c", json!({}))), (409, 0));
    assert_eq!(world.engine.containers("d").expect("listed").resources, [read.body]);
}

#[test]
fn a_deleted_container_takes_its_items_with_it_and_leaves_nothing() {
    let world = World::new();
    let old = world.container();
    world.create(json!({"id": "1", "pk": "a", "n": 1})).expect("created");
    assert_eq!(world.engine.delete_container("d", "c", None).expect("removed").status, 204);
    let request = |op: ItemOp| ItemRequest {
        partition_key: Some(key("a")),
        op,
        conditions: Conditions::default(),
        session_token: None,
    };
    assert_eq!(status(world.engine.item(&old, request(ItemOp::Read { id: "1".into() }))), (404, 1003));
    let create = ItemOp::Create { body: text(&json!({"id": "2", "pk": "a"})) };
    assert_eq!(status(world.engine.item(&old, request(create))), (404, 1003));
    world.create_container("c", json!({})).expect("the name is free");
    assert_ne!(world.container().rid(), old.rid());
    assert!(world.ids(&Scope::All, "SELECT * FROM c").is_empty());
    let removed = world.engine.sweep(1_000).expect("swept");
    assert!(removed > 5, "{removed}");
    assert_eq!(world.engine.sweep(1_000), Ok(0));
}

#[test]
fn what_cannot_change_of_a_container_is_refused() {
    let world = World::with(json!({"uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}}));
    let replace = |change: Value| {
        let mut body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
            "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}});
        for (name, value) in change.as_object().expect("an object") {
            body[name] = value.clone();
        }
        world.engine.replace_container("d", "c", body.to_string().as_bytes(), None)
    };
    assert_eq!(status(replace(json!({"id": "x"}))), (400, 0));
    assert_eq!(
        status(replace(json!({"partitionKey": {"paths": ["/other"], "kind": "Hash", "version": 2}}))),
        (400, 0)
    );
    assert_eq!(status(replace(json!({"uniqueKeyPolicy": null}))), (400, 0));
    let before = world.engine.read_container("d", "c").expect("there");
    let after = replace(json!({"defaultTtl": 60})).expect("replaced");
    assert_eq!(after.body["defaultTtl"], 60);
    assert_ne!(before.etag, after.etag);
    assert_eq!(before.body["_rid"], after.body["_rid"]);
}

#[test]
fn throughput_decides_how_many_partitions_there_are() {
    let world = World::new();
    assert_eq!(throughput(&world, "one", Throughput::Manual(10_000)).len(), 1);
    let ranges = throughput(&world, "three", Throughput::Autoscale(30_000, None));
    assert_eq!(ranges.len(), 3);
    assert_eq!((&ranges[0]["minInclusive"], &ranges[2]["maxExclusive"]), (&json!(""), &json!("FF")));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0]["maxExclusive"], pair[1]["minInclusive"]);
    }
    assert_eq!((&ranges[1]["id"], &ranges[1]["parents"]), (&json!("1"), &json!([])));
    let body = json!({"id": "x", "partitionKey": {"paths": ["/pk"], "kind": "Hash"}}).to_string();
    let refused = world.engine.create_container("d", body.as_bytes(), Some(Throughput::Manual(450)));
    assert_eq!(status(refused), (400, 0));
}

#[test]
fn ranges_are_not_sent_twice() {
    let world = World::new();
    let container = world.container();
    let first = world.engine.ranges(&container, None).expect("listed");
    let again = world.engine.ranges(&container, Some(&first.etag)).expect("listed");
    assert_eq!((first.status, again.status, again.ranges.len()), (200, 304, 0));
}

#[test]
fn every_kind_of_key_is_spread_over_partitions_and_found_again() {
    for key_definition in [
        json!({"paths": ["/pk"], "kind": "Hash"}),
        json!({"paths": ["/pk"], "kind": "Hash", "version": 2}),
        json!({"paths": ["/pk", "/user"], "kind": "MultiHash", "version": 2}),
    ] {
        let options = EngineOptions { partitions: Some(4), ..EngineOptions::default() };
        let world = World::with_options(json!({"partitionKey": key_definition}), options);
        let container = world.container();
        let mut used = std::collections::BTreeSet::new();
        for i in 0..40 {
            let document = json!({"id": i.to_string(), "pk": format!("p{}", i % 20), "user": i});
            let partition_key = container.partition_key().extract(&document);
            let op = ItemOp::Create { body: text(&document) };
            let request = ItemRequest {
                partition_key: Some(partition_key.clone()),
                op,
                conditions: Conditions::default(),
                session_token: None,
            };
            let reply = world.engine.item(&container, request).expect("created");
            assert_eq!(container.range_id_of(&partition_key), Ok(reply.standing.range_id));
            used.insert(reply.standing.range_id);
            let op = ItemOp::Read { id: i.to_string() };
            let request = ItemRequest {
                partition_key: Some(partition_key),
                op,
                conditions: Conditions::default(),
                session_token: None,
            };
            assert_eq!(world.engine.item(&container, request).expect("found").status, 200);
        }
        assert_eq!(used.len(), 4, "{key_definition}");
        let by_range: usize =
            (0..4).map(|id| world.ids(&Scope::Range(id.to_string()), "SELECT * FROM c").len()).sum();
        assert_eq!(by_range, 40);
        assert_eq!(world.ids(&Scope::All, "SELECT * FROM c").len(), 40);
        let halves = world.ids(&Scope::EpkRange(String::new(), "20".into()), "SELECT * FROM c").len()
            + world.ids(&Scope::EpkRange("20".into(), "FF".into()), "SELECT * FROM c").len();
        assert_eq!(halves, 40);
        let prefix = world.ids(&in_key("p3"), "SELECT * FROM c");
        assert_eq!(prefix.len(), 2, "{key_definition}");
        assert_eq!(status(world.query(&Scope::Range("9".into()), "SELECT * FROM c")), (410, 1002));
    }
}

#[test]
fn offers_are_read_and_replaced() {
    let world = World::new();
    let offers = world.engine.offers().expect("listed").resources;
    assert_eq!(offers.len(), 1);
    let offer = &offers[0];
    assert_eq!(offer["content"]["offerThroughput"], 400);
    assert_eq!(offer["offerResourceId"], world.container().rid());
    let id = offer["id"].as_str().expect("an id");
    assert_eq!(id.len(), 4);
    let mut body = offer.clone();
    body["content"]["offerThroughput"] = json!(1_000);
    let replaced =
        world.engine.replace_offer(id, body.to_string().as_bytes(), OfferMigration::None).expect("replaced");
    assert_eq!(replaced.body["content"]["offerThroughput"], 1_000);
    body["content"]["offerThroughput"] = json!(1);
    assert_eq!(
        status(world.engine.replace_offer(id, body.to_string().as_bytes(), OfferMigration::None)),
        (400, 0)
    );
    let auto = world.engine.replace_offer(id, b"{}", OfferMigration::ToAutoscale).expect("migrated");
    assert_eq!(auto.body["content"]["offerAutopilotSettings"]["maxThroughput"], 1_000);
    assert_eq!(status(world.engine.read_offer("none")), (404, 0));
    let id = id.to_owned();
    let world = world.reopened();
    assert_eq!(world.engine.read_offer(&id).expect("kept").body, auto.body);
}

#[test]
fn containers_of_a_database_with_throughput_share_it() {
    let world = World::new();
    world.engine.create_database(br#"{"id":"shared"}"#, Some(Throughput::Manual(1_000))).expect("created");
    let body = json!({"id": "x", "partitionKey": {"paths": ["/pk"], "kind": "Hash"}}).to_string();
    world.engine.create_container("shared", body.as_bytes(), None).expect("created");
    assert_eq!(world.engine.offers().expect("listed").resources.len(), 2);
    let container = world.engine.container("shared", "x").expect("there");
    assert_eq!(world.engine.throughput(&container), Some(Throughput::Manual(1_000)));
    assert_eq!(world.engine.throughput(&world.container()), Some(Throughput::Manual(400)));
    let create = |i: usize, own: Option<Throughput>| {
        let body =
            json!({"id": format!("x{i}"), "partitionKey": {"paths": ["/pk"], "kind": "Hash"}}).to_string();
        status(world.engine.create_container("shared", body.as_bytes(), own))
    };
    for i in 1..25 {
        assert_eq!(create(i, None), (0, 0));
    }
    assert_eq!(create(25, None), (403, 1019));
    assert_eq!(create(25, Some(Throughput::Manual(400))), (0, 0));
}

#[test]
fn data_of_an_older_format_is_taken_over_and_of_a_newer_one_refused() {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    let world = World::on(Arc::clone(&storage), None, json!({}), EngineOptions::default());
    let meta = super::super::key::meta();
    let format = || {
        let bytes = storage.get(&meta).expect("readable").expect("it is there");
        serde_json::from_slice::<Value>(&bytes).expect("JSON")["format"].as_u64().expect("a number")
    };
    let stamp = |format: u64| {
        let bytes = storage.get(&meta).expect("readable").expect("it is there");
        let mut record: Value = serde_json::from_slice(&bytes).expect("JSON");
        record["format"] = json!(format);
        let change = Change::Put(meta.clone(), record.to_string().into());
        storage.commit(Batch { changes: vec![change] }).expect("written");
    };
    let open = || Engine::open(Arc::clone(&storage), world.engine.clock().clone(), EngineOptions::default());
    let current = format();
    stamp(1);
    open().expect("it is taken over").container("d", "c").expect("with its container");
    assert_eq!(format(), current);
    stamp(current + 1);
    let refused = open().expect_err("it is newer").to_string();
    assert!(refused.contains(&format!("format {}", current + 1)), "{refused}");
}
