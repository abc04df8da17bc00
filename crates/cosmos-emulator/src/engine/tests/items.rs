//! Points: create, read, replace, upsert, delete, patch; conditions, expiry, unique keys.

use super::*;

#[test]
fn an_item_comes_back_with_system_properties_behind_its_own() {
    let world = World::new();
    let reply =
        world.create(json!({"id": "1", "pk": "a", "n": 1.0, "_rid": "mine", "s": "é"})).expect("created");
    assert_eq!(reply.status, 201);
    let stored = String::from_utf8(reply.body.to_vec()).expect("UTF-8");
    let container = world.container();
    let rid = body(&reply)["_rid"].as_str().expect("text").to_owned();
    let etag = reply.etag.clone().expect("an etag");
    assert_eq!(etag, format!("\"00000001-0000-0100-0000-{START:08x}0000\""));
    let self_link = format!(
        "dbs/{}/colls/{}/docs/{rid}/",
        world.engine.read_database("d").expect("there").rid,
        container.rid()
    );
    assert_eq!(
        stored,
        format!(
            r#"{{"id":"1","pk":"a","n":1,"s":"é","_rid":"{rid}","_self":"{self_link}","_etag":{},"_attachments":"attachments/","_ts":{START}}}"#,
            Value::from(etag)
        )
    );
    assert_eq!(world.read("a", "1").expect("found").body, reply.body);
    assert_eq!(world.engine.item_id_of_rid(&container, &key("a"), &rid), Ok("1".to_owned()));
    assert_eq!(status(world.engine.item_id_of_rid(&container, &key("b"), &rid)), (404, 0));
}

#[test]
fn statuses_follow_what_is_there() {
    let world = World::new();
    let document = json!({"id": "1", "pk": "a"});
    let replace = || ItemOp::Replace { id: "1".into(), body: text(&document) };
    assert_eq!(status(world.read("a", "1")), (404, 0));
    assert_eq!(status(world.item("a", replace())), (404, 0));
    assert_eq!(status(world.delete("a", "1")), (404, 0));
    assert_eq!(world.upsert(document.clone()).expect("new").status, 201);
    assert_eq!(world.upsert(document.clone()).expect("again").status, 200);
    assert_eq!(status(world.create(document.clone())), (409, 0));
    assert_eq!(world.item("a", replace()).expect("there").status, 200);
    assert_eq!(world.create(json!({"id": "1", "pk": "b"})).expect("another key").status, 201);
    assert_eq!(world.delete("a", "1").expect("there").status, 204);
    assert_eq!(status(world.read("a", "1")), (404, 0));
    assert_eq!(world.read("b", "1").expect("still there").status, 200);
}

