"""Runs applications on a cluster of nodes, inside the lab: ``python3 -m experiments.cluster``, a request on standard
input.

An application is the exchange of :mod:`experiments.exchange`, or an MPI program of :mod:`experiments.applications`. The
nodes are those of :mod:`experiments.nodes`.

The request is JSON: :class:`Request`'s fields. Every measurement is a line of JSON in the file MEASURED as soon as it
is made: the run's name, the members of :class:`Played`, the part of its rate that a reference stream over the first
node's cable delivered meanwhile, the share of the lab's processor that worked, and from when to when it ran; or the
run's name and the reason of its failure. Runs as root in a namespace with nothing else in it. Standard library only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments import reference
from experiments.applications import Application
from experiments.beside import TRIES, Meanwhile, Processors, Taken, wants_more
from experiments.cable import REFERENCE_PORT
from experiments.job_sockets import job_socket
from experiments.losses import NOTHING, Losses, lost
from experiments.nodes import (
    STATE,
    SWITCH,
    TOKEN,
    URL,
    Member,
    Request,
    Run,
    add_job,
    applications,
    bridge,
    controller,
    frozen,
    leaves,
    make_switches,
    release,
    reserve,
    rewire,
    schedulers,
)
from lab.run import LabError, run

RUN_SECONDS = 300
# The lab's directory, which stays when the lab has ended.
MEASURED = "/lark/run/measured"
# How often a run may fail until it is left out.
FAILURES = 2
REFERENCE = "reference"
REFERENCE_SOURCE, REFERENCE_TARGET = "10.0.77.2", "10.0.77.1"
# Seconds until the reference stream counts.
REFERENCE_SETTLED = 1.0
# Bytes of IPv4 and TCP with timestamps before the payload: an internal port of Open vSwitch counts what it receives
# without the 14 of Ethernet.
HEADERS = 52
# Mb/s that is reserved for flows that send nothing, so that there are queues.
LITTLE = 0.02
# Bytes of a full frame, and of its payload.
FRAME, PAYLOAD = 1514, 1448


def exchange(application: int, request: Request, nodes: Sequence[int]) -> list[subprocess.Popen[str]]:
    """Start an application on all of its nodes."""
    addresses = ",".join(Member(application, node).address for node in nodes)
    return [
        subprocess.Popen(
            [*Member(application, node).inside, sys.executable, "-m", "experiments.exchange",
             str(rank), "--hosts", addresses, "--bytes", str(request.size), "--rounds", str(request.rounds)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip


def seconds(started: Sequence[subprocess.Popen[str]]) -> float:
    """The time of an exchange on its slowest node. Raises LabError where a node failed."""
    took = []
    for process in started:
        printed, _ = process.communicate(timeout=RUN_SECONDS)
        if process.returncode != 0:
            raise LabError(f"a node of the application ended with status {process.returncode}")
        took.append(float(json.loads(printed)["seconds"]))
    return max(took)


@contextlib.contextmanager
def background(sender: Member, targets: Sequence[Member], rate: float | None) -> Iterator[None]:
    """TCP streams from a job to others, each at this rate, Mb/s of L2 bytes, at most."""
    bound = [] if rate is None else ["--bitrate", f"{rate * PAYLOAD / FRAME:g}M"]
    processes = []
    try:
        for target in targets:
            server = [*target.inside, "iperf3", "--server", "--one-off"]
            processes.append(subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(0.5)
        for target in targets:
            client = [*sender.inside, "iperf3", "--client", target.address, "--time", str(RUN_SECONDS), *bound]
            processes.append(subprocess.Popen(client, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        # The measurement begins when the streams have their share.
        time.sleep(2 if targets else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


# Frames: when each was whole, seconds since 1970, and its bytes.
Shown = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Played:
    """One run: the ``seconds`` of each application, and the Mb/s of L2 bytes that came of each background flow.

    ``parts`` are the seconds of each application's parts, by name; ``shown`` are the frames that each has
    shown; ``losses`` are those of all meanwhile, and ``round_trip`` the mean of pings between two nodes of the first
    application, ms, 0 where none ran.
    """

    seconds: tuple[float, ...]
    background: tuple[float, ...] = ()
    parts: tuple[Mapping[str, float], ...] = ()
    shown: tuple[Shown, ...] = ()
    losses: Losses = NOTHING
    round_trip: float = 0.0


def play(request: Request, one: Run, noise: int) -> Played:
    """One run. ``noise`` is the application whose jobs make the background."""
    made = []
    for application, rate in enumerate(one.rates):
        if rate is not None and not one.delay(application):
            made += reserve(application, request.nodes_of(application, one), rate, floor=one.floor)
    if one.queued:
        # The last application sends nothing.
        for application in range(one.sets):
            nodes = request.nodes_of(application, one)
            made += reserve(applications(request) - 1, nodes, LITTLE, floor=False)
    sender, *others = (Member(noise, node) for node in request.nodes_of(noise, one))
    targets = others[: one.background]
    try:
        with background(sender, targets, one.pace):
            missed = _losses(request, one)
            began, before = time.monotonic(), _background_bytes(targets)
            with pinged(request, one) as round_trip:
                found = _programs(request, one) if one.programs else _exchanges(request, one)
            ended, after = time.monotonic(), _background_bytes(targets)
            missed = _losses(request, one).since(missed)
    finally:
        release(made)
    came = ((last - first) * 8 / 1e6 / (ended - began) for first, last in zip(before, after, strict=True))
    return replace(found, background=tuple(came), losses=missed, round_trip=round_trip())


@contextlib.contextmanager
def pinged(request: Request, one: Run) -> Iterator[Callable[[], float]]:
    """Ping from the first application's second node to its first during the block; gives a function that returns, after
    it, the mean round trip in ms, 0 where none came back. Where the run has none, nothing is sent."""
    if not one.pinged:
        yield lambda: 0.0
        return
    first, second, *_ = (Member(0, node) for node in request.nodes_of(0, one))
    with tempfile.TemporaryFile("w+") as printed:
        command = [*second.inside, "ping", "-q", "-i", "0.2", first.address]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
        try:
            yield lambda: mean_round_trip(text)
        finally:
            # On this signal it prints what it has measured.
            process.send_signal(signal.SIGINT)
            process.wait(10)
            printed.seek(0)
            text = printed.read()


def mean_round_trip(printed: str) -> float:
    """The mean of what ``ping`` prints at its end, ms; 0 where there is none."""
    found = re.search(r"^rtt min/avg/max/mdev = [0-9.]+/([0-9.]+)/", printed, flags=re.MULTILINE)
    return float(found[1]) if found else 0.0


def _losses(request: Request, one: Run) -> Losses:
    """The losses of a run's applications until now."""
    members = [
        Member(application, node)
        for application in range(len(one.rates))
        for node in request.nodes_of(application, one)
    ]
    return lost(schedulers(request), (member.inside for member in members))


