//! ORDER BY over a path that all documents have, until one comes that lacks it.

use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::split::AT_ONCE;
use super::*;
use crate::sql::source::Step;
use crate::storage::{Batch, Order, Scan, Storage, StorageError, Ticket, View};

/// Documents with ids in the order of `n`; more than are sorted without looking further.
const MANY: usize = 300;

fn fill(world: &World, count: usize) {
    for i in 0..count {
        let document = json!({"id": format!("{i:03}"), "pk": "a", "n": i, "o": {"m": count - i}});
        world.create(document).expect("created");
    }
}

fn learned(world: &World) -> usize {
    world.container().shape().tracked.len()
}

fn top(path: &str, direction: &str) -> String {
    format!("SELECT TOP 2 * FROM c ORDER BY c.{path} {direction}")
}

/// The ids of the first two, and how many documents were read for them.
fn first(world: &World, scope: &Scope, path: &str, direction: &str) -> (Vec<String>, u64) {
    let text = top(path, direction);
    let (_, visited) = world.query_pages(scope, &text, PageSize::DEFAULT).expect("served");
    (world.ids(scope, &text), visited)
}

fn owned(ids: &[&str], visited: u64) -> (Vec<String>, u64) {
    (ids.iter().map(|id| (*id).to_owned()).collect(), visited)
}

#[test]
fn a_path_that_all_documents_have_is_read_in_order_at_once() {
    for world in [World::in_memory(json!({})), World::on_disk(json!({}))] {
        fill(&world, MANY);
        for scope in [Scope::All, in_key("a")] {
            assert_eq!(first(&world, &scope, "n", ""), owned(&["000", "001"], 2));
            assert_eq!(first(&world, &scope, "n", "DESC"), owned(&["299", "298"], 2));
            assert_eq!(first(&world, &scope, "o.m", ""), owned(&["299", "298"], 2));
        }
        assert_eq!(learned(&world), 0, "the index had nothing to learn");
    }
}

#[test]
fn a_document_that_lacks_the_path_is_found_however_it_came_to_lack_it() {
    type Change = fn(&World);
    let changes: [(&str, Change); 3] = [
        ("created", |world| drop(world.create(json!({"id": "x", "pk": "a", "n": 1})).expect("created"))),
        ("replaced", |world| {
            world.create(json!({"id": "x", "pk": "a", "o": {"m": 1}})).expect("created");
            world.upsert(json!({"id": "x", "pk": "a", "n": 1})).expect("replaced");
        }),
        ("patched", |world| {
            world.create(json!({"id": "x", "pk": "a", "o": {"m": 1}})).expect("created");
            world.patch("a", "x", json!([{"op": "remove", "path": "/o/m"}])).expect("patched");
        }),
    ];
    for (name, change) in changes {
        for count in [5, MANY] {
            let world = World::new();
            fill(&world, count);
            change(&world);
            is_found(&world, count, name);
            is_found(&world.reopened(), count, name);
        }
    }
}

/// That ORDER BY finds the document `x`, which lacks the path, besides the others.
fn is_found(world: &World, others: usize, name: &str) {
    for scope in [Scope::All, in_key("a")] {
        assert_eq!(first(world, &scope, "o.m", "").0[0], "x", "{name}, {others}");
        let all = world.ids(&scope, "SELECT * FROM c ORDER BY c.o.m DESC");
        assert_eq!((all.len(), all[others].as_str()), (others + 1, "x"), "{name}, {others}");
    }
}

#[test]
fn pages_go_on_when_documents_lose_the_path_between_them() {
    // Undefined comes first, where the query has been already, or last, where it has yet to come. The one that was
    // handed out comes again there.
    let cases = [
        ("", ["004", "005"], vec!["000", "001", "002", "003"]),
        ("DESC", ["001", "005"], vec!["005", "004", "003", "002", "000", "y", "x", "005", "001"]),
    ];
    // Values that the index cuts are sorted by their documents.
    for value in [|i: usize| json!(i), |i: usize| json!(format!("{}{i}", "x".repeat(300)))] {
        // Somebody else may let the index learn the path, before or after the loss.
        for learned in ["never", "before", "after"] {
            for (direction, lost, expected) in &cases {
                let world = World::in_memory(json!({}));
                for i in 0..6 {
                    let document = json!({"id": format!("{i:03}"), "pk": "a", "n": value(i)});
                    world.create(document).expect("created");
                }
                let learn = |when: &str| {
                    let path = vec![Step::Property("n".into())];
                    if learned == when {
                        assert_eq!(world.engine.track(&world.container(), &path), Ok(true));
                    }
                };
                let found = world.ids_around(
                    &Scope::All,
                    &format!("SELECT * FROM c ORDER BY c.n {direction}"),
                    2,
                    || {
                        learn("before");
                        for id in lost {
                            world.patch("a", id, json!([{"op": "remove", "path": "/n"}])).expect("patched");
                        }
                        for id in ["x", "y"] {
                            world.create(json!({"id": id, "pk": "a"})).expect("created");
                        }
                        learn("after");
                    },
                );
                assert_eq!(found, *expected, "{direction}, {}, learned {learned}", value(0));
            }
        }
    }
}

