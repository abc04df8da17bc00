//! `cdb import`: documents of an export into a container.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use crate::archive;
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

/// Writes what makes a runtime move last: it then finds everything else in place.
async fn write(documents: &Documents, mut lines: Vec<Value>) -> anyhow::Result<(u64, u64)> {
    lines.sort_by_key(|line| order(type_of(line)));
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let (mut new, mut same) = (0, 0);
    let mut progress = Progress::new(lines.len() as u64);
    for line in &lines {
        let (partition, id) = (text_of(line, "instanceId"), text_of(line, "id"));
        let written = tokio::select! {
            written = documents.create(partition, line) => written,
            () = interrupt.wait() => {
                let done = progress.done();
                drop(progress);
                return Err(Problem::Interrupted(format!(
                    "stopped: {done} of {} documents are imported. The same command goes on with the rest.", lines.len()
                )).into());
            }
        };
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
        progress.advance(partition);
    }
    Ok((new, same))
}

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
    fn what_makes_a_runtime_move_comes_last() {
        let mut kinds = ["orch_queue", "outbox_intent", "history", "instance", "value"];
        kinds.sort_by_key(|kind| order(kind));
        assert_eq!(kinds, ["history", "value", "instance", "orch_queue", "outbox_intent"]);
    }
}
