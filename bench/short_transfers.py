"""The cost of many short transfers on one worker: ``python -m bench.short_transfers``, a plugin for URLs in the lab
that fetches many small files, each by a connection of its own.

By turns nothing is fetched and many files are. Meanwhile another worker's posts are sent to the controller, one after
the other, and timed. Writes JSON to bench/results and the table into docs/design/transfers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import report
from bench.percentiles import percentile
from experiments import sandboxes
from experiments.lark_start import settings
from lab import submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, DOMAIN, OPERATOR_TOKEN, REST_PORT

BEGIN: Final = "<!-- short transfers: written by `python -m bench.short_transfers` -->"
END: Final = "<!-- end of short transfers -->"
PAGE: Final = Path(__file__).parents[1] / "docs" / "design" / "transfers.md"
WORKER, OTHER = "worker1", "worker2"
PLUGIN: Final = "/usr/local/libexec/lark-many"
CONFIG: Final = "/etc/condor/config.d/90-many.conf"
SERVER, PORT = "dhcp", 8090
# Bytes of each file.
SIZE: Final = 2000
# Connections at a time.
THREADS: Final = 4
# Seconds between the worker's reports, and of fetching before and after what is measured.
REPORT_SECONDS: Final = 2
METRICS: Final = 9464
BEFORE: Final = 2.0
AFTER: Final = 2.0

# A plugin of the site's: many://RATE/SECONDS stands for so many files a second.
_PLUGIN: Final = f"""\
#!/usr/bin/python3
import socket, sys, threading, time
if "-classad" in sys.argv:
    print('PluginVersion = "1"\\nPluginType = "FileTransfer"\\nSupportedMethods = "many"')
    sys.exit(0)
url, target = sys.argv[1:3]
rate, seconds = map(float, url.split("://", 1)[1].split("/"))
fetched = [0] * {THREADS}
def fetch(number):
    begin = time.monotonic()
    while (past := time.monotonic() - begin) < seconds:
        while fetched[number] < past * rate / {THREADS}:
            with socket.create_connection(("{BY_NAME[SERVER].address}", {PORT})) as server:
                while server.recv(65536):
                    pass
            fetched[number] += 1
        time.sleep(0.002)
