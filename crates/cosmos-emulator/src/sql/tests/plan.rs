//! Query plans: ranges, rewritten queries, refusals.

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

#[test]
fn queries_are_rewritten_for_clients_that_merge_the_rows_of_partitions() {
    let filter = "{documentdb-formattableorderbyquery-filter}";
    let ordered = |select: &str, condition: &str, order: &str| {
        format!("SELECT {select} AS payload\nFROM c\nWHERE {condition}\nORDER BY {order}")
    };
    let cases = [
        ("SELECT * FROM c WHERE c.a = 1", String::new(), vec![]),
        ("SELECT TOP 5 * FROM c", String::new(), vec![]),
        (
            "SELECT * FROM c ORDER BY c.a",
            ordered("c._rid, [{\"item\": c.a}] AS orderByItems, c", &format!("({filter})"), "c.a"),
            vec![],
        ),
        (
            "SELECT VALUE c.b FROM c WHERE c.a > 5 ORDER BY c.a DESC, c.b DESC",
            ordered(
                "c._rid, [{\"item\": c.a}, {\"item\": c.b}] AS orderByItems, c.b",
                &format!("(((c.a > 5) AND ({filter})) AND IS_DEFINED(c.b))"),
                "c.a DESC, c.b DESC",
            ),
            vec![],
        ),
        ("SELECT * FROM c OFFSET 2 LIMIT 3", "SELECT *\nFROM c\nOFFSET 0 LIMIT 5".to_owned(), vec![]),
        ("SELECT VALUE COUNT(1) FROM c", "SELECT VALUE [{\"item\": COUNT(1)}]\nFROM c".to_owned(), vec!["Count"]),
        (
            "SELECT VALUE AVG(c.a) FROM c",
            "SELECT VALUE [{\"item\": {\"sum\": SUM(c.a), \"count\": COUNT(c.a)}}]\nFROM c".to_owned(),
            vec!["Average"],
        ),
        (
            "SELECT VALUE MIN(c.a) FROM c",
            "SELECT VALUE [{\"item\": MIN(c.a), \"item2\": {\"min\": MIN(c.a), \"count\": COUNT(c.a)}}]\nFROM c"
                .to_owned(),
            vec!["Min"],
        ),
        (
            "SELECT SUM(c.a) AS total FROM c",
            "SELECT {\"total\": {\"item\": SUM(c.a)}} AS payload\nFROM c".to_owned(),
            vec![],
        ),
        (
            "SELECT c.k, COUNT(1) AS n FROM c GROUP BY c.k",
            "SELECT [{\"item\": c.k}] AS groupByItems, {\"k\": c.k, \"n\": {\"item\": COUNT(1)}} AS payload\nFROM c\n\
             GROUP BY c.k"
                .to_owned(),
            vec![],
        ),
    ];
    for (text, rewritten, aggregates) in cases {
        let info = serde_json::to_value(plan_of(text, &["/pk"]).unwrap().query_info).unwrap();
        assert_eq!(info["rewrittenQuery"], rewritten, "{text}");
        assert_eq!(info["aggregates"], json!(aggregates), "{text}");
    }
}

#[test]
fn what_groups_wrongly_is_refused_with_the_place() {
    let refused = plan_of("SELECT * FROM c GROUP BY c.age", &["/pk"]).unwrap_err();
    let said: Value = serde_json::from_str(&refused.message).unwrap();
    assert_eq!(
        said["errors"][0],
        json!({
            "severity": "Error",
            "location": {"start": 7, "end": 8},
            "code": "SC2041",
            "message": "'SELECT *' is not allowed with GROUP BY."
        })
    );
    let composed = plan_of("SELECT ABS(AVG(c.age)) AS a FROM c GROUP BY c.name", &["/pk"]).unwrap_err();
    assert!(composed.message.contains("Compositions of aggregates and other expressions are not allowed."));
}
