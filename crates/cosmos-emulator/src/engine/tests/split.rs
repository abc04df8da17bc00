//! Splits and merges: phases, what survives them, and processes killed in the middle.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::engine::key::operations;
use crate::storage::{Batch, Order, Scan, Storage, StorageError, Ticket, View};

pub(super) const AT_ONCE: Progression = Progression::Automatic { lock_duration: Duration::ZERO };

fn filled(count: u32) -> World {
    let world = World::new();
    for i in 0..count {
        world.create(json!({"id": i.to_string(), "pk": format!("p{i}"), "n": i % 7})).expect("created");
    }
    world
}

fn ids(container: &Container) -> Vec<u32> {
    container.range_ids()
}

fn changes(world: &World, scope: Scope, start: FeedStart) -> Result<FeedPage, Failure> {
    let request = FeedRequest { scope, start, page_size: PageSize::DEFAULT, session_token: None };
    world.engine.change_feed(&world.container(), request)
}

fn changed(page: &FeedPage) -> Vec<String> {
    let id = |bytes: &Bytes| {
        serde_json::from_slice::<Value>(bytes).expect("JSON")["id"].as_str().map(str::to_owned)
    };
    page.documents.iter().filter_map(id).collect()
}

#[test]
fn a_split_leaves_every_item_and_every_order_in_place() {
    let world = filled(60);
    let before = world.ids(&Scope::All, "SELECT * FROM c ORDER BY c.n");
    let operation = world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
    assert_eq!((operation.phase, operation.parents.as_slice()), (Phase::Succeeded, &[0][..]));
    assert_eq!(ids(&world.container()), [1, 2]);
    for i in 0..60 {
        world.read(&format!("p{i}"), &i.to_string()).expect("it is there");
    }
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c ORDER BY c.n"), before);
    let halves =
        ["1", "2"].map(|id| world.ids(&Scope::Range(id.into()), "SELECT * FROM c WHERE c.n = 3").len());
    assert!(halves.iter().all(|half| *half > 0) && halves.iter().sum::<usize>() == 9, "{halves:?}");
    let ranges = world.engine.ranges(&world.container(), None).expect("shown");
    assert_eq!(ranges.ranges[0]["parents"], json!(["0"]));
    assert_eq!(ranges.ranges[0]["maxExclusive"], ranges.ranges[1]["minInclusive"]);
    assert_eq!(status(changes(&world, Scope::Range("0".into()), FeedStart::Beginning)), (410, 1002));
    world.create(json!({"id": "new", "pk": "p0"})).expect("created");
    assert_eq!(world.ids(&in_key("p0"), "SELECT * FROM c"), ["0", "new"]);
}

#[test]
fn sessions_and_ranges_go_on_as_the_service_numbers_them() {
    let world = filled(10);
    let read = |world: &World, token: &str| {
        let request = ItemRequest {
            partition_key: Some(key("p0")),
            op: ItemOp::Read { id: "0".into() },
            conditions: Conditions::default(),
            session_token: Some(token.to_owned()),
        };
        world.engine.item(&world.container(), request)
    };
    assert_eq!(read(&world, "0:-1#11").expect("served").standing.session_token, "0:-1#11");
    let seen = world.engine.ranges(&world.container(), None).expect("shown").etag;
    world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
    let after = read(&world, "0:-1#11").expect("sessions of the parent are honoured").standing;
    assert_eq!(after.session_token, format!("{}:-1#12", after.range_id));
    assert_eq!(status(read(&world, "0:-1#13")), (404, 1002));
    let news = world.engine.ranges(&world.container(), Some(&seen)).expect("shown");
    assert_eq!((news.status, news.ranges.len()), (200, 2));
    assert_eq!(world.engine.ranges(&world.container(), Some(&news.etag)).expect("shown").status, 304);
    world.engine.split(&world.container(), 1, &SplitMode::Midpoint, AT_ONCE).expect("split");
    let news = world.engine.ranges(&world.container(), Some(&news.etag)).expect("shown");
    assert_eq!(
        news.ranges.iter().map(|range| range["parents"].clone()).collect::<Vec<_>>(),
        vec![json!(["0", "1"]); 2]
    );
    world.engine.merge(&world.container(), [4, 3], AT_ONCE).expect("merged");
    assert_eq!(ids(&world.container()), [5, 2]);
    world.engine.merge(&world.container(), [5, 2], AT_ONCE).expect("merged");
    let merged =
        read(&world, &after.session_token).expect("sessions from before a merge are honoured").standing;
    assert_eq!(merged.session_token, "6:1#1");
    world.create(json!({"id": "new", "pk": "p0"})).expect("created");
    assert_eq!(read(&world, "6:1#2").expect("served").standing.session_token, "6:1#2");
}

