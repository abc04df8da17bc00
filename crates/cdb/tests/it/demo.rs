//! `cdb demo`: to its end, twice, interrupted, killed, and on a terminal.

use serde_json::Value;

use crate::stage::Stage;
use crate::terminal::{SOON, Watched, ok, on_terminal, plain, run};

const WORKFLOWS: [&str; 8] = ["order", "bake", "deliver", "proof", "approve", "shift", "stock", "oven"];

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bakery").to_str().unwrap().to_owned();
    (folder, path)
}

fn workflow<'a>(summary: &'a Value, name: &str) -> &'a Value {
    let workflows = summary["workflows"].as_array().unwrap();
    workflows.iter().find(|row| row["instance"].as_str().unwrap().ends_with(name)).unwrap()
}

#[test]
fn every_workflow_ends_and_a_second_run_finds_what_the_first_left() {
    let (_folder, path) = folder();
    let first = ok(&["demo", "--data", &path, "--pace", "20"]);
    for name in WORKFLOWS {
        assert!(first.contains(&format!("{name:<8} completed after")), "{name}: {first}");
    }
    assert!(first.contains("The bakery, run 1, on an embedded emulator"), "{first}");
    assert!(!first.contains("Still there"), "{first}");
    assert!(first.contains("wedding cake approved by Anna") && first.contains("4 shifts worked"), "{first}");
    assert!(first.contains(&format!("cdb instances --data {path}")), "it says what to type next: {first}");
    assert!(!first.contains('\u{1b}'), "no colours where there is no terminal");

    let second = ok(&["demo", "--data", &path, "--pace", "20"]);
    assert!(second.contains("The bakery, run 2,"), "{second}");
    assert!(second.contains("Still there from before: 11 instances of 1 run; run 1 last moved"), "{second}");
    assert!(second.contains("8 of its 8 workflows done"), "{second}");
    let listed = run(&["instances", "--data", &path, "--json", "--limit", "0"]).with_code(0).json_lines();
    assert_eq!(listed.len(), 22, "two runs of eight workflows and three children");
    assert!(listed.iter().all(|row| row["status"] == "Completed"));
}

#[test]
fn the_summary_says_what_each_workflow_cost() {
    let summary = run(&["demo", "--memory", "--pace", "5", "--json"]).with_code(0).json();
    assert_eq!(summary["run"], 1);
    let mut requests = summary["shared"]["requests"].as_u64().unwrap();
    for name in WORKFLOWS {
        let row = workflow(&summary, name);
        assert_eq!((&row["status"], &row["origin"]), (&"Completed".into(), &"started".into()), "{row}");
        assert!(row["cost"]["requestUnits"].as_f64().unwrap() > 1.0, "{row}");
        requests += row["cost"]["requests"].as_u64().unwrap();
    }
    assert_eq!(requests, summary["total"]["requests"].as_u64().unwrap(), "the parts are the whole");
    assert_eq!(workflow(&summary, "bake")["stepsNow"], 20);
}

#[test]
fn ctrl_c_stops_cleanly_and_the_next_run_continues_without_repeating_a_step() {
    let (_folder, path) = folder();
    let mut demo = Watched::start(&["demo", "--data", &path, "--pace", "200"]);
    // Four are under way at once: the first ones are stored when the eighth is done.
    demo.until_step("bake", 8);
    demo.interrupt();
    let stopped = demo.end_within(SOON).with_code(130);
    assert!(
        stopped.stderr.contains("Nothing is lost") && stopped.stderr.contains("cdb demo --data"),
        "{stopped:?}"
    );

    let summary = run(&["demo", "--data", &path, "--pace", "20", "--json"]).with_code(0).json();
    assert_eq!(summary["run"], 1, "the same run goes on");
    let bake = workflow(&summary, "bake");
    assert_eq!((&bake["status"], &bake["origin"]), (&"Completed".into(), &"continued".into()), "{bake}");
    let (before, now) = (bake["stepsBefore"].as_u64().unwrap(), bake["stepsNow"].as_u64().unwrap());
    assert!(before >= 4, "{bake}");
    assert_eq!(before + now, 20, "no step was done twice: {bake}");
    for name in WORKFLOWS {
        assert_eq!(workflow(&summary, name)["status"], "Completed", "{name}");
    }
    let again = ok(&["demo", "--data", &path, "--pace", "5"]);
    assert!(again.contains("run 2"), "{again}");
}

#[test]
fn a_killed_demo_is_continued_as_well() {
    let (_folder, path) = folder();
    let mut demo = Watched::start(&["demo", "--data", &path, "--pace", "200"]);
    // Four are under way at once: the first one is stored when the fifth is done.
    demo.until_step("bake", 5);
    demo.kill();
    let text = ok(&["demo", "--data", &path, "--pace", "20"]);
    assert!(text.contains("It was not finished: its workflows continue where they were."), "{text}");
    assert!(text.contains("bake     continues,"), "{text}");
    assert!(text.contains("bake was continued:"), "{text}");
    let history = run(&["history", "bakery-1-bake", "--data", &path, "--json"]).with_code(0).json_lines();
    let done = history.iter().filter(|event| event["type"] == "ActivityCompleted").count();
    assert_eq!(done, 20, "each step counts once");
}

#[test]
fn the_demo_runs_on_an_account_as_well() {
    let stage = Stage::new("demo-account");
    let summary = stage.run(&["demo", "--pace", "5", "--json"]).with_code(0).json();
    assert_eq!(workflow(&summary, "deliver")["result"], "North done, Harbour done, Hill done");
    assert!(summary["total"]["requestUnits"].as_f64().unwrap() > 100.0, "the provider counts: {summary}");
    for name in WORKFLOWS {
        let cost = &workflow(&summary, name)["cost"];
        assert!(cost["requests"].as_u64().unwrap() >= 5, "{name}: {cost}");
    }
    let text = stage.ok(&["demo", "--pace", "5"]);
    assert!(text.contains(&format!("run 2, on {}", stage.endpoint)), "{text}");
    assert!(
        text.contains(&format!("cdb instances --endpoint {} --container demo-account", stage.endpoint)),
        "{text}"
    );
}

#[cfg(unix)]
#[test]
fn on_a_terminal_the_workflows_are_drawn_over_and_replaced_by_the_summary() {
    for columns in [60, 120] {
        let (code, drawn) = on_terminal(&["demo", "--memory", "--pace", "30"], columns);
        assert_eq!(code, 0, "{drawn}");
        assert!(drawn.contains("\u{1b}[10A"), "eight workflows and two lines are drawn over");
        assert!(drawn.contains("\u{1b}[J"), "the drawing gives way to the summary");
        let text = plain(&drawn);
        assert!(text.contains("━") && text.contains("of 8 workflows done"), "{text}");
        let summary = text.rsplit("WORKFLOW").next().unwrap();
        for line in summary.lines().filter(|line| line.starts_with("order") || line.starts_with("total")) {
            assert!(line.chars().count() <= usize::from(columns) + 9, "{line}");
        }
    }
}
