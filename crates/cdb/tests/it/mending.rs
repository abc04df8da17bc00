//! `cdb fsck`: finds what was lost, and mends it.

use serde_json::{Value, json};

use crate::stage::{Stage, begun, ended};

fn document(stage: &Stage, partition: &str, kind: &str) -> Value {
    let documents = stage.documents(partition);
    documents
        .iter()
        .find(|document| document["type"] == kind)
        .unwrap_or_else(|| panic!("no {kind}: {documents:#?}"))
        .clone()
}

#[test]
fn a_sound_container_has_nothing_to_mend() {
    let stage = Stage::new("mending-sound");
    stage.play_to_the_end(&[
        ("family-1", "family", "x"),
        ("again-1", "again", "2"),
        ("fails-1", "fails", "y"),
    ]);
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    stage.start_only("late-1", "echo", "x");
    let checked = stage.run(&["fsck"]).with_code(0);
    assert!(checked.stderr.contains("0 broken, 0 litter"), "{checked:?}");
    assert!(checked.stdout.is_empty(), "{checked:?}");
    stage.run(&["fsck", "nobody"]).with_code(5);
}

#[test]
fn a_workflow_that_was_cancelled_while_an_activity_ran_is_sound() {
    let stage = Stage::new("mending-cancelled");
    stage.play(&[("hangs-1", "hangs", "x")], async |client| {
        begun(client, "hangs-1").await;
        client.cancel_instance("hangs-1", "enough").await.unwrap();
        ended(client, "hangs-1").await;
    });
    let history = stage.ok(&["history", "hangs-1"]);
    let last = history.lines().last().unwrap();
    assert!(last.contains("ActivityCancelRequested"), "the end is not the last event: {history}");
    let checked = stage.run(&["fsck"]).with_code(0);
    assert!(checked.stderr.contains("0 broken, 0 litter"), "{checked:?}");
    assert!(stage.ok(&["show", "hangs-1"]).contains("failed: canceled: enough"));
    let why = stage.run(&["why", "hangs-1"]).with_code(0);
    assert!(why.stdout.contains("it was cancelled") && why.stdout.contains("enough"), "{why:?}");
}