#[test]
fn a_split_by_hand_goes_through_its_phases() {
    let world = filled(8);
    let split = |progression| world.engine.split(&world.container(), 0, &SplitMode::Midpoint, progression);
    let operation = split(Progression::Manual).expect("begun");
    assert_eq!(operation.phase, Phase::Preparing);
    assert_eq!(status(split(Progression::Manual)), (409, 0));
    world.create(json!({"id": "x", "pk": "p0"})).expect("the parent still serves");
    assert_eq!(world.engine.advance(operation.id).expect("moved on").phase, Phase::Swapping);
    assert_eq!(status(world.read("p0", "x")), (410, 1007));
    assert_eq!(status(world.create(json!({"id": "y", "pk": "p0"}))), (410, 1007));
    assert_eq!(status(world.query(&Scope::All, "SELECT * FROM c")), (410, 1007));
    assert_eq!(status(changes(&world, Scope::Range("0".into()), FeedStart::Now)), (410, 1007));
    assert_eq!(ids(&world.container()), [0]);
    assert_eq!(world.engine.advance(operation.id).expect("moved on").phase, Phase::Succeeded);
    assert_eq!(world.engine.advance(operation.id).expect("nothing to do").phase, Phase::Succeeded);
    world.read("p0", "x").expect("a child serves");
    assert_eq!(status(changes(&world, Scope::Range("0".into()), FeedStart::Now)), (410, 1002));
    assert_eq!(status(world.engine.advance(99)), (404, 0));
}

#[test]
fn a_split_by_itself_ends_when_the_clock_says_so() {
    let world = filled(8);
    let progression = Progression::Automatic { lock_duration: Duration::from_millis(500) };
    let operation =
        world.engine.split(&world.container(), 0, &SplitMode::Storage, progression).expect("begun");
    assert_eq!(operation.phase, Phase::Swapping);
    assert_eq!(status(world.read("p0", "0")), (410, 1007));
    world.hand.advance(Duration::from_millis(499));
    assert_eq!(status(world.read("p0", "0")), (410, 1007));
    world.hand.advance(Duration::from_millis(1));
    world.read("p0", "0").expect("the first request after it is served by a child");
    assert_eq!(world.engine.operation(operation.id).expect("known").phase, Phase::Succeeded);
}

#[test]
fn cuts_are_where_they_are_asked_for() {
    let world = World::new();
    for i in 0..40 {
        let padding = "x".repeat(if i < 2 { 20_000 } else { 10 });
        world
            .create(json!({"id": i.to_string(), "pk": format!("p{i}"), "padding": padding}))
            .expect("created");
    }
    let container = world.container();
    let at = "1A2B3C4D5E6F70819203040506070809";
    for wrong in [SplitMode::At("zz".into()), SplitMode::At("FF".into()), SplitMode::At(String::new())] {
        assert_eq!(status(world.engine.split(&container, 0, &wrong, AT_ONCE)), (400, 0), "{wrong:?}");
    }
    let operation = world.engine.split(&container, 0, &SplitMode::At(at.into()), AT_ONCE).expect("split");
    assert_eq!((operation.children[0].max_exclusive.as_str(), operation.children[1].id), (at, 2));
    world.engine.merge(&container, [1, 2], AT_ONCE).expect("merged");
    world.engine.split(&container, 3, &SplitMode::Storage, AT_ONCE).expect("split");
    let sizes: Vec<_> =
        world.engine.partition_reports(&container).expect("told").iter().map(|r| r.storage_bytes).collect();
    assert!(sizes.iter().all(|size| *size > 19_000), "each has one of the two large items: {sizes:?}");
    assert_eq!(status(world.engine.split(&container, 3, &SplitMode::Midpoint, AT_ONCE)), (404, 0));
    world.engine.split(&container, 5, &SplitMode::Midpoint, AT_ONCE).expect("split");
    assert_eq!(status(world.engine.merge(&container, [4, 7], AT_ONCE)), (400, 0), "no neighbours");
}

