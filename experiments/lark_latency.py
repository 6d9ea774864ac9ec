"""Lark's experiments on latency: a ping with and without Open vSwitch, and the wait of a first packet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from experiments import paper, reference
from experiments.beside import Kept, Taken, repeat
from experiments.options import Options
from experiments.pool import FIRST_PORT, READY, SITE, Load, Pool, policy, running
from experiments.result import Beside, Check, Point, Result, Series
from lab.inside.topology import BY_NAME
from lab.jobs import Running
from lab.run import LabError

WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
# A machine of the site whose way to the server leads over plain Linux bridges alone.
PLAIN: Final = "central"
PINGS: Final = 60
FULL: Final = 50.0
# Destinations of first packets: addresses that the server gets for it, in the jobs' network, without a gateway between.
DESTINATIONS: Final = 10
# Those that are pinged before, and those that nobody has sent to: further ones for each measurement.
_KNOWN: Final = tuple(f"10.64.200.{number}" for number in range(1, DESTINATIONS + 1))
_UNKNOWN: Final = "10.64.201.{}"
# So many measurements have addresses of their own; for two kinds of first packets and all their tries.
_MOST: Final = 250 // DESTINATIONS
# Seconds that the pings of one measurement take, about; and those that the controller is asked about, with its counts.
SECONDS: Final = 6.0
SECONDS_DECIDED: Final = 12.0
TIMEOUT: Final = 120
# Deletes the kernel's flows of a worker's Open vSwitch.
FORGET: Final = "ovs-appctl dpctl/del-flows"
_TIME = re.compile(r"time=([0-9.]+) ms")
# Times of one measurement, ms.
Times = list[float]


def run(options: Options) -> tuple[Result, ...]:
    """All of them, in one lab."""
    host = BY_NAME[SITE].address
    ping = f"ping -c {PINGS} -i 0.05 {host}"
    # The first packets towards another network take the gateway's redirect; they are no flow set-up.
    ready = f"ping -c 3 -i 0.2 -W 1 {host} >/dev/null; "
    with running() as pool:
        pool.serve(SITE, 1)
        pool.refer(reference.to_worker(reference.LEAST, SITE, WORKER))
        add(pool, _KNOWN)
        unknown = (
            tuple(_UNKNOWN.format(one * DESTINATIONS + number) for number in range(1, DESTINATIONS + 1))
            for one in range(_MOST)
        )

        def several(
            measure: Callable[[], Times], before: Callable[[], object] = lambda: None, seconds: float = SECONDS
        ) -> Kept[Times]:
            return repeat(lambda: _beside(pool, measure, before, seconds), options.repetitions)

        capped = policy("policies:\n  - bandwidth: {mode: cap}")
        pool.put_policy(capped)
        plain = several(lambda: times(pool.on(PLAIN, ready + ping)))
        on_worker = several(lambda: times(pool.on(WORKER, ready + ping)))
        with pool.jobs([_load({})]) as (job,):
            in_job = several(lambda: _pinged(job, ready + ping))
            first = several(lambda: _first(pool, job, _KNOWN), lambda: _run(job, _to_each(3)))
            new = several(lambda: _first(pool, job, added(pool, unknown)))
        with pool.jobs([_load({"+RequestBandwidth": f"{FULL:g}"})]) as (job,):
            sent, received = (
                several(partial(_pinged, job, _through_a_full_queue(host, ready, back))) for back in ("", " --reverse")
            )
        # Without the jobs' networks there is nothing that the controller could assign addresses from.
        pool.configure(WORKER, 'AddressType = "dhcp"\n')
        pool.advertises(WORKER, "AddressType", "dhcp")
        pool.put_policy(reactive())
        with pool.jobs([_load({})]) as (job,):
            decided = several(lambda: decided_about(pool, job, _KNOWN), lambda: _forget(pool, job), SECONDS_DECIDED)
            decided_new = several(
                lambda: decided_about(pool, job, added(pool, unknown)),
                lambda: pool.on(WORKER, FORGET),
                SECONDS_DECIDED,
            )
    places = {
        "two machines,\nno Open vSwitch": plain,
        "worker": on_worker,
        "job": in_job,
        "job, first packet,\nflows stand": first,
        "job, first packet,\nflows stand,\nnew address": new,
        "job, first packet,\ncontroller decides": decided,
        "job, first packet,\ncontroller decides,\nnew address": decided_new,
        "job, sends\nat its limit": sent,
        "job, receives\nat its limit": received,
    }
    return (latency(places, options),)


def add(pool: Pool, addresses: Sequence[str]) -> Sequence[str]:
    """Give the server these addresses; returns them."""
    pool.on(SITE, "\n".join(f"ip address add {one}/16 dev eth0 2>/dev/null || true" for one in addresses))
    return addresses


def added(pool: Pool, unknown: Iterator[Sequence[str]]) -> Sequence[str]:
    """Give the server the next addresses that nobody has sent to. Raises LabError where there are none left."""
    addresses = next(unknown, None)
    if addresses is None:
        raise LabError(f"first packets were measured {_MOST} times; there are no further addresses")
    return add(pool, addresses)


def _load(lines: Mapping[str, str]) -> Load:
    return Load("alice", SITE, FIRST_PORT, {**HERE, **lines})


def _run(job: Running, script: str) -> str:
    return job.run(script, TIMEOUT).stdout


def _pinged(job: Running, script: str) -> Times:
    return times(_run(job, script))


def _beside(pool: Pool, measure: Callable[[], Times], before: Callable[[], object], seconds: float) -> Taken[Times]:
    """One measurement with the reference stream beside it. Raises LabError where no ping is answered."""
    before()
    with pool.watched(pool.now() + READY, seconds) as watched:
        found = measure()
    if not found:
        raise LabError("no ping was answered")
    return Taken(found, replace(watched(), programs=True))


def reactive() -> str:
    """A policy by which the controller decides about a job's first packet to every local address.

    Without the jobs' networks an address may be a job's or none, and a sliced job's packets to it are asked about.
    """
    text = policy("policies:\n  - slice: {by: Owner}")
    return re.sub(r"^  (jobs|hosts): .*\n", "", text, flags=re.MULTILINE)


def times(printed: str) -> Times:
    """Round-trip times in ms, as ``ping`` prints them."""
    return [float(found) for found in _TIME.findall(printed)]


def _to(address: str, count: int) -> str:
    return f"ping -c {count} -i 0.2 -W 2 {address}"


def _to_each(count: int) -> str:
    return "; ".join(_to(address, count) for address in _KNOWN)


def _first(pool: Pool, job: Running, addresses: Sequence[str]) -> Times:
    """First packets to destinations of which no switch's kernel has a flow: Open vSwitch looks its tables through.

    Where a destination has been pinged before, its MAC address is known; where not, the job asks for it first, and the
    time has that, too. A packet that is not answered has no time.
    """
    found: Times = []
    for one in addresses:
        pool.on(WORKER, FORGET)
        found += times(_run(job, _to(one, 1)))
    return found


def _forget(pool: Pool, job: Running) -> None:
    """Let the job learn every destination, and the controller take the answers away that it has given about them."""
    _run(job, _to_each(3))
    # A change of policy does that.
    pool.put_policy(policy("policies:\n  - slice: {by: Owner}"))
    pool.put_policy(reactive())
    pool.on(WORKER, FORGET)


def decided_about(pool: Pool, job: Running, addresses: Sequence[str]) -> Times:
    """First packets that the controller is asked about, with all that it takes until the answer is back.

    A packet that is not answered has no time. Raises LabError where the controller's count of questions has not risen
    with each of them: an answer may be a question too, so that their sum shows less.
    """
    found: Times = []
    asked = pool.counted("lark_packet_ins_total")
    for one in addresses:
        found += times(_run(job, _to(one, 1)))
        before, asked = asked, pool.counted("lark_packet_ins_total")
        if asked <= before:
            raise LabError(f"the first packet to {one} did not come to the controller")
    return found


def _through_a_full_queue(host: str, ready: str, back: str) -> str:
    """A script that pings while the job's own stream fills its queue: what it sends, or with ``back`` receives."""
    return (
        f"{ready}iperf3 --client {host} --port {FIRST_PORT} --time 8{back} >/dev/null & sleep 2\n"
        f"ping -c {PINGS} -i 0.05 {host}\nwait\n"
    )


