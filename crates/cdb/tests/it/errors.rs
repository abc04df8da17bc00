//! Bad input and bad places: a clear sentence, the right code, never a panic.

use crate::stage::{ACCOUNT, Stage};
use crate::terminal::{SOON, Watched, ok, run};

#[test]
fn an_unknown_instance_is_said_by_every_command_that_takes_one() {
    let stage = Stage::new("errors-unknown");
    for args in [
        &["show", "nobody"][..],
        &["history", "nobody"],
        &["tree", "nobody"],
        &["why", "nobody"],
        &["raise", "nobody", "yes"],
        &["enqueue", "nobody", "inbox", "x"],
        &["cancel", "nobody"],
        &["delete", "nobody", "--yes"],
        &["prune", "nobody", "--keep-last", "1"],
        &["export", "nobody"],
        &["fsck", "nobody"],
        &["dead-letters", "show", "nobody"],
    ] {
        let ended = stage.run(args).with_code(5);
        assert!(ended.stderr.contains("nobody") && ended.stdout.is_empty(), "{args:?}: {ended:?}");
    }
}

#[test]
fn a_wrong_key_is_refused_with_advice_and_never_printed() {
    let stage = Stage::new("errors-key");
    let key = "d3Jvbmcga2V5IG9mIGFuIGFjY291bnQ=";
    let refused = run(&["instances", "--endpoint", &stage.endpoint, "--key", key]).with_code(7);
    assert!(
        refused.stderr.contains("refused the key") && refused.stderr.contains("COSMOS_KEY"),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains(key), "{refused:?}");
    let broken = run(&["instances", "--endpoint", &stage.endpoint, "--key", "not base64!"]).with_code(2);
    assert!(!broken.stderr.contains("not base64!"), "{broken:?}");
    let missing = run(&["instances", "--endpoint", "https://account.example.com"]).with_code(2);
    assert!(missing.stderr.contains("there is no key"), "{missing:?}");
}

#[test]
fn a_password_in_an_endpoint_is_refused_and_never_printed() {
    for args in [
        &["instances", "--endpoint", "https://me:secret@acct.example"][..],
        &["instances", "--endpoint", "me:secret@acct.example", "--key", "a2V5"],
        &["instances", "--endpoint", "https://me:sec/secret@acct.example", "--key", "a2V5"],
        &["demo", "--endpoint", "http://me:secret@127.0.0.1:1/", "--key", "a2V5"],
        &["top", "--management", "http://me:secret@127.0.0.1:1/", "--data", "x"],
    ] {
        let ended = run(args).with_code(2);
        assert!(ended.stderr.contains("leave that out"), "{args:?}: {ended:?}");
        assert!(!format!("{ended:?}").contains("secret"), "{args:?}: {ended:?}");
    }
}

#[test]
fn an_unreachable_endpoint_is_said_soon() {
    let endpoint = "http://127.0.0.1:1";
    let ended = Watched::start(&["instances", "--endpoint", endpoint]).end_within(SOON);
    let ended = ended.with_code(6);
    assert!(ended.stderr.contains(&format!("nobody answers at {endpoint}")), "{ended:?}");
}

#[test]
fn a_missing_container_folder_or_place_says_what_to_do() {
    let endpoint = ACCOUNT.emulator.endpoint();
    let missing = run(&["instances", "--endpoint", &endpoint, "--container", "nowhere"]).with_code(5);
    assert!(
        missing.stderr.contains("there is no container \"nowhere\" in database \"duroxide\""),
        "{missing:?}"
    );
    let missing = run(&["instances", "--data", "/no/such/folder"]).with_code(5);
    assert!(missing.stderr.contains("the folder /no/such/folder is not there"), "{missing:?}");
    let other = tempfile::tempdir().unwrap();
    let wrong = run(&["instances", "--data", other.path().to_str().unwrap()]).with_code(5);
    assert!(wrong.stderr.contains("has no data of an emulator"), "{wrong:?}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "looking leaves nothing behind");
    let nowhere = run(&["instances"]).with_code(2);
    assert!(nowhere.stderr.contains("--endpoint") && nowhere.stderr.contains("--data"), "{nowhere:?}");
}

#[test]
fn a_folder_that_is_in_use_is_looked_at_through_who_uses_it_and_one_of_no_use_has_code_4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bakery").to_str().unwrap().to_owned();
    let mut demo = Watched::start(&["demo", "--data", &path, "--pace", "300"]);
    demo.until("running");
    let listed = run(&["instances", "--data", &path]).with_code(0);
    assert!(listed.stdout.contains("bakery-1-order"), "{listed:?}");
    let locked = run(&["demo", "--data", &path]).with_code(4);
    assert!(locked.stderr.contains(&path), "a demo wants it for itself: {locked:?}");
    demo.interrupt();
    demo.end_within(SOON).with_code(130);
    let file = tempfile::NamedTempFile::new().unwrap();
    run(&["demo", "--data", file.path().to_str().unwrap()]).with_code(4);
}

