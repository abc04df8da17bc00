//! Replicas follow the logs of other regions.

use std::ops::{Bound, Deref};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use bytes::Bytes;

use super::log::{Entry, log_of};
use super::{Links, RegionError, RegionId, ReplicationLag, Topology};
use crate::Failure;
use crate::config::{Consistency, WriteMode};
use crate::engine::Engine;
use crate::engine::container::{Container, Shape};
use crate::engine::key::{self, Segment};
use crate::engine::partition::Partition;
use crate::engine::request::storage_failed;
use crate::engine::writer::Writer;
use crate::storage::{Batch, Order};

/// What a replica may take from a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// What has been on its way for long enough.
    Due,
    /// Everything, from regions that can be reached.
    Now,
    /// Everything, whoever can be reached.
    Always,
}

/// Entries applied with one commit.
const ENTRIES_MAX: usize = 256;

/// What bounded staleness allows in an account of several regions, as the service has it at least.
const STALE_COMMITS_MAX: u64 = 100_000;
const STALE_MAX: Duration = Duration::from_secs(300);

impl Engine {
    /// Brings a replica up to where it should be by now. Costs nothing with one region.
    pub(crate) fn catch_up(&self, container: &Container, partition: &Partition) -> Result<(), Failure> {
        let topology = self.topology();
        if topology.is_single() {
            return Ok(());
        }
        let shape = container.shape();
        if topology.mode == WriteMode::Multiple
            && !shape.unique_keys.is_empty()
            && let Some(hub) = shape.partition_with(topology.hub, partition.id())
        {
            // What the hub decided is on its way here, whether anybody has asked the hub or not.
            self.follow(&container.in_region(topology.hub), hub, self.usual_haste())?;
        }
        self.follow(container, partition, self.usual_haste())
    }

    /// Brings every replica up to where it should be by now.
    pub(crate) fn replicate(&self) -> Result<(), Failure> {
        let topology = self.topology().clone();
        if topology.is_single() {
            return Ok(());
        }
        let mut containers = self.every_container().into_iter();
        containers.try_for_each(|container| self.spread(&container, &topology, self.usual_haste()))
    }

    /// Forgets what was kept for other regions and nobody needs any more.
    pub(crate) fn forget_replicated(&self) -> Result<(), Failure> {
        if self.topology().is_single() {
            return Ok(());
        }
        self.every_container().into_iter().try_for_each(|container| self.forget(&container))
    }

    /// Brings the replicas of a container together, whether regions can be reached or not. No writer may be at work:
    /// for those who change what partitions there are.
    pub(crate) fn drain(&self, container: &Container) -> Result<(), Failure> {
        let topology = self.topology().clone();
        if topology.is_single() {
            return Ok(());
        }
        self.spread(container, &topology, Haste::Always)?;
        self.forget(container)
    }

    /// Brings all replicas of a container as far as they may come.
    pub(super) fn spread(
        &self,
        container: &Container,
        topology: &Topology,
        haste: Haste,
    ) -> Result<(), Failure> {
        let shape = container.shape();
        // The hub first: the others follow what it decides.
        let others = topology.live().map(|region| region.id).filter(|id| *id != topology.hub);
        for region in std::iter::once(topology.hub).chain(others) {
            let here = container.in_region(region);
            for partition in shape.partitions_in(region) {
                self.follow(&here, partition, haste)?;
            }
        }
        Ok(())
    }

    /// Brings one replica as far as it may come.
    pub(super) fn follow(
        &self,
        container: &Container,
        partition: &Partition,
        haste: Haste,
    ) -> Result<(), Failure> {
        self.follow_by(container, partition, || Arc::clone(&self.topology()), haste)
    }

    /// The same, by the regions that somebody goes by. They are asked for under the lock: whoever changes them passes
    /// through it before anybody writes by the new ones.
    pub(super) fn follow_by<T: Deref<Target = Topology>>(
        &self,
        container: &Container,
        partition: &Partition,
        topology: impl Fn() -> T,
        haste: Haste,
    ) -> Result<(), Failure> {
        // Whoever asks for the partitions of a region that left gets those of another.
        let is_own = partition.region() == container.region;
        if !is_own
            || container.check_exists().is_err()
            || !is_behind(&container.shape(), partition, &topology())
        {
            return Ok(());
        }
        loop {
            let mut copy = Writer::begin_copy(self, container, partition)?;
            let applied = copy.follow(&topology(), haste)?;
            if applied > 0 {
                copy.note_progress();
                let changes = copy.take_changes();
                self.commit(Batch { changes })?;
                copy.publish();
            }
            if applied < ENTRIES_MAX {
                return Ok(());
            }
        }
    }

