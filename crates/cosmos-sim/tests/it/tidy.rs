//! Rules about the source of all crates that no compiler knows. `tools/shape` prints the figures behind them.

use std::fs;
use std::path::{Path, PathBuf};

/// What a folder of a crate does not know: it imports nothing from these. ARCHITECTURE.md draws the layers; the provider has a
/// test of its own.
const UNKNOWN_TO: [(&str, &[&str]); 9] = [
    ("cosmos-emulator/src/storage", &["engine", "sql", "command", "http", "server", "regions", "management"]),
    ("cosmos-emulator/src/engine", &["command", "http", "server", "regions", "management"]),
    ("cosmos-emulator/src/sql", &["engine", "storage", "command", "http", "server", "regions", "management"]),
    ("cosmos-emulator/src/command", &["server", "management"]),
    ("cosmos-emulator/src/server", &["http", "command", "engine", "sql", "storage", "management"]),
    ("cosmos-driver/src/transport", &["attempt", "operation", "metadata", "routing", "query", "driver"]),
    ("cosmos-driver/src/routing", &["attempt", "operation", "metadata", "query", "driver"]),
    ("cosmos-driver/src/attempt", &["operation", "metadata", "query"]),
    ("cdb/src/output", &["commands", "dashboard", "fsck", "context"]),
];

/// Lines of code of one file, without comments, blank lines and tests at its end.
const FILE_LINES_MAX: usize = 600;

/// Names that say nothing about what is in a file.
const SAYING_NOTHING: [&str; 7] = ["util", "utils", "helper", "helpers", "misc", "manager", "impl"];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates").to_owned()
}

fn sources(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(sources(&path));
        }
    }
    found
}

/// The lines of a file before its tests, with their numbers. Files of tests have none.
fn code(file: &Path) -> Vec<(usize, String)> {
    let is_of_tests = file.components().any(|part| part.as_os_str() == "tests")
        || file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"));
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.to_owned()));
    lines
        .filter(|(_, line)| !is_of_tests && !line.trim().is_empty() && !line.trim().starts_with("//"))
        .collect()
}

/// The modules of its own crate that a line names.
fn modules_named(line: &str) -> Vec<String> {
    let rest = line.split("crate::").skip(1);
    rest.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

#[test]
fn layers_know_nothing_of_those_above_them() {
    let mut breaches = Vec::new();
    for (place, unknown) in UNKNOWN_TO {
        let files = sources(&crates().join(place));
        assert!(!files.is_empty(), "{place} is gone: change the table");
        for file in files {
            for (number, line) in code(&file) {
                let known =
                    modules_named(&line).into_iter().find(|module| unknown.contains(&module.as_str()));
                breaches.extend(known.map(|module| format!("{}:{number} knows {module}", file.display())));
            }
        }
    }
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[test]
fn no_file_is_two() {
    let mut files = Vec::new();
    for entry in fs::read_dir(crates()).unwrap() {
        files.extend(sources(&entry.unwrap().path().join("src")));
    }
    assert!(files.len() > 300, "only {} files", files.len());
    let long: Vec<String> = files
        .iter()
        .map(|file| (code(file).len(), file))
        .filter(|(lines, _)| *lines > FILE_LINES_MAX)
        .map(|(lines, file)| format!("{}: {lines} lines", file.display()))
        .collect();
    assert!(long.is_empty(), "{long:#?}");
    let nameless: Vec<_> = files
        .iter()
        .filter(|file| file.file_stem().is_some_and(|stem| SAYING_NOTHING.iter().any(|name| stem == *name)))
        .collect();
    assert!(nameless.is_empty(), "{nameless:#?}");
}

#[test]
fn driver_and_emulator_do_not_know_each_other() {
    for (krate, stranger) in [
        ("cosmos-driver", "cosmos_emulator"),
        ("cosmos-emulator", "cosmos_driver"),
        ("cosmos-wire", "cosmos_driver"),
        ("cosmos-wire", "cosmos_emulator"),
    ] {
        for file in sources(&crates().join(krate).join("src")) {
            for (number, line) in code(&file) {
                assert!(!line.contains(stranger), "{}:{number} names {stranger}", file.display());
            }
        }
    }
}

#[test]
fn every_decision_has_a_number_of_its_own_and_is_named_by_no_number_that_is_not_there() {
    let folder = crates().join("../docs/decisions");
    let mut numbers: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        numbers.push(name.split('-').next().unwrap_or_default().to_owned());
    }
    numbers.sort();
    let twice: Vec<_> = numbers.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
    for page in [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "README.md",
        "docs/operations.md",
        "docs/emulator.md",
        "docs/driver.md",
    ] {
        let text = fs::read_to_string(crates().join("..").join(page)).unwrap();
        for rest in text.split("docs/decisions/").chain(text.split("](decisions/")).skip(1) {
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            assert!(number.is_empty() || numbers.contains(&number), "{page} names decision {number}");
        }
    }
}

#[test]
fn the_page_about_the_storage_format_lists_every_tag_of_a_key() {
    let source = fs::read_to_string(crates().join("cosmos-emulator/src/engine/key.rs")).unwrap();
    let written: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("const ")?.split_once(": u8 = 0x"))
        .filter_map(|(_, rest)| rest.strip_suffix(';'))
        .collect();
    let page = fs::read_to_string(crates().join("../docs/storage-format.md")).unwrap();
    let listed: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.get(..2)).collect();
    let listed: Vec<&str> =
        listed.into_iter().filter(|tag| tag.bytes().all(|byte| byte.is_ascii_hexdigit())).collect();
    assert!(written.len() > 20, "{written:?}");
    assert_eq!(listed, written);
}
