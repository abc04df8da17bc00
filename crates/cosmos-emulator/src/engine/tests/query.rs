//! Queries through the index: right rows, in order, without reading more documents than they return.

use std::ops::Bound;

use super::*;
use crate::sql::{self, List, PageLimits, Prepared};
use crate::storage::Order;

/// Documents `0..count` in key `a` (even) and `b` (odd).
fn many(world: &World, count: usize) {
    for i in 0..count {
        let pk = if i % 2 == 0 { "a" } else { "b" };
        let document = json!({"id": i.to_string(), "pk": pk, "n": i, "kind": i % 7, "tags": [i % 5, "x"]});
        world.create(document).expect("created");
    }
}

fn visited(world: &World, scope: &Scope, text: &str) -> (usize, u64) {
    let (rows, visited) = world
        .query_pages(scope, text, PageSize::DEFAULT)
        .unwrap_or_else(|failure| panic!("{text}: {failure:?}"));
    (rows.len(), visited)
}

#[test]
fn point_predicates_and_top_k_read_only_what_they_return() {
    for world in [World::in_memory(json!({})), World::on_disk(json!({}))] {
        read_only_what_they_return(&world);
    }
}

fn read_only_what_they_return(world: &World) {
    many(world, 20_000);
    for scope in [Scope::All, in_key("a"), Scope::Range("0".into())] {
        for (text, rows) in [
            ("SELECT * FROM c WHERE c.n = 1234", 1),
            ("SELECT * FROM c WHERE c.id = '1234'", 1),
            ("SELECT * FROM c WHERE c.n = 1234 AND c.tags[0] = 4", 1),
            ("SELECT * FROM c WHERE c.n IN (10, 12, 9998)", 3),
            ("SELECT * FROM c WHERE c.n >= 10 AND c.n < 12 AND c.pk = 'a'", 1),
            ("SELECT TOP 10 * FROM c ORDER BY c.n", 10),
            ("SELECT TOP 10 * FROM c ORDER BY c.n DESC", 10),
            ("SELECT TOP 10 * FROM c ORDER BY c.kind", 10),
            ("SELECT TOP 10 * FROM c ORDER BY c._ts DESC", 10),
            ("SELECT * FROM c WHERE c.missing = 1", 0),
        ] {
            let (found, read) = visited(world, &scope, text);
            assert_eq!(found, rows, "{text} in {scope:?}");
            assert!(read <= rows as u64 + 2, "{text} in {scope:?} read {read} documents");
        }
    }
    let (rows, read) = visited(world, &in_key("a"), "SELECT TOP 5 * FROM c WHERE c.n > 9000 ORDER BY c.n");
    assert_eq!((rows, read), (5, 5));
    assert_eq!(visited(world, &in_key("b"), "SELECT * FROM c WHERE c.n = 1234"), (0, 0));
}

#[test]
fn pages_go_on_where_they_ended_whatever_the_access() {
    let world = World::new();
    many(&world, 60);
    for scope in [Scope::All, in_key("a")] {
        for text in [
            "SELECT * FROM c",
            "SELECT * FROM c WHERE c.kind = 3",
            "SELECT * FROM c WHERE c.kind IN (1, 2, 3)",
            "SELECT * FROM c WHERE c.n > 20",
            "SELECT * FROM c ORDER BY c.kind",
            "SELECT * FROM c ORDER BY c.kind DESC",
            "SELECT * FROM c WHERE ARRAY_CONTAINS(c.tags, 'x')",
            "SELECT c.id, t FROM c JOIN t IN c.tags",
        ] {
            let whole = world.query(&scope, text).expect("served");
            let (paged, _) = world.query_pages(&scope, text, PageSize::AtMost(7)).expect("served");
            assert_eq!(whole, paged, "{text}");
            assert!(whole.len() >= 4, "{text}");
        }
    }
    let request = QueryRequest {
        text: "SELECT * FROM c".into(),
        parameters: Vec::new(),
        scope: Scope::All,
        page_size: PageSize::DEFAULT,
        continuation: Some("+RID:foreign".into()),
        session_token: None,
        resume: None,
    };
    let refused = world.engine.query(&world.container(), request).expect_err("a foreign token");
    assert_eq!((refused.status, refused.message.as_str()), (400, "Invalid Continuation Token"));
}

