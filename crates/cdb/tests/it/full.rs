//! A disk that fills up: said in one sentence, at once, and nothing acknowledged is lost.

use crate::process::Client;
use crate::stage::Stage;
use crate::terminal::{Ended, SOON, Watched, ok, run};

fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    (folder, move |name: &str| root.join(name).to_str().unwrap().to_owned())
}

/// Only our own words, and only one line of them.
#[track_caller]
fn said(ended: &Ended, folder: &str) {
    assert!(ended.stderr.contains(&format!("the data folder {folder} reached the size limit")), "{ended:?}");
    assert!(ended.stderr.contains("every acknowledged write is kept"), "{ended:?}");
    assert!(!ended.stderr.contains("fjall") && !ended.stderr.contains("ActivityId"), "{ended:?}");
}

#[test]
fn a_demo_on_a_full_disk_stops_at_once_and_continues_when_there_is_room() {
    let (_folder, path) = folder();
    let data = path("bakery");
    let mut demo = Watched::start_with_signal_ignored(&["demo", "--data", &data, "--pace", "200"]);
    // Four are under way at once: the first ones are stored when the ninth is done.
    demo.until_step("bake", 9);
    demo.fill_disk();
    let stopped = demo.end_within(SOON).with_code(4);
    said(&stopped, &data);
    assert!(stopped.stderr.contains(&format!("cdb demo --data {data} continues")), "{stopped:?}");

    let summary = run(&["demo", "--data", &data, "--pace", "10", "--json"]).with_code(0).json();
    assert_eq!(summary["run"], 1, "the same run goes on");
    let workflows = summary["workflows"].as_array().unwrap();
    assert!(workflows.iter().all(|row| row["status"] == "Completed"), "{summary}");
    let bake = workflows.iter().find(|row| row["instance"] == "bakery-1-bake").unwrap();
    assert!(bake["stepsBefore"].as_u64().unwrap() >= 4, "{bake}");
}

#[test]
fn an_emulator_on_a_full_disk_says_so_once_and_serves_reads() {
    let (_folder, path) = folder();
    let data = path("data");
    let mut server = Watched::start_with_signal_ignored(&["emulator", "--port", "0", "--data", &data]);
    let ready = server.line_with("accountEndpoint");
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let mut client = Client::at(ready["accountEndpoint"].as_str().unwrap());
    let database = serde_json::json!({"id": "kept"});
    assert_eq!(client.send("POST", "/dbs", None, &database).unwrap().0, 201);
    server.fill_disk();
    let refused = client.send("POST", "/dbs", None, &serde_json::json!({"id": "late"})).unwrap();
    assert_eq!(refused.0, 500, "{refused:?}");
    assert!(refused.1["message"].as_str().unwrap().contains("reached the size limit"), "{refused:?}");
    assert_eq!(client.send("GET", "/dbs/kept", None, &serde_json::Value::Null).unwrap().0, 200);
    server.until_told("Until then only reads are served");
    server.interrupt();
    server.end_within(SOON).with_code(0);
}

#[test]
fn an_import_into_a_full_disk_says_so_and_goes_on_when_there_is_room() {
    let (_folder, path) = folder();
    let (file, data) = (path("export.ndjson"), path("copy"));
    let stage = Stage::new("full-import");
    let large = "x".repeat(300_000);
    let ids: Vec<String> = (0..12).map(|number| format!("echo-{number}")).collect();
    let starts: Vec<(&str, &str, &str)> =
        ids.iter().map(|id| (id.as_str(), "echo", large.as_str())).collect();
    stage.play_to_the_end(&starts);
    stage.ok(&["export", "-o", &file]);
    // The container is there, so that the limit strikes in the middle of the documents.
    ok(&["demo", "--data", &data, "--pace", "1"]);
    let import = Watched::start_with_signal_ignored(&["import", &file, "--data", &data]);
    import.fill_disk();
    let stopped = import.end_within(SOON).with_code(4);
    said(&stopped, &data);
    ok(&["import", &file, "--data", &data]);
    assert_eq!(run(&["show", "echo-11", "--data", &data, "--json"]).with_code(0).json()["output"], large);
}

#[test]
fn a_start_on_a_full_disk_says_so_at_once() {
    let (_folder, path) = folder();
    let data = path("bakery");
    ok(&["demo", "--data", &data, "--pace", "1"]);
    let start = "trap '' XFSZ; ulimit -f 8; exec \"$0\" start late-1 --name echo --data \"$1\"";
    let stopped =
        std::process::Command::new("sh").args(["-c", start, env!("CARGO_BIN_EXE_cdb"), &data]).output();
    said(&Ended::from(stopped.unwrap()).with_code(4), &data);
}

#[test]
fn an_export_that_does_not_fit_is_called_incomplete_and_refused_by_an_import() {
    let (_folder, path) = folder();
    let (file, data) = (path("export.ndjson"), path("bakery"));
    ok(&["demo", "--data", &data, "--pace", "1"]);
    let cut = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" export --data \"$1\" -o \"$2\""])
        .args([env!("CARGO_BIN_EXE_cdb"), &data, &file])
        .output();
    let cut = Ended::from(cut.unwrap()).with_code(1);
    assert!(cut.stderr.contains(&format!("{file}.part is incomplete")), "{cut:?}");
    assert!(!cut.stderr.contains("fjall") && !std::path::Path::new(&file).exists(), "{cut:?}");
    let refused = run(&["import", &format!("{file}.part"), "--data", &path("copy")]).with_code(1);
    assert!(refused.stderr.contains("cannot be imported"), "{refused:?}");
}
