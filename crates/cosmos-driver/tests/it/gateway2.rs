//! Gateway 2.0 as the emulator offers it: what goes that way, what comes back, and what happens when it does not work.

use std::time::{Duration, Instant};

use cosmos_driver::{
    Batch, Builder, Bulk, CallOptions, ChangeFeedStart, Connections, Container, Diagnostics, Driver,
    ErrorKind, Hedging, HedgingMode, ItemOptions, Negotiation, PartitionKey, Patch, QueryOptions,
    ReadConsistencyStrategy, Scope, Timeouts,
};
use cosmos_emulator::{Config, FaultRule, Offline, Operation, Tls, Verdict};
use serde_json::{Value, json};

use crate::globe::{Globe, Mood};
use crate::ranges::{self, PLAIN, SORTED, all, fill, merge, read_by_pages, split};

async fn globe(names: &[&str]) -> Globe {
    Globe::with(Config::default().with_regions(names).with_partitions(4).with_gateway2()).await
}

/// A driver that goes by Gateway 2.0 in so many regions.
async fn ready(builder: Builder, endpoints: usize) -> Driver {
    let driver = builder.build().await.expect("the driver starts");
    until(|| driver.gateway2_in_use().len() == endpoints).await;
    driver
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never came to that");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn items(globe: &Globe) -> Container {
    let driver = ready(globe.builder(), globe.names.len()).await;
    driver.container("db", "items").expect("a valid name")
}

/// Patience for tests in which endpoints do not answer.
fn impatient() -> Timeouts {
    Timeouts {
        attempt: Duration::from_millis(300),
        endpoint_unavailable: Duration::from_millis(200),
        ..Timeouts::default()
    }
}

/// Which of the attempts went by Gateway 2.0.
fn ways(log: &Diagnostics) -> Vec<bool> {
    log.attempts().iter().map(|attempt| attempt.gateway2).collect()
}

fn item(id: &str, n: u64) -> Value {
    json!({ "id": id, "pk": "p", "n": n })
}

#[tokio::test]
async fn operations_on_items_go_that_way_and_say_what_the_ordinary_gateway_says() {
    let globe = globe(&["East"]).await;
    let by_frames = items(&globe).await;
    let ordinary = Connections { gateway2: false, ..Connections::default() };
    let ordinary = globe.builder().connections(ordinary).build().await.expect("the driver starts");
    let by_headers = ordinary.container("db", "items").expect("a valid name");
    let before = globe.emulator.regions().gateway2_requests("East").expect("it has one");
    let plain = ItemOptions::default;
    let mut logs = Vec::new();
    for (container, way) in [(&by_frames, true), (&by_headers, false)] {
        let id = if way { "frames" } else { "headers" };
        let created = container.create_item("p", &item(id, 1), plain()).await.expect("created");
        let etag = created.etag().expect("items have one").to_owned();
        let conditional = plain().with_if_match(&etag);
        let replaced =
            container.replace_item("p", id, &item(id, 2), conditional.clone()).await.expect("replaced");
        let stale =
            container.replace_item("p", id, &item(id, 3), conditional).await.expect_err("another ETag");
        assert_eq!(stale.kind(), ErrorKind::PreconditionFailed, "{stale}");
        let patched =
            container.patch_item("p", id, &Patch::new().increment("/n", 5), plain()).await.expect("patched");
        let read = container.read_item("p", id, plain()).await.expect("read");
        assert_eq!(read.json::<Value>().expect("an item")["n"], 7);
        let unchanged = plain().with_if_none_match(read.etag().expect("items have one"));
        let unchanged = container.read_item("p", id, unchanged).await.expect("read");
        assert_eq!((unchanged.status(), unchanged.body().len()), (304, 0));
        let upserted = container.upsert_item("p", &item(id, 9), plain()).await.expect("written");
        let missing = container.read_item("p", "nobody", plain()).await.expect_err("not there");
        assert_eq!(missing.status(), Some(404));
        let conflict = container.create_item("p", &item(id, 1), plain()).await.expect_err("it is there");
        assert_eq!(conflict.status(), Some(409));
        let batch = Batch::new("p").create(&item(&format!("{id} 2"), 1)).read(id);
        let batch = container.batch(batch, CallOptions::default()).await.expect("answered");
        assert!(batch.is_success());
        let failed = Batch::new("p").upsert(&item("never", 1)).create(&item(id, 1));
        let failed = container.batch(failed, CallOptions::default()).await.expect("answered");
        assert_eq!(failed.failed().map(|(index, result)| (index, result.status())), Some((1, 409)));
        let nothing = container.read_item("p", "never", plain()).await.expect_err("all or nothing");
        assert_eq!(nothing.status(), Some(404));
        let deleted = container.delete_item("p", &format!("{id} 2"), plain()).await.expect("deleted");
        assert_eq!(deleted.status(), 204);
        for response in
            [&created, &replaced, &patched, &read, &unchanged, &upserted, &deleted, batch.response()]
        {
            assert_eq!(ways(response.diagnostics()), [way], "{}", response.diagnostics());
            assert!(
                response.charge() > 0.0 && response.session_token().is_some_and(|token| token.contains(':'))
            );
        }
        for error in [&stale, &missing, &conflict, &nothing] {
            assert_eq!(ways(error.diagnostics()), [way], "{}", error.diagnostics());
        }
        let charges =
            [&created, &replaced, &patched, &read, &upserted, &deleted].map(cosmos_driver::Response::charge);
        logs.push((charges, read.etag().is_some(), batch.results().len()));
    }
    assert_eq!(logs[0], logs[1], "both ways cost and say the same");
    let after = globe.emulator.regions().gateway2_requests("East").expect("it has one");
    assert_eq!(after - before, 13);
}

