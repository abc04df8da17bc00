//! Bad days of connections.

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use cosmos_driver::fault::{Fault, Faults, Rule};
use cosmos_driver::{
    CallOptions, Connections, Container, Driver, ErrorKind, EvictionReason, ItemOptions, Negotiation,
    Protocol, Sharding, Timeouts,
};
use cosmos_emulator::{Config, Emulator};
use serde_json::json;
use tokio::task::JoinSet;

use crate::globe::{Globe, Mood};

async fn open(builder: cosmos_driver::Builder) -> (Driver, Container) {
    let driver = builder.build().await.expect("the driver starts");
    let container = driver.container("db", "items").expect("a valid name");
    container
        .upsert_item("p", &json!({ "id": "1", "pk": "p" }), ItemOptions::default())
        .await
        .expect("created");
    (driver, container)
}

fn speaking(negotiation: Negotiation) -> Connections {
    Connections { negotiation, ..Connections::default() }
}

fn in_flight(driver: &Driver) -> u32 {
    driver.connections().iter().flat_map(|pool| &pool.shards).map(|shard| shard.in_flight).sum()
}

fn evictions(driver: &Driver, reason: EvictionReason) -> u64 {
    let counts = driver.connections().into_iter().flat_map(|pool| pool.evictions);
    counts.filter(|(why, _)| *why == reason).map(|(_, count)| count).sum()
}

async fn read_many_at_once(container: &Container, count: usize) {
    let reads: Vec<_> = (0..count)
        .map(|_| {
            let container = container.clone();
            tokio::spawn(async move { container.read_item("p", "1", ItemOptions::default()).await })
        })
        .collect();
    for read in reads {
        read.await.expect("no panic").expect("read");
    }
}

#[tokio::test]
async fn plain_http_is_spoken_in_http2_by_prior_knowledge() {
    let world = Globe::start(&["East"]).await;
    let (driver, _) = open(world.builder()).await;
    assert_eq!(driver.connections()[0].protocol, Some(Protocol::Http2));
    let (driver, _) = open(world.builder().connections(speaking(Negotiation::Http1Only))).await;
    assert_eq!(driver.connections()[0].protocol, Some(Protocol::Http1));
}

#[tokio::test]
async fn a_server_without_http2_is_spoken_to_in_http1() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |_| async move {
                    let place = format!("http://{address}/");
                    let location = json!([{ "name": "Old", "databaseAccountEndpoint": place }]);
                    let body = json!({ "writableLocations": location, "readableLocations": location });
                    Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::new(
                        bytes::Bytes::from(body.to_string()),
                    )))
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                let _ended = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            });
        }
    });
    let driver = Driver::builder(format!("http://{address}"), cosmos_driver::Credential::emulator())
        .build()
        .await
        .expect("falls back");
    assert_eq!(driver.connections()[0].protocol, Some(Protocol::Http1));
}

#[tokio::test]
async fn load_spreads_over_shards_within_their_limits() {
    let world = Globe::start(&["East"]).await;
    world.mood(0, Mood::Slow(Duration::from_millis(30)));
    let sharding = Sharding { connections_max: 6, ..Sharding::default() };
    let (driver, items) = open(world.builder().sharding(sharding)).await;
    read_many_at_once(&items, 400).await;
    let pools = driver.connections();
    assert!(pools[0].shards.len() > 1 && pools[0].shards.len() <= 6, "{pools:?}");
    assert_eq!(in_flight(&driver), 0);
}

#[tokio::test]
async fn ten_thousand_operations_at_once_are_all_served() {
    for negotiation in [Negotiation::Http2Only, Negotiation::Http1Only] {
        let world = Globe::start(&["East"]).await;
        let timeouts = Timeouts {
            operation: Duration::from_secs(120),
            attempt: Duration::from_secs(120),
            ..Timeouts::default()
        };
        let (driver, items) =
            open(world.builder().connections(speaking(negotiation)).timeouts(timeouts)).await;
        read_many_at_once(&items, 10_000).await;
        assert_eq!(in_flight(&driver), 0);
    }
}