#[test]
fn a_change_feed_goes_on_behind_its_place_in_children_and_in_merged_partitions() {
    let world = filled(30);
    let etag = changes(&world, Scope::Range("0".into()), FeedStart::Beginning).expect("served").etag;
    world.upsert(json!({"id": "3", "pk": "p3", "n": 99})).expect("written");
    world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
    world.upsert(json!({"id": "4", "pk": "p4", "n": 99})).expect("written");
    let mut seen = Vec::new();
    let mut etags = Vec::new();
    for id in ["1", "2"] {
        let page = changes(&world, Scope::Range(id.into()), FeedStart::After(etag.clone())).expect("served");
        seen.extend(changed(&page));
        etags.push(page.etag);
    }
    seen.sort();
    assert_eq!(seen, ["3", "4"]);
    world.upsert(json!({"id": "5", "pk": "p5", "n": 99})).expect("written");
    let ranges: Vec<_> = world.container().ranges();
    world.engine.merge(&world.container(), [1, 2], AT_ONCE).expect("merged");
    world.upsert(json!({"id": "6", "pk": "p6", "n": 99})).expect("written");
    let mut seen = Vec::new();
    for (range, etag) in ranges.iter().zip(etags) {
        let scope = Scope::EpkRange(range.min.to_hex(), range.max.to_hex());
        seen.extend(changed(&changes(&world, scope, FeedStart::After(etag)).expect("served")));
    }
    seen.sort();
    assert_eq!(seen, ["5", "6"]);
    assert_eq!(changed(&changes(&world, Scope::All, FeedStart::Beginning).expect("served")).len(), 30);
}

