//! `cdb start`, `raise`, `enqueue`, `cancel` and `dead-letters`.

use serde_json::json;

use crate::stage::{Stage, begun, ended};

#[test]
fn a_started_instance_is_run_by_the_next_runtime() {
    let stage = Stage::new("sending-start");
    let told = stage.run(&["start", "order-1", "--name", "echo", "--input", "bread"]).with_code(0).stderr;
    assert!(told.contains("order-1 will start when a runtime takes it"), "{told}");
    let twice = stage.run(&["start", "order-1", "--name", "echo"]).with_code(1);
    assert!(twice.stderr.contains("a start of \"order-1\" waits already"), "{twice:?}");
    assert!(twice.stderr.contains("no runtime has taken it"), "{twice:?}");
    stage.play(&[], async |client| drop(ended(client, "order-1").await));
    assert_eq!(stage.run(&["show", "order-1", "--json"]).with_code(0).json()["output"], "bread");
    let late = stage.run(&["start", "order-1", "--name", "echo"]).with_code(1);
    assert!(late.stderr.contains("there is an instance \"order-1\" already"), "{late:?}");
}

#[test]
fn inputs_come_from_files_too() {
    let stage = Stage::new("sending-file");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "from a file").unwrap();
    let input = format!("@{}", file.path().display());
    stage.run(&["start", "order-1", "--name", "echo", "--input", &input]).with_code(0);
    stage.play(&[], async |client| drop(ended(client, "order-1").await));
    assert_eq!(stage.run(&["show", "order-1", "--json"]).with_code(0).json()["output"], "from a file");
    let missing =
        stage.run(&["start", "order-2", "--name", "echo", "--input", "@/no/such/file"]).with_code(1);
    assert!(missing.stderr.contains("cannot read /no/such/file"), "{missing:?}");
}

#[test]
fn a_text_that_begins_with_an_at_sign_is_written_with_two() {
    let stage = Stage::new("sending-at");
    stage.run(&["start", "order-1", "--name", "echo", "--input", "@@anna"]).with_code(0);
    stage.play(&[], async |client| drop(ended(client, "order-1").await));
    assert_eq!(stage.run(&["show", "order-1", "--json"]).with_code(0).json()["output"], "@anna");
}

#[test]
fn events_messages_and_cancellations_reach_their_workflows() {
    let stage = Stage::new("sending-signals");
    let starts = [("waits-1", "waits", ""), ("reads-1", "reads", ""), ("waits-2", "waits", "")];
    stage.play(&starts, async |client| {
        for (id, ..) in starts {
            begun(client, id).await;
        }
    });
    stage.run(&["raise", "waits-1", "yes", "Anna"]).with_code(0);
    stage.run(&["enqueue", "reads-1", "inbox", "without seeds"]).with_code(0);
    stage.run(&["cancel", "waits-2", "--reason", "the customer called"]).with_code(0);
    stage.play(&[], async |client| {
        for (id, ..) in starts {
            ended(client, id).await;
        }
    });
    let output = |id: &str| stage.run(&["show", id, "--json"]).with_code(0).json();
    assert_eq!(output("waits-1")["output"], "Anna");
    assert_eq!(output("reads-1")["output"], "without seeds");
    assert_eq!(output("waits-2")["status"], "Cancelled");
    assert!(stage.ok(&["history", "waits-2"]).contains("the customer called"));
    let late = stage.run(&["raise", "waits-1", "yes"]).with_code(1);
    assert!(late.stderr.contains("has ended (Completed)"), "{late:?}");
}

