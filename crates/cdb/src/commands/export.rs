//! `cdb export`: documents as lines of JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use cosmos_driver::{PartitionKey, Query, Scope};
use duroxide_cdb::kind;
use serde_json::Value;

use crate::archive::Writer;
use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs};
use crate::documents::Documents;
use crate::exit::Problem;
use crate::files;
use crate::output::{raw, say};

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
    let place = Place::of(&args.output).with_context(|| format!("cannot write {}", args.output.display()))?;
    let mut begun = false;
    let outcome = Connection::during(&args.connection, async |connection| {
        Box::pin(write(connection, args, &place, &mut begun)).await
    })
    .await;
    let count = outcome.inspect_err(|error| {
        // A reader that went away has seen enough.
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if begun && kind != Some(io::ErrorKind::BrokenPipe) {
            say(place.incomplete());
        }
    })?;
    say(format!("{count} documents exported"));
    Ok(())
}

async fn write(
    connection: &Connection,
    args: &ExportArgs,
    place: &Place,
    begun: &mut bool,
) -> anyhow::Result<u64> {
    let documents = connection.documents()?;
    let mut partitions = Vec::new();
    if !args.ids.is_empty() {
        let client = connection.client().await?;
        for id in &args.ids {
            let found: Vec<Value> = documents.query(id, Query::new(ANYTHING)).await?;
            if found.is_empty() {
                return Err(Problem::no_instance(id).into());
            }
            partitions.extend(client.get_instance_tree(id).await?.all_ids);
        }
    }
    let mut sink = place.open().with_context(|| format!("cannot write {}", args.output.display()))?;
    *begun = true;
    let target = &connection.target;
    let mut writer = Writer::begin(BufWriter::new(&mut sink), &target.database, &target.container, now_ms())?;
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
    let count = writer.finish()?;
    place.keep(sink)?;
    Ok(count)
}

/// Where an export goes.
enum Place {
    /// Standard output.
    Output,
    /// Something that is written as it is: a device, or a pipe.
    Device(PathBuf),
    /// A file. It is written beside its place, so that an older one stays until the new one is whole.
    File { path: PathBuf, part: PathBuf },
}

impl Place {
    fn of(output: &Path) -> io::Result<Self> {
        if output.as_os_str() == "-" {
            return Ok(Self::Output);
        }
        let path = files::resolve(output)?;
        if files::is_device(&path) {
            return Ok(Self::Device(path));
        }
        let part = files::part_of(&path);
        Ok(Self::File { path, part })
    }

    fn open(&self) -> io::Result<Sink> {
        Ok(match self {
            Self::Output => Sink::Output(raw()),
            Self::Device(path) => Sink::File(OpenOptions::new().write(true).open(path)?),
            Self::File { path, part } => {
                let file = files::create(part)?;
                // Who could not read the older one must not read the new one.
                if let Ok(older) = path.metadata() {
                    file.set_permissions(older.permissions())?;
                }
                Sink::File(file)
            }
        })
    }

    /// Puts a whole export where it belongs.
    fn keep(&self, sink: Sink) -> io::Result<()> {
        match (self, sink) {
            (Self::File { path, part }, Sink::File(file)) => {
                file.sync_all()?;
                std::fs::rename(part, path)
            }
            _ => Ok(()),
        }
    }

    /// What a failed export left: whoever finds the file must not take it for a backup.
    fn incomplete(&self) -> String {
        match self {
            Self::Output => "the export is incomplete".to_owned(),
            Self::Device(path) | Self::File { part: path, .. } => {
                format!("{} is incomplete, and an import refuses it", path.display())
            }
        }
    }
}

/// What an export is written to.
enum Sink {
    Output(io::Stdout),
    File(File),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Output(output) => output.write(bytes),
            Self::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Output(output) => output.flush(),
            Self::File(file) => file.flush(),
        }
    }
}

async fn copy<W: Write>(documents: &Documents, scope: Scope, writer: &mut Writer<W>) -> anyhow::Result<()> {
    let mut pages = documents.pages(Query::new("SELECT * FROM c"), scope);
    while let Some(page) = pages.next().await? {
        // Who runs work here now says nothing about the instances, and would be in the way of an import.
        for document in page.items::<Value>()?.into_iter().filter(|document| !is_of_fleet(document)) {
            writer.document(document)?;
        }
    }
    Ok(())
}

fn is_of_fleet(document: &Value) -> bool {
    matches!(document["type"].as_str(), Some(kind::MEMBER | kind::SLOT_TABLE | kind::BELL))
}

/// Marks of consumed messages outlive an instance.
const ANYTHING: &str = "SELECT TOP 1 c.id FROM c WHERE c.type != 'tombstone'";