#[tokio::test]
async fn ids_and_keys_of_any_kind_find_their_way() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    let long = "l".repeat(1000);
    for key in ["", "ä/ö ü", "\"quoted\"", "100%", "日本", long.as_str()] {
        for id in ["with space", "ümlaut", "a+b=c&d", "日本"] {
            let item = json!({ "id": id, "pk": key });
            let made = items.create_item(key, &item, ItemOptions::default()).await.expect("created");
            let read = items.read_item(key, id, ItemOptions::default()).await.expect("read");
            assert_eq!(
                (ways(made.diagnostics()), ways(read.diagnostics())),
                (vec![true], vec![true]),
                "{key} {id}"
            );
            items.delete_item(key, id, ItemOptions::default()).await.expect("deleted");
        }
    }
    let numbered = json!({ "id": "1", "pk": 1.5 });
    items.create_item(1.5, &numbered, ItemOptions::default()).await.expect("created");
    let none = json!({ "id": "1" });
    items.create_item(PartitionKey::undefined(), &none, ItemOptions::default()).await.expect("created");
    items.read_item(PartitionKey::undefined(), "1", ItemOptions::default()).await.expect("read");
}

#[tokio::test]
async fn queries_feeds_and_lists_of_items_read_all_ranges_that_way() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    fill(&items).await;
    for text in [PLAIN, SORTED] {
        read_by_pages(&items, text, |_| {}).await;
    }
    let sum: Vec<u64> = items
        .query("SELECT VALUE SUM(c.n) FROM c", Scope::Container, QueryOptions::default())
        .collect()
        .await
        .expect("a sum");
    assert_eq!(sum, [all().iter().sum::<u64>()]);
    let key = PartitionKey::from("p7");
    let one: Vec<Value> = items.query(PLAIN, key, QueryOptions::default()).collect().await.expect("rows");
    assert_eq!(ranges::ns(&one), [7]);
    let wanted: Vec<(PartitionKey, String)> =
        all().iter().map(|n| (format!("p{n}").into(), format!("i{n}"))).collect();
    let found = items.read_many(&wanted, &ItemOptions::default()).await.expect("read");
    assert_eq!(found.bodies().iter().flatten().count(), wanted.len());
    let mut changes = items.change_feed(Scope::Container, ChangeFeedStart::Beginning, CallOptions::default());
    let mut seen = Vec::new();
    loop {
        let page = changes.next().await.expect("a page");
        if page.is_empty() {
            break;
        }
        assert!(page.diagnostics().is_none_or(|log| ways(log).iter().all(|way| *way)));
        seen.extend(ranges::ns(&page.items::<Value>().expect("items")));
    }
    seen.sort_unstable();
    assert_eq!(seen, all());
    let ledger = globe.emulator.ledger().snapshot();
    let count = |wanted: &[Operation]| -> u64 {
        let lines = ledger.lines.iter().filter(|line| wanted.contains(&line.operation));
        lines.map(|line| line.totals.requests).sum()
    };
    let that_way = globe.emulator.regions().gateway2_requests("East").expect("it has one");
    assert_eq!(
        count(&[Operation::Query, Operation::QueryPlan, Operation::ChangeFeed, Operation::ReadItem]),
        that_way
    );
}