#[test]
fn order_by_brings_documents_without_the_property_first() {
    for properties in [
        json!({}),
        json!({"indexingPolicy": {"includedPaths": [{"path": "/x/?"}], "excludedPaths": [{"path": "/*"}]}}),
    ] {
        let world = World::in_memory(properties);
        for i in 0..400 {
            let mut document = json!({"id": i.to_string(), "pk": "a"});
            match i {
                0..3 => {}
                3 => document["x"] = json!(null),
                4 => document["x"] = json!([1]),
                5 => document["x"] = json!(true),
                6 => document["x"] = json!("text"),
                _ => document["x"] = json!(1000 - i),
            }
            world.create(document).expect("created");
        }
        for scope in [Scope::All, in_key("a")] {
            let first = world.ids(&scope, "SELECT TOP 7 * FROM c ORDER BY c.x");
            assert_eq!(first, ["0", "1", "2", "3", "5", "399", "398"]);
            let last = world.ids(&scope, "SELECT TOP 3 * FROM c ORDER BY c.x DESC");
            assert_eq!(last, ["4", "6", "7"]);
            assert_eq!(
                world.ids(&scope, "SELECT * FROM c ORDER BY c.x DESC").split_off(397),
                ["2", "1", "0"]
            );
        }
        world.create(json!({"id": "late", "pk": "a"})).expect("created");
        world.upsert(json!({"id": "0", "pk": "a", "x": 0})).expect("replaced");
        assert_eq!(world.ids(&Scope::All, "SELECT TOP 4 * FROM c ORDER BY c.x"), ["1", "2", "late", "3"]);
    }
}

#[test]
fn ties_come_in_order_of_creation_in_the_direction_of_the_first_key() {
    let world = World::in_memory(json!({"indexingPolicy": {"compositeIndexes": [
        [{"path": "/x"}, {"path": "/y"}], [{"path": "/x", "order": "descending"}, {"path": "/y"}]]}}));
    for i in 0..600 {
        let pk = if i % 2 == 0 { "a" } else { "b" };
        world.create(json!({"id": i.to_string(), "pk": pk, "x": 1, "y": i / 300})).expect("created");
    }
    for (text, expected) in [
        ("SELECT TOP 3 * FROM c ORDER BY c.x", ["0", "1", "2"]),
        ("SELECT TOP 3 * FROM c ORDER BY c.x DESC", ["599", "598", "597"]),
        ("SELECT TOP 3 * FROM c ORDER BY c.x, c.y", ["0", "1", "2"]),
        ("SELECT TOP 3 * FROM c ORDER BY c.x DESC, c.y DESC", ["599", "598", "597"]),
        ("SELECT TOP 3 * FROM c ORDER BY c.x DESC, c.y", ["299", "298", "297"]),
        ("SELECT TOP 3 * FROM c ORDER BY c.x, c.y DESC", ["300", "301", "302"]),
    ] {
        assert_eq!(world.ids(&Scope::All, text), expected, "{text}");
        assert_eq!(visited(&world, &Scope::All, text).1, 3, "{text}");
    }
    let fixed = "SELECT TOP 2 * FROM c WHERE c.x = 1 ORDER BY c.x, c.y";
    assert_eq!(visited(&world, &in_key("b"), fixed), (2, 2));
    assert_eq!(world.ids(&in_key("b"), fixed), ["1", "3"]);
}

