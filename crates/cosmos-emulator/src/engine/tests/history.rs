//! The full-fidelity change feed: every version, every end, for as long as the container keeps them.

use super::*;

fn kept() -> Value {
    json!({"changeFeedPolicy": {"retentionDuration": 10}, "defaultTtl": -1})
}

fn page(world: &World, scope: Scope, start: FeedStart, max: usize) -> Result<FeedPage, Failure> {
    let request = FeedRequest { scope, start, page_size: PageSize::AtMost(max), session_token: None };
    world.engine.all_versions(&world.container(), request)
}

fn now(world: &World) -> FeedStart {
    let page = page(world, Scope::Range(world.container().range_ids()[0].to_string()), FeedStart::Now, 100);
    let page = page.expect("served");
    assert_eq!((page.status, page.documents.len()), (304, 0));
    FeedStart::After(page.etag)
}

fn shown(page: &FeedPage) -> Vec<Value> {
    page.documents.iter().map(|bytes| serde_json::from_slice(bytes).expect("JSON")).collect()
}

#[test]
fn every_version_and_every_end_is_shown_once_in_order() {
    let world = World::with(kept());
    let start = now(&world);
    world.create(json!({"id": "1", "pk": "a", "n": 1})).expect("created");
    world.upsert(json!({"id": "1", "pk": "a", "n": 2})).expect("replaced");
    world.patch("a", "1", json!([{"op": "incr", "path": "/n", "value": 1}])).expect("patched");
    world.delete("a", "1").expect("deleted");
    world.create(json!({"id": "2", "pk": "a", "ttl": 5})).expect("created");
    world.hand.advance(Duration::from_secs(5));
    let first = page(&world, Scope::All, start.clone(), 100).expect("served");
    let items = shown(&first);
    let of = |name: &str| items.iter().map(|item| item["metadata"][name].clone()).collect::<Vec<_>>();
    assert_eq!(
        of("operationType"),
        ["create", "replace", "replace", "delete", "create", "delete"].map(Value::from)
    );
    assert_eq!(
        items.iter().map(|item| item["current"]["n"].clone()).collect::<Vec<_>>()[..4],
        [json!(1), json!(2), json!(3), Value::Null]
    );
    assert_eq!(of("lsn"), [2, 3, 4, 5, 6, 7].map(Value::from));
    assert_eq!(of("previousImageLSN")[1..4], [json!(2), json!(3), json!(4)]);
    assert_eq!((&items[3]["current"], &items[3]["previous"]["n"]), (&json!({}), &json!(3)));
    assert_eq!(
        (&items[3]["metadata"]["id"], &items[3]["metadata"]["partitionKey"]),
        (&json!("1"), &json!(["a"]))
    );
    assert_eq!(items[1].get("previous"), None, "the service shows it for deletes only");
    assert_eq!(
        (&items[3]["metadata"]["timeToLiveExpired"], &items[5]["metadata"]["timeToLiveExpired"]),
        (&Value::Null, &json!(true))
    );
    assert_eq!(items[5]["metadata"]["crts"], json!(world.engine.clock().now_seconds()));
    let next = page(&world, Scope::All, FeedStart::After(first.etag), 100).expect("served");
    assert_eq!((next.status, next.documents.len()), (304, 0));
    let (mut start, mut seen) = (start, Vec::new());
    loop {
        let page = page(&world, Scope::All, start, 1).expect("served");
        if page.status == 304 {
            break;
        }
        seen.extend(shown(&page));
        start = FeedStart::After(page.etag);
    }
    assert_eq!(seen, items, "page by page it is the same");
}

#[test]
fn only_now_and_later_can_be_asked_for() {
    let world = World::with(kept());
    let time = FeedStart::Time(world.engine.clock().now());
    for start in [FeedStart::Beginning, time, FeedStart::After("\"x\"".into())] {
        assert_eq!(status(page(&world, Scope::All, start, 1)), (400, 0));
    }
    let without = World::new();
    assert_eq!(status(page(&without, Scope::All, FeedStart::Now, 1)), (400, 0));
    for wrong in [json!(-1), json!("ten"), json!(1_000_000)] {
        let body = json!({"changeFeedPolicy": {"retentionDuration": wrong}});
        assert_eq!(status(without.create_container("x", body)), (400, 0));
    }
}

