//! The emulator against `@vercel/cosmosdb-server`: same client, same documents, one run.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use crate::load::{Call, Calls, Client, Measured, Protocol};
use crate::process::{Server, build_cdb, install_vercel};
use crate::report::{Better, Cell, Report, Table};

/// In-flight requests of the throughput cells.
const IN_FLIGHT: [usize; 2] = [1, 16];
/// Container sizes at which the same query is timed.
const SIZES: [u64; 3] = [500, 2_000, 8_000];
/// Documents that are read over and over.
const DOCUMENTS_READ: u64 = 10_000;
/// Logical partitions that the documents spread over.
const KEYS: u64 = 50;

/// How long the servers are left alone.
const IDLE: Duration = Duration::from_secs(3);

struct Contender {
    name: &'static str,
    server: Server,
    protocol: Protocol,
}

/// Runs the whole comparison. The client has one thread, so that it takes at most one of the machine's cores.
pub fn run(seconds: f64, only: &str) -> anyhow::Result<Report> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(compare(seconds, only))
}

/// An answer wakes the client. Where it shares cores with a server, it would push the server aside each time, and what
/// is measured would be the system's changing between them: from now on this thread waits for its turn, as a batch job
/// does, and so would the processes that it starts.
fn wait_for_turns() {
    #[cfg(target_os = "linux")]
    {
        let turns = libc::sched_param { sched_priority: 0 };
        // SAFETY: the structure lives longer than the call, which concerns this thread only.
        let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const turns) };
        if done != 0 {
            eprintln!("the client could not be made a batch job: {}", std::io::Error::last_os_error());
        }
    }
}

/// Starts one server of each kind, with folders of its own.
async fn start(cdb: &Path, node: &Path, folder: &Path, only: &str) -> anyhow::Result<Vec<Contender>> {
    let disk = |name: &str| Some(vec![OsString::from("--data"), folder.join(name).into()]);
    let memory = || Some(vec![OsString::from("--memory")]);
    let kinds = [
        ("vercel (memory, h1)", Protocol::Http1, None),
        ("ours memory h1", Protocol::Http1, memory()),
        ("ours memory h2", Protocol::Http2, memory()),
        ("ours disk h1", Protocol::Http1, disk("h1")),
        ("ours disk h2", Protocol::Http2, disk("h2")),
    ];
    let mut contenders = Vec::new();
    for (name, protocol, arguments) in kinds.into_iter().filter(|(name, ..)| name.contains(only)) {
        let server = match &arguments {
            None => Server::vercel(node).await?,
            Some(arguments) => Server::ours(cdb, arguments).await?,
        };
        contenders.push(Contender { name, server, protocol });
    }
    Ok(contenders)
}

