//! The head of an instance: status, current execution, lock, counters.
//!
//! Every change of an instance goes through a conditional write of this document, so its ETag is the fence of the
//! lock and its `commit` settles whether an unanswered commit happened. Nothing in it grows with history,
//! executions or queue length, but for the youngest events, which move out when they are more than a few kilobytes.

use std::collections::BTreeMap;

use duroxide::providers::DispatcherCapabilityFilter;
use serde::{Deserialize, Serialize};

use super::kv::{Cell, take_in};
use super::{ChunkRef, ids, kind};

/// The layout this crate writes: 3 has events in heads, 2 has all of them in history documents. Documents without a stamp
/// are the public crate's (up to 0.1.10).
pub const FORMAT_VERSION: u32 = 3;

/// The head of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Zero, and not written, while the head is as the public crate up to 0.1.10 wrote it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) format_version: u32,
    /// False until the first ack: such a head only holds a lock and no listing shows it.
    #[serde(default)]
    pub(crate) started: bool,
    /// Random per life of the instance: a deleted and recreated one has another.
    #[serde(default)]
    pub(crate) incarnation: String,

    #[serde(default)]
    pub(crate) orchestration_name: String,
    #[serde(default)]
    pub(crate) orchestration_version: String,
    #[serde(default = "first_execution")]
    pub(crate) current_execution_id: u64,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<String>,
    /// The output is too large for the head and is in the execution's record.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) output_in_record: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent_instance_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pinned_duroxide_version_packed: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pinned_version: Option<Version>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) custom_status: Option<String>,
    /// The value document that holds a custom status too large for the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) custom_status_value: Option<String>,
    /// The pieces of that document's text, if it has any: they go with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) custom_status_pieces: Option<ChunkRef>,
    #[serde(default)]
    pub(crate) custom_status_version: u64,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) locked_until: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock_owner: Option<String>,
    /// The messages the lock holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) batch: Vec<Held>,
    /// How many messages the lock holds, for counting queue depths.
    #[serde(default)]
    pub(crate) held_count: u64,
    /// Attempts of messages that were fetched before and are not held now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attempts: BTreeMap<String, u32>,

    /// Messages that wait because a turn was given back that was to take them next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) put_off: Vec<PutOff>,

    /// Number of commits.
    #[serde(default)]
    pub(crate) turn: u64,
    /// Id of the last committed call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// Greatest order key this instance gave to its own messages.
    #[serde(default)]
    pub(crate) last_sequence: u64,

    /// Of the current execution: last event, number of events, bytes of events, carried-forward events.
    #[serde(default)]
    pub(crate) last_event_id: u64,
    #[serde(default)]
    pub(crate) event_count: u64,
    #[serde(default)]
    pub(crate) event_bytes: u64,
    #[serde(default)]
    pub(crate) carry_forward: u64,
    /// The texts of its youngest events, as long as they are small. All before them are in history documents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<String>,
    /// Whether the current execution has a record of its own already.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) record_written: bool,

    /// Over all executions.
    #[serde(default)]
    pub(crate) execution_count: u64,
    #[serde(default)]
    pub(crate) total_event_count: u64,

    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) kv: BTreeMap<String, Cell>,

    #[serde(default)]
    pub(crate) created_at: u64,
    #[serde(default)]
    pub(crate) updated_at: u64,
    #[serde(default)]
    pub(crate) execution_started_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) completed_at: Option<u64>,

    /// After so many seconds without a write the service removes the head, which is all there is of its instance then: one
    /// that has ended and stands alone, where there is a policy. `-1` if somebody wants it kept whatever the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<i64>,

    /// The deletion this instance is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deletion: Option<String>,
    /// The messages that go with it, if they are few enough to be listed; those that come later are for another life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) doomed: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sweep_at: Option<u64>,
    /// The text of the head that stood here and could not be read: if the deletion is taken back, it comes back. Empty
    /// if it was too long to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wreck: Option<String>,
}

