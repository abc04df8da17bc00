//! `cdb delete`: instances and their descendants, counted first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use duroxide::Client;
use duroxide::providers::Provider;
use serde::Deserialize;
use serde_json::json;

use crate::clock::now_ms;
use crate::commands::instances::{FilterArgs, Status, list};
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::interrupt::{Asked, Interrupt};
use crate::model::{Partition, kind};
use crate::output::{Output, plural, say};
use crate::progress::Progress;

/// Delete instances with their sub-orchestrations, histories and messages.
///
/// Without --yes nothing is deleted: what would go is counted. Each instance goes with its whole tree or not at all;
/// after Ctrl-C the same command goes on where it stopped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DeleteArgs {
    /// Instance ids; or choose with the filters below.
    ids: Vec<String>,

    #[command(flatten)]
    filter: FilterArgs,

    /// At most this many of the trees that filters choose.
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    limit: Option<usize>,

    /// Delete running instances as well.
    #[arg(long)]
    force: bool,

    /// Do it.
    #[arg(long)]
    yes: bool,

    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb delete bakery-1-order --data cdb-demo           what would go
  cdb delete bakery-1-order --data cdb-demo --yes     gone
  cdb delete --status completed --before 30d          what ended more than a month ago
  cdb delete --prefix stress- --force --yes";

/// What goes, or has gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    instances: u64,
    executions: u64,
    events: u64,
    messages: u64,
}

/// Counts, and deletes if told to.
pub(crate) async fn run(args: &DeleteArgs) -> anyhow::Result<()> {
    let connection = Connection::open(&args.connection).await?;
    // The sweep of this provider finishes what a killed command left.
    let provider: std::sync::Arc<dyn Provider> =
        connection.provider_with(|config| config.reconciler_interval = SWEEP).await?;
    let outcome = connection.guard(work(&connection, &provider, args)).await;
    drop(provider);
    connection.close().await;
    outcome
}

async fn work(
    connection: &Connection,
    provider: &std::sync::Arc<dyn Provider>,
    args: &DeleteArgs,
) -> anyhow::Result<()> {
    let documents = connection.documents()?;
    let client = Client::new(provider.clone());
    let roots = choose(&documents, args).await?;
    let output = Output::new(args.json);
    if !args.yes {
        let mut tally = Tally::default();
        for root in &roots {
            for member in client.get_instance_tree(root).await?.all_ids {
                tally.add(&count(&documents, &member).await?);
            }
        }
        report(output, roots.len(), tally, "would be deleted")?;
        if !roots.is_empty() {
            say("nothing was deleted: add --yes to do it");
        }
        return Ok(());
    }
    finish_leftovers(&documents).await?;
    // Until here Ctrl-C simply ends the process.
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let mut tally = Tally::default();
    let mut progress = Progress::new(roots.len() as u64);
    for root in &roots {
        // A tree whose deletion has begun goes whole.
        let (deleted, asked) = interrupt.let_finish(client.delete_instance(root, args.force)).await;
        if let Some(deleted) = deleted {
            let deleted = deleted.with_context(|| format!("cannot delete {root:?}"))?;
            tally.add(&Tally {
                instances: deleted.instances_deleted,
                executions: deleted.executions_deleted,
                events: deleted.events_deleted,
                messages: deleted.queue_messages_deleted,
            });
            progress.advance(root);
        }
        if asked == Asked::ToStop && progress.done() < roots.len() as u64 {
            let done = progress.done();
            drop(progress);
            let text = format!(
                "stopped: {done} of {} trees are deleted. The same command goes on with the rest.",
                roots.len()
            );
            return Err(Problem::Interrupted(text).into());
        }
    }
    drop(progress);
    report(output, roots.len(), tally, "deleted")
}

/// Waits until this command's provider has finished what a killed one left half deleted.
async fn finish_leftovers(documents: &Documents) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let left: Vec<String> = documents.query_all(Query::new(LEFTOVERS).with("@now", now_ms())).await?;
        if left.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < LEFTOVERS_MAX,
            "{} deletions of earlier commands cannot be finished",
            left.len()
        );
        say(&format!("finishing {} that an earlier command left", plural(left.len(), "deletion")));
        tokio::time::sleep(SWEEP).await;
    }
}

