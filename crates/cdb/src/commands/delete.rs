//! `cdb delete`: instances and their descendants, counted first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::Query;
use duroxide::ClientError;
use duroxide::providers::ProviderAdmin as _;
use duroxide_cdb::CosmosDBProvider;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::bulk::{Ended, each};
use crate::census::Census;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::{Documents, tell_unreadable};
use crate::exit::Problem;
use crate::interrupt::Interrupt;
use crate::listing::{FilterArgs, Listed, Status, Wanted, all};
use crate::model::{Queued, kind};
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) instances: u64,
    pub(crate) executions: u64,
    pub(crate) events: u64,
    pub(crate) messages: u64,
}

/// What a command is to delete.
#[derive(Debug, Default)]
struct Chosen {
    /// Roots of trees, the oldest first.
    roots: Vec<String>,
    /// Named instances that another command has begun to delete.
    begun: Vec<String>,
    /// How many were named and are not there.
    missing: usize,
}

/// A deletion that has passed the point of no return.
#[derive(Debug, Deserialize)]
struct Unfinished {
    id: String,
    instances: Vec<String>,
}

/// Counts, and deletes if told to.
pub(crate) async fn run(args: &DeleteArgs) -> anyhow::Result<()> {
    let connection = Connection::open(&args.connection).await?;
    // The sweep of this provider finishes what a killed command left.
    let provider = connection.provider_with(|config| config.reconciler_interval = SWEEP).await?;
    let outcome = connection.guard(work(&connection, &provider, args)).await;
    drop(provider);
    connection.close().await;
    outcome
}

async fn work(
    connection: &Connection,
    provider: &Arc<CosmosDBProvider>,
    args: &DeleteArgs,
) -> anyhow::Result<()> {
    let documents = connection.documents()?;
    let unfinished: Vec<Unfinished> = documents.query_all(Query::new(UNFINISHED)).await?;
    let chosen = choose(&documents, args, &unfinished).await?;
    let missing = chosen.missing;
    if args.yes {
        perform(&documents, provider, args, chosen, &unfinished).await?;
    } else {
        rehearse(&documents, provider, args, &chosen).await?;
    }
    if missing > 0 {
        let text =
            format!("{} of those named {} not there", missing, if missing == 1 { "is" } else { "are" });
        return Err(Problem::Missing(text).into());
    }
    Ok(())
}

async fn rehearse(
    documents: &Documents,
    provider: &Arc<CosmosDBProvider>,
    args: &DeleteArgs,
    chosen: &Chosen,
) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    let mut trees = 0;
    let census = if chosen.roots.len() > FEW { Some(Census::take(documents).await?) } else { None };
    for root in chosen.begun.iter().chain(&chosen.roots) {
        if trees == args.limit.unwrap_or(usize::MAX) {
            break;
        }
        let (tree, running) = match &census {
            Some(census) => census.tree(documents, root).await?,
            None => count_tree(documents, provider, root).await?,
        };
        match running {
            Some(member) if !args.force => say(format!(
                "{root:?} would not be deleted: {member:?} in its tree is running. --force takes it as well"
            )),
            _ => {
                tally.add(&tree);
                trees += 1;
            }
        }
    }
    report(Output::new(args.json), trees, tally, "would be deleted")?;
    if trees > 0 {
        say("nothing was deleted: add --yes to do it");
    }
    Ok(())
}

/// What an instance's tree holds, and a member of it that is running.
pub(crate) async fn count_tree(
    documents: &Documents,
    provider: &CosmosDBProvider,
    root: &str,
) -> anyhow::Result<(Tally, Option<String>)> {
    let mut tree = Tally::default();
    let mut running = None;
    for member in provider.get_instance_tree(root).await.map_err(ClientError::from)?.all_ids {
        let rows: Vec<Row> = documents.query(&member, Query::new(COUNT)).await?;
        tree.add(&tally_of(&rows));
        if rows.iter().any(Row::is_running) {
            running = Some(member);
        }
    }
    Ok((tree, running))
}

