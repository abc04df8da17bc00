//! Fetching a work item: candidate, session, lock.

use std::sync::Arc;
use std::time::Duration;

use duroxide::TagFilter;
use duroxide::providers::{ProviderError, SessionFetchConfig, WorkItem};
use futures::future::BoxFuture;
use tokio::sync::futures::OwnedNotified;

use crate::cache::Acquaintance;
use crate::contain::contained;
use crate::core::Core;
use crate::documents::{Forgive, Tagged, WorkDocument, lane};
use crate::error::{About, Fault, Trouble};
use crate::finder::{Crew, Pace, Waiting, Wish, WorkCandidate, WorkQuestion};
use crate::fleet::Hand;
use crate::lease::{Lease, Unwritten, WorkContents, WorkLease};
use crate::poll::{Pollable, Tried, poll};
use crate::slots;
use crate::staging::join;
use crate::store::settle::{self, Next, Verdict};
use crate::store::{Backoff, Call, Op, Read, decode};
use crate::token::Token;

use super::search::search;

pub(super) const OPERATION: &str = "fetch_work_item";

type Fetched = (WorkItem, String, u32);

/// Fetches the next work item, waiting up to `poll_timeout` for one.
pub(crate) async fn fetch(
    core: &Core,
    lock_timeout: Duration,
    poll_timeout: Duration,
    session: Option<&SessionFetchConfig>,
    tags: &TagFilter,
) -> Result<Option<Fetched>, ProviderError> {
    let Some(name) = Crew::name(tags, session.is_some()) else { return Ok(None) };
    let crew = core.crew(&name);
    let may_have = |id: &str| {
        session.is_some_and(|session| core.sessions.may_have(id, &session.owner_id, core.clock.now_ms()))
    };
    let question = WorkQuestion { tags, sessions: session.map(|_| &may_have as _) };
    core.works.ask(question);
    let items = WorkItems { core, crew: &crew, lock_timeout, session, question };
    poll(core, &items, poll_timeout).await.map_err(|fault| fault.surface(OPERATION, About::All))
}

/// The work items that a worker polls.
struct WorkItems<'a> {
    core: &'a Core,
    crew: &'a Crew,
    lock_timeout: Duration,
    session: Option<&'a SessionFetchConfig>,
    question: WorkQuestion<'a>,
}

impl Pollable for WorkItems<'_> {
    type Fetched = Fetched;

    fn pace(&self) -> &Pace {
        &self.crew.pace
    }

    fn changed(&self) -> OwnedNotified {
        self.core.works.changed()
    }

    fn wait(&self) -> Waiting<'_> {
        self.core.works.wait()
    }

    fn next_at(&self, now_ms: u64) -> Option<u64> {
        self.core.works.next_at(now_ms, self.question)
    }

    fn search(&self, wish: Wish) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(search(self.core, self.crew, wish, self.session.is_some(), self.question.tags))
    }

    fn attempt(&self) -> BoxFuture<'_, Tried<Fetched>> {
        Box::pin(async move {
            let now = self.core.clock.now_ms();
            let Some(candidate) = self.core.works.take(now, self.question) else { return Tried::NoneLeft };
            // What is in pieces may be large and not bad.
            let failures = candidate.item.document.chunks.as_ref().map_or(0, |_| candidate.rests);
            let call = self.core.store.quick_call_after(OPERATION, failures);
            let fetched = attempt(self.core, call, candidate, self.lock_timeout, self.session).await;
            fetched.map_or(Tried::InVain, Tried::Fetched)
        })
    }

    // Each item that cannot be taken rests, so they come to an end before the next search is long due.
    fn is_search_first(&self) -> bool {
        false
    }
}

