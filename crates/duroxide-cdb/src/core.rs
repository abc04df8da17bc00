//! What all operations share: the store, the clock, the finders, the leases and the caches.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::StreamExt as _;
use tokio::time::Instant;

use crate::cache::Cache;
use crate::clock::{Clock, millis};
use crate::config::CosmosDBProviderConfig;
use crate::documents::{Head, Tagged, WorkDocument, ids};
use crate::error::{Fault, Trouble};
use crate::finder::{Crew, Pace, Strays, TurnFinder, WorkFinder};
use crate::orchestration::lock::TurnLease;
use crate::outbox::OutboxFaultInjector;
use crate::session::Sessions;
use crate::slots::{LeaseProvider, Watch};
use crate::store::{Call, Op, Read, Store};

/// The provider's inside.
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) clock: Arc<Clock>,
    pub(crate) settings: Settings,
    pub(crate) turns: TurnFinder,
    pub(crate) turn_pace: Pace,
    pub(crate) works: WorkFinder,
    crews: Mutex<BTreeMap<String, Arc<Crew>>>,
    pub(crate) strays: Strays,
    pub(crate) turn_leases: Leases<TurnLease>,
    pub(crate) work_leases: Leases<WorkLease>,
    pub(crate) cache: Cache,
    pub(crate) sessions: Sessions,
    pub(crate) outbox_faults: Mutex<Option<OutboxFaultInjector>>,
    leases: Option<Arc<dyn LeaseProvider>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(leases) = &self.leases {
            leases.release(&self.settings.owner);
        }
    }
}

/// The settings operations need; the key is not among them.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) owner: String,
    pub(crate) operation_timeout: Duration,
    pub(crate) tombstone_ttl_seconds: u64,
    pub(crate) age_threshold_ms: u64,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    /// How long work is left to those who look after its slot.
    pub(crate) steal_after_ms: u64,
}

/// A work item this process has locked.
#[derive(Debug)]
pub(crate) struct WorkLease {
    pub(crate) item: tokio::sync::Mutex<Tagged<Arc<WorkDocument>>>,
}

impl Core {
    pub(crate) fn new(store: Store, config: &CosmosDBProviderConfig) -> Self {
        let owner = if config.owner.is_empty() {
            uuid::Uuid::new_v4().simple().to_string()
        } else {
            config.owner.clone()
        };
        Self {
            clock: store.clock(),
            store,
            settings: Settings {
                owner,
                operation_timeout: config.operation_timeout,
                tombstone_ttl_seconds: config.tombstone_ttl.as_secs(),
                age_threshold_ms: millis(config.reconciler_age_threshold),
                poll_min: config.poll_interval_min,
                poll_max: config.poll_interval_max,
                steal_after_ms: millis(config.steal_after),
            },
            turns: TurnFinder::asleep(),
            turn_pace: Pace::new(config.poll_interval_min, config.poll_interval_max),
            works: WorkFinder::default(),
            crews: Mutex::default(),
            strays: Strays::default(),
            turn_leases: Leases::default(),
            work_leases: Leases::default(),
            cache: Cache::new(config.cache_bytes_max),
            sessions: Sessions::default(),
            outbox_faults: Mutex::default(),
            leases: config.leases.clone(),
        }
    }

    /// A call with the usual time limit.
    pub(crate) fn call(&self, operation: &'static str) -> Call {
        Call { operation, deadline: self.clock.instant() + self.settings.operation_timeout }
    }

    /// A call that must end when a lock does.
    pub(crate) fn call_until(&self, operation: &'static str, until_ms: u64) -> Call {
        let left = Duration::from_millis(until_ms.saturating_sub(self.clock.now_ms()));
        Call { operation, deadline: self.clock.instant() + left }
    }

    /// A call that may go on as long as a lease is held. One that is not held any more leaves no time.
    pub(crate) fn call_while_held<T>(
        &self,
        operation: &'static str,
        leases: &Leases<T>,
        secret: &str,
    ) -> Call {
        Call { operation, deadline: leases.end(secret).unwrap_or_else(|| self.clock.instant()) }
    }

