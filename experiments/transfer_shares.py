"""Groups with guarantees while both upload their jobs' outputs to the WAN, and pings of a third group's job meanwhile.

The outputs are moved by HTCondor's plugin for URLs, from the workers' own network; a rule of transfers gives them their
groups' marks (DSCP), and the core has a queue for each group. Where the kernel has no Open vSwitch, whose own datapath
has no queues, those are a queue for each mark on the cable behind the core's WAN port, as an administrator makes them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Final

from experiments import reference
from experiments.beside import Kept, Taken, keep, repeat
from experiments.cable import MARGIN, held
from experiments.lark_latency import times
from experiments.lark_start import settings
from experiments.lark_wan import CMS, GATEWAY
from experiments.options import Options
from experiments.pool import FRAME, PAYLOAD, SITE, WAN, Pool, policy
from experiments.result import Beside, Check, Point, Result, Series
from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, WAN_ADDRESSES, cable
from lab.jobs import Running, Wish, running
from lab.run import LabError

# The server's ports, by the group whose outputs it takes there; of whom the jobs are, and their lines.
PORTS: Final[Mapping[str, int]] = {"cms": 8101, "other": 8102}
OWNERS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {"cms": ("alice", CMS), "other": ("bob", {})}
JOBS: Final = 2
WORKER: Final = "worker1"
HERE: Final = {"requirements": f'Machine == "{WORKER}.lab.test"'}
# Seconds that an output takes at its group's rate, until all are on their way, and of the end that does not count.
SECONDS: Final = 24.0
SETTLED: Final = 6.0
LAST: Final = 2.0
# All jobs are on one worker, where a file lets their programs end together, and so their outputs begin.
FLAGS: Final = "/home/shares"
TIMEOUT: Final = 600.0
PINGS: Final = 40
# How far a group may be from its share, and the most that a ping may take, ms.
WITHIN: Final = 0.05
MOST_MS: Final = 3.0
RULE: Final = "policies:\n  - transfers: {}"
# The groups of the policy: those that upload, and the third job's, each with its mark.
MARKS: Final[Mapping[str, int]] = {"cms": 18, "other": 10, "third": 12}


@dataclass(frozen=True, slots=True)
class Shares:
    """The rates of each group's outputs, Mb/s of L2 bytes, and the third job's median round trips in ms: to a machine
    of the site, and to the WAN host; each when nothing else goes on (``idle``), and meanwhile (``full``)."""

    rates: Mapping[str, float]
    idle: Mapping[str, float]
    full: Mapping[str, float]


def run(options: Options) -> tuple[Result, ...]:
    """Measure natively: User Mode Linux has no nf_tables, by which a worker marks."""
    with Lab.start(settings()) as lab:
        lab.start_pool()
        return (shares(_measure(lab, Pool(lab), options), options, lab.choice.kind),)


def groups(rates: Mapping[str, float], scale: float, *, made: bool) -> str:
    """The section of the policy, with queues of the controller's or, where they are ``made`` already, by their
    numbers."""

    def queue(name: str) -> str:
        if made:
            return f"queue: {MARKS[name]}"
        rate = rates.get(name)
        return "priority: 0" if rate is None else f"guarantee: {rate * scale:g}Mbit, ceiling: {rate * scale:g}Mbit"

    return (
        "groups:\n"
        f"  group_cms: {{port: wan, dscp: {MARKS['cms']}, {queue('cms')}}}\n"
        f"  third: {{when: 'Owner == \"carol\"', port: wan, dscp: {MARKS['third']}, {queue('third')}}}\n"
        f"  default: {{port: wan, dscp: {MARKS['other']}, {queue('other')}}}\n"
    )


def queues(device: str, rates: Mapping[str, float], wan: float) -> list[str]:
    """Let what leaves a device wait in a queue for each mark, with its group's guarantee and ceiling, and the rest in
    one that has what is left; as the controller makes them in Open vSwitch, whose queues are HTB's too."""
    rest = wan - sum(rates.values())
    lines = [
        f"tc qdisc add dev {device} root handle 1: htb default {MARKS['third']}",
        f"tc class add dev {device} parent 1: classid 1:1 htb rate {wan:g}mbit",
    ]
    for name, mark in MARKS.items():
        least, most = (rates[name], rates[name]) if name in rates else (rest, wan)
        packets = held(most)
        lines += [
            f"tc class add dev {device} parent 1:1 classid 1:{mark} htb rate {least:g}mbit ceil {most:g}mbit",
            f"tc qdisc add dev {device} parent 1:{mark} pfifo limit {packets}",
            f"tc filter add dev {device} parent 1: protocol ip u32 match ip dsfield {mark << 2} 0xfc flowid 1:{mark}",
        ]
    return lines


