//! Splits and merges over real sockets: phases, ranges, sessions, feeds, queries, and restarts in the middle.

use std::time::Duration;

use cosmos_emulator::{Auth, Clock, Config, Emulator, Fsync, ManualClock, Phase, Progression, SplitMode};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

const START: Duration = Duration::from_secs(1_794_700_800);
const DOCS: &str = "/dbs/d/colls/c/docs";
const RANGE: &str = "x-ms-documentdb-partitionkeyrangeid";
const AT_ONCE: Progression = Progression::Automatic { lock_duration: Duration::ZERO };

fn start() -> (Emulator, Client, ManualClock) {
    let (clock, hand) = Clock::manual(START);
    let emulator =
        Emulator::start_with_clock(Config::default().with_auth(Auth::Open), clock).expect("it starts");
    let client = Client::new(&emulator).with_container();
    (emulator, client, hand)
}

fn fill(client: &mut Client, count: u32) {
    for i in 0..count {
        client.create(&json!({"id": format!("{i:03}"), "pk": format!("p{i}"), "n": i % 7})).expect(201);
    }
}

fn ranges(client: &mut Client, etag: Option<&str>) -> Answer {
    let request = client.get("/dbs/d/colls/c/pkranges");
    match etag {
        Some(etag) => request.header("a-im", "Incremental Feed").header("if-none-match", etag).send(),
        None => request.send(),
    }
}

fn changes(client: &mut Client, range: &str, etag: Option<&str>) -> Answer {
    let request = client.get(DOCS).header("a-im", "Incremental Feed").header(RANGE, range);
    match etag {
        Some(etag) => request.header("if-none-match", etag).send(),
        None => request.send(),
    }
}

