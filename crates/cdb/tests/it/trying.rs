//! What people try: several at once, waiting, running again, names for places, and what a slip is answered with.

use serde_json::json;

use crate::stage::{ACCOUNT, Stage, begun, ended};
use crate::terminal::{run, run_with};

#[test]
fn many_are_cancelled_after_they_were_counted() {
    let stage = Stage::new("trying-cancel");
    let starts = [("w-1", "waits", ""), ("w-2", "waits", ""), ("x-1", "waits", "")];
    stage.play(&starts, async |client| {
        for (id, ..) in starts {
            begun(client, id).await;
        }
    });
    stage.run(&["cancel"]).with_code(2);
    stage.run(&["cancel", "w-1", "--prefix", "w-"]).with_code(2);
    let counted = stage.run(&["cancel", "--prefix", "w-"]).with_code(0);
    assert!(
        counted.stdout.contains("w-1") && counted.stderr.contains("2 instances would be asked to stop"),
        "{counted:?}"
    );
    assert!(counted.stderr.contains("--yes"), "{counted:?}");
    let done =
        stage.run(&["cancel", "--prefix", "w-", "--reason", "spring", "--yes", "--json"]).with_code(0).json();
    assert_eq!((&done["instances"], &done["done"]), (&json!(2), &json!(true)), "{done}");
    stage.play(&[], async |client| {
        ended(client, "w-1").await;
        ended(client, "w-2").await;
    });
    let cancelled = stage.run(&["instances", "--status", "cancelled", "--json"]).with_code(0).json_lines();
    assert_eq!(cancelled.len(), 2, "{cancelled:?}");
    assert_eq!(cancelled[0]["error"], "canceled: spring");
    assert!(stage.run(&["instances", "--status", "failed", "--json"]).with_code(0).stdout.is_empty());
}

#[test]
fn an_event_is_raised_for_all_that_filters_choose() {
    let stage = Stage::new("trying-raise");
    let starts = [("w-1", "waits", ""), ("w-2", "waits", "")];
    stage.play(&starts, async |client| {
        begun(client, "w-1").await;
        begun(client, "w-2").await;
    });
    stage.run(&["raise", "yes", "Anna", "Otto", "--prefix", "w-"]).with_code(2);
    stage.run(&["raise", "w-1"]).with_code(2);
    let counted = stage.run(&["raise", "yes", "Anna", "--prefix", "w-"]).with_code(0);
    assert!(counted.stderr.contains("2 instances would be"), "{counted:?}");
    stage.run(&["raise", "yes", "Anna", "--prefix", "w-", "--yes"]).with_code(0);
    stage.play(&[], async |client| {
        ended(client, "w-1").await;
        ended(client, "w-2").await;
    });
    assert_eq!(stage.run(&["show", "w-2", "--json"]).with_code(0).json()["output"], "Anna");
}

#[test]
fn one_can_wait_for_what_was_started_and_run_it_again() {
    let stage = Stage::new("trying-wait");
    let mut told = Vec::new();
    stage.play(&[("fails-1", "fails", "no flour")], async |client| {
        ended(client, "fails-1").await;
        told.push(stage.run(&["start", "--name", "echo", "--input", "bread", "--wait"]).with_code(0));
        told.push(
            stage.run(&["start", "f-2", "--name", "fails", "--input", "no", "--wait", "--json"]).with_code(8),
        );
        told.push(stage.run(&["rerun", "fails-1", "--input", "x", "--as", "again-1", "--wait"]).with_code(8));
        told.push(stage.run(&["wait", "again-1", "fails-1", "--json"]).with_code(8));
    });
    assert_eq!(told[0].stdout, "bread\n");
    assert!(told[0].stderr.starts_with("echo-"), "its id was made up: {:?}", told[0]);
    assert_eq!((&told[1].json()["status"], &told[1].json()["error"]), (&json!("Failed"), &json!("no")));
    assert!(told[2].stderr.contains("again-1: Failed: x"), "{:?}", told[2]);
    assert_eq!(told[3].json_lines().len(), 2);
    stage.run(&["wait", "nobody"]).with_code(5);
    let late = stage.run(&["start", "late-1", "--name", "echo", "--wait", "--timeout", "10ms"]).with_code(8);
    assert!(late.stderr.contains("has not ended within"), "{late:?}");

    let same = stage.run(&["rerun", "fails-1", "--json"]).with_code(0).json();
    let id = same["instance"].as_str().unwrap().to_owned();
    assert!(id.starts_with("fails-1-rerun-"), "{same}");
    let counted = stage.run(&["rerun", "--error", "no flour"]).with_code(0);
    assert!(
        counted.stdout.contains("fails-1") && counted.stderr.contains("1 instance would be run again"),
        "{counted:?}"
    );
    stage.play(&[], async |client| drop(ended(client, &id).await));
    let shown = stage.run(&["show", &id, "--json"]).with_code(0).json();
    assert_eq!((&shown["input"], &shown["orchestration"]), (&json!("no flour"), &json!("fails")), "{shown}");
    let why = stage.run(&["why", &id]).with_code(8);
    assert!(why.stdout.contains("cdb rerun"), "{why:?}");
}

