//! Leases in the container itself: a document for each member, and one table of slots.
//!
//! A member writes its own document every few seconds and reads the table with the same request. Every third time it also
//! looks who else is there. Times are the service's, and both sides keep a margin: a member counts on its slots only until
//! a margin before its lease ends, by its own monotonic clock; others take over a margin after, by the service's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;
use tokio::time::Instant;

use super::machine;
use super::table::{after_handover, after_leaving, next_table, slots_of};
use crate::clock::{Clock, millis};
use crate::documents::{Bell, Member, SlotTable, Tagged, ids, kind};
use crate::error::{Fault, Trouble};
use crate::queries::{self, Query};
use crate::slot_leases::{LeaseProvider, MemberReport, OtherShare, Serves, SlotShare};
use crate::slots::SlotSet;
use crate::store::settle::is_superseded;
use crate::store::{Call, Op, Read, Store, decode};

const OPERATION: &str = "fleet";

/// Divides the slots by documents in the container, so that all processes that share it share the work, too. A provider
/// makes its own; this is what it uses if no other [`LeaseProvider`] is set.
pub struct CosmosLeaseProvider {
    store: Arc<Store>,
    clock: Arc<Clock>,
    lease: Duration,
    /// Random: tells this member's documents from those of others with its name.
    life: String,
    state: tokio::sync::Mutex<State>,
}

impl std::fmt::Debug for CosmosLeaseProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CosmosLeaseProvider").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// What the last requests have told.
#[derive(Default)]
struct State {
    /// This member's own document; `None` before it has joined.
    own: Option<Tagged<Member>>,
    /// The table; its ETag is empty if there is none.
    table: Option<Tagged<SlotTable>>,
    members: Vec<Tagged<Member>>,
    /// When the members were looked at, by the service's clock.
    looked_at: u64,
    beats: u64,
    /// How many beats in a row the members are looked at: one who comes may be there in the place of one who died.
    curious: u64,
}

impl CosmosLeaseProvider {
    pub(crate) fn new(store: Arc<Store>, lease: Duration) -> Self {
        let life = uuid::Uuid::new_v4().simple().to_string();
        Self { clock: Arc::clone(store.clock()), store, lease, life, state: tokio::sync::Mutex::default() }
    }

    fn call(&self) -> Call {
        Call { operation: OPERATION, deadline: Instant::now() + (self.lease / 4).max(CALL_MIN) }
    }

