//! Faults by rule: which requests are struck, and by what.
//!
//! A rule matches requests by operation, container, partition key and region, may let some pass first, and strikes
//! the next ones with its [`Verdict`]. Rules are judged in the order they were added; the first that strikes wins.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::operation::Operation;

/// What happens to a request that a rule strikes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Verdict {
    /// Answers with this status; the engine does not see the request.
    #[serde(rename_all = "camelCase")]
    Status {
        /// HTTP status.
        code: u16,
        /// `x-ms-substatus`; 0 leaves the header out.
        #[serde(default)]
        sub_status: u32,
        /// `x-ms-retry-after-ms`.
        #[serde(
            default,
            rename = "retryAfterMs",
            with = "optional_millis",
            skip_serializing_if = "Option::is_none"
        )]
        retry_after: Option<Duration>,
    },
    /// Waits, then serves the request.
    Delay {
        /// How long.
        #[serde(rename = "delayMs", with = "millis")]
        duration: Duration,
    },
    /// Holds the request until the client goes away or the rule is removed; then serves it.
    Hang,
    /// Closes the connection (HTTP/1.1) or resets the stream (HTTP/2) before the engine acts.
    ResetBefore,
    /// Lets the engine commit, then closes the connection or resets the stream without an answer.
    ResetAfterCommit,
    /// Lets the engine commit, then holds the answer: so long, or until the rule is removed.
    DelayAfterCommit {
        /// How long.
        #[serde(rename = "delayMs", with = "millis")]
        duration: Duration,
    },
}

/// Which requests are struck, and by what. Absent fields match everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultRule {
    /// Only this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Only this container, as the requests name it: `dbs/{db}/colls/{container}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Only this partition key: a JSON array of its components, or the one component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_key: Option<Value>,
    /// Only requests to this region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Matching requests to let pass first.
    #[serde(default)]
    pub skip: u64,
    /// Matching requests to strike after those; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Chance, from 0 to 1, that a request which would be struck is; absent means always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Seed of the dice behind `probability`.
    #[serde(default)]
    pub seed: u64,
    /// What happens.
    pub verdict: Verdict,
}

impl FaultRule {
    /// A rule that strikes every request.
    pub fn new(verdict: Verdict) -> Self {
        Self {
            operation: None,
            container: None,
            partition_key: None,
            region: None,
            skip: 0,
            count: None,
            probability: None,
            seed: 0,
            verdict,
        }
    }

    /// A rule that answers with a status.
    pub fn status(code: u16, sub_status: u32) -> Self {
        Self::new(Verdict::Status { code, sub_status, retry_after: None })
    }

    /// Only this operation.
    #[must_use]
    pub fn on(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Only this container, by its link `dbs/{db}/colls/{container}`.
    #[must_use]
    pub fn in_container(mut self, link: impl Into<String>) -> Self {
        self.container = Some(link.into());
        self
    }

    /// Only this partition key: an array of components, or the one component.
    #[must_use]
    pub fn for_key(mut self, key: impl Into<Value>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Only the `n`th matching request, counted from 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.skip = n.saturating_sub(1);
        self.count = Some(1);
        self
    }

    /// Only the first `count` matching requests.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Each with this chance, by dice seeded with `seed`.
    #[must_use]
    pub fn with_probability(mut self, probability: f64, seed: u64) -> Self {
        self.probability = Some(probability);
        self.seed = seed;
        self
    }

    /// Says what is wrong with a rule that can never do what it says.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if let Some(p) = self.probability
            && !(0.0..=1.0).contains(&p)
        {
            return Err(format!("probability must be between 0 and 1, not {p}"));
        }
        if let Verdict::Status { code, .. } = self.verdict
            && !(200..=599).contains(&code)
        {
            return Err(format!("verdict.code must be an HTTP status between 200 and 599, not {code}"));
        }
        Ok(())
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        self.operation.is_none_or(|operation| operation == subject.operation)
            && self.container.as_deref().is_none_or(|link| subject.container == Some(link))
            && self.region.as_deref().is_none_or(|region| region == subject.region)
            && self.partition_key.as_ref().is_none_or(|key| same_key(key, subject.partition_key))
    }
}

fn same_key(wanted: &Value, header: Option<&str>) -> bool {
    let Some(Ok(Value::Array(components))) = header.map(serde_json::from_str) else { return false };
    match wanted {
        Value::Array(wanted) => *wanted == components,
        scalar => components.len() == 1 && components[0] == *scalar,
    }
}

