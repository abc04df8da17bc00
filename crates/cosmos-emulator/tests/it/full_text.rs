//! Full text and hybrid search over HTTP: languages by policy, and ranks that a client fuses over many partitions.

use cosmos_emulator::{Config, Emulator, Gateway};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

const ITEMS: &str = "/dbs/d/colls/c/docs";
const TEXTS: [(&str, &str); 8] = [
    ("a", "The red bicycle is fast"),
    ("b", "Red cars, red roofs and a very long tail of words that are about nothing in particular"),
    ("c", "A blue car"),
    ("d", "Bicycles for everybody: red bicycles, blue bicycles, green bicycles"),
    ("e", "Nothing of the kind"),
    ("f", "red"),
    ("g", "A fast red bicycle that is not slow"),
    ("h", "Fast cars are red"),
];

/// An account with the texts, each under a key of its own.
fn library(config: Config) -> (Emulator, Client) {
    let emulator = Emulator::start(config).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "indexingPolicy": {"includedPaths": [{"path": "/*"}], "fullTextIndexes": [{"path": "/text"}]},
        "fullTextPolicy": {"defaultLanguage": "en-US", "fullTextPaths": [
            {"path": "/text", "language": "en-US"}, {"path": "/deutsch", "language": "de-DE"}]}});
    client.post("/dbs/d/colls", &body).send().expect(201);
    for (at, (id, text)) in TEXTS.iter().enumerate() {
        let vector = [at as f64, 1.0];
        client
            .create(&json!({"id": id, "pk": id, "text": text, "v": vector, "deutsch": "Schnelle Räder"}))
            .expect(201);
    }
    (emulator, client)
}

fn rows(answer: &Answer) -> Vec<Value> {
    answer.json()["Documents"].as_array().unwrap().clone()
}

fn plan(client: &mut Client, text: &str) -> Value {
    let planned = client
        .post(ITEMS, &json!({"query": text}))
        .header("content-type", "application/query+json")
        .header("x-ms-cosmos-is-query-plan-request", "True")
        .header("x-ms-cosmos-supported-query-features", "HybridSearch, WeightedRankFusion")
        .send();
    planned.expect(200).json()["hybridSearchQueryInfo"].clone()
}

/// The rows of a query from every partition.
fn everywhere(client: &mut Client, text: &str) -> Vec<Value> {
    let ranges = client.get("/dbs/d/colls/c/pkranges").send().expect(200).json();
    let ranges = ranges["PartitionKeyRanges"].as_array().unwrap();
    let ask = |range: &Value| {
        let question = client.question(&json!({"query": text}));
        rows(
            &question
                .header("x-ms-documentdb-partitionkeyrangeid", range["id"].as_str().unwrap())
                .send()
                .expect(200),
        )
    };
    ranges.iter().flat_map(ask).collect()
}

