//! The whole single-fault sweep: every scenario, every request, every fault. Prints the number of points and each
//! failure; ends with an error if there is one.
//!
//! Arguments name scenarios (`Hello`, `FanOut20`, …); none means all.

#![allow(
    clippy::print_stdout,
    dead_code,
    reason = "a program for people; it shares its modules with the tests"
)]

#[path = "../tests/it/flows.rs"]
mod flows;
#[path = "../tests/it/sweep.rs"]
mod sweep;
#[path = "../tests/it/world.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

#[tokio::main]
async fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |scenario: &sweep::Scenario| wanted.is_empty() || wanted.contains(&format!("{scenario:?}"));
    let (mut total, mut failed) = (0, 0);
    for scenario in sweep::Scenario::ALL.into_iter().filter(chosen) {
        let begun = Instant::now();
        let points = sweep::points(&[scenario]).await;
        let count = points.len();
        let failures = sweep::run_all(points, 8).await;
        println!("{scenario:?}: {count} points, {} failures, {:.0?}", failures.len(), begun.elapsed());
        for failure in &failures {
            println!("  {failure}");
        }
        total += count;
        failed += failures.len();
    }
    println!("{total} points, {failed} failures");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