/// The roots of the trees that go.
async fn choose(documents: &Documents, args: &DeleteArgs) -> anyhow::Result<Vec<String>> {
    let filter = &args.filter;
    let has_filter = filter.status.is_some()
        || filter.name.is_some()
        || filter.prefix.is_some()
        || filter.since.is_some()
        || filter.before.is_some();
    match (args.ids.is_empty(), has_filter) {
        (true, false) => {
            Err(Problem::Usage("say which instances: ids, or filters such as --before 30d".into()).into())
        }
        (false, true) => Err(Problem::Usage("say ids or filters, not both".into()).into()),
        (false, false) => named(documents, args).await,
        (true, true) => {
            let mut chosen = list(documents, &FilterArgs { roots: true, ..filter.clone() }).await?;
            let running = Status::Running.name();
            let left_out = chosen.iter().filter(|row| row.status == running).count();
            if !args.force {
                chosen.retain(|row| row.status != running);
                if left_out > 0 {
                    say(&format!("{left_out} running instances are left out: --force takes them as well"));
                }
            }
            chosen.sort_by_key(|row| row.created_at);
            chosen.truncate(args.limit.unwrap_or(usize::MAX));
            Ok(chosen.into_iter().map(|row| row.instance).collect())
        }
    }
}

async fn named(documents: &Documents, args: &DeleteArgs) -> anyhow::Result<Vec<String>> {
    for id in &args.ids {
        let partition = Partition::new(documents.partition(id).await?);
        let head = partition.head().ok_or_else(|| Problem::no_instance(id))?;
        if let Some(parent) = &head.parent_instance_id {
            return Err(Problem::Usage(format!(
                "{id:?} is a child of {parent:?}: delete the root of the tree"
            ))
            .into());
        }
        if !head.has_ended() && !args.force && head.kind == kind::INSTANCE {
            return Err(Problem::Usage(format!(
                "{id:?} is {}: add --force to delete it anyway",
                head.status
            ))
            .into());
        }
    }
    Ok(args.ids.clone())
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Row {
    #[serde(rename = "type")]
    kind: String,
    event_count: u64,
    execution_id: u64,
    event_data: Option<bool>,
}

async fn count(documents: &Documents, member: &str) -> anyhow::Result<Tally> {
    let rows: Vec<Row> = documents.query(member, Query::new(COUNT)).await?;
    Ok(tally(&rows))
}

fn tally(rows: &[Row]) -> Tally {
    let mut executions: BTreeMap<u64, u64> = BTreeMap::new();
    let mut tally = Tally { instances: 1, ..Tally::default() };
    for row in rows {
        match row.kind.as_str() {
            kind::HISTORY => {
                let events = if row.event_data == Some(true) { 1 } else { row.event_count };
                *executions.entry(row.execution_id).or_default() += events;
            }
            kind::MESSAGE | kind::WORK => tally.messages += 1,
            _ => {}
        }
    }
    tally.executions = executions.len() as u64;
    tally.events = executions.values().sum();
    tally
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.instances += other.instances;
        self.executions += other.executions;
        self.events += other.events;
        self.messages += other.messages;
    }
}

fn report(output: Output, trees: usize, tally: Tally, what: &str) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(&json!({"trees": trees, "instances": tally.instances, "executions": tally.executions,
            "events": tally.events, "messages": tally.messages, "deleted": what == "deleted"}))?;
    } else {
        output.line(&format!(
            "{} with {}, {}, {} and {} {what}",
            plural(trees, "tree"),
            plural(tally.instances, "instance"),
            plural(tally.executions, "execution"),
            plural(tally.events, "event"),
            plural(tally.messages, "waiting message")
        ))?;
    }
    Ok(())
}

/// Deletions that have passed the point of no return and are nobody's business any more.
const LEFTOVERS: &str = "SELECT VALUE c.id FROM c WHERE c.type = 'deletion' AND c.sweepAt <= @now";
const LEFTOVERS_MAX: Duration = Duration::from_secs(30);
const SWEEP: Duration = Duration::from_millis(500);
const COUNT: &str = "SELECT c.type, c.eventCount, c.executionId, IS_DEFINED(c.eventData) AS eventData FROM c \
    WHERE c.type IN ('history', 'orch_queue', 'worker_queue')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_layouts_of_history_are_counted() {
        let row = |kind: &str, event_count: u64, execution_id: u64, event_data: bool| Row {
            kind: kind.to_owned(),
            event_count,
            execution_id,
            event_data: Some(event_data),
        };
        let rows = [row("history", 5, 1, false), row("history", 0, 2, true), row("orch_queue", 0, 0, false)];
        assert_eq!(tally(&rows), Tally { instances: 1, executions: 2, events: 6, messages: 1 });
    }
}
