//! Removing old executions. Never the current one, never a running one.

use std::collections::{BTreeMap, BTreeSet};

use duroxide::providers::{ProviderError, PruneOptions, PruneResult};

use crate::core::Core;
use crate::documents::{Head, Status, kind};
use crate::error::{Fault, Trouble};
use crate::history::finish_commits;
use crate::queries::{self, Query};
use crate::store::settle::{Rests, Settled};
use crate::store::{Backoff, Call, Op};

use super::bulk::BulkMode;
use super::delete::{Stored, remove_all, stored};
use super::info::{Outline, existing, outlines};

const OPERATION: &str = "prune_executions";

/// Prunes one instance.
pub(crate) async fn executions(
    core: &Core,
    instance: &str,
    options: &PruneOptions,
    mode: BulkMode,
) -> Result<PruneResult, ProviderError> {
    core.layout.check(OPERATION)?;
    let call = core.store.call(OPERATION);
    let surface = |fault: Fault| fault.surface(OPERATION, instance);
    let head = existing(core, call, instance).await?;
    let outlines = outlines(core, call, instance).await.map_err(surface)?;
    // Somebody may have died between pruning and counting.
    let counted = (head.execution_count, head.total_event_count);
    let is_miscounted = counted != totals(&outlines, &head);
    let mut executions: BTreeMap<u64, Past> = BTreeMap::new();
    for outline in outlines {
        let past = executions.entry(outline.execution_id).or_default();
        if outline.kind == kind::EXECUTION {
            past.status = outline.status;
            past.completed_at = outline.completed_at;
        }
    }
    executions.entry(head.current_execution_id).or_default();
    let mut listed = Vec::new();
    for number in victims(&executions, head.current_execution_id, options) {
        let query = Query::new(queries::EXECUTION_DOCUMENTS).with("@exec", number);
        listed.push(stored(core, call, instance, &query).await.map_err(surface)?);
    }
    let mut result = PruneResult { instances_processed: 1, ..PruneResult::default() };
    if mode == BulkMode::Perform && !listed.is_empty() {
        // What was listed belongs to the next life of the instance if that has begun meanwhile.
        let now = core.store.patient(call).head(instance).await.map_err(surface)?;
        if now.is_none_or(|now| !now.document.is_same_life_as(&head)) {
            return Ok(result);
        }
    }
    for rows in listed {
        let events = rows.iter().map(Stored::events).fold(0, u64::saturating_add);
        result.events_deleted = result.events_deleted.saturating_add(events);
        result.executions_deleted += 1;
        if mode == BulkMode::Perform {
            remove(core, call, instance, rows).await.map_err(surface)?;
        }
    }
    if mode == BulkMode::Perform && (result.executions_deleted > 0 || is_miscounted) {
        recount(core, call, instance).await.map_err(surface)?;
    }
    Ok(result)
}

/// What is known of an execution that may be pruned.
#[derive(Debug, Clone, Default)]
struct Past {
    status: Option<String>,
    completed_at: Option<u64>,
}

/// Which executions go: outside the last few AND completed early enough.
fn victims(executions: &BTreeMap<u64, Past>, current: u64, options: &PruneOptions) -> Vec<u64> {
    let keep = usize::try_from(options.keep_last.unwrap_or(0)).unwrap_or(usize::MAX);
    let kept: BTreeSet<u64> = executions.keys().rev().take(keep).copied().collect();
    executions
        .iter()
        .filter(|(number, past)| {
            // Only a record says that an execution runs; one without a record was followed by another.
            let running = past.status.as_deref() == Some(Status::RUNNING);
            let early =
                options.completed_before.is_none_or(|limit| past.completed_at.is_some_and(|at| at < limit));
            // One above it began after the head was read, and is the current one by now.
            let is_past = cosmos_wire::mutant!(18) || (**number < current && !running);
            is_past && !kept.contains(number) && early
        })
        .map(|(number, _)| *number)
        .collect()
}

/// Removes the documents of one execution as they were listed, its record last.
async fn remove(core: &Core, call: Call, instance: &str, mut rows: Vec<Stored>) -> Result<(), Fault> {
    rows.sort_by_key(|row| row.kind == kind::EXECUTION);
    let pieces =
        rows.iter().filter_map(|row| row.chunks.as_ref()).flat_map(|chunks| chunks.ids().collect::<Vec<_>>());
    let pieces = pieces.map(|id| Op::delete(&id, None));
    let ops = pieces.chain(rows.iter().map(|row| Op::delete(&row.id, row.etag.as_deref())));
    let ops: Vec<Op> = ops.collect();
    for group in ops.chunks(100) {
        remove_all(core, call, instance, group).await?;
    }
    Ok(())
}