/// What one instance holds, by its documents.
pub(crate) async fn count(documents: &Documents, instance: &str) -> anyhow::Result<Tally> {
    Ok(tally_of(&documents.query::<Row>(instance, Query::new(COUNT)).await?))
}

async fn perform(
    documents: &Documents,
    provider: &Arc<CosmosDBProvider>,
    args: &DeleteArgs,
    chosen: Chosen,
    unfinished: &[Unfinished],
) -> anyhow::Result<()> {
    let mut roots = chosen.roots;
    let mut tally = Tally::default();
    let mut finished = 0;
    let mut begun = Vec::new();
    for id in chosen.begun {
        begun.push((count(documents, &id).await?, id));
    }
    finish_leftovers(documents, unfinished).await?;
    for (left, id) in begun {
        if is_gone(documents, &id).await? {
            tally.add(&left);
            finished += 1;
        } else {
            roots.push(id);
        }
    }
    // Until here Ctrl-C simply ends the process.
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let wanted = roots.len().min(args.limit.unwrap_or(usize::MAX)) as u64;
    let mut failures = Vec::new();
    let mut fatal = None;
    let mut progress = Progress::new(wanted);
    let mut roots = roots.iter();
    while progress.done() < wanted && roots.len() > 0 && fatal.is_none() {
        // Those that cannot be deleted are made up for by others.
        let next = usize::try_from(wanted - progress.done()).unwrap_or(usize::MAX);
        let ended = each(
            roots.by_ref().take(next),
            || provider.is_throttled(),
            &mut interrupt,
            |root| Box::pin(async move { (root, delete_one(documents, provider, root, args.force).await) }),
            |(root, outcome): (&String, anyhow::Result<Result<Tally, String>>)| {
                match outcome {
                    Ok(Ok(deleted)) => {
                        tally.add(&deleted);
                        progress.advance(root);
                    }
                    Ok(Err(failure)) => failures.push(failure),
                    Err(error) => {
                        fatal = Some(error);
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            },
        )
        .await;
        if ended != Ended::All && progress.done() < wanted {
            let done = progress.done();
            drop(progress);
            let text = format!(
                "stopped: {done} of {wanted} trees are deleted. The same command goes on with the rest."
            );
            return Err(Problem::Interrupted(text).into());
        }
    }
    if let Some(error) = fatal {
        return Err(error);
    }
    let trees = finished + usize::try_from(progress.done()).unwrap_or(usize::MAX);
    drop(progress);
    report(Output::new(args.json), trees, tally, "deleted")?;
    for failure in &failures {
        say(failure);
    }
    anyhow::ensure!(failures.is_empty(), "{} could not be deleted", plural(failures.len(), "tree"));
    Ok(())
}

/// Deletes one tree. The inner error is one that others do not share.
async fn delete_one(
    documents: &Documents,
    provider: &CosmosDBProvider,
    root: &str,
    force: bool,
) -> anyhow::Result<Result<Tally, String>> {
    match provider.delete_tree(root, force).await {
        Ok(deleted) => Ok(Ok(Tally {
            instances: deleted.instances_deleted,
            executions: deleted.executions_deleted,
            events: deleted.events_deleted,
            messages: deleted.queue_messages_deleted,
        })),
        // The account may be out of reach: the next tree would fare no better.
        Err(error) if error.is_retryable() => {
            Err(ClientError::from(error)).with_context(|| format!("cannot delete {root:?}"))
        }
        // Somebody else was faster.
        Err(_) if documents.head(root).await?.is_none() => Ok(Ok(Tally::default())),
        Err(error) => Ok(Err(format!("cannot delete {root:?}: {}", error.message))),
    }
}

/// Waits until this command's provider has finished what a killed one left half deleted.
async fn finish_leftovers(documents: &Documents, unfinished: &[Unfinished]) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut told = 0;
    loop {
        // Others may begin deletions meanwhile; those are their business.
        let mut left: Vec<Unfinished> = documents.query_all(Query::new(UNFINISHED)).await?;
        left.retain(|left| unfinished.iter().any(|known| known.id == left.id));
        if left.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < LEFTOVERS_MAX,
            "{} of earlier commands cannot be finished",
            plural(left.len(), "deletion")
        );
        if told != left.len() {
            told = left.len();
            say(format!("finishing {} that an earlier command left", plural(told, "deletion")));
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// Waits for the end of a deletion that another command began: done, or taken back.
async fn is_gone(documents: &Documents, id: &str) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match documents.head(id).await? {
            None => return Ok(true),
            Some(head) if head.kind != kind::DELETING => return Ok(false),
            Some(_) => {}
        }
        anyhow::ensure!(began.elapsed() < FENCE_MAX, "the deletion of {id:?} cannot be finished");
        if !told {
            told = true;
            say(format!("waiting for the deletion of {id:?} that an earlier command began"));
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// What goes.
async fn choose(
    documents: &Documents,
    args: &DeleteArgs,
    unfinished: &[Unfinished],
) -> anyhow::Result<Chosen> {
    let filter = &args.filter;
    match (args.ids.is_empty(), filter.is_any()) {
        (true, false) => {
            Err(Problem::Usage("say which instances: ids, or filters such as --before 30d".into()).into())
        }
        (false, true) => Err(Problem::Usage("say ids or filters, not both".into()).into()),
        (false, false) => named(documents, args, unfinished).await,
        (true, true) => {
            // Children are left out here and not by the query: one that cannot be read is told.
            let wanted = Wanted { is_roots: false, is_exact: true, ..filter.wanted()? };
            let listing = all(documents, &wanted).await?;
            tell_unreadable(&listing.unreadable);
            let mut chosen = listing.rows;
            chosen.retain(|row| row.parent.is_none() && row.status != Status::Pending.name());
            if !args.force {
                let all = chosen.len();
                chosen.retain(Listed::has_ended);
                match all - chosen.len() {
                    0 => {}
                    1 => say("1 running instance is left out: --force takes it as well"),
                    more => {
                        say(format!("{more} running instances are left out: --force takes them as well"));
                    }
                }
            }
            chosen.sort_by(|a, b| (a.created_at, &a.instance).cmp(&(b.created_at, &b.instance)));
            let roots = chosen.into_iter().map(|row| row.instance).collect();
            Ok(Chosen { roots, ..Chosen::default() })
        }
    }
}

/// The instances that were named. One that is gone already is no mistake as long as another is not: the command may
/// have been stopped before.
async fn named(
    documents: &Documents,
    args: &DeleteArgs,
    unfinished: &[Unfinished],
) -> anyhow::Result<Chosen> {
    let mut chosen = Chosen::default();
    let mut missing = Vec::new();
    for id in args.ids.iter().collect::<BTreeSet<_>>() {
        let Some(head) = documents.head(id).await? else {
            // The head of a root goes first: the rest of its tree may still be there.
            match unfinished.iter().any(|deletion| deletion.instances.contains(id)) {
                true => chosen.begun.push(id.clone()),
                false => missing.push(absent(documents, id).await?),
            }
            continue;
        };
        if head.kind == kind::DELETING {
            chosen.begun.push(id.clone());
            continue;
        }
        if let Some(parent) = &head.parent_instance_id
            && documents.head(parent).await?.is_some()
        {
            return Err(Problem::Usage(format!(
                "{id:?} is a child of {parent:?}: delete the root of the tree"
            ))
            .into());
        }
        if !args.force && documents.is_unreadable(id).await? {
            return Err(Problem::Usage(format!(
                "{id:?} cannot be read, so it may be running: add --force to delete it anyway, `cdb why` says more"
            ))
            .into());
        }
        if !head.has_ended() && !args.force {
            return Err(Problem::Usage(format!(
                "{id:?} is {}: add --force to delete it anyway",
                head.status
            ))
            .into());
        }
        chosen.roots.push(id.clone());
    }
    if chosen.roots.is_empty()
        && chosen.begun.is_empty()
        && let Some(problem) = missing.pop()
    {
        for other in &missing {
            say(other.to_string());
        }
        return Err(problem.into());
    }
    for problem in &missing {
        say(problem.to_string());
    }
    chosen.missing = missing.len();
    Ok(chosen)
}

/// Why there is nothing to delete.
async fn absent(documents: &Documents, id: &str) -> anyhow::Result<Problem> {
    let waiting: Vec<Queued> =
        documents.query(id, Query::new("SELECT * FROM c WHERE c.type = 'orch_queue'")).await?;
    let is_start = |message: &Queued| message.item().0 == "StartOrchestration";
    Ok(match waiting.iter().any(is_start) {
        true => Problem::Missing(format!(
            "a start of {id:?} waits and no runtime has taken it: there is no instance to delete yet"
        )),
        false => Problem::no_instance(id),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Row {
    #[serde(rename = "type")]
    kind: String,
    event_count: u64,
    execution_id: u64,
    event_data: Option<bool>,
    /// Of a head: its execution, and how many events of that it holds itself.
    current_execution_id: u64,
    events: u64,
    status: String,
}

impl Row {
    /// Whether it is the head of a workflow that has not ended.
    fn is_running(&self) -> bool {
        self.kind == kind::INSTANCE && !["Completed", "Failed"].contains(&self.status.as_str())
    }
}

fn tally_of(rows: &[Row]) -> Tally {
    let mut executions: BTreeMap<u64, u64> = BTreeMap::new();
    let mut tally = Tally { instances: 1, ..Tally::default() };
    for row in rows {
        match row.kind.as_str() {
            kind::HISTORY => {
                let events = if row.event_data == Some(true) { 1 } else { row.event_count };
                *executions.entry(row.execution_id).or_default() += events;
            }
            kind::INSTANCE | kind::DELETING if row.events > 0 => {
                *executions.entry(row.current_execution_id).or_default() += row.events;
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
    pub(crate) fn add(&mut self, other: &Self) {
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
        output.line(format!(
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

/// More trees than these are counted by one look at all heads.
const FEW: usize = 16;
const UNFINISHED: &str = "SELECT c.id, c.instances FROM c WHERE c.type = 'deletion'";
const LEFTOVERS_MAX: Duration = Duration::from_secs(30);
/// Longer than the provider leaves an instance alone whose deletion was begun and not recorded: a minute.
const FENCE_MAX: Duration = Duration::from_secs(90);
const SWEEP: Duration = Duration::from_millis(500);
const COUNT: &str = "SELECT c.type, c.eventCount, c.executionId, IS_DEFINED(c.eventData) AS eventData, \
    c.currentExecutionId, (IS_ARRAY(c.events) ? ARRAY_LENGTH(c.events) : 0) AS events, c.status \
    FROM c WHERE c.type IN ('instance', 'deleting', 'history', 'orch_queue', 'worker_queue')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_layouts_of_history_are_counted() {
        let row = |kind: &str, event_count: u64, execution_id: u64, event_data: bool| Row {
            kind: kind.to_owned(),
            event_count,
            execution_id,
            event_data: Some(event_data),
            ..Row::default()
        };
        let history = |events: u64| Row { events, ..row("history", 5, 1, false) };
        let rows = [history(5), row("history", 0, 2, true), row("orch_queue", 0, 0, false)];
        assert_eq!(tally_of(&rows), Tally { instances: 1, executions: 2, events: 6, messages: 1 });
        let head = Row { current_execution_id: 3, events: 4, ..row("instance", 9, 0, false) };
        assert_eq!(tally_of(&[head]), Tally { instances: 1, executions: 1, events: 4, messages: 0 });
    }
}
