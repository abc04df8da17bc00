//! Answers that were once not those of the service.

use cosmos_emulator::{Config, Emulator};
use serde_json::{Value, json};

use crate::client::{Answer, Client, with_container};

const ITEMS: &str = "/dbs/d/colls/c/docs";

fn rows(answer: &Answer) -> Vec<Value> {
    answer.json()["Documents"].as_array().unwrap().clone()
}

fn texts(answer: &Answer) -> Vec<String> {
    rows(answer).iter().map(|row| row.as_str().unwrap_or_default().to_owned()).collect()
}

/// An account whose container `c` has this besides a key.
fn container_with(config: Config, fields: &Value) -> (Emulator, Client) {
    let emulator = Emulator::start(config).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let mut body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    client.post("/dbs/d/colls", &body).send().expect(201);
    (emulator, client)
}

fn refused(fields: &Value) -> String {
    let (_emulator, mut client) = with_container();
    let mut body = json!({"id": "other", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    client.post("/dbs/d/colls", &body).send().expect(400).message()
}

fn plan(client: &mut Client, text: &str) -> Answer {
    client
        .post(ITEMS, &json!({"query": text}))
        .header("content-type", "application/query+json")
        .header("x-ms-cosmos-is-query-plan-request", "True")
        .header(
            "x-ms-cosmos-supported-query-features",
            "Aggregate, GroupBy, OrderBy, MultipleOrderBy, Top, NonStreamingOrderBy, NonValueAggregate, \
             MultipleAggregates, OffsetAndLimit",
        )
        .send()
}

#[test]
fn vectors_are_compared_by_the_function_of_the_container_and_the_nearest_comes_first() {
    for (function, expected, direction) in [
        ("euclidean", ["near", "middle", "far"], "Ascending"),
        ("dotproduct", ["far", "middle", "near"], "Descending"),
        ("cosine", ["near", "far", "middle"], "Descending"),
    ] {
        let policy = json!({"vectorEmbeddingPolicy": {"vectorEmbeddings": [
            {"path": "/e", "dataType": "float32", "dimensions": 2, "distanceFunction": function}]}});
        let (_emulator, mut client) = container_with(Config::default(), &policy);
        for (id, vector) in [("near", [1.0, 0.0]), ("middle", [2.0, 2.0]), ("far", [9.0, 1.0])] {
            client.create(&json!({"id": id, "pk": "p", "e": vector})).expect(201);
        }
        let by = "VectorDistance(c.e, [1, 0])";
        let text = format!("SELECT VALUE c.id FROM c ORDER BY {by}");
        let answer = client.question(&json!({"query": text})).key("p").send().expect(200);
        assert_eq!(texts(&answer), expected, "{function}");
        let planned =
            plan(&mut client, &format!("SELECT TOP 2 c.id FROM c ORDER BY {by}")).expect(200).json();
        assert_eq!(planned["queryInfo"]["orderBy"], json!([direction]), "{function}");
        // What the call says wins over the policy.
        let text = "SELECT VALUE c.id FROM c ORDER BY VectorDistance(c.e, [1, 0], false, {'distanceFunction': 'Euclidean'})";
        let answer = client.question(&json!({"query": text})).key("p").send().expect(200);
        assert_eq!(texts(&answer), ["near", "middle", "far"], "{function}");
        for direction in ["ASC", "DESC"] {
            let text = format!("SELECT TOP 1 c.id FROM c ORDER BY {by} {direction}");
            let message = client.question(&json!({"query": text})).key("p").send().expect(400).message();
            assert!(message.contains("Specifying a sorting order (ASC or DESC)"), "{message}");
            plan(&mut client, &text).expect(400);
        }
    }
}

#[test]
fn the_score_of_vectors_is_that_of_the_policy() {
    let policy = json!({"vectorEmbeddingPolicy": {"vectorEmbeddings": [
        {"path": "/e", "dataType": "float32", "dimensions": 2, "distanceFunction": "euclidean"}]}});
    let (_emulator, mut client) = container_with(Config::default(), &policy);
    client.create(&json!({"id": "a", "pk": "p", "e": [3, 4], "other": [3, 4]})).expect(201);
    let text = "SELECT VALUE [VectorDistance(c.e, [0, 0]), VectorDistance([3, 0], c.e), VectorDistance(c.other, [6, 8])] FROM c";
    let answer = client.question(&json!({"query": text})).key("p").send().expect(200);
    assert_eq!(rows(&answer), [json!([5, 4, 1])]);
}

#[test]
fn an_ordered_query_goes_on_behind_its_token_with_another_filter() {
    let (_emulator, mut client) = with_container();
    for n in 0..9 {
        client.create(&json!({"id": format!("i{n}"), "pk": "p", "s": n / 2})).expect(201);
    }
    let ask = |client: &mut Client, filter: &str, token: &str| {
        let text = format!(
            "SELECT c._rid, [{{\"item\": c.s}}] AS orderByItems, c.id AS payload FROM c WHERE ({filter}) ORDER BY c.s"
        );
        let asked =
            client.question(&json!({"query": text})).header("x-ms-documentdb-partitionkeyrangeid", "0");
        let answer =
            asked.header("x-ms-max-item-count", "3").header("x-ms-continuation", token).send().expect(200);
        let ids: Vec<_> =
            rows(&answer).iter().map(|row| row["payload"].as_str().unwrap().to_owned()).collect();
        (ids, answer.header("x-ms-continuation").to_owned())
    };
    let (first, token) = ask(&mut client, "true", "");
    assert_eq!(first, ["i0", "i1", "i2"]);
    let (second, token) = ask(&mut client, "c.s >= 1", &token);
    assert_eq!(second, ["i3", "i4", "i5"]);
    let (third, _) = ask(&mut client, "c.s >= 2 OR true", &token);
    assert_eq!(third, ["i6", "i7", "i8"]);
}

#[test]
fn an_ordered_query_takes_its_token_with_another_parameter() {
    let (_emulator, mut client) = with_container();
    for n in 0..6 {
        client.create(&json!({"id": format!("i{n}"), "pk": "p", "s": n})).expect(201);
    }
    let ask = |client: &mut Client, least: u32, token: &str| {
        let question = json!({"query": "SELECT VALUE c.s FROM c WHERE c.s >= @least ORDER BY c.s",
            "parameters": [{"name": "@least", "value": least}]});
        let asked = client.question(&question).key("p").header("x-ms-max-item-count", "2");
        let answer = asked.header("x-ms-continuation", token).send().expect(200);
        (rows(&answer), answer.header("x-ms-continuation").to_owned())
    };
    let (first, token) = ask(&mut client, 0, "");
    assert_eq!(first, [0, 1].map(Value::from));
    assert_eq!(ask(&mut client, 1, &token).0, [2, 3].map(Value::from));
}

#[test]
fn a_resume_filter_goes_on_behind_the_row_it_names() {
    let (_emulator, mut client) = with_container();
    let mut rids = Vec::new();
    for n in 0..6 {
        let made = client.create(&json!({"id": format!("i{n}"), "pk": "p", "s": n / 2})).expect(201);
        rids.push(made.json()["_rid"].as_str().unwrap().to_owned());
    }
    let mut ask = |direction: &str, filter: Value| {
        let text = format!("SELECT VALUE c.id FROM c ORDER BY c.s {direction}");
        let question = json!({"query": text, "resumeFilter": filter});
        texts(
            &client.question(&question).header("x-ms-documentdb-partitionkeyrangeid", "0").send().expect(200),
        )
    };
    let behind =
        |value: u32, rid: &str, exclude: bool| json!({"value": [value], "rid": rid, "exclude": exclude});
    assert_eq!(ask("ASC", behind(1, "", true)), ["i4", "i5"]);
    assert_eq!(ask("ASC", behind(1, "", false)), ["i2", "i3", "i4", "i5"]);
    assert_eq!(ask("ASC", behind(1, &rids[2], true)), ["i3", "i4", "i5"]);
    assert_eq!(ask("ASC", behind(1, &rids[3], false)), ["i3", "i4", "i5"]);
    assert_eq!(ask("DESC", behind(1, "", true)), ["i1", "i0"]);
    assert_eq!(ask("DESC", behind(1, &rids[3], true)), ["i2", "i1", "i0"]);
    let wrong = json!({"query": "SELECT * FROM c ORDER BY c.s", "resumeFilter": {"value": [1, 2]}});
    client.question(&wrong).key("p").send().expect(400);
}

#[test]
fn keys_of_old_containers_may_be_longer_than_what_is_hashed() {
    let fields = json!({"partitionKey": {"paths": ["/pk"], "kind": "Hash"}});
    let (_emulator, mut client) = container_with(Config::default(), &fields);
    let long = "k".repeat(150);
    client.create(&json!({"id": "a", "pk": long})).expect(201);
    client.get("/dbs/d/colls/c/docs/a").key(&long).send().expect(200);
}

#[test]
fn throughput_at_creation_makes_as_many_partitions_as_the_service() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    for (throughput, partitions) in [("400", 1), ("10000", 1), ("21000", 4), ("25100", 5), ("30000", 5)] {
        let body =
            json!({"id": throughput, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
        client.post("/dbs/d/colls", &body).header("x-ms-offer-throughput", throughput).send().expect(201);
        let ranges = client.get(&format!("/dbs/d/colls/{throughput}/pkranges")).send().expect(200).json();
        assert_eq!(ranges["PartitionKeyRanges"].as_array().unwrap().len(), partitions, "{throughput}");
    }
}

#[test]
fn policies_that_the_service_refuses_are_refused_in_its_words() {
    let embedding = |field: &str, value: Value| {
        let mut embedding =
            json!({"path": "/v", "dataType": "float32", "dimensions": 8, "distanceFunction": "cosine"});
        embedding[field] = value;
        json!({"vectorEmbeddingPolicy": {"vectorEmbeddings": [embedding]}})
    };
    for (fields, part) in [
        (embedding("dataType", json!("float33")), "Vector Embedding Policy has an invalid DataType"),
        (embedding("dimensions", json!(-1)), "The Vector Embedding Policy has Dimensions:-1"),
        (
            embedding("distanceFunction", json!("handMeasured")),
            "The Vector Embedding Policy has an invalid DistanceFunction:handMeasured",
        ),
        (
            json!({"indexingPolicy": {"vectorIndexes": [{"path": "/vector1", "type": "flat"}]}}),
            "vector1 not matching in Embedding's path",
        ),
        (
            json!({"fullTextPolicy": {"defaultLanguage": "en-US", "fullTextPaths": [{"path": "abstract"}]}}),
            "The Full Text Policy contains an invalid Path: abstract",
        ),
        (json!({"fullTextPolicy": {"defaultLanguage": "spa-SPA"}}), "spa-SPA"),
        (
            json!({"geospatialConfig": {"type": "Geometry"},
                "indexingPolicy": {"spatialIndexes": [{"path": "/g/*", "types": ["Point"]}]}}),
            "boundingBox",
        ),
        (json!({"partitionKey": {"paths": ["/id ds"], "kind": "Hash"}}), "'/id ds' could not be accepted"),
        (json!({"partitionKey": {"paths": ["/a/*"], "kind": "Hash"}}), "'/a/*' could not be accepted"),
        (json!({"partitionKey": {"paths": ["/a/[]"], "kind": "Hash"}}), "'/a/[]' could not be accepted"),
        (json!({"indexingPolicy": {"indexingMode": "none", "automatic": false}, "defaultTtl": 5}), "'none'"),
        (
            json!({"id": "x".repeat(300)}),
            "Ensure to provide a unique non-empty string less than '255' characters.",
        ),
    ] {
        let message = refused(&fields);
        assert!(message.contains(part), "{fields}: {message}");
    }
    // What the service takes is taken.
    let (_emulator, mut client) = with_container();
    let body = json!({"id": "fine", "partitionKey": {"paths": ["/\"a b\""], "kind": "Hash", "version": 2},
        "geospatialConfig": {"type": "Geometry"}, "indexingPolicy": {"spatialIndexes": [{"path": "/g/*",
            "types": ["Point"], "boundingBox": {"xmin": 0, "ymin": 0, "xmax": 9, "ymax": 9}}]}});
    client.post("/dbs/d/colls", &body).send().expect(201);
}

#[test]
fn vector_policies_stay_as_they_were_made() {
    let fields = json!({
        "vectorEmbeddingPolicy": {"vectorEmbeddings": [
            {"path": "/v", "dataType": "float32", "dimensions": 8, "distanceFunction": "cosine"}]},
        "indexingPolicy": {"vectorIndexes": [{"path": "/v", "type": "flat"}]}});
    let (_emulator, mut client) = container_with(Config::default(), &fields);
    let made = client.get("/dbs/d/colls/c").send().expect(200).json();
    for (pointer, value, part) in [
        (
            "/indexingPolicy/vectorIndexes/0/type",
            json!("quantizedFlat"),
            "existing vector indexing policy cannot be modified",
        ),
        (
            "/vectorEmbeddingPolicy/vectorEmbeddings/0/dimensions",
            json!(9),
            "existing embedding policy cannot be modified",
        ),
    ] {
        let mut body = made.clone();
        *body.pointer_mut(pointer).unwrap() = value;
        let message = client.put("/dbs/d/colls/c", &body).send().expect(400).message();
        assert!(message.contains(part), "{message}");
    }
    client.put("/dbs/d/colls/c", &made).send().expect(200);
}

#[test]
fn what_depends_on_a_group_key_may_be_selected_and_groups_may_be_ordered() {
    let (_emulator, mut client) = with_container();
    for (id, city, n) in [("a", "x", 1), ("b", "y", 5), ("c", "x", 2), ("d", "z", 0)] {
        client.create(&json!({"id": id, "pk": "p", "o": {"city": city, "tags": [city]}, "n": n})).expect(201);
    }
    let mut ask = |text: &str| rows(&client.question(&json!({"query": text})).key("p").send().expect(200));
    let mut cities = ask("SELECT c.o.city, c.o.tags[0] AS tag FROM c GROUP BY c.o");
    cities.sort_by_key(Value::to_string);
    assert_eq!(cities[0], json!({"city": "x", "tag": "x"}));
    assert_eq!(
        ask("SELECT c.o.city AS city, SUM(c.n) AS n FROM c GROUP BY c.o.city ORDER BY c.o.city DESC"),
        [json!({"city": "z", "n": 0}), json!({"city": "y", "n": 5}), json!({"city": "x", "n": 3})]
    );
    assert_eq!(
        ask("SELECT VALUE c.o.city FROM c GROUP BY c.o.city ORDER BY SUM(c.n) DESC OFFSET 1 LIMIT 1"),
        [json!("x")]
    );
    let (_emulator, mut client) = with_container();
    let refused =
        client.question(&json!({"query": "SELECT c.a FROM c GROUP BY c.b"})).key("p").send().expect(400);
    assert!(refused.message().contains("SC2102"));
    let refused =
        client.question(&json!({"query": "SELECT c.a FROM c GROUP BY c.a ORDER BY c.b"})).key("p").send();
    assert!(refused.expect(400).message().contains("SC2102"));
    let planned =
        plan(&mut client, "SELECT c.a, COUNT(1) FROM c GROUP BY c.a ORDER BY c.a ASC").expect(200).json();
    assert_eq!(planned["queryInfo"]["orderBy"], json!(["Ascending"]));
    assert_eq!(planned["queryInfo"]["groupByExpressions"], json!(["c.a"]));
}

#[test]
fn counts_beyond_31_bits_are_refused() {
    let (_emulator, mut client) = with_container();
    for text in [
        "SELECT TOP 2147483648 * FROM c",
        "SELECT * FROM c OFFSET 2147483648 LIMIT 1",
        "SELECT * FROM c OFFSET 0 LIMIT 2147483648",
    ] {
        client.question(&json!({"query": text})).key("p").send().expect(400);
        client
            .question(&json!({"query": text.replace("2147483648", "2147483647")}))
            .key("p")
            .send()
            .expect(200);
        let parameter = json!({"query": text.replace("2147483648", "@n"),
            "parameters": [{"name": "@n", "value": 2_147_483_648_u64}]});
        client.question(&parameter).key("p").send().expect(400);
    }
}

#[test]
fn an_order_that_no_index_has_is_not_planned() {
    let (_emulator, mut client) = with_container();
    let message =
        plan(&mut client, "SELECT * FROM c WHERE c.pk = 'k' ORDER BY LOWER(c.a)").expect(400).message();
    assert!(message.contains("ORDER BY item expression could not be mapped to a document path"), "{message}");
}

#[test]
fn an_id_with_a_question_mark_may_come_as_it_is() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a?b", "pk": "p"})).expect(201);
    let read = client.get("/dbs/d/colls/c/docs/a?b").key("p").send().expect(200);
    assert_eq!(read.json()["id"], "a?b");
    client.get("/dbs/d/colls/c/docs/a%3Fb").key("p").send().expect(200);
    client.get("/dbs/d/colls/c/docs/a?c").key("p").send().expect(404);
}

#[test]
fn a_head_is_answered_like_a_get_without_its_body() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "p"})).expect(201);
    for path in ["/dbs/d", "/dbs/d/colls/c", "/dbs/d/colls/c/docs/a"] {
        let mut stream = std::io::BufReader::new(
            client.request("HEAD", path).key("p").header("connection", "close").send_only(),
        );
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        assert!(head.to_ascii_lowercase().contains("etag:"), "{path}: {head}");
        assert_eq!(body, "", "{path}");
    }
}