#[tokio::test]
async fn idle_connections_close_down_to_the_minimum() {
    let world = Globe::start(&["East"]).await;
    world.mood(0, Mood::Slow(Duration::from_millis(30)));
    let sharding = Sharding {
        connections_max: 6,
        idle_timeout: Duration::from_millis(200),
        sweep_interval: Duration::from_millis(50),
        ..Sharding::default()
    };
    let (driver, items) = open(world.builder().sharding(sharding)).await;
    read_many_at_once(&items, 200).await;
    assert!(driver.connections()[0].shards.len() > 1);
    let begun = Instant::now();
    while driver.connections()[0].shards.len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", driver.connections());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(evictions(&driver, EvictionReason::Idle) > 0);
    items.read_item("p", "1", ItemOptions::default()).await.expect("the last one still works");
}

#[tokio::test]
async fn every_connection_cut_is_survived() {
    for negotiation in [Negotiation::Http2Only, Negotiation::Http1Only] {
        let world = Globe::start(&["East"]).await;
        let (driver, items) = open(world.builder().connections(speaking(negotiation))).await;
        read_many_at_once(&items, 50).await;
        world.down(0);
        let reading = tokio::spawn({
            let items = items.clone();
            async move { items.read_item("p", "1", ItemOptions::default()).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.up(0);
        reading.await.expect("no panic").expect("healed in time");
        read_many_at_once(&items, 50).await;
        assert_eq!(in_flight(&driver), 0);
    }
}

#[tokio::test]
async fn go_away_loses_nothing() {
    let world = Globe::start(&["East"]).await;
    let (_, items) = open(world.builder().connections(speaking(Negotiation::Http2Only))).await;
    world.mood(0, Mood::Slow(Duration::from_millis(5)));
    let writers: Vec<_> = (0..300)
        .map(|n| {
            let items = items.clone();
            tokio::spawn(async move {
                let item = json!({ "id": format!("g{n}"), "pk": "p" });
                items.create_item("p", &item, ItemOptions::default()).await
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        world.go_away();
    }
    for writer in writers {
        writer.await.expect("no panic").expect("written");
    }
    // A write that was executed twice would have met itself, as a conflict.
}

#[tokio::test]
async fn a_black_holed_connection_is_noticed_by_its_pings() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let connections = Connections {
        negotiation: Negotiation::Http2Only,
        ping_after: Duration::from_millis(100),
        ping_timeout: Duration::from_secs(1),
        ..Connections::default()
    };
    let (driver, items) = open(hole.builder().connections(connections)).await;
    hole.swallow_open_connections();
    let begun = Instant::now();
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served on a new connection");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(read.diagnostics().attempts().len() >= 2);
    while evictions(&driver, EvictionReason::Closed) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the dead connection is kept");
        items.read_item("p", "1", ItemOptions::default()).await.expect("served");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn reads_leave_a_silent_connection_before_it_is_given_up() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let connections = Connections {
        negotiation: Negotiation::Http2Only,
        ping_after: Duration::from_millis(50),
        ping_timeout: Duration::from_secs(8),
        ..Connections::default()
    };
    let (_driver, items) = open(hole.builder().connections(connections)).await;
    hole.swallow_open_connections();
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("served on a new connection");
    let attempts = read.diagnostics().attempts();
    assert!(attempts[0].elapsed < Duration::from_secs(6), "{}", read.diagnostics());
    assert_eq!(attempts[1].context, cosmos_driver::Context::OtherShard);
}

#[tokio::test]
async fn a_connection_that_may_be_dead_counts_against_the_limit() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let connections = Connections {
        negotiation: Negotiation::Http2Only,
        ping_after: Duration::from_millis(20),
        ping_timeout: Duration::from_secs(1),
        ..Connections::default()
    };
    let sharding = Sharding { connections_max: 2, ..Sharding::default() };
    let (driver, items) = open(hole.builder().connections(connections).sharding(sharding)).await;
    hole.swallow_open_connections();
    let reads = tokio::spawn({
        let items = items.clone();
        async move { read_many_at_once(&items, 100).await }
    });
    let mut most = 0;
    while !reads.is_finished() {
        most = most.max(driver.connections()[0].shards.len());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    reads.await.expect("all are served in the end");
    assert_eq!(most, 2);
}

#[tokio::test]
async fn an_endpoint_that_refuses_connections_is_not_stormed() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let connections = Connections {
        negotiation: Negotiation::Http2Only,
        ping_after: Duration::from_millis(20),
        ping_timeout: Duration::from_secs(60),
        ..Connections::default()
    };
    let timeouts = Timeouts { attempt: Duration::from_millis(200), ..Timeouts::default() };
    let (_driver, items) = open(hole.builder().connections(connections).timeouts(timeouts)).await;
    hole.refuse_new_connections();
    hole.swallow_open_connections();
    let mut options = ItemOptions::default();
    options.call.timeout = Some(Duration::from_secs(2));
    let read = items.read_item("p", "1", options).await;
    read.expect_err("nobody answers");
    assert!((1..=30).contains(&hole.refused()), "{} connects in two seconds", hole.refused());
}

/// No ping has told yet that the connection is dead: that it owes an answer is enough to go elsewhere.
#[tokio::test]
async fn few_requests_meet_a_dead_connection_before_a_ping_does() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let connections = Connections {
        negotiation: Negotiation::Http2Only,
        ping_after: Duration::from_secs(60),
        ..Connections::default()
    };
    let timeouts = Timeouts { attempt: Duration::from_secs(60), ..Timeouts::default() };
    let (driver, items) = open(hole.builder().connections(connections).timeouts(timeouts)).await;
    let dead = driver.connections()[0].shards[0].id;
    hole.swallow_open_connections();
    let mut lost = JoinSet::new();
    let first = loop {
        let items = items.clone();
        lost.spawn(async move { items.read_item("p", "1", ItemOptions::default()).await });
        if let Ok(read) = tokio::time::timeout(Duration::from_millis(200), lost.join_next()).await {
            break read.expect("one was spawned").expect("no panic").expect("read");
        }
        assert!(lost.len() < 10, "{} wait for the dead connection", lost.len());
    };
    assert_ne!(first.diagnostics().attempts()[0].shard, Some(dead));
    for _ in 0..50 {
        let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read");
        assert_ne!(read.diagnostics().attempts()[0].shard, Some(dead), "{}", read.diagnostics());
    }
}

#[tokio::test]
async fn a_failing_shard_is_evicted_while_its_peers_work() {
    let world = Globe::start(&["East"]).await;
    world.mood(0, Mood::Slow(Duration::from_millis(10)));
    let faults = Faults::new();
    let sharding = Sharding {
        connections_max: 4,
        connections_min: 2,
        eviction_grace: Duration::from_millis(100),
        sweep_interval: Duration::from_millis(50),
        cpu_guard: 1.0,
        ..Sharding::default()
    };
    let timeouts = Timeouts { attempt: Duration::from_secs(2), ..Timeouts::default() };
    let builder = world.builder().sharding(sharding).timeouts(timeouts).faults(faults.clone());
    let (driver, items) = open(builder).await;
    read_many_at_once(&items, 100).await;
    let victim = driver.connections()[0].shards[0].id;
    let hang = faults.add(Rule::new(Fault::Hang).shard(victim));
    let begun = Instant::now();
    while driver.connections()[0].shards.iter().any(|shard| shard.id == victim) {
        read_many_at_once(&items, 40).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", driver.connections());
    }
    assert!(hang.struck() > 0);
    assert!(
        evictions(&driver, EvictionReason::FailuresWithHealthyPeers)
            + evictions(&driver, EvictionReason::ReadHang)
            > 0
    );
    assert_eq!(in_flight(&driver), 0);
}

#[tokio::test]
async fn a_read_that_broke_is_tried_on_another_connection() {
    let world = Globe::start(&["East"]).await;
    let faults = Faults::new();
    let (_, items) = open(world.builder().faults(faults.clone())).await;
    let _lost = faults.add(Rule::new(Fault::LostAnswer).operation("read_item").times(1));
    let read = items.read_item("p", "1", ItemOptions::default()).await.expect("read again");
    let attempts = read.diagnostics().attempts();
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[1].context, cosmos_driver::Context::OtherShard);
    assert_ne!(attempts[0].shard, attempts[1].shard);
}

#[tokio::test]
async fn a_committed_write_whose_answer_is_lost_is_reported_not_repeated() {
    let world = Globe::start(&["East"]).await;
    let faults = Faults::new();
    let (_, items) = open(world.builder().faults(faults.clone())).await;
    let _lost = faults.add(Rule::new(Fault::LostAnswer).operation("create_item").times(1));
    let item = json!({ "id": "x", "pk": "p" });
    let error = items.create_item("p", &item, ItemOptions::default()).await.expect_err("unknown");
    assert!(error.may_have_been_applied());
    items.read_item("p", "x", ItemOptions::default()).await.expect("it was applied");
    let _before = faults.add(Rule::new(Fault::ResetBefore).operation("create_item").times(1));
    let item = json!({ "id": "y", "pk": "p" });
    items.create_item("p", &item, ItemOptions::default()).await.expect("never sent, so sent again");
}

#[tokio::test]
async fn a_deadline_is_kept_to_the_millisecond() {
    let world = Globe::start(&["East"]).await;
    let (driver, items) = open(world.builder()).await;
    world.mood(0, Mood::Hanging);
    // A busy machine only ever makes it longer: the quickest of some tells what is kept.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        let options = ItemOptions::default().with_timeout(Duration::from_millis(5));
        let error = items.read_item("p", "1", options).await.expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        assert!(!error.may_have_been_applied(), "a read changes nothing");
        assert!(begun.elapsed() < Duration::from_secs(5), "an attempt may take six");
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_millis(60), "{quickest:?}");
    // Time enough to be sent, also on a busy machine.
    let options = ItemOptions::default().with_timeout(Duration::from_secs(1));
    let error =
        items.upsert_item("p", &json!({ "id": "1", "pk": "p" }), options).await.expect_err("too late");
    assert!(error.may_have_been_applied(), "{error:?}");
    assert_eq!(in_flight(&driver), 0);
}

#[tokio::test]
async fn futures_may_be_dropped_at_every_await() {
    for negotiation in [Negotiation::Http2Only, Negotiation::Http1Only] {
        let world = Globe::start(&["East", "West"]).await;
        world.mood(0, Mood::Slow(Duration::from_millis(2)));
        let (driver, items) = open(world.builder().connections(speaking(negotiation))).await;
        for polls in 0..60 {
            let read = items.read_item("p", "1", ItemOptions::default());
            drop_after(read, polls).await;
            let item = json!({ "id": "1", "pk": "p" });
            let write = items.upsert_item("p", &item, ItemOptions::default());
            drop_after(write, polls).await;
        }
        nothing_stays_in_flight(&driver).await;
        read_many_at_once(&items, 200).await;
        nothing_stays_in_flight(&driver).await;
    }
}

/// Waits until no request holds a place in a connection. On a slow machine some of the reads were
/// hedged: the answers of the losing region still arrive after the reads have returned.
async fn nothing_stays_in_flight(driver: &Driver) {
    let begun = Instant::now();
    while in_flight(driver) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", driver.connections());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a future a number of times, then lets it go.
async fn drop_after<F: Future>(future: F, polls: usize) {
    let mut future = Box::pin(future);
    let mut waker = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if matches!(future.as_mut().poll(&mut waker), Poll::Ready(_)) {
            return;
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

#[tokio::test]
async fn certificates_are_checked() {
    use cosmos_driver::Certificates::{DangerouslyAcceptAny, System, Trust};
    let emulator = Emulator::start(Config::default().with_tls()).expect("the emulator starts");
    let own = der(emulator.certificate().expect("it speaks TLS"));
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
    let build = |certificates| {
        let connections = Connections { certificates, ..Connections::default() };
        Driver::builder(emulator.endpoint(), cosmos_driver::Credential::emulator())
            .connections(connections)
            .build()
    };
    let trusted = build(Trust(vec![own])).await.expect("its own root");
    assert_eq!(trusted.connections()[0].protocol, Some(Protocol::Http2), "agreed by ALPN");
    trusted.create_database("db", CallOptions::default()).await.expect("served through TLS");
    let error = build(Trust(vec![other.cert.der().to_vec()])).await.expect_err("another root");
    assert!(error.to_string().contains("TLS"), "{error}");
    build(System).await.expect("loopback is exempt");
    build(DangerouslyAcceptAny).await.expect("opted out by name");
}

/// The bytes of a certificate in text form.
fn der(pem: &str) -> Vec<u8> {
    use base64::Engine as _;
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    base64::engine::general_purpose::STANDARD.decode(lines.collect::<String>()).expect("base64")
}

#[tokio::test]
async fn a_driver_that_is_dropped_closes_its_connections() {
    let world = Globe::start(&["East"]).await;
    let hole = crate::hole::Hole::in_front_of(&world.endpoint()).await;
    let (driver, items) = open(hole.builder()).await;
    assert!(hole.open() > 0);
    drop(items);
    drop(driver);
    let begun = Instant::now();
    while hole.open() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} still open", hole.open());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
