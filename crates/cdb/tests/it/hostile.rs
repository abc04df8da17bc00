//! Texts that were stored, written or sent by others, and what of them reaches a terminal, a pipe or a log.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::stage::{Stage, begun};
#[cfg(unix)]
use crate::terminal::on_terminal;
use crate::terminal::run;

/// Sets a title, clears the screen, paints, turns the direction of writing, hides, begins new lines.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{1b}[35m\u{9b}35m\u{9d}0;x\u{9c}\u{7f}\u{85}\u{8}\r\n\t\
    \u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}\
    \u{200b}\u{200c}\u{200d}\u{2060}\u{2028}\u{2029}\u{feff}\u{ad}\u{fff9}\u{e0041}";

/// What no output may hold, whatever is stored. New lines are looked at by [`assert_clean`].
fn is_forbidden(character: char) -> bool {
    let is_text = character == '\n' || character == ' ' || character.is_ascii_graphic();
    !is_text && (character.is_control() || HOSTILE.contains(character))
}

/// Instances whose every stored text is hostile, one that only has a hostile id and name, and a dead letter.
static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let stage = Stage::new("hostile");
    let ended = [("echo-1", "echo", HOSTILE), ("fails-1", "fails", HOSTILE), ("keeps-1", "keeps", HOSTILE)];
    stage.play_to_the_end(&ended);
    stage.play_to_the_end(&[
        ("family-1", "family", HOSTILE),
        ("again-1", "again", "2"),
        (ID, "echo", HOSTILE),
    ]);
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    stage.start_only("unstarted-1", &format!("name{HOSTILE}"), HOSTILE);
    let ids =
        ["echo-1", "fails-1", "keeps-1", "family-1", "family-1::sub::2", "again-1", "waits-1", "unstarted-1"];
    for id in ids {
        for mut document in stage.documents(id) {
            for (name, value) in document.as_object_mut().expect("a document") {
                poison(name, value);
            }
            stage.put(id, &document);
        }
    }
    let letter = json!({"id": LETTER, "instanceId": "echo-1", "type": "dead_letter",
        "targetInstanceId": HOSTILE, "document": {"id": HOSTILE, "workItem": HOSTILE}, "reason": HOSTILE,
        "diedAt": 1});
    stage.put("echo-1", &letter);
    // Litter and defects whose texts name what is stored.
    let lost = json!({"id": "worker:lost", "instanceId": ID, "type": "worker_queue",
        "workItem": HOSTILE, "sessionId": HOSTILE, "lockToken": HOSTILE, "status": HOSTILE});
    stage.put(ID, &lost);
    let heads = stage.documents(ID).into_iter().filter(|document| document["type"] == "instance");
    for mut head in heads {
        head["eventCount"] = 99.into();
        stage.put(ID, &head);
    }
    stage
});

/// An id as a caller may choose it.
const ID: &str = "evil\u{1b}]0;owned\u{7}\u{1b}[35m\u{9b}35m\u{202e}\u{200b}\u{2028}\n-1";
/// The id of a document, which may hold less.
const LETTER: &str = "dead:intent:evil\u{1b}[35m\u{9b}35m\u{202e}\u{200b}\u{2028}:0";

/// Adds the hostile text to every text below, but for those by which documents are found and decoded.
fn poison(name: &str, value: &mut Value) {
    match value {
        _ if name.starts_with('_') || KEPT.contains(&name) => {}
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            // Events and messages are stored as texts of JSON.
            Ok(mut inner @ Value::Object(_)) => {
                poison(name, &mut inner);
                *text = inner.to_string();
            }
            _ => text.push_str(HOSTILE),
        },
        Value::Array(items) => items.iter_mut().for_each(|item| poison("", item)),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| poison(name, value)),
        _ => {}
    }
}

const KEPT: [&str; 14] = [
    "id",
    "instanceId",
    "type",
    "kind",
    "status",
    "instance_id",
    "instance",
    "rootInstanceId",
    "parentInstanceId",
    "packed",
    "category",
    "duroxide_version",
    "formatVersion",
    "visibleAt",
];

