//! A fixed sample of the single-fault sweep; `cargo run --release --example fault_sweep -p duroxide-cdb` runs it all.

use crate::sweep::{Scenario, points, run_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_single_fault_changes_the_outcome() {
    let all = points(&Scenario::ALL).await;
    let step = all.len().div_ceil(SAMPLE);
    let sample: Vec<_> = all.iter().copied().skip(step / 2).step_by(step).collect();
    let (run, of) = (sample.len(), all.len());
    let failures = run_all(sample, 8).await;
    assert!(
        failures.is_empty(),
        "{} of {run} points (of {of}) failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Coprime with the number of faults, so that each fault is struck in each scenario sooner or later.
const SAMPLE: usize = 97;
