//! What was measured, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::pump::{Load, Outcome};
use crate::meters::{Meters, Operation};
use crate::output::{Column, Table, span};

/// The measurements of one workload.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    pub(crate) tasks: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) concurrency: usize,
    pub(crate) orchestration_dispatchers: usize,
    pub(crate) worker_dispatchers: usize,
    pub(crate) seconds: f64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) orchestrations_per_second: f64,
    pub(crate) activities_per_second: f64,
    pub(crate) latency_ms: Latency,
    /// Per completed instance, as the provider counts them.
    pub(crate) requests_per_orchestration: f64,
    pub(crate) request_units_per_orchestration: f64,
    /// By operation of the provider.
    pub(crate) operations: Vec<Operation>,
    pub(crate) failures: Vec<String>,
}

/// How long instances took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Latency {
    fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        let at = |share: f64| {
            // The nearest rank: the least latency that so large a share of instances kept to.
            let rank = (share * durations.len() as f64).ceil().max(1.0) as usize;
            durations.get(rank - 1).map_or(0.0, |duration| tenths(duration.as_secs_f64() * 1000.0))
        };
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

impl Measured {
    /// From an outcome and what the provider spent meanwhile.
    pub(crate) fn new(load: &Load, outcome: Outcome, meters: &Meters) -> Self {
        let (requests, units) = meters.totals();
        let seconds = outcome.elapsed.as_secs_f64().max(0.001);
        let completed = outcome.latencies.len() as u64;
        let per_second = completed as f64 / seconds;
        let per_instance = |amount: f64| tenths(amount / completed.max(1) as f64);
        Self {
            workload: load.workload.name(),
            tasks: load.shape.tasks,
            payload_bytes: load.shape.payload,
            concurrency: load.concurrency,
            orchestration_dispatchers: load.orchestration_dispatchers,
            worker_dispatchers: load.worker_dispatchers,
            seconds: tenths(seconds),
            completed,
            failed: outcome.failed,
            orchestrations_per_second: tenths(per_second),
            activities_per_second: tenths(per_second * f64::from(load.workload.activities(load.shape.tasks))),
            latency_ms: Latency::of(outcome.latencies),
            requests_per_orchestration: per_instance(requests as f64),
            request_units_per_orchestration: per_instance(units),
            operations: meters.operations(),
            failures: outcome.reasons,
        }
    }
}

/// All workloads of a run in one table.
pub(crate) fn table(rows: &[Measured]) -> Table {
    let mut table = Table::new(vec![
        Column::new("WORKLOAD"),
        Column::number("DONE"),
        Column::number("FAILED"),
        Column::number("PER SECOND"),
        Column::number("ACTIVITIES/S"),
        Column::number("P50"),
        Column::number("P95"),
        Column::number("P99"),
        Column::number("REQUESTS"),
        Column::number("RU"),
    ]);
    let ms = |value: f64| span(value.round() as u64);
    let each = |value: f64| format!("{value:.1}");
    for row in rows {
        table.row([
            row.workload.to_owned(),
            row.completed.to_string(),
            row.failed.to_string(),
            format!("{:.1}", row.orchestrations_per_second),
            format!("{:.1}", row.activities_per_second),
            ms(row.latency_ms.p50),
            ms(row.latency_ms.p95),
            ms(row.latency_ms.p99),
            each(row.requests_per_orchestration),
            each(row.request_units_per_orchestration),
        ]);
    }
    table
}

/// What the operations of the provider cost in one workload.
pub(crate) fn operations(row: &Measured) -> Table {
    let mut table = Table::new(vec![
        Column::new("OPERATION"),
        Column::number("REQUESTS"),
        Column::number("RU"),
        Column::number("RU EACH"),
        Column::number("P50 MS"),
        Column::number("P95 MS"),
    ]);
    for line in &row.operations {
        table.row([
            line.operation.clone(),
            line.requests.to_string(),
            format!("{:.1}", line.request_units),
            format!("{:.1}", line.request_units / line.requests.max(1) as f64),
            format!("{:.1}", line.p50_ms),
            format!("{:.1}", line.p95_ms),
        ]);
    }
    table
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let durations = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(Latency::of(durations), Latency { p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
        assert_eq!(Latency::of(vec![Duration::from_millis(7)]).p50, 7.0);
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
