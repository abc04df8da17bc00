"""Runs the Rust SDK's own emulator tests against the emulator.

The published crates carry their tests. The versions pinned by ../rust are
found with cargo, copied into .work/ and built there; nothing of them is copied
into this repository. One line of each copy is changed: its build script also
sets the cfg `test_category`, which un-ignores the tests without rebuilding
every dependency under other compiler flags.

Results go to .work/rust-sdk/results.json and, as a table, to standard output.
The tests that fail must be those that COMPAT.md lists.
Arguments, if any, are passed on to the test binaries (name filters, flags).

With `--peer` as the first argument the same binaries run twice: against the
in-memory emulator that ships inside the driver crate, put behind a socket by
../rust/peer, and against ours. Then follow the tests that drive that emulator
through its Rust interface: alone, and where they can compare it with an
account, with ours as that account. Results go to .work/rust-sdk/peer.json.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402

WORK = harness.WORK / "rust-sdk"
RUST = HERE.parent / "rust"
# The kinds of tests that are switched on: those for emulators, and those that split partitions.
CATEGORIES = ["emulator", "split"]
# Those for Gateway 2.0 go to an account of two regions that has such endpoints, and need a copy of their own: switched on
# together with the others they would take those along.
GATEWAY2_CATEGORIES = ["gateway_v2", "gateway_v2_multi_region"]
GATEWAY2_ACCOUNT = ["--gateway2", "--region", "East US", "--region", "West US"]
# Where COMPAT.md tells of these tests.
HEADING = "The Rust SDK's own tests"
# A target that runs longer is stopped, and what did not end has not passed.
TARGET_SECONDS_MAX = 600
BUILD_SECONDS_MAX = 3600


@dataclass(frozen=True)
class Target:
    """One test binary of one crate."""

    crate: str
    name: str
    features: str
    is_gateway2: bool = False

    def label(self):
        return f"{self.crate} --test {self.name}" + (" (Gateway 2.0)" if self.is_gateway2 else "")

    def account(self):
        return GATEWAY2_ACCOUNT if self.is_gateway2 else []


TARGETS = [
    Target("azure_data_cosmos", "emulator", "key_auth,control_plane,fault_injection,unstable_patch"),
    Target("azure_data_cosmos", "split", "key_auth,control_plane,fault_injection,unstable_patch"),
    Target("azure_data_cosmos_driver", "emulator", "fault_injection,unstable_patch"),
    Target("azure_data_cosmos_driver", "gateway_query_plan_comparison", "__internal_testing"),
    Target("azure_data_cosmos", "gateway_v2", "key_auth,control_plane,fault_injection,unstable_patch", True),
    Target("azure_data_cosmos_driver", "emulator", "fault_injection,unstable_patch", True),
]

# They make their own in-memory emulator. Those of the SDK compare it with an account if they are given one.
IN_MEMORY_TARGETS = [
    Target("azure_data_cosmos", "in_memory_emulator", "__internal_in_memory_emulator,fault_injection,unstable_patch"),
    Target("azure_data_cosmos_driver", "in_memory_emulator", "__internal_in_memory_emulator,fault_injection,unstable_patch"),
]


def crate_folder(name, is_gateway2):
    """A writable copy of a pinned crate whose tests of one kind are switched on."""
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked"], cwd=RUST, check=True, stdout=subprocess.PIPE
    ).stdout
    crate = next(package for package in json.loads(metadata)["packages"] if package["name"] == name)
    copy = WORK / (f"{name}-{crate['version']}" + ("-gateway2" if is_gateway2 else ""))
    if not copy.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        shutil.copytree(pathlib.Path(crate["manifest_path"]).parent, copy)
        script = copy / "build.rs"
        categories = "".join(
            f'\n    println!("cargo:rustc-cfg=test_category=\\"{category}\\"");'
            for category in (GATEWAY2_CATEGORIES if is_gateway2 else CATEGORIES)
        )
        switch = "fn main() {" + categories
        script.write_text(script.read_text().replace("fn main() {", switch, 1))
        manifest = copy / "Cargo.toml"
        manifest.write_text(manifest.read_text() + "\n[workspace]\n")
    return copy


def cargo(target, *arguments, seconds_max=TARGET_SECONDS_MAX, **settings):
    command = ["cargo", "test", "--quiet", "--test", target.name, "--features", target.features, *arguments]
    env = {**os.environ, "RUST_BACKTRACE": "0", **settings}
    env.setdefault("CARGO_TARGET_DIR", str(RUST / "target"))
    folder = crate_folder(target.crate, target.is_gateway2)
    log = WORK / (f"{target.crate}-{target.name}" + ("-gateway2.log" if target.is_gateway2 else ".log"))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds_max)
        except subprocess.TimeoutExpired:
            print(f"{target.label()}: stopped after {seconds_max} s", flush=True)
            # The tests run in a child of cargo's.
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
    return status, log


def build(target):
    status, log = cargo(target, "--no-run", seconds_max=BUILD_SECONDS_MAX)
    if status:
        raise SystemExit(f"conformance: {target.label()} does not build, see {log}")


def run_on(target, emulator, extra):
    """Runs one target on a running emulator, or on none; gives back each test's verdict and the failures' texts."""
    if emulator:
        account = {
            "AZURE_COSMOS_CONNECTION_STRING": f"AccountEndpoint={emulator.endpoint};AccountKey={harness.KEY};",
            "AZURE_COSMOS_TEST_MODE": "required",
            "ACCOUNT_HOST": "127.0.0.1",
            "AZURE_COSMOS_GW_V2_ENDPOINT": emulator.endpoint,
            "AZURE_COSMOS_GW_V2_KEY": harness.KEY,
            "AZURE_COSMOS_GW_V2_MULTI_REGION_ENDPOINT": emulator.endpoint,
            "AZURE_COSMOS_GW_V2_MULTI_REGION_KEY": harness.KEY,
        }
    else:
        account = {"AZURE_COSMOS_CONNECTION_STRING": "", "AZURE_COSMOS_TEST_MODE": "skipped"}
    _, log = cargo(target, "--no-fail-fast", "--", "--format", "pretty", *extra, **account)
    text = log.read_text(errors="replace")
    verdicts = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", text, re.MULTILINE))
    return verdicts, failure_texts(text)


def run_target(target, extra):
    """Builds and runs one target on a fresh emulator."""
    build(target)
    with harness.Emulator(f"rust-sdk-{target.crate}-{target.name}", *target.account()) as emulator:
        return run_on(target, emulator, extra)


def failure_texts(text):
    """The end of each failed test's output: where it says what went wrong."""
    texts = {}
    for name, body in re.findall(r"^---- (\S+) stdout ----\n(.*?)(?=^---- |^failures:$)", text, re.MULTILINE | re.DOTALL):
        lines = [line for line in body.splitlines() if line.strip() and not line.startswith("note: ")]
        texts[name] = " ".join(" ".join(lines[-6:]).split())[:500]
    return texts