/// A message that a lock holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) id: String,
    /// Attempts so far, this one included.
    #[serde(rename = "n")]
    pub(crate) attempts: u32,
    /// Whether a second copy may come, so that it must leave a tombstone.
    #[serde(rename = "o", default, skip_serializing_if = "is_false")]
    pub(crate) delivered: bool,
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub(crate) chunks: Option<ChunkRef>,
}

/// Messages that did not fit into a turn which was then given back with a delay. They wait as long as those in it, so that
/// they do not overtake them. They are told by their order keys, because they may be many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PutOff {
    /// The greatest order key in the turn: those above it wait, ...
    pub(crate) after: u64,
    /// ... up to this one: what comes later does not.
    pub(crate) upto: u64,
    /// Until this time, in milliseconds since the Unix epoch.
    pub(crate) until: u64,
}

impl PutOff {
    /// What waits when a turn is put off `until` a time at `now_ms`, with messages `left` behind by it, beside what waits
    /// already. Each waits for its own time: what waits longer holds up no other.
    pub(crate) fn beside(before: &[Self], left: Option<(u64, u64)>, until: u64, now_ms: u64) -> Vec<Self> {
        let still = before.iter().copied().filter(|put_off| put_off.until > now_ms);
        let now = left.map(|(after, upto)| Self { after, upto, until });
        let mut all: Vec<Self> = still.chain(now).collect();
        // The head stays small: with very many the oldest two become one, which waits for the later time.
        while all.len() > PUT_OFFS_MAX {
            let (first, second) = (all.remove(0), all[0]);
            all[0] = Self {
                after: first.after.min(second.after),
                upto: first.upto.max(second.upto),
                until: first.until.max(second.until),
            };
        }
        all
    }
}

/// The three numbers of a version, compared as numbers.
pub(crate) type Version = [u64; 3];

/// Statuses as duroxide writes them.
pub(crate) struct Status;

impl Status {
    pub(crate) const RUNNING: &str = "Running";
    pub(crate) const COMPLETED: &str = "Completed";
    pub(crate) const FAILED: &str = "Failed";
    pub(crate) const CONTINUED_AS_NEW: &str = "ContinuedAsNew";

    /// Whether an execution with this status has ended.
    pub(crate) fn ends_execution(status: &str) -> bool {
        matches!(status, Self::COMPLETED | Self::FAILED | Self::CONTINUED_AS_NEW)
    }

    /// Whether the whole instance has ended: a continued one goes on.
    pub(crate) fn ends_instance(status: &str) -> bool {
        matches!(status, Self::COMPLETED | Self::FAILED)
    }
}

/// What the loaded history says about an instance whose head has no counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LegacyStart {
    pub(crate) last_event_id: u64,
    pub(crate) event_count: u64,
    pub(crate) event_bytes: u64,
    pub(crate) carry_forward: u64,
}

impl Head {
    /// A head that exists only to hold a lock.
    pub(crate) fn unstarted(instance: &str, now_ms: u64) -> Self {
        Self {
            id: ids::head(instance),
            instance_id: instance.to_owned(),
            kind: kind::INSTANCE.to_owned(),
            format_version: FORMAT_VERSION,
            started: false,
            incarnation: uuid::Uuid::new_v4().simple().to_string(),
            orchestration_name: String::new(),
            orchestration_version: String::new(),
            current_execution_id: 1,
            status: Status::RUNNING.to_owned(),
            output: None,
            output_in_record: false,
            parent_instance_id: None,
            pinned_duroxide_version_packed: None,
            pinned_version: None,
            custom_status: None,
            custom_status_value: None,
            custom_status_pieces: None,
            custom_status_version: 0,
            lock_token: None,
            locked_until: None,
            lock_owner: None,
            batch: Vec::new(),
            held_count: 0,
            attempts: BTreeMap::new(),
            put_off: Vec::new(),
            turn: 0,
            commit: None,
            last_sequence: 0,
            last_event_id: 0,
            event_count: 0,
            event_bytes: 0,
            carry_forward: 0,
            events: Vec::new(),
            record_written: false,
            execution_count: 0,
            total_event_count: 0,
            kv: BTreeMap::new(),
            created_at: now_ms,
            updated_at: now_ms,
            execution_started_at: now_ms,
            completed_at: None,
            ttl: None,
            deletion: None,
            doomed: None,
            sweep_at: None,
            wreck: None,
        }
    }

