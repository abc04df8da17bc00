//! `cdb stress`: every workload, a table, and a file.

use serde_json::Value;

use crate::terminal::run;

#[test]
fn every_workload_runs_and_is_measured() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let workloads = ["fan-out", "large-payload", "chain", "children", "continue-as-new", "key-values"];
    let mut args =
        vec!["stress", "--duration", "300ms", "--concurrency", "4", "--tasks", "2", "--activity", "1ms"];
    args.extend(["--payload", "200", "-o", path]);
    args.extend(workloads);
    let ended = run(&args).with_code(0);
    for workload in workloads {
        assert!(ended.stdout.contains(workload), "{workload}: {ended:?}");
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for row in written["results"].as_array().unwrap() {
        assert!(row["completed"].as_u64().unwrap() > 0 && row["failed"] == 0, "{row}");
        assert!(
            row["latencyMs"]["p50"].as_f64().unwrap() <= row["latencyMs"]["max"].as_f64().unwrap(),
            "{row}"
        );
        assert!(row["requestUnitsPerOrchestration"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn a_slow_network_makes_instances_slow() {
    let args = ["stress", "--duration", "300ms", "--concurrency", "1", "--tasks", "1", "--activity", "1ms"];
    let ended = run(&[&args[..], &["--latency", "40ms", "--json"]].concat()).with_code(0);
    let p50 = ended.json()["results"][0]["latencyMs"]["p50"].as_f64().unwrap();
    assert!(p50 > 80.0, "at least two requests are on the way of an instance: {p50}");
}
