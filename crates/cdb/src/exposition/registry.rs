//! What the libraries of this process tell the `metrics` facade, kept as Prometheus wants it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

use super::text::{MetricType, Page, name_of};
use crate::meters::Meters;

/// The metrics of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registry {
    series: Arc<Mutex<BTreeMap<Name, Arc<Series>>>>,
    /// Who listens as well.
    meters: Meters,
}

/// A metric and its labels.
type Name = (String, Vec<(String, String)>);

#[derive(Debug)]
enum Series {
    Counter(AtomicU64),
    /// The bits of a number.
    Gauge(AtomicU64),
    Histogram(Mutex<Buckets>),
}

/// How many values were at most as large as each bound.
#[derive(Debug, Default)]
struct Buckets {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Registry {
    /// Listens from now on, beside the meters of a measurement. The facade has one listener per process.
    pub(crate) fn listen(meters: Meters) -> Self {
        let registry = Self { series: Arc::default(), meters };
        let _ = metrics::set_global_recorder(registry.clone());
        registry
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Series>>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The series of a key. Beyond the limit new ones are not kept: names come from programs, and might not end.
    fn series(&self, key: &Key, new: impl FnOnce() -> Series) -> Option<Arc<Series>> {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        let name = (name_of(key.name()), labels);
        let mut all = self.all();
        if all.len() >= SERIES_MAX && !all.contains_key(&name) {
            return None;
        }
        Some(Arc::clone(all.entry(name).or_insert_with(|| Arc::new(new()))))
    }

    /// All of them, in the text format.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::default();
        let mut last = String::new();
        for ((name, labels), series) in self.all().iter() {
            let kind = match series.as_ref() {
                Series::Counter(_) => MetricType::Counter,
                Series::Gauge(_) => MetricType::Gauge,
                Series::Histogram(_) => MetricType::Histogram,
            };
            if *name != last {
                page.metric(name, kind, "See docs/operations.md.");
                last.clone_from(name);
            }
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            match series.as_ref() {
                Series::Counter(value) => page.sample(name, &labels, value.load(Ordering::Relaxed) as f64),
                Series::Gauge(bits) => {
                    page.sample(name, &labels, f64::from_bits(bits.load(Ordering::Relaxed)));
                }
                Series::Histogram(buckets) => histogram(&mut page, name, &labels, buckets),
            }
        }
        page.finish()
    }
}

fn histogram(page: &mut Page, name: &str, labels: &[(&str, &str)], buckets: &Mutex<Buckets>) {
    let buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
    let bucket = format!("{name}_bucket");
    for (bound, count) in BOUNDS.iter().zip(buckets.counts) {
        let bound = bound.to_string();
        page.sample(&bucket, &[labels, &[("le", bound.as_str())]].concat(), count as f64);
    }
    page.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), buckets.count as f64);
    page.sample(&format!("{name}_sum"), labels, buckets.sum);
    page.sample(&format!("{name}_count"), labels, buckets.count as f64);
}

/// One series, and whatever else listens to it.
struct Both<S, O> {
    series: Option<Arc<S>>,
    other: O,
}

impl CounterFn for Both<Series, Counter> {
    fn increment(&self, value: u64) {
        if let Some(Series::Counter(count)) = self.series.as_deref() {
            count.fetch_add(value, Ordering::Relaxed);
        }
        self.other.increment(value);
    }

    fn absolute(&self, value: u64) {
        if let Some(Series::Counter(count)) = self.series.as_deref() {
            count.fetch_max(value, Ordering::Relaxed);
        }
        self.other.absolute(value);
    }
}

impl HistogramFn for Both<Series, Histogram> {
    fn record(&self, value: f64) {
        if let Some(Series::Histogram(buckets)) = self.series.as_deref() {
            let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
            for (count, bound) in buckets.counts.iter_mut().zip(BOUNDS) {
                *count += u64::from(value <= bound);
            }
            buckets.count += 1;
            buckets.sum += value;
        }
        self.other.record(value);
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.change(|before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|before| before - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl Series {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let Self::Gauge(bits) = self else { return };
        let next = |before: u64| Some(change(f64::from_bits(before)).to_bits());
        // It never refuses to change: the closure always gives a value.
        let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let series = self.series(key, || Series::Counter(AtomicU64::new(0)));
        Counter::from_arc(Arc::new(Both { series, other: self.meters.register_counter(key, metadata) }))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.series(key, || Series::Gauge(AtomicU64::new(0))).map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let series = self.series(key, || Series::Histogram(Mutex::default()));
        Histogram::from_arc(Arc::new(Both { series, other: self.meters.register_histogram(key, metadata) }))
    }
}

/// Seconds from a fast request to a long activity; request units are within them, too.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const SERIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_on_the_page_and_the_meters_hear_of_it_as_well() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || {
            metrics::counter!("duroxide_cdb_requests_total", "operation" => "ack").increment(2);
            metrics::counter!("duroxide_cdb_requests_total", "operation" => "ack").increment(1);
            metrics::gauge!("a.gauge").set(2.5);
            metrics::gauge!("a.gauge").decrement(1.0);
            for seconds in [0.002, 0.02, 7.0, 1000.0] {
                metrics::histogram!("duroxide_cdb_turn_seconds", "outcome" => "completed").record(seconds);
            }
        });
        assert_eq!(registry.meters.totals().0, 3);
        let page = registry.page();
        for line in [
            "duroxide_cdb_requests_total{operation=\"ack\"} 3",
            "a_gauge 1.5",
            "duroxide_cdb_turn_seconds_bucket{outcome=\"completed\",le=\"0.025\"} 2",
            "duroxide_cdb_turn_seconds_bucket{outcome=\"completed\",le=\"10\"} 3",
            "duroxide_cdb_turn_seconds_bucket{outcome=\"completed\",le=\"+Inf\"} 4",
            "duroxide_cdb_turn_seconds_count{outcome=\"completed\"} 4",
            "# TYPE duroxide_cdb_turn_seconds histogram",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
