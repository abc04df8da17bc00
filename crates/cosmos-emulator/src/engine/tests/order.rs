//! ORDER BY over a path that all documents have, until one comes that lacks it.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use super::split::AT_ONCE;
use super::*;
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
fn pages_go_on_when_a_document_without_the_path_comes_between_them() {
    for (direction, expected) in [("", 0..MANY), ("DESC", 0..MANY)] {
        let world = World::in_memory(json!({}));
        fill(&world, MANY);
        let (mut found, mut continuation) = (Vec::new(), None);
        for page in 0.. {
            let request = QueryRequest {
                text: format!("SELECT * FROM c ORDER BY c.n {direction}"),
                parameters: Vec::new(),
                scope: Scope::All,
                page_size: PageSize::AtMost(50),
                continuation,
                session_token: None,
            };
            let answer = world.engine.query(&world.container(), request).expect("served");
            found.extend(answer.rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
            continuation = answer.continuation;
            if page == 1 {
                world.create(json!({"id": "x", "pk": "a"})).expect("created");
                // Somebody else lets the index learn the path.
                is_first_or_last(&world, direction);
            }
            if continuation.is_none() {
                break;
            }
        }
        found.retain(|id| id != "x");
        found.sort();
        assert_eq!(found, expected.map(|i| format!("{i:03}")).collect::<Vec<_>>(), "{direction}");
    }
}

fn is_first_or_last(world: &World, direction: &str) {
    let all = world.ids(&Scope::All, &format!("SELECT * FROM c ORDER BY c.n {direction}"));
    let at = if direction.is_empty() { all.first() } else { all.last() };
    assert_eq!((at.map(String::as_str), learned(world)), (Some("x"), 1));
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

/// A store that refuses a commit when it is told to.
struct Refusing {
    inner: MemoryStorage,
    refuses: AtomicBool,
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
        if self.refuses.swap(false, Ordering::SeqCst) {
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
    let storage = Arc::new(Refusing { inner: MemoryStorage::new(), refuses: AtomicBool::new(false) });
    let world = World::on(storage.clone(), None, json!({}), EngineOptions::default());
    fill(&world, MANY);
    storage.refuses.store(true, Ordering::SeqCst);
    let lacking = json!({"id": "x", "pk": "a"});
    assert_eq!(status(world.create(lacking.clone())), (500, 0));
    world.create(lacking).expect("created");
    let clock = world.engine.clock().clone();
    let engine = Engine::open(storage, clock, EngineOptions::default()).expect("opens again");
    is_found(&World { engine, ..world }, MANY, "told");
}
