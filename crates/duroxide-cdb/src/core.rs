//! What all operations share: the store, the clock, the finders, the leases and the caches.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::StreamExt as _;

use crate::cache::Cache;
use crate::claims::UnsettledClaims;
use crate::clock::{Clock, millis, millis_until};
use crate::config::CosmosDBProviderConfig;
use crate::documents::{Head, Tagged, WorkDocument, ids};
use crate::elders::Elders;
use crate::error::{Fault, Trouble};
use crate::finder::{Crew, Pace, Strays, TurnFinder, WorkFinder};
use crate::layout::Layout;
use crate::lease::{Leases, Lockable, Patience};
use crate::orchestration::lock::TurnContents;
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
    pub(crate) turn_leases: Leases<Head, TurnContents>,
    pub(crate) work_leases: Leases<WorkDocument>,
    /// Claims of this process that may have been applied without its knowing.
    pub(crate) claims: UnsettledClaims,
    pub(crate) cache: Cache,
    pub(crate) sessions: Sessions,
    pub(crate) outbox_faults: Mutex<Option<OutboxFaultInjector>>,
    pub(crate) layout: Layout,
    pub(crate) elders: Elders,
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
    pub(crate) early_mail_ms: u64,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    /// How long work is left to those who look after its slot.
    pub(crate) steal_after_ms: u64,
}

impl Core {
    pub(crate) fn new(store: Store, config: &CosmosDBProviderConfig) -> Self {
        let owner = if config.owner.is_empty() {
            uuid::Uuid::new_v4().simple().to_string()
        } else {
            config.owner.clone()
        };
        Self {
            elders: Elders::since(store.clock().now_ms()),
            layout: Layout::default(),
            clock: store.clock(),
            store,
            settings: Settings {
                owner,
                operation_timeout: config.operation_timeout,
                tombstone_ttl_seconds: config.tombstone_ttl.as_secs(),
                age_threshold_ms: millis(config.reconciler_age_threshold),
                early_mail_ms: millis(config.early_mail_retention),
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
            claims: UnsettledClaims::default(),
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
        Call { operation, deadline: self.clock.instant() + millis_until(until_ms, self.clock.now_ms()) }
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

    /// As [`read_as`](Self::read_as), where the document is written: no other process has changed it before this moment
    /// without being seen.
    pub(crate) async fn read_latest_as<T: serde::de::DeserializeOwned>(
        &self,
        call: Call,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<T>>, Fault> {
        match self.patiently(call, || self.store.read_latest(call, partition, id)).await? {
            Read::Found { body, etag } => Ok(Some(Tagged { document: decode(&body)?, etag })),
            Read::NotModified | Read::Missing => Ok(None),
        }
    }

    /// Reads the head of an instance, whatever state it is in.
    pub(crate) async fn head(&self, call: Call, instance: &str) -> Result<Option<Tagged<Head>>, Fault> {
        self.read_as(call, instance, &ids::head(instance)).await
    }

    /// Reads a document that can be locked. A tombstone in its place is no such document.
    pub(crate) async fn read_lockable<D: Lockable>(
        &self,
        patience: impl Into<Patience<'_>>,
        partition: &str,
        id: &str,
    ) -> Result<Option<Tagged<D>>, Fault> {
        #[derive(serde::Deserialize)]
        struct Envelope {
            #[serde(rename = "type")]
            kind: String,
        }
        let patience = patience.into();
        match patience.retrying(|call| self.store.read(call, partition, id, None)).await? {
            Read::Found { body, etag } if D::TYPES.contains(&decode::<Envelope>(&body)?.kind.as_str()) => {
                Ok(Some(Tagged { document: decode(&body)?, etag }))
            }
            Read::Found { .. } | Read::NotModified | Read::Missing => Ok(None),
        }
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

/// How long to wait before the next try of what must not be given up before its time is over: as long as the server asked,
/// but never so long that there is no time left for another try.
fn pause_within(next: Duration, asked: Option<Duration>, remaining: Duration) -> Option<Duration> {
    let wanted = next.max(asked.unwrap_or_default());
    let pause = wanted.min(remaining / 2).max(PAUSE_MIN).min(remaining);
    Some(pause).filter(|pause| !pause.is_zero())
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

    /// Waits at most for half of the time that is left, even if the server asked for more. False when none is left.
    pub(crate) async fn wait_within(&mut self, call: Call, fault: &Fault) -> bool {
        let Some(pause) = pause_within(self.pause, fault.retry_after, call.remaining()) else { return false };
        tracing::debug!(operation = call.operation, %fault, ?pause, "trying again while the lock is held");
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
/// One search in so many looks at the slots of others too.
const STEAL_EVERY: u64 = 8;
const QUICK: Duration = Duration::from_secs(3);

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

    #[test]
    fn who_must_not_give_up_tries_until_no_time_is_left() {
        let ms = Duration::from_millis;
        for (next, asked, remaining, expected) in [
            (10, None, 5000, Some(10)),
            (10, Some(300), 5000, Some(300)),
            (10, Some(6000), 5000, Some(2500)),
            (1000, None, 400, Some(200)),
            (10, Some(6000), 8, Some(8)),
            (10, None, 0, None),
        ] {
            let pause = pause_within(ms(next), asked.map(ms), ms(remaining));
            assert_eq!(pause, expected.map(ms), "{next} {asked:?} {remaining}");
        }
    }
}
