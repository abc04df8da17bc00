//! Query plans: ranges, rewritten queries, refusals.

use cosmos_wire::partition_key::{Definition, Kind, Version};
use serde_json::{Value, json};

use super::super::parse;
use super::super::plan::{Features, GatewayRequest, QueryInfo, QueryPlan, Verdict, gateway_verdict, plan};
use crate::Failure;

fn plan_of(text: &str, paths: &[&str]) -> Result<QueryPlan, Failure> {
    let kind = if paths.len() > 1 { Kind::MultiHash } else { Kind::Hash };
    let definition = Definition::new(paths, kind, Version::V2).expect("a definition");
    plan(&parse(text)?, &[("@p".to_owned(), json!("redmond"))], &definition, &Features::all())
}

/// The part of a plan that all queries but searches have.
fn info_of(text: &str) -> QueryInfo {
    plan_of(text, &["/pk"]).expect("a plan").query_info.expect("what the client does")
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
        let info = info_of(text);
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
        assert_eq!(info_of(text).rewritten_query, expected, "{text}");
    }
    let ordered = info_of("SELECT DISTINCT c.a FROM c ORDER BY c.b OFFSET 1 LIMIT 2");
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
    assert_eq!(
        serde_json::to_value(ordered.query_info.expect("what the client does").distinct_type).unwrap(),
        "Ordered"
    );
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
        let info = serde_json::to_value(info_of(text)).unwrap();
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

const STATISTICS: &str = "SELECT COUNT(1) AS documentCount, [{\"totalWordCount\": SUM(_FullTextWordCount(c.text)), \
     \"hitCounts\": [COUNTIF(FullTextContains(c.text, \"swim\")), COUNTIF(FullTextContains(c.text, \"run\"))]}] AS \
     fullTextStatistics\nFROM c";
const SCORE: &str = "_FullTextScore(c.text, [\"swim\", \"run\"], \
     {documentdb-formattablehybridsearchquery-totaldocumentcount}, \
     {documentdb-formattablehybridsearchquery-totalwordcount-0}, \
     {documentdb-formattablehybridsearchquery-hitcountsarray-0})";
const FILTER: &str = "({documentdb-formattableorderbyquery-filter})";

fn search(text: &str, features: &str) -> Value {
    let definition = Definition::new(&["/pk"], Kind::Hash, Version::V2).expect("a definition");
    let parameters = [("@w".to_owned(), json!([1, -0.3]))];
    let plan =
        plan(&parse(text).expect("a query"), &parameters, &definition, &Features::parse(Some(features)));
    let plan = serde_json::to_value(plan.expect("a plan")).unwrap();
    assert_eq!(plan["queryInfo"], Value::Null);
    plan["hybridSearchQueryInfo"].clone()
}

#[test]
fn a_search_is_planned_as_the_service_plans_it() {
    let text = "SELECT TOP 10 * FROM c ORDER BY RANK FullTextScore(c.text, \"swim\", \"run\")";
    let plan = search(text, "HybridSearch");
    assert_eq!(plan["globalStatisticsQuery"], STATISTICS);
    assert_eq!((&plan["take"], &plan["skip"]), (&json!(10), &Value::Null));
    assert_eq!((&plan["requiresGlobalStatistics"], &plan["componentWeights"]), (&json!(true), &json!([])));
    let [component] = plan["componentQueryInfos"].as_array().unwrap().as_slice() else { panic!("{plan}") };
    assert_eq!((&component["top"], &component["orderBy"]), (&json!(120), &json!(["Descending"])));
    assert_eq!(component["orderByExpressions"], json!([SCORE]));
    assert_eq!(component["hasNonStreamingOrderBy"], true);
    assert_eq!(
        component["rewrittenQuery"],
        format!(
            "SELECT TOP 120 c._rid, [{{\"item\": {SCORE}}}] AS orderByItems, {{\"payload\": c, \"componentScores\": \
             [({SCORE} ?? -1)]}} AS payload\nFROM c\nWHERE {FILTER}\nORDER BY {SCORE} DESC"
        )
    );
    let lone = search(text, "HybridSearch, HybridSearchSkipOrderByRewrite");
    let lone = lone["componentQueryInfos"][0]["rewrittenQuery"].as_str().unwrap().to_owned();
    assert!(lone.contains("\"componentScores\": []} AS payload"), "{lone}");
}

