//! Continuations of queries that need all their rows first, over a split and a merge between two pages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cosmos_emulator::{Auth, Config, Emulator, Progression, SplitMode};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

const RANGE: &str = "x-ms-documentdb-partitionkeyrangeid";
const AT_ONCE: Progression = Progression::Automatic { lock_duration: Duration::ZERO };
const COUNT: u64 = 60;

/// Items with few values of `n` and `s`.
fn filled() -> (Emulator, Client) {
    let emulator = Emulator::start(Config::default().with_auth(Auth::Open)).expect("it starts");
    let mut client = Client::new(&emulator).with_container();
    for i in 0..COUNT {
        let item = json!({"id": format!("{i:03}"), "pk": format!("p{}", i % 23), "n": i * 5 % 13, "s": format!("s{}", i % 11)});
        client.create(&item).expect(201);
    }
    (emulator, client)
}

/// Where a client goes on: a range id and the keys it is to look at there, if not at all of them.
#[derive(Debug, Clone)]
struct Stop {
    id: String,
    keys: Option<(String, String)>,
    continuation: String,
}

fn ask(client: &mut Client, query: &str, stop: &Stop, rows: usize) -> Answer {
    let question = json!({"query": query});
    let mut request = client.question(&question).header(RANGE, &stop.id);
    if let Some((min, max)) = &stop.keys {
        request = request
            .header("x-ms-read-key-type", "EffectivePartitionKeyRange")
            .header("x-ms-start-epk", min)
            .header("x-ms-end-epk", max);
    }
    let request = request.header("x-ms-max-item-count", &rows.to_string());
    request.header("x-ms-continuation", &stop.continuation).send().expect(200)
}

fn rows(answer: &Answer) -> Vec<Value> {
    answer.json()["Documents"].as_array().cloned().expect("a list")
}

/// Reads a range to its end.
fn drain(client: &mut Client, query: &str, mut stop: Stop) -> Vec<Value> {
    let mut seen = Vec::new();
    loop {
        let page = ask(client, query, &stop, 3);
        seen.extend(rows(&page));
        stop.continuation = page.header("x-ms-continuation").to_owned();
        if stop.continuation.is_empty() {
            return seen;
        }
    }
}

fn whole(id: &str, continuation: &str) -> Stop {
    Stop { id: id.to_owned(), keys: None, continuation: continuation.to_owned() }
}

/// The keys of a range, as the partition-key ranges show them.
fn keys_of(client: &mut Client, id: &str) -> (String, String) {
    let list = client.get("/dbs/d/colls/c/pkranges").send().expect(200).json();
    let ranges = list["PartitionKeyRanges"].as_array().cloned().expect("a list");
    let range = ranges.iter().find(|range| range["id"] == id).expect("a range with this id");
    let text = |name: &str| range[name].as_str().expect("text").to_owned();
    (text("minInclusive"), text("maxExclusive"))
}

/// The first page of the parent, and what each child has behind it.
fn over_a_split(query: &str) -> (Vec<Value>, [Vec<Value>; 2]) {
    let (emulator, mut client) = filled();
    let page = ask(&mut client, query, &whole("0", ""), 4);
    let continuation = page.header("x-ms-continuation").to_owned();
    assert_ne!(continuation, "", "there is more than a page of {query}");
    emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    let rest = ["1", "2"].map(|child| drain(&mut client, query, whole(child, &continuation)));
    (rows(&page), rest)
}

/// A page of each of two partitions, which are merged then, and what is behind: as a client asks that was at both.
fn over_a_merge(query: &str) -> [Vec<Value>; 2] {
    let (emulator, mut client) = filled();
    emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    let begun = ["1", "2"].map(|id| {
        let page = ask(&mut client, query, &whole(id, ""), 4);
        let continuation = page.header("x-ms-continuation").to_owned();
        assert_ne!(continuation, "", "there is more than a page of {query}");
        (rows(&page), keys_of(&mut client, id), continuation)
    });
    emulator.merge("d", "c", [1, 2], AT_ONCE).expect("merged");
    begun.map(|(mut seen, keys, continuation)| {
        let stop = Stop { id: "3".to_owned(), keys: Some(keys), continuation };
        seen.extend(drain(&mut client, query, stop));
        seen
    })
}

/// Adds up what several partitions say of the same groups.
fn summed<'r>(rows: impl IntoIterator<Item = &'r Value>) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for row in rows {
        *sums.entry(row["n"].as_u64().expect("a number")).or_insert(0) += row["k"].as_u64().expect("a count");
    }
    sums
}

fn true_groups() -> BTreeMap<u64, u64> {
    let mut groups = BTreeMap::new();
    (0..COUNT).for_each(|i| *groups.entry(i * 5 % 13).or_insert(0) += 1);
    groups
}

const GROUPS: &str = "SELECT c.n, COUNT(1) AS k FROM c GROUP BY c.n";

#[test]
fn groups_are_counted_once_over_a_split() {
    let (first, rest) = over_a_split(GROUPS);
    assert_eq!(summed(first.iter().chain(rest.iter().flatten())), true_groups());
}

#[test]
fn groups_are_counted_once_over_a_merge() {
    assert_eq!(summed(over_a_merge(GROUPS).iter().flatten()), true_groups());
}

fn texts<'r>(rows: impl IntoIterator<Item = &'r Value>) -> BTreeSet<String> {
    rows.into_iter().map(|row| row.as_str().expect("text").to_owned()).collect()
}

