//! Queries over many ranges give what one list would.

use std::collections::BTreeMap;
use std::time::Duration;

use cosmos_driver::{
    Builder, CallOptions, ChangeFeedStart, Container, Credential, Driver, ErrorKind, ItemOptions, Page,
    PartitionKey, Query, QueryOptions, Scope, Timeouts,
};
use cosmos_emulator::{Config, FaultRule, Operation, Verdict};
use serde_json::{Value, json};

use crate::account::Account;
use crate::world::World;

const ITEMS: usize = 120;
const ORDERED: &str = "SELECT c.n FROM c ORDER BY c.n";

/// `n` is unique, `k` has seven values, some items lack `s`, and `m` is of mixed types.
fn item(n: usize) -> Value {
    let mixed = match n % 6 {
        0 => json!(null),
        1 => json!(n % 2 == 1),
        2 => json!(n),
        3 => json!(format!("s{n:03}")),
        // Such as would come the other way round if somebody looked into them.
        4 => json!([ITEMS - n]),
        _ => json!({ "x": ITEMS - n }),
    };
    let mut item =
        json!({ "id": format!("i{n:03}"), "pk": format!("p{}", n % 23), "n": n, "k": n % 7, "m": mixed });
    if n.is_multiple_of(3) {
        item["s"] = json!(format!("x{}", n % 5));
    }
    item
}

async fn filled(partitions: u32) -> Account {
    filled_by(partitions, |builder| builder).await
}

async fn filled_by(partitions: u32, build: impl FnOnce(Builder) -> Builder) -> Account {
    let account = Account::with(Config::default().with_partitions(partitions), build).await;
    for n in 0..ITEMS {
        let item = item(n);
        let key = item["pk"].as_str().expect("a key").to_owned();
        account.container.create_item(key, &item, ItemOptions::default()).await.expect("created");
    }
    account
}

async fn all(container: &Container, query: impl Into<Query>, options: QueryOptions) -> Vec<Value> {
    let query = query.into();
    let text = query.text().to_owned();
    container
        .query(query, Scope::Container, options)
        .collect()
        .await
        .unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

fn ns(rows: &[Value]) -> Vec<usize> {
    rows.iter().map(|row| usize::try_from(row["n"].as_u64().expect("a number")).expect("small")).collect()
}

#[tokio::test]
async fn rows_of_all_ranges_arrive_once() {
    let account = filled(16).await;
    assert_eq!(account.container.ranges(CallOptions::default()).await.expect("ranges").len(), 16);
    for size in [None, Some(1), Some(7), Some(1000)] {
        let mut options = QueryOptions::default();
        options.page_size = size;
        let mut seen = ns(&all(&account.container, "SELECT c.n FROM c", options).await);
        seen.sort_unstable();
        assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>(), "pages of {size:?}");
    }
}

#[tokio::test]
async fn order_is_kept_across_ranges() {
    let account = filled(16).await;
    let items = &account.container;
    for size in [3, 50, 1000] {
        let options = QueryOptions::default().with_page_size(size);
        let up = all(items, "SELECT * FROM c ORDER BY c.n", options.clone()).await;
        assert_eq!(ns(&up), (0..ITEMS).collect::<Vec<_>>());
        let down = all(
            items,
            Query::new("SELECT c.n FROM c WHERE c.n < @most ORDER BY c.n DESC").with("@most", 50),
            options.clone(),
        )
        .await;
        assert_eq!(ns(&down), (0..50).rev().collect::<Vec<_>>());
        let top = all(items, "SELECT TOP 10 c.n FROM c ORDER BY c.n", options.clone()).await;
        assert_eq!(ns(&top), (0..10).collect::<Vec<_>>());
        let window = all(items, "SELECT c.n FROM c ORDER BY c.n OFFSET 20 LIMIT 15", options).await;
        assert_eq!(ns(&window), (20..35).collect::<Vec<_>>());
    }
    let values = all(items, "SELECT VALUE c.n FROM c ORDER BY c.n DESC", QueryOptions::default()).await;
    assert_eq!(values.len(), ITEMS);
    assert_eq!(values[0], json!(ITEMS - 1));
}

