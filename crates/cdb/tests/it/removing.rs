//! `cdb delete` and `prune`: counted first, interrupted, and carried on.

use std::time::Duration;

use cosmos_emulator::{Config, Emulator, FaultRule, Operation, Verdict};
use serde_json::{Value, json};

use crate::stage::{Stage, begun};
use crate::terminal::{SOON, Watched, run};

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
    assert!(all.stderr.contains("1 running instance is left out"), "{all:?}");
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
    // More than are deleted at once.
    let ids: Vec<String> = (0..70).map(|number| format!("echo-{number}")).collect();
    let starts: Vec<(&str, &str, &str)> = ids.iter().map(|id| (id.as_str(), "echo", "x")).collect();
    stage.play_to_the_end(&starts);
    let slow = emulator
        .faults()
        .add(FaultRule::new(Verdict::Delay { duration: Duration::from_millis(1500) }).on(Operation::Batch));
    let mut deletion = Watched::start(&stage.args(&["delete", "--prefix", "echo-", "--yes"]));
    deletion.until_told(" of 70: echo-");
    deletion.interrupt();
    let stopped = deletion.end_within(SOON).with_code(130);
    assert!(stopped.stderr.contains("The same command goes on with the rest"), "{stopped:?}");
    drop(slow);
    let left = stage.run(&["instances", "--json", "--limit", "0"]).with_code(0).json_lines().len();
    assert!(left > 0 && left < 70, "{left} are left");
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
    stage.play_to_the_end(&[("family-1", "family", "x"), ("echo-2", "echo", "y")]);
    let hung =
        emulator.faults().add(FaultRule::new(Verdict::Hang).on(Operation::DeleteItem).for_key("family-1"));
    let deletion = Watched::start(&stage.args(&["delete", "family-1", "--yes"]));
    // Its head is fenced and its deletion recorded; removing the head, which holds all there is, hangs.
    while hung.struck() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    deletion.kill();
    stage.run(&["show", "family-1"]).with_code(5);
    assert!(!stage.documents("family-1").is_empty());
    drop(hung);
    while !stage.documents("family-1").iter().all(|document| document["type"] == "tombstone") {
        stage.run(&["delete", "echo-2", "--yes"]);
    }
}

/// Whether nothing but marks of consumed messages is left of an instance.
fn is_gone(stage: &Stage, id: &str) -> bool {
    stage.documents(id).iter().all(|document| document["type"] == "tombstone")
}

/// Changes the head of an instance past the provider.
fn change_head(stage: &Stage, id: &str, change: impl FnOnce(&mut Value)) {
    let mut head = stage.documents(id).into_iter().find(|document| document["type"] == "instance").unwrap();
    change(&mut head);
    stage.put(id, &head);
}

#[test]
fn a_delete_by_ids_can_be_repeated() {
    let stage = Stage::new("removing-repeated");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    stage.run(&["delete", "echo-1", "--yes"]).with_code(0);
    let counted = stage.run(&["delete", "echo-1", "echo-2", "echo-2", "--json"]).with_code(5);
    assert_eq!(counted.json()["trees"], 1, "{counted:?}");
    let rest = stage.run(&["delete", "echo-1", "echo-2", "echo-2", "--yes", "--json"]).with_code(5);
    assert_eq!(rest.json()["trees"], 1, "{rest:?}");
    assert!(rest.stderr.contains("there is no instance \"echo-1\""), "{rest:?}");
    assert!(is_gone(&stage, "echo-2"));
    stage.run(&["delete", "echo-1", "echo-2", "--yes"]).with_code(5);
}