async fn compare(seconds: f64, only: &str) -> anyhow::Result<Report> {
    let cdb = build_cdb().await?;
    let node = install_vercel().await?;
    let folder = tempfile::tempdir()?;
    // Each number of requests in flight has servers of its own, so that none begins with the documents of another. The
    // first ones read their programs from disk; those of the last are shown.
    let mut parts = Vec::new();
    for in_flight in IN_FLIGHT {
        let folder = folder.path().join(in_flight.to_string());
        parts.push((in_flight, start(&cdb, &node, &folder, only).await?));
    }
    let (in_flight, contenders) = parts.pop().context("there is a last part")?;
    let table = |title: &str, first: &str, better: Better| {
        Table::new(title, first, contenders.iter().map(|contender| contender.name), better)
    };
    let mut rates =
        table("Operations per second (0.8 KB documents)", "operations per second", Better::Higher)
            .with_chart("emulator-rates");
    let mut latency = table("Latency", "milliseconds", Better::Lower);
    let mut growth = table(
        "The same query while the container grows (p50, ms)",
        "documents in the container",
        Better::Lower,
    )
    .with_chart("emulator-growth");
    let mut cost = table("Startup and memory", "figure", Better::Lower).with_chart("emulator-cost");

    cost.push("start to ready, ms", contenders.iter().map(|c| Ok(millis(c.server.startup))))?;
    cost.push("memory when idle, MB", contenders.iter().map(|c| c.server.resident_mb()))?;
    let span = Duration::from_secs_f64(seconds);
    let before = contenders.iter().map(|c| c.server.processor_ms()).collect::<anyhow::Result<Vec<_>>>()?;
    tokio::time::sleep(IDLE).await;
    let idle = contenders.iter().zip(before);
    cost.push(
        "processor time in 3 s of idling, ms",
        idle.map(|(c, before)| Ok(c.server.processor_ms()? - before)),
    )?;
    wait_for_turns();
    let mut columns = vec![(Column::new(), Column::new()); contenders.len()];
    for (in_flight, contenders) in parts {
        throughput(&contenders, in_flight, span, &mut columns).await?;
    }
    throughput(&contenders, in_flight, span, &mut columns).await?;
    for (contender, (rate, time)) in contenders.iter().zip(columns) {
        rates.add_column(rate);
        latency.add_column(time);
        growth.add_column(query_growth(contender, span).await.with_context(|| contender.name.to_owned())?);
    }
    cost.push("memory after the run, MB", contenders.iter().map(|c| c.server.resident_mb()))?;
    let summary =
        vec![summary(&rates, Better::Higher), summary(&growth, Better::Lower), summary(&cost, Better::Lower)];
    rates.add_ratios();
    Ok(Report::new(vec![rates, latency, growth, cost], summary))
}

/// The table without its title, as docs/measurements.md shows it.
fn summary(table: &Table, better: Better) -> Table {
    let mut short = Table { title: String::new(), chart: None, better, ..table.clone() };
    // One request at a time measures the client as much as the server.
    short.rows.retain(|(label, _)| !label.ends_with(", 1 in flight"));
    short
}

impl Table {
    fn push(
        &mut self,
        label: &str,
        figures: impl Iterator<Item = anyhow::Result<f64>>,
    ) -> anyhow::Result<()> {
        let cells = figures.map(|figure| figure.map(Cell::Figure)).collect::<anyhow::Result<_>>()?;
        self.rows.push((label.to_owned(), cells));
        Ok(())
    }

    fn add_column(&mut self, column: Column) {
        for (index, (label, figure)) in column.into_iter().enumerate() {
            if self.rows.len() == index {
                self.rows.push((label, Vec::new()));
            }
            self.rows[index].1.push(Cell::Figure(figure));
        }
    }

    /// Below each row, each contender's multiple of the first one.
    fn add_ratios(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        for (label, cells) in rows {
            let Some(Cell::Figure(first)) = cells.first().cloned() else { continue };
            let ratios = cells.iter().map(|cell| match cell {
                Cell::Figure(figure) => Cell::Text(format!("×{:.1}", figure / first)),
                Cell::Several(_) | Cell::Text(_) => cell.clone(),
            });
            let ratios = ratios.collect();
            self.rows.push((label, cells));
            self.rows.push((String::new(), ratios));
        }
    }
}

/// Labelled figures of one contender, top to bottom.
type Column = Vec<(String, f64)>;

