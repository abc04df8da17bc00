//! The lock of a turn: take it, keep it, give it back. Each is one conditional write of the head.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;

use crate::claims::Claiming;
use crate::core::Core;
use crate::documents::{Forgive, Head, Held, Message, PutOff, Tagged};
use crate::error::{About, Fault, Lost, invalid_token};
use crate::lease::{Lease, TurnContents, TurnLease};
use crate::load::backlog::MESSAGES_MAX;
use crate::queries::{self, Query};
use crate::store::settle::{self, Next, Verdict};
use crate::store::{Backoff, Call, Op, Patience, decode};
use crate::token::Token;

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
    let instance = head.instance_id.clone();
    head.lock(token.secret(), 0, &core.settings.owner, held);
    let claiming = core.claims.begin(&instance, &head.id, token.secret());
    let mut backoff = Backoff::default();
    loop {
        // The lease begins when the claim is sent, not when the call began.
        head.locked_until = Some(core.clock.after(timeout));
        let op = match etag {
            Some(etag) => Op::replace(&head.id, &head, Some(etag)),
            None => Op::create(&head),
        };
        let op = op?;
        let fault = match core.store.write(call, &instance, &op).await {
            Ok(etag) => return usable(core, call, claiming, Tagged { document: head, etag }).await,
            Err(fault) => fault,
        };
        match settle::after(&fault) {
            Next::Refuse => return Err(fault),
            Next::Again => {}
            // Either another process's write, or an unanswered one of this process: the head tells.
            Next::Look => {
                let now = core.store.patient(call).head(&instance).await?;
                let seen = settle::seen_by_claim(token.secret(), etag, now.as_ref());
                match (settle::judge(&fault, seen), now) {
                    (Verdict::Done, Some(now)) => return usable(core, call, claiming, now).await,
                    (Verdict::Again | Verdict::Blocked, _) if fault.is_transient() => {}
                    // The head is another's now, or one of the two answers came from a replica that lags behind: the
                    // finder brings the instance again, after a rest.
                    (
                        Verdict::Done | Verdict::Again | Verdict::Blocked | Verdict::Lost | Verdict::Gone,
                        _,
                    ) => {
                        claiming.settle();
                        return Ok(None);
                    }
                }
            }
        }
        if !fault.is_transient() || !backoff.wait(call, &fault).await {
            return Err(fault);
        }
    }
}

/// A lock that came back after its end is given back with the attempt.
async fn usable(
    core: &Core,
    call: Call,
    claiming: Claiming<'_>,
    locked: Tagged<Head>,
) -> Result<Option<Tagged<Head>>, Fault> {
    let until = locked.document.locked_until.unwrap_or(0);
    if until > core.clock.now_ms() {
        claiming.settle();
        return Ok(Some(locked));
    }
    let mut head = locked.document;
    head.unlock(if cosmos_wire::mutant!(22) { Forgive::No } else { Forgive::ThisAttempt });
    let op = Op::replace(&head.id, &head, Some(&locked.etag))?;
    // If this fails the claim stays unsettled, and the next look of this process takes the attempt back.
    if core.store.write(call, &head.instance_id, &op).await.is_ok() {
        claiming.settle();
    }
    Ok(None)
}

/// The lease a token names: from memory, or with one read in a process that does not have it.
pub(crate) async fn lease_of(
    core: &Core,
    call: Call,
    text: &str,
) -> Result<(String, Arc<TurnLease>), ProviderError> {
    let Some(Token::Turn { instance, secret }) = Token::parse(text) else {
        return Err(invalid_token(call.operation, About::All, Lost::Unknown));
    };
    if let Some(lease) = core.turn_leases.get(&secret) {
        return Ok((instance, lease));
    }
    let head = core
        .store
        .patient(call)
        .head(&instance)
        .await
        .map_err(|fault| fault.surface(call.operation, &instance))?;
    match head {
        Some(head) if head.document.lock_token.as_deref() == Some(secret.as_str()) => {
            let stored = Tagged { document: Arc::new(head.document), etag: head.etag };
            let lease =
                core.turn_leases.put(&core.clock, Lease::new(&secret, stored, TurnContents::default()));
            Ok((instance, lease))
        }
        _ => Err(invalid_token(call.operation, &instance, Lost::NotHeld)),
    }
}

/// Makes a turn's lock last longer. It never gets shorter and never comes back to life.
pub(crate) async fn renew(core: &Core, text: &str, extend_for: Duration) -> Result<(), ProviderError> {
    const OPERATION: &str = "renew_orchestration_item_lock";
    let (instance, lease) = lease_of(core, core.store.call(OPERATION), text).await?;
    let _one_at_a_time = lease.renewing.lock().await;
    lease.state(&core.clock).map_err(|lost| invalid_token(OPERATION, &instance, lost))?;
    let extended = lease.until_ms().max(core.clock.after(extend_for));
    let patience = lease.patience_to_renew(&core.store, OPERATION);
    rewrite(core, &lease, patience, |head| head.locked_until = Some(extended)).await?;
    let stored = lease.stored();
    if lease.owned().is_ok() {
        core.turns.extended(&instance, extended);
        core.cache.relock(&instance, &stored.document, &stored.etag);
    }
    Ok(())
}

