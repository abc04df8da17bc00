//! Whether a measurement had the machine for itself, as far as Linux tells.

/// What the processors have done so far, in ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Meter {
    all: u64,
    busy: u64,
    own: u64,
}

impl Meter {
    /// As of now, with these processes as the ones that are measured.
    pub fn now(processes: &[u32]) -> Self {
        let (all, busy) = whole(&read("/proc/stat"));
        let own = processes.iter().map(|id| ticks(&read(&format!("/proc/{id}/stat")))).sum();
        Self { all, busy, own }
    }

    /// What others took of the processors between this moment and a later one, per cent.
    pub fn foreign_percent(&self, later: &Self) -> f64 {
        let all = later.all.saturating_sub(self.all);
        let busy = later.busy.saturating_sub(self.busy);
        let foreign = busy.saturating_sub(later.own.saturating_sub(self.own));
        if all == 0 { 0.0 } else { foreign as f64 / all as f64 * 100.0 }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// All ticks of all processors, and those in which they did something.
fn whole(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    // User, nice, system, idle, waiting for disks, interrupts, soft interrupts, taken by the host.
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).map(|n| n.parse().unwrap_or(0)).collect();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let all: u64 = ticks.iter().sum();
    (all, all - idle)
}

/// The ticks of one process. Its name, in brackets, may hold anything.
fn ticks(stat: &str) -> u64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_somebody_elses() {
        let stat = "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3";
        assert_eq!(whole(stat), (1000, 150));
        assert_eq!(ticks("7 (a (b) c) S 1 1 1 0 -1 4194560 1 2 3 4 40 2 0 0 20"), 42);
        let (before, after) = (Meter { all: 0, busy: 0, own: 0 }, Meter { all: 1000, busy: 150, own: 42 });
        assert!((before.foreign_percent(&after) - 10.8).abs() < 1e-9);
    }
}
