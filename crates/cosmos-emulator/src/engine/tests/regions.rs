//! Replicas of several regions, compared byte by byte, and changes of the regions that a crash interrupts.

use std::collections::BTreeSet;
use std::ops::Bound;

use cosmos_wire::session_token::SessionToken;

use super::model::Random;
use super::*;
use crate::config::{Consistency, ReplicationDelay, WriteMode};
use crate::engine::key::is_version;
use crate::engine::region::{Move, RegionId};
use crate::sql::source::Step;
use crate::storage::Order;

const DELAY: Duration = Duration::from_secs(10);
/// Where the number of a version begins in its key: behind tag, replica, range and LSN.
const VERSION_NUMBER_AT: usize = 17;
/// Worlds that are tried.
const SEEDS: u64 = 24;

fn options(regions: &[&str], write_mode: WriteMode) -> EngineOptions {
    EngineOptions {
        regions: regions.iter().map(|name| (*name).to_owned()).collect(),
        write_mode,
        partitions: Some(2),
        replication_delays: vec![ReplicationDelay::everywhere(DELAY)],
        ..EngineOptions::default()
    }
}

fn properties() -> Value {
    json!({"defaultTtl": 60, "changeFeedPolicy": {"retentionDuration": 10}, "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}})
}

impl World {
    fn region(&self, name: &str) -> RegionId {
        self.engine.topology().named(name).expect("a region").id
    }

    fn item_in(&self, region: RegionId, pk: &str, op: ItemOp) -> Result<ItemReply, Failure> {
        let container = self.container().in_region(region);
        let conditions = Conditions::default();
        let request = ItemRequest { partition_key: Some(key(pk)), op, conditions, session_token: None };
        self.engine.item(&container, request)
    }

    fn rows_with(&self, prefix: &[u8]) -> Vec<(Bytes, Bytes)> {
        let upper = super::super::key::beyond(prefix.to_vec());
        let rows =
            self.engine.storage().scan(Bound::Included(prefix), Bound::Excluded(&upper), Order::Forward);
        rows.map(|row| row.expect("readable")).collect()
    }

    /// Everything a region keeps, as if it were the first.
    fn replica(&self, region: RegionId) -> Vec<(Bytes, Bytes)> {
        let number = self.container().number;
        super::super::key::replica_data(region.replica_of(number))
            .flat_map(|prefix| self.rows_with(&prefix))
            .map(|(key, value)| (super::super::key::in_replica(&key, number), value))
            // Versions of one commit have an order of their own.
            .map(
                |(key, value)| {
                    if is_version(&key) { (key.slice(..VERSION_NUMBER_AT), value) } else { (key, value) }
                },
            )
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Who holds which value of a unique key in a region.
    fn unique_rows(&self, region: RegionId) -> Vec<(Bytes, Bytes)> {
        self.replica(region).into_iter().filter(|(key, _)| key[0] == 0x15).collect()
    }

    /// What a region shows, in order of partitions and ids.
    fn shown(&self, region: RegionId) -> Vec<Value> {
        let container = self.container().in_region(region);
        let request = ReadFeedRequest {
            scope: Scope::All,
            page_size: PageSize::Dynamic,
            continuation: None,
            session_token: None,
        };
        let page = self.engine.read_feed(&container, request).expect("a page");
        let mut shown: Vec<Value> =
            page.documents.iter().map(|body| serde_json::from_slice(body).expect("JSON")).collect();
        shown.sort_by_key(|item| (item["pk"].to_string(), item["id"].to_string()));
        shown
    }

    /// Entries of logs, and ranks, that are still kept.
    fn kept_for_others(&self) -> usize {
        [0x20_u8, 0x22].iter().map(|tag| self.rows_with(&[*tag]).len()).sum()
    }

    /// Lets everything arrive everywhere.
    fn settle(&self) {
        for region in self.live() {
            self.engine.set_paused(region, false).expect("resumed");
        }
        // Once for the writes, and once for what the hub decides about them.
        for _ in 0..2 {
            self.hand.advance(DELAY);
            self.engine.replicate().expect("replicated");
        }
        self.engine.forget_replicated().expect("forgotten");
    }

    fn live(&self) -> Vec<RegionId> {
        self.engine.topology().live().map(|region| region.id).collect()
    }
}

fn operation(random: &mut Random) -> (String, ItemOp) {
    let (pk, id) = (format!("k{}", random.below(4)), format!("i{}", random.below(6)));
    let body = json!({"id": id, "pk": pk, "n": random.below(5), "u": random.below(40), "list": [random.below(3)],
        "ttl": 5 + random.below(60)});
    let op = match random.below(8) {
        0 | 1 => ItemOp::Delete { id },
        2 => ItemOp::Replace { id, body: text(&body) },
        3 => ItemOp::Create { body: text(&body) },
        _ => ItemOp::Upsert { body: text(&body) },
    };
    (pk, op)
}

#[test]
fn replicas_of_one_writer_are_the_same_to_the_byte() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let mut world =
            World::with_options(properties(), options(&["East", "West", "North"], WriteMode::Single));
        for step in 0..150 {
            let hub = world.engine.topology().hub;
            match random.below(40) {
                0 => {
                    let live = world.live();
                    let to = live[usize::try_from(random.below(live.len() as u64)).expect("small")];
                    let kind = if random.below(2) == 0 { Failover::Planned } else { Failover::Forced };
                    // A planned one may be refused while someone is cut off.
                    let _ = world.engine.fail_over(to, kind);
                }
                1 => {
                    let live = world.live();
                    let region = live[usize::try_from(random.below(live.len() as u64)).expect("small")];
                    world.engine.set_paused(region, random.below(2) == 0).expect("paused or resumed");
                }
                2 if step % 2 == 0 => drop(world.engine.add_region(&format!("R{step}")).expect("added")),
                2 => drop(world.engine.remove_region(*world.live().last().expect("one"))),
                3 => {
                    world.engine.sweep(100).expect("swept");
                }
                4 => {
                    let live = world.live();
                    world.shown(live[usize::try_from(random.below(live.len() as u64)).expect("small")]);
                }
                5 if step % 3 == 0 => world = world.reopened(),
                5..12 => world.hand.advance(Duration::from_secs(random.below(9))),
                _ => {
                    let (pk, op) = operation(&mut random);
                    // Refusals are fine; they must leave no trace.
                    let _ = world.item_in(hub, &pk, op);
                }
            }
        }
        world.settle();
        let hub = world.engine.topology().hub;
        let expected = world.replica(hub);
        for region in world.live() {
            assert_eq!(world.replica(region), expected, "seed {seed}, {region:?}");
        }
        assert_eq!(world.kept_for_others(), 0, "seed {seed}");
    }
}

#[test]
fn several_writers_agree_whatever_the_order_in_which_they_learn_of_each_other() {
    for seed in 0..SEEDS {
        let mut random = Random(1_000 + seed);
        let properties = json!({"defaultTtl": 60,
            "conflictResolutionPolicy": {"mode": "LastWriterWins", "conflictResolutionPath": "/n"}});
        let mut world =
            World::with_options(properties, options(&["East", "West", "North"], WriteMode::Multiple));
        for step in 0..200 {
            let live = world.live();
            let region = live[usize::try_from(random.below(live.len() as u64)).expect("small")];
            match random.below(30) {
                0 => world.engine.set_paused(region, random.below(2) == 0).expect("paused or resumed"),
                1 => world.engine.fail_over(region, Failover::Forced).expect("moved"),
                2 if step == 100 => drop(world.engine.add_region("South").expect("added")),
                3 if step % 3 == 0 => world = world.reopened(),
                4 => drop(world.engine.sweep(100).expect("swept")),
                5..9 => world.hand.advance(Duration::from_secs(random.below(7))),
                _ => {
                    let (pk, op) = operation(&mut random);
                    let _ = world.item_in(region, &pk, op);
                }
            }
        }
        world.settle();
        // Expired items stay in some replicas until they are swept; nobody sees them.
        let expected = world.shown(world.live()[0]);
        for region in world.live() {
            assert_eq!(world.shown(region), expected, "seed {seed}, {region:?}");
        }
        assert_eq!(world.kept_for_others(), 0, "seed {seed}");
    }
}

/// Few values for many items, so that regions keep giving the same one to different items.
#[test]
fn several_writers_agree_who_holds_a_value_of_a_unique_key() {
    for seed in 0..SEEDS {
        let mut random = Random(2_000 + seed);
        // Whether losers are kept makes no difference to who wins.
        let mode = if seed % 2 == 0 { "LastWriterWins" } else { "Custom" };
        let properties = json!({"conflictResolutionPolicy": {"mode": mode},
            "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}, {"paths": ["/v", "/w"]}]}});
        let mut world =
            World::with_options(properties, options(&["East", "West", "North"], WriteMode::Multiple));
        for step in 0..200 {
            let live = world.live();
            let region = live[usize::try_from(random.below(live.len() as u64)).expect("small")];
            match random.below(30) {
                0 => world.engine.set_paused(region, random.below(2) == 0).expect("paused or resumed"),
                1 => world.engine.fail_over(region, Failover::Forced).expect("moved"),
                2 if step % 3 == 0 => world = world.reopened(),
                3 if step % 4 == 0 => drop(world.engine.remove_region(region)),
                4 if step % 4 == 0 => drop(world.engine.add_region(&format!("R{step}")).expect("added")),
                5..9 => world.hand.advance(Duration::from_secs(random.below(7))),
                _ => {
                    let (pk, id) = (format!("k{}", random.below(2)), format!("i{}", random.below(6)));
                    let body = json!({"id": id, "pk": pk, "u": random.below(5), "v": random.below(3), "w": random.below(3)});
                    let op = match random.below(6) {
                        0 => ItemOp::Delete { id },
                        1 => ItemOp::Create { body: text(&body) },
                        _ => ItemOp::Upsert { body: text(&body) },
                    };
                    // Refusals are fine; they must leave no trace.
                    let _ = world.item_in(region, &pk, op);
                }
            }
        }
        world.settle();
        let hub = world.engine.topology().hub;
        let expected = (world.shown(hub), world.unique_rows(hub));
        let mut values = BTreeSet::new();
        for item in &expected.0 {
            assert!(values.insert(format!("{} u {}", item["pk"], item["u"])), "seed {seed}: {item}");
            assert!(
                values.insert(format!("{} v {} {}", item["pk"], item["v"], item["w"])),
                "seed {seed}: {item}"
            );
        }
        for region in world.live() {
            assert_eq!((world.shown(region), world.unique_rows(region)), expected, "seed {seed}, {region:?}");
        }
        // What regions kept that left the account is swept.
        for _ in 0..8 {
            world.engine.sweep(1_000).expect("swept");
        }
        assert_eq!(world.kept_for_others(), 0, "seed {seed}");
    }
}

#[test]
fn a_new_hub_decides_about_any_number_of_values_and_keeps_every_loser() {
    const VALUES: usize = 300;
    let properties = json!({"conflictResolutionPolicy": {"mode": "Custom"},
        "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/u"]}]}});
    let world = World::with_options(properties, options(&["East", "West", "North"], WriteMode::Multiple));
    let (east, west, north) = (world.region("East"), world.region("West"), world.region("North"));
    world.engine.set_paused(east, true).expect("paused");
    for value in 0..VALUES {
        for (region, name) in [(west, "w"), (north, "n")] {
            let body = text(&json!({"id": format!("{name}{value}"), "pk": "k", "u": value}));
            world.item_in(region, "k", ItemOp::Create { body }).expect("created");
        }
    }
    world.hand.advance(DELAY);
    world.engine.replicate().expect("replicated");
    assert_eq!(world.shown(west).len(), 2 * VALUES, "only the hub decides, and it has not heard of them");
    world.engine.fail_over(west, Failover::Forced).expect("moved");
    world.settle();
    let lost = world.engine.conflicts(&world.container(), None).expect("listed").resources;
    let ids: BTreeSet<_> = lost.iter().map(|conflict| conflict["id"].to_string()).collect();
    assert_eq!(ids.len(), VALUES);
    for region in [east, west, north] {
        assert_eq!(world.shown(region).len(), VALUES, "{region:?}");
    }
}

