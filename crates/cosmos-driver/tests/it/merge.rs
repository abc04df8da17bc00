//! Ranges that merge while they are used.

use cosmos_driver::{
    CallOptions, ChangeFeedStart, Container, ItemOptions, PartitionKey, QueryOptions, Scope,
};
use cosmos_emulator::{Config, Consistency};
use serde_json::{Value, json};

use crate::globe::Globe;
use crate::ranges::{
    ITEMS, Load, PLAIN, SORTED, WITH_A_LOCK, all, filled, ids, merge, ns, pairs, read_by_pages, settled,
    split,
};

/// Eight ranges that the driver knows, about to become fewer.
async fn eight() -> (Globe, Container) {
    let (globe, items) = filled().await;
    split(&globe);
    split(&globe);
    let rows: Vec<Value> =
        items.query(PLAIN, Scope::Container, QueryOptions::default()).collect().await.expect("rows");
    assert_eq!(rows.len() as u64, ITEMS);
    assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 8);
    (globe, items)
}

#[tokio::test]
async fn a_query_survives_merges_between_any_two_pages() {
    for text in [PLAIN, SORTED] {
        for after in [0, 1, 2, 5, 9] {
            let (globe, items) = eight().await;
            read_by_pages(&items, text, |pages| {
                if pages == after || pages == after + 1 {
                    merge(&globe);
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_range_asked_for_by_its_old_bounds_is_read_within_the_merged_one() {
    for text in [PLAIN, SORTED] {
        let (globe, items) = eight().await;
        let ranges = items.ranges(CallOptions::default()).await.expect("ranges");
        merge(&globe);
        let mut seen = Vec::new();
        for range in ranges {
            let options = QueryOptions::default().with_page_size(3);
            let rows: Vec<Value> = items.query(text, range, options).collect().await.expect("rows");
            seen.extend(ns(&rows));
        }
        seen.sort_unstable();
        assert_eq!(seen, all(), "{text}");
        assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 4);
    }
}

#[tokio::test]
async fn aggregates_and_many_items_are_whole_after_a_merge() {
    let (globe, items) = eight().await;
    let wanted: Vec<(PartitionKey, String)> =
        (0..ITEMS).map(|n| (format!("p{n}").into(), format!("i{n}"))).collect();
    for round in 0..3 {
        merge(&globe);
        let found = items.read_many(&wanted, &ItemOptions::default()).await.expect("read");
        assert_eq!(found.bodies().iter().flatten().count() as u64, ITEMS, "round {round}");
        let query = "SELECT VALUE SUM(c.n) FROM c";
        let sum: Vec<u64> =
            items.query(query, Scope::Container, QueryOptions::default()).collect().await.expect("a sum");
        assert_eq!(sum, [ITEMS * (ITEMS - 1) / 2], "round {round}");
    }
    assert_eq!(ids(&globe).len(), 1);
}

#[tokio::test]
async fn a_change_feed_survives_merges_and_gives_everything_once() {
    let (globe, items) = eight().await;
    let mut feed = items.change_feed(Scope::Container, ChangeFeedStart::Beginning, CallOptions::default());
    let mut seen = Vec::new();
    for round in 0..40 {
        if matches!(round, 1 | 12 | 24) {
            merge(&globe);
        }
        if round == 20 {
            let item = json!({ "id": "late", "pk": "p0", "n": ITEMS });
            items.create_item("p0", &item, ItemOptions::default()).await.expect("created");
        }
        let page = feed.next().await.expect("a page");
        seen.extend(ns(&page.items::<Value>().expect("rows")));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..=ITEMS).collect::<Vec<_>>());
}

/// What was written before a merge, and after it, is not read from a replica that has neither.
#[tokio::test]
async fn writes_are_read_back_across_merges_from_a_replica_that_lags() {
    let config = Config::default()
        .with_regions(&["East", "West"])
        .with_consistency(Consistency::Session)
        .with_partitions(4);
    let globe = Globe::with(config).await;
    let near = ["West", "East"].map(str::to_owned);
    let driver = globe.builder().preferred_regions(near).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    globe.fall_behind(1);
    for round in 0..3 {
        for n in 0..12 {
            let key = format!("p{n}");
            let item = json!({ "id": format!("r{round}"), "pk": key, "n": n });
            items.create_item(&*key, &item, ItemOptions::default()).await.expect("created");
        }
        if round < 2 {
            merge(&globe);
        }
        for n in 0..12 {
            let read = items.read_item(format!("p{n}"), &format!("r{round}"), ItemOptions::default()).await;
            assert!(read.is_ok(), "r{round} of p{n} was acknowledged: {read:?}");
        }
        let query = "SELECT VALUE COUNT(1) FROM c";
        let count: Vec<u64> =
            items.query(query, Scope::Container, QueryOptions::default()).collect().await.expect("counted");
        assert_eq!(count, [(round + 1) * 12], "round {round}");
    }
    assert_eq!(ids(&globe).len(), 1);
    globe.catch_up(1);
}

#[tokio::test]
async fn queries_batches_and_bulks_survive_merges_under_load() {
    let (globe, items) = eight().await;
    let load = Load::start(&items);
    while ids(&globe).len() > 1 {
        globe.emulator.merge("db", "items", pairs(&globe)[0], WITH_A_LOCK).expect("they merge");
        settled(&globe).await;
    }
    load.finish().await;
    assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 1);
}
