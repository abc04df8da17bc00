//! Bad days of regions.

use std::time::{Duration, Instant};

use cosmos_driver::{
    Breaker, Builder, CallOptions, Container, Context, ErrorKind, Hedging, HedgingMode, ItemOptions,
    OnUnknown, QueryOptions, Scope, Timeouts,
};
use cosmos_emulator::{FaultRule, Operation, Verdict};
use serde_json::json;

use crate::globe::{Globe, Mood};
use crate::world::World;

fn without_hedging(builder: Builder) -> Builder {
    builder.hedging(Hedging { mode: HedgingMode::Off, ..Hedging::default() })
}

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

fn probing_after(builder: Builder, probe_after: Duration) -> Builder {
    builder.breaker(Breaker { probe_after, ..Breaker::default() })
}

fn quick(builder: Builder) -> Builder {
    builder.timeouts(Timeouts {
        attempt: Duration::from_secs(2),
        endpoint_unavailable: Duration::from_millis(300),
        account_refresh_min: Duration::from_millis(50),
        ..Timeouts::default()
    })
}

async fn open(builder: Builder) -> Container {
    let driver = builder.build().await.expect("the driver starts");
    driver.container("db", "items").expect("a valid name")
}

async fn seeded(builder: Builder) -> Container {
    let container = open(builder).await;
    container
        .create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
        .await
        .expect("created");
    container
}

fn regions(response: &cosmos_driver::Response) -> Vec<String> {
    response.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect()
}

#[tokio::test]
async fn reads_go_elsewhere_while_a_region_refuses_connections_and_return_after_a_probe() {
    let world = Globe::start(&["East", "West"]).await;
    let items = seeded(quick(without_hedging(world.builder()))).await;
    world.down(0);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read).last().map(String::as_str), Some("West"));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read), ["West"], "East is avoided without being asked");
    world.up(0);
    let begun = Instant::now();
    loop {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served");
        if regions(&read) == ["East"] {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "East never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_pages_of_a_query_go_on_elsewhere_when_their_region_is_gone() {
    for scope in [Scope::PartitionKey("p".into()), Scope::Container] {
        let world = Globe::start(&["East", "West"]).await;
        let items = open(quick(without_hedging(world.builder()))).await;
        for n in 0..5 {
            let item = json!({ "id": n.to_string(), "pk": "p" });
            items.create_item("p", &item, ItemOptions::default()).await.expect("created");
        }
        let options = QueryOptions::default().with_page_size(1);
        let mut pager = items.query("SELECT VALUE c.id FROM c", scope.clone(), options);
        let first = pager.next().await.expect("a page").expect("of five");
        assert_eq!(&*first.diagnostics().attempts()[0].region, "East");
        let mut seen: Vec<String> = first.items().expect("ids");
        world.down(0);
        while let Some(page) = pager.next().await.unwrap_or_else(|e| panic!("{scope:?}: {e:?}")) {
            seen.append(&mut page.items().expect("ids"));
        }
        seen.sort_unstable();
        assert_eq!(seen, ["0", "1", "2", "3", "4"], "{scope:?}");
    }
}

#[tokio::test]
async fn refusals_of_a_region_are_answered_by_the_next() {
    for (code, sub) in [(503, 0), (410, 0), (429, 3092), (408, 0), (500, 0), (403, 1008), (403, 3)] {
        let world = Globe::start(&["East", "West"]).await;
        let items = seeded(quick(without_hedging(world.builder()))).await;
        world.mood(0, Mood::Status(code, sub));
        if (code, sub) == (403, 3) {
            // Reads are never refused so; the row is about writes.
            world.mood(0, Mood::Well);
            world.write_region(1);
            let written = items
                .upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
                .await
                .expect("moved");
            assert_eq!(regions(&written), ["East", "West"]);
            continue;
        }
        let read = items
            .read_item("p", "1", ItemOptions::default())
            .await
            .unwrap_or_else(|e| panic!("{code}: {e:?}"));
        assert_eq!(regions(&read), ["East", "West"], "{code}/{sub}");
        assert_eq!(read.diagnostics().attempts()[1].context, Context::Failover);
    }
}

#[tokio::test]
async fn a_region_that_is_gone_in_any_manner_costs_no_answer() {
    use cosmos_emulator::Offline::{Hang, Refuse, Unavailable};
    for manner in [Refuse, Unavailable, Hang] {
        let world = Globe::start(&["East", "West"]).await;
        let items = seeded(quick(without_hedging(world.builder()))).await;
        world.write_region(1);
        items
            .upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
            .await
            .expect("moved");
        world.offline(0, manner);
        for n in 0..5 {
            items
                .read_item("p", "1", ItemOptions::default())
                .await
                .unwrap_or_else(|e| panic!("{manner:?}: {e:?}"));
            let item = json!({ "id": format!("w{n}"), "pk": "p" });
            items
                .create_item("p", &item, ItemOptions::default())
                .await
                .unwrap_or_else(|e| panic!("{manner:?}: {e:?}"));
        }
    }
}

#[tokio::test]
async fn a_hanging_region_costs_one_attempt() {
    let world = Globe::start(&["East", "West"]).await;
    let items = seeded(quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Hanging);
    let begun = Instant::now();
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read), ["East", "West"]);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_slow_region_is_hedged_and_both_legs_are_reported() {
    let world = Globe::start(&["East", "West"]).await;
    let hedging = Hedging { mode: HedgingMode::After(Duration::from_millis(30)), ..Hedging::default() };
    let items = seeded(world.builder().hedging(hedging)).await;
    world.mood(0, Mood::Hanging);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West was faster");
    let attempts = read.diagnostics().attempts();
    assert!(read.diagnostics().is_hedged());
    assert_eq!((attempts[0].context, &*attempts[0].region), (Context::Initial, "East"));
    assert_eq!((attempts[1].context, &*attempts[1].region), (Context::Hedging, "West"));
    // Switched off for one call, the slow region is waited for.
    world.mood(0, Mood::Slow(Duration::from_millis(100)));
    let off = ItemOptions::from(CallOptions::default().with_hedging(HedgingMode::Off));
    let read = items.read_item("p", "1", off).await.expect("served by East");
    assert_eq!(regions(&read), ["East"]);
}