#[test]
fn a_sort_that_was_begun_goes_on_as_one_even_if_one_partition_could_bring_its_rows_in_order() {
    let world = World::with_options(json!({}), EngineOptions { partitions: Some(2), ..Default::default() });
    for i in 0..6 {
        let long = format!("{}{i}", "x".repeat(3_000));
        world.create(json!({"id": i.to_string(), "pk": format!("p{i}"), "n": long})).expect("created");
    }
    let found = world.ids_around(&Scope::All, "SELECT * FROM c ORDER BY c.n", 2, || {
        world.engine.merge(&world.container(), [0, 1], AT_ONCE).expect("merged");
    });
    assert_eq!(found, ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn an_attempt_to_learn_the_path_that_failed_brings_no_document_twice() {
    let storage = Refusing::new();
    let world = World::on(storage.clone(), None, json!({}), EngineOptions::default());
    fill(&world, 5);
    let found = world.ids_around(&Scope::All, "SELECT * FROM c ORDER BY c.n DESC", 2, || {
        world.create(json!({"id": "x", "pk": "a"})).expect("created");
        storage.refuse_after(1);
        world.engine.track(&world.container(), &vec![Step::Property("n".into())]).expect_err("refused");
        world.upsert(json!({"id": "x", "pk": "a", "n": 1.5})).expect("replaced");
    });
    assert_eq!(found, ["004", "003", "002", "x", "001", "000"]);
}

#[test]
fn arrays_and_objects_come_in_order_of_creation_on_every_page_however_they_are_read() {
    let documents = [json!([2]), json!({"b": 1}), json!([1]), json!({"a": 1}), json!("s"), json!([0])];
    for text in ["SELECT DISTINCT c.id, c.v FROM c ORDER BY c.v", "SELECT * FROM c ORDER BY c.v"] {
        for is_common in [true, false] {
            let world = World::new();
            for (i, value) in documents.iter().enumerate() {
                world.create(json!({"id": i.to_string(), "pk": "a", "v": value})).expect("created");
            }
            let mut expected = vec!["4", "0", "2", "5", "1", "3"];
            if !is_common {
                world.create(json!({"id": "x", "pk": "a"})).expect("created");
                expected.insert(0, "x");
            }
            assert_eq!(
                world.ids_around(&Scope::All, text, 2, || ()),
                expected,
                "{text}, common: {is_common}"
            );
            let split = || {
                let container = world.container();
                world.engine.split(&container, 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
            };
            assert_eq!(
                world.ids_around(&Scope::All, text, 2, split),
                expected,
                "{text}, common: {is_common}, split"
            );
        }
    }
}

#[test]
fn what_all_documents_have_is_known_after_a_restart_and_in_the_partitions_of_a_split_or_a_merge() {
    let world = World::new();
    for i in 0..MANY {
        world.create(json!({"id": format!("{i:03}"), "pk": format!("p{i}"), "n": i})).expect("created");
    }
    let world = world.reopened();
    assert_eq!(first(&world, &Scope::All, "n", "DESC"), owned(&["299", "298"], 2));
    world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
    world.create(json!({"id": "x", "pk": "p0", "o": 1})).expect("created");
    let world = world.reopened();
    let lacking = world.container().range_id_of(&key("p0")).expect("a whole key");
    let other = world.container().range_ids().into_iter().find(|id| *id != lacking).expect("two");
    assert_eq!(first(&world, &Scope::Range(other.to_string()), "n", "").1, 2);
    assert_eq!(learned(&world), 0);
    world.engine.merge(&world.container(), [1, 2], AT_ONCE).expect("merged");
    let world = world.reopened();
    assert_eq!(first(&world, &Scope::All, "n", "").0, ["x", "000"]);
    assert_eq!(learned(&world), 1);
}

#[test]
fn a_new_index_finds_out_anew_what_all_documents_have() {
    let world = World::new();
    fill(&world, MANY);
    world.create(json!({"id": "x", "pk": "a", "o": {"m": 0}})).expect("created");
    world.delete("a", "x").expect("deleted");
    let policy = |mode: &str| json!({"indexingPolicy": {"indexingMode": mode, "automatic": mode != "none"}});
    world.replace_container(policy("none")).expect("replaced");
    world.create(json!({"id": "y", "pk": "a", "n": -1})).expect("created");
    world.replace_container(policy("consistent")).expect("replaced");
    let is_common = |world: &World| {
        assert_eq!(first(world, &Scope::All, "n", ""), owned(&["y", "000"], 2));
        assert_eq!(learned(world), 0, "nobody lacks it any more");
    };
    is_common(&world);
    let world = world.reopened();
    is_common(&world);
    assert_eq!(first(&world, &Scope::All, "o.m", "").0, ["y", "299"]);
}

#[test]
fn each_region_finds_the_document_that_lacks_the_path() {
    let options = EngineOptions { regions: vec!["East".into(), "West".into()], ..EngineOptions::default() };
    let world = World::with_options(json!({}), options);
    for i in 0..5 {
        world.create(json!({"id": i.to_string(), "pk": "a", "n": i})).expect("created");
    }
    let ids = |world: &World, region: &str| {
        let region = world.engine.topology().named(region).expect("a region").id;
        let request = QueryRequest {
            text: "SELECT VALUE c.id FROM c ORDER BY c.n DESC".into(),
            parameters: Vec::new(),
            scope: Scope::All,
            page_size: PageSize::DEFAULT,
            continuation: None,
            session_token: None,
            resume: None,
        };
        Value::from(world.engine.query(&world.container().in_region(region), request).expect("served").rows)
    };
    assert_eq!(ids(&world, "West"), json!(["4", "3", "2", "1", "0"]));
    world.create(json!({"id": "x", "pk": "a"})).expect("created");
    world.engine.add_region("North").expect("added");
    for region in ["East", "West", "North"] {
        assert_eq!(ids(&world, region), json!(["4", "3", "2", "1", "0", "x"]), "{region}");
    }
    let world = world.reopened();
    for region in ["East", "West", "North"] {
        assert_eq!(ids(&world, region), json!(["4", "3", "2", "1", "0", "x"]), "{region} after a restart");
    }
}

#[test]
fn system_properties_that_the_policy_names_bring_each_document_once() {
    let included = json!([{"path": "/*"}, {"path": "/_ts/?"}, {"path": "/_rid/?"}, {"path": "/id/?"}]);
    let world = World::new();
    world.replace_container(json!({"indexingPolicy": {"includedPaths": included}})).expect("replaced");
    fill(&world, 5);
    world.upsert(json!({"id": "000", "pk": "a"})).expect("replaced");
    world.delete("a", "004").expect("deleted");
    for name in ["_ts", "_rid", "id"] {
        let found = world.ids(&Scope::All, &format!("SELECT * FROM c ORDER BY c.{name}"));
        assert_eq!(found, ["000", "001", "002", "003"], "{name}");
    }
}

/// A store that refuses a commit when it is told to.
struct Refusing {
    inner: MemoryStorage,
    /// Commits up to the one that is refused, itself included; none is at zero.
    left: AtomicUsize,
}

impl Refusing {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: MemoryStorage::new(), left: AtomicUsize::new(0) })
    }

    fn refuse_after(&self, commits: usize) {
        self.left.store(commits + 1, Ordering::SeqCst);
    }
}

