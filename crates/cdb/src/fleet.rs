//! The fleet as it is stored: who runs work on this container, and who looks after which slots.
//!
//! None of it is needed for a commit to be right. If it is missing or wrong, members write it again and work goes on; but
//! a person who wonders why nothing moves wants to know.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::documents::Documents;
use crate::model::{kind, legible, text_of, type_of};
use crate::output::{plural, span};

/// The partition that holds it.
pub(crate) const LEASES: &str = "__leases__";
/// The whole of it.
const SLOTS: usize = 256;
/// No lease is longer.
const LEASE_MAX_MS: u64 = 2 * 3_600_000;
/// A member beats for the second time after some seconds.
const NEW_MS: u64 = 1_000;

/// Members and the table of slots, as of one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fleet {
    pub(crate) members: Vec<Member>,
    pub(crate) shares: Vec<Share>,
    /// The service's time when it was read.
    pub(crate) now_ms: u64,
}

/// A process that runs work, as it last told of itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) owner: String,
    joined_at: u64,
    beat_at: u64,
    lease_until: u64,
    running: u64,
    capacity: u64,
    backlog: u64,
    passed: u64,
    serves_turns: bool,
    serves_work: bool,
    serves_any_tag: bool,
    serves_untagged: bool,
    serves_tags: Vec<String>,
    build: String,
    host: String,
    process: u64,
}

/// Neighbouring slots in the same hands.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Share {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) owner: String,
    /// Who waits for them.
    pub(crate) next: Option<String>,
}

/// Whether a member is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Alive,
    /// It has not told of itself when it should have.
    Silent,
    /// Its lease has ended: others take its slots.
    Ended,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

impl Member {
    pub(crate) fn state(&self, now_ms: u64) -> State {
        let lease = self.lease_until.saturating_sub(self.beat_at);
        // No member writes a lease that long: the others do not believe it, either.
        let is_absurd = self.lease_until > now_ms.saturating_add(LEASE_MAX_MS);
        if self.lease_until <= now_ms || is_absurd {
            State::Ended
        } else if self.beat_at.saturating_add(lease / 2) < now_ms {
            // It beats three times in a lease.
            State::Silent
        } else {
            State::Alive
        }
    }