#[test]
fn orders_the_index_cannot_serve_are_refused() {
    let world = World::with(json!({"indexingPolicy": {
        "includedPaths": [{"path": "/*"}], "excludedPaths": [{"path": "/hidden/?"}],
        "compositeIndexes": [[{"path": "/a"}, {"path": "/b", "order": "descending"}]]}}));
    world.create(json!({"id": "1", "pk": "a"})).expect("created");
    let refused = |text: &str| world.query(&in_key("a"), text).map(drop).map_err(|f| f.message);
    assert_eq!(
        refused("SELECT * FROM c ORDER BY c.hidden"),
        Err("The index path corresponding to the specified order-by item is excluded.".into())
    );
    let composite =
        "The order by query does not have a corresponding composite index that it can be served from.";
    assert_eq!(refused("SELECT * FROM c ORDER BY c.a, c.b"), Err(composite.into()));
    assert_eq!(refused("SELECT * FROM c ORDER BY c.b, c.a"), Err(composite.into()));
    assert_eq!(refused("SELECT * FROM c ORDER BY c.a, c.b DESC"), Ok(()));
    assert_eq!(refused("SELECT * FROM c ORDER BY c.a DESC, c.b"), Ok(()));
}

#[test]
fn long_strings_are_told_apart_and_sorted_whole() {
    let world = World::in_memory(json!({}));
    let long = |tail: usize| "x".repeat(1_100) + &format!("{tail:04}");
    for i in 0..300 {
        world.create(json!({"id": i.to_string(), "pk": "a", "s": long((i * 7) % 300)})).expect("created");
    }
    let text = format!("SELECT * FROM c WHERE c.s = '{}'", long(7));
    assert_eq!(world.ids(&in_key("a"), &text), ["1"]);
    let text = format!("SELECT * FROM c WHERE c.s > '{}'", long(297));
    assert_eq!(world.ids(&in_key("a"), &text).len(), 2);
    for direction in ["ASC", "DESC"] {
        let text = format!("SELECT VALUE c.s FROM c ORDER BY c.s {direction}");
        let (rows, _) = world.query_pages(&in_key("a"), &text, PageSize::AtMost(70)).expect("served");
        let mut expected: Vec<Value> = (0..300).map(|i| json!(long(i))).collect();
        if direction == "DESC" {
            expected.reverse();
        }
        assert_eq!(rows, expected, "{direction}");
    }
}

#[test]
fn a_composite_index_brings_long_strings_in_order() {
    let world = World::in_memory(json!({"indexingPolicy": {"compositeIndexes": [
        [{"path": "/a"}, {"path": "/b"}], [{"path": "/n", "order": "descending"}, {"path": "/a", "order": "descending"}]]}}));
    let long = |tail: usize| "x".repeat(300) + &format!("{tail:02}");
    let mut documents = Vec::new();
    for i in 0..90 {
        let a = if i % 10 == 9 { "short".to_owned() } else { long((i * 7) % 30) };
        documents.push(json!({"id": i.to_string(), "pk": "a", "a": a, "b": (i * 11) % 4, "n": i % 3}));
        world.create(documents[i].clone()).expect("created");
    }
    let key = |document: &Value, first: &str, second: &str| {
        (document[first].to_string(), document[second].to_string())
    };
    for (first, second) in [("a", "b"), ("n", "a")] {
        for direction in ["ASC", "DESC"] {
            let text =
                format!("SELECT VALUE c.id FROM c ORDER BY c.{first} {direction}, c.{second} {direction}");
            let (rows, _) = world.query_pages(&in_key("a"), &text, PageSize::AtMost(7)).expect("served");
            let mut expected = documents.clone();
            expected.sort_by_key(|document| key(document, first, second));
            if direction == "DESC" {
                expected.reverse();
            }
            let expected: Vec<Value> = expected.iter().map(|document| document["id"].clone()).collect();
            assert_eq!(rows, expected, "{text}");
        }
    }
}