/// Writes a changed version of a locked head and settles unanswered writes. Other calls of this process, and prunings of
/// other processes, write it too, so the change is made again to what they wrote.
async fn rewrite(
    core: &Core,
    lease: &TurnLease,
    patience: Patience<'_>,
    change: impl Fn(&mut Head),
) -> Result<(), ProviderError> {
    let operation = patience.call().operation;
    let instance = lease.stored().document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(operation, &instance);
    let mut backoff = Backoff::default();
    loop {
        let stored = lease.held().map_err(|lost| invalid_token(operation, &instance, lost))?;
        let mut head = Head::clone(&stored.document);
        change(&mut head);
        let op = write_of(&head, &stored.etag).map_err(|error| surface(error.into()))?;
        let fault = match core.store.write(patience.call(), &instance, &op).await {
            Ok(etag) => {
                lease.set_written();
                lease.note(Tagged { document: Arc::new(head), etag });
                return Ok(());
            }
            Err(fault) => fault,
        };
        let is_applied = |found: &Head| {
            found.turn == head.turn
                && found.lock_token == head.lock_token
                && found.locked_until == head.locked_until
                && found.batch == head.batch
        };
        let verdict = lease.settle(&core.store, patience, &stored.etag, &fault, is_applied).await;
        match verdict.map_err(surface)? {
            Verdict::Done => {
                lease.set_written();
                return Ok(());
            }
            Verdict::Again => {}
            Verdict::Blocked => return Err(surface(fault)),
            Verdict::Lost => return Err(invalid_token(operation, &instance, Lost::TakenOver)),
            Verdict::Gone => return Err(invalid_token(operation, &instance, Lost::Deleted)),
        }
        if !patience.wait(&mut backoff, &fault).await {
            return match lease.state(&core.clock) {
                Err(lost) => Err(invalid_token(operation, &instance, lost)),
                Ok(()) => Err(surface(fault)),
            };
        }
    }
}

/// A write of a head on condition of the ETag it was read with; where there was none, it is created.
pub(super) fn write_of(head: &Head, etag: &str) -> Result<Op, serde_json::Error> {
    if etag.is_empty() { Op::create(head) } else { Op::replace(&head.id, head, Some(etag)) }
}

/// Writes a lock that is only in this process's memory, so that others see it. False if that must be tried again.
pub(crate) async fn write_down(core: &Core, lease: &TurnLease) -> bool {
    let _one_at_a_time = lease.renewing.lock().await;
    if lease.is_written() || lease.state(&core.clock).is_err() {
        return true;
    }
    let patience = lease.patience_to_renew(&core.store, "write_down_turn");
    match rewrite(core, lease, patience, |_| {}).await {
        Ok(()) => {
            let stored = lease.stored();
            core.cache.relock(&stored.document.instance_id, &stored.document, &stored.etag);
            true
        }
        Err(error) => {
            tracing::debug!(%error, "the lock of a turn could not be written down");
            lease.state(&core.clock).is_err()
        }
    }
}

/// Whether a lock is stored, once it is not just being written: a lock in memory that nobody wants any more must not be
/// stored afterwards, where it would keep the turn from everybody until it ends, and count as an attempt. Who asks gives the
/// lease up before anything else is waited for if it is not.
async fn is_stored(lease: &TurnLease) -> bool {
    if lease.is_written() {
        return true;
    }
    let _nobody_writes_it = lease.renewing.lock().await;
    if !lease.is_written() {
        lease.give_up();
    }
    lease.is_written()
}

/// Gives back a turn that must not be committed; the attempt does not count. If this fails, the lock runs out by itself.
pub(super) async fn give_back(core: &Core, lease: &TurnLease) {
    let call = core.store.quick_call("give_back_turn");
    if !is_stored(lease).await {
        return lease.give_up();
    }
    if let Err(error) = rewrite(core, lease, call.into(), |head| head.unlock(Forgive::ThisAttempt)).await {
        tracing::debug!(%error, "the lock of a turn that is not committed runs out by itself");
    }
    let stored = lease.stored();
    core.cache.relock(&stored.document.instance_id, &stored.document, &stored.etag);
    lease.give_up();
}

/// Gives a turn back. Only the messages it held are touched.
pub(crate) async fn abandon(
    core: &Core,
    text: &str,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let call = core.store.call("abandon_orchestration_item");
    let (_, lease) = lease_of(core, call, text).await?;
    abandon_lease(core, call, &lease, delay, forgive).await
}