threads = [threading.Thread(target=fetch, args=(number,)) for number in range({THREADS})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with open(target, "w") as file:
    file.write(str(sum(fetched)))
"""
_SERVER: Final = f"""\
import socket
listening = socket.create_server(("", {PORT}), backlog=512)
while True:
    connection, _ = listening.accept()
    with connection:
        connection.sendall(bytes({SIZE}))
"""
# Another worker's posts, timed: the ms of each, as JSON.
_POSTS: Final = """\
import json, sys, time, urllib.request
url, seconds = sys.argv[1], float(sys.argv[2])
token = open("/etc/lark/worker.token").read().strip()
head = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
took, begin = [], time.monotonic()
while time.monotonic() - begin < seconds:
    at = time.monotonic()
    urllib.request.urlopen(urllib.request.Request(url, b'{"jobs": []}', head), timeout=30).read()
    took.append(1000 * (time.monotonic() - at))
    time.sleep(0.1)
print(json.dumps(took))
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: connections a second; the processor time of worker service and controller as parts of one processor;
    reports of transfers that the controller had from that worker; the other worker's posts, ms; the bytes in the job's
    account and among the unseen, as parts of those that were fetched."""

    rate: float
    worker: float
    controller: float
    reports: float
    posts: tuple[float, ...]
    counted: float = 0.0
    unseen: float = 0.0


def measure(rates: Sequence[int], rounds: int, seconds: float) -> list[Turn]:
    """Measure in one lab, by turns. Raises LabError where the lab does not do it."""
    found = []
    with Lab.start(settings()) as lab:
        lab.start_pool()
        _prepare(lab)
        for _ in range(rounds):
            found += [_turn(lab, rate, seconds) for rate in rates]
    return found


def _prepare(lab: Lab) -> None:
    lab.write(WORKER, PLUGIN, _PLUGIN, mode=0o755)
    # Registered before its input is moved, so that the controller has the job's reports meanwhile; HTCondor 25.14.1
    # starts no job after that where it is to have no network of the worker's.
    before = "LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER = /usr/local/libexec/lark/lark-start\nNO_JOB_NETWORKING = False"
    lab.write(WORKER, CONFIG, f"FILETRANSFER_PLUGINS = $(FILETRANSFER_PLUGINS), {PLUGIN}\n{before}\n")
    lab.on(WORKER, "condor_restart", "-startd")
    words = f"LARK_WORKER_COUNTER_SECONDS={REPORT_SECONDS}\nLARK_WORKER_METRICS_LISTEN=127.0.0.1:{METRICS}"
    lab.on(WORKER, "sh", "-c", f"echo '{words}' >>/etc/lark/worker.env")
    lab.on(WORKER, "unit", "kill", "lark-worker")
    lab.on(SERVER, "sh", "-c", 'setsid python3 -c "$1" >/dev/null 2>&1 </dev/null &', "lab", _SERVER)
    shown = f"condor_status -constraint 'Machine == \"{WORKER}.{DOMAIN}\"' -af HasFileTransferPluginMethods"
    lab.on("central", "sh", "-c", f"until {shown} | grep -q many; do sleep 0.5; done", timeout=120)


def _turn(lab: Lab, rate: int, seconds: float) -> Turn:
    """Fetch ``rate`` files a second for some seconds; none where it is 0."""
    jobs = None
    if rate:
        lines = {
            "requirements": f'Machine == "{WORKER}.{DOMAIN}"',
            "transfer_input_files": f"many://{rate}/{seconds + BEFORE + AFTER}",
        }
        jobs = submit.submit(lab, "alice", "cat [0-9]*", lines)
        lab.on(WORKER, "sh", "-c", "until pgrep -f lark-many >/dev/null; do sleep 0.1; done", timeout=120)
        lab.on(WORKER, "sleep", str(BEFORE))
    url = f"http://{BY_NAME['controller'].address}:{REST_PORT}/v1/hosts/{OTHER}.{DOMAIN}/transfers"
    begun, reports = sandboxes.spent(lab), _counted(lab)
    posts = json.loads(lab.on(OTHER, "python3", "-c", _POSTS, url, str(seconds), timeout=seconds + 60).stdout)
    ended, after = sandboxes.spent(lab), _counted(lab)
    worker, control = ((ended[part] - begun[part]) / seconds for part in ("worker service", "controller"))
    turn = Turn(0.0, worker, control, after[0] - reports[0] - len(posts), tuple(posts))
    if jobs is not None:
        submit.wait(lab, jobs, 300)
        fetched = int(submit.output(lab, jobs))
        moved = int(submit.attribute(lab, jobs, "LarkTransferBytesIn") or 0)
        whole = fetched * SIZE
        rate_had = fetched / (seconds + BEFORE + AFTER)
        turn = replace(turn, rate=rate_had, counted=moved / whole, unseen=(_counted(lab)[1] - reports[1]) / whole)
    print(
        turn.rate, turn.worker, turn.controller, turn.reports, median(turn.posts), turn.counted, turn.unseen, flush=True
    )
    return turn


def _counted(lab: Lab) -> tuple[float, float]:
    """The posts of transfers that the controller has answered, and the bytes that the worker has seen nobody hold."""
    ask = (
        f'exec curl -sS --fail -H "Authorization: Bearer $(cat {OPERATOR_TOKEN})" http://127.0.0.1:{REST_PORT}/metrics'
    )
    posts = re.findall(
        r"^lark_http_requests_total\{.*/transfers.*\} (\S+)$", _shown(lab, "controller", ask), re.MULTILINE
    )
    own = _shown(lab, WORKER, f"exec curl -sS --fail http://127.0.0.1:{METRICS}/metrics")
    unseen = re.findall(r"^lark_worker_transfer_unseen_bytes_total (\S+)$", own, re.MULTILINE)
    return sum(map(float, posts)), sum(map(float, unseen))


def _shown(lab: Lab, machine: str, script: str) -> str:
    return lab.on(machine, "sh", "-c", script).stdout


def table(found: Mapping[str, Any]) -> str:
    """The measurement as a Markdown table, with a line about where it was taken above."""
    about = found["machine"]
    lines = [
        f"`python -m bench.short_transfers`: a plugin in the lab (`LAB_KIND={found['kind']}`) that fetches files of "
        f"{SIZE} bytes, a connection each, {found['rounds']} times {found['seconds']:g} s by turns with nothing; "
        f"medians. {about['cores']} cores, Linux {about['kernel']}; load average {about['load']:.1f} when it began and "
        f"{found['load_after']:.1f} when it ended, of others and the lab. The worker reports every {REPORT_SECONDS} s.",
        "",
        "| connections a second | worker service, of a processor | controller | the worker's reports a second | "
        "posts of another worker: p50, p95 | bytes in the job's account | unseen |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for turns in found["turns"]:
        posts = sorted(each for turn in turns for each in turn["posts"])
        rate, worker, control, reports, counted, unseen = (
            median(turn[name] for turn in turns)
            for name in ("rate", "worker", "controller", "reports", "counted", "unseen")
        )
        parts = f"{counted:.0%} | {unseen:.0%}" if rate else " | "
        lines.append(
            f"| {rate:.0f} | {worker:.1%} | {control:.1%} | {reports / found['seconds']:.1f} "
            f"| {median(posts):.1f}, {percentile(posts, 95):.1f} ms | {parts} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and write JSON to bench/results and the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.short_transfers", description="Many short transfers. Root.")
    parser.add_argument("--rates", type=int, nargs="*", default=[0, 50, 500], help="connections a second [0 50 500]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    machine = report.machine()
    turns = measure(chosen.rates, chosen.rounds, chosen.seconds)
    found = {
        "machine": machine,
        "kind": settings().kind,
        "rounds": chosen.rounds,
        "seconds": chosen.seconds,
        "turns": [[asdict(each) for each in turns[place :: len(chosen.rates)]] for place in range(len(chosen.rates))],
        "load_after": os.getloadavg()[0],
    }
    report.keep(found, report.results_file("-short-transfers"))
    print(table(found))
    report.replace(PAGE, table(found), BEGIN, END)


if __name__ == "__main__":
    main()