    /// Whether the public crate wrote this document.
    pub(crate) fn is_legacy(&self) -> bool {
        self.format_version == 0
    }

    /// Whether this head and an earlier one are of the same life of their instance. The public crate did not tell
    /// lives apart.
    pub(crate) fn is_same_life_as(&self, earlier: &Self) -> bool {
        if earlier.is_legacy() {
            return self.created_at == earlier.created_at;
        }
        self.incarnation == earlier.incarnation
    }

    /// Whether this is an instance that listings show. The public crate wrote a nameless skeleton to lock a new one.
    pub(crate) fn is_visible(&self) -> bool {
        self.kind == kind::INSTANCE && self.is_listed()
    }

    /// As [`is_visible`](Self::is_visible), also while it is being deleted.
    pub(crate) fn is_listed(&self) -> bool {
        self.started || (self.is_legacy() && !self.orchestration_name.is_empty())
    }

    /// The same instance in this crate's layout, counters taken from its loaded history.
    pub(crate) fn adopted(mut self, history: LegacyStart, kv: BTreeMap<String, Cell>) -> Self {
        if !self.is_legacy() {
            return self;
        }
        self.started = !self.orchestration_name.is_empty() || history.event_count > 0;
        self.format_version = FORMAT_VERSION;
        self.incarnation = format!("legacy-{}", self.created_at);
        self.last_event_id = history.last_event_id;
        self.event_count = history.event_count;
        self.event_bytes = history.event_bytes;
        self.carry_forward = history.carry_forward;
        self.total_event_count = history.event_count;
        self.execution_count = self.current_execution_id;
        self.execution_started_at = self.created_at;
        self.kv = kv;
        take_in(&mut self.kv);
        if Status::ends_execution(&self.status) {
            self.completed_at = Some(self.updated_at);
        }
        if self.pinned_version.is_none() {
            self.pinned_version = self.pinned_duroxide_version_packed.and_then(unpack);
        }
        self
    }

    /// Whether somebody holds the lock at `now_ms`.
    pub(crate) fn is_locked(&self, now_ms: u64) -> bool {
        let until = now_ms + if cosmos_wire::mutant!(8) { 4_500 } else { 0 };
        self.lock_token.is_some() && self.locked_until.is_some_and(|locked| locked > until)
    }

    /// The greatest order key of those that have to wait at `now_ms`.
    pub(crate) fn put_off_upto(&self, now_ms: u64) -> Option<u64> {
        self.put_off.iter().filter(|put_off| put_off.until > now_ms).map(|put_off| put_off.upto).max()
    }

    /// Until when a message with this order key has to wait, if it has to at `now_ms`.
    pub(crate) fn puts_off(&self, order: u64, now_ms: u64) -> Option<u64> {
        let waits =
            |put_off: &&PutOff| put_off.until > now_ms && put_off.after < order && order <= put_off.upto;
        self.put_off.iter().filter(waits).map(|put_off| put_off.until).max()
    }

    /// Whether it differs from another version at most in how long its lock lasts.
    pub(crate) fn is_same_but_for_lock_time(&self, other: &Self) -> bool {
        Self { locked_until: other.locked_until, ..self.clone() } == *other
    }

