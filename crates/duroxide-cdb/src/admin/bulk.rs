//! Operations over many instances: a page at a time, so that a million of them need no more memory than a hundred.
//! Each instance is done before the next, so that whoever is interrupted begins again and finds the rest.

use std::collections::VecDeque;
use std::sync::Arc;

use duroxide::providers::{InstanceFilter, ProviderError, PruneOptions};

use crate::core::Core;
use crate::documents::{Head, Status, kind};
use crate::error::{About, Fault, is_damage};
use crate::queries::{self, Query};
use crate::store::{Call, Walk};

use super::fence::{Terms, is_being_deleted};
use super::list::Facts;
use super::{delete, list, prune, wreck};

/// Whether a bulk operation happens or is only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BulkMode {
    /// Nothing changes; the numbers say what would.
    Rehearse,
    /// It happens.
    Perform,
}

/// What a bulk operation has done so far, or would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkProgress {
    /// Instances looked at.
    pub examined: u64,
    /// Instances deleted, or pruned.
    pub instances: u64,
    /// Executions removed.
    pub executions: u64,
    /// Events removed.
    pub events: u64,
    /// Waiting messages and work items removed. A rehearsal does not count them.
    pub messages: u64,
    /// Instances passed over because something of them cannot be read: neither deleted nor pruned.
    pub unreadable: u64,
}

impl BulkProgress {
    /// Takes note of an instance that is passed over.
    fn pass_over(&mut self, instance: &str, error: &ProviderError) {
        self.unreadable += 1;
        tracing::warn!(instance, %error, "an instance that cannot be read is passed over");
    }
}

/// Told after each step of a bulk operation.
pub(crate) type Listener<'a> = &'a mut (dyn FnMut(BulkProgress) + Send);

/// Deletes finished root instances and their descendants.
pub(crate) async fn delete(
    core: &Arc<Core>,
    filter: &InstanceFilter,
    mode: BulkMode,
    listener: Listener<'_>,
) -> Result<BulkProgress, ProviderError> {
    const OPERATION: &str = "delete_instance_bulk";
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let mut progress = BulkProgress::default();
    let mut selection = Selection::begin(core, OPERATION, filter).await.map_err(surface)?;
    let fits = |facts: &Facts| Status::ends_instance(&facts.status) && facts.parent_instance_id.is_none();
    let is_selected = |head: &Head| {
        let facts = Facts::of(head);
        head.is_visible() && fits(&facts) && is_early(&facts, filter.completed_before)
    };
    while let Some(page) = selection.next(core, core.store.call(OPERATION), fits).await.map_err(surface)? {
        progress.examined = selection.examined;
        for root in page {
            let root = root.instance_id.as_str();
            let surface = |fault: Fault| fault.surface(OPERATION, root);
            let tree = list::tree(core, core.store.call(OPERATION), root).await.map_err(surface)?;
            match mode {
                BulkMode::Perform => {
                    let done = match delete::instances(core, &tree, Terms::Selected(root, &is_selected)).await
                    {
                        Ok(done) => done,
                        // The other deletion has it; if that is taken back, a later one finds it.
                        Err(error) if is_being_deleted(&error) => continue,
                        Err(error) if error.retryable => return Err(error),
                        Err(error) if is_damage(&error) => {
                            progress.pass_over(root, &error);
                            continue;
                        }
                        Err(error) => {
                            // Somebody else may have deleted it, and its next life may not be what was selected.
                            let head = match core.store.patient(core.store.call(OPERATION)).head(root).await {
                                Err(fault) if fault.is_damage => {
                                    progress.pass_over(root, &surface(fault));
                                    continue;
                                }
                                head => head.map_err(surface)?,
                            };
                            let stands = |head: &Head| head.kind == kind::DELETING || is_selected(head);
                            if head.is_some_and(|head| stands(&head.document)) {
                                return Err(error);
                            }
                            continue;
                        }
                    };
                    progress.instances += done.instances_deleted;
                    progress.executions = progress.executions.saturating_add(done.executions_deleted);
                    progress.events = progress.events.saturating_add(done.events_deleted);
                    progress.messages += done.queue_messages_deleted;
                }
                BulkMode::Rehearse => {
                    for instance in &tree {
                        let head =
                            wreck::head(core, core.store.call(OPERATION), instance).await.map_err(surface)?;
                        let Some(head) = head.filter(|head| head.document.is_visible()) else { continue };
                        let (executions, events) =
                            (head.document.execution_count.max(1), head.document.total_event_count);
                        progress.instances += 1;
                        progress.executions = progress.executions.saturating_add(executions);
                        progress.events = progress.events.saturating_add(events);
                    }
                }
            }
            listener(progress);
        }
    }
    progress.examined = selection.examined;
    progress.unreadable += selection.unreadable;
    Ok(progress)
}

