"""Starts emulators, runs the asked-for suites against them, and counts."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
WORK = HERE / ".work"
COMPAT = HERE.parent / "COMPAT.md"
CERTIFICATE = WORK / "secure.pem"
# The key every Cosmos DB emulator is born with; it is public.
KEY = "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw=="

SDK_TESTS = {
    "python-sdk": ("python-sdk-tests", []),
    "rust-sdk": ("rust-sdk-tests", []),
    "rust-peer": ("rust-sdk-tests", ["--peer"]),
}


class Emulator:
    """One emulator process on a free port or a given one, stopped when the block ends. Its data is in memory, or in a new folder.
    `program` is another one with the same first line."""

    def __init__(self, name, *arguments, program=None, on_disk=False, port=0):
        self.name = name
        self.folder = WORK / f"{name}-data" if on_disk else None
        store = ["--data", str(self.folder)] if on_disk else ["--memory"]
        self.command = [program] if program else [os.environ["CDB_BIN"], "emulator", "--port", str(port), *store, *arguments]
        self.endpoint = None
        self.management = None
        self.regions = {}
        self.process = None

    def __enter__(self):
        WORK.mkdir(exist_ok=True)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        log = open(WORK / f"{self.name}.log", "wb")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"conformance: {' '.join(self.command)} ended before it was ready, see {log.name}")
        ready = json.loads(line)
        self.endpoint, self.management = ready["accountEndpoint"], ready["managementEndpoint"]
        self.regions = {region["name"]: region["gatewayEndpoint"] for region in ready["regions"]}
        # Whatever else it prints is drained, so that it never blocks on a full pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        return self

    def manage(self, method, path, body=None):
        """Asks the management API."""
        url = self.management.rstrip("/") + urllib.parse.quote(path)
        data, headers = (None, {}) if body is None else (json.dumps(body).encode(), {"content-type": "application/json"})
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or "null")

    def delay_answers(self, milliseconds):
        """Makes every answer take as long as it would over a network."""
        self.manage("POST", "/faults", {"verdict": {"kind": "delay", "delayMs": milliseconds}})

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def secure_emulator():
    """HTTPS on an address that the Python SDK does not take for an emulator's: there it would not check certificates."""
    names = ["--bind", "127.0.0.2", "--tls-name", "127.0.0.2"]
    return Emulator("secure", "--tls", "--export-certificate", str(CERTIFICATE), "--entra", *names)


@dataclass
class Outcome:
    """What one suite came to."""

    suite: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    # A suite that did not even start is a failure without a failed test.
    broken: str = ""
    failures: list = field(default_factory=list)

    def line(self):
        text = f"{self.suite}: {self.passed} passed, {self.failed} failed"
        if self.skipped:
            text += f", {self.skipped} skipped"
        return f"{text} ({self.broken})" if self.broken else text

    def is_green(self):
        return self.failed == 0 and self.passed > 0 and not self.broken


def environment(single, partitioned, secure):
    return {
        **os.environ,
        "RUST_BACKTRACE": "0",
        "COSMOS_ENDPOINT": single.endpoint,
        "COSMOS_MANAGEMENT": single.management,
        "COSMOS_ENDPOINT_PARTITIONED": partitioned.endpoint,
        "COSMOS_ENDPOINT_TLS": secure.endpoint,
        "COSMOS_CERTIFICATE": str(CERTIFICATE),
        "COSMOS_KEY": KEY,
    }


def count_junit(path, outcome):
    """Adds the counts of a JUnit file that pytest wrote."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            outcome.skipped += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
            outcome.failures.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            outcome.passed += 1


def run_python(env):
    outcome = Outcome("python")
    report = WORK / "python.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "."]
    status = subprocess.run(command, cwd=HERE / "python", env=env, check=False).returncode
    if report.exists():
        count_junit(report, outcome)
    if status and not outcome.failed:
        outcome.broken = f"pytest ended with {status}"
    return outcome


def run_javascript(env):
    outcome = Outcome("javascript")
    report = WORK / "javascript.tap"
    files = sorted(str(file.relative_to(HERE / "javascript")) for file in (HERE / "javascript/test").glob("*.test.mjs"))
    command = [
        "node", "--test", "--test-reporter=spec", "--test-reporter-destination=stdout",
        "--test-reporter=tap", f"--test-reporter-destination={report}", *files,
    ]
    status = subprocess.run(command, cwd=HERE / "javascript", env=env, check=False).returncode
    text = report.read_text() if report.exists() else ""
    for name, label in (("passed", "pass"), ("failed", "fail"), ("skipped", "skipped")):
        found = re.search(rf"^# {label} (\d+)$", text, re.MULTILINE)
        setattr(outcome, name, int(found.group(1)) if found else 0)
    if status and not outcome.failed:
        outcome.broken = f"node ended with {status}"
    return outcome


def run_rust(env):
    outcome = Outcome("rust")
    process = subprocess.Popen(
        # One test at a time: the SDK pools connections per process, and a connection ends with the runtime of the
        # test that opened it, in the middle of another test's request.
        ["cargo", "test", "--quiet", "--locked", "--", "--test-threads=1"],
        cwd=HERE / "rust",
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        print(line, end="", flush=True)
        found = re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line)
        if found:
            passed, failed, ignored = map(int, found.groups())
            outcome.passed += passed
            outcome.failed += failed
            outcome.skipped += ignored
    if process.wait() and not outcome.failed:
        outcome.broken = f"cargo ended with {process.returncode}"
    return outcome


def known_failures(heading):
    """The tests that COMPAT.md lists under a heading as failing."""
    section = COMPAT.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = section.split("\n| test | reason |\n", 1)[1].split("\n\n", 1)[0]
    return {name for row in table.splitlines() for name in re.findall(r"`([^`]+::[^`]+)`", row.split(" | ")[0])}


def surprises(suite, known, ran, failed):
    """Prints which tests do otherwise than COMPAT.md says; gives back how many."""
    new, gone = sorted(failed - known), sorted((known & ran) - failed)
    for name in new:
        print(f"{suite}: {name} fails, and COMPAT.md does not list it")
    for name in gone:
        print(f"{suite}: {name} passes, and COMPAT.md lists it as failing")
    return len(new) + len(gone)


def run_sdk_tests(suite):
    """The SDKs' own tests bring their runner, which starts what it needs and reports itself."""
    folder, arguments = SDK_TESTS[suite]
    return subprocess.run([sys.executable, HERE / folder / "run.py", *arguments], check=False).returncode


def main(suites):
    own = {"python": run_python, "javascript": run_javascript, "rust": run_rust}
    outcomes = []
    asked = [suite for suite in suites if suite in own]
    if asked:
        with (
            Emulator("single") as single,
            # Of the SDKs only the Rust one asks for Gateway 2.0: it reaches one account that way and not the other.
            Emulator("partitioned", "--partitions", "4", "--gateway2", on_disk=True) as partitioned,
            secure_emulator() as secure,
        ):
            env = environment(single, partitioned, secure)
            for suite in asked:
                print(f"== {suite}", flush=True)
                outcomes.append(own[suite](env))
    status = 0 if all(outcome.is_green() for outcome in outcomes) else 1
    for suite in suites:
        if suite in SDK_TESTS:
            print(f"== {suite}", flush=True)
            status |= run_sdk_tests(suite)
    for outcome in outcomes:
        print(outcome.line())
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
