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
use crate::documents::{Head, Message, Tagged, WorkDocument, ids};
use crate::elders::Elders;
use crate::error::{Fault, Trouble};
use crate::finder::{Crew, Pace, Ready, Strays, TurnFinder, WorkFinder};
use crate::fleet::{Fleet, Hand, Standing};
use crate::layout::Layout;
use crate::lease::{Leases, Lockable, Patience};
use crate::looks::Looks;
use crate::orchestration::fetch::hint;
use crate::orchestration::lock::TurnContents;
use crate::outbox::OutboxFaultInjector;
use crate::session::Sessions;
use crate::slots;
use crate::store::{Call, Op, Read, Store};

/// The provider's inside.
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
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
    /// The looks at heads that are under way.
    pub(crate) looks: Looks<Option<Arc<Tagged<Head>>>>,
    pub(crate) sessions: Sessions,
    pub(crate) outbox_faults: Mutex<Option<OutboxFaultInjector>>,
    pub(crate) layout: Layout,
    pub(crate) elders: Elders,
    pub(crate) fleet: Fleet,
}

impl Drop for Core {
    fn drop(&mut self) {
        // Who has the time calls `shutdown` before; this does what it can.
        if let Some((leases, owner)) = self.fleet.parting()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Err(error) = leases.release_slots(&owner).await {
                    tracing::debug!(%error, "the slots of a provider that was dropped run out by themselves");
                }
            });
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
}

impl Core {
    pub(crate) fn new(store: Store, config: &CosmosDBProviderConfig) -> Self {
        let owner = if config.owner.is_empty() {
            uuid::Uuid::new_v4().simple().to_string()
        } else {
            config.owner.clone()
        };
        let store = Arc::new(store);
        Self {
            fleet: Fleet::new(&store, &owner, config),
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
            looks: Looks::default(),
            sessions: Sessions::default(),
            outbox_faults: Mutex::default(),
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

    /// The activities that this process could begin at once.
    pub(crate) fn ready_works(&self, now: u64) -> Ready {
        self.works.ready(now, |session| self.sessions.is_foreign(session, now))
    }

    /// Notes how much this process holds, or waits for, at this moment, and returns the most that it ever was: the runtime
    /// does not say how many dispatchers it has.
    pub(crate) fn note_capacity(&self) -> u64 {
        let held = self.turn_leases.len() + self.work_leases.len();
        self.fleet.note_capacity(held + self.turns.waiting() + self.works.waiting())
    }

    /// Whether this process may take what is in a slot since then.
    pub(crate) fn may_take(&self, hand: Hand, slot: u8, visible_at: u64, is_idle: bool) -> bool {
        self.fleet.standing(hand, slot, visible_at, is_idle) != Standing::Others
    }

    /// Tells of a message that this process has written: its own finder if the instance is this process's, else the fleet.
    /// An instance that begins may begin here if a dispatcher has nothing else to do; what belongs to one that has begun is
    /// left to its owner, who knows it. What is due later, as a timer is, nobody is told of: who wrote it is there in time,
    /// where the owner would find it with its next search. Only who runs no turns tells of it.
    pub(crate) fn tell_of_message(&self, message: &Message) {
        let hint = hint(message);
        let may_begin_here = message.begins_execution() && self.turns.is_waited_for();
        let is_later = hint.visible_at > self.clock.now_ms().saturating_add(RING_AHEAD_MS);
        let is_kept = may_begin_here || (is_later && self.fleet.serves().turns);
        if self.fleet.is_elsewhere(slots::of(&hint.instance)) && !is_kept {
            self.fleet.ring_message(&hint);
        } else {
            self.turns.hint(hint);
        }
    }

    /// Tells of an activity that this process has written: its own finder if it is for this process, the fleet if it is for
    /// another or if nobody here runs such activities. Whose it is was decided when it was written: two that both believe
    /// an activity to be theirs would both run it.
    pub(crate) fn tell_of_work(&self, work: Arc<WorkDocument>, etag: String) {
        let slot = slots::of(&work.instance_id);
        let is_elsewhere = work.dispatched_to().is_some_and(|slot| self.fleet.is_elsewhere(slot));
        let is_own = work.dispatched_to().is_some_and(|slot| self.fleet.is_ours_alone(slot));
        if is_elsewhere || !self.works.add(work, etag, is_own) {
            self.fleet.ring_work(slot);
        }
    }

    /// Everything is searched anew, at once: something may have come into this process's part of the container.
    pub(crate) fn search_now(&self) {
        self.turn_pace.begin_anew();
        self.turns.poke();
        self.search_for_work_now();
    }

    /// The same for activities.
    pub(crate) fn search_for_work_now(&self) {
        for crew in self.all_crews() {
            crew.pace.begin_anew();
        }
        self.works.poke();
    }

    fn all_crews(&self) -> Vec<Arc<Crew>> {
        self.crews.lock().unwrap_or_else(PoisonError::into_inner).values().map(Arc::clone).collect()
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
const QUICK: Duration = Duration::from_secs(3);
/// What is due within this time is rung for.
const RING_AHEAD_MS: u64 = 5000;

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