#[test]
fn dead_letters_are_listed_shown_sent_again_and_dropped() {
    let stage = Stage::new("sending-dead");
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    assert!(stage.run(&["dead-letters", "list"]).with_code(0).stderr.contains("no dead letters"));
    for (id, event) in [("dead:intent:1:0", "yes"), ("dead:intent:1:1", "no")] {
        let item =
            json!({"ExternalRaised": {"instance": "waits-1", "name": event, "data": "Anna"}}).to_string();
        let message = json!({"id": format!("delivery:{event}"), "instanceId": "waits-1", "type": "orch_queue",
            "workItem": item, "visibleAt": 1, "enqueuedAt": 1, "seq": 0, "dispatchSlot": 0, "delivered": true});
        let letter = json!({"id": id, "instanceId": "sender-1", "type": "dead_letter", "targetInstanceId": "waits-1",
            "document": message, "reason": "the account was full", "diedAt": 1_794_717_571_000_u64});
        stage.put("sender-1", &letter);
    }
    let text = stage.ok(&["dead-letters", "list"]);
    assert!(
        text.contains("sender-1") && text.contains("event \"yes\"") && text.contains("the account was full"),
        "{text}"
    );
    let why = stage.run(&["why", "waits-1"]).with_code(8);
    assert!(why.stdout.contains("a dead letter from sender-1"), "{why:?}");
    let shown = stage.run(&["dead-letters", "show", "dead:intent:1:0"]).with_code(0).json();
    assert_eq!(shown["message"]["id"], "delivery:yes");

    stage.run(&["dead-letters", "requeue", "dead:intent:1:0"]).with_code(0);
    stage.run(&["dead-letters", "drop", "dead:intent:1:1"]).with_code(0);
    assert!(stage.ok(&["dead-letters", "list", "--json"]).is_empty());
    stage.run(&["dead-letters", "drop", "dead:intent:1:1"]).with_code(5);
    stage.play(&[], async |client| drop(ended(client, "waits-1").await));
    assert_eq!(stage.run(&["show", "waits-1", "--json"]).with_code(0).json()["output"], "Anna");
}

#[test]
fn a_dead_letter_in_pieces_arrives_whole_or_is_dropped_with_its_pieces() {
    let stage = Stage::new("sending-dead-pieces");
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    let item = json!({"ExternalRaised": {"instance": "waits-1", "name": "yes", "data": "Anna"}}).to_string();
    let (head, tail) = item.split_at(20);
    for (letter, commit) in [("dead:intent:1:0", "c0"), ("dead:intent:1:1", "c1")] {
        for (index, data) in [head, tail].into_iter().enumerate() {
            let piece = json!({"id": format!("chunk:{commit}:{index}"), "instanceId": "sender-1", "type": "chunk",
                "data": data});
            stage.put("sender-1", &piece);
        }
        // The pieces are named beside the message, which cannot name those of another partition.
        let message = json!({"id": format!("delivery:{commit}"), "instanceId": "waits-1", "type": "orch_queue",
            "workItem": "", "visibleAt": 1, "enqueuedAt": 1, "seq": 0, "dispatchSlot": 0, "delivered": true});
        let letter = json!({"id": letter, "instanceId": "sender-1", "type": "dead_letter",
            "targetInstanceId": "waits-1", "document": message, "reason": "the account was full",
            "chunks": {"commit": commit, "first": 0, "count": 2, "bytes": item.len()}, "diedAt": 1});
        stage.put("sender-1", &letter);
    }
    stage.run(&["dead-letters", "requeue", "dead:intent:1:0"]).with_code(0);
    stage.play(&[], async |client| drop(ended(client, "waits-1").await));
    assert_eq!(stage.run(&["show", "waits-1", "--json"]).with_code(0).json()["output"], "Anna");
    stage.run(&["dead-letters", "drop", "--all"]).with_code(0);
    let left: Vec<_> =
        stage.documents("sender-1").into_iter().map(|document| document["id"].clone()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn queues_count_the_age_of_a_dead_letter_from_its_death() {
    let stage = Stage::new("sending-dead-age");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    for (index, age_ms) in [60_000, 0].into_iter().enumerate() {
        let letter = json!({"id": format!("dead:intent:1:{index}"), "instanceId": "sender-1", "type": "dead_letter",
            "targetInstanceId": "nobody", "document": null, "reason": "too large", "diedAt": now - age_ms});
        stage.put("sender-1", &letter);
    }
    let pile = stage.run(&["queues", "--json"]).with_code(0).json();
    assert_eq!((&pile["queue"], &pile["ready"]), (&json!("dead letters"), &json!(2)), "{pile}");
    let oldest = pile["oldestMs"].as_u64().unwrap();
    assert!((60_000..600_000).contains(&oldest), "{pile}");
}