/// Rates and latencies of each contender.
async fn throughput(
    contenders: &[Contender],
    in_flight: usize,
    span: Duration,
    columns: &mut [(Column, Column)],
) -> anyhow::Result<()> {
    let (indexed, plain) = ("rates", "plain");
    let mut turns = Turns { contenders, clients: Vec::new(), span };
    for contender in contenders {
        let mut client = Client::open(&contender.server.endpoint, contender.protocol, in_flight).await?;
        create_container(&mut client, indexed, Indexing::EveryPath).await?;
        create_container(&mut client, plain, Indexing::None).await?;
        turns.clients.push(client);
    }
    let label = |cell: &str| format!("{cell}, {in_flight} in flight");
    let writes = turns.measure("writing", &[201], |_, round| creates(indexed, round * ROUND_IDS)).await?;
    let bare =
        turns.measure("writing without index", &[201], |_, round| creates(plain, round * ROUND_IDS)).await?;
    let counts: Vec<_> = writes.iter().map(|rounds| (rounds[0].count as u64).min(DOCUMENTS_READ)).collect();
    let reads = turns
        .measure("reading", &[200], |at, _| Calls::Cycle((0..counts[at]).map(|n| read(indexed, n)).collect()))
        .await?;
    let queries = turns
        .measure("querying", &[200], |at, _| {
            Calls::Cycle((0..counts[at]).map(|n| query(indexed, n)).collect())
        })
        .await?;
    let batched =
        turns.measure("writing batches", &[200], |_, round| batches(indexed, round * ROUND_IDS)).await?;
    for (at, (rates, latency)) in columns.iter_mut().enumerate() {
        for (cell, rounds) in [
            ("point write, every path indexed", &writes[at]),
            ("point write, no index", &bare[at]),
            ("point read", &reads[at]),
            ("query by id in a partition", &queries[at]),
            ("batch of 10 creates", &batched[at]),
        ] {
            rates.push((label(cell), median(rounds, |measured| measured.rate)));
        }
        for (cell, rounds) in [("point write", &writes[at]), ("point read", &reads[at])] {
            latency.push((label(&format!("{cell} p50")), median(rounds, |measured| millis(measured.p50))));
            latency.push((label(&format!("{cell} p99")), median(rounds, |measured| millis(measured.p99))));
        }
    }
    Ok(())
}

/// Contenders that are measured in turns: the machine is not equally quick all the time, and whoever came later would be
/// measured on another machine.
struct Turns<'a> {
    contenders: &'a [Contender],
    clients: Vec<Client>,
    span: Duration,
}

/// Turns of each contender in each cell.
const ROUNDS: u64 = 5;
/// Numbers of documents that a turn has for itself.
const ROUND_IDS: u64 = 10_000_000;

impl Turns<'_> {
    /// The rounds of each contender.
    async fn measure(
        &mut self,
        what: &str,
        statuses: &'static [u16],
        calls: impl Fn(usize, u64) -> Calls,
    ) -> anyhow::Result<Vec<Vec<Measured>>> {
        eprintln!("{what}…");
        let mut rounds = vec![Vec::new(); self.clients.len()];
        for round in 0..ROUNDS {
            for (at, client) in self.clients.iter_mut().enumerate() {
                let measured = client.measure(self.span / ROUNDS as u32, statuses, calls(at, round)).await;
                rounds[at].push(measured.with_context(|| format!("{what}: {}", self.contenders[at].name))?);
            }
        }
        Ok(rounds)
    }
}

fn median(rounds: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    let mut figures: Vec<_> = rounds.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Times one query in one container that grows meanwhile.
async fn query_growth(contender: &Contender, span: Duration) -> anyhow::Result<Column> {
    let mut client = Client::open(&contender.server.endpoint, contender.protocol, 1).await?;
    create_container(&mut client, "growth", Indexing::EveryPath).await?;
    let mut column = Vec::new();
    let mut count = 0;
    for size in SIZES {
        while count < size {
            client.expect(&create("growth", count), &[201]).await?;
            count += 1;
        }
        let queries = Calls::Cycle((0..size).map(|n| query("growth", n)).collect());
        let measured = client.measure(span / 2, &[200], queries).await?;
        column.push((format!("{size}"), millis(measured.p50)));
    }
    Ok(column)
}

/// What a container indexes; the peer has no index, whatever it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Indexing {
    EveryPath,
    None,
}