#[tokio::test]
async fn a_row_that_is_null_is_a_row_of_an_ordered_query() {
    let account = filled(8).await;
    let text = "SELECT VALUE c.m FROM c ORDER BY c.n";
    let rows = all(&account.container, text, QueryOptions::default()).await;
    assert_eq!(rows, (0..ITEMS).map(|n| item(n)["m"].clone()).collect::<Vec<_>>());
    let text = "SELECT VALUE c.s FROM c ORDER BY c.n";
    let rows = all(&account.container, text, QueryOptions::default()).await;
    assert_eq!(rows.len(), ITEMS / 3, "what is undefined does not show");
}

#[tokio::test]
async fn limits_without_order_count_over_all_ranges() {
    let account = filled(8).await;
    let items = &account.container;
    assert_eq!(all(items, "SELECT TOP 13 c.n FROM c", QueryOptions::default()).await.len(), 13);
    assert_eq!(all(items, "SELECT c.n FROM c OFFSET 100 LIMIT 50", QueryOptions::default()).await.len(), 20);
}

#[tokio::test]
async fn aggregates_cover_all_ranges() {
    let account = filled(16).await;
    let items = &account.container;
    let total: usize = (0..ITEMS).sum();
    let cases = [
        ("SELECT VALUE COUNT(1) FROM c", json!([ITEMS])),
        ("SELECT VALUE SUM(c.n) FROM c", json!([total])),
        ("SELECT VALUE AVG(c.n) FROM c", json!([total as f64 / ITEMS as f64])),
        ("SELECT VALUE MIN(c.n) FROM c", json!([0])),
        ("SELECT VALUE MAX(c.s) FROM c", json!(["x4"])),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.n > 1000", json!([0])),
        ("SELECT COUNT(1) AS n, MAX(c.n) AS most FROM c", json!([{ "n": ITEMS, "most": ITEMS - 1 }])),
    ];
    for (text, expected) in cases {
        assert_eq!(Value::Array(all(items, text, QueryOptions::default()).await), expected, "{text}");
    }
}

#[tokio::test]
async fn groups_meet_across_ranges() {
    let account = filled(16).await;
    let text = "SELECT c.k, COUNT(1) AS n, SUM(c.n) AS total FROM c GROUP BY c.k";
    let rows = all(&account.container, text, QueryOptions::default()).await;
    let mut expected: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for n in 0..ITEMS {
        let group = expected.entry(n % 7).or_default();
        *group = (group.0 + 1, group.1 + n);
    }
    assert_eq!(rows.len(), expected.len());
    for row in rows {
        let k = usize::try_from(row["k"].as_u64().expect("a key")).expect("small");
        assert_eq!((&row["n"], &row["total"]), (&json!(expected[&k].0), &json!(expected[&k].1)), "{row}");
    }
}

#[tokio::test]
async fn a_group_whose_value_is_undefined_does_not_show() {
    let account = filled(8).await;
    let text = "SELECT VALUE c.s FROM c GROUP BY c.s";
    let mut rows = all(&account.container, text, QueryOptions::default()).await;
    rows.sort_by_key(Value::to_string);
    assert_eq!(rows, (0..5).map(|s| json!(format!("x{s}"))).collect::<Vec<_>>());
    let null = "SELECT VALUE c.m FROM c WHERE IS_NULL(c.m) GROUP BY c.m";
    assert_eq!(all(&account.container, null, QueryOptions::default()).await, [Value::Null]);
}

