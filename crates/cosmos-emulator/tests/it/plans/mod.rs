//! Query plans beside those of the service: `service.txt` has what it makes of each query.

use cosmos_emulator::{Config, Emulator};
use cosmos_wire::epk::Scope;
use cosmos_wire::partition_key::{Definition, Kind, PartitionKey, Version};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// Plans that differ: query, key and reason. A line whose plan has become equal must go.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("SELECT * FROM c GROUP BY c.age, c.name", "", "the places are those of a text with line breaks"),
    (
        "SELECT c.name, s.score, s.repeat, Count(1) AS count FROM c JOIN ( SELECT score, Count(1) AS repeat FROM score IN \
         c.scores GROUP BY score ) s GROUP BY c.name",
        "",
        "the places are those of a text with line breaks",
    ),
    ("SELECT * FROM Root r WHERE r.a.b.c", "/a/b/c /a/c", "no container can have a Hash key of two paths"),
    (
        "SELECT * FROM Root r WHERE (r.a.b.c BETWEEN 2 AND 3) AND r.a.c = 4",
        "/a/b/c /a/c",
        "no container can have a Range key",
    ),
    ("SELECT * FROM Root r WHERE r.a.c > 10", "/a/c", "no container can have a Range key"),
    ("SELECT * FROM Root r WHERE r.a.c > \"10\"", "/a/c", "no container can have a Range key"),
    (
        "SELECT * FROM c WHERE ST_DISTANCE({'type': 'Polygon', 'coordinates': [[[35, 10], [45, 45], [15, 40], [10, 20], \
         [35, 10]], [[20, 30], [35, 35], [30, 20], [20, 30]]]}, {'type': 'Point', 'coordinates': [30, 10]}) > 66408.034483",
        "/key",
        "the distance here is a little longer than that, the service's is not",
    ),
    ("SELECT TOP @TOPCOUNT * FROM c", "/key", "the value of the parameter is not told"),
];

/// One block of the file.
#[derive(Debug, Default, Clone)]
struct Case {
    query: String,
    paths: Vec<String>,
    rewritten: Option<String>,
    refused: Option<String>,
    info: Value,
    ranges: Vec<String>,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for line in include_str!("service.txt").lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "query" {
            cases.push(Case { query: rest.to_owned(), ..Case::default() });
        }
        let Some(case) = cases.last_mut() else { continue };
        match word {
            "key" => case.paths = rest.split(' ').filter(|path| *path != "-").map(str::to_owned).collect(),
            "rewritten" => case.rewritten = Some(rest.to_owned()),
            "refused" => case.refused = Some(rest.to_owned()),
            "info" => case.info = serde_json::from_str(rest).expect("JSON"),
            "range" => case.ranges.push(rest.to_owned()),
            _ => {}
        }
    }
    cases
}

/// Whitespace counts for nothing: the service breaks lines where it begins a clause.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The container of a case: one of its key, whose vectors are compared so that the nearest comes first in its order.
fn container_of(case: &Case) -> (String, Value) {
    let paths = if case.paths.is_empty() { vec!["/nothing".to_owned()] } else { case.paths.clone() };
    let kind = if paths.len() > 1 { "MultiHash" } else { "Hash" };
    let distance = if case.info["OrderBy"] == "Ascending" { "euclidean" } else { "cosine" };
    let name = format!("{distance}{}", paths.concat().replace('/', "-"));
    let body = json!({"id": name, "partitionKey": {"paths": paths, "kind": kind, "version": 2},
        "vectorEmbeddingPolicy": {"vectorEmbeddings": [{"path": "/embedding", "dataType": "float32",
            "dimensions": 8, "distanceFunction": distance}]}});
    (name, body)
}

/// `[[1.0],[1.0]]` as the effective keys of a container.
fn range_of(text: &str, paths: &[String]) -> Value {
    let definition_paths: Vec<&str> = match paths {
        [] => vec!["/nothing"],
        paths => paths.iter().map(String::as_str).collect(),
    };
    let kind = if definition_paths.len() > 1 { Kind::MultiHash } else { Kind::Hash };
    let definition = Definition::new(&definition_paths, kind, Version::V2).expect("a definition");
    let inner: Value = serde_json::from_str(&format!("[{}]", &text[1..text.len() - 1])).expect("two keys");
    let bound = |key: &Value| match key {
        Value::String(_) => "FF".to_owned(),
        key if key == &json!([]) => String::new(),
        key => {
            let Ok(key) = key.to_string().parse::<PartitionKey>() else { return "no key".to_owned() };
            match Scope::of(&key, &definition).expect("a key of the container") {
                Scope::Point(epk) => epk.to_hex(),
                Scope::Range(range) => range.min.to_hex(),
            }
        }
    };
    json!({"min": bound(&inner[0]), "max": bound(&inner[1]),
        "isMinInclusive": text.starts_with('['), "isMaxInclusive": text.ends_with(']')})
}

