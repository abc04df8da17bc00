//! What each command of `cdb` costs: seconds, requests and request units at several numbers of instances, and seconds again
//! where every request takes some time on its way.
//!
//! ```sh
//! cargo bench -p cdb --bench costs                                   # 5,000 and 50,000 instances, 20 ms per request
//! cargo bench -p cdb --bench costs -- --instances 1000000 --looking  # only commands that look
//! ```
//!
//! The account is an emulator in memory in this process, the commands are processes of their own. Instances are copies of a
//! few that a real runtime ran: of a hundred, 95 are completed, three failed, one was cancelled and one waits for an event.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its table is what it is for")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cosmos_driver::{
    Batch, CallOptions, Container, Credential, Driver, PartitionKey, Query, QueryOptions, Scope,
};
use cosmos_emulator::{Config, Emulator, FaultRule, Verdict};
use duroxide::runtime::Runtime;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus};
use duroxide_cdb::CosmosDBProvider;
use futures::stream::{StreamExt as _, iter};
use serde_json::Value;

/// Which commands are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// Reads as much as it shows.
    Look,
    /// Reads or writes everything, or a thousand.
    Bulk,
}

/// In the order in which they are run: what changes something comes last.
const COMMANDS: &[(Sort, &str)] = &[
    (Sort::Look, "instances"),
    (Sort::Look, "instances --status running"),
    (Sort::Look, "instances --status failed"),
    (Sort::Look, "instances --status completed"),
    (Sort::Look, "instances --status cancelled"),
    (Sort::Look, "instances --since 1h"),
    (Sort::Look, "instances --before 1m"),
    (Sort::Look, "instances --name echo"),
    (Sort::Look, "instances --roots"),
    (Sort::Look, "instances --parent nobody"),
    (Sort::Look, "instances --prefix echo-0000001"),
    (Sort::Look, "queues"),
    (Sort::Look, "runtimes"),
    (Sort::Look, "dead-letters list"),
    (Sort::Look, "history echo-0"),
    (Sort::Look, "tree echo-0"),
    (Sort::Look, "why echo-0"),
    (Sort::Look, "show echo-0"),
    (Sort::Look, "top --once"),
    (Sort::Bulk, "export --output FILE"),
    (Sort::Bulk, "fsck"),
    (Sort::Bulk, "prune --keep-last 1"),
    (Sort::Bulk, "delete --status completed --limit 1000"),
    (Sort::Bulk, "delete --status completed --limit 1000 --yes"),
    (Sort::Bulk, "rerun --prefix failed-00000 --yes"),
    (Sort::Bulk, "cancel --status running --yes"),
    (Sort::Bulk, "import FILE --container COPY"),
];

struct Options {
    sizes: Vec<usize>,
    delay: Duration,
    is_looking: bool,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options =
            Self { sizes: vec![5_000, 50_000], delay: Duration::from_millis(20), is_looking: false };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--instances" => {
                    let sizes = words.next().unwrap_or_default();
                    options.sizes = sizes
                        .split(',')
                        .map(|size| {
                            size.replace('_', "").parse().map_err(|_| format!("{size:?} is no number"))
                        })
                        .collect::<Result<_, _>>()?;
                }
                "--delay-ms" => {
                    let number = words.next().unwrap_or_default();
                    let number = number.parse().map_err(|_| format!("{number:?} is no number"))?;
                    options.delay = Duration::from_millis(number);
                }
                "--looking" => options.is_looking = true,
                // cargo adds it.
                "--bench" => {}
                other => {
                    return Err(format!("{other:?} is not known: --instances N,N, --delay-ms N, --looking"));
                }
            }
        }
        Ok(options)
    }
}

/// All commands at one number of instances.
struct Column {
    heading: String,
    /// Whether requests and request units are shown, not only seconds.
    is_counted: bool,
    rows: Vec<(String, Spent)>,
}

/// What one command took.
struct Spent {
    seconds: f64,
    requests: u64,
    units: f64,
    is_right: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse()?;
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut columns = Vec::new();
    for size in &options.sizes {
        for delay in [Duration::ZERO, options.delay] {
            let heading = if delay.is_zero() {
                format!("{size}: s / requests / RU")
            } else {
                format!("{size}, {} ms per request: s", delay.as_millis())
            };
            let started = Instant::now();
            let emulator = Emulator::start(Config { partitions: Some(1), ..Config::default() })?;
            threads.block_on(Box::pin(crowd(&emulator, *size)))?;
            eprintln!("{heading}: loaded in {:.0} s", started.elapsed().as_secs_f64());
            let rows = measure(&emulator, delay, options.is_looking)?;
            columns.push(Column { heading, is_counted: delay.is_zero(), rows });
            threads.block_on(emulator.shutdown());
        }
    }
    print(&columns);
    Ok(())
}

