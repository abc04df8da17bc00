//! The fences around a set of instances that is to be deleted.
//!
//! A fenced head is no instance any more for anybody who looks, and no turn of it can be committed. What was asked for
//! is fenced first; then it can start no more children, and those it started and that have not run are fenced with it.
//! Of these there is only a start, on its way or arrived, so they get a head that is nothing but a fence. One that
//! begins in the meantime is fenced like any other instance.

use std::collections::HashSet;

use duroxide::providers::ProviderError;
use futures::future::BoxFuture;

use crate::core::{Core, decode, in_parallel};
use crate::documents::{Forgive, Head, Status, Tagged, kind};
use crate::error::{Fault, Trouble};
use crate::outbox::{self, Unsent};
use crate::queries::{self, Query};
use crate::store::{Call, Op};

use super::delete::OPERATION;
use super::info::not_found;
use super::list;

/// What stands behind the fences of one deletion.
pub(super) struct Fences {
    pub(super) deletion: String,
    /// What is deleted: what was asked for, then children that had not run, behind their parents.
    pub(super) members: Vec<String>,
    /// The fenced heads of those that have one.
    pub(super) heads: Vec<Tagged<Head>>,
    unsent: Vec<Unsent>,
}

/// How an instance came to be deleted.
#[derive(Clone, Copy)]
enum Reason<'a> {
    /// It was asked for.
    Asked,
    /// It had not run when it was found as a child of one of these.
    Unborn(&'a HashSet<&'a str>),
}

impl Fences {
    /// No fences yet, for the instances asked for.
    pub(super) fn around(ids: &[String]) -> Self {
        let mut members: Vec<String> = Vec::new();
        for id in ids {
            if !members.contains(id) {
                members.push(id.clone());
            }
        }
        let deletion = format!("deletion:{}", uuid::Uuid::new_v4().simple());
        Self { deletion, members, heads: Vec::new(), unsent: Vec::new() }
    }

    /// Fences every head, then the children that have not run, and makes sure that no other child is left out.
    pub(super) async fn put_up(&mut self, core: &Core, call: Call, force: bool) -> Result<(), ProviderError> {
        for id in &self.members {
            self.heads.extend(fence(core, call, id, force, &self.deletion, Reason::Asked).await?);
        }
        if self.heads.is_empty() {
            return Err(not_found(OPERATION, &self.members[0]));
        }
        let mut parents = self.members.clone();
        let mut sent = 0;
        while !parents.is_empty() {
            let unborn = self.unborn(core, call, &parents, sent).await?;
            sent = self.heads.len();
            // Noted first: a fence whose answer is missing is taken down as well.
            self.members.extend(unborn.iter().cloned());
            let fenced = self.fence_unborn(core, call, &unborn, force).await;
            parents.clear();
            for (child, fenced) in unborn.into_iter().zip(fenced) {
                match fenced? {
                    // It began in the meantime and may have children.
                    Some(head) if head.document.is_listed() => {
                        self.heads.push(head);
                        parents.push(child);
                    }
                    Some(head) => self.heads.push(head),
                    None => self.members.retain(|member| *member != child),
                }
            }
        }
        Ok(())
    }

    /// The children of these parents that have not run. One that has, and is not among the members, is in the way.
    async fn unborn(
        &mut self,
        core: &Core,
        call: Call,
        parents: &[String],
        sent: usize,
    ) -> Result<Vec<String>, ProviderError> {
        let surface = |fault: Fault| fault.surface(OPERATION, &parents[0]);
        let members: HashSet<&str> = self.members.iter().map(String::as_str).collect();
        for head in &self.heads[sent..] {
            let unsent = outbox::unsent(core, call, &head.document.instance_id, &self.members).await;
            self.unsent.extend(unsent.map_err(surface)?);
        }
        // Asked for after the outboxes were read: what has left them by then has arrived.
        let offspring = list::offspring(core, call, parents).await.map_err(surface)?;
        if let Some(orphan) = offspring.begun.iter().find(|child| !members.contains(child.as_str())) {
            let sentence = format!(
                "The child {orphan} would be an orphan: it is not in the set to delete. Read the tree again and retry."
            );
            return Err(ProviderError::permanent(OPERATION, sentence));
        }
        let to_start = self.unsent.iter().filter(|message| message.begins_child);
        let mut unborn: Vec<String> = to_start.map(|message| message.target.clone()).collect();
        unborn.extend(offspring.unborn);
        let mut seen = members;
        let unborn: Vec<&String> = unborn.iter().filter(|child| seen.insert(child.as_str())).collect();
        Ok(unborn.into_iter().cloned().collect())
    }

    async fn fence_unborn(
        &self,
        core: &Core,
        call: Call,
        unborn: &[String],
        force: bool,
    ) -> Vec<Result<Option<Tagged<Head>>, ProviderError>> {
        let family: HashSet<&str> = self.members.iter().map(String::as_str).collect();
        let (family, deletion) = (&family, &self.deletion);
        let fences =
            unborn.iter().map(|child| -> BoxFuture<'_, Result<Option<Tagged<Head>>, ProviderError>> {
                Box::pin(fence(core, call, child, force, deletion, Reason::Unborn(family)))
            });
        in_parallel(FENCES_AT_ONCE, fences).await
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
        for id in &self.members {
            let call = core.quick_call(OPERATION);
            let outcome = match fenced_by(core, call, id, &self.deletion).await {
                Ok(Some(head)) => unfence(core, call, head).await,
                Ok(None) => Ok(()),
                Err(fault) => Err(fault),
            };
            if let Err(fault) = outcome {
                tracing::warn!(instance = id, %fault, "a fence may be left behind; the reconciler will take it down");
            }
        }
    }
}