#[test]
fn who_sends_neither_key_nor_version_is_told_what_is_missing() {
    let (_emulator, mut client) = with_container();
    for path in ["/", "/dbs", "/dbs/d/colls/c/docs/a", "/nowhere"] {
        let answer = client.get(path).unsigned().header("x-ms-version", "").send().expect(401);
        assert!(
            answer.message().contains("Required Header authorization is missing"),
            "{}",
            answer.message()
        );
    }
    let signed = client.get("/dbs").header("x-ms-version", "").send().expect(400);
    assert!(signed.message().contains("x-ms-version"));
}

#[test]
fn quota_headers_count_what_a_container_holds() {
    let (_emulator, mut client) = with_container();
    for n in 0..3 {
        client.create(&json!({"id": n.to_string(), "pk": "p", "text": "x".repeat(2_000)})).expect(201);
    }
    let read =
        client.get("/dbs/d/colls/c").header("x-ms-documentdb-populatequotainfo", "true").send().expect(200);
    let usage = read.header("x-ms-resource-usage");
    assert!(usage.contains("documentsCount=3;") && usage.contains("documentsSize=7;"), "{usage}");
    assert!(usage.contains("collectionSize=7;"), "{usage}");
    let quota = read.header("x-ms-resource-quota");
    assert!(quota.contains("documentsCount=-1;") && quota.contains("collectionSize=10485760;"), "{quota}");
}

