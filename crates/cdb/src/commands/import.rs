//! `cdb import`: documents of an export into a container.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::archive;
use crate::bulk::{Ended, each};
use crate::context::{Connection, ConnectionArgs, IfMissing, Target};
use crate::documents::{Documents, Written};
use crate::exit::Problem;
use crate::interrupt::Interrupt;
use crate::model::{kind, text_of, type_of};
use crate::output::say;
use crate::progress::Progress;

/// Read a file of `cdb export` into a container; its workflows continue there.
///
/// The whole file is checked before anything is written. The container is made if it is missing. A document that is
/// there already must be the same one, so an interrupted import can be repeated; a different one stops it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  cdb import bakery.ndjson --data copy\n  cdb import - --endpoint http://localhost:8081 < bakery.ndjson"
)]
pub(crate) struct ImportArgs {
    /// File to read; - is standard input.
    file: PathBuf,

    /// Check the file and write nothing.
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

/// Imports.
pub(crate) async fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let name = args.file.display().to_string();
    let documents = read(args).map_err(|error| anyhow::anyhow!("{name} cannot be imported: {error}"))?;
    if args.check {
        say(format!("{name} is whole: {} documents", documents.len()));
        return Ok(());
    }
    let no_place = || Err(Problem::Usage("say where to: --endpoint and --key, or --data DIR".to_owned()));
    let target = Target::resolve(&args.connection, |name| std::env::var(name).ok(), no_place)?;
    let connection = Connection::open_target(target, IfMissing::Create).await?;
    let outcome = async {
        // Opening the provider makes the container, with the indexes it needs.
        drop(connection.provider().await?);
        write(&connection.documents()?, documents).await
    };
    let outcome = connection.guard(outcome).await;
    connection.close().await;
    let (new, same) = outcome?;
    let before = if same > 0 { format!(", {same} were there already") } else { String::new() };
    say(format!("{new} documents imported{before}"));
    Ok(())
}

fn read(args: &ImportArgs) -> Result<Vec<Value>, String> {
    if args.file.as_os_str() == "-" {
        return archive::read(io::stdin().lock());
    }
    archive::read(BufReader::new(File::open(&args.file).map_err(|error| error.to_string())?))
}

/// Writes what makes a runtime move last: it then finds everything else in place. Within each stage partitions are written
/// beside each other, each in as few requests as its documents fit into.
async fn write(documents: &Documents, lines: Vec<Value>) -> anyhow::Result<(u64, u64)> {
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let all = lines.len();
    let mut stages: BTreeMap<u8, BTreeMap<String, Vec<Value>>> = BTreeMap::new();
    for line in lines {
        let stage = stages.entry(order(type_of(&line))).or_default();
        stage.entry(text_of(&line, "instanceId").to_owned()).or_default().push(line);
    }
    let (mut new, mut same) = (0, 0);
    let mut progress = Progress::new(all as u64);
    for stage in stages.values() {
        let mut fatal = None;
        let ended = each(
            stage,
            || documents.meter().is_throttled(),
            &mut interrupt,
            |(partition, lines)| write_named(documents, partition, lines),
            |(partition, written)| match written {
                Ok((made, known)) => {
                    (new, same) = (new + made, same + known);
                    progress.set(new + same, partition);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    fatal = Some(error);
                    ControlFlow::Break(())
                }
            },
        )
        .await;
        if let Some(error) = fatal {
            return Err(error);
        }
        if ended != Ended::All {
            let done = new + same;
            drop(progress);
            return Err(Problem::Interrupted(format!(
                "stopped: {done} of {all} documents are imported. The same command goes on with the rest."
            ))
            .into());
        }
    }
    Ok((new, same))
}

/// Writes documents of one partition, and says which it was.
fn write_named<'a>(
    documents: &'a Documents,
    partition: &'a String,
    lines: &'a [Value],
) -> BoxFuture<'a, (&'a String, anyhow::Result<(u64, u64)>)> {
    Box::pin(async move { (partition, write_partition(documents, partition, lines).await) })
}

/// Writes documents of one partition. Returns how many were new and how many were there already.
async fn write_partition(
    documents: &Documents,
    partition: &str,
    lines: &[Value],
) -> anyhow::Result<(u64, u64)> {
    let (mut new, mut same) = (0, 0);
    for group in groups(lines) {
        if group.len() > 1 && documents.create_all(partition, group).await? == Written::Done {
            new += group.len() as u64;
            continue;
        }
        for line in group {
            let id = text_of(line, "id");
            let written = documents.create(partition, line).await;
            match written.with_context(|| format!("cannot write document {id:?} of {partition:?}"))? {
                Written::Done => new += 1,
                Written::Refused => {
                    let mut stored = documents.read(partition, id).await?.unwrap_or_default();
                    archive::strip(&mut stored);
                    anyhow::ensure!(
                        stored == *line,
                        "{partition:?} has another document {id:?} already: import into an empty container, or delete \
                         that instance first"
                    );
                    same += 1;
                }
            }
        }
    }
    Ok((new, same))
}

/// Documents in groups that fit into one batch each.
fn groups(lines: &[Value]) -> Vec<&[Value]> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (index, line) in lines.iter().enumerate() {
        let size = line.to_string().len();
        if index > first && (index - first == BATCH_MAX || bytes + size > BATCH_BYTES_MAX) {
            groups.push(&lines[first..index]);
            (first, bytes) = (index, 0);
        }
        bytes += size;
    }
    if first < lines.len() {
        groups.push(&lines[first..]);
    }
    groups
}

/// The service takes a hundred, and two megabytes.
const BATCH_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 1 << 20;

fn order(kind_of: &str) -> u8 {
    match kind_of {
        kind::MESSAGE | kind::WORK => 2,
        kind::INTENT | kind::MANIFEST | kind::DELETION | kind::DELETING => 3,
        kind::INSTANCE => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_written_in_groups_that_fit_into_a_batch() {
        let small: Vec<Value> = (0..250).map(|number| serde_json::json!({ "id": number })).collect();
        assert_eq!(groups(&small).iter().map(|group| group.len()).collect::<Vec<_>>(), [100, 100, 50]);
        let large = vec![Value::String("x".repeat(700_000)); 3];
        assert_eq!(groups(&large).len(), 3);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn what_makes_a_runtime_move_comes_last() {
        let mut kinds = ["orch_queue", "outbox_intent", "history", "instance", "value"];
        kinds.sort_by_key(|kind| order(kind));
        assert_eq!(kinds, ["history", "value", "instance", "orch_queue", "outbox_intent"]);
    }
}
