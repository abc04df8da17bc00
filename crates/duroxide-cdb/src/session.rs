//! Sessions: one owner each, over all instances.
//!
//! A session is claimed before its item, so that losing the item leaves nothing wrong. What this process owns is kept
//! in memory: taking a further item of it needs no request until half its lock is over.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duroxide::providers::{ProviderError, SessionFetchConfig};
use futures::future::BoxFuture;
use serde::Deserialize;

use crate::clock::millis;
use crate::documents::{Session, Tagged, ids};
use crate::error::{About, Fault};
use crate::parallel::in_parallel;
use crate::queries::{self, Query};
use crate::store::settle::{Rests, Settled};
use crate::store::{Call, Op, Patience, Store, Strays, decode};

/// What this process knows about sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owned: HashMap<String, Tagged<Session>>,
    /// Sessions of other owners and when their locks end.
    foreign: HashMap<String, u64>,
    /// With so many it is time to look which of them have ended.
    full: usize,
    /// Until then many are likely to be somebody else's: one that was tried was.
    wary_until: u64,
}

impl State {
    /// Keeps a session this process owns as it is stored, with what has happened in it since that was written.
    fn own(&mut self, session: &str, mut owned: Tagged<Session>, now: u64) {
        self.foreign.remove(session);
        if let Some(known) = self.owned.get(session)
            && known.document.owner_id == owned.document.owner_id
        {
            owned.document.last_activity = owned.document.last_activity.max(known.document.last_activity);
        }
        self.owned.insert(session.to_owned(), owned);
        self.make_room(now);
    }

    /// Keeps when the lock of somebody else's session ends.
    fn leave(&mut self, session: &str, until: u64, now: u64) {
        self.wary_until = now + WARY_MS;
        self.owned.remove(session);
        self.foreign.insert(session.to_owned(), until);
        self.make_room(now);
    }

    /// Looks through all of them only when they have doubled, so that each is looked at a few times.
    fn make_room(&mut self, now: u64) {
        if self.owned.len() + self.foreign.len() > self.full.max(SESSIONS_KEPT) {
            self.forget_ended(now);
            self.full = (self.owned.len() + self.foreign.len()) * 2;
        }
    }

    /// Whether anything is known of a session, whoever had it.
    fn is_known(&self, session: &str) -> bool {
        self.owned.contains_key(session) || self.foreign.contains_key(session)
    }

    /// A session whose lock has ended is anybody's: nothing known of it counts any more.
    fn forget_ended(&mut self, now: u64) {
        self.owned.retain(|_, owned| owned.document.locked_until > now);
        self.foreign.retain(|_, until| *until > now);
    }
}

impl Sessions {
    /// Whether an owner may try to take items of a session.
    pub(crate) fn may_have(&self, session: &str, owner: &str, now: u64) -> bool {
        let state = self.lock();
        if let Some(owned) = state.owned.get(session)
            && owned.document.locked_until > now
        {
            return owned.document.owner_id == owner;
        }
        state.foreign.get(session).is_none_or(|until| *until <= now)
    }

    /// Sessions whose items a search need not return.
    pub(crate) fn foreign(&self, now: u64, limit: usize) -> Vec<String> {
        let state = self.lock();
        let held = state.foreign.iter().filter(|(_, until)| **until > now);
        held.map(|(session, _)| session.clone()).take(limit).collect()
    }

    /// Whether a session is known to be somebody else's.
    pub(crate) fn is_foreign(&self, session: &str, now: u64) -> bool {
        self.lock().foreign.get(session).is_some_and(|until| *until > now)
    }

    /// Looks up who owns the sessions of what a search found, many with one request per range, if one that was tried a
    /// while ago was somebody else's: trying each would take two requests each.
    pub(crate) async fn look_up(&self, store: &Store, call: Call, found: &BTreeSet<String>) {
        let now = store.clock().now_ms();
        let unknown: Vec<&String> = {
            let state = self.lock();
            let is_wary = now < state.wary_until;
            found.iter().filter(|session| is_wary && !state.is_known(session)).collect()
        };
        if unknown.len() <= LOOKED_UP_MIN {
            return;
        }
        for some in unknown.chunks(LOOKED_UP_MAX) {
            let partitions: Vec<String> =
                some.iter().map(|session| ids::session_partition(session)).collect();
            let sessions = partitions.iter().map(String::as_str).zip(some.iter().map(ToString::to_string));
            let rows = match store.query_ids(call, queries::SESSION_OWNERS, sessions).await {
                Ok(rows) => rows,
                Err(fault) => {
                    tracing::debug!(%fault, "the owners of many sessions cannot be read together now");
                    return;
                }
            };
            let mut state = self.lock();
            for owner in rows.iter().filter_map(|row| decode::<Owner>(row.get().as_bytes()).ok()) {
                if owner.locked_until > now && !state.is_known(&owner.session_id) {
                    state.leave(&owner.session_id, owner.locked_until, now);
                }
            }
        }
    }

