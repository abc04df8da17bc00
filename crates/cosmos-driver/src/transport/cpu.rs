//! How busy the processors are that this process may use.
//!
//! In a container that is a quota, not a machine: the container's own counters (cgroups, version 2 or 1) are asked first,
//! then the machine's. Both are Linux's; elsewhere nothing is known, and the guard that asks never holds anything back.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Cpu {
    machine: Option<Times>,
    container: Option<(Duration, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    busy: u64,
    total: u64,
}

impl Cpu {
    /// The fraction of their time that processors were busy since the last call: of the container's quota where there is
    /// one, else of the machine. `None` the first time, and where the system does not say.
    pub(super) fn load_since_last(&mut self, now: Instant) -> Option<f64> {
        let container = self.container_load(now);
        let machine = self.machine_load();
        container.into_iter().chain(machine).reduce(f64::max)
    }

    fn machine_load(&mut self) -> Option<f64> {
        let now = read("/proc/stat").as_deref().and_then(parse_stat)?;
        let last = self.machine.replace(now)?;
        let total = now.total.checked_sub(last.total).filter(|total| *total > 0)?;
        Some(now.busy.saturating_sub(last.busy) as f64 / total as f64)
    }

    fn container_load(&mut self, now: Instant) -> Option<f64> {
        let (used, processors) = container()?;
        let (before, then) = self.container.replace((used, now))?;
        share(used.saturating_sub(before), now.duration_since(then), processors)
    }
}

/// Time used of the time that a quota of so many processors gives. Pure.
fn share(used: Duration, elapsed: Duration, processors: f64) -> Option<f64> {
    let given = elapsed.as_secs_f64() * processors;
    (given > 0.0).then(|| used.as_secs_f64() / given)
}

/// Processor time used so far by the container that this process is in, and its quota in processors.
fn container() -> Option<(Duration, f64)> {
    let groups = read("/proc/self/cgroup")?;
    if let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::")) {
        let folder = PathBuf::from("/sys/fs/cgroup").join(path.trim_start_matches('/'));
        // Inside a container its own group is the root of what it sees.
        let file =
            |name: &str| read(folder.join(name)).or_else(|| read(PathBuf::from("/sys/fs/cgroup").join(name)));
        let quota = file("cpu.max").as_deref().and_then(parse_max);
        if let Some(quota) = quota {
            return Some((file("cpu.stat").as_deref().and_then(parse_usage)?, quota));
        }
    }
    let file = |controller: &str, name: &str| read(format!("/sys/fs/cgroup/{controller}/{name}"));
    let number = |text: Option<String>| text?.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    let quota = number(file("cpu", "cpu.cfs_quota_us"))? / number(file("cpu", "cpu.cfs_period_us"))?;
    let used = file("cpuacct", "cpuacct.usage")?.trim().parse().ok()?;
    Some((Duration::from_nanos(used), quota))
}

fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// First line: `cpu user nice system idle iowait irq softirq steal ...`, in clock ticks.
fn parse_stat(stat: &str) -> Option<Times> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(Times { busy: total - idle, total })
}

/// `quota period` in microseconds; `max` for no quota.
fn parse_max(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// A line `usage_usec N`.
fn parse_usage(text: &str) -> Option<Duration> {
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    usage.trim().parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_disks_count_as_free() {
        let times = parse_stat("cpu  10 0 20 60 10 0 0 0 0 0\ncpu0 1 2 3\n").expect("parses");
        assert_eq!(times, Times { busy: 30, total: 100 });
        for junk in ["", "cpu", "cpu  a b", "intr 5"] {
            assert_eq!(parse_stat(junk), None, "{junk:?}");
        }
    }

    #[test]
    fn a_containers_quota_is_what_its_load_is_measured_by() {
        assert_eq!(parse_max("50000 100000\n"), Some(0.5));
        assert_eq!(parse_max("max 100000\n"), None, "no quota: the machine counts");
        for junk in ["", "1", "a b", "0 100000"] {
            assert_eq!(parse_max(junk), None, "{junk:?}");
        }
        assert_eq!(parse_usage("usage_usec 1500\nuser_usec 1000\n"), Some(Duration::from_micros(1500)));
        assert_eq!(parse_usage("user_usec 1000\n"), None);
        let second = Duration::from_secs(1);
        assert_eq!(
            share(Duration::from_millis(475), second, 0.5),
            Some(0.95),
            "half a processor is nearly used up"
        );
        assert_eq!(share(Duration::from_millis(475), second, 8.0), Some(0.059_375));
        assert_eq!(share(Duration::ZERO, Duration::ZERO, 1.0), None);
    }

    #[tokio::test]
    async fn the_first_look_says_nothing_and_later_ones_a_share() {
        let mut cpu = Cpu::default();
        assert_eq!(cpu.load_since_last(Instant::now()), None);
        let load = cpu.load_since_last(Instant::now() + Duration::from_secs(10));
        assert!(load.is_none_or(|load| load >= 0.0), "{load:?}");
    }
}