/// A request, as rules see it.
pub(crate) struct Subject<'a> {
    pub(crate) operation: Operation,
    /// `dbs/{db}/colls/{container}`.
    pub(crate) container: Option<&'a str>,
    /// The text of the partition key header.
    pub(crate) partition_key: Option<&'a str>,
    pub(crate) region: &'a str,
}

/// A verdict on one request.
#[derive(Debug)]
pub(crate) struct Strike {
    pub(crate) verdict: Verdict,
    removal: watch::Receiver<()>,
}

impl Strike {
    /// Waits until the rule is gone.
    pub(crate) async fn removed(&mut self) {
        while self.removal.changed().await.is_ok() {}
    }
}

/// The rules in force. Cheap when there are none.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    armed: AtomicUsize,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    last_id: u64,
    rules: Vec<Armed>,
}

#[derive(Debug)]
struct Armed {
    id: u64,
    rule: FaultRule,
    matched: u64,
    struck: u64,
    dice: u64,
    /// Dropped with the rule, which is what [`Strike::removed`] waits for.
    alive: watch::Sender<()>,
}

/// A rule in force and what it has done so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultState {
    /// Names the rule on the management port.
    pub id: u64,
    /// Requests that matched.
    pub matched: u64,
    /// Requests that were struck.
    pub struck: u64,
    /// The rule.
    pub rule: FaultRule,
}

impl Faults {
    /// Puts a rule in force until the guard is dropped.
    pub fn add(&self, rule: FaultRule) -> FaultGuard {
        FaultGuard { faults: self.clone(), id: self.install(rule) }
    }

    /// Puts a rule in force until it is removed by its number.
    pub fn install(&self, rule: FaultRule) -> u64 {
        let mut registry = self.registry();
        registry.last_id += 1;
        let id = registry.last_id;
        let dice = rule.seed ^ 0x9E37_79B9_7F4A_7C15;
        registry.rules.push(Armed { id, rule, matched: 0, struck: 0, dice, alive: watch::Sender::new(()) });
        self.inner.armed.store(registry.rules.len(), Ordering::Release);
        id
    }

    /// Removes a rule; false if there is none of that number. Requests it holds go on.
    pub fn remove(&self, id: u64) -> bool {
        self.retain(|armed| armed.id != id) > 0
    }

    /// Removes every rule.
    pub fn clear(&self) {
        self.retain(|_| false);
    }

    /// The rules in force, oldest first.
    pub fn list(&self) -> Vec<FaultState> {
        self.registry().rules.iter().map(Armed::state).collect()
    }

    fn retain(&self, keep: impl Fn(&Armed) -> bool) -> usize {
        let mut registry = self.registry();
        let before = registry.rules.len();
        registry.rules.retain(keep);
        self.inner.armed.store(registry.rules.len(), Ordering::Release);
        before - registry.rules.len()
    }

