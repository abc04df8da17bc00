//! The lock of a work item: keep it, give it back.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;

use crate::core::Core;
use crate::documents::{Forgive, Tagged, WorkDocument};
use crate::error::{About, Fault, Lost, invalid_token};
use crate::fleet::Hand;
use crate::lease::{Lease, WorkContents, WorkLease};
use crate::store::settle::Verdict;
use crate::store::{Backoff, Call, Op, Patience};
use crate::token::Token;

/// The lease a token names: from memory, or with one read in a process that does not have it.
pub(crate) async fn lease_of(core: &Core, call: Call, text: &str) -> Result<Arc<WorkLease>, ProviderError> {
    let Some(Token::Work { partition, id, secret }) = Token::parse(text) else {
        return Err(invalid_token(call.operation, About::All, Lost::Unknown));
    };
    if let Some(lease) = core.work_leases.get(&secret) {
        return Ok(lease);
    }
    let found = core.store.patient(call).read_lockable::<WorkDocument>(&partition, &id).await;
    match found {
        Ok(Some(found)) if found.document.lock_token.as_deref() == Some(secret.as_str()) => {
            let stored = Tagged { document: Arc::new(found.document), etag: found.etag };
            Ok(core.work_leases.put(&core.clock, Lease::new(&secret, stored, WorkContents::default())))
        }
        Err(fault) if fault.may_pass() => Err(fault.surface(call.operation, About::Work(&partition, &id))),
        _ => Err(invalid_token(call.operation, About::Work(&partition, &id), Lost::Finished)),
    }
}

/// The error of a work item that is not the caller's any more.
pub(crate) fn gone(operation: &str, document: &WorkDocument) -> ProviderError {
    invalid_token(operation, about(document), Lost::Finished)
}

/// The item an error is about.
pub(crate) fn about(document: &WorkDocument) -> About<'_> {
    About::Work(&document.instance_id, &document.id)
}

/// The error of a lease that cannot be used.
pub(crate) fn lost(operation: &str, document: &WorkDocument, lost: Lost) -> ProviderError {
    let lost = if lost == Lost::NotHeld { Lost::Finished } else { lost };
    invalid_token(operation, about(document), lost)
}

/// Makes the lock last longer. It never gets shorter and never comes back to life.
///
/// The runtime answers any error of this by cancelling the activity and acking it without a result, under the same token:
/// its workflow would wait for ever. So trouble is sat out as long as the lock is held, and after an error the lease is
/// given up: that ack is refused, and the activity is fetched again.
pub(crate) async fn renew(core: &Core, text: &str, extend_for: Duration) -> Result<(), ProviderError> {
    const OPERATION: &str = "renew_work_item_lock";
    let lease = lease_of(core, core.store.call(OPERATION), text).await?;
    let _one_at_a_time = lease.renewing.lock().await;
    lease.state(&core.clock).map_err(|why| {
        // A clock that was put forward by mistake may be put back before that ack.
        lease.give_up();
        lost(OPERATION, &lease.stored().document, why)
    })?;
    let extended = lease.until_ms().max(core.clock.after(extend_for));
    let patience = lease.patience_to_renew(&core.store, OPERATION);
    let extend = |document: &mut WorkDocument| {
        (document.locked_until, document.visible_at) = (Some(extended), extended);
    };
    rewrite(core, &lease, patience, extend).await.inspect_err(|_| match lease.state(&core.clock) {
        Err(Lost::Expired) => lease.give_up_blameless(&core.claims),
        _ => lease.give_up(),
    })?;
    if let Some(session) = &lease.stored().document.session_id {
        core.sessions.touch(session, core.clock.now_ms());
    }
    Ok(())
}