    /// How long ago it told of itself.
    pub(crate) fn silence(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.beat_at)
    }

    /// How long its lease lasts.
    pub(crate) fn lease_left(&self, now_ms: u64) -> u64 {
        self.lease_until.saturating_sub(now_ms)
    }

    /// How long the oldest entry that it could begin had been waiting when it told of itself.
    pub(crate) fn oldest_ms(&self) -> u64 {
        if self.backlog == 0 { 0 } else { self.beat_at.saturating_sub(self.passed) }
    }

    /// Whether it has only told that it came: what its runtime asks for it tells with the next heartbeat.
    fn is_new(&self) -> bool {
        self.beat_at.saturating_sub(self.joined_at) < NEW_MS
    }

    /// Whether it runs orchestrations.
    pub(crate) fn runs_turns(&self) -> bool {
        self.serves_turns || self.is_new()
    }

    /// Whether it runs activities of this tag, or of none.
    pub(crate) fn runs(&self, tag: Option<&str>) -> bool {
        // Builds that told less ran whatever they were asked for.
        let has_told = self.serves_any_tag || self.serves_untagged || !self.serves_tags.is_empty();
        let is_asked_for = match tag {
            None => self.serves_untagged || self.serves_any_tag,
            Some(tag) => self.serves_any_tag || self.serves_tags.iter().any(|served| served == tag),
        };
        self.is_new() || (self.serves_work && (is_asked_for || !has_told))
    }

    /// What it runs, in words.
    pub(crate) fn serves(&self) -> Vec<String> {
        let mut serves = Vec::new();
        if self.serves_turns {
            serves.push("turns".to_owned());
        }
        if self.serves_work && self.runs(None) {
            let which = if self.serves_any_tag { "activities of any tag" } else { "activities" };
            serves.push(which.to_owned());
        }
        serves.extend(self.serves_tags.iter().map(|tag| format!("activities [{tag}]")));
        serves
    }

    /// Where it runs.
    pub(crate) fn place(&self) -> String {
        match (self.host.as_str(), self.process) {
            ("", 0) => String::new(),
            ("", process) => format!("process {process}"),
            (host, 0) => host.to_owned(),
            (host, process) => format!("{host} ({process})"),
        }
    }

    pub(crate) fn build(&self) -> &str {
        &self.build
    }

    /// Turns and activities that it holds, of how many.
    pub(crate) fn load(&self) -> String {
        if self.capacity == 0 {
            self.running.to_string()
        } else {
            format!("{} of {}", self.running, self.capacity)
        }
    }

    pub(crate) fn backlog(&self) -> u64 {
        self.backlog
    }

    /// Turns and activities that it holds.
    pub(crate) fn running(&self) -> u64 {
        self.running
    }

    /// How many it was seen to hold, or to wait for, at once.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl Fleet {
    /// Reads it: one request.
    pub(crate) async fn read(documents: &Documents) -> anyhow::Result<Self> {
        let rows = documents.partition(LEASES).await?;
        Ok(Self::new(&rows, documents.now_ms()))
    }

    /// From the documents of its partition, as far as they can be read.
    pub(crate) fn new(rows: &[Value], now_ms: u64) -> Self {
        let of = |wanted: &'static str| rows.iter().filter(move |row| type_of(row) == wanted);
        let mut members: Vec<Member> = of(kind::MEMBER).filter_map(legible).collect();
        for member in members.iter_mut().filter(|member| member.owner.is_empty()) {
            member.owner = member.id.trim_start_matches("member:").to_owned();
        }
        members.sort_by(|a, b| (&a.owner, &a.id).cmp(&(&b.owner, &b.id)));
        let shares = of(kind::SLOT_TABLE).filter_map(|table| table.get("shares")?.as_array());
        let shares = shares.flatten().filter_map(legible).collect();
        Self { members, shares, now_ms }
    }

    /// The members whose lease has not ended.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state(self.now_ms) != State::Ended)
    }

    /// The member of a name that lives, else the one that did.
    pub(crate) fn member(&self, owner: &str) -> Option<&Member> {
        let of_name = || self.members.iter().filter(|member| member.owner == owner);
        of_name().max_by_key(|member| member.lease_until)
    }

    /// Whom the table names for each slot; the first one if it names two.
    pub(crate) fn owners(&self) -> Vec<Option<&str>> {
        let mut owners: Vec<Option<&str>> = vec![None; SLOTS];
        for share in &self.shares {
            let first = usize::try_from(share.first).unwrap_or(SLOTS);
            let last = usize::try_from(share.last).unwrap_or(SLOTS);
            for owner in owners.iter_mut().take(last.saturating_add(1)).skip(first) {
                owner.get_or_insert(&share.owner);
            }
        }
        owners
    }

    /// Whom the table names for the slot of an instance.
    pub(crate) fn owner_of(&self, instance: &str) -> (u8, Option<&str>) {
        let slot = duroxide_cdb::slot_of(instance);
        (slot, self.owners().get(usize::from(slot)).copied().flatten())
    }

    /// The slots that each name has in the table.
    pub(crate) fn slots(&self) -> BTreeMap<&str, Vec<usize>> {
        let mut slots: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (slot, owner) in self.owners().into_iter().enumerate() {
            if let Some(owner) = owner {
                slots.entry(owner).or_default().push(slot);
            }
        }
        slots
    }

    /// The slots that no living member has.
    pub(crate) fn unowned(&self) -> Vec<usize> {
        let is_alive = |owner: &str| self.living().any(|member| member.owner == owner);
        let owners = self.owners().into_iter().enumerate();
        owners.filter(|(_, owner)| !owner.is_some_and(is_alive)).map(|(slot, _)| slot).collect()
    }

    /// What a person should know that a list of members does not say.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let last = self.members.iter().max_by_key(|member| member.beat_at);
        if self.living().next().is_none() {
            remarks.push(match last {
                None => {
                    "nobody is there now: no runtime tells that it runs work on this container".to_owned()
                }
                Some(last) => format!(
                    "nobody is there: the last that was, {:?}, was heard of {} ago. Start a runtime",
                    last.owner,
                    span(last.silence(self.now_ms))
                ),
            });
            return remarks;
        }
        let unowned = self.unowned();
        if !unowned.is_empty() {
            remarks.push(format!(
                "{} ({}) {} no living owner: a member takes them over with its next heartbeat",
                plural(unowned.len(), "slot"),
                ranges(&unowned),
                if unowned.len() == 1 { "has" } else { "have" }
            ));
        }
        for (what, is_there) in [
            ("orchestrations", self.living().any(Member::runs_turns)),
            ("activities", self.living().any(|member| member.serves_work || member.is_new())),
        ] {
            if !is_there {
                remarks.push(format!("no living member runs {what}"));
            }
        }
        remarks
    }

    /// Each member as JSON.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        let slots = self.slots();
        let none = Vec::new();
        let member = |member: &Member| {
            let own = slots.get(member.owner.as_str()).unwrap_or(&none);
            json!({
                "owner": member.owner, "state": member.state(self.now_ms).name(),
                "slots": own.len(), "slotRanges": ranges(own),
                "running": member.running, "capacity": member.capacity,
                "backlog": member.backlog, "oldestMs": member.oldest_ms(),
                "joinedAt": member.joined_at, "beatAt": member.beat_at, "leaseUntil": member.lease_until,
                "serves": member.serves(), "build": member.build, "host": member.host,
                "process": member.process,
            })
        };
        self.members.iter().map(member).collect()
    }
}

