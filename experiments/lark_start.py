"""Lark's experiment on start-up: a job's network with DHCP, with a cached lease, and without DHCP.

Jobs with and without Lark, measured as ``python -m bench.start`` does it: one worker has Lark, the other one's HTCondor
has neither hook nor wrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from experiments import paper, reference
from experiments.beside import Kept, Taken, by_turns
from experiments.options import Options
from experiments.pool import READY, SITE, Pool
from experiments.result import Beside, Check, Point, Result, Series
from lab import kernel, starts
from lab.boot import Lab
from lab.settings import LabSettings, from_environment

# The worker service's record of each slot's last lease.
LEASES: Final = "/var/lib/lark-worker/leases"
# The site's DHCP server's log, and what it has from clients that ask for a lease.
SERVER_LOG: Final = "/var/log/dnsmasq.log"
MESSAGES: Final = ("discover", "request")
# Starts of each kind, and seconds that one takes about.
STARTS: Final = 10
SECONDS: Final = 6.0
KINDS: Final = ("without Lark", "address by the controller", "DHCP, new lease", "DHCP, cached lease")


def settings() -> LabSettings:
    """The lab's, natively where it would be User Mode Linux: there a system call costs several times what it does."""
    found = from_environment()
    if found.kind == "auto" and kernel.choose("auto").kind != "native":
        return replace(found, kind="userspace")
    return found


def run(options: Options) -> tuple[Result, ...]:
    """Every kind, in one lab."""
    chosen = settings()
    with Lab.start(chosen) as lab:
        lab.start_pool()
        pool = Pool(lab)
        pool.refer(reference.to_worker(reference.LEAST, SITE, starts.WITH))
        for worker, more in ((starts.WITH, ""), (starts.WITHOUT, starts.PLAIN)):
            lab.write(worker, starts.CONFIG, starts.DEBUG + more)
            lab.on(worker, "condor_reconfig")
        number = 2 if options.quick else STARTS
        found: dict[str, Kept[Mapping[str, float]]] = {}
        for wanted, kinds in (("controller", KINDS[:2]), ("dhcp", KINDS[2:])):
            pool.configure(starts.WITH, f'AddressType = "{wanted}"\n')
            pool.advertises(starts.WITH, "AddressType", wanted)
            for worker in (starts.WITHOUT, starts.WITH):
                # Work that is done once is no job's cost, and leaves a lease.
                starts.one(lab, worker)
            found |= by_turns({kind: partial(_measured, lab, pool, kind) for kind in kinds}, number)
        return (overhead(found, lab.choice.kind),)


def _measured(lab: Lab, pool: Pool, kind: str) -> Taken[Mapping[str, float]]:
    """One start of a kind: milliseconds of its stages, and the messages to the DHCP server."""
    worker = starts.WITHOUT if kind == KINDS[0] else starts.WITH
    if kind == KINDS[2]:
        lab.on(worker, "sh", "-c", f"rm -f {LEASES}/*")
    before = _asked(pool)
    with pool.watched(pool.now() + READY, SECONDS) as watched:
        stages = starts.stages(starts.one(lab, worker))
    asked = {name: number - before[name] for name, number in _asked(pool).items()}
    return Taken({**stages, **asked}, replace(watched(), programs=True))


def _asked(pool: Pool) -> dict[str, float]:
    """The number of each kind of message that the site's DHCP server has received from clients, by its log."""
    lines = (f"echo {name} $(grep -c 'DHCP{name.upper()}(' {SERVER_LOG})" for name in MESSAGES)
    words = (line.split() for line in pool.on(SITE, "\n".join(lines)).splitlines())
    return {name: float(number) for name, number in words}


def _exchanged(found: Mapping[str, Kept[Mapping[str, float]]]) -> Check:
    """Hold each start's DHCP messages to what its kind means (RFC 2131, sections 3.1 and 3.2)."""
    wrong = 0
    for kind, kept in found.items():
        wanted = (kind == KINDS[2], kind in KINDS[2:])
        wrong += sum(tuple(each[name] > 0 for name in MESSAGES) != wanted for each in kept.values)
    number = sum(len(kept.values) for kept in found.values())
    return Check(
        "a new lease takes DISCOVER and REQUEST, a cached one REQUEST alone, the others nothing, by the server's log",
        f"so in {number - wrong} of {number} starts",
        not wrong,
    )


def _seconds(stage: str, stages: Mapping[str, float]) -> float:
    return stages[stage] / 1000


def overhead(found: Mapping[str, Kept[Mapping[str, float]]], lab: str) -> Result:
    """Show the medians of each kind and hold what it adds to a job without Lark to the paper's, in seconds."""
    points = {
        stage: [Point.judged(place, kept, partial(_seconds, stage)) for place, kept in enumerate(found.values(), 1)]
        for stage in ("batch", "start")
    }
    added = {
        stage: [(one.y - several[0].y, one.marked or several[0].marked) for one in several]
        for stage, several in points.items()
    }
    fresh, cached = paper.OVERHEAD_S
    return Result(
        name="lark-start",
        title="Run time of an empty job, with and without a network of its own",
        source="Lark, section VII.B.1",
        x_label="network",
        y_label="seconds, medians",
        series=(
            Series("starter's begin to its end", tuple(points["batch"])),
            Series("hook's start to the job's first instruction", tuple(points["start"])),
        ),
        checks=(
            _exchanged(found),
            Check.of(
                f"with a new lease at most the paper's {fresh:g} s more than without Lark",
                added["batch"][2:3],
                lambda more: more <= fresh,
                "{} s more",
            ),
            Check.of(
                f"with a cached lease at most the paper's {cached:g} s more",
                added["batch"][3:],
                lambda more: more <= cached,
                "{} s more",
            ),
        ),
        setting={"starts of each kind": len(found[KINDS[0]].values), "lab": lab},
        notes=(
            f"The paper's batch jobs take about {fresh:g} s more with DHCP, and {cached:g} s with the lease cached.",
            "More than without Lark here, from the starter's begin to its end: "
            + ", ".join(
                f"{kind} {more:+.2f} s" for kind, (more, _) in list(zip(found, added["batch"], strict=True))[1:]
            )
            + ".",
            "A cached lease saves the paper's jobs 0.6 s of DHCP; here the server is on the same machine and answers "
            "at once, so that little is left to save. Without Lark there is no hook: the second column begins where it "
            "would start.",
            "Natively, since in User Mode Linux system calls are most of it. Where the machine's kernel lacks Open "
            "vSwitch's module, its userspace datapath carries the packets, those of the reference stream too.",
        ),
        places=tuple(found),
        beside=Beside.of(each for kept in found.values() for each in kept.taken),
    )
