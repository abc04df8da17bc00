//! What a seed means: pure.

use std::time::Duration;

use cosmos_emulator::{FaultRule, Operation, Verdict};

use super::workload::{Job, Kind};

/// Everything that is decided before a world starts.
#[derive(Debug)]
pub struct Plan {
    /// Physical partitions of the container.
    pub partitions: u32,
    /// Clock error of each process, in milliseconds.
    pub clock_offsets_ms: Vec<i64>,
    /// What is worked on.
    pub(crate) jobs: Vec<Job>,
    /// Rules that break requests.
    pub(crate) faults: Vec<FaultRule>,
    /// What dies, and when.
    pub crashes: Vec<(Duration, Crash)>,
}

/// Something that dies without warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// A process with a runtime in it; another one takes its place.
    Process(usize),
    /// The server; it comes back on the same port with what its folder holds.
    Server,
}

/// Jobs of one world.
const JOBS: usize = 24;
/// Requests in a thousand that each rule breaks.
const FAULTS_PER_THOUSAND: std::ops::RangeInclusive<u32> = 2..=25;

impl Plan {
    /// The world of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let processes = random.usize(2..=3);
        let jobs: Vec<Job> = (0..JOBS)
            .map(|number| Job { number, kind: Kind::ALL[random.usize(..Kind::ALL.len())] })
            .collect();
        Self {
            partitions: random.u32(1..=4),
            clock_offsets_ms: (0..processes).map(|_| random.i64(-300..=300)).collect(),
            jobs,
            faults: faults(&mut random),
            crashes: crashes(&mut random, processes),
        }
    }
}

fn faults(random: &mut fastrand::Rng) -> Vec<FaultRule> {
    let retry_after = Some(Duration::from_millis(random.u64(1..=40)));
    let verdicts = [
        Verdict::Status { code: 429, sub_status: 3200, retry_after },
        Verdict::Status { code: 449, sub_status: 0, retry_after: None },
        Verdict::Status { code: 503, sub_status: 0, retry_after: None },
        Verdict::Status { code: 408, sub_status: 0, retry_after: None },
        Verdict::ResetBefore,
        Verdict::ResetAfterCommit,
        Verdict::Delay { duration: Duration::from_millis(random.u64(20..=400)) },
    ];
    let operations = [
        Operation::Batch,
        Operation::CreateItem,
        Operation::ReplaceItem,
        Operation::ReadItem,
        Operation::Query,
    ];
    let mut rules = Vec::new();
    for verdict in verdicts {
        for operation in operations {
            let share = f64::from(random.u32(FAULTS_PER_THOUSAND)) / 1000.0;
            let rule = FaultRule::new(verdict.clone()).on(operation).with_probability(share, random.u64(..));
            // Each world leaves some of them out, so that they are also met one by one.
            if random.u8(..3) > 0 {
                rules.push(rule);
            }
        }
    }
    rules
}

fn crashes(random: &mut fastrand::Rng, processes: usize) -> Vec<(Duration, Crash)> {
    let mut at = Duration::ZERO;
    (0..random.usize(2..=4))
        .map(|_| {
            at += Duration::from_millis(random.u64(150..=900));
            let crash =
                if random.u8(..3) == 0 { Crash::Server } else { Crash::Process(random.usize(..processes)) };
            (at, crash)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_means_the_same_world() {
        assert_eq!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(7)));
        assert_ne!(format!("{:?}", Plan::of(7)), format!("{:?}", Plan::of(8)));
    }
}