#[test]
fn options_stand_anywhere_and_commands_have_the_names_that_people_try() {
    let stage = Stage::new("trying-names");
    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    let place = ["--endpoint", &stage.endpoint, "--container", &stage.container];
    let before = |args: &[&str]| run(&[&place[..], args].concat());
    assert_eq!(before(&["--json", "instances"]).with_code(0).json()["instance"], "echo-1");
    assert!(before(&["status", "echo-1"]).with_code(0).stdout.contains("echo-1  Completed"));
    assert!(before(&["describe", "echo-1"]).with_code(0).stdout.contains("echo-1  Completed"));
    before(&["dead-letters"]).with_code(0);
    assert!(run(&["version"]).with_code(0).stdout.starts_with("cdb "));
    let coloured = before(&["instances", "--color", "always"]).with_code(0);
    assert!(coloured.stdout.contains("\u{1b}[32mCompleted"), "{coloured:?}");
}

#[test]
fn the_container_is_asked_in_sql() {
    let stage = Stage::new("trying-sql");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    let count = stage.run(&["sql", "SELECT VALUE COUNT(1) FROM c WHERE c.type = 'instance'"]).with_code(0);
    assert!(count.stdout == "2\n" && count.stderr.contains("request units"), "{count:?}");
    let one = stage.run(&[
        "sql",
        "SELECT c.instanceId FROM c WHERE c.status = @s",
        "--param",
        "s=Completed",
        "-n",
        "1",
    ]);
    assert_eq!(one.with_code(0).json_lines().len(), 1);
    let head =
        stage.run(&["query", "SELECT c.updatedAt FROM c WHERE c.type = 'instance'", "--instance", "echo-2"]);
    assert!(head.with_code(0).json()["updatedAt"].is_u64(), "what is stored is shown as it is");
    stage.run(&["sql", "SELEKT"]).with_code(1);
}

#[test]
fn places_get_names() {
    let stage = Stage::new("trying-context");
    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("contexts.json").display().to_string();
    let with = |args: &[&str]| run_with(args, &[("CDB_CONFIG", &file)]);
    with(&["context", "add", "here", "--endpoint", &stage.endpoint, "--container", &stage.container])
        .with_code(0);
    assert!(with(&["instances", "--context", "here"]).with_code(0).stdout.contains("echo-1"));
    with(&["instances"]).with_code(2);
    with(&["context", "use", "here"]).with_code(0);
    assert!(with(&["instances"]).with_code(0).stdout.contains("echo-1"));
    let listed = with(&["context"]).with_code(0).stdout;
    assert!(listed.contains('*') && listed.contains(&stage.container), "{listed}");
    with(&["context", "use", "nowhere"]).with_code(5);
    with(&["context", "remove", "here"]).with_code(0);
    with(&["instances"]).with_code(2);
    std::fs::write(&file, "[").unwrap();
    assert!(with(&["instances"]).with_code(2).stderr.contains("is not a list of contexts"));
}

