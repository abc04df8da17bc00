//! The fences around a set of instances that is to be deleted.
//!
//! A fenced head is no instance any more for anybody who looks, and no turn of it can be committed. What was asked for
//! is fenced first; then it can start no more children, and those it started and that have not run are fenced with it.
//! Of these there is only a start, on its way or arrived, so they get a head that is nothing but a fence. One that
//! begins in the meantime is fenced like any other instance.
//!
//! Parents are fenced before their children, and what they still have to send is listed in between: a message that has
//! left the parent by then is among those that wait for the child when it is fenced, and goes with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use duroxide::providers::ProviderError;
use futures::future::BoxFuture;

use crate::core::Core;
use crate::documents::{Forgive, Head, Status, Tagged, kind};
use crate::error::Fault;
use crate::outbox::{self, Unsent};
use crate::parallel::in_parallel;
use crate::store::settle::{Rests, Settled};
use crate::store::{Backoff, Call, Op};

use super::delete::{OPERATION, is_abandoned};
use super::info::not_found;
use super::list;
use super::waiting::{self, begins_stranger};
use super::wreck;

/// What stands behind the fences of one deletion.
pub(super) struct Fences {
    pub(super) deletion: String,
    asked: Vec<String>,
    /// What is deleted, parents before their children: what was asked for and is there, then those that had not run.
    pub(super) members: Vec<String>,
    /// The fenced heads of those that have one.
    pub(super) heads: Vec<Tagged<Head>>,
    unsent: Vec<Unsent>,
}

/// Which instances may be deleted.
#[derive(Clone, Copy)]
pub(crate) enum Terms<'a> {
    /// Those that have ended.
    Ended,
    /// All of them.
    Any,
    /// All of them, if the head of this one is as it should be when it is fenced.
    Selected(&'a str, &'a (dyn Fn(&Head) -> bool + Sync)),
    /// Those that have run and ended, if the head of this one is as it should be: what waits for its time keeps all of them.
    Retired(&'a str, &'a (dyn Fn(&Head) -> bool + Sync)),
}

impl Terms<'_> {
    /// Whether an instance may not be deleted.
    pub(super) fn refuses(self, id: &str, head: &Head) -> bool {
        self.refusal(id, head).is_some()
    }

    /// Why an instance may not be deleted, if so.
    fn refusal(self, id: &str, head: &Head) -> Option<String> {
        match self {
            Self::Ended if head.wreck.is_some() => Some(format!(
                "The head of instance {id} cannot be read, so it may still be running. Delete it with force."
            )),
            Self::Ended if head.is_visible() && !Status::ends_instance(&head.status) => {
                Some(format!("Instance {id} is still running. Cancel it first, or delete it with force."))
            }
            Self::Selected(root, is_selected) if root == id && !is_selected(head) => {
                Some(format!("Instance {id} is not what was selected any more. Select again."))
            }
            Self::Retired(..) if head.wreck.is_some() || !Status::ends_instance(&head.status) => {
                Some(format!("Instance {id} has not ended, so nothing of its tree is removed yet."))
            }
            Self::Retired(root, is_due) if root == id && !is_due(head) => {
                Some(format!("Instance {id} is not due any more."))
            }
            Self::Ended | Self::Any | Self::Selected(..) | Self::Retired(..) => None,
        }
    }
}

/// How an instance came to be deleted.
#[derive(Clone, Copy)]
enum Reason<'a> {
    /// It was asked for.
    Asked,
    /// It had not run when it was found as a child of one of these.
    Unborn(&'a HashSet<String>),
}

impl Fences {
    /// No fences yet, for the instances asked for.
    pub(super) fn around(ids: &[String]) -> Self {
        let mut seen = HashSet::new();
        let asked: Vec<String> = ids.iter().filter(|id| seen.insert(id.as_str())).cloned().collect();
        let deletion = format!("deletion:{}", uuid::Uuid::new_v4().simple());
        Self { deletion, asked, members: Vec::new(), heads: Vec::new(), unsent: Vec::new() }
    }

