//! `kill -9` under load, again and again on one folder: nothing acknowledged is lost, nothing is half there.

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

/// What a writer knows: item id -> last acknowledged value, and the value that was sent but not answered.
type Known = BTreeMap<String, (u64, Option<u64>)>;

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
    let mut known: Vec<Known> = vec![Known::new(); WRITERS];
    for round in 0..ROUNDS {
        let running = Running::on_folder(folder.path(), args);
        let mut client = running.client();
        if round == 0 {
            assert_eq!(client.send("POST", "/dbs", None, &json!({"id": "d"})).unwrap().0, 201);
            let container =
                json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
            assert_eq!(client.send("POST", "/dbs/d/colls", None, &container).unwrap().0, 201);
        }
        for (writer, known) in known.iter_mut().enumerate() {
            check(&mut client, writer, known);
        }
        load(running, &mut known, round);
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
                write_until_killed(&mut Client::at(endpoint), writer, known, round, acknowledged);
            });
        }
        while acknowledged.load(Ordering::Acquire) < WRITES {
            thread::sleep(Duration::from_millis(1));
        }
        running.kill();
    });
}

/// Upserts items and pairs of items until the server is gone.
fn write_until_killed(
    client: &mut Client,
    writer: usize,
    known: &mut Known,
    round: usize,
    acknowledged: &AtomicUsize,
) {
    let key = format!("k{writer}");
    for step in 0.. {
        let id = format!("i{}", step % 7);
        let value = (round * 1_000_000 + step + 1) as u64;
        let entry = known.entry(id.clone()).or_insert((0, None));
        entry.1 = Some(value);
        let path = format!("/dbs/d/colls/c/docs/{id}");
        let item = json!({"id": id, "pk": key, "v": value});
        let answer = if entry.0 == 0 && step < 7 {
            // It may be there from a write that was not answered.
            match client.send("POST", "/dbs/d/colls/c/docs", Some(&key), &item) {
                Some((409, _)) => client.send("PUT", &path, Some(&key), &item),
                answer => answer,
            }
        } else {
            client.send("PUT", &path, Some(&key), &item)
        };
        match answer {
            Some((200 | 201, _)) => {
                *entry = (value, None);
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
            Some((status, body)) => panic!("{status}: {body}"),
            None => return,
        }
    }
}

/// Every item is what was acknowledged last, or what was sent after it.
fn check(client: &mut Client, writer: usize, known: &mut Known) {
    let key = format!("k{writer}");
    for (id, (last, sent)) in known {
        let path = format!("/dbs/d/colls/c/docs/{id}");
        let (status, item) = client.send("GET", &path, Some(&key), &Value::Null).expect("it serves");
        let found = if status == 404 { 0 } else { item["v"].as_u64().expect("a whole item") };
        assert!(
            found == *last || Some(found) == *sent,
            "{key}/{id}: found {found}, acknowledged {last}, sent {sent:?}"
        );
        *last = found;
        *sent = None;
    }
}
