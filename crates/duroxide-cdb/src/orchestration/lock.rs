//! The lock of a turn: take it, keep it, give it back. Each is one conditional write of the head.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;

use crate::core::{Backoff, Core, decode};
use crate::documents::{Forgive, Head, Held, Message, Tagged};
use crate::error::{About, Fault, Lost, Trouble, invalid_token};
use crate::queries::{self, Query};
use crate::store::{Call, Op};
use crate::token::Token;

use super::fetch::hint;

/// A turn this process holds.
#[derive(Debug)]
pub(crate) struct TurnLease {
    /// Ack, renew and abandon of one token take turns.
    pub(crate) state: tokio::sync::Mutex<LeaseState>,
}

/// The locked head and what the lock holds.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) head: Tagged<Head>,
    /// The held messages, if this process fetched them.
    pub(crate) messages: Vec<Message>,
    /// Documents of the public crate's layout that the first commit replaces.
    pub(crate) legacy: Vec<String>,
    /// Held messages that turned out to be gone. The stored head still names them.
    pub(crate) gone: HashSet<String>,
}

impl LeaseState {
    /// Goes on with the head as it is stored, without what is known to be gone.
    pub(crate) fn refresh(&mut self, head: Tagged<Head>) {
        self.head = head;
        self.head.document.batch.retain(|held| !self.gone.contains(&held.id));
    }
}

impl TurnLease {
    pub(crate) fn new(head: Tagged<Head>, messages: Vec<Message>, legacy: Vec<String>) -> Self {
        Self { state: tokio::sync::Mutex::new(LeaseState { head, messages, legacy, gone: HashSet::new() }) }
    }
}

/// Takes the lock of a head, or of an instance without one. `None`: somebody else was quicker.
pub(crate) async fn acquire(
    core: &Core,
    call: Call,
    mut head: Head,
    etag: Option<&str>,
    token: &Token,
    timeout: Duration,
    held: Vec<Held>,
) -> Result<Option<Tagged<Head>>, Fault> {
    let mut backoff = Backoff::default();
    let mut tried = false;
    loop {
        // The lease begins when the claim is sent, not when the call began.
        let until = core.clock.after(timeout);
        if tried {
            head.locked_until = Some(until);
        } else {
            head.lock(token.secret(), until, &core.settings.owner, held.clone());
            tried = true;
        }
        let op = match etag {
            Some(etag) => Op::replace(&head.id, &head, Some(etag)),
            None => Op::create(&head),
        };
        let op = op.map_err(|error| Fault::refused(error.to_string()))?;
        let fault = match core.store.write(call, &head.instance_id, &op).await {
            Ok(etag) => return usable(core, call, Tagged { document: head, etag }).await,
            Err(fault) => fault,
        };
        match fault.trouble {
            // Either somebody else's write, or an unanswered one of ours: the head tells.
            Trouble::Changed | Trouble::Exists | Trouble::Missing | Trouble::Transient => {
                if fault.trouble != Trouble::Transient || fault.may_have_been_applied {
                    match core.head(call, &head.instance_id).await? {
                        Some(now) if now.document.lock_token.as_deref() == Some(token.secret()) => {
                            return usable(core, call, now).await;
                        }
                        _ if fault.trouble != Trouble::Transient => return Ok(None),
                        _ => {}
                    }
                }
                if !backoff.wait(call, &fault).await {
                    return Err(fault);
                }
            }
            Trouble::Refused => return Err(fault),
        }
    }
}

/// A lock that came back after its end is given back with the attempt.
async fn usable(core: &Core, call: Call, locked: Tagged<Head>) -> Result<Option<Tagged<Head>>, Fault> {
    let until = locked.document.locked_until.unwrap_or(0);
    if until > core.clock.now_ms() {
        return Ok(Some(locked));
    }
    let mut head = locked.document;
    head.unlock(Forgive::ThisAttempt);
    let op = Op::replace(&head.id, &head, Some(&locked.etag))
        .map_err(|error| Fault::refused(error.to_string()))?;
    let _ = core.store.write(call, &head.instance_id, &op).await;
    Ok(None)
}