#[test]
fn slips_are_answered_with_what_was_meant() {
    let stage = Stage::new("trying-slips");
    let endpoint = stage.endpoint.trim_start_matches("http://").trim_end_matches('/');
    let told = run(&["instances", "--endpoint", endpoint]).with_code(2).stderr;
    assert!(told.contains("has no scheme") && told.contains("http://"), "{told}");
    let told = run(&["instances", "--endpoint", &format!("https://{endpoint}")]).with_code(6).stderr;
    assert!(told.contains("not in TLS") && told.contains("http://"), "{told}");
    let told = run(&["instances", "--endpoint", &stage.endpoint, "--database", "a/b"]).with_code(2).stderr;
    assert!(told.contains("a/b"), "{told}");
    let told = stage.run(&["start", "", "--name", "echo"]).with_code(2).stderr;
    assert!(told.contains("needs an id"), "{told}");
    let told = run(&["start", "x", "--name", "y", "--endpoint", &stage.endpoint, "--database", "typo"]);
    assert!(told.with_code(5).stderr.contains("--create"));
    assert!(!ACCOUNT.has_database("typo"));
    ACCOUNT.make_container("shop", "orders", "/customer");
    for command in ["instances", "fsck", "queues"] {
        let told =
            run(&[command, "--endpoint", &stage.endpoint, "--database", "shop", "--container", "orders"]);
        assert!(told.with_code(2).stderr.contains("its partition key is [\"/customer\"]"), "{command}");
    }
    let any = run(&[
        "sql",
        "SELECT * FROM c",
        "--endpoint",
        &stage.endpoint,
        "--database",
        "shop",
        "--container",
        "orders",
    ]);
    any.with_code(0);
    stage.run(&["prune"]).with_code(2);
}

#[test]
fn dead_letters_are_counted_before_they_are_dropped_and_damaged_ones_can_be() {
    let stage = Stage::new("trying-letters");
    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    for number in 0..2 {
        let letter = json!({"id": format!("dead:{number}"), "instanceId": "echo-1", "type": "dead_letter",
            "targetInstanceId": "y", "reason": "too large", "diedAt": 1});
        stage.put("echo-1", &letter);
    }
    let counted = stage.run(&["dead-letters", "drop", "--all"]).with_code(0);
    assert!(
        counted.stderr.contains("2 dead letters would be dropped, their messages lost: add --yes"),
        "{counted:?}"
    );
    let sent = stage.run(&["dead-letters", "requeue", "dead:0"]).with_code(1);
    assert!(sent.stderr.contains("cannot be read"), "{sent:?}");
    stage.run(&["dead-letters", "drop", "--all", "--yes"]).with_code(0);
    assert!(stage.ok(&["dead-letters", "--json"]).is_empty());
}

#[test]
fn what_has_only_been_started_is_shown_as_pending_and_several_are_shown_at_once() {
    let stage = Stage::new("trying-show");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    stage.start_only("late-1", "order", "12 rye loaves");
    let shown = stage.ok(&["show", "late-1"]);
    assert!(shown.starts_with("late-1  Pending  order") && shown.contains("12 rye loaves"), "{shown}");
    assert!(shown.contains("no runtime has taken it yet"), "{shown}");
    let shown = stage.run(&["show", "late-1", "-o", "json"]).with_code(0).json();
    assert_eq!((&shown["status"], &shown["input"]), (&json!("Pending"), &json!("12 rye loaves")));
    let both = stage.ok(&["show", "echo-1", "echo-2"]);
    assert!(both.contains("echo-1  Completed") && both.contains("echo-2  Completed"), "{both}");
    let lines = stage.run(&["show", "echo-1", "late-1", "--json"]).with_code(0).json_lines();
    assert_eq!((&lines[0]["instance"], &lines[1]["instance"]), (&json!("echo-1"), &json!("late-1")));
    stage.run(&["show", "echo-1", "echo-2", "--execution", "1"]).with_code(2);
    stage.run(&["show", "nobody"]).with_code(5);
}

#[test]
fn there_is_no_way_back_and_it_is_said_what_there_is() {
    let stage = Stage::new("trying-rewind");
    stage.play_to_the_end(&[("fails-1", "fails", "no flour")]);
    let told = stage.run(&["rewind", "fails-1"]).with_code(2).stderr;
    assert!(told.contains("there is no rewind") && told.contains("cdb rerun fails-1"), "{told}");
    assert!(run(&["rerun", "--help"]).with_code(0).stdout.contains("no way back into an instance"));
    let again = stage.run(&["restart", "fails-1", "--json"]).with_code(0).json();
    assert!(again["instance"].as_str().unwrap().starts_with("fails-1-rerun-"), "{again}");
}
