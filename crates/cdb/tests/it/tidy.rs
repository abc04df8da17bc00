//! Rules about the source that no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file of the command.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Names and messages of others are cleaned by the one module that writes. Text written elsewhere would not be.
#[test]
fn only_one_module_writes_to_standard_output_and_standard_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let writer = root.join("output/writer.rs");
    let ways =
        ["stdout(", "stderr(", "print!", "println!", "Stderr", "/dev/stdout", "/dev/stderr", "/dev/tty"];
    let files = sources(&root);
    assert!(files.contains(&writer) && files.len() > 40, "{files:?}");
    for file in files.into_iter().filter(|file| *file != writer) {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            // What another program writes is thrown away where that is started.
            let line = line.replace("stdout(Stdio::null())", "").replace("stderr(Stdio::null())", "");
            let way = ways.iter().find(|way| line.contains(**way));
            assert_eq!(way, None, "{}:{}: write through crate::output", file.display(), number + 1);
        }
    }
}