#[test]
fn wrong_usage_has_code_2() {
    for wrong in [
        &["instances", "--since", "someday", "--endpoint", "http://127.0.0.1:1"][..],
        &["instances", "--status", "fine", "--data", "x"],
        &["demo", "--pace", "0"],
        &["demo", "--memory", "--data", "x"],
        &["prune", "--data", "x"],
        &["stress", "nothing"],
        &["start", "x", "--data", "y"],
        &["completions", "cobol"],
        &["show"],
        &["no-such-command"],
    ] {
        run(wrong).with_code(2);
    }
    let stage = Stage::new("errors-usage");
    let ended = stage.run(&["instances", "--since", "someday"]).with_code(2);
    assert!(ended.stderr.contains("\"someday\" is not a moment"), "{ended:?}");
}

#[test]
fn every_command_explains_itself() {
    let all = ok(&["--help"]);
    assert!(all.contains("Exit codes:"), "{all}");
    let commands = [
        "demo",
        "instances",
        "show",
        "history",
        "tree",
        "why",
        "queues",
        "runtimes",
        "top",
        "start",
        "raise",
        "enqueue",
        "cancel",
        "wait",
        "rerun",
        "delete",
        "prune",
        "dead-letters",
        "export",
        "import",
        "fsck",
        "sql",
        "context",
        "stress",
        "emulator",
        "completions",
    ];
    for command in commands {
        assert!(all.contains(&format!("\n  {command} ")), "{command}: {all}");
        let help = ok(&[command, "--help"]);
        assert!(help.contains("Examples:") && help.contains(&format!("cdb {command}")), "{help}");
    }
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&["completions", shell]);
        assert!(script.contains("dead-letters") && script.contains("endpoint"), "{shell}");
    }
}

#[test]
fn every_command_has_a_page_of_help_with_examples_and_refuses_what_it_does_not_know() {
    let page = run(&["--help"]).with_code(0).stdout;
    let commands: Vec<&str> = page
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.len() >= 20, "{commands:?}");
    for command in commands {
        let help = run(&[command, "--help"]).with_code(0);
        assert!(help.stderr.is_empty() && help.stdout.contains("Usage: cdb "), "{command}: {help:?}");
        let wrong = run(&[command, "--no-such-option"]).with_code(2);
        assert!(wrong.stdout.is_empty() && wrong.stderr.contains("--no-such-option"), "{command}: {wrong:?}");
        if !["completions", "import", "dead-letters"].contains(&command) {
            assert!(help.stdout.contains("Examples:"), "{command} has no examples: {}", help.stdout);
        }
    }
}

#[test]
fn a_key_that_only_reads_is_refused_by_what_writes() {
    let key = "b25seSByZWFkcw==";
    let config =
        cosmos_emulator::Config { read_only_key: Some(key.to_owned()), ..cosmos_emulator::Config::default() };
    let emulator = cosmos_emulator::Emulator::start(config).unwrap();
    let stage = Stage::open(&emulator, "errors-read-only");
    let letter = serde_json::json!({"id": "dead:intent:1:0", "instanceId": "a", "type": "dead_letter",
        "targetInstanceId": "b", "document": {"id": "m"}, "reason": "too large", "diedAt": 1});
    stage.put("a", &letter);
    stage.run(&["dead-letters", "list", "--key", key]).with_code(0);
    let refused = stage.run(&["dead-letters", "drop", "--all", "--key", key]).with_code(7);
    assert!(refused.stderr.contains("does not accept the key"), "{refused:?}");
    stage.run(&["start", "order-1", "--name", "echo", "--key", key]).with_code(7);
}