#[tokio::test]
async fn what_frames_cannot_carry_goes_to_the_ordinary_gateway() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    let done =
        items.bulk(Bulk::new().create("p", &item("1", 1)), CallOptions::default()).await.expect("done");
    assert_eq!(ways(done.diagnostics()), [false], "no public client sends bulk in frames");
    let tokens = CallOptions::default().with_session_token("0:-1#1,1:-1#1");
    let read = items.read_item("p", "1", ItemOptions::from(tokens)).await.expect("read");
    assert_eq!(ways(read.diagnostics()), [false], "a token of several ranges is refused there");
    let long = format!("0:-1#1#{}", "1=1#".repeat(20_000).trim_end_matches('#'));
    let long = CallOptions::default().with_session_token(long);
    let read = items.read_item("p", "1", ItemOptions::from(long)).await;
    let log =
        read.as_ref().map_or_else(cosmos_driver::Error::diagnostics, cosmos_driver::Response::diagnostics);
    assert!(ways(log).iter().all(|way| !way), "no frame has room for it: {log}");
}

#[tokio::test]
async fn an_account_that_does_not_offer_it_or_a_driver_that_does_not_want_it_goes_without() {
    let without = Globe::start(&["East"]).await;
    let driver = without.builder().build().await.expect("the driver starts");
    assert_eq!(driver.gateway2_endpoints(), Vec::<String>::new());
    let globe = globe(&["East"]).await;
    for connections in [
        Connections { gateway2: false, ..Connections::default() },
        Connections { negotiation: Negotiation::Http1Only, ..Connections::default() },
    ] {
        let driver = globe.builder().connections(connections).build().await.expect("the driver starts");
        assert_eq!(driver.gateway2_endpoints().len(), 1, "it is told of it");
        let items = driver.container("db", "items").expect("a valid name");
        for n in 0..20 {
            let written =
                items.upsert_item("p", &item("1", n), ItemOptions::default()).await.expect("written");
            assert_eq!(ways(written.diagnostics()), [false]);
        }
        assert_eq!(driver.gateway2_in_use(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_left_at_once_and_returned_to_after_a_probe() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder().timeouts(impatient()), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.emulator.regions().take_gateway2_offline("East", Offline::Refuse).expect("it has one");
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("by the other way");
    let log = read.diagnostics();
    assert_eq!((ways(log)[0], ways(log).last()), (true, Some(&false)), "{log}");
    let created = items.create_item("p", &item("2", 1), ItemOptions::default()).await.expect("created");
    assert_eq!(ways(created.diagnostics()), [false], "nobody else meets it");
    globe.emulator.regions().bring_gateway2_online("East").expect("it has one");
    until(|| driver.gateway2_in_use().len() == 1).await;
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    assert_eq!(ways(read.diagnostics()), [true]);
}

#[tokio::test]
async fn an_endpoint_that_is_unavailable_is_left_and_its_probe_says_when_it_is_back() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder().timeouts(impatient()), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    globe.emulator.regions().take_gateway2_offline("East", Offline::Unavailable).expect("it has one");
    let created =
        items.create_item("p", &item("1", 1), ItemOptions::default()).await.expect("by the other way");
    assert_eq!(ways(created.diagnostics()), [true, false], "{}", created.diagnostics());
    assert_eq!(created.diagnostics().attempts()[0].status.map(|status| status.code), Some(503));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(driver.gateway2_in_use(), Vec::<String>::new(), "its probe is answered with 503");
    globe.emulator.regions().bring_gateway2_online("East").expect("it has one");
    until(|| driver.gateway2_in_use().len() == 1).await;
}

#[tokio::test]
async fn what_an_endpoint_that_hangs_may_have_done_is_only_repeated_if_that_is_harmless() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder().timeouts(impatient()), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.emulator.regions().take_gateway2_offline("East", Offline::Hang).expect("it has one");
    let error =
        items.create_item("p", &item("2", 1), ItemOptions::default()).await.expect_err("nobody knows");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(ways(error.diagnostics()), [true], "{}", error.diagnostics());
    let created =
        items.create_item("p", &item("3", 1), ItemOptions::default()).await.expect("by the other way");
    assert_eq!(ways(created.diagnostics()), [false], "nobody else waits for it");
    globe.emulator.regions().bring_gateway2_online("East").expect("it has one");
    until(|| driver.gateway2_in_use().len() == 1).await;
    globe.emulator.regions().take_gateway2_offline("East", Offline::Hang).expect("it has one");
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("by the other way");
    assert_eq!(ways(read.diagnostics()), [true, false], "{}", read.diagnostics());
}

#[tokio::test]
async fn an_endpoint_is_left_also_if_nobody_waits_for_it_to_fail() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder(), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.emulator.regions().take_gateway2_offline("East", Offline::Refuse).expect("it has one");
    let begun = Instant::now();
    while !driver.gateway2_in_use().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is still in use");
        // The caller is gone before anything can be said of the endpoint.
        let read = items.read_item("p", "1", ItemOptions::default());
        let _gone = tokio::time::timeout(Duration::from_micros(1), read).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_caller_in_a_hurry_does_not_end_the_use_of_an_endpoint() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder(), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.mood(0, Mood::Slow(Duration::from_millis(100)));
    let hurry = ItemOptions::default().with_timeout(Duration::from_millis(20));
    let error = items.read_item("p", "1", hurry).await.expect_err("no time");
    assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
    assert_eq!(driver.gateway2_in_use().len(), 1, "an answer within a tenth of a second is no failure");
    globe.mood(0, Mood::Hanging);
    let patient = ItemOptions::default().with_timeout(Duration::from_millis(900));
    let error = items.read_item("p", "1", patient).await.expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
    assert!(driver.gateway2_in_use().is_empty(), "nobody else waits there as long as that");
}

