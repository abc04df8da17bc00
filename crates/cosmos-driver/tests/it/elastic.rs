//! Pools that grow, shrink, and let go of what is sick: while all connections fail, and after.

use std::time::{Duration, Instant};

use cosmos_driver::fault::{Fault, Faults, Rule};
use cosmos_driver::{
    Connections, Container, Driver, ErrorKind, EvictionReason, Hedging, HedgingMode, ItemOptions,
    Negotiation, PoolSnapshot, Query, QueryOptions, Retry, Scope, Sharding, Timeouts,
};
use cosmos_emulator::{FaultRule, Operation, Verdict};
use serde_json::json;

use crate::globe::{Globe, Mood};

fn lively() -> Sharding {
    Sharding {
        connections_max: 4,
        streams_target: 2,
        streams_max: 2,
        idle_timeout: Duration::from_millis(300),
        sweep_interval: Duration::from_millis(50),
        eviction_grace: Duration::from_millis(50),
        cpu_guard: 1.0,
        ..Sharding::default()
    }
}

async fn open(builder: cosmos_driver::Builder) -> (Driver, Container) {
    let driver = builder.build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a name");
    let item = json!({ "id": "1", "pk": "p" });
    items.upsert_item("p", &item, ItemOptions::default()).await.expect("written");
    (driver, items)
}

fn pool(driver: &Driver) -> PoolSnapshot {
    driver.connections().remove(0)
}

