//! Query plans: ranges, rewritten queries, refusals; and the plans of the real service, where a file of them is at
//! hand.

use cosmos_wire::partition_key::{Definition, Kind, Version};
use serde_json::{Value, json};

use super::super::parse;
use super::super::plan::{Features, GatewayRequest, QueryPlan, Verdict, gateway_verdict, plan};
use crate::Failure;

fn plan_of(text: &str, paths: &[&str]) -> Result<QueryPlan, Failure> {
    let kind = if paths.len() > 1 { Kind::MultiHash } else { Kind::Hash };
    let definition = Definition::new(paths, kind, Version::V2).expect("a definition");
    plan(&parse(text)?, &[("@p".to_owned(), json!("redmond"))], &definition, &Features::all())
}

fn ranges(text: &str, paths: &[&str]) -> Vec<(String, String)> {
    let plan = plan_of(text, paths).expect("a plan");
    plan.query_ranges.into_iter().map(|range| (range.min, range.max)).collect()
}

#[test]
fn a_key_in_the_filter_is_one_place() {
    let redmond = "22E342F38A486A088463DFF7838A5963";
    for text in [
        "SELECT * FROM c WHERE c.pk = 'redmond'",
        "SELECT * FROM c WHERE c.a > 5 AND @p = c[\"pk\"]",
        "SELECT * FROM c WHERE c.pk IN (@p) ORDER BY c.a",
        "SELECT VALUE 1 FROM c JOIN t IN c.tags WHERE c.pk = 'redmond' AND (t = 1 OR t = 2)",
    ] {
        assert_eq!(ranges(text, &["/pk"]), [(redmond.to_owned(), redmond.to_owned())], "{text}");
    }
    for text in
        ["SELECT * FROM c", "SELECT * FROM c WHERE c.pk = 'x' OR c.a = 1", "SELECT * FROM c WHERE c.pk > 1"]
    {
        assert_eq!(ranges(text, &["/pk"]), [(String::new(), "FF".to_owned())], "{text}");
    }
    assert_eq!(ranges("SELECT * FROM c WHERE c.pk IN ('a', 'b', 5)", &["/pk"]).len(), 3);
    assert_eq!(
        ranges("SELECT * FROM c WHERE c.pk = 1 AND c.pk = 2", &["/pk"]),
        [(String::new(), String::new())]
    );
}

#[test]
fn a_prefix_of_a_hierarchical_key_is_a_range() {
    let both = "3A5381E1114EB8D3FCC90795045B49B7195644569A78B1E22D200348AF9416CE";
    let paths = &["/t", "/u"];
    assert_eq!(ranges("SELECT * FROM c WHERE c.t = 'a' AND c.u = 'b'", paths), [(both.into(), both.into())]);
    let prefix = both[..32].to_owned();
    let end = format!("{prefix}FF");
    assert_eq!(ranges("SELECT * FROM c WHERE c.t = 'a'", paths), [(prefix, end)]);
    assert_eq!(ranges("SELECT * FROM c WHERE c.u = 'b'", paths), [(String::new(), "FF".to_owned())]);
}

#[test]
fn a_plan_is_written_as_the_service_writes_it() {
    let plan = plan_of("SELECT TOP 3 c.a FROM c WHERE c.n > 1 ORDER BY c.n DESC", &["/pk"]).unwrap();
    let expected = json!({
        "partitionedQueryExecutionInfoVersion": 2,
        "queryInfo": {
            "distinctType": "None", "top": 3, "offset": null, "limit": null,
            "orderBy": ["Descending"], "orderByExpressions": ["c.n"],
            "groupByExpressions": [], "groupByAliases": [], "aggregates": [], "groupByAliasToAggregateType": {},
            "rewrittenQuery": "SELECT TOP 3 c._rid, [{\"item\": c.n}] AS orderByItems, {\"a\": c.a} AS payload\nFROM c\n\
                WHERE ((c.n > 1) AND ({documentdb-formattableorderbyquery-filter}))\nORDER BY c.n DESC",
            "hasSelectValue": false, "dCountInfo": null, "hasNonStreamingOrderBy": false
        },
        "queryRanges": [{"min": "", "max": "FF", "isMinInclusive": true, "isMaxInclusive": false}],
        "hybridSearchQueryInfo": null
    });
    assert_eq!(serde_json::to_string(&plan).unwrap(), expected.to_string());
}