#[test]
fn one_region_keeps_nothing_for_others() {
    let world = World::new();
    world.create(json!({"id": "a", "pk": "k"})).expect("created");
    world.delete("k", "a").expect("deleted");
    assert_eq!(world.kept_for_others(), 0);
    assert!(world.rows_with(&[0x07]).is_empty(), "not even the regions");
}

#[test]
fn a_planned_failover_that_was_interrupted_is_finished_after_a_restart() {
    let world = World::with_options(properties(), options(&["East", "West"], WriteMode::Single));
    for index in 0..20 {
        world.create(json!({"id": format!("i{index}"), "pk": "k", "u": index})).expect("created");
    }
    let (east, west) = (world.region("East"), world.region("West"));
    let mut topology = Topology::clone(&world.engine.topology());
    topology.moving = Some(Move::Draining(west));
    world.engine.set_topology(topology, Vec::new()).expect("stored");
    let refused =
        world.create(json!({"id": "late", "pk": "k", "u": 99})).expect_err("nobody writes meanwhile");
    assert_eq!((refused.status, refused.sub_status), (403, 3));
    let world = world.reopened();
    assert_eq!(world.engine.topology().hub, west);
    assert_eq!(world.engine.topology().moving, None);
    assert_eq!(world.replica(west), world.replica(east));
    let body = text(&json!({"id": "late", "pk": "k", "u": 99}));
    world.item_in(west, "k", ItemOp::Create { body }).expect("created");
}