/// The same, of a lease that is known.
pub(crate) async fn abandon_lease(
    core: &Core,
    call: Call,
    lease: &TurnLease,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let mut contents = lease.ending.lock().await;
    let instance = lease.stored().document.instance_id.clone();
    lease.owned().map_err(|lost| invalid_token(call.operation, &instance, lost))?;
    if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
        read_held(core, call.into(), lease, &mut contents)
            .await
            .map_err(|fault| fault.surface(call.operation, &instance))?;
        put_off(core, call, lease, &mut contents, core.clock.after(delay), forgive).await?;
    } else if forgive == Forgive::No || is_stored(lease).await {
        rewrite(core, lease, call.into(), |head| head.unlock(forgive)).await?;
    }
    lease.give_up();
    for message in &contents.messages {
        core.turns.hint(message.into());
    }
    if lease.is_written() {
        let stored = lease.stored();
        core.cache.relock(&instance, &stored.document, &stored.etag);
    }
    core.turn_leases.remove(lease.secret());
    if delay.is_some_and(|delay| !delay.is_zero()) {
        core.turns.put_off(&instance);
    }
    core.turns.released(&instance, &[]);
    Ok(())
}

/// Unlocks the head and moves the held messages into the future, in one batch. Only their time is sent: together they
/// may be larger than a batch. Messages that were there and did not fit into the turn, or do not fit into the batch, must not
/// overtake the others: the head says that they wait as long.
async fn put_off(
    core: &Core,
    call: Call,
    lease: &TurnLease,
    contents: &mut TurnContents,
    until: u64,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let instance = lease.stored().document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(call.operation, &instance);
    for message in &mut contents.messages {
        message.visible_at = until;
    }
    contents.messages.sort_by_key(Message::order);
    let mut moved: Vec<&Message> = contents.messages.iter().take(MESSAGES_MAX).collect();
    let left = left_behind(&contents.messages, contents.left);
    let now = core.clock.now_ms();
    let mut backoff = Backoff::default();
    loop {
        let stored = lease.held().map_err(|lost| invalid_token(call.operation, &instance, lost))?;
        let mut head = Head::clone(&stored.document);
        head.unlock(forgive);
        head.put_off = PutOff::beside(&head.put_off, left, until, now);
        let unlock = write_of(&head, &stored.etag).map_err(|error| surface(error.into()))?;
        let delays = moved.iter().map(|message| {
            let delay = Op::set(&message.id, "/visibleAt", until);
            if message.parked_at > 0 { delay.and_set("/parkedAt", 0) } else { delay }
        });
        let ops: Vec<Op> = std::iter::once(unlock).chain(delays).collect();
        let fault = match core.store.batch(call, &instance, &ops).await {
            Ok(mut etags) => {
                lease.set_written();
                lease.note(Tagged { document: Arc::new(head), etag: etags.swap_remove(0) });
                return Ok(());
            }
            Err(fault) => fault,
        };
        let is_applied = |found: &Head| {
            found.lock_token.is_none() && found.attempts == head.attempts && found.put_off == head.put_off
        };
        let verdict = lease.settle(&core.store, call.into(), &stored.etag, &fault, is_applied).await;
        match verdict.map_err(surface)? {
            Verdict::Done => return Ok(()),
            Verdict::Again => {}
            // What is gone needs no other time.
            Verdict::Blocked => match fault.index.and_then(|index| ops.get(index)) {
                Some(op) if op.id() != head.id => moved.retain(|message| message.id != op.id()),
                _ => return Err(surface(fault)),
            },
            Verdict::Lost | Verdict::Gone => {
                return Err(invalid_token(call.operation, &instance, Lost::NotHeld));
            }
        }
        if !backoff.wait(call, &fault).await {
            return Err(surface(fault));
        }
    }
}

/// The order keys of what waits behind the messages of a turn whose time is moved, given all messages of the turn in their
/// order and what waits behind them.
fn left_behind(messages: &[Message], left: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let Some(rest) = messages.get(MESSAGES_MAX..).filter(|rest| !rest.is_empty()) else { return left };
    let upto = rest.iter().map(Message::order).max()?.max(left.map_or(0, |(_, upto)| upto));
    Some((messages[MESSAGES_MAX - 1].order(), upto))
}

/// Reads the held messages in a process that did not fetch them. False if one of them is gone.
pub(super) async fn read_held(
    core: &Core,
    patience: Patience<'_>,
    lease: &TurnLease,
    contents: &mut TurnContents,
) -> Result<bool, Fault> {
    let head = lease.stored().document;
    if contents.messages.len() < head.batch.len() {
        contents.messages = read_messages(core, patience, &head).await?;
    }
    Ok(contents.messages.len() >= head.batch.len())
}

/// The messages that a head holds, as they are stored now.
pub(super) async fn read_messages(
    core: &Core,
    patience: Patience<'_>,
    head: &Head,
) -> Result<Vec<Message>, Fault> {
    let held: Vec<String> = head.batch.iter().map(|held| held.id.clone()).collect();
    let query = Query::new(queries::MESSAGES_BY_ID).with("@ids", held);
    let rows = core.store.patient(patience).query(&head.instance_id, &query).await?;
    rows.iter().map(|row| decode(row.get().as_bytes())).collect()
}