/// Writes a lock that is only in this process's memory, so that others see it. False if that must be tried again.
pub(crate) async fn write_down(core: &Core, lease: &WorkLease) -> bool {
    let _one_at_a_time = lease.renewing.lock().await;
    if lease.is_written() || lease.state(&core.clock).is_err() {
        return true;
    }
    let patience = lease.patience_to_renew(&core.store, "write_down_work");
    // The item may just be being completed, or was cancelled: then there is nothing to write.
    match rewrite(core, lease, patience, |_| {}).await {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "the lock of an activity could not be written down");
            lease.state(&core.clock).is_err()
        }
    }
}

/// Gives the item back, at once or after a delay.
pub(crate) async fn abandon(
    core: &Core,
    text: &str,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let call = core.store.call("abandon_work_item");
    let lease = lease_of(core, call, text).await?;
    abandon_lease(core, call, &lease, delay, forgive).await
}

/// The same, of a lease that is known.
pub(crate) async fn abandon_lease(
    core: &Core,
    call: Call,
    lease: &WorkLease,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    let _one_at_a_time = lease.ending.lock().await;
    lease.owned().map_err(|why| lost(call.operation, &lease.stored().document, why))?;
    let document = lease.stored().document;
    let is_blameless = core.claims.is_ours(&document.instance_id, &document.id, Some(lease.secret()));
    let forgive = if is_blameless { Forgive::ThisAttempt } else { forgive };
    let visible_at = core.clock.after(delay.unwrap_or_default());
    // A runtime that lacks the activity puts it off. Others leave it to this process as long as it carries a slot of its own,
    // and it would get it again until no attempts are left: so it goes to another member.
    let is_put_off = delay.is_some_and(|delay| !delay.is_zero()) && document.dispatched_to().is_some();
    let home = is_put_off.then(|| core.fleet.next_home(Hand::Work, document.attempt_count)).flatten();
    let change = |document: &mut WorkDocument| {
        document.unlock(visible_at, forgive);
        document.spread_to = home.or(document.spread_to);
    };
    rewrite(core, lease, call.into(), change).await?;
    core.work_leases.remove(lease.secret());
    Ok(())
}

/// Writes a changed version of a locked item and settles unanswered writes.
async fn rewrite(
    core: &Core,
    lease: &WorkLease,
    patience: Patience<'_>,
    change: impl Fn(&mut WorkDocument),
) -> Result<(), ProviderError> {
    let operation = patience.call().operation;
    let mut backoff = Backoff::default();
    loop {
        let stored = lease.held().map_err(|why| lost(operation, &lease.stored().document, why))?;
        let mut document = WorkDocument::clone(&stored.document);
        change(&mut document);
        let surface = |fault: Fault| fault.surface(operation, about(&stored.document));
        let op = Op::replace(&document.id, &document, Some(&stored.etag))
            .map_err(|error| surface(error.into()))?;
        let fault = match core.store.write(patience.call(), &document.instance_id, &op).await {
            Ok(etag) => {
                lease.set_written();
                lease.note(Tagged { document: Arc::new(document), etag });
                announce(core, lease);
                return Ok(());
            }
            Err(fault) => fault,
        };
        let verdict = lease.settle(&core.store, patience, &stored.etag, &fault, |found| *found == document);
        match verdict.await.map_err(surface)? {
            Verdict::Done => {
                lease.set_written();
                announce(core, lease);
                return Ok(());
            }
            Verdict::Again => {}
            Verdict::Blocked => return Err(surface(fault)),
            Verdict::Lost => return Err(gone(operation, &document)),
            Verdict::Gone => {
                core.works.remove(&document.instance_id, &document.id);
                return Err(gone(operation, &document));
            }
        }
        if !patience.wait(&mut backoff, &fault).await {
            return match lease.state(&core.clock) {
                Err(why) => Err(lost(operation, &document, why)),
                Ok(()) => Err(surface(fault)),
            };
        }
    }
}

/// Tells the finder of this process how the item is stored now.
fn announce(core: &Core, lease: &WorkLease) {
    let Tagged { document, etag } = lease.stored();
    core.works.put(document, etag);
}