/// The lease a token names: from memory, or with one read in a process that does not have it.
pub(crate) async fn lease_of(
    core: &Core,
    call: Call,
    text: &str,
) -> Result<(String, String, Arc<TurnLease>), ProviderError> {
    let Some(Token::Turn { instance, secret }) = Token::parse(text) else {
        return Err(invalid_token(call.operation, About::All, Lost::Unknown));
    };
    if let Some(lease) = core.turn_leases.get(&secret) {
        return Ok((instance, secret, lease));
    }
    let head = core.head(call, &instance).await.map_err(|fault| fault.surface(call.operation, &instance))?;
    match head {
        Some(head) if head.document.lock_token.as_deref() == Some(secret.as_str()) => {
            let ends = core.call_until(call.operation, head.document.locked_until.unwrap_or(0)).deadline;
            let lease = Arc::new(TurnLease::new(head, Vec::new(), Vec::new()));
            core.turn_leases.put(&secret, Arc::clone(&lease), ends);
            Ok((instance, secret, lease))
        }
        _ => Err(invalid_token(call.operation, &instance, Lost::NotHeld)),
    }
}

/// Whether a lease is still the token's and in time. Returns its end.
pub(crate) fn check(core: &Core, operation: &str, head: &Head, secret: &str) -> Result<u64, ProviderError> {
    if head.lock_token.as_deref() != Some(secret) {
        return Err(invalid_token(operation, &head.instance_id, Lost::NotHeld));
    }
    match head.locked_until {
        Some(until) if until > core.clock.now_ms() => Ok(until),
        _ => Err(invalid_token(operation, &head.instance_id, Lost::Expired)),
    }
}

/// Makes a turn's lock last longer. It never gets shorter and never comes back to life.
pub(crate) async fn renew(core: &Core, text: &str, extend_for: Duration) -> Result<(), ProviderError> {
    const OPERATION: &str = "renew_orchestration_item_lock";
    let (instance, secret, lease) = lease_of(core, core.call(OPERATION), text).await?;
    let mut state = lease.state.lock().await;
    let until = check(core, OPERATION, &state.head.document, &secret)?;
    let call = core.call_until(OPERATION, until);
    let extended = until.max(core.clock.after(extend_for));
    rewrite(core, call, &mut state, &secret, |head| head.locked_until = Some(extended)).await?;
    let ends = core.call_until(OPERATION, extended).deadline;
    core.turn_leases.extend(&secret, ends);
    core.turns.extended(&instance, extended);
    core.cache.relock(&instance, &state.head.document, &state.head.etag);
    Ok(())
}

/// Writes a changed version of a locked head and settles unanswered writes. Others write it too, so the change is made
/// again to what they wrote.
async fn rewrite(
    core: &Core,
    call: Call,
    state: &mut LeaseState,
    secret: &str,
    change: impl Fn(&mut Head),
) -> Result<(), ProviderError> {
    let instance = state.head.document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(call.operation, &instance);
    let mut backoff = Backoff::default();
    loop {
        let mut head = state.head.document.clone();
        change(&mut head);
        let op = Op::replace(&head.id, &head, Some(&state.head.etag))
            .map_err(|error| surface(Fault::refused(error.to_string())))?;
        let fault = match core.store.write(call, &instance, &op).await {
            Ok(etag) => {
                state.head = Tagged { document: head, etag };
                return Ok(());
            }
            Err(fault) => fault,
        };
        match fault.trouble {
            Trouble::Changed | Trouble::Transient => {
                if fault.trouble == Trouble::Changed || fault.may_have_been_applied {
                    let now = core.head(call, &instance).await.map_err(surface)?;
                    let Some(now) = now.filter(|now| now.document.turn == head.turn) else {
                        return Err(invalid_token(call.operation, &instance, Lost::NotHeld));
                    };
                    let applied = now.document.lock_token == head.lock_token
                        && now.document.locked_until == head.locked_until
                        && now.document.batch == head.batch;
                    let ours = now.document.lock_token.as_deref() == Some(secret);
                    if applied {
                        state.head = now;
                        return Ok(());
                    }
                    if !ours {
                        return Err(invalid_token(call.operation, &instance, Lost::TakenOver));
                    }
                    state.refresh(now);
                }
                if !backoff.wait(call, &fault).await {
                    return Err(surface(fault));
                }
            }
            Trouble::Missing => return Err(invalid_token(call.operation, &instance, Lost::Deleted)),
            Trouble::Exists | Trouble::Refused => return Err(surface(fault)),
        }
    }
}