    /// Fences every head, then the children that have not run, and makes sure that no other child is left out.
    pub(super) async fn put_up(
        &mut self,
        core: &Core,
        call: Call,
        terms: Terms<'_>,
    ) -> Result<(), ProviderError> {
        let outcome = self.enclose(core, call, terms).await;
        outcome.map_err(|error| in_time(error, call.remaining(), self.heads.len(), self.members.len()))
    }

    async fn enclose(&mut self, core: &Core, call: Call, terms: Terms<'_>) -> Result<(), ProviderError> {
        self.fence_asked(core, call, terms).await?;
        if self.heads.is_empty() {
            return Err(not_found(OPERATION, &self.asked[0]));
        }
        let mut parents = self.asked.clone();
        while !parents.is_empty() {
            let unborn = self.unborn(core, call, &parents).await?;
            // Noted first: a fence whose answer is missing is taken down as well.
            self.members.extend(unborn.iter().cloned());
            let family: HashSet<String> = self.members.iter().cloned().collect();
            let unborn = unborn.into_iter().map(|child| (child, None)).collect();
            // One that began in the meantime may have children.
            parents = self.fence_together(core, call, terms, unborn, Reason::Unborn(&family)).await?;
        }
        Ok(())
    }

    /// Fences what was asked for and is there, parents before children.
    async fn fence_asked(&mut self, core: &Core, call: Call, terms: Terms<'_>) -> Result<(), ProviderError> {
        let reads = self.asked.iter().map(|id| -> BoxFuture<'_, Result<_, ProviderError>> {
            Box::pin(async move {
                wreck::head(core, call, id).await.map_err(|fault| fault.surface(OPERATION, id))
            })
        });
        let reads = in_parallel(FENCES_AT_ONCE, reads).await;
        let mut heads: HashMap<String, Tagged<Head>> = HashMap::with_capacity(reads.len());
        for (id, read) in self.asked.iter().zip(reads) {
            heads.extend(read?.map(|head| (id.clone(), head)));
        }
        if let Terms::Selected(root, _) | Terms::Retired(root, _) = terms
            && !heads.contains_key(root)
        {
            return Err(not_found(OPERATION, root));
        }
        let there = self.asked.iter().filter_map(|id| Some((id.as_str(), &heads.get(id)?.document)));
        let levels = generations(
            &there.map(|(id, head)| (id, head.parent_instance_id.as_deref())).collect::<Vec<_>>(),
        );
        self.members = levels.concat();
        for level in levels {
            let level = level.into_iter().map(|id| (heads.remove(&id), id));
            let level = level.map(|(head, id)| (id, head)).collect();
            self.fence_together(core, call, terms, level, Reason::Asked).await?;
        }
        Ok(())
    }

    /// Fences instances, with what is known of their heads, and lists what each of them still has to send. Returns those
    /// that have run.
    async fn fence_together(
        &mut self,
        core: &Core,
        call: Call,
        terms: Terms<'_>,
        instances: Vec<(String, Option<Tagged<Head>>)>,
        reason: Reason<'_>,
    ) -> Result<Vec<String>, ProviderError> {
        let (ids, known): (Vec<String>, Vec<Option<Tagged<Head>>>) = instances.into_iter().unzip();
        let (deletion, members) = (&self.deletion, &self.members);
        let fences = ids.iter().zip(known).map(|(id, known)| -> BoxFuture<'_, Result<_, ProviderError>> {
            Box::pin(async move {
                let Some(head) = fence(core, call, id, known, terms, deletion, reason).await? else {
                    return Ok(None);
                };
                let unsent = if head.document.is_listed() {
                    let unsent = outbox::unsent(core, call, id, members).await;
                    unsent.map_err(|fault| fault.surface(OPERATION, id))?
                } else {
                    Vec::new()
                };
                Ok(Some((head, unsent)))
            })
        });
        let fences = in_parallel(FENCES_AT_ONCE, fences).await;
        let mut have_run = Vec::new();
        let mut strangers = HashSet::new();
        let mut trouble = None;
        for (id, fence) in ids.into_iter().zip(fences) {
            match fence {
                Ok(Some((head, unsent))) => {
                    if head.document.is_listed() {
                        have_run.push(id);
                    }
                    self.heads.push(head);
                    self.unsent.extend(unsent);
                }
                Ok(None) => {
                    strangers.insert(id);
                }
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        self.members.retain(|member| !strangers.contains(member));
        trouble.map_or(Ok(have_run), Err)
    }

    /// The children of these parents that have not run, or had not when they were asked for. Another one that has, and
    /// is not among the members, is in the way.
    async fn unborn(
        &self,
        core: &Core,
        call: Call,
        parents: &[String],
    ) -> Result<Vec<String>, ProviderError> {
        let members: HashSet<&str> = self.members.iter().map(String::as_str).collect();
        let asked: HashSet<&str> = self.asked.iter().map(String::as_str).collect();
        // Asked for after the outboxes were read: what has left them by then has arrived.
        let offspring = list::offspring(core, call, parents).await;
        let offspring = offspring.map_err(|fault| fault.surface(OPERATION, &parents[0]))?;
        let is_known = |child: &String| members.contains(child.as_str()) || asked.contains(child.as_str());
        if let Some(orphan) = offspring.begun.iter().find(|child| !is_known(child)) {
            let sentence = format!(
                "The child {orphan} would be an orphan: it is not in the set to delete. Read the tree again and retry."
            );
            return Err(ProviderError::permanent(OPERATION, sentence));
        }
        let to_start = self.unsent.iter().filter(|message| message.begins_child);
        let to_start = to_start.map(|message| &message.target);
        let mut seen = members;
        let unborn = to_start.chain(&offspring.unborn).chain(&offspring.begun);
        let unborn: Vec<&String> = unborn.filter(|child| seen.insert(child.as_str())).collect();
        Ok(unborn.into_iter().cloned().collect())
    }

    /// The messages that members have sent to each other and that were still to be delivered.
    pub(super) fn doomed(&self) -> Vec<String> {
        let members: HashSet<&str> = self.members.iter().map(String::as_str).collect();
        let between = self.unsent.iter().filter(|message| members.contains(message.target.as_str()));
        between.map(|message| message.id.clone()).collect()
    }

    /// Takes down the fences of a deletion that does not happen, also one whose answer is missing. Each gets time of its
    /// own: perhaps they could not all be put up because there was none left.
    pub(super) async fn take_down(&self, core: &Core) {
        let fences = self.members.iter().map(|id| -> BoxFuture<'_, ()> {
            Box::pin(async move {
                let call = core.store.quick_call(OPERATION);
                let outcome = match fenced_by(core, call, id, &self.deletion).await {
                    Ok(Some(head)) => unfence(core, call, head).await,
                    Ok(None) => Ok(()),
                    Err(fault) => Err(fault),
                };
                if let Err(fault) = outcome {
                    tracing::warn!(instance = id, %fault, "a fence may be left behind; the reconciler will take it down");
                }
            })
        });
        in_parallel(FENCES_AT_ONCE, fences).await;
    }
}