fn print(columns: &[Column]) {
    let headings: Vec<&str> = columns.iter().map(|column| column.heading.as_str()).collect();
    println!("| command | {} |", headings.join(" | "));
    println!("|---|{}", "---:|".repeat(columns.len()));
    let rows = columns.first().map(|column| column.rows.as_slice()).unwrap_or_default();
    for (place, (command, _)) in rows.iter().enumerate() {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| {
                let spent = &column.rows[place].1;
                let mark = if spent.is_right { "" } else { " (failed)" };
                if column.is_counted {
                    format!("{:.2} / {} / {:.1}{mark}", spent.seconds, spent.requests, spent.units)
                } else {
                    format!("{:.2}{mark}", spent.seconds)
                }
            })
            .collect();
        println!("| `{command}` | {} |", cells.join(" | "));
    }
}

/// Runs every command and reads the ledger after it.
fn measure(
    emulator: &Emulator,
    delay: Duration,
    is_looking: bool,
) -> Result<Vec<(String, Spent)>, Box<dyn std::error::Error>> {
    let rule = FaultRule::new(Verdict::Delay { duration: delay });
    let _slow = (!delay.is_zero()).then(|| emulator.faults().add(rule));
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("all.ndjson").display().to_string();
    let mut rows = Vec::new();
    for (sort, text) in COMMANDS.iter().filter(|(sort, _)| !is_looking || *sort == Sort::Look) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cdb"));
        for word in text.split(' ') {
            command.arg(match word {
                "FILE" => &file,
                "COPY" => "copy",
                word => word,
            });
        }
        command.args(["--endpoint", &emulator.endpoint()]).env("CDB_CONFIG", "/there/are/none.json");
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null());
        emulator.ledger().reset();
        let started = Instant::now();
        let ended = command.output()?;
        let seconds = started.elapsed().as_secs_f64();
        let totals = emulator.ledger().snapshot().totals;
        if !ended.status.success() {
            eprintln!("{text}: {}", String::from_utf8_lossy(&ended.stderr));
        }
        if *sort == Sort::Bulk {
            eprintln!("{text}: {seconds:.1} s");
        }
        let is_right = ended.status.success();
        let (requests, units) = (totals.requests, totals.request_units);
        rows.push(((*text).to_owned(), Spent { seconds, requests, units, is_right }));
    }
    Ok(rows)
}

/// So many instances: copies of a few that were really run.
async fn crowd(emulator: &Emulator, size: usize) -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(CosmosDBProvider::new(&emulator.endpoint(), emulator.key(), "duroxide").await?);
    let client = Client::new(store.clone());
    let runtime = Runtime::start_with_store(store, activities(), orchestrations()).await;
    let kinds = [("echo", "echo"), ("failed", "fails"), ("cancelled", "waits"), ("waiting", "waits")];
    for (kind, name) in kinds {
        client.start_orchestration(format!("{kind}-0"), name, "x").await?;
    }
    while !matches!(
        client.get_orchestration_status("cancelled-0").await?,
        OrchestrationStatus::Running { .. }
    ) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.cancel_instance("cancelled-0", "enough").await?;
    for kind in ["echo", "failed", "cancelled"] {
        client.wait_for_orchestration(&format!("{kind}-0"), Duration::from_secs(30)).await?;
    }
    runtime.shutdown(Some(1000)).await;

    let driver = Driver::builder(emulator.endpoint(), Credential::emulator()).build().await?;
    let container = driver.container("duroxide", "duroxide")?;
    let mut originals = Vec::new();
    for (kind, _) in kinds {
        let scope = Scope::PartitionKey(PartitionKey::from(format!("{kind}-0")));
        let query = Query::new("SELECT * FROM c WHERE c.type != 'tombstone'");
        let rows: Vec<Value> = container.query(query, scope, QueryOptions::default()).collect().await?;
        originals.push((kind, serde_json::to_string(&rows)?));
    }
    let copies = (1..size).map(|number| {
        let kind = match number % 100 {
            1..=3 => 1,
            4 => 2,
            5 => 3,
            _ => 0,
        };
        copy(&container, &originals[kind], number)
    });
    let mut copies = iter(copies).buffer_unordered(64);
    while let Some(copied) = copies.next().await {
        copied?;
    }
    Ok(())
}

async fn copy(
    container: &Container,
    original: &(&str, String),
    number: usize,
) -> Result<(), cosmos_driver::Error> {
    let (kind, documents) = original;
    let id = format!("{kind}-{number:07}");
    let documents: Vec<Value> =
        serde_json::from_str(&documents.replace(&format!("{kind}-0"), &id)).expect("they were JSON");
    let mut batch = Batch::new(id.as_str());
    for mut document in documents {
        document.as_object_mut().expect("a document").retain(|field, _| !field.starts_with('_'));
        batch = batch.upsert(&document);
    }
    container.batch(batch, CallOptions::default()).await.map(|_| ())
}

fn activities() -> ActivityRegistry {
    ActivityRegistry::builder()
        .register("Echo", |_: ActivityContext, text: String| async move { Ok(text) })
        .register("Break", |_: ActivityContext, text: String| async move { Err::<String, String>(text) })
        .build()
}

fn orchestrations() -> OrchestrationRegistry {
    OrchestrationRegistry::builder()
        .register("echo", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Echo", input).await
        })
        .register("fails", |context: OrchestrationContext, input: String| async move {
            context.schedule_activity("Break", input).await
        })
        .register("waits", |context: OrchestrationContext, _: String| async move {
            Ok(context.schedule_wait("yes").await)
        })
        .build()
}
