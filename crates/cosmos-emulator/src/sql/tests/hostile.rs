//! Texts meant to harm: none panics, none runs long, all get an answer.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::super::{List, PageLimits, Prepared, parse};
use crate::Failure;

fn run(text: &str, documents: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let prepared = Prepared::new(&parse(text)?, &[])?;
    prepared
        .page(&List::new(documents), &PageLimits::default(), None, SystemTime::UNIX_EPOCH)
        .map(|page| page.rows)
}

#[test]
fn deep_nesting_is_refused() {
    let deep =
        |open: &str, close: &str| format!("SELECT VALUE {}1{}", open.repeat(50_000), close.repeat(50_000));
    for text in [
        deep("(", ")"),
        deep("[", "]"),
        deep("{\"a\":", "}"),
        deep("NOT ", ""),
        deep("- ", ""),
        deep("~", ""),
        deep("ABS(", ")"),
        deep("(SELECT VALUE ", ")"),
        deep("true ? 1 : ", ""),
        format!("SELECT VALUE 1{}", "+1".repeat(100_000)),
        format!("SELECT VALUE c{} FROM c", ".a".repeat(100_000)),
        format!("SELECT VALUE c{} FROM c", "[0]".repeat(100_000)),
        format!("SELECT VALUE 1{}", " ?? 1".repeat(50_000)),
        format!("SELECT * FROM {}c{}", "(SELECT * FROM ".repeat(20_000), ")".repeat(20_000)),
        "(".repeat(500_000),
        "SELECT ".repeat(50_000),
    ] {
        let failure = run(&text, Vec::new()).expect_err("refused");
        assert_eq!(failure.status, 400, "{}", &text[..60]);
    }
}

#[test]
fn texts_beyond_the_limit_are_refused() {
    let text = format!("SELECT VALUE \"{}\"", "x".repeat(600_000));
    assert_eq!(run(&text, Vec::new()).expect_err("refused").status, 400);
}

#[test]
fn long_lists_and_long_filters_run() {
    let list = (0..60_000).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let documents: Vec<Value> = (0..100).map(|n| json!({"n": n * 1000})).collect();
    let rows = run(&format!("SELECT VALUE c.n FROM c WHERE c.n IN ({list})"), documents.clone()).unwrap();
    assert_eq!(rows.len(), 60);
    let filter = vec!["c.n >= 0"; 2_000].join(" AND ");
    assert_eq!(run(&format!("SELECT VALUE 1 FROM c WHERE {filter}"), documents).unwrap().len(), 100);
}

#[test]
fn joins_that_multiply_end() {
    let document = json!({"a": vec![0; 200]});
    let joins: String = (0..9).map(|n| format!(" JOIN x{n} IN c.a")).collect();
    let text = format!("SELECT VALUE COUNT(1) FROM c{joins}");
    assert_eq!(run(&text, vec![document.clone()]).expect_err("refused").status, 400);
    let inner = format!(
        "SELECT VALUE (SELECT VALUE COUNT(1) FROM x IN c.a{}) FROM c",
        joins.replace("JOIN x0", "JOIN y")
    );
    assert_eq!(run(&inner, vec![document.clone()]).expect_err("refused").status, 400);
    let streaming = format!("SELECT VALUE 1 FROM c{joins} WHERE x0 = 1");
    let prepared = Prepared::new(&parse(&streaming).unwrap(), &[]).unwrap();
    let page = prepared
        .page(&List::new(vec![document]), &PageLimits::default(), None, SystemTime::UNIX_EPOCH)
        .expect("a page that ends early");
    assert!(page.rows.is_empty() && page.continuation.is_some());
}

#[test]
fn values_that_grow_beyond_all_bounds_are_refused() {
    let large = "REPLICATE(REPLICATE('x',1000),4000)";
    let doubled = |double: &str| {
        (0..40).fold("SELECT VALUE 'x'".to_owned(), |inner, _| {
            format!("SELECT VALUE {double} FROM (SELECT VALUE ({inner})) x")
        })
    };
    let halves = |from: &str| {
        let steps: String =
            (0..40).map(|n| format!(" JOIN (SELECT VALUE [x{n}, x{n}]) x{}", n + 1)).collect();
        format!("SELECT VALUE ARRAY_LENGTH(x40) FROM {from}{steps}")
    };
    let document = json!({"s": "x".repeat(100_000), "a": vec![0; 2_000]});
    for text in [
        format!("SELECT VALUE LENGTH(CONCAT({}))", vec![large; 10_000].join(",")),
        format!("SELECT VALUE LENGTH({})", vec![large; 100].join(" || ")),
        format!("SELECT VALUE ARRAY_LENGTH([{}])", vec![large; 10_000].join(",")),
        format!("SELECT VALUE ARRAY_LENGTH(ARRAY_CONCAT({}))", vec![format!("[{large}]"); 1_000].join(",")),
        format!("SELECT VALUE c.a FROM c WHERE IS_OBJECT({{{}}})", keyed(large, 1_000)),
        doubled("CONCAT(x, x)"),
        doubled("x || x"),
        doubled("[x, x]"),
        doubled("{'a': x, 'b': x}"),
        doubled("ARRAY(SELECT VALUE x FROM y IN [1, 2])"),
        halves("c"),
        "SELECT VALUE ARRAY_LENGTH(ARRAY(SELECT VALUE c.s FROM x IN c.a)) FROM c".to_owned(),
        "SELECT VALUE ARRAY_LENGTH(ARRAY(SELECT c.s FROM x IN c.a)) FROM c".to_owned(),
        "SELECT VALUE ARRAY_LENGTH((SELECT VALUE MAKELIST(c.s) FROM x IN c.a)) FROM c".to_owned(),
    ] {
        let start = &text[..text.len().min(80)];
        match run(&text, vec![document.clone()]) {
            Err(failure) => assert_eq!(failure.status, 400, "{start}"),
            Ok(rows) => panic!("{start} gives {} rows", rows.len()),
        }
    }
}

