//! Throughput: what a physical partition may consume in a second, and what it did consume.
//!
//! Consumption is always counted, with a few atomic additions. Budgets are only looked at when the account throttles:
//! a budget refills by the clock, holds at most one second's worth, and may be overdrawn by the request that uses it
//! up; whoever finds it overdrawn is refused with 429/3200.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cosmos_wire::status::Status;
use serde::Serialize;

use super::Engine;
use super::catalog::offer;
use super::container::{Container, Shape};
use super::document::Stored;
use super::item::from_partition;
use super::key;
use super::partition::Partition;
use super::request::{Scope, Throughput, storage_failed};
use super::scope::{Part, parts};
use crate::Failure;
use crate::storage::Order;

/// What one physical partition holds and does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionReport {
    /// Id of its partition-key range.
    pub id: u32,
    /// First effective partition key, in hex.
    pub min_inclusive: String,
    /// First effective partition key beyond, in hex.
    pub max_exclusive: String,
    /// The partitions it was made from, oldest first.
    pub parents: Vec<String>,
    /// Its LSN.
    pub lsn: u64,
    /// Requests since the account was opened, refused ones included.
    pub requests: u64,
    /// Requests refused with 429.
    pub throttled: u64,
    /// RUs since the account was opened.
    pub request_units: f64,
    /// RU/s it may consume; absent where nothing limits it.
    pub budget: Option<f64>,
    /// Share of the budget consumed in this second: 1 is all of it.
    pub normalized_last_second: f64,
    /// The largest such share of the last sixty seconds.
    pub normalized_last_minute: f64,
    /// Items.
    pub documents: u64,
    /// Size of the items.
    pub storage_bytes: u64,
}

/// What a physical partition consumed.
#[derive(Debug)]
pub(crate) struct Meter {
    requests: AtomicU64,
    throttled: AtomicU64,
    /// In hundredths.
    units: AtomicU64,
    /// Of each of the last seconds: the second in the upper half, hundredths of RUs in the lower.
    seconds: [AtomicU64; SLOTS],
    budget: Arc<Mutex<Bucket>>,
}

/// More than a minute, and a power of two.
const SLOTS: usize = 64;
const MINUTE: u64 = 60;
const LOWER: u64 = 0xffff_ffff;

impl Default for Meter {
    fn default() -> Self {
        Self {
            requests: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            units: AtomicU64::new(0),
            seconds: [const { AtomicU64::new(0) }; SLOTS],
            budget: Arc::default(),
        }
    }
}

impl Meter {
    fn record(&self, charge: f64, now_seconds: u64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "charges are small")]
        let hundredths = (charge * 100.0).round() as u64;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.units.fetch_add(hundredths, Ordering::Relaxed);
        let stamp = (now_seconds & LOWER) << 32;
        let slot = &self.seconds[now_seconds as usize % SLOTS];
        let add = |seen: u64| {
            let so_far = if seen & !LOWER == stamp { seen & LOWER } else { 0 };
            Some(stamp | (so_far + hundredths).min(LOWER))
        };
        // The closure never refuses.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// RUs of one second.
    fn consumed(&self, second: u64) -> f64 {
        let seen = self.seconds[second as usize % SLOTS].load(Ordering::Relaxed);
        if seen >> 32 == second & LOWER { hundredths(seen & LOWER) } else { 0.0 }
    }

    fn peak(&self, now_seconds: u64) -> f64 {
        (0..MINUTE).map(|ago| self.consumed(now_seconds.saturating_sub(ago))).fold(0.0, f64::max)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a display of what was consumed")]
fn hundredths(units: u64) -> f64 {
    units as f64 / 100.0
}

/// RUs that are there to be used.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// Below zero: overdrawn.
    available: f64,
    /// When it was last looked at; none means that it is full.
    at_micros: Option<u64>,
}

/// Buckets that containers share, by database and server.
pub(crate) type Shared = BTreeMap<(u32, u32), Arc<Mutex<Bucket>>>;

/// How a bucket was found.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Found {
    Full,
    Used,
    /// Empty for this long.
    Overdrawn(Duration),
}