#[tokio::test]
async fn throttling_and_conflicts_are_waited_out_there_as_elsewhere() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    let wait = Duration::from_millis(30);
    let throttled = Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(wait) };
    for rule in [FaultRule::new(throttled), FaultRule::status(449, 0)] {
        let _rule = globe.emulator.faults().add(rule.on(Operation::UpsertItem).times(3));
        let begun = Instant::now();
        let written =
            items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("in the end");
        assert_eq!(ways(written.diagnostics()), [true; 4], "{}", written.diagnostics());
        assert!(begun.elapsed() >= wait, "it says how long");
    }
}

#[tokio::test]
async fn a_lost_answer_is_unknown_there_as_elsewhere() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    let _rule = globe
        .emulator
        .faults()
        .add(FaultRule::new(Verdict::ResetAfterCommit).on(Operation::CreateItem).times(1));
    let error = items.create_item("p", &item("1", 1), ItemOptions::default()).await.expect_err("unknown");
    assert!(error.may_have_been_applied(), "{error}");
    items.read_item("p", "1", ItemOptions::default()).await.expect("it was done");
    let _rule =
        globe.emulator.faults().add(FaultRule::new(Verdict::ResetBefore).on(Operation::ReadItem).times(1));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("again");
    assert_eq!(read.diagnostics().attempts().len(), 2, "{}", read.diagnostics());
}

#[tokio::test]
async fn sessions_hold_across_regions_and_across_both_ways() {
    let globe = globe(&["East", "West"]).await;
    let west = ready(globe.builder().preferred_regions(["West", "East"]), 2).await;
    let items = west.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written in East");
    globe.fall_behind(1);
    items.upsert_item("p", &item("1", 2), ItemOptions::default()).await.expect("written in East");
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West is behind, East is not");
    assert_eq!(read.json::<Value>().expect("an item")["n"], 2);
    let log = read.diagnostics();
    assert_eq!(log.attempts()[0].status.map(|status| (status.code, status.sub)), Some((404, 1002)), "{log}");
    assert_eq!(ways(log), [true, true], "{log}");
    let eventual = CallOptions::default().with_read_consistency(ReadConsistencyStrategy::Eventual);
    let old = items.read_item("p", "1", ItemOptions::from(eventual)).await.expect("read");
    assert_eq!(
        (old.json::<Value>().expect("an item")["n"].clone(), ways(old.diagnostics())),
        (json!(1), vec![true])
    );
    globe.catch_up(1);
    let token = items.session_token().expect("it knows one");
    let ordinary = Connections { gateway2: false, ..Connections::default() };
    let other = globe.builder().connections(ordinary).build().await.expect("the driver starts");
    let other = other.container("db", "items").expect("a valid name");
    let call = CallOptions::default().with_session_token(token);
    let read =
        other.read_item("p", "1", ItemOptions::from(call)).await.expect("a token is one for both ways");
    assert_eq!(read.json::<Value>().expect("an item")["n"], 2);
}