#[test]
fn a_replacement_may_rename_its_item() {
    let world = World::with(json!({"uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}}));
    let rename = |from: &str, document: Value| {
        world.item("a", ItemOp::Replace { id: from.into(), body: text(&document) })
    };
    let first = world.create(json!({"id": "1", "pk": "a", "u": 1, "n": 7})).expect("created");
    world.create(json!({"id": "2", "pk": "a", "u": 2, "n": 8})).expect("created");
    assert_eq!(status(rename("1", json!({"id": "2", "pk": "a", "u": 1}))), (409, 0));
    assert_eq!(status(rename("none", json!({"id": "4", "pk": "a", "u": 4}))), (404, 0));
    let renamed = rename("1", json!({"id": "3", "pk": "a", "u": 1, "n": 7})).expect("renamed");
    assert_eq!((renamed.status, &body(&renamed)["_rid"]), (200, &body(&first)["_rid"]));
    assert_eq!(status(world.read("a", "1")), (404, 0));
    assert_eq!(world.read("a", "3").expect("there").body, renamed.body);
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c WHERE c.n = 7"), ["3"]);
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c ORDER BY c.n DESC"), ["2", "3"]);
    let rid = body(&renamed)["_rid"].as_str().expect("text").to_owned();
    assert_eq!(world.engine.item_id_of_rid(&world.container(), &key("a"), &rid), Ok("3".to_owned()));
    assert_eq!(status(world.create(json!({"id": "5", "pk": "a", "u": 1}))), (409, 3301));
    assert_eq!(world.create(json!({"id": "1", "pk": "a", "u": 6})).expect("free again").status, 201);
}

#[test]
fn a_refusal_says_where_its_partition_stands() {
    let world = World::new();
    let lsn = world.create(json!({"id": "1", "pk": "a"})).expect("created").standing.lsn;
    for refused in [world.read("a", "2"), world.create(json!({"id": "1", "pk": "a"})), world.delete("a", "2")]
    {
        let origin = refused.expect_err("refused").origin.expect("a partition refused");
        assert_eq!((origin.lsn, &*origin.container.link), (lsn, &b"dbs/d/colls/c"[..]));
    }
}

#[test]
fn a_key_that_is_missing_or_not_the_documents_is_400_1001() {
    let world = World::new();
    let container = world.container();
    let create = |partition_key: Option<PartitionKey>| {
        let op = ItemOp::Create { body: text(&json!({"id": "1", "pk": "a"})) };
        world.engine.item(
            &container,
            ItemRequest { partition_key, op, conditions: Conditions::default(), session_token: None },
        )
    };
    assert_eq!(status(create(None)), (400, 1001));
    assert_eq!(status(create(Some(PartitionKey::EMPTY))), (400, 1001));
    assert_eq!(status(create(Some(key("b")))), (400, 1001));
    assert_eq!(status(create(Some(key("a")))), (0, 0));
    let long = "x".repeat(2_049);
    assert_eq!(status(world.create(json!({"id": "1", "pk": long}))), (400, 0));
}

#[test]
fn documents_without_the_key_live_in_the_undefined_partition() {
    let world = World::new();
    let container = world.container();
    let send = |op: ItemOp| {
        let partition_key = Some(PartitionKey::undefined());
        world.engine.item(
            &container,
            ItemRequest { partition_key, op, conditions: Conditions::default(), session_token: None },
        )
    };
    assert_eq!(send(ItemOp::Create { body: text(&json!({"id": "1"})) }).expect("created").status, 201);
    assert_eq!(send(ItemOp::Read { id: "1".into() }).expect("found").status, 200);
}

#[test]
fn etags_guard_writes_and_save_reads() {
    let world = World::new();
    let document = json!({"id": "1", "pk": "a", "n": 1});
    let first = world.create(document.clone()).expect("created").etag.expect("an etag");
    let second = world.upsert(document.clone()).expect("replaced").etag.expect("an etag");
    assert_ne!(first, second);
    let write = |op: ItemOp, conditions: Conditions| status(world.item_if("a", op, conditions));
    let replace = || ItemOp::Replace { id: "1".into(), body: text(&document) };
    let upsert = || ItemOp::Upsert { body: text(&document) };
    let patch = || {
        let operations = json!([{"op": "incr", "path": "/n", "value": 1}]);
        ItemOp::Patch { id: "1".into(), patch: Patch::from_value(operations).expect("valid") }
    };
    for op in [replace(), upsert(), patch(), ItemOp::Delete { id: "1".into() }] {
        assert_eq!(write(op.clone(), if_match(&first)), (412, 0), "{op:?}");
        assert_eq!(write(op.clone(), if_none_match(&second)), (412, 0), "{op:?}");
        assert_eq!(write(op, if_none_match("*")), (412, 0));
    }
    let read = |conditions: Conditions| {
        world.item_if("a", ItemOp::Read { id: "1".into() }, conditions).expect("found")
    };
    let unchanged = read(if_none_match(&second));
    assert_eq!((unchanged.status, unchanged.body.len(), unchanged.charge), (304, 0, 1.0));
    assert_eq!(read(if_none_match(&first)).status, 200);
    assert_eq!(write(ItemOp::Read { id: "1".into() }, if_match(&first)), (412, 0));
    assert_eq!(write(replace(), if_match("*")), (0, 0));
    let missing = ItemOp::Upsert { body: text(&json!({"id": "new", "pk": "a"})) };
    assert_eq!(write(missing, if_match(&first)), (0, 0), "an upsert of a missing item ignores If-Match");
    assert_eq!(write(ItemOp::Delete { id: "none".into() }, if_match(&first)), (404, 0));
}

#[test]
fn patches_change_parts_and_keep_what_must_stay() {
    let world = World::new();
    let created = world.create(json!({"id": "1", "pk": "a", "n": 1, "o": {"x": 1}})).expect("created");
    let changed = world
        .patch(
            "a",
            "1",
            json!([{"op": "incr", "path": "/n", "value": 2}, {"op": "add", "path": "/o/y", "value": [1]}]),
        )
        .expect("patched");
    assert_eq!(changed.status, 200);
    let document = body(&changed);
    assert_eq!((&document["n"], &document["o"]), (&json!(3), &json!({"x": 1, "y": [1]})));
    assert_eq!(document["_rid"], body(&created)["_rid"]);
    assert_ne!(changed.etag, created.etag);
    for path in ["/id", "/pk", "/pk/x", "/_ts", "/_etag"] {
        let refused = world.patch("a", "1", json!([{"op": "set", "path": path, "value": "b"}]));
        assert_eq!(status(refused), (400, 0), "{path}");
    }
    let condition =
        |text: &str| json!({"condition": text, "operations": [{"op": "set", "path": "/n", "value": 9}]});
    assert_eq!(status(world.patch("a", "1", condition("from c where c.n = 4"))), (412, 1110));
    assert_eq!(status(world.patch("a", "1", condition("from c where c.n = 3"))), (0, 0));
    assert_eq!(status(world.patch("a", "1", condition("from c where"))), (400, 0));
    assert_eq!(status(world.patch("a", "none", condition("from c where true"))), (404, 0));
}

#[test]
fn a_patch_nests_no_deeper_than_a_document_may() {
    const LEVELS: usize = 100;
    let world = World::new();
    let nest = |name: &str| (0..LEVELS).fold(json!({}), |inner, _| json!({name: inner}));
    world.create(json!({"id": "1", "pk": "x", "a": nest("a"), "b": nest("b")})).expect("created");
    let end = format!("/a{}/x", "/a".repeat(LEVELS));
    for operation in [
        json!({"op": "add", "path": end, "value": nest("c")}),
        json!({"op": "move", "path": end, "from": "/b"}),
    ] {
        assert_eq!(status(world.patch("x", "1", json!([operation]))), (400, 0), "{}", operation["op"]);
    }
    world.patch("x", "1", json!([{"op": "add", "path": end, "value": 1}])).expect("no deeper than it was");
    assert_eq!(world.delete("x", "1").expect("readable").status, 204);
}

#[test]
fn items_expire_at_once_by_the_clock() {
    let world = World::with(json!({"defaultTtl": 10}));
    world.create(json!({"id": "default", "pk": "a"})).expect("created");
    world.create(json!({"id": "own", "pk": "a", "ttl": 5})).expect("created");
    world.create(json!({"id": "never", "pk": "a", "ttl": -1})).expect("created");
    let left = |world: &World| world.ids(&in_key("a"), "SELECT * FROM c");
    assert_eq!(left(&world), ["default", "own", "never"]);
    world.hand.advance(Duration::from_secs(4));
    assert_eq!(left(&world), ["default", "own", "never"]);
    world.hand.advance(Duration::from_secs(1));
    assert_eq!(left(&world), ["default", "never"]);
    assert_eq!(status(world.read("a", "own")), (404, 0));
    assert_eq!(status(world.delete("a", "own")), (404, 0));
    assert_eq!(world.create(json!({"id": "own", "pk": "a", "ttl": 5})).expect("the id is free").status, 201);
    world.hand.advance(Duration::from_secs(5));
    assert_eq!(left(&world), ["never"]);
    assert_eq!(world.engine.sweep(100), Ok(2));
    assert_eq!(world.engine.sweep(100), Ok(0));
    assert_eq!(left(&world.reopened()), ["never"]);
}

#[test]
fn a_new_default_time_to_live_counts_for_old_items() {
    let world = World::new();
    world.create(json!({"id": "1", "pk": "a", "ttl": 5})).expect("created");
    world.create(json!({"id": "2", "pk": "a"})).expect("created");
    world.hand.advance(Duration::from_secs(8));
    assert_eq!(world.engine.sweep(100), Ok(0));
    assert_eq!(world.read("a", "1").expect("expiry is off").status, 200);
    let replace = |ttl: i32| {
        let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": ttl});
        world.engine.replace_container("d", "c", body.to_string().as_bytes(), None).expect("replaced");
    };
    replace(-1);
    assert_eq!((status(world.read("a", "1")), status(world.read("a", "2"))), ((404, 0), (0, 0)));
    replace(7);
    assert_eq!(status(world.read("a", "2")), (404, 0));
    assert_eq!(world.engine.sweep(100), Ok(1), "what had expired before was removed with the change");
}

#[test]
fn unique_keys_hold_in_their_logical_partition() {
    let world = World::with(json!({
        "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/email"]}, {"paths": ["/a", "/b"]}]}, "defaultTtl": -1
    }));
    let person = |id: &str, pk: &str, email: Value, a: i32| json!({"id": id, "pk": pk, "email": email, "a": a, "b": 1});
    world.create(person("1", "x", json!("e@x"), 1)).expect("created");
    assert_eq!(status(world.create(person("2", "x", json!("e@x"), 2))), (409, 3301));
    assert_eq!(status(world.create(person("2", "x", json!("f@x"), 1))), (409, 3301));
    assert_eq!(status(world.create(person("1", "y", json!("e@x"), 1))), (0, 0), "another logical partition");
    world.create(person("2", "x", json!("f@x"), 2)).expect("created");
    assert_eq!(status(world.upsert(person("2", "x", json!("e@x"), 2))), (409, 3301));
    world.upsert(person("1", "x", json!("g@x"), 1)).expect("its own values do not clash");
    world.upsert(person("2", "x", json!("e@x"), 2)).expect("the value is free again");
    world.delete("x", "2").expect("deleted");
    world.create(person("3", "x", json!("e@x"), 2)).expect("free after the delete");
    let absent = |id: &str, a: i32| json!({"id": id, "pk": "x", "a": a, "b": 1});
    world.create(absent("4", 4)).expect("created");
    assert_eq!(status(world.create(absent("5", 5))), (409, 3301), "an absent value is a value");
    assert_eq!(status(world.create(person("5", "x", Value::Null, 5))), (409, 3301), "and that value is null");
    let long = |id: &str, a: i32, end: &str| person(id, "x", json!("y".repeat(2_000) + end), a);
    world.create(long("6", 6, "1")).expect("created");
    world.create(long("7", 7, "2")).expect("long values are compared whole");
    assert_eq!(status(world.create(long("8", 8, "1"))), (409, 3301));
    let mut brief = person("9", "z", json!("t@z"), 1);
    brief["ttl"] = json!(5);
    world.create(brief).expect("created");
    world.hand.advance(Duration::from_secs(5));
    world.create(person("10", "z", json!("t@z"), 1)).expect("an expired item holds nothing");
}

