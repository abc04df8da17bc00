//! Queries, feeds and plans over the wire.

use cosmos_emulator::{Config, Emulator, Gateway, Operation};
use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

const ITEMS: &str = "/dbs/d/colls/c/docs";

/// Twelve items of three partition keys in a container of several partitions.
fn filled(config: Config) -> (Emulator, Client) {
    let emulator = Emulator::start(config).unwrap();
    let mut client = Client::new(&emulator).with_container();
    for n in 0..12 {
        client
            .create(
                &json!({"id": format!("i{n:02}"), "pk": format!("k{}", n % 3), "n": n, "even": n % 2 == 0}),
            )
            .expect(201);
    }
    (emulator, client)
}

fn four_partitions() -> Config {
    Config::default().with_partitions(4)
}

fn rows(answer: &Answer) -> Vec<Value> {
    answer.json()["Documents"].as_array().unwrap().clone()
}

#[test]
fn a_query_of_one_partition_orders_and_aggregates() {
    let (_emulator, mut client) = filled(four_partitions());
    let mut ask = |text: &str| client.question(&json!({"query": text})).key("k1").send().expect(200);
    let answer = ask("SELECT VALUE c.n FROM c ORDER BY c.n DESC");
    assert_eq!(rows(&answer), [10, 7, 4, 1].map(Value::from));
    assert_eq!(answer.header("x-ms-item-count"), "4");
    assert_eq!(answer.header("x-ms-alt-content-path"), "dbs/d/colls/c");
    assert_eq!(rows(&ask("SELECT VALUE COUNT(1) FROM c")), [json!(4)]);
    assert_eq!(rows(&ask("SELECT TOP 1 c.id FROM c ORDER BY c.n")), [json!({"id": "i01"})]);
}

#[test]
fn parameters_and_plain_sql_are_understood() {
    let (_emulator, mut client) = filled(four_partitions());
    let body = json!({"query": "SELECT VALUE c.id FROM c WHERE c.n = @n", "parameters": [{"name": "@n", "value": 5}]});
    assert_eq!(rows(&client.question(&body).key("k2").send().expect(200)), [json!("i05")]);
    let plain = client
        .request("POST", ITEMS)
        .body(b"SELECT VALUE c.id FROM c WHERE c.n = 6".to_vec())
        .header("content-type", "application/sql")
        .key("k0")
        .header("x-ms-documentdb-query-enablecrosspartition", "true")
        .send()
        .expect(200);
    assert_eq!(rows(&plain), [json!("i06")]);
}

#[test]
fn a_filter_over_all_partitions_is_served_and_paged() {
    let (_emulator, mut client) = filled(four_partitions());
    let question = json!({"query": "SELECT VALUE c.n FROM c WHERE c.even"});
    let mut found = Vec::new();
    let mut token = String::new();
    loop {
        let answer = client
            .question(&question)
            .header("x-ms-max-item-count", "2")
            .header("x-ms-continuation", &token)
            .send()
            .expect(200);
        assert!(rows(&answer).len() <= 2);
        found.extend(rows(&answer).iter().map(|row| row.as_u64().unwrap()));
        token = answer.header("x-ms-continuation").to_owned();
        if token.is_empty() {
            break;
        }
    }
    found.sort_unstable();
    assert_eq!(found, [0, 2, 4, 6, 8, 10]);
}

