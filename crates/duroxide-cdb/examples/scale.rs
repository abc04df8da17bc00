//! What one fetch costs beside a hundred thousand waiting, a million finished: prints a table and fails if it is not
//! what it costs beside ten; and what it takes to find work behind a hundred thousand documents of each kind that is of no
//! use to who searches: fails if that is more than its bound in requests and documents.
//!
//! `scale [--waiting N] [--finished N] [--partitions N] [--behind N]`; `--waiting 0` leaves the first table out.

#![allow(
    clippy::print_stdout,
    dead_code,
    reason = "a program for people; it shares its modules with the tests"
)]

#[path = "../tests/it/obstacles.rs"]
mod obstacles;
#[path = "../tests/it/scale.rs"]
mod scale;
#[path = "../tests/it/world.rs"]
mod world;

use std::process::ExitCode;
use std::time::Instant;

use obstacles::{Obstacle, PAGE, search_behind};
use scale::{Cost, Crowd, FEW, measure};

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut waiting, mut finished, mut partitions, mut behind) = (100_000, 1_000_000, 16, 100_000);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|text| text.parse::<usize>().ok()).expect("a number follows");
        match argument.as_str() {
            "--waiting" => waiting = number,
            "--finished" => finished = number,
            "--partitions" => partitions = u32::try_from(number).expect("not so many"),
            "--behind" => behind = number,
            other => panic!("what is {other}?"),
        }
    }
    let mut worse = if waiting > 0 { beside(waiting, finished, partitions).await } else { 0 };
    if behind > 0 {
        worse += in_the_way(behind as u64).await;
    }
    if worse == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What one fetch costs beside others. Returns how many cost more than beside ten.
async fn beside(waiting: usize, finished: usize, partitions: u32) -> u32 {
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
    worse
}

/// What it takes to find work behind what is of no use. Returns how often that was more than its bound.
async fn in_the_way(count: u64) -> u32 {
    println!(
        "| behind {count} | to find | requests | at most | documents | at most | RU | took | greatest search |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut worse = 0;
    for (name, obstacle) in [
        ("messages of one instance", Obstacle::Queue),
        ("instances of another version", Obstacle::Pinned),
        ("instances whose turns others have", Obstacle::LockedHeads),
        ("activities of another tag", Obstacle::Tags),
        ("activities of 100 foreign sessions", Obstacle::Sessions),
        ("activities of as many foreign sessions", Obstacle::SessionEach),
    ] {
        let search = search_behind(obstacle, count).await;
        let finds = search.finds.into_iter().zip(obstacle.bounds(count));
        for ((find, bound), what) in finds.zip(["what is among them", "what was sent now"]) {
            println!(
                "| {name} | {what} | {} | {} | {} | {} | {:.0} | {:.1?} | {} |",
                find.requests,
                bound.requests,
                find.read,
                bound.read,
                find.request_units,
                find.took,
                search.read_per_search,
            );
            worse += u32::from(!find.is_within(bound) || search.read_per_search > PAGE);
        }
    }
    println!("{worse} took more than their bounds");
    worse
}