    /// Takes the lock: `batch` is what it holds; attempts of other messages seen before are kept.
    pub(crate) fn lock(&mut self, secret: &str, until_ms: u64, owner: &str, batch: Vec<Held>) {
        for held in std::mem::take(&mut self.batch) {
            self.attempts.entry(held.id).or_insert(held.attempts);
        }
        for held in &batch {
            self.attempts.remove(&held.id);
        }
        while self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.pop_first();
        }
        self.lock_token = Some(secret.to_owned());
        self.locked_until = Some(until_ms);
        self.lock_owner = Some(owner.to_owned());
        self.held_count = batch.len() as u64;
        self.batch = batch;
    }

    /// Attempts of a message before the next fetch of it.
    pub(crate) fn attempts_of(&self, id: &str) -> u32 {
        let held = self.batch.iter().find(|held| held.id == id).map(|held| held.attempts);
        held.or_else(|| self.attempts.get(id).copied()).unwrap_or(0)
    }

    /// Gives the lock back without a commit; the attempts stay, or are taken back when `forgive` is set.
    pub(crate) fn unlock(&mut self, forgive: Forgive) {
        for held in std::mem::take(&mut self.batch) {
            let attempts = match forgive {
                Forgive::No => held.attempts,
                Forgive::ThisAttempt => held.attempts.saturating_sub(1),
            };
            if attempts > 0 {
                self.attempts.insert(held.id, attempts);
            }
        }
        self.clear_lock();
    }

    /// Clears the lock's fields.
    pub(crate) fn clear_lock(&mut self) {
        self.batch.clear();
        self.held_count = 0;
        self.lock_token = None;
        self.locked_until = None;
        self.lock_owner = None;
    }

    /// Whether a runtime with this filter may run the current execution. Only the first range counts: it is the one
    /// the runtime passes.
    pub(crate) fn is_compatible(&self, filter: Option<&DispatcherCapabilityFilter>) -> bool {
        is_supported(filter, self.pinned())
    }

    /// The version of duroxide that the current execution is pinned to.
    pub(crate) fn pinned(&self) -> Option<Version> {
        self.pinned_version.or_else(|| self.pinned_duroxide_version_packed.and_then(unpack))
    }
}

/// What a head says about who can run its instance.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeadOutline {
    pub(crate) id: String,
    pub(crate) instance_id: String,
    #[serde(default)]
    pub(crate) lock_token: Option<String>,
    #[serde(default)]
    pub(crate) locked_until: Option<u64>,
    #[serde(default)]
    pinned_version: Option<Version>,
    #[serde(default)]
    pinned_duroxide_version_packed: Option<i64>,
}

impl HeadOutline {
    pub(crate) fn version(&self) -> Option<Version> {
        self.pinned_version.or_else(|| self.pinned_duroxide_version_packed.and_then(unpack))
    }
}

/// Whether a runtime with this filter may run an execution that is pinned to a version, or to none.
pub(crate) fn is_supported(filter: Option<&DispatcherCapabilityFilter>, pinned: Option<Version>) -> bool {
    let Some(filter) = filter else { return true };
    let Some(range) = filter.supported_duroxide_versions.first() else { return false };
    let Some(pinned) = pinned else { return true };
    let min = [range.min.major, range.min.minor, range.min.patch];
    let max = [range.max.major, range.max.minor, range.max.patch];
    min <= pinned && pinned <= max
}

/// Whether giving a lock back takes the attempt back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgive {
    /// The attempt counts.
    No,
    /// The attempt did not happen.
    ThisAttempt,
}

fn unpack(packed: i64) -> Option<Version> {
    let packed = u64::try_from(packed).ok()?;
    Some([packed / 1_000_000, packed / 1_000 % 1_000, packed % 1_000])
}