def _measure(lab: Lab, pool: Pool, options: Options) -> Kept[Shares]:
    wan = options.rates.wan_link * options.part
    pool.refer(reference.to_wan(wan, WAN))
    made = lab.choice.kind == "userspace"
    text = policy(RULE, groups(options.rates.wan_queues, options.part, made=made), wan=wan)
    if made:
        rates = {name: options.rates.wan_queues[name] * options.part for name in PORTS}
        end = cable(BY_NAME[GATEWAY], BY_NAME[GATEWAY].nics[0])
        lab.run(["sh", "-ec", "\n".join(queues(end, rates, wan))])
        pool.put_policy(text.replace("groups_by: queues", "groups_by: preprovisioned"))
    else:
        pool.limit(BY_NAME[GATEWAY], 0, wan * MARGIN)
        pool.put_policy(text)
    serve = "cd /lark/run/source && exec env PYTHONPATH=. setsid python3 -m experiments.sink "
    lab.on(WAN, "sh", "-c", f"({serve} {' '.join(map(str, PORTS.values()))}) >/var/log/sink.log 2>&1 </dev/null &")
    with running(lab, [Wish("carol", HERE)]) as (third,):
        return repeat(lambda: _one(lab, pool, third, options), options.repetitions)


def _one(lab: Lab, pool: Pool, third: Running, options: Options) -> Taken[Shares]:
    idle = _pings(third)
    pool.on(WORKER, f"rm -rf {FLAGS}; mkdir -m 1777 {FLAGS}")
    jobs = [_submit(lab, name, options) for name in PORTS]
    ready = f"[ $(ls {FLAGS} | wc -l) -ge {JOBS * len(jobs)} ]"
    lab.on(WORKER, "sh", "-c", f"until {ready}; do sleep 0.2; done", timeout=TIMEOUT)
    _wait_until_enforced(lab, [f"{each.cluster}.{process}" for each in jobs for process in range(JOBS)])
    with pool.accompanied() as counted:
        pool.on(WORKER, f"touch {FLAGS}/go")
        begin = pool.now()
        lab.run(
            ["sh", "-c", f"while [ $(date +%s%N) -lt {round((begin + SETTLED) * 1e9)} ]; do sleep 0.2; done"],
            timeout=90,
        )
        full = _pings(third)
        first, last = begin + SETTLED, begin + SECONDS - LAST
        meanwhile, counts = counted(first, last)
    for each in jobs:
        submit.wait(lab, each, TIMEOUT)
    rates = {name: counts.rate(port, first, last) * FRAME / PAYLOAD for name, port in PORTS.items()}
    if not all(rates.values()):
        raise LabError(f"a group has uploaded nothing: {rates}")
    print(
        f"shares: {rates} Mb/s, pings {idle} {full}, reference {meanwhile.reference:.3f}", file=sys.stderr, flush=True
    )
    return Taken(Shares(rates, idle, full), meanwhile)


def _wait_until_enforced(lab: Lab, jobs: Sequence[str]) -> None:
    """Wait until the worker has the rule of each job's transfers. Raises LabError after a while."""
    deadline = time.monotonic() + TIMEOUT
    for job in jobs:
        while not (controller.api(lab, f"/v1/jobs/{job}")["transfers"] or {}).get("enforced"):
            if time.monotonic() > deadline:
                raise LabError(f"the worker does not have the rule of job {job}'s transfers")
            time.sleep(0.5)


