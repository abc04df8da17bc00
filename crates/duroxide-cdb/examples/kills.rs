//! Kills the worker of big scenarios at seeded moments and checks that the outcome is what it always is.
//!
//! `kills [--seeds N] [--first SEED] [--deaths N] [--small] [SCENARIO…]`: scenarios are `FanOut`, `Messages`, `Result`,
//! `Children` and `History`; none means all, at full size.

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
#[path = "../tests/it/kills.rs"]
mod kills;
#[path = "../tests/it/remains.rs"]
mod remains;
#[path = "../tests/it/world.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

use kills::{Big, Size};

const ALL: [Big; 5] = [Big::FanOut, Big::Messages, Big::Result, Big::Children, Big::History];

/// The size at which a scenario is called big.
fn full(big: Big) -> Size {
    let size = match big {
        Big::FanOut | Big::Children => 1000,
        Big::Messages => 10_000,
        Big::Result => 20_000_000,
        Big::History => 50_000,
    };
    Size { big, size }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut seeds, mut first, mut deaths, mut small, mut wanted) = (1, 1, 6, false, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect("a number follows");
        match argument.as_str() {
            "--seeds" => seeds = number(),
            "--first" => first = number(),
            "--deaths" => deaths = number(),
            "--small" => small = true,
            _ => wanted.push(argument),
        }
    }
    let deaths = u32::try_from(deaths).expect("not so many");
    let mut failed = 0;
    for big in ALL {
        if !wanted.is_empty() && !wanted.contains(&format!("{big:?}")) {
            continue;
        }
        let size = if small { big.small() } else { full(big) };
        for seed in first..first + seeds {
            let begun = Instant::now();
            match kills::run(size, seed, deaths).await {
                Ok(died) => {
                    println!("{size}, seed {seed}: right after {died} deaths, {:.1?}", begun.elapsed());
                }
                Err(error) => {
                    println!("{error}");
                    failed += 1;
                }
            }
        }
    }
    println!("{failed} failures");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