def _exchanges(request: Request, one: Run) -> Played:
    started = [
        exchange(application, request, request.nodes_of(application, one)) for application in range(len(one.rates))
    ]
    try:
        return Played(tuple(seconds(each) for each in started))
    finally:
        for process in itertools.chain(*started):
            # Where one has failed the others wait for it.
            process.kill()
            process.wait()


def _programs(request: Request, one: Run) -> Played:
    began = time.monotonic()
    with ThreadPoolExecutor(len(one.programs)) as threads:
        started = [
            threads.submit(_program, request, one, application, began) for application in range(len(one.programs))
        ]
        found = [each.result() for each in started]
    parts, shown = tuple(each[0] for each in found), tuple(each[1] for each in found)
    return Played(tuple(sum(each.values()) for each in parts), (), parts, shown)


def _program(request: Request, one: Run, application: int, began: float) -> tuple[Mapping[str, float], Shown]:
    """The seconds of an application's parts and the frames that it has shown; one that begins later reserves then."""
    delay, rate = one.delay(application), one.rates[application]
    time.sleep(max(0.0, began + delay - time.monotonic()))
    late = one.late if delay else ()
    made, nodes = [], late or request.nodes_of(application, one)
    if rate is not None and delay:
        made = reserve(application, nodes, rate, floor=one.floor, to_first=bool(late))
    try:
        names = [Member(application, node).name for node in nodes]
        arguments = one.arguments[application] if one.arguments else ()
        program = Application(one.programs[application], names, STATE / f"work{application}", STATE, arguments)
        try:
            return program.wait(), program.shown()
        finally:
            program.end()
    finally:
        release(made)


def _background_bytes(targets: Iterable[Member]) -> list[int]:
    """The bytes that the target of each background flow has been given: its job has no other traffic."""
    return [int(Path(f"/sys/class/net/{each.port}/statistics/tx_bytes").read_text()) for each in targets]


def make_reference() -> None:
    """A host on the switch, and a server behind the first node's cable: on the bridge itself, which has no queue."""
    run(["ip", "netns", "add", REFERENCE])
    run(["ip", "link", "add", REFERENCE, "type", "veth", "peer", "name", "eth0", "netns", REFERENCE])
    run(["ip", "link", "set", REFERENCE, "up"])
    run(["ovs-vsctl", "add-port", SWITCH, REFERENCE])
    for command in (
        ["link", "set", "eth0", "gso_max_segs", "1", "up"],
        ["address", "add", f"{REFERENCE_SOURCE}/24", "dev", "eth0"],
    ):
        run(["ip", "-n", REFERENCE, *command])
    run(["ip", "link", "set", bridge(0), "up"])
    run(["ip", "address", "add", f"{REFERENCE_TARGET}/24", "dev", bridge(0)])
    run(["sh", "-c", reference.server(REFERENCE_PORT)])


