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
