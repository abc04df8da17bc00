//! Pages of a query while documents and policies change between them.

use super::*;

/// All rows in key `a`; `change` happens behind the first page.
fn rows_around(
    world: &World,
    query: &str,
    page_size: usize,
    change: impl FnOnce(),
) -> Result<Vec<Value>, Failure> {
    let page = |continuation| {
        let request = QueryRequest {
            text: query.into(),
            parameters: Vec::new(),
            scope: in_key("a"),
            page_size: PageSize::AtMost(page_size),
            continuation,
            session_token: None,
            resume: None,
        };
        world.engine.query(&world.container(), request)
    };
    let QueryPage { mut rows, mut continuation, .. } = page(None)?;
    change();
    while continuation.is_some() {
        let next = page(continuation)?;
        rows.extend(next.rows);
        continuation = next.continuation;
    }
    Ok(rows)
}

#[test]
fn a_join_goes_on_with_all_rows_of_the_next_document_when_the_one_before_is_deleted() {
    let world = World::new();
    world.create(json!({"id": "1", "pk": "a", "tags": [1, 2, 3, 4, 5]})).expect("created");
    world.create(json!({"id": "2", "pk": "a", "tags": [6, 7, 8, 9, 10]})).expect("created");
    let query = "SELECT VALUE t FROM c JOIN t IN c.tags";
    let rows = rows_around(&world, query, 3, || drop(world.delete("a", "1").expect("deleted")));
    assert_eq!(Value::from(rows.expect("served")), json!([1, 2, 3, 6, 7, 8, 9, 10]));
}

#[test]
fn a_join_does_not_repeat_rows_of_a_document_that_another_one_comes_before() {
    let world = World::new();
    world.create(json!({"id": "1", "pk": "a", "n": 5, "tags": [1, 2, 3]})).expect("created");
    let query = "SELECT VALUE t FROM c JOIN t IN c.tags WHERE c.n > 0 AND c.n < 9";
    let rows = rows_around(&world, query, 2, || {
        world.create(json!({"id": "2", "pk": "a", "n": 1, "tags": [7]})).expect("created");
    });
    assert_eq!(Value::from(rows.expect("served")), json!([1, 2, 7, 3]));
}

#[test]
fn distinct_loses_no_value_when_documents_of_earlier_pages_are_deleted() {
    for deleted in [&["1"][..], &["2"], &["1", "2"], &[]] {
        let world = World::new();
        for (id, k) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "c"), ("5", "b"), ("6", "d")] {
            world.create(json!({"id": id, "pk": "a", "k": k, "l": [k, "e", "f"]})).expect("created");
        }
        let delete = || deleted.iter().for_each(|id| drop(world.delete("a", id).expect("deleted")));
        let rows = rows_around(&world, "SELECT DISTINCT VALUE c.k FROM c", 2, delete).expect("served");
        for value in ["a", "b", "c", "d"] {
            assert!(rows.contains(&json!(value)), "{value} is missing without {deleted:?}: {rows:?}");
        }
        if deleted.is_empty() {
            assert_eq!(rows.len(), 4, "nothing comes twice: {rows:?}");
        }
    }
}

#[test]
fn distinct_pages_may_end_in_the_middle_of_a_document() {
    let world = World::new();
    for (id, tags) in [("1", json!([1, 2, 3, 4])), ("2", json!([3, 4, 5, 1])), ("3", json!([6, 7]))] {
        world.create(json!({"id": id, "pk": "a", "tags": tags})).expect("created");
    }
    for page_size in 1..8 {
        for (query, expected) in [
            ("SELECT DISTINCT VALUE t FROM c JOIN t IN c.tags", json!([1, 2, 3, 4, 5, 6, 7])),
            ("SELECT DISTINCT VALUE t FROM c JOIN t IN c.tags OFFSET 2 LIMIT 4", json!([3, 4, 5, 6])),
            ("SELECT DISTINCT TOP 3 VALUE t FROM c JOIN t IN c.tags", json!([1, 2, 3])),
        ] {
            let rows = rows_around(&world, query, page_size, || {}).expect("served");
            assert_eq!(Value::from(rows), expected, "{query} by {page_size}");
        }
    }
}

#[test]
fn a_page_by_an_index_that_is_gone_is_refused() {
    let world = World::new();
    for i in 0..6 {
        world.create(json!({"id": i.to_string(), "pk": "a", "a": 1, "b": i})).expect("created");
    }
    let exclude = |path: &str| {
        let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
            "indexingPolicy": {"includedPaths": [{"path": "/*"}], "excludedPaths": [{"path": path}]}});
        world.engine.replace_container("d", "c", body.to_string().as_bytes(), None).expect("replaced");
    };
    let query = "SELECT * FROM c WHERE c.a = 1";
    let refused = rows_around(&world, query, 2, || exclude("/a/?")).expect_err("refused");
    assert_eq!((refused.status, refused.message.as_str()), (400, "Invalid Continuation Token"));
    assert_eq!(rows_around(&world, query, 2, || exclude("/b/?")).expect("served by a scan").len(), 6);
    assert_eq!(rows_around(&world, query, 2, || exclude("/x/?")).expect("served").len(), 6);
}
