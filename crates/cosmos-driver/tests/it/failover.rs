//! Bad days of regions.

use std::time::{Duration, Instant};

use cosmos_driver::{
    Builder, CallOptions, Container, Context, ErrorKind, Hedging, HedgingMode, ItemOptions, OnUnknown,
    Timeouts,
};
use serde_json::json;

use crate::world::{Mood, World};

fn without_hedging(builder: Builder) -> Builder {
    builder.hedging(Hedging { mode: HedgingMode::Off, ..Hedging::default() })
}

fn quick(builder: Builder) -> Builder {
    builder.timeouts(Timeouts {
        attempt: Duration::from_millis(300),
        endpoint_unavailable: Duration::from_millis(300),
        account_refresh_min: Duration::from_millis(50),
        ..Timeouts::default()
    })
}

async fn open(builder: Builder) -> Container {
    let driver = builder.build().await.expect("the driver starts");
    driver.container("db", "items").expect("a valid name")
}

async fn seeded(world: &World, builder: Builder) -> Container {
    let container = open(builder).await;
    container
        .create_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
        .await
        .expect("created");
    world.table().asked.clear();
    container
}

fn regions(response: &cosmos_driver::Response) -> Vec<String> {
    response.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect()
}

#[tokio::test]
async fn reads_go_elsewhere_while_a_region_refuses_connections_and_return_after_a_probe() {
    let mut world = World::start(&["East", "West"]).await;
    let items = seeded(&world, quick(without_hedging(world.builder()))).await;
    world.down(0).await;
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read).last().map(String::as_str), Some("West"));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read), ["West"], "East is avoided without being asked");
    world.up(0).await;
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
async fn refusals_of_a_region_are_answered_by_the_next() {
    for (code, sub) in [(503, 0), (410, 0), (429, 3092), (408, 0), (500, 0), (403, 1008), (403, 3)] {
        let world = World::start(&["East", "West"]).await;
        let items = seeded(&world, quick(without_hedging(world.builder()))).await;
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
async fn a_hanging_region_costs_one_attempt() {
    let world = World::start(&["East", "West"]).await;
    let items = seeded(&world, quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Hanging);
    let begun = Instant::now();
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    assert_eq!(regions(&read), ["East", "West"]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_slow_region_is_hedged_and_both_legs_are_reported() {
    let world = World::start(&["East", "West"]).await;
    let hedging = Hedging { mode: HedgingMode::After(Duration::from_millis(30)), ..Hedging::default() };
    let items = seeded(&world, world.builder().hedging(hedging)).await;
    world.mood(0, Mood::Slow(Duration::from_millis(800)));
    let begun = Instant::now();
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West was faster");
    assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
    let attempts = read.diagnostics().attempts();
    assert!(read.diagnostics().is_hedged());
    assert_eq!((attempts[0].context, &*attempts[0].region), (Context::Initial, "East"));
    assert_eq!((attempts[1].context, &*attempts[1].region), (Context::Hedging, "West"));
    // Switched off for one call, the slow region is waited for.
    let off = ItemOptions::from(CallOptions::default().with_hedging(HedgingMode::Off));
    let read = items.read_item("p", "1", off).await.expect("served by East");
    assert_eq!(regions(&read), ["East"]);
}

#[tokio::test]
async fn a_region_that_keeps_losing_races_is_no_longer_waited_for() {
    let world = World::start(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(20));
    let items = seeded(&world, world.builder().hedging(Hedging { mode, ..Hedging::default() })).await;
    world.mood(0, Mood::Slow(Duration::from_millis(500)));
    let begun = Instant::now();
    for _ in 0..40 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(world.asked(0) < 15, "East was asked {} times", world.asked(0));
}

#[tokio::test]
async fn hedges_stop_when_their_budget_is_spent() {
    let world = World::start(&["East", "West"]).await;
    let mode = HedgingMode::After(Duration::from_millis(10));
    let items = seeded(&world, world.builder().hedging(Hedging { mode, budget: 0.0, budget_max: 2 })).await;
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
    let world = World::start(&["East", "West", "North"]).await;
    let mode = HedgingMode::After(Duration::from_millis(10));
    let items = seeded(&world, world.builder().hedging(Hedging { mode, ..Hedging::default() })).await;
    world.mood(0, Mood::Slow(Duration::from_millis(50)));
    world.mood(1, Mood::Status(503, 0));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("East answers in the end");
    assert!(read.diagnostics().is_hedged());
    world.mood(0, Mood::Status(503, 0));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("North answers");
    assert_eq!(regions(&read).last().map(String::as_str), Some("North"));
}

#[tokio::test]
async fn writes_follow_the_write_region_under_load() {
    let world = World::start(&["East", "West"]).await;
    let items = seeded(&world, quick(without_hedging(world.builder()))).await;
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
    let table = world.table();
    for n in 0..200 {
        assert_eq!(table.applied.get(&format!("w{n}")), Some(&1), "w{n}");
    }
}

#[tokio::test]
async fn a_replica_behind_the_session_sends_the_read_to_the_write_region() {
    let world = World::start(&["East", "West"]).await;
    world.write_region(1);
    let items = seeded(&world, quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Status(404, 1002));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("West has it");
    assert_eq!(regions(&read), ["East", "West"]);
    assert_eq!(read.diagnostics().attempts()[1].context, Context::Session);
}

#[tokio::test]
async fn a_failing_partition_is_avoided_and_tried_again_later() {
    let world = World::start(&["East", "West"]).await;
    let breaker = cosmos_driver::Breaker { probe_after: Duration::from_millis(200), ..Default::default() };
    let items = seeded(&world, without_hedging(world.builder()).breaker(breaker)).await;
    world.mood(0, Mood::Status(503, 0));
    for _ in 0..2 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    let before = world.asked(0);
    for _ in 0..5 {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
        assert_eq!(regions(&read), ["West"]);
    }
    assert_eq!(world.asked(0), before, "the breaker is open");
    world.mood(0, Mood::Well);
    let begun = Instant::now();
    loop {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served");
        if regions(&read) == ["East"] {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "never closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_sent_twice() {
    let world = World::start(&["East", "West"]).await;
    world.multi_write();
    let items = seeded(&world, quick(without_hedging(world.builder()))).await;
    world.mood(0, Mood::Swallowing);
    let item = json!({ "id": "once", "pk": "p" });
    let error = items.upsert_item("p", &item, ItemOptions::default()).await.expect_err("unknown");
    assert!(error.may_have_been_applied(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert_eq!(world.table().applied["once"], 1);
    // A caller who knows that it is harmless may allow it.
    let allowed = ItemOptions::from(CallOptions::default().with_on_unknown(OnUnknown::Repeat));
    let item = json!({ "id": "twice", "pk": "p" });
    items.upsert_item("p", &item, allowed).await.expect("West answers");
    assert_eq!(world.table().applied["twice"], 2);
}

#[tokio::test]
async fn excluded_regions_are_left_alone() {
    let world = World::start(&["East", "West"]).await;
    let items = seeded(&world, without_hedging(world.builder())).await;
    let options = ItemOptions::from(CallOptions::default().with_excluded_regions(["east"]));
    let read = items.read_item("p", "1", options).await.expect("served by West");
    assert_eq!(regions(&read), ["West"]);
    assert_eq!(world.asked(0), 0);
}

#[tokio::test]
async fn a_service_with_another_clock_is_believed() {
    let world = World::start(&["East"]).await;
    let items = seeded(&world, world.builder()).await;
    world.clock_ahead(7200);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("after setting the clock");
    assert_eq!(read.diagnostics().attempts().len(), 2);
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("at once");
    assert_eq!(read.diagnostics().attempts().len(), 1);
}

#[tokio::test]
async fn the_account_is_read_rarely_however_often_it_is_asked_for() {
    let world = World::start(&["East", "West"]).await;
    let items = seeded(&world, without_hedging(world.builder())).await;
    world.mood(0, Mood::Status(403, 1008));
    let before = world.table().account_reads;
    for _ in 0..20 {
        items.read_item("p", "1", ItemOptions::default()).await.expect("served by West");
    }
    assert!(world.table().account_reads <= before + 1);
}