#[test]
fn each_document_may_build_large_values() {
    let documents = vec![json!({"s": "x".repeat(1_000_000)}); 200];
    let rows = run("SELECT VALUE LENGTH(CONCAT(c.s, UPPER(c.s))) FROM c", documents).unwrap();
    assert_eq!(rows, vec![json!(2_000_000); 200]);
}

#[test]
fn a_query_in_from_is_read_to_its_end_or_refused() {
    let joined = "SELECT VALUE COUNT(1) FROM (SELECT x FROM c JOIN x IN c.a JOIN y IN c.a) d";
    let limits = PageLimits { rows_visited_max: u64::MAX, ..PageLimits::default() };
    let source = List::new(vec![json!({"a": vec![0; 1_100]})]);
    let prepared = Prepared::new(&parse(joined).unwrap(), &[]).unwrap();
    let page = prepared.page(&source, &limits, None, SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(page.rows, [json!(1_210_000)]);
    let large = "SELECT VALUE COUNT(1) FROM (SELECT VALUE REPLICATE(c.s, 4000) FROM c) d";
    let failure = run(large, vec![json!({"s": "x".repeat(1_000)}); 100]).expect_err("refused");
    assert_eq!(failure.status, 400);
}

fn keyed(value: &str, count: usize) -> String {
    (0..count).map(|n| format!("'k{n}': {value}")).collect::<Vec<_>>().join(",")
}

#[test]
fn hostile_patterns_end() {
    let text = "a".repeat(50_000);
    let documents = vec![json!({"s": text})];
    assert!(
        run("SELECT VALUE 1 FROM c WHERE RegexMatch(c.s, '(a*)*b')", documents.clone()).unwrap().is_empty()
    );
    assert!(
        run("SELECT VALUE 1 FROM c WHERE RegexMatch(c.s, '((a{1,500}){1,500}){1,500}')", documents.clone())
            .unwrap()
            .is_empty()
    );
    assert!(run("SELECT VALUE 1 FROM c WHERE c.s LIKE '%a%a%a%a%a%a%b'", documents).unwrap().is_empty());
}

#[test]
fn steps_into_numbers_print_as_steps_into_numbers() {
    for text in [
        "SELECT 1 .n",
        "SELECT (-1).n",
        "SELECT (-1)[0]",
        "SELECT 1.5 .n.m",
        "SELECT 1e99 .n",
        "SELECT - 1 .n",
    ] {
        let printed = parse(text).unwrap().to_string();
        let again = parse(&printed).unwrap_or_else(|error| panic!("{printed}: {error:?}"));
        assert_eq!(again.to_string(), printed, "{text}");
    }
}

#[test]
fn no_cut_or_changed_text_panics() {
    let texts = [
        "SELECT TOP 5 c.a AS x, {\"b\": [1, -2.5e3, 'q\\u00e9\\n']} FROM c JOIN t IN c.tags WHERE c.a BETWEEN 1 AND 2 AND \
         NOT (c.b LIKE 'a!%' ESCAPE '!') OR c.c NOT IN (1, @p) ORDER BY c.a DESC, c.b",
        "SELECT DISTINCT VALUE (c.a ?? c.b) ? udf.f(1) : ARRAY(SELECT VALUE 1 FROM x IN c.y) FROM (SELECT * FROM c) c \
         WHERE EXISTS(SELECT 1) GROUP BY c.x OFFSET 1 LIMIT @l -- end",
        "SELECT 日本.語 FROM 日本 WHERE '\u{1F600}' || \"\\ud83d\\ude00\" = 0x1F",
    ];
    let noise = [
        "",
        "(",
        ")",
        "'",
        "\"",
        "\\",
        "@",
        ";",
        "é",
        "\u{1F600}",
        "SELECT",
        " NOT ",
        "[",
        "}",
        "-- ",
        "9e99999",
    ];
    for text in texts {
        let places: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        for at in places {
            for extra in noise {
                let changed = format!("{}{extra}{}", &text[..at], &text[at..]);
                let cut = format!("{}{extra}", &text[..at]);
                for candidate in [changed, cut] {
                    if let Ok(query) = parse(&candidate) {
                        let printed = query.to_string();
                        let _ = Prepared::new(&query, &[]);
                        if !printed.contains("udf.") {
                            assert!(parse(&printed).is_ok(), "{candidate}\n{printed}");
                        }
                    }
                }
            }
        }
    }
}
