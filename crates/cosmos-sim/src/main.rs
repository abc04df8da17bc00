//! `cargo run --release -p cosmos-sim -- --seeds 50`: worlds one after the other until one fails.

use std::io::Write as _;

use clap::Parser;

/// Runs seeded worlds of crashes and faults; stops at the first one that breaks a promise.
#[derive(Parser)]
struct Args {
    /// How many worlds.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut out = std::io::stdout();
    let (mut faults, mut requests) = (0, 0);
    for seed in args.first..args.first + args.seeds {
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
    writeln!(out, "{} worlds clean: {faults} of {requests} requests broken", args.seeds)?;
    Ok(())
}