#[tokio::test]
async fn a_region_that_keeps_losing_races_is_no_longer_waited_for() {
    let world = Globe::start(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(20));
    let items = seeded(world.builder().hedging(Hedging { mode, ..Hedging::default() })).await;
    world.mood(0, Mood::Hanging);
    let mut asked = 0;
    for _ in 0..40 {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
        asked += regions(&read).iter().filter(|region| *region == "East").count();
    }
    assert!(asked < 15, "East was asked {asked} times");
}

/// Reads that were under way when the region was given up, and could not be hedged, are answered in the end.
#[tokio::test]
async fn late_answers_of_a_slow_region_do_not_bring_its_requests_back() {
    let world = Globe::start(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(20));
    let hedging = Hedging { mode, budget: 0.0, budget_max: 8, ..Hedging::default() };
    let items = seeded(probing_after(world.builder().hedging(hedging), NEVER)).await;
    world.mood(0, Mood::Slow(Duration::from_secs(2)));
    let read = || items.read_item("p", "1", ItemOptions::default());
    let reads = futures::future::try_join_all((0..24).map(|_| read())).await.expect("all are answered");
    let hedged = reads.iter().filter(|read| read.diagnostics().is_hedged()).count();
    assert_eq!(hedged, 8, "the others waited for East");
    assert_eq!(regions(&read().await.expect("read")), ["West"]);
}

#[tokio::test]
async fn hedges_stop_when_their_budget_is_spent() {
    let world = Globe::start(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(10));
    let items =
        seeded(world.builder().hedging(Hedging { mode, budget: 0.0, budget_max: 2, ..Hedging::default() }))
            .await;
    world.mood(0, Mood::Slow(Duration::from_millis(60)));
    let mut hedged = 0;
    for _ in 0..6 {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served");
        hedged += u32::from(read.diagnostics().is_hedged());
    }
    assert_eq!(hedged, 2);
}

