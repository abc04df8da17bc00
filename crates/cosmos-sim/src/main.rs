//! `cargo run --release -p cosmos-sim -- --seeds 50`: worlds one after the other until one fails.
//! `cargo run -p cosmos-sim -- soak --seeds 200`: the same for the emulator alone.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use cosmos_sim::soak::{Counts, Serve, Soak};

/// Runs seeded worlds of crashes and faults; stops at the first one that breaks a promise.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(flatten)]
    seeds: Seeds,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Parser)]
struct Seeds {
    /// How many worlds.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
}

#[derive(Subcommand)]
enum Command {
    /// The emulator alone, under splits, failovers, outages and kills, with a checker.
    Soak {
        #[command(flatten)]
        seeds: Seeds,
        /// Print the steps of each world.
        #[arg(long)]
        verbose: bool,
    },
    /// Serve an account until killed.
    #[command(hide = true)]
    Serve(ServeArgs),
}

#[derive(Parser)]
struct ServeArgs {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    regions: usize,
    #[arg(long)]
    partitions: u32,
    #[arg(long)]
    delay_ms: u64,
    #[arg(long)]
    multi_write: bool,
    #[arg(long)]
    strong: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.command {
        None => tokio::runtime::Runtime::new()?.block_on(Box::pin(worlds(&args.seeds))),
        Some(Command::Soak { seeds, verbose }) => soak(&seeds, verbose),
        Some(Command::Serve(args)) => cosmos_sim::soak::serve(&Serve {
            folder: args.folder,
            regions: args.regions,
            partitions: args.partitions,
            delay_ms: args.delay_ms,
            multi_write: args.multi_write,
            strong: args.strong,
        }),
    }
}

async fn worlds(seeds: &Seeds) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let (mut faults, mut requests) = (0, 0);
    for seed in seeds.first..seeds.first + seeds.seeds {
        let outcome = cosmos_sim::run(seed).await?;
        let (struck, answered) = (outcome.faults, outcome.requests);
        writeln!(
            out,
            "seed {seed}: {struck} of {answered} requests broken, {:.1} s",
            outcome.elapsed.as_secs_f64()
        )?;
        for finding in &outcome.findings {
            writeln!(out, "  {}", finding.0)?;
        }
        anyhow::ensure!(
            outcome.findings.is_empty(),
            "seed {seed} failed: cargo run -p cosmos-sim -- --first {seed} --seeds 1"
        );
        faults += struck;
        requests += answered;
    }
    writeln!(out, "{} worlds clean: {faults} of {requests} requests broken", seeds.seeds)?;
    Ok(())
}

fn soak(seeds: &Seeds, verbose: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let soak = Soak { program: Some(std::env::current_exe()?) };
    let (mut total, mut seconds) = (Counts::default(), 0.0);
    for seed in seeds.first..seeds.first + seeds.seeds {
        let soaked = soak.run(seed)?;
        seconds += soaked.elapsed.as_secs_f64();
        if verbose || soaked.finding.is_some() {
            writeln!(out, "seed {seed}: {}", soaked.world)?;
            for line in &soaked.history {
                writeln!(out, "  {line}")?;
            }
        }
        if let Some(finding) = soaked.finding {
            anyhow::bail!(
                "seed {seed}: {finding}\nagain: cargo run -p cosmos-sim -- soak --first {seed} --seeds 1"
            );
        }
        total = total.plus(soaked.counts);
    }
    writeln!(
        out,
        "{} worlds clean in {seconds:.1} s: {} requests, {} commits ({} lost by forced failovers, as they may be), \
         {} splits and merges, {} failovers, {} outages, {} restarts",
        seeds.seeds,
        total.requests,
        total.commits,
        total.lost,
        total.reshapings,
        total.failovers,
        total.outages,
        total.restarts
    )?;
    Ok(())
}