async fn create_container(client: &mut Client, container: &str, indexing: Indexing) -> anyhow::Result<()> {
    let database = Call {
        method: "POST",
        path: "/dbs".into(),
        kind: "dbs",
        body: b"{\"id\":\"bench\"}".to_vec(),
        ..Call::default()
    };
    client.expect(&database, &[201, 409]).await?;
    let mut body = json!({"id": container, "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}});
    if indexing == Indexing::None {
        body["indexingPolicy"] = json!({"indexingMode": "none", "automatic": false});
    }
    let call = Call {
        method: "POST",
        path: "/dbs/bench/colls".into(),
        kind: "colls",
        link: "dbs/bench".into(),
        body: body.to_string().into(),
        ..Call::default()
    };
    client.expect(&call, &[201]).await?;
    Ok(())
}

/// A request to the documents of a container, in one logical partition.
fn docs(container: &str, key: u64, body: Vec<u8>) -> Call {
    Call {
        method: "POST",
        path: format!("/dbs/bench/colls/{container}/docs"),
        kind: "docs",
        link: format!("dbs/bench/colls/{container}"),
        headers: vec![
            ("x-ms-documentdb-partitionkey", format!("[\"key{key}\"]")),
            ("content-type", "application/json".into()),
        ],
        body,
    }
}

/// Makes a call one in another logical partition, with room for another body.
fn change_key(call: &mut Call, key: u64) {
    let text = &mut call.headers[0].1;
    text.clear();
    text.push_str("[\"key");
    text.push_str(&key.to_string());
    text.push_str("\"]");
    call.body.clear();
}

/// Written straight to text: building trees of values would be most of the client's work.
fn push_document(body: &mut Vec<u8>, id: std::fmt::Arguments<'_>, n: u64) {
    // A list in memory takes everything.
    let _ = write!(
        body,
        r#"{{"id":"{id}","pk":"key{}","number":{n},"name":"customer {n}","status":"{}","tags":["alpha","beta"],"address":{{"city":"Oslo","street":"Street {}"}},"text":"{TEXT}"}}"#,
        n % KEYS,
        if n.is_multiple_of(2) { "open" } else { "closed" },
        n % 300,
    );
}

/// Makes a document 0.8 KB.
const TEXT: &str = match str::from_utf8(&[b'x'; 560]) {
    Ok(text) => text,
    Err(_) => "",
};

fn create(container: &str, n: u64) -> Call {
    let mut body = Vec::new();
    push_document(&mut body, format_args!("d{n}"), n);
    docs(container, n % KEYS, body)
}

/// Creates of documents from a number on.
fn creates(container: &str, first: u64) -> Calls {
    let change = move |n: u64, call: &mut Call| {
        let n = first + n;
        change_key(call, n % KEYS);
        push_document(&mut call.body, format_args!("d{n}"), n);
    };
    Calls::Fresh(docs(container, 0, Vec::new()), Arc::new(change))
}

fn read(container: &str, n: u64) -> Call {
    let link = format!("dbs/bench/colls/{container}/docs/d{n}");
    let call = docs(container, n % KEYS, Vec::new());
    Call { method: "GET", path: format!("/{link}"), link, ..call }
}

fn query(container: &str, n: u64) -> Call {
    let body = json!({
        "query": "SELECT * FROM c WHERE c.id = @id",
        "parameters": [{"name": "@id", "value": format!("d{n}")}],
    });
    let mut call = docs(container, n % KEYS, body.to_string().into());
    call.headers[1].1 = "application/query+json".into();
    call.headers.push(("x-ms-documentdb-isquery", "True".into()));
    // As the JavaScript SDK sends it, with every query; the peer insists.
    call.headers.push(("x-ms-documentdb-query-enablecrosspartition", "True".into()));
    call
}

/// Batches of creates, from a number on.
fn batches(container: &str, first: u64) -> Calls {
    let mut call = docs(container, 0, Vec::new());
    call.headers.push(("x-ms-cosmos-is-batch-request", "True".into()));
    call.headers.push(("x-ms-cosmos-batch-atomic", "True".into()));
    let change = move |n: u64, call: &mut Call| {
        let n = first + n;
        let key = n % KEYS;
        change_key(call, key);
        for i in 0..10 {
            call.body.extend_from_slice(if i == 0 { b"[" } else { b"," });
            call.body.extend_from_slice(br#"{"operationType":"Create","resourceBody":"#);
            push_document(&mut call.body, format_args!("b{n}-{i}"), key);
            call.body.push(b'}');
        }
        call.body.push(b']');
    };
    Calls::Fresh(call, Arc::new(change))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