#[tokio::test]
async fn a_slow_region_is_raced_by_another_one_that_way() {
    let globe = globe(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(20));
    let driver = ready(globe.builder().hedging(Hedging { mode, ..Hedging::default() }), 2).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.mood(0, Mood::Slow(Duration::from_millis(500)));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West is quick");
    let log = read.diagnostics();
    assert!(
        log.is_hedged()
            && log.attempts().iter().any(|attempt| attempt.gateway2 && *attempt.region == *"West"),
        "{log}"
    );
}

#[tokio::test]
async fn a_region_that_is_down_is_left_for_another_one_by_either_way() {
    let globe = globe(&["East", "West"]).await;
    let driver = ready(globe.builder().preferred_regions(["West", "East"]), 2).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    globe.down(1);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("East is there");
    let log = read.diagnostics();
    assert_eq!(log.attempts().last().map(|last| &*last.region), Some("East"), "{log}");
    let again = items.read_item("p", "1", ItemOptions::default()).await.expect("East is there");
    assert_eq!(ways(again.diagnostics()), [true], "{}", again.diagnostics());
}

#[tokio::test]
async fn splits_and_merges_are_survived_that_way() {
    for text in [PLAIN, SORTED] {
        for after in [0, 2, 5] {
            let globe = Globe::with(Config::default().with_partitions(2).with_gateway2()).await;
            let items = items(&globe).await;
            fill(&items).await;
            read_by_pages(&items, text, |pages| {
                if pages == after {
                    split(&globe);
                } else if pages == after + 2 {
                    merge(&globe);
                }
            })
            .await;
            let read = items.read_item("p7", "i7", ItemOptions::default()).await.expect("read");
            assert_eq!(ways(read.diagnostics()).last(), Some(&true));
        }
    }
}

#[tokio::test]
async fn items_of_two_megabytes_travel_whole() {
    let globe = globe(&["East"]).await;
    let items = items(&globe).await;
    let large = json!({ "id": "large", "pk": "p", "text": "x".repeat(1_990_000) });
    let written = items.create_item("p", &large, ItemOptions::default()).await.expect("written");
    assert_eq!(ways(written.diagnostics()), [true]);
    let read = items.read_item("p", "large", ItemOptions::default()).await.expect("read");
    assert_eq!(read.json::<Value>().expect("an item")["text"], large["text"]);
}

#[tokio::test]
async fn requests_that_are_dropped_give_back_what_they_held() {
    let globe = globe(&["East"]).await;
    let driver = ready(globe.builder(), 1).await;
    let items = driver.container("db", "items").expect("a valid name");
    items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    let rule = globe.emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::ReadItem));
    for _ in 0..40 {
        let read = items.read_item("p", "1", ItemOptions::default());
        assert!(tokio::time::timeout(Duration::from_millis(5), read).await.is_err(), "it hangs");
    }
    drop(rule);
    let in_flight = || {
        driver.connections().iter().flat_map(|pool| &pool.shards).map(|shard| shard.in_flight).sum::<u32>()
    };
    until(|| in_flight() == 0).await;
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
    assert_eq!(ways(read.diagnostics()), [true], "a caller that leaves says nothing about the endpoint");
}

#[tokio::test]
async fn under_tls_http2_is_agreed_on() {
    let config = Config { tls: Tls::Generated { names: Vec::new() }, ..Config::default().with_gateway2() };
    let globe = Globe::with(config).await;
    let items = items(&globe).await;
    let written = items.upsert_item("p", &item("1", 1), ItemOptions::default()).await.expect("written");
    assert_eq!(ways(written.diagnostics()), [true]);
}