#[test]
fn what_needs_a_client_to_merge_is_refused_with_its_plan() {
    let (_emulator, mut client) = filled(four_partitions());
    for text in [
        "SELECT * FROM c ORDER BY c.n",
        "SELECT TOP 3 * FROM c",
        "SELECT VALUE COUNT(1) FROM c",
        "SELECT DISTINCT VALUE c.even FROM c",
        "SELECT * FROM c OFFSET 1 LIMIT 2",
        "SELECT c.even FROM c GROUP BY c.even",
    ] {
        let answer = client.query(text);
        assert_eq!(answer.status(), (400, 1004), "{text}");
        let plan: Value =
            serde_json::from_str(answer.json()["additionalErrorInfo"].as_str().unwrap()).unwrap();
        assert!(plan["queryInfo"].is_object() && plan["queryRanges"].is_array(), "{plan}");
    }
    let bare = client.query("SELECT COUNT(1) FROM c");
    assert_eq!(bare.status, 400);
    assert!(
        bare.message().contains("Cross partition query only supports 'VALUE <AggregateFunc>'"),
        "{}",
        bare.message()
    );
}

#[test]
fn a_cross_partition_query_must_be_allowed() {
    let (_emulator, mut client) = filled(four_partitions());
    let mut ask = |text: &str| {
        client
            .question(&json!({"query": text}))
            .header("x-ms-documentdb-query-enablecrosspartition", "False")
            .send()
    };
    let refused = ask("SELECT * FROM c");
    assert_eq!(refused.status, 400);
    assert!(
        refused.message().starts_with("Cross partition query is required but disabled."),
        "{}",
        refused.message()
    );
    assert!(refused.json()["additionalErrorInfo"].is_string());
    assert_eq!(rows(&ask("SELECT VALUE c.n FROM c WHERE c.pk = 'k2' AND c.n > 5").expect(200)).len(), 2);
}

#[test]
fn everything_can_be_served_when_asked_to() {
    let (_emulator, mut client) = filled(Config { gateway: Gateway::ServeAll, ..four_partitions() });
    assert_eq!(rows(&client.query("SELECT VALUE COUNT(1) FROM c").expect(200)), [json!(12)]);
    assert_eq!(
        rows(&client.query("SELECT VALUE c.n FROM c ORDER BY c.n DESC OFFSET 1 LIMIT 2").expect(200)),
        [json!(10), json!(9)]
    );
}

#[test]
fn a_plan_is_answered_and_its_rewritten_query_runs_on_each_range() {
    let (_emulator, mut client) = filled(four_partitions());
    let question = json!({"query": "SELECT * FROM c ORDER BY c.n"});
    let plan = client
        .post(ITEMS, &question)
        .header("content-type", "application/query+json")
        .header("x-ms-cosmos-is-query-plan-request", "True")
        .header("x-ms-cosmos-supported-query-features", "Aggregate, CompositeAggregate, Distinct, GroupBy, MultipleAggregates, MultipleOrderBy, NonValueAggregate, OffsetAndLimit, OrderBy, Top")
        .header("x-ms-cosmos-query-version", "1.0")
        .send()
        .expect(200)
        .json();
    assert_eq!(plan["queryInfo"]["orderBy"], json!(["Ascending"]));
    assert_eq!(plan["queryRanges"][0]["max"], "FF");
    let rewritten = plan["queryInfo"]["rewrittenQuery"].as_str().unwrap();
    let rewritten = rewritten.replace("{documentdb-formattableorderbyquery-filter}", "true");
    let mut seen = 0;
    for range in 0..4 {
        let answer = client
            .question(&json!({"query": rewritten}))
            .header("x-ms-documentdb-partitionkeyrangeid", &range.to_string())
            .send()
            .expect(200);
        let numbers: Vec<u64> =
            rows(&answer).iter().map(|row| row["orderByItems"][0]["item"].as_u64().unwrap()).collect();
        assert!(numbers.is_sorted());
        assert_eq!(answer.header("x-ms-documentdb-partitionkeyrangeid"), range.to_string());
        seen += numbers.len();
    }
    assert_eq!(seen, 12);
}

#[test]
fn a_plan_needs_a_client_that_can_run_it() {
    let (_emulator, mut client) = with_container();
    let answer = client
        .post(ITEMS, &json!({"query": "SELECT * FROM c ORDER BY c.n"}))
        .header("x-ms-cosmos-is-query-plan-request", "True")
        .header("x-ms-cosmos-supported-query-features", "Aggregate")
        .send();
    assert_eq!(answer.status, 400);
    assert!(answer.message().contains("which the calling client does not support"), "{}", answer.message());
}