    /// How far a region is behind, once it has got what it should have by now.
    pub(crate) fn replication_lag(&self, region: RegionId) -> Result<ReplicationLag, RegionError> {
        self.replicate()?;
        let topology = self.topology().clone();
        let now = self.clock().now_micros();
        let mut lag = ReplicationLag::default();
        for container in self.every_container() {
            let shape = container.shape();
            for partition in shape.partitions_in(region) {
                for source in sources(&topology, region) {
                    let reached = partition.reached(&topology, source);
                    let log = log_of(&topology, container.number, partition.id(), source);
                    let Some((_, oldest)) = self.entries(log, reached + 1, 1)?.pop() else { continue };
                    let age = Duration::from_micros(now.saturating_sub(oldest.micros));
                    lag.oldest = lag.oldest.max(age);
                    let (lower, upper) = (key::log(log, reached + 1), key::log(log, u64::MAX));
                    let missing =
                        self.storage().scan(Bound::Included(&lower), Bound::Included(&upper), Order::Forward);
                    lag.commits += missing.count() as u64;
                }
            }
        }
        Ok(lag)
    }

    pub(super) fn every_container(&self) -> Vec<Arc<Container>> {
        self.catalog().all_containers().map(Arc::clone).collect()
    }

    pub(super) fn links(&self) -> Guard<Arc<Links>> {
        self.links.load()
    }

    /// A strong account does not wait for anything.
    fn usual_haste(&self) -> Haste {
        if self.options().consistency == Consistency::Strong { Haste::Now } else { Haste::Due }
    }

    /// Up to `count` entries of a log, from an LSN on.
    pub(super) fn entries(
        &self,
        log: Segment,
        from: u64,
        count: usize,
    ) -> Result<Vec<(u64, Entry)>, Failure> {
        let (lower, upper) = (key::log(log, from), key::log(log, u64::MAX));
        self.storage()
            .scan(Bound::Included(&lower), Bound::Included(&upper), Order::Forward)
            .take(count)
            .map(|row| {
                let (key, bytes) = row.map_err(|error| storage_failed(&error))?;
                let entry = Entry::from_bytes(&bytes);
                let (lsn, entry) = key::log_lsn(&key).zip(entry).ok_or_else(unreadable)?;
                Ok((lsn, entry))
            })
            .collect()
    }

    /// Forgets entries that every replica has, and the ranks of items on which all regions agree.
    fn forget(&self, container: &Container) -> Result<(), Failure> {
        let hub = self.topology().hub;
        for partition in container.shape().partitions_in(hub) {
            // Regions join under the hub's lock, so none does that would lack what is forgotten here.
            let held = partition.lock();
            let (topology, shape) = (Arc::clone(&self.topology()), container.shape());
            if topology.hub != hub || partition.is_retired() {
                return Ok(());
            }
            let range = partition.id();
            let mut is_quiet = true;
            for source in writers(&topology) {
                let Some(there) = shape.partition_with(source, range) else { continue };
                let had = had_by_all(&shape, &topology, source, range);
                is_quiet &= had.is_none_or(|had| had >= there.reached(&topology, source));
                let log = log_of(&topology, container.number, range, source);
                let upper = key::log(log, had.unwrap_or(u64::MAX - 1).saturating_add(1));
                self.delete_range(&key::log(log, 0), &upper, usize::MAX)?;
            }
            if is_quiet && topology.mode == WriteMode::Multiple {
                self.forget_ranks(container, (&shape, &topology), partition)?;
            }
            drop(held);
        }
        Ok(())
    }

    /// Forgets ranks, if the regions agree while nobody can write. The caller holds the hub.
    fn forget_ranks(
        &self,
        container: &Container,
        (shape, topology): (&Shape, &Topology),
        hub: &Arc<Partition>,
    ) -> Result<(), Failure> {
        let bounds = |region: RegionId| {
            let replica = region.replica_of(container.number);
            (key::ranks(replica, &hub.lower()), key::ranks(replica, &hub.upper()))
        };
        let is_empty = |(lower, upper): &(Bytes, Bytes)| {
            self.storage()
                .scan(Bound::Included(lower), Bound::Excluded(upper), Order::Forward)
                .next()
                .is_none()
        };
        if topology.live().all(|region| is_empty(&bounds(region.id))) {
            return Ok(());
        }
        let others = topology.live().filter(|region| region.id != topology.hub);
        let others: Vec<_> = others.filter_map(|region| shape.partition_with(region.id, hub.id())).collect();
        // Where somebody is at work it can wait; who removes a region holds its lock and waits for the hub's.
        let Some(locks) = others.iter().map(|partition| partition.try_lock()).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        if !others.into_iter().chain([hub]).any(|partition| is_behind(shape, partition, topology)) {
            for region in topology.live() {
                let (lower, upper) = bounds(region.id);
                self.delete_range(&lower, &upper, usize::MAX)?;
            }
        }
        drop(locks);
        Ok(())
    }
}

