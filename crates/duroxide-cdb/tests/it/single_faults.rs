//! A fixed sample of the single-fault sweep; `cargo run --release --example fault_sweep -p duroxide-cdb` runs it all.

use std::time::Duration;

use crate::sweep::{Point, Scenario, Strike, Terms, points, run_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_single_fault_changes_the_outcome() {
    let mut sample = Vec::new();
    let mut of = 0;
    for (index, scenario) in Scenario::ALL.into_iter().enumerate() {
        let all = points(scenario, TERMS).await;
        of += all.len();
        if scenario == Scenario::FanOut150 {
            let prepares = |point: &&Point| point.strike == Strike::Killed && PREPARING.contains(&point.k);
            sample.extend(all.iter().filter(prepares));
        }
        // Spread over the requests; the odd step and the offset rotate through the faults.
        let step = (all.len() / PER_SCENARIO) | 1;
        sample.extend(all.into_iter().skip(index).step_by(step).take(PER_SCENARIO));
    }
    let run = sample.len();
    let failures = run_all(sample, 8, TERMS, |_, _| {}).await;
    assert!(
        failures.is_empty(),
        "{} of {run} points (of {of}) failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

const PER_SCENARIO: usize = 8;
/// Requests among which a turn of several batches is prepared: a process that dies there leaves most behind.
const PREPARING: std::ops::RangeInclusive<u64> = 17..=24;
/// Tests share the machine with other tests.
const TERMS: Terms = Terms { lock: Duration::from_secs(2), attempts: 30, patience: Duration::from_secs(400) };