/// Tries one candidate. Trouble with it is its own: others are not held up.
async fn attempt(
    core: &Core,
    call: Call,
    candidate: WorkCandidate,
    lock_timeout: Duration,
    session: Option<&SessionFetchConfig>,
) -> Option<Fetched> {
    let document = Arc::clone(&candidate.item.document);
    // What was this process's when it was found or written may be another's now, who knows nothing of this one.
    if let Some(slot) = document.dispatched_to()
        && !core.may_take(Hand::Work, slot, document.visible_at, true)
    {
        candidate.remove();
        core.fleet.ring_work(slots::of(&document.instance_id));
        return None;
    }
    let reading = Box::pin(work_item(core, call, &document));
    let item = match contained(&core.strays, OPERATION, &document.instance_id, reading).await {
        Ok(item) => item,
        Err(fault) => {
            tracing::warn!(instance = document.instance_id, id = document.id, %fault, "a work item cannot be read");
            let now = core.clock.now_ms();
            if fault.is_transient() {
                candidate.rest(now);
            } else {
                candidate.rest_until(now + UNREADABLE_REST_MS);
            }
            return None;
        }
    };
    if let (Some(id), Some(session)) = (&document.session_id, session) {
        match core.sessions.claim(&core.store, call, id, session).await {
            Ok(true) => {}
            // Owned by somebody else: the finder will not offer its items until that ends.
            Ok(false) => return None,
            Err(fault) => {
                tracing::warn!(session = id, %fault, "cannot claim this session now");
                candidate.rest(core.clock.now_ms());
                return None;
            }
        }
    }
    let token = Token::work(&document.instance_id, &document.id);
    let is_for_us_alone = candidate.is_own || document.spread_to.is_some() || cosmos_wire::mutant!(39);
    let in_memory =
        is_for_us_alone.then(|| hold_in_memory(core, &candidate.item, &item, &token, lock_timeout));
    if let Some(lease) = in_memory.flatten() {
        let stored = lease.stored();
        let attempts = stored.document.attempt_count;
        candidate.update(stored.document, stored.etag);
        core.work_leases.put(&core.clock, lease);
        // Another thread may have begun to give the slot away, and may not have seen this lock.
        if let Some(slot) = document.dispatched_to()
            && !core.fleet.may_hold_unwritten(Hand::Work, slot, document.visible_at)
            && let Some(lease) = core.work_leases.get(token.secret())
            && !super::lock::write_down(core, &lease).await
        {
            tracing::debug!(
                instance = document.instance_id,
                "a lock could not be written down before its slot is given away"
            );
        }
        return Some((item, token.to_string(), attempts));
    }
    let claiming = Box::pin(claim(core, call, &candidate.item, &token, lock_timeout));
    match contained(&core.strays, OPERATION, &document.instance_id, claiming).await {
        Ok(Claim::Gone) => {
            candidate.remove();
            None
        }
        Ok(Claim::Lost(newer)) => {
            candidate.update(newer.document, newer.etag);
            None
        }
        Ok(Claim::Late(newer)) => {
            candidate.rest_as(newer.document, newer.etag, core.clock.now_ms());
            None
        }
        Ok(Claim::Locked(locked)) => {
            candidate.update(Arc::clone(&locked.document), locked.etag.clone());
            // One with a tag or a session is nobody's more than anybody else's.
            if let Some(slot) = document.dispatched_to() {
                core.fleet.count_steal(Hand::Work, slot);
            }
            let attempts = locked.document.attempt_count;
            core.work_leases.put(&core.clock, Lease::new(token.secret(), locked, WorkContents::of(&item)));
            Some((item, token.to_string(), attempts))
        }
        Err(fault) => {
            tracing::warn!(instance = document.instance_id, %fault, "cannot lock a work item of this instance now");
            candidate.rest(core.clock.now_ms());
            None
        }
    }
}

