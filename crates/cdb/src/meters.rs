//! What the provider of this process sent and was charged, by its own operations: it tells the `metrics` facade, and
//! this is who listens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use serde::Serialize;

/// The ledger of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meters {
    book: Arc<Mutex<Book>>,
}

type Book = BTreeMap<String, Line>;

/// What one operation of the provider cost.
#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    requests: u64,
    request_units: f64,
    seconds: Vec<f64>,
}

/// What one operation of the provider cost, for people and programs.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Operation {
    /// The operation of duroxide's interface.
    pub(crate) operation: String,
    /// Requests it sent.
    pub(crate) requests: u64,
    /// Request units it was charged.
    pub(crate) request_units: f64,
    /// Half of its requests were answered within this.
    pub(crate) p50_ms: f64,
    /// Nineteen of twenty were answered within this.
    pub(crate) p95_ms: f64,
}

impl Meters {
    /// Listens from now on. The facade has one listener per process, so the first call wins.
    pub(crate) fn listen() -> Self {
        let meters = Self::default();
        // Were there another listener, ours would stay empty: nothing else depends on it.
        let _ = metrics::set_global_recorder(meters.clone());
        meters
    }

    /// Requests and request units so far.
    pub(crate) fn totals(&self) -> (u64, f64) {
        self.book()
            .values()
            .fold((0, 0.0), |(requests, units), line| (requests + line.requests, units + line.request_units))
    }

    /// Forgets everything so far.
    pub(crate) fn reset(&self) {
        self.book().clear();
    }

    /// By operation, the dearest first.
    pub(crate) fn operations(&self) -> Vec<Operation> {
        let book = self.book().clone();
        let mut operations: Vec<Operation> = book
            .into_iter()
            .map(|(operation, mut line)| {
                line.seconds.sort_by(f64::total_cmp);
                let at = |share: f64| {
                    let rank = (share * line.seconds.len() as f64).ceil().max(1.0) as usize;
                    line.seconds.get(rank - 1).map_or(0.0, |seconds| (seconds * 10_000.0).round() / 10.0)
                };
                Operation {
                    operation,
                    requests: line.requests,
                    request_units: (line.request_units * 10.0).round() / 10.0,
                    p50_ms: at(0.5),
                    p95_ms: at(0.95),
                }
            })
            .collect();
        operations.sort_by(|a, b| b.request_units.total_cmp(&a.request_units));
        operations
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn column(&self, key: &Key) -> Option<Arc<Column>> {
        let what = match key.name() {
            "duroxide_cdb_requests_total" => What::Requests,
            "duroxide_cdb_request_units" => What::RequestUnits,
            "duroxide_cdb_request_seconds" => What::Seconds,
            _ => return None,
        };
        let operation = key.labels().find(|label| label.key() == "operation")?.value().to_owned();
        Some(Arc::new(Column { meters: self.clone(), operation, what }))
    }
}

/// One number of one operation.
struct Column {
    meters: Meters,
    operation: String,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Requests,
    RequestUnits,
    Seconds,
}

impl Column {
    fn change(&self, change: impl FnOnce(&mut Line)) {
        change(self.meters.book().entry(self.operation.clone()).or_default());
    }
}

impl CounterFn for Column {
    fn increment(&self, value: u64) {
        self.change(|line| line.requests += value);
    }

    fn absolute(&self, value: u64) {
        self.change(|line| line.requests = value);
    }
}

impl HistogramFn for Column {
    fn record(&self, value: f64) {
        self.change(|line| match self.what {
            What::RequestUnits => line.request_units += value,
            What::Seconds if line.seconds.len() < SAMPLES_MAX => line.seconds.push(value),
            What::Seconds | What::Requests => {}
        });
    }
}

impl Recorder for Meters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.column(key).map_or_else(Counter::noop, Counter::from_arc)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.column(key).map_or_else(Histogram::noop, Histogram::from_arc)
    }
}

/// Latencies kept per operation; more would not change a percentile.
const SAMPLES_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_provider_tells_is_summed_by_operation() {
        let meters = Meters::default();
        metrics::with_local_recorder(&meters, || {
            for (units, seconds) in [(1.5, 0.002), (2.5, 0.004)] {
                metrics::counter!("duroxide_cdb_requests_total", "operation" => "ack").increment(1);
                metrics::histogram!("duroxide_cdb_request_units", "operation" => "ack").record(units);
                metrics::histogram!("duroxide_cdb_request_seconds", "operation" => "ack").record(seconds);
            }
            metrics::counter!("duroxide_orchestration_starts_total").increment(1);
        });
        assert_eq!(meters.totals(), (2, 4.0));
        let operations = meters.operations();
        assert_eq!((operations.len(), operations[0].p50_ms, operations[0].p95_ms), (1, 2.0, 4.0));
        meters.reset();
        assert_eq!(meters.totals(), (0, 0.0));
    }
}