impl Storage for Refusing {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.inner.get(key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.inner.scan(lower, upper, order)
    }

    fn view(&self) -> Box<dyn View + '_> {
        self.inner.view()
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        let left = self.left.load(Ordering::SeqCst);
        self.left.store(left.saturating_sub(1), Ordering::SeqCst);
        if left == 1 {
            return Err(StorageError("not now".into()));
        }
        self.inner.commit(batch)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
        self.inner.wait_durable(ticket)
    }

    fn is_slow_to_sync(&self) -> bool {
        self.inner.is_slow_to_sync()
    }
}

#[test]
fn what_a_failed_commit_would_have_told_the_store_is_told_with_the_next() {
    let storage = Refusing::new();
    let world = World::on(storage.clone(), None, json!({}), EngineOptions::default());
    fill(&world, MANY);
    storage.refuse_after(0);
    let lacking = json!({"id": "x", "pk": "a"});
    assert_eq!(status(world.create(lacking.clone())), (500, 0));
    world.create(lacking).expect("created");
    let clock = world.engine.clock().clone();
    let engine = Engine::open(storage, clock, EngineOptions::default()).expect("opens again");
    is_found(&World { engine, ..world }, MANY, "told");
}

#[test]
fn an_index_that_was_not_finished_is_built_by_the_same_policy_again() {
    let storage = Refusing::new();
    let world = World::on(storage.clone(), None, json!({}), EngineOptions::default());
    fill(&world, MANY);
    let policy =
        json!({"indexingPolicy": {"includedPaths": [{"path": "/*"}], "excludedPaths": [{"path": "/o/*"}]}});
    storage.refuse_after(3);
    assert_eq!(status(world.replace_container(policy.clone())), (500, 0));
    let text = "SELECT VALUE COUNT(1) FROM c WHERE c.n >= 0";
    let count = || world.query(&Scope::All, text).expect("served");
    assert_eq!(count(), [json!(MANY)], "without the index");
    world.replace_container(policy).expect("replaced");
    assert_eq!(count(), [json!(MANY)], "with the index");
    assert_eq!(first(&world, &Scope::All, "n", "DESC"), owned(&["299", "298"], 2));
}
