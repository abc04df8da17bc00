//! Read feed and change feed.

use super::*;

fn changes(world: &World, scope: Scope, start: FeedStart, max: usize) -> (u16, Vec<(String, u64)>, String) {
    let request = FeedRequest { scope, start, page_size: PageSize::AtMost(max), session_token: None };
    let page = world.engine.change_feed(&world.container(), request).expect("served");
    let documents = page
        .documents
        .iter()
        .map(|bytes| {
            let document: Value = serde_json::from_slice(bytes).expect("JSON");
            (document["id"].as_str().expect("text").to_owned(), document["_lsn"].as_u64().expect("an LSN"))
        })
        .collect();
    (page.status, documents, page.etag)
}

fn named(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(id, lsn)| ((*id).to_owned(), *lsn)).collect()
}

#[test]
fn the_change_feed_shows_the_last_version_of_each_item_in_order() {
    let world = World::new();
    for id in ["1", "2", "3"] {
        world.create(json!({"id": id, "pk": "a"})).expect("created");
    }
    world.upsert(json!({"id": "1", "pk": "a", "n": 1})).expect("replaced");
    world.delete("a", "2").expect("deleted");
    let (status, documents, etag) = changes(&world, Scope::All, FeedStart::Beginning, 100);
    assert_eq!((status, documents, etag.as_str()), (200, named(&[("3", 4), ("1", 5)]), "\"6\""));
    let (status, documents, again) = changes(&world, Scope::All, FeedStart::After(etag.clone()), 100);
    assert_eq!((status, documents.len(), again.as_str()), (304, 0, "\"6\""));
    world.create(json!({"id": "4", "pk": "b"})).expect("created");
    let (_, documents, _) = changes(&world, Scope::Range("0".into()), FeedStart::After(etag), 100);
    assert_eq!(documents, named(&[("4", 7)]));
    let (status, documents, etag) = changes(&world, Scope::All, FeedStart::Now, 100);
    assert_eq!((status, documents.len(), etag.as_str()), (304, 0, "\"7\""));
    let bad = FeedRequest {
        scope: Scope::All,
        start: FeedStart::After("\"x\"".into()),
        page_size: PageSize::DEFAULT,
        session_token: None,
    };
    assert_eq!(super::status(world.engine.change_feed(&world.container(), bad)), (400, 0));
}

