//! Ranges that split while they are being read.

use cosmos_driver::{CallOptions, Container, ItemOptions, Query, QueryOptions, Scope};
use serde_json::{Value, json};

use crate::world::World;

const ITEMS: u64 = 90;

async fn filled(world: &World) -> Container {
    let driver = world.builder().build().await.expect("the driver starts");
    let container = driver.container("db", "items").expect("a valid name");
    for n in 0..ITEMS {
        let item = json!({ "id": format!("i{n}"), "pk": format!("p{n}"), "n": n });
        container.create_item(format!("p{n}"), &item, ItemOptions::default()).await.expect("created");
    }
    container
}

fn ns(rows: &[Value]) -> Vec<u64> {
    rows.iter().map(|row| row["n"].as_u64().expect("a number")).collect()
}

const SORTED: &str = "SELECT * FROM c WHERE ({documentdb-formattableorderbyquery-filter}) ORDER BY c.n";

#[tokio::test]
async fn a_query_survives_splits_at_any_point() {
    for text in ["SELECT * FROM c", SORTED] {
        for after in 0..20 {
            let world = World::start().await;
            let items = filled(&world).await;
            world.split();
            world.split_after(after);
            let rows: Vec<Value> = items
                .query(Query::new(text), Scope::Container, QueryOptions::default().with_page_size(3))
                .collect()
                .await
                .unwrap_or_else(|e| panic!("{text} split after {after}: {e:?}"));
            let mut seen = ns(&rows);
            if text == "SELECT * FROM c" {
                seen.sort_unstable();
            }
            assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>(), "{text} split after {after}");
        }
    }
}

#[tokio::test]
async fn a_continuation_survives_a_split() {
    for text in ["SELECT * FROM c", SORTED] {
        let world = World::start().await;
        let items = filled(&world).await;
        let mut seen = Vec::new();
        let mut continuation = None;
        loop {
            let mut options = QueryOptions::default().with_page_size(10);
            options.continuation = continuation;
            let mut pager = items.query(text, Scope::Container, options);
            let Some(page) = pager.next().await.expect("a page") else { break };
            seen.extend(ns(&page.items::<Value>().expect("rows")));
            continuation = page.continuation().map(str::to_owned);
            if continuation.is_none() {
                break;
            }
            if world.ranges() < 16 {
                world.split();
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>(), "{text}");
    }
}

#[tokio::test]
async fn a_range_asked_for_by_its_old_bounds_is_read_in_its_halves() {
    let world = World::start().await;
    let items = filled(&world).await;
    let ranges = items.ranges(CallOptions::default()).await.expect("ranges");
    world.split();
    let mut seen = Vec::new();
    for range in ranges {
        let rows: Vec<Value> =
            items.query(SORTED, range, QueryOptions::default()).collect().await.expect("rows");
        seen.extend(ns(&rows));
    }
    assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>());
    assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 2);
}