#[tokio::test]
async fn both_legs_failing_returns_to_failover() {
    let world = Globe::start(&["East", "West", "North"]).await;
    let mode = HedgingMode::After(Duration::from_millis(10));
    let items = seeded(world.builder().hedging(Hedging { mode, ..Hedging::default() })).await;
    world.mood(0, Mood::Hanging);
    world.mood(1, Mood::Status(503, 0));
    let reading = tokio::spawn({
        let items = items.clone();
        async move { items.read_item("p", "1", ItemOptions::default()).await }
    });
    let begun = Instant::now();
    while world.struck(1) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "West is never asked");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    world.mood(0, Mood::Well);
    let read = reading.await.expect("no panic").expect("East answers in the end");
    assert!(read.diagnostics().is_hedged());
    world.mood(0, Mood::Status(503, 0));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("North answers");
    assert_eq!(regions(&read).last().map(String::as_str), Some("North"));
}

#[tokio::test]
async fn writes_follow_the_write_region_under_load() {
    let world = Globe::start(&["East", "West"]).await;
    let timeouts = Timeouts { account_refresh_min: Duration::from_millis(50), ..Timeouts::default() };
    let items = seeded(without_hedging(world.builder()).timeouts(timeouts)).await;
    let mut writes = Vec::new();
    for n in 0..200 {
        if n == 100 {
            world.write_region(1);
        }
        let items = items.clone();
        writes.push(tokio::spawn(async move {
            let item = json!({ "id": format!("w{n}"), "pk": "p" });
            items.create_item("p", &item, ItemOptions::default()).await
        }));
        tokio::task::yield_now().await;
    }
    for write in writes {
        write.await.expect("no panic").expect("every write arrives");
    }
    // A write that was executed twice would have met itself, as a conflict.
    let query = "SELECT VALUE COUNT(1) FROM c";
    let count: Vec<u64> =
        items.query(query, Scope::Container, QueryOptions::default()).collect().await.expect("counted");
    assert_eq!(count, [201]);
    assert_eq!(world.emulator.regions().write_region(), "West");
}

