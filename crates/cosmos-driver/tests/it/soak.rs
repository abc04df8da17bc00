//! A seeded soak: regions fail, heal and move under load; what was promised holds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cosmos_driver::{
    CallOptions, Config, Consistency, Container, ErrorKind, Hedging, HedgingMode, ItemOptions, Sharding,
    Timeouts,
};
use serde_json::{Value, json};

use crate::world::{Mood, World};

/// A small generator, so that a failure can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Which writes were acknowledged.
type Outcomes = Arc<Mutex<BTreeMap<String, bool>>>;

#[tokio::test]
async fn acknowledged_writes_stay_and_unacknowledged_ones_happen_at_most_once() {
    for seed in [1, 2] {
        soak(seed).await;
    }
}

async fn soak(seed: u64) {
    let mut world = World::start(&["East", "West", "North"]).await;
    let driver = world.builder().config(config(seed)).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    let outcomes = Outcomes::default();
    let workers: Vec<_> =
        (0..8).map(|worker| tokio::spawn(work(worker, items.clone(), outcomes.clone()))).collect();
    let mut dice = Dice(seed);
    let mut is_down = false;
    while workers.iter().any(|worker| !worker.is_finished()) {
        tokio::time::sleep(Duration::from_millis(15)).await;
        let region = usize::try_from(dice.roll(3)).expect("small");
        match dice.roll(9) {
            0 => world.mood(region, Mood::Status(503, 0)),
            1 => world.mood(region, Mood::Slow(Duration::from_millis(120))),
            2 => world.mood(region, Mood::Hanging),
            3 => world.mood(region, Mood::Times(429, 3092, 5)),
            4 => world.write_region(region),
            5 => world.go_away(region),
            6 if !is_down => {
                is_down = true;
                world.down(2).await;
            }
            7 if is_down => {
                is_down = false;
                world.up(2).await;
            }
            _ => (0..3).for_each(|region| world.mood(region, Mood::Well)),
        }
    }
    for worker in workers {
        worker.await.expect("no broken promise");
    }
    let table = world.table();
    for (id, is_acknowledged) in outcomes.lock().expect("not poisoned").iter() {
        let applied = table.applied.get(id).copied().unwrap_or(0);
        assert!(applied <= 1, "seed {seed}: {id} was applied {applied} times");
        assert!(!is_acknowledged || applied == 1, "seed {seed}: {id} was acknowledged and is lost");
    }
    let in_flight: u32 =
        driver.connections().iter().flat_map(|pool| &pool.shards).map(|shard| shard.in_flight).sum();
    assert_eq!(in_flight, 0);
}

fn config(seed: u64) -> Config {
    let mut config = Config::default();
    config.regions.preferred = vec!["East".into(), "West".into(), "North".into()];
    config.timeouts = Timeouts {
        operation: Duration::from_secs(5),
        attempt: Duration::from_millis(200),
        endpoint_unavailable: Duration::from_millis(100),
        account_refresh_min: Duration::from_millis(20),
        ..Timeouts::default()
    };
    config.hedging = Hedging { mode: HedgingMode::After(Duration::from_millis(50)), ..Hedging::default() };
    config.sharding = Sharding { sweep_interval: Duration::from_millis(50), ..Sharding::default() };
    config.seed = Some(seed);
    config
}

async fn work(worker: u32, items: Container, outcomes: Outcomes) {
    for n in 0..60 {
        let id = format!("s{worker}-{n}");
        let item = json!({ "id": id, "pk": "p", "n": n });
        let written = items.create_item("p", &item, ItemOptions::default()).await;
        if let Err(error) = &written
            && !error.may_have_been_applied()
        {
            let kind = error.kind();
            let is_transient =
                matches!(kind, ErrorKind::Unavailable | ErrorKind::Connection | ErrorKind::Deadline);
            assert!(is_transient, "{error:?}");
        }
        outcomes.lock().expect("not poisoned").insert(id.clone(), written.is_ok());
        if written.is_ok() {
            // Read your write, whatever region answers.
            let options = CallOptions::default().with_consistency(Consistency::Session);
            match items.read_item("p", &id, options.into()).await {
                Ok(read) => assert_eq!(read.json::<Value>().expect("json")["n"], n),
                Err(error) => assert_ne!(error.kind(), ErrorKind::NotFound, "{error:?}"),
            }
        }
    }
}
