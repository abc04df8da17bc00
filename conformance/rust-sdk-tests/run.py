"""Runs the Rust SDK's own `--test emulator` target against the emulator.

The published azure_data_cosmos crate carries its tests. The version pinned by
../rust is found with cargo, copied into .work/ and built there; nothing of it
is copied into this repository. One line of the copy is changed: its build
script also sets the cfg `test_category="emulator"`, which un-ignores the tests
without rebuilding every dependency under other compiler flags.

Results go to .work/rust-sdk/results.json and, as a table, to standard output.
Arguments, if any, are passed on to the test binary (name filters, flags).
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402

WORK = harness.WORK / "rust-sdk"
RUST = HERE.parent / "rust"
FEATURES = "key_auth,control_plane,fault_injection,unstable_patch"
# The share of tests that must pass.
PASS_RATE_MIN = 0.9


def crate_folder():
    """A writable copy of the pinned crate whose emulator tests are switched on."""
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked"], cwd=RUST, check=True, stdout=subprocess.PIPE
    ).stdout
    crate = next(package for package in json.loads(metadata)["packages"] if package["name"] == "azure_data_cosmos")
    copy = WORK / f"azure_data_cosmos-{crate['version']}"
    if not copy.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        shutil.copytree(pathlib.Path(crate["manifest_path"]).parent, copy)
        script = copy / "build.rs"
        switch = 'fn main() {\n    println!("cargo:rustc-cfg=test_category=\\"emulator\\"");'
        script.write_text(script.read_text().replace("fn main() {", switch, 1))
        manifest = copy / "Cargo.toml"
        manifest.write_text(manifest.read_text() + "\n[workspace]\n")
    return copy


def run_tests(folder, endpoint, extra):
    """Runs the target; gives back each test's verdict and the text of the failures."""
    env = {
        **os.environ,
        "AZURE_COSMOS_CONNECTION_STRING": f"AccountEndpoint={endpoint};AccountKey={harness.KEY};",
        "AZURE_COSMOS_TEST_MODE": "required",
        "ACCOUNT_HOST": "127.0.0.1",
    }
    env.setdefault("CARGO_TARGET_DIR", str(RUST / "target"))
    command = ["cargo", "test", "--quiet", "--no-fail-fast", "--test", "emulator", "--features", FEATURES, "--"]
    command += ["--format", "pretty", *extra]
    with open(WORK / "emulator.log", "wb") as log:
        subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, check=False)
    text = (WORK / "emulator.log").read_text(errors="replace")
    verdicts = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", text, re.MULTILINE))
    return verdicts, failure_texts(text)


def failure_texts(text):
    """The last line that says something in each failed test's output."""
    texts = {}
    for name, body in re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", text, re.MULTILINE | re.DOTALL):
        lines = [line for line in body.splitlines() if line.strip() and not line.startswith("note: ")]
        texts[name] = " ".join(" ".join(lines[-6:]).split())[:500]
    return texts


def rows(verdicts):
    """Counts per module of the target."""
    counts = defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": 0})
    kinds = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
    for name, verdict in verdicts.items():
        module = name.split("::")[1]
        counts[module][kinds[verdict]] += 1
        counts["all"][kinds[verdict]] += 1
    return counts


def main(extra):
    folder = crate_folder()
    with harness.Emulator("rust-sdk") as emulator:
        verdicts, texts = run_tests(folder, emulator.endpoint, extra)
    counts = rows(verdicts)
    failures = [{"test": name, "error": texts.get(name, "")} for name, v in verdicts.items() if v == "FAILED"]
    (WORK / "results.json").write_text(json.dumps({"counts": counts, "failures": failures}, indent=2))
    print("| module | passed | failed | ignored |\n|---|---|---|---|")
    for module in sorted(counts, key=lambda name: (name == "all", name)):
        row = counts[module]
        print(f"| {module} | {row['passed']} | {row['failed']} | {row['skipped']} |")
    sums = counts["all"]
    ran = sums["passed"] + sums["failed"]
    rate = sums["passed"] / ran if ran else 0
    print(f"rust-sdk: {sums['passed']} passed, {sums['failed']} failed ({rate:.1%} of those that ran)")
    return 0 if rate >= PASS_RATE_MIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
