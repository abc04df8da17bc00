//! What all operations share: the store, the clock, the finders, the leases and the caches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::cache::Cache;
use crate::claims::UnsettledClaims;
use crate::clock::{Clock, millis};
use crate::codec::Seal;
use crate::config::CosmosDBProviderConfig;
use crate::documents::{Head, Message, MessageHint, Tagged, WorkDocument};
use crate::elders::Elders;
use crate::finder::{Crew, Pace, Ready, TurnFinder, WorkFinder};
use crate::fleet::{Fleet, Hand, Standing};
use crate::habits::Habits;
use crate::layout::{Layout, Stamp};
use crate::lease::{Leases, TurnContents, WorkContents};
use crate::looks::Looks;
use crate::outbox_faults::OutboxFaultInjector;
use crate::session::Sessions;
use crate::slots;
use crate::staging::Staging;
use crate::store::{Store, Strays};
use crate::telemetry::Telemetry;

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
    pub(crate) work_leases: Leases<WorkDocument, WorkContents>,
    /// Which activities end quickly here.
    pub(crate) habits: Habits,
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
    /// What payloads are sealed with, at the edge: nothing behind it opens them.
    pub(crate) seal: Seal,
    pub(crate) telemetry: Telemetry,
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
    pub(crate) fn new(store: Store, config: &CosmosDBProviderConfig, stamp: Option<&Stamp>) -> Self {
        let owner = if config.owner.is_empty() {
            uuid::Uuid::new_v4().simple().to_string()
        } else {
            config.owner.clone()
        };
        let store = Arc::new(store);
        // What has not happened yet is zero for those who watch, and not unknown.
        for name in COUNTED_FROM_ZERO {
            metrics::counter!(name).increment(0);
        }
        Self {
            fleet: Fleet::new(&store, &owner, config),
            elders: Elders::since(store.clock().now_ms()),
            layout: Layout::new(config.retention.as_ref(), stamp),
            clock: Arc::clone(store.clock()),
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
            habits: Habits::default(),
            claims: UnsettledClaims::default(),
            cache: Cache::new(config.cache_bytes_max),
            looks: Looks::default(),
            sessions: Sessions::default(),
            outbox_faults: Mutex::default(),
            seal: Seal::new(config.codec.clone(), config.shows_sealed),
            telemetry: Telemetry::default(),
        }
    }

    /// What publishing a staged commit needs.
    pub(crate) fn staging(&self) -> Staging<'_> {
        Staging { store: &self.store, age_threshold_ms: self.settings.age_threshold_ms, outlet: self }
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

    /// Whether this process holds a lock that has not ended.
    pub(crate) fn holds_locks(&self) -> bool {
        let now = self.clock.now_ms();
        self.turn_leases.has_until(now) || self.work_leases.has_until(now)
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
        let hint = MessageHint::from(message);
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
}

const COUNTED_FROM_ZERO: [&str; 5] = [
    "duroxide_cdb_activities_total",
    "duroxide_cdb_retention_deleted_total",
    "duroxide_cdb_throttled_total",
    "duroxide_cdb_turns_total",
    "duroxide_cdb_unreadable_payloads_total",
];
/// What is due within this time is rung for.
const RING_AHEAD_MS: u64 = 5000;
