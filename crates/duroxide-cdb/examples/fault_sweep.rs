//! The whole single-fault sweep: every scenario, every request, every fault. Prints its progress, the number of points,
//! in how many of them the fault happened, and each failure; ends with an error if there is one, or if too few were struck.
//!
//! `fault_sweep [--scenario NAME]… [--from K] [--to K] [--pairs N [--seed N]] [--parallel N] [--lock-ms N]
//! [--attempts N] [--patience-s N]`
//!
//! Scenarios are `Hello`, `FanOut20`, …; none means all. `--from` and `--to` choose the requests to strike, so that an
//! interrupted sweep is continued where it was: the progress names the request that all before it are done. With `--pairs`
//! so many pairs of each scenario are drawn from the seed instead: two faults, or a fault and another process at work.

#![allow(
    clippy::print_stdout,
    dead_code,
    reason = "a program for people; it shares its modules with the tests"
)]

#[path = "../tests/it/cut.rs"]
mod cut;
#[path = "../tests/it/effects.rs"]
mod effects;
#[path = "../tests/it/flows.rs"]
mod flows;
#[path = "../tests/it/remains.rs"]
mod remains;
#[path = "../tests/it/sweep.rs"]
mod sweep;
#[path = "../tests/it/world.rs"]
mod world;

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use sweep::{Scenario, Tally, Terms};

struct Arguments {
    scenarios: Vec<Scenario>,
    from: u64,
    to: u64,
    pairs: usize,
    seed: u64,
    parallel: usize,
    terms: Terms,
}

fn arguments() -> Arguments {
    let terms = Terms { lock: Duration::from_millis(1000), attempts: 10, patience: Duration::from_secs(40) };
    let mut chosen =
        Arguments { scenarios: Vec::new(), from: 1, to: u64::MAX, pairs: 0, seed: 1, parallel: 16, terms };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().unwrap_or_else(|| panic!("{name} needs a value"));
        let number = || value.parse::<u64>().unwrap_or_else(|_| panic!("{name} needs a number"));
        match name.as_str() {
            "--scenario" => chosen.scenarios.push(scenario(&value)),
            "--from" => chosen.from = number(),
            "--to" => chosen.to = number(),
            "--pairs" => chosen.pairs = usize::try_from(number()).expect("not so many"),
            "--seed" => chosen.seed = number(),
            "--parallel" => chosen.parallel = usize::try_from(number()).expect("not so many"),
            "--lock-ms" => chosen.terms.lock = Duration::from_millis(number()),
            "--attempts" => chosen.terms.attempts = u32::try_from(number()).expect("not so many"),
            "--patience-s" => chosen.terms.patience = Duration::from_secs(number()),
            other => panic!("what is {other}?"),
        }
    }
    if chosen.scenarios.is_empty() {
        chosen.scenarios.extend(Scenario::ALL);
    }
    chosen
}

fn scenario(name: &str) -> Scenario {
    let named = Scenario::ALL.into_iter().find(|scenario| format!("{scenario:?}") == name);
    named.unwrap_or_else(|| panic!("{name} is none of {:?}", Scenario::ALL))
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = arguments();
    let mut total = Tally::default();
    let mut well = true;
    for scenario in arguments.scenarios {
        let begun = Instant::now();
        let mut points = if arguments.pairs > 0 {
            sweep::pairs(scenario, arguments.terms, arguments.pairs, arguments.seed).await
        } else {
            sweep::points(scenario, arguments.terms).await
        };
        points.retain(|point| (arguments.from..=arguments.to).contains(&point.k));
        let count = points.len();
        println!("{scenario:?}: {count} points");
        let open: RefCell<Vec<u64>> = RefCell::new(points.iter().map(|point| point.k).collect());
        let told = RefCell::new(Instant::now());
        let tally = sweep::run_all(points, arguments.parallel, arguments.terms, |point, failure| {
            let mut open = open.borrow_mut();
            if let Some(at) = open.iter().position(|k| *k == point.k) {
                open.swap_remove(at);
            }
            if let Some(failure) = failure {
                println!("  FAILED {failure}");
            }
            if told.borrow().elapsed() > Duration::from_secs(10) {
                *told.borrow_mut() = Instant::now();
                let first = open.iter().min().copied().unwrap_or(0);
                println!(
                    "  {} of {count} after {:.0?}; continue with --from {first}",
                    count - open.len(),
                    begun.elapsed()
                );
            }
        })
        .await;
        println!("{scenario:?}: {tally}, {:.0?}", begun.elapsed());
        if arguments.pairs == 0 && !is_mostly_struck(&tally) {
            println!("  FAILED {scenario:?}: so many were missed that it was not tested");
            well = false;
        }
        well &= tally.failures.is_empty();
        total += tally;
    }
    println!("{total}");
    if well && total.struck > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many requests a run makes is a matter of time, too; but only some of the last may be missed.
fn is_mostly_struck(tally: &Tally) -> bool {
    tally.missed.len() * 5 <= tally.points()
}
