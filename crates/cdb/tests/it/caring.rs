//! Retention and sealed payloads from the command line.

use std::time::Duration;

use cosmos_emulator::{Config, Emulator};
use serde_json::Value;

use crate::stage::Stage;

#[test]
fn a_policy_is_rehearsed_stored_applied_and_taken_back() {
    let emulator = Emulator::start(Config::default()).unwrap();
    let stage = Stage::open(&emulator, "retention");
    stage.play_to_the_end(&[("family-1", "family", "x"), ("fails-1", "fails", "y")]);
    assert!(stage.run(&["retention", "set", "completed=5m"]).with_code(2).stderr.contains("10 minutes"));
    let rehearsed = stage.run(&["retention", "set", "completed=1h", "failed=2h", "--dry-run"]).with_code(0);
    assert!(
        rehearsed.stdout.contains("family") && rehearsed.stderr.contains("nothing was changed"),
        "{rehearsed:?}"
    );
    assert!(stage.run(&["retention"]).with_code(0).stderr.contains("no policy"));
    stage.ok(&["retention", "set", "completed=1h", "failed=2h"]);
    let shown: Value = serde_json::from_str(&stage.ok(&["retention", "show", "--json"])).unwrap();
    assert_eq!(shown["rules"].as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(shown["ended"].as_array().unwrap().len(), 2, "roots only: {shown}");
    emulator.clock().advance(Duration::from_secs(90 * 60));
    assert!(stage.run(&["retention", "apply"]).with_code(0).stderr.contains("nothing was deleted"));
    let applied = stage.run(&["retention", "apply", "--yes"]).with_code(0);
    assert!(applied.stderr.contains("3 instances deleted"), "a parent and its children: {applied:?}");
    let left = stage.ok(&["instances", "--json"]);
    assert!(left.contains("fails-1") && !left.contains("family-1"), "{left}");
    let checked = stage.run(&["fsck"]).with_code(0);
    assert!(checked.stderr.contains("0 broken, 0 litter"), "{checked:?}");
    stage.ok(&["retention", "clear"]);
    let shown: Value = serde_json::from_str(&stage.ok(&["retention", "show", "--json"])).unwrap();
    assert_eq!(shown["rules"], Value::Array(Vec::new()));
}

#[test]
fn what_expires_and_must_not_is_found_and_mended() {
    let stage = Stage::new("retention-fsck");
    stage.play_to_the_end(&[("family-1", "family", "x")]);
    let head = |stage: &Stage| {
        let documents = stage.documents("family-1");
        documents.into_iter().find(|document| document["type"] == "instance").unwrap()
    };
    let mut hasty = head(&stage);
    hasty["ttl"] = 86_400.into();
    stage.put("family-1", &hasty);
    let found = stage.run(&["fsck"]).with_code(8);
    assert!(found.stdout.contains("the service will remove its head"), "{found:?}");
    stage.run(&["fsck", "--repair"]).with_code(0);
    assert_eq!(head(&stage)["ttl"], Value::Null);
    stage.run(&["fsck"]).with_code(0);
}

const KEY: &str = "k1=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[test]
fn sealed_workflows_are_looked_at_with_the_key_and_checked_and_exported_without() {
    let stage = Stage::new("sealed");
    stage.ok(&["stress", "chain", "-n", "1", "--tasks", "2", "--payload", "40", "--codec-key", KEY]);
    let listed = stage.ok(&["instances", "--json"]);
    let id = serde_json::from_str::<Value>(listed.lines().next().unwrap()).unwrap()["instance"].clone();
    let id = id.as_str().unwrap();
    let history = |more: &[&str]| stage.ok(&[&["history", id, "--json"][..], more].concat());
    assert!(history(&[]).contains("$cdb1$k1$"), "{}", history(&[]));
    assert!(!history(&["--codec-key", KEY]).contains("$cdb1$"), "{}", history(&["--codec-key", KEY]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("{KEY}\nold={}\n", &KEY[3..])).unwrap();
    let from_file = format!("@{}", file.display());
    assert!(stage.ok(&["show", id, "--codec-key", &from_file]).contains("Completed"));
    let checked = stage.run(&["fsck"]).with_code(0);
    assert!(checked.stderr.contains("0 broken, 0 litter"), "{checked:?}");
    // A key changes nothing about what is exported.
    let copy = |key: &[&str], name: &str| {
        let path = folder.path().join(name);
        stage.ok(&[&["export", "-o", path.to_str().unwrap()][..], key].concat());
        std::fs::read_to_string(path).unwrap()
    };
    assert!(copy(&["--codec-key", KEY], "b").contains("$cdb1$k1$"));
    assert!(copy(&[], "a").contains("$cdb1$k1$"));
    let refused = stage.run(&["instances", "--codec-key", "k1=short"]).with_code(2);
    assert!(refused.stderr.contains("--codec-key") && !refused.stderr.contains("short"), "{refused:?}");
}