/// Values that many items share, and values of one item each.
fn distinct_queries(order: bool) -> [(String, BTreeSet<String>); 2] {
    let query = |name: &str| {
        let end = if order { format!(" ORDER BY c.{name}") } else { String::new() };
        format!("SELECT DISTINCT VALUE c.{name} FROM c{end}")
    };
    [
        (query("s"), (0..11).map(|s| format!("s{s}")).collect()),
        (query("id"), (0..COUNT).map(|i| format!("{i:03}")).collect()),
    ]
}

#[test]
fn no_distinct_value_is_lost_over_a_split() {
    for (query, expected) in distinct_queries(false) {
        let (first, rest) = over_a_split(&query);
        assert_eq!(texts(first.iter().chain(rest.iter().flatten())), expected, "{query}");
        for child in rest {
            assert_eq!(texts(&child).len(), child.len(), "{query}: no child says a value twice");
        }
    }
}

#[test]
fn no_distinct_value_is_lost_over_a_merge() {
    for (query, expected) in distinct_queries(false) {
        assert_eq!(texts(over_a_merge(&query).iter().flatten()), expected, "{query}");
    }
}

#[test]
fn distinct_values_in_order_go_on_behind_the_last_one() {
    for (query, expected) in distinct_queries(true) {
        let (first, rest) = over_a_split(&query);
        let last = first.last().expect("a row").as_str().expect("text");
        for child in &rest {
            let values: Vec<_> = child.iter().map(|row| row.as_str().expect("text")).collect();
            assert!(values.is_sorted() && values.iter().all(|value| *value >= last), "{query}: {values:?}");
        }
        assert_eq!(texts(first.iter().chain(rest.iter().flatten())), expected, "{query}");
        let seen = over_a_merge(&query);
        for half in &seen {
            assert!(
                half.iter().map(|row| row.as_str().expect("text")).is_sorted_by(|a, b| a < b),
                "{half:?}"
            );
        }
        assert_eq!(texts(seen.iter().flatten()), expected, "{query}");
    }
}

fn ids<'r>(rows: impl IntoIterator<Item = &'r Value>) -> Vec<String> {
    let mut ids: Vec<_> = rows.into_iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect();
    ids.sort();
    ids
}

fn true_ids() -> Vec<String> {
    (0..COUNT).map(|i| format!("{i:03}")).collect()
}

#[test]
fn an_order_goes_on_behind_its_last_row() {
    for query in ["SELECT c.id, c.n FROM c ORDER BY c.n", "SELECT c.id, c.n FROM c ORDER BY c.n DESC"] {
        let (first, rest) = over_a_split(query);
        assert_eq!(ids(first.iter().chain(rest.iter().flatten())), true_ids(), "{query}");
        let seen = over_a_merge(query);
        assert_eq!(ids(seen.iter().flatten()), true_ids(), "{query}");
        for half in seen {
            let numbers = half.iter().map(|row| row["n"].as_i64().expect("a number"));
            let numbers: Vec<_> =
                if query.ends_with("DESC") { numbers.map(|n| -n).collect() } else { numbers.collect() };
            assert!(numbers.is_sorted(), "{query}: {numbers:?}");
        }
    }
}

#[test]
fn a_window_as_clients_rewrite_it_goes_on_over_a_split_and_a_merge() {
    for query in [
        "SELECT c.id, c.n FROM c OFFSET 0 LIMIT 100",
        "SELECT c.id, c.n FROM c ORDER BY c.n OFFSET 0 LIMIT 100",
        "SELECT TOP 100 c.id, c.n FROM c ORDER BY c.n DESC",
    ] {
        let (first, rest) = over_a_split(query);
        assert_eq!(ids(first.iter().chain(rest.iter().flatten())), true_ids(), "{query}");
        assert_eq!(ids(over_a_merge(query).iter().flatten()), true_ids(), "{query}");
    }
}

#[test]
fn a_query_of_one_key_goes_on_over_a_split_row_by_row() {
    for (query, expected) in [
        ("SELECT VALUE c.id FROM c OFFSET 1 LIMIT 6", 6),
        ("SELECT VALUE c.id FROM c ORDER BY c.n OFFSET 1 LIMIT 6", 6),
        ("SELECT DISTINCT VALUE c.s FROM c", 8),
        ("SELECT DISTINCT VALUE c.s FROM c ORDER BY c.s DESC", 8),
        ("SELECT VALUE {'s': c.s, 'k': COUNT(1)} FROM c GROUP BY c.s", 8),
    ] {
        let (emulator, mut client) = filled();
        for i in 0..16 {
            let item =
                json!({"id": format!("k{i:02}"), "pk": "one", "n": i * 7 % 16, "s": format!("s{}", i % 8)});
            client.create(&item).expect(201);
        }
        let mut page = |continuation: &str| {
            let question = json!({"query": query});
            let request = client.question(&question).key("one").header("x-ms-max-item-count", "2");
            request.header("x-ms-continuation", continuation).send().expect(200)
        };
        let mut at_once = Vec::new();
        let mut stop = String::new();
        loop {
            let answer = page(&stop);
            at_once.extend(rows(&answer));
            stop = answer.header("x-ms-continuation").to_owned();
            if stop.is_empty() {
                break;
            }
        }
        assert_eq!(at_once.len(), expected, "{query}");
        let first = page("");
        emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
        let second = page(first.header("x-ms-continuation"));
        emulator.merge("d", "c", [1, 2], AT_ONCE).expect("merged");
        let mut seen = [rows(&first), rows(&second)].concat();
        let mut stop = second.header("x-ms-continuation").to_owned();
        while !stop.is_empty() {
            let answer = page(&stop);
            seen.extend(rows(&answer));
            stop = answer.header("x-ms-continuation").to_owned();
        }
        assert_eq!(seen, at_once, "{query}");
    }
}
