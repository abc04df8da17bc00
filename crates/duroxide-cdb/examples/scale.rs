//! What one fetch costs beside a hundred thousand waiting, a million finished: prints a table and fails if it is not
//! what it costs beside ten; and what it takes to find work behind a hundred thousand messages of one instance, or as
//! many instances that only others can run.
//!
//! `scale [--waiting N] [--finished N] [--partitions N]`

#![allow(
    clippy::print_stdout,
    dead_code,
    reason = "a program for people; it shares its modules with the tests"
)]

#[path = "../tests/it/scale.rs"]
mod scale;
#[path = "../tests/it/world.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

use scale::{Cost, Crowd, FEW, Obstacle, measure, search_behind};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut waiting, mut finished, mut partitions) = (100_000, 1_000_000, 16);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|text| text.parse::<usize>().ok()).expect("a number follows");
        match argument.as_str() {
            "--waiting" => waiting = number,
            "--finished" => finished = number,
            "--partitions" => partitions = u32::try_from(number).expect("not so many"),
            other => panic!("what is {other}?"),
        }
    }
    let crowds = [
        ("ten of everything", FEW),
        ("waiting instances", Crowd { waiting, ..FEW }),
        ("waiting activities", Crowd { activities: waiting, ..FEW }),
        ("timers due later", Crowd { timers: waiting, ..FEW }),
        ("activities locked by others", Crowd { locked: waiting, ..FEW }),
        ("finished instances", Crowd { finished, ..FEW }),
        ("all of these", Crowd { waiting, activities: waiting, timers: waiting, finished, ..FEW }),
        ("waiting, many partitions", Crowd { waiting, activities: waiting, partitions, ..FEW }),
        ("finished, many partitions", Crowd { waiting, activities: waiting, finished, partitions, ..FEW }),
    ];
    println!(
        "| beside | waiting | later or locked | finished | partitions | fetch of | requests | searches | read per search | read besides | RU | seeded in |"
    );
    println!("|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|");
    let mut least: Option<(Cost, Cost)> = None;
    let mut worse = 0;
    for (name, crowd) in crowds {
        let begun = Instant::now();
        let (turn, work) = measure(crowd).await;
        let (first_turn, first_work) = *least.get_or_insert((turn, work));
        for (what, cost, first) in [("a turn", turn, first_turn), ("an activity", work, first_work)] {
            println!(
                "| {name} | {} | {} | {} | {} | {what} | {} | {} | {} | {} | {:.2} | {:.1?} |",
                crowd.waiting + crowd.activities,
                crowd.timers + crowd.locked,
                crowd.finished,
                crowd.partitions,
                cost.requests,
                cost.searches,
                cost.read_per_search,
                cost.read_besides,
                cost.request_units,
                begun.elapsed(),
            );
            let same = cost.requests == first.requests
                && cost.searches == first.searches * u64::from(crowd.partitions)
                && cost.read_per_search <= first.read_per_search
                && cost.read_besides == first.read_besides;
            worse += u32::from(!same);
        }
    }
    println!("{worse} cost more than beside ten");
    println!("| behind | how many | to find | requests | took | read per search |");
    println!("|---|---:|---|---:|---:|---:|");
    for (name, obstacle) in [("the queue of one", Obstacle::Queue), ("another version", Obstacle::Pinned)] {
        let search = search_behind(obstacle, waiting as u64).await;
        for (at, what) in ["what is in their middle", "what was sent now"].into_iter().enumerate() {
            let (requests, took) = (search.requests[at], search.took[at]);
            println!(
                "| {name} | {waiting} | {what} | {requests} | {took:.1?} | {} |",
                search.read_per_search
            );
        }
        // A page of a thousand, or the heads of so many: a hundredth of all, and a little.
        let is_proportionate = search.requests[0] <= 200 + waiting / 100 && search.requests[1] <= 100;
        worse += u32::from(!is_proportionate || search.read_per_search > 1000);
    }
    if worse == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
