"""Parallel jobs of a real HTCondor: their nodes are jobs here, and their pattern is admitted before they start."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.identity.startd import LocalStartd
from lark_worker.network.commands import run
from tests.fixtures.service import wait
from tests.htcondor.real_pool import Jobs, Machine, close_all
from tests.worker.pool import POLICY, Pool, a_pool

pytestmark = pytest.mark.ovs

WORKER, ACCESS_POINT = "10.77.0.1", "10.77.0.2"
STORE = "store: {switch: s, capacity: 100, addresses: [10.9.0.1]}"
TOPOLOGY = f"topology: {{hosts: {{{STORE}, default: {{switch: s, capacity: 100}}}}}}\n"
# Two slots that the access point's dedicated scheduler may claim.
DEDICATED = """\
SLOT_TYPE_1 = 50%
SLOT_TYPE_1_PARTITIONABLE = False
NUM_SLOTS_TYPE_1 = 2
DedicatedScheduler = "DedicatedScheduler@ap.test"
STARTD_ATTRS = $(STARTD_ATTRS), DedicatedScheduler
RANK = Scheduler =?= $(DedicatedScheduler)
"""
# The dedicated scheduler keeps a slot for ten minutes.
UNUSED = "UNUSED_CLAIM_TIMEOUT = 5\nALIVE_INTERVAL = 5\n"
# What condor_submit makes of the jobs' Request… attributes, and with what a worker's configuration meets that.
_CONDOR = (Path(__file__).parents[2] / "etc/condor/50-lark.conf").read_text()
REQUESTS = "".join(
    f"{line}\nSTARTD_ATTRS = $(STARTD_ATTRS) {line.split()[0]}\n"
    for line in re.findall(r"(?m)^\w+ = TARGET\.Request\w+$", _CONDOR)
)


class ParallelPool:
    """A worker with Lark and the real HTCondor, and an access point whose dedicated scheduler it is of."""

    def __init__(self, lark: Pool, net: Net, folder: Path) -> None:
        self.lark = lark
        far = net.host("ap", addresses=[f"{ACCESS_POINT}/24"])
        run(["ip", "addr", "add", f"{WORKER}/24", "dev", far.port])
        lark.folder.chmod(0o755)
        (lark.folder / "lark-start").symlink_to("starter_hook.sh")
        self.access = Machine(folder / "ap", lark.folder, "ap", ACCESS_POINT, ACCESS_POINT, far.namespace, UNUSED)
        more = DEDICATED + REQUESTS
        # A node whose hook a busy machine has left no time would start unmanaged, and run on: it is tried again.
        hook = "LARK_ON_FAILURE=idle"
        try:
            self.worker = Machine(folder / "w1", lark.folder, "worker1", WORKER, ACCESS_POINT, "", more, hook)
        except BaseException:
            self.access.close()
            raise
        self.jobs = Jobs(self.access)

    def start(self) -> None:
        """Wait for the pool, and have the worker service look at its starters and ask its startd."""
        wait(lambda: self.worker.name in self.access.run("condor_status -af Machine", check=False), limit=90)
        self.lark.stop_service()
        self.lark.startd = LocalStartd(self.worker.startd_address())  # type: ignore[assignment]  # the real one
        self.lark.environment |= {
            "LARK_WORKER_STARTERS": self.worker.program("condor_starter"),
            "LARK_WORKER_STARTDS": self.worker.program("condor_startd"),
        }
        self.lark.start_service()

    def submit(self, pattern: str) -> int:
        """Submit a job of two nodes that end once this folder says so; its cluster."""
        lines = {
            "universe": "parallel", "executable": "run", "machine_count": "2", "request_memory": "64",
            "request_disk": "1000", "should_transfer_files": "YES", "when_to_transfer_output": "ON_EXIT",
            "log": "log.$(CLUSTER)", "+RequestMpiBandwidth": f'"{pattern}"',
            "+ParallelShutdownPolicy": '"WAIT_FOR_ALL"',
        }  # fmt: skip
        lines["output"], lines["error"] = "out.$(NODE)", "err.$(NODE)"
        return self.jobs.submit("alice", "while [ ! -e /pool/end ]; do sleep 0.2; done", lines)

    def until(self, question: Callable[[], object], seconds: float = 300) -> None:
        """Wait for HTCondor, which may try more than once; fails with the logs of both machines."""
        deadline = time.monotonic() + seconds
        while not question():
            if time.monotonic() > deadline:
                shown = self.access.run("condor_q -nobatch; condor_status; tail /home/alice/log.*", check=False)
                raise AssertionError("\n".join([shown, self.access.logs(), self.worker.logs()]))
            time.sleep(0.5)

    def remove(self, *clusters: int) -> None:
        """Take jobs out of the queue, so that the next ones have the slots whatever has become of these.

        Those that run end by themselves: the shadow of a parallel job that is removed while it runs may stay for ever.
        """
        (self.lark.folder / "end").touch()
        these = " || ".join(f"ClusterId == {cluster}" for cluster in clusters) or "false"

        def are_gone() -> bool:
            self.access.run(f"condor_rm -constraint '({these}) && JobStatus != 2'", check=False)
            return not self.access.run(f"condor_q -constraint '{these}' -af ClusterId", check=False)

        self.until(are_gone)

    def close(self) -> None:
        close_all((self.access, self.worker))


@pytest.fixture(scope="module")
def pool(ovs: OpenVSwitch) -> Iterator[ParallelPool]:
    with temporary_directory() as name, Net() as net:
        folder = Path(name)
        (folder / "lark").mkdir()
        with a_pool(folder / "lark", ovs, net, POLICY + TOPOLOGY, NETWORK_TYPE="ovs_bridge") as lark:
            made = ParallelPool(lark, net, folder)
            try:
                made.start()
                yield made
            finally:
                made.close()
        ovs.vsctl("--if-exists", "del-br", lark.bridge)


@pytest.fixture
def parallel(pool: ParallelPool) -> Iterator[Callable[[str], int]]:
    """Submits parallel jobs of one test, which are gone after it."""
    (pool.lark.folder / "end").unlink(missing_ok=True)
    submitted: list[int] = []

    def submit(pattern: str) -> int:
        submitted.append(pool.submit(pattern))
        return submitted[-1]

    yield submit
    pool.remove(*submitted)
    wait(lambda: not list(pool.lark.client.jobs(state="enforced")))


@pytest.fixture(scope="module")
def asking(pool: ParallelPool) -> Iterator[dict[str, int]]:
    """Jobs that ask for an external address, by the word with which each does, in the queue together."""
    lines = {
        "executable": "run", "request_memory": "64", "request_disk": "1000", "log": "log.$(CLUSTER)",
        "should_transfer_files": "YES",
    }  # fmt: skip
    clusters = {
        word: pool.jobs.submit("alice", "true", {**lines, "+RequestExternalAddress": word})
        for word in ("true", "1", "(2 > 1)", '"yes"')
    }
    yield clusters
    pool.remove(*clusters.values())


@pytest.mark.parametrize("word", ["true", "1", "(2 > 1)", '"yes"'])
def test_a_job_that_asks_for_an_external_address_finds_a_slot(
    pool: ParallelPool, asking: dict[str, int], word: str
) -> None:
    """However it asks: the policy has none, so its hook holds it, with that reason or that of a wrong value."""
    reason = "is not a boolean" if word == '"yes"' else "no external addresses"
    held = re.compile(rf"5 .*{reason}")
    pool.until(lambda: held.search(pool.jobs.state(asking[word])))


def test_the_nodes_of_a_parallel_job_are_known_by_their_numbers(
    pool: ParallelPool, parallel: Callable[[str], int]
) -> None:
    cluster = parallel("ring 40")
    client = pool.lark.client
    pool.until(lambda: len(list(client.jobs(state="enforced"))) == 2)
    live = list(client.jobs(state="enforced"))
    assert len({job["global_job_id"] for job in live}) == 1
    ads = [client.job(job["id"])["job_ad"] for job in live]
    nodes = [line for ad in ads for line in ad.splitlines() if line.startswith("Node =")]
    assert sorted(nodes) == ["Node = 0", "Node = 1"]
    for ad in ads:
        assert "MaxHosts = 2" in ad
        assert all(f"slot{number}@" in ad.partition("AllRemoteHosts = ")[2].partition("\n")[0] for number in (1, 2))
    # Both are on one worker, and so need no link.
    assert list(client.reservations()) == []
    # What is reserved to another place is in the one ad that both have, of both; the first node's worker asks for it.
    for job in live:
        client.reserve(job["id"], "store", 10)
    assert pool.lark.worker is not None
    for record in pool.lark.worker.records():
        pool.lark.worker._metering.report_now(record)
    (pool.lark.folder / "end").touch()
    pool.jobs.wait(cluster)
    words = pool.jobs.attribute(cluster, "LarkMpiAdvice")
    assert words == "2 pairs; node 0 to 10.9.0.1/32: asked for 10 Mb/s; its queue was not counted"
    # Of 10 Mb/s whose use was not counted nothing is advised.
    assert pool.jobs.attribute(cluster, "LarkAdvisedMpiBandwidth") == "undefined"
    pool.until(lambda: not list(client.jobs(state="enforced")))
    found = client.pairs(f"{cluster}.0", application=True)["pairs"]
    assert [each["name"] for each in found] == ["node 0 to 10.9.0.1/32", "node 1 to 10.9.0.1/32"]


def test_a_pattern_that_cannot_be_leaves_the_whole_job_in_the_queue_until_it_can(
    pool: ParallelPool, parallel: Callable[[str], int]
) -> None:
    cluster = parallel("neighbours 3x3 40")
    refused = "Lark refused this job: RequestMpiBandwidth: a grid of 3x3 has 9 nodes, and the job has 2"
    # HTCondor holds no parallel job for a hook: it takes the job back, idle and with the reason, and tries again. With
    # each try the reason goes, until the next one has it; and a try may end by itself, with another reason.
    taken_back = re.compile(rf"1 [1-9]\d* .*{re.escape(refused)}")
    shown = f"condor_q {cluster} -af JobStatus NumShadowStarts VacateReason"
    pool.until(lambda: taken_back.match(pool.access.run(shown, check=False)))
    # Its user has the reason in the log, too.
    assert refused in pool.access.run(f"cat /home/alice/log.{cluster}")
    assert list(pool.lark.client.jobs(state="enforced")) == []
    pool.access.run(f"condor_qedit {cluster} RequestMpiBandwidth '\"neighbours 2 40\"'")
    pool.until(lambda: len(list(pool.lark.client.jobs(state="enforced"))) == 2)
    (pool.lark.folder / "end").touch()
    pool.jobs.wait(cluster)
