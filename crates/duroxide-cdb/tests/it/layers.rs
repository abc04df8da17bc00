//! The modules of the provider use only what ARCHITECTURE.md draws below them.
//!
//! The drawing is the block after `<!-- layers of duroxide-cdb -->`: one layer a line, the highest first. A module may name
//! modules of lower lines, and none of its own line or above. With that there is no cycle.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The line of each module, counted from the top.
fn drawn(page: &str) -> BTreeMap<String, usize> {
    let block =
        page.split("<!-- layers of duroxide-cdb -->").nth(1).expect("ARCHITECTURE.md draws the layers");
    let block = block.split("```").nth(1).expect("the layers are in a block of code");
    let lines = block.lines().filter(|line| !line.trim().is_empty()).enumerate();
    let mut layers = BTreeMap::new();
    for (line, text) in lines {
        for module in text.split_whitespace() {
            assert!(layers.insert(module.to_owned(), line).is_none(), "{module} is drawn twice");
        }
    }
    layers
}

/// The modules of this crate that a source text names, outside comments and its tests.
fn named(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut modules = Vec::new();
    for rest in code.split("crate::").skip(1) {
        // `crate::{a, b::c}` names several.
        let several = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for path in several.map_or_else(|| vec![rest], |inner| inner.split(',').collect()) {
            let name = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            let module = path.trim().split(name).next().unwrap_or_default();
            if module.chars().next().is_some_and(|first| first.is_ascii_lowercase()) {
                modules.push(module.to_owned());
            }
        }
    }
    modules
}

/// What is not as drawn, in sentences.
fn violations(layers: &BTreeMap<String, usize>, files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in files {
        let module = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(own) = layers.get(module) else {
            found.push(format!("{module} ({file}) is not drawn"));
            continue;
        };
        for named in named(text).iter().filter(|named| *named != module) {
            match layers.get(named) {
                Some(line) if line > own => {}
                Some(_) => found.push(format!("{file} uses {named}, which is not below {module}")),
                None => found.push(format!("{file} uses {named}, which is not drawn")),
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn sources(folder: &Path, root: &Path, files: &mut Vec<(String, String)>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        // `lib.rs` names every module, and these are tests in files of their own.
        let is_left_out = name == "lib.rs" || name.ends_with("_tests.rs") || name.ends_with("model_page.rs");
        if path.is_dir() {
            sources(&path, root, files);
        } else if name.ends_with(".rs") && !is_left_out {
            files.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn modules_use_only_what_is_drawn_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../ARCHITECTURE.md")).unwrap();
    let layers = drawn(&page);
    let mut files = Vec::new();
    sources(&root.join("src"), &root.join("src"), &mut files);
    assert!(files.len() > 50, "the sources were not found");
    let found = violations(&layers, &files);
    assert!(found.is_empty(), "not as ARCHITECTURE.md draws it:\n{}", found.join("\n"));
    let is_there = |module: &String| {
        files.iter().any(|(file, _)| file.trim_end_matches(".rs").split('/').next() == Some(module.as_str()))
    };
    let gone: Vec<&String> = layers.keys().filter(|module| !is_there(module)).collect();
    assert!(gone.is_empty(), "drawn, but not there: {gone:?}");
}

#[test]
fn a_cycle_that_is_planted_is_found() {
    let layers = drawn("<!-- layers of duroxide-cdb -->\n```\nprovider\nwork  queue\nstore\n```\n");
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let clean = [
        file("provider.rs", "use crate::{queue, work::ack};"),
        file("work/ack.rs", "use crate::store::{Call, Op};\n// use crate::provider is only said\n"),
        file(
            "queue.rs",
            "use crate::store;\nuse crate::queue::put;\n#[cfg(test)]\nmod tests { use crate::work; }",
        ),
        file("store.rs", "use crate::Public;"),
    ];
    assert_eq!(violations(&layers, &clean), [""; 0]);
    for (planted, expected) in [
        (file("store.rs", "use crate::work::lock;"), "store.rs uses work, which is not below store"),
        (file("queue.rs", "use crate::{store, work};"), "queue.rs uses work, which is not below queue"),
        (
            file("work/ack.rs", "let x = crate::provider::y();"),
            "work/ack.rs uses provider, which is not below work",
        ),
        (file("misc.rs", ""), "misc (misc.rs) is not drawn"),
        (file("work/ack.rs", "use crate::misc;"), "work/ack.rs uses misc, which is not drawn"),
    ] {
        assert_eq!(violations(&layers, std::slice::from_ref(&planted)), [expected]);
    }
}
