//! What commands cost does not grow with what is stored: requests and request units at two sizes.

use cosmos_emulator::{Config, Emulator};
use serde_json::Value;

use crate::stage::Stage;

/// One instance, and so many copies of it under other names.
fn crowd(emulator: &Emulator, name: &str, copies: usize) -> Stage {
    let stage = Stage::open(emulator, name);
    stage.play_to_the_end(&[("echo-0000", "echo", "x"), ("fails-1", "fails", "no flour")]);
    let documents = stage.documents("echo-0000");
    stage.copy("echo-0000", &documents, (1..=copies).map(|number| format!("echo-{number:04}")));
    stage
}

/// Requests to the container, request units, and what was printed.
fn spent(emulator: &Emulator, stage: &Stage, args: &[&str]) -> (u64, f64, String) {
    let container = format!("dbs/duroxide/colls/{}", stage.container);
    emulator.ledger().reset();
    let told = stage.run(args).with_code(0).stdout;
    let lines = emulator.ledger().snapshot().lines;
    let own = lines.iter().filter(|line| *line.container == *container);
    let (requests, units) = own.fold((0, 0.0), |(requests, units), line| {
        (requests + line.totals.requests, units + line.totals.request_units)
    });
    (requests, units, told)
}

#[test]
fn looking_costs_the_same_however_many_instances_there_are() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let (few, many) = (crowd(&emulator, "few", 60), crowd(&emulator, "many", 900));
    // What it may cost at most, in request units, those for opening the container among them.
    for (args, units_max) in [
        (&["instances"][..], 16.0),
        (&["instances", "--status", "running,pending"], 16.0),
        (&["instances", "--since", "1h", "--limit", "20"], 16.0),
        (&["instances", "--name", "echo", "--limit", "20"], 16.0),
        (&["instances", "--parent", "nobody"], 16.0),
        (&["instances", "--roots", "-n", "5"], 16.0),
        (&["queues"], 10.0),
        (&["runtimes"], 10.0),
        (&["dead-letters", "list"], 10.0),
        (&["show", "echo-0000"], 40.0),
        (&["history", "echo-0000"], 25.0),
        (&["tree", "echo-0000"], 25.0),
        (&["why", "echo-0000"], 25.0),
        (&["sql", "SELECT TOP 5 c.id FROM c"], 12.0),
    ] {
        let (few_requests, few_units, _) = spent(&emulator, &few, args);
        // On a busy machine a page may end early for want of time, and the next one costs again: the cheapest of a few counts.
        let is_dear = |requests: u64, units: f64| {
            requests > few_requests + 2 || units > units_max || units > few_units * 1.5 + 1.0
        };
        let (mut requests, mut units, mut told) = spent(&emulator, &many, args);
        for _ in 0..4 {
            if is_dear(requests, units) {
                (requests, units, told) = spent(&emulator, &many, args);
            }
        }
        // Where there is more behind a page, another request may say so.
        assert!(requests <= few_requests + 2, "{args:?}: {few_requests}, then {requests} requests\n{told}");
        assert!(units <= units_max && units <= few_units * 1.5 + 1.0, "{args:?}: {few_units}, then {units}");
    }
}

#[test]
fn rehearsals_are_queries_and_a_deletion_takes_few_requests() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let (few, many) = (crowd(&emulator, "few", 60), crowd(&emulator, "many", 900));
    for args in [&["prune", "--keep-last", "1"][..], &["delete", "--status", "completed"]] {
        let (few_requests, ..) = spent(&emulator, &few, args);
        let (requests, units, _) = spent(&emulator, &many, args);
        // A page of a query has so many rows.
        assert!(requests <= few_requests + 20, "{args:?}: {few_requests}, then {requests}");
        assert!(units < 150.0, "{args:?}: {units}");
    }
    let (opening, ..) = spent(&emulator, &few, &["delete", "--prefix", "none", "--yes"]);
    let (requests, units, told) = spent(&emulator, &few, &["delete", "--prefix", "echo-", "--yes", "--json"]);
    let deleted = serde_json::from_str::<Value>(&told).unwrap();
    assert_eq!(deleted["instances"], 61, "{deleted}");
    let each = (requests.saturating_sub(opening)) as f64 / 61.0;
    assert!(each <= 6.0, "{each} requests, {} request units for one", units / 61.0);
    let left = few.documents("echo-0007");
    assert!(left.iter().all(|document| document["type"] == "tombstone"), "{left:?}");
    few.run(&["fsck"]).with_code(0);
}