#[test]
fn a_forced_failover_that_was_interrupted_is_finished_after_a_restart() {
    let world = World::with_options(properties(), options(&["East", "West", "North"], WriteMode::Single));
    let (east, west, north) = (world.region("East"), world.region("West"), world.region("North"));
    world.upsert(json!({"id": "a", "pk": "k", "u": 1})).expect("created");
    world.settle();
    world.upsert(json!({"id": "a", "pk": "k", "u": 2})).expect("replaced");
    world.upsert(json!({"id": "b", "pk": "k", "u": 3})).expect("created");
    let mut topology = Topology::clone(&world.engine.topology());
    topology.hub = west;
    topology.version += 1;
    topology.comparable_from = topology.version;
    topology.moving = Some(Move::TakingBack);
    world.engine.set_topology(topology, Vec::new()).expect("stored");
    let world = world.reopened();
    assert_eq!(world.engine.topology().moving, None);
    assert_eq!(world.shown(east).len(), 1);
    for region in [east, north] {
        assert_eq!(world.replica(region), world.replica(west), "{region:?}");
    }
    assert_eq!(world.kept_for_others(), 0);
    let body = text(&json!({"id": "c", "pk": "k", "u": 3}));
    world.item_in(west, "k", ItemOp::Create { body }).expect("the unique value is free again");
    world.settle();
    assert_eq!(world.replica(east), world.replica(west));
}