def count(verdicts):
    """Counts per module of a target, and of all of it."""
    counts = defaultdict(lambda: {"passed": 0, "failed": 0, "ignored": 0})
    kinds = {"ok": "passed", "FAILED": "failed", "ignored": "ignored"}
    for name, verdict in verdicts.items():
        parts = name.split("::")
        counts[parts[-2] if len(parts) > 1 else "(top)"][kinds[verdict]] += 1
        counts["all"][kinds[verdict]] += 1
    return counts


def report(target, verdicts, texts):
    """Prints one target's table; gives back what is kept of it."""
    counts = count(verdicts)
    print(f"\n{target.label()}\n\n| module | passed | failed | ignored |\n|---|---|---|---|")
    for module in sorted(counts, key=lambda name: (name == "all", name)):
        row = counts[module]
        print(f"| {module} | {row['passed']} | {row['failed']} | {row['ignored']} |")
    failures = [{"test": name, "error": texts.get(name, "")} for name, word in verdicts.items() if word == "FAILED"]
    return {"target": target.label(), "counts": counts, "failures": failures}


def peer_program():
    """The driver's in-memory emulator behind a socket, built."""
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", RUST / "target"))
    subprocess.run(["cargo", "build", "--quiet", "--locked", "-p", "peer"], cwd=RUST, check=True)
    return str(folder / "debug" / "peer")