    /// A call that gives up soon, so that one bad partition does not hold up all others.
    pub(crate) fn quick_call(&self, operation: &'static str) -> Call {
        self.quick_call_after(operation, 0)
    }

    /// A call that gives up later the more often it was tried in vain: a partition may be large and not bad.
    pub(crate) fn quick_call_after(&self, operation: &'static str, failures: u32) -> Call {
        let patience = QUICK.saturating_mul(1 << failures.min(8)).min(self.settings.operation_timeout);
        Call { operation, deadline: self.clock.instant() + patience }
    }

    /// Which slots the `number`th search looks at: those of this process, and every now and then all of them, because
    /// nobody may be left waiting for an owner that is stuck or cannot run the work.
    pub(crate) fn watch(&self, number: u64) -> Watch {
        match &self.leases {
            Some(leases) if !number.is_multiple_of(STEAL_EVERY) => {
                Watch::Own(leases.slots_for(&self.settings.owner))
            }
            _ => Watch::All,
        }
    }

    /// Whether this process may take work now: it is in its slots, or has waited long enough for its owner.
    pub(crate) fn is_ours(&self, instance: &str, visible_at: u64) -> bool {
        let Some(leases) = &self.leases else { return true };
        let waited = self.clock.now_ms().saturating_sub(visible_at);
        waited >= self.settings.steal_after_ms
            || Watch::Own(leases.slots_for(&self.settings.owner)).holds(instance)
    }

    /// The searches of one kind of worker.
    pub(crate) fn crew(&self, name: &str) -> Arc<Crew> {
        let mut crews = self.crews.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(crew) = crews.get(name) {
            return Arc::clone(crew);
        }
        let crew = Arc::new(Crew::new(Pace::new(self.settings.poll_min, self.settings.poll_max)));
        crews.insert(name.to_owned(), Arc::clone(&crew));
        crew
    }

    /// Tries again while the trouble is transient and there is time.
    pub(crate) async fn patiently<T, F, Fut>(&self, call: Call, mut attempt: F) -> Result<T, Fault>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        let mut pause = Backoff::default();
        loop {
            match attempt().await {
                Err(fault) if fault.is_transient() && pause.wait(call, &fault).await => {}
                outcome => return outcome,
            }
        }
    }

    /// Creates a document.
    pub(crate) async fn create(&self, call: Call, partition: &str, op: &Op) -> Result<String, Fault> {
        self.patiently(call, || self.store.write(call, partition, op)).await
    }

    /// Creates a document whose id nobody else uses: finding it there means that an earlier try arrived. The ETag is
    /// empty then.
    pub(crate) async fn create_own(&self, call: Call, partition: &str, op: &Op) -> Result<String, Fault> {
        match self.create(call, partition, op).await {
            Err(fault) if fault.trouble == Trouble::Exists => Ok(String::new()),
            outcome => outcome,
        }
    }

    /// Deletes a document; one that is not there is fine.
    pub(crate) async fn delete(&self, call: Call, partition: &str, id: &str) -> Result<(), Fault> {
        let op = Op::delete(id, None);
        match self.patiently(call, || self.store.write(call, partition, &op)).await {
            Ok(_) => Ok(()),
            Err(fault) if fault.trouble == Trouble::Missing => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Reads a document.
    pub(crate) async fn read(
        &self,
        call: Call,
        partition: &str,
        id: &str,
        known: Option<&str>,
    ) -> Result<Read, Fault> {
        self.patiently(call, || self.store.read(call, partition, id, known)).await
    }

    /// Reads a document of a known type.
    pub(crate) async fn read_as<T: serde::de::DeserializeOwned>(
        &self,
        call: Call,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<T>>, Fault> {
        match self.read(call, partition, id, None).await? {
            Read::Found { body, etag } => Ok(Some(Tagged { document: decode(&body)?, etag })),
            Read::NotModified | Read::Missing => Ok(None),
        }
    }

    /// Reads the head of an instance, whatever state it is in.
    pub(crate) async fn head(&self, call: Call, instance: &str) -> Result<Option<Tagged<Head>>, Fault> {
        self.read_as(call, instance, &ids::head(instance)).await
    }
}

/// Decodes a document, with an error that says which text failed.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        Fault::damaged(format!(
            "a stored document cannot be decoded as {}: {error}",
            std::any::type_name::<T>()
        ))
    })
}