#[tokio::test]
async fn distinct_rows_are_distinct_over_all_ranges() {
    let account = filled(16).await;
    let items = &account.container;
    let mut keys = all(items, "SELECT DISTINCT VALUE c.k FROM c", QueryOptions::default()).await;
    keys.sort_by_key(|key| key.as_u64());
    assert_eq!(keys, (0..7).map(|k| json!(k)).collect::<Vec<_>>());
    let ordered = all(
        items,
        "SELECT DISTINCT VALUE c.k FROM c ORDER BY c.k",
        QueryOptions::default().with_page_size(3),
    )
    .await;
    assert_eq!(ordered, (0..7).map(|k| json!(k)).collect::<Vec<_>>());
}

#[tokio::test]
async fn distinct_arrays_and_objects_come_once_in_order_whichever_page_is_the_last_of_a_process() {
    let account = Account::with(Config::default().with_partitions(4), |builder| builder).await;
    let items = &account.container;
    let values = [json!([1]), json!({ "x": 1 }), json!([2]), json!("s"), json!({ "x": 2 })];
    for n in 0..20 {
        let item = json!({ "id": n.to_string(), "pk": n.to_string(), "m": values[n % values.len()] });
        items.create_item(n.to_string(), &item, ItemOptions::default()).await.expect("created");
    }
    let text = "SELECT DISTINCT VALUE c.m FROM c ORDER BY c.m";
    let (mut found, mut continuation) = (Vec::new(), None);
    loop {
        let mut options = QueryOptions::default().with_page_size(1);
        options.continuation = continuation;
        let mut pager = items.query(text, Scope::Container, options);
        let Some(page) = pager.next().await.expect("a page") else { break };
        found.extend(page.items::<Value>().expect("rows"));
        continuation = page.continuation().map(str::to_owned);
        if continuation.is_none() {
            break;
        }
    }
    let types: String = found.iter().map(|value| value.to_string().remove(0)).collect();
    assert_eq!(types, "\"[[{{", "{found:?}");
    found.sort_by_key(Value::to_string);
    found.dedup();
    assert_eq!(found.len(), values.len());
}

#[tokio::test]
async fn any_page_can_be_the_last_one_of_a_process() {
    let account = filled(8).await;
    let items = &account.container;
    for text in [
        "SELECT c.n FROM c",
        "SELECT c.n FROM c ORDER BY c.n",
        "SELECT c.n FROM c ORDER BY c.k DESC",
        "SELECT c.n FROM c ORDER BY c.m",
        "SELECT c.n FROM c ORDER BY c.m DESC",
        "SELECT c.n FROM c ORDER BY c.s DESC",
        "SELECT TOP 30 c.n FROM c ORDER BY c.k",
        "SELECT c.n FROM c ORDER BY c.n OFFSET 11 LIMIT 40",
        "SELECT c.n FROM c WHERE c.k = 3 OFFSET 2 LIMIT 9",
    ] {
        let options = QueryOptions::default().with_page_size(4);
        let whole = ns(&all(items, text, options.clone()).await);
        let mut pieces = Vec::new();
        let mut continuation: Option<String> = None;
        loop {
            let mut options = options.clone();
            options.continuation = continuation;
            let mut pager = items.query(text, Scope::Container, options);
            let Some(page): Option<Page> = pager.next().await.unwrap_or_else(|e| panic!("{text}: {e:?}"))
            else {
                break;
            };
            pieces.extend(ns(&page.items::<Value>().expect("rows")));
            continuation = page.continuation().map(str::to_owned);
            if continuation.is_none() {
                break;
            }
        }
        assert_eq!(pieces, whole, "{text}");
        if text.starts_with("SELECT c.n FROM c ORDER BY") && !text.contains("LIMIT") {
            pieces.sort_unstable();
            assert_eq!(pieces, (0..ITEMS).collect::<Vec<_>>(), "{text}");
        }
    }
}