fn ids(answer: &Answer) -> Vec<String> {
    let rows = answer.json()["Documents"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_split_by_hand_is_seen_as_410_1007_and_then_410_1002() {
    let (emulator, mut client, _hand) = start();
    fill(&mut client, 20);
    let before = ranges(&mut client, None).expect(200);
    let operation = emulator.split("d", "c", 0, SplitMode::Midpoint, Progression::Manual).expect("it begins");
    assert_eq!(operation.phase, Phase::Preparing);
    client.create(&json!({"id": "new", "pk": "p1"})).expect(201);
    assert_eq!(emulator.advance(operation.id).expect("it moves on").phase, Phase::Swapping);
    let token = client.get(&format!("{DOCS}/001")).key("p1").send();
    assert_eq!(token.status(), (410, 1007));
    assert_eq!(client.create(&json!({"id": "x", "pk": "p1"})).status(), (410, 1007));
    assert_eq!(client.query("SELECT * FROM c").status(), (410, 1007));
    assert_eq!(changes(&mut client, "0", None).status(), (410, 1007));
    assert_eq!(ranges(&mut client, Some(before.header("etag"))).status, 304, "the parent is still the one");
    assert_eq!(emulator.advance(operation.id).expect("it moves on").phase, Phase::Succeeded);
    assert_eq!(changes(&mut client, "0", None).status(), (410, 1002));
    let question = json!({"query": "SELECT * FROM c"});
    assert_eq!(client.question(&question).header(RANGE, "0").send().status(), (410, 1002));
    let news = ranges(&mut client, Some(before.header("etag"))).expect(200).json();
    let shown: Vec<_> = news["PartitionKeyRanges"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|range| (range["id"].clone(), range["parents"].clone()))
        .collect();
    assert_eq!(shown, [(json!("1"), json!(["0"])), (json!("2"), json!(["0"]))]);
    for i in 0..20 {
        client.get(&format!("{DOCS}/{i:03}")).key(&format!("p{i}")).send().expect(200);
    }
    client.get(&format!("{DOCS}/new")).key("p1").send().expect(200);
}

#[test]
fn a_split_by_itself_ends_by_the_clock() {
    let (emulator, mut client, hand) = start();
    fill(&mut client, 5);
    let progression = Progression::Automatic { lock_duration: Duration::from_secs(2) };
    let operation = emulator.split("d", "c", 0, SplitMode::Midpoint, progression).expect("it begins");
    assert_eq!(client.get(&format!("{DOCS}/001")).key("p1").send().status(), (410, 1007));
    hand.advance(Duration::from_secs(2));
    let read = client.get(&format!("{DOCS}/001")).key("p1").send().expect(200);
    assert!(["1", "2"].contains(&read.header(RANGE)), "{read:?}");
    assert_eq!(emulator.operation(operation.id).expect("known").phase, Phase::Succeeded);
}

#[test]
fn sessions_go_on_over_a_split_and_count_anew_after_a_merge() {
    let (emulator, mut client, _hand) = start();
    let written = client.create(&json!({"id": "a", "pk": "p1"})).expect(201);
    let token = written.header("x-ms-session-token").to_owned();
    assert_eq!(token, "0:-1#2");
    emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    let read = |client: &mut Client, token: &str| {
        client.get(&format!("{DOCS}/a")).key("p1").header("x-ms-session-token", token).send()
    };
    let after = read(&mut client, &token).expect(200);
    let child = after.header(RANGE).to_owned();
    assert_eq!(after.header("x-ms-session-token"), format!("{child}:-1#3"));
    assert_eq!(read(&mut client, "0:-1#9").status(), (404, 1002));
    emulator.merge("d", "c", [1, 2], AT_ONCE).expect("merged");
    let merged = read(&mut client, &format!("0:-1#2,{child}:-1#3")).expect(200);
    assert_eq!(merged.header("x-ms-session-token"), "3:0#1");
    assert_eq!(client.create(&json!({"id": "b", "pk": "p1"})).header("x-ms-session-token"), "3:0#2");
}

#[test]
fn a_change_feed_goes_on_in_the_children_behind_the_place_of_the_parent() {
    let (emulator, mut client, _hand) = start();
    fill(&mut client, 30);
    let first = changes(&mut client, "0", None).expect(200);
    assert_eq!(ids(&first).len(), 30);
    client.create(&json!({"id": "before", "pk": "p3"})).expect(201);
    emulator.split("d", "c", 0, SplitMode::Storage, AT_ONCE).expect("split");
    client.create(&json!({"id": "after", "pk": "p4"})).expect(201);
    let mut seen = Vec::new();
    for child in ["1", "2"] {
        let page = changes(&mut client, child, Some(first.header("etag")));
        seen.extend(ids(&page));
        changes(&mut client, child, Some(page.header("etag"))).expect(304);
    }
    seen.sort();
    assert_eq!(seen, ["after", "before"]);
}

/// Reads all pages, with something happening behind the first.
fn pages(client: &mut Client, text: &str, range: Option<&str>, between: impl FnOnce()) -> Vec<String> {
    let (mut seen, mut continuation, mut between) = (Vec::new(), String::new(), Some(between));
    loop {
        let question = json!({"query": text});
        let mut request = client.question(&question).header("x-ms-max-item-count", "7");
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let page = request.header("x-ms-continuation", &continuation).send().expect(200);
        seen.extend(ids(&page));
        continuation = page.header("x-ms-continuation").to_owned();
        if continuation.is_empty() {
            return seen;
        }
        if let Some(between) = between.take() {
            between();
        }
    }
}

#[test]
fn a_query_through_the_gateway_goes_on_over_a_split_and_a_merge() {
    let (emulator, mut client, _hand) = start();
    fill(&mut client, 50);
    let split = || drop(emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split"));
    let mut seen = pages(&mut client, "SELECT * FROM c WHERE c.n >= 0", None, split);
    seen.sort();
    assert_eq!(seen, (0..50).map(|i| format!("{i:03}")).collect::<Vec<_>>());
    let merge = || drop(emulator.merge("d", "c", [1, 2], AT_ONCE).expect("merged"));
    let mut seen = pages(&mut client, "SELECT * FROM c", None, merge);
    seen.sort();
    assert_eq!(seen, (0..50).map(|i| format!("{i:03}")).collect::<Vec<_>>());
}

#[test]
fn the_continuation_of_a_parent_is_taken_by_each_child() {
    let (emulator, mut client, _hand) = start();
    fill(&mut client, 50);
    let question = json!({"query": "SELECT * FROM c ORDER BY c.n"});
    let page =
        client.question(&question).header(RANGE, "0").header("x-ms-max-item-count", "7").send().expect(200);
    let mut seen = ids(&page);
    emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    for child in ["1", "2"] {
        let rest = client
            .question(&question)
            .header(RANGE, child)
            .header("x-ms-continuation", page.header("x-ms-continuation"))
            .send()
            .expect(200);
        assert_eq!(rest.header("x-ms-continuation"), "");
        let numbers: Vec<_> = rest.json()["Documents"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|row| row["n"].as_u64())
            .collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
        seen.extend(ids(&rest));
    }
    seen.sort();
    assert_eq!(seen, (0..50).map(|i| format!("{i:03}")).collect::<Vec<_>>());
}

#[test]
fn a_key_range_that_names_a_partition_that_is_gone_is_refused() {
    let (emulator, mut client, _hand) = start();
    fill(&mut client, 5);
    emulator.split("d", "c", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    let mut ask = |range: &str| {
        let question = json!({"query": "SELECT * FROM c"});
        let request = client.question(&question).header(RANGE, range);
        let request = request.header("x-ms-read-key-type", "EffectivePartitionKeyRange");
        request
            .header("x-ms-start-epk", "")
            .header("x-ms-end-epk", "1FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF")
            .send()
            .status()
    };
    assert_eq!((ask("0"), ask("1")), ((410, 1002), (200, 0)));
}

#[test]
fn a_killed_process_goes_on_with_a_split_and_a_merge_in_every_phase() {
    for advanced in 0..=1 {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || {
            let config = Config::default().with_folder(folder.path(), Fsync::On).with_auth(Auth::Open);
            let emulator = Emulator::start(config).expect("it starts");
            let client = Client::new(&emulator);
            (emulator, client)
        };
        // Dropping ends the server at once, without a word to the store.
        let (emulator, client) = open();
        let mut client = client.with_container();
        fill(&mut client, 20);
        let split = emulator.split("d", "c", 0, SplitMode::Midpoint, Progression::Manual).expect("it begins");
        (0..advanced).for_each(|_| drop(emulator.advance(split.id).expect("it moves on")));
        drop(emulator);
        let (emulator, mut client) = open();
        let expected = if advanced == 0 { (200, 0) } else { (410, 1007) };
        assert_eq!(client.get(&format!("{DOCS}/001")).key("p1").send().status(), expected);
        assert_eq!(finish(&emulator, split.id), Phase::Succeeded);
        check(&mut client);
        let merge = emulator.merge("d", "c", [1, 2], Progression::Manual).expect("it begins");
        (0..advanced).for_each(|_| drop(emulator.advance(merge.id).expect("it moves on")));
        drop(emulator);
        let (emulator, mut client) = open();
        assert_eq!(finish(&emulator, merge.id), Phase::Succeeded);
        drop(emulator);
        let (_emulator, mut after) = open();
        check(&mut after);
        assert_eq!(
            ranges(&mut after, None).json()["PartitionKeyRanges"][0]["parents"],
            json!(["0", "1", "2"])
        );
        drop(client);
        client = after;
        client.create(&json!({"id": "later", "pk": "p1"})).expect(201);
    }
}

fn finish(emulator: &Emulator, id: u64) -> Phase {
    loop {
        let operation = emulator.advance(id).expect("it moves on");
        if operation.phase == Phase::Succeeded {
            return operation.phase;
        }
    }
}

/// Everything is there, by key, by query and in the feeds.
fn check(client: &mut Client) {
    for i in 0..20 {
        client.get(&format!("{DOCS}/{i:03}")).key(&format!("p{i}")).send().expect(200);
    }
    let list = ranges(client, None).json()["PartitionKeyRanges"].as_array().cloned().expect("a list");
    let (mut queried, mut changed) = (0, 0);
    for range in list.iter().filter_map(|range| range["id"].as_str()) {
        let question = json!({"query": "SELECT * FROM c WHERE c.n < 100 ORDER BY c.n"});
        queried += ids(&client.question(&question).header(RANGE, range).send().expect(200)).len();
        changed += ids(&changes(client, range, None)).len();
    }
    assert_eq!((queried, changed), (20, 20));
}

#[test]
fn all_versions_and_deletes_come_over_the_wire_and_over_a_split() {
    let (emulator, mut client, hand) = start();
    let body = json!({"id": "h", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": -1,
        "changeFeedPolicy": {"retentionDuration": 5}});
    client.post("/dbs/d/colls", &body).send().expect(201);
    let docs = "/dbs/d/colls/h/docs";
    let feed = |client: &mut Client, range: &str, etag: &str| {
        let request = client.get(docs).header("a-im", "Full-Fidelity Feed").header(RANGE, range);
        request
            .header("if-none-match", etag)
            .header("x-ms-cosmos-changefeed-wire-format-version", "2021-09-15")
            .send()
    };
    let put = |client: &mut Client, item: &Value| {
        client.post(docs, item).key("a").header("x-ms-documentdb-is-upsert", "True").send();
    };
    let now = feed(&mut client, "0", "*").expect(304).header("etag").to_owned();
    put(&mut client, &json!({"id": "1", "pk": "a", "n": 1}));
    put(&mut client, &json!({"id": "1", "pk": "a", "n": 2}));
    client.delete(&format!("{docs}/1")).key("a").send().expect(204);
    put(&mut client, &json!({"id": "2", "pk": "a", "ttl": 1}));
    hand.advance(Duration::from_secs(1));
    emulator.split("d", "h", 0, SplitMode::Midpoint, AT_ONCE).expect("split");
    assert_eq!(feed(&mut client, "0", &now).status(), (410, 1002));
    let pages = ["1", "2"].map(|range| feed(&mut client, range, &now).json()["Documents"].clone());
    let changes: Vec<Value> = pages.iter().filter_map(Value::as_array).flatten().cloned().collect();
    let kinds: Vec<_> = changes.iter().map(|change| change["metadata"]["operationType"].clone()).collect();
    assert_eq!(kinds, ["create", "replace", "delete", "create", "delete"].map(Value::from));
    assert_eq!(
        (&changes[2]["previous"]["n"], &changes[4]["metadata"]["timeToLiveExpired"]),
        (&json!(2), &json!(true))
    );
    let beginning = client.get(docs).header("a-im", "Full-Fidelity Feed").header(RANGE, "1").send();
    assert_eq!(beginning.status, 400);
    let plain = client
        .get(DOCS)
        .header("a-im", "Full-Fidelity Feed")
        .header(RANGE, "0")
        .header("if-none-match", "*")
        .send();
    assert!(plain.message().contains("changeFeedPolicy"), "{}", plain.message());
}

#[test]
fn an_incremental_feed_in_the_form_of_full_fidelity_is_enveloped() {
    let (_emulator, mut client, _hand) = start();
    client.create(&json!({"id": "1", "pk": "a"})).expect(201);
    let request = client.get(DOCS).header("a-im", "Incremental Feed").header(RANGE, "0");
    let page = request.header("x-ms-cosmos-changefeed-wire-format-version", "2021-09-15").send().expect(200);
    assert_eq!(page.json()["Documents"][0]["current"]["id"], "1");
}
