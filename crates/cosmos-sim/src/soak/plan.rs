//! What a seed means: pure.

/// The world of a seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) regions: usize,
    pub(super) writes: Writes,
    pub(super) consistency: Promise,
    pub(super) home: Home,
    pub(super) partitions: u32,
    /// How long writes take between regions.
    pub(super) delay_ms: u64,
    pub(super) steps: u32,
}

/// Which regions take writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    One,
    All,
}

/// What the account promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    Session,
    Strong,
}

/// Where the server runs and where its data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// In this process, in memory.
    Memory,
    /// In this process, in a folder; it is dropped in mid-work and started again.
    Folder,
    /// In a process of its own, in a folder; it is killed in mid-work and started again.
    Process,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    Batch,
    WrongBatch,
    WrongWrite,
    Contend,
    LoseAnswer,
    Read,
    Query,
    Feed,
    Tick,
    Split,
    Merge,
    Advance,
    Pause,
    Resume,
    Offline,
    Online,
    PlannedFailover,
    ForcedFailover,
    AddRegion,
    RemoveRegion,
    Restart,
    Burst,
}

/// Steps of a world.
const STEPS: std::ops::RangeInclusive<u32> = 120..=180;

impl Plan {
    /// The world of a seed. Every tenth one kills a process, if there is a program to run.
    pub(super) fn of(seed: u64, random: &mut fastrand::Rng, has_program: bool) -> Self {
        let regions = random.usize(1..=3);
        let writes = if regions > 1 && random.u32(..3) == 0 { Writes::All } else { Writes::One };
        let is_strong = writes == Writes::One && random.u32(..5) == 0;
        let home = match random.u32(..2) {
            _ if has_program && seed.is_multiple_of(10) => Home::Process,
            0 => Home::Memory,
            _ => Home::Folder,
        };
        Self {
            regions,
            writes,
            consistency: if is_strong { Promise::Strong } else { Promise::Session },
            home,
            partitions: random.u32(1..=3),
            delay_ms: if is_strong { 0 } else { [0, 0, 20, 200][random.usize(..4)] },
            steps: random.u32(STEPS),
        }
    }

    /// What happens next. Whether it is possible is the world's to know.
    pub(super) fn next(&self, random: &mut fastrand::Rng) -> Step {
        let total: u32 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut drawn = random.u32(..total);
        for (step, weight) in WEIGHTS {
            if drawn < *weight {
                return *step;
            }
            drawn -= weight;
        }
        Step::Tick
    }
}

/// How often each step is drawn.
const WEIGHTS: &[(Step, u32)] = &[
    (Step::Write, 260),
    (Step::Batch, 100),
    (Step::WrongBatch, 30),
    (Step::WrongWrite, 30),
    (Step::Contend, 40),
    (Step::LoseAnswer, 15),
    (Step::Read, 240),
    (Step::Query, 120),
    (Step::Feed, 50),
    (Step::Tick, 60),
    (Step::Split, 14),
    (Step::Merge, 10),
    (Step::Advance, 30),
    (Step::Pause, 12),
    (Step::Resume, 20),
    (Step::Offline, 10),
    (Step::Online, 20),
    (Step::PlannedFailover, 12),
    (Step::ForcedFailover, 8),
    (Step::AddRegion, 3),
    (Step::RemoveRegion, 3),
    (Step::Restart, 8),
    (Step::Burst, 8),
];