/// Every command that shows something, on this container.
fn commands() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for id in ["echo-1", "fails-1", "keeps-1", "family-1", "again-1", "waits-1", "unstarted-1", ID, HOSTILE] {
        for command in ["show", "history", "tree", "why", "fsck", "delete", "export"] {
            all.push(vec![command, id]);
        }
        all.push(vec!["prune", id, "--keep-last", "1"]);
        all.push(vec!["dead-letters", "show", id]);
    }
    all.extend([
        vec!["instances", "--limit", "0"],
        vec!["instances", "--limit", "1"],
        vec!["queues"],
        vec!["top", "--once", "--interval", "10ms"],
        vec!["fsck"],
        vec!["dead-letters", "list"],
        vec!["dead-letters", "show", LETTER],
        vec!["prune", "--keep-last", "1"],
        vec!["delete", "--status", "completed"],
        vec!["delete", "--status", "completed", "--before", HOSTILE],
        vec!["export"],
        vec!["raise", HOSTILE, HOSTILE, HOSTILE],
        vec!["raise", ID, HOSTILE, HOSTILE],
        vec!["enqueue", "waits-1", HOSTILE, HOSTILE],
        vec!["cancel", ID, "--reason", HOSTILE],
        vec!["start", ID, "--name", HOSTILE],
        vec!["start", "waits-1", "--name", HOSTILE, "--input", "@no\u{1b}[35m\u{202e}such"],
        vec!["show", "again-1", "--execution", "77"],
    ]);
    all
}

const WITH_JSON: [&str; 10] =
    ["show", "history", "tree", "why", "fsck", "delete", "prune", "instances", "queues", "top"];

/// What came through in the output of a command, if anything did.
fn leak(args: &[&str], text: &str) -> Option<String> {
    // Ids have a new line in them, which would begin a line of output with what follows it.
    let found =
        text.chars().find(|character| is_forbidden(*character)).or(text.contains("\n-1").then_some('\n'))?;
    let line = text.lines().find(|line| line.contains(found)).unwrap_or_default();
    Some(format!("{args:?} lets {found:?} through: {line:?}"))
}

#[track_caller]
fn assert_clean(args: &[&str], text: &str) {
    assert_eq!(leak(args, text), None);
}