/// Prunes old executions of every instance a filter selects, running ones too.
pub(crate) async fn prune(
    core: &Arc<Core>,
    filter: &InstanceFilter,
    options: &PruneOptions,
    mode: BulkMode,
    listener: Listener<'_>,
) -> Result<BulkProgress, ProviderError> {
    const OPERATION: &str = "prune_executions_bulk";
    let surface = |fault: Fault| fault.surface(OPERATION, About::All);
    let mut progress = BulkProgress::default();
    let mut selection = Selection::begin(core, OPERATION, filter).await.map_err(surface)?;
    while let Some(page) =
        selection.next(core, core.store.call(OPERATION), |_| true).await.map_err(surface)?
    {
        progress.examined = selection.examined;
        for facts in page {
            let instance = facts.instance_id.as_str();
            match prune::executions(core, instance, options, mode).await {
                Ok(pruned) => {
                    progress.instances += pruned.instances_processed;
                    progress.executions += pruned.executions_deleted;
                    progress.events = progress.events.saturating_add(pruned.events_deleted);
                }
                Err(error) if is_damage(&error) => progress.pass_over(instance, &error),
                Err(error) => {
                    // It may have been deleted since it was chosen: then there is nothing to prune.
                    let head = core.store.patient(core.store.call(OPERATION)).head(instance).await;
                    let head = head.map_err(|fault| fault.surface(OPERATION, instance))?;
                    if head.is_some_and(|head| head.document.is_visible()) {
                        return Err(error);
                    }
                    continue;
                }
            }
            listener(progress);
        }
    }
    progress.examined = selection.examined;
    progress.unreadable += selection.unreadable;
    Ok(progress)
}

/// The instances a filter selects, a page at a time.
struct Selection<'a> {
    source: Source<'a>,
    completed_before: Option<u64>,
    left: usize,
    examined: u64,
    /// Instances whose facts cannot be read, so that nobody knows whether they are selected.
    unreadable: u64,
}

enum Source<'a> {
    Named(VecDeque<String>),
    All(Walk<'a>),
}

impl<'a> Selection<'a> {
    async fn begin(
        core: &'a Core,
        operation: &'static str,
        filter: &InstanceFilter,
    ) -> Result<Selection<'a>, Fault> {
        let source = match &filter.instance_ids {
            Some(ids) => Source::Named(ids.iter().cloned().collect()),
            None => Source::All(
                core.store.walk(core.store.call(operation), Query::new(queries::INSTANCE_FACTS)).await?,
            ),
        };
        let left = filter.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(Self { source, completed_before: filter.completed_before, left, examined: 0, unreadable: 0 })
    }

    /// The next instances that the filter and `fits` select; `None` at the end.
    async fn next(
        &mut self,
        core: &Core,
        call: Call,
        fits: impl Fn(&Facts) -> bool,
    ) -> Result<Option<Vec<Facts>>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut page: Vec<Facts> = match &mut self.source {
            Source::Named(names) => {
                let Some(name) = names.pop_front() else { return Ok(None) };
                let head = match core.store.patient(call).head(&name).await {
                    Err(fault) if fault.is_damage => {
                        core.strays.pass_over(call.operation, &name, "head", &fault);
                        self.unreadable += 1;
                        None
                    }
                    head => head?.filter(|head| head.document.is_visible()),
                };
                head.map(|head| Facts::of(&head.document)).into_iter().collect()
            }
            Source::All(walk) => {
                let Some(rows) = walk.next(call).await? else { return Ok(None) };
                let page: Vec<Facts> =
                    rows.iter().filter_map(|row| core.strays.read(call.operation, row)).collect();
                self.unreadable += (rows.len() - page.len()) as u64;
                page
            }
        };
        self.examined += page.len() as u64;
        page.retain(|facts| is_early(facts, self.completed_before) && fits(facts));
        page.sort_by_key(|facts| facts.created_at);
        page.truncate(self.left);
        self.left -= page.len();
        Ok(Some(page))
    }
}

/// Whether it was completed early enough, if that is asked for.
fn is_early(facts: &Facts, completed_before: Option<u64>) -> bool {
    let ended = Status::ends_execution(&facts.status).then_some(facts.updated_at);
    let completed = facts.completed_at.or(ended);
    completed_before.is_none_or(|limit| completed.is_some_and(|at| at < limit))
}