    /// Notes activity in a session this process owns.
    pub(crate) fn touch(&self, session: &str, now: u64) {
        if let Some(owned) = self.lock().owned.get_mut(session)
            && owned.document.locked_until > now
        {
            owned.document.last_activity = now;
        }
    }

    /// Makes an owner the owner of a session. False if somebody else is.
    pub(crate) async fn claim(
        &self,
        store: &Store,
        call: Call,
        session: &str,
        config: &SessionFetchConfig,
    ) -> Result<bool, Fault> {
        let partition = ids::session_partition(session);
        // Most are new: one of which nothing is known is read only when it turns out to be there.
        let mut exists = self.lock().is_known(session);
        for _ in 0..CLAIMS_MAX {
            let now = store.clock().now_ms();
            let until = store.clock().after(config.lock_timeout);
            let known = self.lock().owned.get(session).cloned();
            let known = known.filter(|known| {
                known.document.owner_id == config.owner_id && known.document.locked_until > now
            });
            if let Some(known) = &known {
                self.touch(session, now);
                if known.document.locked_until >= store.clock().after(config.lock_timeout / 2) {
                    return Ok(true);
                }
            }
            let current = match known {
                Some(known) => Some(known),
                None if exists => store.patient(call).read_as::<Session>(&partition, ids::SESSION).await?,
                None => None,
            };
            let mut claimed = Session::claimed(session, &config.owner_id, until, now);
            let etag = match &current {
                Some(other)
                    if other.document.owner_id != config.owner_id
                        && other.document.locked_until > now
                        && !cosmos_wire::mutant!(21) =>
                {
                    self.lock().leave(session, other.document.locked_until, now);
                    return Ok(false);
                }
                Some(current) => {
                    claimed.created_at = current.document.created_at;
                    if current.document.owner_id == config.owner_id {
                        claimed.locked_until = until.max(current.document.locked_until);
                    }
                    Some(current.etag.as_str())
                }
                None => None,
            };
            match write(store, call.into(), &claimed, etag).await? {
                Settled::Applied(etag) => {
                    self.lock().own(session, Tagged { document: claimed, etag }, now);
                    return Ok(true);
                }
                // Another process was quicker, or an unanswered try of this one: the document tells.
                Settled::Arrived | Settled::Superseded(_) => {
                    exists = true;
                    self.lock().owned.remove(session);
                }
            }
        }
        Ok(false)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who owns a session, and until when.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owner {
    session_id: String,
    locked_until: u64,
}

async fn write(
    store: &Store,
    patience: Patience<'_>,
    session: &Session,
    etag: Option<&str>,
) -> Result<Settled<String>, Fault> {
    let op = match etag {
        Some(etag) => Op::replace(&session.id, session, Some(etag)),
        None => Op::create(session),
    };
    let op = op?;
    store.patient(patience).settle_one(&session.instance_id, &op, Rests::Shared).await
}

/// Makes the locks of the owners' sessions last longer, unless they are idle. Returns how many it did.
pub(crate) async fn renew(
    store: &Store,
    sessions: &Sessions,
    owners: &[&str],
    extend_for: Duration,
    idle_timeout: Duration,
) -> Result<usize, ProviderError> {
    const OPERATION: &str = "renew_session_lock";
    let now = store.clock().now_ms();
    let due: Vec<String> = {
        let mut state = sessions.lock();
        state.forget_ended(now);
        let alive = state.owned.values().map(|owned| &owned.document).filter(|session| {
            owners.contains(&session.owner_id.as_str())
                && session.last_activity.saturating_add(millis(idle_timeout)) > now
        });
        alive.map(|session| session.session_id.clone()).collect()
    };
    let renewals = due.into_iter().map(|session| -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move { renew_one(store, sessions, OPERATION, &session, extend_for).await })
    });
    let (mut renewed, mut failed) = (0, None);
    // All at once: those that have to wait as long as their lock lasts must not keep the others waiting as long.
    for outcome in in_parallel(renewals.len().max(1), renewals).await {
        match outcome {
            Ok(done) => renewed += usize::from(done),
            // One that cannot be renewed does not keep the others from being told.
            Err(fault) => failed = Some(fault),
        }
    }
    match failed {
        Some(fault) if renewed == 0 => Err(fault.surface(OPERATION, About::All)),
        Some(fault) => {
            tracing::warn!(%fault, renewed, "some sessions could not be renewed");
            Ok(renewed)
        }
        None => Ok(renewed),
    }
}