#[tokio::test]
async fn a_replica_behind_the_session_sends_the_read_to_the_write_region() {
    let world = Globe::start(&["East", "West"]).await;
    world.write_region(1);
    let items = seeded(quick(without_hedging(world.builder()))).await;
    world.fall_behind(0);
    let item = json!({ "id": "new", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("created in West");
    let read = items.read_item("p", "new", ItemOptions::default()).await.expect("West has it");
    assert_eq!(regions(&read), ["East", "West"]);
    assert_eq!(read.diagnostics().attempts()[1].context, Context::Session);
    // Another session has not seen the write, and may read without it.
    let stranger = open(without_hedging(world.builder())).await;
    let error = stranger.read_item("p", "new", ItemOptions::default()).await.expect_err("not in East yet");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    world.catch_up(0);
    let begun = Instant::now();
    while regions(&items.read_item("p", "new", ItemOptions::default()).await.expect("read")) != ["East"] {
        assert!(begun.elapsed() < Duration::from_secs(10), "East never caught up");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn the_pages_of_the_range_feed_come_from_one_region() {
    let world = Globe::start(&["East", "West"]).await;
    let items = open(without_hedging(world.builder())).await;
    let verdict = Verdict::Status { code: 503, sub_status: 0, retry_after: None };
    let mut rule = FaultRule::new(verdict).on(Operation::ReadRanges);
    rule.region = Some("East".to_owned());
    let refused = world.emulator.faults().add(rule);
    let error = items.read_item("p", "1", ItemOptions::default()).await.expect_err("there is none yet");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(refused.struck(), 1, "East was asked for the rest of what West began");
}

#[tokio::test]
async fn a_failing_partition_is_avoided_and_tried_again_later() {
    let world = Globe::start(&["East", "West"]).await;
    let items = seeded(probing_after(without_hedging(world.builder()), NEVER)).await;
    let hasty = open(probing_after(without_hedging(world.builder()), Duration::from_millis(50))).await;
    world.mood(0, Mood::Status(503, 0));
    for _ in 0..2 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
        hasty.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    for _ in 0..5 {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
        assert_eq!(regions(&read), ["West"]);
    }
    world.mood(0, Mood::Well);
    let begun = Instant::now();
    loop {
        let read = hasty.read_item("p", "1", ItemOptions::default()).await.expect("served");
        if regions(&read) == ["East"] {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "never closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_sent_twice() {
    let world = Globe::multi_write(&["East", "West"]).await;
    let items = seeded(quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Forgetful);
    let item = json!({ "id": "once", "pk": "p" });
    let error = items.upsert_item("p", &item, ItemOptions::default()).await.expect_err("unknown");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Connection);
    world.mood(0, Mood::Well);
    items.read_item("p", "once", ItemOptions::default()).await.expect("it was");
    world.mood(0, Mood::Forgetful);
    // A caller who knows that it is harmless may allow it.
    let allowed = ItemOptions::from(CallOptions::default().with_on_unknown(OnUnknown::Repeat));
    let item = json!({ "id": "twice", "pk": "p" });
    items.upsert_item("p", &item, allowed).await.expect("West answers");
}

#[tokio::test]
async fn a_write_on_whatever_is_there_is_not_sent_twice() {
    let world = Globe::multi_write(&["East", "West"]).await;
    let items = seeded(quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Forgetful);
    let item = json!({ "id": "1", "pk": "p", "n": 1 });
    let any = ItemOptions::default().with_if_match("*");
    let error = items.replace_item("p", "1", &item, any).await.expect_err("unknown");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(error.diagnostics().attempts().len(), 1);
}

#[tokio::test]
async fn a_caller_who_leaves_takes_no_refresh_of_the_account_along() {
    let world = Globe::start(&["East", "West"]).await;
    let timeouts = Timeouts { account_refresh_min: NEVER, ..Timeouts::default() };
    let items = seeded(without_hedging(world.builder()).timeouts(timeouts)).await;
    let delay = Verdict::Delay { duration: Duration::from_millis(500) };
    let _slow = world.emulator.faults().add(FaultRule::new(delay).on(Operation::ReadAccount));
    world.write_region(1);
    let item = json!({ "id": "new", "pk": "p" });
    let write = || items.upsert_item("p", &item, ItemOptions::default());
    let left = tokio::time::timeout(Duration::from_millis(100), write()).await;
    assert!(left.is_err(), "the first caller is gone before the account is there");
    let written = write().await.expect("the second follows the write region");
    assert_eq!(regions(&written), ["East", "West"]);
}

#[tokio::test]
async fn excluded_regions_are_left_alone() {
    let world = Globe::start(&["East", "West"]).await;
    let items = seeded(without_hedging(world.builder())).await;
    let options = ItemOptions::from(CallOptions::default().with_excluded_regions(["east"]));
    let read = items.read_item("p", "1", options).await.expect("served by West");
    assert_eq!(regions(&read), ["West"]);
}

#[tokio::test]
async fn a_service_with_another_clock_is_believed() {
    // The emulator takes any date, so this one is scripted.
    let world = World::start().await;
    let items = seeded(world.builder()).await;
    world.clock_ahead(7200);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("after setting the clock");
    assert_eq!(read.diagnostics().attempts().len(), 2);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("at once");
    assert_eq!(read.diagnostics().attempts().len(), 1);
}

#[tokio::test]
async fn the_account_is_read_rarely_however_often_it_is_asked_for() {
    let world = Globe::start(&["East", "West"]).await;
    let timeouts = Timeouts { account_refresh_min: NEVER, ..Timeouts::default() };
    let items = seeded(without_hedging(world.builder()).timeouts(timeouts)).await;
    world.mood(0, Mood::Status(403, 1008));
    let before = world.account_reads();
    for _ in 0..20 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    assert!(world.account_reads() <= before + 1);
}
