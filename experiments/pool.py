"""The lab's pool as an experimenter uses it: a policy, links of a rate, jobs that run iperf3 and report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from experiments import reference
from experiments.beside import Meanwhile, Processors, Taken
from experiments.cable import MODULES, REFERENCE_PORT, wire
from experiments.received import Counts, counted, settled
from experiments.result import Point
from lab import controller, starts, submit
from lab.boot import Lab
from lab.inside.topology import (
    BY_NAME,
    DOMAIN,
    JOBS,
    LOCAL,
    MACHINES,
    OPERATOR_TOKEN,
    REST_PORT,
    UPLINK,
    Machine,
    cable,
)
from lab.jobs import Running, Wish, remove
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
RESTART_TIMEOUT: Final = 90
# The file that a worker's startd reads beside its own configuration for a while, and its program for bandwidth.
TRIAL: Final = "/etc/condor/config.d/90-experiment.conf"
# HTCondor's lines for a worker whose leavings the negotiator gives, one job a cycle, and no schedd.
NO_LEFTOVERS: Final = "CLAIM_PARTITIONABLE_LEFTOVERS = False\nCLAIM_WORKLIFE = 0\n"
STARTER_LOGS: Final = "/var/log/condor/StarterLog.slot1_*"
INVENTORY: Final = "/usr/local/libexec/lark/lark-bandwidth"
# Linux's own limit (GSO_MAX_SEGS) to the segments that an interface is given in one piece.
MOST_SEGMENTS: Final = 65535
# Seconds until jobs have got the command to begin: one, and each more.
READY: Final = 0.8
READY_EACH: Final = 0.3
# Seconds of a reference stream that runs alone.
ALONE: Final = 5.0
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


def delivered(printed: str) -> float:
    """The Mb/s of payload of a reference stream; none where it failed: what stands beside it is not sound."""
    try:
        return stream(printed).mean() * PAYLOAD / FRAME
    except (LabError, ValueError):
        return 0.0


@dataclass(frozen=True, slots=True)
class Executed:
    """A job that has ended: the ``seconds`` of its execution by the starter's record, and what it ``printed``."""

    seconds: float
    printed: str


@dataclass(frozen=True, slots=True)
class Load:
    """One job: whose, what it asks for, and what it sends or receives for how long.

    ``attributes`` are lines of its submit file. ``server`` is a machine of the lab, ``port`` its iperf3 server's.
    Without ``size`` (bytes of payload) the stream lasts ``seconds``; with it, ``seconds`` are about how long it takes.
    iperf3 counts in blocks of ``block`` bytes; its own 128 KiB are a second of 1 Mb/s. ``interval`` is its interval, s.
    """

    user: str
    server: str
    port: int
    attributes: Mapping[str, str]
    download: bool = False
    seconds: float = 10
    size: int | None = None
    block: int = 8192
    interval: float = INTERVAL

    @property
    def address(self) -> str:
        """The server's address."""
        return BY_NAME[self.server].address if self.server != WAN else "192.0.2.1"

    def client(self) -> str:
        """The command of the stream, with iperf3's measurement as JSON."""
        how = f"--time {self.seconds:g}" if self.size is None else f"--bytes {self.size}"
        back = " --reverse" if self.download else ""
        return (
            f"iperf3 --json --client {self.address} --port {self.port} {how} --length {self.block}"
            f" --interval {self.interval:g} --get-server-output{back}"
        )

    def script(self, begin: float) -> str:
        """The job's program; it finds its way to the server first, and waits for ``begin`` (seconds since 1970)."""
        return (
            f"ping -c 3 -i 0.2 -W 1 {self.address} >/dev/null\n"
            f"while [ $(date +%s%N) -lt {round(begin * 1e9)} ]; do sleep 0.1; done\n"
            f"exec {self.client()}\n"
        )