#[test]
fn a_new_policy_builds_the_index_anew() {
    let world = World::new();
    many(&world, 40);
    let replace = |policy: Value| {
        let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
            "indexingPolicy": policy});
        world.engine.replace_container("d", "c", body.to_string().as_bytes(), None).expect("replaced");
    };
    let text = "SELECT * FROM c WHERE c.n = 5";
    assert_eq!(visited(&world, &Scope::All, text), (1, 1));
    replace(json!({"excludedPaths": [{"path": "/*"}]}));
    assert_eq!(visited(&world, &Scope::All, text), (1, 40));
    world.upsert(json!({"id": "5", "pk": "b", "n": 500})).expect("replaced");
    replace(json!({"indexingMode": "none"}));
    assert_eq!(visited(&world, &Scope::All, text), (0, 40));
    replace(json!({"includedPaths": [{"path": "/*"}],
        "compositeIndexes": [[{"path": "/kind"}, {"path": "/n", "order": "descending"}]]}));
    assert_eq!(visited(&world, &Scope::All, text), (0, 0));
    assert_eq!(visited(&world, &Scope::All, "SELECT * FROM c WHERE c.n = 500"), (1, 1));
    let ordered = "SELECT TOP 2 * FROM c ORDER BY c.kind, c.n DESC";
    assert_eq!(visited(&world, &Scope::All, ordered), (2, 2));
    let world = world.reopened();
    assert_eq!(visited(&world, &Scope::All, ordered), (2, 2));
    assert_eq!(world.ids(&Scope::All, "SELECT TOP 1 * FROM c ORDER BY c.n DESC"), ["5"]);
}

#[test]
fn a_composite_index_is_read_only_where_the_range_of_its_next_path_lies() {
    let world = World::in_memory(json!({"indexingPolicy": {"compositeIndexes": [
        [{"path": "/kind"}, {"path": "/n"}]]}}));
    many(&world, 700);
    let text =
        |filter: &str| format!("SELECT TOP 5 * FROM c WHERE c.kind = 0 AND {filter} ORDER BY c.kind, c.n");
    for (filter, expected) in
        [("c.n <= 14", 3), ("c.n >= 686", 2), ("c.n < 0", 0), ("c.n > 7 AND c.n < 7", 0), ("c.n >= 0", 5)]
    {
        let (rows, read) = visited(&world, &Scope::All, &text(filter));
        assert_eq!((rows as u64, read), (expected, expected), "{filter}");
    }
}