/// A lock that is kept in memory, if everybody else leaves the item alone for a while and it was never tried before. The
/// worker will read its instance at once: what this process knows of it is as good as the lock.
fn hold_in_memory(
    core: &Core,
    item: &Tagged<Arc<WorkDocument>>,
    work: &WorkItem,
    token: &Token,
    timeout: Duration,
) -> Option<WorkLease> {
    let document = &item.document;
    let slot = document.dispatched_to()?;
    let is_first = document.attempt_count == 0 && document.lock_token.is_none();
    let WorkItem::ActivityExecute { name, .. } = work else { return None };
    // Where there is nobody else, nobody else runs it.
    let is_over_soon = core.fleet.members() <= 1 || core.habits.is_quick(name);
    if !is_first || !is_over_soon || !core.fleet.may_hold_unwritten(Hand::Work, slot, document.visible_at) {
        return None;
    }
    let write_by = core.fleet.write_by(document.visible_at, timeout);
    let until = core.clock.after(timeout);
    let mut locked = locked_by(core, token, document);
    (locked.locked_until, locked.visible_at) = (Some(until), until);
    if core.fleet.owns(slots::of(&document.instance_id))
        && let Some(known) = core.cache.acquaintance(&document.instance_id)
    {
        let head = Tagged::clone(&known.head);
        core.cache.see(&known, head, core.clock.instant());
    }
    let locked = Tagged { document: Arc::new(locked), etag: item.etag.clone() };
    Some(Lease::unwritten(token.secret(), locked, WorkContents::of(work), Unwritten { slot, write_by }))
}

/// The work item a document holds.
pub(crate) async fn work_item(core: &Core, call: Call, document: &WorkDocument) -> Result<WorkItem, Fault> {
    match &document.chunks {
        None => decode(document.work_item.as_bytes()),
        Some(chunks) => decode(join(&core.store, call, &document.instance_id, chunks).await?.as_bytes()),
    }
}

/// What became of a try to lock an item.
enum Claim {
    Locked(Tagged<Arc<WorkDocument>>),
    /// Somebody else took it.
    Lost(Tagged<Arc<WorkDocument>>),
    /// The lock had ended before it was known, and was given back.
    Late(Tagged<Arc<WorkDocument>>),
    /// It was completed or cancelled meanwhile.
    Gone,
}

/// Locks an item. The worker will read its instance at once, so the head of an instance that is known comes along: what
/// is known need not be validated then.
async fn claim(
    core: &Core,
    call: Call,
    item: &Tagged<Arc<WorkDocument>>,
    token: &Token,
    timeout: Duration,
) -> Result<Claim, Fault> {
    let claiming = core.claims.begin(&item.document.instance_id, &item.document.id, token.secret());
    let outcome = claim_settled(core, call, item, token, timeout).await;
    if outcome.is_ok() {
        claiming.settle();
    }
    outcome
}

/// An item as a claim locks it. The lock of an earlier claim of this process that it did not know to hold was no attempt.
fn locked_by(core: &Core, token: &Token, document: &WorkDocument) -> WorkDocument {
    let mut locked = document.clone();
    if core.claims.is_ours(&locked.instance_id, &locked.id, locked.lock_token.as_deref()) {
        locked.unlock(0, Forgive::ThisAttempt);
    }
    locked.attempt_count = locked.attempt_count.saturating_add(1);
    // Earlier versions wrote none.
    locked.lane = lane::of(locked.tag.as_deref(), locked.session_id.as_deref());
    locked.lock_token = Some(token.secret().to_owned());
    locked
}

