//! `cdb instances`, `show`, `history`, `tree`, `queues`, `why` and `top`.

use std::sync::LazyLock;

use crate::stage::{Stage, begun};
#[cfg(unix)]
use crate::terminal::Terminal;
use crate::terminal::{Watched, on_terminal, plain};

/// A container with one workflow in every state; nobody changes it.
static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let stage = Stage::new("looking");
    let ended = [
        ("echo-1", "echo", "hello"),
        ("fails-1", "fails", "out of flour"),
        ("family-1", "family", "x"),
        ("again-1", "again", "3"),
        ("keeps-1", "keeps", "blue"),
    ];
    stage.play_to_the_end(&ended);
    stage.play(&[("waits-1", "waits", "")], async |client| begun(client, "waits-1").await);
    stage.start_only("unstarted-1", "echo", "later");
    stage
});

#[test]
fn instances_are_listed_filtered_sorted_and_paged() {
    let text = STAGE.ok(&["instances"]);
    let header = text.lines().next().unwrap();
    assert!(
        header.starts_with("INSTANCE") && header.contains("ORCHESTRATION") && header.contains("STATUS"),
        "{text}"
    );
    assert_eq!(
        text.lines().count(),
        10,
        "six roots, two children, one that nobody has taken, a header: {text}"
    );
    let pending = text.lines().find(|line| line.starts_with("unstarted-1")).unwrap();
    assert!(pending.contains("Pending") && pending.contains("echo"), "{text}");
    let failed = text.lines().find(|line| line.starts_with("fails-1")).unwrap();
    assert!(failed.contains("out of flour"), "why it failed is told: {text}");

    let ids = |args: &[&str]| -> Vec<String> {
        let rows = STAGE.run(args).with_code(0).json_lines();
        rows.iter().map(|row| row["instance"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&["instances", "--json", "--status", "failed"]), ["fails-1"]);
    assert_eq!(ids(&["instances", "--json", "--status", "running"]), ["waits-1"]);
    assert_eq!(ids(&["instances", "--json", "--name", "keeps"]), ["keeps-1"]);
    assert_eq!(ids(&["instances", "--json", "--prefix", "family-1::", "--sort", "id"]).len(), 2);
    let sorted = ids(&["instances", "--json", "--roots", "--sort", "id"]);
    assert_eq!(sorted, ["again-1", "echo-1", "fails-1", "family-1", "keeps-1", "unstarted-1", "waits-1"]);
    assert_eq!(ids(&["instances", "--json", "--status", "pending"]), ["unstarted-1"]);
    assert_eq!(
        ids(&["instances", "--json", "--status", "failed,running", "--sort", "id"]),
        ["fails-1", "waits-1"]
    );
    assert_eq!(
        ids(&["instances", "--json", "--status", "failed", "--status", "pending", "--sort", "id"]).len(),
        2
    );
    assert!(ids(&["instances", "--json", "--status", "cancelled"]).is_empty());
    assert_eq!(ids(&["list", "keeps", "--json"]), ["keeps-1"]);
    assert_eq!(ids(&["--json", "ps", "--error", "OUT OF"]), ["fails-1"]);
    assert_eq!(ids(&["instances", "--json", "--custom-status", "half"]), ["keeps-1"]);
    assert_eq!(ids(&["instances", "--json", "--parent", "family-1", "-n", "1"]).len(), 1);
    assert!(ids(&["instances", "--json", "--created-before", "1h"]).is_empty());
    let page = ids(&["instances", "--json", "--roots", "--sort", "id", "--limit", "2", "--offset", "2"]);
    assert_eq!(page, ["fails-1", "family-1"]);
    let reversed = ids(&["instances", "--json", "--roots", "--sort", "id", "--reverse", "--limit", "1"]);
    assert_eq!(reversed, ["waits-1"]);
    assert!(ids(&["instances", "--json", "--before", "1h"]).is_empty());
    assert_eq!(ids(&["instances", "--json", "--since", "1h", "--limit", "0"]).len(), 9);
    let told = STAGE.run(&["instances", "--limit", "3"]).with_code(0).stderr;
    assert!(told.contains("3 shown, there are more: --offset 3 shows the next"), "{told}");
    let first = ids(&["instances", "--json", "--limit", "5"]);
    let second = ids(&["instances", "--json", "--limit", "5", "--offset", "5"]);
    let mut both = [first, second].concat();
    both.sort();
    both.dedup();
    assert_eq!(both.len(), 9, "each is on one page: {both:?}");
}

#[test]
fn show_draws_the_timeline_and_tells_the_rest() {
    let text = STAGE.ok(&["show", "keeps-1"]);
    for part in [
        "keeps-1  Completed  keeps",
        "custom    half way",
        "kv        colour = blue",
        "output    blue",
        "input     blue",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        text.contains("Timeline of execution 1") && text.contains("activity Echo") && text.contains('━'),
        "{text}"
    );

    let text = STAGE.ok(&["show", "family-1"]);
    assert_eq!(text.matches("  child ").count(), 2, "{text}");
    let child = STAGE.run(&["show", "family-1::sub::2", "--json"]).with_code(0).json();
    assert_eq!((&child["parent"], &child["output"]), (&"family-1".into(), &"xa".into()));

    let text = STAGE.ok(&["show", "again-1"]);
    assert!(text.contains("ContinuedAsNew") && text.contains("Timeline of execution 4"), "{text}");
    let text = STAGE.ok(&["show", "again-1", "--execution", "2"]);
    assert!(text.contains("Timeline of execution 2"), "{text}");

    let shown = STAGE.run(&["show", "fails-1", "--json"]).with_code(0).json();
    assert_eq!((&shown["status"], &shown["input"]), (&"Failed".into(), &"out of flour".into()));
    let span = &shown["timeline"]["spans"][0];
    assert_eq!((&span["input"], &span["error"]), (&"out of flour".into(), &"out of flour".into()));
    assert!(shown["createdAt"].as_str().is_some_and(|at| at.ends_with('Z')), "{shown}");
    assert_eq!(shown["timeline"]["spans"][0]["end"], "failed");
    assert!(STAGE.ok(&["show", "fails-1"]).contains("failed: "));
}

#[test]
fn history_prints_every_event_of_an_execution() {
    let text = STAGE.ok(&["history", "echo-1"]);
    for event in ["OrchestrationStarted", "ActivityScheduled", "ActivityCompleted", "OrchestrationCompleted"]
    {
        assert!(text.contains(event), "{event}: {text}");
    }
    let events = STAGE.run(&["history", "again-1", "--execution", "1", "--json"]).with_code(0).json_lines();
    assert_eq!(events.last().unwrap()["type"], "OrchestrationContinuedAsNew");
    let missing = STAGE.run(&["history", "again-1", "--execution", "9"]).with_code(5);
    assert!(missing.stderr.contains("it has 1, 2, 3, 4"), "{missing:?}");
}

#[test]
fn a_tree_shows_children_below_their_parent() {
    let text = STAGE.ok(&["tree", "family-1"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("family-1  Completed  family"), "{text}");
    assert!(
        lines[1].starts_with("├─ family-1::sub::2") && lines[2].starts_with("└─ family-1::sub::3"),
        "{text}"
    );
    let tree = STAGE.run(&["tree", "family-1", "--json"]).with_code(0).json();
    assert_eq!(tree["children"].as_array().unwrap().len(), 2);
}

#[test]
fn queues_show_what_waits() {
    let text = STAGE.ok(&["queues"]);
    assert!(text.contains("workflows") && text.contains("StartOrchestration"), "{text}");
    let piles = STAGE.run(&["queues", "--json"]).with_code(0).json_lines();
    assert_eq!(piles[0]["ready"], 1, "{piles:?}");
}

#[test]
fn why_says_what_an_instance_waits_for() {
    let text = STAGE.ok(&["why", "waits-1"]);
    assert!(text.contains("waits-1: it waits") && text.contains("it waits for the event \"yes\""), "{text}");
    assert!(text.contains("cdb raise waits-1 yes DATA"), "{text}");
    let text = STAGE.ok(&["why", "echo-1"]);
    assert!(text.contains("it has ended: Completed"), "{text}");
    let failed = STAGE.run(&["why", "fails-1"]).with_code(8);
    assert!(failed.stdout.contains("fails-1: it failed"), "{failed:?}");
    assert!(failed.stdout.contains("activity Break (#2) failed: out of flour"), "{failed:?}");
    let started = STAGE.run(&["why", "unstarted-1", "--json"]);
    assert!([0, 8].contains(&started.code), "waiting, or stuck when it waits for long: {started:?}");
    assert!(started.stdout.contains("start of echo waits since"), "{started:?}");
    let shown = STAGE.ok(&["show", "unstarted-1"]);
    assert!(shown.contains("Pending") && shown.contains("has not begun"), "{shown}");
    let told = STAGE.run(&["history", "unstarted-1"]).with_code(5);
    assert!(told.stderr.contains("has not begun"), "{told:?}");
}

#[test]
fn a_failure_is_followed_to_the_child_where_it_began() {
    let stage = Stage::new("looking-parent");
    stage.play_to_the_end(&[("parent-1", "parent", "no flour")]);
    let why = stage.run(&["why", "parent-1"]).with_code(8);
    assert!(why.stdout.contains("its sub-orchestration parent-1::sub::2 (#2) failed"), "{why:?}");
    assert!(why.stdout.contains("in parent-1::sub::2: activity Break (#2) failed: no flour"), "{why:?}");
}

#[test]
fn top_prints_once_where_there_is_no_terminal() {
    let text = STAGE.ok(&["top", "--interval", "50ms"]);
    assert!(
        text.contains("running") && text.contains("completed") && text.contains("StartOrchestration"),
        "{text}"
    );
    let top = STAGE.run(&["top", "--json", "--interval", "50ms"]).with_code(0).json();
    assert_eq!((&top["instances"]["all"], &top["instances"]["failed"]), (&8.into(), &1.into()));
    let latencies = top["latencies"].as_array().unwrap();
    assert_eq!(latencies.len(), 3, "{top}");
    assert!(latencies.iter().all(|row| row["medianMs"].as_f64().unwrap() > 0.0), "{top}");
}

#[test]
fn top_reads_the_ledger_of_a_running_emulator() {
    let emulator =
        cosmos_emulator::Emulator::start(cosmos_emulator::Config::default().with_management()).unwrap();
    let stage = Stage::open(&emulator, "top");
    let management = emulator.management_endpoint().unwrap();
    let top =
        stage.run(&["top", "--json", "--interval", "50ms", "--management", &management]).with_code(0).json();
    let operations = top["operations"].as_array().unwrap();
    assert!(operations.iter().any(|row| row["requestUnitsPerSecond"].as_f64().unwrap() > 0.0), "{top}");
    let wrong = stage.run(&["top", "--once", "--management", &stage.endpoint]).with_code(1);
    assert!(wrong.stderr.contains("cannot read the ledger"), "{wrong:?}");
}

/// The figures behind the first word of a line.
#[cfg(unix)]
fn row<'a>(frame: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let mut rows = frame.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|words| words.first() == Some(&name)).map(|words| words[1..].to_vec())
}

#[cfg(unix)]
#[test]
fn top_draws_again_and_again_until_q_and_leaves_the_terminal_as_it_was() {
    let emulator =
        cosmos_emulator::Emulator::start(cosmos_emulator::Config::default().with_management()).unwrap();
    let stage = Stage::open(&emulator, "top-live");
    let management = emulator.management_endpoint().unwrap();
    let args = ["top", "--interval", "100ms", "--management", &management];
    let mut top = Terminal::start(&stage.args(&args), 100, 40);
    let first = top.frame(|frame| frame.contains("REQUESTS/S"));
    assert_eq!(row(&first, "completed").unwrap()[0], "0", "{first}");
    assert!(first.contains("RU/S") && first.contains("LONGEST") && first.contains("q quits"), "{first}");
    let units: f64 = row(&first, "query").unwrap()[1].parse().unwrap();
    assert!(units > 0.0, "its own looks cost something: {first}");
    assert!(row(&first, "batch").is_none() && !top.is_ordinary(), "{first}");

    stage.play_to_the_end(&[("echo-1", "echo", "x")]);
    // The ledger is read after the counts, so its batches may show a frame before the workflow does.
    let mut batches = false;
    let second = top.frame(|frame| {
        batches |= row(frame, "batch").is_some_and(|figures| figures[0].parse::<f64>().unwrap() > 0.0);
        row(frame, "completed").is_some_and(|figures| figures[0] == "1")
    });
    assert!(row(&second, "completed").unwrap()[1].starts_with('+'), "{second}");
    assert!(batches, "{second}");

    top.resize(60, 8);
    let small = top.frame(|frame| frame.lines().count() <= 8);
    assert!(small.lines().last().unwrap().contains("lines more"), "{small}");
    top.resize(100, 40);
    top.frame(|frame| frame.contains("REQUESTS/S"));

    top.press("xq");
    assert_eq!(top.wait(), 0);
    assert!(top.is_ordinary());
    let (_, drawn) = top.end();
    assert!(drawn.starts_with("\u{1b}[?1049h\u{1b}[?25l"), "{drawn:?}");
    assert!(drawn.ends_with("\u{1b}[?25h\u{1b}[?1049l"), "{drawn:?}");
}

#[cfg(unix)]
#[test]
fn top_leaves_the_terminal_as_it_was_when_it_is_stopped_and_when_the_account_goes_away() {
    let emulator = cosmos_emulator::Emulator::start(cosmos_emulator::Config::default()).unwrap();
    let stage = Stage::open(&emulator, "top-stopped");
    let mut top = Terminal::start(&stage.args(&["top", "--interval", "50ms"]), 100, 40);
    top.frame(|frame| frame.contains("LONGEST"));
    top.signal("-INT");
    assert_eq!(top.wait(), 0);
    assert!(top.is_ordinary());
    assert!(top.end().1.ends_with("\u{1b}[?25h\u{1b}[?1049l"));

    let mut top = Terminal::start(&stage.args(&["top", "--interval", "50ms"]), 100, 40);
    top.frame(|frame| frame.contains("LONGEST"));
    drop(emulator);
    top.wait();
    assert!(top.is_ordinary());
    let (code, drawn) = top.end();
    assert_eq!(code, 6, "{drawn}");
    let said = drawn.split("\u{1b}[?1049l").nth(1).unwrap();
    assert!(said.starts_with("cdb: the account does not answer any more: "), "{drawn:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut listing = Watched::start(&STAGE.args(&["instances", "--json", "--limit", "0"]));
    listing.until("instance");
    let ended = listing.hang_up().with_code(0);
    assert!(!ended.stderr.contains("cdb:"), "{ended:?}");
}

#[cfg(unix)]
#[test]
fn tables_fit_the_terminal_and_have_colours_there() {
    let (code, drawn) = on_terminal(&STAGE.args(&["instances"]), 80);
    assert_eq!(code, 0, "{drawn}");
    assert!(drawn.contains("\u{1b}[32mCompleted"), "{drawn}");
    for line in plain(&drawn).lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line:?}");
    }
    let (_, drawn) = on_terminal(&STAGE.args(&["show", "family-1"]), 70);
    assert!(plain(&drawn).contains("2 child    …::sub::2"), "children are told apart: {drawn}");
    for line in plain(&drawn).lines().filter(|line| line.contains('━')) {
        assert!(line.trim_end().chars().count() <= 70, "{line:?}");
    }
}
