"""Rules of transfers in a whole pool: the WAN port by which files leave, and a rate beside HTCondor's own limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from bench import transfer_limits
from bench.transfer_limits import wait_for_rule
from experiments import sandboxes
from experiments.lark_transfers import limited
from experiments.sandboxes import Batch
from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import WAN_ADDRESSES
from lark_worker.transfers import limits
from tests.lab.test_transfers import of_type

PORT = 8098
SIZE, RATE = 60_000_000, 40
WORKER = "worker1"
# The file for which a job that uploads waits.
GO = "/home/alice/upload-now"
# As long as there is any rule, workers ask about each new job at once.
ANY = "rate: 100Gbit"
RULE = f"policies:\n  - transfers: {{rate: {RATE}Mbit, port: wan-fast}}\n"
FAST = 'wan-fast: {port: 3, next_hop: "02:00:00:00:00:02"'
BATCH = Batch(4, 40_000_000, 4)
# Mb/s of the access point's link, and of a rule.
LINK, EACH = 20.0, 1.0
# The server of the reference stream, and HTCondor's shared port.
REFERENCE, CEDAR, WWW = 8097, 9618, "/tmp/reference"
# Bytes of the reference by which a time is measured, and those that are more than HTCondor's own words.
ENOUGH, MOVING = 8_000_000, 100_000


@pytest.fixture(scope="module", autouse=True)
def learned(lab: Lab) -> Iterator[None]:
    """Workers have taken up that there are rules of transfers: the first one of a policy may take them minutes."""
    with transfer_limits.ruled(lab, ANY):
        transfer_limits.learn(lab)
        yield


@pytest.fixture(autouse=True)
def restored(lab: Lab, learned: None) -> Iterator[None]:
    """The policy of before the test, after it."""
    yield
    lab.on(WORKER, "rm", "-f", GO)
    transfer_limits.put_rule(lab, ANY)


@contextmanager
def taker(lab: Lab) -> Iterator[None]:
    """A web server in the WAN that takes files, for IPv4 and IPv6."""
    serve = f"cd /lark/run/source; PYTHONPATH=. setsid python3 -m experiments.sink {PORT} >/dev/null 2>&1 & echo $!"
    pid = lab.on("wan1", "sh", "-c", serve).stdout.strip()
    try:
        yield
    finally:
        lab.on("wan1", "kill", pid, check=False)


def left_by(lab: Lab) -> dict[str, int]:
    """The bytes that have left the core by each WAN port."""
    ports = ("wan", "wan-fast")
    shown = lab.on("core", "cat", *(f"/sys/class/net/{port}/statistics/tx_bytes" for port in ports)).stdout
    return dict(zip(ports, map(int, shown.split()), strict=True))


def steer(lab: Lab, backup: str = "") -> None:
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    assert FAST in before
    text = before.replace("policies:\n", RULE).replace(FAST, FAST + backup)
    controller.api(lab, "/v1/policy", "PUT", text)
    controller.wait_in_sync(lab)


def upload(lab: Lab, host: str) -> submit.Jobs:
    """A job whose output HTCondor's plugin uploads, after :func:`let_go`: the worker is to have its rule before."""
    attributes = {
        "requirements": f'Machine == "{WORKER}.lab.test"',
        "request_disk": str(SIZE // 512 + 1000),
        "transfer_output_files": "result",
        "transfer_output_remaps": f'"result = http://{host}:{PORT}/result"',
    }
    make = f"head -c {SIZE} /dev/zero >result; until [ -e {GO} ]; do sleep 0.2; done"
    return submit.submit(lab, "alice", make, attributes)


def let_go(lab: Lab) -> None:
    """Let the job of :func:`upload` end, so that its output is uploaded."""
    lab.on(WORKER, "touch", GO)


@pytest.mark.parametrize(("network", "family"), [("ovs_bridge", 4), ("none", 6), ("nat", 4), ("bridge", 6)])
def test_files_leave_by_the_rule_s_wan_port_whatever_the_job_s_network(lab: Lab, network: str, family: int) -> None:
    ipv4, ipv6 = WAN_ADDRESSES[1]
    steer(lab)
    with taker(lab), of_type(lab, network):
        before = left_by(lab)
        jobs = upload(lab, ipv4 if family == 4 else f"[{ipv6}]")
        job = wait_for_rule(lab, f"{jobs.cluster}.0")
        assert job["decision"]["transfers"]["port"] == "wan-fast"
        let_go(lab)
        submit.wait(lab, jobs)
    assert submit.attribute(lab, jobs, "ExitCode") == "0"
    after = left_by(lab)
    by = {port: after[port] - before[port] for port in after}
    # A connection is found after some tenths of a second, at the rate of the machine until then.
    assert by["wan-fast"] > 0.6 * SIZE, by
    assert by["wan-fast"] + by["wan"] > SIZE, by


def test_a_transfer_goes_on_by_the_backup_while_the_port_is_down(lab: Lab) -> None:
    steer(lab, ", backup: wan")
    with taker(lab):
        jobs = upload(lab, WAN_ADDRESSES[1][0])
        wait_for_rule(lab, f"{jobs.cluster}.0")
        begun = left_by(lab)
        let_go(lab)
        wait_for(lambda: left_by(lab)["wan-fast"] - begun["wan-fast"] > SIZE // 6)
        lab.on("core", "ip", "link", "set", "wan-fast", "down")
        try:
            here = left_by(lab)
            wait_for(lambda: left_by(lab)["wan"] - here["wan"] > SIZE // 4)
            assert left_by(lab)["wan-fast"] - here["wan-fast"] < SIZE // 20
        finally:
            lab.on("core", "ip", "link", "set", "wan-fast", "up")
        back = left_by(lab)
        wait_for(lambda: left_by(lab)["wan-fast"] - back["wan-fast"] > SIZE // 20)
        submit.wait(lab, jobs)
    assert submit.attribute(lab, jobs, "NumJobStarts") == "1"


@contextmanager
def reference(lab: Lab) -> Iterator[None]:
    """A stream under no limit, by the same link and at the same time: a download from the access point."""
    access_point = sandboxes.ACCESS_POINT
    serve = f"mkdir -p {WWW}; truncate -s 100G {WWW}/data; cd {WWW}; setsid python3 -m http.server {REFERENCE}"
    server = lab.on(access_point, "sh", "-c", f"{serve} >/dev/null 2>&1 & echo $!").stdout.strip()
    try:
        url = f"http://{access_point}.lab.test:{REFERENCE}/data"
        ask = f"setsid curl -s --retry 20 --retry-connrefused -o /dev/null {url} >/dev/null 2>&1 & echo $!"
        client = lab.on(WORKER, "sh", "-c", ask).stdout.strip()
        try:
            yield
        finally:
            lab.on(WORKER, "kill", client, check=False)
    finally:
        lab.on(access_point, "sh", "-c", f"kill {server}; rm -r {WWW}", check=False)


def received(lab: Lab) -> tuple[int, dict[tuple[str, int], int]]:
    """The bytes that the reference has received, and those of HTCondor's connections by worker and port, as the
    workers' kernels count them."""
    stream, others = 0, {}
    for worker in sandboxes.WORKERS:
        for line in lab.on(worker, "ss", "-tinHO", "state", "established").stdout.splitlines():
            ends, count = re.findall(r"\S+:(\d+)(?=\s)", line)[:2], re.search(r"bytes_received:(\d+)", line)
            if count is None or len(ends) < 2:
                continue
            here, there = map(int, ends)
            if there == REFERENCE:
                stream = int(count[1])
            elif there == CEDAR:
                others[worker, here] = int(count[1])
    return stream, others


def limited_ports(lab: Lab) -> set[tuple[str, int]]:
    """The connections that are in the kernels' rules of transfers, by worker and port."""
    shown = {worker: lab.on(worker, "nft", "list", "table", "inet", "lark_transfers", check=False).stdout for worker in
             sandboxes.WORKERS}  # fmt: skip
    return {(worker, int(port)) for worker, text in shown.items() for port in re.findall(r"\. (\d+) \. \S+ \.", text)}


class Window(NamedTuple):
    """A time of some ``seconds``: the bytes of the reference, and those of each input that was on its way."""

    seconds: float
    reference: int
    inputs: list[int]

    @property
    def allowed(self) -> float:
        """The most that the rule lets an input have: a second of its rate, and what TCP hands over at once, may come
        beside it."""
        return EACH * 1e6 / 8 * (self.seconds + 1) + limits.BURST


def window(lab: Lab, is_over: Callable[[Window], bool]) -> Window:
    """The time from now on until it is enough."""
    begun, (stream, before), found = time.monotonic(), received(lab), Window(0, 0, [])

    def is_enough() -> bool:
        nonlocal found
        now, after = received(lab)
        moved = (count - before.get(each, 0) for each, count in after.items())
        found = Window(time.monotonic() - begun, now - stream, [count for count in moved if count > MOVING])
        return is_over(found)

    wait_for(is_enough)
    return found


@contextmanager
def inputs(lab: Lab, most: int | None, rule: str) -> Iterator[None]:
    """Jobs whose inputs are on their way, as many as there may be at a time."""
    attributes = {
        "request_cpus": str(BATCH.processors),
        "request_disk": str(2 * BATCH.size // 1024),
        "transfer_input_files": f"{sandboxes.FOLDER}/in.$(ProcId)",
    }
    try:
        sandboxes.prepare(lab, BATCH)
        with transfer_limits.before_the_input(lab), limited(lab, LINK), sandboxes.queue(lab, most):
            transfer_limits.put_rule(lab, rule)
            jobs = submit.submit(lab, sandboxes.USER, "true", attributes, BATCH.jobs)
            try:
                wait_for(lambda: len(moving(lab)) >= (most or BATCH.jobs))
                yield
            finally:
                lab.on(sandboxes.ACCESS_POINT, "condor_rm", str(jobs.cluster))
                submit.wait(lab, jobs)
    finally:
        lab.on(sandboxes.ACCESS_POINT, "rm", "-rf", sandboxes.FOLDER)


def moving(lab: Lab) -> set[tuple[str, int]]:
    """The connections by which inputs are on their way, by worker and port."""
    return {each for each, count in received(lab)[1].items() if count > MOVING}


@pytest.mark.parametrize("most", [None, 2])
def test_a_limit_by_number_leaves_each_input_its_rate(lab: Lab, most: int | None) -> None:
    """docs/how-to/transfers.md, "A number of transfers, and a rate"."""
    with inputs(lab, most, "when: 'Owner == \"nobody\"', rate: 1"):
        found = window(lab, lambda each: sum(each.inputs) > 2 * (most or BATCH.jobs) * each.allowed)
    assert len(found.inputs) == (most or BATCH.jobs), found


@pytest.mark.parametrize("most", [None, 1])
def test_a_limit_by_rate_holds_with_one_by_number_and_without(lab: Lab, most: int | None) -> None:
    """The same page, against a stream of the same moment."""
    with inputs(lab, most, f"rate: {EACH:g}Mbit"), reference(lab):
        wait_for(lambda: moving(lab) <= limited_ports(lab))
        found = window(lab, lambda each: each.reference >= ENOUGH)
    assert len(found.inputs) == (most or BATCH.jobs), found
    assert max(found.inputs) <= 1.05 * found.allowed, found
    # The link had room for more: only the rule keeps them from it.
    assert found.reference > 2 * max(found.inputs), found


def test_the_transfer_queue_follows_what_is_left(lab: Lab) -> None:
    """docs/how-to/transfers.md, "HTCondor's transfer queue"."""
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    capacity = f"transfer_capacity: {{access_points: {{{scheduler(lab, 'Name')}: 1Gbit}}}}\n"
    controller.api(lab, "/v1/policy", "PUT", before.replace("policies:\n", RULE) + f"\n{capacity}")
    ask = "sh /lark/run/source/scripts/lark-transfer-queue 50 2 15"
    try:
        lab.on("central", "sh", "-c", f"until {ask}; do sleep 2; done", timeout=180)
        wait_for(lambda: scheduler(lab, "TransferQueueMaxUploading") == "15")
        lab.on("central", "sh", "-c", ask.replace("50 2 15", "400 1"))
        wait_for(lambda: scheduler(lab, "TransferQueueMaxUploading") == "2")
    finally:
        lab.on("central", "rm", "-f", "/etc/condor/config.d/52-lark-transfer-queue.conf")
        lab.on("central", "condor_reconfig")


def scheduler(lab: Lab, attribute: str) -> str:
    """An attribute of the access point's ad."""
    return lab.on("central", "condor_status", "-schedd", "-af", attribute).stdout.strip()


def wait_for(condition: Callable[[], bool], shown: Callable[[], object] = str) -> None:
    """Wait until a condition holds; ``shown`` is in the message where it does not."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.2)
