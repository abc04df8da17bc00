//! What models and mutants say about the code is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cosmos_sim::model::commit::{self, Commit};
use cosmos_sim::model::delivery::Delivery;
use cosmos_sim::model::ownership::{self, Ownership};
use cosmos_sim::model::{Model, actions};
use cosmos_sim::mutants::MUTANTS;

/// What happens to processes and not in them.
const OUTSIDE: [&str; 9] = [
    "crash",
    "the lock ends",
    "the runtime fetches again",
    "reaches the server again",
    "is heard again",
    "cannot count on its slots any more",
    "was silent for long",
    "the activity is old",
    " is ",
];

struct Source {
    path: PathBuf,
    text: String,
}

fn sources(crates: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut folders: Vec<PathBuf> = crates.iter().map(|name| root.join(name).join("src")).collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                sources.push(Source { path, text });
            }
        }
    }
    sources
}

/// Whether a function is where its path says: in a module of that name, or beside an `impl` of that type.
fn is_at(source: &Source, path: &str) -> bool {
    let (place, function) = path.rsplit_once("::").unwrap_or(("", path));
    let is_defined = |line: &str| {
        let after = line.split_once("fn ").map(|(_, after)| after);
        after.and_then(|after| after.strip_prefix(function)).is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let owner = place.rsplit("::").next().unwrap_or(place);
    let is_type = owner.starts_with(char::is_uppercase);
    let is_place = if is_type {
        source.text.lines().any(|line| line.starts_with("impl") && line.contains(owner))
    } else {
        let module = source.path.with_extension("");
        module.iter().any(|part| part.to_str() == Some(owner))
    };
    is_place && source.text.lines().any(is_defined)
}

/// The paths of functions in a sentence.
fn paths(sentence: &str) -> Vec<&str> {
    let words = sentence.split([' ', ',']).map(|word| word.trim_end_matches(':'));
    words.filter(|word| word.contains("::")).collect()
}

#[test]
fn every_action_of_a_model_names_a_function_that_is_there() {
    const STATES_MAX: usize = 1_000_000;
    let sources = sources(&["duroxide-cdb"]);
    let commit = Commit { messages: 1, crashes: 1, guards: commit::Guards::ALL };
    let delivery = Delivery { crashes: 3, has_tombstone: true, removes_after: true };
    let ownership = Ownership { troubles: 1, guards: ownership::Guards::ALL };
    let mut named = BTreeSet::new();
    for actions in [of(&commit, STATES_MAX), of(&delivery, STATES_MAX), of(&ownership, STATES_MAX)] {
        for action in &actions {
            let paths = paths(action);
            let is_outside = OUTSIDE.iter().any(|outside| action.contains(outside));
            assert!(!paths.is_empty() || is_outside, "{action:?} names no function");
            named.extend(paths.into_iter().map(ToOwned::to_owned));
        }
    }
    assert!(named.len() > 15, "{named:?}");
    for path in &named {
        assert!(sources.iter().any(|source| is_at(source, path)), "there is no {path}");
    }
}

fn of<M: Model>(model: &M, states_max: usize) -> BTreeSet<String> {
    actions(model, states_max)
}

#[test]
fn every_mutant_is_in_the_function_that_its_row_names() {
    let sources = sources(&["duroxide-cdb", "cosmos-driver", "cosmos-emulator"]);
    for mutant in MUTANTS {
        let mark = format!("mutant!({})", mutant.number);
        let marked: Vec<&Source> = sources.iter().filter(|source| source.text.contains(&mark)).collect();
        assert!(!marked.is_empty(), "mutant {} is nowhere", mutant.number);
        let is_there = marked.iter().any(|source| is_in(source, &mark, mutant.place));
        let files: Vec<_> = marked.iter().map(|source| &source.path).collect();
        assert!(is_there, "mutant {} is not in {}, but in {files:?}", mutant.number, mutant.place);
    }
}

/// Whether the last function that begins before the mark is the one of the path.
fn is_in(source: &Source, mark: &str, path: &str) -> bool {
    let function = path.rsplit("::").next().unwrap_or(path);
    source.text.match_indices(mark).any(|(at, _)| {
        let before = &source.text[..at];
        let begun = before.lines().rev().find_map(|line| {
            let line = line.trim_start();
            let is_comment = line.starts_with("//");
            line.split_once("fn ").filter(|_| !is_comment).map(|(_, after)| after)
        });
        begun.and_then(|after| after.strip_prefix(function)).is_some_and(|rest| rest.starts_with(['(', '<']))
    })
}
