//! Pages: what they read, where they end, how they go on.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::super::{List, Page, PageLimits, Prepared, parse};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn prepared(text: &str) -> Prepared {
    Prepared::new(&parse(text).expect("a query"), &[]).expect("a prepared query")
}

fn numbers(count: i64) -> List {
    List::new((0..count).map(|n| json!({"id": n.to_string(), "n": n})).collect())
}

fn page(text: &str, source: &List, limits: &PageLimits, continuation: Option<&str>) -> Page {
    prepared(text).page(source, limits, continuation, NOW).expect("a page")
}

#[test]
fn a_streaming_query_reads_no_more_than_it_hands_out() {
    let limits = PageLimits { items_max: 10, ..PageLimits::default() };
    let source = numbers(1000);
    let first = page("SELECT VALUE c.n FROM c", &source, &limits, None);
    assert_eq!((first.rows.len(), first.visited), (10, 10));
    let second = page("SELECT VALUE c.n FROM c", &source, &limits, first.continuation.as_deref());
    assert_eq!((second.rows[0].clone(), second.visited), (json!(10), 10));
    let top = page("SELECT TOP 3 * FROM c", &source, &limits, None);
    assert_eq!((top.rows.len(), top.visited, top.continuation), (3, 3, None));
}

#[test]
fn the_last_page_has_no_continuation() {
    let limits = PageLimits { items_max: 10, ..PageLimits::default() };
    let source = numbers(20);
    let first = page("SELECT * FROM c", &source, &limits, None);
    let second = page("SELECT * FROM c", &source, &limits, first.continuation.as_deref());
    assert_eq!((second.rows.len(), second.continuation), (10, None));
}

#[test]
fn a_page_ends_when_it_has_read_its_share() {
    let limits = PageLimits { rows_visited_max: 7, ..PageLimits::default() };
    let source = numbers(20);
    let mut continuation = None;
    let mut pages = 0;
    let count = loop {
        let page =
            page("SELECT VALUE COUNT(1) FROM c WHERE c.n >= 5", &source, &limits, continuation.as_deref());
        pages += 1;
        if let Some(count) = page.rows.first() {
            break count.clone();
        }
        continuation = page.continuation;
        assert!(continuation.is_some());
    };
    assert_eq!((count, pages), (json!(15), 3));
}

#[test]
fn a_page_ends_before_it_is_too_large() {
    let documents: Vec<Value> = (0..10).map(|n| json!({"n": n, "s": "x".repeat(100)})).collect();
    let limits = PageLimits { bytes_max: 350, ..PageLimits::default() };
    let source = List::new(documents);
    for text in ["SELECT * FROM c", "SELECT VALUE c.s FROM c", "SELECT * FROM c ORDER BY c.n DESC"] {
        let page = page(text, &source, &limits, None);
        assert!(page.body_bytes <= 350 && !page.rows.is_empty() && page.continuation.is_some(), "{text}");
    }
    let alone =
        page("SELECT * FROM c", &source, &PageLimits { bytes_max: 10, ..PageLimits::default() }, None);
    assert_eq!(alone.rows.len(), 1);
}

#[test]
fn a_continuation_of_another_query_is_refused() {
    let limits = PageLimits { items_max: 1, ..PageLimits::default() };
    let source = numbers(5);
    let token = page("SELECT * FROM c", &source, &limits, None).continuation.expect("more");
    let other = prepared("SELECT * FROM c WHERE c.n > 0");
    for token in [token.as_str(), "", "-RID:~abc#RT:1#TRC:1", "AAAA"] {
        let failure = other.page(&source, &limits, Some(token), NOW).expect_err("refused");
        assert_eq!((failure.status, failure.message.as_str()), (400, "Invalid Continuation Token"));
    }
}

#[test]
fn a_prepared_query_can_be_shared() {
    fn check<T: Send + Sync>() {}
    check::<Prepared>();
    check::<super::super::Query>();
    check::<super::super::Filter>();
}

#[test]
fn a_join_of_more_tuples_than_a_page_builds_takes_few_pages() {
    let source = List::new(vec![json!({"a": vec![0; 1_100]})]);
    let text = "SELECT VALUE 1 FROM c JOIN x IN c.a JOIN y IN c.a WHERE x = 1";
    let (mut pages, mut continuation) = (0, None);
    loop {
        let page = page(text, &source, &PageLimits::default(), continuation.as_deref());
        pages += 1;
        assert!(page.rows.is_empty() && pages <= 3);
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
}

#[test]
fn an_aggregate_carries_a_null_to_the_next_page() {
    let limits = PageLimits { rows_visited_max: 1, ..PageLimits::default() };
    let source = List::new(vec![json!({"n": null}), json!({"n": 5})]);
    let text = "SELECT VALUE MIN(c.n) FROM c";
    let first = page(text, &source, &limits, None);
    let second = page(text, &source, &limits, first.continuation.as_deref());
    assert_eq!(second.rows, [json!(null)]);
}
