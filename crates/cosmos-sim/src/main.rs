//! `cargo run --profile sim -p cosmos-sim -- --seeds 2000`: worlds that repeat themselves, until one fails.
//! `… -- --seed 7 --trace`: one of them, line by line. `… -- shrink --seed 7`: what of it is needed to fail.
//! `… -- real --seeds 50`: worlds over real sockets in real time. `… -- soak --seeds 200`: the emulator alone.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use cosmos_sim::fleet::{Fleet, Said};
use cosmos_sim::mutants::MUTANTS;
use cosmos_sim::soak::{Counts, Serve, Soak};
use cosmos_sim::world::trace::Trace;
use cosmos_sim::world::{self, Plan};

/// Runs seeded worlds of crashes and faults; stops at the first one that breaks a promise.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(flatten)]
    world: WorldArgs,
    #[command(flatten)]
    many: Many,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Parser)]
struct WorldArgs {
    /// One world: the same every time.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every request, lock, commit and fault with its virtual time.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Stop after so many virtual seconds.
    #[arg(long, requires = "seed")]
    until: Option<f64>,
    /// Leave out these parts of the plan, as `shrink` numbers them.
    #[arg(long, requires = "seed", value_delimiter = ',')]
    without: Vec<usize>,
    /// Print the plan and do not run it.
    #[arg(long, requires = "seed")]
    plan: bool,
}

#[derive(Parser)]
struct Many {
    #[command(flatten)]
    seeds: Seeds,
    /// How many worlds at once. Default: as many as there are processors.
    #[arg(long)]
    at_once: Option<usize>,
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

impl Seeds {
    fn range(&self) -> std::ops::Range<u64> {
        self.first..self.first.saturating_add(self.seeds)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Find out what of a failing world is needed for it to fail.
    Shrink {
        /// The failing world.
        #[arg(long)]
        seed: u64,
    },
    /// Show that worlds find bugs: each of a list is built in, and worlds are run until one fails.
    Mutants {
        #[command(flatten)]
        seeds: Seeds,
        /// Only these.
        #[arg(long, value_delimiter = ',')]
        only: Vec<u32>,
    },
    /// Worlds over real sockets in real time.
    Real {
        #[command(flatten)]
        seeds: Seeds,
    },
    /// The emulator alone, under splits, failovers, outages and kills, with a checker.
    Soak {
        #[command(flatten)]
        seeds: Seeds,
        /// Print the steps of each world.
        #[arg(long)]
        verbose: bool,
    },
    /// Run orchestrations of an account until killed or told to stop.
    #[command(hide = true)]
    Worker(cosmos_sim::real::worker::WorkerArgs),
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
        None => match args.world.seed {
            Some(seed) => one(seed, &args.world),
            None => many(&args.many),
        },
        Some(Command::Shrink { seed }) => shrink(seed),
        Some(Command::Mutants { seeds, only }) => mutants(&seeds, &only),
        Some(Command::Real { seeds }) => tokio::runtime::Runtime::new()?.block_on(Box::pin(real(&seeds))),
        Some(Command::Worker(args)) => {
            tokio::runtime::Runtime::new()?.block_on(cosmos_sim::real::worker::work(&args))
        }
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

/// Runs one world in this process.
fn one(seed: u64, args: &WorldArgs) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let plan = Plan::of(seed).without(&args.without);
    if args.plan {
        for line in plan.lines() {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    cosmos_wire::mutant::activate(fleet(None)?.mutant);
    let trace = Trace::new(args.trace);
    let outcome = world::run(&plan, &trace, args.until.map(Duration::from_secs_f64))?;
    writeln!(
        out,
        "seed {seed}: hash {:016x}, {} lines, {} requests, {} of them struck, {:.3} virtual s",
        outcome.hash,
        outcome.lines,
        outcome.requests,
        outcome.struck,
        outcome.elapsed.as_secs_f64()
    )?;
    for finding in &outcome.findings {
        writeln!(out, "  {finding}")?;
    }
    // Tasks of the world are still there; their destructors have nothing to say.
    out.flush()?;
    std::process::exit(i32::from(!outcome.findings.is_empty()));
}

fn fleet(at_once: Option<usize>) -> anyhow::Result<Fleet> {
    let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Fleet {
        program: std::env::current_exe()?,
        at_once: at_once.unwrap_or_else(processors),
        mutant: std::env::var("SIM_MUTANT").ok().and_then(|mutant| mutant.parse().ok()).unwrap_or(0),
    })
}

fn many(args: &Many) -> anyhow::Result<()> {
    let begun = Instant::now();
    let out = Mutex::new(std::io::stdout());
    let tell = |said: &Said| {
        if let Ok(mut out) = out.lock() {
            // Whoever reads may have seen enough.
            let _ = write!(out, "{}", said.text);
        }
    };
    let failed = fleet(args.at_once)?.until_failure(args.seeds.range(), &tell)?;
    if let Some(failed) = failed {
        let seed = failed.seed;
        anyhow::bail!(
            "seed {seed} failed; --seed {seed} --trace shows it, shrink --seed {seed} makes it smaller"
        );
    }
    let seconds = begun.elapsed().as_secs_f64();
    let (count, pace) = (args.seeds.seeds, args.seeds.seeds as f64 / seconds);
    writeln!(std::io::stdout(), "{count} worlds clean in {seconds:.1} s, {pace:.1} in a second")?;
    Ok(())
}

fn mutants(seeds: &Seeds, only: &[u32]) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "| | where | bug | found by seed | as |\n|---:|---|---|---:|---|")?;
    let (mut found, mut all) = (0, 0);
    for mutant in MUTANTS.iter().filter(|mutant| only.is_empty() || only.contains(&mutant.number)) {
        let fleet = Fleet { mutant: mutant.number, ..fleet(None)? };
        let failed = fleet.until_failure(seeds.range(), &|_| ())?;
        all += 1;
        found += usize::from(failed.is_some());
        let (seed, finding) = match &failed {
            Some(said) => (said.seed.to_string(), said.text.lines().nth(1).unwrap_or("").trim()),
            None => ("**none**".to_owned(), ""),
        };
        let finding: String = finding.chars().take(90).collect();
        writeln!(out, "| {} | `{}` | {} | {seed} | {finding} |", mutant.number, mutant.place, mutant.bug)?;
    }
    writeln!(out, "{found} of {all} found")?;
    anyhow::ensure!(found == all, "some bugs were not found");
    Ok(())
}

fn shrink(seed: u64) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let plan = Plan::of(seed);
    let fleet = fleet(None)?;
    anyhow::ensure!(!fleet.run(seed, &[])?.is_clean, "seed {seed} does not fail");
    let (without, said) = fleet.shrink(seed, plan.parts())?;
    for line in plan.without(&without).lines() {
        writeln!(out, "{line}")?;
    }
    let parts: Vec<String> = without.iter().map(usize::to_string).collect();
    writeln!(out, "again: cosmos-sim --seed {seed} --without {} --trace", parts.join(","))?;
    if let Some(said) = said {
        write!(out, "{}", said.text)?;
    }
    Ok(())
}

async fn real(seeds: &Seeds) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let (mut faults, mut requests) = (0, 0);
    for seed in seeds.first..seeds.first + seeds.seeds {
        let outcome = cosmos_sim::real::run(seed).await?;
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
            "seed {seed} failed: cargo run -p cosmos-sim -- real --first {seed} --seeds 1"
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
