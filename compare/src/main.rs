//! Measures our emulator, driver and provider side by side with their peers, in one run on one machine.
//!
//! Machines are noisy: what counts are ratios between rows of one run.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod driver;
mod emulator;
mod load;
mod process;
mod provider;
mod report;

/// Measures ours against the peers and prints a table; the same figures go to a JSON file.
#[derive(Parser)]
#[command(name = "compare", version)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// Where the figures go as JSON (default: target/compare/<what>.json).
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Seconds that each cell of the table is measured for.
    #[arg(long, global = true, default_value_t = 2.0)]
    seconds: f64,
}

#[derive(Subcommand, Clone)]
enum What {
    /// Point operations, queries, batches, startup and memory; with @vercel/cosmosdb-server from npm.
    Emulator,
    /// Requests, RUs and time per orchestration; with duroxide-cdb 0.1.10 and SQLite.
    Provider,
    /// Rates, latencies, allocations and two bad days of a client; with azure_data_cosmos and bare hyper.
    Driver,
    /// The server of the driver's comparison: a process of its own, so that it does not count.
    #[command(hide = true)]
    Serve {
        /// Processors to use.
        #[arg(long, value_delimiter = ',')]
        cores: Vec<usize>,
    },
}

/// Counts allocations, for the driver's comparison.
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // duroxide's runtime would otherwise log to standard output, where the tables go.
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(std::io::stderr).init();
    let (name, report) = match args.what {
        What::Emulator => ("emulator", emulator::run(args.seconds).await?),
        What::Provider => ("provider", provider::run().await?),
        What::Driver => ("driver", driver::run(args.seconds).await?),
        What::Serve { cores } => return driver::serve(&cores),
    };
    print!("{}", report.to_markdown());
    let path = args.json.unwrap_or_else(|| process::target_folder().join(format!("compare/{name}.json")));
    report.save(&path)?;
    eprintln!("figures: {}", path.display());
    Ok(())
}