/// Reads a query page by page, and lets something happen between two pages.
fn pages_with(world: &World, scope: &Scope, text: &str, mut between: impl FnMut(usize)) -> Vec<String> {
    let (mut rows, mut continuation) = (Vec::new(), None);
    for page_number in 0.. {
        let request = QueryRequest {
            text: text.into(),
            parameters: Vec::new(),
            scope: scope.clone(),
            page_size: PageSize::AtMost(7),
            continuation,
            session_token: None,
            resume: None,
        };
        let page = world.engine.query(&world.container(), request).expect("served");
        rows.extend(page.rows.iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        between(page_number);
    }
    rows
}

#[test]
fn continuations_of_queries_survive_splits_and_merges() {
    for text in [
        "SELECT * FROM c",
        "SELECT * FROM c ORDER BY c.n",
        "SELECT * FROM c ORDER BY c.n DESC",
        "SELECT * FROM c WHERE c.n >= 2",
        "SELECT * FROM c WHERE c.n IN (1, 3, 5) ORDER BY c.id",
        "SELECT TOP 50 * FROM c ORDER BY c.n",
        "SELECT c.id FROM c JOIN t IN c.tags ORDER BY c.n",
        "SELECT c.id FROM c JOIN t IN c.tags WHERE t > 1 ORDER BY c.n DESC",
        "SELECT DISTINCT c.id, t FROM c JOIN t IN c.tags ORDER BY c.n",
    ] {
        for scope in [
            Scope::All,
            Scope::EpkRange(String::new(), "FF".into()),
            Scope::EpkRange("0A".into(), "FF".into()),
        ] {
            let world = World::new();
            let count = if text.contains("DESC") { 400 } else { 70 };
            for i in 0..count {
                let item =
                    json!({"id": format!("{i:03}"), "pk": format!("p{i}"), "n": i % 6, "tags": [1, 2, 3]});
                world.create(item).expect("created");
            }
            let mut expected = world.ids(&scope, text);
            let mut seen = pages_with(&world, &scope, text, |page| {
                let container = world.container();
                let (first, last) = (ids(&container)[0], *ids(&container).last().expect("some"));
                match page {
                    0 => world.engine.split(&container, first, &SplitMode::Midpoint, AT_ONCE),
                    1 => world.engine.split(&container, last, &SplitMode::Storage, AT_ONCE),
                    2 => world.engine.merge(&container, [ids(&container)[0], ids(&container)[1]], AT_ONCE),
                    3 => world.engine.split(&container, first, &SplitMode::Storage, AT_ONCE),
                    4 => world.engine.merge(&container, [ids(&container)[1], ids(&container)[2]], AT_ONCE),
                    _ => return,
                }
                .map(drop)
                .expect("done");
            });
            if !text.contains("ORDER BY") {
                expected.sort();
                seen.sort();
            }
            assert_eq!(seen, expected, "{text} in {scope:?}");
        }
    }
}

#[test]
fn the_read_feed_survives_splits_and_merges() {
    let world = filled(50);
    let (mut continuation, mut seen) = (None, Vec::new());
    for page_number in 0.. {
        let request = ReadFeedRequest {
            scope: Scope::All,
            page_size: PageSize::AtMost(6),
            continuation,
            session_token: None,
        };
        let page = world.engine.read_feed(&world.container(), request).expect("served");
        seen.extend(page.documents.iter().map(|bytes| {
            let document: Value = serde_json::from_slice(bytes).expect("JSON");
            document["id"].as_str().expect("text").parse::<u32>().expect("a number")
        }));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        let container = world.container();
        match page_number {
            0 | 2 => drop(
                world
                    .engine
                    .split(&container, ids(&container)[0], &SplitMode::Midpoint, AT_ONCE)
                    .expect("split"),
            ),
            3 => drop(
                world
                    .engine
                    .merge(&container, [ids(&container)[0], ids(&container)[1]], AT_ONCE)
                    .expect("merged"),
            ),
            _ => {}
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
}

#[test]
fn a_process_that_ends_in_the_middle_goes_on_with_the_operation() {
    for advanced in 0..2 {
        let mut world = filled(20);
        let operation = world
            .engine
            .split(&world.container(), 0, &SplitMode::Midpoint, Progression::Manual)
            .expect("begun");
        for _ in 0..advanced {
            world.engine.advance(operation.id).expect("moved on");
        }
        world = world.reopened();
        let expected = if advanced == 0 { (0, 0) } else { (410, 1007) };
        assert_eq!(status(world.read("p1", "1")), expected);
        while world.engine.operation(operation.id).expect("known").phase != Phase::Succeeded {
            world.engine.advance(operation.id).expect("moved on");
        }
        world = world.reopened();
        assert_eq!(ids(&world.container()), [1, 2]);
        assert_eq!(world.ids(&Scope::All, "SELECT * FROM c WHERE c.n < 100").len(), 20);
        let merge = world.engine.merge(&world.container(), [1, 2], Progression::Manual).expect("begun");
        for _ in 0..advanced {
            world.engine.advance(merge.id).expect("moved on");
        }
        world = world.reopened();
        while world.engine.operation(merge.id).expect("known").phase != Phase::Succeeded {
            world.engine.advance(merge.id).expect("moved on");
        }
        assert_eq!(ids(&world.container()), [3]);
        assert_eq!(world.ids(&Scope::All, "SELECT * FROM c WHERE c.n < 100").len(), 20);
    }
}

#[test]
fn what_the_parents_kept_is_removed_once_nobody_reads_it() {
    let world = filled(30);
    let entries = |world: &World| {
        let segment = super::super::key::Segment { container: 1, range: 0 };
        super::super::key::segment_orders(segment)
            .map(|prefix| {
                let upper = super::super::key::beyond(prefix.clone());
                let (lower, upper) =
                    (std::ops::Bound::Included(&prefix[..]), std::ops::Bound::Excluded(&upper[..]));
                world.engine.storage().scan(lower, upper, crate::storage::Order::Forward).count()
            })
            .sum::<usize>()
    };
    let reader = world.container().shape();
    world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
    world.engine.sweep(100_000).expect("swept");
    assert!(entries(&world) > 60, "somebody may still read it");
    drop(reader);
    world.engine.sweep(100_000).expect("swept");
    assert_eq!(entries(&world), 0);
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c").len(), 30);
}

#[test]
fn raised_throughput_brings_the_partitions_it_needs() {
    let world = filled(12);
    let offer = world.engine.offers().expect("listed").resources[0].clone();
    let replace = |amount: u64| {
        let body = json!({"content": {"offerThroughput": amount}}).to_string();
        let id = offer["id"].as_str().expect("text");
        world.engine.replace_offer(id, body.as_bytes(), OfferMigration::None).expect("replaced");
        ids(&world.container()).len()
    };
    assert_eq!([replace(10_000), replace(30_000), replace(400), replace(50_000)], [1, 3, 3, 5]);
    assert_eq!(world.ids(&Scope::All, "SELECT * FROM c").len(), 12);
}

#[test]
fn an_operation_ends_with_its_container() {
    let world = filled(3);
    let operation =
        world.engine.split(&world.container(), 0, &SplitMode::Midpoint, Progression::Manual).expect("begun");
    world.engine.delete_container("d", "c", None).expect("deleted");
    assert_eq!(status(world.engine.advance(operation.id)), (404, 0));
    assert_eq!(world.engine.operations().expect("listed"), []);
}

/// A store whose process is killed as soon as a split has been written down.
struct Killed {
    store: Arc<MemoryStorage>,
    is_dead: AtomicBool,
}

impl Storage for Killed {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.store.get(key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.store.scan(lower, upper, order)
    }

    fn view(&self) -> Box<dyn View + '_> {
        self.store.view()
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        let is_split = batch.changes.iter().any(|change| change.key().starts_with(&operations()));
        if self.is_dead.fetch_or(is_split, Ordering::SeqCst) {
            return Err(StorageError("killed".to_owned()));
        }
        self.store.commit(batch)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
        self.store.wait_durable(ticket)
    }

    fn is_slow_to_sync(&self) -> bool {
        false
    }
}

#[test]
fn a_split_by_itself_that_was_killed_early_ends_by_itself() {
    const LOCK: Duration = Duration::from_millis(500);
    let store = Arc::new(MemoryStorage::new());
    let killed = Killed { store: Arc::clone(&store), is_dead: AtomicBool::new(false) };
    let world = World::on(Arc::new(killed), None, json!({}), EngineOptions::default());
    world.create(json!({"id": "1", "pk": "a"})).expect("created");
    let progression = Progression::Automatic { lock_duration: LOCK };
    let split = world.engine.split(&world.container(), 0, &SplitMode::Midpoint, progression);
    split.expect_err("killed");
    let clock = world.engine.clock().clone();
    let engine = Engine::open(store, clock, EngineOptions::default()).expect("the data is read again");
    let world = World { engine, ..world };
    world.read("a", "1").expect("the parent still serves");
    world.hand.advance(LOCK);
    let phases = [(); 2].map(|()| world.engine.operations().expect("listed")[0].phase);
    assert_eq!(phases, [Phase::Swapping, Phase::Succeeded]);
    assert_eq!(ids(&world.container()), [1, 2]);
    world.read("a", "1").expect("a child serves");
}