    /// The verdict on a request, if any rule strikes it.
    pub(crate) fn judge(&self, subject: &Subject<'_>) -> Option<Strike> {
        if self.inner.armed.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.registry().rules.iter_mut().find_map(|armed| armed.judge(subject))
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Armed {
    fn judge(&mut self, subject: &Subject<'_>) -> Option<Strike> {
        if !self.rule.matches(subject) {
            return None;
        }
        self.matched += 1;
        if self.matched <= self.rule.skip || self.rule.count.is_some_and(|count| self.struck >= count) {
            return None;
        }
        if self.rule.probability.is_some_and(|chance| self.roll() >= chance) {
            return None;
        }
        self.struck += 1;
        Some(Strike { verdict: self.rule.verdict.clone(), removal: self.alive.subscribe() })
    }

    /// The next number of a splitmix64 sequence, as a fraction of one.
    fn roll(&mut self) -> f64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn state(&self) -> FaultState {
        FaultState { id: self.id, matched: self.matched, struck: self.struck, rule: self.rule.clone() }
    }
}

/// Keeps a rule in force; dropping it removes the rule and releases the requests it holds.
#[derive(Debug)]
#[must_use = "the rule is removed when the guard is dropped"]
pub struct FaultGuard {
    faults: Faults,
    id: u64,
}

impl FaultGuard {
    /// How many requests the rule has struck.
    pub fn struck(&self) -> u64 {
        self.state().map_or(0, |state| state.struck)
    }

    /// How many requests the rule has matched, struck or not.
    pub fn matched(&self) -> u64 {
        self.state().map_or(0, |state| state.matched)
    }

    fn state(&self) -> Option<FaultState> {
        self.faults.registry().rules.iter().find(|armed| armed.id == self.id).map(Armed::state)
    }
}

impl Drop for FaultGuard {
    fn drop(&mut self) {
        self.faults.remove(self.id);
    }
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        u64::deserialize(input).map(Duration::from_millis)
    }
}

mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the shape serde's `with` calls")]
    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, out: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::millis::serialize(value, out),
            None => out.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(input)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(container: &'a str, key: &'a str) -> Subject<'a> {
        Subject {
            operation: Operation::ReadItem,
            container: Some(container),
            partition_key: Some(key),
            region: "Local",
        }
    }

    #[test]
    fn the_nth_match_is_struck_and_no_other() {
        let faults = Faults::default();
        let guard = faults.add(FaultRule::status(503, 0).on(Operation::ReadItem).nth(3));
        let struck: Vec<bool> = (0..5).map(|_| faults.judge(&read("c", "[1]")).is_some()).collect();
        assert_eq!(struck, [false, false, true, false, false]);
        assert_eq!((guard.matched(), guard.struck()), (5, 1));
    }

    #[test]
    fn a_rule_matches_its_container_and_key_only() {
        let faults = Faults::default();
        let _guard = faults.add(FaultRule::status(429, 3200).in_container("dbs/d/colls/c").for_key("a"));
        assert!(faults.judge(&read("dbs/d/colls/c", r#"["a"]"#)).is_some());
        assert!(faults.judge(&read("dbs/d/colls/c", r#"[ "a" ]"#)).is_some());
        assert!(faults.judge(&read("dbs/d/colls/c", r#"["b"]"#)).is_none());
        assert!(faults.judge(&read("dbs/d/colls/x", r#"["a"]"#)).is_none());
    }

    #[test]
    fn dropping_the_guard_removes_the_rule() {
        let faults = Faults::default();
        drop(faults.add(FaultRule::status(500, 0)));
        assert!(faults.judge(&read("c", "[1]")).is_none());
        assert!(faults.list().is_empty());
    }

    #[test]
    fn the_same_seed_strikes_the_same_requests() {
        let run = || {
            let faults = Faults::default();
            let _guard = faults.add(FaultRule::status(500, 0).with_probability(0.3, 7));
            (0..200).map(|_| faults.judge(&read("c", "[1]")).is_some()).collect::<Vec<_>>()
        };
        let first = run();
        assert_eq!(first, run());
        let hits = first.iter().filter(|hit| **hit).count();
        assert!((30..90).contains(&hits), "{hits} of 200 at a chance of 0.3");
    }

    #[test]
    fn rules_read_and_write_as_json() {
        let text = r#"{"operation":"createItem","container":"dbs/d/colls/c","skip":2,"count":1,"verdict":{"kind":"status","code":429,"subStatus":3200,"retryAfterMs":25}}"#;
        let rule: FaultRule = serde_json::from_str(text).unwrap();
        assert_eq!(
            rule.verdict,
            Verdict::Status { code: 429, sub_status: 3200, retry_after: Some(Duration::from_millis(25)) }
        );
        let again: FaultRule = serde_json::from_value(serde_json::to_value(&rule).unwrap()).unwrap();
        assert_eq!(again, rule);
        assert!(serde_json::from_str::<FaultRule>(r#"{"verdict":{"kind":"hang"},"operatoin":"x"}"#).is_err());
        let late: FaultRule =
            serde_json::from_str(r#"{"verdict":{"kind":"delayAfterCommit","delayMs":9}}"#).unwrap();
        assert_eq!(late.verdict, Verdict::DelayAfterCommit { duration: Duration::from_millis(9) });
    }

    #[tokio::test]
    async fn a_held_request_is_released_when_its_rule_goes() {
        let faults = Faults::default();
        let guard = faults.add(FaultRule::new(Verdict::Hang));
        let mut strike = faults.judge(&read("c", "[1]")).unwrap();
        let waiting = tokio::spawn(async move { strike.removed().await });
        drop(guard);
        waiting.await.unwrap();
    }
}