def latency(places: Mapping[str, Kept[Times]], options: Options) -> Result:
    """Medians of each kind, in ms; of the repetitions of each place."""
    points = tuple(Point.judged(place, kept, median) for place, kept in enumerate(places.values(), 1))
    plain, worker, job, first, new, decided, decided_new, sent, received = points
    return Result(
        name="lark-latency",
        title="Round-trip times of pings on the site's network",
        source="Lark, sections VII.B.2 and VII.B.3",
        x_label="where",
        y_label="median round-trip time, ms",
        series=(
            Series("here", points),
            Series(
                "first packets, by a controller",
                tuple(Point(each.x, paper.FIRST_PACKET_MS) for each in (decided, decided_new)),
                paper=True,
            ),
        ),
        checks=(
            _longer("Open vSwitch on the worker: at most 0.2 ms more than without one", plain, worker, 0.2),
            _longer("a job's ping: at most 0.2 ms more than the worker's", worker, job, 0.2),
            _answered(list(places.values())[3:7]),
            _longer("a first packet whose flows stand: at most 5 ms more than later ones", job, first, 5),
            _longer("the same to an address that nobody has sent to: at most 5 ms more than later ones", job, new, 5),
            Check.of(
                "a first packet that the controller decides about: less than the paper's 50 ms",
                [(each.y, each.marked) for each in (decided, decided_new)],
                lambda ms: ms < paper.FIRST_PACKET_MS,
                "{} to {} ms",
            ),
            Check.of(
                f"through a full queue of {FULL:g} Mb/s at most 3 ms",
                [(each.y, each.marked) for each in (sent, received)],
                lambda ms: ms <= 3,
                "{} to {} ms",
            ),
        ),
        setting={"repetitions": options.repetitions, "pings": PINGS, "first packets": DESTINATIONS},
        notes=(
            "The paper finds the difference that Open vSwitch makes negligible, and about 50 ms for the first packets "
            "of a flow, which its controller decides about.",
            "A first packet here is an echo request to an address of the jobs' network. To a new address nobody has "
            "sent anything, so the job asks for the MAC address first, and that is in the time; the others' "
            "addresses have been pinged before, so theirs are known. "
            "Lark's own flows stand before the job starts, and the kernel's flows of the worker's Open vSwitch are "
            "deleted before each packet.",
            "The controller decides as the paper's does where the policy does not name the jobs' networks. The "
            "answers that it has given about addresses pinged before are taken away, and the kernel's flows are "
            f"deleted once, before all {DESTINATIONS}; the controller's count of questions rises with each. The "
            "paper's 50 ms are for forwarding a packet, looking the job up and installing a rule; the time here is "
            "the whole round trip's.",
            "In User Mode Linux, system calls and the kernel's work take several times as long as natively.",
        ),
        places=tuple(places),
        beside=Beside.of(each for kept in places.values() for each in kept.taken),
    )  # fmt: skip


def _answered(firsts: Sequence[Kept[Times]]) -> Check:
    """Hold the number of answers to first packets to that of the packets, in all measurements that count."""
    sent = sum(DESTINATIONS * len(kept.values) for kept in firsts)
    answered = sum(len(times) for kept in firsts for times in kept.values)
    marked = all(kept.marked for kept in firsts)
    return Check("every first packet is answered", f"{answered} of {sent}", answered == sent, marked)


def _longer(aim: str, less: Point, more: Point, most: float) -> Check:
    """Hold the difference of two medians to a limit, in ms."""
    difference = [(more.y - less.y, more.marked or less.marked)]
    return Check.of(aim, difference, lambda ms: ms <= most, f"{more.y:.3f} ms against {less.y:.3f}: {{}} ms more")