def _submit(lab: Lab, name: str, options: Options) -> submit.Jobs:
    """Submit a group's jobs, whose outputs are uploaded as soon as the worker has the flag."""
    user, lines = OWNERS[name]
    size = round(options.rates.wan_queues[name] * options.part * 1e6 / 8 * SECONDS / JOBS)
    flag = f"touch {FLAGS}/{name}.$$\nuntil [ -e {FLAGS}/go ]; do sleep 0.1; done"
    script = f"head -c {size} /dev/zero >result\n{flag}"
    url = f"http://{WAN_ADDRESSES[1][0]}:{PORTS[name]}/$(ClusterId).$(ProcId)"
    attributes = {
        **HERE,
        **lines,
        "request_disk": str(size // 512 + 1000),
        "transfer_output_files": "result",
        "transfer_output_remaps": f'"result = {url}"',
    }
    return submit.submit(lab, user, script, attributes, JOBS)


def _pings(job: Running) -> dict[str, float]:
    """The job's median round trips to the site and to the WAN, ms. Raises LabError where one is not answered."""
    found = {}
    for place, address in (("site", BY_NAME[SITE].address), ("WAN", WAN_ADDRESSES[1][0])):
        answered = times(job.run(f"ping -n -c {PINGS} -i 0.1 {address}", 60.0).stdout)
        if not answered:
            raise LabError(f"no ping to {address} was answered")
        found[place] = median(answered)
    return found


def _rate(name: str, found: Shares) -> float:
    return found.rates[name]


def _wait(to: str, found: Shares) -> float:
    """A round trip on the site, or how much longer than before one to the WAN is."""
    return found.full[to] - (found.idle[to] if to == "WAN" else 0.0)


def shares(kept: Kept[Shares], options: Options, lab: str) -> Result:
    """The groups' rates beside their shares, and the pings."""
    crowded = keep([Taken(each.value, replace(each.meanwhile, programs=True)) for each in kept.taken])
    names = tuple(PORTS)
    share = {name: options.rates.wan_queues[name] * options.part for name in names}
    rate_points = tuple(Point.judged(place, kept, partial(_rate, name)) for place, name in enumerate(names, 1))
    site, wan = (Point.judged(place, crowded, partial(_wait, to)) for place, to in enumerate(("site", "WAN"), 1))
    setting: dict[str, str | float | int | bool] = {
        "rates of the paper times": options.part,
        "jobs of each group": JOBS,
        "repetitions": options.repetitions,
        "lab": lab,
    }
    return Result(
        name="lark-transfers-shares",
        title="Groups with guarantees while both move their outputs to the WAN",
        source="",
        x_label="group",
        y_label="rate of its transfers, Mb/s of L2 bytes",
        series=(
            Series("transfers", rate_points),
            Series("its share", tuple(Point(place, share[name]) for place, name in enumerate(names, 1)), aim=True),
        ),
        checks=(
            Check.of(
                f"each group has its share within {WITHIN:.0%}",
                [(point.y / share[name], point.marked) for point, name in zip(rate_points, names, strict=True)],
                lambda ratio: abs(ratio - 1) <= WITHIN,
            ),
            Check.of(
                f"a third job's ping on the site takes at most {MOST_MS:g} ms meanwhile",
                [(site.y, site.marked)],
                lambda ms: ms <= MOST_MS,
                "{} ms",
            ),
            Check.of(
                f"a third job's ping to the WAN takes at most {MOST_MS:g} ms more than before",
                [(wan.y, wan.marked)],
                lambda ms: ms <= MOST_MS,
                "{} ms more",
            ),
        ),
        setting=setting,
        notes=(
            "The queues of Figure 10, for outputs that HTCondor's plugin for URLs uploads to a web server: a rule "
            "`transfers` without keys gives them the mark of their jobs' group. All jobs are on one worker; "
            "so is the third, in a group of its own.",
            "User Mode Linux has no nf_tables, by which workers mark. So this runs natively; where the kernel "
            "lacks Open vSwitch's module the queues are the kernel's (HTB), by the same marks, on the cable behind the "
            "core's WAN port, which has no delay there.",
        ),
        places=names,
        beside=Beside.of(kept.taken),
    )