#[test]
fn scores_that_are_fused_are_planned_as_the_service_plans_them() {
    let text = "SELECT c.a FROM c WHERE c.n = 1 ORDER BY RANK RRF(VectorDistance(c.v, [1, 2]), VectorDistance(c.w, \
                @v), @w) OFFSET 5 LIMIT 200";
    let features = "HybridSearch, WeightedRankFusion";
    let plan = search(text, features);
    assert_eq!(
        plan["globalStatisticsQuery"],
        "SELECT COUNT(1) AS documentCount, [] AS fullTextStatistics\nFROM c"
    );
    assert_eq!((&plan["skip"], &plan["take"]), (&json!(5), &json!(200)));
    assert_eq!(
        (&plan["requiresGlobalStatistics"], &plan["componentWeights"]),
        (&json!(false), &json!([1.0, 0.3]))
    );
    let (one, two) = ("_VectorScore(c.v, [1, 2])", "_VectorScore(c.w, @v)");
    let scores = format!("[({one} ?? -1.79769e+308), ({two} ?? 1.79769e+308)]");
    let expected = |key: &str, direction: &str| {
        format!(
            "SELECT TOP 205 c._rid, [{{\"item\": {key}}}] AS orderByItems, {{\"payload\": {{\"a\": c.a}}, \
             \"componentScores\": {scores}}} AS payload\nFROM c\nWHERE ((c.n = 1) AND {FILTER})\nORDER BY {key}{direction}"
        )
    };
    let component = |at: usize| plan["componentQueryInfos"][at].clone();
    assert_eq!(component(0)["rewrittenQuery"], expected(one, ""));
    assert_eq!(component(1)["rewrittenQuery"], expected(two, " ASC"));
    assert_eq!(component(1)["orderBy"], json!(["Ascending"]));
    let plan = search(text, &format!("{features}, HybridSearchSkipOrderByRewrite"));
    let component = &plan["componentQueryInfos"][1];
    assert_eq!(
        component["rewrittenQuery"],
        format!(
            "SELECT TOP 205 c._rid, {{\"a\": c.a}} AS payload, [({one} ?? -1.79769e+308), (-1 * ({two} ?? \
             1.79769e+308))] AS componentScores\nFROM c\nWHERE (c.n = 1)\nORDER BY {two} ASC"
        )
    );
    assert_eq!((&component["top"], &component["orderBy"]), (&Value::Null, &json!([])));
    assert_eq!(component["hasNonStreamingOrderBy"], false);
}

#[test]
fn a_search_is_left_to_the_client_unless_it_is_within_a_key() {
    let enabled = GatewayRequest { cross_partition_enabled: true, ..GatewayRequest::default() };
    let verdict = |text: &str| gateway_verdict(&plan_of(text, &["/pk"]).unwrap(), enabled);
    let everywhere = "SELECT TOP 1 * FROM c ORDER BY RANK FullTextScore(c.text, 'a')";
    assert!(matches!(verdict(everywhere), Verdict::Refuse(failure) if failure.sub_status == 1004));
    let within = "SELECT TOP 1 * FROM c WHERE c.pk = 'a' ORDER BY RANK FullTextScore(c.text, 'a')";
    assert_eq!(verdict(within), Verdict::Serve);
}

#[test]
fn a_client_that_cannot_search_is_told_so() {
    let definition = Definition::new(&["/pk"], Kind::Hash, Version::V2).expect("a definition");
    let query = parse("SELECT TOP 1 * FROM c ORDER BY RANK FullTextScore(c.text, 'a')").unwrap();
    let refusal = plan(&query, &[], &definition, &Features::parse(Some("OrderBy"))).unwrap_err();
    assert!(
        refusal.message.contains("HybridSearch, which the calling client does not support"),
        "{refusal:?}"
    );
}