#[test]
fn nothing_stored_moves_the_cursor_or_hides_in_what_a_pipe_gets() {
    let mut leaks = Vec::new();
    for args in commands() {
        let ended = STAGE.run(&args);
        assert!(!ended.stderr.contains("panicked"), "{args:?}: {ended:?}");
        leaks.extend([&ended.stdout, &ended.stderr].into_iter().filter_map(|text| leak(&args, text)));
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    let defects = STAGE.run(&["fsck"]).with_code(8).stdout;
    assert!(
        defects.contains("evil\\u{1b}]0;owned"),
        "a defect of it is told, and its name written out: {defects}"
    );
}

#[test]
fn json_keeps_the_data_and_shows_no_control_character() {
    for mut args in commands().into_iter().filter(|args| WITH_JSON.contains(&args[0])) {
        args.push("--json");
        let ended = STAGE.run(&args);
        assert_clean(&args, &ended.stdout);
        assert_clean(&args, &ended.stderr);
        if !ended.stdout.is_empty() {
            ended.json_lines();
        }
    }
    let list = STAGE.run(&["instances", "--json", "--limit", "0"]).with_code(0).json_lines();
    assert!(list.iter().any(|row| row["instance"] == ID), "{list:?}");
    let shown = STAGE.run(&["show", "keeps-1", "--json"]).with_code(0).json();
    assert_eq!(shown["output"], format!("{HOSTILE}{HOSTILE}"), "the stored output, and what was added to it");
    assert_eq!(shown["orchestration"], format!("keeps{HOSTILE}"));
    let letter = STAGE.run(&["dead-letters", "show", LETTER]).with_code(0).json();
    assert_eq!((&letter["id"], &letter["reason"]), (&LETTER.into(), &HOSTILE.into()));
}

#[test]
fn an_export_of_hostile_texts_is_clean_and_restores_them() {
    let exported = STAGE.run(&["export"]).with_code(0).stdout;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("export.ndjson");
    std::fs::write(&file, &exported).unwrap();
    let copy = Stage::new("hostile-copy");
    copy.run(&["import", file.to_str().unwrap()]).with_code(0);
    let without_system = |stage: &Stage| {
        let mut documents = stage.documents(ID);
        for document in &mut documents {
            document.as_object_mut().unwrap().retain(|name, _| !name.starts_with('_'));
        }
        documents.sort_by_key(|document| document["id"].to_string());
        documents
    };
    assert_eq!(without_system(&copy), without_system(&STAGE));
}

#[cfg(unix)]
#[test]
fn nothing_stored_reaches_a_terminal_but_our_own_colours() {
    let drawn = |args: &[&str]| without_our_own(&on_terminal(&STAGE.args(args), 100).1);
    let json = [
        vec!["show", ID, "--json"],
        vec!["fsck", "--json"],
        vec!["history", ID, "--json"],
        vec!["dead-letters", "list", "--json"],
    ];
    let leaks: Vec<String> =
        commands().iter().chain(&json).filter_map(|args| leak(args, &drawn(args))).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

/// What was drawn without the sequences that `cdb` itself makes.
#[cfg(unix)]
fn without_our_own(drawn: &str) -> String {
    let mut rest = drawn.replace("\r\n", "\n").replace("\r\u{1b}[K", "");
    for code in ["0", "1", "2", "31", "32", "33", "36"] {
        rest = rest.replace(&format!("\u{1b}[{code}m"), "");
    }
    rest
}

#[test]
fn what_is_logged_is_cleaned_too() {
    let ended = run(&STAGE.args(&["why", ID, "--log", "trace"]));
    assert!(ended.stderr.lines().count() > 10, "it logs: {ended:?}");
    assert_clean(&["why"], &ended.stderr);
    assert_clean(&["why"], &ended.stdout);
}

#[test]
fn files_with_hostile_texts_are_refused_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let header = json!({"cdb-export": 1, "database": HOSTILE, "container": HOSTILE, "exportedAt": 1});
    let end = json!({"cdb-end": true, "documents": HOSTILE, "sha256": HOSTILE});
    let files = [
        ("a", HOSTILE.to_owned()),
        ("b", format!("{header}\n{HOSTILE}\n")),
        ("c", format!("{header}\n{end}\n")),
        ("d\u{1b}[35m\u{202e}", String::new()),
    ];
    for (name, text) in files {
        std::fs::write(path(name), text).unwrap();
        let args = ["import", &path(name)];
        let ended = STAGE.run(&args).with_code(1);
        assert_clean(&args, &ended.stderr);
    }
    let field = format!("x{HOSTILE}");
    for described in [json!({field: 1}), json!({"databases": [{"id": HOSTILE, "containers": HOSTILE}]})] {
        std::fs::write(path("config"), described.to_string()).unwrap();
        let args = ["emulator", "--memory", "--port", "0", "--config", &path("config")];
        let ended = run(&args).with_code(2);
        assert_clean(&args, &ended.stderr);
    }
}

#[test]
fn a_server_that_answers_with_control_characters_is_quoted_in_plain_words() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    let body = json!({"code": HOSTILE, "message": HOSTILE}).to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            // A client that has left gets no answer.
            let _ = stream.read(&mut request);
            let head = format!(
                "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}",
                body.len()
            );
            let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes());
        }
    });
    let args = ["instances", "--endpoint", &endpoint, "--log", "debug"];
    let ended = run(&args);
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("owned"), "what the server said is told: {ended:?}");
    assert_clean(&args, &ended.stderr);
}