/// Searches as the SDKs do: counts, then each score, then ranks.
fn search(client: &mut Client, text: &str) -> Vec<String> {
    let plan = plan(client, text);
    let (mut documents, mut texts): (u64, Vec<(u64, Vec<u64>)>) = (0, Vec::new());
    for told in everywhere(client, plan["globalStatisticsQuery"].as_str().unwrap()) {
        documents += told["documentCount"].as_u64().unwrap();
        for (at, told) in told["fullTextStatistics"].as_array().unwrap().iter().enumerate() {
            let hits: Vec<u64> = serde_json::from_value(told["hitCounts"].clone()).unwrap();
            texts.resize(texts.len().max(at + 1), (0, vec![0; hits.len()]));
            texts[at].0 += told["totalWordCount"].as_u64().unwrap();
            texts[at].1.iter_mut().zip(hits).for_each(|(sum, hits)| *sum += hits);
        }
    }
    let components = plan["componentQueryInfos"].as_array().unwrap();
    let mut found: Vec<(String, Value, Vec<f64>)> = Vec::new();
    for component in components {
        let prefix = "documentdb-formattablehybridsearchquery";
        let mut query = component["rewrittenQuery"].as_str().unwrap().to_owned();
        query = query.replace("{documentdb-formattableorderbyquery-filter}", "true");
        query = query.replace(&format!("{{{prefix}-totaldocumentcount}}"), &documents.to_string());
        for (at, (words, hits)) in texts.iter().enumerate() {
            query = query.replace(&format!("{{{prefix}-totalwordcount-{at}}}"), &words.to_string());
            query = query.replace(&format!("{{{prefix}-hitcountsarray-{at}}}"), &json!(hits).to_string());
        }
        for row in everywhere(client, &query) {
            let rid = row["_rid"].as_str().unwrap().to_owned();
            if !found.iter().any(|(known, ..)| *known == rid) {
                let scores = serde_json::from_value(row["payload"]["componentScores"].clone()).unwrap();
                found.push((rid, row["payload"]["payload"].clone(), scores));
            }
        }
    }
    found.sort_by(|a, b| a.1.as_str().cmp(&b.1.as_str()));
    let mut ranks = vec![0.0; found.len()];
    for (at, component) in components.iter().enumerate() {
        let sign = if component["orderBy"][0] == "Ascending" { 1.0 } else { -1.0 };
        let weight = plan["componentWeights"][at].as_f64().unwrap_or(1.0);
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_by(|a, b| (sign * found[*a].2[at]).total_cmp(&(sign * found[*b].2[at])));
        let mut place = 1.0;
        for (n, row) in order.iter().enumerate() {
            place += f64::from(n > 0 && found[order[n - 1]].2[at] != found[*row].2[at]);
            ranks[*row] += weight / (60.0 + place);
        }
    }
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]));
    let take = usize::try_from(plan["take"].as_u64().unwrap()).unwrap();
    order.into_iter().take(take).map(|at| found[at].1.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_client_that_fuses_the_ranks_of_four_partitions_finds_what_one_partition_would() {
    let (_parts, mut parts) = library(Config { partitions: Some(4), ..Config::default() });
    let (_whole, mut whole) = library(Config { gateway: Gateway::ServeAll, ..Config::default() });
    for by in [
        "FullTextScore(c.text, 'red')",
        "FullTextScore(c.text, 'red bicycle', 'fast', 'cars')",
        "RRF(FullTextScore(c.text, 'red'), VectorDistance(c.v, [1, 0.1]))",
        "RRF(FullTextScore(c.text, 'blue'), FullTextScore(c.text, 'fast'), [3, 1])",
        "RRF(FullTextScore(c.text, 'red'), VectorDistance(c.v, [1, 0.1]), [1, -2])",
    ] {
        let text = format!(
            "SELECT TOP 5 VALUE c.id FROM c WHERE NOT FullTextContains(c.text, 'kind') ORDER BY RANK {by}"
        );
        let fused = search(&mut parts, &text);
        let alone = whole
            .question(&json!({"query": text}))
            .header("x-ms-documentdb-query-enablecrosspartition", "True");
        let alone: Vec<String> =
            rows(&alone.send().expect(200)).iter().map(|id| id.as_str().unwrap().into()).collect();
        assert_eq!(fused, alone, "{by}");
        assert_eq!(fused.len(), 5);
    }
}

#[test]
fn a_search_over_all_partitions_is_left_to_the_client_and_one_within_a_key_is_run() {
    let (_emulator, mut client) = library(Config::default());
    let text = "SELECT TOP 5 VALUE c.id FROM c ORDER BY RANK FullTextScore(c.text, 'red')";
    let question =
        client.question(&json!({"query": text})).header("x-ms-documentdb-query-enablecrosspartition", "True");
    let refused = question.send().expect(400);
    assert_eq!(refused.status(), (400, 1004));
    assert!(refused.json()["additionalErrorInfo"].as_str().unwrap().contains("globalStatisticsQuery"));
    let within = client.question(&json!({"query": text})).key("a").send().expect(200);
    assert_eq!(rows(&within), [json!("a")]);
}

#[test]
fn texts_are_taken_apart_in_the_language_of_their_path() {
    let (_emulator, mut client) = library(Config::default());
    for (condition, found) in [
        ("FullTextContains(c.text, 'bicycles')", true),
        ("FullTextContains(c.deutsch, 'schnelle räder')", true),
        // No stems but English ones.
        ("FullTextContains(c.deutsch, 'räders')", false),
        ("FullTextContainsAny(c.deutsch, 'räders', 'RÄDER')", true),
        ("FullTextContainsAll(c.deutsch, 'räders', 'räder')", false),
    ] {
        let text = format!("SELECT VALUE {condition} FROM c");
        let answer = client.question(&json!({"query": text})).key("a").send().expect(200);
        assert_eq!(rows(&answer), [json!(found)], "{condition}");
    }
}

#[test]
fn pages_of_a_search_follow_each_other() {
    let (_emulator, mut client) = library(Config { gateway: Gateway::ServeAll, ..Config::default() });
    let text = "SELECT VALUE c.id FROM c ORDER BY RANK FullTextScore(c.text, 'red', 'fast') OFFSET 1 LIMIT 5";
    let whole =
        client.question(&json!({"query": text})).header("x-ms-documentdb-query-enablecrosspartition", "True");
    let whole = rows(&whole.send().expect(200));
    let (mut paged, mut token) = (Vec::new(), None::<String>);
    for _ in 0..5 {
        let mut question = client
            .question(&json!({"query": text}))
            .header("x-ms-documentdb-query-enablecrosspartition", "True")
            .header("x-ms-max-item-count", "2");
        if let Some(token) = &token {
            question = question.header("x-ms-continuation", token);
        }
        let page = question.send().expect(200);
        paged.extend(rows(&page));
        token = Some(page.header("x-ms-continuation").to_owned()).filter(|token| !token.is_empty());
        if token.is_none() {
            break;
        }
    }
    assert_eq!((paged.len(), paged), (5, whole));
}