#[tokio::test]
async fn rows_of_one_document_are_continued_in_the_middle_of_it() {
    let account = Account::with(Config::default().with_partitions(4), |builder| builder).await;
    let items = &account.container;
    for n in 0..20 {
        let item = json!({ "id": n.to_string(), "pk": n.to_string(), "n": n / 2, "tags": ["a", "b", "c"] });
        items.create_item(n.to_string(), &item, ItemOptions::default()).await.expect("created");
    }
    for text in [
        "SELECT c.n, c.id, t FROM c JOIN t IN c.tags ORDER BY c.n",
        "SELECT c.n, c.id, t FROM c JOIN t IN c.tags ORDER BY c.n DESC",
    ] {
        let whole = all(items, text, QueryOptions::default()).await;
        assert_eq!(whole.len(), 60, "{text}");
        for size in [1, 2, 4] {
            let mut pieces = Vec::new();
            let mut continuation: Option<String> = None;
            loop {
                let mut options = QueryOptions::default().with_page_size(size);
                options.continuation = continuation;
                let mut pager = items.query(text, Scope::Container, options);
                let Some(page) = pager.next().await.expect("a page") else { break };
                pieces.extend(page.items::<Value>().expect("rows"));
                continuation = page.continuation().map(str::to_owned);
                if continuation.is_none() {
                    break;
                }
            }
            assert_eq!(pieces, whole, "{text}, pages of {size}");
        }
    }
}

#[tokio::test]
async fn a_continuation_of_another_query_is_refused() {
    let account = filled(4).await;
    let mut pager = account.container.query(
        "SELECT c.n FROM c",
        Scope::Container,
        QueryOptions::default().with_page_size(1),
    );
    let page = pager.next().await.expect("a page").expect("rows");
    let continuation = page.continuation().expect("more").to_owned();
    let options = QueryOptions::default().with_continuation(continuation);
    let error = account
        .container
        .query("SELECT c.k FROM c", Scope::Container, options)
        .next()
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::BadRequest);
}

#[tokio::test]
async fn sixteen_ranges_are_asked_once_and_at_the_same_time() {
    // Who is held for longer than an attempt may take is asked again, and would be counted twice.
    let long = Duration::from_secs(120);
    let timeouts = Timeouts { operation: long, feed_attempt: long, ..Timeouts::default() };
    let account = filled_by(16, |builder| builder.timeouts(timeouts)).await;
    all(&account.container, ORDERED, QueryOptions::default()).await;
    let held = account.emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::Query));
    let items = account.container.clone();
    let query = tokio::spawn(async move { all(&items, ORDERED, QueryOptions::default()).await });
    // Nobody is answered before all have come.
    let gathered = tokio::time::timeout(Duration::from_secs(30), async {
        while held.struck() < 16 {
            tokio::task::yield_now().await;
        }
    });
    assert!(gathered.await.is_ok(), "only {} of 16 were asked before one had answered", held.struck());
    drop(held);
    assert_eq!(ns(&query.await.expect("it ends")), (0..ITEMS).collect::<Vec<_>>());
    // Nor is anybody asked again: it all takes one round trip.
    account.emulator.ledger().reset();
    assert_eq!(all(&account.container, ORDERED, QueryOptions::default()).await.len(), ITEMS);
    assert_eq!(account.emulator.ledger().snapshot().operation(Operation::Query).requests, 16);
}

