//! A fixed sample of the single-fault sweep; `cargo run --release --example fault_sweep -p duroxide-cdb` runs it all.

#![allow(clippy::print_stdout, reason = "how much was tried is told to whoever asks with --nocapture")]

use std::time::Duration;

use crate::sweep::{Among, Point, Scenario, Strike, Tally, Terms, pairs, points, run_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_single_fault_changes_the_outcome() {
    let mut sample = Vec::new();
    let mut of = 0;
    for (index, scenario) in Scenario::ALL.into_iter().enumerate() {
        let all = points(scenario, TERMS).await;
        of += all.len();
        if scenario == Scenario::Renewals {
            sample.extend(all);
            continue;
        }
        // Spread over the requests; the odd step and the offset rotate through the faults.
        let step = (all.len() / PER_SCENARIO) | 1;
        sample.extend(all.into_iter().skip(index).step_by(step).take(PER_SCENARIO));
    }
    let wanted = sample.len();
    assert!(wanted >= Scenario::ALL.len() * (PER_SCENARIO - 1), "{wanted} points of {of}");
    let mut total = Tally::default();
    while !sample.is_empty() {
        let mut tally = passed(sample).await;
        // A busy machine makes more requests while it waits. Where there were fewer now, an earlier one is struck.
        let earlier = |point: Point| Point { k: point.k.div_ceil(2), ..point };
        sample = tally.missed.drain(..).map(earlier).collect();
        total += tally;
    }
    println!("{total}, of {of} points");
    assert_eq!(total.struck, wanted, "{total}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pair_of_faults_or_of_processes_changes_the_outcome() {
    let mut sample = Vec::new();
    for (seed, scenario) in (1..).zip(SMALL) {
        sample.extend(pairs(scenario, TERMS, PAIRS_PER_SCENARIO, seed).await);
    }
    let tally = passed(sample).await;
    println!("{tally}");
    // The second of two may come too late; most do not.
    assert!(tally.struck * 2 > tally.points(), "{tally}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_of_a_turn_whose_process_died_while_it_prepared_it() {
    let scenario = Scenario::FanOut150;
    let killed = |k| Point { scenario, strike: Strike::Killed, k, among: Among::Batches, also: None };
    let tally = passed((1..=FIRST_BATCHES).map(killed).collect()).await;
    println!("{tally}, {} of them while a commit was prepared", tally.preparing);
    assert_eq!(tally.struck as u64, FIRST_BATCHES, "{tally}");
    assert!(tally.preparing > 0, "{tally}: none died while it prepared a commit");
}

/// What came of these points, none of which may fail.
async fn passed(points: Vec<Point>) -> Tally {
    let tally = run_all(points, 8, TERMS, |_, _| {}).await;
    assert!(tally.failures.is_empty(), "{tally}:\n{}", tally.failures.join("\n"));
    tally
}

const PER_SCENARIO: usize = 8;
/// Scenarios of few requests: pairs of them meet.
const SMALL: [Scenario; 7] = [
    Scenario::Hello,
    Scenario::Chain,
    Scenario::SubOrchestrations,
    Scenario::ContinueAsNew,
    Scenario::Session,
    Scenario::Cancel,
    Scenario::Delete,
];
const PAIRS_PER_SCENARIO: usize = 9;
/// The turn that fans out prepares its commit, commits and publishes in the first of them.
const FIRST_BATCHES: u64 = 6;
/// Tests share the machine with other tests.
const TERMS: Terms = Terms { lock: Duration::from_secs(2), attempts: 30, patience: Duration::from_secs(400) };
