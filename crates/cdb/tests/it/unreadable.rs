//! One malformed document hides nothing else from those who look, is told of, and can be removed.

use serde_json::{Value, json};

use crate::stage::{Stage, begun};

fn change(stage: &Stage, partition: &str, kind: &str, changes: &Value) {
    let mut document =
        stage.documents(partition).into_iter().find(|document| document["type"] == kind).unwrap();
    document.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    stage.put(partition, &document);
}

/// Two sound instances, one whose head and whose message cannot be read, and a sound parent of a child whose head cannot.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("again-1", "again", "2"), ("family-1", "family", "x")]);
    stage.play(&[("evil-1", "waits", "")], async |client| begun(client, "evil-1").await);
    stage.start_only("evil-1", "echo", "x");
    change(&stage, "evil-1", "instance", &json!({"orchestrationName": 12, "createdAt": -1}));
    change(&stage, "evil-1", "orch_queue", &json!({"workItem": 12}));
    change(&stage, "family-1::sub::2", "instance", &json!({"updatedAt": "yesterday"}));
    stage
}

#[test]
fn lists_go_on_and_count_what_cannot_be_read() {
    let stage = stage("unreadable-lists");
    let listed = stage.run(&["instances"]).with_code(0);
    assert!(listed.stdout.contains("echo-1") && listed.stdout.contains("family-1"), "{listed:?}");
    assert!(
        listed.stderr.contains("2 instances cannot be read") && listed.stderr.contains("\"evil-1\""),
        "{listed:?}"
    );
    assert!(listed.stderr.contains("cdb why") && listed.stderr.contains("cdb delete"), "{listed:?}");
    let recent = stage.run(&["instances", "--since", "1h", "--status", "running", "--json"]).with_code(0);
    assert!(recent.stderr.contains("cannot be read"), "it may be one of those: {recent:?}");
    let queues = stage.run(&["queues"]).with_code(0);
    assert!(queues.stdout.contains("unreadable") && queues.stdout.contains("evil-1"), "{queues:?}");
    stage.run(&["top", "--once", "--interval", "10ms"]).with_code(0);
    let pruned = stage.run(&["prune", "--keep-last", "1", "--yes"]).with_code(0);
    assert!(pruned.stdout.contains("executions"), "{pruned:?}");
    assert!(pruned.stderr.contains("2 instances cannot be read"), "{pruned:?}");
    let tree = stage.run(&["tree", "family-1"]).with_code(0);
    assert!(tree.stdout.contains("family-1::sub::2  unreadable"), "{tree:?}");
    stage.run(&["show", "family-1"]).with_code(0);
    stage.run(&["dead-letters", "list"]).with_code(0);
    let chosen = stage.run(&["delete", "--status", "completed"]).with_code(0);
    assert!(chosen.stderr.contains("cannot be read"), "{chosen:?}");
}

#[test]
fn what_cannot_be_read_is_told_and_can_be_removed() {
    let stage = stage("unreadable-removed");
    let found = stage.run(&["fsck", "--json"]).with_code(8);
    let defects: Vec<String> = found.json_lines().iter().map(ToString::to_string).collect();
    for part in ["evil-1:instance", "(orch_queue) cannot be read", "family-1::sub::2"] {
        assert!(defects.iter().any(|defect| defect.contains(part)), "{part}: {defects:?}");
    }
    assert!(found.stderr.contains("3 broken"), "{found:?}");
    let why = stage.run(&["why", "evil-1"]).with_code(8);
    assert!(why.stdout.contains("cannot be read") && why.stdout.contains("cdb delete"), "{why:?}");
    for command in ["show", "history"] {
        let told = stage.run(&[command, "evil-1"]).with_code(1);
        assert!(told.stderr.contains("cannot be decoded") && told.stderr.contains("cdb why"), "{told:?}");
    }
    let refused = stage.run(&["delete", "evil-1", "--yes"]).with_code(2);
    assert!(refused.stderr.contains("--force"), "{refused:?}");
    stage.run(&["delete", "evil-1", "--force", "--yes"]).with_code(0);
    stage.run(&["delete", "family-1", "--force", "--yes"]).with_code(0);
    assert!(stage.documents("evil-1").iter().all(|left| left["type"] == "tombstone"));
    stage.run(&["fsck"]).with_code(0);
    stage.run(&["instances"]).with_code(0);
}