/// The call under which all fences are put up and the set is recorded: it ends long before others may take the first
/// fence down.
pub(super) fn fencing_call(core: &Core) -> Call {
    let call = core.call(OPERATION);
    let fence = core.call_until(OPERATION, core.clock.now_ms() + FENCE_MS / 2);
    Call { deadline: call.deadline.min(fence.deadline), ..call }
}

/// Fences one head. `None` if there is no such instance, or if it is somebody else's that shares the name of a child.
async fn fence(
    core: &Core,
    call: Call,
    id: &str,
    force: bool,
    deletion: &str,
    reason: Reason<'_>,
) -> Result<Option<Tagged<Head>>, ProviderError> {
    let surface = |fault: Fault| fault.surface(OPERATION, id);
    loop {
        let (mut head, etag) = match (core.head(call, id).await.map_err(surface)?, reason) {
            (Some(found), _) => (found.document, Some(found.etag)),
            (None, Reason::Unborn(_)) => (Head::unstarted(id, core.clock.now_ms()), None),
            (None, Reason::Asked) => return Ok(None),
        };
        if let (true, Some(etag)) = (head.deletion.as_deref() == Some(deletion), &etag) {
            return Ok(Some(Tagged { etag: etag.clone(), document: head }));
        }
        if is_stranger(&head, reason) {
            return Ok(None);
        }
        if head.kind == kind::DELETING {
            return Err(ProviderError::retryable(
                OPERATION,
                format!("Instance {id} is being deleted already."),
            ));
        }
        if !force && head.is_visible() && !Status::ends_instance(&head.status) {
            return Err(ProviderError::permanent(
                OPERATION,
                format!("Instance {id} is still running. Cancel it first, or delete it with force."),
            ));
        }
        head.kind = kind::DELETING.to_owned();
        head.deletion = Some(deletion.to_owned());
        // Listed before the fence: nobody was told yet that the instance is not there.
        head.doomed = queued(core, call, id).await.map_err(surface)?;
        head.sweep_at = Some(core.clock.now_ms() + core.settings.age_threshold_ms.max(FENCE_MS));
        // The attempts count if the deletion is taken back.
        head.unlock(Forgive::No);
        let op = match &etag {
            Some(etag) => Op::replace(&head.id, &head, Some(etag)),
            None => Op::create(&head),
        };
        let op = op.map_err(|error| surface(Fault::refused(error.to_string())))?;
        match core.patiently(call, || core.store.write(call, id, &op)).await {
            Ok(etag) => return Ok(Some(Tagged { document: head, etag })),
            Err(fault) if matches!(fault.trouble, Trouble::Changed | Trouble::Missing | Trouble::Exists) => {}
            Err(fault) => return Err(surface(fault)),
        }
    }
}

/// Whether a head is not the child that was found, but an instance that had its name before.
fn is_stranger(head: &Head, reason: Reason<'_>) -> bool {
    let Reason::Unborn(family) = reason else { return false };
    let is_of_family = head.parent_instance_id.as_deref().is_some_and(|parent| family.contains(parent));
    head.is_listed() && !is_of_family
}

/// The messages that wait for an instance; `None` if they are too many for a list.
async fn queued(core: &Core, call: Call, instance: &str) -> Result<Option<Vec<String>>, Fault> {
    let query = Query::new(queries::QUEUED).with("@rows", LISTED_MAX + 1);
    let rows = core.patiently(call, || core.store.query(call, instance, &query)).await?;
    let ids: Vec<String> =
        rows.iter().map(|row| decode(row.get().as_bytes())).collect::<Result<_, Fault>>()?;
    Ok((ids.len() <= LISTED_MAX).then_some(ids))
}

/// Takes a fence down.
pub(super) async fn unfence(core: &Core, call: Call, fenced: Tagged<Head>) -> Result<(), Fault> {
    let mut head = fenced.document;
    head.kind = kind::INSTANCE.to_owned();
    head.deletion = None;
    head.doomed = None;
    head.sweep_at = None;
    let op = Op::replace(&head.id, &head, Some(&fenced.etag))
        .map_err(|error| Fault::refused(error.to_string()))?;
    match core.patiently(call, || core.store.write(call, &head.instance_id, &op)).await {
        Err(fault) if !matches!(fault.trouble, Trouble::Changed | Trouble::Missing) => Err(fault),
        _ => Ok(()),
    }
}

/// The head of an instance, if it carries the fence of this deletion.
pub(super) async fn fenced_by(
    core: &Core,
    call: Call,
    instance: &str,
    deletion: &str,
) -> Result<Option<Tagged<Head>>, Fault> {
    let head = core.head(call, instance).await?;
    Ok(head.filter(|head| head.document.deletion.as_deref() == Some(deletion)))
}

/// How long a fence without a record is left alone.
const FENCE_MS: u64 = 60_000;
/// How many waiting messages the fence lists: far below what fits into a document.
const LISTED_MAX: usize = 10_000;
const FENCES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_instance_of_its_own_is_a_stranger_to_the_family() {
        let family = HashSet::from(["parent"]);
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
        assert_eq!(fences.members, ["b", "a"]);
    }
}
