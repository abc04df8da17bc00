//! A seeded soak: regions die, heal and move and ranges split under load; what was promised holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cosmos_driver::{
    Config, Container, Driver, Error, ErrorKind, Hedging, HedgingMode, ItemOptions, Patch, Sharding, Timeouts,
};
use cosmos_emulator::{Consistency, Failover, Offline, Progression, SplitMode};
use serde_json::{Value, json};

use crate::globe::{Globe, Mood};

/// A small generator, so that a failure can be repeated by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick(&mut self, among: usize) -> usize {
        usize::try_from(self.roll(among as u64)).unwrap_or(0)
    }
}

const REGIONS: [&str; 3] = ["East", "West", "North"];

#[tokio::test]
async fn sessions_keep_their_promises_while_regions_die_and_move() {
    for seed in [1, 2] {
        soak(seed, Consistency::Session).await;
    }
}

/// The write region is lost with what only it had; under strong consistency that is nothing acknowledged.
#[tokio::test]
async fn strong_accounts_lose_nothing_when_the_write_region_is_lost() {
    for seed in [3, 4] {
        soak(seed, Consistency::Strong).await;
    }
}

async fn soak(seed: u64, consistency: Consistency) {
    let config = cosmos_emulator::Config::default().with_regions(&REGIONS).with_consistency(consistency);
    let world = Globe::with(config.with_partitions(4)).await;
    let driver = world.builder().config(settings(seed)).build().await.expect("the driver starts");
    let items = driver.container("db", "items").expect("a valid name");
    let tallies: Vec<Arc<Tally>> = (0..WORKERS).map(|_| Arc::default()).collect();
    let mut workers = Vec::new();
    for (worker, tally) in tallies.iter().enumerate() {
        workers.push(tokio::spawn(work(seed, worker, items.clone(), tally.clone())));
    }
    torment(&world, Dice(seed), consistency, || workers.iter().all(tokio::task::JoinHandle::is_finished))
        .await;
    for worker in workers {
        worker.await.expect("no broken promise");
    }
    for (worker, tally) in tallies.iter().enumerate() {
        check(seed, worker, &items, tally).await;
    }
    // The driver may still be reading the account or the ranges again; what it has lost count of stays.
    let quiet = async {
        while in_flight(&driver) > 0 {
            tokio::task::yield_now().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(10), quiet).await;
    assert!(ended.is_ok(), "seed {seed}: {} requests never ended", in_flight(&driver));
}

fn in_flight(driver: &Driver) -> u32 {
    driver.connections().iter().flat_map(|pool| &pool.shards).map(|shard| shard.in_flight).sum()
}

/// Bad things, one after the other, until the work is done; then everything is well again.
async fn torment(world: &Globe, mut dice: Dice, consistency: Consistency, is_done: impl Fn() -> bool) {
    let mut down: Option<usize> = None;
    while !is_done() {
        tokio::time::sleep(Duration::from_millis(15)).await;
        let region = dice.pick(REGIONS.len());
        match dice.roll(10) {
            0 => world.mood(region, Mood::Status(503, 0)),
            1 => world.mood(region, Mood::Slow(Duration::from_millis(120))),
            2 => world.mood(region, Mood::Hanging),
            3 => world.mood(region, Mood::Status(429, 3092)),
            4 if down.is_none() => world.write_region(region),
            5 => world.go_away(),
            6 if down.is_none() => {
                let manner = [Offline::Refuse, Offline::Hang, Offline::Unavailable][dice.pick(3)];
                world.offline(region, manner);
                down = Some(region);
                // The write region is gone with what only it has: another one takes over.
                if consistency == Consistency::Strong
                    && world.emulator.regions().write_region() == REGIONS[region]
                {
                    let heir = REGIONS[(region + 1) % REGIONS.len()];
                    world.emulator.regions().fail_over(heir, Failover::Forced).expect("an heir");
                }
            }
            7 => split_one(world, &mut dice),
            8 | 9 => {
                if let Some(region) = down.take() {
                    world.up(region);
                }
                (0..REGIONS.len()).for_each(|region| world.mood(region, Mood::Well));
            }
            _ => {}
        }
    }
    if let Some(region) = down {
        world.up(region);
    }
    (0..REGIONS.len()).for_each(|region| world.mood(region, Mood::Well));
}

/// Cuts one range in two, while there are few; refused when it is just being cut.
fn split_one(world: &Globe, dice: &mut Dice) {
    let partitions = world.emulator.partitions("db", "items").expect("listed");
    if partitions.len() < 12 {
        let at = partitions[dice.pick(partitions.len())].id;
        let progression = Progression::Automatic { lock_duration: Duration::from_millis(20) };
        let _refused = world.emulator.split("db", "items", at, SplitMode::Midpoint, progression);
    }
}

fn settings(seed: u64) -> Config {
    let mut config = Config::default();
    config.regions.preferred = REGIONS.map(str::to_owned).to_vec();
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

/// What one worker knows of its counter and its items.
#[derive(Default)]
struct Tally {
    /// Increments that were acknowledged.
    done: AtomicU64,
    /// Increments that may have happened.
    unknown: AtomicU64,
    /// Bits of items whose creation was acknowledged.
    created: AtomicU64,
}

const WORKERS: usize = 8;
const ROUNDS: u64 = 40;

async fn work(seed: u64, worker: usize, items: Container, tally: Arc<Tally>) {
    let (key, counter) = (format!("p{worker}"), format!("counter{worker}"));
    let start = json!({ "id": counter, "pk": key, "n": 0 });
    while items.upsert_item(&*key, &start, ItemOptions::default()).await.is_err() {}
    for n in 0..ROUNDS {
        let id = format!("s{worker}-{n}");
        let item = json!({ "id": id, "pk": key, "n": n });
        match items.create_item(&*key, &item, ItemOptions::default()).await {
            Ok(_) => {
                tally.created.fetch_or(1 << n, Ordering::SeqCst);
                // Read your write, whatever region answers.
                match items.read_item(&*key, &id, ItemOptions::default()).await {
                    Ok(read) => assert_eq!(read.json::<Value>().expect("json")["n"], n),
                    Err(error) => assert_transient(seed, &error),
                }
            }
            Err(error) => assert_transient(seed, &error),
        }
        // An increment is the write that shows when it was executed twice.
        match items
            .patch_item(&*key, &counter, &Patch::new().increment("/n", 1), ItemOptions::default())
            .await
        {
            Ok(_) => _ = tally.done.fetch_add(1, Ordering::SeqCst),
            Err(error) => {
                assert_transient(seed, &error);
                tally.unknown.fetch_add(u64::from(error.may_have_been_applied()), Ordering::SeqCst);
            }
        }
    }
}

/// Trouble may surface; a lost write, or one that met itself, may not.
fn assert_transient(seed: u64, error: &Error) {
    let is_transient = matches!(
        error.kind(),
        ErrorKind::Unavailable
            | ErrorKind::Connection
            | ErrorKind::Deadline
            | ErrorKind::Throttled
            | ErrorKind::SessionNotAvailable
    );
    assert!(is_transient, "seed {seed}: {error:?} {}", error.diagnostics());
}

async fn check(seed: u64, worker: usize, items: &Container, tally: &Tally) {
    let key = format!("p{worker}");
    let read =
        items.read_item(&*key, &format!("counter{worker}"), ItemOptions::default()).await.expect("read");
    let n = read.json::<Value>().expect("json")["n"].as_u64().expect("a count");
    let (done, unknown) = (tally.done.load(Ordering::SeqCst), tally.unknown.load(Ordering::SeqCst));
    assert!(n >= done, "seed {seed}: {done} increments were acknowledged, {n} are left");
    assert!(n <= done + unknown, "seed {seed}: {n} increments of at most {}", done + unknown);
    let created = tally.created.load(Ordering::SeqCst);
    for n in (0..ROUNDS).filter(|n| created & (1 << n) != 0) {
        let id = format!("s{worker}-{n}");
        let read = items.read_item(&*key, &id, ItemOptions::default()).await;
        assert!(read.is_ok(), "seed {seed}: {id} was acknowledged and is lost: {read:?}");
    }
}
