//! When a hedge starts: the recent 99th percentile, and how many hedges there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::{HEDGE_MAX, HEDGE_MIN, Hedging, HedgingMode};
use crate::request::Kind;

/// What is as slow as what: one operation says nothing about another of a different class, or in a different region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    PointRead,
    PointWrite,
    Batch,
    Query,
}

impl Class {
    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Query | Kind::QueryPlan | Kind::ChangeFeed => Self::Query,
            Kind::Batch | Kind::Bulk => Self::Batch,
            _ if kind.is_read() => Self::PointRead,
            _ => Self::PointWrite,
        }
    }
}

/// What was seen of one region, by [`Class`].
type ByClass = Arc<[Latencies; 4]>;

/// Latencies by region and class. A region is added when it first answers; reading takes no lock.
#[derive(Debug, Default)]
pub(crate) struct LatencyBook {
    regions: ArcSwap<Vec<(Arc<str>, ByClass)>>,
}

impl LatencyBook {
    pub(crate) fn record(&self, region: &Arc<str>, class: Class, latency: Duration, now_ms: u64) {
        if let Some(page) = self.page(region) {
            page[class as usize].record(latency, now_ms);
            return;
        }
        let fresh: ByClass = Arc::default();
        self.regions.rcu(|regions| {
            let mut regions = Vec::clone(regions);
            if regions.iter().all(|(known, _)| known != region) {
                regions.push((region.clone(), fresh.clone()));
            }
            regions
        });
        if let Some(page) = self.page(region) {
            page[class as usize].record(latency, now_ms);
        }
    }

    /// The 99th percentile of this class in this region, once there is enough to judge by.
    pub(crate) fn p99(&self, region: &str, class: Class) -> Option<Duration> {
        self.page(region)?[class as usize].p99()
    }

    fn page(&self, region: &str) -> Option<ByClass> {
        self.regions.load().iter().find(|(known, _)| **known == *region).map(|(_, page)| page.clone())
    }
}

/// Two histograms of latencies: one being filled, one from before. Lock-free.
#[derive(Debug)]
pub(crate) struct Latencies {
    windows: [Histogram; 2],
    current: AtomicUsize,
    rotated_ms: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            windows: [Histogram::default(), Histogram::default()],
            current: AtomicUsize::new(0),
            rotated_ms: AtomicU64::new(0),
        }
    }
}