/// What differs between a plan and the service's; nothing if they are equal.
fn difference(case: &Case, answer: &Answer) -> Option<String> {
    if let Some(refused) = &case.refused {
        if answer.status != 400 {
            return Some(format!("planned: {}", String::from_utf8_lossy(&answer.body)));
        }
        let told = words(&answer.message());
        // A plan that the service's own client cannot read is refused here.
        let fits = refused.starts_with("{\"queryInfo\"") || told.starts_with(&words(refused));
        return (!fits).then_some(told);
    }
    if answer.status != 200 {
        return Some(format!("refused: {}", answer.message()));
    }
    let plan = answer.json();
    let info = &plan["queryInfo"];
    let rewritten = words(info["rewrittenQuery"].as_str().unwrap_or_default());
    let expected = words(case.rewritten.as_deref().unwrap_or_default());
    if rewritten != expected {
        return Some(format!("rewritten as {rewritten}, not {expected}"));
    }
    let list = |name: &str| {
        let list = info[name].as_array().cloned().unwrap_or_default();
        list.iter().map(|item| item.as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>().join(",")
    };
    let number = |name: &str| info[name].as_u64().map_or(String::new(), |number| number.to_string());
    let aggregates = || {
        let map = info["groupByAliasToAggregateType"].as_object().cloned().unwrap_or_default();
        let mut pairs: Vec<_> =
            map.iter().map(|(alias, kind)| format!("{alias}={}", kind.as_str().unwrap_or("null"))).collect();
        pairs.sort();
        pairs.join(",")
    };
    let distinct =
        info["distinctType"].as_str().filter(|kind| *kind != "None").unwrap_or_default().to_owned();
    let sorted = |text: &str| {
        let mut parts: Vec<_> = text.split(',').collect();
        parts.sort_unstable();
        parts.join(",")
    };
    for (name, own) in [
        ("DistinctType", distinct),
        ("Top", number("top")),
        ("Offset", number("offset")),
        ("Limit", number("limit")),
        ("OrderBy", list("orderBy")),
        ("OrderByExpressions", list("orderByExpressions")),
        ("GroupByExpressions", list("groupByExpressions")),
        ("GroupByAliases", list("groupByAliases")),
        ("Aggregates", list("aggregates")),
        ("GroupByAliasToAggregateType", aggregates()),
        ("HasSelectValue", if info["hasSelectValue"] == true { "True".into() } else { "False".into() }),
    ] {
        let service = case.info[name].as_str().unwrap_or_default();
        let service =
            if name == "GroupByAliasToAggregateType" { sorted(service) } else { service.to_owned() };
        let is_hybrid = case.info == json!({});
        if own != service && !is_hybrid {
            return Some(format!("{name} is '{own}', not '{service}'"));
        }
    }
    let ranges: Vec<Value> = case.ranges.iter().map(|range| range_of(range, &case.paths)).collect();
    let mut expected = ranges;
    expected.sort_by_key(|range| range["min"].as_str().unwrap_or_default().to_owned());
    let own = plan["queryRanges"].as_array().cloned().unwrap_or_default();
    (own != expected).then(|| format!("ranges are {own:?}, not {expected:?}"))
}

#[test]
fn plans_are_those_of_the_service() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let mut client = Client::new(&emulator);
    client.post("/dbs", &json!({"id": "d"})).send().expect(201);
    let (mut equal, mut wrong) = (0, Vec::new());
    for case in cases() {
        let (name, body) = container_of(&case);
        client.post("/dbs/d/colls", &body).send();
        let answer = client
            .post(&format!("/dbs/d/colls/{name}/docs"), &json!({"query": case.query}))
            .header("content-type", "application/query+json")
            .header("x-ms-cosmos-is-query-plan-request", "True")
            .header(
                "x-ms-cosmos-supported-query-features",
                "Aggregate, CompositeAggregate, Distinct, DCount, GroupBy, MultipleAggregates, MultipleOrderBy, \
                 NonValueAggregate, OffsetAndLimit, OrderBy, Top, NonStreamingOrderBy, HybridSearch, CountIf, \
                 ListAndSetAggregate, WeightedRankFusion",
            )
            .send();
        let known =
            DIFFERENT.iter().any(|(query, key, _)| *query == case.query && *key == case.paths.join(" "));
        match difference(&case, &answer) {
            None if known => wrong.push(format!("{}\n  is equal by now: take it off the list", case.query)),
            None => equal += 1,
            Some(_) if known => {}
            Some(difference) => wrong.push(format!("{} {:?}\n  {difference}", case.query, case.paths)),
        }
    }
    assert!(wrong.is_empty(), "{} plans differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(equal > 150, "only {equal} plans were compared");
}
