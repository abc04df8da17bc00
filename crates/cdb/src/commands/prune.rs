//! `cdb prune`: old executions of long-lived instances, counted first.

use std::collections::BTreeMap;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use duroxide::providers::PruneOptions;
use serde::Deserialize;
use serde_json::json;

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::interrupt::{Asked, Interrupt};
use crate::output::{Column, Output, Table, parse_moment, say};
use crate::progress::Progress;

/// Delete old executions of instances that continue as new; the current one always stays.
///
/// Without --yes nothing is deleted: what would go is counted. With both rules an execution goes only if both say so.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PruneArgs {
    /// Instance ids [default: all instances].
    ids: Vec<String>,

    /// Keep this many of the latest executions of each instance.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), required_unless_present = "before")]
    keep_last: Option<u32>,

    /// Only executions that ended before then: 7d, 12h, or a date in UTC.
    #[arg(long, value_name = "WHEN")]
    before: Option<String>,

    /// Do it.
    #[arg(long)]
    yes: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb prune --keep-last 2 --data cdb-demo            what would go
  cdb prune bakery-1-shift --keep-last 1 --yes
  cdb prune --before 7d --keep-last 5 --yes";

/// One execution, as its record says.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Execution {
    instance_id: String,
    execution_id: u64,
    status: String,
    completed_at: Option<u64>,
    event_count: u64,
}

/// Counts, and prunes if told to.
pub(crate) async fn run(args: &PruneArgs) -> anyhow::Result<()> {
    Connection::during(&args.connection, async |connection| work(connection, args).await).await
}

async fn work(connection: &Connection, args: &PruneArgs) -> anyhow::Result<()> {
    let before = args
        .before
        .as_deref()
        .map(|text| parse_moment(text, now_ms()))
        .transpose()
        .map_err(Problem::Usage)?;
    let documents = connection.documents()?;
    for id in &args.ids {
        if !documents.is_instance(id).await? {
            return Err(Problem::no_instance(id).into());
        }
    }
    let plan = plan(&read(&documents, &args.ids).await?, args.keep_last, before);
    let output = Output::new(args.json);
    if !args.yes {
        show(output, &plan)?;
        say(if plan.is_empty() {
            "there is nothing to prune"
        } else {
            "nothing was deleted: add --yes to do it"
        });
        return Ok(());
    }
    let client = connection.client().await?;
    let options = PruneOptions { keep_last: args.keep_last, completed_before: before };
    // Until here Ctrl-C simply ends the process.
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let (mut executions, mut events) = (0, 0);
    let mut progress = Progress::new(plan.len() as u64);
    for id in plan.keys() {
        let (pruned, asked) = interrupt.let_finish(client.prune_executions(id, options.clone())).await;
        if let Some(pruned) = pruned {
            let pruned = pruned.with_context(|| format!("cannot prune {id:?}"))?;
            executions += pruned.executions_deleted;
            events += pruned.events_deleted;
            progress.advance(id);
        }
        if asked == Asked::ToStop && progress.done() < plan.len() as u64 {
            let done = progress.done();
            drop(progress);
            let text = format!(
                "stopped: {done} of {} instances are pruned. The same command goes on with the rest.",
                plan.len()
            );
            return Err(Problem::Interrupted(text).into());
        }
    }
    drop(progress);
    if output.is_json() {
        output.json(
            &json!({"instances": plan.len(), "executions": executions, "events": events, "deleted": true}),
        )?;
    } else {
        output.line(&format!(
            "{executions} executions with {events} events of {} instances deleted",
            plan.len()
        ))?;
    }
    Ok(())
}

async fn read(documents: &Documents, ids: &[String]) -> anyhow::Result<Vec<Execution>> {
    if ids.is_empty() {
        return documents.query_all(Query::new(EXECUTIONS)).await;
    }
    let mut rows = Vec::new();
    for id in ids {
        rows.append(&mut documents.query(id, Query::new(EXECUTIONS)).await?);
    }
    Ok(rows)
}

/// What the rules say: by instance, the executions that go. The record of the head is that of the current execution.
fn plan(rows: &[Execution], keep_last: Option<u32>, before: Option<u64>) -> BTreeMap<String, Vec<Execution>> {
    let mut by_instance: BTreeMap<&str, BTreeMap<u64, &Execution>> = BTreeMap::new();
    for row in rows {
        by_instance.entry(&row.instance_id).or_default().insert(row.execution_id, row);
    }
    let mut plan = BTreeMap::new();
    for (instance, executions) in by_instance {
        let current = executions.keys().last().copied().unwrap_or(0);
        let keep = usize::try_from(keep_last.unwrap_or(1).max(1)).unwrap_or(usize::MAX);
        let goes: Vec<Execution> = executions
            .values()
            .rev()
            .skip(keep)
            .filter(|execution| execution.execution_id != current && execution.status != "Running")
            .filter(|execution| {
                before.is_none_or(|limit| execution.completed_at.is_some_and(|at| at < limit))
            })
            .map(|execution| (*execution).clone())
            .collect();
        if !goes.is_empty() {
            plan.insert(instance.to_owned(), goes);
        }
    }
    plan
}

fn show(output: Output, plan: &BTreeMap<String, Vec<Execution>>) -> anyhow::Result<()> {
    let events =
        |executions: &[Execution]| executions.iter().map(|execution| execution.event_count).sum::<u64>();
    if output.is_json() {
        let executions: usize = plan.values().map(Vec::len).sum();
        let events: u64 = plan.values().map(|executions| events(executions)).sum();
        output.json(
            &json!({"instances": plan.len(), "executions": executions, "events": events, "deleted": false}),
        )?;
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::flexible("INSTANCE", 16),
        Column::number("EXECUTIONS"),
        Column::number("EVENTS"),
    ]);
    for (instance, executions) in plan {
        table.row([instance.clone(), executions.len().to_string(), events(executions).to_string()]);
    }
    if !table.is_empty() {
        output.table(&table)?;
    }
    Ok(())
}

/// Records of ended executions, and the heads as records of the current ones.
const EXECUTIONS: &str = "SELECT c.instanceId, \
    (c.type = 'instance' ? c.currentExecutionId : c.executionId) AS executionId, \
    c.status, c.completedAt, c.eventCount FROM c WHERE c.type IN ('execution', 'instance')";

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Execution> {
        (1..=5)
            .map(|execution_id| Execution {
                instance_id: "a".to_owned(),
                execution_id,
                status: if execution_id == 5 { "Running" } else { "ContinuedAsNew" }.to_owned(),
                completed_at: (execution_id < 5).then_some(execution_id * 100),
                event_count: 3,
            })
            .collect()
    }

    fn goes(keep_last: Option<u32>, before: Option<u64>) -> Vec<u64> {
        let plan = plan(&rows(), keep_last, before);
        plan.get("a").map(|list| list.iter().map(|row| row.execution_id).collect()).unwrap_or_default()
    }

    #[test]
    fn the_current_execution_always_stays_and_both_rules_must_agree() {
        assert_eq!(goes(Some(1), None), [4, 3, 2, 1]);
        assert_eq!(goes(Some(3), None), [2, 1]);
        assert_eq!(goes(None, Some(250)), [2, 1]);
        assert_eq!(goes(Some(4), Some(250)), [1]);
        assert!(goes(Some(5), None).is_empty());
    }
}
