"""The lab's pool as an experimenter uses it: a policy, links of a rate, jobs that run iperf3 and say what they saw."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from experiments.cable import wire
from experiments.result import Point
from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, JOBS, LOCAL, MACHINES, OPERATOR_TOKEN, REST_PORT, Machine, cable
from lab.jobs import Running, Wish
from lab.jobs import running as running_jobs
from lab.run import LabError
from lab.settings import from_environment

# L2 bytes of a full frame, and the TCP payload in it: MTU 1500, IPv4, timestamps.
FRAME, PAYLOAD = 1514, 1448
# The first of a machine's iperf3 servers; each serves one stream at a time.
FIRST_PORT: Final = 5301
# Seconds from a stream's begin until it counts: slow start is over by then.
SETTLED: Final = 2.0
INTERVAL: Final = 0.5
SITE, WAN = "dhcp", "wan1"
JOB_TIMEOUT: Final = 300
# Linux's own limit (GSO_MAX_SEGS) to the segments that an interface is given in one piece.
MOST_SEGMENTS: Final = 65535
# Seconds until jobs have been told to begin: one, and each more.
READY: Final = 0.8
READY_EACH: Final = 0.3
# Seconds that a stream may take beyond its own time, on a machine that does other work.
STREAM_TIMEOUT: Final = 60


@dataclass(frozen=True, slots=True)
class Stream:
    """iperf3's measurement of one TCP stream: its begin (seconds since 1970), and its rates over time.

    ``rates`` are (seconds since the begin, Mb/s of L2 bytes) at the end of each interval, ``received`` is the rate of
    the whole stream, ``mean`` that after :data:`SETTLED` seconds; all as the receiver counts.
    """

    began: float
    rates: tuple[tuple[float, float], ...]
    received: float

    def mean(self, first: float = SETTLED, last: float = float("inf")) -> float:
        """Mean rate in Mb/s of L2 bytes between two times since the begin. Raises ValueError for an empty window."""
        ends = [0.0, *(at for at, _ in self.rates)]
        chosen = [
            (at - before, rate) for before, (at, rate) in zip(ends, self.rates, strict=False) if first < at <= last
        ]
        if not chosen:
            raise ValueError(f"the stream has no interval from {first:g} to {last:g} s")
        # Where a machine is late, intervals are not of one length.
        return sum(seconds * rate for seconds, rate in chosen) / sum(seconds for seconds, _ in chosen)

    def points(self, zero: float) -> tuple[Point, ...]:
        """The rates over time since ``zero`` (seconds since 1970)."""
        return tuple(Point(round(self.began - zero + at, 2), rate) for at, rate in self.rates)


def stream(text: str) -> Stream:
    """Read what ``iperf3 --json`` printed. Raises LabError where the stream failed."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise LabError(f"iperf3 did not print JSON: {text[-500:]}") from None
    if "error" in found:
        raise LabError(f"iperf3: {found['error']}")
    start = found["start"]["timestamp"]
    # The receiver's count: bytes handed to the sender's socket are not delivered yet.
    receiver = found if found["start"]["test_start"]["reverse"] else found["server_output_json"]
    sums = [each["sum"] for each in receiver["intervals"]]
    rates = tuple(
        (each["end"], each["bits_per_second"] / 1e6 * FRAME / PAYLOAD) for each in sums if each["seconds"] > 0.1
    )
    end = found["end"]["sum_received"]
    return Stream(
        float(start.get("timemillisecs", start["timesecs"] * 1000)) / 1000, rates,
        end["bits_per_second"] / 1e6 * FRAME / PAYLOAD,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """One job: whose, what it asks for, and what it sends or receives for how long.

    ``attributes`` are lines of its submit file. ``server`` is a machine of the lab, ``port`` its iperf3 server's.
    Without ``size`` (bytes of payload) the stream lasts ``seconds``. iperf3 counts in blocks of ``block`` bytes; its
    own 128 KiB are a second of 1 Mb/s.
    """

    user: str
    server: str
    port: int
    attributes: Mapping[str, str]
    download: bool = False
    seconds: float = 10
    size: int | None = None
    block: int = 8192

    def script(self, begin: float) -> str:
        """The job's program; it finds its way to the server first, and waits for ``begin`` (seconds since 1970)."""
        address = BY_NAME[self.server].address if self.server != WAN else "192.0.2.1"
        how = f"--time {self.seconds:g}" if self.size is None else f"--bytes {self.size}"
        back = " --reverse" if self.download else ""
        return (
            f"ping -c 3 -i 0.2 -W 1 {address} >/dev/null\n"
            f"while [ $(date +%s%N) -lt {round(begin * 1e9)} ]; do sleep 0.1; done\n"
            f"exec iperf3 --json --client {address} --port {self.port} {how} --length {self.block}"
            f" --interval {INTERVAL:g} --get-server-output{back}\n"
        )


class Pool:
    """A pool that runs; see :func:`running`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def put_policy(self, text: str) -> None:
        """Put a policy in force, and wait until every switch has it. Raises LabError with what the controller says."""
        address = BY_NAME["controller"].address
        ask = 'exec curl -sS --max-time 60 -H "Authorization: Bearer $(cat "$1")" '
        token = f"/lark/machines/controller/upper{OPERATOR_TOKEN}"
        url = f"http://{address}:{REST_PORT}/v1"
        put = f"{ask} -X PUT -H 'Content-Type: application/yaml' --data-binary @- {url}/policy"
        answer = self._lab.run(["sh", "-c", put, "sh", token], stdin=text, timeout=90).stdout
        if "digest" not in json.loads(answer):
            raise LabError(f"the controller refuses the policy: {answer}")
        deadline = time.monotonic() + 60
        while True:
            shown = json.loads(self._lab.run(["sh", "-c", f"{ask} {url}/switches", "sh", token]).stdout)
            if all(each["in_sync"] for each in shown["switches"]):
                return
            if time.monotonic() > deadline:
                raise LabError(f"not every switch has the policy: {shown}")
            time.sleep(0.3)

    def serve(self, machine: str, number: int) -> tuple[int, ...]:
        """Start iperf3 servers on a machine; answers their ports. Those that run already stay."""
        ports = tuple(range(FIRST_PORT, FIRST_PORT + number))
        server = f"iperf3 --server --daemon --json --interval {INTERVAL:g}"
        lines = [f"ss -Hltn sport = :{port} | grep -q . || {server} --port {port}" for port in ports]
        self._lab.on(machine, "sh", "-c", "\n".join(lines))
        return ports

    def limit(self, machine: Machine, nic: int, rate: float) -> None:
        """Let the cable of a machine's interface carry at most ``rate`` Mb/s in each direction, in order of arrival.

        What is sent on its segment are frames from now on, and not what TCP joins for speed.
        """
        end = cable(machine, machine.nics[nic])
        self._lab.run(["sh", "-c", _unlimited(end)])
        lines = [
            "modprobe -a ifb act_mirred cls_matchall sch_netem sch_ingress 2>/dev/null || true",
            f"ip link add i-{end} type ifb",
            f"ip link set i-{end} up",
            f"tc qdisc add dev {end} clsact",
            f"tc filter add dev {end} ingress matchall action mirred egress redirect dev i-{end}",
            wire(end, rate),
            wire(f"i-{end}", rate),
        ]
        self._lab.run(["sh", "-ec", "\n".join(lines)])
        self._join(machine.nics[nic].segment, 1)

    def unlimit(self, machine: Machine, nic: int) -> None:
        """Let the cable of a machine's interface carry what the lab's kernel can."""
        self._lab.run(["sh", "-c", _unlimited(cable(machine, machine.nics[nic]))])
        self._join(machine.nics[nic].segment, MOST_SEGMENTS)

    def _join(self, segment: str, segments: int) -> None:
        """Let every interface on a segment be given at most so many segments of TCP in one piece."""
        for machine in MACHINES:
            for nic in machine.nics:
                if nic.segment == segment:
                    self._lab.on(machine.name, "ip", "link", "set", "dev", nic.name, "gso_max_segs", str(segments))

    @contextmanager
    def jobs(self, loads: Sequence[Load]) -> Iterator[list[Running]]:
        """A job for each load, all of them running and enforced. Raises LabError where one is not."""
        with running_jobs(self._lab, [Wish(load.user, load.attributes) for load in loads]) as jobs:
            self._wait_until_enforced({job.id for job in jobs})
            yield jobs

    def streams(self, loads: Sequence[Load], jobs: Sequence[Running] | None = None) -> list[Stream]:
        """The measurements of the loads' streams, which begin at the same time; in ``jobs``, or in new ones.

        Raises LabError where one fails.
        """
        if jobs is None:
            with self.jobs(loads) as started:
                return self.streams(loads, started)
        self._wait_until_enforced({job.id for job in jobs})
        # The lab's clock counts, and however many jobs there are, all are ready by then.
        begin = float(self._lab.run(["date", "+%s.%N"]).stdout) + READY + READY_EACH * len(jobs)
        with ThreadPoolExecutor(len(jobs)) as threads:
            found = [
                threads.submit(job.run, load.script(begin), load.seconds + STREAM_TIMEOUT)
                for job, load in zip(jobs, loads, strict=True)
            ]
            return [stream(each.result().stdout) for each in found]

    def _wait_until_enforced(self, ids: AbstractSet[str]) -> None:
        deadline = time.monotonic() + 60
        while waiting := [job for job in controller.jobs(self._lab) if job["id"] in ids and job["state"] != "enforced"]:
            if time.monotonic() > deadline:
                raise LabError(f"jobs are not enforced: {[(job['state'], job['reason']) for job in waiting]}")
            time.sleep(0.3)

    def output(self, user: str, script: str, attributes: Mapping[str, str] | None = None) -> str:
        """Run one job; what it printed."""
        job = submit.submit(self._lab, user, script, attributes)
        submit.wait(self._lab, job, JOB_TIMEOUT)
        return submit.output(self._lab, job)

    def on(self, machine: str, script: str) -> str:
        """Run a shell script on a machine as root; what it printed."""
        return self._lab.on(machine, "sh", "-c", script).stdout


def _unlimited(end: str) -> str:
    commands = (f"tc qdisc del dev {end} root", f"tc qdisc del dev {end} clsact", f"ip link del i-{end}")
    return "; ".join(f"{command} 2>/dev/null" for command in commands) + "; true"


@contextmanager
def running() -> Iterator[Pool]:
    """The lab with its pool up."""
    with Lab.start(from_environment()) as lab:
        lab.start_pool()
        yield Pool(lab)


def policy(rules: str = "", groups: str = "", link: float = 1000.0, wan: float = 1000.0) -> str:
    """The lab's switches with these rules and groups; what workers' links and the WAN carry, in Mb/s."""
    return f"""\
version: 1
networks:
  jobs: [{JOBS[0]}, "{JOBS[1]}"]
  hosts: [10.64.0.1, 10.64.0.2, 10.64.0.4, "2001:db8:64::1", "2001:db8:64::2"]
  local: [{LOCAL[0]}, "{LOCAL[1]}"]
edge: {{speed: {link:g}Mbit}}
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports:
      lan: {{port: 1, speed: {wan:g}Mbit}}
      wan: {{port: 2, next_hop: "02:00:00:00:00:01", speed: {wan:g}Mbit}}
      wan-fast: {{port: 3, next_hop: "02:00:00:00:00:02", speed: {wan:g}Mbit}}
  worker1: {{datapath: "00000000000000e1", role: edge, host: worker1.lab.test, ports: {{uplink: eth0}}}}
  worker2: {{datapath: "00000000000000e2", role: edge, host: worker2.lab.test, ports: {{uplink: eth0}}}}
{rules}
{groups}
"""