#[test]
fn a_killed_delete_by_id_is_finished_by_the_same_command_at_once() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let (name, id) = ("family", "family-1");
    let stage = Stage::open(&emulator, name);
    stage.play_to_the_end(&[(id, name, "x")]);
    let command: Vec<String> =
        stage.args(&["delete", id, "--yes", "--json"]).into_iter().map(str::to_owned).collect();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    // Its children are removed before it.
    let hung = emulator
        .faults()
        .add(FaultRule::new(Verdict::Hang).on(Operation::DeleteItem).for_key("family-1::sub::2"));
    let deletion = Watched::start(&command);
    while hung.struck() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    deletion.kill();
    // As if it had been killed later: the root is gone, its children are not.
    for document in stage.documents(id) {
        stage.remove(id, document["id"].as_str().unwrap());
    }
    // Nobody else is to finish it.
    drop(stage);
    drop(hung);
    let finished = run(&command).with_code(0);
    assert_eq!(finished.json()["trees"], 1, "{finished:?}");
    let stage = Stage::open(&emulator, name);
    for id in [id, "family-1::sub::2", "family-1::sub::3"] {
        assert!(is_gone(&stage, id), "{id}: {:?}", stage.documents(id));
    }
}

#[test]
fn a_deletion_that_was_taken_back_is_begun_again() {
    let stage = Stage::new("removing-taken-back");
    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    // Killed before the deletion was recorded: the next sweep gives the instance back.
    change_head(&stage, "echo-1", |head| {
        head["type"] = json!("deleting");
        head["deletion"] = json!("deletion:never-recorded");
        head["sweepAt"] = json!(1);
    });
    let deleted = stage.run(&["delete", "echo-1", "--yes", "--json"]).with_code(0);
    assert_eq!(deleted.json()["trees"], 1, "{deleted:?}");
    assert!(is_gone(&stage, "echo-1"));
}

#[test]
fn a_tree_that_cannot_be_deleted_does_not_stop_the_others() {
    let stage = Stage::new("removing-stubborn");
    stage.play_to_the_end(&[("again-1", "again", "1"), ("family-1", "family", "x")]);
    stage.play_to_the_end(&[("echo-1", "echo", "y")]);
    change_head(&stage, "again-1", |head| head["status"] = json!("ContinuedAsNew"));
    change_head(&stage, "family-1::sub::2", |head| head["status"] = json!("Running"));
    let counted = stage.run(&["delete", "--since", "1d", "--json"]).with_code(0);
    assert_eq!(counted.json()["trees"], 1, "{counted:?}");
    assert!(counted.stderr.contains("1 running instance is left out"), "{counted:?}");
    assert!(counted.stderr.contains("\"family-1::sub::2\" in its tree is running"), "{counted:?}");

    let deleted = stage.run(&["delete", "--since", "1d", "--limit", "1", "--yes", "--json"]).with_code(1);
    assert_eq!(deleted.json()["trees"], 1, "{deleted:?}");
    assert!(deleted.stderr.contains("cannot delete \"family-1\""), "{deleted:?}");
    assert!(deleted.stderr.contains("1 tree could not be deleted"), "{deleted:?}");
    assert!(is_gone(&stage, "echo-1") && !is_gone(&stage, "again-1") && !is_gone(&stage, "family-1"));
    stage.run(&["delete", "--since", "1d", "--force", "--yes"]).with_code(0);
    assert!(is_gone(&stage, "again-1") && is_gone(&stage, "family-1::sub::2"));
}

#[test]
fn a_child_whose_parent_is_gone_is_deleted_like_a_root() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("child.ndjson").to_str().unwrap().to_owned();
    let stage = Stage::new("removing-parent");
    stage.play_to_the_end(&[("family-1", "family", "x")]);
    stage.ok(&["export", "family-1::sub::2", "-o", &file]);
    let orphanage = Stage::new("removing-orphan");
    orphanage.ok(&["import", &file]);
    let counted = orphanage.run(&["delete", "family-1::sub::2", "--json"]).with_code(0);
    assert_eq!(counted.json()["instances"], 1, "{counted:?}");
    orphanage.run(&["delete", "family-1::sub::2", "--yes"]).with_code(0);
    assert!(is_gone(&orphanage, "family-1::sub::2"));
}

#[test]
fn a_start_that_nobody_takes_is_not_called_a_missing_instance() {
    let stage = Stage::new("removing-unstarted");
    stage.start_only("late-1", "echo", "x");
    let refused = stage.run(&["delete", "late-1", "--force", "--yes"]).with_code(5);
    assert!(refused.stderr.contains("a start of \"late-1\" waits"), "{refused:?}");
    assert!(refused.stderr.contains("no runtime has taken it"), "{refused:?}");
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