impl Bucket {
    fn look(&mut self, rate: f64, now_micros: u64) -> Found {
        self.available = match self.at_micros {
            None => rate,
            Some(at) => {
                let elapsed = Duration::from_micros(now_micros.saturating_sub(at)).as_secs_f64();
                (self.available + elapsed * rate).min(rate)
            }
        };
        self.at_micros = Some(now_micros);
        if self.available >= rate {
            Found::Full
        } else if self.available > 0.0 {
            Found::Used
        } else {
            // Until there is something again.
            let pause = Duration::from_secs_f64(-self.available / rate).max(PAUSE_MIN);
            Found::Overdrawn(pause.min(PAUSE_MAX))
        }
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A request that was let in; what it consumed is noted when it is settled.
pub(crate) struct Turn<'a> {
    engine: &'a Engine,
    partition: &'a Partition,
    limit: Option<Limit>,
    /// Whether the request found everything there was: then it may use more than that.
    found_full: bool,
}

/// A budget and how fast it refills, in RU/s.
struct Limit {
    bucket: Arc<Mutex<Bucket>>,
    rate: f64,
}

impl Turn<'_> {
    /// Refuses a step of a request whose earlier steps used the budget up. A request that had all of it goes on, so
    /// that one which needs more than a second's worth can ever be served.
    pub(crate) fn check(&self, spent: f64) -> Result<(), Failure> {
        let Some(limit) = self.limit.as_ref().filter(|_| !self.found_full) else { return Ok(()) };
        let mut bucket = limit.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.look(limit.rate, self.engine.clock().now_micros());
        let left = bucket.available - spent;
        if left > 0.0 {
            return Ok(());
        }
        self.partition.meter.throttled.fetch_add(1, Ordering::Relaxed);
        Err(too_many_requests(Duration::from_secs_f64(-left / limit.rate).clamp(PAUSE_MIN, PAUSE_MAX)))
    }

    /// Notes what the request consumed.
    pub(crate) fn settle(self, charge: f64) {
        self.partition.meter.record(charge, self.engine.clock().now_seconds());
        if let Some(limit) = self.limit {
            limit.bucket.lock().unwrap_or_else(PoisonError::into_inner).available -= charge;
        }
    }
}

impl Engine {
    /// Lets a request to a partition in, or refuses it because the partition's budget is overdrawn.
    pub(crate) fn admit<'a>(
        &'a self,
        container: &Container,
        shape: &Shape,
        partition: &'a Partition,
    ) -> Result<Turn<'a>, Failure> {
        partition.check_gate()?;
        if !self.options().throttling {
            return Ok(Turn { engine: self, partition, limit: None, found_full: true });
        }
        let limit = self.limit(container, shape, partition);
        let found = limit.as_ref().map_or(Found::Full, |limit| {
            let mut bucket = limit.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.look(limit.rate, self.clock().now_micros())
        });
        if let Found::Overdrawn(pause) = found {
            partition.meter.requests.fetch_add(1, Ordering::Relaxed);
            partition.meter.throttled.fetch_add(1, Ordering::Relaxed);
            return Err(too_many_requests(pause));
        }
        Ok(Turn { engine: self, partition, limit, found_full: found == Found::Full })
    }

    /// The same for a request to several partitions: all let it in, or none.
    pub(crate) fn admit_all<'a>(
        &'a self,
        container: &Container,
        shape: &Shape,
        parts: &'a [Part],
    ) -> Result<Vec<Turn<'a>>, Failure> {
        let admitted = parts.iter().map(|part| {
            self.admit(container, shape, &part.partition).map_err(|failure| {
                from_partition(failure, container, part.partition.standing(&self.topology(), 0))
            })
        });
        admitted.collect()
    }

    /// What each physical partition of a container holds and does. Items are counted one by one.
    ///
    /// # Errors
    /// 404 when the container is gone.
    pub fn partition_reports(&self, container: &Container) -> Result<Vec<PartitionReport>, Failure> {
        container.check_exists()?;
        let shape = container.shape();
        let now = self.clock().now_seconds();
        let parts = parts(container, &shape, &Scope::All)?;
        parts
            .iter()
            .map(|part| {
                let partition = &*part.partition;
                let meter = &partition.meter;
                let budget = self.limit(container, &shape, partition).map(|limit| limit.rate);
                let share = |consumed: f64| budget.map_or(0.0, |budget| consumed / budget);
                let (documents, storage_bytes) = self.holdings(container, partition)?;
                Ok(PartitionReport {
                    id: partition.id(),
                    min_inclusive: partition.range.min.to_hex(),
                    max_exclusive: partition.range.max.to_hex(),
                    parents: partition.lineage.parents.clone(),
                    lsn: partition.lsn(),
                    requests: meter.requests.load(Ordering::Relaxed),
                    throttled: meter.throttled.load(Ordering::Relaxed),
                    request_units: hundredths(meter.units.load(Ordering::Relaxed)),
                    budget,
                    normalized_last_second: share(meter.consumed(now)),
                    normalized_last_minute: share(meter.peak(now)),
                    documents,
                    storage_bytes,
                })
            })
            .collect()
    }

    /// Goes through the items of a partition in order of effective partition key.
    pub(crate) fn each_item(
        &self,
        container: &Container,
        partition: &Partition,
        mut visit: impl FnMut(&[u8], &Stored),
    ) -> Result<(), Failure> {
        let items = key::items(container.replica);
        let lower = [items.as_slice(), &partition.lower()].concat();
        let upper = [items.as_slice(), &partition.upper()].concat();
        for row in self.storage().scan(Bound::Included(&lower), Bound::Excluded(&upper), Order::Forward) {
            let (item, bytes) = row.map_err(|error| storage_failed(&error))?;
            if let Some(stored) = Stored::from_bytes(&bytes) {
                visit(&item, &stored);
            }
        }
        Ok(())
    }

    /// Items of a partition and their size.
    fn holdings(&self, container: &Container, partition: &Partition) -> Result<(u64, u64), Failure> {
        let (mut documents, mut bytes) = (0, 0);
        self.each_item(container, partition, |_, stored| {
            documents += 1;
            bytes += stored.body.len() as u64;
        })?;
        Ok((documents, bytes))
    }

    /// What limits a partition: its part of the container's throughput, or a part of what the database shares.
    fn limit(&self, container: &Container, shape: &Shape, partition: &Partition) -> Option<Limit> {
        let own = |rate: f64| Limit { bucket: Arc::clone(&partition.meter.budget), rate };
        if self.options().serverless {
            return Some(own(SERVERLESS));
        }
        if let Some(offer) = &shape.offer {
            return Some(own(per_partition(offer.throughput, shape.partitions.len())));
        }
        let shared = self.shared_throughput(container)?;
        let servers = offer::partitions(shared);
        let at = shape.partitions_in(container.region).iter().position(|own| own.id() == partition.id())?;
        let key = (container.database, u32::try_from(at).unwrap_or(0) % servers);
        let mut pools = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = Arc::clone(pools.entry(key).or_default());
        Some(Limit { bucket, rate: per_partition(shared, servers as usize) })
    }
}