#[test]
fn behind_a_full_last_page_of_all_partitions_comes_an_empty_one() {
    let (_emulator, mut client) = container_with(Config::default().with_partitions(2), &json!({}));
    for n in 0..4 {
        client.create(&json!({"id": n.to_string(), "pk": n.to_string()})).expect(201);
    }
    let question = json!({"query": "SELECT c.id FROM c"});
    let (mut token, mut pages) = (String::new(), Vec::new());
    loop {
        let asked = client.question(&question).header("x-ms-max-item-count", "1");
        let answer = asked.header("x-ms-continuation", &token).send().expect(200);
        pages.push(rows(&answer).len());
        token = answer.header("x-ms-continuation").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(pages.last(), Some(&0), "{pages:?}");
    assert_eq!(pages.iter().sum::<usize>(), 4);
}

#[test]
fn a_count_within_a_key_reads_no_documents() {
    let (_emulator, mut client) = with_container();
    for n in 0..25 {
        client.create(&json!({"id": n.to_string(), "pk": "p", "n": n})).expect(201);
    }
    client.create(&json!({"id": "x", "pk": "q"})).expect(201);
    let mut ask = |text: &str| {
        let asked = client.question(&json!({"query": text})).key("p");
        let answer = asked.header("x-ms-documentdb-populatequerymetrics", "true").send().expect(200);
        let metrics = answer.header("x-ms-documentdb-query-metrics");
        (rows(&answer), metrics.contains("retrievedDocumentCount=0;retrievedDocumentSize=0;"))
    };
    assert_eq!(ask("SELECT VALUE COUNT(1) FROM c"), (vec![json!(25)], true));
    assert_eq!(ask("SELECT VALUE [{\"item\": COUNT(1)}] FROM c"), (vec![json!([{"item": 25}])], true));
    assert_eq!(ask("SELECT VALUE COUNT(1) FROM c WHERE c.n > 20"), (vec![json!(4)], false));
    assert_eq!(ask("SELECT VALUE COUNT(c.nothing) FROM c"), (vec![json!(0)], false));
}

#[test]
fn an_account_with_a_backup_has_a_feed_of_all_versions_of_every_container() {
    let (emulator, mut client) = container_with(Config::default().with_continuous_backup(), &json!({}));
    assert_eq!(client.get("/").send().expect(200).json()["continuousBackupEnabled"], true);
    let feed = |client: &mut Client, etag: &str| {
        client
            .get(ITEMS)
            .header("a-im", "Full-Fidelity Feed")
            .header("x-ms-cosmos-changefeed-wire-format-version", "2021-09-15")
            .header("x-ms-documentdb-partitionkeyrangeid", "0")
            .header("if-none-match", etag)
            .send()
    };
    let start = feed(&mut client, "*").expect(304).header("etag").to_owned();
    client.create(&json!({"id": "a", "pk": "p"})).expect(201);
    client.delete("/dbs/d/colls/c/docs/a").key("p").send().expect(204);
    let seen = feed(&mut client, &start).expect(200);
    let kinds: Vec<_> = rows(&seen).iter().map(|row| row["metadata"]["operationType"].clone()).collect();
    assert_eq!(kinds, ["create", "delete"].map(Value::from));
    drop(emulator);
    let (_emulator, mut client) = with_container();
    assert_eq!(client.get("/").send().expect(200).json()["continuousBackupEnabled"], false);
    let message = feed(&mut client, "*").expect(400).message();
    assert!(message.contains("Full fidelity change feed is not enabled"), "{message}");
}

#[test]
fn computed_properties_are_seen_by_queries_and_by_nobody_else() {
    let fields = json!({
        "indexingPolicy": {"includedPaths": [{"path": "/*"}, {"path": "/lower/?"}]},
        "computedProperties": [
            {"name": "lower", "query": "SELECT VALUE LOWER(c.s) FROM c"},
            {"name": "twice", "query": "SELECT VALUE x.n * 2 FROM x"}]});
    let (_emulator, mut client) = container_with(Config::default(), &fields);
    for (id, s, n) in [("1", "B", 1), ("2", "a", 2), ("3", "b", 3)] {
        client.create(&json!({"id": id, "pk": "p", "s": s, "n": n})).expect(201);
    }
    let shown = client.get("/dbs/d/colls/c").send().expect(200).json();
    assert_eq!(shown["computedProperties"], fields["computedProperties"]);
    let mut ask = |text: &str| client.question(&json!({"query": text})).key("p").send();
    assert_eq!(texts(&ask("SELECT VALUE r.id FROM r WHERE r.lower = 'b'").expect(200)), ["1", "3"]);
    assert_eq!(texts(&ask("SELECT VALUE c.id FROM c WHERE c['twice'] > 2").expect(200)), ["2", "3"]);
    assert_eq!(texts(&ask("SELECT VALUE c.lower FROM c ORDER BY c.lower DESC").expect(200)), ["b", "b", "a"]);
    assert_eq!(
        rows(&ask("SELECT c.lower, COUNT(1) AS n FROM c GROUP BY c.lower ORDER BY c.lower").expect(200)),
        [json!({"lower": "a", "n": 1}), json!({"lower": "b", "n": 2})]
    );
    assert_eq!(rows(&ask("SELECT * FROM c WHERE c.id = '1'").expect(200))[0].get("lower"), None);
    assert!(ask("SELECT * FROM c ORDER BY c.twice").expect(400).message().contains("excluded"));
    for wrong in [
        json!([{"name": "a"}]),
        json!([{"name": "id", "query": "SELECT VALUE c.a FROM c"}]),
        json!([{"name": "a", "query": "SELECT c.a FROM c"}]),
        json!([{"name": "a", "query": "SELECT VALUE c.a FROM c WHERE c.b"}]),
        json!([{"name": "a", "query": "SELECT VALUE COUNT(1) FROM c"}]),
        json!([{"name": "a", "query": "SELECT VALUE NOTHING(c.a) FROM c"}]),
    ] {
        refused(&json!({"computedProperties": wrong}));
    }
}

#[test]
fn throughput_below_zero_is_too_little_and_not_a_wrong_header() {
    let (_emulator, mut client) = with_container();
    let body = json!({"id": "other", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    let asked = client.post("/dbs/d/colls", &body);
    let refused =
        asked.header("x-ms-cosmos-offer-autopilot-settings", "{\"maxThroughput\": -200}").send().expect(400);
    let expected = "Requested throughput -200 is less than required minimum throughput 1000";
    assert!(refused.message().contains(expected), "{}", refused.message());
}

#[test]
fn who_takes_only_binary_gets_binary() {
    const FORMATS: &str = "x-ms-cosmos-supported-serialization-formats";
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "p", "n": [1, 2.5, "x", null]})).expect(201);
    let path = format!("{ITEMS}/a");
    let text = client.get(&path).key("p").header(FORMATS, "JsonText,CosmosBinary").send().expect(200).json();
    for (header, value) in
        [(FORMATS, "CosmosBinary"), ("x-ms-documentdb-content-serialization-format", "CosmosBinary")]
    {
        let read = client.get(&path).key("p").header(header, value).send().expect(200);
        assert_eq!(cosmos_wire::binary_json::decode(&read.body).unwrap(), text, "{header}");
        let found =
            client.question(&json!({"query": "SELECT * FROM c"})).key("p").header(header, value).send();
        let found = cosmos_wire::binary_json::decode(&found.expect(200).body).unwrap();
        assert_eq!(found["Documents"], json!([text]), "{header}");
    }
    let missing =
        client.get(&format!("{ITEMS}/b")).key("p").header(FORMATS, "CosmosBinary").send().expect(404);
    assert!(missing.json()["message"].is_string(), "failures are told in text");
    client.delete(&path).key("p").header(FORMATS, "CosmosBinary").send().expect(204);
}

#[test]
fn a_continuation_of_the_service_begins_at_the_start() {
    let (_emulator, mut client) = with_container();
    client.create(&json!({"id": "a", "pk": "p"})).expect(201);
    let token = "-RID:~a0NPAOszCpOChB4AAAAAAA==#RT:1#TRC:2#ISV:2#IEO:65567#QCF:8";
    let mut ask = |token: &str| {
        client
            .question(&json!({"query": "SELECT VALUE c.id FROM c"}))
            .key("p")
            .header("x-ms-continuation", token)
            .send()
    };
    assert_eq!(texts(&ask(token).expect(200)), ["a"]);
    ask("RID:nonsense").expect(400);
}