#[test]
fn a_point_query_reads_one_document() {
    let (emulator, mut client) = filled(four_partitions());
    emulator.ledger().reset();
    let answer =
        client.question(&json!({"query": "SELECT * FROM c WHERE c.id = 'i04'"})).key("k1").send().expect(200);
    assert_eq!(rows(&answer).len(), 1);
    assert_eq!(emulator.ledger().snapshot().operation(Operation::Query).documents_visited, 1);
}

#[test]
fn a_read_feed_lists_everything_page_by_page() {
    let (_emulator, mut client) = filled(four_partitions());
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let answer = client
            .get(ITEMS)
            .header("x-ms-max-item-count", "5")
            .header("x-ms-continuation", &token)
            .send()
            .expect(200);
        seen.extend(rows(&answer).iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        token = answer.header("x-ms-continuation").to_owned();
        if token.is_empty() {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 12);
    assert_eq!(rows(&client.get(ITEMS).key("k0").send().expect(200)).len(), 4);
}

#[test]
fn a_change_feed_goes_on_from_its_etag() {
    let (_emulator, mut client) = with_container();
    let read = |client: &mut Client, name: &str, value: &str| {
        client
            .get(ITEMS)
            .header("a-im", "Incremental Feed")
            .header("x-ms-documentdb-partitionkeyrangeid", "0")
            .header(name, value)
            .send()
    };
    let now = read(&mut client, "if-none-match", "*");
    assert_eq!(now.status, 304);
    assert!(!now.header("etag").is_empty(), "also nothing has a continuation");
    client.create(&json!({"id": "a", "pk": "x"})).expect(201);
    client.create(&json!({"id": "b", "pk": "y"})).expect(201);
    let first = read(&mut client, "x-ms-max-item-count", "1").expect(200);
    assert_eq!((rows(&first).len(), rows(&first)[0]["_lsn"].is_number()), (1, true));
    let second = read(&mut client, "if-none-match", first.header("etag")).expect(200);
    assert_eq!(rows(&second)[0]["id"], "b");
    let end = read(&mut client, "if-none-match", second.header("etag"));
    assert_eq!(end.status, 304);
    assert_eq!(rows(&read(&mut client, "if-none-match", now.header("etag")).expect(200)).len(), 2);
    assert_eq!(read(&mut client, "if-modified-since", "yesterday").status, 400);
}

#[test]
fn a_page_holds_the_rows_of_one_partition() {
    let (_emulator, mut client) = filled(four_partitions());
    let (mut pages, mut rows_seen, mut token) = (0, 0, String::new());
    loop {
        let question = json!({"query": "SELECT * FROM c"});
        let answer = client.question(&question).header("x-ms-continuation", &token).send().expect(200);
        (pages, rows_seen) = (pages + 1, rows_seen + rows(&answer).len());
        token = answer.header("x-ms-continuation").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, 4, "each partition has its page, also an empty one");
    assert_eq!(rows_seen, 12);
    client
        .question(&json!({"query": "SELECT * FROM c"}))
        .header("x-ms-continuation", "odd")
        .send()
        .expect(400);
}

#[test]
fn metrics_are_told_to_those_who_ask() {
    let (_emulator, mut client) = filled(four_partitions());
    let question = json!({"query": "SELECT * FROM c WHERE c.n = 4"});
    let answer = client
        .question(&question)
        .key("k1")
        .header("x-ms-documentdb-populatequerymetrics", "True")
        .send()
        .expect(200);
    let metrics = answer.header("x-ms-documentdb-query-metrics");
    assert!(metrics.contains("outputDocumentCount=1;"), "{metrics}");
    assert!(metrics.split(';').all(|part| part.contains('=')), "{metrics}");
}
