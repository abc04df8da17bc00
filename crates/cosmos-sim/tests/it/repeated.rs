//! Worlds that repeat themselves.

use cosmos_sim::fleet::{Fleet, Said};

fn fleet() -> Fleet {
    Fleet { program: env!("CARGO_BIN_EXE_cosmos-sim").into(), at_once: 2, mutant: 0 }
}

fn hash(said: &Said) -> &str {
    let hash = said.text.split_once("hash ").and_then(|(_, rest)| rest.split(',').next());
    hash.unwrap_or_else(|| panic!("no hash: {}", said.text))
}

#[test]
fn a_seed_is_a_run_and_runs_again_the_same() {
    let hashes: Vec<(String, String)> = [2, 5, 8]
        .into_iter()
        .map(|seed| {
            let again = || fleet().run(seed, &[]).expect("the program runs");
            (hash(&again()).to_owned(), hash(&again()).to_owned())
        })
        .collect();
    for (first, second) in &hashes {
        assert_eq!(first, second);
    }
    assert!(hashes[0].0 != hashes[1].0 && hashes[1].0 != hashes[2].0, "{hashes:?}");
}

#[test]
fn a_sample_of_worlds_keeps_all_promises() {
    let failed = fleet().until_failure(1..25, &|_| ()).expect("the program runs");
    assert!(failed.is_none(), "{}", failed.map(|said| said.text).unwrap_or_default());
}

/// A sample; `cosmos-sim mutants` has them all.
#[test]
fn worlds_find_bugs_that_are_built_in() {
    for number in [9, 14, 37] {
        let fleet = Fleet { mutant: number, ..fleet() };
        let failed = fleet.until_failure(1..9, &|_| ()).expect("the program runs");
        assert!(failed.is_some(), "no world found bug {number}");
    }
}

#[test]
fn a_world_can_be_stopped_and_shown_line_by_line() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_cosmos-sim"))
        .args(["--seed", "8", "--trace", "--until", "2.5"])
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let (last, traced) = lines.split_last().expect("something is printed");
    assert!(last.contains("2.500 virtual s"), "{last}");
    let times: Vec<f64> =
        traced.iter().map(|line| line.split_whitespace().next().unwrap_or("").parse().expect(line)).collect();
    assert!(times.len() > 10 && times.is_sorted() && times.iter().all(|time| *time <= 2.5), "{text}");
}