#[test]
fn sessions_see_what_they_wrote_and_are_refused_what_is_not_here() {
    let world = World::new();
    let first = world.create(json!({"id": "1", "pk": "a"})).expect("created").standing;
    assert_eq!((first.lsn, first.session_token.as_str(), first.range_id), (2, "0:-1#2", 0));
    let second = world.create(json!({"id": "2", "pk": "b"})).expect("created");
    assert_eq!((second.standing.session_token.as_str(), second.item_lsn), ("0:-1#3", Some(3)));
    let read = |token: &str| {
        let request = ItemRequest {
            partition_key: Some(key("a")),
            op: ItemOp::Read { id: "1".into() },
            conditions: Conditions::default(),
            session_token: Some(token.into()),
        };
        world.engine.item(&world.container(), request)
    };
    let seen = read("0:-1#3").expect("seen");
    assert_eq!((seen.standing.lsn, seen.item_lsn), (3, Some(2)));
    assert_eq!(status(read("0:-1#4")), (404, 1002));
    let failed = world.create(json!({"id": "1", "pk": "a"}));
    assert_eq!(status(failed), (409, 0));
    assert_eq!(read("0:-1#3").expect("a refused write has no LSN").standing.lsn, 3);
}

#[test]
fn charges_follow_size_and_indexed_properties() {
    let world = World::new();
    let small = world.create(json!({"id": "1", "pk": "a", "n": 1, "s": "x"})).expect("created");
    assert!((small.charge - 6.58).abs() < 0.01, "{}", small.charge);
    assert!((world.read("a", "1").expect("found").charge - 1.0).abs() < 1e-9);
    assert!(
        (world.upsert(json!({"id": "1", "pk": "a", "n": 2, "s": "x"})).expect("replaced").charge - 10.58)
            .abs()
            < 0.01
    );
    let missing = world.read("a", "none").expect_err("missing");
    assert!((missing.charge - 1.0).abs() < 1e-9);
}

#[test]
fn everything_survives_a_restart() {
    let world = World::with(json!({"uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}}));
    let first = world.create(json!({"id": "1", "pk": "a", "u": 1})).expect("created");
    let world = world.reopened();
    let read = world.read("a", "1").expect("found");
    assert_eq!((read.body, read.etag), (first.body, first.etag));
    assert_eq!(status(world.create(json!({"id": "2", "pk": "a", "u": 1}))), (409, 3301));
    let second = world.create(json!({"id": "2", "pk": "a", "u": 2})).expect("created");
    assert_eq!(second.standing.lsn, 3);
    assert_eq!(world.ids(&in_key("a"), "SELECT * FROM c WHERE c.u = 2"), ["2"]);
}

#[test]
fn writers_of_one_partition_take_turns() {
    let world = World::in_memory(json!({}));
    world.create(json!({"id": "n", "pk": "a", "n": 0})).expect("created");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    world
                        .patch("a", "n", json!([{"op": "incr", "path": "/n", "value": 1}]))
                        .expect("patched");
                }
            });
        }
    });
    let read = world.read("a", "n").expect("found");
    assert_eq!((body(&read)["n"].clone(), read.standing.lsn), (json!(200), 202));
}
