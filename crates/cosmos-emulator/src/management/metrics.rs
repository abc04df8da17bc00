//! Counters in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Context;
use super::answer::{Answer, Outcome};
use super::route::Request;
use crate::ledger::{LedgerSnapshot, Totals};
use crate::server::Traffic;

pub(super) fn read(context: &Context, _: &Request<'_>) -> Outcome {
    let mut out = String::with_capacity(4096);
    let gates = context.gates();
    let count = |counter: fn(&Traffic) -> &AtomicU64| {
        gates.iter().map(|gate| counter(&gate.traffic).load(Ordering::Relaxed)).sum::<u64>()
    };
    single(
        &mut out,
        "connections_open",
        "gauge",
        "Connections open now.",
        count(|traffic| &traffic.connections_open),
    );
    single(
        &mut out,
        "connections_total",
        "counter",
        "Connections accepted.",
        count(|traffic| &traffic.connections_total),
    );
    single(
        &mut out,
        "goaways_total",
        "counter",
        "Connections told to leave.",
        count(|traffic| &traffic.goaways_total),
    );
    let snapshot = context.account.ledger.snapshot();
    for (name, help, value) in SERIES {
        series(&mut out, &snapshot, name, help, *value);
    }
    Answer::text("text/plain; version=0.0.4", out)
}

type Series = (&'static str, &'static str, fn(&Totals) -> f64);

const SERIES: &[Series] = &[
    ("requests_total", "Requests answered.", |totals| totals.requests as f64),
    ("failures_total", "Requests refused (400 and above).", |totals| totals.failures as f64),
    (
        "refused_total",
        "Requests refused because of what was stored (404, 409, 412, failed batches).",
        |totals| totals.refused as f64,
    ),
    ("request_units_total", "Request units charged.", |totals| totals.request_units),
    ("documents_visited_total", "Documents read to answer.", |totals| totals.documents_visited as f64),
    ("request_bytes_total", "Bytes in bodies received.", |totals| totals.request_bytes as f64),
    ("response_bytes_total", "Bytes in bodies sent.", |totals| totals.response_bytes as f64),
];

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP cosmos_emulator_{name} {help}\n# TYPE cosmos_emulator_{name} {kind}");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    head(out, name, kind, help);
    let _ = writeln!(out, "cosmos_emulator_{name} {value}");
}

fn series(out: &mut String, snapshot: &LedgerSnapshot, name: &str, help: &str, value: fn(&Totals) -> f64) {
    head(out, name, "counter", help);
    for line in &snapshot.lines {
        let container = line.container.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(
            out,
            "cosmos_emulator_{name}{{operation=\"{}\",container=\"{container}\"}} {}",
            line.operation.name(),
            value(&line.totals)
        );
    }
}