/// Notes what a request to several partitions consumed, as if each had done the same.
pub(crate) fn settle_all(turns: Vec<Turn<'_>>, charge: f64) {
    #[expect(clippy::cast_precision_loss, reason = "a request looks at a few hundred partitions at most")]
    let share = charge / turns.len().max(1) as f64;
    for turn in turns {
        turn.settle(share);
    }
}

fn per_partition(throughput: Throughput, partitions: usize) -> f64 {
    let (Throughput::Manual(amount) | Throughput::Autoscale(amount, _)) = throughput;
    #[expect(clippy::cast_precision_loss, reason = "at most a million RU/s and a few hundred partitions")]
    let share = amount as f64 / partitions.max(1) as f64;
    share.min(PARTITION_MAX)
}

/// RU/s of one physical partition, whatever was bought.
const PARTITION_MAX: f64 = 10_000.0;

/// RU/s of one physical partition of a serverless account.
const SERVERLESS: f64 = 5_000.0;

fn too_many_requests(pause: Duration) -> Failure {
    let mut failure = Failure::new(
        429,
        "Request rate is large. More Request Units may be needed, so no changes were made. Please retry this request \
         later. Learn more: http://aka.ms/cosmosdb-error-429",
    )
    .with_sub_status(Status::REQUEST_UNITS_EXCEEDED.sub);
    failure.retry_after = Some(pause);
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_one_second_and_refills_by_the_clock() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.look(400.0, 0), Found::Full);
        bucket.available -= 500.0;
        assert_eq!(bucket.look(400.0, 0), Found::Overdrawn(Duration::from_millis(250)));
        assert_eq!(bucket.look(400.0, 250_001), Found::Used);
        assert_eq!(bucket.look(400.0, 10_000_000), Found::Full);
        assert!((bucket.available - 400.0).abs() < 1e-9, "no more than one second's worth");
    }

    #[test]
    fn throughput_is_divided_and_never_more_than_ten_thousand() {
        for (throughput, partitions, expected) in [
            (Throughput::Manual(400), 1, 400.0),
            (Throughput::Manual(400), 4, 100.0),
            (Throughput::Autoscale(4_000, None), 2, 2_000.0),
            (Throughput::Manual(50_000), 2, 10_000.0),
        ] {
            assert!((per_partition(throughput, partitions) - expected).abs() < 1e-9, "{throughput:?}");
        }
    }

    #[test]
    fn a_meter_knows_the_last_minute() {
        let meter = Meter::default();
        meter.record(7.5, 1_000);
        meter.record(2.5, 1_000);
        meter.record(1.0, 1_030);
        assert!((meter.consumed(1_000) - 10.0).abs() < 1e-9);
        assert!((meter.peak(1_059) - 10.0).abs() < 1e-9);
        assert!((meter.peak(1_060) - 1.0).abs() < 1e-9);
        meter.record(3.0, 1_064);
        assert!(meter.consumed(1_000).abs() < 1e-9, "the slot was taken over");
    }
}