#[tokio::test]
async fn one_range_is_read_by_its_bounds() {
    let account = filled(4).await;
    let mut seen = Vec::new();
    for range in account.container.ranges(CallOptions::default()).await.expect("ranges") {
        let text = "SELECT c.n FROM c ORDER BY c.n";
        let rows: Vec<Value> =
            account.container.query(text, range, QueryOptions::default()).collect().await.expect("rows");
        assert!(rows.windows(2).all(|pair| pair[0]["n"].as_u64() < pair[1]["n"].as_u64()));
        seen.extend(ns(&rows));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_broken_query_says_so() {
    let account = filled(2).await;
    let error = account
        .container
        .query("SELEKT * FROM c", Scope::Container, QueryOptions::default())
        .next()
        .await
        .expect_err("syntax");
    assert_eq!((error.kind(), error.status()), (ErrorKind::BadRequest, Some(400)));
}

#[tokio::test]
async fn a_dropped_page_is_not_lost() {
    let account = filled(8).await;
    let options = QueryOptions::default().with_page_size(5);
    let mut pager = account.container.query("SELECT c.n FROM c ORDER BY c.n", Scope::Container, options);
    let mut seen = Vec::new();
    loop {
        // Give up on it a few times before waiting for it.
        for patience in [0, 100, 1000] {
            let limit = Duration::from_micros(patience);
            match tokio::time::timeout(limit, pager.next()).await {
                Ok(Ok(Some(page))) => seen.extend(ns(&page.items::<Value>().expect("rows"))),
                Ok(Ok(None)) | Err(_) => {}
                Ok(Err(error)) => panic!("{error:?}"),
            }
        }
        match pager.next().await.expect("a page") {
            Some(page) => seen.extend(ns(&page.items::<Value>().expect("rows"))),
            None => break,
        }
    }
    assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_page_that_was_asked_for_long_ago_is_asked_for_again() {
    let account = filled(8).await;
    let patience = Duration::from_secs(2);
    let options =
        QueryOptions::default().with_page_size(5).with_call(CallOptions::default().with_timeout(patience));
    let mut pager = account.container.query(ORDERED, Scope::Container, options);
    let mut seen = Vec::new();
    let page = pager.next().await.expect("a page").expect("rows");
    seen.extend(ns(&page.items::<Value>().expect("rows")));
    let held = account.emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::Query));
    while let Ok(page) = tokio::time::timeout(Duration::from_millis(200), pager.next()).await {
        let page = page.expect("a page").expect("rows");
        seen.extend(ns(&page.items::<Value>().expect("rows")));
    }
    assert!(held.struck() > 0, "something is on its way");
    tokio::time::sleep(patience + Duration::from_millis(200)).await;
    drop(held);
    while let Some(page) = pager.next().await.expect("a page") {
        seen.extend(ns(&page.items::<Value>().expect("rows")));
    }
    assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>());
}

#[tokio::test]
async fn changes_are_followed_from_the_beginning_and_from_a_continuation() {
    let account = filled(4).await;
    let items = &account.container;
    let mut feed = items
        .change_feed(Scope::Container, ChangeFeedStart::Beginning, CallOptions::default())
        .with_page_size(9);
    let mut seen = Vec::new();
    let continuation = loop {
        let page = feed.next().await.expect("a page");
        if page.is_empty() {
            break page.continuation().to_owned();
        }
        seen.extend(ns(&page.items::<Value>().expect("items")));
    };
    seen.sort_unstable();
    assert_eq!(seen, (0..ITEMS).collect::<Vec<_>>());
    let mut changed = item(5);
    changed["new"] = json!(true);
    items.upsert_item("p5", &changed, ItemOptions::default()).await.expect("changed");
    let start = ChangeFeedStart::Continuation(continuation);
    let mut feed = items.change_feed(Scope::Container, start, CallOptions::default());
    let page = feed.next().await.expect("a page");
    assert_eq!(ns(&page.items::<Value>().expect("items")), [5]);
    assert!(feed.next().await.expect("a page").is_empty());
    let key: PartitionKey = "p5".into();
    let mut feed = items.change_feed(key, ChangeFeedStart::Now, CallOptions::default());
    assert!(feed.next().await.expect("a page").is_empty());
    items.upsert_item("p5", &changed, ItemOptions::default()).await.expect("changed");
    assert_eq!(ns(&feed.next().await.expect("a page").items::<Value>().expect("items")), [5]);
}