def passed(verdicts):
    return {name for name, verdict in verdicts.items() if verdict == "ok"}


def compare(label, theirs, ours):
    """One row of the comparison; gives back what is kept of it."""
    (their_verdicts, _), (our_verdicts, texts) = theirs, ours
    them, us = passed(their_verdicts), passed(our_verdicts)
    ran = {name for verdicts in (their_verdicts, our_verdicts) for name, word in verdicts.items() if word != "ignored"}
    print(f"| `{label}` | {len(ran)} | {len(them)} | {len(us)} | {len(us - them)} | {len(them - us)} |", flush=True)
    return {
        "target": label, "tests": len(ran), "theirs": len(them), "ours": len(us),
        "only_ours": sorted(us - them), "only_theirs": sorted(them - us),
        "why": {name: texts.get(name, "") for name in sorted(them - us)},
    }


def compare_with_peer(extra):
    """The same tests against the in-memory emulator of the driver and against ours. Ours must pass as many."""
    program = peer_program()
    kept = []
    print("| target | tests | in-memory emulator | ours | only ours | only theirs |\n|---|---|---|---|---|---|", flush=True)
    # The in-memory emulator does not split with the throughput: those tests would wait for ever.
    for target in [target for target in TARGETS if target.name != "split" and not target.is_gateway2]:
        build(target)
        name = f"{target.crate}-{target.name}"
        with harness.Emulator(f"rust-peer-{name}", program=program) as emulator:
            theirs = run_on(target, emulator, extra)
        with harness.Emulator(f"rust-peer-ours-{name}") as emulator:
            ours = run_on(target, emulator, extra)
        kept.append(compare(target.label(), theirs, ours))
    for target in IN_MEMORY_TARGETS:
        build(target)
        alone = run_on(target, None, extra)
        beside = alone
        if target.crate == "azure_data_cosmos":
            with harness.Emulator(f"rust-peer-beside-{target.crate}") as emulator:
                beside = run_on(target, emulator, extra)
        kept.append(compare(target.label(), alone, beside))
    (WORK / "peer.json").write_text(json.dumps(kept, indent=2))
    for row in kept:
        for name in row["only_theirs"]:
            print(f"only theirs: {row['target']} {name}: {row['why'][name]}")
    on_a_server = kept[: -len(IN_MEMORY_TARGETS)]
    return 0 if all(row["ours"] >= row["theirs"] for row in on_a_server) else 1


def main(arguments):
    if arguments[:1] == ["--peer"]:
        return compare_with_peer(arguments[1:])
    return run_targets(arguments)


def run_targets(extra):
    kept, status, lines = [], 0, []
    for target in TARGETS:
        verdicts, texts = run_target(target, extra)
        kept.append(report(target, verdicts, texts))
        sums = kept[-1]["counts"]["all"]
        ran = sums["passed"] + sums["failed"]
        rate = sums["passed"] / ran if ran else 0
        lines.append(f"{target.label()}: {sums['passed']} passed, {sums['failed']} failed ({rate:.1%} of those that ran)")
        full = {name: f"{target.name}::{name}" for name in verdicts}
        names = {full[name] for name, word in verdicts.items() if word != "ignored"}
        failed = {full[name] for name, word in verdicts.items() if word == "FAILED"}
        if not ran or harness.surprises(target.label(), harness.known_failures(HEADING), names, failed):
            status = 1
    (WORK / "results.json").write_text(json.dumps(kept, indent=2))
    print("\n" + "\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
