//! What a query keeps over all of its rows has a limit.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::super::{List, Page, PageLimits, Prepared, parse};
use crate::Failure;

/// How many rows the first page has over `count` documents, with no more than `kept_bytes_max` kept.
fn run(text: &str, count: usize, kept_bytes_max: usize) -> Result<usize, Failure> {
    let document = |n: usize| json!({"id": n.to_string(), "n": n, "k": n % 3, "list": [n, n + 1, n + 2]});
    let documents = (0..count).map(document).collect();
    let limits = PageLimits { kept_bytes_max, items_max: usize::MAX, ..PageLimits::default() };
    page(text, &List::new(documents), &limits, None).map(|page| page.rows.len())
}

fn page(text: &str, source: &List, limits: &PageLimits, after: Option<&str>) -> Result<Page, Failure> {
    let prepared = Prepared::new(&parse(text)?, &[])?;
    prepared.page(source, limits, after, SystemTime::UNIX_EPOCH)
}

#[test]
fn what_grows_with_the_rows_is_refused_beyond_the_limit() {
    for text in [
        "SELECT VALUE MAKELIST(c) FROM c",
        "SELECT VALUE MAKELIST({a: c, b: c}) FROM c",
        "SELECT VALUE MAKESET(c.id) FROM c",
        "SELECT c.k, MAKELIST(c.n) AS all FROM c GROUP BY c.k",
        "SELECT c.id, COUNT(1) AS n FROM c GROUP BY c.id",
        "SELECT DISTINCT c.id FROM c",
        "SELECT DISTINCT c.id FROM c ORDER BY c.id",
        "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.n OFFSET 5 LIMIT 9999",
    ] {
        assert!(run(text, 50, 200_000).is_ok(), "{text}");
        let refused = run(text, 10_000, 200_000).expect_err(text);
        assert_eq!(refused.status, 400, "{text}");
        assert!(refused.message.contains("keeps too much"), "{text}: {}", refused.message);
        assert!(run(text, 10_000, 100_000_000).is_ok(), "{text}");
    }
}

#[test]
fn what_stays_small_or_is_let_go_with_its_row_is_not_counted_for_all_rows() {
    for text in [
        "SELECT VALUE COUNT(1) FROM c",
        "SELECT VALUE MAX(c.id) FROM c",
        "SELECT c.k, SUM(c.n) AS n FROM c GROUP BY c.k",
        "SELECT DISTINCT c.k FROM c",
        "SELECT VALUE MAKESET(c.k) FROM c",
        "SELECT VALUE ARRAY_LENGTH((SELECT VALUE MAKELIST({c: c, x: x}) FROM x IN c.list)) FROM c",
        "SELECT VALUE ARRAY_LENGTH(ARRAY(SELECT DISTINCT VALUE x FROM x IN c.list)) FROM c",
    ] {
        assert!(run(text, 10_000, 20_000).is_ok(), "{text}");
    }
}

#[test]
fn a_sort_keeps_no_more_rows_than_its_page_holds() {
    let documents: Vec<Value> = (0..5_000)
        .map(|n| json!({"id": format!("{:04}", n * 7 % 5_000), "text": "x".repeat(n % 50)}))
        .collect();
    let source = List::new(documents);
    let limits = PageLimits {
        kept_bytes_max: 500_000,
        bytes_max: 20_000,
        items_max: usize::MAX,
        ..PageLimits::default()
    };
    for (text, first, count) in [
        ("SELECT * FROM c ORDER BY c.id", 0, 5_000),
        ("SELECT * FROM c ORDER BY c.id OFFSET 30 LIMIT 4000", 30, 4_000),
    ] {
        let (mut found, mut continuation) = (Vec::new(), None::<String>);
        loop {
            let page = page(text, &source, &limits, continuation.as_deref()).expect(text);
            assert!(page.body_bytes <= 20_000 && page.rows.len() > 100);
            found.extend(page.rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
            continuation = page.continuation;
            if continuation.is_none() {
                break;
            }
        }
        let expected: Vec<_> = (first..first + count).map(|n| format!("{n:04}")).collect();
        assert_eq!(found, expected, "{text}");
    }
    let keys = "SELECT VALUE 1 FROM c ORDER BY c.id";
    let limits = PageLimits { kept_bytes_max: 200_000, ..limits };
    let refused = page(keys, &source, &limits, None).err().map(|failure| failure.status);
    assert_eq!(refused, Some(400), "its keys are larger than its rows");
}

#[test]
fn a_row_larger_than_a_page_is_followed_by_the_others() {
    let documents = (0..4).map(|n| json!({"id": n.to_string(), "text": "x".repeat(1_000)})).collect();
    let source = List::new(documents);
    let limits = PageLimits { bytes_max: 500, ..PageLimits::default() };
    let (mut found, mut continuation) = (Vec::new(), None::<String>);
    loop {
        let page = page("SELECT * FROM c ORDER BY c.id DESC", &source, &limits, continuation.as_deref())
            .expect("served");
        assert_eq!(page.rows.len(), 1);
        found.extend(page.rows.into_iter().map(|row| row["id"].clone()));
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    assert_eq!(found, ["3", "2", "1", "0"]);
}