#[test]
fn a_lost_activity_is_found_explained_and_queued_again() {
    let stage = Stage::new("mending-activity");
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    // A turn that schedules an activity, whose item then disappears.
    let mut head = document(&stage, "waits-1", "instance");
    let events: Vec<Value> = head["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| serde_json::from_str(text.as_str().unwrap()).unwrap())
        .collect();
    let id = events.len() + 1;
    let mut scheduled = events[events.len() - 1].clone();
    scheduled.as_object_mut().unwrap().extend(
        json!({"type": "ActivityScheduled", "name": "Echo", "input": "x", "event_id": id})
            .as_object()
            .unwrap()
            .clone(),
    );
    head["events"].as_array_mut().unwrap().push(scheduled.to_string().into());
    head["eventCount"] = id.into();
    head["lastEventId"] = id.into();
    stage.put("waits-1", &head);

    let why = stage.run(&["why", "waits-1"]).with_code(8);
    assert!(why.stdout.contains("is neither queued nor done: it was lost"), "{why:?}");
    let found = stage.run(&["fsck", "--json"]).with_code(8);
    assert_eq!(found.json()["repairable"], true, "{found:?}");
    let mended = stage.run(&["fsck", "--repair"]).with_code(0);
    assert!(mended.stdout.contains("mended"), "{mended:?}");
    assert_eq!(document(&stage, "waits-1", "worker_queue")["activityId"], id);
    stage.run(&["fsck"]).with_code(0);
}

#[test]
fn a_lost_start_of_a_child_is_sent_again_and_the_parent_ends() {
    let stage = Stage::new("mending-child");
    stage.play_to_the_end(&[("family-1", "family", "x")]);
    // A parent that waits for a child which was never delivered: its head says so, its child is gone.
    let child = stage.documents("family-1::sub::3");
    for document in &child {
        stage.remove("family-1::sub::3", document["id"].as_str().unwrap());
    }
    let mut head = document(&stage, "family-1", "instance");
    // Its start and the two children that it scheduled.
    let count = 3;
    head["events"].as_array_mut().unwrap().truncate(count);
    for (field, value) in [
        ("status", json!("Running")),
        ("output", json!(null)),
        ("eventCount", json!(count)),
        ("lastEventId", json!(count)),
    ] {
        head[field] = value;
    }
    head.as_object_mut().unwrap().remove("completedAt");
    stage.put("family-1", &head);

    let found = stage.run(&["fsck", "family-1"]).with_code(8);
    assert!(found.stdout.contains("family-1::sub::3 (#3) was never started"), "{found:?}");
    assert!(found.stdout.contains("the result of family-1::sub::2 (#2) never arrived"), "{found:?}");
    stage.run(&["fsck", "family-1", "--repair"]).with_code(0);
    let stage = Stage::new("mending-child");
    stage.play(&[], async |client| drop(ended(client, "family-1").await));
    assert_eq!(stage.run(&["show", "family-1", "--json"]).with_code(0).json()["output"], "xa+xb");
}

#[test]
fn wrong_counters_are_counted_anew_and_missing_history_is_only_reported() {
    let stage = Stage::new("mending-counters");
    stage.play_to_the_end(&[("echo-1", "echo", "x"), ("echo-2", "echo", "y")]);
    let mut head = document(&stage, "echo-1", "instance");
    let count = head["eventCount"].clone();
    head["eventCount"] = 99.into();
    stage.put("echo-1", &head);
    let found = stage.run(&["fsck"]).with_code(8);
    assert!(found.stdout.contains("its head counts 99 events"), "{found:?}");
    stage.run(&["fsck", "--repair"]).with_code(0);
    assert_eq!(document(&stage, "echo-1", "instance")["eventCount"], count);

    let mut head = document(&stage, "echo-2", "instance");
    head.as_object_mut().unwrap().remove("events");
    stage.put("echo-2", &head);
    let found = stage.run(&["fsck", "--repair"]).with_code(8);
    assert!(found.stdout.contains("not mended"), "{found:?}");
}

#[test]
fn compressed_events_are_read_and_damaged_ones_are_found() {
    let stage = Stage::new("mending-packed");
    // Long enough to be compressed in its place, and long enough to be compressed into pieces.
    let (long, huge) = ("a line of a long letter\n".repeat(2_000), pieces_of_text());
    let starts = [("long-1", "echo", long.as_str()), ("long-2", "echo", &long), ("huge-1", "echo", &huge)];
    stage.play_to_the_end(&starts);
    let packed = |instance: &str| {
        let mut documents = stage.documents(instance).into_iter();
        documents.find(|document| document["packed"].is_string()).expect("a compressed history")
    };
    let sound = packed("long-1");
    assert!(sound["packed"].as_str().unwrap().len() < long.len() / 4, "{sound}");
    let mut documents = stage.documents("huge-1").into_iter();
    let in_pieces = documents.find(|document| document["chunks"]["packed"] == true);
    assert!(in_pieces.is_some(), "a history in compressed pieces");
    let checked = stage.run(&["fsck"]).with_code(0);
    assert!(checked.stderr.contains("0 broken, 0 litter"), "{checked:?}");
    assert_eq!(stage.run(&["show", "long-1", "--json"]).with_code(0).json()["output"], long);

    // One character of the text is another one, as if a disk had forgotten a bit.
    let mut damaged = sound.clone();
    let mut text = sound["packed"].as_str().unwrap().to_owned();
    let middle = text.len() / 2;
    let other = if text.as_bytes()[middle] == b'A' { "B" } else { "A" };
    text.replace_range(middle..=middle, other);
    damaged["packed"] = text.into();
    stage.put("long-1", &damaged);
    let mut cut = packed("long-2");
    cut["packed"] = "AAAA".into();
    stage.put("long-2", &cut);
    let mut piece = document(&stage, "huge-1", "chunk");
    piece["data"] = "AAAA".into();
    stage.put("huge-1", &piece);
    let found = stage.run(&["fsck", "--json"]).with_code(8);
    let defects: Vec<(String, String)> = found
        .json_lines()
        .iter()
        .map(|row| (row["instance"].as_str().unwrap().to_owned(), row["defect"].as_str().unwrap().to_owned()))
        .collect();
    for instance in ["long-1", "long-2", "huge-1"] {
        assert!(defects.iter().any(|(broken, _)| broken == instance), "{instance}: {defects:?}");
    }
    assert!(defects.iter().any(|(_, text)| text.contains("cannot be decompressed")), "{defects:?}");
    assert!(defects.iter().any(|(_, text)| text.contains("do not fit together")), "{defects:?}");
    let repaired = stage.run(&["fsck", "--repair"]).with_code(8);
    assert!(repaired.stdout.contains("not mended"), "what was lost cannot be made up: {repaired:?}");

    stage.put("long-1", &sound);
    stage.run(&["fsck", "long-1"]).with_code(0);
}

/// A text that is stored in pieces, and that shrinks, though not to nothing.
fn pieces_of_text() -> String {
    let mut state = 1u64;
    (0..80_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{:08x} ", state >> 32)
        })
        .collect()
}