impl Writer<'_> {
    /// Applies what this replica may take, up to [`ENTRIES_MAX`] entries; returns how many it took.
    pub(super) fn follow(&mut self, topology: &Topology, haste: Haste) -> Result<usize, Failure> {
        let engine = self.engine;
        let links = engine.links();
        let own = self.container.region;
        if haste != Haste::Always && !links.is_connected(topology, own) {
            return Ok(0);
        }
        let shape = Arc::clone(&self.shape);
        let range = self.partition.id();
        let now = engine.clock().now_micros();
        let mut applied = 0;
        for source in sources(topology, own) {
            if haste != Haste::Always && !links.is_connected(topology, source) {
                continue;
            }
            let Some(there) = shape.partition_with(source, range) else { continue };
            let reached = match topology.mode {
                WriteMode::Single => self.next.lsn,
                WriteMode::Multiple => self.partition.reached(topology, source),
            };
            let log = log_of(topology, self.container.number, range, source);
            let wait = patience(engine, links.delay(topology, source, own));
            for (lsn, entry) in engine.entries(log, reached + 1, ENTRIES_MAX - applied)? {
                let too_far = engine.options().consistency == Consistency::BoundedStaleness
                    && there.reached(topology, source).saturating_sub(lsn) >= STALE_COMMITS_MAX;
                let due = entry.micros.saturating_add(wait) <= now || too_far;
                if haste == Haste::Due && !due {
                    break;
                }
                let arrived = entry.micros.saturating_add(wait).min(now);
                self.apply(topology, source, (lsn, arrived), &entry)?;
                applied += 1;
                if others_had(&shape, topology, source, (own, range), lsn) {
                    self.delete(key::log(log, lsn));
                }
            }
        }
        Ok(applied)
    }
}

/// How long an entry waits, in microseconds.
fn patience(engine: &Engine, delay: Duration) -> u64 {
    let delay = match engine.options().consistency {
        Consistency::BoundedStaleness => delay.min(STALE_MAX),
        _ => delay,
    };
    u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)
}

/// The regions whose writes a region follows. A single-write account's hub has them all.
fn sources(topology: &Topology, region: RegionId) -> impl Iterator<Item = RegionId> {
    writers(topology).into_iter().filter(move |source| *source != region)
}

/// The regions that have a log of their own.
fn writers(topology: &Topology) -> Vec<RegionId> {
    match topology.mode {
        WriteMode::Single => vec![topology.hub],
        WriteMode::Multiple => topology.live().map(|region| region.id).collect(),
    }
}

/// Whether a replica lacks anything, due or not.
fn is_behind(shape: &Shape, partition: &Partition, topology: &Topology) -> bool {
    sources(topology, partition.region()).any(|source| {
        shape
            .partition_with(source, partition.id())
            .is_some_and(|there| partition.reached(topology, source) < there.reached(topology, source))
    })
}

/// How far all followers of a region have come; none without followers.
fn had_by_all(shape: &Shape, topology: &Topology, source: RegionId, range: u32) -> Option<u64> {
    let followers = topology.live().filter(|region| region.id != source);
    followers
        .filter_map(|region| shape.partition_with(region.id, range))
        .map(|partition| partition.reached(topology, source))
        .min()
}

/// Whether all followers of a region but one have an entry.
fn others_had(
    shape: &Shape,
    topology: &Topology,
    source: RegionId,
    (own, range): (RegionId, u32),
    lsn: u64,
) -> bool {
    let others = topology.live().filter(|region| region.id != source && region.id != own);
    others
        .filter_map(|region| shape.partition_with(region.id, range))
        .all(|partition| partition.reached(topology, source) >= lsn)
}