#[test]
fn versions_are_dropped_when_their_time_is_over() {
    let world = World::with(kept());
    let start = now(&world);
    world.create(json!({"id": "old", "pk": "a"})).expect("created");
    world.hand.advance(Duration::from_secs(400));
    world.create(json!({"id": "young", "pk": "a"})).expect("created");
    world.hand.advance(Duration::from_secs(300));
    let ids = |world: &World| {
        let page = page(world, Scope::All, start.clone(), 100).expect("served");
        shown(&page).iter().map(|item| item["current"]["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&world), [json!("young")], "before it is swept");
    assert_eq!(world.engine.sweep(100).expect("swept"), 1);
    assert_eq!(ids(&world), [json!("young")]);
    let world = world.reopened();
    assert_eq!(ids(&world), [json!("young")]);
}

#[test]
fn a_batch_is_one_page_and_a_refused_one_is_none() {
    let world = World::with(kept());
    let start = now(&world);
    let batch = |ids: &[&str]| {
        let operations = ids.iter().map(|id| BatchOperation {
            op: ItemOp::Create { body: text(&json!({"id": id, "pk": "a"})) },
            conditions: Conditions::default(),
            partition_key: None,
        });
        let request = BatchRequest {
            mode: BatchMode::Atomic,
            partition_key: Some(key("a")),
            operations: operations.collect(),
            body_bytes: 0,
            range: None,
            content: Content::All,
            session_token: None,
        };
        world.engine.batch(&world.container(), request).expect("accepted").status
    };
    assert_eq!((batch(&["1", "2"]), batch(&["3", "1"])), (200, 207));
    let page = page(&world, Scope::All, start, 1).expect("served");
    assert_eq!(shown(&page).iter().map(|item| item["current"]["id"].clone()).collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn the_feed_goes_on_in_children_and_in_a_merged_partition() {
    let world = World::with(kept());
    let start = now(&world);
    let write = |n: u32| {
        for i in 0..10 {
            world.upsert(json!({"id": "x", "pk": format!("p{i}"), "n": n})).expect("written");
        }
    };
    write(0);
    let FeedStart::After(etag) = start else { unreachable!("it goes on behind a page") };
    world
        .engine
        .split(
            &world.container(),
            0,
            &SplitMode::Midpoint,
            Progression::Automatic { lock_duration: Duration::ZERO },
        )
        .expect("split");
    write(1);
    let mut etags = Vec::new();
    let mut seen = Vec::new();
    for id in ["1", "2"] {
        let page =
            page(&world, Scope::Range(id.into()), FeedStart::After(etag.clone()), 100).expect("served");
        seen.extend(shown(&page));
        etags.push(page.etag);
    }
    assert_eq!(seen.len(), 20);
    assert_eq!(status(page(&world, Scope::Range("0".into()), FeedStart::After(etag), 100)), (410, 1002));
    let ranges = world.container().ranges();
    write(2);
    world
        .engine
        .merge(&world.container(), [1, 2], Progression::Automatic { lock_duration: Duration::ZERO })
        .expect("merged");
    write(3);
    for (range, etag) in ranges.iter().zip(etags) {
        let scope = Scope::EpkRange(range.min.to_hex(), range.max.to_hex());
        seen.extend(shown(&page(&world, scope, FeedStart::After(etag), 100).expect("served")));
    }
    for i in 0..10 {
        let of = seen.iter().filter(|item| item["current"]["pk"] == format!("p{i}"));
        assert_eq!(
            of.map(|item| item["current"]["n"].clone()).collect::<Vec<_>>(),
            [0, 1, 2, 3].map(Value::from)
        );
    }
}
