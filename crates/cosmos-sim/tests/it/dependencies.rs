//! What others wrote and we build with: from which place, under which license.

use std::process::Command;

use serde_json::Value;

/// Licenses that ask for no more than their text and a name to be kept (MPL: and for changes of its own files).
const ALLOWED: [&str; 11] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "BSL-1.0",
    "CC0-1.0",
    "Unicode-3.0",
    "MPL-2.0+",
];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Crates that need a library of the system, beside the TLS that was chosen.
const BANNED: [&str; 2] = ["openssl-sys", "native-tls"];

/// Whether an expression can be met with what is allowed. `AND` binds less than `OR` in how crates write it: each part that
/// is joined by `AND` needs one allowed alternative.
fn is_allowed(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    plain.split(" AND ").all(|part| {
        part.split(" OR ").map(str::trim).any(|one| {
            let license = one.split(" WITH ").next().unwrap_or_default().trim();
            ALLOWED.contains(&license)
        })
    })
}

#[test]
fn licenses_are_read_as_crates_write_them() {
    for (expression, expected) in [
        ("MIT OR Apache-2.0", true),
        ("Apache-2.0 / MIT", true),
        ("Apache-2.0 OR GPL-2.0-only", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("GPL-3.0-only", false),
        ("MIT AND AGPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression), expected, "{expression}");
    }
}

#[test]
fn every_dependency_is_from_crates_io_and_under_a_license_that_is_allowed() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
    let mut problems = Vec::new();
    let packages = metadata["packages"].as_array().expect("packages");
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let license = package["license"].as_str().unwrap_or_default();
        if package["source"] != CRATES_IO {
            problems.push(format!("{name} is from {}", package["source"]));
        }
        if !is_allowed(license) {
            problems.push(format!("{name} is under {license:?}"));
        }
        if BANNED.contains(&name) {
            problems.push(format!("{name} is banned"));
        }
    }
    assert!(packages.len() > 100 && problems.is_empty(), "{problems:#?}");
}
