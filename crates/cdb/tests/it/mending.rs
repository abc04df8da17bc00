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
fn a_lost_activity_is_found_explained_and_queued_again() {
    let stage = Stage::new("mending-activity");
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    // A turn that schedules an activity, whose item then disappears.
    let history = document(&stage, "waits-1", "history");
    let events: Vec<Value> = history["events"]
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
    let mut history = history.clone();
    history["events"].as_array_mut().unwrap().push(scheduled.to_string().into());
    history["eventCount"] = id.into();
    stage.put("waits-1", &history);
    let mut head = document(&stage, "waits-1", "instance");
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
    let histories: Vec<Value> =
        stage.documents("family-1").into_iter().filter(|document| document["type"] == "history").collect();
    let first = histories.iter().min_by_key(|document| document["eventId"].as_u64()).unwrap();
    for later in histories.iter().filter(|document| document["id"] != first["id"]) {
        stage.remove("family-1", later["id"].as_str().unwrap());
    }
    let count = first["eventCount"].as_u64().unwrap();
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

    let history = document(&stage, "echo-2", "history");
    stage.remove("echo-2", history["id"].as_str().unwrap());
    let found = stage.run(&["fsck", "--repair"]).with_code(8);
    assert!(found.stdout.contains("not mended"), "{found:?}");
}