/// Puts instances, given with their parents, in order: each group holds those whose parents are in none that follows.
fn generations(instances: &[(&str, Option<&str>)]) -> Vec<Vec<String>> {
    let parents: HashMap<&str, Option<&str>> = instances.iter().copied().collect();
    let depth = |id: &str| {
        let mut depth = 0;
        let mut at = parents.get(id).copied().flatten();
        // A circle is no family, but it comes to an end.
        while let Some(parent) = at.filter(|parent| depth < instances.len() && parents.contains_key(parent)) {
            depth += 1;
            at = parents.get(parent).copied().flatten();
        }
        depth
    };
    let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (id, _) in instances {
        groups.entry(depth(id)).or_default().push((*id).to_owned());
    }
    groups.into_values().collect()
}

/// The error of fences that could not all be put up: if the time was not enough, it says what helps.
fn in_time(error: ProviderError, remaining: Duration, fenced: usize, members: usize) -> ProviderError {
    if !error.retryable || remaining > TIME_IS_OVER {
        return error;
    }
    let sentence = format!(
        "{}. The time was over when {fenced} of {members} instances were fenced; nothing is deleted. If this goes on, \
         delete them in smaller groups, children first.",
        error.message
    );
    ProviderError::retryable(OPERATION, sentence)
}