/// Counts anew what the head says of all executions. What was pruned is not just taken off: who got no answer, or prunes
/// beside somebody else, would take it off twice.
async fn recount(core: &Core, call: Call, instance: &str) -> Result<(), Fault> {
    let mut backoff = Backoff::default();
    loop {
        let Some(found) = core.store.patient(call).head(instance).await? else { return Ok(()) };
        let mut head = found.document;
        if head.is_legacy() {
            return Ok(());
        }
        // What the head knows of must be there to be counted; what comes later changes its ETag.
        finish_commits(core, call, instance).await?;
        let (executions, events) = totals(&outlines(core, call, instance).await?, &head);
        if (head.execution_count, head.total_event_count) == (executions, events) {
            return Ok(());
        }
        (head.execution_count, head.total_event_count) = (executions, events);
        let op = Op::replace(&head.id, &head, Some(&found.etag))?;
        match core.store.patient(call).settle_one(instance, &op, Rests::Shared).await? {
            Settled::Applied(etag) => {
                core.cache.relock(instance, &head, &etag);
                return Ok(());
            }
            // Turns go on meanwhile. What cannot be counted now is counted by the next pruning.
            Settled::Superseded(fault) if fault.trouble == Trouble::Missing => return Ok(()),
            Settled::Superseded(fault) if backoff.wait(call, &fault).await => {}
            Settled::Superseded(fault) => return Err(fault),
            Settled::Arrived => return Ok(()),
        }
    }
}

/// How many executions and events there are, in documents and in the head. The current execution is there even if nothing
/// of it is.
fn totals(outlines: &[Outline], head: &Head) -> (u64, u64) {
    let mut executions: BTreeSet<u64> = outlines.iter().map(|outline| outline.execution_id).collect();
    executions.insert(head.current_execution_id);
    let in_head = head.events.len() as u64;
    let events = outlines.iter().map(Outline::events).fold(in_head, u64::saturating_add);
    (executions.len() as u64, events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> BTreeMap<u64, Past> {
        let past = |status: &str, at: Option<u64>| Past { status: Some(status.to_owned()), completed_at: at };
        BTreeMap::from([
            (1, past("ContinuedAsNew", Some(10))),
            (2, past("ContinuedAsNew", Some(20))),
            (3, past("Running", None)),
            (4, past("ContinuedAsNew", Some(40))),
            (5, Past::default()),
        ])
    }

    #[test]
    fn both_conditions_must_hold_and_the_current_and_running_ones_stay() {
        let cases: [(Option<u32>, Option<u64>, &[u64]); 7] = [
            (None, None, &[1, 2, 4]),
            (Some(0), None, &[1, 2, 4]),
            (Some(1), None, &[1, 2, 4]),
            (Some(2), None, &[1, 2]),
            (None, Some(0), &[]),
            (None, Some(20), &[1]),
            (Some(4), Some(1000), &[1]),
        ];
        for (keep_last, completed_before, expected) in cases {
            let options = PruneOptions { keep_last, completed_before };
            assert_eq!(victims(&history(), 5, &options), expected, "{options:?}");
        }
    }

    #[test]
    fn an_execution_that_began_after_the_head_was_read_stays() {
        let mut executions = history();
        executions.insert(6, Past::default());
        assert_eq!(victims(&executions, 5, &PruneOptions::default()), [1, 2, 4]);
    }

    #[test]
    fn every_execution_counts_once_and_only_history_and_head_hold_events() {
        let outline = |kind: &str, execution: u64, events: Option<u64>| -> Outline {
            let row = serde_json::json!({ "type": kind, "executionId": execution, "eventCount": events });
            serde_json::from_value(row).unwrap()
        };
        let outlines = [
            outline("execution", 1, Some(9)),
            outline("history", 2, Some(4)),
            outline("history", 2, None),
            outline("execution", 2, Some(5)),
        ];
        let mut head = Head::unstarted("a", 1);
        assert_eq!(totals(&[], &head), (1, 0));
        (head.current_execution_id, head.events) = (3, vec!["{}".to_owned(); 2]);
        assert_eq!(totals(&outlines, &head), (3, 7));
    }
}