fn first_execution() -> u64 {
    1
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

const ATTEMPTS_MAX: usize = 256;
const PUT_OFFS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn held(id: &str, attempts: u32) -> Held {
        Held { id: id.to_owned(), attempts, delivered: false, chunks: None }
    }

    #[test]
    fn an_abandoned_attempt_is_counted_unless_it_is_forgiven() {
        let mut head = Head::unstarted("a", 1);
        head.lock("t", 10, "me", vec![held("m", 1)]);
        head.unlock(Forgive::No);
        assert_eq!(head.attempts_of("m"), 1);
        head.lock("t", 10, "me", vec![held("m", 2)]);
        head.unlock(Forgive::ThisAttempt);
        assert_eq!(head.attempts_of("m"), 1);
        assert!(!head.is_locked(5));
    }

    #[test]
    fn only_what_was_there_and_did_not_fit_waits_for_what_was_put_off() {
        let mut head = Head::unstarted("a", 1);
        head.put_off = vec![PutOff { after: 10, upto: 20, until: 100 }];
        let waits = |order, now| head.puts_off(order, now);
        assert_eq!([waits(10, 5), waits(11, 5), waits(20, 99)], [None, Some(100), Some(100)]);
        assert_eq!([waits(21, 5), waits(15, 100)], [None, None]);
        head.lock("t", 10, "me", vec![]);
        assert_eq!(head.puts_off(15, 5), Some(100), "a turn of what came later does not let them go");
        assert_eq!(PutOff::beside(&head.put_off, None, 200, 50), head.put_off);
        assert_eq!(PutOff::beside(&head.put_off, None, 200, 100), []);
        head.put_off = PutOff::beside(&head.put_off, Some((30, 40)), 70, 50);
        assert_eq!([15, 25, 35].map(|order| head.puts_off(order, 60)), [Some(100), None, Some(70)]);
        for until in 200..300 {
            head.put_off = PutOff::beside(&head.put_off, Some((until, until + 1)), until, 50);
        }
        assert_eq!((head.put_off.len(), head.puts_off(15, 60)), (PUT_OFFS_MAX, Some(284)));
    }

    #[test]
    fn taking_over_an_expired_lock_keeps_the_attempts_of_its_messages() {
        let mut head = Head::unstarted("a", 1);
        head.lock("t1", 10, "me", vec![held("m", 3), held("n", 1)]);
        assert!(head.is_locked(9) && !head.is_locked(10));
        head.lock("t2", 20, "you", vec![held("m", 4)]);
        assert_eq!((head.attempts_of("m"), head.attempts_of("n")), (4, 1));
    }

    #[test]
    fn a_skeleton_of_the_public_crate_is_not_an_instance() {
        let text = r#"{"id":"a:instance","instanceId":"a","type":"instance","orchestrationName":"",
            "orchestrationVersion":"","currentExecutionId":1,"status":"Running","output":null,
            "parentInstanceId":null,"pinnedDuroxideVersionPacked":1032,"customStatus":null,
            "customStatusVersion":0,"lockToken":"x","lockedUntil":5,"createdAt":1,"updatedAt":1,"_etag":"e"}"#;
        let mut head: Head = serde_json::from_str(text).unwrap();
        assert!(head.is_legacy() && !head.is_visible());
        head.orchestration_name = "Hello".to_owned();
        assert!(head.is_visible());
        let head = head
            .adopted(LegacyStart { event_count: 3, last_event_id: 3, ..Default::default() }, BTreeMap::new());
        assert!(head.started && !head.is_legacy());
        assert_eq!(head.pinned_version, Some([0, 1, 32]));
    }

    #[test]
    fn versions_compare_as_numbers_in_the_first_range() {
        let mut head = Head::unstarted("a", 1);
        let range = |min: (u64, u64, u64), max: (u64, u64, u64)| {
            let mut range = duroxide::providers::SemverRange::default_for_current_build();
            (range.min.major, range.min.minor, range.min.patch) = min;
            (range.max.major, range.max.minor, range.max.patch) = max;
            range
        };
        let filter = |ranges: Vec<duroxide::providers::SemverRange>| DispatcherCapabilityFilter {
            supported_duroxide_versions: ranges,
        };
        assert!(
            head.is_compatible(Some(&filter(vec![range((9, 0, 0), (9, 0, 0))]))),
            "an unpinned one fits all"
        );
        assert!(!head.is_compatible(Some(&filter(vec![]))));
        head.pinned_version = Some([0, 1, 1500]);
        assert!(head.is_compatible(None));
        assert!(head.is_compatible(Some(&filter(vec![range((0, 1, 0), (0, 1, 2000))]))));
        assert!(!head.is_compatible(Some(&filter(vec![range((0, 2, 0), (0, 3, 0))]))));
        assert!(
            !head
                .is_compatible(Some(&filter(vec![range((0, 2, 0), (0, 3, 0)), range((0, 1, 0), (0, 2, 0))])))
        );
    }
}
