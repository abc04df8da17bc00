//! What a query page sees of writes that happen while it is being read: all of them or nothing.

use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::split::AT_ONCE;
use super::*;
use crate::storage::{Batch, Order, Scan, Storage, StorageError, Ticket, View};

/// A store that lets somebody else write just before its view is taken or a certain document is read.
struct Interrupted {
    inner: MemoryStorage,
    pause: Arc<Pause>,
}

#[derive(Default)]
struct Pause {
    /// Steps up to there, of which the view is the first; none if nobody waits.
    left: AtomicUsize,
    /// Tells the other one to begin, and when he is done.
    ends: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Pause {
    fn pass_document(&self, key: &[u8]) {
        if key.starts_with(&super::key::items(0)[..1]) {
            self.pass();
        }
    }

    fn pass(&self) {
        if self.left.load(Ordering::SeqCst) == 0 {
            return;
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some((begin, done)) = self.ends.lock().expect("nobody panics").take()
        {
            begin.send(()).expect("somebody waits");
            done.recv().expect("it was written");
        }
    }
}

impl Storage for Interrupted {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.pause.pass_document(key);
        self.inner.get(key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.inner.scan(lower, upper, order)
    }

    fn view(&self) -> Box<dyn View + '_> {
        self.pause.pass();
        Box::new(InterruptedView { inner: self.inner.view(), pause: &self.pause })
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        self.inner.commit(batch)
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
        self.inner.wait_durable(ticket)
    }

    fn is_slow_to_sync(&self) -> bool {
        self.inner.is_slow_to_sync()
    }
}

struct InterruptedView<'a> {
    inner: Box<dyn View + 'a>,
    pause: &'a Pause,
}

impl View for InterruptedView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.pause.pass_document(key);
        self.inner.get(key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.inner.scan(lower, upper, order)
    }
}

fn interrupted() -> (World, Arc<Pause>) {
    let pause = Arc::new(Pause::default());
    let storage = Interrupted { inner: MemoryStorage::new(), pause: Arc::clone(&pause) };
    (World::on(Arc::new(storage), None, json!({}), EngineOptions::default()), pause)
}

/// The view that a page reads, and the second of its documents.
const VIEW: usize = 1;
const SECOND: usize = 3;

/// One page in key `a`; `write` happens before one of its steps.
fn page_during(
    world: &World,
    (pause, step): (&Pause, usize),
    query: &str,
    write: impl FnOnce() + Send,
) -> Result<QueryPage, Failure> {
    let ((begin, begun), (done, finished)) = (channel(), channel());
    *pause.ends.lock().expect("nobody panics") = Some((begin, finished));
    pause.left.store(step, Ordering::SeqCst);
    thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().expect("the page comes that far");
            write();
            done.send(()).expect("the page waits");
        });
        let request = QueryRequest {
            text: query.into(),
            parameters: Vec::new(),
            scope: in_key("a"),
            page_size: PageSize::DEFAULT,
            continuation: None,
            session_token: None,
            resume: None,
        };
        world.engine.query(&world.container(), request)
    })
}

fn replace_all(world: &World, documents: &[Value]) {
    let operations = documents.iter().map(|document| BatchOperation {
        op: ItemOp::Upsert { body: text(document) },
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
    assert_eq!(world.engine.batch(&world.container(), request).expect("accepted").status, 200);
}

fn account(id: &str, balance: i64, state: &str) -> Value {
    json!({"id": id, "pk": "a", "balance": balance, "state": state, "tags": [state, "z"]})
}

#[test]
fn a_page_sees_a_batch_that_is_committed_meanwhile_not_by_half() {
    for (query, expected) in [
        ("SELECT VALUE SUM(c.balance) FROM c", json!([200])),
        ("SELECT VALUE c.id FROM c WHERE c.state IN ('q', 'r')", json!(["2", "1"])),
        ("SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS_ANY(c.tags, 'q', 'r')", json!(["1", "2"])),
        ("SELECT VALUE c.id FROM c JOIN t IN c.tags WHERE t IN ('q', 'r')", json!(["2", "1"])),
        ("SELECT VALUE c.balance FROM c ORDER BY c.balance", json!([90, 110])),
    ] {
        let (world, pause) = interrupted();
        replace_all(&world, &[account("1", 110, "r"), account("2", 90, "q")]);
        let page = page_during(&world, (&pause, SECOND), query, || {
            replace_all(&world, &[account("1", 0, "q"), account("2", 200, "r")]);
        });
        let page = page.expect("served");
        assert_eq!(Value::from(page.rows), expected, "{query}");
        assert_eq!(page.standing.lsn, 2, "a session token speaks of no write that the page has not seen");
    }
}

#[test]
fn a_page_in_order_has_the_document_without_the_path_that_came_just_before() {
    for (direction, expected) in [("", json!(["3", "2", "1"])), ("DESC", json!(["1", "2", "3"]))] {
        let (world, pause) = interrupted();
        replace_all(&world, &[account("1", 110, "r"), account("2", 90, "q")]);
        let query = format!("SELECT VALUE c.id FROM c ORDER BY c.balance {direction}");
        let page = page_during(&world, (&pause, VIEW), &query, || {
            world.create(json!({"id": "3", "pk": "a"})).expect("created");
        });
        assert_eq!(Value::from(page.expect("served").rows), expected, "{direction}");
    }
}

#[test]
fn a_page_of_a_partition_that_others_replaced_just_before_is_refused_and_served_when_asked_again() {
    for query in ["SELECT VALUE c.id FROM c", "SELECT VALUE c.id FROM c ORDER BY c.balance"] {
        let (world, pause) = interrupted();
        replace_all(&world, &[account("1", 110, "r"), account("2", 90, "q")]);
        let page = page_during(&world, (&pause, VIEW), query, || {
            world.engine.split(&world.container(), 0, &SplitMode::Midpoint, AT_ONCE).expect("split");
            world.upsert(json!({"id": "2", "pk": "a"})).expect("replaced");
        });
        assert_eq!(status(page), (410, 1007), "{query}");
        let mut found = world.query(&in_key("a"), query).expect("served");
        found.sort_by_key(Value::to_string);
        assert_eq!(found, [json!("1"), json!("2")], "{query}");
    }
}