class Pool:
    """A pool that runs; see :func:`running`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._reference: reference.Way | None = None

    def put_policy(self, text: str) -> None:
        """Put a policy in force, and wait until every switch has it. Raises LabError with the controller's answer."""
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
            f"modprobe -a {' '.join(MODULES)} 2>/dev/null || true",
            f"ip link add i-{end} type ifb",
            f"ip link set i-{end} up",
            f"tc qdisc add dev {end} clsact",
            f"tc filter add dev {end} ingress matchall action mirred egress redirect dev i-{end}",
            *wire(end, rate),
            *wire(f"i-{end}", rate),
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

    def refer(self, way: reference.Way) -> None:
        """Let a reference stream go this way beside all that is measured from now on. Raises LabError."""
        for script in way.before:
            self._lab.run(["sh", "-ec", script])
        self._lab.on(way.server, "sh", "-c", reference.server(REFERENCE_PORT))
        self._reference = way

    def measured(self, loads: Sequence[Load], jobs: Sequence[Running] | None = None) -> Taken[list[Stream]]:
        """The same as :meth:`streams`, with the reference stream beside them and what the processors did meanwhile.

        Raises LabError where a stream fails, or where no way is named (:meth:`refer`).
        """
        if jobs is None:
            with self.jobs(loads) as started:
                return self.measured(loads, started)
        if self._reference is None:
            raise LabError("no way for the reference stream is named")
        begin = self.begin(jobs)
        seconds = max(load.seconds for load in loads)
        with self.watched(begin, seconds) as watched:
            found = self._run(loads, jobs, begin)
        return Taken(found, watched())

    @contextmanager
    def watched(self, begin: float, seconds: float) -> Iterator[Callable[[], Meanwhile]]:
        """Let the reference stream run for some seconds from ``begin`` (since 1970, by the lab's clock).

        Gives a function that returns, after the block, what went on in it.
        """
        way = self._reference
        if way is None:
            raise LabError("no way for the reference stream is named")
        waiting = f"while [ $(date +%s%N) -lt {round(begin * 1e9)} ]; do sleep 0.1; done\n"
        script = waiting + "exec " + way.client(REFERENCE_PORT, seconds, INTERVAL)
        timeout = seconds + STREAM_TIMEOUT
        with ThreadPoolExecutor(1) as thread:
            beside = thread.submit(self._lab.run, [*way.inside, "sh", "-c", script], timeout=timeout, check=False)
            before = self._processors()
            # Where the block raises, what went on does not matter.
            yield lambda: self._meanwhile(way, delivered(printed), before, after)
            printed = beside.result().stdout
            after = self._processors()

    @contextmanager
    def accompanied(self) -> Iterator[Callable[[float, float], tuple[Meanwhile, Counts]]]:
        """Let the reference stream run during the block, however long that is.

        Gives a function that returns, at the block's end, what went on between two times (seconds since 1970), and what
        the machine that the reference goes to received. Raises LabError.
        """
        way = self._reference
        if way is None:
            raise LabError("no way for the reference stream is named")
        before = self._processors()

        def between(begin: float, end: float) -> tuple[Meanwhile, Counts]:
            found = settled(counting, end)
            judged = self._meanwhile(way, found.rate(REFERENCE_PORT, begin, end), before, self._processors())
            return judged, found

        # The measurement begins later than the reference: its job is to be matched first.
        with counted(self._lab, way) as counting:
            yield between

    def alone(self, rate: float) -> Meanwhile:
        """Let the reference stream run alone at ``rate`` Mb/s, as much as was measured: a machine may be fast enough
        for a small stream and not for that. Raises LabError.
        """
        way = self._reference
        if way is None:
            raise LabError("no way for the reference stream is named")
        try:
            self._reference = replace(way, rate=rate)
            with self.watched(self.now() + READY, ALONE) as watched:
                pass
            return watched()
        finally:
            self._reference = way

    def _meanwhile(
        self, way: reference.Way, rate: float, before: Sequence[Processors], after: Sequence[Processors]
    ) -> Meanwhile:
        (outside, steal), (inside, _) = (one.shares(other) for one, other in zip(before, after, strict=True))
        return Meanwhile(rate / way.rate, steal, outside, inside)

    def _processors(self) -> tuple[Processors, Processors]:
        """Those of this machine and those of the lab's kernel."""
        outside = Processors.of(Path("/proc/stat").read_text())
        return outside, Processors.of(self._lab.run(["cat", "/proc/stat"]).stdout)

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
        return self._run(loads, jobs, self.begin(jobs))

    def begin(self, jobs: Sequence[Running]) -> float:
        """The time at which streams may begin in all of the jobs, by the lab's clock, seconds since 1970."""
        self._wait_until_enforced({job.id for job in jobs})
        return self.now() + READY + READY_EACH * len(jobs)

    def now(self) -> float:
        """The lab's clock, seconds since 1970."""
        return float(self._lab.run(["date", "+%s.%N"]).stdout)

    def _run(self, loads: Sequence[Load], jobs: Sequence[Running], begin: float) -> list[Stream]:
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

    def queued(self, loads: Sequence[Load]) -> list[str]:
        """Submit a job for each load at once, wait until all have left the queue, and answer what each printed.

        HTCondor decides which run at the same time. Raises LabError where one stays in the queue.
        """
        with ThreadPoolExecutor(8) as threads:
            submitted = list(
                threads.map(lambda load: submit.submit(self._lab, load.user, load.script(0), load.attributes), loads)
            )
        try:
            for jobs in submitted:
                submit.wait(self._lab, jobs, JOB_TIMEOUT)
            return [submit.output(self._lab, jobs) for jobs in submitted]
        except LabError:
            remove(self._lab, submitted)
            raise

    def executed(self, load: Load, script: str, worker: str, timeout: float) -> Executed:
        """A job of its own for a load, whose program is ``script``, from its submission until it has ended.

        Its worker's starter has to log fractions of a second (:data:`lab.starts.DEBUG`). Raises LabError where it does
        not end.
        """
        jobs = submit.submit(self._lab, load.user, script, load.attributes)
        try:
            submit.wait(self._lab, jobs, timeout)
        except LabError:
            remove(self._lab, [jobs])
            raise
        log = f"$(grep -l 'Job {jobs.cluster}.0 set to execute' {STARTER_LOGS} | head -n 1)"
        at = starts.moments(self.on(worker, f"tail -n 300 {log}"))
        return Executed(at["exited"] - at["made"], submit.output(self._lab, jobs))

    def configure(self, worker: str, text: str) -> None:
        """Let HTCondor on a worker have this configuration beside its own; empty for none."""
        self._lab.write(worker, TRIAL, text)
        self._lab.on(worker, "condor_reconfig")

    @contextmanager
    def bandwidth(self, worker: str, rate: int) -> Iterator[None]:
        """Let a worker advertise ``rate`` Mb/s for a while, of which the negotiator gives every part.

        Otherwise a schedd that has been matched once gives what is left to further jobs of the same user, past the
        users' priorities. Those begin at the same for all. Raises LabError where the worker does not come back with it.
        """
        # The slot has less left while it still holds the claim of a job that is over.
        before = self._advertised(worker, "TotalSlotBandwidth")
        self.configure(worker, f"MACHINE_RESOURCE_INVENTORY_Bandwidth = {INVENTORY} {UPLINK} {rate}\n{NO_LEFTOVERS}")
        self._lab.on("central", "condor_userprio", "-resetall")
        self._restart(worker, str(rate))
        try:
            yield
        finally:
            self.configure(worker, "")
            self._restart(worker, before)

    def _restart(self, worker: str, wanted: str) -> None:
        """Start a worker's startd anew, since it asks for its resources at its start alone."""
        self._lab.on(worker, "condor_restart", "-startd")
        self.advertises(worker, "Bandwidth", wanted)

    def advertises(self, worker: str, attribute: str, wanted: str) -> None:
        """Wait until the pool has this value of a worker's attribute. Raises LabError after a while."""
        deadline = time.monotonic() + RESTART_TIMEOUT
        while (found := self._advertised(worker, attribute)) != wanted:
            if time.monotonic() > deadline:
                raise LabError(f"{worker} advertises {attribute} {found!r}, not {wanted!r}")
            time.sleep(0.5)

    def _advertised(self, worker: str, attribute: str) -> str:
        """The attribute as ``condor_status`` prints it; empty where the pool has no such worker."""
        constraint = f'Machine == "{worker}.{DOMAIN}" && SlotType == "Partitionable"'
        return self._lab.on("central", "condor_status", "-constraint", constraint, "-af", attribute).stdout.strip()

    def counted(self, name: str) -> float:
        """A counter of the controller's, of its metrics. Raises LabError where it has none of that name."""
        address = BY_NAME["controller"].address
        ask = f'exec curl -sS --fail --max-time 30 -H "Authorization: Bearer $(cat {OPERATOR_TOKEN})" '
        shown = self._lab.on("controller", "sh", "-c", f"{ask} http://{address}:{REST_PORT}/metrics").stdout
        for line in shown.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise LabError(f"the controller counts no {name}")

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