#[test]
fn what_a_region_that_left_had_is_removed() {
    let world = World::with_options(properties(), options(&["East", "West"], WriteMode::Single));
    let (east, west) = (world.region("East"), world.region("West"));
    world.create(json!({"id": "a", "pk": "k"})).expect("created");
    world.settle();
    assert_eq!(world.replica(west).len(), world.replica(east).len());
    world.engine.remove_region(west).expect("removed");
    world.engine.sweep(10_000).expect("swept");
    assert!(world.replica(west).is_empty());
    world.read("k", "a").expect("the other one stays");
    world.create(json!({"id": "b", "pk": "k", "u": 1})).expect("created");
    assert_eq!(world.kept_for_others(), 0, "nobody follows");
}

/// A client takes the newer of two versions of a token, whatever its number: a replica must not claim a version whose
/// beginning it has not reached.
#[test]
fn a_replica_that_lags_does_not_make_sessions_forget() {
    let world = World::with_options(properties(), options(&["A", "B", "C"], WriteMode::Single));
    let [a, b, c] = ["A", "B", "C"].map(|name| world.region(name));
    let create = |region: RegionId, id: &str| {
        let body = text(&json!({"id": id, "pk": "k", "u": id}));
        world.item_in(region, "k", ItemOp::Create { body }).expect("created").standing.session_token
    };
    let read = |region: RegionId, id: &str, session: &str| {
        let container = world.container().in_region(region);
        let request = ItemRequest {
            partition_key: Some(key("k")),
            op: ItemOp::Read { id: id.to_owned() },
            conditions: Conditions::default(),
            session_token: Some(session.to_owned()),
        };
        let reply = world.engine.item(&container, request);
        reply
            .map(|reply| reply.standing.session_token)
            .map_err(|failure| (failure.status, failure.sub_status))
    };
    let early = create(a, "early");
    world.settle();
    let late = create(a, "late");
    world.engine.fail_over(b, Failover::Planned).expect("moved");
    let seen = read(c, "early", &early).expect("there");
    let mut session: SessionToken = late.parse().expect("a token");
    session.merge(&seen.parse().expect("a token"));
    assert_eq!(read(c, "late", &session.to_string()), Err((404, 1002)), "{late} and {seen}: {session}");
    assert!(read(b, "late", &session.to_string()).is_ok());
    world.hand.advance(DELAY);
    let seen = read(c, "late", &session.to_string()).expect("arrived");
    assert_eq!(seen, read(b, "late", &seen).expect("there"), "the same version, once it has come as far");
}

