//! `cdb delete` and `prune`: counted first, interrupted, and carried on.

use std::time::Duration;

use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use serde_json::{Value, json};

use crate::stage::{Stage, begun};
use crate::terminal::{SOON, Watched};

#[test]
fn delete_counts_first_and_takes_whole_trees() {
    let stage = Stage::new("removing-delete");
    stage.play_to_the_end(&[("family-1", "family", "x"), ("echo-1", "echo", "y")]);
    let counted = stage.run(&["delete", "family-1"]).with_code(0);
    assert!(counted.stdout.contains("1 tree with 3 instances, 3 executions"), "{counted:?}");
    assert!(counted.stderr.contains("nothing was deleted"), "{counted:?}");
    stage.run(&["show", "family-1"]).with_code(0);
    let child = stage.run(&["delete", "family-1::sub::2", "--yes"]).with_code(2);
    assert!(child.stderr.contains("is a child of \"family-1\""), "{child:?}");

    let deleted = stage.run(&["delete", "family-1", "--yes", "--json"]).with_code(0).json();
    assert_eq!((&deleted["instances"], &deleted["deleted"]), (&3.into(), &true.into()), "{deleted}");
    stage.run(&["show", "family-1"]).with_code(5);
    stage.run(&["show", "family-1::sub::2"]).with_code(5);
    stage.run(&["show", "echo-1"]).with_code(0);
    stage.run(&["delete", "family-1", "--yes"]).with_code(5);
}

#[test]
fn filters_choose_what_goes_and_running_instances_need_force() {
    let stage = Stage::new("removing-filter");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("fails-1", "fails", "y")]);
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    stage.run(&["delete"]).with_code(2);
    stage.run(&["delete", "waits-1", "--yes"]).with_code(2);
    let all = stage.run(&["delete", "--since", "1d", "--json"]).with_code(0);
    assert_eq!(all.json()["trees"], 2, "{all:?}");
    assert!(all.stderr.contains("1 running instances are left out"), "{all:?}");
    stage.run(&["delete", "--status", "failed", "--yes"]).with_code(0);
    stage.run(&["show", "fails-1"]).with_code(5);
    stage.run(&["show", "echo-1"]).with_code(0);
    stage.run(&["delete", "--prefix", "waits", "--force", "--yes"]).with_code(0);
    stage.run(&["show", "waits-1"]).with_code(5);
}

#[test]
fn an_interrupted_delete_goes_on_where_it_stopped() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let stage = Stage::open(&emulator, "removing-interrupted");
    let ids: Vec<String> = (0..12).map(|number| format!("echo-{number}")).collect();
    let starts: Vec<(&str, &str, &str)> = ids.iter().map(|id| (id.as_str(), "echo", "x")).collect();
    stage.play_to_the_end(&starts);
    let slow = emulator
        .faults()
        .add(FaultRule::new(Verdict::Delay { duration: Duration::from_millis(500) }).on(Operation::Batch));
    let mut deletion = Watched::start(&stage.args(&["delete", "--prefix", "echo-", "--yes"]));
    deletion.until_told(" of 12: echo-");
    deletion.interrupt();
    let stopped = deletion.end_within(SOON).with_code(130);
    assert!(stopped.stderr.contains("The same command goes on with the rest"), "{stopped:?}");
    drop(slow);
    let left = stage.run(&["instances", "--json", "--limit", "0"]).with_code(0).json_lines().len();
    assert!(left > 0 && left < 12, "{left} are left");
    stage.run(&["delete", "--prefix", "echo-", "--yes"]).with_code(0);
    assert!(stage.ok(&["instances", "--json", "--limit", "0"]).is_empty());
    for id in &ids {
        let left = stage.documents(id);
        assert!(left.iter().all(|document| document["type"] == "tombstone"), "{id}: {left:?}");
    }
}

#[test]
fn a_killed_delete_is_finished_by_the_next_one() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let stage = Stage::open(&emulator, "removing-killed");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    let hung = emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::Batch));
    let deletion = Watched::start(&stage.args(&["delete", "echo-1", "--yes"]));
    // Its head is fenced and its deletion recorded; emptying the partition hangs.
    while hung.struck() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    deletion.kill();
    drop(hung);
    stage.run(&["show", "echo-1"]).with_code(5);
    assert!(!stage.documents("echo-1").is_empty());
    while !stage.documents("echo-1").iter().all(|document| document["type"] == "tombstone") {
        stage.run(&["delete", "echo-2", "--yes"]);
    }
}

#[test]
fn a_limit_counts_trees_that_filters_choose_and_is_refused_with_ids() {
    let stage = Stage::new("removing-limit");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    let refused = stage.run(&["delete", "--limit", "1", "echo-1", "echo-2", "--yes"]).with_code(2);
    assert!(refused.stderr.contains("--limit"), "{refused:?}");
    let limited = stage.run(&["delete", "--limit", "1", "--prefix", "echo-", "--yes", "--json"]).with_code(0);
    assert_eq!(limited.json()["trees"], 1, "{limited:?}");
    assert_eq!(stage.run(&["instances", "--json"]).with_code(0).json_lines().len(), 1);
}

#[test]
fn prune_counts_first_and_keeps_what_it_is_told() {
    let stage = Stage::new("removing-prune");
    stage.play_to_the_end(&[("again-1", "again", "4"), ("echo-1", "echo", "x")]);
    stage.run(&["prune"]).with_code(2);
    let counted = stage.run(&["prune", "--keep-last", "2", "--json"]).with_code(0).json();
    assert_eq!((&counted["instances"], &counted["executions"]), (&1.into(), &3.into()), "{counted}");
    let table = stage.ok(&["prune", "--keep-last", "2"]);
    assert!(table.contains("again-1"), "{table}");
    assert_eq!(stage.run(&["prune", "--before", "1h", "--json"]).with_code(0).json()["executions"], 0);
    let pruned = stage.run(&["prune", "again-1", "--keep-last", "2", "--yes", "--json"]).with_code(0).json();
    assert_eq!(pruned["executions"], 3, "{pruned}");
    let shown = stage.run(&["show", "again-1", "--json"]).with_code(0).json();
    let left: Vec<u64> = shown["executions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["execution"].as_u64().unwrap())
        .collect();
    assert_eq!(left, [4, 5]);
    stage.run(&["fsck"]).with_code(0);
}

#[test]
fn prune_sees_executions_that_the_public_crate_wrote() {
    let written = include_str!("../../../duroxide-cdb/tests/fixtures/public-0.1.10.ndjson");
    let stage = Stage::new("removing-public");
    // The first line is the definition of the container.
    for line in written.lines().skip(1) {
        let document: Value = serde_json::from_str(line).unwrap();
        stage.put(document["instanceId"].as_str().unwrap(), &document);
    }
    let counted = stage.run(&["prune", "--keep-last", "1", "--json"]).with_code(0).json();
    let expected = (&json!(1), &json!(1), &json!(4));
    assert_eq!((&counted["instances"], &counted["executions"], &counted["events"]), expected, "{counted}");
    let table = stage.ok(&["prune", "--keep-last", "1"]);
    assert!(table.contains("counter") && table.lines().count() == 2, "{table}");
    let pruned = stage.run(&["prune", "--keep-last", "1", "--yes", "--json"]).with_code(0).json();
    assert_eq!((&pruned["instances"], &pruned["executions"], &pruned["events"]), expected, "{pruned}");
    let again = stage.run(&["prune", "counter", "--keep-last", "1"]).with_code(0);
    assert!(again.stderr.contains("there is nothing to prune"), "{again:?}");
}