#[test]
fn distinct_rows_follow_each_other_only_where_they_are_sorted_by_their_value() {
    for (text, expected) in [
        ("SELECT DISTINCT VALUE c.a FROM c ORDER BY c.a DESC", "Ordered"),
        ("SELECT DISTINCT VALUE c.a FROM c ORDER BY c.b", "Unordered"),
        ("SELECT DISTINCT VALUE c.a FROM c ORDER BY c.a, c.b", "Unordered"),
        ("SELECT DISTINCT c.a FROM c ORDER BY c.a", "Unordered"),
        ("SELECT DISTINCT VALUE 1 FROM c", "Unordered"),
        ("SELECT DISTINCT VALUE 1", "None"),
    ] {
        let info = plan_of(text, &["/pk"]).unwrap().query_info;
        assert_eq!(serde_json::to_value(info.distinct_type).unwrap(), expected, "{text}");
    }
}

#[test]
fn partitions_do_not_cut_what_the_client_makes_distinct() {
    for (text, expected) in [
        ("SELECT DISTINCT TOP 5 c.a FROM c", "SELECT DISTINCT c.a\nFROM c"),
        ("SELECT DISTINCT c.a FROM c OFFSET 1 LIMIT 2", "SELECT DISTINCT c.a\nFROM c"),
        ("SELECT DISTINCT c.a FROM c", ""),
    ] {
        assert_eq!(plan_of(text, &["/pk"]).unwrap().query_info.rewritten_query, expected, "{text}");
    }
    let ordered =
        plan_of("SELECT DISTINCT c.a FROM c ORDER BY c.b OFFSET 1 LIMIT 2", &["/pk"]).unwrap().query_info;
    assert!(!ordered.rewritten_query.contains("LIMIT"), "{}", ordered.rewritten_query);
    assert_eq!((ordered.offset, ordered.limit), (Some(1), Some(2)));
}

#[test]
fn distinct_values_are_counted_by_the_client() {
    let plan = plan_of("SELECT COUNT(1) AS n FROM (SELECT DISTINCT VALUE c.a FROM c)", &["/pk"]).unwrap();
    let info = serde_json::to_value(&plan.query_info).unwrap();
    assert_eq!(info["dCountInfo"], json!({"dCountAlias": "n"}));
    assert_eq!((&info["distinctType"], &info["hasSelectValue"]), (&json!("Unordered"), &json!(false)));
    assert_eq!(info["rewrittenQuery"], "SELECT DISTINCT VALUE c.a\nFROM c");
    let ordered = plan_of("SELECT DISTINCT VALUE c.a FROM c ORDER BY c.a", &["/pk"]).unwrap();
    assert_eq!(serde_json::to_value(ordered.query_info.distinct_type).unwrap(), "Ordered");
}

#[test]
fn a_client_without_a_feature_is_told() {
    let definition = Definition::hash("/pk").unwrap();
    let query = parse("SELECT * FROM c ORDER BY c.a").unwrap();
    let refused = plan(&query, &[], &definition, &Features::parse(Some("Top, Distinct"))).unwrap_err();
    assert_eq!(
        refused.message,
        "Query contains 1 or more unsupported features. Upgrade your SDK to a version that does support the requested \
         features:\nQuery contained OrderBy, which the calling client does not support."
    );
    assert!(plan(&query, &[], &definition, &Features::parse(Some("top,ORDERBY"))).is_ok());
}

#[test]
fn the_gateway_serves_what_it_can_and_refuses_the_rest() {
    let verdict = |text: &str, enabled: bool| {
        let request = GatewayRequest { cross_partition_enabled: enabled, ..GatewayRequest::default() };
        match gateway_verdict(&plan_of(text, &["/pk"]).expect("a plan"), request) {
            Verdict::Serve => (200, 0, false),
            Verdict::Refuse(failure) => {
                (failure.status, failure.sub_status, failure.additional_error_info.is_some())
            }
        }
    };
    let (served, disabled, to_client) = ((200, 0, false), (400, 0, true), (400, 1004, true));
    let cases = [
        ("SELECT * FROM c WHERE c.a = 1", true, served),
        ("SELECT VALUE t FROM c JOIN t IN c.tags", true, served),
        ("SELECT * FROM c", false, disabled),
        ("SELECT * FROM c WHERE c.pk = 'x'", false, served),
        ("SELECT TOP 1 * FROM c", true, to_client),
        ("SELECT * FROM c ORDER BY c.a", true, to_client),
        ("SELECT VALUE COUNT(1) FROM c", true, to_client),
        ("SELECT DISTINCT c.a FROM c", true, to_client),
        ("SELECT * FROM c OFFSET 1 LIMIT 1", true, to_client),
        ("SELECT VALUE c.a FROM c GROUP BY c.a", true, to_client),
        ("SELECT TOP 1 * FROM c WHERE c.pk = 'x' ORDER BY c.a", true, served),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.pk = 'x'", true, served),
        ("SELECT DISTINCT c.a FROM c WHERE c.pk = 'x'", true, to_client),
        ("SELECT COUNT(1) FROM c", true, (400, 0, false)),
        ("SELECT c.a, COUNT(1) FROM c GROUP BY c.a", true, (400, 0, false)),
    ];
    for (text, enabled, expected) in cases {
        assert_eq!(verdict(text, enabled), expected, "{text}");
    }
}