#[test]
fn the_deepest_document_the_service_takes_is_found_by_queries() {
    let world = World::new();
    let deep =
        |levels: usize| format!(r#"{{"id":"1","pk":"a","d":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    let create = |levels: usize| world.item("a", ItemOp::Create { body: Bytes::from(deep(levels)) });
    assert_eq!(status(create(128)), (400, 0), "the document itself is a level");
    assert_eq!(status(create(127)), (0, 0));
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c"), ["1"]);
    assert_eq!(status(world.patch("a", "1", json!([{"op": "set", "path": "/n", "value": 1}]))), (0, 0));
}

#[test]
fn system_properties_can_be_queried_without_being_indexed() {
    let world = World::new();
    many(&world, 5);
    let rows =
        world.query(&Scope::All, "SELECT c.id, c._rid, c._etag FROM c WHERE c.id = '3'").expect("served");
    for name in ["_rid", "_etag"] {
        let text = format!(
            "SELECT * FROM c WHERE c.{name} = {}",
            rows[0][name].to_string().replace("\\\"", "\\u0022")
        );
        assert_eq!(world.ids(&Scope::All, &text), ["3"], "{text}");
    }
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c ORDER BY c._rid DESC"), ["4", "3", "2", "1", "0"]);
    let refused = world.query(&Scope::All, "SELECT * FROM c ORDER BY c._etag").expect_err("it is excluded");
    let message = "The index path corresponding to the specified order-by item is excluded.";
    assert_eq!((refused.status, refused.message.as_str()), (400, message));
    let since = format!("SELECT * FROM c WHERE c._ts >= {START}");
    assert_eq!(world.ids(&Scope::All, &since).len(), 5);
}

#[test]
fn a_path_with_any_characters_is_tracked_and_survives_a_restart() {
    let world = World::new();
    let name = "a \"b\" /c";
    for i in 0..300 {
        let mut document = json!({"id": i.to_string(), "pk": "a"});
        if i > 0 {
            document[name] = json!(i);
        }
        world.create(document).expect("created");
    }
    let text = r#"SELECT TOP 2 * FROM c ORDER BY c["a \"b\" /c"]"#;
    assert_eq!(world.ids(&in_key("a"), text), ["0", "1"]);
    let world = world.reopened();
    world.create(json!({"id": "new", "pk": "a"})).expect("created");
    assert_eq!(world.ids(&in_key("a"), text), ["0", "new"]);
    assert_eq!(visited(&world, &in_key("a"), text), (2, 2));
}

#[test]
fn pages_over_long_strings_go_on_behind_a_row_that_is_gone_or_was_moved() {
    let long = |tail: &str| format!("{}{tail}", "x".repeat(300));
    let policy = json!({"indexingPolicy": {"compositeIndexes": [
        [{"path": "/s"}, {"path": "/n", "order": "descending"}],
    ]}});
    let orders = ["c.s", "c.s DESC", "c.s ASC, c.n DESC", "c.s DESC, c.n ASC"];
    for (case, order) in orders.into_iter().enumerate() {
        for moved in [false, true] {
            let world = World::in_memory(policy.clone());
            // Those that are equal come in order of creation; the composite index orders them by their numbers.
            for i in 0..300 {
                let (tail, n) = (format!("{:03}", i / 3), 300 - i);
                world
                    .create(json!({"id": format!("{i:03}"), "pk": "a", "s": long(&tail), "n": n}))
                    .expect("created");
            }
            let mut expected: Vec<_> = (0..300).map(|i| format!("{i:03}")).collect();
            if case % 2 == 1 {
                expected.reverse();
            }
            let last = expected[4].clone();
            let text = format!("SELECT * FROM c ORDER BY {order}");
            let found = world.ids_around(&in_key("a"), &text, 5, || {
                if moved {
                    // To the end of the order, so it comes again there, or to its beginning.
                    let document = json!({"id": last, "pk": "a", "s": long("999"), "n": 0});
                    world.upsert(document).expect("replaced");
                } else {
                    world.delete("a", &last).expect("deleted");
                }
            });
            if moved && case % 2 == 0 {
                expected.push(last);
            }
            assert_eq!(found, expected, "{order}, moved: {moved}");
        }
    }
}

#[test]
fn pages_over_strings_too_long_for_a_continuation_lose_nothing() {
    let world = World::in_memory(json!({}));
    for i in 0..300 {
        let document =
            json!({"id": format!("{i:03}"), "pk": "a", "s": format!("{}{i:03}", "x".repeat(5_000))});
        world.create(document).expect("created");
    }
    let expected: Vec<_> = (0..300).map(|i| format!("{i:03}")).collect();
    let text = "SELECT c.id FROM c ORDER BY c.s";
    assert_eq!(world.ids_around(&in_key("a"), text, 4, || ()), expected);
    let mut found = world.ids_around(&in_key("a"), text, 4, || {
        world.delete("a", "003").expect("deleted");
    });
    found.sort();
    found.dedup();
    assert_eq!(found, expected);
}

/// Everything in the store.
fn keys(world: &World) -> usize {
    world.engine.storage().scan(Bound::Unbounded, Bound::Unbounded, Order::Forward).count()
}

#[test]
fn order_by_over_a_path_that_no_document_has_writes_nothing() {
    let world = World::new();
    many(&world, 600);
    let before = keys(&world);
    let text = |name: &str, direction: &str| format!("SELECT TOP 3 * FROM c ORDER BY c.{name} {direction}");
    for scope in [in_key("a"), Scope::All] {
        for name in ["nowhere", "none.at_all", "tags.x"] {
            let (first, last) = (world.ids(&scope, &text(name, "")), world.ids(&scope, &text(name, "DESC")));
            if scope == Scope::All {
                assert_eq!([first, last], [["0", "1", "2"], ["599", "598", "597"]]);
            }
            assert_eq!(visited(&world, &scope, &text(name, "")), (3, 3), "{name} in {scope:?}");
        }
    }
    assert_eq!(keys(&world), before);
    // It is mixed from now on.
    world.create(json!({"id": "has", "pk": "a", "nowhere": 1})).expect("created");
    let before = keys(&world);
    assert_eq!(world.ids(&Scope::All, &text("nowhere", "DESC")), ["has", "599", "598"]);
    assert_eq!(keys(&world), before + 2 * 600, "all but one have two entries more");
}

#[test]
fn pages_over_a_path_that_no_document_had_stay_whole_when_one_gets_it() {
    for direction in ["", "DESC"] {
        let world = World::in_memory(json!({}));
        many(&world, 600);
        let mut found = world.ids_around(
            &in_key("a"),
            &format!("SELECT * FROM c ORDER BY c.late {direction}"),
            50,
            || {
                world.upsert(json!({"id": "300", "pk": "a", "late": 1})).expect("replaced");
                world.create(json!({"id": "late", "pk": "a", "late": 0})).expect("created");
            },
        );
        let mut expected: Vec<_> = (0..600).step_by(2).map(|i| i.to_string()).collect();
        if direction.is_empty() {
            assert_eq!(found[found.len() - 2..], ["late", "300"]);
            expected.push("late".to_owned());
        }
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{direction}");
    }
}

#[test]
fn order_by_over_a_path_that_every_document_has_writes_no_entries() {
    let world = World::new();
    many(&world, 600);
    let before = keys(&world);
    let text = "SELECT TOP 3 * FROM c ORDER BY c.n";
    assert_eq!(world.ids(&Scope::All, text), ["0", "1", "2"]);
    assert_eq!(visited(&world, &Scope::All, text), (3, 3));
    assert_eq!(keys(&world), before);
    let world = world.reopened();
    world.create(json!({"id": "without", "pk": "a"})).expect("created");
    assert_eq!(world.ids(&Scope::All, text), ["without", "0", "1"]);
    assert_eq!(world.ids(&Scope::All, "SELECT TOP 1 * FROM c ORDER BY c.n DESC"), ["599"]);
}

/// Every query over the engine gives what the same query gives over a plain list of the documents.
#[test]
fn the_index_never_changes_an_answer() {
    let world = World::with_options(
        json!({"indexingPolicy": {"compositeIndexes": [[{"path": "/a"}, {"path": "/b"}]]}}),
        EngineOptions::default(),
    );
    let mut random = super::model::Random(7);
    let mut values = |i: u64| -> Value {
        match random.below(9) {
            0 => Value::Null,
            1 => json!(random.below(2) == 0),
            2 => json!(i % 10),
            3 => json!(-1.5),
            4 => json!(["p", "q", "p", i % 3]),
            5 => json!({"k": i % 4, "l": [{"m": i % 3}, {"m": 9}]}),
            6 => json!(9_007_199_254_740_993_u64),
            _ => json!(format!("s{}", i % 6)),
        }
    };
    for i in 0..400 {
        let mut document = json!({"id": i.to_string(), "pk": "a", "b": i % 11});
        if i % 5 != 0 {
            document["a"] = values(i);
        }
        world.create(document).expect("created");
    }
    let list = List::new(world.query(&in_key("a"), "SELECT * FROM c").expect("served"));
    for text in [
        "SELECT VALUE c.id FROM c WHERE c.a = 3",
        "SELECT VALUE c.id FROM c WHERE c.a = 's3' AND c.b = 4",
        "SELECT VALUE c.id FROM c WHERE c.a IN (1, 's1', null, true)",
        "SELECT VALUE c.id FROM c WHERE c.a > 2",
        "SELECT VALUE c.id FROM c WHERE c.a > 5 AND c.a < 2",
        "SELECT VALUE c.id FROM c WHERE c.a > 2 AND c.a <= 2",
        "SELECT VALUE c.id FROM c WHERE c.a > 2 AND c.a < 's3'",
        "SELECT VALUE c.id FROM c WHERE c.a = 1 AND c.a = 2",
        "SELECT VALUE c.id FROM c WHERE c.a >= false AND c.b = 4",
        "SELECT VALUE c.a FROM c WHERE c.a > 5 AND c.a < 2 ORDER BY c.a",
        "SELECT VALUE c.a FROM c WHERE c.a > 's1' ORDER BY c.a DESC",
        "SELECT VALUE c.id FROM c WHERE c.a LIKE 's%'",
        "SELECT VALUE c.id FROM c WHERE EXISTS(SELECT VALUE x FROM x IN c.a WHERE x = 'q')",
        "SELECT VALUE c.id FROM c WHERE c.a >= 's2' AND c.a < 's4'",
        "SELECT VALUE c.id FROM c WHERE c.a > 's2'",
        "SELECT VALUE c.id FROM c WHERE c.a <= 9007199254740992",
        "SELECT VALUE c.id FROM c WHERE c.a = 9007199254740993",
        "SELECT VALUE c.id FROM c WHERE c.a BETWEEN 1 AND 5",
        "SELECT VALUE c.id FROM c WHERE STARTSWITH(c.a, 's')",
        "SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.a)",
        "SELECT VALUE c.id FROM c WHERE NOT IS_DEFINED(c.a)",
        "SELECT VALUE c.id FROM c WHERE c.a = null",
        "SELECT VALUE c.id FROM c WHERE c.a != 3",
        "SELECT VALUE c.id FROM c WHERE c.a.k = 2",
        "SELECT VALUE c.id FROM c WHERE c.a[0] = 'p'",
        "SELECT VALUE c.id FROM c WHERE c.a[3] = 1",
        "SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(c.a, 'p')",
        "SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(c.a, 2)",
        "SELECT VALUE c.id FROM c JOIN m IN c.a.l WHERE m.m = 9",
        "SELECT VALUE c.id FROM c JOIN m IN c.a.l WHERE m.m >= 1",
        "SELECT VALUE c.id FROM c WHERE c.a = 3 OR c.b = 4",
        "SELECT VALUE c.a FROM c ORDER BY c.a",
        "SELECT VALUE c.a FROM c ORDER BY c.a DESC",
        "SELECT VALUE c.a FROM c WHERE c.b > 3 ORDER BY c.a",
        "SELECT VALUE c.b FROM c WHERE c.a = 's1' ORDER BY c.b",
        "SELECT VALUE c.b FROM c ORDER BY c.a, c.b",
        "SELECT VALUE c.b FROM c ORDER BY c.a DESC, c.b DESC",
        "SELECT VALUE COUNT(1) FROM c WHERE c.a = 3",
        "SELECT c.b, COUNT(1) AS n FROM c GROUP BY c.b",
    ] {
        let prepared = Prepared::new(&sql::parse(text).expect("valid"), &[]).expect("valid");
        let limits = PageLimits { items_max: usize::MAX, ..PageLimits::default() };
        let expected = prepared.page(&list, &limits, None, world.engine.clock().now()).expect("served").rows;
        for scope in [in_key("a"), Scope::All] {
            let (mut actual, _) = world.query_pages(&scope, text, PageSize::AtMost(50)).expect("served");
            let mut expected = expected.clone();
            if !text.contains("ORDER BY") {
                actual.sort_by_key(Value::to_string);
                expected.sort_by_key(Value::to_string);
            } else {
                // Arrays and objects have no order among themselves.
                for row in
                    actual.iter_mut().chain(&mut expected).filter(|row| row.is_array() || row.is_object())
                {
                    *row = json!(if row.is_array() { "array" } else { "object" });
                }
            }
            if text.contains("c.a, c.b") || text.contains("c.a DESC, c.b") {
                actual.sort_by_key(Value::to_string);
                expected.sort_by_key(Value::to_string);
            }
            assert_eq!(actual, expected, "{text} in {scope:?}");
        }
    }
}