/// Gives a turn back. Only the messages it held are touched.
pub(crate) async fn abandon(
    core: &Core,
    text: &str,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    const OPERATION: &str = "abandon_orchestration_item";
    let call = core.call(OPERATION);
    let (instance, secret, lease) = lease_of(core, call, text).await?;
    let mut state = lease.state.lock().await;
    if state.head.document.lock_token.as_deref() != Some(secret.as_str()) {
        return Err(invalid_token(OPERATION, &instance, Lost::NotHeld));
    }
    let delay = delay.filter(|delay| !delay.is_zero());
    if let Some(delay) = delay {
        if state.messages.is_empty() {
            let held: Vec<String> = state.head.document.batch.iter().map(|held| held.id.clone()).collect();
            state.messages = read_messages(core, call, &instance, &held).await?;
        }
        let visible_at = core.clock.after(delay);
        for message in &mut state.messages {
            message.visible_at = visible_at;
        }
        put_off(core, call, &mut state, &secret, forgive).await?;
        for message in &state.messages {
            core.turns.hint(hint(message));
        }
    } else {
        rewrite(core, call, &mut state, &secret, |head| head.unlock(forgive)).await?;
        for message in &state.messages {
            core.turns.hint(hint(message));
        }
    }
    core.cache.relock(&instance, &state.head.document, &state.head.etag);
    core.turn_leases.remove(&secret);
    core.turns.released(&instance, &[]);
    Ok(())
}

/// Unlocks the head and moves the held messages into the future, in one batch. Only their time is sent: together they
/// may be larger than a batch.
async fn put_off(
    core: &Core,
    call: Call,
    state: &mut LeaseState,
    secret: &str,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let instance = state.head.document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(call.operation, &instance);
    let mut backoff = Backoff::default();
    loop {
        let mut head = state.head.document.clone();
        head.unlock(forgive);
        let unlock = Op::replace(&head.id, &head, Some(&state.head.etag))
            .map_err(|error| surface(Fault::refused(error.to_string())))?;
        let put_off =
            state.messages.iter().map(|message| Op::set(&message.id, "/visibleAt", message.visible_at));
        let ops: Vec<Op> = std::iter::once(unlock).chain(put_off).collect();
        let fault = match core.store.batch(call, &instance, &ops).await {
            Ok(mut etags) => {
                state.head = Tagged { document: head, etag: etags.swap_remove(0) };
                return Ok(());
            }
            Err(fault) => fault,
        };
        let now = match fault.trouble {
            Trouble::Refused | Trouble::Exists => return Err(surface(fault)),
            _ => core.head(call, &instance).await.map_err(surface)?,
        };
        if let (Trouble::Missing, Some(op)) = (fault.trouble, fault.index.and_then(|index| ops.get(index))) {
            // What is gone needs no other time.
            state.messages.retain(|message| message.id != op.id());
        }
        match now {
            Some(now) if now.document.lock_token.as_deref() == Some(secret) => state.refresh(now),
            Some(now) if now.document.lock_token.is_none() && now.document.attempts == head.attempts => {
                state.head = now;
                return Ok(());
            }
            _ => return Err(invalid_token(call.operation, &instance, Lost::NotHeld)),
        }
        if !backoff.wait(call, &fault).await {
            return Err(surface(fault));
        }
    }
}

async fn read_messages(
    core: &Core,
    call: Call,
    instance: &str,
    ids: &[String],
) -> Result<Vec<Message>, ProviderError> {
    let query = Query::new(queries::MESSAGES_BY_ID).with("@ids", ids.to_vec());
    let rows = core.patiently(call, || core.store.query(call, instance, &query)).await;
    rows.and_then(|rows| rows.iter().map(|row| decode(row.get().as_bytes())).collect())
        .map_err(|fault| fault.surface(call.operation, instance))
}
