//! `kill -9` under load, again and again on one folder: nothing acknowledged is lost, nothing is half there, and the
//! index says what the documents say.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::{Client, Running};

const ROUNDS: usize = 6;
const WRITERS: usize = 4;
/// Acknowledged writes of a round before it is killed.
const WRITES: usize = 60;
/// Items of a writer; no multiple of the number of kinds of writes, so that each item sees each kind.
const ITEMS: usize = 7;
/// Items one batch changes.
const BATCH: usize = 5;

/// The items of a logical partition by id, with their values. One writer has it to itself, one write at a time.
type Items = BTreeMap<String, u64>;

/// What a writer knows: what was acknowledged last, and what a write that was not answered would make of it.
#[derive(Default)]
struct Known {
    acknowledged: Items,
    sent: Option<Items>,
}

#[test]
fn nothing_acknowledged_is_lost() {
    survive(&["--partitions", "3"]);
}

#[test]
fn nothing_acknowledged_is_lost_without_fsync() {
    survive(&["--fsync", "off"]);
}

fn survive(args: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut known: Vec<Known> = (0..WRITERS).map(|_| Known::default()).collect();
    for round in 0..=ROUNDS {
        let running = Running::on_folder(folder.path(), args);
        let mut client = running.client();
        if round == 0 {
            assert_eq!(client.send("POST", "/dbs", None, &json!({"id": "d"})).unwrap().0, 201);
            let container =
                json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
            assert_eq!(client.send("POST", "/dbs/d/colls", None, &container).unwrap().0, 201);
        }
        for (writer, known) in known.iter_mut().enumerate() {
            check(&mut client, &format!("k{writer}"), known);
        }
        if round < ROUNDS {
            load(running, &mut known, round);
        }
    }
}

/// Writes from several connections and kills the server in the middle.
fn load(running: Running, known: &mut [Known], round: usize) {
    let acknowledged = AtomicUsize::new(0);
    let endpoint = running.ready["accountEndpoint"].as_str().unwrap().to_owned();
    thread::scope(|scope| {
        for (writer, known) in known.iter_mut().enumerate() {
            let (endpoint, acknowledged) = (&endpoint, &acknowledged);
            scope.spawn(move || {
                let client = &mut Client::at(endpoint);
                write_until_killed(client, &format!("k{writer}"), known, round, acknowledged);
            });
        }
        while acknowledged.load(Ordering::Acquire) < WRITES {
            thread::sleep(Duration::from_millis(1));
        }
        running.kill();
    });
}

/// Writes single items and batches until the server is gone.
fn write_until_killed(
    client: &mut Client,
    key: &str,
    known: &mut Known,
    round: usize,
    acknowledged: &AtomicUsize,
) {
    for step in round * 1_000_003.. {
        let (write, after) = next_write(&known.acknowledged, key, step);
        known.sent = Some(after.clone());
        let headers = format!("x-ms-documentdb-partitionkey: [\"{key}\"]\r\n{}", write.headers);
        match client.send_with(write.method, &write.path, &headers, &write.body) {
            Some((200 | 201 | 204, _)) => {
                *known = Known { acknowledged: after, sent: None };
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
            Some((status, body)) => panic!("{} {}: {status}: {body}", write.method, write.path),
            None => return,
        }
    }
}

struct Write {
    method: &'static str,
    path: String,
    headers: &'static str,
    body: Value,
}

const DOCS: &str = "/dbs/d/colls/c/docs";

/// The write of a step, and the items as it leaves them.
fn next_write(items: &Items, key: &str, step: usize) -> (Write, Items) {
    let value = step as u64 + 1;
    let mut after = items.clone();
    if step.is_multiple_of(4) {
        let operations: Vec<Value> =
            (0..BATCH).map(|n| operation(&mut after, key, step + n, value, step / 4 + n)).collect();
        let headers = "x-ms-cosmos-is-batch-request: True\r\nx-ms-cosmos-batch-atomic: True\r\n";
        return (Write { method: "POST", path: DOCS.to_owned(), headers, body: operations.into() }, after);
    }
    let operation = operation(&mut after, key, step, value, step % 4);
    let body = operation["resourceBody"].clone();
    let of_one = |method| Write {
        method,
        path: format!("{DOCS}/{}", operation["id"].as_str().expect("it has an id")),
        headers: "",
        body,
    };
    let write = match operation["operationType"].as_str() {
        Some("Create") => Write { path: DOCS.to_owned(), ..of_one("POST") },
        Some("Replace") => of_one("PUT"),
        Some("Patch") => of_one("PATCH"),
        Some("Delete") => of_one("DELETE"),
        other => panic!("{other:?}"),
    };
    (write, after)
}

/// What is done to one item, as a batch says it: made if it is not there, else changed in one of three ways.
fn operation(items: &mut Items, key: &str, item: usize, value: u64, way: usize) -> Value {
    let id = format!("i{}", item % ITEMS);
    let document = json!({"id": id, "pk": key, "v": value, "filling": "x".repeat(500)});
    let before = items.insert(id.clone(), value);
    let patch = json!({"operations": [{"op": "set", "path": "/v", "value": value}]});
    match (before, way % 3) {
        (None, _) => json!({"operationType": "Create", "id": id, "resourceBody": document}),
        (Some(_), 0) => {
            items.remove(&id);
            json!({"operationType": "Delete", "id": id})
        }
        (Some(_), 1) => json!({"operationType": "Replace", "id": id, "resourceBody": document}),
        (Some(_), _) => json!({"operationType": "Patch", "id": id, "resourceBody": patch}),
    }
}

/// The items are what was acknowledged last, or what was sent after it; and the index finds exactly them.
fn check(client: &mut Client, key: &str, known: &mut Known) {
    let mut found = Items::new();
    for id in (0..ITEMS).map(|item| format!("i{item}")) {
        let (status, item) =
            client.send("GET", &format!("{DOCS}/{id}"), Some(key), &Value::Null).expect("it serves");
        if status != 404 {
            assert_eq!(status, 200, "{item}");
            found.insert(id, item["v"].as_u64().expect("a whole item"));
        }
    }
    let Known { acknowledged, sent } = known;
    assert!(
        found == *acknowledged || Some(&found) == sent.as_ref(),
        "{key}: found {found:?}, acknowledged {acknowledged:?}, sent {sent:?}"
    );
    assert_eq!(
        by_index(client, key),
        found.iter().map(|(id, v)| (id.clone(), *v)).collect::<Vec<_>>(),
        "{key}"
    );
    *known = Known { acknowledged: found, sent: None };
}

/// What a query over the indexed value finds, in the order of ids.
fn by_index(client: &mut Client, key: &str) -> Vec<(String, u64)> {
    let headers = format!(
        "x-ms-documentdb-partitionkey: [\"{key}\"]\r\nx-ms-documentdb-isquery: True\r\n\
         content-type: application/query+json\r\n"
    );
    let query = json!({"query": "SELECT VALUE [c.id, c.v] FROM c WHERE c.v >= 0"});
    let (status, page) = client.send_with("POST", DOCS, &headers, &query).expect("it serves");
    assert_eq!(status, 200, "{page}");
    let mut rows: Vec<(String, u64)> = serde_json::from_value(page["Documents"].clone()).expect("pairs");
    rows.sort();
    rows
}