@contextlib.contextmanager
def referred(request: Request) -> Iterator[Callable[[], float]]:
    """Let the reference stream run during the block; gives a function that returns, after it, the part of its rate."""
    way = reference.Way((), "", REFERENCE_TARGET, reference.rate(request.link))
    command = way.client(REFERENCE_PORT, RUN_SECONDS, 0.5)
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(["nsenter", f"--net=/run/netns/{REFERENCE}", *command.split()], stdout=printed)
        try:
            time.sleep(REFERENCE_SETTLED)
            began = _received()
            at = time.monotonic()
            yield lambda: (ended - began) * 8 / 1e6 / (until - at) / way.rate
            ended, until = _received(), time.monotonic()
        finally:
            process.kill()
            process.wait()


def _received() -> int:
    """Bytes of payload that have come to the reference's server, however many frames the kernel has joined."""
    counted = Path(f"/sys/class/net/{bridge(0)}/statistics")
    return int((counted / "rx_bytes").read_text()) - HEADERS * int((counted / "rx_packets").read_text())


def taken(request: Request, one: Run, noise: int) -> dict[str, Any]:
    """One run with the reference stream beside it."""
    rewire(request, one)
    before, began = Processors.of(Path("/proc/stat").read_text()), time.time()
    with referred(request) as part:
        found = play(request, one, noise)
    busy, _ = before.shares(Processors.of(Path("/proc/stat").read_text()))
    return {
        "played": asdict(found),
        "reference": part(),
        "inside": busy,
        "began": began,
        "ended": time.time(),
    }


def measure(request: Request, measured: Path) -> None:
    """Measure each run of a request by turns, and append what was taken to ``measured``."""
    noise = max(len(each.rates) for each in request.runs)
    STATE.mkdir(parents=True, exist_ok=True)
    make_switches(request)
    make_reference()
    with leaves(), controller(request), contextlib.ExitStack() as sockets, measured.open("a") as lines:
        for application in range(applications(request)):
            for node in request.every_node:
                member = Member(application, node)
                job = add_job(member)
                sockets.enter_context(job_socket(STATE / f"{member.name}.sock", job, URL, TOKEN.read_text()))
        for line in repeated(request, lambda one: taken(request, one, noise)):
            lines.write(json.dumps(line) + "\n")
            lines.flush()


def repeated(request: Request, take: Callable[[Run], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Take every run until enough was sound, or the time is over; gives each measurement, and each failure.

    One that fails is taken again at its next turn, at most FAILURES times, and the others go on.
    """
    found: dict[str, list[dict[str, Any]]] = {each.name: [] for each in request.runs}
    failures = dict.fromkeys(found, 0)
    until = time.monotonic() + request.seconds
    # By turns, so that what else the machine does falls on all alike; again what was not sound.
    for turn in range(request.repetitions * max(each.often for each in request.runs) * TRIES):
        for each in request.runs:
            if turn and time.monotonic() > until:
                return
            sound = list(map(of_json, found[each.name]))
            if failures[each.name] >= FAILURES or not wants_more(sound, request.repetitions * each.often):
                continue
            # Where the time is over, it is shown which run was under way.
            print(f"{time.strftime('%H:%M:%S')} {each.name}", file=sys.stderr, flush=True)
            try:
                found[each.name].append(take(paced(each, found.get(each.like, ()))))
            except (LabError, OSError, subprocess.SubprocessError) as error:
                failures[each.name] += 1
                print(f"{each.name}: {error}", file=sys.stderr, flush=True)
                yield {"run": each.name, "failed": str(error)}
            else:
                yield {"run": each.name, "taken": found[each.name][-1]}


def paced(one: Run, like: Sequence[dict[str, Any]]) -> Run:
    """The run with background flows as fast as one was the last time in the run that it is ``like``.

    So the processor has as much to do for them in both, of which the one shares links with them and the other none.
    """
    if not like:
        return one
    rates = like[-1]["played"]["background"]
    return replace(one, pace=sum(rates) / len(rates)) if rates else one


def of_json(found: dict[str, Any], steal: float = 0.0, outside: float = 0.0) -> Taken[Played]:
    """Read what :func:`taken` answers, with what is known of the machine's processors outside."""
    values = {name: frozen(value) for name, value in found["played"].items()}
    played = Played(**values | {"losses": Losses(**values.get("losses", {}))})
    return Taken(played, Meanwhile(found["reference"], steal, outside, found["inside"]))


def main() -> int:
    """Run as a program."""
    try:
        measure(Request.of(json.load(sys.stdin)), Path(MEASURED))
    except (LabError, OSError, subprocess.SubprocessError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