/// Numbers as ranges of neighbours: `0-3, 7`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The name of a document, for sentences.
pub(crate) fn name_of(document: &Value) -> String {
    format!("{:?} ({})", text_of(document, "id"), type_of(document))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const NOW: u64 = 1_000_000;

    pub(crate) fn member(owner: &str, beat_at: u64) -> Value {
        json!({"id": format!("member:{owner}"), "instanceId": LEASES, "type": "member", "owner": owner,
            "life": "l", "joinedAt": 1, "beatAt": beat_at, "leaseUntil": beat_at + 10_000, "running": 2,
            "capacity": 4, "backlog": 3, "passed": beat_at.saturating_sub(1500), "servesTurns": true,
            "servesWork": true, "servesUntagged": true, "build": "0.2.0", "host": "h", "process": 7, "ttl": 60})
    }

    pub(crate) fn table(shares: &[(u64, u64, &str)]) -> Value {
        let share =
            |(first, last, owner): &(u64, u64, &str)| json!({"first": first, "last": last, "owner": owner});
        json!({"id": "slots", "instanceId": LEASES, "type": "slot_table", "epoch": 3,
            "shares": shares.iter().map(share).collect::<Vec<_>>()})
    }

    pub(crate) fn bell() -> Value {
        json!({"id": "bell", "instanceId": LEASES, "type": "bell", "rings": {}, "epoch": 3})
    }

    #[test]
    fn members_are_told_with_their_slots_load_and_state() {
        let rows = [
            member("a", NOW - 1000),
            member("b", NOW - 6000),
            member("c", NOW - 60_000),
            table(&[(0, 99, "a"), (100, 199, "b"), (200, 255, "c")]),
        ];
        let fleet = Fleet::new(&rows, NOW);
        let told = fleet.to_json();
        let states: Vec<&str> = told.iter().map(|row| row["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["alive", "silent", "ended"]);
        assert_eq!(Fleet::new(&[member("z", NOW * 1000)], NOW).living().count(), 0, "no lease is that long");
        assert_eq!((&told[0]["slots"], &told[0]["slotRanges"]), (&json!(100), &json!("0-99")));
        assert_eq!((&told[0]["oldestMs"], fleet.members[0].load().as_str()), (&json!(1500), "2 of 4"));
        let remarks = fleet.remarks();
        assert!(remarks[0].starts_with("56 slots (200-255) have no living owner"), "{remarks:?}");
        assert_eq!(remarks.len(), 1, "{remarks:?}");
    }

    #[test]
    fn nobody_is_told_from_somebody_who_was() {
        let remarks = Fleet::new(&[], NOW).remarks();
        assert!(remarks[0].contains("no runtime tells"), "{remarks:?}");
        let remarks = Fleet::new(&[member("a", NOW - 90_000)], NOW).remarks();
        assert!(remarks[0].contains("\"a\", was heard of 1 m 30 s ago"), "{remarks:?}");
    }

    #[test]
    fn whatever_a_table_says_it_can_be_looked_at() {
        let strange = json!({"id": "slots", "type": "slot_table", "shares": [
            {"first": 10, "last": 5, "owner": "a"}, {"first": 0, "last": 3, "owner": 7}, "x",
            {"first": 250, "last": u64::MAX, "owner": "b"}, {"first": u64::MAX, "last": 3}]});
        let fleet = Fleet::new(&[strange, json!({"type": "member", "id": 4}), json!(5)], NOW);
        let owned = fleet.owners().iter().filter(|owner| owner.is_some_and(|owner| owner == "b")).count();
        assert_eq!(owned, 6);
        assert!(!fleet.unowned().is_empty() && !fleet.remarks().is_empty());
    }

    #[test]
    fn what_a_member_runs_is_told_by_tag() {
        let mut gpu = member("g", NOW);
        gpu["servesTags"] = json!(["gpu"]);
        gpu["servesUntagged"] = json!(false);
        let fleet = Fleet::new(&[gpu], NOW);
        assert!(fleet.members[0].runs(Some("gpu")) && !fleet.members[0].runs(None));
        assert_eq!(fleet.members[0].serves(), ["turns", "activities [gpu]"]);
        let mut new = member("n", NOW);
        (new["servesTurns"], new["servesWork"], new["joinedAt"]) =
            (json!(false), json!(false), json!(NOW - 10));
        let new = Fleet::new(&[new], NOW);
        assert!(new.members[0].runs_turns() && new.members[0].runs(None), "it has not told yet");
        assert!(
            new.members[0].serves().is_empty() && new.remarks().iter().all(|text| !text.contains("runs"))
        );
        let old = json!({"type": "member", "id": "member:o", "servesWork": true, "beatAt": 5000});
        assert!(Fleet::new(&[old], NOW).members[0].runs(Some("any")), "who told less is not accused");
    }
}
