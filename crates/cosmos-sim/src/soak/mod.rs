//! A seeded soak of the emulator itself: clients work while partitions split and merge, regions fail and the server
//! dies, and a checker holds every answer against what may be true.
//!
//! What it checks: a session reads its writes and never goes back; a batch is seen whole or not at all; a replica
//! shows a prefix of the commits of a logical partition, and never an older one than before; an acknowledged write
//! stays, unless a forced failover loses it, and then together with everything after it; the change feed goes forward
//! and shows every item as it is; at rest all regions agree.
//!
//! A seed fixes the world and its steps. Everything is sequential and on a clock moved by hand, so a failing seed
//! fails again; only bursts (several clients at once) and killed processes add the machine's own chance.

mod burst;
mod feed;
mod http;
mod model;
mod plan;
mod routing;
mod server;
mod step;
mod world;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::plan::{Home, Plan, Promise, Writes};
pub use self::world::Counts;
use self::world::World;

/// How a soak is run.
#[derive(Debug, Clone, Default)]
pub struct Soak {
    /// The program whose `serve` command is killed in some worlds; none kills no processes.
    pub program: Option<PathBuf>,
}

/// How a world ended.
#[derive(Debug)]
pub struct Soaked {
    /// The seed.
    pub seed: u64,
    /// What was found to be wrong, if anything.
    pub finding: Option<String>,
    /// The last steps, oldest first.
    pub history: Vec<String>,
    /// What the world was like.
    pub world: String,
    /// What happened in it.
    pub counts: Counts,
    /// How long it took.
    pub elapsed: Duration,
}

impl Soak {
    /// Runs the world of a seed.
    ///
    /// # Errors
    /// When there is no room for the world's data.
    pub fn run(&self, seed: u64) -> anyhow::Result<Soaked> {
        let started = Instant::now();
        let mut random = fastrand::Rng::with_seed(seed);
        let plan = Plan::of(seed, &mut random, self.program.is_some());
        let folder = tempfile::tempdir()?;
        let described = format!("{plan:?}");
        let mut world = World::new(plan, random, folder.path(), self.program.as_deref())?;
        let ended = live(&mut world);
        Ok(Soaked {
            seed,
            finding: ended.err().map(|error| format!("{error:#}")),
            history: world.recent().to_vec(),
            world: described,
            counts: world.counts,
            elapsed: started.elapsed(),
        })
    }
}

fn live(world: &mut World) -> anyhow::Result<()> {
    for _ in 0..world.plan.steps {
        let plan = world.plan.clone();
        let step = plan.next(&mut world.random);
        world.take(step)?;
    }
    world.check_all()
}

/// What `serve` serves.
#[derive(Debug, Clone)]
pub struct Serve {
    /// Where the data is.
    pub folder: PathBuf,
    /// Regions of the account.
    pub regions: usize,
    /// Physical partitions of each new container.
    pub partitions: u32,
    /// How long writes take between regions.
    pub delay_ms: u64,
    /// Whether all regions take writes.
    pub multi_write: bool,
    /// Whether the account promises strong consistency.
    pub strong: bool,
}

/// Serves an account until the process is killed: the victim of the soak.
///
/// # Errors
/// When the server does not start.
pub fn serve(asked: &Serve) -> anyhow::Result<()> {
    let plan = Plan {
        regions: asked.regions,
        writes: if asked.multi_write { Writes::All } else { Writes::One },
        consistency: if asked.strong { Promise::Strong } else { Promise::Session },
        home: Home::Process,
        partitions: asked.partitions,
        delay_ms: asked.delay_ms,
        steps: 0,
    };
    server::serve(&plan, Path::new(&asked.folder))
}
