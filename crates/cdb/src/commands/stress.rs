//! `cdb stress`: load, measured.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use cosmos_emulator::{FaultRule, Verdict};
use serde_json::json;
use tokio::net::TcpListener;

use crate::clock::now_ms;
use crate::context::{Connection, ConnectionArgs, IfMissing, Place, Target};
use crate::exit::Problem;
use crate::exposition::{Registry, Source, serve};
use crate::files;
use crate::interrupt::Interrupt;
use crate::meters::Meters;
use crate::output::{Output, parse_span, say};
use crate::progress::Progress;
use crate::stress::{Load, Measured, Shape, Workload, operations, pump, table};

/// Put load on the provider and measure throughput, latency and cost.
///
/// Runs against an embedded emulator in memory unless told otherwise. Its instances stay behind on a folder or an
/// account: `cdb delete --prefix stress- --force --yes` removes them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StressArgs {
    /// What to run; several are run one after the other.
    #[arg(value_enum, default_values_t = [Workload::FanOut])]
    workloads: Vec<Workload>,

    /// Instances under way at once.
    #[arg(long, short, default_value_t = 20, value_name = "N")]
    concurrency: usize,

    /// How long new instances are started, for each workload.
    #[arg(long, short, default_value = "10s", value_name = "SPAN", value_parser = parse_span)]
    duration: Duration,

    /// So many instances of each workload, however long that takes.
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "duration")]
    instances: Option<u64>,

    /// Tasks of one instance.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    tasks: u32,

    /// Bytes of each payload.
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    payload: usize,

    /// How long an activity takes.
    #[arg(long, default_value = "10ms", value_name = "SPAN", value_parser = parse_span)]
    activity: Duration,

    /// Dispatchers of turns.
    #[arg(long, default_value_t = 2, value_name = "N")]
    orchestration_dispatchers: usize,

    /// Dispatchers of activities.
    #[arg(long, default_value_t = 2, value_name = "N")]
    worker_dispatchers: usize,

    /// Time the embedded emulator waits before it serves a request, as a network would.
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "endpoint")]
    latency: Option<Duration>,

    /// Tell Prometheus at this address what the process does, while it does it; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

    /// Write the measurements to a JSON file as well.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb stress                                      fan-out of 5, 20 at once, 10 s
  cdb stress chain --instances 5000
  cdb stress chain children --duration 30s -o stress.json
  cdb stress fan-out --tasks 150 --latency 5ms
  cdb stress large-payload --payload 10240 --endpoint https://NAME.documents.azure.com:443/";

/// Runs every workload and reports.
pub(crate) async fn run(args: &StressArgs) -> anyhow::Result<()> {
    let meters = match args.metrics {
        None => Meters::listen(),
        Some(address) => tell(address).await?,
    };
    let target = Target::resolve(&args.connection, |name| std::env::var(name).ok(), || Ok(Place::Memory))?;
    let connection = Connection::open_target(target, IfMissing::Create).await?;
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    if args.latency.is_some() && connection.emulator().is_none() {
        return Err(Problem::Usage(
            "--latency needs the embedded emulator: leave COSMOS_ENDPOINT out".into(),
        )
        .into());
    }
    let rows = tokio::select! {
        rows = connection.guard(measure(&connection, args, &meters)) => rows,
        () = interrupt.wait() => Err(Problem::Interrupted("stopped; nothing was measured to its end".into()).into()),
    };
    let endpoint =
        if connection.emulator().is_some() { "embedded" } else { connection.endpoint() }.to_owned();
    connection.close().await;
    report(args, &rows?, &endpoint)
}

/// Serves the metrics of this process for as long as it runs.
async fn tell(address: SocketAddr) -> anyhow::Result<Meters> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("figures cannot be served at {address}: name another port"))?;
    say(format!("figures at http://{}/metrics", listener.local_addr()?));
    let meters = Meters::default();
    tokio::spawn(serve(listener, Source::Process(Registry::listen(meters.clone()))));
    Ok(meters)
}

async fn measure(
    connection: &Connection,
    args: &StressArgs,
    meters: &Meters,
) -> anyhow::Result<Vec<Measured>> {
    // Opened before the network gets slow: making the container is not what is measured.
    let provider = connection.provider_with(|_| {}).await?;
    let _latency = args.latency.zip(connection.emulator()).map(|(latency, emulator)| {
        emulator.faults().add(FaultRule::new(Verdict::Delay { duration: latency }))
    });
    let mut rows = Vec::new();
    for workload in &args.workloads {
        let load = Load {
            workload: *workload,
            shape: Shape { tasks: args.tasks, payload: args.payload },
            concurrency: args.concurrency.max(1),
            duration: if args.instances.is_some() { Duration::MAX } else { args.duration },
            instances: args.instances.unwrap_or(u64::MAX),
            activity: args.activity,
            orchestration_dispatchers: args.orchestration_dispatchers.max(1),
            worker_dispatchers: args.worker_dispatchers.max(1),
            prefix: format!("stress-{}-{}", workload.name(), now_ms()),
        };
        meters.reset();
        let mut progress = match args.instances {
            Some(instances) => Progress::new(instances),
            None => Progress::of_time(u64::try_from(load.duration.as_millis()).unwrap_or(u64::MAX)),
        };
        let outcome = pump(provider.clone(), &load, |elapsed, outcome| {
            let gone = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            let done = outcome.latencies.len() as u64 + outcome.failed;
            progress.set(
                if args.instances.is_some() { done } else { gone },
                &format!(
                    "{}: {} completed, {} failed",
                    workload.name(),
                    outcome.latencies.len(),
                    outcome.failed
                ),
            );
        })
        .await;
        drop(progress);
        rows.push(Measured::new(&load, outcome, meters));
    }
    Ok(rows)
}

fn report(args: &StressArgs, rows: &[Measured], endpoint: &str) -> anyhow::Result<()> {
    let document = json!({
        "at": now_ms(),
        "endpoint": endpoint,
        "latencyMs": args.latency.map(|latency| latency.as_secs_f64() * 1000.0),
        "activityMs": args.activity.as_secs_f64() * 1000.0,
        "results": rows,
    });
    if let Some(path) = &args.output {
        files::write(path, &format!("{document:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let output = Output::new(args.json);
    if output.is_json() {
        output.json(&document)?;
    } else {
        output.table(&table(rows))?;
        for row in rows {
            output.line("")?;
            output.line(output.style.bold(&format!("Where {} spent it", row.workload)))?;
            output.table(&operations(row))?;
        }
        say("REQUESTS and RU are per completed instance, waiting clients included");
    }
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    if failed > 0 {
        let reasons: Vec<&str> = rows.iter().flat_map(|row| &row.failures).map(String::as_str).collect();
        return Err(Problem::Found(format!("{failed} instances failed: {}", reasons.join("; "))).into());
    }
    Ok(())
}
