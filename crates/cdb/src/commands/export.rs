//! `cdb export`: documents as lines of JSON.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::{PartitionKey, Query, Scope};
use serde_json::Value;

use crate::archive::Writer;
use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::output::say;

/// Write instances to a file, one document per line, exactly as they are stored.
///
/// The file ends with a count and a checksum, so that `cdb import` knows whether it is whole. Stop the runtimes first,
/// or export while nothing moves: documents are read one after the other, not at one moment.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Only these instances, with their descendants [default: the whole container].
    ids: Vec<String>,

    /// File to write; - is standard output.
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb export --data cdb-demo -o bakery.ndjson
  cdb export bakery-1-deliver --data cdb-demo | gzip > deliver.ndjson.gz
  cdb export --data cdb-demo | cdb import - --endpoint http://localhost:8081";

/// Exports.
pub(crate) async fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let outcome =
        Connection::during(&args.connection, async |connection| write(connection, args).await).await;
    let count = outcome.map_err(|error| match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(kind) if kind != io::ErrorKind::BrokenPipe => error.context(incomplete(&args.output)),
        Some(_) | None => error,
    })?;
    say(&format!("{count} documents exported"));
    Ok(())
}

async fn write(connection: &Connection, args: &ExportArgs) -> anyhow::Result<u64> {
    let documents = connection.documents()?;
    let mut partitions = Vec::new();
    if !args.ids.is_empty() {
        let client = connection.client().await?;
        for id in &args.ids {
            if documents.partition(id).await?.is_empty() {
                return Err(Problem::no_instance(id).into());
            }
            partitions.extend(client.get_instance_tree(id).await?.all_ids);
        }
    }
    let sink: Box<dyn Write> = if args.output.as_os_str() == "-" {
        Box::new(io::stdout())
    } else {
        let path = &args.output;
        Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
    };
    let target = &connection.target;
    let mut writer = Writer::begin(BufWriter::new(sink), &target.database, &target.container, now_ms())?;
    if args.ids.is_empty() {
        for range in documents.ranges().await? {
            copy(&documents, range.into(), &mut writer).await?;
        }
    } else {
        partitions.sort();
        partitions.dedup();
        for partition in partitions {
            copy(&documents, Scope::PartitionKey(PartitionKey::from(partition.as_str())), &mut writer)
                .await?;
        }
    }
    Ok(writer.finish()?)
}

/// What a failed write left: whoever finds the file must not take it for a backup.
fn incomplete(path: &std::path::Path) -> String {
    match path.as_os_str() == "-" {
        true => "the export is incomplete".to_owned(),
        false => format!("{} is incomplete, and an import refuses it", path.display()),
    }
}

async fn copy<W: Write>(documents: &Documents, scope: Scope, writer: &mut Writer<W>) -> anyhow::Result<()> {
    let mut pages = documents.pages(Query::new("SELECT * FROM c"), scope);
    while let Some(page) = pages.next().await? {
        for document in page.items::<Value>()? {
            writer.document(document)?;
        }
    }
    Ok(())
}