#[test]
fn a_forced_failover_numbers_no_write_as_a_lost_one_was() {
    let mut options = options(&["East", "West", "North"], WriteMode::Single);
    options.partitions = Some(1);
    let world = World::with_options(json!({}), options);
    let [east, west, north] = ["East", "West", "North"].map(|name| world.region(name));
    let upsert = |region: RegionId, id: &str, n: u32| {
        let body = text(&json!({"id": id, "pk": "k", "n": n}));
        world.item_in(region, "k", ItemOp::Upsert { body }).expect("written")
    };
    let changes = |region: RegionId, start: FeedStart| {
        let container = world.container().in_region(region);
        let request =
            FeedRequest { scope: Scope::All, start, page_size: PageSize::DEFAULT, session_token: None };
        let page = world.engine.change_feed(&container, request).expect("served");
        let ns = page.documents.iter().map(|bytes| {
            serde_json::from_slice::<Value>(bytes).expect("JSON")["n"].as_u64().expect("a number")
        });
        (ns.collect::<Vec<_>>(), page.etag)
    };
    upsert(east, "a", 1);
    world.settle();
    world.engine.set_paused(north, true).expect("paused");
    upsert(east, "b", 2);
    world.hand.advance(DELAY);
    world.engine.replicate().expect("replicated");
    let lost = upsert(east, "a", 3);
    let (_, seen) = changes(east, FeedStart::Beginning);
    world.engine.fail_over(west, Failover::Forced).expect("moved");
    assert_eq!(changes(east, FeedStart::Beginning).0, [1, 2]);

    let read = |region: RegionId, session_token: Option<String>| {
        let request = ItemRequest {
            partition_key: Some(key("k")),
            op: ItemOp::Read { id: "b".into() },
            conditions: Conditions::default(),
            session_token,
        };
        world.engine.item(&world.container().in_region(region), request)
    };
    let session = read(west, None).expect("there").standing.session_token;
    read(east, Some(session.clone())).expect("it has what the new write region has");
    world.engine.set_paused(north, false).expect("resumed");
    world.hand.advance(DELAY);
    read(north, Some(session)).expect("it follows as far as the new write region is");
    assert_eq!(world.kept_for_others(), 0);

    let new = upsert(west, "a", 4);
    let number = |reply: &ItemReply| reply.etag.as_deref().expect("an etag")[1..9].to_owned();
    assert_ne!(number(&new), number(&lost));
    assert!(new.item_lsn > lost.item_lsn, "{:?} {:?}", new.item_lsn, lost.item_lsn);
    assert_eq!(changes(west, FeedStart::After(seen)).0, [4]);
    world.settle();
    for region in [east, north] {
        assert_eq!(world.replica(region), world.replica(west), "{region:?}");
    }
}

/// A strong writer has the lock of the write region's partition before it takes those of the replicas.
#[test]
fn whoever_locks_every_replica_begins_with_the_write_region() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let mut options = options(&["East", "West"], WriteMode::Single);
    options.consistency = Consistency::Strong;
    let world = World::with_options(json!({}), options);
    let [east, west] = ["East", "West"].map(|name| world.region(name));
    world.engine.fail_over(west, Failover::Planned).expect("moved");
    let body = json!({"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
        "indexingPolicy": {"includedPaths": [{"path": "/*"}], "excludedPaths": [{"path": "/x/*"}]}});
    let reshape = || {
        world.engine.replace_container("d", "c", body.to_string().as_bytes(), None).expect("replaced");
    };
    let track = || {
        world.engine.track(&world.container(), &vec![Step::Property("n".into())]).expect("tracked");
    };
    let all: [(&str, &(dyn Fn() + Sync)); 2] = [("reshape", &reshape), ("track", &track)];
    for (name, change) in all {
        let shape = world.container().shape();
        let writer = shape.partitions_in(west)[0].lock();
        let replica = Arc::clone(&shape.partitions_in(east)[0]);
        let is_free = std::thread::scope(|scope| {
            scope.spawn(change);
            std::thread::sleep(Duration::from_millis(50));
            let (done, is_done) = std::sync::mpsc::channel();
            scope.spawn(move || {
                drop(replica.lock());
                let _ = done.send(());
            });
            let is_free = is_done.recv_timeout(PATIENCE).is_ok();
            drop(writer);
            is_free
        });
        assert!(is_free, "{name} holds the replica and waits for the write region");
    }
}