    /// Who lives, as far as is known. A dead member's slots are taken over a margin after its lease has ended.
    fn living<'a>(&self, state: &'a State) -> BTreeSet<&'a str> {
        let now = self.clock.now_ms();
        let margin = millis(margin(self.lease));
        let own = state.own.as_ref().map(|own| own.document.owner.as_str());
        let is_alive = |member: &&Tagged<Member>| {
            let member = &member.document;
            let over = if cosmos_wire::mutant!(32) {
                member.beat_at
            } else {
                member.lease_until.saturating_add(margin)
            };
            over > now && is_credible(member, now) && !machine::has_ended(&member.machine, member.process)
        };
        let others = state.members.iter().filter(is_alive);
        others.map(|member| member.document.owner.as_str()).chain(own).collect()
    }

    /// Joins the fleet, under another name if a living process has this one. Who finds that somebody came meanwhile looks
    /// again: two that came at the same moment under one name would both have what belongs to it.
    async fn join(&self, state: &mut State, caller: &str, report: &MemberReport) -> Result<(), Fault> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.look_around(state).await?;
            match self.come(state, caller, report).await {
                Err(fault) if is_superseded(&fault) && tries < JOIN_TRIES => {}
                outcome => return outcome,
            }
        }
    }

    /// Writes this member's document, on condition that whoever has its name is still dead. A document of this life, written
    /// by a beat whose answer was lost, is this member's own.
    async fn come(&self, state: &mut State, caller: &str, report: &MemberReport) -> Result<(), Fault> {
        let now = self.clock.now_ms();
        let is_alive = |member: &Member| {
            member.lease_until > now
                && is_credible(member, now)
                && !machine::has_ended(&member.machine, member.process)
        };
        let mut all = state.members.iter();
        let own = all.clone().find(|member| member.document.life == self.life);
        let is_taken =
            all.any(|member| member.document.owner == caller && is_alive(&member.document)) && own.is_none();
        let owner = if let Some(own) = own {
            own.document.owner.clone()
        } else if is_taken {
            let other = format!("{caller}~{}", &uuid::Uuid::new_v4().simple().to_string()[..6]);
            tracing::warn!(
                caller,
                other,
                "another member of the fleet has this name, so this one takes another"
            );
            other
        } else {
            caller.to_owned()
        };
        let member = self.member(&owner, self.life.clone(), None, report);
        let before = state.members.iter().find(|before| before.document.id == member.id);
        let op = match before {
            Some(before) => Op::replace(&member.id, &member, Some(&before.etag)),
            None => Op::create(&member),
        };
        let etag = self.store.write(self.call(), ids::LEASES, &op.map_err(refused)?).await?;
        state.own = Some(Tagged { document: member, etag });
        Ok(())
    }

    /// Removes the documents of members of this machine that have ended. Those on other machines could not know it before
    /// their leases end, and would ask for their slots in their name until then.
    async fn bury(&self, state: &mut State) {
        let has_ended =
            |member: &Tagged<Member>| machine::has_ended(&member.document.machine, member.document.process);
        let ended: Vec<Tagged<Member>> = state.members.extract_if(.., |member| has_ended(member)).collect();
        for member in ended {
            let gone = Op::delete(&member.document.id, Some(&member.etag));
            if let Err(fault) = self.store.write(self.call(), ids::LEASES, &gone).await {
                tracing::debug!(%fault, "the document of a member that has ended stays until its lease ends");
            }
        }
    }

    /// This member's document as of now.
    fn member(&self, owner: &str, life: String, joined_at: Option<u64>, report: &MemberReport) -> Member {
        let now = self.clock.now_ms();
        Member {
            id: ids::member(owner),
            instance_id: ids::LEASES.to_owned(),
            kind: kind::MEMBER.to_owned(),
            owner: owner.to_owned(),
            life,
            joined_at: joined_at.unwrap_or(now),
            beat_at: now,
            lease_until: self.clock.after(self.lease),
            running: report.running,
            capacity: report.capacity,
            backlog: report.backlog,
            passed: report.passed,
            serves_turns: report.serves.turns,
            serves_work: report.serves.work,
            serves_any_tag: report.work.any_tag,
            serves_untagged: report.work.untagged,
            serves_tags: report.work.tags.iter().take(TAGS_MAX).cloned().collect(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            host: machine::host_name(),
            machine: machine::id(),
            process: std::process::id(),
            ttl: MEMBER_TTL_SECONDS,
        }
    }

    /// Reads table and members.
    async fn look_around(&self, state: &mut State) -> Result<(), Fault> {
        #[derive(serde::Deserialize)]
        struct Envelope {
            #[serde(rename = "type", default)]
            kind: String,
            #[serde(rename = "_etag", default)]
            etag: String,
        }
        // Where the account is behind, members seem to be dead whose leases were renewed since.
        let query = Query::new(queries::FLEET).for_latest();
        let rows = self.store.query(self.call(), ids::LEASES, &query).await?;
        let mut table = Tagged { document: SlotTable::new(0, Vec::new()), etag: String::new() };
        state.members.clear();
        state.looked_at = self.clock.now_ms();
        for row in rows {
            let text = row.get().as_bytes();
            let Ok(envelope) = decode::<Envelope>(text) else { continue };
            if envelope.kind == kind::SLOT_TABLE {
                // One that cannot be read is replaced by one that can.
                table = Tagged { document: decode(text).unwrap_or(table.document), etag: envelope.etag };
            } else if let Ok(member) = decode::<Member>(text) {
                state.members.push(Tagged { document: member, etag: envelope.etag });
            }
        }
        state.table = Some(table);
        Ok(())
    }

    /// Says that this member is still there, and reads the table with the same request.
    async fn beat(&self, state: &mut State, report: &MemberReport) -> Result<(), Fault> {
        let Some(own) = state.own.clone() else { return Ok(()) };
        let Member { owner, life, joined_at, .. } = own.document;
        let member = self.member(&owner, life, Some(joined_at), report);
        let op = Op::replace(&member.id, &member, Some(&own.etag)).map_err(refused)?;
        let (etag, table) = self.store.write_beside(self.call(), ids::LEASES, &op, ids::SLOT_TABLE).await?;
        state.own = Some(Tagged { document: member, etag });
        if let Read::Found { body, etag } = table
            && state.table.as_ref().is_none_or(|known| known.etag != etag)
        {
            let before =
                state.table.take().map_or_else(|| SlotTable::new(0, Vec::new()), |table| table.document);
            state.table = Some(Tagged { document: decode(&body).unwrap_or(before), etag });
            // Somebody came or went.
            state.beats = 0;
        }
        Ok(())
    }

    /// Writes the next table, if nobody else was quicker.
    async fn write_table(&self, state: &mut State, next: SlotTable) -> Result<(), Fault> {
        let known = state.table.as_ref().map(|table| table.etag.as_str()).filter(|etag| !etag.is_empty());
        let op = match known {
            Some(etag) => Op::replace(&next.id, &next, Some(etag)),
            None => Op::create(&next),
        };
        let etag = match self.store.write(self.call(), ids::LEASES, &op.map_err(refused)?).await {
            Ok(etag) => etag,
            Err(fault) => {
                // What stands there now is looked at again with the next beat.
                state.table = None;
                state.beats = 0;
                return if is_superseded(&fault) { Ok(()) } else { Err(fault) };
            }
        };
        let epoch = next.epoch;
        state.table = Some(Tagged { document: next, etag });
        if let Err(fault) = self.ring_for_table(epoch).await {
            tracing::debug!(%fault, "nobody hears of the new table of slots before its next heartbeat");
        }
        Ok(())
    }

    /// Lets those who listen to the bell hear of a new table at once. Who comes first may find no bell yet.
    async fn ring_for_table(&self, epoch: u64) -> Result<(), Fault> {
        let ring = Op::set(ids::BELL, "/epoch", epoch);
        match self.store.write(self.call(), ids::LEASES, &ring).await {
            Err(fault) if fault.trouble == Trouble::Missing => {}
            outcome => return outcome.map(drop),
        }
        let bell = Op::create(&Bell { epoch, ..Bell::silent() }).map_err(refused)?;
        match self.store.write(self.call(), ids::LEASES, &bell).await {
            Err(fault) if fault.trouble == Trouble::Exists => {
                self.store.write(self.call(), ids::LEASES, &ring).await.map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// The share of this member by what is known now.
    fn share(&self, state: &State) -> SlotShare {
        let Some(own) = &state.own else { return SlotShare::default() };
        // Somebody else was quicker to write the table: until it is read, everything is somebody else's.
        let unread = SlotTable::new(0, Vec::new());
        let table = state.table.as_ref().map_or(&unread, |table| &table.document);
        let owner = own.document.owner.as_str();
        let (slots, wanted) = slots_of(table, owner);
        let living = self.living(state);
        let silence = self.lease.mul_f64(SILENT_PART);
        let others = state.members.iter().map(|member| &member.document);
        let others = others.filter(|member| member.owner != owner);
        let others =
            others.filter(|member| living.contains(member.owner.as_str())).map(|member| OtherShare {
                slots: slots_of(table, &member.owner).0,
                passed: member.passed,
                serves: serves(member),
                is_silent: member.beat_at.saturating_add(millis(silence)) < state.looked_at,
            });
        SlotShare {
            slots,
            wanted,
            // Who seems to be dead is helped long before its lease ends.
            promised: Some(silence.saturating_sub(margin(self.lease))),
            members: living.len().max(1),
            rank: living.iter().position(|name| *name == owner).unwrap_or(0),
            others: others.collect(),
            epoch: table.epoch,
        }
    }
}

/// What a member runs. One that has just joined may not have asked for everything yet that it will.
fn serves(member: &Member) -> Serves {
    let is_new = member.beat_at == member.joined_at && !cosmos_wire::mutant!(38);
    Serves { turns: member.serves_turns || is_new, work: member.serves_work || is_new }
}

#[async_trait::async_trait]
impl LeaseProvider for CosmosLeaseProvider {
    async fn acquire_slots(&self, caller: &str, report: &MemberReport) -> Result<SlotShare, ProviderError> {
        let surface = |fault: Fault| fault.surface(OPERATION, ids::LEASES);
        let mut state = self.state.lock().await;
        let beaten = if state.own.is_some() { self.beat(&mut state, report).await } else { Ok(()) };
        if let Err(fault) = beaten {
            // Its document, or the table, is gone or another's: it joins as if it were new.
            if !is_superseded(&fault) {
                return Err(surface(fault));
            }
            state.own = None;
        }
        if state.own.is_none() {
            self.join(&mut state, caller, report).await.map_err(surface)?;
            (state.beats, state.curious) = (0, CURIOUS_BEATS);
        } else if state.beats.is_multiple_of(LOOK_EVERY) || state.table.is_none() || state.curious > 0 {
            state.curious = state.curious.saturating_sub(1);
            self.look_around(&mut state).await.map_err(surface)?;
        }
        self.bury(&mut state).await;
        state.beats += 1;
        let living = self.living(&state);
        let next = state.table.as_ref().and_then(|table| next_table(&table.document, &living));
        if let Some(next) = next {
            self.write_table(&mut state, next).await.map_err(surface)?;
        }
        Ok(self.share(&state))
    }

    async fn hand_over(&self, _: &str, slots: SlotSet) -> Result<(), ProviderError> {
        let mut state = self.state.lock().await;
        let (Some(own), Some(table)) = (&state.own, &state.table) else { return Ok(()) };
        let Some(next) = after_handover(&table.document, &own.document.owner, slots) else { return Ok(()) };
        self.write_table(&mut state, next).await.map_err(|fault| fault.surface(OPERATION, ids::LEASES))
    }

    async fn release_slots(&self, _: &str) -> Result<(), ProviderError> {
        let surface = |fault: Fault| fault.surface(OPERATION, ids::LEASES);
        let mut state = self.state.lock().await;
        let Some(own) = state.own.take() else { return Ok(()) };
        let owner = own.document.owner;
        for _ in 0..TABLE_TRIES {
            self.look_around(&mut state).await.map_err(surface)?;
            let living = self.living(&state);
            let table = state.table.as_ref();
            let next = table.and_then(|table| after_leaving(&table.document, &owner, &living));
            let Some(next) = next else { break };
            self.write_table(&mut state, next).await.map_err(surface)?;
            if state.table.is_some() {
                break;
            }
        }
        let gone = Op::delete(&own.document.id, Some(&own.etag));
        match self.store.write(self.call(), ids::LEASES, &gone).await {
            Err(fault) if !is_superseded(&fault) => Err(surface(fault)),
            _ => Ok(()),
        }
    }
}

/// Whether what a member says of its lease can be true: it was told not long after now, as clocks go, and for not longer
/// than a document of a member is kept.
fn is_credible(member: &Member, now_ms: u64) -> bool {
    let longest = MEMBER_TTL_SECONDS * 1000;
    member.beat_at <= now_ms.saturating_add(FAST_CLOCK_MS)
        && member.lease_until.saturating_sub(member.beat_at) <= longest
}

#[expect(clippy::needless_pass_by_value, reason = "it stands where results are mapped")]
fn refused(error: serde_json::Error) -> Fault {
    Fault::refused(error.to_string())
}

/// How far apart the two sides of a lease keep: clocks drift, and a request takes its time.
fn margin(lease: Duration) -> Duration {
    lease / 8
}

/// So many beats from one look at the members to the next.
const LOOK_EVERY: u64 = 3;
/// A member that has not told of itself for this part of its lease is silent: two of its heartbeats are missing.
const SILENT_PART: f64 = 0.6;
const CURIOUS_BEATS: u64 = 4;
/// More tags than these are not told.
const TAGS_MAX: usize = 64;
const TABLE_TRIES: usize = 5;
const JOIN_TRIES: usize = 3;
const CALL_MIN: Duration = Duration::from_secs(1);
const MEMBER_TTL_SECONDS: u64 = 3600;
/// Clocks are put right by the service's dates: no member's is ahead by more.
const FAST_CLOCK_MS: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_does_not_run_is_believed_once_it_has_told_it_again() {
        let told = |beat_at| {
            let text = serde_json::json!({ "id": "member:a", "instanceId": ids::LEASES, "type": kind::MEMBER,
                "owner": "a", "joinedAt": 7, "beatAt": beat_at, "servesTurns": true, "ttl": 9 });
            serves(&serde_json::from_value(text).unwrap())
        };
        assert_eq!(told(7), Serves { turns: true, work: true }, "its workers may not have asked yet");
        assert_eq!(told(8), Serves { turns: true, work: false });
    }
}
