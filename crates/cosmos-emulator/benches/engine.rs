//! What one core does: point operations and queries over a container, without HTTP.
//!
//! `cargo bench -p cosmos-emulator --bench engine` prints one line per figure. `ENGINE_BENCH_DOCUMENTS` says how many
//! documents the container holds (100 000), `ENGINE_BENCH_FOLDER` puts them on disk instead of in memory.

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use cosmos_emulator::clock::Clock;
use cosmos_emulator::engine::{
    Conditions, Container, Engine, EngineOptions, FeedRequest, FeedStart, ItemOp, ItemRequest, PageSize,
    Patch, QueryRequest, Scope,
};
use cosmos_emulator::storage::{self, Place};
use cosmos_wire::partition_key::PartitionKey;
use serde_json::json;

const TIME: Duration = Duration::from_millis(1_000);

/// Time that passed, and time this thread had a processor: the second tells more on a busy machine.
struct Watch {
    started: Instant,
    processor: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { started: Instant::now(), processor: processor_time() }
    }

    fn print(&self, name: &str, count: u64) {
        let rate = count as f64 / self.started.elapsed().as_secs_f64();
        let each = (processor_time() - self.processor).as_secs_f64() * 1e6 / count as f64;
        println!("{name:<44} {rate:>12.0} /s  {:>9.1} us, {each:>9.1} us of a processor", 1e6 / rate);
    }
}

/// Zero where the system does not say.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

struct Bench {
    engine: Engine,
    documents: u64,
}

impl Bench {
    fn container(&self) -> std::sync::Arc<Container> {
        self.engine.container("d", "c").expect("the container is there")
    }

    fn item(&self, container: &Container, pk: u64, op: ItemOp) {
        let request = ItemRequest {
            partition_key: Some(PartitionKey::new(vec![format!("p{pk}").as_str().into()])),
            op,
            conditions: Conditions::default(),
            session_token: None,
        };
        self.engine.item(container, request).expect("the operation works");
    }

    fn document(i: u64, n: u64) -> Bytes {
        let filler = format!("{n} ") + &"x".repeat(400);
        let document = json!({"id": i.to_string(), "pk": format!("p{}", i % 1000), "n": n, "kind": n % 10,
            "name": format!("name {n}"), "payload": filler});
        Bytes::from(document.to_string())
    }

    /// Runs for a while and prints operations per second.
    fn measure(&self, name: &str, mut operation: impl FnMut(&Container, u64)) {
        let container = self.container();
        let (watch, mut count) = (Watch::start(), 0_u64);
        while watch.started.elapsed() < TIME {
            for _ in 0..16 {
                // Spread over the documents, the same on every run.
                operation(&container, (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % self.documents);
                count += 1;
            }
        }
        watch.print(name, count);
    }

    fn query(&self, container: &Container, scope: Scope, text: String) {
        let request = QueryRequest {
            text,
            parameters: Vec::new(),
            scope,
            page_size: PageSize::DEFAULT,
            continuation: None,
            session_token: None,
            resume: None,
        };
        let page = self.engine.query(container, request).expect("the query works");
        // The index finds the rows; a cursor may look one document ahead in each direction, whatever the size.
        let (read, rows) = (page.documents_visited, page.rows.len() as u64);
        assert!(read <= rows + 2, "{read} documents read for {rows} rows");
    }
}

fn main() {
    let documents =
        std::env::var("ENGINE_BENCH_DOCUMENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let place =
        std::env::var_os("ENGINE_BENCH_FOLDER").map_or(Place::Memory, |path| Place::Folder(path.into()));
    let storage = storage::open(&place, storage::Options::default()).expect("the store opens");
    let engine = Engine::open(storage, Clock::real(), EngineOptions::default()).expect("the store is new");
    engine.create_database(br#"{"id":"d"}"#, None).expect("created");
    let body =
        json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}}).to_string();
    engine.create_container("d", body.as_bytes(), None).expect("created");
    let bench = Bench { engine, documents };

    let container = bench.container();
    let watch = Watch::start();
    for i in 0..documents {
        bench.item(&container, i % 1000, ItemOp::Create { body: Bench::document(i, i) });
    }
    watch.print(&format!("create {documents} documents"), documents);

    for (time, name) in
        ["first", "second"].into_iter().flat_map(|time| ["n", "kind"].map(|name| (time, name)))
    {
        let watch = Watch::start();
        bench.query(&container, Scope::All, format!("SELECT TOP 1 * FROM c WHERE c.{name} = 7"));
        watch.print(&format!("query c.{name} = value for the {time} time"), 1);
    }
    bench.measure("read", |c, i| bench.item(c, i % 1000, ItemOp::Read { id: i.to_string() }));
    bench.measure("replace, one property changed", |c, i| {
        bench.item(c, i % 1000, ItemOp::Replace { id: i.to_string(), body: Bench::document(i, i) });
    });
    bench.measure("patch, one incr", |c, i| {
        let patch = Patch::from_value(json!([{"op": "incr", "path": "/count", "value": 1}])).expect("valid");
        bench.item(c, i % 1000, ItemOp::Patch { id: i.to_string(), patch });
    });
    let key = |i: u64| Scope::PartitionKey(PartitionKey::new(vec![format!("p{}", i % 1000).as_str().into()]));
    bench.measure("query c.n = value, whole container", |c, i| {
        bench.query(c, Scope::All, format!("SELECT * FROM c WHERE c.n = {i}"));
    });
    bench.measure("query c.n = value, one key", |c, i| {
        bench.query(c, key(i), format!("SELECT * FROM c WHERE c.n = {i}"));
    });
    // All documents have the first; the patches gave the other to some.
    for name in ["n", "count"] {
        let watch = Watch::start();
        bench.query(&container, Scope::All, format!("SELECT TOP 10 * FROM c ORDER BY c.{name}"));
        watch.print(&format!("query TOP 10 ORDER BY c.{name} for the first time"), 1);
    }
    bench.measure("query TOP 10 ORDER BY c.n, whole container", |c, _| {
        bench.query(c, Scope::All, "SELECT TOP 10 * FROM c ORDER BY c.n".into());
    });
    bench.measure("query TOP 10 ORDER BY c.n DESC, one key", |c, i| {
        bench.query(c, key(i), "SELECT TOP 10 * FROM c ORDER BY c.n DESC".into());
    });
    bench.measure("change feed, 100 changes", |c, i| {
        let request = FeedRequest {
            scope: Scope::All,
            start: FeedStart::After(i.to_string()),
            page_size: PageSize::AtMost(100),
            session_token: None,
        };
        bench.engine.change_feed(c, request).expect("the feed works");
    });
}