async fn until(what: &str, driver: &Driver, holds: impl Fn(&PoolSnapshot) -> bool) {
    let begun = Instant::now();
    while !holds(&pool(driver)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", pool(driver));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn read(items: &Container) -> tokio::task::JoinHandle<Result<cosmos_driver::Response, cosmos_driver::Error>> {
    let items = items.clone();
    tokio::spawn(async move { items.read_item("p", "1", ItemOptions::default()).await })
}

#[tokio::test]
async fn the_pool_grows_while_every_request_fails_and_shrinks_when_they_succeed_again() {
    let globe = Globe::start(&["East"]).await;
    let faults = Faults::new();
    let retry = Retry { attempts_max: 1, ..Retry::default() };
    let (driver, items) = open(globe.builder().sharding(lively()).retry(retry).faults(faults.clone())).await;
    globe.mood(0, Mood::Slow(Duration::from_millis(50)));
    // Each answer is lost after the service has worked on it: every connection fails, and each failure ends one.
    let lost = faults.add(Rule::new(Fault::LostAnswer).operation("read_item"));
    let begun = Instant::now();
    let mut most = 0;
    while most < 4 {
        let reads: Vec<_> = (0..16).map(|_| read(&items)).collect();
        while most < 4 && !reads.iter().all(tokio::task::JoinHandle::is_finished) {
            most = most.max(pool(&driver).shards.len());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for read in reads {
            let error = read.await.expect("no panic").expect_err("its answer is lost");
            assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "never more than {most}: {:?}", pool(&driver));
    }
    drop(lost);
    globe.mood(0, Mood::Well);
    for _ in 0..20 {
        read(&items).await.expect("no panic").expect("well again");
    }
    until("back to one connection", &driver, |pool| pool.shards.len() == 1).await;
    let now = pool(&driver);
    assert_eq!((now.shards[0].in_flight, now.waiting), (0, 0), "{now:?}");
    read(&items).await.expect("no panic").expect("the last one serves");
}

#[tokio::test]
async fn connections_that_cannot_be_opened_for_a_while_are_opened_afterwards() {
    let globe = Globe::start(&["East"]).await;
    let faults = Faults::new();
    let (driver, items) = open(globe.builder().sharding(lively()).faults(faults.clone())).await;
    globe.mood(0, Mood::Slow(Duration::from_millis(100)));
    let refused = faults.add(Rule::new(Fault::RefuseConnect).lasting(Duration::from_millis(500)));
    let reads: Vec<_> = (0..40).map(|_| read(&items)).collect();
    for read in reads {
        read.await.expect("no panic").expect("one connection is slow, not gone");
    }
    assert!(refused.struck() > 0, "more than one connection was wanted");
    let begun = Instant::now();
    while pool(&driver).shards.len() < 2 {
        let reads: Vec<_> = (0..8).map(|_| read(&items)).collect();
        for read in reads {
            read.await.expect("no panic").expect("served");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", pool(&driver));
    }
}

#[tokio::test]
async fn requests_on_a_connection_that_is_given_up_for_its_failures_may_end() {
    let globe = Globe::start(&["East"]).await;
    let faults = Faults::new();
    let sharding = Sharding {
        failure_threshold: 2,
        connections_min: 2,
        idle_timeout: Duration::from_secs(600),
        drain_timeout: Duration::from_secs(60),
        ..lively()
    };
    let timeouts = Timeouts { attempt: Duration::from_millis(300), ..Timeouts::default() };
    let retry = Retry { attempts_max: 1, ..Retry::default() };
    let builder = globe.builder().sharding(sharding).timeouts(timeouts).retry(retry).faults(faults.clone());
    let (driver, items) = open(builder).await;
    globe.mood(0, Mood::Slow(Duration::from_millis(30)));
    let many: Vec<_> = (0..16).map(|_| read(&items)).collect();
    for read in many {
        let _some_time_out = read.await.expect("no panic");
    }
    until("two connections", &driver, |pool| pool.shards.len() >= 2).await;
    let sick = pool(&driver).shards[0].id;
    // A query has ten seconds; it is under way on the connection while reads on it time out.
    let _slow = faults.add(Rule::new(Fault::Delay(Duration::from_secs(3))).operation("query").shard(sick));
    let querying = tokio::spawn({
        let items = items.clone();
        async move {
            let scope = cosmos_driver::Scope::PartitionKey("p".into());
            let mut pager = items.query("SELECT * FROM c", scope, cosmos_driver::QueryOptions::default());
            pager.next().await
        }
    });
    let hang = faults.add(Rule::new(Fault::Hang).operation("read_item").shard(sick));
    let begun = Instant::now();
    while pool(&driver).shards.iter().any(|shard| shard.id == sick) {
        let reads: Vec<_> = (0..4).map(|_| read(&items)).collect();
        for read in reads {
            let _some_time_out = read.await.expect("no panic");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", pool(&driver));
    }
    assert!(hang.struck() >= 2);
    let evicted = pool(&driver).evictions;
    assert!(evicted.iter().any(|(why, _)| *why == EvictionReason::FailuresWithHealthyPeers), "{evicted:?}");
    let page = querying.await.expect("no panic").expect("its answer was on the way").expect("a page");
    let attempts = page.diagnostics().attempts();
    assert_eq!((attempts.len(), attempts[0].shard), (1, Some(sick)), "{}", page.diagnostics());
}

#[tokio::test]
async fn metadata_has_a_connection_when_items_have_taken_all() {
    let globe = Globe::start(&["East"]).await;
    let sharding = Sharding { connections_max: 1, ..lively() };
    let (driver, items) = open(globe.builder().sharding(sharding)).await;
    globe.mood(0, Mood::Hanging);
    let held: Vec<_> = (0..6).map(|_| read(&items)).collect();
    until("all slots are taken", &driver, |pool| pool.waiting > 0).await;
    tokio::time::timeout(Duration::from_secs(20), driver.refresh_account())
        .await
        .expect("it need not wait for items")
        .expect("the account answers");
    let now = pool(&driver);
    assert_eq!(now.shards.len(), 2, "{now:?}");
    assert_eq!(now.shards[1].in_flight, 0, "no item goes there: {now:?}");
    globe.mood(0, Mood::Well);
    for read in held {
        read.await.expect("no panic").expect("served in the end");
    }
}

#[tokio::test]
async fn metadata_gets_its_own_connection_again_while_items_wait() {
    let globe = Globe::start(&["East"]).await;
    let sharding = Sharding { http1_connections_max: 1, metadata_connections: 1, ..lively() };
    let connections = Connections { negotiation: Negotiation::Http1Only, ..Connections::default() };
    let (driver, items) = open(globe.builder().sharding(sharding).connections(connections)).await;
    let _slow = globe.emulator.faults().add(
        FaultRule::new(Verdict::Delay { duration: Duration::from_millis(50) }).on(Operation::ReadAccount),
    );
    globe.mood(0, Mood::Hanging);
    let held: Vec<_> = (0..3).map(|_| read(&items)).collect();
    until("all slots are taken", &driver, |pool| pool.waiting > 0).await;
    // One connection is there for metadata, and carries one request: the others wait for it among the items.
    let refreshes = (0..4).map(|_| driver.refresh_account());
    let refreshed = tokio::time::timeout(Duration::from_secs(3), futures::future::join_all(refreshes)).await;
    for refreshed in refreshed.expect("each is told when the one before has ended") {
        refreshed.expect("the account answers");
    }
    globe.mood(0, Mood::Well);
    for read in held {
        read.abort();
    }
}

#[tokio::test]
async fn a_pool_that_is_full_is_not_held_against_a_partition() {
    let globe = Globe::start(&["East", "West"]).await;
    let sharding = Sharding { connections_max: 1, streams_target: 1, streams_max: 1, ..lively() };
    let timeouts = Timeouts { attempt: Duration::from_millis(200), ..Timeouts::default() };
    let hedging = Hedging { mode: HedgingMode::Off, ..Hedging::default() };
    let builder = globe.builder().sharding(sharding).timeouts(timeouts).hedging(hedging);
    let (driver, items) = open(builder).await;
    let slow = globe.emulator.faults().add(
        FaultRule::new(Verdict::Delay { duration: Duration::from_secs(2) }).on(Operation::Query).times(1),
    );
    let querying = tokio::spawn({
        let items = items.clone();
        async move {
            let scope = Scope::PartitionKey("p".into());
            items.query(Query::new("SELECT * FROM c"), scope, QueryOptions::default()).next().await
        }
    });
    let begun = Instant::now();
    while slow.struck() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the query has the only slot");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..3 {
        let response = read(&items).await.expect("no panic").expect("another region has a slot");
        let last = response.diagnostics().attempts().last().expect("answered").region.to_string();
        assert_eq!(last, "West", "{}", response.diagnostics());
    }
    querying.await.expect("no panic").expect("its answer comes").expect("a page");
    let response = read(&items).await.expect("no panic").expect("there is a slot again");
    let regions: Vec<_> =
        response.diagnostics().attempts().iter().map(|attempt| attempt.region.to_string()).collect();
    assert_eq!(regions, ["East"], "nothing was wrong with the partition there: {:?}", driver.connections());
}