/// The call under which all fences are put up and the set is recorded: it ends long before others may take the first
/// fence down.
pub(super) fn fencing_call(core: &Core) -> Call {
    let call = core.store.call(OPERATION);
    let fence = core.store.call_until(OPERATION, core.clock.now_ms() + FENCE_MS / 2);
    Call { deadline: call.deadline.min(fence.deadline), ..call }
}

/// Fences one head, beginning with what is known of it. `None` if there is no such instance, or if it is somebody else's
/// that shares the name of a child.
async fn fence(
    core: &Core,
    call: Call,
    id: &str,
    mut known: Option<Tagged<Head>>,
    terms: Terms<'_>,
    deletion: &str,
    reason: Reason<'_>,
) -> Result<Option<Tagged<Head>>, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, id);
    let mut backoff = Backoff::default();
    loop {
        let (mut head, etag) = match (known, reason) {
            (Some(found), _) => (found.document, Some(found.etag)),
            // Mostly there is none; if there is, the fence will not be put up beside it.
            (None, Reason::Unborn(_)) => (Head::unstarted(id, core.clock.now_ms()), None),
            (None, Reason::Asked) => return Ok(None),
        };
        if let (true, Some(etag)) = (head.deletion.as_deref() == Some(deletion), &etag) {
            core.cache.forget(id);
            return Ok(Some(Tagged { etag: etag.clone(), document: head }));
        }
        if is_stranger(&head, reason) {
            return Ok(None);
        }
        if head.kind == kind::DELETING && !is_abandoned(core, call, &head).await.map_err(surface)? {
            return Err(being_deleted(id));
        }
        if let Some(refusal) = terms.refusal(id, &head) {
            return Err(ProviderError::permanent(OPERATION, refusal));
        }
        // Listed before the fence: nobody was told yet that the instance is not there.
        let mut queue = waiting::messages(core, call, id).await.map_err(surface)?;
        if let (Reason::Unborn(family), false) = (reason, head.is_listed()) {
            waiting::open(core, call, id, &mut queue).await.map_err(surface)?;
            if begins_stranger(&queue, family) {
                return Ok(None);
            }
        }
        head.kind = kind::DELETING.to_owned();
        head.deletion = Some(deletion.to_owned());
        // A fence must stand until the deletion takes it down.
        head.ttl = None;
        head.doomed = waiting::list(queue);
        head.sweep_at = Some(core.clock.now_ms() + core.settings.age_threshold_ms.max(FENCE_MS));
        // The attempts count if the deletion is taken back.
        head.unlock(Forgive::No);
        let op = match &etag {
            Some(etag) => Op::replace(&head.id, &head, Some(etag)),
            None => Op::create(&head),
        };
        let op = op.map_err(|error| surface(error.into()))?;
        let settled = core.store.patient(call).settle_one(id, &op, Rests::Shared).await;
        match settled.map_err(surface)? {
            Settled::Applied(etag) => {
                core.cache.forget(id);
                return Ok(Some(Tagged { document: head, etag }));
            }
            // A busy instance changes with every turn: each try comes after a longer pause, until there is no time left. The
            // next look recognises a fence that was set by a try without an answer.
            Settled::Arrived => {}
            Settled::Superseded(fault) => {
                if !backoff.wait(call, &fault).await {
                    return Err(busy(id));
                }
            }
        }
        known = wreck::head(core, call, id).await.map_err(surface)?;
    }
}

/// The error of an instance that another deletion has fenced.
fn being_deleted(id: &str) -> ProviderError {
    ProviderError::retryable(OPERATION, format!("Instance {id}{BEING_DELETED}"))
}