/// One line of the service's plans: group, query, key paths, rewritten query or error, query info, ranges.
struct Vector<'t> {
    query: &'t str,
    paths: Vec<String>,
    outcome: &'t str,
    info: Value,
    ranges: Vec<String>,
}

impl<'t> Vector<'t> {
    fn read(line: &'t str) -> Self {
        let fields: Vec<&str> = line.split('\t').collect();
        // The lists are written as Python writes them, with single quotes around each element.
        let list = |text: &str| -> Vec<String> {
            let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
            let inner = if text.starts_with("['") { &text[2..text.len() - 2] } else { inner };
            inner.split("', '").filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let mut info = serde_json::Map::new();
        for entry in fields[4].trim_matches(['{', '}']).split("', '") {
            if let Some((name, value)) = entry.split_once("': '") {
                info.insert(name.trim_matches('\'').to_owned(), value.trim_matches('\'').into());
            }
        }
        Self {
            query: fields[1],
            paths: list(fields[2]),
            outcome: fields[3],
            info: info.into(),
            ranges: list(fields[5]),
        }
    }

    /// What differs, if anything.
    fn check(&self) -> Result<(), String> {
        let parameters = [("@TOPCOUNT".to_owned(), json!(42)), ("@LIKEPATTERN".to_owned(), json!("a%"))];
        let paths: Vec<&str> = self.paths.iter().map(String::as_str).collect();
        let paths = if paths.is_empty() { vec!["/none"] } else { paths };
        let kind = if paths.len() > 1 { Kind::MultiHash } else { Kind::Hash };
        let definition = Definition::new(&paths, kind, Version::V2).map_err(|error| error.reason)?;
        let planned =
            parse(self.query).and_then(|query| plan(&query, &parameters, &definition, &Features::all()));
        let error = self.outcome.strip_prefix("ERR ");
        match (planned, error) {
            (Err(failure), Some(expected)) => same_error(&failure.message, expected),
            (Err(failure), None) => Err(format!("refused: {}", failure.message)),
            // The service's own client could not read counts beyond its 32 bits; the plan itself is there.
            (Ok(plan), Some(expected)) if expected.starts_with("{\"queryInfo\"") => {
                let expected: Value = serde_json::from_str(expected).map_err(|error| error.to_string())?;
                let rewritten = expected["queryInfo"]["rewrittenQuery"].as_str().unwrap_or_default();
                same("rewritten", &plan.query_info.rewritten_query, rewritten)
            }
            (Ok(_), Some(expected)) => Err(format!("should be refused: {expected}")),
            (Ok(plan), None) => self.same_plan(&plan),
        }
    }

    fn same_plan(&self, plan: &QueryPlan) -> Result<(), String> {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        same("rewritten", &flat(&plan.query_info.rewritten_query), &flat(self.outcome))?;
        let info = serde_json::to_value(&plan.query_info).map_err(|error| error.to_string())?;
        let joined = |name: &str| {
            let items = info[name].as_array().cloned().unwrap_or_default();
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
        };
        let expected = |name: &str| self.info[name].as_str().unwrap_or_default();
        for (ours, theirs) in [
            ("orderBy", "OrderBy"),
            ("orderByExpressions", "OrderByExpressions"),
            ("groupByExpressions", "GroupByExpressions"),
            ("groupByAliases", "GroupByAliases"),
            ("aggregates", "Aggregates"),
        ] {
            same(theirs, &joined(ours), expected(theirs))?;
        }
        for (ours, theirs) in [("top", "Top"), ("offset", "Offset"), ("limit", "Limit")] {
            let count = info[ours].as_u64().map(|count| count.to_string()).unwrap_or_default();
            same(theirs, &count, expected(theirs))?;
        }
        let distinct =
            if info["distinctType"] == "None" { "" } else { info["distinctType"].as_str().unwrap_or("") };
        same("DistinctType", distinct, expected("DistinctType"))?;
        let has_value = if info["hasSelectValue"] == true { "True" } else { "False" };
        same("HasSelectValue", has_value, expected("HasSelectValue"))?;
        if self.paths.len() > 1 && self.ranges == ["[[],\"Infinity\")"] {
            return Err("a key of a kind that no longer exists: Hash over several paths".to_owned());
        }
        same("ranges", &self.our_ranges(plan), &self.their_ranges()?)
    }

    fn our_ranges(&self, plan: &QueryPlan) -> String {
        let mut ranges: Vec<String> = plan
            .query_ranges
            .iter()
            .map(|range| {
                format!("{}..{}{}", range.min, range.max, if range.is_max_inclusive { "=" } else { "" })
            })
            .collect();
        ranges.sort();
        ranges.join(" ")
    }

    /// The service's ranges hold values; hashed, they are what a plan over the wire holds.
    fn their_ranges(&self) -> Result<String, String> {
        let mut ranges = Vec::new();
        for text in &self.ranges {
            let body = text.replace("\"Infinity\")", "[\"Infinity\"]]");
            let bounds: Value = serde_json::from_str(&body).map_err(|_| old_kind(text))?;
            if bounds[1] == json!(["Infinity"]) {
                ranges.push("..FF".to_owned());
                continue;
            }
            if bounds[0] != bounds[1] {
                return Err(old_kind(text));
            }
            let key: Vec<Value> = bounds[0].as_array().cloned().unwrap_or_default();
            let components: Vec<_> = key
                .iter()
                .map(|part| cosmos_wire::partition_key::Component::from_document(Some(part)))
                .collect();
            let kind = if key.len() > 1 { Kind::MultiHash } else { Kind::Hash };
            let paths: Vec<&str> = self.paths.iter().map(String::as_str).collect();
            let epk = if components.is_empty() {
                String::new()
            } else {
                let definition = Definition::new(&paths, kind, Version::V2).map_err(|error| error.reason)?;
                cosmos_wire::epk::Epk::of(&components.into_iter().collect(), &definition).to_hex()
            };
            ranges.push(format!("{epk}..{epk}="));
        }
        ranges.sort();
        Ok(ranges.join(" "))
    }
}

fn old_kind(range: &str) -> String {
    format!("a key of a kind that no longer exists: {range}")
}

fn same(what: &str, ours: &str, theirs: &str) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}\n     ours: {ours}\n   theirs: {theirs}")) }
}