/// Runs futures at the same time, so many at once, and returns their results in order.
pub(crate) async fn in_parallel<'a, T>(
    limit: usize,
    work: impl IntoIterator<Item = BoxFuture<'a, T>>,
) -> Vec<T> {
    let work: Vec<BoxFuture<'a, T>> = work.into_iter().collect();
    futures::stream::iter(work).buffered(limit).collect().await
}

/// How long to wait before the next try, if there is time for one. Towards the end tries come closer together, so that
/// what passes just in time is not missed; but none comes before the server wants it.
fn pause(next: Duration, asked: Option<Duration>, remaining: Duration) -> Option<Duration> {
    let pause = next.min(remaining / 2).max(PAUSE_MIN).max(asked.unwrap_or_default());
    Some(pause).filter(|pause| *pause < remaining)
}

/// Growing pauses between tries.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: PAUSE_MIN }
    }
}

impl Backoff {
    /// Waits, at least as long as the server asked. False when there is no time left to try again.
    pub(crate) async fn wait(&mut self, call: Call, fault: &Fault) -> bool {
        let Some(pause) = pause(self.pause, fault.retry_after, call.remaining()) else { return false };
        tracing::debug!(operation = call.operation, %fault, ?pause, "trying again");
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }
}

/// Locks this process holds, by the random part of their token.
#[derive(Debug)]
pub(crate) struct Leases<T> {
    held: Mutex<HashMap<String, (Arc<T>, Instant)>>,
}

impl<T> Default for Leases<T> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

impl<T> Leases<T> {
    pub(crate) fn get(&self, secret: &str) -> Option<Arc<T>> {
        self.lock().get(secret).map(|(lease, _)| Arc::clone(lease))
    }

    /// Keeps a lease; those that nobody came back for are dropped on the way.
    pub(crate) fn put(&self, secret: &str, lease: Arc<T>, ends: Instant) {
        let mut held = self.lock();
        if held.len() >= LEASES_SWEPT_FROM {
            let now = Instant::now();
            held.retain(|_, (_, ends)| *ends + FORGET_AFTER > now);
        }
        held.insert(secret.to_owned(), (lease, ends));
    }

    /// The lease ends later.
    pub(crate) fn extend(&self, secret: &str, ends: Instant) {
        if let Some((_, end)) = self.lock().get_mut(secret) {
            *end = ends;
        }
    }

    /// When a lease ends, as far as is known by now.
    fn end(&self, secret: &str) -> Option<Instant> {
        self.lock().get(secret).map(|(_, ends)| *ends)
    }

    pub(crate) fn remove(&self, secret: &str) {
        self.lock().remove(secret);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Arc<T>, Instant)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
/// One search in so many looks at the slots of others too.
const STEAL_EVERY: u64 = 8;
const QUICK: Duration = Duration::from_secs(3);
const LEASES_SWEPT_FROM: usize = 256;
const FORGET_AFTER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_go_on_until_the_time_is_over() {
        let ms = Duration::from_millis;
        for (next, asked, remaining, expected) in [
            (10, None, 5000, Some(10)),
            (1000, None, 5000, Some(1000)),
            (1000, None, 900, Some(450)),
            (1000, None, 12, Some(10)),
            (1000, None, 10, None),
            (10, Some(300), 5000, Some(300)),
            (1000, Some(300), 400, Some(300)),
            (1000, Some(300), 300, None),
        ] {
            let pause = pause(ms(next), asked.map(ms), ms(remaining));
            assert_eq!(pause, expected.map(ms), "{next} {asked:?} {remaining}");
        }
    }
}