#[tokio::test]
async fn an_error_in_the_feed_of_one_key_is_told_and_costs_no_place() {
    let account = filled(4).await;
    let key: PartitionKey = "p5".into();
    let mut feed = account
        .container
        .change_feed(key, ChangeFeedStart::Beginning, CallOptions::default())
        .with_page_size(2);
    let mut seen = ns(&feed.next().await.expect("a page").items::<Value>().expect("items"));
    let gone = account.emulator.faults().add(FaultRule::status(410, 0).on(Operation::ChangeFeed));
    let error = feed.next().await.expect_err("it is not there");
    assert_eq!(error.status(), Some(410));
    drop(gone);
    loop {
        let page = feed.next().await.expect("a page");
        if page.is_empty() {
            break;
        }
        seen.extend(ns(&page.items::<Value>().expect("items")));
    }
    assert_eq!(seen, (0..ITEMS).filter(|n| n % 23 == 5).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_continuation_remembers_where_parts_not_asked_yet_begin() {
    let account = filled(4).await;
    let items = &account.container;
    account.emulator.clock().advance(Duration::from_secs(100));
    let since = account.emulator.clock().now();
    account.emulator.clock().advance(Duration::from_secs(100));
    for n in 0..23 {
        items.upsert_item(format!("p{n}"), &item(n), ItemOptions::default()).await.expect("changed");
    }
    let mut start = ChangeFeedStart::Since(since);
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let mut feed = items.change_feed(Scope::Container, start, CallOptions::default());
        let page = feed.next().await.expect("a page");
        if page.is_empty() {
            break;
        }
        pages += 1;
        seen.extend(ns(&page.items::<Value>().expect("items")));
        start = ChangeFeedStart::Continuation(page.continuation().to_owned());
    }
    assert!(pages > 1, "the changes are in several ranges");
    seen.sort_unstable();
    assert_eq!(seen, (0..23).collect::<Vec<_>>());
}

#[tokio::test]
async fn changes_that_cannot_be_read_are_not_passed_by() {
    let world = World::start().await;
    let driver = world.builder().build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p", "n": 1 });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created");
    let mut feed = items.change_feed(Scope::Container, ChangeFeedStart::Beginning, CallOptions::default());
    world.talk(Some("{"));
    assert_eq!(feed.next().await.expect_err("nonsense").kind(), ErrorKind::Serialization);
    world.talk(None);
    let page = feed.next().await.expect("a page");
    assert_eq!(ns(&page.items::<Value>().expect("items")), [1]);
}

/// Sixty items of three tenants in eight ranges.
async fn tree() -> (Account, Container) {
    let account = Account::with(Config::default().with_partitions(8), |builder| builder).await;
    let database = account.container.database();
    let properties = cosmos_driver::ContainerProperties::new("tree", &["/tenant", "/user"]);
    database.create_container(&properties, None, CallOptions::default()).await.expect("created");
    let tree = database.container("tree").expect("a name");
    for n in 0..60_u64 {
        let (tenant, user) = (format!("t{}", n % 3), format!("u{n}"));
        let key: PartitionKey = [tenant.as_str(), user.as_str()].into_iter().map(Into::into).collect();
        let item = json!({ "id": n.to_string(), "tenant": tenant, "user": user, "n": n });
        tree.create_item(key, &item, ItemOptions::default()).await.expect("created");
    }
    (account, tree)
}

#[tokio::test]
async fn a_prefix_of_a_hierarchical_key_is_a_scope() {
    let (_account, tree) = tree().await;
    let scope = Scope::PartitionKey("t1".into());
    let rows: Vec<Value> = tree
        .query("SELECT c.n FROM c ORDER BY c.n", scope, QueryOptions::default())
        .collect()
        .await
        .expect("rows");
    assert_eq!(ns(&rows), (0..60).filter(|n| n % 3 == 1).collect::<Vec<_>>());
}

#[tokio::test]
async fn changes_under_a_prefix_of_a_hierarchical_key_are_followed() {
    let (_account, tree) = tree().await;
    let scope = Scope::PartitionKey("t1".into());
    let mut feed = tree.change_feed(scope, ChangeFeedStart::Beginning, CallOptions::default());
    let mut seen = Vec::new();
    loop {
        let page = feed.next().await.expect("a page");
        if page.is_empty() {
            break;
        }
        seen.extend(ns(&page.items::<Value>().expect("items")));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..60).filter(|n| n % 3 == 1).collect::<Vec<_>>());
}

