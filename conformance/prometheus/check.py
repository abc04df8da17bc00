"""Starts a fleet and a Prometheus that scrapes it, and asks every expression of the alerts and of the board."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(sys.argv[1])
CDB = os.environ["CDB_BIN"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def until(what, happened, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if happened():
                return
        except OSError:
            pass
        time.sleep(0.3)
    raise SystemExit(f"waited in vain until {what}")


def expressions():
    """Where each expression is from, the expression, and whether it must have an answer."""
    board = json.loads((ROOT / "deploy/grafana/workflows.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m"), True
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    # Prometheus itself has read the file; these are the lines that it calls expressions.
    for name, expr in re.findall(r"- alert: (\S+)\n\s+expr: (?:>-\n)?(.*?)\n\s+for:", alerts, re.S):
        yield name, re.sub(r"\s*\n\s*", " ", expr).strip(), False


def main():
    processes = []

    def start(*command, **options):
        process = subprocess.Popen(command, **options)
        processes.append(process)
        return process

    with tempfile.TemporaryDirectory() as folder:
        try:
            account, watcher, prometheus = free_port(), free_port(), free_port()
            workers = [free_port(), free_port()]
            endpoint = f"http://127.0.0.1:{account}"
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            start(CDB, "emulator", "--port", str(account), "--no-management", **quiet)
            until("the emulator listens", lambda: socket.create_connection(("127.0.0.1", account), 1).close() is None)
            for port in workers:
                start(CDB, "stress", "fan-out", "--duration", "120s", "--concurrency", "4", "--endpoint", endpoint,
                      "--metrics", f"127.0.0.1:{port}", **quiet)
                until("a worker tells", lambda port=port: "duroxide_cdb_turn_seconds_count" in get(f"http://127.0.0.1:{port}/metrics"))
            start(CDB, "metrics", "--listen", f"127.0.0.1:{watcher}", "--every", "1s", "--budget", "1000", "--endpoint", endpoint, **quiet)
            until("the container is seen", lambda: "duroxide_cdb_up 1" in get(f"http://127.0.0.1:{watcher}/metrics"))
            config = pathlib.Path(folder, "prometheus.yml")
            targets = json.dumps([f"127.0.0.1:{port}" for port in [watcher, *workers]])
            config.write_text(
                "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
                f"rule_files: [{ROOT}/deploy/prometheus/alerts.yml]\n"
                f"scrape_configs: [{{job_name: fleet, static_configs: [{{targets: {targets}}}]}}]\n")
            start("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                  f"--web.listen-address=127.0.0.1:{prometheus}", **quiet)
            api = f"http://127.0.0.1:{prometheus}/api/v1"
            ask = lambda expr: json.loads(get(f"{api}/query?query={urllib.parse.quote(expr)}"))
            until("Prometheus has scraped all", lambda: len(ask("up == 1")["data"]["result"]) == 3)
            failures, asked = [], 0
            for where, expr, must_answer in expressions():
                def answered(expr=expr):
                    answer = ask(expr)
                    return answer["status"] == "success" and (answer["data"]["result"] or not must_answer)
                try:
                    until(f"{where!r} is answered: {expr}", answered, 30)
                except (SystemExit, urllib.error.HTTPError) as error:
                    failures.append(str(error))
                asked += 1
            rules = json.loads(get(f"{api}/rules"))["data"]["groups"][0]["rules"]
            failures += [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]
            scale = lambda: json.loads(get(f"http://127.0.0.1:{watcher}/scale"))
            until("/scale tells of both members and of work", lambda: scale()["members"] == 2 and scale()["needed"] >= 1)
            print("\n".join(failures) or f"{asked} expressions answered, {len(rules)} alerts evaluated, /scale says {scale()}")
            raise SystemExit(1 if failures else 0)
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(20)


main()