async fn claim_settled(
    core: &Core,
    call: Call,
    item: &Tagged<Arc<WorkDocument>>,
    token: &Token,
    timeout: Duration,
) -> Result<Claim, Fault> {
    let mut locked = locked_by(core, token, &item.document);
    let mut known = item.etag.clone();
    let mut head = head_to_bring(core, &locked);
    let mut backoff = Backoff::default();
    loop {
        let until = core.clock.after(timeout);
        // A locked item is not visible, so searches do not have to look at it.
        (locked.locked_until, locked.visible_at) = (Some(until), until);
        let op = Op::replace(&locked.id, &locked, Some(&known))?;
        let fault = match write(core, call, &locked.instance_id, &op, head.as_ref()).await {
            Ok(etag) => return usable(core, Tagged { document: Arc::new(locked), etag }).await,
            Err(fault) => fault,
        };
        // The instance is gone: no reason to leave the item.
        if fault.index == Some(HEAD_INDEX) {
            core.cache.forget(&locked.instance_id);
            head = None;
            continue;
        }
        if fault.trouble == Trouble::Missing {
            return Ok(Claim::Gone);
        }
        if settle::after(&fault) == Next::Look {
            let patient = core.store.patient(call);
            let found = patient.read_lockable::<WorkDocument>(&locked.instance_id, &locked.id).await?;
            let Some(found) = found else { return Ok(Claim::Gone) };
            let lock_token = found.document.lock_token.as_deref();
            let seen = settle::seen_by_claim(token.secret(), Some(&known), Some(&found));
            if core.claims.is_ours(&locked.instance_id, &locked.id, lock_token) {
                // An earlier claim of this process, of which it did not know the outcome: it is taken over.
                locked = locked_by(core, token, &found.document);
                known = found.etag;
            } else {
                let verdict = settle::judge(&fault, seen);
                let found = Tagged { document: Arc::new(found.document), etag: found.etag };
                match verdict {
                    Verdict::Done => return usable(core, found).await,
                    Verdict::Lost => return Ok(Claim::Lost(found)),
                    Verdict::Gone => return Ok(Claim::Gone),
                    Verdict::Again | Verdict::Blocked => {}
                }
            }
        }
        // Unchanged all the same: one of the two answers came from a replica that lags behind. That passes.
        let may_pass = matches!(fault.trouble, Trouble::Transient | Trouble::Changed);
        if !may_pass || !backoff.wait(call, &fault).await {
            return Err(fault);
        }
    }
}

/// The head that a claim brings along: of an instance that is known, as long as it costs no more than asking whether it
/// has changed. A batch answers with all that is in it, so what is large is locked alone.
fn head_to_bring(core: &Core, item: &WorkDocument) -> Option<Acquaintance> {
    let known = core.cache.acquaintance(&item.instance_id)?;
    let is_small = item.work_item.len() <= ITEM_BYTES_MAX
        && serde_json::to_vec(&known.head.document).is_ok_and(|text| text.len() <= HEAD_BYTES_MAX);
    is_small.then_some(known)
}

/// Writes the lock and returns its ETag.
async fn write(
    core: &Core,
    call: Call,
    instance: &str,
    op: &Op,
    known: Option<&Acquaintance>,
) -> Result<String, Fault> {
    let Some(known) = known else { return core.store.write(call, instance, op).await };
    let asked = core.clock.instant();
    let (etag, read) = core.store.write_beside(call, instance, op, &known.head.document.id).await?;
    if let Read::Found { body, etag } = read
        && let Ok(document) = decode(&body)
    {
        core.cache.see(known, Tagged { document, etag }, asked);
    }
    Ok(etag)
}

/// What a lock is worth. One that is known only after its end is given back with the attempt.
async fn usable(core: &Core, locked: Tagged<Arc<WorkDocument>>) -> Result<Claim, Fault> {
    let now = core.clock.now_ms();
    if locked.document.locked_until.is_some_and(|until| until > now) {
        return Ok(Claim::Locked(locked));
    }
    let mut document = WorkDocument::clone(&locked.document);
    document.unlock(now, Forgive::ThisAttempt);
    let op = Op::replace(&document.id, &document, Some(&locked.etag))?;
    let call = core.store.quick_call(OPERATION);
    let etag = core.store.patient(call).write(&document.instance_id, &op).await?;
    Ok(Claim::Late(Tagged { document: Arc::new(document), etag }))
}

/// Which operation of a claim reads the head.
const HEAD_INDEX: usize = 1;
/// A read of this size costs a third of a request unit more than an answer that nothing has changed, and no request.
const HEAD_BYTES_MAX: usize = 8 << 10;
const ITEM_BYTES_MAX: usize = 64 << 10;
const UNREADABLE_REST_MS: u64 = 30_000;