/// Whether a deletion did not happen because another one has fenced one of its instances.
pub(super) fn is_being_deleted(error: &ProviderError) -> bool {
    error.retryable && error.message.contains(BEING_DELETED)
}

/// The error of an instance that changed with every try to fence it.
fn busy(id: &str) -> ProviderError {
    ProviderError::retryable(
        OPERATION,
        format!("Instance {id} changed before each try to fence it. Nothing is deleted; try again."),
    )
}

/// Whether a head is not the child that was found, but an instance that had its name before.
fn is_stranger(head: &Head, reason: Reason<'_>) -> bool {
    let Reason::Unborn(family) = reason else { return false };
    let is_of_family = head.parent_instance_id.as_deref().is_some_and(|parent| family.contains(parent));
    head.is_listed() && !is_of_family
}

/// Takes a fence down.
pub(super) async fn unfence(core: &Core, call: Call, fenced: Tagged<Head>) -> Result<(), Fault> {
    let mut head = fenced.document;
    head.kind = kind::INSTANCE.to_owned();
    head.deletion = None;
    head.doomed = None;
    head.sweep_at = None;
    let op = match head.wreck.take().filter(|text| !text.is_empty()) {
        Some(text) => Op::replace_text(&head.id, &text, &fenced.etag),
        None => Op::replace(&head.id, &head, Some(&fenced.etag))?,
    };
    core.store.patient(call).settle_one(&head.instance_id, &op, Rests::Shared).await.map(drop)
}

/// The head of an instance, if it carries the fence of this deletion.
pub(super) async fn fenced_by(
    core: &Core,
    call: Call,
    instance: &str,
    deletion: &str,
) -> Result<Option<Tagged<Head>>, Fault> {
    let head = core.store.patient(call).head(instance).await?;
    Ok(head.filter(|head| head.document.deletion.as_deref() == Some(deletion)))
}

const BEING_DELETED: &str = " is being deleted already.";
/// How long a fence without a record is left alone.
const FENCE_MS: u64 = 60_000;
const FENCES_AT_ONCE: usize = 16;
/// Who has less time left does not try again.
const TIME_IS_OVER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_instance_of_its_own_is_a_stranger_to_the_family() {
        let family = HashSet::from(["parent".to_owned()]);
        let mut head = Head::unstarted("child", 1);
        assert!(!is_stranger(&head, Reason::Unborn(&family)), "a lock is no instance");
        head.started = true;
        assert!(is_stranger(&head, Reason::Unborn(&family)));
        assert!(!is_stranger(&head, Reason::Asked));
        head.parent_instance_id = Some("parent".to_owned());
        assert!(!is_stranger(&head, Reason::Unborn(&family)));
    }

    #[test]
    fn each_instance_asked_for_is_deleted_once() {
        let fences = Fences::around(&["b".to_owned(), "a".to_owned(), "b".to_owned()]);
        assert_eq!(fences.asked, ["b", "a"]);
    }

    #[test]
    fn parents_come_before_their_children_however_they_are_named() {
        let family =
            [("c", Some("b")), ("x", None), ("b", Some("a")), ("a", Some("elsewhere")), ("d", Some("a"))];
        assert_eq!(generations(&family), [vec!["x", "a"], vec!["b", "d"], vec!["c"]]);
        assert_eq!(generations(&[("a", Some("b")), ("b", Some("a"))]).concat(), ["a", "b"], "a circle ends");
        assert!(generations(&[]).is_empty());
    }

    #[test]
    fn only_an_error_at_the_end_of_the_time_speaks_of_it() {
        let error = |retryable| ProviderError { retryable, ..ProviderError::permanent("delete", "trouble") };
        let late = in_time(error(true), Duration::ZERO, 3, 5);
        assert!(late.retryable && late.message.contains("3 of 5"), "{late}");
        assert_eq!(in_time(error(true), Duration::from_secs(9), 3, 5).message, "trouble");
        assert_eq!(in_time(error(false), Duration::ZERO, 3, 5).message, "trouble");
    }
}