#[derive(Debug)]
struct Histogram([AtomicU32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Latencies {
    pub(crate) fn record(&self, latency: Duration, now_ms: u64) {
        let rotated = self.rotated_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(rotated) >= WINDOW_MS
            && self.rotated_ms.compare_exchange(rotated, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let next = 1 - self.current.load(Ordering::Relaxed);
            for bucket in &self.windows[next].0 {
                bucket.store(0, Ordering::Relaxed);
            }
            self.current.store(next, Ordering::Relaxed);
        }
        let current = self.current.load(Ordering::Relaxed);
        self.windows[current].0[bucket(latency)].fetch_add(1, Ordering::Relaxed);
    }

    /// The 99th percentile of both windows (of few samples: all but the slowest), `None` until there is enough to judge by.
    pub(crate) fn p99(&self) -> Option<Duration> {
        let count = |i: usize| -> u64 {
            self.windows.iter().map(|window| u64::from(window.0[i].load(Ordering::Relaxed))).sum()
        };
        let total: u64 = (0..BUCKETS).map(count).sum();
        if total < SAMPLES_MIN {
            return None;
        }
        // One outlier among few is no percentile.
        let wanted = total - (total / 100).max(1);
        let mut seen = 0;
        for i in 0..BUCKETS {
            seen += count(i);
            if seen >= wanted {
                return Some(upper_bound(i));
            }
        }
        None
    }
}

/// The delay before a hedge; `None` when there shall be none. Pure.
pub(crate) fn threshold(mode: HedgingMode, p99: Option<Duration>) -> Option<Duration> {
    match mode {
        HedgingMode::Off => None,
        HedgingMode::After(delay) => Some(delay),
        HedgingMode::Dynamic { min, max } => {
            let (low, high) = (min.max(HEDGE_MIN), max.min(HEDGE_MAX));
            // Without experience, be patient but not deaf.
            Some(p99.unwrap_or(UNKNOWN).min(high).max(low))
        }
    }
}

/// A token bucket filled by primary requests and drained by hedges, in thousandths.
#[derive(Debug)]
pub(crate) struct HedgeBudget {
    tokens: AtomicI64,
    earn: i64,
    max: i64,
}

impl HedgeBudget {
    pub(crate) fn new(config: &Hedging) -> Self {
        let max = i64::from(config.budget_max) * 1000;
        #[allow(clippy::cast_possible_truncation)] // The share is within 0..=1.
        let earn = (config.budget * 1000.0).round() as i64;
        Self { tokens: AtomicI64::new(max), earn, max }
    }

    /// A primary request earns a share of a hedge.
    pub(crate) fn earn(&self) {
        if self.tokens.load(Ordering::Relaxed) < self.max {
            self.tokens.fetch_add(self.earn, Ordering::Relaxed);
        }
    }

    /// Takes one hedge, if there is one.
    pub(crate) fn spend(&self) -> bool {
        self.tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tokens| {
                (tokens >= 1000).then_some(tokens - 1000)
            })
            .is_ok()
    }
}

/// Eight buckets per doubling, from 64 µs on: within a tenth of the true value.
fn bucket(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(64);
    let power = 63 - micros.leading_zeros() as usize;
    let eighth = ((micros >> (power - 3)) & 7) as usize;
    ((power - 6) * 8 + eighth).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let (power, eighth) = (bucket / 8 + 6, (bucket % 8) as u64);
    Duration::from_micros((1 << power) + ((eighth + 1) << (power - 3)))
}

const BUCKETS: usize = 160;
const WINDOW_MS: u64 = 30_000;
const SAMPLES_MIN: u64 = 20;
const UNKNOWN: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_within_an_eighth() {
        let latencies = Latencies::default();
        assert_eq!(latencies.p99(), None);
        for ms in 1..=100 {
            latencies.record(Duration::from_millis(ms), 1);
        }
        let p99 = latencies.p99().expect("enough samples");
        assert!(p99 >= Duration::from_millis(99) && p99 <= Duration::from_millis(115), "{p99:?}");
    }

    #[test]
    fn each_class_and_region_is_judged_by_its_own() {
        let book = LatencyBook::default();
        let (east, west): (Arc<str>, Arc<str>) = ("East".into(), "West".into());
        for _ in 0..100 {
            book.record(&east, Class::Query, Duration::from_secs(2), 1);
            book.record(&east, Class::PointRead, Duration::from_millis(2), 1);
            book.record(&west, Class::PointRead, Duration::from_millis(90), 1);
        }
        let ms = Duration::from_millis;
        assert!(book.p99("East", Class::PointRead).expect("samples") < ms(4), "queries make no read wait");
        assert!(book.p99("West", Class::PointRead).expect("samples") > ms(80));
        assert_eq!(book.p99("West", Class::Query), None);
        assert_eq!(book.p99("North", Class::PointRead), None);
    }

    #[test]
    fn old_windows_are_forgotten() {
        let latencies = Latencies::default();
        for _ in 0..100 {
            latencies.record(Duration::from_secs(3), 1);
        }
        for round in 1..=2 {
            for _ in 0..100 {
                latencies.record(Duration::from_millis(2), round * WINDOW_MS + 1);
            }
        }
        assert!(latencies.p99().expect("samples") < Duration::from_millis(4));
    }

    #[test]
    fn thresholds_are_clamped() {
        let ms = Duration::from_millis;
        let dynamic = HedgingMode::default();
        let tight = HedgingMode::Dynamic { min: ms(100), max: ms(200) };
        let wide = HedgingMode::Dynamic { min: ms(1), max: ms(60_000) };
        let cases = [
            (HedgingMode::Off, Some(ms(70)), None),
            (HedgingMode::After(ms(5)), Some(ms(70)), Some(ms(5))),
            (dynamic, Some(ms(70)), Some(ms(70))),
            (dynamic, Some(ms(3)), Some(ms(50))),
            (dynamic, Some(ms(9000)), Some(ms(4000))),
            (dynamic, None, Some(ms(500))),
            (tight, Some(ms(70)), Some(ms(100))),
            (tight, Some(ms(700)), Some(ms(200))),
            (wide, Some(ms(3)), Some(ms(50))),
            (wide, Some(ms(9000)), Some(ms(4000))),
        ];
        for (mode, p99, expected) in cases {
            assert_eq!(threshold(mode, p99), expected, "{mode:?} {p99:?}");
        }
    }

    #[test]
    fn hedges_are_a_share_of_requests() {
        let budget = HedgeBudget::new(&Hedging { budget: 0.1, budget_max: 1, ..Hedging::default() });
        assert!(budget.spend());
        assert!(!budget.spend());
        for _ in 0..9 {
            budget.earn();
        }
        assert!(!budget.spend());
        budget.earn();
        assert!(budget.spend());
    }
}
