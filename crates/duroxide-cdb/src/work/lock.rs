//! The lock of a work item: keep it, give it back.

use std::sync::Arc;
use std::time::Duration;

use duroxide::providers::ProviderError;

use crate::core::{Backoff, Core, WorkLease};
use crate::documents::{Forgive, Tagged, WorkDocument, kind};
use crate::error::{About, Fault, Lost, Trouble, invalid_token};
use crate::store::{Call, Op};
use crate::token::Token;

/// The lease a token names: from memory, or with one read in a process that does not have it.
pub(crate) async fn lease_of(
    core: &Core,
    call: Call,
    text: &str,
) -> Result<(String, Arc<WorkLease>), ProviderError> {
    let Some(Token::Work { partition, id, secret }) = Token::parse(text) else {
        return Err(invalid_token(call.operation, About::All, Lost::Unknown));
    };
    if let Some(lease) = core.work_leases.get(&secret) {
        return Ok((secret, lease));
    }
    let found = core.read_as::<WorkDocument>(call, &partition, &id).await;
    match found {
        Ok(Some(found)) if found.document.lock_token.as_deref() == Some(secret.as_str()) => {
            let ends = core.call_until(call.operation, found.document.locked_until.unwrap_or(0)).deadline;
            let item = Tagged { document: Arc::new(found.document), etag: found.etag };
            let lease = Arc::new(WorkLease { item: tokio::sync::Mutex::new(item) });
            core.work_leases.put(&secret, Arc::clone(&lease), ends);
            Ok((secret, lease))
        }
        Err(fault) if fault.is_transient() => {
            Err(fault.surface(call.operation, About::Work(&partition, &id)))
        }
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

/// Whether a lease is still the token's and in time. Returns its end.
pub(crate) fn check(
    core: &Core,
    operation: &str,
    document: &WorkDocument,
    secret: &str,
) -> Result<u64, ProviderError> {
    if document.lock_token.as_deref() != Some(secret) {
        return Err(gone(operation, document));
    }
    match document.locked_until {
        Some(until) if until > core.clock.now_ms() => Ok(until),
        _ => Err(invalid_token(operation, about(document), Lost::Expired)),
    }
}

/// Makes the lock last longer. It never gets shorter and never comes back to life.
pub(crate) async fn renew(core: &Core, text: &str, extend_for: Duration) -> Result<(), ProviderError> {
    const OPERATION: &str = "renew_work_item_lock";
    let (secret, lease) = lease_of(core, core.call(OPERATION), text).await?;
    let mut item = lease.item.lock().await;
    let until = check(core, OPERATION, &item.document, &secret)?;
    let call = core.call_until(OPERATION, until);
    let extended = until.max(core.clock.after(extend_for));
    let mut document = WorkDocument::clone(&item.document);
    (document.locked_until, document.visible_at) = (Some(extended), extended);
    rewrite(core, call, &mut item, document, &secret).await?;
    core.work_leases.extend(&secret, core.call_until(OPERATION, extended).deadline);
    if let Some(session) = &item.document.session_id {
        core.sessions.touch(session, core.clock.now_ms());
    }
    Ok(())
}

/// Gives the item back, at once or after a delay.
pub(crate) async fn abandon(
    core: &Core,
    text: &str,
    delay: Option<Duration>,
    forgive: Forgive,
) -> Result<(), ProviderError> {
    const OPERATION: &str = "abandon_work_item";
    let call = core.call(OPERATION);
    let (secret, lease) = lease_of(core, call, text).await?;
    let mut item = lease.item.lock().await;
    if item.document.lock_token.as_deref() != Some(secret.as_str()) {
        return Err(gone(OPERATION, &item.document));
    }
    let mut document = WorkDocument::clone(&item.document);
    document.unlock(core.clock.after(delay.unwrap_or_default()), forgive);
    rewrite(core, call, &mut item, document, &secret).await?;
    core.work_leases.remove(&secret);
    Ok(())
}

/// Writes a new version of a locked item and settles unanswered writes.
async fn rewrite(
    core: &Core,
    call: Call,
    item: &mut Tagged<Arc<WorkDocument>>,
    document: WorkDocument,
    secret: &str,
) -> Result<(), ProviderError> {
    let partition = document.instance_id.clone();
    let surface = |fault: Fault| fault.surface(call.operation, about(&document));
    let mut backoff = Backoff::default();
    loop {
        let op = Op::replace(&document.id, &document, Some(&item.etag))
            .map_err(|error| surface(Fault::refused(error.to_string())))?;
        let fault = match core.store.write(call, &partition, &op).await {
            Ok(etag) => {
                *item = Tagged { document: Arc::new(document), etag };
                core.works.put(Arc::clone(&item.document), item.etag.clone());
                return Ok(());
            }
            Err(fault) => fault,
        };
        match fault.trouble {
            Trouble::Changed | Trouble::Transient => {
                if fault.trouble == Trouble::Changed || fault.may_have_been_applied {
                    let found = core
                        .read_as::<WorkDocument>(call, &partition, &document.id)
                        .await
                        .map_err(surface)?;
                    let Some(found) = found.filter(|found| found.document.kind == kind::WORK) else {
                        return Err(gone(call.operation, &document));
                    };
                    if found.document == document {
                        *item = Tagged { document: Arc::new(document), etag: found.etag };
                        core.works.put(Arc::clone(&item.document), item.etag.clone());
                        return Ok(());
                    }
                    if found.document.lock_token.as_deref() != Some(secret) {
                        return Err(gone(call.operation, &document));
                    }
                    item.etag = found.etag;
                }
                if !backoff.wait(call, &fault).await {
                    return Err(surface(fault));
                }
            }
            Trouble::Missing => {
                core.works.remove(&partition, &document.id);
                return Err(gone(call.operation, &document));
            }
            Trouble::Exists | Trouble::Refused => return Err(surface(fault)),
        }
    }
}
