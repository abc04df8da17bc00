//! Ranges that split and merge while they are used.

use cosmos_driver::{
    CallOptions, ChangeFeedStart, Container, ItemOptions, PartitionKey, QueryOptions, Scope,
};
use cosmos_emulator::{Config, Consistency, Operation, SplitMode};
use serde_json::{Value, json};

use crate::globe::Globe;
use crate::ranges::{
    ITEMS, Load, PLAIN, SORTED, WITH_A_LOCK, all, filled, ids, merge, ns, read_by_pages, settled, split,
};

#[tokio::test]
async fn a_query_survives_splits_between_any_two_pages() {
    for text in [PLAIN, SORTED] {
        for after in [0, 1, 2, 5, 9] {
            let (globe, items) = filled().await;
            read_by_pages(&items, text, |pages| {
                if pages == after {
                    split(&globe);
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn queries_batches_and_bulks_survive_splits_under_load() {
    let (globe, items) = filled().await;
    let load = Load::start(&items);
    for _ in 0..3 {
        for id in ids(&globe) {
            globe.emulator.split("db", "items", id, SplitMode::Midpoint, WITH_A_LOCK).expect("it splits");
            settled(&globe).await;
        }
    }
    load.finish().await;
    assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 16);
}

/// Reads one page with a pager of its own, and says where the next one goes on.
async fn read_on(
    items: &Container,
    text: &str,
    page_size: u32,
    continuation: Option<String>,
    seen: &mut Vec<u64>,
) -> Option<String> {
    let mut options = QueryOptions::default().with_page_size(page_size);
    options.continuation = continuation;
    let page = items.query(text, Scope::Container, options).next().await.expect("a page")?;
    seen.extend(ns(&page.items::<Value>().expect("rows")));
    page.continuation().map(str::to_owned)
}

#[tokio::test]
async fn a_continuation_survives_splits_and_merges() {
    for text in [PLAIN, SORTED] {
        let (globe, items) = filled().await;
        let mut seen = Vec::new();
        let mut continuation = None;
        let mut counts = Vec::new();
        for pages in 0.. {
            // Two, four, eight ranges, then four, two, four, and back to two.
            match pages {
                1 | 2 | 5 => split(&globe),
                3 | 4 | 6 => merge(&globe),
                _ => {}
            }
            counts.push(ids(&globe).len());
            continuation = read_on(&items, text, 7, continuation, &mut seen).await;
            if continuation.is_none() {
                break;
            }
        }
        assert_eq!(counts[..7], [2, 4, 8, 4, 2, 4, 2], "{text}");
        if text == PLAIN {
            seen.sort_unstable();
        }
        assert_eq!(seen, all(), "{text}");
    }
}

#[tokio::test]
async fn a_continuation_within_equal_keys_survives_splits_and_merges() {
    for text in ["SELECT c.n FROM c ORDER BY c.k", "SELECT c.n FROM c ORDER BY c.k DESC"] {
        let (globe, items) = filled().await;
        for (page_size, changes) in [(7, [split, split, merge, merge]), (4, [merge, split, split, merge])] {
            let mut seen = Vec::new();
            let mut continuation = None;
            for pages in 0.. {
                if pages > 0 {
                    changes[pages % changes.len()](&globe);
                }
                continuation = read_on(&items, text, page_size, continuation, &mut seen).await;
                if continuation.is_none() {
                    break;
                }
            }
            let keys: Vec<u64> = seen.iter().map(|n| n % 3).collect();
            assert!(keys.is_sorted() || keys.iter().rev().is_sorted(), "{text}: {keys:?}");
            seen.sort_unstable();
            assert_eq!(seen, all(), "{text}, pages of {page_size}");
        }
    }
}

/// Rows of all ranges, each read by pages of its own, with every range split after each one's first page.
async fn halved(text: &str, page_size: u32, is_new_pager: bool) -> Vec<u64> {
    let (globe, items) = filled().await;
    let mut seen = Vec::new();
    for range in items.ranges(CallOptions::default()).await.expect("ranges") {
        let options = QueryOptions::default().with_page_size(page_size);
        let mut pager = items.query(text, range.clone(), options.clone());
        let mut pages = 0;
        while let Some(page) = pager.next().await.unwrap_or_else(|e| panic!("{text}, page {pages}: {e:?}")) {
            seen.extend(ns(&page.items::<Value>().expect("rows")));
            pages += 1;
            if pages == 1 {
                split(&globe);
            }
            let Some(continuation) = page.continuation() else { break };
            if is_new_pager {
                pager = items.query(text, range.clone(), options.clone().with_continuation(continuation));
            }
        }
    }
    seen
}

#[tokio::test]
async fn a_range_that_splits_between_two_pages_is_read_on_in_its_halves() {
    for text in [
        PLAIN,
        "SELECT c.n FROM c WHERE c.n >= 0",
        SORTED,
        "SELECT c.n FROM c ORDER BY c.k",
        "SELECT c.n FROM c ORDER BY c.k DESC",
    ] {
        for (page_size, is_new_pager) in [(7, false), (7, true), (1, false), (1, true)] {
            let mut seen = halved(text, page_size, is_new_pager).await;
            if text == SORTED {
                // One range after the other, each in order.
                assert_eq!(seen.windows(2).filter(|pair| pair[0] > pair[1]).count(), 1, "{seen:?}");
            }
            seen.sort_unstable();
            assert_eq!(seen, all(), "{text}, pages of {page_size}, new pagers: {is_new_pager}");
        }
    }
}

#[tokio::test]
async fn a_query_over_one_range_is_not_planned_as_long_as_it_is_one() {
    let (globe, items) = filled().await;
    let ranges = items.ranges(CallOptions::default()).await.expect("ranges");
    globe.emulator.ledger().reset();
    for text in [PLAIN, SORTED] {
        for range in &ranges {
            let options = QueryOptions::default().with_page_size(7);
            let rows: Vec<Value> = items.query(text, range.clone(), options).collect().await.expect("rows");
            assert!(rows.len() > 7, "{text}");
        }
    }
    assert_eq!(globe.emulator.ledger().snapshot().operation(Operation::QueryPlan).requests, 0);
}

#[tokio::test]
async fn a_range_asked_for_by_its_old_bounds_is_read_in_its_halves() {
    let (globe, items) = filled().await;
    let ranges = items.ranges(CallOptions::default()).await.expect("ranges");
    split(&globe);
    let mut seen = Vec::new();
    for range in ranges {
        let rows: Vec<Value> =
            items.query(SORTED, range, QueryOptions::default()).collect().await.expect("rows");
        seen.extend(ns(&rows));
    }
    seen.sort_unstable();
    assert_eq!(seen, all());
    assert_eq!(items.ranges(CallOptions::default()).await.expect("ranges").len(), 4);
}

#[tokio::test]
async fn many_items_and_sessions_survive_a_split() {
    let (globe, items) = filled().await;
    let wanted: Vec<(PartitionKey, String)> =
        (0..ITEMS).map(|n| (format!("p{n}").into(), format!("i{n}"))).collect();
    split(&globe);
    let found = items.read_many(&wanted, &ItemOptions::default()).await.expect("read");
    assert_eq!(found.bodies().iter().flatten().count() as u64, ITEMS);
    for n in 0..ITEMS {
        items.read_item(format!("p{n}"), &format!("i{n}"), ItemOptions::default()).await.expect("read");
    }
}

#[tokio::test]
async fn a_change_feed_survives_a_split() {
    let (globe, items) = filled().await;
    let mut feed = items.change_feed(Scope::Container, ChangeFeedStart::Beginning, CallOptions::default());
    let mut seen = Vec::new();
    for round in 0..12 {
        if round == 1 {
            split(&globe);
        }
        let page = feed.next().await.expect("a page");
        seen.extend(ns(&page.items::<Value>().expect("rows")));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, all());
}

/// A request by key is answered by whichever range has the key, so a driver may not know of a split that its own
/// write shows it: what it has read of the ranges is older than what it has written.
#[tokio::test]
async fn writes_are_read_back_from_ranges_the_driver_has_not_listed() {
    let config = Config::default().with_regions(&["East", "West"]).with_consistency(Consistency::Session);
    let globe = Globe::with(config).await;
    let near = ["West", "East"].map(str::to_owned);
    let driver = globe.builder().preferred_regions(near).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    let create = async |id: &str| {
        let item = json!({ "id": id, "pk": "p" });
        items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    };
    create("before").await;
    // Twice, so that the list may be two generations old.
    split(&globe);
    split(&globe);
    globe.fall_behind(1);
    for round in 0..3 {
        let id = format!("after{round}");
        create(&id).await;
        let read = items.read_item("p", &id, ItemOptions::default()).await;
        assert!(read.is_ok(), "{id} was acknowledged: {read:?}");
    }
    globe.catch_up(1);
    let read = items.read_item("p", "after2", ItemOptions::default()).await.expect("read");
    assert_eq!(read.diagnostics().attempts().len(), 1, "West has it now");
}
