//! `cdb prune`: old executions of long-lived instances, counted first.

use std::ops::ControlFlow;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use duroxide::ClientError;
use duroxide::providers::{InstanceFilter, PruneOptions};
use duroxide_cdb::{BulkMode, CosmosDBProvider};
use serde_json::json;

use crate::bulk::{Ended, each};
use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs, NO_SWEEP};
use crate::documents::tell_unreadable;
use crate::exit::Problem;
use crate::interrupt::Interrupt;
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
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

/// What goes from one instance, or has gone.
pub(crate) struct Pruned {
    pub(crate) instance: String,
    pub(crate) executions: u64,
    pub(crate) events: u64,
}

/// What came of pruning one instance.
pub(crate) enum Outcome {
    /// What goes, if anything does.
    Done(Option<Pruned>),
    /// Something of it cannot be read, so it stays as it is.
    Unreadable,
}

/// Counts, and prunes if told to.
pub(crate) async fn run(args: &PruneArgs) -> anyhow::Result<()> {
    if args.keep_last.is_none() && args.before.is_none() {
        let text = "say which executions go: --keep-last N, --before WHEN, or both".to_owned();
        return Err(Problem::Usage(text).into());
    }
    Connection::during(&args.connection, async |connection| Box::pin(work(connection, args)).await).await
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
    let mut ids: Vec<String> = match args.ids.is_empty() {
        true => documents.query_all(Query::new(PRUNABLE)).await?,
        false => args.ids.clone(),
    };
    ids.sort();
    ids.dedup();
    let provider = connection.provider_with(|config| config.reconciler_interval = NO_SWEEP).await?;
    let options = PruneOptions { keep_last: args.keep_last, completed_before: before };
    let output = Output::new(args.json);
    let (mut pruned, mut unreadable) = (Vec::new(), Vec::new());
    let mode = if args.yes { BulkMode::Perform } else { BulkMode::Rehearse };
    // Until here Ctrl-C simply ends the process.
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let mut progress = Progress::new(ids.len() as u64);
    let mut fatal = None;
    let (provider, options) = (&provider, &options);
    let ended = each(
        &ids,
        || provider.is_throttled(),
        &mut interrupt,
        |id| Box::pin(async move { (id, prune(provider, id, options, mode).await) }),
        |(id, outcome): (&String, anyhow::Result<Outcome>)| {
            match outcome {
                Ok(Outcome::Unreadable) => unreadable.push(json!({ "instanceId": id })),
                Ok(Outcome::Done(done)) => pruned.extend(done),
                Err(error) => {
                    fatal = Some(error);
                    return ControlFlow::Break(());
                }
            }
            progress.advance(id);
            ControlFlow::Continue(())
        },
    )
    .await;
    if let Some(error) = fatal {
        return Err(error);
    }
    if ended != Ended::All && progress.done() < ids.len() as u64 {
        let done = progress.done();
        drop(progress);
        let text = format!(
            "stopped: {done} of {} instances are pruned. The same command goes on with the rest.",
            ids.len()
        );
        return Err(Problem::Interrupted(text).into());
    }
    drop(progress);
    pruned.sort_by(|a, b| a.instance.cmp(&b.instance));
    if !args.yes {
        show(output, &pruned)?;
        tell_unreadable(&unreadable);
        say(if pruned.is_empty() {
            "there is nothing to prune"
        } else {
            "nothing was deleted: add --yes to do it"
        });
        return Ok(());
    }
    tell_unreadable(&unreadable);
    let (executions, events) = totals(&pruned);
    if output.is_json() {
        output.json(
            &json!({"instances": pruned.len(), "executions": executions, "events": events, "deleted": true}),
        )?;
    } else {
        output.line(format!(
            "{executions} executions with {events} events of {} instances deleted",
            pruned.len()
        ))?;
    }
    Ok(())
}

/// Prunes one instance, or counts what would go; none if nothing does. The provider decides: it knows how the public
/// crate keeps executions as well.
pub(crate) async fn prune(
    provider: &CosmosDBProvider,
    id: &str,
    options: &PruneOptions,
    mode: BulkMode,
) -> anyhow::Result<Outcome> {
    let only =
        InstanceFilter { instance_ids: Some(vec![id.to_owned()]), completed_before: None, limit: None };
    let done = provider.prune_where(&only, options, mode, |_| {}).await.map_err(ClientError::from);
    let done = done.with_context(|| format!("cannot prune {id:?}"))?;
    if done.unreadable > 0 {
        return Ok(Outcome::Unreadable);
    }
    let pruned = Pruned { instance: id.to_owned(), executions: done.executions, events: done.events };
    Ok(Outcome::Done((pruned.executions > 0).then_some(pruned)))
}

/// Executions and events.
fn totals(pruned: &[Pruned]) -> (u64, u64) {
    (pruned.iter().map(|row| row.executions).sum(), pruned.iter().map(|row| row.events).sum())
}

fn show(output: Output, pruned: &[Pruned]) -> anyhow::Result<()> {
    if output.is_json() {
        let (executions, events) = totals(pruned);
        output.json(
            &json!({"instances": pruned.len(), "executions": executions, "events": events, "deleted": false}),
        )?;
        return Ok(());
    }
    let mut table = Table::new(vec![
        Column::flexible("INSTANCE", 16),
        Column::number("EXECUTIONS"),
        Column::number("EVENTS"),
    ]);
    for row in pruned {
        table.row([row.instance.clone(), row.executions.to_string(), row.events.to_string()]);
    }
    if !table.is_empty() {
        output.table(&table)?;
    }
    Ok(())
}

/// Instances, without those whose head says that there is one execution: of them nothing can go. Those of which that, or
/// anything else, cannot be told are asked one by one. Only ids: an instance that continues as new for years must not need
/// more memory than another.
const PRUNABLE: &str = "SELECT VALUE c.instanceId FROM c WHERE c.type = 'instance' \
    AND (c.started = true OR ((NOT IS_DEFINED(c.formatVersion) OR c.formatVersion = 0) \
    AND c.orchestrationName != '')) \
    AND (c.executionCount > 1 OR NOT IS_NUMBER(c.executionCount) OR NOT IS_STRING(c.orchestrationName) \
    OR NOT IS_NUMBER(c.updatedAt) OR NOT (c.createdAt >= 0))";