#[tokio::test]
async fn many_items_are_read_in_one_request_per_range() {
    let account = filled(8).await;
    let wanted: Vec<(PartitionKey, String)> =
        (0..ITEMS + 10).map(|n| (format!("p{}", n % 23).into(), format!("i{n:03}"))).collect();
    let found = account.container.read_many(&wanted, &ItemOptions::default()).await.expect("read");
    for (n, item) in found.items::<Value>().expect("json").iter().enumerate() {
        match item {
            Some(item) => assert_eq!(item["n"], n),
            None => assert!(n >= ITEMS, "{n} is missing"),
        }
    }
    let requests = found.diagnostics().attempts().len();
    assert!(requests <= 8, "{requests} requests for eight ranges");
    assert!(found.charge() > 0.0);
}

#[tokio::test]
async fn one_item_of_many_has_the_time_and_the_errors_of_the_whole() {
    let account = Account::start().await;
    let faults = account.emulator.faults();
    let wanted = [("p".into(), "1".to_owned())];
    let gone = faults.add(FaultRule::status(404, 1003).on(Operation::ReadItem));
    let error =
        account.container.read_many(&wanted, &ItemOptions::default()).await.expect_err("no container");
    assert_eq!((error.kind(), error.sub_status()), (ErrorKind::NotFound, Some(1003)));
    drop(gone);
    // Neither takes too long for itself.
    let slow = || FaultRule::new(Verdict::Delay { duration: Duration::from_millis(600) });
    let _ranges = faults.add(slow().on(Operation::ReadRanges));
    let _item = faults.add(slow().on(Operation::ReadItem));
    let driver = Driver::builder(account.emulator.endpoint(), Credential::emulator());
    let fresh = driver.build().await.expect("the driver starts").container("db", "items").expect("a name");
    let options = ItemOptions::default().with_timeout(Duration::from_secs(1));
    let error = fresh.read_many(&wanted, &options).await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
}

#[tokio::test]
async fn one_item_of_many_is_a_point_read() {
    let account = filled(8).await;
    let key = |n: usize| PartitionKey::from(format!("p{}", n % 23));
    let one = [(key(3), "i003".to_owned())];
    let found = account.container.read_many(&one, &ItemOptions::default()).await.expect("read");
    assert_eq!(found.items::<Value>().expect("json")[0].as_ref().expect("there")["n"], 3);
    assert!(found.charge() < 2.0, "a point read costs 1 RU, not {}", found.charge());
    let none = account.container.read_many(&[], &ItemOptions::default()).await.expect("read");
    assert!(none.bodies().is_empty());
    let twice = [(key(3), "i003".to_owned()), (key(3), "i003".to_owned()), (key(3), "nowhere".to_owned())];
    let found = account.container.read_many(&twice, &ItemOptions::default()).await.expect("read");
    let there: Vec<bool> = found.bodies().iter().map(Option::is_some).collect();
    assert_eq!(there, [true, true, false]);
}

#[tokio::test]
async fn distinct_rows_without_order_are_continued_from_any_page() {
    let account = filled(8).await;
    let text = "SELECT DISTINCT VALUE c.n % 7 FROM c";
    let mut seen = Vec::new();
    let mut continuation: Option<String> = None;
    loop {
        let mut options = QueryOptions::default().with_page_size(3);
        options.continuation = continuation.take();
        let mut pager = account.container.query(text, Scope::Container, options);
        let Some(page) = pager.next().await.expect("a page") else { break };
        seen.extend(page.items::<i64>().expect("numbers"));
        match page.continuation() {
            Some(token) => continuation = Some(token.to_owned()),
            None => break,
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..7).collect::<Vec<_>>(), "each value once, though every page had a pager of its own");
}