fn unreadable() -> Failure {
    Failure::new(500, "An entry of the replication log cannot be read; restore the data folder from a copy.")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use cosmos_wire::partition_key::PartitionKey;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::config::ReplicationDelay;
    use crate::engine::{Conditions, EngineOptions, Failover, ItemOp, ItemRequest};
    use crate::storage::MemoryStorage;

    const DELAY: Duration = Duration::from_secs(10);

    /// An account of these regions with one container.
    fn account(regions: &[&str], write_mode: WriteMode) -> (Engine, ManualClock) {
        let (clock, hand) = Clock::manual(Duration::from_secs(1_794_700_800));
        let options = EngineOptions {
            regions: regions.iter().map(|name| (*name).to_owned()).collect(),
            write_mode,
            replication_delays: vec![
                ReplicationDelay::everywhere(DELAY),
                ReplicationDelay::between("B", "C", Duration::ZERO),
            ],
            ..EngineOptions::default()
        };
        let engine = Engine::open(Arc::new(MemoryStorage::new()), clock, options).expect("a new store opens");
        engine.create_database(br#"{"id":"d"}"#, None).expect("created");
        let body = br#"{"id":"c","partitionKey":{"paths":["/pk"],"kind":"Hash"}}"#;
        engine.create_container("d", body, None).expect("created");
        (engine, hand)
    }

    fn item(engine: &Engine, region: RegionId, op: ItemOp) -> Result<(), Failure> {
        let container = engine.container("d", "c").expect("there").in_region(region);
        let partition_key = Some(PartitionKey::new(vec!["k".into()]));
        let conditions = Conditions::default();
        engine.item(&container, ItemRequest { partition_key, op, conditions, session_token: None }).map(drop)
    }

    fn create(engine: &Engine, id: &str) -> Result<(), Failure> {
        let body = format!(r#"{{"id":"{id}","pk":"k"}}"#).into();
        let hub = engine.topology().hub;
        item(engine, hub, ItemOp::Create { body })
    }

    fn arrive(engine: &Engine, hand: &ManualClock) {
        hand.advance(DELAY);
        engine.replicate().expect("replicated");
    }

    #[test]
    fn a_pass_that_began_before_a_region_joined_keeps_what_that_region_lacks() {
        let (engine, hand) = account(&["A", "B"], WriteMode::Single);
        let before = Topology::clone(&engine.topology());
        let joined = engine.add_region("C").expect("added");
        create(&engine, "late").expect("created");
        let container = engine.container("d", "c").expect("there");
        engine.spread(&container, &before, Haste::Always).expect("replicated");
        arrive(&engine, &hand);
        item(&engine, joined, ItemOp::Read { id: "late".into() }).expect("it arrived");
    }

    #[test]
    fn a_pass_that_began_before_a_region_left_gives_its_part_to_nobody_else() {
        let (engine, hand) = account(&["A", "B", "C"], WriteMode::Single);
        let [a, b, c] = ["A", "B", "C"].map(|name| engine.topology().named(name).expect("a region").id);
        engine.fail_over(b, Failover::Planned).expect("moved");
        let before = Topology::clone(&engine.topology());
        engine.remove_region(c).expect("removed");
        create(&engine, "late").expect("created");
        let container = engine.container("d", "c").expect("there");
        engine.spread(&container, &before, Haste::Due).expect("replicated");
        arrive(&engine, &hand);
        item(&engine, a, ItemOp::Read { id: "late".into() }).expect("it arrived");
    }

    #[test]
    fn a_region_joins_and_leaves_when_nobody_acts_on_the_regions_before() {
        const A_WHILE: Duration = Duration::from_millis(100);
        let (engine, _hand) = account(&["A", "B"], WriteMode::Single);
        let follower = engine.topology().named("B").expect("a region").id;
        let shape = engine.container("d", "c").expect("there").shape();
        let change = |change: &(dyn Fn() + Sync)| {
            let held = shape.partitions_in(follower)[0].lock();
            std::thread::scope(|scope| {
                let (done, is_done) = mpsc::channel();
                scope.spawn(move || {
                    change();
                    let _ = done.send(());
                });
                let waits = is_done.recv_timeout(A_WHILE).is_err();
                drop(held);
                waits
            })
        };
        let join = || {
            engine.add_region("C").expect("added");
        };
        assert!(change(&join));
        let joined = engine.topology().named("C").expect("a region").id;
        assert!(change(&|| engine.remove_region(joined).expect("removed")));
    }

    /// Whoever removes a region holds its lock and waits for the others.
    #[test]
    fn forgetting_does_not_wait_for_a_replica_that_somebody_holds() {
        const PATIENCE: Duration = Duration::from_secs(1);
        let (engine, hand) = account(&["A", "B"], WriteMode::Multiple);
        create(&engine, "ranked").expect("created");
        arrive(&engine, &hand);
        let other = engine.topology().named("B").expect("a region").id;
        let shape = engine.container("d", "c").expect("there").shape();
        let held = shape.partitions_in(other)[0].lock();
        let is_done = std::thread::scope(|scope| {
            let (done, is_done) = mpsc::channel();
            let engine = &engine;
            scope.spawn(move || {
                engine.forget_replicated().expect("forgotten");
                let _ = done.send(());
            });
            let is_done = is_done.recv_timeout(PATIENCE).is_ok();
            drop(held);
            is_done
        });
        assert!(is_done);
    }
}