#[test]
fn pages_of_changes_follow_each_other_and_never_cut_a_transaction() {
    let world = World::new();
    for id in ["1", "2", "3"] {
        world.create(json!({"id": id, "pk": "a"})).expect("created");
    }
    let operations = ["4", "5"]
        .map(|id| BatchOperation {
            op: ItemOp::Create { body: text(&json!({"id": id, "pk": "a"})) },
            conditions: Conditions::default(),
            partition_key: None,
        })
        .to_vec();
    let request = BatchRequest {
        mode: BatchMode::Atomic,
        partition_key: Some(key("a")),
        operations,
        body_bytes: 0,
        range: None,
        content: Content::All,
        session_token: None,
    };
    world.engine.batch(&world.container(), request).expect("accepted");
    let (mut start, mut seen) = (FeedStart::Beginning, Vec::new());
    loop {
        let (status, documents, etag) = changes(&world, Scope::All, start, 1);
        if status == 304 {
            break;
        }
        seen.push(documents.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
        start = FeedStart::After(etag);
    }
    assert_eq!(seen, [vec!["1"], vec!["2"], vec!["3"], vec!["4", "5"]]);
}

#[test]
fn changes_of_one_key_or_a_part_of_the_keys_are_picked_out() {
    let world = World::new();
    for (id, pk) in [("1", "a"), ("2", "b"), ("3", "a")] {
        world.create(json!({"id": id, "pk": pk})).expect("created");
    }
    let (_, documents, etag) = changes(&world, in_key("a"), FeedStart::Beginning, 100);
    assert_eq!((documents, etag.as_str()), (named(&[("1", 2), ("3", 4)]), "\"4\""));
    let halves = ["", "20"].iter().zip(["20", "FF"]).map(|(min, max)| {
        changes(&world, Scope::EpkRange((*min).into(), max.into()), FeedStart::Beginning, 100).1.len()
    });
    assert_eq!(halves.sum::<usize>(), 3);
}

#[test]
fn a_feed_can_begin_at_a_time() {
    let world = World::new();
    world.create(json!({"id": "1", "pk": "a"})).expect("created");
    world.hand.advance(Duration::from_secs(10));
    let now = world.engine.clock().now();
    let (status, documents, etag) = changes(&world, Scope::All, FeedStart::Time(now), 100);
    assert_eq!((status, documents.len(), etag.as_str()), (304, 0, "\"2\""));
    world.create(json!({"id": "2", "pk": "a"})).expect("created");
    assert_eq!(changes(&world, Scope::All, FeedStart::Time(now), 100).1, named(&[("2", 3)]));
    let before = now - Duration::from_secs(10);
    assert_eq!(changes(&world, Scope::All, FeedStart::Time(before), 100).1.len(), 2);
}

#[test]
fn a_feed_over_several_partitions_must_name_one() {
    let world =
        World::with_options(json!({}), EngineOptions { partitions: Some(2), ..EngineOptions::default() });
    let request = FeedRequest {
        scope: Scope::All,
        start: FeedStart::Beginning,
        page_size: PageSize::DEFAULT,
        session_token: None,
    };
    assert_eq!(status(world.engine.change_feed(&world.container(), request)), (410, 1002));
}

#[test]
fn the_read_feed_pages_through_all_partitions() {
    let world =
        World::with_options(json!({}), EngineOptions { partitions: Some(3), ..EngineOptions::default() });
    for i in 0..25 {
        world.create(json!({"id": i.to_string(), "pk": format!("p{i}")})).expect("created");
    }
    let (mut continuation, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let request = ReadFeedRequest {
            scope: Scope::All,
            page_size: PageSize::AtMost(4),
            continuation,
            session_token: None,
        };
        let page = world.engine.read_feed(&world.container(), request).expect("served");
        assert!(page.documents.len() <= 4);
        for bytes in &page.documents {
            let document: Value = serde_json::from_slice(bytes).expect("JSON");
            seen.push(document["id"].as_str().expect("text").parse::<u32>().expect("a number"));
        }
        pages += 1;
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    seen.sort_unstable();
    assert_eq!((seen, pages), ((0..25).collect::<Vec<_>>(), 7));
    let foreign = ReadFeedRequest {
        scope: Scope::All,
        page_size: PageSize::DEFAULT,
        continuation: Some("foreign".into()),
        session_token: None,
    };
    assert_eq!(status(world.engine.read_feed(&world.container(), foreign)), (400, 0));
}

#[test]
fn the_read_feed_of_one_key_ends() {
    let world = World::new();
    for (id, pk) in [("1", "x"), ("2", "x"), ("other", "y"), ("3", "x")] {
        world.create(json!({"id": id, "pk": pk})).expect("created");
    }
    let page = |continuation: Option<String>| {
        let request = ReadFeedRequest {
            scope: in_key("x"),
            page_size: PageSize::AtMost(2),
            continuation,
            session_token: None,
        };
        let page = world.engine.read_feed(&world.container(), request).expect("served");
        let ids: Vec<String> = page
            .documents
            .iter()
            .map(|bytes| serde_json::from_slice::<Value>(bytes).expect("JSON")["id"].to_string())
            .collect();
        (ids.concat(), page.continuation)
    };
    let (ids, continuation) = page(None);
    assert_eq!(ids, r#""1""2""#);
    assert_eq!(page(Some(continuation.expect("there is more"))), (r#""3""#.to_owned(), None));
}
