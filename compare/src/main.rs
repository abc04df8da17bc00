//! Measures our emulator, driver and provider side by side with their peers, in one run on one machine.
//!
//! Machines are noisy: what counts are ratios between columns of one run.

use clap::{Parser, Subcommand, ValueEnum};

mod driver;
mod emulator;
mod fleet;
mod headline;
mod legacy;
mod load;
mod plot;
mod process;
mod provider;
mod publish;
mod report;

use publish::Destination;

/// Measures ours against the peers and prints tables; JSON, Markdown and charts go to target/compare.
#[derive(Parser)]
#[command(name = "compare", version)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Put JSON and Markdown into compare/results, charts into docs/figures and the tables into
    /// docs/measurements.md; the five figures of the README are made again.
    #[arg(long, global = true, alias = "write-readme")]
    write_docs: bool,
    /// Smaller sizes and shorter cells: minutes become seconds, and the figures rough.
    #[arg(long, global = true)]
    quick: bool,
    /// Seconds that each cell is measured for, where time decides [default: 2, quick: 0.3].
    #[arg(long, global = true)]
    seconds: Option<f64>,
}

#[derive(Subcommand, Clone)]
enum What {
    /// Point operations, queries, batches, startup and memory; with @vercel/cosmosdb-server from npm.
    Emulator {
        /// Only contenders with this in their names, for a look: it cannot go into the documents.
        #[arg(long, conflicts_with = "write_docs", default_value = "")]
        only: String,
    },
    /// Requests, RUs, bytes and time per orchestration; with duroxide-cdb 0.1.10, SQLite and PostgreSQL.
    Provider {
        /// Only this part, for a look: it cannot go into the documents.
        #[arg(long, conflicts_with = "write_docs")]
        only: Option<provider::Part>,
    },
    /// Many worker processes on one container: rates, requests, refused writes, how soon a start is heard; with
    /// duroxide-cdb 0.1.10.
    Fleet(fleet::FleetArgs),
    /// One worker of that comparison: a process of its own.
    #[command(hide = true)]
    Worker(fleet::WorkerArgs),
    /// What the providers can do, tried: large results, odd ids, lost answers, crashes.
    Features,
    /// Rates, latencies, allocations and two bad days of a client; with azure_data_cosmos and bare hyper.
    Driver,
    /// The server of the driver's comparison: a process of its own, so that it does not count.
    #[command(hide = true)]
    Serve {
        /// Processors to use.
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
        /// Regions of its account.
        #[arg(long, value_delimiter = ',')]
        regions: Vec<String>,
        /// Ranges of its containers.
        #[arg(long)]
        partitions: Option<u32>,
        /// Whether it has Gateway 2.0.
        #[arg(long)]
        gateway2: bool,
    },
    /// A server that gives the answers of that one again, with next to no work.
    #[command(hide = true)]
    Replay {
        /// Processors to use.
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
        /// The server whose answers these are.
        #[arg(long)]
        upstream: String,
    },
    /// Let duroxide-cdb 0.1.10 write a container and save its documents, which our tests open and carry on.
    Legacy {
        /// Where to.
        #[arg(default_value = "crates/duroxide-cdb/tests/fixtures/public-0.1.10.ndjson")]
        path: std::path::PathBuf,
    },
    /// Make tables, charts and documents again from compare/results, without measuring.
    Render {
        /// Which report.
        report: Stored,
    },
}

/// Reports that can be made again.
#[derive(Clone, Copy, ValueEnum)]
enum Stored {
    Emulator,
    Provider,
    Features,
    Driver,
    Fleet,
}

impl Stored {
    fn name(self) -> &'static str {
        match self {
            Self::Emulator => "emulator",
            Self::Provider => "provider",
            Self::Features => "features",
            Self::Driver => "driver",
            Self::Fleet => "fleet",
        }
    }
}

/// Counts allocations, for the driver's comparison.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // duroxide's runtime would otherwise log to standard output, where the tables go.
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(std::io::stderr).init();
    let into_repository = args.write_docs || matches!(args.what, What::Render { .. });
    let seconds = args.seconds.unwrap_or(if args.quick { 0.3 } else { 2.0 });
    let (name, report) = match args.what {
        What::Emulator { only } => {
            ("emulator", tokio::task::spawn_blocking(move || emulator::run(seconds, &only)).await??)
        }
        What::Provider { only } => ("provider", provider::run(args.quick, only).await?),
        What::Fleet(args_of_fleet) => {
            let report = fleet::run(args.quick, &args_of_fleet).await?;
            let earlier =
                (into_repository && args_of_fleet.is_partial()).then(|| publish::stored("fleet").ok());
            (
                "fleet",
                match earlier.flatten() {
                    Some(earlier) => report.beside(earlier),
                    None => report,
                },
            )
        }
        What::Worker(worker) => return fleet::work(&worker).await,
        What::Features => ("features", provider::features::run().await?),
        What::Driver => ("driver", driver::run(seconds).await?),
        What::Serve { cores, regions, partitions, gateway2 } => {
            return driver::serve(&regions, partitions, gateway2, &cores);
        }
        What::Replay { cores, upstream } => {
            return tokio::task::spawn_blocking(move || driver::replay(&upstream, &cores)).await?;
        }
        What::Legacy { path } => return legacy::run(&path).await,
        What::Render { report } => (report.name(), publish::stored(report.name())?),
    };
    print!("{}", report.to_markdown());
    let destination = if into_repository { Destination::Repository } else { Destination::Target };
    for path in publish::publish(name, &report, destination)? {
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