/// Makes the lock of one session last longer. Trouble is sat out until the lock ends.
async fn renew_one(
    store: &Store,
    sessions: &Sessions,
    operation: &'static str,
    session: &str,
    extend_for: Duration,
) -> Result<bool, Fault> {
    for _ in 0..CLAIMS_MAX {
        let now = store.clock().now_ms();
        let owned = sessions.lock().owned.get(session).cloned();
        let Some(mut owned) = owned.filter(|owned| owned.document.locked_until > now) else {
            return Ok(false);
        };
        let until_ms = AtomicU64::new(owned.document.locked_until);
        let patience = Patience::to_renew(operation, store.clock(), &until_ms);
        owned.document.locked_until = owned.document.locked_until.max(store.clock().after(extend_for));
        match write(store, patience, &owned.document, Some(&owned.etag)).await? {
            Settled::Applied(etag) => {
                owned.etag = etag;
                sessions.lock().own(session, owned, now);
                return Ok(true);
            }
            Settled::Arrived | Settled::Superseded(_) => {
                // Perhaps an unanswered write of our own: the document tells.
                let call = patience.call();
                let found =
                    store.patient(call).read_as::<Session>(&owned.document.instance_id, ids::SESSION).await?;
                let mut state = sessions.lock();
                match found {
                    Some(found) if found.document.owner_id == owned.document.owner_id => {
                        state.own(session, found, now);
                    }
                    _ => {
                        state.owned.remove(session);
                        return Ok(false);
                    }
                }
            }
        }
    }
    Ok(false)
}

/// Removes sessions whose lock has ended and that have no work waiting.
pub(crate) async fn clean_up(
    store: &Store,
    sessions: &Sessions,
    strays: &Strays,
) -> Result<usize, ProviderError> {
    const OPERATION: &str = "cleanup_orphaned_sessions";
    #[derive(Deserialize)]
    struct Row {
        #[serde(flatten)]
        session: Session,
        #[serde(rename = "_etag")]
        etag: String,
    }
    let call = store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let query = Query::new(queries::EXPIRED_SESSIONS).with("@now", store.clock().now_ms());
    let rows = store.query_all(call, &query).await.map_err(surface)?;
    let mut removed = 0;
    for row in rows {
        let Some(row) = strays.read::<Row>(OPERATION, &row) else { continue };
        let waiting = Query::new(queries::WORK_OF_SESSION).with("@session", row.session.session_id.as_str());
        if !store.query_all(call, &waiting).await.map_err(surface)?.is_empty() {
            continue;
        }
        let op = Op::delete(&row.session.id, Some(&row.etag));
        let settled = store.patient(call).settle_one(&row.session.instance_id, &op, Rests::Shared).await;
        match settled.map_err(surface)? {
            Settled::Applied(_) => {
                removed += 1;
                sessions.lock().owned.remove(&row.session.session_id);
            }
            // Claimed again, or removed by another process: not this one's to count.
            Settled::Arrived | Settled::Superseded(_) => {}
        }
    }
    Ok(removed)
}

const CLAIMS_MAX: usize = 4;
/// So many are kept without a look at whether they have ended.
const SESSIONS_KEPT: usize = 256;
/// After a session was somebody else's, so long others are likely to be.
const WARY_MS: u64 = 60_000;
/// More than so many must be unknown before they are looked up together, and so many are at once.
const LOOKED_UP_MIN: usize = 8;
const LOOKED_UP_MAX: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(session: &str, until: u64) -> Tagged<Session> {
        Tagged { document: Session::claimed(session, "me", until, 0), etag: String::new() }
    }

    #[test]
    fn sessions_that_have_ended_are_forgotten_however_many_come_by() {
        let sessions = Sessions::default();
        for n in 0..20_000_u64 {
            let (mine, theirs) = (format!("mine {n}"), format!("theirs {n}"));
            let mut state = sessions.lock();
            state.own(&mine, owned(&mine, n + 10), n);
            state.leave(&theirs, n + 10, n);
            assert!(state.owned.len() + state.foreign.len() <= SESSIONS_KEPT + 2, "at {n}");
        }
        assert!(sessions.may_have("mine 19999", "me", 20_000));
        assert!(!sessions.may_have("mine 19999", "you", 20_000));
        assert!(!sessions.may_have("theirs 19999", "me", 20_000));
    }

    #[test]
    fn sessions_that_last_are_kept_however_many_they_are() {
        let sessions = Sessions::default();
        for n in 0..2_000 {
            let mine = format!("mine {n}");
            sessions.lock().own(&mine, owned(&mine, 1_000), 5);
        }
        assert_eq!(sessions.lock().owned.len(), 2_000);
        sessions.lock().forget_ended(1_000);
        assert_eq!(sessions.lock().owned.len(), 0);
    }

    #[test]
    fn a_session_is_either_ours_or_somebody_elses() {
        let sessions = Sessions::default();
        sessions.lock().leave("s", 100, 5);
        sessions.lock().own("s", owned("s", 200), 110);
        assert!(sessions.foreign(150, 10).is_empty());
        sessions.lock().leave("s", 300, 210);
        assert_eq!(sessions.foreign(250, 10), ["s"]);
        assert!(!sessions.may_have("s", "me", 250));
    }
}
