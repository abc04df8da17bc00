"""Runs the Python SDK's own tests against the emulator.

They come from the source distribution of the pinned azure-cosmos, downloaded
with pip into .work/ and never copied into this repository. Nothing of them is
changed: the endpoint and key go in as the environment variables they read, and
their unpublished helper package is stood in for by shim/. Their sleeps stay,
and every answer is delayed by a few milliseconds (see LATENCY_MS).

Each file runs in its own pytest process against its own fresh emulator, so one
file's leftovers cannot fail another. Results go to .work/python-sdk/results.json
and, as a table, to standard output. The tests that fail must be those that
COMPAT.md lists.

Arguments, if any, are the file names to run (test_crud.py ...), and after `--`
more arguments for pytest.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402

WORK = harness.WORK / "python-sdk"
# Files that ask something of the account which no emulator has; everything else that talks to a server is run.
ELSEWHERE = {
    "aad": "signs in to Entra ID",
    "aad_inference_service_lazy_init": "signs in to Entra ID",
    "availability_strategy": "needs a live account of several regions",
    "effective_preferred_locations": "needs a live account of several regions",
    "excluded_locations": "needs a live account of several regions",
    "global_secondary_index_live": "needs an account with global secondary indexes",
    "per_partition_automatic_failover": "needs a live account of several regions",
    "per_partition_circuit_breaker_mm": "needs a live account of several write regions",
    "per_partition_circuit_breaker_sm_mrr": "needs a live account of several regions",
    "pk_range_child_update_live": "needs a live account",
    "semantic_reranker": "asks another service",
    "service_request_retry_policy": "needs a live account of several regions",
}
# What a file assumes of its account.
ACCOUNTS = {"change_feed_all_versions": ["--continuous-backup"]}
# What a file says that goes to https://localhost:8081 whatever the account: it gets the preset for that.
FIXED_SIGNS = ("local_host", "_fault_injection_transport")
FIXED_PORT = 8081
# What a file that talks to a server speaks of.
SERVER_SIGNS = ("onfig.host", "onfigs.host", "CONFIG.host", "create_data_client")
FILE_SECONDS_MAX = 600
# Where COMPAT.md tells of these tests.
HEADING = "The Python SDK's own tests"
# Some of these tests give the client a read timeout of microseconds and expect
# it to strike. The client's timer has a grain of a millisecond and the emulator
# answers sooner, so its own fault rules make it as slow as a near network.
LATENCY_MS = 10


def tests_folder():
    """The tests folder of the pinned source distribution, downloaded on first use."""
    pin = re.search(r"^azure-cosmos==(\S+)$", (HERE.parent / "requirements.txt").read_text(), re.MULTILINE).group(1)
    folder = WORK / f"azure_cosmos-{pin}" / "tests"
    if not folder.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-binary", "azure-cosmos", "--no-build-isolation", "--dest", WORK, f"azure-cosmos=={pin}"],
            check=True,
        )
        with tarfile.open(WORK / f"azure_cosmos-{pin}.tar.gz") as archive:
            archive.extractall(WORK, filter="data")
    return folder


def files(folder):
    """Every file that talks to a server, but for those that need another kind of account."""
    names = []
    for path in sorted(folder.glob("test_*.py")):
        area = path.stem.removeprefix("test_").removesuffix("_async")
        if area not in ("config", *ELSEWHERE) and any(sign in path.read_text() for sign in SERVER_SIGNS):
            names.append(path.name)
    return names


def first_line(case):
    """The first line of a failed case that says what went wrong."""
    node = case.find("failure") if case.find("failure") is not None else case.find("error")
    text = node.get("message") or node.text or ""
    return " ".join(text.split())[:400]


def run_file(folder, name, extra):
    report = WORK / f"{name}.xml"
    report.unlink(missing_ok=True)
    area = name.removeprefix("test_").removesuffix(".py").removesuffix("_async")
    is_fixed = any(sign in (folder / name).read_text() for sign in FIXED_SIGNS)
    preset = ["--like-docker", "--tls", "--export-certificate", str(WORK / "certificate.pem")] if is_fixed else []
    arguments = [*preset, *ACCOUNTS.get(area, [])]
    with harness.Emulator(f"python-sdk-{name}", *arguments, port=FIXED_PORT if is_fixed else 0) as emulator:
        emulator.delay_answers(LATENCY_MS)
        env = {**os.environ, "ACCOUNT_KEY": harness.KEY, "PYTHONPATH": str(HERE / "shim")}
        # Without it they go to https://localhost:8081.
        if not is_fixed:
            env["ACCOUNT_HOST"] = emulator.endpoint
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native", f"--junitxml={report}",
            "-o", "asyncio_mode=auto", *extra, name,
        ]
        started = time.monotonic()
        with open(WORK / f"{name}.log", "wb") as log:
            try:
                subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, timeout=FILE_SECONDS_MAX, check=False)
            except subprocess.TimeoutExpired:
                print(f"{name}: stopped after {FILE_SECONDS_MAX} s", flush=True)
        return read_report(report, name, time.monotonic() - started)


def read_report(report, name, seconds):
    row = {"file": name, "passed": 0, "failed": 0, "skipped": 0, "seconds": round(seconds, 1), "ran": [], "failures": []}
    if not report.exists():
        row["failed"] = 1
        row["failures"].append({"test": f"{name}::all", "error": f"pytest wrote no report, see {name}.log"})
        return row
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        test = f"{name}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            row["failed"] += 1
            row["ran"].append(test)
            row["failures"].append({"test": test, "error": first_line(case)})
        elif case.find("skipped") is not None:
            row["skipped"] += 1
        else:
            row["passed"] += 1
            row["ran"].append(test)
    return row


def table(rows):
    lines = ["| file | passed | failed | skipped |", "|---|---|---|---|"]
    for row in [*rows, total(rows)]:
        lines.append(f"| {row['file']} | {row['passed']} | {row['failed']} | {row['skipped']} |")
    return "\n".join(lines)


def total(rows):
    return {"file": "all", **{name: sum(row[name] for row in rows) for name in ("passed", "failed", "skipped")}}


def main(arguments):
    split = arguments.index("--") if "--" in arguments else len(arguments)
    folder = tests_folder()
    chosen = arguments[:split] or files(folder)
    rows = []
    for name in chosen:
        row = run_file(folder, name, arguments[split + 1:])
        print(f"{name}: {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped, {row['seconds']} s", flush=True)
        rows.append(row)
    (WORK / "results.json").write_text(json.dumps(rows, indent=2))
    print(table(rows))
    sums = total(rows)
    ran = sums["passed"] + sums["failed"]
    rate = sums["passed"] / ran if ran else 0
    names = {test for row in rows for test in row["ran"]}
    failed = {failure["test"] for row in rows for failure in row["failures"]}
    differences = harness.surprises("python-sdk", harness.known_failures(HEADING), names, failed)
    print(f"python-sdk: {sums['passed']} passed, {sums['failed']} failed ({rate:.1%} of those that ran)")
    return 0 if ran and not differences else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
