//! How busy the machine is, from the kernel's own counters where there are any.

#[derive(Debug, Default)]
pub(super) struct Cpu {
    last: Option<Times>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    busy: u64,
    total: u64,
}

impl Cpu {
    /// The fraction of time all processors were busy since the last call; `None` the first time or elsewhere.
    pub(super) fn load_since_last(&mut self) -> Option<f64> {
        let now = std::fs::read_to_string("/proc/stat").ok().as_deref().and_then(parse)?;
        let last = self.last.replace(now)?;
        let total = now.total.checked_sub(last.total).filter(|total| *total > 0)?;
        Some(now.busy.saturating_sub(last.busy) as f64 / total as f64)
    }
}

/// First line: `cpu user nice system idle iowait irq softirq steal ...`, in clock ticks.
fn parse(stat: &str) -> Option<Times> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(Times { busy: total - idle, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_disks_count_as_free() {
        let times = parse("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n").expect("parses");
        assert_eq!(times, Times { busy: 30, total: 100 });
        for junk in ["", "cpu", "cpu  a b", "intr 5"] {
            assert_eq!(parse(junk), None, "{junk:?}");
        }
    }
}