/// Codes and words must be the same, and every place as long; the file folds the blanks of the texts, which moves
/// places.
fn same_error(ours: &str, theirs: &str) -> Result<(), String> {
    let read = |text: &str| -> Value {
        let mut value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        for error in value["errors"].as_array_mut().into_iter().flatten() {
            let place = &error["location"];
            let length = place["end"].as_i64().unwrap_or(0) - place["start"].as_i64().unwrap_or(0);
            error["location"] = length.into();
        }
        value
    };
    same("error", &read(ours).to_string(), &read(theirs).to_string())
}

/// What is known to differ: the distance to a polygon is computed otherwise, hybrid search is refused, the direction of a vector search depends on the container's
/// policy, and keys of the kind Range or with several paths of the kind Hash no longer exist.
const KNOWN: [&str; 4] = [
    "66408.034483",
    "ORDER BY RANK",
    "VectorDistance(c.embedding, [",
    "a key of a kind that no longer exists",
];

#[test]
fn plans_are_those_of_the_service() {
    let Some(path) = std::env::var_os("COSMOS_QUERY_PLAN_VECTORS") else { return };
    let text = std::fs::read_to_string(path).expect("the file named by COSMOS_QUERY_PLAN_VECTORS");
    let lines: Vec<&str> = text.lines().skip(1).filter(|line| !line.is_empty()).collect();
    let mut differences = Vec::new();
    let mut same = 0;
    for line in &lines {
        let vector = Vector::read(line);
        match vector.check() {
            Ok(()) => same += 1,
            Err(difference) => differences.push(format!("{}\n   {difference}", vector.query)),
        }
    }
    let is_known = |difference: &String| KNOWN.iter().any(|known| difference.contains(known));
    let unknown: Vec<&String> = differences.iter().filter(|difference| !is_known(difference)).collect();
    let report: Vec<&str> = unknown.iter().map(|text| text.as_str()).collect();
    assert!(unknown.is_empty(), "{same} of {} plans agree\n{}", lines.len(), report.join("\n"));
}
